//! dq-http-server: HTTP on its port and on a Unix socket: the API of jobs, topics and dead letters, and how the daemon is.
//!
//! tokio and axum live here alone. Handlers reach the store by its threads (`desk`): a blocking call on tokio's thread
//! would stall every other request.

mod access;
mod accounts;
mod acks;
mod admission;
mod alerts;
mod api;
mod audit;
mod check;
mod connections;
mod console;
mod cursor;
mod dead;
mod desk;
mod events;
mod followed;
mod forecast;
mod health;
mod history;
mod input;
mod jobs;
mod limits;
mod metrics;
mod nodes;
mod openapi;
mod patience;
mod pauses;
mod pick;
mod problem;
mod refused;
mod registrar;
mod removal;
mod replays;
mod schema;
mod servers;
mod statistics;
mod tls;
mod tokens;
mod told;
mod topic_fields;
mod topic_shown;
mod topics;
mod trial;

use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use axum::Router;
use axum::extract::{DefaultBodyLimit, Request, State};
use axum::http::{Method, StatusCode, Uri};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::Response;
use tokio::sync::watch;
use utoipa_axum::router::OpenApiRouter;

use self::access::Access;
use self::acks::Acks;
use self::admission::Hosts;
use self::api::{Api, Parts};
use self::connections::{Connections, Doors, End, Entered};
use self::desk::Desk;
use self::events::Live;
use self::followed::{Followed, watched};
use self::forecast::Forecasts;
use self::health::Health;
use self::metrics::Sources;
use self::problem::Problem;
use self::refused::{RefusedRequests, RequestLine};
use self::registrar::Registrar;
use self::replays::Replays;
use self::trial::Trials;
use crate::role::{Context, Trouble};

/// How long answers may take that were given just before a process ends.
const LAST_WORDS: Duration = Duration::from_millis(100);

/// Runs the role.
pub fn run(mut context: Context) -> Result<()> {
    let tcp = context.socket("http")?;
    let unix = context.socket("http.unix")?;
    let desk = Desk::start(&mut context)?;
    let topics = Followed::new(context.topics()?);
    let settings = Arc::clone(&context.settings);
    let hosts = Hosts::of(settings.http.listen, settings.http.tls.is_some(), &settings.instance);
    let hosts = Arc::new(hosts);
    let access = Access::new(&settings.http, topics.tokens(), Arc::clone(&hosts));
    let api = Api::from(Parts {
        desk: desk.clone(),
        topics: topics.now(),
        tokens: topics.tokens(),
        max_body: settings.server.max_frame,
        registrar: Registrar::start(&settings)?,
        lanes: context.lanes()?,
        trials: Trials::new(&settings, context.zone()?).context("cannot start the thread of tests")?,
        health: Health::start(&mut context)?,
        metrics: Sources::start(&mut context)?,
        counters: context.counters.clone(),
        zone: context.zone()?,
        document: OnceLock::new(),
        acks: Acks::default(),
        live: Live::default(),
        hosts,
        forecasts: Forecasts::start(&mut context)?,
        closing: watch::Sender::new(false),
        settings: Arc::clone(&settings),
    });
    let refused = Arc::new(RefusedRequests::default());
    let connections = Connections::new(app(api.clone(), access, Arc::clone(&refused))?, &settings.http)?;
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().context("cannot start tokio")?;
    let counted = Arc::clone(&refused);
    runtime.spawn(async move { counted.log_each_minute().await });
    let served = runtime.block_on(serve(&mut context, connections, api, topics, (tcp, unix)));
    refused.log_rest();
    // A callback that is tested, or a node that hangs, is not waited for.
    runtime.shutdown_background();
    served
}

/// All routes, and what each request keeps to.
fn app(api: Api, access: Access, refused: Arc<RefusedRequests>) -> Result<Router> {
    let routes = OpenApiRouter::with_openapi(openapi::beginning())
        .merge(jobs::routes())
        .merge(topics::routes())
        .merge(removal::routes())
        .merge(pauses::routes())
        .merge(trial::routes())
        .merge(dead::routes())
        .merge(acks::routes())
        .merge(nodes::routes())
        .merge(alerts::routes())
        .merge(tokens::routes())
        .merge(accounts::routes())
        .merge(audit::routes())
        .merge(check::routes())
        .merge(forecast::routes())
        .merge(history::routes())
        .merge(health::routes())
        .merge(metrics::routes())
        .merge(statistics::routes())
        .merge(openapi::routes());
    let (router, document) = routes.split_for_parts();
    let json = document.to_json().context("cannot write the document of the API")?;
    let _ = api.document.set(json.into());
    let max_body = api.max_body;
    let registrar = api.registrar.clone();
    Ok(router
        .merge(console::routes())
        .merge(events::routes())
        .fallback(no_route)
        .method_not_allowed_fallback(no_method)
        .layer(DefaultBodyLimit::max(max_body))
        .with_state(api)
        .layer(from_fn_with_state(
            Arc::new(Gate { access, refused, registrar, replays: Replays::default(), max_body }),
            pass,
        )))
}

/// What every request passes.
struct Gate {
    access: Access,
    refused: Arc<RefusedRequests>,
    registrar: Registrar,
    replays: Replays,
    max_body: usize,
}

/// Has a request pass it. One layer for all of it: axum boxes and clones each anew for each request.
async fn pass(State(gate): State<Arc<Gate>>, request: Request, next: Next) -> Response {
    // What is noted goes on without who asked for it.
    let own = Arc::clone(&gate);
    let kept = |request| async move {
        let replayed = |request| replays::replay(&own.replays, own.max_body, request, next);
        limits::keep(request, replayed).await
    };
    let noted = |request| audit::noted(&gate.registrar, request, kept);
    let let_in = |request| access::let_in(&gate.access, request, noted);
    let line = RequestLine::of(&request);
    admission::with_id(request, let_in, |answer, id| gate.refused.record(&line, answer, id)).await
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
    mut connections: Connections,
    api: Api,
    mut topics: Followed,
    (tcp, unix): (OwnedFd, OwnedFd),
) -> Result<()> {
    topics.watch().context("cannot watch the topics")?;
    let tcp = tokio::net::TcpListener::from_std(TcpListener::from(tcp)).context("cannot listen")?;
    let unix = tokio::net::UnixListener::from_std(UnixListener::from(unix)).context("cannot listen")?;
    let mut doors = Some(Doors { tcp, unix });
    let desk = api.desk.clone();
    tokio::spawn(desk.clone().hand_over());
    tokio::spawn(console::first_account(api.clone()));
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
            api.closing.send_replace(true);
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
