//! The routes of jobs: each takes its request apart, and asks the store.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, FromRequest, FromRequestParts, Path, RawQuery, Request, State};
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::http::request::Parts;
use axum::routing::{get, post};
use tokio::sync::watch;

use super::desk::Desk;
use super::input;
use super::problem::Problem;
use super::statistics::{self, Days};
use super::told::{Manner, Told};
use crate::counters::Counters;
use crate::job::{JobKey, TopicName};
use crate::metrics::AddOutcome;
use crate::submit::Ask;
use crate::topic::{Topic, Topics};

/// How long a client may take to send a body.
const BODY_PATIENCE: Duration = Duration::from_secs(30);

/// What the routes need.
#[derive(Clone)]
pub(super) struct Api {
    pub desk: Desk,
    /// As they are now.
    pub topics: watch::Receiver<Topics>,
    pub counters: Counters,
    pub days: Days,
    /// The longest body, in bytes.
    pub max_body: usize,
}

impl Api {
    /// Counts what is refused before the store is asked.
    fn counted<T>(&self, topic: &TopicName, add: Result<T, Problem>) -> Result<T, Problem> {
        add.inspect_err(|_| self.counters.known_topic(topic.as_str()).added(AddOutcome::Refused, 1))
    }

    fn topic(&self, name: &TopicName) -> Result<Arc<Topic>, Problem> {
        self.topics.borrow().get(name.as_str()).cloned().ok_or_else(|| Problem::unknown_topic(name))
    }
}

pub(super) fn routes(api: Api) -> Router {
    let max_body = api.max_body;
    Router::new()
        .route("/v1/topics/{topic}/jobs", post(add).get(list))
        .route("/v1/topics/{topic}/jobs/batch", post(add_batch).get(show).patch(reschedule).delete(delete))
        .route("/v1/topics/{topic}/jobs/{id}", get(show).patch(reschedule).delete(delete))
        .route("/v1/topics/{topic}/jobs/{id}/run", post(run))
        .route("/v1/stats", get(stats))
        .layer(DefaultBodyLimit::max(max_body))
        .with_state(api)
}

/// The topic that a path names.
struct InTopic(TopicName);

impl<S: Send + Sync> FromRequestParts<S> for InTopic {
    type Rejection = Problem;
    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<InTopic, Problem> {
        let Path(topic) = Path::<String>::from_request_parts(parts, state).await?;
        Ok(InTopic(input::topic(&topic)?))
    }
}

/// The job that a path names.
struct OfJob(JobKey);

impl<S: Send + Sync> FromRequestParts<S> for OfJob {
    type Rejection = Problem;
    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<OfJob, Problem> {
        // The path of batches is that of a job with this id, too.
        let Path((topic, id)) = match parts.uri.path().ends_with("/jobs/batch") {
            true => Path((Path::<String>::from_request_parts(parts, state).await?.0, "batch".to_owned())),
            false => Path::<(String, String)>::from_request_parts(parts, state).await?,
        };
        Ok(OfJob(JobKey { topic: input::topic(&topic)?, id: input::id(id)? }))
    }
}

/// A body that may be JSON.
struct Sent(Bytes);

impl FromRequest<Api> for Sent {
    type Rejection = Problem;
    async fn from_request(request: Request, api: &Api) -> Result<Sent, Problem> {
        if let Some(kind) = request.headers().get(CONTENT_TYPE) {
            let text = String::from_utf8_lossy(kind.as_bytes()).to_ascii_lowercase();
            let kind = text.split(';').next().unwrap_or_default().trim();
            if kind != "application/json" && !kind.ends_with("+json") {
                let detail = format!("content-type is {kind:?}, and not \"application/json\"");
                return Err(Problem::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "not_json", detail));
            }
        }
        match tokio::time::timeout(BODY_PATIENCE, Bytes::from_request(request, api)).await {
            Ok(Ok(bytes)) => Ok(Sent(bytes)),
            Ok(Err(rejection)) => Err(Problem::body(&rejection, api.max_body)),
            Err(_) => {
                let detail = format!("the body did not arrive within {BODY_PATIENCE:?}");
                Err(Problem::new(StatusCode::REQUEST_TIMEOUT, "too_slow", detail))
            }
        }
    }
}

async fn add(State(api): State<Api>, InTopic(name): InTopic, Sent(json): Sent) -> Result<Told, Problem> {
    let read = || {
        let topic = api.topic(&name)?;
        let job = input::job(&json, &topic)?;
        input::takes_jobs(&topic).map(|()| job)
    };
    let job = api.counted(&name, read())?;
    let manner = Manner::Job(job.key.clone());
    api.desk.ask(Ask::Add(job), manner, json.len()).await
}

async fn add_batch(
    State(api): State<Api>,
    InTopic(name): InTopic,
    Sent(json): Sent,
) -> Result<Told, Problem> {
    let topic = api.counted(&name, api.topic(&name))?;
    let mut jobs = Vec::new();
    let take = |job: Result<crate::job::NewJob, Problem>| {
        api.counted(&name, job).map(|job| {
            let id = job.key.id.clone();
            jobs.push(job);
            id
        })
    };
    let items = input::batch(&json, &topic)?.into_iter().map(take).collect();
    if let Err(problem) = input::takes_jobs(&topic) {
        api.counters.known_topic(name.as_str()).added(AddOutcome::Refused, jobs.len() as u64);
        return Err(problem);
    }
    api.desk.ask(Ask::AddMany(jobs), Manner::Batch { topic: name, items }, json.len()).await
}

async fn list(
    State(api): State<Api>,
    InTopic(topic): InTopic,
    RawQuery(query): RawQuery,
) -> Result<Told, Problem> {
    let input::Listing { state, cursor, limit } = input::listing(query.as_deref().unwrap_or_default())?;
    let registered = api.topics.borrow().get(topic.as_str()).is_some();
    let manner = Manner::List { topic: topic.clone(), registered };
    api.desk.ask(Ask::List { topic, state, cursor, limit }, manner, 0).await
}

async fn show(State(api): State<Api>, OfJob(key): OfJob) -> Result<Told, Problem> {
    api.desk.ask(Ask::Get(key), Manner::Plain, 0).await
}

async fn reschedule(State(api): State<Api>, OfJob(key): OfJob, Sent(json): Sent) -> Result<Told, Problem> {
    let due = input::new_due(&json)?;
    api.desk.ask(Ask::Reschedule(key, due), Manner::Plain, json.len()).await
}

async fn delete(State(api): State<Api>, OfJob(key): OfJob) -> Result<Told, Problem> {
    api.desk.ask(Ask::Delete(key), Manner::Plain, 0).await
}

async fn run(State(api): State<Api>, OfJob(key): OfJob) -> Result<Told, Problem> {
    api.desk.ask(Ask::Run(key), Manner::Plain, 0).await
}

async fn stats(State(api): State<Api>, RawQuery(query): RawQuery) -> Result<Told, Problem> {
    let days = statistics::days(query.as_deref().unwrap_or_default())?;
    let registered = api.topics.borrow().iter().map(|topic| topic.name.clone()).collect();
    let mut told = api.desk.ask(Ask::Count, Manner::Stats(registered), 0).await?;
    if let Some(days) = days {
        told.json = api.days.put_to(&told.json, days).await?;
    }
    Ok(told)
}
