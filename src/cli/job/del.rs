//! `dq del`: deletes a job.

use anyhow::Result;
use serde_json::Value;

use super::super::api::Api;
use super::JobArguments;

/// Delete a job in any state
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  dq del orders 42")]
pub(in super::super) struct DelArguments {
    #[command(flatten)]
    key: JobArguments,
}

/// Runs `dq del`.
pub(in super::super) fn run(DelArguments { key }: &DelArguments) -> Result<()> {
    let answer = Api::from_options(&key.at)?.delete(&key.path())?;
    // The answer has a body only if the delete waits in the spool.
    let is_spooled = answer.json::<Value>().is_ok_and(|answer| answer["spooled"] == true);
    key.done(if is_spooled { "spooled" } else { "deleted" })
}
