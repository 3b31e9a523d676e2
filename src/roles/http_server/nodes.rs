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
use super::metrics::OfNode;
use super::problem::Problem;
use super::schema;
use super::servers::{Server, StoreFile};
use super::told::Told;
use crate::process::{findings, whole_status};
use crate::status::{Finding, Status};
use crate::store::Counts;

/// How long a node may take to say how it is.
const PATIENCE: Duration = Duration::from_secs(3);

/// How long the master may take.
const MASTER_PATIENCE: Duration = Duration::from_secs(3);

pub(super) fn routes() -> OpenApiRouter<Api> {
    OpenApiRouter::new().routes(routes!(nodes)).routes(routes!(processes)).routes(routes!(alerts))
}

/// A node of the store.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(super) struct Node {
    /// The embedded store is one, and called `embedded`.
    name: String,
    answers: bool,
    /// New jobs do not go there.
    drained: bool,
    /// Null: it does not say.
    #[schema(required = true)]
    delayed: Option<u64>,
    #[schema(required = true)]
    ready: Option<u64>,
    #[schema(required = true)]
    leased: Option<u64>,
    #[schema(required = true)]
    dead: Option<u64>,
    /// How many jobs it holds for other nodes.
    for_others: u64,
    /// What is wrong with it, or under way.
    #[schema(required = true)]
    detail: Option<String>,
    /// What its servers tell of themselves; missing: they do not, in time.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    servers: Option<Vec<Server>>,
    /// Of the embedded store: its file.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    file: Option<StoreFile>,
}

/// All nodes.
#[derive(Serialize, ToSchema)]
pub(super) struct AllNodes {
    nodes: Vec<Node>,
}

/// What dq-redis-checker has found.
#[derive(Serialize, ToSchema)]
pub(super) struct Alerts {
    #[schema(value_type = Vec<FoundSchema>)]
    alerts: Vec<Finding>,
}

/// Something that is wrong with the store, a topic or a process.
#[derive(Serialize, ToSchema)]
#[allow(dead_code)]
#[schema(as = Finding)]
pub(super) struct FoundSchema {
    /// A word for machines, such as `node_down`.
    name: String,
    what: String,
    /// Null: the store as a whole, or it is about a topic or process.
    #[schema(required = true)]
    node: Option<String>,
    #[schema(required = true)]
    topic: Option<String>,
    /// Of `process_restarting`: the process's name.
    #[schema(required = true)]
    process: Option<String>,
    /// Whether jobs that were acknowledged may be lost by it.
    loses_jobs: bool,
    detail: String,
    since_ms: i64,
}

/// What `dq status --json` says.
#[derive(Serialize, ToSchema)]
#[allow(dead_code)]
#[schema(as = Status)]
pub(super) struct StatusSchema {
    version: String,
    instance: String,
    pid: i32,
    started_ms: i64,
    /// `starting`, `steady`, `checking`, `rolling` or `stopping`.
    phase: String,
    generation: u64,
    #[schema(required = true, value_type = Option<Object>)]
    renewal: Option<serde_json::Value>,
    /// The sockets that are bound: what for, and where.
    listening: Vec<Vec<String>>,
    processes: Vec<ProcessSchema>,
    findings: Vec<FoundSchema>,
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
        let (told, mut servers, file) = tokio::join!(asked, self.servers(), self.store_file());
        let mut nodes = self.nodes_as(&told).await;
        for node in &mut nodes {
            (node.servers, node.file) = (servers.remove(&node.name), file.clone());
        }
        nodes
    }

    /// The nodes, as they have told how many jobs they have.
    pub(super) async fn nodes_as(&self, told: &[OfNode<'_>]) -> Vec<Node> {
        let lanes = self.lanes.clone();
        let states = tokio::task::spawn_blocking(move || lanes.nodes());
        let states = tokio::time::timeout(PATIENCE, states).await;
        let states = states.ok().and_then(Result::ok).unwrap_or_default();
        let node = |(name, counts): &OfNode<'_>| {
            let state = states.iter().find(|state| state.name == *name);
            let sum = |of: fn(&Counts) -> u64| counts.as_ref().ok().map(|(c, _)| c.iter().map(of).sum());
            let settling = state.is_some_and(|s| !s.is_looked_through);
            Node {
                answers: counts.is_ok() && state.is_none_or(|s| s.answers),
                drained: state.is_some_and(|s| s.answers && !s.is_home),
                delayed: sum(|c| c.delayed),
                ready: sum(|c| c.ready),
                leased: sum(|c| c.leased),
                dead: sum(|c| c.dead),
                for_others: state.map_or(0, |s| s.held_for_others),
                detail: counts
                    .as_ref()
                    .err()
                    .cloned()
                    .or(settling.then(|| "its jobs are being looked through".to_owned())),
                name: (*name).to_owned(),
                servers: None,
                file: None,
            }
        };
        told.iter().map(node).collect()
    }
}

/// Shows the nodes of the store: whether they answer, how many jobs each has, and what its servers tell of themselves.
#[utoipa::path(get, path = "/v1/nodes", tag = "daemon", operation_id = "get_nodes",
    responses((status = 200, body = AllNodes, description = "All of them"), schema::ShowProblems))]
async fn nodes(State(api): State<Api>) -> Told {
    Told::new(StatusCode::OK, &AllNodes { nodes: api.all_nodes().await })
}

/// Shows the daemon's processes.
#[utoipa::path(get, path = "/v1/processes", tag = "daemon", operation_id = "get_processes",
    responses((status = 200, body = StatusSchema, description = "As the master tells"), schema::ShowProblems))]
async fn processes(State(api): State<Api>) -> Result<Told, Problem> {
    let status = on_thread(&api, |run_dir| whole_status(run_dir, MASTER_PATIENCE)).await?;
    let status: Status = status.map_err(|e| Problem::unavailable("master_away", e.to_string()))?;
    Ok(Told::new(StatusCode::OK, &status))
}

/// Shows what is wrong with the store, with topics and processes.
#[utoipa::path(get, path = "/v1/alerts", tag = "daemon", operation_id = "get_alerts",
    responses((status = 200, body = Alerts, description = "What is open"), schema::ShowProblems))]
async fn alerts(State(api): State<Api>) -> Result<Told, Problem> {
    let alerts = on_thread(&api, findings).await?;
    Ok(Told::new(StatusCode::OK, &Alerts { alerts }))
}

/// Does with run_dir what may wait for a disk or another process.
pub(super) async fn on_thread<T: Send + 'static>(
    api: &Api,
    work: impl FnOnce(&std::path::Path) -> T + Send + 'static,
) -> Result<T, Problem> {
    let settings = Arc::clone(&api.settings);
    let done = tokio::task::spawn_blocking(move || work(&settings.run_dir)).await;
    done.map_err(|_| Problem::unavailable("no_thread", "nobody could look"))
}
