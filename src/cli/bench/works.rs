//! The works that are measured.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::super::progress::Progress;
use super::dialects::{Callback, Http, Jobs, Redis, Tcp};
use super::report::Report;
use super::stage::{Options, Stage, Store};
use super::volley::{Dialect, Manner, Until, Volley, fire};
use super::{Add, Clients, Deliver, Idle, Isolation, Lateness, Mixed, Over, Soak};

/// How long nothing may arrive before what is missing is given up.
const PATIENCE: Duration = Duration::from_secs(20);

/// Far enough away for nothing to become due while it is measured.
const DAY_MS: u64 = 86_400_000;

/// What a work came to, and whether all came as it must.
type Outcome = Result<(Report, bool)>;

fn store(options: &Options) -> String {
    match options.store {
        Store::Embedded => "embedded".to_owned(),
        Store::Redis => format!("redis, {} nodes", options.nodes),
    }
}

fn jobs(run: &str, topics: u32, size: u32, delay_ms: (u64, u64)) -> Jobs {
    Jobs { run: run.to_owned(), topics, body: Jobs::body(size as usize), delay_ms }
}

/// Adds by the port that is asked for.
fn send(stage: &Stage, clients: &Clients, jobs: Jobs, manner: Manner, until: Until) -> Result<Volley> {
    let (address, mut dialect): (SocketAddr, Box<dyn Dialect>) = match clients.over {
        Over::Tcp => (stage.server, Box::new(Tcp(jobs))),
        Over::Http => (stage.http, Box::new(Http(jobs))),
    };
    let volley = fire(address, clients.connections as usize, manner, until, dialect.as_mut())?;
    if volley.failed > 0 {
        bail!("{} of {} adds were refused", volley.failed, volley.done + volley.failed);
    }
    Ok(volley)
}

/// Adds so many, fast, and not measured.
fn fill(stage: &Stage, jobs: Jobs, count: u64) -> Result<()> {
    if count == 0 {
        return Ok(());
    }
    let (manner, until) = (Manner::Closed { depth: 200 }, Until::Count(count));
    let volley = fire(stage.server, 10, manner, until, &mut Tcp(jobs))?;
    if volley.failed > 0 { bail!("{} adds were refused", volley.failed) } else { Ok(()) }
}

