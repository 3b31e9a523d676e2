//! `/healthz` (the process answers) and `/readyz` (the store answers, and the processes that deliver jobs are running).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use axum::extract::State;
use axum::http::StatusCode;
use axum::{Extension, Json};
use serde::Serialize;
use tokio::task::JoinSet;
use tokio::time::Instant;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::access::Caller;
use super::api::Api;
use super::metrics::{QuestionThread, by};
use host::{ask_master, findings};
use model::settings;
use model::slot::{Role, Slot};
use model::status::{DaemonStatus, Finding, ProcessState};
use role::Context;
use store::StoreError;

/// How long the store may take to answer. After that, the store counts as not ready.
const STORE_PATIENCE: Duration = Duration::from_secs(2);

/// In `parts`, the key of a node is this text and the name of the node.
const NODE: &str = "node ";

/// The state of a part that is not ok, for a caller that may not read more.
const NOT_OK: &str = "not ok";

/// How long the master may take to report the processes.
const MASTER_PATIENCE: Duration = Duration::from_secs(1);

/// The threads that ask the store whether it is healthy, one for each lane. The value is cheap to clone.
#[derive(Clone)]
pub(super) struct StoreHealthThreads(Arc<[QuestionThread<Result<(), StoreError>>]>);

impl StoreHealthThreads {
    /// Starts a thread for each of the store's lanes.
    pub(super) fn start(context: &mut Context) -> Result<StoreHealthThreads> {
        let lanes = context.lanes()?.count();
        let start = |lane| {
            let mut store = context.lane(lane)?;
            QuestionThread::start("health", move |()| store.health())
        };
        Ok(StoreHealthThreads((0..lanes).map(start).collect::<Result<_>>()?))
    }

    /// Returns what is wrong with the store. One healthy node is enough, because new jobs can avoid the other nodes.
    async fn problem(&self) -> Option<String> {
        let until = Instant::now() + STORE_PATIENCE;
        let mut answers: JoinSet<_> = self.0.iter().map(|asked| by(until, asked.ask(()))).collect();
        let mut problem = format!("no answer within {STORE_PATIENCE:?}");
        while let Some(answer) = answers.join_next().await {
            match answer {
                Ok(Some(Ok(()))) => return None,
                Ok(Some(Err(e))) => problem = e.to_string(),
                Ok(None) | Err(_) => {}
            }
        }
        Some(problem)
    }
}

pub(super) fn routes() -> OpenApiRouter<Api> {
    OpenApiRouter::new().routes(routes!(healthz)).routes(routes!(readyz))
}

/// Whether dq can do its work.
#[derive(Serialize, ToSchema)]
#[schema(example = json!({"ready": true, "parts": {"store": "ok", "timer": "ok", "consume": "ok", "processes": "ok", "registry": "ok", "topics": "ok"}}))]
struct Readiness {
    ready: bool,
    /// The state of each part: `ok`, or what is wrong. dq may be ready although a node, a process or the registry is
    /// down, or although a topic needs attention.
    parts: BTreeMap<String, String>,
}

impl Readiness {
    /// Returns the short answer for a caller that may not read the state of the daemon. The short answer has no name,
    /// address or path.
    fn in_brief(self) -> Readiness {
        let mut parts = BTreeMap::new();
        for (part, state) in self.parts {
            let part = if part.starts_with(NODE) { "nodes".to_owned() } else { part };
            let is_ok = state == "ok" && parts.get(&part).is_none_or(|known| known == "ok");
            parts.insert(part, if is_ok { "ok" } else { NOT_OK }.to_owned());
        }
        Readiness { ready: self.ready, parts }
    }
}

/// Answers while the process runs.
#[utoipa::path(get, path = "/healthz", tag = "daemon", operation_id = "get_healthz", security(()),
    responses((status = 200, body = String, content_type = "text/plain", description = "The process answers")))]
async fn healthz() -> &'static str {
    "ok\n"
}

/// Answers 200 if the store answers and the processes that deliver jobs are running. With the embedded store, the
/// folder `bells` in `run_dir` must also exist. Otherwise answers 503 and names the part that is not ready.
///
/// A caller without the scope `read` sees only `ok` or `not ok` for each part, and all nodes as one part.
#[utoipa::path(get, path = "/readyz", tag = "daemon", operation_id = "get_readyz", security(()),
    responses((status = 200, body = Readiness, description = "dq can do its work"), (status = 503, body = Readiness, description = "dq cannot do its work")))]
