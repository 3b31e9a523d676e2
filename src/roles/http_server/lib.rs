//! dq-http-server: the HTTP API on its port and on a Unix socket, the console, and the metrics.
//!
//! Handlers never block. Handlers use the store through its threads (`store_client`), and the registry through another
//! thread (`registrar`). The table in `route_rule` says which scope a route needs, and `access` checks the scope. A
//! route that is not in the table needs `admin`.
//!
//! Begin with [`run`], then `api` (what handlers share) and `jobs` (the routes of jobs). `/openapi.json` is made from
//! the handlers' own declarations.

mod access;
mod accounts;
mod acks;
mod admin_settings;
mod admission;
mod alerts;
mod api;
mod api_response;
mod audit;
mod beanstalk;
mod body;
mod bulk;
mod bulk_input;
mod bulk_runner;
mod callback_fields;
mod callback_test;
mod check;
mod condition;
mod connections;
mod console;
mod credentials;
mod cursor;
mod dead;
mod dead_filter;
mod docs;
mod events;
mod find;
mod followed;
mod forecast;
mod gmq;
mod health;
mod history;
mod id_source;
mod input;
mod job_search;
mod job_shown;
mod jobs;
mod limits;
mod list_format;
mod metrics;
mod nodes;
mod openapi;
mod pause_times;
mod pauses;
mod places;
mod pool;
mod presence;
mod problem;
mod receiver;
mod record_shown;
mod records;
mod refused;
mod registrar;
mod removal;
mod replays;
mod reports;
mod reserves;
mod revocation;
mod rotation;
mod route_rule;
mod schema;
mod servers;
mod sessions;
mod statistics;
mod store_client;
mod tcp_port;
mod tls;
mod tokens;
mod topic_fields;
mod topic_shown;
mod topics;
mod typed_body;
mod unread;
mod waiting;
mod write_timeout;

use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use axum::Router;
use axum::extract::{DefaultBodyLimit, Request, State};
use axum::http::header::STRICT_TRANSPORT_SECURITY;
use axum::http::{HeaderValue, Method, StatusCode, Uri};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::Response;
use tokio::sync::watch;
use utoipa_axum::router::OpenApiRouter;

use self::access::AccessControl;
use self::admission::AcceptedHosts;
use self::api::{Api, ApiState};
use self::bulk_runner::BulkRunner;
use self::callback_test::CallbackTester;
use self::connections::{AcceptedStream, Connections, DrainDeadlines, Listeners};
use self::events::LiveCache;
use self::followed::{TopicsWatch, watched};
use self::forecast::ForecastThread;
use self::health::StoreHealthThreads;
use self::metrics::MetricSources;
use self::pool::ResourcePool;
use self::problem::Problem;
use self::refused::{RefusedRequests, RequestLine};
use self::registrar::Registrar;
use self::replays::Replays;
use self::sessions::SessionSettings;
use self::store_client::StoreClient;
use host::Owner;
use role::pull::PullHandle;
use role::tickets::Tickets;
use role::{Context, TroubleLog};

/// Runs dq-http-server until it has drained.
pub fn run(mut context: Context) -> Result<()> {
    let tcp = context.socket("http")?;
    let unix = context.socket("http.unix")?;
    let gmq = context.settings.gmq.listen.map(|_| context.socket("gmq")).transpose()?;
    let beanstalk = context.settings.beanstalk.listen.map(|_| context.socket("beanstalk")).transpose()?;
    let owner = beanstalk.as_ref().map(|_| Owner::claim(&context.settings.run_dir)).transpose();
    let owner = owner.context("cannot become an owner of leases")?;
    let store_client = StoreClient::start(&mut context)?;
    let topics = TopicsWatch::new(context.topics()?);
    let settings = Arc::clone(&context.settings);
    let hosts = AcceptedHosts::new(settings.http.listen, settings.http.tls.is_some(), &settings.instance);
    let hosts = Arc::new(hosts);
    let sessions = SessionSettings::load(&settings)?.map(Arc::new);
    let access = AccessControl::new(&settings.http, topics.tokens(), Arc::clone(&hosts), sessions.clone());
    let api = Api::from(ApiState {
        store_client: store_client.clone(),
        topics: topics.now(),
        tokens: topics.tokens(),
        max_body: settings.server.max_frame,
        bodies: body::memory(settings.server.max_frame),
        registrar: Registrar::start(&settings)?,
        lanes: context.lanes()?,
        trials: CallbackTester::new(&settings, context.zone()?)
            .context("cannot start the thread for callback tests")?,
        health: StoreHealthThreads::start(&mut context)?,
        metrics: MetricSources::start(&mut context)?,
        counters: context.counters.clone(),
        zone: context.zone()?,
        document: OnceLock::new(),
        docs_page: OnceLock::new(),
        tickets: Tickets::new(context.counters.clone()),
        pull: PullHandle::start(context.opener()?, topics.now().borrow().clone(), owner)
            .context("cannot start the thread for clients that reserve")?,
        // One client gets at most half of the places.
        reserves: ResourcePool::new(settings.http.max_reserves, settings.http.max_reserves.div_ceil(2)),
        live: LiveCache::default(),
        hosts,
        sessions,
        forecasts: ForecastThread::start(&mut context)?,
        bulk: BulkRunner::start(&context, topics.now())?,
        closing: watch::Sender::new(false),
        cut: watch::Sender::new(false),
        settings: Arc::clone(&settings),
    });
    let refused = Arc::new(RefusedRequests::default());
    let connections = Connections::new(app(api.clone(), access, Arc::clone(&refused))?, &settings.http)?;
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().context("cannot start tokio")?;
    let counted = Arc::clone(&refused);
    runtime.spawn(async move { counted.log_each_minute().await });
    let served = runtime.block_on(serve(&mut context, connections, api, topics, (tcp, unix, gmq, beanstalk)));
    refused.log_rest();
    // The process does not wait for the test of a callback, or for a node that does not answer.
    runtime.shutdown_background();
    served
}

