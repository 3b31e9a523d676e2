//! The routes where clients reserve jobs of pull topics (docs/PULL.md). `reports` has the routes for outcomes.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::extract::rejection::ExtensionRejection;
use axum::extract::{Extension, FromRequestParts, State};
use axum::http::StatusCode;
use axum::http::request::Parts;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use tokio::sync::oneshot;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::access::Peer;
use super::api::{Api, CallerContext, TopicInPath};
use super::api_response::ApiResponse;
use super::body::JsonBody;
use super::pool::{PoolAllocation, PoolHolder};
use super::presence::ClientPresence;
use super::problem::Problem;
use super::schema;
use super::typed_body::{self, BoundedNumber, JsonDuration};
use super::unread::{AnswerMemory, busy};
use model::destination::Destination;
use model::job::TopicName;
use model::scope::RequiredAccess;
use model::tags::Tags;
use model::topic::LEASES;
use role::lock;
use role::pull::{
    self, MAX_TOPICS, MAX_WAIT, NamedClient, NotPulled, PullHandle, Reserve, ReserveAnswer, ReserveHandle,
    ReservedLease,
};
use store::{RESERVER_NAME_MAX, Reserver, StoreError};

pub(super) fn routes() -> OpenApiRouter<Api> {
    OpenApiRouter::new().routes(routes!(reserve)).routes(routes!(reserve_of_several))
}

/// The place that a request needs while dq works on it. At most `http.max_requests` requests have a place at the same
/// time. The place is an extension of the request. A request that reserves jobs gives up its place, because it may wait
/// for a long time. The requests that reserve jobs have a limit of their own.
#[derive(Debug, Clone)]
pub(super) struct RequestShare(Arc<Mutex<Option<PoolAllocation>>>);

impl RequestShare {
    pub(super) fn new(place: Option<PoolAllocation>) -> RequestShare {
        RequestShare(Arc::new(Mutex::new(place)))
    }

    fn give_up(&self) {
        *lock(&self.0) = None;
    }
}

/// What a client reserves.
#[derive(Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
#[schema(as = Reserve, example = json!({"max": 10, "wait": "30s", "lease": "2m"}))]
struct ReserveRequest {
    /// The maximum number of jobs in the answer. Default: 1.
    #[schema(value_type = Option<u32>, minimum = 1, maximum = 100)]
    max: Option<BoundedNumber<1, 100>>,
    /// How long to wait for a job, at most one minute. Default: not at all.
    #[schema(schema_with = schema::span, required = false)]
    wait: Option<JsonDuration>,
    /// How long the lease of each job lasts, from 100 milliseconds to one day. Default: `ttr` of the job, or of the
    /// topic if the job has none.
    #[schema(schema_with = schema::span, required = false)]
    lease: Option<JsonDuration>,
    /// The name of the client, which is shown with the leased jobs. 1 to 128 bytes.
    #[schema(min_length = 1, max_length = 128)]
    consumer: Option<String>,
}

/// What a client reserves of several topics.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = ReserveOfSeveral, example = json!({"topics": ["orders.fast", "orders.slow"], "wait": "30s"}))]
struct ReserveOfSeveralRequest {
    /// The topics, in the order of preference.
    #[schema(min_items = 1, max_items = 32)]
    topics: Vec<String>,
    /// The maximum number of jobs in the answer. Default: 1.
    #[schema(value_type = Option<u32>, minimum = 1, maximum = 100)]
    max: Option<BoundedNumber<1, 100>>,
    /// How long to wait for a job, at most one minute. Default: not at all.
    #[schema(schema_with = schema::span, required = false)]
    wait: Option<JsonDuration>,
    /// How long the lease of each job lasts, from 100 milliseconds to one day. Default: `ttr` of the job, or of its
    /// topic if the job has none.
    #[schema(schema_with = schema::span, required = false)]
    lease: Option<JsonDuration>,
    /// The name of the client, which is shown with the leased jobs. 1 to 128 bytes.
    #[schema(min_length = 1, max_length = 128)]
    consumer: Option<String>,
}

/// How often a reserve that waits checks whether its client still listens.
const PRESENCE_CHECK: Duration = Duration::from_secs(10);

