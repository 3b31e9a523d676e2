//! One thread that keeps many connections busy: the client of every measurement, of dq and of what it is compared with alike.
//!
//! Two manners. Closed: each connection has so many requests in flight, and sends the next when one is answered. Open: requests
//! are sent at a rate, whatever the answers; a request's time counts from when it was to be sent, so that a server that stalls
//! is charged with all that had to wait (coordinated omission).

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use hdrhistogram::Histogram;
use mio::net::TcpStream;
use mio::{Events, Interest, Poll, Token};

use super::super::progress::Progress;

/// How long nothing may be answered before it is given up.
const PATIENCE: Duration = Duration::from_secs(30);

/// What a connection speaks.
pub(super) trait Dialect {
    /// Appends the request of that number.
    fn ask(&mut self, number: u64, out: &mut Vec<u8>);

    /// Reads the first answer, where it is there in full: how many bytes it has, and whether it is a success.
    fn answer(&self, bytes: &[u8]) -> Result<Option<(usize, bool)>>;
}

/// When requests are sent.
#[derive(Debug, Clone, Copy)]
pub(super) enum Manner {
    /// So many in flight on each connection.
    Closed {
        /// At least 1.
        depth: usize,
    },
    /// So many a second, over all connections.
    Open {
        /// Above 0.
        per_second: f64,
    },
}

/// When it is enough.
#[derive(Debug, Clone, Copy)]
pub(super) enum Until {
    /// So many have been sent.
    Count(u64),
    /// So much time has passed.
    Time(Duration),
}

/// What came of it.
#[derive(Debug)]
pub(super) struct Volley {
    /// Requests that were answered with success.
    pub done: u64,
    /// Those that were refused.
    pub failed: u64,
    /// From the first request to the last answer.
    pub took: Duration,
    /// Of each request, in microseconds.
    pub latency_us: Histogram<u64>,
}

impl Until {
    /// How far a work is that ends so.
    pub(super) fn progress(self) -> Progress {
        match self {
            Until::Count(count) => Progress::begin(count, "requests are answered"),
            Until::Time(time) => Progress::begin(time.as_secs(), "seconds are over"),
        }
    }
}

impl Volley {
    /// Requests a second.
    pub(super) fn per_second(&self) -> f64 {
        self.done as f64 / self.took.as_secs_f64().max(1e-9)
    }
}

/// A histogram of microseconds, up to some minutes, by three digits.
pub(super) fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 600_000_000, 3).expect("the bounds are constants")
}

struct Connection {
    stream: TcpStream,
    out: Vec<u8>,
    input: Vec<u8>,
    /// When each request in flight was sent, or was to be.
    in_flight: VecDeque<Instant>,
    writable: bool,
}

/// Where the requests stand.
struct Schedule {
    manner: Manner,
    until: Until,
    began: Instant,
    sent: u64,
}

impl Schedule {
    /// Whether no more are to be sent.
    fn is_over(&self) -> bool {
        match self.until {
            Until::Count(count) => self.sent >= count,
            Until::Time(time) => self.began.elapsed() >= time,
        }
    }

    /// When the next one is to be sent; none: as soon as there is room.
    fn next(&self) -> Option<Instant> {
        match self.manner {
            Manner::Closed { .. } => None,
            Manner::Open { per_second } => {
                Some(self.began + Duration::from_secs_f64(self.sent as f64 / per_second))
            }
        }
    }
}

