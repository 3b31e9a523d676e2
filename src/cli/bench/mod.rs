//! `dq bench`: starts a daemon and measures it. In the same run, it measures the same work without a daemon (the
//! floor). Figures from different machines, or from different hours, cannot be compared. Only their ratios to the floor
//! can be compared.

mod bulk;
mod daemon;
mod floors;
mod load;
mod outage;
mod pull;
mod records;
mod report;
mod sink;
mod workloads;
mod works;

use std::time::Duration;

use anyhow::Result;
use clap::{Args, Subcommand, ValueEnum};

use self::daemon::BenchDaemonOptions;

/// Measure how fast dq is on this machine, and what the same work costs without dq
///
/// Each run starts its own daemon in a new folder, with a receiver of callbacks, and ends it afterwards. Figures of a
/// debug build mean nothing.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  dq bench add --connections 10 --depth 64\n  dq bench deliver --store redis\n  dq bench lateness --rate 1000"
)]
pub struct BenchArguments {
    #[command(subcommand)]
    work: BenchCommand,

    /// Print one JSON object
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Debug, Subcommand)]
enum BenchCommand {
    /// Measure adds, sent as fast as they are answered; compared with HSET and ZADD straight to Redis, bare inserts
    /// into SQLite, or an HTTP handler that does nothing
    Add(BenchAdd),
    /// Measure the delivery of a backlog of due jobs; compared with a client that posts to the same receiver directly
    Deliver(BenchDeliver),
    /// Measure the delivery of a backlog of due jobs with records of ended jobs, and without
    Records(BenchRecords),
    /// Measure how long it takes to find the record of one id among many
    Find(BenchFind),
    /// Measure how late jobs arrive at a constant rate
    Lateness(BenchLateness),
    /// Measure adds, sent as fast as they are answered, while the added jobs become due and are delivered
    Mixed(BenchMixed),
    /// Measure a topic with quick callbacks, beside a topic with slow callbacks and one whose callbacks are never
    /// answered
    Isolation(BenchIsolation),
    /// Measure a shift of many jobs while the process that does it is killed, beside a topic with quick callbacks
    Bulk(BenchBulk),
    /// Measure clients that reserve jobs and ack them, and how late jobs with a delay of a second come to clients that
    /// wait; compared with beanstalkd
    Pull(BenchPull),
    /// Measure how fast one of several Redis nodes takes jobs, while all nodes are up and while another node is down
    Outage(BenchOutage),
    /// Measure what an idle daemon costs
    Idle(BenchIdle),
    /// Send jobs at a constant rate for a long time, while processes are killed: no job may be lost
    Soak(BenchSoak),
}

/// The protocol that the clients use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum ClientProtocol {
    /// The TCP port.
    Tcp,
    /// The HTTP API.
    Http,
}

#[derive(Debug, Args)]
struct LoadOptions {
    /// The port that the jobs are added through
    #[arg(long, value_enum, default_value = "tcp")]
    over: ClientProtocol,

    /// The number of client connections
    #[arg(long, default_value_t = 10, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    connections: u32,

    /// Bytes of a job's body
    #[arg(long, default_value_t = 125, value_name = "BYTES", value_parser = clap::value_parser!(u32).range(12..=1_000_000))]
    size: u32,
}

/// Parses a span of time that is longer than zero.
fn span(text: &str) -> Result<Duration, String> {
    let span = humantime::parse_duration(text).map_err(|e| e.to_string())?;
    if span.is_zero() { Err("it must be longer than zero".to_owned()) } else { Ok(span) }
}

/// Parses a number of jobs a second.
fn rate(text: &str) -> Result<f64, String> {
    let rate: f64 = text.parse().map_err(|_| "it must be a number of jobs a second".to_owned())?;
    if (0.1..=1_000_000.0).contains(&rate) {
        Ok(rate)
    } else {
        Err("it must be between 0.1 and 1000000".to_owned())
    }
}

#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  dq bench add --connections 10 --depth 64\n  dq bench add --store redis --pending 1000000"
)]
struct BenchAdd {
    #[command(flatten)]
    clients: LoadOptions,
    /// Requests in flight on each connection
    #[arg(long, default_value_t = 1, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    depth: u32,
    /// For how long
    #[arg(long, default_value = "5s", value_parser = span)]
    time: Duration,
    /// How many jobs are pending before the measurement begins
    #[arg(long, default_value_t = 0, value_name = "NUMBER")]
    pending: u64,
    #[command(flatten)]
    daemon: BenchDaemonOptions,
}

