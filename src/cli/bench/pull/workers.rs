//! One thread of clients that reserve jobs and ack them. Each connection reserves a batch of jobs, acks them all, and
//! reserves the next batch in the same write.

use std::collections::{HashSet, VecDeque};
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use mio::net::TcpStream;
use mio::{Events, Interest, Poll, Token};

use super::protocol::{PullAnswer, PullCommandKind, PullProtocol, PulledJob};

/// If nothing comes for this long, the clients stop waiting for the missing jobs.
const PATIENCE: Duration = Duration::from_secs(20);

/// How long a reserve waits.
const WAIT: Duration = Duration::from_secs(30);

/// Clients that work on jobs.
pub(super) struct PullWorkers<'a> {
    protocol: &'a dyn PullProtocol,
    /// How many jobs a client reserves at once.
    batch: usize,
    poll: Poll,
    all: Vec<PullConnection>,
}

struct PullConnection {
    stream: TcpStream,
    out: Vec<u8>,
    input: Vec<u8>,
    in_flight: VecDeque<PullCommandKind>,
    /// The jobs from the answers so far that are not acked yet.
    jobs: Vec<PulledJob>,
    /// The numbers of the jobs whose acks are in flight.
    acking: VecDeque<u64>,
}

/// What workers have done.
#[derive(Debug, Default)]
pub(super) struct PullResult {
    /// The jobs whose acks were answered.
    pub acked: HashSet<u64>,
    /// How many times a job came that had already come before.
    pub repeated: u64,
    /// The jobs that have come.
    came: HashSet<u64>,
    /// The time from the first reserve to the last answer to an ack.
    pub took: Duration,
}

impl<'a> PullWorkers<'a> {
    /// Opens the connections.
    pub(super) fn connect(
        address: SocketAddr,
        protocol: &'a dyn PullProtocol,
        connections: u32,
        batch: u32,
    ) -> Result<PullWorkers<'a>> {
        let poll = Poll::new()?;
        let connect = |number: u32| -> Result<PullConnection> {
            let stream = std::net::TcpStream::connect(address)
                .with_context(|| format!("cannot open connection {number} to {address}"))?;
            stream.set_nodelay(true)?;
            stream.set_nonblocking(true)?;
            let mut stream = TcpStream::from_std(stream);
            let interest = Interest::READABLE | Interest::WRITABLE;
            poll.registry().register(&mut stream, Token(number as usize), interest)?;
            Ok(PullConnection {
                stream,
                out: Vec::new(),
                input: Vec::new(),
                in_flight: VecDeque::new(),
                jobs: Vec::new(),
                acking: VecDeque::new(),
            })
        };
        let all = (0..connections).map(connect).collect::<Result<Vec<_>>>()?;
        Ok(PullWorkers { protocol, batch: batch as usize, poll, all })
    }

    /// Lets all clients reserve, so that they wait if there is no job.
    pub(super) fn reserve(&mut self) -> Result<()> {
        let (protocol, batch) = (self.protocol, self.batch);
        self.all.iter_mut().try_for_each(|connection| connection.next(protocol, batch))
    }

    /// Works until `count` jobs are acked, or until nothing has come for `PATIENCE`. `came` gets each job when it
    /// comes.
    pub(super) fn work(
        &mut self,
        count: u64,
        mut came: impl FnMut(&PulledJob, Instant),
    ) -> Result<PullResult> {
        let (mut run, mut events) = (PullResult::default(), Events::with_capacity(1024));
        let began = Instant::now();
        let mut last = began;
        let (protocol, batch) = (self.protocol, self.batch);
        for connection in &mut self.all {
            if connection.in_flight.is_empty() {
                connection.next(protocol, batch)?;
            }
        }
        while (run.acked.len() as u64) < count && last.elapsed() < PATIENCE {
            match self.poll.poll(&mut events, Some(Duration::from_secs(1))) {
                Err(e) if e.kind() == ErrorKind::Interrupted => continue,
                other => other?,
            }
            for event in &events {
                let connection = &mut self.all[event.token().0];
                if event.is_readable() {
                    connection.read()?;
                    let before = run.acked.len() + run.came.len();
                    connection.take_answers(protocol, &mut run, &mut came)?;
                    if run.acked.len() + run.came.len() > before {
                        last = Instant::now();
                    }
                    if connection.in_flight.is_empty() {
                        connection.next(protocol, batch)?;
                    }
                }
                if event.is_writable() {
                    connection.flush()?;
                }
            }
        }
        run.took = last.saturating_duration_since(began);
        Ok(run)
    }
}

impl PullConnection {
    /// Acks the jobs that have come, and reserves the next ones.
    fn next(&mut self, protocol: &dyn PullProtocol, batch: usize) -> Result<()> {
        for job in self.jobs.drain(..) {
            protocol.ack(&job, &mut self.out);
            self.in_flight.push_back(PullCommandKind::Ack);
            self.acking.push_back(job.number);
        }
        let answers = protocol.reserve(batch, WAIT, &mut self.out);
        self.in_flight.extend((0..answers).map(|_| PullCommandKind::Reserve));
        self.flush()
    }

    fn flush(&mut self) -> Result<()> {
        let mut written = 0;
        while written < self.out.len() {
            match self.stream.write(&self.out[written..]) {
                Ok(n) => written += n,
                Err(e) if e.kind() == ErrorKind::WouldBlock => break,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(e).context("a connection broke"),
            }
        }
        self.out.drain(..written);
        Ok(())
    }

    fn read(&mut self) -> Result<()> {
        let mut buffer = [0; 64 << 10];
        loop {
            match self.stream.read(&mut buffer) {
                Ok(0) => bail!("a connection was closed with {} requests in flight", self.in_flight.len()),
                Ok(n) => self.input.extend_from_slice(&buffer[..n]),
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(e).context("a connection broke"),
            }
        }
    }

    fn take_answers(
        &mut self,
        protocol: &dyn PullProtocol,
        run: &mut PullResult,
        came: &mut impl FnMut(&PulledJob, Instant),
    ) -> Result<()> {
        let (mut read, now) = (0, Instant::now());
        while let Some(kind) = self.in_flight.front().copied() {
            let Some((bytes, answer)) = protocol.answer(kind, &self.input[read..])? else { break };
            read += bytes;
            self.in_flight.pop_front();
            match answer {
                PullAnswer::Refused(text) => bail!("a request was refused: {text}"),
                PullAnswer::Done => run.acked.extend(self.acking.pop_front()),
                PullAnswer::Jobs(jobs) => {
                    for job in &jobs {
                        came(job, now);
                        run.repeated += u64::from(!run.came.insert(job.number));
                    }
                    self.jobs.extend(jobs);
                }
            }
        }
        self.input.drain(..read);
        Ok(())
    }
}
