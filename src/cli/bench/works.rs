//! The measurements, one function each.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, bail};

use super::super::progress::Progress;
use super::daemon::{BenchDaemon, BenchDaemonControl, BenchDaemonOptions, Store};
use super::floors;
use super::load::{LoadResult, LoadTarget, SendMode, StopCondition, Workload, fire, histogram};
use super::report::{BenchReport, median};
use super::workloads::{
    DirectCallWorkload, HttpAddWorkload, JobTemplate, RedisFloorWorkload, TcpAddWorkload,
};
use super::{
    BenchAdd, BenchDeliver, BenchIsolation, BenchLateness, BenchMixed, BenchSoak, ClientProtocol, LoadOptions,
};
use host::waits_of;

/// If no job arrives for this long, the wait for the missing jobs ends.
const PATIENCE: Duration = Duration::from_secs(20);

/// A delay that is long enough that nothing becomes due during a measurement.
pub(super) const DAY_MS: u64 = 86_400_000;

/// The report of a measurement, and whether the measurement has passed.
pub(super) type BenchResult = Result<(BenchReport, bool)>;

pub(super) fn store(options: &BenchDaemonOptions) -> String {
    match options.store {
        Store::Embedded => "embedded".to_owned(),
        Store::Redis => format!("redis, {} nodes", options.nodes),
    }
}

pub(super) fn jobs(run: &str, topics: u32, size: u32, delay_ms: (u64, u64)) -> JobTemplate {
    JobTemplate { run: run.to_owned(), topics, body: JobTemplate::body(size as usize), delay_ms }
}

/// Adds jobs through the port that the options choose.
fn send(
    stage: &BenchDaemon,
    clients: &LoadOptions,
    jobs: JobTemplate,
    send_mode: SendMode,
    until: StopCondition,
) -> Result<LoadResult> {
    let (address, mut workload): (SocketAddr, Box<dyn Workload>) = match clients.over {
        ClientProtocol::Tcp => (stage.server, Box::new(TcpAddWorkload(jobs))),
        ClientProtocol::Http => (stage.http, Box::new(HttpAddWorkload(jobs))),
    };
    let volley = fire(LoadTarget::new(address, clients.connections), send_mode, until, workload.as_mut())?;
    if volley.failed > 0 {
        bail!("{} of {} adds were refused", volley.failed, volley.done + volley.failed);
    }
    Ok(volley)
}

/// Adds `count` jobs fast, without a measurement.
pub(super) fn fill(stage: &BenchDaemon, jobs: JobTemplate, count: u64) -> Result<()> {
    if count == 0 {
        return Ok(());
    }
    let (send_mode, until) = (SendMode::Closed { depth: 200 }, StopCondition::Count(count));
    let volley = fire(LoadTarget::new(stage.server, 10), send_mode, until, &mut TcpAddWorkload(jobs))?;
    if volley.failed > 0 { bail!("{} adds were refused", volley.failed) } else { Ok(()) }
}