#[derive(Debug, Args)]
#[command(after_help = "Example:\n  dq bench deliver --jobs 100000 --store redis")]
struct BenchDeliver {
    /// How many jobs are due
    #[arg(long, default_value_t = 50_000, value_name = "NUMBER", value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    jobs: u64,
    /// Bytes of a job's body
    #[arg(long, default_value_t = 125, value_name = "BYTES", value_parser = clap::value_parser!(u32).range(12..=1_000_000))]
    size: u32,
    #[command(flatten)]
    daemon: BenchDaemonOptions,
}

#[derive(Debug, Args)]
#[command(after_help = "Example:\n  dq bench records --jobs 50000 --store redis")]
struct BenchRecords {
    /// How many jobs are due
    #[arg(long, default_value_t = 50_000, value_name = "NUMBER", value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    jobs: u64,
    /// Bytes of a job's body
    #[arg(long, default_value_t = 125, value_name = "BYTES", value_parser = clap::value_parser!(u32).range(12..=1_000_000))]
    size: u32,
    /// How many times the backlog is delivered with records, and how many times without
    #[arg(long, default_value_t = 3, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    #[command(flatten)]
    daemon: BenchDaemonOptions,
}

#[derive(Debug, Args)]
#[command(after_help = "Example:\n  dq bench find --records 1000000 --store redis")]
struct BenchFind {
    /// How many jobs end before the measurement begins
    #[arg(long, default_value_t = 1_000_000, value_name = "NUMBER", value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    records: u64,
    /// How many ids are looked for, one after the other
    #[arg(long, default_value_t = 1000, value_name = "NUMBER", value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    requests: u64,
    #[command(flatten)]
    daemon: BenchDaemonOptions,
}

#[derive(Debug, Args)]
#[command(after_help = "Example:\n  dq bench lateness --rate 1000 --time 30s")]
struct BenchLateness {
    #[command(flatten)]
    clients: LoadOptions,
    /// Jobs a second
    #[arg(long, default_value = "1000", value_parser = rate)]
    rate: f64,
    /// For how long
    #[arg(long, default_value = "10s", value_parser = span)]
    time: Duration,
    #[command(flatten)]
    daemon: BenchDaemonOptions,
}

#[derive(Debug, Args)]
#[command(after_help = "Example:\n  dq bench mixed --connections 4 --depth 8")]
struct BenchMixed {
    #[command(flatten)]
    clients: LoadOptions,
    /// Requests in flight on each connection
    #[arg(long, default_value_t = 16, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    depth: u32,
    /// For how long
    #[arg(long, default_value = "10s", value_parser = span)]
    time: Duration,
    #[command(flatten)]
    daemon: BenchDaemonOptions,
}

#[derive(Debug, Args)]
#[command(after_help = "Example:\n  dq bench isolation --slow 1000 --rate 50")]
struct BenchIsolation {
    /// How many jobs have a callback that takes 3 s; for the same number of jobs, the callback is never answered
    #[arg(long, default_value_t = 1000, value_name = "NUMBER")]
    slow: u64,
    /// How many jobs per second to add to the topic with the quick receiver
    #[arg(long, default_value = "50", value_parser = rate)]
    rate: f64,
    /// For how long
    #[arg(long, default_value = "20s", value_parser = span)]
    time: Duration,
    #[command(flatten)]
    daemon: BenchDaemonOptions,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  dq bench bulk --jobs 1000000\n  dq bench bulk --store redis")]
struct BenchBulk {
    /// How many jobs are shifted
    #[arg(long, default_value_t = 1_000_000, value_name = "NUMBER", value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    jobs: u64,
    /// Bytes of a job's body
    #[arg(long, default_value_t = 125, value_name = "BYTES", value_parser = clap::value_parser!(u32).range(12..=1_000_000))]
    size: u32,
    /// The largest number of jobs to shift in a second
    #[arg(long, default_value_t = 5_000, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..=20_000))]
    rate: u32,
    /// How many jobs per second to add to the topic with quick callbacks meanwhile
    #[arg(long, default_value = "100", value_parser = rate)]
    beside: f64,
    /// How often the process that shifts the jobs is killed
    #[arg(long, default_value_t = 2, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(0..=100))]
    kills: u32,
    /// The database that keeps the operation; default: a file, or with --store redis the store itself
    #[arg(long, value_name = "URL")]
    registry: Option<String>,
    #[command(flatten)]
    daemon: BenchDaemonOptions,
}

/// The protocol of clients that reserve jobs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum PullClients {
    /// The TCP port.
    Tcp,
    /// The HTTP API.
    Http,
    /// dq's port for clients of beanstalkd.
    Beanstalk,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  dq bench pull --store redis\n  dq bench pull --over http --waiting 5000\n\nIt starts a beanstalkd of its own, which must be in PATH."
)]
struct BenchPull {
    /// The protocol of the clients of dq
    #[arg(long, value_enum, default_value = "tcp")]
    over: PullClients,
    /// The number of connections that reserve jobs of a backlog
    #[arg(long, default_value_t = 10, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..=1000))]
    connections: u32,
    /// How many jobs a client reserves at once
    #[arg(long, default_value_t = 32, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..=100))]
    batch: u32,
    /// How many jobs are in the backlogs of all rounds together
    #[arg(long, default_value_t = 50_000, value_name = "NUMBER", value_parser = clap::value_parser!(u64).range(100..=1_000_000))]
    jobs: u64,
    /// Bytes of a job's body
    #[arg(long, default_value_t = 125, value_name = "BYTES", value_parser = clap::value_parser!(u32).range(12..=60_000))]
    size: u32,
    /// How many clients wait for the jobs with a delay
    #[arg(long, default_value_t = 100, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..=9000))]
    waiting: u32,
    /// Jobs with a delay a second
    #[arg(long, default_value = "200", value_parser = rate)]
    rate: f64,
    /// For how long jobs with a delay are added
    #[arg(long, default_value = "5s", value_parser = span)]
    time: Duration,
    #[command(flatten)]
    daemon: BenchDaemonOptions,
}

