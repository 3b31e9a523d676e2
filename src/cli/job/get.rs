//! `dq get`: shows a job.

use std::time::Duration;

use anyhow::Result;
use humantime::format_duration;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::super::api::Api;
use super::super::attempts::attempts;
use super::super::failure;
use super::super::records::record::links;
use super::super::records::record::{Record, story};
use super::super::show::{lines, moment, moment_from};
use super::{Job, JobArguments, Reserver};
use host::now_ms;
use model::job::State;

/// Show a job: its state, due time, body, and the outcomes of its first and last attempts
///
/// If the job has ended, the command prints what dq has kept of it, and fails with exit code 3.
///
/// The column ANSWER has the first 200 characters of what the receiver answered. It is empty for tokens without the
/// scope read for the topic.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  dq get orders 42\n  dq get orders 42 --json | jq .body")]
pub(in super::super) struct GetArguments {
    #[command(flatten)]
    key: JobArguments,
}

/// The exit code of a command that does not find something.
const NOT_FOUND: u8 = 3;

#[derive(Debug, Deserialize)]
struct RecordsOfJob {
    records: Vec<Box<RawValue>>,
}

/// Runs `dq get`.
pub(in super::super) fn run(GetArguments { key }: &GetArguments) -> Result<()> {
    let api = Api::from_options(&key.at)?;
    let answer = match api.get(&key.path()) {
        Ok(answer) => answer,
        Err(e) => {
            // The command prints to stdout how the job ended. It still fails, because there is no such job any more.
            if failure::exit(&e) == NOT_FOUND {
                show_end(&api, key)?;
            }
            return Err(e);
        }
    };
    if key.at.json {
        println!("{}", answer.raw()?.get());
    } else {
        print!("{}", page(&answer.json()?, now_ms()));
    }
    Ok(())
}

/// Shows how the last jobs with this id ended, if dq has kept their records.
fn show_end(api: &Api, key: &JobArguments) -> Result<()> {
    // The token may lack the scope, or an older daemon may not have this route.
    let Ok(answer) = api.get(&format!("{}/records", key.path())) else { return Ok(()) };
    let RecordsOfJob { records } = answer.json()?;
    if key.at.json {
        if !records.is_empty() {
            println!("{}", answer.raw()?.get());
        }
        return Ok(());
    }
    let records: Vec<Record> =
        records.iter().map(|record| serde_json::from_str(record.get())).collect::<Result<_, _>>()?;
    if let Some(text) = story(&records, now_ms()) {
        print!("{text}");
    }
    Ok(())
}

fn page(job: &Job, now_ms: i64) -> String {
    let until = match job.state {
        State::Dead => "died",
        _ => "leased until",
    };
    let limit = job.max_attempts.map_or(String::new(), |n| format!(" of {n}"));
    let mut facts = vec![
        ("topic", job.topic.clone()),
        ("id", job.id.clone()),
        ("state", job.state.to_string()),
        ("due", moment_from(job.due_ms, now_ms)),
    ];
    facts.extend(job.until_ms.map(|ms| (until, moment_from(ms, now_ms))));
    facts.extend(job.consumer.iter().map(|Reserver { name, address, since_ms }| {
        let from = address.as_ref().map_or(String::new(), |address| format!(" at {address}"));
        ("held by", format!("{name}{from}, since {}", moment_from(*since_ms, now_ms)))
    }));
    let reason = job.log.last().filter(|_| job.state == State::Dead).map(|last| last.error.clone());
    facts.extend(reason.map(|reason| ("reason", reason)));
    let waiting = job.waiting.iter().flat_map(|first| std::iter::once(first).chain(&first.also));
    facts.extend(
        waiting.enumerate().map(|(n, why)| (if n == 0 { "waits" } else { "also" }, why.text.clone())),
    );
    let headers: Vec<String> = job.headers.iter().map(|(name, value)| format!("{name}: {value}")).collect();
    facts.extend((!headers.is_empty()).then(|| ("headers", headers.join(", "))));
    facts.extend(job.ttr_ms.map(|ms| ("ttr", format_duration(Duration::from_millis(ms)).to_string())));
    facts.extend(job.expires_ms.map(|ms| ("expires", moment_from(ms, now_ms))));
    facts.extend(job.path.clone().map(|path| ("path", path)));
    facts.extend(job.url.clone().map(|url| ("url", url)));
    facts.extend((!job.tags.is_empty()).then(|| ("tags", job.tags.join(", "))));
    facts.extend(links(&job.then, job.after.as_ref()));
    facts.extend([
        ("added", moment(job.added_ms)),
        ("priority", job.priority.to_string()),
        ("attempts", format!("{}{limit}", job.attempts)),
        ("body", job.body.get().to_owned()),
    ]);
    let mut text = lines(&facts);
    if !job.log.is_empty() {
        text = text + "\n" + &attempts(&job.log);
    }
    text
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_reasons_why_a_job_waits_are_shown() {
        let job = json!({
            "topic": "t", "id": "a", "state": "ready", "due_ms": 1000, "priority": "normal", "attempts": 0, "body": 1,
            "waiting": {"code": "paused", "text": "the topic is paused", "also": [{"code": "x", "text": "and so on"}]},
        });
        let text = page(&serde_json::from_value(job).unwrap(), 65_000);
        assert!(text.contains("\nwaits     the topic is paused\nalso      and so on\n"), "{text}");
    }

    #[test]
    fn a_job_is_shown_with_its_first_and_last_attempts() {
        let job = json!({
            "topic": "t", "id": "a\nb", "state": "dead", "due_ms": 1000, "until_ms": 5000, "added_ms": 0,
            "priority": "high", "attempts": 2, "max_attempts": 2, "body": {"order": 42}, "later": "unknown",
            "headers": {"x-a": "7", "x-b": "8"}, "path": "/m/7", "tags": ["a", "b"], "after": {"topic": "o", "id": "1"},
            "then": [{"topic": "u", "id": "x", "body": 1}, {"topic": "v", "id": "y"}],
            "log": [
                {"number": 1, "at_ms": 1000, "took_ms": 7, "status": 503, "answer": "not\nyet", "error": "status 503"},
                {"number": 2, "at_ms": 2000, "took_ms": 3000, "error": "timeout"},
                {"number": 9, "at_ms": 3000, "took_ms": 10, "status": 410, "answer": "gone", "error": "status 410"},
            ],
        });
        let text = page(&serde_json::from_value(job).unwrap(), 65_000);
        for part in [
            "id        a\\nb\n",
            "state     dead\n",
            "(1m ago)\n",
            "priority  high\n",
            "attempts  2 of 2\n",
            "body      {\"order\":42}\n",
            "headers   x-a: 7, x-b: 8\n",
            "path      /m/7\n",
            "tags      a, b\nafter     o:1\nthen      u:x, v:y\n",
            "died      ",
            "reason    status 410\n",
            "7 ms     503  status 503  not\\nyet\n",
            "3 s       -  timeout     -\n      …\n      9  ",
            "10 ms     410  status 410  gone\n",
        ] {
            assert!(text.contains(part), "{part:?}\n{text}");
        }
    }
}
