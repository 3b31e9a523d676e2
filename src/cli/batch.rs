//! `dq add --batch`: adds the jobs of a file, a thousand at a time. A refused job is printed with its line number.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader};

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};
use serde_json::json;
use serde_json::value::RawValue;

use super::api::{Api, part};
use super::failure::{Failure, Problem};
use super::progress::Progress;
use super::show::json_line;
use super::target::TargetOptions;
use model::strict_json::UniqueFields;

/// The most jobs in a request, and the most bytes of its jobs. Both are below the daemon's default limits for a
/// request.
const CHUNK: (usize, usize) = (1000, 512 << 10);

/// The number of a line of the file, from 1, and the job that is sent for it.
type NumberedLine = (u64, Box<RawValue>);

/// The fields of a job that are sent, each with its JSON text.
pub(super) type JobFields = BTreeMap<String, Box<RawValue>>;

/// How many lines had each outcome.
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
struct BatchCounts {
    new: u64,
    replaced: u64,
    kept: u64,
    #[serde(skip_serializing_if = "is_zero")]
    spooled: u64,
    failed: u64,
}

fn is_zero(count: &u64) -> bool {
    *count == 0
}

/// The body of a request: the jobs, each as the JSON text that is sent.
#[derive(Serialize)]
struct BatchRequest<'a> {
    jobs: Vec<&'a RawValue>,
}

/// The daemon's answer for one job.
#[derive(Debug, Default, Deserialize)]
struct JobResult {
    #[serde(default)]
    outcome: String,
    #[serde(flatten)]
    problem: Problem,
}

#[derive(Debug, Deserialize)]
struct BatchAnswer {
    results: Vec<JobResult>,
}

/// Adds the jobs of a file. Returns whether all of them were stored.
pub(super) fn run(at: &TargetOptions, topic: &str, file: &str, defaults: &JobFields) -> Result<bool> {
    let (source, bytes): (Box<dyn BufRead>, u64) = match file {
        "-" => (Box::new(std::io::stdin().lock()), 0),
        name => {
            let file = File::open(name).with_context(|| format!("cannot read {name}"))?;
            let bytes = file.metadata().map_or(0, |m| m.len());
            (Box::new(BufReader::new(file)), bytes)
        }
    };
    let mut batch = JobFileSender {
        api: Api::from_options(at)?,
        path: format!("/v1/topics/{}/jobs/batch", part(topic)),
        counts: BatchCounts::default(),
        progress: Progress::begin(bytes, "bytes"),
        as_json: at.json,
    };
    let done = batch.take(source, defaults);
    batch.progress.end();
    // The counts are also printed after an error, because they show what was stored before the error.
    let BatchCounts { new, replaced, kept, spooled, failed } = batch.counts;
    if at.json {
        json_line(&batch.counts)?;
    } else {
        let waiting = if spooled > 0 { format!(", {spooled} spooled") } else { String::new() };
        println!("{new} new, {replaced} replaced, {kept} kept{waiting}, {failed} failed");
    }
    done?;
    Ok(failed == 0)
}

struct JobFileSender {
    api: Api,
    path: String,
    counts: BatchCounts,
    progress: Progress,
    as_json: bool,
}

impl JobFileSender {
    fn take(&mut self, mut source: Box<dyn BufRead>, defaults: &JobFields) -> Result<()> {
        let (mut lines, mut bytes, mut number) = (Vec::new(), 0, 0);
        let mut text = Vec::new();
        loop {
            text.clear();
            let read = source.read_until(b'\n', &mut text).context("cannot read the file")?;
            number += u64::from(read > 0);
            self.progress.step(read as u64);
            if !text.trim_ascii().is_empty() {
                match line(&text, defaults) {
                    Ok(job) => {
                        // If a job alone is too long for a request, it is sent alone, so that only this job is refused.
                        if bytes + job.get().len() > CHUNK.1 {
                            self.send(&lines)?;
                            (lines, bytes) = (Vec::new(), 0);
                        }
                        bytes += job.get().len();
                        lines.push((number, job));
                    }
                    Err(e) => {
                        let detail = format!("it is no JSON object: {e}");
                        self.failed(
                            number,
                            &Problem { code: "bad_json".into(), detail, ..Problem::default() },
                        );
                    }
                }
            }
            if read == 0 || lines.len() >= CHUNK.0 {
                self.send(&lines)?;
                (lines, bytes) = (Vec::new(), 0);
            }
            if read == 0 {
                return Ok(());
            }
        }
    }

