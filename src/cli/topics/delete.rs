//! `dq topics delete`: removes a topic, and what becomes of its jobs is decided before.

use std::time::Duration;

use anyhow::Result;
use serde::Deserialize;

use super::super::api::{Answer, Api};
use super::super::ask::{choose, confirm};
use super::super::failure::{Failure, Problem};
use super::super::target::Where;

/// How long the daemon may take: it answers after half of a minute at the latest, also when there is more to do.
const PATIENCE: Duration = Duration::from_secs(60);

/// Remove a topic from the registry
///
/// A topic that has jobs is removed when it is said what becomes of them: --purge removes them, pending ones and dead letters;
/// --keep leaves them in the store, where nobody delivers them until the topic is registered again. At a terminal it is asked.
/// --purge also removes jobs that a topic has left behind which is not registered any more.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  dq topics delete orders
  dq topics delete orders --keep --yes
  dq topics delete orders --purge --yes")]
pub(super) struct Arguments {
    /// The topic
    name: String,

    /// Remove its jobs and dead letters, too
    #[arg(long, conflicts_with = "keep")]
    purge: bool,

    /// Leave its jobs and dead letters in the store; they are delivered if it is registered again
    #[arg(long)]
    keep: bool,

    /// Do not ask
    #[arg(long, short)]
    yes: bool,
}

/// What becomes of the jobs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Jobs {
    Purge,
    Keep,
}

/// What the daemon has removed.
#[derive(Debug, Deserialize)]
struct Removed {
    purged: u64,
}

/// Runs `dq topics delete`.
pub(super) fn run(at: &Where, arguments: &Arguments) -> Result<()> {
    let Arguments { name, purge, keep, yes } = arguments;
    let jobs = match (purge, keep) {
        (true, _) => Some(Jobs::Purge),
        (_, true) => Some(Jobs::Keep),
        _ => None,
    };
    let what = match jobs {
        Some(Jobs::Purge) => "remove it and all of its jobs for good?",
        Some(Jobs::Keep) => "remove it? its jobs stay, and are not delivered",
        None => "remove it?",
    };
    confirm(*yes, || format!("topic {name}: {what}"))?;
    let api = Api::patient(at, PATIENCE)?;
    let removed = match (remove(&api, name, jobs), jobs) {
        (Err(e), None) => {
            let Some(problem) = undecided(&e) else { return Err(e) };
            let question = || format!("{}?", problem.detail.split(": ").next().unwrap_or_default());
            match choose(*yes, question, (("purge", Jobs::Purge), ("keep", Jobs::Keep)))? {
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

/// That somebody has to say what becomes of the jobs.
fn undecided(error: &anyhow::Error) -> Option<&Problem> {
    match error.downcast_ref() {
        Some(Failure::Refused(problem)) if problem.code == "topic_has_jobs" => Some(problem),
        _ => None,
    }
}

/// Has it removed. Tells how many jobs the last request removed, if it was to.
fn remove(api: &Api, name: &str, jobs: Option<Jobs>) -> Result<Option<u64>> {
    let path = super::path(name);
    let path = match jobs {
        None => path,
        Some(Jobs::Keep) => format!("{path}?jobs=keep"),
        Some(Jobs::Purge) => format!("{path}?jobs=purge"),
    };
    loop {
        match api.delete(&path) {
            // Of very many jobs a request removes some.
            Err(e) if is_unfinished(&e) => continue,
            answer => return answer.map(|answer| purged(&answer)),
        }
    }
}

fn is_unfinished(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref(), Some(Failure::Refused(problem)) if problem.code == "purge_unfinished")
}

fn purged(answer: &Answer) -> Option<u64> {
    answer.json().ok().map(|Removed { purged }| purged)
}
