//! `dq find`: an id in all topics.

use anyhow::Result;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::super::api::{Api, part};
use super::super::failure::Failure;
use super::super::job::Job;
use super::super::show::{NOTHING, Table, moment_from, plain, raw_lines};
use super::super::target::TargetOptions;
use super::record::Record;
use host::now_ms;

/// Find an id in all topics: the job or dead letter that has it, and how earlier jobs with it ended
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  dq find 42\n  dq find 42 --json | jq -r .topic")]
pub(in super::super) struct Arguments {
    /// The whole id
    #[arg(allow_hyphen_values = true)]
    id: String,

    #[command(flatten)]
    at: TargetOptions,
}

#[derive(Debug, Deserialize)]
struct FoundPage {
    found: Vec<Box<RawValue>>,
    next: Option<String>,
    /// The topics that could not be asked.
    #[serde(default)]
    away: Vec<String>,
}

#[derive(Debug, Deserialize)]
struct FoundInTopic {
    topic: String,
    job: Option<Job>,
    records: Vec<Record>,
}

/// Runs `dq find`.
pub(in super::super) fn run(Arguments { id, at }: &Arguments) -> Result<()> {
    let api = Api::from_options(at)?;
    let (mut found, mut away, mut cursor) = (Vec::new(), Vec::new(), None::<String>);
    loop {
        let behind = cursor.map_or(String::new(), |cursor| format!("&cursor={}", part(&cursor)));
        let page: FoundPage = api.get(&format!("/v1/find?id={}{behind}", part(id)))?.json()?;
        found.extend(page.found);
        away.extend(page.away);
        cursor = page.next;
        if cursor.is_none() {
            break;
        }
    }
    if !away.is_empty() {
        eprintln!("the nodes of these topics could not be asked: {}", away.join(", "));
    }
    if found.is_empty() {
        let told = format!(
            "no topic has a job {:?}, or a record of one (dq keeps records as long as the topic's keep_done says, \
             and an ended job may have been forgotten)",
            plain(id)
        );
        return Err(Failure::NotFound(told).into());
    }
    if at.json {
        raw_lines(&found);
    } else {
        print!("{}", table(&found, now_ms())?);
    }
    Ok(())
}

fn table(found: &[Box<RawValue>], now_ms: i64) -> Result<String> {
    let mut table = Table::new(&["TOPIC", "WHAT", "WHEN", ">ATTEMPTS", "LAST ATTEMPT"]);
    for one in found {
        let FoundInTopic { topic, job, records } = serde_json::from_str(one.get())?;
        if let Some(job) = job {
            let last = job.log.last().map_or(NOTHING.to_owned(), |last| match last.error.as_str() {
                "" => last.status.map_or(NOTHING.to_owned(), |status| format!("status {status}")),
                error => error.to_owned(),
            });
            let when = job.until_ms.unwrap_or(job.due_ms);
            let state =
                if job.until_ms.is_some() { job.state.to_string() } else { format!("{}, due", job.state) };
            table.row([topic.clone(), state, moment_from(when, now_ms), job.attempts.to_string(), last]);
        }
        for record in records {
            let cells = [
                topic.clone(),
                format!("ended: {}", record.outcome),
                moment_from(record.ended_ms, now_ms),
                record.attempts.to_string(),
                record.last(),
            ];
            table.row(cells);
        }
    }
    Ok(table.text())
}
