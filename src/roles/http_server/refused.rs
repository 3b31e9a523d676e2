//! The log lines about refused requests. The first refused request of each source gets a line. Then one line a minute
//! has the number of further requests.

use std::sync::Mutex;

use axum::extract::Request;
use axum::http::{Method, Uri};
use axum::response::Response;
use tokio::sync::Notify;

use super::access::{AuthenticatedMark, Peer};
use super::problem::RefusalReason;
use super::until;
use model::excerpt::Excerpt;
use role::{RefusalLog, lock};

/// The path before a ticket. A ticket works like a password, so it is not logged.
const ACK: &str = "/v1/ack/";

/// The refused requests.
#[derive(Default)]
pub(super) struct RefusedRequests {
    log: Mutex<RefusalLog>,
    /// Signals that a request was refused, so counts may have to be logged later.
    begun: Notify,
}

/// The parts of a request that are logged if it is refused.
pub(super) struct RequestLine {
    peer: Peer,
    method: Method,
    uri: Uri,
}

impl RequestLine {
    pub(super) fn new(request: &Request) -> RequestLine {
        let peer = request.extensions().get::<Peer>().copied().unwrap_or(Peer::User(None));
        RequestLine { peer, method: request.method().clone(), uri: request.uri().clone() }
    }

    /// Returns the request and its answer as a text of bounded length.
    fn text(&self, response: &Response, RefusalReason(reason): &RefusalReason, id: &str) -> String {
        let path = self.uri.path();
        // A proxy may have added a prefix to the path, so `ACK` is not always at the beginning of the path.
        let path = path.rfind(ACK).map_or_else(|| path.to_owned(), |at| format!("{}{ACK}…", &path[..at]));
        let (method, path) = (Excerpt(&self.method), Excerpt(&path));
        format!("{method} {path}: {} {reason} [{id}]", response.status().as_u16())
    }
}

impl RefusedRequests {
    /// Records a request with its id, if the answer says that the request was refused.
    pub(super) fn record(&self, asked: &RequestLine, response: &Response, id: &str) {
        let Some(reason) = response.extensions().get::<RefusalReason>() else { return };
        let has_token = response.extensions().get::<AuthenticatedMark>().is_some();
        lock(&self.log).record(asked.peer.source(), has_token, || asked.text(response, reason, id));
        self.begun.notify_one();
    }

    /// Logs the counts once a minute, forever.
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

    /// Logs all remaining counts, when the process ends.
    pub(super) fn log_rest(&self) {
        lock(&self.log).log_rest();
    }
}
