//! One thread that keeps many connections busy. This thread is the client in every measurement, of dq and of the
//! floors.
//!
//! There are two modes. Closed: each connection has a fixed number of requests in flight, and sends the next request
//! when an earlier one is answered. Open: requests are sent at a fixed rate, even if answers are late. The time of a
//! request then counts from the moment when it should have been sent. So if a server stalls, the wait of all delayed
//! requests counts. (This avoids coordinated omission.)

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail};
use hdrhistogram::Histogram;
use mio::net::TcpStream;
use mio::{Events, Interest, Poll, Token};

use super::super::progress::Progress;

/// If no answer comes for this long, the measurement fails.
const PATIENCE: Duration = Duration::from_secs(30);

/// A protocol: how requests are written, and how answers are read.
pub(super) trait Workload {
    /// Appends the request with this number.
    fn ask(&mut self, number: u64, out: &mut Vec<u8>);

    /// Reads the first answer. Returns how many bytes it has, and whether it is a success. `None`: the answer is not
    /// complete.
    fn answer(&self, bytes: &[u8]) -> Result<Option<(usize, bool)>>;
}

/// When requests are sent.
#[derive(Debug, Clone, Copy)]
pub(super) enum SendMode {
    /// A fixed number of requests is in flight on each connection.
    Closed {
        /// The number of requests; at least 1.
        depth: usize,
    },
    /// Requests are sent at a fixed rate, over all connections.
    Open {
        /// The rate; above 0.
        per_second: f64,
    },
}

/// When a run stops sending requests.
#[derive(Debug, Clone, Copy)]
pub(super) enum StopCondition {
    /// After this number of requests.
    Count(u64),
    /// After this time.
    Time(Duration),
}

/// The server that requests are sent to.
#[derive(Debug, Clone, Copy)]
pub(super) struct LoadTarget {
    pub address: SocketAddr,
    pub connections: usize,
    /// If true, a connection that breaks is opened again, and its requests in flight are counted as unknown. If false,
    /// a broken connection is an error.
    pub survives: bool,
}

impl LoadTarget {
    /// Returns a target whose connections must not break.
    pub(super) fn new(address: SocketAddr, connections: u32) -> LoadTarget {
        LoadTarget { address, connections: connections as usize, survives: false }
    }
}

/// The result of a measurement.
#[derive(Debug)]
pub(super) struct LoadResult {
    /// Requests that were answered with success.
    pub done: u64,
    /// Requests that were refused.
    pub failed: u64,
    /// The numbers of the requests whose connection broke before they were answered.
    pub unknown: Vec<u64>,
    /// The time from the first request to the last answer.
    pub took: Duration,
    /// The times of all answered requests, in microseconds.
    pub latency_us: Histogram<u64>,
}

impl StopCondition {
    /// Returns a display of the progress until this condition is met.
    pub(super) fn progress(self) -> Progress {
        match self {
            StopCondition::Count(count) => Progress::begin(count, "requests are answered"),
            StopCondition::Time(time) => Progress::begin(time.as_secs(), "seconds are over"),
        }
    }
}

impl LoadResult {
    /// Returns how many requests per second succeeded.
    pub(super) fn per_second(&self) -> f64 {
        self.done as f64 / self.took.as_secs_f64().max(1e-9)
    }
}

/// Returns a histogram of microseconds, up to ten minutes, with three significant digits.
pub(super) fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 600_000_000, 3).expect("the bounds are constants")
}

struct LoadConnection {
    stream: TcpStream,
    out: Vec<u8>,
    input: Vec<u8>,
    /// The number of each request in flight, and when it was sent or should have been sent.
    in_flight: VecDeque<(u64, Instant)>,
    writable: bool,
}

/// Why a connection cannot be used any more.
enum LoadConnectionFailure {
    /// The connection has ended.
    Ended(anyhow::Error),
    /// The bytes that came cannot be understood.
    Unexpected(anyhow::Error),
}

/// How many requests have been sent, and when the next one is sent.
struct Schedule {
    send_mode: SendMode,
    until: StopCondition,
    began: Instant,
    sent: u64,
}

impl Schedule {
    /// Returns whether no more requests are to be sent.
    fn is_over(&self) -> bool {
        match self.until {
            StopCondition::Count(count) => self.sent >= count,
            StopCondition::Time(time) => self.began.elapsed() >= time,
        }
    }

    /// Returns when the next request is to be sent. `None`: as soon as a connection has room.
    fn next(&self) -> Option<Instant> {
        match self.send_mode {
            SendMode::Closed { .. } => None,
            SendMode::Open { per_second } => {
                Some(self.began + Duration::from_secs_f64(self.sent as f64 / per_second))
            }
        }
    }
}

