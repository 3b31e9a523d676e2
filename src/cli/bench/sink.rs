//! Receivers of callbacks: one that does next to nothing (one thread, no parser, no task for each request), so that it is not
//! what limits; and one as a business has it, a handler of axum. They answer `/fast` at once, `/slow` after three seconds, and
//! `/never` never.

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
use super::dialects::head_of;
use super::floors;
use super::volley::histogram;
use crate::role::lock;

/// How long `/slow` takes.
pub(super) const SLOW: Duration = Duration::from_secs(3);

const ACCEPTED: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";

/// The listener's place among the connections.
const LISTENER: Token = Token(usize::MAX);

/// What came to one path.
#[derive(Debug, Clone)]
pub(super) struct Arrived {
    /// Requests.
    pub calls: u64,
    /// Different jobs, by topic and id.
    pub jobs: u64,
    /// How much later than due, in microseconds.
    pub late_us: Histogram<u64>,
    /// How many came before they were due.
    pub early: u64,
    /// When the first and the last came.
    pub between: Option<(Instant, Instant)>,
    seen: HashSet<u64>,
}

/// What a job is known by.
fn mark(topic: &str, id: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    (topic, id).hash(&mut hasher);
    hasher.finish()
}

impl Arrived {
    /// Whether a job has come.
    pub(super) fn has(&self, topic: &str, id: &str) -> bool {
        self.seen.contains(&mark(topic, id))
    }

    fn none() -> Arrived {
        Arrived { calls: 0, jobs: 0, late_us: histogram(), early: 0, between: None, seen: HashSet::new() }
    }
}

/// What receives callbacks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Receiver {
    /// One thread that does next to nothing.
    Bare,
    /// A handler of axum on one thread of tokio.
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
    /// Starts one on a free port; it ends with the process.
    pub(super) fn start(receiver: Receiver) -> Result<Sink> {
        let arrivals = Arrivals::default();
        let address = match receiver {
            Receiver::Bare => Server::start(arrivals.clone())?,
            Receiver::Axum => floors::serve("sink", handler(arrivals.clone()))?,
        };
        Ok(Sink { address, arrivals })
    }

    /// What has come to a path so far.
    pub(super) fn arrived(&self, path: &str) -> Arrived {
        lock(&self.arrivals.0).get(path).cloned().unwrap_or_else(Arrived::none)
    }

    /// How many different jobs have come to a path.
    pub(super) fn jobs(&self, path: &str) -> u64 {
        lock(&self.arrivals.0).get(path).map_or(0, |arrived| arrived.jobs)
    }
}

/// What has come so far, by path.
#[derive(Debug, Clone, Default)]
struct Arrivals(Arc<Mutex<HashMap<String, Arrived>>>);

impl Arrivals {
    fn note(&self, calls: impl IntoIterator<Item = Call>) {
        let now_us = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_micros() as i64);
        let now = Instant::now();
        let mut arrived = lock(&self.0);
        for call in calls {
            let entry = arrived.entry(call.path).or_insert_with(Arrived::none);
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

/// The handler of axum.
fn handler(arrivals: Arrivals) -> Router {
    let receive = move |uri: Uri, headers: HeaderMap, _body: Bytes| {
        let header = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
        let call = Call::new(uri.path(), header);
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

struct Connection {
    stream: TcpStream,
    input: Vec<u8>,
    out: Vec<u8>,
}

struct Server {
    poll: Poll,
    listener: TcpListener,
    connections: Slab<Connection>,
    /// Who is answered when.
    later: BTreeMap<Instant, VecDeque<usize>>,
    arrivals: Arrivals,
}

/// A call, as far as it matters.
struct Call {
    path: String,
    due_ms: Option<i64>,
    job: u64,
}

impl Server {
    fn start(arrivals: Arrivals) -> Result<SocketAddr> {
        let mut listener = TcpListener::bind(local(0)).context("cannot start the receiver")?;
        let address = listener.local_addr()?;
        let poll = Poll::new()?;
        poll.registry().register(&mut listener, LISTENER, Interest::READABLE)?;
        let mut server =
            Server { poll, listener, connections: Slab::new(), later: BTreeMap::new(), arrivals };
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
                    entry.insert(Connection { stream, input: Vec::new(), out: Vec::new() });
                }
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(e) => return Err(e).context("cannot accept"),
            }
        }
    }

    /// Reads what has come, and answers it. A connection that breaks is let go.
    fn serve(&mut self, n: usize, calls: &mut Vec<Call>) {
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
            let call = Call::of(&connection.input[read..read + head]);
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
        // (Of a connection that has another's place meanwhile, one answer too many is no harm: nobody counts them.)
        let Some(connection) = self.connections.get_mut(n) else { return };
        connection.out.extend_from_slice(ACCEPTED);
        if !flush(connection) {
            self.connections.remove(n);
        }
    }
}

/// Writes what there is to write. False: the connection has broken.
fn flush(connection: &mut Connection) -> bool {
    while !connection.out.is_empty() {
        match connection.stream.write(&connection.out) {
            Ok(n) => drop(connection.out.drain(..n)),
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(e) => return e.kind() == ErrorKind::WouldBlock,
        }
    }
    true
}

impl Call {
    fn new<'a>(path: &str, header: impl Fn(&str) -> Option<&'a str>) -> Call {
        Call {
            path: path.to_owned(),
            due_ms: header("dq-due-at").and_then(|at| at.parse().ok()),
            job: mark(header("dq-topic").unwrap_or_default(), header("dq-job-id").unwrap_or_default()),
        }
    }

    /// Of a request's head, as it came.
    fn of(head: &[u8]) -> Call {
        let head = String::from_utf8_lossy(head);
        let path = head.split(' ').nth(1).unwrap_or_default();
        let header = |name: &str| {
            head.lines().find_map(|line| {
                let (known, value) = line.split_once(':')?;
                known.eq_ignore_ascii_case(name).then(|| value.trim())
            })
        };
        Call::new(path.split('?').next().unwrap_or_default(), header)
    }
}
