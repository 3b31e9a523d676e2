//! Measures an operation on many jobs: all jobs of a topic get a later due time. Meanwhile the process that does this
//! work is killed (twice by default), and a topic with quick callbacks is served. At the end, each job is checked.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use serde_json::{Value, json};

use super::super::api::Api;
use super::super::target::DaemonEndpoint;
use super::BenchBulk;
use super::daemon::{BenchDaemon, BenchDaemonControl, BenchDaemonOptions, Store};
use super::load::{LoadTarget, SendMode, StopCondition, fire};
use super::report::BenchReport;
use super::workloads::TcpAddWorkload;
use super::works::{BenchResult, await_jobs, jobs, store};
use host::now_ms;
use model::job::{Body, Due, JobId, JobKey, NewJob, State, TopicName};
use store::Direction;

/// The topic of the jobs that the operation changes. None of them becomes due. (Another topic has quick callbacks.)
const TOPIC: &str = "slow";

/// The difference between the new and the old due time of each job, in milliseconds.
const BY_MS: i64 = 3_600_000;

/// How many jobs are added or listed in one call.
const PAGE: usize = 5_000;

/// How long the operation may run without progress.
const PATIENCE: Duration = Duration::from_secs(60);

/// How long the quick topic is served before the operation begins.
const BEFORE: Duration = Duration::from_secs(5);

/// Adds the jobs. Each job is due a millisecond after the job before it. Returns the due time of the first job.
fn fill(store: &mut dyn store::Store, count: u64, size: u32) -> Result<i64> {
    let first_ms = now_ms() + 2 * BY_MS;
    let body = Body::trusted(format!("\"{}\"", "x".repeat(size.saturating_sub(2) as usize)));
    let job = |n: u64| -> Result<NewJob> {
        let key = JobKey { topic: TopicName::new(TOPIC)?, id: JobId::new(n.to_string())? };
        Ok(NewJob::new(key, body.clone(), Due::At(first_ms + n as i64)))
    };
    let mut next = 0;
    while next < count {
        let some = (next..count.min(next + PAGE as u64)).map(job).collect::<Result<Vec<_>>>()?;
        next += some.len() as u64;
        store.add(&some).into_iter().try_for_each(|added| added.map(drop))?;
    }
    Ok(first_ms)
}

/// Counts the jobs that were shifted once, and all other jobs.
fn count(store: &mut dyn store::Store, first_ms: i64) -> Result<(u64, u64)> {
    let (topic, mut cursor, mut once, mut others) = (TopicName::new(TOPIC)?, None::<String>, 0, 0);
    loop {
        let page =
            store.list_in_order(&topic, State::Delayed, Direction::Forward, cursor.as_deref(), PAGE)?;
        for job in &page.jobs {
            let number: i64 = job.id.as_str().parse().context("a job of another id")?;
            *(if job.due_ms == first_ms + number + BY_MS { &mut once } else { &mut others }) += 1;
        }
        cursor = page.next;
        if cursor.is_none() {
            return Ok((once, others));
        }
    }
}

/// Follows the operation to its end. Kills its process `kills` times, at equal parts of the work (two kills: at each
/// third). Returns what the API shows at the end, and how often the process was killed.
fn follow(
    api: &Api,
    control: &BenchDaemonControl,
    number: u64,
    count: u64,
    kills: u32,
) -> Result<(Value, u32)> {
    let path = format!("/v1/jobs/bulk/{number}");
    let (mut killed, mut before, mut last) = (0, 0, Instant::now());
    loop {
        std::thread::sleep(Duration::from_millis(50));
        if last.elapsed() > PATIENCE {
            bail!("the operation has stood still for {PATIENCE:?}");
        }
        // While the process is started again, nobody answers.
        let Ok(now) = api.get(&path).and_then(|answer| answer.json::<Value>()) else { continue };
        if !now["ended_ms"].is_null() {
            return Ok((now, killed));
        }
        let changed = now["changed"].as_u64().unwrap_or(0);
        if changed > before {
            (before, last) = (changed, Instant::now());
        }
        if killed < kills && changed * u64::from(kills + 1) >= count * u64::from(killed + 1) {
            control.kill_named("dq-http-server")?;
            killed += 1;
        }
    }
}

