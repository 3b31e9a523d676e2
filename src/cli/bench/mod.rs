//! `dq bench`: measures a daemon that it starts, beside what the same work costs without one (the floor), in one run: figures of
//! two machines, or of two hours, cannot be compared, and ratios can.

mod dialects;
mod floors;
mod report;
mod sink;
mod stage;
mod volley;
mod works;

use std::time::Duration;

use anyhow::Result;
use clap::{Args, Subcommand, ValueEnum};

use self::stage::Options;

/// Measure: how fast dq is on this machine, and how much of what is possible that is
///
/// Each run starts a daemon of its own in a fresh folder, with a receiver of callbacks, and ends it. Figures of a debug build mean
/// nothing.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  dq bench add --connections 10 --depth 64\n  dq bench deliver --store redis\n  dq bench lateness --rate 1000"
)]
pub struct Arguments {
    #[command(subcommand)]
    work: Work,

    /// JSON, one object
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Debug, Subcommand)]
enum Work {
    /// Adds, as fast as they are answered; beside HSET and ZADD straight to Redis, bare inserts into SQLite, an HTTP handler that does nothing
    Add(Add),
    /// A backlog of due jobs to the receiver; beside what a client posts to that receiver directly
    Deliver(Deliver),
    /// Jobs at a constant rate: how late they come
    Lateness(Lateness),
    /// Adds as fast as they are answered, while what is added becomes due and is delivered
    Mixed(Mixed),
    /// A topic of quick callbacks beside some that are slow, and some that never answer
    Isolation(Isolation),
    /// Nothing: what a daemon costs that only waits
    Idle(Idle),
    /// Jobs at a constant rate for long, while processes are killed: none may be lost
    Soak(Soak),
}

/// How clients speak with dq.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Over {
    /// The TCP port.
    Tcp,
    /// The HTTP API.
    Http,
}

#[derive(Debug, Args)]
struct Clients {
    /// By which port jobs are added
    #[arg(long, value_enum, default_value = "tcp")]
    over: Over,

    /// Connections of clients
    #[arg(long, default_value_t = 10, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    connections: u32,

    /// Bytes of a job's body
    #[arg(long, default_value_t = 125, value_name = "BYTES", value_parser = clap::value_parser!(u32).range(12..=1_000_000))]
    size: u32,
}

/// How long something goes on.
fn span(text: &str) -> Result<Duration, String> {
    let span = humantime::parse_duration(text).map_err(|e| e.to_string())?;
    if span.is_zero() { Err("it is to be more than nothing".to_owned()) } else { Ok(span) }
}

/// How many a second.
fn rate(text: &str) -> Result<f64, String> {
    let rate: f64 = text.parse().map_err(|_| "a number of jobs a second".to_owned())?;
    if (0.1..=1_000_000.0).contains(&rate) {
        Ok(rate)
    } else {
        Err("it is not within 0.1 and 1000000".to_owned())
    }
}

#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  dq bench add --connections 10 --depth 64\n  dq bench add --store redis --pending 1000000"
)]
struct Add {
    #[command(flatten)]
    clients: Clients,
    /// Requests in flight on each connection
    #[arg(long, default_value_t = 1, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    depth: u32,
    /// For how long
    #[arg(long, default_value = "5s", value_parser = span)]
    time: Duration,
    /// So many jobs are pending before it begins
    #[arg(long, default_value_t = 0, value_name = "NUMBER")]
    pending: u64,
    #[command(flatten)]
    daemon: Options,
}

#[derive(Debug, Args)]
#[command(after_help = "Example:\n  dq bench deliver --jobs 100000 --store redis")]
struct Deliver {
    /// How many jobs are due
    #[arg(long, default_value_t = 50_000, value_name = "NUMBER", value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    jobs: u64,
    /// Bytes of a job's body
    #[arg(long, default_value_t = 125, value_name = "BYTES", value_parser = clap::value_parser!(u32).range(12..=1_000_000))]
    size: u32,
    #[command(flatten)]
    daemon: Options,
}

#[derive(Debug, Args)]
#[command(after_help = "Example:\n  dq bench lateness --rate 1000 --time 30s")]
struct Lateness {
    #[command(flatten)]
    clients: Clients,
    /// Jobs a second
    #[arg(long, default_value = "1000", value_parser = rate)]
    rate: f64,
    /// For how long
    #[arg(long, default_value = "10s", value_parser = span)]
    time: Duration,
    #[command(flatten)]
    daemon: Options,
}

#[derive(Debug, Args)]
#[command(after_help = "Example:\n  dq bench mixed --connections 4 --depth 8")]
struct Mixed {
    #[command(flatten)]
    clients: Clients,
    /// Requests in flight on each connection
    #[arg(long, default_value_t = 16, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    depth: u32,
    /// For how long
    #[arg(long, default_value = "10s", value_parser = span)]
    time: Duration,
    #[command(flatten)]
    daemon: Options,
}

#[derive(Debug, Args)]
#[command(after_help = "Example:\n  dq bench isolation --slow 1000 --rate 50")]
struct Isolation {
    /// Ready jobs of a callback that takes 3 s, and as many of one that never answers
    #[arg(long, default_value_t = 1000, value_name = "NUMBER")]
    slow: u64,
    /// Jobs a second of the quick one
    #[arg(long, default_value = "50", value_parser = rate)]
    rate: f64,
    /// For how long
    #[arg(long, default_value = "20s", value_parser = span)]
    time: Duration,
    #[command(flatten)]
    daemon: Options,
}

#[derive(Debug, Args)]
#[command(after_help = "Example:\n  dq bench idle --pending 1000000 --time 1m")]
struct Idle {
    /// So many jobs are pending
    #[arg(long, default_value_t = 10_000, value_name = "NUMBER")]
    pending: u64,
    /// For how long
    #[arg(long, default_value = "10s", value_parser = span)]
    time: Duration,
    #[command(flatten)]
    daemon: Options,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  dq bench soak --rate 500 --time 10m --kill 5s\n  dq bench soak --rate 5000 --time 1m --restart 10s"
)]
struct Soak {
    /// Jobs a second
    #[arg(long, default_value = "500", value_parser = rate)]
    rate: f64,
    /// For how long
    #[arg(long, default_value = "1m", value_parser = span)]
    time: Duration,
    /// How often one of the daemon's processes is killed, by turns
    #[arg(long, default_value = "3s", value_parser = span)]
    kill: Duration,
    /// Instead of killing: how often the daemon is restarted in place (USR2), in which no connection may break
    #[arg(long, conflicts_with = "kill", value_parser = span)]
    restart: Option<Duration>,
    #[command(flatten)]
    daemon: Options,
}

/// Runs it. Tells whether all came as it must.
pub fn run(arguments: &Arguments) -> Result<bool> {
    if cfg!(debug_assertions) {
        eprintln!("this is a debug build: its figures mean nothing (cargo build --release)");
    }
    let (report, is_good) = match &arguments.work {
        Work::Add(add) => works::add(add)?,
        Work::Deliver(deliver) => works::deliver(deliver)?,
        Work::Lateness(lateness) => works::lateness(lateness)?,
        Work::Mixed(mixed) => works::mixed(mixed)?,
        Work::Isolation(isolation) => works::isolation(isolation)?,
        Work::Idle(idle) => works::idle(idle)?,
        Work::Soak(soak) => works::soak(soak)?,
    };
    report.print(arguments.json)?;
    Ok(is_good)
}
