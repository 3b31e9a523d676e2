//! Connections: how connections are served, and how they end.
//!
//! A dq-http-server that is replaced by a new one answers one more request on each connection. This answer has
//! `Connection: close`, so that no connection is closed just when its client sends a request. If a connection stays
//! idle for too long during this drain, dq closes the connection. HTTP allows this at any time.
//!
//! A connection is also closed if no caller on the connection soon proves who the caller is (with a token, a session or
//! a ticket). If callers need no proof, any request is enough.

use std::convert::Infallible;
use std::net::IpAddr;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
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
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

use super::access::Peer;
use super::places::ConnectionLimiter;
use super::pool::{PoolHolder, ResourcePool};
use super::presence::ClientPresence;
use super::tls;
use super::unread;
use super::write_timeout::WriteTimeout;
use model::excerpt::Excerpt;
use model::settings::HttpSettings;
use role::DrainOrder;
use role::submit::STORE_TIMEOUT;
use role::tls::HANDSHAKE;

/// If a new dq-http-server has taken over: how long the drain waits for one more request on each kept connection.
const LAST_REQUESTS: Duration = Duration::from_secs(5);

/// How long a drain waits for requests that are being answered. The store may need its full timeout for such a request.
const LAST_ANSWERS: Duration = STORE_TIMEOUT.saturating_add(Duration::from_secs(5));

/// The size of a connection's buffer for the head of a request, in bytes. `limits` allows fewer bytes, and refuses a
/// longer head with an answer that says why. A body is read in parts of at most this length.
const HEAD_MAX: usize = 64 << 10;

/// The time in which a caller on a new connection must prove who it is.
const PROOF_PATIENCE: Duration = Duration::from_secs(10);

/// How much longer than [`PROOF_PATIENCE`] a request may take on a connection without a proof.
const UNPROVED_REQUEST: Duration = Duration::from_secs(10);

/// The sockets that accept connections.
pub(super) struct Listeners {
    pub tcp: TcpListener,
    pub unix: UnixListener,
}

/// An open connection.
pub(super) trait Stream: AsyncRead + AsyncWrite + AsRawFd + Send + Unpin {}
impl<S: AsyncRead + AsyncWrite + AsRawFd + Send + Unpin> Stream for S {}

/// An accepted connection, with the client's address if the client connected to the port.
pub(super) enum AcceptedStream {
    Tcp(TcpStream, IpAddr),
    Unix(UnixStream),
}

impl Listeners {
    /// Waits for the next connection.
    pub(super) async fn enter(&self) -> std::io::Result<AcceptedStream> {
        tokio::select! {
            tcp = self.tcp.accept() => tcp.map(|(stream, peer)| AcceptedStream::Tcp(stream, peer.ip().to_canonical())),
            unix = self.unix.accept() => unix.map(|(stream, _)| AcceptedStream::Unix(stream)),
        }
    }

    /// Returns a connection that the kernel has already accepted, if there is one.
    pub(super) async fn accept_waiting(&self) -> Option<AcceptedStream> {
        tokio::select! {
            biased;
            stream = self.enter() => stream.ok(),
            () = std::future::ready(()) => None,
        }
    }
}

/// When the open connections end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum DrainStage {
    /// The connections are kept.
    Open,
    /// Each connection ends after the answer to its next request.
    LastRequest,
    /// Each connection ends after the answer that is in progress.
    LastAnswer,
}

/// The open connections.
pub(super) struct Connections {
    app: TowerToHyperService<Router>,
    unread: ResourcePool,
    idle_timeout: Duration,
    tls: Option<TlsAcceptor>,
    /// Decides which clients may connect to the port, and limits how many connections it has.
    places: ConnectionLimiter,
    stage: watch::Sender<DrainStage>,
    pub open: JoinSet<()>,
}

impl Connections {
    pub(super) fn new(app: Router, http: &HttpSettings) -> Result<Connections> {
        Ok(Connections {
            app: TowerToHyperService::new(app),
            unread: unread::pool(),
            tls: http.tls.as_ref().map(tls::acceptor).transpose()?,
            places: ConnectionLimiter::new(
                "http",
                &http.allow,
                http.max_connections,
                http.max_connections_per_source,
            ),
            idle_timeout: http.idle_timeout,
            stage: watch::Sender::new(DrainStage::Open),
            open: JoinSet::new(),
        })
    }

