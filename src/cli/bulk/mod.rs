//! `dq bulk`: operations on all jobs of a topic that a filter selects. They run in the daemon.

mod filter;
mod follow;

use anyhow::Result;
use jiff::tz::TimeZone;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use self::filter::BulkJobFilter;
use self::follow::{Operation, describe, follow};
use super::api::Api;
use super::ask::confirm;
use super::due::moment;
use super::record_filter::RecordFilter;
use super::show::{Table, json_line};
use super::target::TargetOptions;
use model::topic::Rate;

/// Change many jobs at once: cancel, reschedule, run, redrive or replay all jobs that a filter selects
///
/// The daemon does the work in the background. The work continues when this command ends, and after a crash.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  dq bulk cancel orders --id-prefix shop7- --dry-run
  dq bulk reschedule orders --by 1h --yes
  dq bulk reschedule orders --due-until 2026-12-01T00:00:00Z --spread 2h
  dq bulk replay orders --outcome dead --since 2h --rate 50/s
  dq bulk list
  dq bulk stop 12")]
pub(super) struct BulkArguments {
    #[command(subcommand)]
    command: BulkCommand,

    #[command(flatten)]
    at: TargetOptions,
}

#[derive(Debug, clap::Subcommand)]
enum BulkCommand {
    /// Delete jobs that have not ended
    #[command(
        after_help = "Examples:\n  dq bulk cancel orders --id-prefix shop7- --dry-run\n  dq bulk cancel orders --tag campaign:3 --yes"
    )]
    Cancel(OnJobs),
    Reschedule(Reschedule),
    /// Deliver delayed jobs now
    #[command(after_help = "Example:\n  dq bulk run orders --due-until '2026-12-01 08:00:00' --rate 200/s")]
    Run(OnJobs),
    /// Deliver dead letters again; their attempts are counted from 0 again
    #[command(after_help = "Example:\n  dq bulk redrive orders --id-prefix shop7- --rate 100/s")]
    Redrive(OnJobs),
    Replay(Replay),
    List(ListOperations),
    /// Show an operation
    #[command(after_help = "Example:\n  dq bulk show 12 --json")]
    Show(OperationNumber),
    /// Stop an operation; what it has changed stays changed
    #[command(after_help = "Example:\n  dq bulk stop 12")]
    Stop(OperationNumber),
}

/// How an operation runs.
#[derive(Debug, clap::Args)]
struct OperationOptions {
    /// The topic
    topic: String,

    /// The largest number of jobs to change in a second, 1/s to 20000/s; also 600/m, 3600/h, or a number; default:
    /// 5000/s
    #[arg(long, value_name = "RATE")]
    rate: Option<Rate>,

    /// Change nothing, and print how many jobs match
    #[arg(long)]
    dry_run: bool,

    /// Do not wait for the end
    #[arg(long)]
    detach: bool,

    /// Do not ask for confirmation
    #[arg(long, short)]
    yes: bool,
}

#[derive(Debug, clap::Args)]
struct OnJobs {
    #[command(flatten)]
    how: OperationOptions,

    #[command(flatten)]
    filter: BulkJobFilter,
}

/// Give delayed and ready jobs other due times
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  dq bulk reschedule orders --by 1h --dry-run
  dq bulk reschedule orders --by -10m --state delayed
  dq bulk reschedule orders --at '2026-12-01 08:00:00' --spread 2h")]
#[command(group = clap::ArgGroup::new("to").required(true).multiple(true).args(["by", "moment", "spread"]))]
struct Reschedule {
    /// The difference to the old due time: 1h, -10m
    #[arg(long, value_name = "SPAN", allow_hyphen_values = true, conflicts_with_all = ["moment", "spread"])]
    by: Option<String>,

    /// The due time of all jobs, or with --spread the beginning of the span: "2026-12-01 23:50:50" in this host's time
    /// zone, RFC 3339 for another zone, or Unix milliseconds
    #[arg(long = "at", id = "moment", value_name = "MOMENT")]
    moment: Option<String>,

    /// Spread the jobs over a span of this length, such as 2h. The span begins now, or at the time of --at
    #[arg(long, value_name = "SPAN")]
    spread: Option<String>,

    #[command(flatten)]
    jobs: OnJobs,
}

/// Add ended jobs again, with their old ids and bodies
///
/// The topic must keep bodies (keep_done_body). A job is left out if another job has its id now.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:
  dq bulk replay orders --outcome dead --since 2h --rate 50/s")]
struct Replay {
    #[command(flatten)]
    how: OperationOptions,

    #[command(flatten)]
    filter: RecordFilter,
}

/// List the operations, the latest first
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:
  dq bulk list --json")]
struct ListOperations {
    /// The maximum number of operations to list, up to 200
    #[arg(long, value_name = "NUMBER", default_value_t = 50)]
    limit: u32,
}

#[derive(Debug, clap::Args)]
struct OperationNumber {
    /// The number of the operation
    number: u64,
}

#[derive(Debug, Deserialize)]
struct OperationsPage {
    operations: Vec<Value>,
    next: Option<String>,
}

#[derive(Debug, Deserialize)]
struct DryRun {
    matched: u64,
    skipped: u64,
    looked_at: u64,
    is_complete: bool,
}

