//! One thread that keeps many connections busy: the client of every measurement, of dq and of what it is compared with alike.
//!
//! Two manners. Closed: each connection has so many requests in flight, and sends the next when one is answered. Open: requests
//! are sent at a rate, whatever the answers; a request's time counts from when it was to be sent, so that a server that stalls
//! is charged with all that had to wait (coordinated omission).

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail};
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

/// Whom requests are sent to.
#[derive(Debug, Clone, Copy)]
pub(super) struct Target {
    pub address: SocketAddr,
    pub connections: usize,
    /// Whether a connection that breaks is made anew, and what was in flight on it counted as unknown; otherwise it is an error.
    pub survives: bool,
}

impl Target {
    /// One that no connection to is to break.
    pub(super) fn new(address: SocketAddr, connections: u32) -> Target {
        Target { address, connections: connections as usize, survives: false }
    }
}

/// What came of it.
#[derive(Debug)]
pub(super) struct Volley {
    /// Requests that were answered with success.
    pub done: u64,
    /// Those that were refused.
    pub failed: u64,
    /// The numbers of those whose connection broke before they were answered.
    pub unknown: Vec<u64>,
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
    /// The number of each request in flight, and when it was sent, or was to be.
    in_flight: VecDeque<(u64, Instant)>,
    writable: bool,
}

/// Why a connection is of no more use.
enum Break {
    /// It has ended.
    Ended(anyhow::Error),
    /// What came on it cannot be understood.
    Strange(anyhow::Error),
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

/// Sends requests over some connections, and gathers the answers.
pub(super) fn fire(
    target: Target,
    manner: Manner,
    until: Until,
    dialect: &mut dyn Dialect,
) -> Result<Volley> {
    let mut progress = until.progress();
    let mut poll = Poll::new()?;
    let mut all =
        (0..target.connections).map(|n| connect(&poll, target.address, n)).collect::<Result<Vec<_>>>()?;
    let mut events = Events::with_capacity(1024);
    let mut volley =
        Volley { done: 0, failed: 0, unknown: Vec::new(), took: Duration::ZERO, latency_us: histogram() };
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
            let connection = &mut all[turn % target.connections];
            turn += 1;
            if connection.in_flight.len() >= depth {
                unlucky += 1;
                continue;
            }
            unlucky = 0;
            dialect.ask(schedule.sent, &mut connection.out);
            connection.in_flight.push_back((schedule.sent, due.unwrap_or(now)));
            schedule.sent += 1;
        }
        for (n, connection) in all.iter_mut().enumerate() {
            if connection.writable && !connection.out.is_empty() {
                let flushed = flush(connection);
                mend(connection, flushed, (&poll, &target, n), &mut volley)?;
            }
        }
        if schedule.is_over() && all.iter().all(|c| c.in_flight.is_empty()) {
            volley.took = last.saturating_duration_since(schedule.began);
            progress.end();
            return Ok(volley);
        }
        if last.elapsed() > PATIENCE && all.iter().any(|c| !c.in_flight.is_empty()) {
            bail!("{} has not answered for {PATIENCE:?}", target.address);
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
            let n = event.token().0;
            let connection = &mut all[n];
            connection.writable |= event.is_writable();
            if event.is_readable() {
                let taken = take(connection, event.is_read_closed(), dialect, &mut volley);
                mend(connection, taken, (&poll, &target, n), &mut volley)?;
                last = Instant::now();
            }
        }
        let far = match until {
            Until::Count(_) => volley.done + volley.failed + volley.unknown.len() as u64,
            Until::Time(time) => schedule.began.elapsed().min(time).as_secs(),
        };
        progress.step(far - told);
        told = far;
    }
}

/// Makes a connection anew that has broken, where that is meant to happen.
fn mend(
    connection: &mut Connection,
    came: Result<(), Break>,
    (poll, target, number): (&Poll, &Target, usize),
    volley: &mut Volley,
) -> Result<()> {
    match came {
        Ok(()) => Ok(()),
        Err(Break::Ended(_)) if target.survives => {
            volley.unknown.extend(connection.in_flight.drain(..).map(|(number, _)| number));
            *connection = connect(poll, target.address, number)?;
            Ok(())
        }
        Err(Break::Ended(e) | Break::Strange(e)) => Err(e),
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

fn broke(e: std::io::Error) -> Break {
    Break::Ended(anyhow::Error::new(e).context("a connection broke"))
}

fn flush(connection: &mut Connection) -> Result<(), Break> {
    let mut written = 0;
    while written < connection.out.len() {
        match connection.stream.write(&connection.out[written..]) {
            Ok(n) => written += n,
            Err(e) if e.kind() == ErrorKind::WouldBlock => {
                connection.writable = false;
                break;
            }
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(e) => return Err(broke(e)),
        }
    }
    connection.out.drain(..written);
    Ok(())
}

/// Reads what has come. Where the other side has ended, up to that: nothing tells of it again.
fn take(
    connection: &mut Connection,
    has_ended: bool,
    dialect: &dyn Dialect,
    volley: &mut Volley,
) -> Result<(), Break> {
    let mut buffer = [0; 64 << 10];
    let mut end = Ok(());
    loop {
        match connection.stream.read(&mut buffer) {
            Ok(0) => {
                let left = connection.in_flight.len();
                end = Err(Break::Ended(anyhow!("a connection was closed with {left} requests in flight")));
                break;
            }
            Ok(n) => {
                connection.input.extend_from_slice(&buffer[..n]);
                if n < buffer.len() && !has_ended {
                    break;
                }
            }
            Err(e) if e.kind() == ErrorKind::WouldBlock => break,
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(e) => {
                end = Err(broke(e));
                break;
            }
        }
    }
    let (mut read, now) = (0, Instant::now());
    while let Some((bytes, is_success)) = dialect.answer(&connection.input[read..]).map_err(Break::Strange)? {
        read += bytes;
        let Some((_, sent)) = connection.in_flight.pop_front() else {
            return Err(Break::Strange(anyhow!("an answer to no request")));
        };
        let took = now.saturating_duration_since(sent).as_micros() as u64;
        volley.latency_us.saturating_record(took.max(1));
        *(if is_success { &mut volley.done } else { &mut volley.failed }) += 1;
    }
    connection.input.drain(..read);
    end
}