/// Waits until so many different jobs have come to a path. Gives how many have not.
fn await_jobs(stage: &mut Stage, path: &str, count: u64) -> Result<u64> {
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

pub(super) fn add(add: &Add) -> Outcome {
    let Add { clients, depth, time, pending, daemon } = add;
    let stage = Stage::start(daemon)?;
    fill(&stage, jobs("p", daemon.topics, clients.size, (DAY_MS, DAY_MS)), *pending)?;
    let (manner, until) = (Manner::Closed { depth: *depth as usize }, Until::Time(*time));
    let work = jobs("a", daemon.topics, clients.size, (DAY_MS, DAY_MS));
    let volley = send(&stage, clients, work.clone(), manner, until)?;
    let over = if clients.over == Over::Tcp { "tcp" } else { "http" };
    let settings = format!(
        "{}, {over}, {} connections, {depth} in flight each, {} bytes, {pending} pending, {} topics",
        store(daemon),
        clients.connections,
        clients.size,
        daemon.topics
    );
    let mut report = Report::new("add", settings);
    report.figure("adds", volley.per_second(), "/s");
    report.percentiles("answer", &volley.latency_us);
    if let Some(node) = stage.nodes.first() {
        // At the same depth of what is pending.
        if *pending > 0 {
            let (manner, until) = (Manner::Closed { depth: 200 }, Until::Count(*pending));
            let work = jobs("p", daemon.topics, clients.size, (DAY_MS, DAY_MS));
            fire(*node, 10, manner, until, &mut Redis(work))?;
        }
        let floor = fire(*node, clients.connections as usize, manner, until, &mut Redis(work))?;
        report.figure("HSET and ZADD straight to Redis", floor.per_second(), "/s");
        report.ratio(volley.per_second(), floor.per_second(), "straight Redis");
    }
    Ok((report, true))
}

pub(super) fn deliver(deliver: &Deliver) -> Outcome {
    let Deliver { jobs: count, size, daemon } = deliver;
    let mut stage = Stage::start(daemon)?;
    stage.hold(daemon.topics, true)?;
    fill(&stage, jobs("d", daemon.topics, *size, (0, 0)), *count)?;
    let began = Instant::now();
    stage.hold(daemon.topics, false)?;
    let missing = await_jobs(&mut stage, "/fast", *count)?;
    let arrived = stage.sink.arrived("/fast");
    let took = arrived.between.map_or(Duration::ZERO, |(_, last)| last.saturating_duration_since(began));
    let per_second = arrived.jobs as f64 / took.as_secs_f64().max(1e-9);
    let settings = format!(
        "{}, {count} due jobs of {size} bytes, {} x {} callbacks in flight",
        store(daemon),
        daemon.consumers,
        daemon.concurrency
    );
    let mut report = Report::new("deliver", settings);
    report.figure("delivered", per_second, "/s");
    report.figure("missing", missing as f64, "jobs");
    report.figure("repeated", (arrived.calls - arrived.jobs) as f64, "calls");
    let (manner, until) = (Manner::Closed { depth: 1 }, Until::Time(Duration::from_secs(3)));
    let body = Jobs::body(*size as usize);
    let floor = fire(stage.sink.address, 64, manner, until, &mut Callback(body))?;
    report.figure("64 connections to the receiver", floor.per_second(), "/s");
    report.ratio(per_second, floor.per_second(), "the receiver alone");
    Ok((report, missing == 0))
}

pub(super) fn lateness(lateness: &Lateness) -> Outcome {
    let Lateness { clients, rate, time, daemon } = lateness;
    let mut stage = Stage::start(daemon)?;
    let count = (rate * time.as_secs_f64()) as u64;
    let (manner, until) = (Manner::Open { per_second: *rate }, Until::Count(count));
    let work = jobs("l", daemon.topics, clients.size, (1000, 1000));
    let volley = send(&stage, clients, work, manner, until)?;
    let missing = await_jobs(&mut stage, "/fast", count)?;
    let arrived = stage.sink.arrived("/fast");
    let settings = format!("{}, {rate} jobs/s for {time:?}, due 1 to 2 s later", store(daemon));
    let mut report = Report::new("lateness", settings);
    report.percentiles("late", &arrived.late_us);
    report.figure("early", arrived.early as f64, "jobs");
    report.figure("missing", missing as f64, "jobs");
    report.percentiles("answer to an add", &volley.latency_us);
    Ok((report, missing == 0 && arrived.early == 0))
}

pub(super) fn mixed(mixed: &Mixed) -> Outcome {
    let Mixed { clients, depth, time, daemon } = mixed;
    let mut stage = Stage::start(daemon)?;
    let (manner, until) = (Manner::Closed { depth: *depth as usize }, Until::Time(*time));
    let work = jobs("m", daemon.topics, clients.size, (0, 1000));
    let volley = send(&stage, clients, work, manner, until)?;
    let meanwhile = stage.sink.jobs("/fast");
    let missing = await_jobs(&mut stage, "/fast", volley.done)?;
    let arrived = stage.sink.arrived("/fast");
    let settings = format!("{}, {} connections, {depth} in flight each", store(daemon), clients.connections);
    let mut report = Report::new("mixed", settings);
    report.figure("adds", volley.per_second(), "/s");
    report.figure("delivered meanwhile", meanwhile as f64 / volley.took.as_secs_f64(), "/s");
    if let Some((first, last)) = arrived.between {
        report.figure("delivered in all", arrived.jobs as f64 / (last - first).as_secs_f64().max(1e-9), "/s");
    }
    report.figure("missing", missing as f64, "jobs");
    report.figure("early", arrived.early as f64, "jobs");
    Ok((report, missing == 0 && arrived.early == 0))
}

pub(super) fn isolation(isolation: &Isolation) -> Outcome {
    let Isolation { slow, rate, time, daemon } = isolation;
    let mut stage = Stage::start(daemon)?;
    for topic in ["slow", "never"] {
        add_ready(&stage, topic, *slow)?;
    }
    let count = (rate * time.as_secs_f64()) as u64;
    let (manner, until) = (Manner::Open { per_second: *rate }, Until::Count(count));
    let work = jobs("f", daemon.topics, 125, (100, 400));
    fire(stage.server, 2, manner, until, &mut Tcp(work))?;
    let missing = await_jobs(&mut stage, "/fast", count)?;
    let arrived = stage.sink.arrived("/fast");
    let settings = format!(
        "{}, {rate} jobs/s beside {slow} of a callback of 3 s and {slow} of one that never answers, {} x {} workers",
        store(daemon),
        daemon.consumers,
        daemon.concurrency
    );
    let mut report = Report::new("isolation", settings);
    report.percentiles("late", &arrived.late_us);
    report.figure("missing", missing as f64, "jobs");
    report.figure("slow ones begun meanwhile", stage.sink.arrived("/slow").calls as f64, "calls");
    Ok((report, missing == 0))
}

/// Adds ready jobs of one topic by name.
fn add_ready(stage: &Stage, topic: &str, count: u64) -> Result<()> {
    struct Named<'a>(&'a str);
    impl Dialect for Named<'_> {
        fn ask(&mut self, number: u64, out: &mut Vec<u8>) {
            let json =
                format!(r#"{{"cmd":"add","topic":"{}","id":"{number}","delay_ms":0,"body":1}}"#, self.0);
            let framed = crate::protocol::dq::Framing::Digits.append(json.as_bytes(), out);
            debug_assert!(framed);
        }
        fn answer(&self, bytes: &[u8]) -> Result<Option<(usize, bool)>> {
            Tcp(jobs("", 1, 12, (0, 0))).answer(bytes)
        }
    }
    if count == 0 {
        return Ok(());
    }
    let (manner, until) = (Manner::Closed { depth: 100 }, Until::Count(count));
    fire(stage.server, 1, manner, until, &mut Named(topic))?;
    Ok(())
}

