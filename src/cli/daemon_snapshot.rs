//! The state of a daemon, collected from several parts: its master answers at the control socket, and the rest comes
//! through the HTTP API. A part that does not answer in time is left out.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use anyhow::{Result, anyhow};
use serde::{Deserialize, Deserializer, Serialize};

use super::api::Api;
use super::exposition::{self, MetricSample};
use super::failure::Failure;
use super::spool::SpoolUsage;
use super::target::DaemonEndpoint;
use host::{state_of, whole_status};
use model::metrics::LatenessHistogram;
use model::status::{DaemonStatus, Finding, ProcessState};

/// How long the master may take to answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// How long each request to the API may take. The answers are added to the status that the master has sent.
const PART_PATIENCE: Duration = Duration::from_secs(1);

/// The state of a daemon at one moment.
#[derive(Debug, Serialize)]
pub(super) struct DaemonSnapshot {
    #[serde(flatten)]
    pub status: DaemonStatus,
    /// The topics. `None`: the daemon has not reported them.
    pub topics: Option<Vec<TopicSnapshot>>,
    /// The nodes. `None`: the daemon has not reported them.
    pub nodes: Option<Vec<Node>>,
    /// What waits in the spool of the daemon's host. `None`: there is no spool, or the daemon has not reported it.
    pub spool: Option<SpoolUsage>,
    /// Why a part of the snapshot is missing.
    #[serde(skip)]
    pub missing: Option<String>,
    /// How late the attempts of each topic began. Empty: the daemon has not reported it.
    #[serde(skip)]
    pub lateness: BTreeMap<String, LatenessHistogram>,
    /// The samples of `/metrics`. Empty: the daemon has not reported them.
    #[serde(skip)]
    pub samples: Vec<MetricSample>,
}

/// A topic: how many of its jobs are in each state, and how late its deliveries were.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct TopicSnapshot {
    pub topic: String,
    pub delayed: u64,
    pub ready: u64,
    pub leased: u64,
    pub dead: u64,
    /// Whether the topic is paused. None: this is not known.
    #[serde(default)]
    pub paused: Option<bool>,
    /// Half of the deliveries began no later than this, in milliseconds after their due times.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub late_p50_ms: Option<f64>,
    /// 99 of 100 deliveries began no later than this, in milliseconds after their due times.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub late_p99_ms: Option<f64>,
    /// The ranges of lateness, as the API reports them.
    #[serde(default, skip_serializing)]
    pub lateness: Vec<LatenessRange>,
    /// All other fields of the API's answer.
    #[serde(flatten)]
    pub more: BTreeMap<String, serde_json::Value>,
}

impl TopicSnapshot {
    /// Returns the name of a paused topic and how many of its jobs wait. None: the topic is not paused, or this is not
    /// known.
    pub(super) fn pause(&self) -> Option<String> {
        let TopicSnapshot { topic, ready, delayed, .. } = self;
        let waits = || format!("{topic}: {ready} ready jobs wait, and {delayed} jobs are delayed");
        (self.paused == Some(true)).then(waits)
    }
}

/// A range of lateness, and how many attempts began that late. See [`LatenessHistogram::from_ranges`].
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
pub(super) struct LatenessRange {
    up_to_us: Option<u64>,
    attempts: u64,
}

/// A node of the store.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Node {
    pub name: String,
    pub answers: bool,
    /// The part of the node in the set of nodes: `home`, `joining`, `leaving`, `outside`, `unknown`.
    #[serde(default)]
    pub part: String,
    /// Whether the data of the node is older than the data of the other nodes.
    #[serde(default)]
    pub is_older: bool,
    /// The highest durability level that the node can provide without replicas.
    #[serde(default)]
    pub durability: Option<String>,
    /// The number of replicas of the node.
    #[serde(default)]
    pub replicas: Option<u64>,
    /// The number of delayed jobs. If the node does not report its counts, all four counts are null in the API, and 0
    /// here.
    #[serde(default, deserialize_with = "zero_if_null")]
    pub delayed: u64,
    #[serde(default, deserialize_with = "zero_if_null")]
    pub ready: u64,
    #[serde(default, deserialize_with = "zero_if_null")]
    pub leased: u64,
    #[serde(default, deserialize_with = "zero_if_null")]
    pub dead: u64,
    /// Why the node does not answer, or another remark about the node.
    #[serde(default)]
    pub detail: Option<String>,
}

fn zero_if_null<'de, D: Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
    Option::deserialize(from).map(Option::unwrap_or_default)
}

impl Node {
    /// Returns the state of the node in one word.
    pub(super) fn state(&self) -> &str {
        match self.part.as_str() {
            // This node has no jobs, so it does not matter whether it answers.
            "outside" => "outside",
            _ if !self.answers => "down",
            _ if self.is_older => "older",
            "" | "home" => "up",
            part => part,
        }
    }
}

