//! Follows an operation until it ends, and says how it ended.

use std::thread::sleep;
use std::time::Duration;

use anyhow::Result;
use serde::Deserialize;
use serde_json::Value;

use crate::api::Api;
use crate::failure::Failure;
use crate::progress::Progress;

/// The pause between two requests to the daemon.
const EACH: Duration = Duration::from_millis(300);

/// How many times in a row the daemon may fail to answer. If a process of the daemon was killed, the daemon starts a
/// new one within seconds.
const SILENCE: u32 = 100;

/// An operation as the API shows it.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct Operation {
    pub number: u64,
    pub topic: String,
    pub operation: String,
    pub state: String,
    pub looked_at: u64,
    pub changed: u64,
    pub skipped: u64,
    pub unclear: u64,
    pub error: Option<String>,
    pub by: String,
}

impl Operation {
    pub(super) fn read(value: &Value) -> Result<Operation> {
        Ok(Operation::deserialize(value)?)
    }

    fn has_ended(&self) -> bool {
        !matches!(self.state.as_str(), "running" | "stopping")
    }
}

/// Follows an operation that will change about `jobs` jobs. Returns what the API shows at the end.
pub(super) fn follow(api: &Api, path: &str, jobs: u64) -> Result<(Value, Operation)> {
    let mut progress = Progress::begin(jobs, "jobs");
    let (mut shown, mut last_error, mut silent) = (0, None, 0);
    loop {
        let answer = api.get(path).and_then(|answer| answer.json::<Value>());
        let now = match answer {
            Ok(now) => now,
            Err(e) if silent >= SILENCE || is_final(&e) => {
                progress.end();
                return Err(e);
            }
            Err(_) => {
                silent += 1;
                sleep(EACH);
                continue;
            }
        };
        silent = 0;
        let operation = Operation::read(&now)?;
        let done = operation.changed + operation.skipped + operation.unclear;
        progress.step(done.saturating_sub(shown));
        shown = done.max(shown);
        if operation.error != last_error && !operation.has_ended() {
            if let Some(why) = &operation.error {
                progress.print_line(&format!("it waits: {why}"));
            }
            last_error.clone_from(&operation.error);
        }
        if operation.has_ended() {
            progress.end();
            return Ok((now, operation));
        }
        sleep(EACH);
    }
}

/// Whether the daemon has refused the request, and would refuse it again.
fn is_final(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref(), Some(Failure::Refused(problem)) if problem.status < 500)
}

/// Says in one line what an operation has done.
pub(super) fn describe(operation: &Operation) -> String {
    let Operation { number, topic, operation: what, state, changed, skipped, unclear, error, .. } = operation;
    let unclear = if *unclear > 0 { format!(", {unclear} unclear") } else { String::new() };
    let error = error.as_ref().map_or(String::new(), |error| format!(": {error}"));
    format!(
        "operation {number} ({what}, topic {topic}) is {state}: {changed} jobs changed, {skipped} skipped{unclear}{error}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_operation_is_told_in_one_line() {
        let mut one = Operation {
            number: 7,
            topic: "t".into(),
            operation: "cancel".into(),
            state: "done".into(),
            looked_at: 9,
            changed: 5,
            skipped: 1,
            unclear: 0,
            error: None,
            by: String::new(),
        };
        assert_eq!(describe(&one), "operation 7 (cancel, topic t) is done: 5 jobs changed, 1 skipped");
        (one.state, one.unclear, one.error) = ("failed".into(), 2, Some("no".into()));
        assert!(
            describe(&one).ends_with("is failed: 5 jobs changed, 1 skipped, 2 unclear: no")
                && one.has_ended()
        );
    }
}
