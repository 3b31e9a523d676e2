//! `dq reserve`: reserves jobs of pull topics. `dq ack`, `dq nack` and `dq extend` report their outcomes.

mod exec;
mod settle;

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Result;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use super::api::{Api, part};
use super::show::{json_line, plain};
use super::target::TargetOptions;

pub(super) use self::settle::{Ack, Extend, Nack, ack, extend, nack};

/// The longest time that the daemon lets a request wait, and how much longer the answer may take.
const WAIT_MAX: Duration = Duration::from_secs(60);
const MARGIN: Duration = Duration::from_secs(20);

/// Reserve jobs of topics whose mode is pull
///
/// Prints the jobs, each with the token by which `dq ack`, `dq nack` and `dq extend` report its outcome. With --exec,
/// runs a command for each job instead, until SIGTERM or SIGINT. The stdin of the command is the body. With exit code
/// 0, the job is done. With other exit codes, it is tried again. The first bytes of the output are kept with the job.
/// While the command runs, the lease is extended.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  dq reserve orders --wait 30s --json
  dq reserve orders.fast orders.slow --exec './ship-order' --workers 4

The command gets DQ_TOPIC, DQ_ID, DQ_ATTEMPT, DQ_DUE_MS, DQ_TAGS and DQ_HEADERS (a JSON object).")]
pub(super) struct ReserveArguments {
    /// The topics, in the order of preference
    #[arg(required = true, num_args = 1..=32)]
    topics: Vec<String>,

    /// The most jobs; with --exec, each worker reserves one at a time
    #[arg(long, default_value_t = 1, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..=100), conflicts_with = "exec")]
    max: u32,

    /// How long to wait for a job, at most 60s. Default: not at all; with --exec, again and again
    #[arg(long, value_name = "SPAN", value_parser = humantime::parse_duration, conflicts_with = "exec")]
    wait: Option<Duration>,

    /// How long each lease lasts. Default: the job's ttr, or the topic's
    #[arg(long, value_name = "SPAN", value_parser = humantime::parse_duration)]
    lease: Option<Duration>,

    /// The name of this client, which is shown with the leased jobs. Default: none; with --exec, the host and the
    /// process
    #[arg(long, value_name = "NAME")]
    consumer: Option<String>,

    /// A command for each job, run by sh -c
    #[arg(long, value_name = "COMMAND")]
    exec: Option<String>,

    /// How many commands run at the same time
    #[arg(long, default_value_t = 1, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..=256), requires = "exec")]
    workers: u32,

    #[command(flatten)]
    at: TargetOptions,
}

/// A reserved job, as the API shows it.
#[derive(Debug, Deserialize)]
struct ReservedJob {
    topic: String,
    id: String,
    body: Box<RawValue>,
    #[serde(default)]
    headers: BTreeMap<String, String>,
    #[serde(default)]
    tags: Vec<String>,
    attempt: u32,
    due_ms: i64,
    /// None: there is no lease, because the job was removed when it was reserved.
    token: Option<String>,
    lease_until_ms: Option<i64>,
}

impl ReservedJob {
    /// Reports the outcome. `token` is the token of the job.
    fn report(&self, api: &Api, token: &str, verb: &str, more: &[(&str, Value)]) -> Result<Value> {
        report(api, &self.topic, &self.id, verb, token, more)
    }
}

fn report(
    api: &Api,
    topic: &str,
    id: &str,
    verb: &str,
    token: &str,
    more: &[(&str, Value)],
) -> Result<Value> {
    let mut body = Map::from_iter([("token".to_owned(), json!(token))]);
    body.extend(more.iter().map(|(name, value)| ((*name).to_owned(), value.clone())));
    api.ask("POST", &format!("/v1/topics/{}/jobs/{}/{verb}", part(topic), part(id)), &body)?.json()
}

/// Returns a span in the form that the API takes.
fn span(span: Duration) -> Value {
    json!(format!("{}ms", span.as_millis()))
}

/// What a client asks for, besides the number of jobs.
#[derive(Clone, Debug)]
struct ReserveOptions {
    topics: Vec<String>,
    lease: Option<Duration>,
    consumer: Option<String>,
}

/// Sends one request for jobs. Returns the jobs as the daemon sent them.
fn reserve(api: &Api, wanted: &ReserveOptions, max: u32, wait: Duration) -> Result<Vec<Box<RawValue>>> {
    #[derive(Deserialize)]
    struct ReservedJobs {
        jobs: Vec<Box<RawValue>>,
    }
    let mut body = json!({"topics": wanted.topics, "max": max, "wait": span(wait)});
    if let Some(lease) = wanted.lease {
        body["lease"] = span(lease);
    }
    if let Some(consumer) = &wanted.consumer {
        body["consumer"] = json!(consumer);
    }
    let ReservedJobs { jobs } = api.ask("POST", "/v1/reserve", &body)?.json()?;
    Ok(jobs)
}

/// Runs `dq reserve`. Returns whether there were jobs.
pub(super) fn run(arguments: &ReserveArguments) -> Result<bool> {
    let api = Api::patient(&arguments.at, WAIT_MAX + MARGIN)?;
    let (topics, lease) = (arguments.topics.clone(), arguments.lease);
    let wanted = ReserveOptions { topics, lease, consumer: arguments.consumer.clone() };
    if let Some(command) = &arguments.exec {
        return exec::run(&arguments.at, wanted, command, arguments.workers);
    }
    let wait = arguments.wait.unwrap_or_default();
    let jobs = reserve(&api, &wanted, arguments.max, wait)?;
    if arguments.at.json {
        jobs.iter().try_for_each(json_line)?;
        return Ok(!jobs.is_empty());
    }
    for job in &jobs {
        let job: ReservedJob = serde_json::from_str(job.get())?;
        let held = match job.lease_until_ms {
            Some(until_ms) => format!("leased until {}", model::json_time::rfc3339(until_ms)),
            None => "removed".to_owned(),
        };
        println!("{}:{}, attempt {}, {held}", job.topic, plain(&job.id), job.attempt);
        println!("  body: {}", plain(job.body.get()));
        if let Some(token) = &job.token {
            println!("  token: {token}");
        }
    }
    if jobs.is_empty() {
        eprintln!("no job is ready");
    }
    Ok(!jobs.is_empty())
}
