//! Measures clients of a pull topic. The first figure is how many jobs they reserve and ack. The second figure is the
//! lateness of jobs that have a delay of one second, when clients already wait for them. dq and beanstalkd do the same
//! work in turn. The client, the number of connections and the number of jobs in a batch are the same for both.

mod beanstalkd;
mod protocol;
mod workers;

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail};
use hdrhistogram::Histogram;

use self::beanstalkd::Beanstalkd;
use self::protocol::{
    BeanstalkPullProtocol, HttpPullProtocol, PullAnswer, PullCommandKind, PullProtocol, PulledJob,
    TcpPullProtocol,
};
use self::workers::{PullResult, PullWorkers};
use super::daemon::{BenchDaemon, BenchDaemonOptions};
use super::load::{LoadTarget, SendMode, StopCondition, Workload, fire, histogram};
use super::report::{BenchReport, median};
use super::works::{BenchResult, ROUNDS, store};
use super::{BenchPull, PullClients};

/// The delay of the jobs that clients wait for.
const DELAY: Duration = Duration::from_secs(1);

/// How long the cost of waiting clients is measured.
const QUIET: Duration = Duration::from_secs(2);

/// A server that is measured.
struct MeasuredServer {
    name: &'static str,
    address: SocketAddr,
    protocol: Box<dyn PullProtocol>,
    /// The number of the next job.
    next: u64,
    /// How many jobs the clients of each round have reserved and acked a second.
    rates: Vec<f64>,
    missing: u64,
    repeated: u64,
}

/// Adds jobs, and records when each of them was sent.
struct JobProducer<'a> {
    protocol: &'a dyn PullProtocol,
    first: u64,
    delay: Duration,
    /// For each job, the time from `began` until the job was sent, in microseconds.
    sent_us: &'a [AtomicU64],
    began: Instant,
}

impl Workload for JobProducer<'_> {
    fn ask(&mut self, number: u64, out: &mut Vec<u8>) {
        if let Some(sent) = self.sent_us.get(number as usize) {
            sent.store(self.began.elapsed().as_micros() as u64, Ordering::Release);
        }
        self.protocol.add(self.first + number, self.delay, out);
    }

    fn answer(&self, bytes: &[u8]) -> Result<Option<(usize, bool)>> {
        let answer = self.protocol.answer(PullCommandKind::Add, bytes)?;
        Ok(answer.map(|(length, answer)| (length, answer == PullAnswer::Done)))
    }
}

/// How late the jobs with a delay came.
struct LateRun {
    late_us: Histogram<u64>,
    early: u64,
}

impl MeasuredServer {
    fn new(name: &'static str, address: SocketAddr, protocol: Box<dyn PullProtocol>) -> MeasuredServer {
        MeasuredServer { name, address, protocol, next: 0, rates: Vec::new(), missing: 0, repeated: 0 }
    }

    /// Adds jobs over two connections. `sent_us` gets the time when each job was sent, counted from `began`.
    fn add(
        &self,
        count: u64,
        send_mode: SendMode,
        delay: Duration,
        (sent_us, began): (&[AtomicU64], Instant),
    ) -> Result<()> {
        let protocol = self.protocol.as_ref();
        let mut adds = JobProducer { protocol, first: self.next, delay, sent_us, began };
        let added =
            fire(LoadTarget::new(self.address, 2), send_mode, StopCondition::Count(count), &mut adds)?;
        if added.failed > 0 { bail!("{} of {count} adds were refused", added.failed) } else { Ok(()) }
    }

    /// Makes a backlog of due jobs.
    fn fill(&mut self, count: u64) -> Result<()> {
        self.add(count, SendMode::Closed { depth: 200 }, Duration::ZERO, (&[], Instant::now()))?;
        self.next += count;
        Ok(())
    }

    /// Lets clients reserve and ack all jobs of the backlog.
    fn work_off(&mut self, count: u64, connections: u32, batch: u32) -> Result<()> {
        let run = PullWorkers::connect(self.address, self.protocol.as_ref(), connections, batch)?
            .work(count, |_, _| {})?;
        self.count(count, &run);
        self.rates.push(run.acked.len() as f64 / run.took.as_secs_f64().max(1e-9));
        Ok(())
    }

    fn count(&mut self, count: u64, run: &PullResult) {
        self.missing += count.saturating_sub(run.acked.len() as u64);
        self.repeated += run.repeated;
    }