    pub(super) fn enter_stage(&self, stage: DrainStage) {
        self.stage.send_if_modified(|now| std::mem::replace(now, stage) != stage);
    }

    /// Serves a connection to its end. Closes it at once if the client may not connect.
    pub(super) fn serve_in_task(&mut self, entered: AcceptedStream) {
        match entered {
            AcceptedStream::Unix(stream) => {
                let user = stream.peer_cred().map(|peer| peer.uid()).ok();
                self.open.spawn(self.connection_task(Peer::User(user)).serve(stream));
            }
            AcceptedStream::Tcp(stream, ip) => {
                let Some(place) = self.places.admit(ip) else { return };
                let (course, tls) = (self.connection_task(Peer::Address(ip)), self.tls.clone());
                self.open.spawn(async move {
                    let _place = place;
                    course.begin(stream, tls).await;
                });
            }
        }
    }

    fn connection_task(&self, peer: Peer) -> ConnectionTask {
        let (app, stage) = (self.app.clone(), self.stage.subscribe());
        ConnectionTask { app, unread: self.unread.clone(), peer, stage, idle_timeout: self.idle_timeout }
    }
}

/// Whether a caller on the connection has proved who it is. The value is an extension of each request.
#[derive(Debug, Clone, Default)]
pub(super) struct AuthenticatedFlag(Arc<AtomicBool>);

impl AuthenticatedFlag {
    /// Records that a caller has proved who it is.
    pub(super) fn record(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Waits for the time `patience`. If a caller on the connection has proved who the caller is before that time, the
    /// function never returns.
    async fn missing_after(&self, patience: Duration) {
        tokio::time::sleep(patience).await;
        if self.0.load(Ordering::Relaxed) {
            std::future::pending::<()>().await;
        }
    }
}

/// The task that serves one connection.
struct ConnectionTask {
    app: TowerToHyperService<Router>,
    unread: ResourcePool,
    peer: Peer,
    stage: watch::Receiver<DrainStage>,
    idle_timeout: Duration,
}

impl ConnectionTask {
    /// Serves a connection of the port. With TLS, the handshake comes first.
    async fn begin(self, stream: TcpStream, tls: Option<TlsAcceptor>) {
        if let Err(e) = stream.set_nodelay(true) {
            log::debug!("http: cannot set TCP_NODELAY: {e}");
        }
        let Some(tls) = tls else { return self.serve(stream).await };
        match tokio::time::timeout(HANDSHAKE, tls.accept(stream)).await {
            Ok(Ok(stream)) => self.serve(stream).await,
            Ok(Err(e)) => log::debug!("http: TLS handshake failed: {}", Excerpt(e)),
            Err(_) => log::debug!("http: no TLS handshake within {:?}", HANDSHAKE),
        }
    }