/// Sends requests over so many connections, and gathers the answers.
pub(super) fn fire(
    address: SocketAddr,
    connections: usize,
    manner: Manner,
    until: Until,
    dialect: &mut dyn Dialect,
) -> Result<Volley> {
    let mut progress = until.progress();
    let mut poll = Poll::new()?;
    let mut all = (0..connections).map(|n| connect(&poll, address, n)).collect::<Result<Vec<_>>>()?;
    let mut events = Events::with_capacity(1024);
    let mut volley = Volley { done: 0, failed: 0, took: Duration::ZERO, latency_us: histogram() };
    let mut schedule = Schedule { manner, until, began: Instant::now(), sent: 0 };
    let (mut turn, mut last, mut told) = (0, Instant::now(), 0);
    loop {
        let depth = if let Manner::Closed { depth } = manner { depth } else { usize::MAX };
        // Round the connections, one request each, until none has room or it is not time yet.
        let mut unlucky = 0;
        while unlucky < all.len() && !schedule.is_over() {
            let due = schedule.next();
            let now = Instant::now();
            if due.is_some_and(|at| at > now) {
                break;
            }
            let connection = &mut all[turn % connections];
            turn += 1;
            if connection.in_flight.len() >= depth {
                unlucky += 1;
                continue;
            }
            unlucky = 0;
            dialect.ask(schedule.sent, &mut connection.out);
            connection.in_flight.push_back(due.unwrap_or(now));
            schedule.sent += 1;
        }
        for connection in all.iter_mut().filter(|c| c.writable && !c.out.is_empty()) {
            flush(connection)?;
        }
        if schedule.is_over() && all.iter().all(|c| c.in_flight.is_empty()) {
            volley.took = last.saturating_duration_since(schedule.began);
            progress.end();
            return Ok(volley);
        }
        if last.elapsed() > PATIENCE && all.iter().any(|c| !c.in_flight.is_empty()) {
            bail!("{address} has not answered for {PATIENCE:?}");
        }
        let wait = match schedule.next().filter(|_| !schedule.is_over()) {
            Some(at) => at.saturating_duration_since(Instant::now()),
            None => Duration::from_secs(1),
        };
        match poll.poll(&mut events, Some(wait)) {
            Err(e) if e.kind() == ErrorKind::Interrupted => continue,
            other => other?,
        }
        for event in &events {
            let connection = &mut all[event.token().0];
            connection.writable |= event.is_writable();
            if event.is_readable() {
                take(connection, dialect, &mut volley)?;
                last = Instant::now();
            }
        }
        let far = match until {
            Until::Count(_) => volley.done + volley.failed,
            Until::Time(time) => schedule.began.elapsed().min(time).as_secs(),
        };
        progress.step(far - told);
        told = far;
    }
}

fn connect(poll: &Poll, address: SocketAddr, number: usize) -> Result<Connection> {
    let stream =
        std::net::TcpStream::connect(address).with_context(|| format!("cannot connect to {address}"))?;
    stream.set_nodelay(true)?;
    stream.set_nonblocking(true)?;
    let mut stream = TcpStream::from_std(stream);
    poll.registry().register(&mut stream, Token(number), Interest::READABLE | Interest::WRITABLE)?;
    Ok(Connection { stream, out: Vec::new(), input: Vec::new(), in_flight: VecDeque::new(), writable: true })
}

fn flush(connection: &mut Connection) -> Result<()> {
    let mut written = 0;
    while written < connection.out.len() {
        match connection.stream.write(&connection.out[written..]) {
            Ok(n) => written += n,
            Err(e) if e.kind() == ErrorKind::WouldBlock => {
                connection.writable = false;
                break;
            }
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(e) => return Err(e).context("a connection broke"),
        }
    }
    connection.out.drain(..written);
    Ok(())
}

fn take(connection: &mut Connection, dialect: &dyn Dialect, volley: &mut Volley) -> Result<()> {
    let mut buffer = [0; 64 << 10];
    loop {
        match connection.stream.read(&mut buffer) {
            Ok(0) => bail!("a connection was closed with {} requests in flight", connection.in_flight.len()),
            Ok(n) => {
                connection.input.extend_from_slice(&buffer[..n]);
                if n < buffer.len() {
                    break;
                }
            }
            Err(e) if e.kind() == ErrorKind::WouldBlock => break,
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(e) => return Err(e).context("a connection broke"),
        }
    }
    let (mut read, now) = (0, Instant::now());
    while let Some((bytes, is_success)) = dialect.answer(&connection.input[read..])? {
        read += bytes;
        let Some(sent) = connection.in_flight.pop_front() else { bail!("an answer to no request") };
        let took = now.saturating_duration_since(sent).as_micros() as u64;
        volley.latency_us.saturating_record(took.max(1));
        *(if is_success { &mut volley.done } else { &mut volley.failed }) += 1;
    }
    connection.input.drain(..read);
    Ok(())
}
