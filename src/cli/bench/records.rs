//! Measures what records of ended jobs cost. The same backlog is delivered several times, with and without records by
//! turns. Also measures how long it takes to find one record among many.

use std::time::{Duration, Instant};

use anyhow::Result;

use super::daemon::{BenchDaemon, BenchDaemonOptions, Store};
use super::load::{LoadTarget, SendMode, StopCondition, fire};
use super::report::{BenchReport, median};
use super::workloads::FindWorkload;
use super::works::{BenchResult, await_jobs, fill, jobs, store};
use super::{BenchFind, BenchRecords};

/// The prefix of the ids.
const RUN: &str = "r";

/// The result of one delivery of the backlog.
struct DeliveryResult {
    per_second: f64,
    missing: u64,
    /// How many bytes the store uses after the delivery.
    bytes: u64,
}

fn deliver(options: &BenchDaemonOptions, count: u64, size: u32) -> Result<(DeliveryResult, BenchDaemon)> {
    let mut stage = BenchDaemon::start(options)?;
    stage.hold(options.topics, true)?;
    fill(&stage, jobs(RUN, options.topics, size, (0, 0)), count)?;
    let began = Instant::now();
    stage.hold(options.topics, false)?;
    let missing = await_jobs(&mut stage, "/fast", count)?;
    let arrived = stage.sink.arrived("/fast");
    let took = arrived.between.map_or(Duration::ZERO, |(_, last)| last.saturating_duration_since(began));
    let bytes = match options.store {
        Store::Redis => stage.redis_bytes()?,
        Store::Embedded => 0,
    };
    Ok((
        DeliveryResult { per_second: arrived.jobs as f64 / took.as_secs_f64().max(1e-9), missing, bytes },
        stage,
    ))
}

/// Delivers the same backlog with records and without, several times in turn.
pub(super) fn run(cost: &BenchRecords) -> BenchResult {
    let BenchRecords { jobs: count, size, rounds, daemon } = cost;
    let with = BenchDaemonOptions { no_records: false, ..daemon.clone() };
    let without = BenchDaemonOptions { no_records: true, ..daemon.clone() };
    let (mut kept, mut none) = (Vec::new(), Vec::new());
    for _ in 0..*rounds {
        kept.push(deliver(&with, *count, *size)?.0);
        none.push(deliver(&without, *count, *size)?.0);
    }
    let rate = |rounds: &[DeliveryResult]| median(rounds.iter().map(|round| round.per_second).collect());
    let (rate_kept, rate_none) = (rate(&kept), rate(&none));
    let settings = format!("{}, {rounds} times {count} due jobs of {size} bytes", store(daemon));
    let mut report = BenchReport::new("records", settings);
    report.figure("delivered with records", rate_kept, "/s");
    report.figure("delivered without records", rate_none, "/s");
    report.ratio("ratio", rate_kept, rate_none, "the rate without records");
    if daemon.store == Store::Redis {
        let bytes =
            |rounds: &[DeliveryResult]| median(rounds.iter().map(|round| round.bytes as f64).collect());
        report.figure("memory of a record", (bytes(&kept) - bytes(&none)) / *count as f64, "bytes");
    }
    let missing: u64 = kept.iter().chain(&none).map(|round| round.missing).sum();
    report.figure("missing", missing as f64, "jobs");
    Ok((report, missing == 0))
}

/// Delivers many jobs, and then looks for the records of some of them by their ids.
pub(super) fn find(find: &BenchFind) -> BenchResult {
    let BenchFind { records: count, requests, daemon } = find;
    let (round, stage) = deliver(daemon, *count, 12)?;
    let (send_mode, until) = (SendMode::Closed { depth: 1 }, StopCondition::Count(*requests));
    let mut workload = FindWorkload { run: RUN, count: *count };
    let volley = fire(LoadTarget::new(stage.http, 1), send_mode, until, &mut workload)?;
    let mut report = BenchReport::new("find", format!("{}, {count} records", store(daemon)));
    report.figure("records found", volley.done as f64, "");
    report.figure("not found", volley.failed as f64, "");
    report.percentiles("answer", &volley.latency_us);
    Ok((report, round.missing == 0 && volley.failed == 0))
}
