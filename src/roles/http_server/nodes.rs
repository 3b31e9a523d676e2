//! The routes that show the daemon: nodes, processes, alerts.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::StatusCode;
use serde::Serialize;
use tokio::time::Instant;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::api::Api;
use super::api_response::ApiResponse;
use super::metrics::NamedNodeReport;
use super::problem::Problem;
use super::schema;
use super::servers::{RedisServer, StoreFile};
use host::{findings, whole_status};
use model::settings;
use model::status::{DaemonStatus, Finding};
use model::topic::Durability;
use store::{Counts, NodeSetView, NodeState, ServerDurability, SpoolState};

/// How long a node may take to report its state.
const PATIENCE: Duration = Duration::from_secs(3);

/// How long the master may take to answer.
const MASTER_PATIENCE: Duration = Duration::from_secs(3);

pub(super) fn routes() -> OpenApiRouter<Api> {
    OpenApiRouter::new().routes(routes!(nodes)).routes(routes!(processes)).routes(routes!(alerts))
}

/// A node of the store.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(super) struct Node {
    /// The name of the node. The embedded store is one node, `embedded`.
    name: String,
    /// Whether the node answers and can be used. If not, `detail` says why.
    answers: bool,
    /// `home`: the node has jobs. `joining`: jobs are being moved to it. `leaving`: its jobs are being moved away.
    /// `outside`: it has no jobs. `unknown`: no node has reported yet which nodes have jobs.
    part: &'static str,
    /// True if the node's data is older than the data of the other nodes. The node is not used until `dq nodes move`
    /// has checked it.
    is_older: bool,
    /// The highest durability that the node can promise alone: `fsync` (a change is on its disk before it is answered)
    /// or `memory`. Null if the node does not report it.
    #[schema(required = true)]
    durability: Option<String>,
    /// How many replicas the node has. For a Cluster: the number of replicas of the master that has the fewest. Null if
    /// the node does not report the number, or cannot have replicas.
    #[schema(required = true)]
    replicas: Option<u64>,
    /// How many jobs are delayed. Null if the node does not report it.
    #[schema(required = true)]
    delayed: Option<u64>,
    #[schema(required = true)]
    ready: Option<u64>,
    #[schema(required = true)]
    leased: Option<u64>,
    #[schema(required = true)]
    dead: Option<u64>,
    /// What is wrong with the node, or what is in progress.
    #[schema(required = true)]
    detail: Option<String>,
    /// What the servers of the node report. The field is missing if the servers do not answer in time.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    servers: Option<Vec<RedisServer>>,
    /// The file of the embedded store.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    file: Option<StoreFile>,
}

/// All nodes of the store.
#[derive(Serialize, ToSchema)]
pub(super) struct NodesResponse {
    /// The nodes that have jobs. Null for the embedded store, and while no node has reported the set.
    #[schema(required = true)]
    set: Option<Set>,
    nodes: Vec<Node>,
    /// The changes that wait on this host's disk for their nodes. Null if there is no spool, or if it cannot be read.
    #[schema(required = true)]
    spool: Option<Spool>,
}

/// The nodes that have jobs.
#[derive(Serialize, ToSchema)]
pub(super) struct Set {
    /// The number of the set. A later set has a greater number.
    number: u64,
    nodes: Vec<String>,
    /// While jobs are moved: the nodes that will have the jobs after the move. Null if no jobs are moved.
    #[schema(required = true)]
    goal: Option<Vec<String>>,
}

/// The spool of this host.
#[derive(Serialize, ToSchema)]
pub(super) struct Spool {
    /// The number of changes that wait.
    entries: u64,
    /// The bytes that the changes take on the disk.
    bytes: u64,
    /// The bytes that the changes may take: `store.spool`.
    max_bytes: u64,
    /// When the oldest change was added, Unix milliseconds. Null if no change waits.
    #[schema(required = true)]
    oldest_ms: Option<i64>,
}

/// What dq-redis-checker has found.
#[derive(Serialize, ToSchema)]
pub(super) struct AlertsResponse {
    #[schema(value_type = Vec<FindingSchema>)]
    alerts: Vec<Finding>,
}

/// Something that is wrong with the store, a topic or a process.
#[derive(Serialize, ToSchema)]
#[allow(dead_code)]
#[schema(as = Finding)]
pub(super) struct FindingSchema {
    /// The kind, for programs, such as `node_down`.
    name: String,
    what: String,
    /// The node. Null if the finding is about the store as a whole, a topic or a process.
    #[schema(required = true)]
    node: Option<String>,
    #[schema(required = true)]
    topic: Option<String>,
    /// The name of the process, for `process_restarting`.
    #[schema(required = true)]
    process: Option<String>,
    /// Whether acknowledged jobs may be lost because of the problem.
    loses_jobs: bool,
    detail: String,
    since_ms: i64,
}

/// The state of the daemon, as in `dq status --json`.
#[derive(Serialize, ToSchema)]
#[allow(dead_code)]
#[schema(as = Status)]
pub(super) struct DaemonStatusSchema {
    version: String,
    instance: String,
    pid: i32,
    started_ms: i64,
    /// `starting`, `steady`, `checking`, `rolling` or `stopping`.
    phase: String,
    generation: u64,
    #[schema(required = true, value_type = Option<Object>)]
    renewal: Option<serde_json::Value>,
    /// The bound sockets: the purpose and the address of each.
    listening: Vec<Vec<String>>,
    /// The store in words, with the file of the embedded store.
    store: String,
    processes: Vec<ProcessSchema>,
    findings: Vec<FindingSchema>,
}

