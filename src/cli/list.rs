//! `dq list`: a topic's jobs in one state, page by page.

use anyhow::Result;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::api::{Api, part};
use super::job::Job;
use super::show::{Table, cut, moment_from, raw_lines};
use super::target::Where;
use crate::job::State;
use crate::process::now_ms;

/// How many jobs one page holds at most.
const PAGE: usize = 1000;

/// List a topic's jobs that are in one state
///
/// Delayed ones by their due time, ready ones by priority and due time, leased ones by deadline, dead ones by when they died.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  dq list orders
  dq list orders --state ready --limit 10
  dq list orders --state dead --all --json | jq -r .id")]
pub(super) struct Arguments {
    /// The topic
    topic: String,

    /// Which of its jobs
    #[arg(long, value_name = "STATE", default_value = "delayed", value_parser = ["delayed", "ready", "leased", "dead"])]
    state: String,

    #[command(flatten)]
    how_many: HowMany,

    #[command(flatten)]
    at: Where,
}

/// How many of them.
#[derive(Debug, Clone, clap::Args)]
pub(super) struct HowMany {
    /// So many at most
    #[arg(long, value_name = "NUMBER", default_value_t = 50, conflicts_with = "all")]
    limit: usize,

    /// All of them
    #[arg(long)]
    all: bool,
}

#[derive(Debug, Deserialize)]
struct Page {
    jobs: Vec<Box<RawValue>>,
    next: Option<String>,
    /// The nodes that could not be asked.
    #[serde(default)]
    away: Vec<String>,
}

/// Runs `dq list`.
pub(super) fn run(arguments: &Arguments) -> Result<()> {
    let path = format!("/v1/topics/{}/jobs?state={}", part(&arguments.topic), arguments.state);
    show(&arguments.at, &path, &arguments.how_many)
}

/// Shows the jobs that are listed at a path.
pub(super) fn show(at: &Where, path: &str, how_many: &HowMany) -> Result<()> {
    let api = Api::of(at)?;
    let most = if how_many.all { usize::MAX } else { how_many.limit };
    let and = if path.contains('?') { '&' } else { '?' };
    let (mut shown, mut cursor, mut away, mut is_first) = (0, None::<String>, Vec::new(), true);
    while shown < most {
        let behind = cursor.map_or(String::new(), |cursor| format!("&cursor={}", part(&cursor)));
        let page: Page = api.get(&format!("{path}{and}limit={}{behind}", PAGE.min(most - shown)))?.json()?;
        // A page may be cut short; what is left stands behind its cursor.
        let jobs: Vec<_> = page.jobs.into_iter().take(most - shown).collect();
        if at.json {
            raw_lines(&jobs);
        } else {
            let text = table(&jobs, now_ms())?;
            // One head for all pages.
            print!("{}", if is_first { text.as_str() } else { text.split_once('\n').map_or("", |(_, t)| t) });
        }
        shown += jobs.len();
        (cursor, away, is_first) = (page.next, page.away, false);
        if cursor.is_none() {
            break;
        }
    }
    if !away.is_empty() {
        eprintln!("these nodes could not be asked, and their jobs are missing: {}", away.join(", "));
    }
    if cursor.is_some() && !at.json {
        eprintln!("there are more: --limit or --all shows them");
    }
    Ok(())
}

fn table(jobs: &[Box<RawValue>], now_ms: i64) -> Result<String> {
    let mut table = Table::new(&["ID", "DUE", "PRIORITY", ">ATTEMPTS", "BODY"]);
    for job in jobs {
        let job: Job = serde_json::from_str(job.get())?;
        let when = if job.state == State::Delayed { job.due_ms } else { job.until_ms.unwrap_or(job.due_ms) };
        table.row([
            cut(&job.id, 60),
            moment_from(when, now_ms),
            format!("{:?}", job.priority).to_lowercase(),
            job.attempts.to_string(),
            cut(job.body.get(), 60),
        ]);
    }
    Ok(table.text())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_shows_what_tells_jobs_apart() {
        let job = r#"{"topic":"t","id":"订单","state":"dead","due_ms":0,"until_ms":60000,"added_ms":0,
            "priority":"low","attempts":10,"max_attempts":null,"log":[],"body":[1,2]}"#;
        let jobs = [RawValue::from_string(job.to_owned()).unwrap()];
        let text = table(&jobs, 120_000).unwrap();
        assert!(
            text.contains("订单")
                && text.contains("(1m ago)")
                && text.ends_with("low             10  [1,2]\n"),
            "{text}"
        );
    }
}