/// Runs `dq bulk`. Returns whether all was done.
pub(super) fn run(arguments: &BulkArguments) -> Result<bool> {
    let at = &arguments.at;
    match &arguments.command {
        BulkCommand::Cancel(jobs) => begin(at, &jobs.how, "cancel", &jobs.filter.fields()?, Map::new()),
        BulkCommand::Run(jobs) => begin(at, &jobs.how, "run", &jobs.filter.fields()?, Map::new()),
        BulkCommand::Redrive(jobs) => begin(at, &jobs.how, "redrive", &jobs.filter.fields()?, Map::new()),
        BulkCommand::Replay(Replay { how, filter }) => begin(at, how, "replay", &filter.fields(), Map::new()),
        BulkCommand::Reschedule(Reschedule { by, moment: to, spread, jobs }) => {
            let mut when = Map::new();
            if let Some(by) = by {
                when.insert("by".into(), json!(by));
            }
            if let Some(to) = to {
                when.insert("at".into(), moment(to, TimeZone::system())?);
            }
            if let Some(spread) = spread {
                when.insert("spread".into(), json!(spread));
            }
            begin(at, &jobs.how, "reschedule", &jobs.filter.fields()?, when)
        }
        BulkCommand::List(ListOperations { limit }) => {
            let page: OperationsPage =
                Api::from_options(at)?.get(&format!("/v1/jobs/bulk?limit={limit}"))?.json()?;
            match at.json {
                true => page.operations.iter().try_for_each(json_line)?,
                false => print!("{}", table(&page.operations)?),
            }
            if page.next.is_some() && !at.json {
                eprintln!("there are more: --limit shows them");
            }
            Ok(true)
        }
        BulkCommand::Show(OperationNumber { number }) => {
            let api = Api::from_options(at)?;
            show(at, &api.get(&path(*number))?.json()?)
        }
        BulkCommand::Stop(OperationNumber { number }) => {
            let api = Api::from_options(at)?;
            show(at, &api.ask("POST", &format!("{}/stop", path(*number)), &Map::new())?.json()?)
        }
    }
}

fn path(number: u64) -> String {
    format!("/v1/jobs/bulk/{number}")
}

fn show(at: &TargetOptions, operation: &Value) -> Result<bool> {
    if at.json {
        json_line(operation)?;
    } else {
        println!("{}", describe(&Operation::read(operation)?));
    }
    Ok(true)
}

/// Counts the jobs, asks the user, begins the operation, and waits for its end.
fn begin(
    at: &TargetOptions,
    how: &OperationOptions,
    operation: &str,
    filter: &Map<String, Value>,
    when: Map<String, Value>,
) -> Result<bool> {
    let api = Api::from_options(at)?;
    let mut body = when;
    body.insert("topic".into(), json!(how.topic));
    body.insert("operation".into(), json!(operation));
    if !filter.is_empty() {
        body.insert("filter".into(), json!(filter));
    }
    if let Some(rate) = how.rate {
        body.insert("rate".into(), json!(rate.to_string()));
    }
    let dry: Map<String, Value> =
        body.clone().into_iter().chain([("dry_run".to_owned(), json!(true))]).collect();
    let counted: Value = api.ask("POST", "/v1/jobs/bulk", &dry)?.json()?;
    let DryRun { matched, skipped, looked_at, is_complete } = serde_json::from_value(counted.clone())?;
    let jobs = match (is_complete, matched) {
        (true, 1) => "1 job".to_owned(),
        (true, n) => format!("{n} jobs"),
        (false, n) => format!("more than {n} jobs (those among the first {looked_at} that were looked at)"),
    };
    if how.dry_run {
        match at.json {
            true => json_line(&counted)?,
            false if skipped > 0 => {
                println!("{jobs} of topic {} match; {skipped} would stay as they are", how.topic)
            }
            false => println!("{jobs} of topic {} match", how.topic),
        }
        return Ok(true);
    }
    confirm(how.yes, || format!("{operation} {jobs} of topic {}?", how.topic))?;
    let begun: Value = api.ask("POST", "/v1/jobs/bulk", &body)?.json()?;
    let number = Operation::read(&begun)?.number;
    if how.detach {
        return match at.json {
            true => json_line(&begun).map(|()| true),
            false => {
                println!("operation {number} has begun: dq bulk show {number}, dq bulk stop {number}");
                Ok(true)
            }
        };
    }
    eprintln!(
        "operation {number}; it goes on if this command ends: dq bulk show {number}, dq bulk stop {number}"
    );
    let (last, end) = follow(&api, &path(number), matched)?;
    show(at, &last)?;
    Ok(end.state == "done")
}

/// Returns the table of operations.
fn table(rows: &[Value]) -> Result<String> {
    let mut table =
        Table::new(&["NUMBER", "TOPIC", "OPERATION", "STATE", "CHANGED", "SKIPPED", "LOOKED AT", "BY"]);
    for row in rows {
        let one = Operation::read(row)?;
        table.row([
            one.number.to_string(),
            one.topic,
            one.operation,
            one.state,
            one.changed.to_string(),
            one.skipped.to_string(),
            one.looked_at.to_string(),
            super::show::or_nothing(&one.by),
        ]);
    }
    Ok(table.text())
}
