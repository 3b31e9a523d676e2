//! `/healthz` (the process answers) and `/readyz` (the store answers too).

use std::collections::BTreeMap;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use anyhow::Result;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::get;
use axum::{Json, Router};
use serde_json::{Value, json};
use tokio::sync::oneshot;

use crate::role;
use crate::settings::{self, Settings};
use crate::store::{Store, StoreError};

/// How long the store may take to answer before it is not ready.
const STORE_PATIENCE: Duration = Duration::from_secs(2);

/// A question to the store, and where its answer goes.
type Question = oneshot::Sender<Result<(), StoreError>>;

#[derive(Clone)]
struct Health {
    questions: mpsc::SyncSender<Question>,
    settings: Arc<Settings>,
}

/// A thread that asks the store whether it is well.
fn health_thread(mut store: Box<dyn Store>) -> Result<mpsc::SyncSender<Question>> {
    let (ask, asked) = mpsc::sync_channel::<Question>(16);
    let work = move || {
        while let Ok(question) = asked.recv() {
            // Whoever asked may have stopped waiting.
            let _ = question.send(store.health());
        }
    };
    role::vital_thread("health", work)?;
    Ok(ask)
}

/// The routes; `store` is asked by a thread of its own.
pub(super) fn routes(store: Box<dyn Store>, settings: Arc<Settings>) -> Result<Router> {
    let state = Health { questions: health_thread(store)?, settings };
    Ok(Router::new().route("/healthz", get(healthz)).route("/readyz", get(readyz)).with_state(state))
}

/// The process answers.
async fn healthz() -> &'static str {
    "ok\n"
}

/// The parts answer: 200, or 503 and which one does not.
async fn readyz(State(state): State<Health>) -> (StatusCode, Json<Value>) {
    let (answer, answered) = oneshot::channel();
    let problem = match state.questions.try_send(answer) {
        Err(_) => Some("too many questions are waiting".to_owned()),
        Ok(()) => match tokio::time::timeout(STORE_PATIENCE, answered).await {
            Ok(Ok(Ok(()))) => None,
            Ok(Ok(Err(e))) => Some(e.to_string()),
            Ok(Err(_)) => Some("nobody asks it any more".to_owned()),
            Err(_) => Some(format!("no answer within {STORE_PATIENCE:?}")),
        },
    };
    let settings = &state.settings;
    let bells = settings.run_dir.join("bells");
    let embedded = matches!(settings.store, settings::Store::Embedded { .. });
    let parts = [
        ("store", problem),
        ("run_dir", (embedded && !bells.is_dir()).then(|| format!("{} is gone", bells.display()))),
        ("timer", (settings.timer.processes == 0).then(|| "timer.processes is 0".to_owned())),
        ("consume", (settings.consume.processes == 0).then(|| "consume.processes is 0".to_owned())),
    ];
    let ready = parts.iter().all(|(_, problem)| problem.is_none());
    let status = if ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let told: BTreeMap<&str, String> =
        parts.into_iter().map(|(part, problem)| (part, problem.unwrap_or_else(|| "ok".to_owned()))).collect();
    (status, Json(json!({ "ready": ready, "parts": told })))
}