/// A slot of a generation, and the process in it.
#[derive(Serialize, ToSchema)]
#[allow(dead_code)]
#[schema(as = Process)]
pub(super) struct ProcessSchema {
    name: String,
    generation: u64,
    /// `waiting`, `starting`, `up`, `draining`, `killed` or `gone`.
    state: String,
    #[schema(required = true)]
    pid: Option<i32>,
    #[schema(required = true)]
    started_ms: Option<i64>,
    overdue_ms: u64,
    restarts: u32,
    #[schema(required = true, value_type = Option<Object>)]
    last_end: Option<serde_json::Value>,
    #[schema(required = true)]
    memory_bytes: Option<u64>,
    #[schema(required = true)]
    cpu_ms: Option<u64>,
}

impl Api {
    async fn all_nodes(&self) -> Vec<Node> {
        let asked = self.metrics.ask_nodes(Instant::now() + PATIENCE);
        let (node_counts, mut servers, file) = tokio::join!(asked, self.servers(), self.store_file());
        let mut nodes = self.nodes_as(&node_counts).await;
        for node in &mut nodes {
            (node.servers, node.file) = (servers.remove(&node.name), file.clone());
        }
        nodes
    }

    /// Builds the nodes from the counts that they reported.
    pub(super) async fn nodes_as(&self, node_counts: &[NamedNodeReport<'_>]) -> Vec<Node> {
        let lanes = self.lanes.clone();
        let states = tokio::task::spawn_blocking(move || lanes.nodes());
        let states = tokio::time::timeout(PATIENCE, states).await;
        let states = states.ok().and_then(Result::ok).unwrap_or_default();
        let is_embedded = matches!(self.settings.store, settings::StoreSettings::Embedded { .. });
        let node = |(name, counts): &NamedNodeReport<'_>| {
            let state = states.iter().find(|state| state.name == *name);
            let sum = |of: fn(&Counts) -> u64| counts.as_ref().ok().map(|(c, ..)| c.iter().map(of).sum());
            let capability = state.and_then(|s| s.capability.as_ref());
            let durability =
                capability.map(ServerDurability::alone).or(is_embedded.then_some(Durability::Fsync));
            Node {
                durability: durability.map(|level| level.to_string()),
                replicas: capability.and_then(|c| c.replicas),
                answers: counts.is_ok() && state.is_none_or(|s| s.answers && s.unusable.is_none()),
                part: state.map_or("home", |s| s.part.word()),
                is_older: state.is_some_and(|s| s.is_older),
                delayed: sum(|c| c.delayed),
                ready: sum(|c| c.ready),
                leased: sum(|c| c.leased),
                dead: sum(|c| c.dead),
                detail: counts.as_ref().err().cloned().or_else(|| unusable(state?)),
                name: (*name).to_owned(),
                servers: None,
                file: None,
            }
        };
        node_counts.iter().map(node).collect()
    }
}

/// Returns why dq does not use a node that answers.
fn unusable(state: &NodeState) -> Option<String> {
    state.unusable.as_ref().map(ToString::to_string)
}

/// Shows the nodes of the store and this host's spool. For each node: whether it answers, how many jobs it has, and
/// what its servers report.
#[utoipa::path(get, path = "/v1/nodes", tag = "daemon", operation_id = "get_nodes",
    responses((status = 200, body = NodesResponse, description = "All nodes"), schema::ReadErrorResponses))]
async fn nodes(State(api): State<Api>) -> ApiResponse {
    let (nodes, spool) = tokio::join!(api.all_nodes(), api.metrics.spool(Instant::now() + PATIENCE));
    let spool = spool.map(|(SpoolState { entries, bytes, oldest_ms, .. }, max_bytes)| Spool {
        entries,
        bytes,
        max_bytes,
        oldest_ms,
    });
    let set = api.lanes.set().map(|NodeSetView { number, nodes, goal }| Set { number, nodes, goal });
    ApiResponse::new(StatusCode::OK, &NodesResponse { set, nodes, spool })
}

/// Shows the daemon's processes.
#[utoipa::path(get, path = "/v1/processes", tag = "daemon", operation_id = "get_processes",
    responses((status = 200, body = DaemonStatusSchema, description = "The state of the daemon, from the master"), schema::ReadErrorResponses))]
async fn processes(State(api): State<Api>) -> Result<ApiResponse, Problem> {
    let status = on_thread(&api, |run_dir| whole_status(run_dir, MASTER_PATIENCE)).await?;
    let status: DaemonStatus = status.map_err(|e| Problem::unavailable("master_away", e.to_string()))?;
    Ok(ApiResponse::new(StatusCode::OK, &status))
}

/// Shows what is wrong with the store, with topics and with processes.
#[utoipa::path(get, path = "/v1/alerts", tag = "daemon", operation_id = "get_alerts",
    responses((status = 200, body = AlertsResponse, description = "The open findings"), schema::ReadErrorResponses))]
async fn alerts(State(api): State<Api>) -> Result<ApiResponse, Problem> {
    let alerts = on_thread(&api, findings).await?;
    Ok(ApiResponse::new(StatusCode::OK, &AlertsResponse { alerts }))
}

/// Runs `work` on a separate thread, with the path of `run_dir`. The work may wait for a disk or another process.
pub(super) async fn on_thread<T: Send + 'static>(
    api: &Api,
    work: impl FnOnce(&std::path::Path) -> T + Send + 'static,
) -> Result<T, Problem> {
    let settings = Arc::clone(&api.settings);
    let done = tokio::task::spawn_blocking(move || work(&settings.run_dir)).await;
    done.map_err(|_| Problem::unavailable("no_thread", "the thread that reads the state failed"))
}
