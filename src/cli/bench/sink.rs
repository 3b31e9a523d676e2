//! The receivers of callbacks. One does almost nothing (one thread, no parser, no task for each request), so that it
//! does not limit the measurement. The other is an axum handler, like the receiver of a business. Both answer `/fast`
//! at once and `/slow` after three seconds. Neither answers `/never`.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result};
use axum::Router;
use axum::body::Bytes;
use axum::http::{HeaderMap, Uri};
use clap::ValueEnum;
use hdrhistogram::Histogram;
use mio::net::{TcpListener, TcpStream};
use mio::{Events, Interest, Poll, Token};
use slab::Slab;

use super::super::own_daemon::local;
use super::floors;
use super::load::histogram;
use super::workloads::head_of;
use role::lock;

/// How long `/slow` takes.
pub(super) const SLOW: Duration = Duration::from_secs(3);

const ACCEPTED: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";

/// The token of the listener. The connections have other tokens.
const LISTENER: Token = Token(usize::MAX);

/// The callbacks that came to one path.
#[derive(Debug, Clone)]
pub(super) struct PathArrivals {
    /// How many requests came.
    pub calls: u64,
    /// How many different jobs came, by topic and id.
    pub jobs: u64,
    /// How long after their due times they came, in microseconds.
    pub late_us: Histogram<u64>,
    /// How many came before they were due.
    pub early: u64,
    /// When the first and the last request came.
    pub between: Option<(Instant, Instant)>,
    seen: HashSet<u64>,
}

/// Returns the hash that identifies a job.
fn mark(topic: &str, id: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    (topic, id).hash(&mut hasher);
    hasher.finish()
}

impl PathArrivals {
    /// Returns whether a job has come.
    pub(super) fn has(&self, topic: &str, id: &str) -> bool {
        self.seen.contains(&mark(topic, id))
    }

    fn none() -> PathArrivals {
        PathArrivals {
            calls: 0,
            jobs: 0,
            late_us: histogram(),
            early: 0,
            between: None,
            seen: HashSet::new(),
        }
    }
}

/// The kind of a receiver.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum SinkImplementation {
    /// One thread that does almost nothing.
    Bare,
    /// An axum handler on one thread of tokio.
    Axum,
}

/// A running receiver.
#[derive(Debug)]
pub(super) struct Sink {
    /// Where it listens.
    pub address: SocketAddr,
    arrivals: Arrivals,
}

impl Sink {
    /// Starts a receiver on a free port. It ends with the process.
    pub(super) fn start(receiver: SinkImplementation) -> Result<Sink> {
        let arrivals = Arrivals::default();
        let address = match receiver {
            SinkImplementation::Bare => SinkServer::start(arrivals.clone())?,
            SinkImplementation::Axum => floors::serve("sink", handler(arrivals.clone()))?,
        };
        Ok(Sink { address, arrivals })
    }

    /// Returns what has come to a path so far.
    pub(super) fn arrived(&self, path: &str) -> PathArrivals {
        lock(&self.arrivals.0).get(path).cloned().unwrap_or_else(PathArrivals::none)
    }

    /// Returns how many different jobs have come to a path.
    pub(super) fn jobs(&self, path: &str) -> u64 {
        lock(&self.arrivals.0).get(path).map_or(0, |arrived| arrived.jobs)
    }
}

/// The callbacks that have come so far, by path.
#[derive(Debug, Clone, Default)]
struct Arrivals(Arc<Mutex<HashMap<String, PathArrivals>>>);

impl Arrivals {
    fn note(&self, calls: impl IntoIterator<Item = SinkCall>) {
        let now_us = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_micros() as i64);
        let now = Instant::now();
        let mut arrived = lock(&self.0);
        for call in calls {
            let entry = arrived.entry(call.path).or_insert_with(PathArrivals::none);
            entry.calls += 1;
            entry.jobs += u64::from(entry.seen.insert(call.job));
            entry.between = Some((entry.between.map_or(now, |(first, _)| first), now));
            if let Some(due_ms) = call.due_ms {
                let late_us = now_us - due_ms * 1000;
                entry.early += u64::from(late_us < 0);
                entry.late_us.saturating_record(late_us.max(1) as u64);
            }
        }
    }
}

/// Returns the axum handler.
fn handler(arrivals: Arrivals) -> Router {
    let receive = move |uri: Uri, headers: HeaderMap, _body: Bytes| {
        let header = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
        let call = SinkCall::new(uri.path(), header);
        let path = call.path.clone();
        arrivals.note([call]);
        async move {
            match path.as_str() {
                "/slow" => tokio::time::sleep(SLOW).await,
                "/never" => std::future::pending().await,
                _ => {}
            }
        }
    };
    Router::new().fallback(receive)
}

struct SinkConnection {
    stream: TcpStream,
    input: Vec<u8>,
    out: Vec<u8>,
}

struct SinkServer {
    poll: Poll,
    listener: TcpListener,
    connections: Slab<SinkConnection>,
    /// The connections that are answered later, by the time of the answer.
    later: BTreeMap<Instant, VecDeque<usize>>,
    arrivals: Arrivals,
}

/// The parts of a callback that are counted.
struct SinkCall {
    path: String,
    due_ms: Option<i64>,
    job: u64,
}

