//! A connection to a receiver, with hyper's state for it. The task that waits for an answer also reads and writes the
//! connection. So a request and its answer wake no other task. No task works on an idle connection.

use std::collections::HashMap;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::time::{Duration, Instant};

use http_body_util::{BodyExt as _, Full};
use hyper::Request;
use hyper::body::{Body as _, Bytes, Incoming};
use hyper::client::conn::http1::{Builder, Connection, SendRequest};
use hyper::http::response;
use hyper_util::rt::TokioIo;
use tokio::time::timeout_at;

use super::connect::{MonitoredStream, ReadMonitor};
use super::failure::{CallFailure, HEAD_MAX, ended};
use super::judge::BodyCompleteness;
use model::topic::Failure;

/// How long an idle connection is kept.
pub(super) const IDLE: Duration = Duration::from_secs(15);

type Driver = Connection<TokioIo<MonitoredStream>, Full<Bytes>>;

/// A connection that sends one request after another. (It is used in a `Box`, because it is large and is moved often.)
pub(super) struct PooledConnection {
    sender: SendRequest<Full<Bytes>>,
    /// None: the connection has ended.
    driver: Option<Driver>,
    monitor: Arc<ReadMonitor>,
    served: bool,
}

/// The part of an answer's body that arrived.
pub(super) struct ReceivedBody {
    pub bytes: Vec<u8>,
    pub end: BodyCompleteness,
}

/// Waits for a future. Meanwhile, polls the task of the connection, because the future needs the data that the
/// connection reads.
async fn drive<F: Future>(driver: &mut Option<Driver>, wanted: F) -> F::Output {
    let mut wanted = pin!(wanted);
    poll_fn(|cx| {
        if let Some(running) = driver
            && Pin::new(running).poll(cx).is_ready()
        {
            // The result is not needed here, because the future that waits for an answer also gets the error.
            *driver = None;
        }
        wanted.as_mut().poll(cx)
    })
    .await
}

impl PooledConnection {
    pub(super) async fn over(socket: MonitoredStream) -> Result<Box<PooledConnection>, CallFailure> {
        let monitor = socket.monitor();
        let shaken = Builder::new().max_buf_size(HEAD_MAX).handshake(TokioIo::new(socket)).await;
        let (sender, driver) = shaken.map_err(|e| CallFailure::of_exchange(&e, false))?;
        Ok(Box::new(PooledConnection { sender, driver: Some(driver), monitor, served: false }))
    }

    /// Sends a request, and waits for the head of its answer. `late`: the failure if the head does not arrive in time.
    pub(super) async fn send(
        &mut self,
        request: Request<Full<Bytes>>,
        until: tokio::time::Instant,
        late: impl Fn() -> CallFailure,
    ) -> Result<(response::Parts, Incoming), CallFailure> {
        self.monitor.listen();
        let answer = self.sender.send_request(request);
        match timeout_at(until, drive(&mut self.driver, answer)).await {
            Err(_) => Err(late()),
            Ok(Ok(response)) => {
                self.monitor.note_head_complete();
                Ok(response.into_parts())
            }
            Ok(Err(e)) => {
                let heard = self.monitor.has_received();
                // (If the request was cancelled, it was never sent. In this case, bytes that have arrived are not its
                // answer, and are ignored.)
                let is_stale = self.served && (!heard && ended(&e) || e.is_canceled());
                Err(CallFailure { is_stale, ..CallFailure::of_exchange(&e, heard) })
            }
        }
    }

