//! `dq topics`: the registered kinds of jobs.

mod delete;
mod fields;
mod health;
mod list;
mod rotate;
mod set;
mod test;

use anyhow::Result;
use serde_json::json;

use super::api::{Api, part};
use super::show::json_line;
use super::target::TargetOptions;

/// Topics: manage the registered kinds of jobs, with their callbacks and their rules
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  dq topics list
  dq topics set orders --callback https://shop.example/hook --delay 30m
  dq topics set orders --max-attempts 5
  dq topics health orders --over 1d
  dq topics rotate-secret orders --keep 24h
  dq topics test orders '{\"order\": 42}'
  dq topics pause orders")]
pub(super) struct TopicsArguments {
    #[command(subcommand)]
    command: TopicsCommand,

    #[command(flatten)]
    at: TargetOptions,
}

#[derive(Debug, clap::Subcommand)]
enum TopicsCommand {
    List(list::TopicsListArguments),
    Show(list::ShowTopic),
    #[command(aliases = ["add", "create"])]
    Set(Box<set::TopicsSetArguments>),
    #[command(alias = "remove")]
    Delete(delete::TopicsDeleteArguments),
    Health(health::TopicsHealthArguments),
    Pause(PauseTopic),
    Resume(ResumeTopic),
    RotateSecret(rotate::TopicsRotateArguments),
    Test(test::TopicsTestArguments),
}

/// Pause a topic: its jobs are not delivered until it is resumed; jobs can still be added
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  dq topics pause orders")]
struct PauseTopic {
    /// The topic
    name: String,
}

/// Resume a paused topic: its jobs are delivered again
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  dq topics resume orders")]
struct ResumeTopic {
    /// The topic
    name: String,
}

/// Runs `dq topics`. Returns whether all is well.
pub(super) fn run(arguments: &TopicsArguments) -> Result<bool> {
    let at = &arguments.at;
    match &arguments.command {
        TopicsCommand::List(_) => list::run(at),
        TopicsCommand::Show(show) => list::show(at, show),
        TopicsCommand::Set(set) => set::run(at, set),
        TopicsCommand::Delete(delete) => delete::run(at, delete),
        TopicsCommand::Health(health) => health::run(at, health),
        TopicsCommand::Pause(PauseTopic { name }) => {
            Api::from_options(at)?.bid(&format!("{}/pause", path(name)))?;
            done(at, name, "paused")
        }
        TopicsCommand::Resume(ResumeTopic { name }) => {
            Api::from_options(at)?.bid(&format!("{}/resume", path(name)))?;
            done(at, name, "resumed")
        }
        TopicsCommand::RotateSecret(rotate) => rotate::run(at, rotate),
        TopicsCommand::Test(test) => return test::run(at, test),
    }
    .map(|()| true)
}

/// Returns the API path of a topic.
fn path(name: &str) -> String {
    format!("/v1/topics/{}", part(name))
}

/// Prints the outcome of a change.
fn done(at: &TargetOptions, name: &str, outcome: &str) -> Result<()> {
    if at.json {
        return json_line(&json!({"topic": name, "outcome": outcome}));
    }
    println!("{outcome}: {name}");
    Ok(())
}
