//! `dq del`: deletes a job.

use anyhow::Result;

use super::super::api::Api;
use super::Key;

/// Delete a job, whatever its state
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  dq del orders 42")]
pub(in super::super) struct Arguments {
    #[command(flatten)]
    key: Key,
}

/// Runs `dq del`.
pub(in super::super) fn run(Arguments { key }: &Arguments) -> Result<()> {
    Api::from_options(&key.at)?.delete(&key.path())?;
    key.done("deleted")
}