    /// Reads the body of an answer, up to `most` bytes.
    pub(super) async fn read(
        &mut self,
        mut body: Incoming,
        most: usize,
        until: tokio::time::Instant,
        late: impl Fn() -> CallFailure,
    ) -> ReceivedBody {
        let mut came = ReceivedBody { bytes: Vec::new(), end: BodyCompleteness::Whole };
        while !body.is_end_stream() {
            let broken = match timeout_at(until, drive(&mut self.driver, body.frame())).await {
                Ok(None) => return came,
                Ok(Some(Ok(frame))) => {
                    if let Ok(data) = frame.into_data() {
                        let left = most - came.bytes.len();
                        came.bytes.extend_from_slice(&data[..data.len().min(left)]);
                        if data.len() > left {
                            came.end = BodyCompleteness::Cut;
                            return came;
                        }
                    }
                    continue;
                }
                Ok(Some(Err(e))) => CallFailure::of_exchange(&e, true),
                Err(_) => late(),
            };
            came.end = BodyCompleteness::Broken(broken.kind, broken.why);
            return came;
        }
        came
    }

    /// Returns false if it is known that the connection has ended.
    pub(super) fn runs(&self) -> bool {
        self.driver.is_some() && !self.sender.is_closed()
    }

    /// Returns whether another request may be sent on the connection.
    async fn is_good(&mut self) -> bool {
        let Some(driver) = &mut self.driver else { return false };
        let sender = &mut self.sender;
        poll_fn(|cx| {
            let goes_on = Pin::new(&mut *driver).poll(cx).is_pending();
            Poll::Ready(goes_on && matches!(sender.poll_ready(cx), Poll::Ready(Ok(()))))
        })
        .await
    }
}

/// The idle connections, by scheme, host and port.
pub(super) struct ConnectionPool {
    /// The maximum number of idle connections that are kept for one receiver, and for all receivers together.
    most: (usize, usize),
    lines: Mutex<IdleConnectionMap>,
}

#[derive(Default)]
struct IdleConnectionMap {
    by_origin: HashMap<Box<str>, Vec<(Instant, Box<PooledConnection>)>>,
    count: usize,
}

impl IdleConnectionMap {
    /// Closes connections that have been idle for too long.
    fn purge(&mut self) {
        self.by_origin.retain(|_, lines| {
            lines.retain(|(since, _)| since.elapsed() < IDLE);
            !lines.is_empty()
        });
        self.count = self.by_origin.values().map(Vec::len).sum();
    }
}

impl ConnectionPool {
    /// Makes a pool that keeps up to `of_each` connections to each receiver.
    pub(super) fn new(of_each: usize) -> ConnectionPool {
        ConnectionPool { most: (of_each, of_each.saturating_mul(4)), lines: Mutex::default() }
    }

    fn lines(&self) -> MutexGuard<'_, IdleConnectionMap> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a usable connection to the receiver `origin`: the connection that was used last. So the other
    /// connections stay idle, and are closed after a while.
    pub(super) async fn take(&self, origin: &str) -> Option<Box<PooledConnection>> {
        loop {
            let (since, mut line) = {
                let mut lines = self.lines();
                let taken = lines.by_origin.get_mut(origin)?.pop()?;
                lines.count -= 1;
                taken
            };
            if since.elapsed() < IDLE && line.is_good().await {
                return Some(line);
            }
        }
    }

    /// Closes connections that have been idle for too long. Returns whether other idle connections are left.
    pub(super) fn purge(&self) -> bool {
        let mut lines = self.lines();
        lines.purge();
        lines.count > 0
    }

    /// Keeps a connection after its answer has arrived completely. If the pool is full, closes the connection.
    pub(super) fn put(&self, origin: &str, mut line: Box<PooledConnection>) {
        line.served = true;
        let mut lines = self.lines();
        if lines.count >= self.most.1 {
            lines.purge();
        }
        let room = lines.count < self.most.1;
        match lines.by_origin.get_mut(origin) {
            Some(there) if room && there.len() < self.most.0 => there.push((Instant::now(), line)),
            None if room => drop(lines.by_origin.insert(origin.into(), vec![(Instant::now(), line)])),
            _ => return,
        }
        lines.count += 1;
    }
}

/// Returns the failure of an answer that does not arrive in time.
pub(super) fn late(within: Duration) -> CallFailure {
    CallFailure::new(
        Failure::Timeout,
        format!("no whole answer within {}", humantime::format_duration(within)),
    )
}