    /// Adds jobs with a delay at a constant rate, for clients that wait. Calls `quiet` before the first add, when all
    /// clients wait.
    fn deliver_delayed(&mut self, pull: &BenchPull, quiet: impl FnOnce() -> Result<()>) -> Result<LateRun> {
        let count = ((pull.rate * pull.time.as_secs_f64()) as u64).max(1);
        let sent_us: Vec<AtomicU64> = (0..count).map(|_| AtomicU64::new(u64::MAX)).collect();
        let mut workers = PullWorkers::connect(self.address, self.protocol.as_ref(), pull.waiting, 1)?;
        workers.reserve()?;
        // During this second, the last clients begin to wait.
        std::thread::sleep(Duration::from_secs(1));
        quiet()?;
        let (began, mut late) = (Instant::now(), LateRun { late_us: histogram(), early: 0 });
        let came = |job: &PulledJob, now: Instant| {
            let sent = job.number.checked_sub(self.next).and_then(|n| sent_us.get(n as usize));
            let sent_us = sent.map_or(u64::MAX, |sent| sent.load(Ordering::Acquire));
            let due_us = sent_us.saturating_add(DELAY.as_micros() as u64);
            let came_us = now.saturating_duration_since(began).as_micros() as u64;
            late.early += u64::from(came_us < due_us);
            late.late_us.saturating_record(came_us.saturating_sub(due_us).max(1));
        };
        let send_mode = SendMode::Open { per_second: pull.rate };
        let run = std::thread::scope(|scope| {
            let adds = scope.spawn(|| self.add(count, send_mode, DELAY, (&sent_us, began)));
            let run = workers.work(count, came);
            adds.join().map_err(|_| anyhow!("the client that adds has panicked"))??;
            run
        })?;
        drop(workers);
        self.count(count, &run);
        self.next += count;
        Ok(late)
    }
}

/// Measures dq and beanstalkd in turn.
pub(super) fn run(pull: &BenchPull) -> BenchResult {
    host::raise_descriptor_limit()?;
    let options = BenchDaemonOptions { pull: true, ..pull.daemon.clone() };
    let stage = BenchDaemon::start(&options)?;
    let on_disk = Beanstalkd::start(Some(&stage.folder().join("beanstalkd")))?;
    let in_memory = Beanstalkd::start(None)?;
    let beanstalk = || -> Box<dyn PullProtocol> { Box::new(BeanstalkPullProtocol::new(pull.size)) };
    let (address, protocol): (SocketAddr, Box<dyn PullProtocol>) = match pull.over {
        PullClients::Tcp => (stage.server, Box::new(TcpPullProtocol::new(pull.size))),
        PullClients::Http => (stage.http, Box::new(HttpPullProtocol::new(pull.size))),
        PullClients::Beanstalk => (stage.beanstalk.context("dq has no such port")?, beanstalk()),
    };
    let mut dq = MeasuredServer::new("dq", address, protocol);
    let mut floor = MeasuredServer::new("beanstalkd, on the disk", on_disk.address, beanstalk());
    let mut faster = MeasuredServer::new("beanstalkd, in memory", in_memory.address, beanstalk());
    let (count, mut cpu) = ((pull.jobs / u64::from(ROUNDS)).max(1), Duration::ZERO);
    for _ in 0..ROUNDS {
        for side in [&mut dq, &mut floor, &mut faster] {
            side.fill(count).with_context(|| side.name)?;
            let (_, before) = stage.usage()?;
            side.work_off(count, pull.connections, pull.batch).with_context(|| side.name)?;
            if side.name == "dq" {
                cpu += stage.usage()?.1.saturating_sub(before);
            }
        }
    }
    let mut idle = 0.0;
    let quiet = || {
        let (began, (_, before)) = (Instant::now(), stage.usage()?);
        std::thread::sleep(QUIET);
        idle = stage.usage()?.1.saturating_sub(before).as_secs_f64() / began.elapsed().as_secs_f64() * 100.0;
        Ok(())
    };
    let late = dq.deliver_delayed(pull, quiet).context(dq.name)?;
    let floor_late = floor.deliver_delayed(pull, || Ok(())).context(floor.name)?;

    let settings = format!(
        "{}, {}, {} connections, {} jobs in a batch, {} jobs of {} bytes in {ROUNDS} rounds; {} jobs/s with a delay of 1 s",
        store(&options),
        format!("{:?}", pull.over).to_lowercase(),
        pull.connections,
        pull.batch,
        pull.jobs,
        pull.size,
        pull.rate
    );
    let mut report = BenchReport::new("pull", settings);
    report.figure("reserved and acked", median(dq.rates.clone()), "/s");
    report.figure(
        "processor of dq, a job",
        cpu.as_secs_f64() * 1e6 / (count * u64::from(ROUNDS)) as f64,
        "us",
    );
    for (name, side) in [("ratio", &floor), ("ratio to memory", &faster)] {
        let ratios = dq.rates.iter().zip(&side.rates).map(|(ours, theirs)| ours / theirs).collect();
        report.figure(side.name, median(side.rates.clone()), "/s");
        report.ratio(name, median(ratios), 1.0, side.name);
    }
    report.figure("clients that wait", f64::from(pull.waiting), "");
    report.figure("processor while they wait", idle, "% of one core");
    report.percentiles("late", &late.late_us);
    report.figure("early", late.early as f64, "jobs");
    report.percentiles("beanstalkd, late", &floor_late.late_us);
    report.figure("beanstalkd, early", floor_late.early as f64, "jobs");
    let all = [&dq, &floor, &faster];
    let missing: u64 = all.iter().map(|side| side.missing).sum();
    let repeated: u64 = all.iter().map(|side| side.repeated).sum();
    report.figure("missing", missing as f64, "jobs");
    report.figure("repeated", repeated as f64, "jobs");
    Ok((report, missing == 0 && repeated == 0 && late.early == 0))
}