pub(super) fn idle(idle: &Idle) -> Outcome {
    let Idle { pending, time, daemon } = idle;
    let stage = Stage::start(daemon)?;
    fill(&stage, jobs("i", daemon.topics, 125, (DAY_MS, DAY_MS)), *pending)?;
    // What the adds have begun (carrying the log over, statistics) ends.
    std::thread::sleep(Duration::from_secs(12));
    let (_, before) = stage.usage()?;
    let began = Instant::now();
    std::thread::sleep(*time);
    let (memory, after) = stage.usage()?;
    let share = (after - before).as_secs_f64() / began.elapsed().as_secs_f64() * 100.0;
    let settings = format!("{}, {pending} pending, for {time:?}", store(daemon));
    let mut report = Report::new("idle", settings);
    report.figure("processor", share, "% of one core");
    report.figure("memory (PSS), all processes", memory as f64 / f64::from(1 << 20), "MiB");
    report.figure("processes", stage.processes()?.len() as f64, "");
    if daemon.store == Store::Embedded && *pending > 0 {
        let bytes = std::fs::metadata(stage.folder().join("var/dq.db")).map_or(0, |m| m.len());
        report.figure("on the disk, a pending job", bytes as f64 / *pending as f64, "bytes");
    }
    Ok((report, true))
}

pub(super) fn soak(soak: &Soak) -> Outcome {
    let Soak { rate, time, kill: pause, daemon } = soak;
    let mut stage = Stage::start(daemon)?;
    let (began, mut number, mut kills, mut sum) = (Instant::now(), 0_u32, 0_u32, 0);
    let mut memory = 0;
    while began.elapsed() < *time {
        // Runs of adds; between two of them somebody dies.
        let count = (rate * pause.as_secs_f64()).max(1.0) as u64;
        let (manner, until) = (Manner::Open { per_second: *rate }, Until::Count(count));
        let work = jobs(&format!("s{number}-"), daemon.topics, 125, (200, 2000));
        let volley = fire(stage.server, 10, manner, until, &mut Tcp(work))?;
        sum += volley.done;
        memory = memory.max(stage.usage()?.0);
        // (dq-server is left: an add whose connection breaks is not acknowledged, and not counted.)
        let killable = |name: &str| name.starts_with("dq-consume") || name.starts_with("dq-timer");
        let children: Vec<i32> =
            stage.children()?.into_iter().filter(|p| killable(&p.name)).filter_map(|p| p.pid).collect();
        if let Some(pid) = children.get(number as usize % children.len().max(1)) {
            kill(Pid::from_raw(*pid), Signal::SIGKILL)?;
            kills += 1;
        }
        number += 1;
    }
    let missing = await_jobs(&mut stage, "/fast", sum)?;
    let arrived = stage.sink.arrived("/fast");
    let settings = format!("{}, {rate} jobs/s for {time:?}, a kill each {pause:?}", store(daemon));
    let mut report = Report::new("soak", settings);
    report.figure("jobs", sum as f64, "");
    report.figure("killed", f64::from(kills), "processes");
    report.figure("missing", missing as f64, "jobs");
    report.figure("early", arrived.early as f64, "jobs");
    report.figure("repeated", (arrived.calls - arrived.jobs) as f64, "calls");
    report.percentiles("late", &arrived.late_us);
    report.figure("most memory (PSS)", memory as f64 / f64::from(1 << 20), "MiB");
    Ok((report, missing == 0 && arrived.early == 0))
}
