//! `dq topics delete`: removes a topic, after the user has decided what happens to its jobs.

use std::time::Duration;

use anyhow::Result;
use serde::Deserialize;

use super::super::api::{Api, HttpAnswer};
use super::super::ask::{choose, confirm};
use super::super::failure::{Failure, Problem};
use super::super::target::TargetOptions;

/// How long the daemon may take to answer. The daemon answers within half a minute, even if there is more to do.
const PATIENCE: Duration = Duration::from_secs(60);

/// Remove a topic from the registry
///
/// If the topic has jobs, you must say what happens to them. --purge removes them, both pending jobs and dead letters.
/// --keep leaves them in the store, where they are not delivered until the topic is registered again. At a terminal,
/// the command asks. --purge also removes the jobs of a topic that is no longer registered.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  dq topics delete orders
  dq topics delete orders --keep --yes
  dq topics delete orders --purge --yes")]
pub(super) struct TopicsDeleteArguments {
    /// The topic
    name: String,

    /// Remove its jobs and dead letters as well
    #[arg(long, conflicts_with = "keep")]
    purge: bool,

    /// Leave its jobs and dead letters in the store; the jobs are delivered if the topic is registered again
    #[arg(long)]
    keep: bool,

    /// Do not ask for confirmation
    #[arg(long, short)]
    yes: bool,
}

/// What happens to the jobs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RemainingJobsChoice {
    Purge,
    Keep,
}

/// The daemon's answer: how many jobs it has removed.
#[derive(Debug, Deserialize)]
struct RemovedCounts {
    purged: u64,
}

/// Runs `dq topics delete`.
pub(super) fn run(at: &TargetOptions, arguments: &TopicsDeleteArguments) -> Result<()> {
    let TopicsDeleteArguments { name, purge, keep, yes } = arguments;
    let jobs = match (purge, keep) {
        (true, _) => Some(RemainingJobsChoice::Purge),
        (_, true) => Some(RemainingJobsChoice::Keep),
        _ => None,
    };
    let what = match jobs {
        Some(RemainingJobsChoice::Purge) => "remove it and all of its jobs for good?",
        Some(RemainingJobsChoice::Keep) => "remove it? its jobs stay, and are not delivered",
        None => "remove it?",
    };
    confirm(*yes, || format!("topic {name}: {what}"))?;
    let api = Api::patient(at, PATIENCE)?;
    let removed = match (remove(&api, name, jobs), jobs) {
        (Err(e), None) => {
            let Some(problem) = undecided(&e) else { return Err(e) };
            let question = || format!("{}?", problem.detail.split(": ").next().unwrap_or_default());
            match choose(
                *yes,
                question,
                (("purge", RemainingJobsChoice::Purge), ("keep", RemainingJobsChoice::Keep)),
            )? {
                Some(jobs) => remove(&api, name, Some(jobs))?,
                None => return Err(e),
            }
        }
        (removed, _) => removed?,
    };
    super::done(at, name, "deleted")?;
    if let Some(purged) = removed.filter(|_| !at.json) {
        println!("{purged} jobs are removed with it");
    }
    Ok(())
}

/// Returns the daemon's problem if the problem says that the topic has jobs and nobody has decided what happens to
/// them.
fn undecided(error: &anyhow::Error) -> Option<&Problem> {
    match error.downcast_ref() {
        Some(Failure::Refused(problem)) if problem.code == "topic_has_jobs" => Some(problem),
        _ => None,
    }
}

/// Removes the topic. Returns how many jobs the last request removed, if the daemon reports this.
fn remove(api: &Api, name: &str, jobs: Option<RemainingJobsChoice>) -> Result<Option<u64>> {
    let own = super::path(name);
    let mut path = match jobs {
        None => own.clone(),
        Some(RemainingJobsChoice::Keep) => format!("{own}?jobs=keep"),
        Some(RemainingJobsChoice::Purge) => format!("{own}?jobs=purge"),
    };
    loop {
        match api.delete(&path) {
            // The first request removes the topic. If the topic has very many jobs or records, further requests remove
            // the rest.
            Err(e) if is_unfinished(&e) => path = format!("{own}?jobs=purge"),
            answer => return answer.map(|answer| purged(&answer)),
        }
    }
}

fn is_unfinished(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref(), Some(Failure::Refused(problem)) if problem.code == "purge_unfinished")
}

fn purged(answer: &HttpAnswer) -> Option<u64> {
    answer.json().ok().map(|RemovedCounts { purged }| purged)
}
