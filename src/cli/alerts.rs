//! `dq alerts`: what is wrong now, and whether alerts reach their recipients.

use std::time::Duration;

use anyhow::Result;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::api::Api;
use super::show::{NOTHING, Table, moment, plain, raw_lines, short_span};
use super::target::TargetOptions;

/// How long the test messages to all recipients may take together.
const PATIENCE: Duration = Duration::from_secs(600);

/// Alerts: list what is wrong now, and test whether alerts reach their recipients
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  dq alerts list
  dq alerts test
  dq alerts test --to ops@example.com")]
pub(super) struct AlertsArguments {
    #[command(subcommand)]
    command: AlertsCommand,

    #[command(flatten)]
    at: TargetOptions,
}

#[derive(Debug, clap::Subcommand)]
enum AlertsCommand {
    List(ListAlerts),
    Test(Test),
}

/// List what is wrong now with the store, the topics and the processes
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  dq alerts list --json")]
struct ListAlerts {}

/// Send a test message now, to all recipients that the configuration names or to one of them
///
/// The exit code is 0 if all messages were sent, and 1 if some were not.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  dq alerts test\n  dq alerts test --to ops@example.com\n  dq alerts test --webhook chat"
)]
struct Test {
    /// Send only to this address
    #[arg(long, value_name = "ADDRESS", conflicts_with = "webhook")]
    to: Option<String>,

    /// Send only to the webhook with this name
    #[arg(long, value_name = "NAME")]
    webhook: Option<String>,
}

#[derive(Debug, Deserialize)]
struct AlertList {
    alerts: Vec<Box<RawValue>>,
}

#[derive(Debug, Deserialize)]
struct Alert {
    name: String,
    what: String,
    detail: String,
    since_ms: i64,
}

#[derive(Debug, Serialize)]
struct AlertTestRequest<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    to: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    webhook: Option<&'a str>,
}

#[derive(Debug, Deserialize)]
struct TestResults {
    results: Vec<TestResult>,
}

#[derive(Debug, Deserialize)]
struct TestResult {
    channel: String,
    to: String,
    sent: bool,
    error: Option<String>,
    duration_ms: u64,
}

/// Runs `dq alerts`. Returns whether all test messages were sent; true for a list.
pub(super) fn run(arguments: &AlertsArguments) -> Result<bool> {
    let as_json = arguments.at.json;
    match &arguments.command {
        AlertsCommand::List(ListAlerts {}) => {
            let AlertList { alerts } = Api::from_options(&arguments.at)?.get("/v1/alerts")?.json()?;
            match as_json {
                true => raw_lines(&alerts),
                false => print!("{}", listed(&alerts)?),
            }
            Ok(true)
        }
        AlertsCommand::Test(Test { to, webhook }) => {
            let asked = AlertTestRequest { to: to.as_deref(), webhook: webhook.as_deref() };
            let answer = Api::patient(&arguments.at, PATIENCE)?.ask("POST", "/v1/alerts/test", &asked)?;
            let TestResults { results } = answer.json()?;
            match as_json {
                true => println!("{}", answer.raw()?.get()),
                false => print!("{}", tested(&results)),
            }
            Ok(results.iter().all(|came| came.sent))
        }
    }
}

fn listed(alerts: &[Box<RawValue>]) -> Result<String> {
    if alerts.is_empty() {
        return Ok("nothing is wrong\n".to_owned());
    }
    let mut table = Table::new(&["KIND", "SINCE", "WHAT"]);
    for alert in alerts {
        let Alert { name, what, detail, since_ms } = serde_json::from_str(alert.get())?;
        table.row([name, moment(since_ms), plain(&format!("{what}: {detail}"))]);
    }
    Ok(table.text())
}

fn tested(results: &[TestResult]) -> String {
    let mut table = Table::new(&["CHANNEL", "TO", "SENT", ">TOOK", "WHY NOT"]);
    for TestResult { channel, to, sent, error, duration_ms } in results {
        let sent = if *sent { "yes" } else { "no" };
        let why = error.as_deref().map_or_else(|| NOTHING.to_owned(), plain);
        table.row([channel.clone(), to.clone(), sent.to_owned(), short_span(*duration_ms as f64), why]);
    }
    table.text()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alerts_are_listed_and_what_came_of_a_test_is_shown() {
        let alert =
            r#"{"name":"node_down","what":"node r1 is down","detail":"refused","since_ms":0,"node":"r1"}"#;
        let text = listed(&[RawValue::from_string(alert.to_owned()).unwrap()]).unwrap();
        assert!(text.contains("node_down") && text.contains("node r1 is down: refused"), "{text}");
        assert_eq!(listed(&[]).unwrap(), "nothing is wrong\n");
        let came = r#"[{"channel":"mail","to":"a@b.c","sent":false,"error":"refused","duration_ms":3}]"#;
        let text = tested(&serde_json::from_str::<Vec<TestResult>>(came).unwrap());
        assert!(
            text.lines().nth(1).unwrap().split_whitespace().eq(["mail", "a@b.c", "no", "3", "ms", "refused"]),
            "{text}"
        );
    }
}