    async fn serve(self, stream: impl Stream) {
        let ConnectionTask { app, unread, peer, mut stage, idle_timeout } = self;
        // Large answers that are not read yet are limited for each address. The Unix socket has no such limit.
        let reader = match peer {
            Peer::Address(_) => Some(PoolHolder::Source(peer.source())),
            Peer::User(_) => None,
        };
        let at_answer = stage.clone();
        let proof = AuthenticatedFlag::default();
        let proof_of_requests = proof.clone();
        let (socket, presence) = (stream.as_raw_fd(), ClientPresence::default());
        let presence_of_requests = presence.clone();
        let service = service_fn(move |mut request: Request<Incoming>| {
            request.extensions_mut().insert(peer);
            request.extensions_mut().insert(proof_of_requests.clone());
            request.extensions_mut().insert(presence_of_requests.clone());
            let memory = unread::AnswerMemory { pool: unread.clone(), holder: reader.clone() };
            request.extensions_mut().insert(memory);
            let kind = unread::RequestEffect::to_request(&request);
            let (answer, stage) = (app.call(request), at_answer.clone());
            let (unread, reader) = (unread.clone(), reader.clone());
            async move {
                let answer = match kind.refusal(&unread, reader.as_ref()) {
                    Some(refusal) => refusal,
                    None => answer.await?,
                };
                let mut answer = unread::bound(kind, answer, &unread, reader).await?;
                if *stage.borrow() != DrainStage::Open {
                    answer.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
                }
                Ok::<_, Infallible>(answer)
            }
        });
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            // This timeout also counts from the end of the previous answer. So it limits how long a connection may be
            // idle.
            .header_read_timeout(idle_timeout)
            .max_buf_size(HEAD_MAX)
            .serve_connection(TokioIo::new(WriteTimeout::new(stream, idle_timeout)), service);
        let mut connection = std::pin::pin!(connection);
        // `_open` is dropped before the connection, because the connection closes the descriptor.
        let _open = presence.watch(socket);
        let last_answer = async {
            let _ = stage.wait_for(|stage| *stage == DrainStage::LastAnswer).await;
        };
        let ended = tokio::select! {
            ended = connection.as_mut() => Some(ended),
            () = last_answer => None,
            () = proof.missing_after(PROOF_PATIENCE) => {
                // If a request is in progress, its answer is the last answer on this connection.
                connection.as_mut().graceful_shutdown();
                tokio::select! {
                    ended = connection.as_mut() => Some(ended),
                    () = proof.missing_after(UNPROVED_REQUEST) => return,
                }
            }
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

/// The deadlines of a drain.
#[derive(Debug, Clone, Copy)]
pub(super) struct DrainDeadlines {
    /// The time until which a kept connection accepts another request.
    requests_until: Instant,
    /// The time until which answers may be finished.
    answers_until: Instant,
}

impl DrainDeadlines {
    pub(super) fn begin(now: Instant) -> DrainDeadlines {
        DrainDeadlines {
            requests_until: now + LAST_REQUESTS,
            answers_until: now + LAST_REQUESTS + LAST_ANSWERS,
        }
    }

    /// Returns what happens to connections now. None: the connections are cut.
    pub(super) fn stage(&mut self, drain: DrainOrder, now: Instant) -> Option<DrainStage> {
        if !drain.replaced && now < self.requests_until {
            (self.requests_until, self.answers_until) = (now, now + LAST_ANSWERS);
        }
        self.answers_until = drain.until.map_or(self.answers_until, |until| until.min(self.answers_until));
        match () {
            () if now >= self.answers_until => None,
            () if now >= self.requests_until => Some(DrainStage::LastAnswer),
            () => Some(DrainStage::LastRequest),
        }
    }

    /// Returns when the stage changes.
    pub(super) fn next(&self, now: Instant) -> Instant {
        if now < self.requests_until { self.requests_until } else { self.answers_until }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_new_process_leaves_time_for_a_last_request() {
        let now = Instant::now();
        let replaced = DrainOrder { until: None, replaced: true };
        let alone = DrainOrder { until: Some(now + Duration::from_secs(30)), replaced: false };
        let mut end = DrainDeadlines::begin(now);
        assert_eq!(end.stage(replaced, now), Some(DrainStage::LastRequest));
        assert_eq!(end.stage(replaced, now + LAST_REQUESTS), Some(DrainStage::LastAnswer));
        assert_eq!(end.next(now + LAST_REQUESTS), now + LAST_REQUESTS + LAST_ANSWERS);
        assert_eq!(end.stage(replaced, now + LAST_REQUESTS + LAST_ANSWERS), None);

        let mut end = DrainDeadlines::begin(now);
        assert_eq!(end.stage(alone, now), Some(DrainStage::LastAnswer));
        assert_eq!(end.stage(alone, now + LAST_ANSWERS), None);

        // During a drain, the new dq-http-server dies, and the drain gets a shorter deadline.
        let mut end = DrainDeadlines::begin(now);
        assert_eq!(end.stage(replaced, now), Some(DrainStage::LastRequest));
        let soon = DrainOrder { until: Some(now + Duration::from_secs(1)), replaced: false };
        assert_eq!(end.stage(soon, now), Some(DrainStage::LastAnswer));
        assert_eq!(end.next(now), now + Duration::from_secs(1));
    }
}