/// A job that the client has reserved.
#[derive(Serialize, ToSchema)]
#[schema(as = ReservedJob)]
struct ReservedJob<'a> {
    #[schema(value_type = String)]
    topic: &'a TopicName,
    id: &'a str,
    #[schema(value_type = Value)]
    body: &'a RawValue,
    /// The job's own headers. Their names are in lower case.
    #[schema(value_type = std::collections::BTreeMap<String, String>)]
    headers: &'a std::collections::BTreeMap<String, String>,
    /// The job's tags, sorted.
    #[schema(value_type = Vec<String>)]
    tags: &'a Tags,
    /// The job's own path.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    path: Option<&'a str>,
    /// The job's own URL.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    url: Option<&'a str>,
    /// Which attempt this is, from 1.
    attempt: u32,
    /// When the attempt was due, Unix milliseconds.
    due_ms: i64,
    /// When the job was added, Unix milliseconds.
    added_ms: i64,
    /// The proof of the lease. The client reports the outcome with this token. If the token is missing, there is no
    /// lease. Then the job was done and removed when it was reserved (`on_reserve` of the topic).
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    token: Option<&'a str>,
    /// When the lease ends, Unix milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    lease_until_ms: Option<i64>,
}

/// The jobs that the client has reserved. The list is empty if no job came in time.
#[derive(Serialize, ToSchema)]
#[schema(as = ReservedJobs)]
struct ReservedJobs<'a> {
    jobs: Vec<ReservedJob<'a>>,
}