    /// Sends lines in one request. If the request is too long for the daemon, sends each half by itself.
    fn send(&mut self, lines: &[NumberedLine]) -> Result<()> {
        let (Some((first, _)), Some((last, _))) = (lines.first(), lines.last()) else { return Ok(()) };
        let jobs = BatchRequest { jobs: lines.iter().map(|(_, job)| &**job).collect() };
        let answer = match self.api.ask("POST", &self.path, &jobs) {
            Ok(answer) => answer,
            Err(e) => match e.downcast_ref::<Failure>() {
                Some(Failure::Refused(problem)) if problem.status == 413 && lines.len() > 1 => {
                    let (one, other) = lines.split_at(lines.len() / 2);
                    self.send(one)?;
                    return self.send(other);
                }
                Some(Failure::Refused(problem)) if problem.status == 413 => {
                    let problem = problem.clone();
                    self.failed(*first, &problem);
                    return Ok(());
                }
                Some(_) => return Err(e).with_context(|| format!("stopped at lines {first} to {last}")),
                None => return Err(e),
            },
        };
        let BatchAnswer { results } = answer.json()?;
        let mut results = results.into_iter();
        for (number, _) in lines {
            match results.next() {
                Some(one) => self.count(*number, one),
                None => self.count(*number, JobResult::default()),
            }
        }
        Ok(())
    }

    fn count(&mut self, number: u64, one: JobResult) {
        match one.outcome.as_str() {
            "new" => self.counts.new += 1,
            "replaced" => self.counts.replaced += 1,
            "kept" => self.counts.kept += 1,
            "spooled" => self.counts.spooled += 1,
            _ => self.failed(number, &one.problem),
        }
    }

    fn failed(&mut self, number: u64, problem: &Problem) {
        self.counts.failed += 1;
        let Problem { status, code, detail, field } = problem;
        let text = match self.as_json {
            true => json!({"line": number, "status": status, "code": code, "detail": detail, "field": field})
                .to_string(),
            false => format!("line {number}: {detail} ({code})"),
        };
        self.progress.print_line(&text);
    }
}

/// Returns the job of a line. A field that the line does not have is taken from the defaults. If the line has a due
/// time, the default due time is not used.
fn line(text: &[u8], defaults: &JobFields) -> Result<Box<RawValue>, serde_json::Error> {
    let UniqueFields(mut fields): UniqueFields<Box<RawValue>> = serde_json::from_slice(text)?;
    let says_when = fields.contains_key("delay") || fields.contains_key("run_at");
    for (name, value) in defaults {
        if !(says_when && matches!(name.as_str(), "delay" | "run_at")) {
            fields.entry(name.clone()).or_insert_with(|| value.clone());
        }
    }
    serde_json::value::to_raw_value(&fields)
}

#[cfg(test)]
mod tests {
    use serde_json::value::to_raw_value;

    use super::*;

    #[test]
    fn a_line_overrides_the_defaults_and_its_body_is_unchanged() {
        let delay = ("delay".to_owned(), to_raw_value("1h").unwrap());
        let low = ("priority".to_owned(), to_raw_value("low").unwrap());
        let defaults = JobFields::from([delay, low]);
        let taken = |text: &str| line(text.as_bytes(), &defaults).unwrap().get().to_owned();
        let big = "{\"body\": {\"n\": 1.0000000000000000001e400}, \"run_at\": 5}\n";
        assert_eq!(taken(big), r#"{"body":{"n": 1.0000000000000000001e400},"priority":"low","run_at":5}"#);
        let own = r#"{"body":1,"delay":"5s","priority":"high"}"#;
        assert_eq!(taken(own), own);
        assert_eq!(taken(r#"{"body":1}"#), r#"{"body":1,"delay":"1h","priority":"low"}"#);
        for bad in ["[]", "{", "1", "{} {}"] {
            assert!(line(bad.as_bytes(), &defaults).is_err(), "{bad}");
        }
    }
}
