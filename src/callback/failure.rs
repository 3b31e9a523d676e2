//! In which way a call failed, and why, in the words that stand with the job.

use std::error::Error;
use std::io;

use crate::topic::Failure;

/// Why a call brought no whole answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Failed {
    pub kind: Failure,
    /// For people.
    pub why: String,
    /// The connection had served before, and ended without a word about this request, which may be sent once more at once.
    pub is_stale: bool,
}

impl Failed {
    pub(super) fn new(kind: Failure, why: impl Into<String>) -> Failed {
        Failed { kind, why: why.into(), is_stale: false }
    }

    /// No connection came about: nothing of the request was sent.
    pub(super) fn no_connection(why: impl Into<String>) -> Failed {
        Failed::new(Failure::Connect, why)
    }

    /// What an error of a connection that is being made means.
    pub(super) fn of_connection(e: &io::Error) -> Failed {
        Failed::no_connection(match tls(e) {
            Some(rustls::Error::InvalidMessage(e)) => {
                format!("TLS: what answers speaks no TLS ({e:?})")
            }
            Some(tls) => format!("TLS: {tls}"),
            None if e.kind() == io::ErrorKind::UnexpectedEof => "it was closed while it was made".to_owned(),
            None => e.to_string(),
        })
    }

    /// What an error of an exchange means. `heard`: something of an answer had come.
    pub(super) fn of_exchange(e: &hyper::Error, heard: bool) -> Failed {
        let cause = io_cause(e);
        if let Some(tls) = cause.and_then(tls) {
            // A receiver that wants another certificate of dq says so when the first is sent.
            let kind = match tls {
                rustls::Error::AlertReceived(_) => Failure::Connect,
                _ => Failure::Broken,
            };
            return Failed::new(kind, format!("TLS: {tls}"));
        }
        let why = match cause {
            _ if e.is_parse_too_large() => {
                format!("the head of the answer is longer than {HEAD_MAX} bytes, or 100 lines")
            }
            _ if e.is_parse() => format!("this is no HTTP answer: {}", root(e)),
            Some(cause) => cause.to_string(),
            None if is_end(e) && heard => "the connection was closed within the answer".to_owned(),
            None if is_end(e) => "the connection was closed without an answer".to_owned(),
            None => root(e),
        };
        Failed::new(Failure::Broken, why)
    }
}

/// The longest head of an answer, in bytes.
pub(super) const HEAD_MAX: usize = 64 << 10;

/// Whether the other side has closed.
pub(super) fn is_closed(e: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, NotConnected, UnexpectedEof};
    matches!(e.kind(), BrokenPipe | ConnectionAborted | ConnectionReset | NotConnected | UnexpectedEof)
}

/// Whether an exchange ended because the connection did.
pub(super) fn ended(e: &hyper::Error) -> bool {
    is_end(e) || io_cause(e).is_some_and(is_closed)
}

fn is_end(e: &hyper::Error) -> bool {
    e.is_incomplete_message() || e.is_canceled() || e.is_closed()
}

fn io_cause<'a>(e: &'a (dyn Error + 'static)) -> Option<&'a io::Error> {
    std::iter::successors(Some(e), |e| (*e).source()).find_map(|e| e.downcast_ref::<io::Error>())
}

fn tls(e: &io::Error) -> Option<&rustls::Error> {
    e.get_ref().and_then(|inner| inner.downcast_ref())
}

/// The first cause, in its own words.
fn root(e: &hyper::Error) -> String {
    let first: &dyn Error = e;
    std::iter::successors(Some(first), |e| (*e).source()).last().map(ToString::to_string).unwrap_or_default()
}