impl<'a> ReservedJob<'a> {
    fn new(reserved: &'a ReservedLease) -> ReservedJob<'a> {
        let ReservedLease { leased, ticket } = reserved;
        let destination = leased.headers.destination();
        ReservedJob {
            topic: &leased.key.topic,
            id: leased.key.id.as_str(),
            body: serde_json::from_str(leased.body.as_str()).unwrap_or(RawValue::NULL),
            headers: leased.headers.by_name(),
            tags: leased.headers.tags(),
            path: destination.and_then(Destination::path),
            url: destination.and_then(Destination::own_url),
            attempt: leased.attempt,
            due_ms: leased.due_ms,
            added_ms: leased.stamp_us / 1000,
            token: ticket.as_deref(),
            lease_until_ms: ticket.as_ref().map(|_| leased.deadline_ms),
        }
    }
}

/// What a handler knows about a client that waits for jobs.
struct WaitingClient {
    place: RequestShare,
    presence: ClientPresence,
    memory: AnswerMemory,
}

impl<S: Send + Sync> FromRequestParts<S> for WaitingClient {
    type Rejection = ExtensionRejection;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<WaitingClient, ExtensionRejection> {
        let Extension(place) = Extension::from_request_parts(parts, state).await?;
        let Extension(presence) = Extension::from_request_parts(parts, state).await?;
        let Extension(memory) = Extension::from_request_parts(parts, state).await?;
        Ok(WaitingClient { place, presence, memory })
    }
}

/// Where the handler waits for its answer. If the client goes away, the jobs that were leased for the client are handed
/// back.
struct PendingReserve {
    answer: oneshot::Receiver<ReserveAnswer>,
    /// The jobs of the answer, until the handler takes them.
    jobs: Vec<ReservedLease>,
    pull: PullHandle,
    _waiting: ReserveHandle,
}

impl PendingReserve {
    /// Waits for the answer, or until the client's token is not valid any more (`revoked`). Then the client gets only
    /// the jobs that cannot be handed back. The same is true of a client that does not listen any more. None: the
    /// thread that serves clients that reserve (`PullHandle`) has ended.
    async fn wait(
        &mut self,
        client: &ClientPresence,
        revoked: impl Future<Output = ()>,
    ) -> Option<Result<Vec<ReservedLease>, StoreError>> {
        let mut revoked = std::pin::pin!(revoked);
        let mut is_revoked = false;
        let answer = loop {
            tokio::select! {
                answer = &mut self.answer => break answer.ok()?,
                () = &mut revoked => is_revoked = true,
                () = tokio::time::sleep(PRESENCE_CHECK) => {}
            }
            if is_revoked || !client.listens() {
                self.answer.close();
                break self.answer.try_recv().unwrap_or(Ok(Vec::new()));
            }
        };
        match answer {
            Ok(jobs) => self.jobs = jobs,
            Err(e) => return Some(Err(e)),
        }
        // The client may have closed its connection, and tokio may not have checked the socket since then. The runtime
        // has one thread. When a task yields, this thread polls all sockets before the task continues. If the client is
        // gone, this handler is dropped here, and the jobs go to another client.
        tokio::task::yield_now().await;
        let gets_leases = !is_revoked && client.listens();
        // A job without a ticket is removed already and cannot be handed back. So it is sent in any case. Perhaps the
        // client still waits: `listens` is also false if the client has already sent its next request.
        Some(Ok(self.jobs.extract_if(.., |job| gets_leases || job.ticket.is_none()).collect()))
    }
}

impl Drop for PendingReserve {
    fn drop(&mut self) {
        self.answer.close();
        if let Ok(Ok(jobs)) = self.answer.try_recv() {
            self.jobs = jobs;
        }
        if !self.jobs.is_empty() {
            self.pull.refuse(std::mem::take(&mut self.jobs));
        }
    }
}

/// Returns what a client reserves, without the topics.
fn without_topics(
    max: Option<BoundedNumber<1, 100>>,
    wait: Option<JsonDuration>,
    lease: Option<JsonDuration>,
    (consumer, peer): (Option<String>, Peer),
) -> Result<Reserve, Problem> {
    let wait = wait.map_or(Duration::ZERO, |JsonDuration(wait)| wait);
    if wait > MAX_WAIT {
        return Err(Problem::field("wait", "wait is at most \"1m\""));
    }
    let max = max.map_or(1, |BoundedNumber(max)| max);
    let address = match peer {
        Peer::Address(ip) => ip.to_canonical().to_string(),
        Peer::User(_) => String::new(),
    };
    if consumer.as_deref().is_some_and(|name| !Reserver::is_name(name)) {
        let wanted = format!("1 to {RESERVER_NAME_MAX} bytes without control characters");
        return Err(Problem::field("consumer", format!("consumer is not a name of {wanted}")));
    }
    Ok(Reserve {
        topics: Vec::new(),
        max,
        lease: lease_of(lease)?,
        is_owned: false,
        client: consumer.map(|name| NamedClient { name, address }),
        until: Instant::now() + wait,
    })
}

pub(super) fn lease_of(lease: Option<JsonDuration>) -> Result<Option<Duration>, Problem> {
    match lease {
        Some(JsonDuration(lease)) if !(LEASES.0..=LEASES.1).contains(&lease) => {
            Err(Problem::field("lease", "lease is not within 100ms to 1day"))
        }
        lease => Ok(lease.map(|JsonDuration(lease)| lease)),
    }
}

impl Api {
    /// Returns the topics from this list whose jobs clients may reserve.
    fn pulled(&self, topics: Vec<TopicName>) -> Result<Vec<TopicName>, Problem> {
        pull::pulled(&self.topics.borrow(), topics).map_err(|e| match e {
            NotPulled::Unknown(topic) => Problem::unknown_topic(&topic),
            NotPulled::Other(..) => Problem::conflict("not_pull", e.to_string()),
        })
    }

    async fn reserved(
        &self,
        requester: CallerContext,
        WaitingClient { place, presence, memory }: &WaitingClient,
        reserve: Reserve,
    ) -> Result<ApiResponse, Problem> {
        let revoked = self.until_revoked(requester.token());
        let _place = self.reserve_place(requester.holder.clone())?;
        place.give_up();
        let jobs = self.wait_for_jobs(reserve, presence, revoked).await?;
        let shown = ReservedJobs { jobs: jobs.iter().map(ReservedJob::new).collect() };
        let answer = ApiResponse::new(StatusCode::OK, &shown);
        // A job without a ticket is removed already and cannot be handed back.
        if !memory.has_room(answer.json.len()) && jobs.iter().all(|job| job.ticket.is_some()) {
            self.pull.refuse(jobs);
            return Err(busy("read the others first. The jobs were handed back"));
        }
        Ok(answer)
    }

