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
pub(super) struct Arguments {
    #[command(subcommand)]
    command: Command,

    #[command(flatten)]
    at: TargetOptions,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    List(list::Arguments),
    Show(list::Show),
    Set(Box<set::Arguments>),
    Delete(delete::Arguments),
    Health(health::Arguments),
    Pause(Pause),
    Resume(Resume),
    RotateSecret(rotate::Arguments),
    Test(test::Arguments),
}

/// Pause a topic: its jobs are not delivered until it is resumed; jobs can still be added
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  dq topics pause orders")]
struct Pause {
    /// The topic
    name: String,
}

/// Resume a paused topic: its jobs are delivered again
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  dq topics resume orders")]
struct Resume {
    /// The topic
    name: String,
}

/// Runs `dq topics`. Returns whether all is well.
pub(super) fn run(arguments: &Arguments) -> Result<bool> {
    let at = &arguments.at;
    match &arguments.command {
        Command::List(_) => list::run(at),
        Command::Show(show) => list::show(at, show),
        Command::Set(set) => set::run(at, set),
        Command::Delete(delete) => delete::run(at, delete),
        Command::Health(health) => health::run(at, health),
        Command::Pause(Pause { name }) => {
            Api::from_options(at)?.bid(&format!("{}/pause", path(name)))?;
            done(at, name, "paused")
        }
        Command::Resume(Resume { name }) => {
            Api::from_options(at)?.bid(&format!("{}/resume", path(name)))?;
            done(at, name, "resumed")
        }
        Command::RotateSecret(rotate) => rotate::run(at, rotate),
        Command::Test(test) => return test::run(at, test),
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
