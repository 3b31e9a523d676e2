//! The routes that show the daemon: nodes, processes, alerts. Nodes are asked each on a thread of its own, one question at a time:
//! one that hangs holds up nobody, and costs one thread.

use std::sync::{Arc, Mutex, TryLockError};
use std::time::Duration;

use anyhow::Result;
use axum::extract::State;
use axum::http::StatusCode;
use serde::Serialize;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::api::Api;
use super::problem::Problem;
use super::schema;
use super::told::Told;
use crate::process::{findings, whole_status};
use crate::settings::Settings;
use crate::status::{Finding, Status};
use crate::store::{self, Lanes, Store};

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

/// Something that is wrong with what the jobs are stored in.
#[derive(Serialize, ToSchema)]
#[allow(dead_code)]
#[schema(as = Finding)]
pub(super) struct FoundSchema {
    /// A word for machines, such as `node_down`.
    name: String,
    what: String,
    /// Null: the store as a whole.
    #[schema(required = true)]
    node: Option<String>,
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

/// A lane's handle; none: it has not been opened, or failed.
type Handle = Arc<Mutex<Option<Box<dyn Store>>>>;

/// The nodes, as they are asked. Cheap to clone.
#[derive(Clone)]
pub(super) struct Nodes {
    lanes: Lanes,
    settings: Arc<Settings>,
    handles: Arc<[Handle]>,
}

impl Nodes {
    pub(super) fn new(lanes: Lanes, settings: Arc<Settings>) -> Nodes {
        let handles = (0..lanes.count()).map(|_| Handle::default()).collect();
        Nodes { lanes, settings, handles }
    }

    pub(super) fn lanes(&self) -> Lanes {
        self.lanes.clone()
    }

    fn name(&self, lane: usize) -> String {
        self.lanes.name(lane).unwrap_or("embedded").to_owned()
    }

    /// Asks all lanes at the same time; those that have not answered in time are told of with the reason.
    pub(super) async fn ask<T: Send + 'static>(
        &self,
        question: fn(&mut dyn Store) -> store::Result<T>,
    ) -> Vec<(String, Result<T, String>)> {
        let ask = |lane: usize| {
            let (settings, handle) = (Arc::clone(&self.settings), Arc::clone(&self.handles[lane]));
            let work = move || {
                let mut handle = match handle.try_lock() {
                    Ok(handle) => handle,
                    // A question that panicked has left nothing half done.
                    Err(TryLockError::Poisoned(e)) => e.into_inner(),
                    Err(TryLockError::WouldBlock) => return Err("it is still being asked".to_owned()),
                };
                let store = match &mut *handle {
                    Some(store) => store,
                    None => {
                        let opened = store::open_lane(&settings.store, &settings.run_dir, lane);
                        handle.insert(opened.map_err(|e| e.to_string())?)
                    }
                };
                let answer = question(store.as_mut());
                if answer.is_err() {
                    *handle = None;
                }
                answer.map_err(|e| e.to_string())
            };
            let asked = tokio::task::spawn_blocking(work);
            async move {
                match tokio::time::timeout(PATIENCE, asked).await {
                    Ok(Ok(answer)) => answer,
                    Ok(Err(_)) => Err("nobody could ask it".to_owned()),
                    Err(_) => Err(format!("no answer within {PATIENCE:?}")),
                }
            }
        };
        // All are under way before the first is waited for.
        let under_way: Vec<_> = (0..self.lanes.count()).map(ask).collect();
        let mut answers = Vec::new();
        for (lane, answer) in under_way.into_iter().enumerate() {
            answers.push((self.name(lane), answer.await));
        }
        answers
    }

    async fn all(&self) -> Vec<Node> {
        let lanes = self.lanes.clone();
        let states = tokio::task::spawn_blocking(move || lanes.nodes());
        let states = tokio::time::timeout(PATIENCE, states);
        let (states, counts) = tokio::join!(states, self.ask(|store| store.counts()));
        let states = states.ok().and_then(Result::ok).unwrap_or_default();
        let node = |(name, counts): (String, Result<Vec<store::Counts>, String>)| {
            let state = states.iter().find(|state| state.name == name);
            let sum = |of: fn(&store::Counts) -> u64| counts.as_ref().ok().map(|c| c.iter().map(of).sum());
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
                name,
            }
        };
        counts.into_iter().map(node).collect()
    }
}

/// Shows the nodes of the store: whether they answer, and how many jobs each has.
#[utoipa::path(get, path = "/v1/nodes", tag = "daemon", operation_id = "get_nodes",
    responses((status = 200, body = AllNodes, description = "All of them"), schema::ShowProblems))]
async fn nodes(State(api): State<Api>) -> Told {
    Told::new(StatusCode::OK, &AllNodes { nodes: api.nodes.all().await })
}

/// Shows the daemon's processes.
#[utoipa::path(get, path = "/v1/processes", tag = "daemon", operation_id = "get_processes",
    responses((status = 200, body = StatusSchema, description = "As the master tells"), schema::ShowProblems))]
async fn processes(State(api): State<Api>) -> Result<Told, Problem> {
    let status = on_thread(&api, |run_dir| whole_status(run_dir, MASTER_PATIENCE)).await?;
    let status: Status = status.map_err(|e| Problem::unavailable("master_away", e.to_string()))?;
    Ok(Told::new(StatusCode::OK, &status))
}

/// Shows what is wrong with what the jobs are stored in.
#[utoipa::path(get, path = "/v1/alerts", tag = "daemon", operation_id = "get_alerts",
    responses((status = 200, body = Alerts, description = "What is open"), schema::ShowProblems))]
async fn alerts(State(api): State<Api>) -> Result<Told, Problem> {
    let alerts = on_thread(&api, findings).await?;
    Ok(Told::new(StatusCode::OK, &Alerts { alerts }))
}

/// Does with run_dir what may wait for a disk or another process.
async fn on_thread<T: Send + 'static>(
    api: &Api,
    work: impl FnOnce(&std::path::Path) -> T + Send + 'static,
) -> Result<T, Problem> {
    let settings = Arc::clone(&api.settings);
    let done = tokio::task::spawn_blocking(move || work(&settings.run_dir)).await;
    done.map_err(|_| Problem::unavailable("no_thread", "nobody could look"))
}