/// Sends requests over some connections, and collects the answers.
pub(super) fn fire(
    target: LoadTarget,
    send_mode: SendMode,
    until: StopCondition,
    workload: &mut dyn Workload,
) -> Result<LoadResult> {
    let mut progress = until.progress();
    let mut poll = Poll::new()?;
    let mut all =
        (0..target.connections).map(|n| connect(&poll, target.address, n)).collect::<Result<Vec<_>>>()?;
    let mut events = Events::with_capacity(1024);
    let mut volley =
        LoadResult { done: 0, failed: 0, unknown: Vec::new(), took: Duration::ZERO, latency_us: histogram() };
    let mut schedule = Schedule { send_mode, until, began: Instant::now(), sent: 0 };
    let (mut turn, mut last, mut reported) = (0, Instant::now(), 0);
    loop {
        let depth = if let SendMode::Closed { depth } = send_mode { depth } else { usize::MAX };
        // Gives one request to each connection in turn. Stops when no connection has room, or when the next request
        // must wait for its time.
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
            workload.ask(schedule.sent, &mut connection.out);
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
                let taken = take(connection, event.is_read_closed(), workload, &mut volley);
                mend(connection, taken, (&poll, &target, n), &mut volley)?;
                last = Instant::now();
            }
        }
        let far = match until {
            StopCondition::Count(_) => volley.done + volley.failed + volley.unknown.len() as u64,
            StopCondition::Time(time) => schedule.began.elapsed().min(time).as_secs(),
        };
        progress.step(far - reported);
        reported = far;
    }
}

/// Opens a broken connection again if the target allows it; otherwise returns the error.
fn mend(
    connection: &mut LoadConnection,
    came: Result<(), LoadConnectionFailure>,
    (poll, target, number): (&Poll, &LoadTarget, usize),
    volley: &mut LoadResult,
) -> Result<()> {
    match came {
        Ok(()) => Ok(()),
        Err(LoadConnectionFailure::Ended(_)) if target.survives => {
            volley.unknown.extend(connection.in_flight.drain(..).map(|(number, _)| number));
            *connection = connect(poll, target.address, number)?;
            Ok(())
        }
        Err(LoadConnectionFailure::Ended(e) | LoadConnectionFailure::Unexpected(e)) => Err(e),
    }
}

fn connect(poll: &Poll, address: SocketAddr, number: usize) -> Result<LoadConnection> {
    let stream =
        std::net::TcpStream::connect(address).with_context(|| format!("cannot connect to {address}"))?;
    stream.set_nodelay(true)?;
    stream.set_nonblocking(true)?;
    let mut stream = TcpStream::from_std(stream);
    poll.registry().register(&mut stream, Token(number), Interest::READABLE | Interest::WRITABLE)?;
    Ok(LoadConnection {
        stream,
        out: Vec::new(),
        input: Vec::new(),
        in_flight: VecDeque::new(),
        writable: true,
    })
}

fn broke(e: std::io::Error) -> LoadConnectionFailure {
    LoadConnectionFailure::Ended(anyhow::Error::new(e).context("a connection broke"))
}

fn flush(connection: &mut LoadConnection) -> Result<(), LoadConnectionFailure> {
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

/// Reads the answers that have come. If the server has closed the connection, reads all that is left, because no
/// further event would come.
fn take(
    connection: &mut LoadConnection,
    has_ended: bool,
    workload: &dyn Workload,
    volley: &mut LoadResult,
) -> Result<(), LoadConnectionFailure> {
    let mut buffer = [0; 64 << 10];
    let mut end = Ok(());
    loop {
        match connection.stream.read(&mut buffer) {
            Ok(0) => {
                let left = connection.in_flight.len();
                end = Err(LoadConnectionFailure::Ended(anyhow!(
                    "a connection was closed with {left} requests in flight"
                )));
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
    while let Some((bytes, is_success)) =
        workload.answer(&connection.input[read..]).map_err(LoadConnectionFailure::Unexpected)?
    {
        read += bytes;
        let Some((_, sent)) = connection.in_flight.pop_front() else {
            return Err(LoadConnectionFailure::Unexpected(anyhow!("an answer to no request")));
        };
        let took = now.saturating_duration_since(sent).as_micros() as u64;
        volley.latency_us.saturating_record(took.max(1));
        *(if is_success { &mut volley.done } else { &mut volley.failed }) += 1;
    }
    connection.input.drain(..read);
    end
}
