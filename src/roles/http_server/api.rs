//! What all routes share: their state, and what they take from a request.

use std::ops::Deref;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::{FromRequest, FromRequestParts, Path, Request};
use axum::http::header::CONTENT_TYPE;
use axum::http::request;
use axum::http::{HeaderMap, StatusCode};
use jiff::tz::TimeZone;
use tokio::sync::watch;

use super::acks::Acks;
use super::admission::Hosts;
use super::desk::Desk;
use super::events::Live;
use super::forecast::Forecasts;
use super::health::Health;
use super::input;
use super::metrics::Sources;
use super::problem::Problem;
use super::registrar::Registrar;
use super::trial::Trials;
use crate::counters::Counters;
use crate::job::{JobKey, TopicName};
use crate::metrics::AddOutcome;
use crate::settings::Settings;
use crate::store::Lanes;
use crate::token::Tokens;
use crate::topic::{Topic, Topics};

/// How long a client may take to send a body.
pub(super) const BODY_PATIENCE: Duration = Duration::from_secs(30);

/// What the routes need. A clone is one count: each request takes some.
#[derive(Clone)]
pub(super) struct Api(Arc<Parts>);

/// What it is made of.
pub(super) struct Parts {
    pub desk: Desk,
    /// As they are now.
    pub topics: watch::Receiver<Topics>,
    pub tokens: watch::Receiver<Tokens>,
    /// The longest body, in bytes.
    pub max_body: usize,
    pub settings: Arc<Settings>,
    pub registrar: Registrar,
    pub lanes: Lanes,
    pub trials: Trials,
    pub health: Health,
    pub metrics: Sources,
    pub counters: Counters,
    /// Whose days the statistics are of.
    pub zone: TimeZone,
    pub acks: Acks,
    pub live: Live,
    pub hosts: Arc<Hosts>,
    pub forecasts: Forecasts,
    /// Whether this process ends: answers without an end have one then.
    pub closing: watch::Sender<bool>,
    /// What `/openapi.json` says.
    pub document: OnceLock<Bytes>,
}

impl Deref for Api {
    type Target = Parts;
    fn deref(&self) -> &Parts {
        &self.0
    }
}

impl From<Parts> for Api {
    fn from(parts: Parts) -> Api {
        Api(Arc::new(parts))
    }
}

impl Api {
    /// Counts what is refused before the store is asked.
    pub(super) fn counted<T>(&self, topic: &TopicName, add: Result<T, Problem>) -> Result<T, Problem> {
        add.inspect_err(|_| self.counters.known_topic(topic.as_str()).added(AddOutcome::Refused, 1))
    }

    pub(super) fn topic(&self, name: &TopicName) -> Result<Arc<Topic>, Problem> {
        self.topics.borrow().get(name.as_str()).cloned().ok_or_else(|| Problem::unknown_topic(name))
    }
}

/// The topic that a path names.
pub(super) struct InTopic(pub TopicName);

impl<S: Send + Sync> FromRequestParts<S> for InTopic {
    type Rejection = Problem;
    async fn from_request_parts(parts: &mut request::Parts, state: &S) -> Result<InTopic, Problem> {
        let Path(topic) = Path::<String>::from_request_parts(parts, state).await?;
        Ok(InTopic(input::topic(&topic)?))
    }
}

/// The job that a path names.
pub(super) struct OfJob(pub JobKey);

impl<S: Send + Sync> FromRequestParts<S> for OfJob {
    type Rejection = Problem;
    async fn from_request_parts(parts: &mut request::Parts, state: &S) -> Result<OfJob, Problem> {
        // The path of batches is that of a job with this id, too.
        let Path((topic, id)) = match parts.uri.path().ends_with("/jobs/batch") {
            true => Path((Path::<String>::from_request_parts(parts, state).await?.0, "batch".to_owned())),
            false => Path::<(String, String)>::from_request_parts(parts, state).await?,
        };
        Ok(OfJob(JobKey { topic: input::topic(&topic)?, id: input::id(id)? }))
    }
}

/// A body that may be JSON.
pub(super) struct Sent(pub Bytes);

impl FromRequest<Api> for Sent {
    type Rejection = Problem;
    async fn from_request(request: Request, api: &Api) -> Result<Sent, Problem> {
        check_kind(request.headers())?;
        match tokio::time::timeout(BODY_PATIENCE, Bytes::from_request(request, api)).await {
            Ok(Ok(bytes)) => Ok(Sent(bytes)),
            Ok(Err(rejection)) => Err(Problem::body(&rejection, api.max_body)),
            Err(_) => Err(Problem::slow_body(BODY_PATIENCE)),
        }
    }
}

/// Whether a body says of itself that it is JSON, or nothing.
fn check_kind(headers: &HeaderMap) -> Result<(), Problem> {
    let Some(kind) = headers.get(CONTENT_TYPE) else { return Ok(()) };
    let text = String::from_utf8_lossy(kind.as_bytes()).to_ascii_lowercase();
    let kind = text.split(';').next().unwrap_or_default().trim();
    if kind == "application/json" || kind.ends_with("+json") {
        return Ok(());
    }
    let detail = format!("content-type is {kind:?}, and not \"application/json\"");
    Err(Problem::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "not_json", detail))
}
