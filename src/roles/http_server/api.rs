//! What all routes share: their state, and the parts that they read from a request.

use std::convert::Infallible;
use std::ops::Deref;
use std::sync::{Arc, OnceLock};

use axum::body::Bytes;
use axum::extract::{FromRequestParts, Path};
use axum::http::{HeaderMap, request};
use jiff::tz::TimeZone;
use tokio::sync::watch;

use super::access::{Caller, CallerPermissions};
use super::admission::AcceptedHosts;
use super::bulk_runner::BulkRunner;
use super::callback_test::CallbackTester;
use super::events::LiveCache;
use super::forecast::ForecastThread;
use super::health::StoreHealthThreads;
use super::id_source::IdempotentIdGenerator;
use super::input;
use super::metrics::MetricSources;
use super::pool::{PoolHolder, ResourcePool};
use super::problem::Problem;
use super::registrar::Registrar;
use super::replays;
use super::sessions::SessionSettings;
use super::store_client::StoreClient;
use model::job::{JobKey, TopicName};
use model::metrics::AddOutcome;
use model::quota::Quota;
use model::scope::RequiredAccess;
use model::settings::Settings;
use model::token::{Token, Tokens};
use model::topic::{Topic, Topics};
use role::pull::PullHandle;
use role::tickets::Tickets;
use store::Lanes;
use telemetry::counters::Counters;

/// The state that all routes share. Each request clones it. A clone only increases the reference counts.
#[derive(Clone)]
pub(super) struct Api(Arc<ApiState>);

/// The parts of [`Api`].
pub(super) struct ApiState {
    pub store_client: StoreClient,
    /// The topics as they are now.
    pub topics: watch::Receiver<Topics>,
    pub tokens: watch::Receiver<Tokens>,
    /// The longest body, in bytes.
    pub max_body: usize,
    /// The memory for the bodies of all requests, in bytes.
    pub bodies: ResourcePool,
    pub settings: Arc<Settings>,
    pub registrar: Registrar,
    pub lanes: Lanes,
    pub trials: CallbackTester,
    pub health: StoreHealthThreads,
    pub metrics: MetricSources,
    pub counters: Counters,
    /// The time zone in which the days of the statistics begin and end.
    pub zone: TimeZone,
    pub tickets: Tickets,
    /// Serves clients that reserve jobs.
    pub pull: PullHandle,
    /// Limits how many clients reserve jobs at the same time. Each client takes a place.
    pub reserves: ResourcePool,
    pub live: LiveCache,
    pub hosts: Arc<AcceptedHosts>,
    /// None: there is no console.
    pub sessions: Option<Arc<SessionSettings>>,
    pub forecasts: ForecastThread,
    pub bulk: BulkRunner,
    /// True when this process is ending. Streams that have no end of their own are then closed.
    pub closing: watch::Sender<bool>,
    /// Becomes true when this process is about to end its drain. Then connections that have leases hand the leases
    /// back.
    pub cut: watch::Sender<bool>,
    /// The text of `/openapi.json`.
    pub document: OnceLock<Bytes>,
    /// The page `/docs`. It is made at the first request for the page.
    pub docs_page: OnceLock<Bytes>,
}

impl Deref for Api {
    type Target = ApiState;
    fn deref(&self) -> &ApiState {
        &self.0
    }
}

impl From<ApiState> for Api {
    fn from(parts: ApiState) -> Api {
        Api(Arc::new(parts))
    }
}

impl Api {
    /// Counts an add that is refused before it reaches the store.
    pub(super) fn count_refusal<T>(&self, topic: &TopicName, add: Result<T, Problem>) -> Result<T, Problem> {
        add.inspect_err(|_| self.counters.known_topic(topic.as_str()).added(AddOutcome::Refused, 1))
    }

    /// Returns whether the configuration file has a topic. Such a topic can be changed only in this file.
    pub(super) fn is_of_file(&self, name: &TopicName) -> bool {
        self.settings.topics.iter().any(|topic| topic.name == *name)
    }

    /// Returns the topic, if the store offers the durability level that the topic asks for.
    pub(super) fn can_give(&self, topic: Topic) -> Result<Topic, Problem> {
        match topic.durability.and_then(|level| self.settings.store.lacks(level)) {
            Some(problem) => Err(Problem::field("durability", format!("durability: {problem}"))),
            None => Ok(topic),
        }
    }

