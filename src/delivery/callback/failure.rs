//! How and why a call failed, in the words that are stored with the job.

use std::error::Error;
use std::io;

use model::topic::Failure;

/// Why a call brought no complete answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct CallFailure {
    pub kind: Failure,
    /// The reason, for people.
    pub why: String,
    /// Whether the connection had served requests before, and ended without an answer to this request. If so, the
    /// request may be sent one more time, without a pause.
    pub is_stale: bool,
}

impl CallFailure {
    pub(super) fn new(kind: Failure, why: impl Into<String>) -> CallFailure {
        CallFailure { kind, why: why.into(), is_stale: false }
    }

    /// Returns the failure that no connection could be made. Nothing of the request was sent.
    pub(super) fn no_connection(why: impl Into<String>) -> CallFailure {
        CallFailure::new(Failure::Connect, why)
    }

    /// Translates an error that prevented a connection.
    pub(super) fn of_connection(e: &io::Error) -> CallFailure {
        CallFailure::no_connection(match tls(e) {
            Some(rustls::Error::InvalidMessage(e)) => {
                format!("TLS: the receiver does not speak TLS ({e:?})")
            }
            Some(tls) => format!("TLS: {tls}"),
            None if e.kind() == io::ErrorKind::UnexpectedEof => {
                "the connection was closed while it was made".to_owned()
            }
            None => e.to_string(),
        })
    }

    /// Translates an error of a request or its answer. `heard`: whether a part of an answer had arrived.
    pub(super) fn of_exchange(e: &hyper::Error, heard: bool) -> CallFailure {
        let cause = io_cause(e);
        if let Some(tls) = cause.and_then(tls) {
            // A receiver that does not accept dq's certificate may report this only when dq sends the first data, after
            // the handshake. This still counts as a failed connection.
            let kind = match tls {
                rustls::Error::AlertReceived(_) => Failure::Connect,
                _ => Failure::Broken,
            };
            return CallFailure::new(kind, format!("TLS: {tls}"));
        }
        let why = match cause {
            _ if e.is_parse_too_large() => {
                format!("the head of the answer is longer than {HEAD_MAX} bytes, or 100 lines")
            }
            _ if e.is_parse() => format!("the answer is not HTTP: {}", root(e)),
            Some(cause) => cause.to_string(),
            None if is_end(e) && heard => "the connection was closed in the middle of the answer".to_owned(),
            None if is_end(e) => "the connection was closed without an answer".to_owned(),
            None => root(e),
        };
        CallFailure::new(Failure::Broken, why)
    }
}

/// The maximum length of the head of an answer, in bytes.
pub(super) const HEAD_MAX: usize = 64 << 10;

/// Returns whether the error means that the other side has closed the connection.
pub(super) fn is_closed(e: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, NotConnected, UnexpectedEof};
    matches!(e.kind(), BrokenPipe | ConnectionAborted | ConnectionReset | NotConnected | UnexpectedEof)
}

/// Returns whether a request or its answer failed because the connection ended.
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

/// Returns the text of the error's innermost cause.
fn root(e: &hyper::Error) -> String {
    let first: &dyn Error = e;
    std::iter::successors(Some(first), |e| (*e).source()).last().map(ToString::to_string).unwrap_or_default()
}
