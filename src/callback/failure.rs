//! In which way a call failed, and why, in the words that stand with the job.

use std::time::Duration;

use ureq::Error;

use super::connect::{NoConnection, Stale};
use super::resolve::NoAddress;
use crate::topic::{Failure, Topic};

/// What went wrong before an answer had come whole.
pub(super) fn failure(error: &Error, topic: &Topic) -> (Failure, String) {
    let humane = |span: Duration| humantime::format_duration(span);
    match error {
        Error::Other(e) => match e.downcast_ref::<NoConnection>() {
            Some(NoConnection(Error::Timeout(ureq::Timeout::Connect))) => {
                (Failure::Connect, format!("no connection within {}", humane(topic.connect_timeout)))
            }
            Some(NoConnection(Error::Timeout(_))) => {
                (Failure::Connect, format!("no connection within {}", humane(topic.timeout)))
            }
            Some(NoConnection(inner)) => (Failure::Connect, of_connection(inner)),
            None if e.is::<NoAddress>() => (Failure::Connect, e.to_string()),
            None => (Failure::Broken, e.to_string()),
        },
        Error::Timeout(_) => (Failure::Timeout, format!("no whole answer within {}", humane(topic.timeout))),
        Error::HostNotFound | Error::BadUri(_) | Error::Http(_) => (Failure::Connect, error.to_string()),
        Error::Io(e) => match e.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>()) {
            // A receiver that wants another certificate of dq says so when the first is sent.
            Some(tls @ rustls::Error::AlertReceived(_)) => (Failure::Connect, format!("TLS: {tls}")),
            Some(tls) => (Failure::Broken, format!("TLS: {tls}")),
            None => (Failure::Broken, e.to_string()),
        },
        Error::Protocol(e) => (Failure::Broken, format!("this is no HTTP answer: {e}")),
        Error::LargeResponseHeader(_, most) => {
            (Failure::Broken, format!("the head of the answer is longer than {most} bytes"))
        }
        other => (Failure::Broken, other.to_string()),
    }
}

fn of_connection(error: &Error) -> String {
    match error {
        Error::Io(e) => match e.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>()) {
            Some(rustls::Error::InvalidMessage(e)) => format!("TLS: what answers speaks no TLS ({e:?})"),
            Some(tls) => format!("TLS: {tls}"),
            None => e.to_string(),
        },
        other => other.to_string(),
    }
}

/// Whether the request may be sent once more at once: the connection had served before, and nothing of an answer came.
pub(super) fn is_stale(error: &Error) -> bool {
    matches!(error, Error::Other(e) if e.is::<Stale>())
}
