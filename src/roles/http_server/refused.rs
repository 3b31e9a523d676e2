//! What the log says of requests that are refused: the first of a source, and a line a minute with how many there were.

use std::sync::Mutex;

use axum::extract::Request;
use axum::http::{Method, Uri};
use axum::response::Response;
use tokio::sync::Notify;

use super::access::{HasToken, Peer};
use super::problem::Reason;
use super::until;
use crate::excerpt::Excerpt;
use crate::role::{RefusalLog, lock};

/// What stands before a ticket, which is as good as a password and is not written down.
const ACK: &str = "/v1/ack/";

/// The requests that are refused.
#[derive(Default)]
pub(super) struct RefusedRequests {
    log: Mutex<RefusalLog>,
    /// There is something to be logged later.
    begun: Notify,
}

/// A request, as far as it is logged when it is refused.
pub(super) struct RequestLine {
    peer: Peer,
    method: Method,
    uri: Uri,
}

impl RequestLine {
    pub(super) fn of(request: &Request) -> RequestLine {
        let peer = request.extensions().get::<Peer>().copied().unwrap_or(Peer::User(None));
        RequestLine { peer, method: request.method().clone(), uri: request.uri().clone() }
    }

    /// What was asked and how it was answered, of bounded length.
    fn text(&self, response: &Response, Reason(reason): &Reason, id: &str) -> String {
        let path = self.uri.path();
        // Also where a proxy has left a path of its own before it.
        let path = path.rfind(ACK).map_or_else(|| path.to_owned(), |at| format!("{}{ACK}…", &path[..at]));
        let (method, path) = (Excerpt(&self.method), Excerpt(&path));
        format!("{method} {path}: {} {reason} [{id}]", response.status().as_u16())
    }
}

impl RefusedRequests {
    /// Records a request under its id, if its answer says that it is refused.
    pub(super) fn record(&self, asked: &RequestLine, response: &Response, id: &str) {
        let Some(reason) = response.extensions().get::<Reason>() else { return };
        let has_token = response.extensions().get::<HasToken>().is_some();
        lock(&self.log).record(asked.peer.source(), has_token, || asked.text(response, reason, id));
        self.begun.notify_one();
    }

    /// Logs the counts whenever a minute is over; for ever.
    pub(super) async fn log_each_minute(&self) {
        loop {
            let due = lock(&self.log).due();
            match due {
                None => self.begun.notified().await,
                Some(due) => until(Some(due)).await,
            }
            lock(&self.log).log_due(std::time::Instant::now());
        }
    }

    /// Logs all counts: the process ends.
    pub(super) fn log_rest(&self) {
        lock(&self.log).log_rest();
    }
}
