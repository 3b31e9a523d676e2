//! Kept connections, and their end. A dq-http-server that another one takes the place of answers each of its connections once
//! more, with `Connection: close`, so that no client finds a connection closed on which it was about to ask; one that is idle
//! for too long meanwhile is closed, as HTTP allows at any time.

use std::time::{Duration, Instant};

use axum::Router;
use axum::http::HeaderValue;
use axum::http::header::CONNECTION;
use axum::middleware::map_response;
use axum::response::Response;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::role::Drain;
use crate::submit::STORE_TIMEOUT;

/// How long a drain for a successor waits for the last requests of kept connections.
const LAST_REQUESTS: Duration = Duration::from_secs(5);

/// How long a drain waits for requests that are being answered: the store may take its time.
const LAST_ANSWERS: Duration = STORE_TIMEOUT.saturating_add(Duration::from_secs(5));

/// Where connections come in.
pub(super) struct Doors {
    pub tcp: TcpListener,
    pub unix: UnixListener,
}

/// An open connection.
pub(super) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

/// One that has come in, and by which door.
pub(super) enum Entered {
    Tcp(Box<dyn Stream>),
    Unix(Box<dyn Stream>),
}

impl Doors {
    /// The next one.
    pub(super) async fn enter(&self) -> std::io::Result<Entered> {
        tokio::select! {
            tcp = self.tcp.accept() => {
                let (stream, _) = tcp?;
                stream.set_nodelay(true)?;
                Ok(Entered::Tcp(Box::new(stream)))
            }
            unix = self.unix.accept() => Ok(Entered::Unix(Box::new(unix?.0))),
        }
    }

    /// One that has come in already.
    pub(super) async fn enter_now(&self) -> Option<Entered> {
        tokio::select! {
            biased;
            stream = self.enter() => stream.ok(),
            () = std::future::ready(()) => None,
        }
    }
}

/// What becomes of connections after an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Stage {
    /// They are kept.
    Open,
    /// The next answer is the last.
    LastRequest,
    /// What is being answered is answered, and that is all.
    LastAnswer,
}

/// The open connections.
pub(super) struct Connections {
    /// What is served to whom comes in by TCP.
    tcp: Router,
    /// And by the Unix socket.
    unix: Router,
    stage: watch::Sender<Stage>,
    pub open: JoinSet<()>,
}

impl Connections {
    pub(super) fn new(tcp: Router, unix: Router) -> Connections {
        Connections { tcp, unix, stage: watch::Sender::new(Stage::Open), open: JoinSet::new() }
    }

    pub(super) fn enter_stage(&self, stage: Stage) {
        self.stage.send_if_modified(|now| std::mem::replace(now, stage) != stage);
    }

    /// Serves a connection to its end.
    pub(super) fn attend(&mut self, entered: Entered) {
        let (stream, app) = match entered {
            Entered::Tcp(stream) => (stream, &self.tcp),
            Entered::Unix(stream) => (stream, &self.unix),
        };
        let (mut stage, at_answer) = (self.stage.subscribe(), self.stage.subscribe());
        let close_at_last = move |mut answer: Response| {
            if *at_answer.borrow() != Stage::Open {
                answer.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
            }
            std::future::ready(answer)
        };
        let service = TowerToHyperService::new(app.clone().layer(map_response(close_at_last)));
        self.open.spawn(async move {
            let connection = http1::Builder::new()
                .timer(TokioTimer::new())
                .serve_connection(TokioIo::new(stream), service);
            let mut connection = std::pin::pin!(connection);
            let last_answer = async {
                let _ = stage.wait_for(|stage| *stage == Stage::LastAnswer).await;
            };
            let ended = tokio::select! {
                ended = connection.as_mut() => Some(ended),
                () = last_answer => None,
            };
            let ended = match ended {
                Some(ended) => ended,
                None => {
                    connection.as_mut().graceful_shutdown();
                    connection.await
                }
            };
            if let Err(e) = ended {
                log::debug!("http: {e}");
            }
        });
    }
}

/// The course of a drain.
#[derive(Debug, Clone, Copy)]
pub(super) struct End {
    /// Until when requests are answered once more.
    requests_until: Instant,
    /// Until when answers are finished.
    answers_until: Instant,
}

impl End {
    pub(super) fn begin(now: Instant) -> End {
        End { requests_until: now + LAST_REQUESTS, answers_until: now + LAST_REQUESTS + LAST_ANSWERS }
    }

    /// What becomes of connections now; none: they are cut.
    pub(super) fn stage(&mut self, drain: Drain, now: Instant) -> Option<Stage> {
        if !drain.successor && now < self.requests_until {
            (self.requests_until, self.answers_until) = (now, now + LAST_ANSWERS);
        }
        self.answers_until = drain.until.map_or(self.answers_until, |until| until.min(self.answers_until));
        match () {
            () if now >= self.answers_until => None,
            () if now >= self.requests_until => Some(Stage::LastAnswer),
            () => Some(Stage::LastRequest),
        }
    }

    /// When that changes.
    pub(super) fn next(&self, now: Instant) -> Instant {
        if now < self.requests_until { self.requests_until } else { self.answers_until }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_successor_leaves_time_for_a_last_request_and_nothing_else_does() {
        let now = Instant::now();
        let successor = Drain { until: None, successor: true };
        let alone = Drain { until: Some(now + Duration::from_secs(30)), successor: false };
        let mut end = End::begin(now);
        assert_eq!(end.stage(successor, now), Some(Stage::LastRequest));
        assert_eq!(end.stage(successor, now + LAST_REQUESTS), Some(Stage::LastAnswer));
        assert_eq!(end.next(now + LAST_REQUESTS), now + LAST_REQUESTS + LAST_ANSWERS);
        assert_eq!(end.stage(successor, now + LAST_REQUESTS + LAST_ANSWERS), None);

        let mut end = End::begin(now);
        assert_eq!(end.stage(alone, now), Some(Stage::LastAnswer));
        assert_eq!(end.stage(alone, now + LAST_ANSWERS), None);

        // A drain that becomes one without a successor, and shorter.
        let mut end = End::begin(now);
        assert_eq!(end.stage(successor, now), Some(Stage::LastRequest));
        let soon = Drain { until: Some(now + Duration::from_secs(1)), successor: false };
        assert_eq!(end.stage(soon, now), Some(Stage::LastAnswer));
        assert_eq!(end.next(now), now + Duration::from_secs(1));
    }
}