    /// Takes one of the places for clients that reserve jobs.
    pub(super) fn reserve_place(&self, holder: Option<PoolHolder>) -> Result<PoolAllocation, Problem> {
        let detail =
            "too many clients reserve, or half of the allowed number are this one's (http.max_reserves)";
        self.reserves.take(holder, 1).ok_or_else(|| Problem::unavailable("busy", detail))
    }

    /// Reserves jobs, and waits for them. The wait ends without a job when `revoked` is ready.
    pub(super) async fn wait_for_jobs(
        &self,
        reserve: Reserve,
        client: &ClientPresence,
        revoked: impl Future<Output = ()>,
    ) -> Result<Vec<ReservedLease>, Problem> {
        let (to, answer) = oneshot::channel();
        let waiting = self.pull.reserve(reserve, move |answer| to.send(answer));
        let mut slot =
            PendingReserve { answer, jobs: Vec::new(), pull: self.pull.clone(), _waiting: waiting };
        let Some(answer) = slot.wait(client, revoked).await else {
            return Err(Problem::unavailable("unknown", "nobody has answered the reserve"));
        };
        let jobs = answer.inspect_err(|e| {
            if matches!(e, StoreError::Gone(_)) {
                self.store_client.wake();
            }
        })?;
        Ok(jobs)
    }
}

/// Reserves jobs of a topic whose mode is `pull`. If there is no job, waits for a job.
#[utoipa::path(post, path = "/v1/topics/{topic}/reserve", tag = "jobs", operation_id = "reserve_jobs",
    params(schema::TopicPath, schema::IdempotencyKey),
    request_body(content = Option<ReserveRequest>, content_type = "application/json"),
    responses((status = 200, body = ReservedJobs, description = "The jobs; none if no job came in time"), schema::ReserveErrorResponses))]
async fn reserve(
    State(api): State<Api>,
    client: WaitingClient,
    Extension(peer): Extension<Peer>,
    requester: CallerContext,
    TopicInPath(topic): TopicInPath,
    JsonBody(json): JsonBody,
) -> Result<ApiResponse, Problem> {
    let ReserveRequest { max, wait, lease, consumer } = typed_body::read_or_empty(&json)?;
    // Other requests can use the memory of the body while the client waits.
    drop(json);
    let reserve = without_topics(max, wait, lease, (consumer, peer))?;
    let topics = api.pulled(vec![topic])?;
    api.reserved(requester, &client, Reserve { topics, ..reserve }).await
}

/// Reserves jobs of several topics, in the order of preference.
#[utoipa::path(post, path = "/v1/reserve", tag = "jobs", operation_id = "reserve_jobs_of_several",
    params(schema::IdempotencyKey), request_body = ReserveOfSeveralRequest,
    responses((status = 200, body = ReservedJobs, description = "The jobs; none if no job came in time"), schema::ReserveErrorResponses))]
async fn reserve_of_several(
    State(api): State<Api>,
    client: WaitingClient,
    Extension(peer): Extension<Peer>,
    requester: CallerContext,
    JsonBody(json): JsonBody,
) -> Result<ApiResponse, Problem> {
    let ReserveOfSeveralRequest { topics, max, wait, lease, consumer } = typed_body::read(&json)?;
    drop(json);
    let reserve = without_topics(max, wait, lease, (consumer, peer))?;
    if topics.is_empty() || topics.len() > MAX_TOPICS {
        let detail = format!("topics names {} topics, and not 1 to {MAX_TOPICS}", topics.len());
        return Err(Problem::field("topics", detail));
    }
    let mut names: Vec<TopicName> = Vec::new();
    for text in &topics {
        let name = TopicName::new(text).map_err(|e| Problem::invalid("topics", &e))?;
        if !requester.permits(RequiredAccess::Consume(name.as_str())) {
            let detail = format!("the scope consume:{name} is needed");
            return Err(Problem::new(StatusCode::FORBIDDEN, "forbidden", detail));
        }
        if !names.contains(&name) {
            names.push(name);
        }
    }
    let topics = api.pulled(names)?;
    api.reserved(requester, &client, Reserve { topics, ..reserve }).await
}