    pub(super) fn topic(&self, name: &TopicName) -> Result<Arc<Topic>, Problem> {
        self.topics.borrow().get(name.as_str()).cloned().ok_or_else(|| Problem::unknown_topic(name))
    }
}

/// Who makes a request.
pub(super) struct CallerContext {
    /// The client for which long reads from the store are counted (`StoreClient::read`). Each client has a limited
    /// number of such reads at a time. None: the reads are not limited.
    pub holder: Option<PoolHolder>,
    permissions: Option<CallerPermissions>,
    caller: Option<Caller>,
}

impl CallerContext {
    /// Whether the requester may do what `need` names.
    pub(super) fn permits(&self, need: RequiredAccess<'_>) -> bool {
        self.permissions.as_ref().is_some_and(|permissions| permissions.permits(need))
    }

    /// The source of ids for jobs without an id, if the request has an Idempotency-Key.
    pub(super) fn id_source(&self, headers: &HeaderMap) -> Result<Option<IdempotentIdGenerator>, Problem> {
        Ok(replays::key_of(headers)?.map(|key| IdempotentIdGenerator::new(self.caller.as_ref(), key)))
    }

    /// The requester's token or account, if there is one.
    pub(super) fn token(&self) -> Option<&Token> {
        self.permissions.as_ref().and_then(CallerPermissions::token)
    }

    /// The name of the requester's token or account, if there is one.
    pub(super) fn name(&self) -> Option<String> {
        Some(self.token()?.name.as_str().to_owned())
    }

    /// The limits for adds to a topic.
    pub(super) fn quota(&self, topic: &Topic) -> Option<Arc<Quota>> {
        Quota::of(topic, self.token())
    }

    /// Whether the requester may see what receivers answered to the jobs of this topic.
    pub(super) fn sees_answers(&self, topic: &TopicName) -> bool {
        self.permits(RequiredAccess::Answers(topic.as_str()))
    }
}

impl<S: Send + Sync> FromRequestParts<S> for CallerContext {
    type Rejection = Infallible;
    async fn from_request_parts(parts: &mut request::Parts, _: &S) -> Result<CallerContext, Infallible> {
        let extensions = &parts.extensions;
        Ok(CallerContext {
            holder: extensions.get().cloned(),
            permissions: extensions.get().cloned(),
            caller: extensions.get().cloned(),
        })
    }
}

/// The topic that a path names.
pub(super) struct TopicInPath(pub TopicName);

impl<S: Send + Sync> FromRequestParts<S> for TopicInPath {
    type Rejection = Problem;
    async fn from_request_parts(parts: &mut request::Parts, state: &S) -> Result<TopicInPath, Problem> {
        let Path(topic) = Path::<String>::from_request_parts(parts, state).await?;
        Ok(TopicInPath(input::topic(&topic)?))
    }
}

/// The name at the end of a path.
pub(super) struct NameInPath(pub String);

impl<S: Send + Sync> FromRequestParts<S> for NameInPath {
    type Rejection = Problem;
    async fn from_request_parts(parts: &mut request::Parts, state: &S) -> Result<NameInPath, Problem> {
        let Path(name) = Path::<String>::from_request_parts(parts, state).await?;
        Ok(NameInPath(name))
    }
}

/// The job that a path names.
pub(super) struct JobInPath(pub JobKey);

impl<S: Send + Sync> FromRequestParts<S> for JobInPath {
    type Rejection = Problem;
    async fn from_request_parts(parts: &mut request::Parts, state: &S) -> Result<JobInPath, Problem> {
        // With POST, `/jobs/batch` adds a batch. With all other methods, it means the job with the id `batch`.
        let Path((topic, id)) = match parts.uri.path().ends_with("/jobs/batch") {
            true => Path((Path::<String>::from_request_parts(parts, state).await?.0, "batch".to_owned())),
            false => Path::<(String, String)>::from_request_parts(parts, state).await?,
        };
        Ok(JobInPath(JobKey { topic: input::topic(&topic)?, id: input::id(id)? }))
    }
}