impl SinkServer {
    fn start(arrivals: Arrivals) -> Result<SocketAddr> {
        let mut listener = TcpListener::bind(local(0)).context("cannot start the receiver")?;
        let address = listener.local_addr()?;
        let poll = Poll::new()?;
        poll.registry().register(&mut listener, LISTENER, Interest::READABLE)?;
        let mut server =
            SinkServer { poll, listener, connections: Slab::new(), later: BTreeMap::new(), arrivals };
        std::thread::Builder::new().name("sink".into()).spawn(move || {
            if let Err(e) = server.run() {
                eprintln!("the receiver has ended: {e:#}");
            }
        })?;
        Ok(address)
    }

    fn run(&mut self) -> Result<()> {
        let mut events = Events::with_capacity(1024);
        loop {
            let wait = self.later.keys().next().map(|at| at.saturating_duration_since(Instant::now()));
            match self.poll.poll(&mut events, wait) {
                Err(e) if e.kind() == ErrorKind::Interrupted => continue,
                other => other?,
            }
            let mut calls = Vec::new();
            for event in &events {
                match event.token() {
                    LISTENER => self.accept()?,
                    Token(n) => self.serve(n, &mut calls),
                }
            }
            if !calls.is_empty() {
                self.arrivals.note(calls);
            }
            let due: Vec<Instant> = self.later.range(..=Instant::now()).map(|(at, _)| *at).collect();
            for n in due.iter().filter_map(|at| self.later.remove(at)).flatten().collect::<Vec<_>>() {
                self.answer(n);
            }
        }
    }

    fn accept(&mut self) -> Result<()> {
        loop {
            match self.listener.accept() {
                Ok((mut stream, _)) => {
                    let _ = stream.set_nodelay(true);
                    let entry = self.connections.vacant_entry();
                    let interest = Interest::READABLE | Interest::WRITABLE;
                    self.poll.registry().register(&mut stream, Token(entry.key()), interest)?;
                    entry.insert(SinkConnection { stream, input: Vec::new(), out: Vec::new() });
                }
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(e) => return Err(e).context("cannot accept"),
            }
        }
    }

    /// Reads the requests that have come, and answers them. A connection that breaks is removed.
    fn serve(&mut self, n: usize, calls: &mut Vec<SinkCall>) {
        let Some(connection) = self.connections.get_mut(n) else { return };
        let mut buffer = [0; 16 << 10];
        let mut is_open = true;
        loop {
            match connection.stream.read(&mut buffer) {
                Ok(0) => is_open = false,
                Ok(n) => {
                    connection.input.extend_from_slice(&buffer[..n]);
                    if n == buffer.len() {
                        continue;
                    }
                }
                Err(e) if e.kind() == ErrorKind::Interrupted => continue,
                Err(e) if e.kind() == ErrorKind::WouldBlock => {}
                Err(_) => is_open = false,
            }
            break;
        }
        let (mut read, mut slow) = (0, 0);
        while let Some((head, body)) = head_of(&connection.input[read..]) {
            if connection.input.len() < read + head + body {
                break;
            }
            let call = SinkCall::from_head(&connection.input[read..read + head]);
            match call.path.as_str() {
                "/slow" => slow += 1,
                "/never" => {}
                _ => connection.out.extend_from_slice(ACCEPTED),
            }
            calls.push(call);
            read += head + body;
        }
        connection.input.drain(..read);
        is_open &= flush(connection);
        if !is_open {
            self.connections.remove(n);
        } else if slow > 0 {
            self.later.entry(Instant::now() + SLOW).or_default().extend((0..slow).map(|_| n));
        }
    }

    fn answer(&mut self, n: usize) {
        // (Another connection may have got this number meanwhile. An extra answer on that connection does no harm,
        // because the answers are not counted.)
        let Some(connection) = self.connections.get_mut(n) else { return };
        connection.out.extend_from_slice(ACCEPTED);
        if !flush(connection) {
            self.connections.remove(n);
        }
    }
}

/// Writes the answers that wait. Returns false if the connection has broken.
fn flush(connection: &mut SinkConnection) -> bool {
    while !connection.out.is_empty() {
        match connection.stream.write(&connection.out) {
            Ok(n) => drop(connection.out.drain(..n)),
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(e) => return e.kind() == ErrorKind::WouldBlock,
        }
    }
    true
}

impl SinkCall {
    fn new<'a>(path: &str, header: impl Fn(&str) -> Option<&'a str>) -> SinkCall {
        SinkCall {
            path: path.to_owned(),
            due_ms: header("dq-due-at").and_then(|at| at.parse().ok()),
            job: mark(header("dq-topic").unwrap_or_default(), header("dq-job-id").unwrap_or_default()),
        }
    }

    /// Reads a request's head.
    fn from_head(head: &[u8]) -> SinkCall {
        let head = String::from_utf8_lossy(head);
        let path = head.split(' ').nth(1).unwrap_or_default();
        let header = |name: &str| {
            head.lines().find_map(|line| {
                let (known, value) = line.split_once(':')?;
                known.eq_ignore_ascii_case(name).then(|| value.trim())
            })
        };
        SinkCall::new(path.split('?').next().unwrap_or_default(), header)
    }
}