#[derive(Deserialize)]
struct TopicSnapshotList {
    topics: Vec<TopicSnapshot>,
}

/// The nodes of the store, and what waits for them in the spool.
#[derive(Deserialize)]
pub(super) struct Nodes {
    pub nodes: Vec<Node>,
    #[serde(default)]
    pub spool: Option<SpoolUsage>,
}

#[derive(Deserialize)]
struct OpenAlerts {
    alerts: Vec<Finding>,
}

impl DaemonSnapshot {
    /// Returns a snapshot that has only the status of the master so far.
    pub(super) fn new(status: DaemonStatus) -> DaemonSnapshot {
        DaemonSnapshot {
            status,
            topics: None,
            nodes: None,
            spool: None,
            missing: None,
            lateness: BTreeMap::new(),
            samples: Vec::new(),
        }
    }

    /// Reads the state of a daemon. A daemon on this host does not need an HTTP server for this.
    pub(super) fn take(target: &DaemonEndpoint) -> Result<DaemonSnapshot> {
        let Some(run_dir) = &target.run_dir else { return DaemonSnapshot::far(target) };
        let status = master(run_dir)?;
        let mut snapshot = DaemonSnapshot::new(status);
        // If the process of the API is stopped (state T), the API is not asked, because it would not answer.
        let runs =
            |p: &model::status::Process| p.pid.and_then(state_of).is_some_and(|s| s != 'T' && s != 't');
        let is_up =
            |p: &model::status::Process| p.name == "dq-http-server" && p.state == ProcessState::Up && runs(p);
        if snapshot.status.processes.iter().any(is_up) {
            let api = Api::new(target, PART_PATIENCE);
            snapshot.missing = api.and_then(|api| snapshot.complete(&api)).err().map(|e| format!("{e:#}"));
        }
        Ok(snapshot)
    }

    /// Reads the state of a daemon that was chosen by its URL. The whole state comes from the API.
    fn far(target: &DaemonEndpoint) -> Result<DaemonSnapshot> {
        let api = Api::new(target, PATIENCE)?;
        let status: DaemonStatus = api.get("/v1/processes")?.json()?;
        let mut snapshot = DaemonSnapshot::new(status);
        if let Ok(OpenAlerts { alerts }) = api.get("/v1/alerts").and_then(|answer| answer.json()) {
            snapshot.status.findings = alerts;
        }
        snapshot.missing = snapshot.complete(&api).err().map(|e| format!("{e:#}"));
        Ok(snapshot)
    }

    fn complete(&mut self, api: &Api) -> Result<()> {
        let topics = self.complete_topics(api);
        // If no node answers a daemon, the daemon cannot count jobs, but it can still report the nodes.
        let answers = |e: &anyhow::Error| matches!(e.downcast_ref(), Some(Failure::Refused(_)));
        if topics.as_ref().map_or_else(answers, |()| true) {
            let Nodes { nodes, spool } = nodes(api)?;
            (self.nodes, self.spool) = (Some(nodes), spool);
        }
        topics
    }

    fn complete_topics(&mut self, api: &Api) -> Result<()> {
        let topics = match api.get("/v1/stats?lateness=true") {
            // A daemon of the previous release does not know the parameter.
            Err(e) if matches!(e.downcast_ref(), Some(Failure::Refused(_))) => api.get("/v1/stats"),
            other => other,
        };
        let TopicSnapshotList { mut topics } = topics?.json()?;
        self.samples = api.get("/metrics").map(|answer| exposition::read(&answer.text())).unwrap_or_default();
        for topic in &mut topics {
            let ranges = std::mem::take(&mut topic.lateness);
            let late = LatenessHistogram::from_ranges(
                ranges.into_iter().map(|range| (range.up_to_us, range.attempts)),
            );
            topic.late_p50_ms = late.percentile_us(0.5).map(|us| us as f64 / 1000.0);
            topic.late_p99_ms = late.percentile_us(0.99).map(|us| us as f64 / 1000.0);
            self.lateness.insert(topic.topic.clone(), late);
        }
        self.topics = Some(topics);
        Ok(())
    }
}

/// Returns the status of the daemon with this run_dir. The status contains the findings, and the memory and the CPU
/// time that the daemon's processes use.
pub(super) fn master(run_dir: &Path) -> Result<DaemonStatus> {
    whole_status(run_dir, PATIENCE).map_err(|e| anyhow!("{e} (--run-dir or --config say where it runs)"))
}

/// Returns the topics and their counts, as the daemon reports them.
pub(super) fn topics(api: &Api) -> Result<Vec<TopicSnapshot>> {
    let TopicSnapshotList { topics } = api.get("/v1/stats")?.json()?;
    Ok(topics)
}

/// Returns the nodes of the store, as the daemon reports them.
pub(super) fn nodes(api: &Api) -> Result<Nodes> {
    api.get("/v1/nodes")?.json()
}