/// Waits until `count` different jobs have come to a path. Returns how many are missing.
pub(super) fn await_jobs(stage: &mut BenchDaemon, path: &str, count: u64) -> Result<u64> {
    let mut progress = Progress::begin(count, "jobs have arrived");
    let (mut before, mut last) = (0, Instant::now());
    loop {
        let jobs = stage.sink.jobs(path);
        progress.step(jobs - before);
        if jobs > before {
            (before, last) = (jobs, Instant::now());
        }
        if jobs >= count || last.elapsed() > PATIENCE {
            progress.end();
            return Ok(count.saturating_sub(jobs));
        }
        stage.check()?;
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// How many times dq and its floor are measured, by turns, so that other load on the machine affects both.
pub(super) const ROUNDS: u32 = 5;

pub(super) fn add(add: &BenchAdd) -> BenchResult {
    let BenchAdd { clients, depth, time, pending, daemon } = add;
    let stage = BenchDaemon::start(daemon)?;
    let before = jobs("p", daemon.topics, clients.size, (DAY_MS, DAY_MS));
    let empty = stage.redis_bytes()?;
    fill(&stage, before.clone(), *pending)?;
    let over = if clients.over == ClientProtocol::Tcp { "tcp" } else { "http" };
    let settings = format!(
        "{}, {over}, {} connections, {depth} in flight each, {} bytes, {pending} pending, {} topics",
        store(daemon),
        clients.connections,
        clients.size,
        daemon.topics
    );
    let mut report = BenchReport::new("add", settings);
    // The commits of the floor are as large as dq's largest transaction, so that dq has no advantage.
    let commit = (u64::from(clients.connections) * u64::from(*depth)).min(256);
    let (floor, what) = match (clients.over, stage.nodes.first().copied()) {
        (ClientProtocol::Http, _) => (
            AddFloor::Http(floors::serve("handler", floors::handler())?),
            "a handler that does nothing".to_owned(),
        ),
        (ClientProtocol::Tcp, Some(node)) => {
            if *pending > 0 {
                let filled = stage.redis_bytes()?;
                let (send_mode, until) = (SendMode::Closed { depth: 200 }, StopCondition::Count(*pending));
                fire(LoadTarget::new(node, 10), send_mode, until, &mut RedisFloorWorkload(before))?;
                let (ours, theirs) =
                    (filled.saturating_sub(empty), stage.redis_bytes()?.saturating_sub(filled));
                let each = |bytes: u64| bytes as f64 / *pending as f64;
                report.figure("memory of Redis, a pending job", each(ours), "bytes");
                report.figure("the same of HSET and ZADD", each(theirs), "bytes");
                report.ratio("ratio of memory", each(ours), each(theirs), "HSET and ZADD");
            }
            (AddFloor::Redis(node), "HSET and ZADD straight to Redis".to_owned())
        }
        (ClientProtocol::Tcp, None) => (AddFloor::Sqlite(commit), format!("bare inserts, {commit} a commit")),
    };
    let (send_mode, until) =
        (SendMode::Closed { depth: *depth as usize }, StopCondition::Time(*time / ROUNDS));
    let (mut ours, mut theirs, mut latency_us) = (Vec::new(), Vec::new(), histogram());
    let (mut done, mut cpu) = (0, Duration::ZERO);
    for round in 0..ROUNDS {
        let work = jobs(&format!("a{round}-"), daemon.topics, clients.size, (DAY_MS, DAY_MS));
        let (_, cpu_before) = stage.usage()?;
        let volley = send(&stage, clients, work.clone(), send_mode, until)?;
        cpu += stage.usage()?.1.saturating_sub(cpu_before);
        done += volley.done;
        ours.push(volley.per_second());
        latency_us.add(&volley.latency_us)?;
        let straight = |at, work: &mut dyn Workload| {
            fire(LoadTarget::new(at, clients.connections), send_mode, until, work).map(|v| v.per_second())
        };
        theirs.push(match floor {
            AddFloor::Http(address) => straight(address, &mut HttpAddWorkload(work))?,
            AddFloor::Redis(address) => straight(address, &mut RedisFloorWorkload(work))?,
            AddFloor::Sqlite(commit) => floors::sqlite(stage.folder(), &work, commit, *time / ROUNDS)?,
        });
    }
    let ratios = ours.iter().zip(&theirs).map(|(ours, theirs)| ours / theirs).collect();
    report.figure("adds", median(ours), "/s");
    report.percentiles("answer", &latency_us);
    report.figure("processor of dq, an add", cpu.as_secs_f64() * 1e6 / done.max(1) as f64, "us");
    report.figure(what.clone(), median(theirs), "/s");
    report.ratio("ratio", median(ratios), 1.0, &what);
    Ok((report, true))
}

/// The floor that adds are compared with.
#[derive(Debug, Clone, Copy)]
enum AddFloor {
    Http(SocketAddr),
    Redis(SocketAddr),
    /// The number of inserts in each commit.
    Sqlite(u64),
}

pub(super) fn deliver(deliver: &BenchDeliver) -> BenchResult {
    let BenchDeliver { jobs: count, size, daemon } = deliver;
    let mut stage = BenchDaemon::start(daemon)?;
    stage.hold(daemon.topics, true)?;
    fill(&stage, jobs("d", daemon.topics, *size, (0, 0)), *count)?;
    let (send_mode, until) = (SendMode::Closed { depth: 1 }, StopCondition::Time(Duration::from_secs(2)));
    let body = JobTemplate::body(*size as usize);
    let floor = |stage: &BenchDaemon| {
        fire(LoadTarget::new(stage.sink.address, 64), send_mode, until, &mut DirectCallWorkload(body.clone()))
            .map(|volley| volley.per_second())
    };
    let floor_before = floor(&stage)?;
    let (_, cpu_before) = stage.usage()?;
    let began = Instant::now();
    stage.hold(daemon.topics, false)?;
    let missing = await_jobs(&mut stage, "/fast", *count)?;
    let cpu = stage.usage()?.1.saturating_sub(cpu_before);
    let arrived = stage.sink.arrived("/fast");
    let took = arrived.between.map_or(Duration::ZERO, |(_, last)| last.saturating_duration_since(began));
    let per_second = arrived.jobs as f64 / took.as_secs_f64().max(1e-9);
    let settings = format!(
        "{}, {count} due jobs of {size} bytes, {} x {} callbacks in flight, {:?} receiver",
        store(daemon),
        daemon.consumers,
        daemon.concurrency,
        daemon.receiver
    );
    let mut report = BenchReport::new("deliver", settings);
    report.figure("delivered", per_second, "/s");
    report.figure("missing", missing as f64, "jobs");
    report.figure("repeated", (arrived.calls - arrived.jobs) as f64, "calls");
    report.figure("processor of dq, a job", cpu.as_secs_f64() * 1e6 / *count as f64, "us");
    // The floor is what the receiver alone can do. It is measured before and after dq, because other load on the
    // machine may affect one of the two measurements.
    let floor = f64::midpoint(floor_before, floor(&stage)?);
    report.figure("64 connections to the receiver", floor, "/s");
    report.ratio("ratio", per_second, floor, "the receiver alone");
    Ok((report, missing == 0))
}

pub(super) fn lateness(lateness: &BenchLateness) -> BenchResult {
    let BenchLateness { clients, rate, time, daemon } = lateness;
    let mut stage = BenchDaemon::start(daemon)?;
    let count = (rate * time.as_secs_f64()) as u64;
    let (send_mode, until) = (SendMode::Open { per_second: *rate }, StopCondition::Count(count));
    let work = jobs("l", daemon.topics, clients.size, (1000, 1000));
    let sleeper = floors::SleepFloor::start()?;
    let volley = send(&stage, clients, work, send_mode, until)?;
    let missing = await_jobs(&mut stage, "/fast", count)?;
    let asleep = sleeper.end()?;
    let arrived = stage.sink.arrived("/fast");
    let settings = format!("{}, {rate} jobs/s for {time:?}, due 1 to 2 s later", store(daemon));
    let mut report = BenchReport::new("lateness", settings);
    report.percentiles("late", &arrived.late_us);
    report.figure("early", arrived.early as f64, "jobs");
    report.figure("missing", missing as f64, "jobs");
    report.percentiles("answer to an add", &volley.latency_us);
    report.percentiles("a thread that only sleeps, late", &asleep);
    Ok((report, missing == 0 && arrived.early == 0))
}

pub(super) fn mixed(mixed: &BenchMixed) -> BenchResult {
    let BenchMixed { clients, depth, time, daemon } = mixed;
    let mut stage = BenchDaemon::start(daemon)?;
    let (send_mode, until) = (SendMode::Closed { depth: *depth as usize }, StopCondition::Time(*time));
    let work = jobs("m", daemon.topics, clients.size, (0, 1000));
    let volley = send(&stage, clients, work, send_mode, until)?;
    let meanwhile = stage.sink.jobs("/fast");
    let missing = await_jobs(&mut stage, "/fast", volley.done)?;
    let arrived = stage.sink.arrived("/fast");
    let settings = format!("{}, {} connections, {depth} in flight each", store(daemon), clients.connections);
    let mut report = BenchReport::new("mixed", settings);
    report.figure("adds", volley.per_second(), "/s");
    report.figure("delivered meanwhile", meanwhile as f64 / volley.took.as_secs_f64(), "/s");
    if let Some((first, last)) = arrived.between {
        report.figure("delivered in all", arrived.jobs as f64 / (last - first).as_secs_f64().max(1e-9), "/s");
    }
    report.figure("missing", missing as f64, "jobs");
    report.figure("early", arrived.early as f64, "jobs");
    Ok((report, missing == 0 && arrived.early == 0))
}

pub(super) fn isolation(isolation: &BenchIsolation) -> BenchResult {
    let BenchIsolation { slow, rate, time, daemon } = isolation;
    let mut stage = BenchDaemon::start(daemon)?;
    for topic in ["slow", "never"] {
        add_ready(&stage, topic, *slow)?;
    }
    let count = (rate * time.as_secs_f64()) as u64;
    let (send_mode, until) = (SendMode::Open { per_second: *rate }, StopCondition::Count(count));
    let work = jobs("f", daemon.topics, 125, (100, 400));
    fire(LoadTarget::new(stage.server, 2), send_mode, until, &mut TcpAddWorkload(work))?;
    let missing = await_jobs(&mut stage, "/fast", count)?;
    let arrived = stage.sink.arrived("/fast");
    let settings = format!(
        "{}, {rate} jobs/s beside {slow} of a callback of 3 s and {slow} of one that never answers, {} x {} workers",
        store(daemon),
        daemon.consumers,
        daemon.concurrency
    );
    let mut report = BenchReport::new("isolation", settings);
    report.percentiles("late", &arrived.late_us);
    report.figure("missing", missing as f64, "jobs");
    report.figure("slow ones begun meanwhile", stage.sink.arrived("/slow").calls as f64, "calls");
    Ok((report, missing == 0))
}

/// Adds ready jobs to one topic, given by its name.
fn add_ready(stage: &BenchDaemon, topic: &str, count: u64) -> Result<()> {
    struct SingleTopicAddWorkload<'a>(&'a str);
    impl Workload for SingleTopicAddWorkload<'_> {
        fn ask(&mut self, number: u64, out: &mut Vec<u8>) {
            let json =
                format!(r#"{{"cmd":"add","topic":"{}","id":"{number}","delay_ms":0,"body":1}}"#, self.0);
            let framed = protocol::dq::Framing::Digits.append(json.as_bytes(), out);
            debug_assert!(framed);
        }
        fn answer(&self, bytes: &[u8]) -> Result<Option<(usize, bool)>> {
            TcpAddWorkload(jobs("", 1, 12, (0, 0))).answer(bytes)
        }
    }
    if count == 0 {
        return Ok(());
    }
    let (send_mode, until) = (SendMode::Closed { depth: 100 }, StopCondition::Count(count));
    fire(LoadTarget::new(stage.server, 1), send_mode, until, &mut SingleTopicAddWorkload(topic))?;
    Ok(())
}

pub(super) fn idle(idle: &super::BenchIdle) -> BenchResult {
    let super::BenchIdle { pending, time, daemon } = idle;
    let stage = BenchDaemon::start(daemon)?;
    let empty = stage.redis_bytes()?;
    fill(&stage, jobs("i", daemon.topics, 125, (DAY_MS, DAY_MS)), *pending)?;
    // The adds cause further work: the checkpoint of the log, and statistics. This work ends during this pause.
    std::thread::sleep(Duration::from_secs(12));
    let waits =
        || Ok::<u64, anyhow::Error>(stage.control().processes()?.into_iter().filter_map(waits_of).sum());
    let ((_, before), waits_before) = (stage.usage()?, waits()?);
    let began = Instant::now();
    std::thread::sleep(*time);
    let (waits_after, (memory, after)) = (waits()?, stage.usage()?);
    let seconds = began.elapsed().as_secs_f64();
    let share = (after - before).as_secs_f64() / seconds * 100.0;
    let settings = format!("{}, {pending} pending, for {time:?}", store(daemon));
    let mut report = BenchReport::new("idle", settings);
    report.figure("processor", share, "% of one core");
    report.figure("wake-ups", waits_after.saturating_sub(waits_before) as f64 / seconds, "/s");
    report.figure("memory (PSS), all processes", memory as f64 / f64::from(1 << 20), "MiB");
    report.figure("processes", stage.control().processes()?.len() as f64, "");
    if *pending > 0 {
        let (bytes, what) = match daemon.store {
            Store::Embedded => (
                std::fs::metadata(stage.folder().join("var/dq.db")).map_or(0, |m| m.len()),
                "on the disk, a pending job",
            ),
            Store::Redis => (stage.redis_bytes()?.saturating_sub(empty), "memory of Redis, a pending job"),
        };
        report.figure(what, bytes as f64 / *pending as f64, "bytes");
    }
    Ok((report, true))
}

pub(super) fn soak(soak: &BenchSoak) -> BenchResult {
    let BenchSoak { rate, time, kill, restart, daemon } = soak;
    let mut stage = BenchDaemon::start(daemon)?;
    let control = stage.control();
    let over = AtomicBool::new(false);
    let (send_mode, until) = (SendMode::Open { per_second: *rate }, StopCondition::Time(*time));
    let work = jobs("s", daemon.topics, 125, (200, 2000));
    // A restart in place breaks no connection. A process that is killed breaks its connections.
    let target = LoadTarget { survives: restart.is_none(), ..LoadTarget::new(stage.server, 10) };
    let (volley, disturbed) = std::thread::scope(|scope| {
        let disturb = scope.spawn(|| kill_repeatedly(&control, *kill, *restart, &over));
        let volley = fire(target, send_mode, until, &mut TcpAddWorkload(work.clone()));
        over.store(true, Ordering::Relaxed);
        let disturbed = disturb.join().map_err(|_| anyhow!("the thread that disturbs has panicked"));
        anyhow::Ok((volley?, disturbed??))
    })?;
    // A job that was acknowledged must arrive. A job that was not acknowledged may arrive or not. So this waits for all
    // jobs, and then checks each acknowledged job. The number of arrivals alone would not be enough.
    let unknown: HashSet<u64> = volley.unknown.iter().copied().collect();
    let sent = volley.done + volley.failed + unknown.len() as u64;
    await_jobs(&mut stage, "/fast", sent)?;
    let arrived = stage.sink.arrived("/fast");
    let is_missing = |n: &u64| !unknown.contains(n) && !arrived.has(&work.topic(*n), &work.id(*n));
    let missing = (0..sent).filter(is_missing).count() as u64;
    let missing = missing.saturating_sub(volley.failed);
    let (pause, what) = restart.map_or((*kill, "a kill"), |pause| (pause, "a restart"));
    let settings = format!("{}, {rate} jobs/s for {time:?}, {what} each {pause:?}", store(daemon));
    let mut report = BenchReport::new("soak", settings);
    report.figure("acknowledged", volley.done as f64, "jobs");
    report.figure("refused", volley.failed as f64, "jobs");
    report.figure("connection broke before the answer", volley.unknown.len() as f64, "jobs");
    let name = if restart.is_some() { "restarted" } else { "killed" };
    report.figure(name, disturbed as f64, "times");
    report.figure("missing", missing as f64, "jobs");
    report.figure("early", arrived.early as f64, "jobs");
    report.figure("repeated", (arrived.calls - arrived.jobs) as f64, "calls");
    report.percentiles("answer", &volley.latency_us);
    report.percentiles("late", &arrived.late_us);
    report.figure("memory (PSS) at the end", stage.usage()?.0 as f64 / f64::from(1 << 20), "MiB");
    Ok((report, missing == 0 && arrived.early == 0 && (restart.is_none() || volley.failed == 0)))
}

/// Kills a child process or restarts the daemon after each pause, until `over` is set. Returns how many times.
fn kill_repeatedly(
    control: &BenchDaemonControl,
    kill: Duration,
    restart: Option<Duration>,
    over: &AtomicBool,
) -> Result<usize> {
    let mut times = 0;
    let mut next = Instant::now() + restart.unwrap_or(kill);
    while !over.load(Ordering::Relaxed) {
        if Instant::now() < next {
            std::thread::sleep(Duration::from_millis(20));
            continue;
        }
        match restart {
            Some(_) => control.restart()?,
            None => drop(control.kill(times)?),
        }
        times += 1;
        next = Instant::now() + restart.unwrap_or(kill);
    }
    Ok(times)
}