/// Adds jobs with quick callbacks at a rate, until `over` is set. Returns how many jobs were added.
fn serve(
    stage: &BenchDaemon,
    options: &BenchDaemonOptions,
    rate: f64,
    run: &str,
    over: &AtomicBool,
) -> Result<u64> {
    let mut all = 0;
    // The runs are short, because a run cannot be ended early.
    for part in 0.. {
        let send_mode = SendMode::Open { per_second: rate };
        let until = StopCondition::Count((rate / 2.0).ceil() as u64);
        let work = jobs(&format!("{run}{part}-"), options.topics, 125, (100, 400));
        let volley = fire(LoadTarget::new(stage.server, 2), send_mode, until, &mut TcpAddWorkload(work))?;
        all += volley.done;
        if over.load(Ordering::Relaxed) {
            break;
        }
    }
    Ok(all)
}

/// Measures the operation.
pub(super) fn run(bulk: &BenchBulk) -> BenchResult {
    let BenchBulk { jobs: count_of, size, rate, beside, kills, registry, daemon } = bulk;
    let own = || if daemon.store == Store::Redis { "store" } else { "sqlite:var/registry.db" }.to_owned();
    let options =
        BenchDaemonOptions { registry: Some(registry.clone().unwrap_or_else(own)), ..daemon.clone() };
    let mut stage = BenchDaemon::start(&options)?;
    let settings = super::super::settings(&stage.folder().join("dq.toml"))?;
    let mut handle = store::open(&settings.store, &settings.run_dir)?;
    let first_ms = fill(handle.as_mut(), *count_of, *size)?;
    // For comparison, the quick topic is first served alone.
    let over = AtomicBool::new(true);
    let mut quick = 0;
    let until = Instant::now() + BEFORE;
    for part in 0.. {
        quick += serve(&stage, &options, *beside, &format!("a{part}-"), &over)?;
        if Instant::now() >= until {
            break;
        }
    }
    let mut missing = await_jobs(&mut stage, "/fast", quick)?;
    let alone = stage.sink.arrived("/fast").late_us;

    let target = DaemonEndpoint::at_url(format!("http://{}", stage.http));
    let api = Api::new(&target, Duration::from_secs(30))?;
    let body = json!({"topic": TOPIC, "operation": "reschedule", "by": BY_MS / 1000, "rate": rate});
    let begun: Value = api.ask("POST", "/v1/jobs/bulk", &body)?.json()?;
    let number = begun["number"].as_u64().context("an operation without a number")?;
    over.store(false, Ordering::Relaxed);
    let began = Instant::now();
    let (followed, served) = std::thread::scope(|scope| {
        let quick = scope.spawn(|| serve(&stage, &options, *beside, "b-", &over));
        let followed = follow(&api, &stage.control(), number, *count_of, *kills);
        over.store(true, Ordering::Relaxed);
        (followed, quick.join())
    });
    let ((end, killed), took) = (followed?, began.elapsed());
    quick += served.map_err(|_| anyhow::anyhow!("the clients of the quick topic have failed"))??;
    missing += await_jobs(&mut stage, "/fast", quick)?;
    let mut beside_it = stage.sink.arrived("/fast").late_us;
    beside_it.subtract(&alone).context("the lateness beside the operation")?;

    let (once, others) = count(handle.as_mut(), first_ms)?;
    let settings = format!(
        "{}, {count_of} jobs of {size} bytes at {rate}/s, killed {killed} times, beside {beside} jobs/s",
        store(daemon)
    );
    let mut report = BenchReport::new("bulk", settings);
    report.figure("shifted", *count_of as f64 / took.as_secs_f64(), "/s");
    report.figure("shifted once", once as f64, "jobs");
    report.figure("not shifted, or twice", others as f64, "jobs");
    report.figure("counted as changed", end["changed"].as_u64().unwrap_or(0) as f64, "jobs");
    report.percentiles("quick topic alone, late", &alone);
    report.percentiles("beside it, late", &beside_it);
    report.figure("missing", missing as f64, "jobs");
    let is_good =
        once == *count_of && others == 0 && missing == 0 && end["state"] == "done" && killed == *kills;
    Ok((report, is_good))
}
