//! `dq topics test`: calls a topic's callback once.

use std::time::Duration;

use anyhow::Result;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::super::add::given;
use super::super::api::Api;
use super::super::failure::Failure;
use super::super::show::{NOTHING, lines, short_span};
use super::super::target::TargetOptions;

/// How long the daemon may take to answer: the longest time of a callback, plus a minute for the request to the daemon.
const PATIENCE: Duration = Duration::from_secs(3600 + 60);

/// Call a topic's callback once now, and show what it answers; no job is stored
///
/// The exit code is 0 if a job would have been accepted with this answer, and 1 if not.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  dq topics test orders\n  dq topics test orders '{\"order\": 42}'")]
pub(super) struct TopicsTestArguments {
    /// The topic
    name: String,

    /// The body that is sent: any JSON value, @FILE, or - for stdin
    body: Option<String>,
}

#[derive(Debug, Serialize)]
struct CallbackTestRequest {
    #[serde(skip_serializing_if = "Option::is_none")]
    body: Option<Box<RawValue>>,
}

/// The result of the call.
#[derive(Debug, Deserialize)]
struct CallbackTestResult {
    outcome: String,
    status: Option<u16>,
    duration_ms: Option<f64>,
    answer: Option<String>,
    error: Option<String>,
    url: Option<String>,
}

/// Runs `dq topics test`. Returns whether a job would have been accepted.
pub(super) fn run(at: &TargetOptions, arguments: &TopicsTestArguments) -> Result<bool> {
    let wrong = |e| Failure::Usage(format!("the body is no JSON value: {e}"));
    let body = match &arguments.body {
        Some(body) => Some(RawValue::from_string(given(body)?.trim().to_owned()).map_err(wrong)?),
        None => None,
    };
    let api = Api::patient(at, PATIENCE)?;
    let answer =
        api.ask("POST", &format!("{}/test", super::path(&arguments.name)), &CallbackTestRequest { body })?;
    let tested: CallbackTestResult = answer.json()?;
    match at.json {
        true => println!("{}", answer.raw()?.get()),
        false => print!("{}", page(&tested)),
    }
    Ok(is_accepted(&tested.outcome))
}

fn is_accepted(outcome: &str) -> bool {
    matches!(outcome, "accepted" | "success" | "ok")
}

fn page(tested: &CallbackTestResult) -> String {
    let text =
        |text: &Option<String>| text.as_deref().filter(|t| !t.is_empty()).unwrap_or(NOTHING).to_owned();
    lines(&[
        ("outcome", tested.outcome.clone()),
        ("url", text(&tested.url)),
        ("status", tested.status.map_or(NOTHING.to_owned(), |status| status.to_string())),
        ("took", tested.duration_ms.map_or(NOTHING.to_owned(), short_span)),
        ("answer", text(&tested.answer)),
        ("error", text(&tested.error)),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_came_of_a_test_is_shown_and_told_by_the_exit_code() {
        let tested = r#"{"outcome":"failed","status":null,"duration_ms":12,"answer":"","error":"refused","url":"http://h/"}"#;
        let tested: CallbackTestResult = serde_json::from_str(tested).unwrap();
        assert!(
            page(&tested).contains("took     12 ms\nanswer   -\nerror    refused\n"),
            "{}",
            page(&tested)
        );
        assert!(!is_accepted(&tested.outcome) && is_accepted("accepted"));
    }
}