/// What happens to a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum OutageKind {
    /// The node is killed, and started again afterwards.
    Killed,
    /// The node is stopped (SIGSTOP), and continues afterwards.
    Hung,
}

#[derive(Debug, Args)]
#[command(after_help = "Example:\n  dq bench outage --store redis --nodes 2 --absence hung")]
struct BenchOutage {
    #[command(flatten)]
    clients: LoadOptions,
    /// Requests in flight on each connection
    #[arg(long, default_value_t = 16, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    depth: u32,
    /// How long to measure, once with all nodes and once with one node down
    #[arg(long, default_value = "10s", value_parser = span)]
    time: Duration,
    /// What happens to the second node
    #[arg(long, value_enum, default_value = "killed")]
    absence: OutageKind,
    #[command(flatten)]
    daemon: BenchDaemonOptions,
}

#[derive(Debug, Args)]
#[command(after_help = "Example:\n  dq bench idle --pending 1000000 --time 1m")]
struct BenchIdle {
    /// How many jobs are pending
    #[arg(long, default_value_t = 10_000, value_name = "NUMBER")]
    pending: u64,
    /// For how long
    #[arg(long, default_value = "10s", value_parser = span)]
    time: Duration,
    #[command(flatten)]
    daemon: BenchDaemonOptions,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  dq bench soak --rate 500 --time 10m --kill 5s\n  dq bench soak --rate 5000 --time 1m --restart 10s"
)]
struct BenchSoak {
    /// Jobs a second
    #[arg(long, default_value = "500", value_parser = rate)]
    rate: f64,
    /// For how long
    #[arg(long, default_value = "1m", value_parser = span)]
    time: Duration,
    /// The time between two kills; the daemon's processes are killed in turn
    #[arg(long, default_value = "3s", value_parser = span)]
    kill: Duration,
    /// Send USR2 at this interval instead of killing processes; the test fails if a connection breaks
    #[arg(long, conflicts_with = "kill", value_parser = span)]
    restart: Option<Duration>,
    #[command(flatten)]
    daemon: BenchDaemonOptions,
}

/// Runs a measurement. Returns whether it passed.
pub fn run(arguments: &BenchArguments) -> Result<bool> {
    if cfg!(debug_assertions) {
        eprintln!("this is a debug build: its figures mean nothing (cargo build --release)");
    }
    let (report, is_good) = match &arguments.work {
        BenchCommand::Add(add) => works::add(add)?,
        BenchCommand::Deliver(deliver) => works::deliver(deliver)?,
        BenchCommand::Records(cost) => records::run(cost)?,
        BenchCommand::Find(find) => records::find(find)?,
        BenchCommand::Lateness(lateness) => works::lateness(lateness)?,
        BenchCommand::Mixed(mixed) => works::mixed(mixed)?,
        BenchCommand::Isolation(isolation) => works::isolation(isolation)?,
        BenchCommand::Bulk(bulk) => bulk::run(bulk)?,
        BenchCommand::Pull(pull) => pull::run(pull)?,
        BenchCommand::Outage(outage) => outage::run(outage)?,
        BenchCommand::Idle(idle) => works::idle(idle)?,
        BenchCommand::Soak(soak) => works::soak(soak)?,
    };
    report.print(arguments.json)?;
    Ok(is_good)
}