async fn readyz(State(api): State<Api>, reader: Option<Extension<Caller>>) -> (StatusCode, Json<Readiness>) {
    let settings = api.settings.clone();
    let lanes = api.lanes.clone();
    let files = tokio::task::spawn_blocking(move || {
        let status = ask_master(&settings.run_dir, MASTER_PATIENCE);
        let lack = match &settings.store {
            settings::StoreSettings::Embedded { path, min_free } => store::lack_of_room(path, *min_free),
            settings::StoreSettings::Redis(_) => None,
        };
        (status.map_err(|e| e.to_string()), findings(&settings.run_dir), lanes.nodes(), lack)
    });
    let (store, files) = tokio::join!(api.health.problem(), files);
    let (status, findings, nodes, lack) =
        files.unwrap_or_else(|e| (Err(e.to_string()), Vec::new(), Vec::new(), None));
    let status = status.as_ref();
    let settings = &api.settings;
    let mut needed = vec![
        ("store", store),
        ("timer", none_of(Role::Timer, settings.timer.processes, "timer", status.ok())),
        ("consume", none_of(Role::Consume, settings.consume.processes, "consume", status.ok())),
    ];
    if matches!(settings.store, settings::StoreSettings::Embedded { .. }) {
        let bells = settings.run_dir.join("bells");
        needed.push(("run_dir", (!bells.is_dir()).then(|| format!("{} is gone", bells.display()))));
    }
    let ready = needed.iter().all(|(_, problem)| problem.is_none());
    let word = |problem: Option<String>| problem.unwrap_or_else(|| "ok".to_owned());
    let mut parts: BTreeMap<String, String> =
        needed.into_iter().map(|(part, problem)| (part.to_owned(), word(problem))).collect();
    // If the store is full, dq is still ready, because stored jobs are delivered.
    if let (Some(lack), Some(store)) = (lack, parts.get_mut("store").filter(|store| *store == "ok")) {
        *store = format!("full, so adds are refused: {lack}");
    }
    for node in nodes {
        let problem = match (&node.unusable, node.answers) {
            (Some(why), _) => Some(format!("is not used: {why}")),
            (None, false) => Some("does not answer; its jobs wait".to_owned()),
            (None, true) => None,
        };
        parts.insert(format!("{NODE}{}", node.name), word(problem));
    }
    if settings.registry.is_some() {
        parts.insert(
            "registry".to_owned(),
            registry_away(&findings).map_or_else(|| "ok".to_owned(), |why| format!("away: {why}")),
        );
    }
    parts.insert("topics".to_owned(), word(of_topics(&findings)));
    parts.insert("processes".to_owned(), status.map_or_else(|e| format!("not known: {e}"), not_up));
    parts.entry("run_dir".to_owned()).or_insert_with(|| "ok".to_owned());
    let status = if ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let ready = Readiness { ready, parts };
    (status, Json(if reader.is_some() { ready } else { ready.in_brief() }))
}

/// Returns why the registry cannot be read.
fn registry_away(findings: &[Finding]) -> Option<&str> {
    findings.iter().find(|f| f.name == "registry_away").map(|f| f.detail.as_str())
}

/// Returns how many topics need attention. The result has no names of topics, because this route needs no token.
fn of_topics(findings: &[Finding]) -> Option<String> {
    let count = |name: &str| findings.iter().filter(|finding| finding.name == name).count();
    let parts = [
        (count("jobs_stranded"), "with due jobs that nobody delivers"),
        (count("topic_problem"), "with a setting that dq cannot do"),
    ];
    let parts: Vec<String> =
        parts.into_iter().filter(|(n, _)| *n > 0).map(|(n, what)| format!("{n} {what}")).collect();
    (!parts.is_empty()).then(|| format!("{}: `dq status` names them", parts.join(", ")))
}

/// Returns the processes of the current generation, and whether each is up.
fn serving(status: &DaemonStatus) -> impl Iterator<Item = (&str, bool)> {
    let own = status.processes.iter().filter(|p| p.generation == status.generation);
    own.map(|p| (p.name.as_str(), matches!(p.state, ProcessState::Up | ProcessState::Draining)))
}

/// Returns the names of the processes that are not up, or `ok`.
fn not_up(status: &DaemonStatus) -> String {
    let names: Vec<&str> = serving(status).filter(|(_, up)| !up).map(|(name, _)| name).collect();
    if names.is_empty() { "ok".to_owned() } else { format!("not up: {}", names.join(", ")) }
}

/// Returns why no process of a role does its work. If the master does not answer, nothing is reported.
fn none_of(role: Role, count: u32, section: &str, status: Option<&DaemonStatus>) -> Option<String> {
    if count == 0 {
        return Some(format!("{section}.processes is 0"));
    }
    let mut own = serving(status?).filter(|(name, _)| Slot::from_name(name).is_some_and(|s| s.role == role));
    (!own.any(|(_, up)| up)).then(|| "no process of this role is up".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn in_brief_nothing_is_named() {
        let parts = [
            ("node r1", "ok"),
            ("node r2", "does not answer; its jobs wait"),
            ("node r3", "ok"),
            ("registry", "away: mysql://10.0.0.7 refuses dq@shop"),
            ("store", "ok"),
        ];
        let parts = parts.map(|(part, state)| (part.to_owned(), state.to_owned())).into();
        let brief = Readiness { ready: true, parts }.in_brief();
        let expected = [("nodes", NOT_OK), ("registry", NOT_OK), ("store", "ok")];
        assert_eq!(brief.parts, expected.map(|(part, state)| (part.to_owned(), state.to_owned())).into());
        assert!(brief.ready);
    }
}
