//! `dq topics health`: what the receiver of a topic did.

use anyhow::Result;
use serde::Deserialize;

use super::super::api::Api;
use super::super::show::{NOTHING, Table, lines, moment_from, short_span};
use super::super::target::TargetOptions;

/// Show the health of a topic's receiver: success rate, durations and errors
///
/// The figures count only the callbacks that were made by the dq host to which this command is connected. If several
/// hosts share a store, each has its own figures.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  dq topics health orders\n  dq topics health orders --over 1d --json")]
pub(super) struct TopicsHealthArguments {
    /// The topic
    name: String,

    /// The period to show: ten minutes, a day or a week
    #[arg(long, default_value = "10m", value_parser = ["10m", "1d", "7d"])]
    over: String,
}

#[derive(Debug, Deserialize)]
struct ReceiverHealth {
    since_ms: i64,
    now_ms: i64,
    attempts: u64,
    accepted: u64,
    failed: u64,
    later: u64,
    success_rate: Option<f64>,
    p50_us: Option<u64>,
    p90_us: Option<u64>,
    p99_us: Option<u64>,
    durations: Vec<DurationBucket>,
    errors: Vec<FailureCount>,
}

#[derive(Debug, Deserialize)]
struct DurationBucket {
    up_to_us: Option<u64>,
    attempts: u64,
}

#[derive(Debug, Deserialize)]
struct FailureCount {
    failure: String,
    attempts: u64,
}

/// Runs `dq topics health`.
pub(super) fn run(
    at: &TargetOptions,
    TopicsHealthArguments { name, over }: &TopicsHealthArguments,
) -> Result<()> {
    let answer = Api::from_options(at)?.get(&format!("{}/health?over={over}", super::path(name)))?;
    match at.json {
        true => println!("{}", answer.raw()?.get()),
        false => print!("{}", page(&answer.json()?)),
    }
    Ok(())
}

/// Returns an upper bound as text. None: the value is above the last bound.
fn up_to(us: Option<u64>) -> String {
    match us {
        Some(us) => format!("up to {}", short_span(us as f64 / 1000.0)),
        None => "longer than 1 min".to_owned(),
    }
}

fn page(health: &ReceiverHealth) -> String {
    let percentile = |us| if health.attempts == 0 { NOTHING.to_owned() } else { up_to(us) };
    // The rate is rounded down, so that 100 % means that nothing failed.
    let rate = |rate: f64| format!("{:.2} %", (rate * 10_000.0).floor() / 100.0);
    let mut text = lines(&[
        ("since", moment_from(health.since_ms, health.now_ms)),
        ("success rate", health.success_rate.map_or_else(|| NOTHING.to_owned(), rate)),
        ("accepted", health.accepted.to_string()),
        ("failed", health.failed.to_string()),
        ("answered later", health.later.to_string()),
        ("p50", percentile(health.p50_us)),
        ("p90", percentile(health.p90_us)),
        ("p99", percentile(health.p99_us)),
    ]);
    if health.attempts > 0 {
        let mut table = Table::new(&["DURATION", ">ATTEMPTS"]);
        for range in health.durations.iter().filter(|range| range.attempts > 0) {
            table.row([up_to(range.up_to_us), range.attempts.to_string()]);
        }
        text += &format!("\n{}", table.text());
    }
    if !health.errors.is_empty() {
        let mut table = Table::new(&["ERROR", ">ATTEMPTS"]);
        for error in &health.errors {
            table.row([error.failure.clone(), error.attempts.to_string()]);
        }
        text += &format!("\n{}", table.text());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn health_is_shown_with_durations_and_errors() {
        let health = |attempts: u64| ReceiverHealth {
            since_ms: 0,
            now_ms: 600_000,
            attempts,
            accepted: attempts - attempts / 3,
            failed: attempts / 3,
            later: 0,
            success_rate: (attempts > 0).then_some(2.0 / 3.0),
            p50_us: (attempts > 0).then_some(2500),
            p90_us: (attempts > 0).then_some(2500),
            p99_us: None,
            durations: vec![
                DurationBucket { up_to_us: Some(1000), attempts: 0 },
                DurationBucket { up_to_us: Some(2500), attempts },
            ],
            errors: (attempts > 0)
                .then(|| FailureCount { failure: "503".to_owned(), attempts: 1 })
                .into_iter()
                .collect(),
        };
        let text = page(&health(3));
        for part in [
            "66.66 %",
            "p50             up to 2.5 ms\n",
            "p99             longer than 1 min\n",
            "503           1\n",
        ] {
            assert!(text.contains(part), "{part:?} is missing: {text}");
        }
        assert!(!text.contains("up to 1 ms"), "{text}");
        let text = page(&health(0));
        assert!(text.contains("success rate    -\n") && text.contains("p99             -\n"), "{text}");
        assert!(!text.contains("DURATION") && !text.contains("ERROR"), "{text}");
    }
}
