//! `dq reschedule`: another due time for a job.

use std::collections::BTreeMap;

use anyhow::Result;

use super::super::api::Api;
use super::super::due::DueOptions;
use super::super::failure::Failure;
use super::JobArguments;

/// Give a job another due time
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  dq reschedule orders 42 --delay 10m\n  dq reschedule orders 42 --at '2026-12-01 23:50:50'"
)]
pub(in super::super) struct RescheduleArguments {
    #[command(flatten)]
    when: DueOptions,

    #[command(flatten)]
    key: JobArguments,
}

/// Runs `dq reschedule`.
pub(in super::super) fn run(RescheduleArguments { when, key }: &RescheduleArguments) -> Result<()> {
    let Some(field) = when.field()? else {
        return Err(Failure::Usage("the new due time is missing: give --delay or --at".to_owned()).into());
    };
    let api = Api::from_options(&key.at)?;
    api.ask("PATCH", &key.path(), &BTreeMap::from([field])).map_err(|e| key.or_dead(&api, e))?;
    key.done("rescheduled")
}
