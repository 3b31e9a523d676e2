//! What records of ended jobs cost: the delivery of a backlog with them and without them, in turn.

use std::time::{Duration, Instant};

use anyhow::Result;

use super::RecordCost;
use super::daemon::{BenchDaemon, Options, Store};
use super::report::Report;
use super::works::{WorkOutcome, await_jobs, fill, jobs, store};

/// The result of one delivery of the backlog.
struct Round {
    per_second: f64,
    missing: u64,
    /// The bytes that the store uses in the end.
    bytes: u64,
}

fn deliver(options: &Options, count: u64, size: u32) -> Result<Round> {
    let mut stage = BenchDaemon::start(options)?;
    stage.hold(options.topics, true)?;
    fill(&stage, jobs("r", options.topics, size, (0, 0)), count)?;
    let began = Instant::now();
    stage.hold(options.topics, false)?;
    let missing = await_jobs(&mut stage, "/fast", count)?;
    let arrived = stage.sink.arrived("/fast");
    let took = arrived.between.map_or(Duration::ZERO, |(_, last)| last.saturating_duration_since(began));
    let bytes = match options.store {
        Store::Redis => stage.redis_bytes()?,
        Store::Embedded => 0,
    };
    Ok(Round { per_second: arrived.jobs as f64 / took.as_secs_f64().max(1e-9), missing, bytes })
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Delivers the same backlog with records and without, several times in turn.
pub(super) fn run(cost: &RecordCost) -> WorkOutcome {
    let RecordCost { jobs: count, size, rounds, daemon } = cost;
    let with = Options { no_records: false, ..daemon.clone() };
    let without = Options { no_records: true, ..daemon.clone() };
    let (mut kept, mut none) = (Vec::new(), Vec::new());
    for _ in 0..*rounds {
        kept.push(deliver(&with, *count, *size)?);
        none.push(deliver(&without, *count, *size)?);
    }
    let rate = |rounds: &[Round]| median(rounds.iter().map(|round| round.per_second).collect());
    let (rate_kept, rate_none) = (rate(&kept), rate(&none));
    let settings = format!("{}, {rounds} times {count} due jobs of {size} bytes", store(daemon));
    let mut report = Report::new("records", settings);
    report.figure("delivered with records", rate_kept, "/s");
    report.figure("delivered without records", rate_none, "/s");
    report.ratio("ratio", rate_kept, rate_none, "the rate without records");
    if daemon.store == Store::Redis {
        let bytes = |rounds: &[Round]| median(rounds.iter().map(|round| round.bytes as f64).collect());
        report.figure("memory of a record", (bytes(&kept) - bytes(&none)) / *count as f64, "bytes");
    }
    let missing: u64 = kept.iter().chain(&none).map(|round| round.missing).sum();
    report.figure("missing", missing as f64, "jobs");
    Ok((report, missing == 0))
}
