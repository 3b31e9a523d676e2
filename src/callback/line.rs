//! A line to a receiver: a connection with what hyper makes of it. It is driven by whoever waits on it, in the same task, so that a
//! request and its answer wake nobody else; and lies idle as plain data meanwhile.

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

use super::connect::{Ear, Socket};
use super::failure::{Failed, HEAD_MAX, ended};
use super::judge::End;
use crate::topic::Failure;

/// For how long an idle line is kept.
pub(super) const IDLE: Duration = Duration::from_secs(15);

type Driver = Connection<TokioIo<Socket>, Full<Bytes>>;

/// A connection that requests go over, one after the other. (Boxed: it is large, and handed on often.)
pub(super) struct Line {
    sender: SendRequest<Full<Bytes>>,
    /// None: the connection has ended.
    driver: Option<Driver>,
    ear: Arc<Ear>,
    served: bool,
}

/// An answer's body, as far as it came.
pub(super) struct Came {
    pub bytes: Vec<u8>,
    pub end: End,
}

/// Waits for something that needs the connection to go on.
async fn drive<F: Future>(driver: &mut Option<Driver>, wanted: F) -> F::Output {
    let mut wanted = pin!(wanted);
    poll_fn(|cx| {
        if let Some(running) = driver
            && Pin::new(running).poll(cx).is_ready()
        {
            // Who waits for an answer is told why.
            *driver = None;
        }
        wanted.as_mut().poll(cx)
    })
    .await
}

impl Line {
    pub(super) async fn over(socket: Socket) -> Result<Box<Line>, Failed> {
        let ear = socket.ear();
        let shaken = Builder::new().max_buf_size(HEAD_MAX).handshake(TokioIo::new(socket)).await;
        let (sender, driver) = shaken.map_err(|e| Failed::of_exchange(&e, false))?;
        Ok(Box::new(Line { sender, driver: Some(driver), ear, served: false }))
    }

    /// Sends a request, and waits for the head of its answer. `late`: what it is when that does not come in time.
    pub(super) async fn send(
        &mut self,
        request: Request<Full<Bytes>>,
        until: tokio::time::Instant,
        late: impl Fn() -> Failed,
    ) -> Result<(response::Parts, Incoming), Failed> {
        self.ear.listen();
        let answer = self.sender.send_request(request);
        match timeout_at(until, drive(&mut self.driver, answer)).await {
            Err(_) => Err(late()),
            Ok(Ok(response)) => {
                self.ear.hear_body();
                Ok(response.into_parts())
            }
            Ok(Err(e)) => {
                let heard = self.ear.has_heard();
                // (What is cancelled was never begun: what was heard is a farewell, and no answer.)
                let is_stale = self.served && (!heard && ended(&e) || e.is_canceled());
                Err(Failed { is_stale, ..Failed::of_exchange(&e, heard) })
            }
        }
    }

    /// Reads an answer's body, up to so many bytes.
    pub(super) async fn read(
        &mut self,
        mut body: Incoming,
        most: usize,
        until: tokio::time::Instant,
        late: impl Fn() -> Failed,
    ) -> Came {
        let mut came = Came { bytes: Vec::new(), end: End::Whole };
        while !body.is_end_stream() {
            let broken = match timeout_at(until, drive(&mut self.driver, body.frame())).await {
                Ok(None) => return came,
                Ok(Some(Ok(frame))) => {
                    if let Ok(data) = frame.into_data() {
                        let left = most - came.bytes.len();
                        came.bytes.extend_from_slice(&data[..data.len().min(left)]);
                        if data.len() > left {
                            came.end = End::Cut;
                            return came;
                        }
                    }
                    continue;
                }
                Ok(Some(Err(e))) => Failed::of_exchange(&e, true),
                Err(_) => late(),
            };
            came.end = End::Broken(broken.kind, broken.why);
            return came;
        }
        came
    }

    /// Whether its connection still runs, as far as is known.
    pub(super) fn runs(&self) -> bool {
        self.driver.is_some() && !self.sender.is_closed()
    }

    /// Whether another request may go over it.
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

/// The lines that lie idle, by where they lead.
pub(super) struct Idle {
    /// Of each receiver, and of all of them.
    most: (usize, usize),
    lines: Mutex<Lines>,
}

#[derive(Default)]
struct Lines {
    by_origin: HashMap<Box<str>, Vec<(Instant, Box<Line>)>>,
    count: usize,
}

impl Lines {
    /// Lets those go that have been idle for too long.
    fn purge(&mut self) {
        self.by_origin.retain(|_, lines| {
            lines.retain(|(since, _)| since.elapsed() < IDLE);
            !lines.is_empty()
        });
        self.count = self.by_origin.values().map(Vec::len).sum();
    }
}

impl Idle {
    /// Keeps up to so many of each receiver.
    pub(super) fn new(of_each: usize) -> Idle {
        Idle { most: (of_each, of_each.saturating_mul(4)), lines: Mutex::default() }
    }

    fn lines(&self) -> MutexGuard<'_, Lines> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One that leads there and may be used. The one that was used last: the others may be let go one day.
    pub(super) async fn take(&self, origin: &str) -> Option<Box<Line>> {
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

    /// Lets those go that have been idle for too long. Tells whether others are left.
    pub(super) fn purge(&self) -> bool {
        let mut lines = self.lines();
        lines.purge();
        lines.count > 0
    }

    /// Keeps one whose answer has come whole.
    pub(super) fn put(&self, origin: &str, mut line: Box<Line>) {
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

/// What is said of an answer that does not come in time.
pub(super) fn late(within: Duration) -> Failed {
    Failed::new(Failure::Timeout, format!("no whole answer within {}", humantime::format_duration(within)))
}
