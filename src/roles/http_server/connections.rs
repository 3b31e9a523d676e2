//! Connections: who is let in, how they are kept, and their end. A dq-http-server that another one takes the place of answers each of its connections once
//! more, with `Connection: close`, so that no client finds a connection closed on which it was about to ask; one that is idle
//! for too long meanwhile is closed, as HTTP allows at any time.

use std::convert::Infallible;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Result;
use axum::Router;
use axum::http::header::CONNECTION;
use axum::http::{HeaderValue, Request};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service as _, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

use super::access::Peer;
use super::patience::Patient;
use super::tls;
use crate::excerpt::Excerpt;
use crate::role::Drain;
use crate::settings::Http;
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
    Tcp(TcpStream, IpAddr),
    Unix(UnixStream),
}

impl Doors {
    /// The next one.
    pub(super) async fn enter(&self) -> std::io::Result<Entered> {
        tokio::select! {
            tcp = self.tcp.accept() => tcp.map(|(stream, peer)| Entered::Tcp(stream, peer.ip().to_canonical())),
            unix = self.unix.accept() => unix.map(|(stream, _)| Entered::Unix(stream)),
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
    app: TowerToHyperService<Router>,
    http: Http,
    tls: Option<TlsAcceptor>,
    /// One is taken by each connection of the port.
    room: Arc<Semaphore>,
    turned_away: u64,
    stage: watch::Sender<Stage>,
    pub open: JoinSet<()>,
}

impl Connections {
    pub(super) fn new(app: Router, http: &Http) -> Result<Connections> {
        Ok(Connections {
            app: TowerToHyperService::new(app),
            tls: http.tls.as_ref().map(tls::acceptor).transpose()?,
            room: Arc::new(Semaphore::new(http.max_connections)),
            http: http.clone(),
            turned_away: 0,
            stage: watch::Sender::new(Stage::Open),
            open: JoinSet::new(),
        })
    }

    pub(super) fn enter_stage(&self, stage: Stage) {
        self.stage.send_if_modified(|now| std::mem::replace(now, stage) != stage);
    }

    /// Serves a connection to its end; or closes it, if it is not to be.
    pub(super) fn attend(&mut self, entered: Entered) {
        match entered {
            Entered::Unix(stream) => {
                let user = stream.peer_cred().map(|peer| peer.uid()).ok();
                self.open.spawn(self.course(Peer::User(user)).serve(stream));
            }
            Entered::Tcp(stream, ip) => match self.admit(ip) {
                Ok(room) => {
                    let (course, tls) = (self.course(Peer::Address(ip)), self.tls.clone());
                    self.open.spawn(async move {
                        let _room = room;
                        course.begin(stream, tls).await;
                    });
                }
                Err(why) => {
                    self.turned_away += 1;
                    // A flood of them is not a flood of lines.
                    if self.turned_away.is_power_of_two() {
                        log::warn!("{ip} is turned away: {why} ({} so far)", self.turned_away);
                    }
                }
            },
        }
    }

    /// Whether a client of the port is let in.
    fn admit(&self, ip: IpAddr) -> std::result::Result<OwnedSemaphorePermit, String> {
        let Http { allow, max_connections, .. } = &self.http;
        if !allow.is_empty() && !allow.iter().any(|net| net.contains(&ip)) {
            return Err("http.allow does not name it".to_owned());
        }
        let full = || format!("{max_connections} connections are open (http.max_connections)");
        Arc::clone(&self.room).try_acquire_owned().map_err(|_| full())
    }

    fn course(&self, peer: Peer) -> Course {
        let (app, stage) = (self.app.clone(), self.stage.subscribe());
        Course { app, peer, stage, idle_timeout: self.http.idle_timeout }
    }
}

/// What a connection goes through.
struct Course {
    app: TowerToHyperService<Router>,
    peer: Peer,
    stage: watch::Receiver<Stage>,
    idle_timeout: Duration,
}

impl Course {
    /// Of one of the port: with TLS it is agreed upon first.
    async fn begin(self, stream: TcpStream, tls: Option<TlsAcceptor>) {
        if let Err(e) = stream.set_nodelay(true) {
            log::debug!("http: cannot set TCP_NODELAY: {e}");
        }
        let Some(tls) = tls else { return self.serve(stream).await };
        match tokio::time::timeout(tls::HANDSHAKE, tls.accept(stream)).await {
            Ok(Ok(stream)) => self.serve(stream).await,
            Ok(Err(e)) => log::debug!("http: no TLS: {}", Excerpt(e)),
            Err(_) => log::debug!("http: no TLS within {:?}", tls::HANDSHAKE),
        }
    }

    async fn serve(self, stream: impl Stream) {
        let Course { app, peer, mut stage, idle_timeout } = self;
        let at_answer = stage.clone();
        let service = service_fn(move |mut request: Request<Incoming>| {
            request.extensions_mut().insert(peer);
            let (answer, stage) = (app.call(request), at_answer.clone());
            async move {
                let mut answer = answer.await?;
                if *stage.borrow() != Stage::Open {
                    answer.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
                }
                Ok::<_, Infallible>(answer)
            }
        });
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            // It counts from the answer before, too: that is how long a connection may be idle.
            .header_read_timeout(idle_timeout)
            .serve_connection(TokioIo::new(Patient::new(stream, idle_timeout)), service);
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
            log::debug!("http: {}", Excerpt(e));
        }
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