/// Builds the router: all routes, and the layer that every request passes through.
fn app(api: Api, access: AccessControl, refused: Arc<RefusedRequests>) -> Result<Router> {
    let routes = OpenApiRouter::with_openapi(openapi::beginning())
        .merge(jobs::routes())
        .merge(topics::routes())
        .merge(removal::routes())
        .merge(rotation::routes())
        .merge(pauses::routes())
        .merge(callback_test::routes())
        .merge(dead::routes())
        .merge(bulk::routes())
        .merge(records::routes())
        .merge(job_search::routes())
        .merge(find::routes())
        .merge(acks::routes())
        .merge(reserves::routes())
        .merge(reports::routes())
        .merge(nodes::routes())
        .merge(alerts::routes())
        .merge(tokens::routes())
        .merge(accounts::routes())
        .merge(audit::routes())
        .merge(check::routes())
        .merge(forecast::routes())
        .merge(history::routes())
        .merge(receiver::routes())
        .merge(health::routes())
        .merge(metrics::routes())
        .merge(statistics::routes())
        .merge(openapi::routes())
        .merge(docs::routes());
    let (router, document) = routes.split_for_parts();
    let json = openapi::to_json(&document).context("cannot write the document of the API")?;
    let _ = api.document.set(json.into());
    let of_gate = api.clone();
    let console = if api.sessions.is_some() { console::routes() } else { Router::new() };
    Ok(router
        .merge(console)
        .merge(events::routes())
        .fallback(no_route)
        .method_not_allowed_fallback(no_method)
        .layer(DefaultBodyLimit::max(api.max_body))
        .with_state(api)
        .layer(from_fn_with_state(
            Arc::new(RequestMiddleware { access, refused, api: of_gate, replays: Replays::default() }),
            pass,
        )))
}

/// What every request passes through: access control, the check of tickets, the audit log, the repeated answers of
/// `Idempotency-Key`, limits.
struct RequestMiddleware {
    access: AccessControl,
    refused: Arc<RefusedRequests>,
    api: Api,
    replays: Replays,
}

/// Passes a request through the gate. The gate is one axum layer that does all steps, such as access control and
/// limits. With one layer for each step, axum would box and clone every layer for each request.
async fn pass(State(gate): State<Arc<RequestMiddleware>>, request: Request, next: Next) -> Response {
    // A request that the audit log records continues when its client goes away. So it needs its own reference to the
    // gate.
    let own = Arc::clone(&gate);
    let kept = |request| async move {
        let replayed = |request| replays::replay(&own.replays, &own.api, request, next);
        limits::keep(request, replayed).await
    };
    let noted = |request| audit::record_changes(&gate.api.registrar, request, kept);
    let checked = |request| acks::with_ticket(&gate.api, request, noted);
    let let_in = |request| access::let_in(&gate.access, request, checked);
    let line = RequestLine::new(&request);
    let recorded = |answer: &Response, id: &str| gate.refused.record(&line, answer, id);
    let mut answer = admission::with_id(request, let_in, recorded).await;
    if gate.api.settings.http.tls.is_some() {
        answer.headers_mut().insert(STRICT_TRANSPORT_SECURITY, HeaderValue::from_static("max-age=31536000"));
    }
    answer
}

/// Answers a request for a path that does not exist.
async fn no_route(uri: Uri) -> Problem {
    Problem::new(StatusCode::NOT_FOUND, "no_route", format!("there is nothing at {}", uri.path()))
}

/// Answers a request whose path exists, but does not allow the method of the request.
async fn no_method(method: Method, uri: Uri) -> Problem {
    let detail = format!("{method} is not allowed at {}", uri.path());
    Problem::new(StatusCode::METHOD_NOT_ALLOWED, "no_method", detail)
}

