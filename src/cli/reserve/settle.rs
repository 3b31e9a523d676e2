//! `dq ack`, `dq nack`, `dq extend`: report the outcome of a reserved job.

use std::time::Duration;

use anyhow::Result;
use serde_json::{Value, json};

use super::super::api::Api;
use super::super::job::JobArguments;
use super::super::show::{json_line, plain};
use super::{report, span};

/// Report that a reserved job is done
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  dq ack orders 42 \"$TOKEN\" --answer shipped")]
pub(in super::super) struct Ack {
    #[command(flatten)]
    key: JobArguments,

    /// The token that `dq reserve` printed
    lease: String,

    /// The result; kept with the job's record
    #[arg(long, value_name = "TEXT")]
    answer: Option<String>,
}

/// Report that a reserved job could not be done
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  dq nack orders 42 \"$TOKEN\" --delay 10m --reason 'no stock'")]
pub(in super::super) struct Nack {
    #[command(flatten)]
    key: JobArguments,

    /// The token that `dq reserve` printed
    lease: String,

    /// When to try again. Default: as the topic's retry says
    #[arg(long, value_name = "SPAN", value_parser = humantime::parse_duration)]
    delay: Option<Duration>,

    /// The reason; kept with the job
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
}

/// Get more time for a reserved job
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  dq extend orders 42 \"$TOKEN\" --by 5m")]
pub(in super::super) struct Extend {
    #[command(flatten)]
    key: JobArguments,

    /// The token that `dq reserve` printed
    lease: String,

    /// How long the lease lasts from now on. Default: the job's ttr, or the topic's
    #[arg(long, value_name = "SPAN", value_parser = humantime::parse_duration)]
    by: Option<Duration>,
}

/// Sends a report, and prints what happened to the job.
fn send_report(key: &JobArguments, verb: &str, token: &str, more: &[(&str, Value)]) -> Result<()> {
    let answer = report(&Api::from_options(&key.at)?, &key.topic, &key.id, verb, token, more)?;
    if key.at.json {
        return json_line(&answer);
    }
    let until = answer["until_ms"].as_i64().map(model::json_time::rfc3339);
    let until = until.map_or(String::new(), |until| format!(", leased until {until}"));
    println!("{}: {}:{}{until}", answer["outcome"].as_str().unwrap_or_default(), key.topic, plain(&key.id));
    Ok(())
}

/// Runs `dq ack`.
pub(in super::super) fn ack(Ack { key, lease, answer }: &Ack) -> Result<()> {
    let answer = answer.iter().map(|text| ("answer", json!(text)));
    send_report(key, "ack", lease, &answer.collect::<Vec<_>>())
}

/// Runs `dq nack`.
pub(in super::super) fn nack(Nack { key, lease, delay, reason }: &Nack) -> Result<()> {
    let delay = delay.iter().map(|delay| ("delay", span(*delay)));
    let reason = reason.iter().map(|text| ("reason", json!(text)));
    send_report(key, "nack", lease, &delay.chain(reason).collect::<Vec<_>>())
}

/// Runs `dq extend`.
pub(in super::super) fn extend(Extend { key, lease, by }: &Extend) -> Result<()> {
    let by = by.iter().map(|by| ("lease", span(*by)));
    send_report(key, "extend", lease, &by.collect::<Vec<_>>())
}
