//! dq-http-server: HTTP on its port and on a Unix socket. In this release: `/healthz` (the process answers) and `/readyz`
//! (the store answers too).
//!
//! tokio and axum live here alone. Handlers reach the store by a channel to a thread: a blocking call on tokio's thread
//! would stall every other request.

mod connections;

use std::collections::BTreeMap;
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::get;
use axum::{Json, Router};
use serde_json::{Value, json};
use tokio::io::unix::AsyncFd;
use tokio::sync::oneshot;

use self::connections::{Connections, Doors, End, Stream};
use crate::role::{self, Context, Trouble};
use crate::settings::{self, Settings};
use crate::store::{Store, StoreError};

/// How long the store may take to answer before it is not ready.
const STORE_PATIENCE: Duration = Duration::from_secs(2);

/// Runs the role.
pub fn run(mut context: Context) -> Result<()> {
    let tcp = context.socket("http")?;
    let unix = context.socket("http.unix")?;
    let state =
        AppState { health: health_thread(context.store()?)?, settings: Arc::clone(&context.settings) };
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().context("cannot start tokio")?;
    runtime.block_on(serve(&mut context, state, tcp, unix))
}

/// A question to the store, and where its answer goes.
type Question = oneshot::Sender<Result<(), StoreError>>;

#[derive(Clone)]
struct AppState {
    health: mpsc::SyncSender<Question>,
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

async fn serve(context: &mut Context, state: AppState, tcp: OwnedFd, unix: OwnedFd) -> Result<()> {
    let app = Router::new().route("/healthz", get(healthz)).route("/readyz", get(readyz)).with_state(state);
    let tcp = tokio::net::TcpListener::from_std(TcpListener::from(tcp)).context("cannot listen")?;
    let unix = tokio::net::UnixListener::from_std(UnixListener::from(unix)).context("cannot listen")?;
    let mut doors = Some(Doors { tcp, unix });
    let mut connections = Connections::new(app);
    let [link, signals] = context.fds().map(|fd| -> std::io::Result<AsyncFd<OwnedFd>> {
        let fd = fd.try_clone_to_owned()?;
        // SAFETY: an owned descriptor stays what it is until it is dropped, with its registration.
        Ok(unsafe { AsyncFd::register(fd) }?)
    });
    let (link, signals) = (link.context("cannot watch the link")?, signals.context("cannot watch signals")?);
    let mut accepting = Trouble::default();
    let mut accept_at: Option<Instant> = None;
    let mut end: Option<End> = None;
    context.ready()?;
    loop {
        let now = Instant::now();
        if let Some(drain) = context.heed()? {
            if let Some(doors) = doors.take() {
                // Whoever has come in is served, and not reset.
                while let Some(stream) = doors.enter_now().await {
                    connections.attend(stream);
                }
            }
            let stage = end.get_or_insert_with(|| End::begin(now)).stage(drain, now);
            match (connections.open.len(), stage) {
                (0, _) => return Ok(()),
                (_, Some(stage)) => connections.enter_stage(stage),
                (left, None) => {
                    log::warn!("{left} connections are cut at the end of the drain");
                    return Ok(());
                }
            }
        }
        let next = end.as_ref().map(|end| end.next(now)).or(accept_at);
        tokio::select! {
            entered = enter(doors.as_ref().filter(|_| accept_at.is_none())) => match entered {
                Ok(stream) => {
                    accepting.over();
                    connections.attend(stream);
                }
                Err(e) => accept_at = Some(accepting.again_at(&format_args!("cannot accept: {e}"))),
            },
            ready = link.readable() => ready?.clear_ready(),
            ready = signals.readable() => ready?.clear_ready(),
            Some(_) = connections.open.join_next() => {}
            () = until(next) => accept_at = None,
        }
    }
}

/// The next connection, where there is a door; else, never.
async fn enter(doors: Option<&Doors>) -> std::io::Result<Box<dyn Stream>> {
    match doors {
        Some(doors) => doors.enter().await,
        None => std::future::pending().await,
    }
}

/// Waits for that moment; where there is none, for ever.
async fn until(moment: Option<Instant>) {
    match moment {
        Some(moment) => tokio::time::sleep_until(moment.into()).await,
        None => std::future::pending().await,
    }
}

/// The process answers.
async fn healthz() -> &'static str {
    "ok\n"
}

/// The parts answer: 200, or 503 and which one does not.
async fn readyz(State(state): State<AppState>) -> (StatusCode, Json<Value>) {
    let (answer, answered) = oneshot::channel();
    let problem = match state.health.try_send(answer) {
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
