//! `dq run`: delivers a job now.

use anyhow::Result;

use super::super::api::Api;
use super::Key;

/// Deliver a delayed job now
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  dq run orders 42")]
pub(in super::super) struct Arguments {
    #[command(flatten)]
    key: Key,
}

/// Runs `dq run`.
pub(in super::super) fn run(Arguments { key }: &Arguments) -> Result<()> {
    Api::from_options(&key.at)?.bid(&format!("{}/run", key.path()))?;
    key.done("ready")
}