async fn serve(
    context: &mut Context,
    mut connections: Connections,
    api: Api,
    mut topics: TopicsWatch,
    (tcp, unix, gmq, beanstalk): (OwnedFd, OwnedFd, Option<OwnedFd>, Option<OwnedFd>),
) -> Result<()> {
    topics.watch().context("cannot watch the topics")?;
    let tcp = tokio::net::TcpListener::from_std(TcpListener::from(tcp)).context("cannot listen")?;
    let unix = tokio::net::UnixListener::from_std(UnixListener::from(unix)).context("cannot listen")?;
    if let Some(gmq) = gmq {
        let gmq = tokio::net::TcpListener::from_std(TcpListener::from(gmq)).context("cannot listen")?;
        connections.open.spawn(gmq::run(api.clone(), gmq));
    }
    if let Some(beanstalk) = beanstalk {
        // The old process passes its connections on as soon as this process is ready. So this process listens for these
        // connections before it is ready.
        let handoffs = beanstalk::listen(&context.settings.run_dir);
        let handoffs = handoffs.context("cannot listen for connections of the process before")?;
        let beanstalk =
            tokio::net::TcpListener::from_std(TcpListener::from(beanstalk)).context("cannot listen")?;
        connections.open.spawn(beanstalk::run(api.clone(), beanstalk, handoffs));
    }
    let mut listeners = Some(Listeners { tcp, unix });
    let store_client = api.store_client.clone();
    tokio::spawn(store_client.clone().hand_over());
    tokio::spawn(console::first_account(api.clone()));
    let (mut known, pull) = (api.topics.clone(), api.pull.clone());
    tokio::spawn(async move {
        while known.changed().await.is_ok() {
            pull.serve(known.borrow_and_update().clone());
        }
    });
    let [link, signals] = context.fds().map(|fd| watched(fd.try_clone_to_owned()?));
    let (link, signals) = (link.context("cannot watch the link")?, signals.context("cannot watch signals")?);
    let mut accepting = TroubleLog::default();
    let mut accept_at: Option<Instant> = None;
    let mut end: Option<DrainDeadlines> = None;
    context.ready()?;
    loop {
        let now = Instant::now();
        if store_client.is_gone() || api.pull.is_gone() {
            // Some requests have failed because the store's file is gone. Their clients get a moment to receive the
            // answers.
            tokio::time::sleep(role::LAST_WORDS).await;
            bail!("the store's file was replaced: the next start opens the new file");
        }
        context.workers_by(store_client.due_by());
        if let Some(drain) = context.check_drain()? {
            api.closing.send_replace(true);
            api.bulk.close();
            api.pull.drain();
            if let Some(listeners) = listeners.take() {
                // Connections that the kernel has already accepted are served, and not reset.
                while let Some(entered) = listeners.accept_waiting().await {
                    connections.serve_in_task(entered);
                }
            }
            let stage = end.get_or_insert_with(|| DrainDeadlines::begin(now)).stage(drain, now);
            match (connections.open.len(), stage) {
                (0, _) => return Ok(()),
                (_, Some(stage)) => connections.enter_stage(stage),
                (left, None) => {
                    log::warn!("{left} connections are cut at the end of the drain");
                    api.cut.send_replace(true);
                    let all = async { while connections.open.join_next().await.is_some() {} };
                    let _ = tokio::time::timeout(HAND_BACK, all).await;
                    return Ok(());
                }
            }
        }
        let next = end.as_ref().map(|end| end.next(now)).or(accept_at);
        tokio::select! {
            entered = enter(listeners.as_ref().filter(|_| accept_at.is_none())) => match entered {
                Ok(entered) => {
                    accepting.end();
                    connections.serve_in_task(entered);
                }
                Err(e) => accept_at = Some(Instant::now() + accepting.pause_after(&format_args!("cannot accept: {e}"))),
            },
            ready = link.readable(), if !context.is_orphaned() => ready?.clear_ready(),
            ready = signals.readable() => ready?.clear_ready(),
            followed = topics.follow() => followed.context("cannot watch the topics")?,
            () = store_client.answered() => store_client.hand_out(),
            Some(_) = connections.open.join_next() => {}
            () = until(next) => accept_at = None,
        }
    }
}

/// How long connections that are cut may take to hand back their leases.
const HAND_BACK: Duration = Duration::from_secs(1);

/// Waits for the next connection. Without listeners it waits forever.
async fn enter(listeners: Option<&Listeners>) -> std::io::Result<AcceptedStream> {
    match listeners {
        Some(listeners) => listeners.enter().await,
        None => std::future::pending().await,
    }
}

/// Waits until the given moment. Without a moment, waits forever.
async fn until(moment: Option<Instant>) {
    match moment {
        Some(moment) => tokio::time::sleep_until(moment.into()).await,
        None => std::future::pending().await,
    }
}
