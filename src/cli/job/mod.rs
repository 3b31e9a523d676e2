//! The commands for one job, and a job as the API shows it.

pub(super) mod del;
pub(super) mod get;
pub(super) mod reschedule;
pub(super) mod run;

use std::collections::BTreeMap;

use anyhow::Result;
use serde::Deserialize;
use serde_json::json;
use serde_json::value::RawValue;

use super::api::{Api, part};
use super::failure::Failure;
use super::records::record::JobReference;
use super::show::{json_line, plain};
use super::target::TargetOptions;
use model::job::{Attempt, State};
use model::job_priority::JobPriority;

/// A job.
#[derive(Debug, clap::Args)]
pub(super) struct JobArguments {
    /// The topic
    pub topic: String,

    /// The job's id
    #[arg(allow_hyphen_values = true)]
    pub id: String,

    #[command(flatten)]
    pub at: TargetOptions,
}

/// A job, as the API shows it.
#[derive(Debug, Deserialize)]
pub(super) struct Job {
    pub id: String,
    pub topic: String,
    pub state: State,
    pub due_ms: i64,
    pub until_ms: Option<i64>,
    pub consumer: Option<Reserver>,
    #[serde(default)]
    pub added_ms: i64,
    pub priority: JobPriority,
    pub attempts: u32,
    pub max_attempts: Option<u32>,
    pub ttr_ms: Option<u64>,
    pub expires_ms: Option<i64>,
    #[serde(default)]
    pub headers: BTreeMap<String, String>,
    pub path: Option<String>,
    pub url: Option<String>,
    #[serde(default)]
    pub tags: Vec<String>,
    #[serde(default)]
    pub then: Vec<JobReference>,
    pub after: Option<JobReference>,
    #[serde(default)]
    pub log: Vec<Attempt>,
    pub body: Box<RawValue>,
    #[serde(default)]
    pub waiting: Option<Waiting>,
}

/// The client that has reserved a job, as the API shows it.
#[derive(Debug, Deserialize)]
pub(super) struct Reserver {
    pub name: String,
    pub address: Option<String>,
    pub since_ms: i64,
}

/// Why a job waits, as the API shows it.
#[derive(Debug, Deserialize)]
pub(super) struct Waiting {
    #[serde(default)]
    pub code: String,
    pub text: String,
    #[serde(default)]
    pub also: Vec<Waiting>,
}

impl JobArguments {
    pub(super) fn path(&self) -> String {
        format!("/v1/topics/{}/jobs/{}", part(&self.topic), part(&self.id))
    }

    /// Returns a better error if a job could not be changed because it is a dead letter. Otherwise returns the same
    /// error.
    fn or_dead(&self, api: &Api, error: anyhow::Error) -> anyhow::Error {
        let is_missing =
            matches!(error.downcast_ref(), Some(Failure::Refused(problem)) if problem.status == 404);
        let state = || api.get(&self.path()).ok()?.json::<Job>().ok().map(|job| job.state);
        if is_missing && state() == Some(State::Dead) {
            let JobArguments { topic, id, .. } = self;
            let what = format!(
                "job {id:?} of topic {topic} is a dead letter: dq dead redrive {topic} --id {id} tries it again"
            );
            return Failure::NotFound(what).into();
        }
        error
    }

    /// Prints the outcome of a change.
    fn done(&self, outcome: &str) -> Result<()> {
        if self.at.json {
            return json_line(&json!({"topic": self.topic, "id": self.id, "outcome": outcome}));
        }
        println!("{outcome}: {}:{}", self.topic, plain(&self.id));
        Ok(())
    }
}
