//! dq-http-server: HTTP on its port and on a Unix socket: the API of jobs, and whether the daemon is well.
//!
//! tokio and axum live here alone. Handlers reach the store by its threads (`desk`): a blocking call on tokio's thread
//! would stall every other request.

mod admission;
mod connections;
mod cursor;
mod desk;
mod followed;
mod health;
mod input;
mod jobs;
mod metrics;
mod problem;
mod registrar;
mod statistics;
mod told;

use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use axum::Router;
use axum::http::{Method, StatusCode, Uri};
use axum::middleware::from_fn;

use self::connections::{Connections, Doors, End, Entered};
use self::desk::Desk;
use self::followed::{Followed, watched};
use self::problem::Problem;
use self::registrar::Registrar;
use self::statistics::Days;
use crate::role::{Context, Trouble};

/// How long answers may take that were given just before a process ends.
const LAST_WORDS: Duration = Duration::from_millis(100);

/// Runs the role.
pub fn run(mut context: Context) -> Result<()> {
    let tcp = context.socket("http")?;
    let unix = context.socket("http.unix")?;
    let desk = Desk::start(&mut context)?;
    let health = health::routes(context.store()?, Arc::clone(&context.settings))?;
    let max_body = context.settings.server.max_frame;
    let topics = Followed::new(context.topics()?);
    let metrics = metrics::routes(&mut context)?;
    let counters = context.counters.clone();
    let registrar = context.settings.registry.clone().map(Registrar::start).transpose()?;
    let days = Days { registrar, zone: context.zone()? };
    let api = jobs::Api { desk: desk.clone(), topics: topics.now(), counters, days, max_body };
    let app = jobs::routes(api)
        .merge(health)
        .merge(metrics)
        .fallback(no_route)
        .method_not_allowed_fallback(no_method);
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().context("cannot start tokio")?;
    runtime.block_on(serve(&mut context, app, desk, topics, (tcp, unix)))
}

/// There is nothing at that path.
async fn no_route(uri: Uri) -> Problem {
    Problem::new(StatusCode::NOT_FOUND, "no_route", format!("there is nothing at {}", uri.path()))
}

/// That is not done at that path.
async fn no_method(method: Method, uri: Uri) -> Problem {
    let detail = format!("{method} is not done at {}", uri.path());
    Problem::new(StatusCode::METHOD_NOT_ALLOWED, "no_method", detail)
}

async fn serve(
    context: &mut Context,
    app: Router,
    desk: Desk,
    mut topics: Followed,
    (tcp, unix): (OwnedFd, OwnedFd),
) -> Result<()> {
    topics.watch().context("cannot watch the topics")?;
    let tcp = tokio::net::TcpListener::from_std(TcpListener::from(tcp)).context("cannot listen")?;
    let unix = tokio::net::UnixListener::from_std(UnixListener::from(unix)).context("cannot listen")?;
    let mut doors = Some(Doors { tcp, unix });
    let mut connections = Connections::new(
        app.clone().layer(from_fn(admission::of_this_host)).layer(from_fn(admission::with_id)),
        app.layer(from_fn(admission::with_id)),
    );
    let [link, signals] = context.fds().map(|fd| watched(fd.try_clone_to_owned()?));
    let (link, signals) = (link.context("cannot watch the link")?, signals.context("cannot watch signals")?);
    let mut accepting = Trouble::default();
    let mut accept_at: Option<Instant> = None;
    let mut end: Option<End> = None;
    context.ready()?;
    loop {
        let now = Instant::now();
        if desk.is_gone() {
            // Whoever was answered so has a moment to hear of it.
            tokio::time::sleep(LAST_WORDS).await;
            bail!("the store's file is another: another start opens the one that is there");
        }
        context.workers_by(desk.due_by());
        if let Some(drain) = context.heed()? {
            if let Some(doors) = doors.take() {
                // Whoever has come in is served, and not reset.
                while let Some(entered) = doors.enter_now().await {
                    connections.attend(entered);
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
                Ok(entered) => {
                    accepting.over();
                    connections.attend(entered);
                }
                Err(e) => accept_at = Some(accepting.again_at(&format_args!("cannot accept: {e}"))),
            },
            ready = link.readable() => ready?.clear_ready(),
            ready = signals.readable() => ready?.clear_ready(),
            looked = topics.follow() => looked.context("cannot watch the topics")?,
            () = desk.answered() => desk.hand_out(),
            Some(_) = connections.open.join_next() => {}
            () = until(next) => accept_at = None,
        }
    }
}

/// The next connection, where there is a door; else, never.
async fn enter(doors: Option<&Doors>) -> std::io::Result<Entered> {
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
