//! What a daemon tells of itself, taken together: its master by the control socket, the rest by the HTTP API. A part that does
//! not answer is left out, and holds nobody up.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use anyhow::{Result, anyhow};
use serde::{Deserialize, Serialize};

use super::api::Api;
use super::exposition::{self, Sample};
use super::target::Target;
use crate::process::{state_of, whole_status};
use crate::status::{Finding, ProcessState, Status};

/// How long the master may take to answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// How long each part of the API may take that adds to what the master says.
const PART_PATIENCE: Duration = Duration::from_secs(1);

/// A daemon, as it is now.
#[derive(Debug, Serialize)]
pub(super) struct Picture {
    #[serde(flatten)]
    pub status: Status,
    /// None: nobody has told.
    pub topics: Option<Vec<Topic>>,
    /// None: nobody has told.
    pub nodes: Option<Vec<Node>>,
    /// Why some of it is missing.
    #[serde(skip)]
    pub missing: Option<String>,
    /// The counters, where they are told.
    #[serde(skip)]
    pub samples: Vec<Sample>,
}

/// How many jobs of a topic are in each state.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Topic {
    pub topic: String,
    pub delayed: u64,
    pub ready: u64,
    pub leased: u64,
    pub dead: u64,
    /// By how much deliveries began late, in milliseconds: half of them, and all but one of a hundred, were no later.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub late_p50_ms: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub late_p99_ms: Option<f64>,
    /// Whatever else is told of it.
    #[serde(flatten)]
    pub more: BTreeMap<String, serde_json::Value>,
}

/// A node of the store.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Node {
    pub name: String,
    pub answers: bool,
    #[serde(default)]
    pub drained: bool,
    #[serde(default)]
    pub delayed: u64,
    #[serde(default)]
    pub ready: u64,
    #[serde(default)]
    pub leased: u64,
    #[serde(default)]
    pub dead: u64,
    #[serde(default)]
    pub for_others: u64,
    /// Why it does not answer, or what else there is to say.
    #[serde(default)]
    pub detail: Option<String>,
}

#[derive(Deserialize)]
struct Topics {
    topics: Vec<Topic>,
}

#[derive(Deserialize)]
struct Nodes {
    nodes: Vec<Node>,
}

#[derive(Deserialize)]
struct Alerts {
    alerts: Vec<Finding>,
}

impl Picture {
    /// Looks at a daemon. One on this host need not have an HTTP server.
    pub(super) fn of(target: &Target) -> Result<Picture> {
        let Some(run_dir) = &target.run_dir else { return Picture::far(target) };
        let status = master(run_dir)?;
        let mut picture = Picture { status, topics: None, nodes: None, missing: None, samples: Vec::new() };
        // One that is stopped is not waited for.
        let runs =
            |p: &crate::status::Process| p.pid.and_then(state_of).is_some_and(|s| s != 'T' && s != 't');
        let is_up =
            |p: &crate::status::Process| p.name == "dq-http-server" && p.state == ProcessState::Up && runs(p);
        if picture.status.processes.iter().any(is_up) {
            let api = Api::new(target, PART_PATIENCE);
            picture.missing = api.and_then(|api| picture.complete(&api)).err().map(|e| format!("{e:#}"));
        }
        Ok(picture)
    }

    /// One that is asked over a network tells all of it by the API.
    fn far(target: &Target) -> Result<Picture> {
        let api = Api::new(target, PATIENCE)?;
        let status: Status = api.get("/v1/processes")?.json()?;
        let mut picture = Picture { status, topics: None, nodes: None, missing: None, samples: Vec::new() };
        if let Ok(Alerts { alerts }) = api.get("/v1/alerts").and_then(|answer| answer.json()) {
            picture.status.findings = alerts;
        }
        picture.missing = picture.complete(&api).err().map(|e| format!("{e:#}"));
        Ok(picture)
    }

    fn complete(&mut self, api: &Api) -> Result<()> {
        let Topics { mut topics } = api.get("/v1/stats")?.json()?;
        self.samples = api.get("/metrics").map(|answer| exposition::read(&answer.text())).unwrap_or_default();
        for topic in &mut topics {
            let late = exposition::lateness(&self.samples, &topic.topic);
            topic.late_p50_ms = late.quantile(0.5).map(|s| s * 1000.0);
            topic.late_p99_ms = late.quantile(0.99).map(|s| s * 1000.0);
        }
        self.topics = Some(topics);
        let Nodes { nodes } = api.get("/v1/nodes")?.json()?;
        self.nodes = Some(nodes);
        Ok(())
    }
}

/// What the master of the daemon of that folder tells, and what its processes use.
pub(super) fn master(run_dir: &Path) -> Result<Status> {
    whole_status(run_dir, PATIENCE).map_err(|e| anyhow!("{e} (--run-dir or --config say where it runs)"))
}

/// The nodes of the store, as the daemon tells them.
pub(super) fn nodes(api: &Api) -> Result<Vec<Node>> {
    let Nodes { nodes } = api.get("/v1/nodes")?.json()?;
    Ok(nodes)
}
