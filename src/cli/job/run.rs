//! `dq run`: delivers a job now.

use anyhow::Result;

use super::super::api::Api;
use super::super::show::plain;
use super::{Job, JobArguments};

/// The codes of the reasons why a ready job is not delivered at once: somebody must act, a fault must end, or a limit
/// is reached.
const OBSTACLES: [&str; 11] = [
    "unregistered",
    "held",
    "paused",
    "circuit_open",
    "circuit_half_open",
    "no_consumer",
    "spooled",
    "max_in_flight",
    "rate",
    "host_limit",
    "workers_busy",
];

/// Deliver a delayed job now
///
/// If the job cannot be delivered at once, the command says why: its topic is paused or not registered, its receiver
/// fails, or a limit is reached (rate, max_in_flight). The job is delivered when this is over.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  dq run orders 42")]
pub(in super::super) struct RunArguments {
    #[command(flatten)]
    key: JobArguments,
}

/// Runs `dq run`.
pub(in super::super) fn run(RunArguments { key }: &RunArguments) -> Result<()> {
    let api = Api::from_options(&key.at)?;
    api.bid(&format!("{}/run", key.path())).map_err(|e| key.or_dead(&api, e))?;
    key.done("ready")?;
    if !key.at.json
        && let Some(why) = obstacle(&api, key)
    {
        println!("it is not delivered yet: {}", plain(&why));
    }
    Ok(())
}

/// Returns why a job that was made ready is not delivered at once. `None`: it only waits for the jobs before it, or the
/// reason is unknown.
fn obstacle(api: &Api, key: &JobArguments) -> Option<String> {
    // The job may have been delivered meanwhile, or the token may lack the scope.
    let job: Job = api.get(&key.path()).ok()?.json().ok()?;
    job.waiting.filter(|why| OBSTACLES.contains(&&*why.code)).map(|why| why.text)
}
