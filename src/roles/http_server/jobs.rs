//! The routes of jobs: each takes its request apart, and asks the store.

use axum::extract::{RawQuery, State};
use axum::http::HeaderMap;
use axum::routing::get;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::api::{Api, InTopic, OfJob, Sent};
use super::input;
use super::problem::Problem;
use super::replays;
use super::schema;
use super::told::{Manner, Told};
use crate::metrics::AddOutcome;
use crate::submit::Ask;

pub(super) fn routes() -> OpenApiRouter<Api> {
    OpenApiRouter::new()
        .routes(routes!(add, list))
        .routes(routes!(add_batch))
        // The path of batches is that of a job with this id, too.
        .route("/v1/topics/{topic}/jobs/batch", get(show).patch(change).delete(delete))
        .routes(routes!(show, change, delete))
        .routes(routes!(run))
}

/// Stores a job.
#[utoipa::path(post, path = "/v1/topics/{topic}/jobs", tag = "jobs", operation_id = "add_job",
    params(schema::TopicPath, schema::IdempotencyKey), request_body = schema::NewJob,
    responses(
        (status = 201, body = schema::AddedJob, description = "It is stored", headers(("Location" = String, description = "Where it is shown"))),
        (status = 200, body = schema::AddedJob, description = "It took the place of one with its id, or that one was kept"),
        schema::ChangeProblems))]
async fn add(
    State(api): State<Api>,
    InTopic(name): InTopic,
    headers: HeaderMap,
    Sent(json): Sent,
) -> Result<Told, Problem> {
    let read = || {
        let topic = api.topic(&name)?;
        let key = replays::key_of(&headers)?;
        let job = input::job(&json, &topic, key)?;
        input::takes_jobs(&api.topics.borrow(), &name).map(|()| job)
    };
    let job = api.counted(&name, read())?;
    let manner = Manner::Job(job.key.clone());
    api.desk.ask(Ask::Add(job), manner, json.len()).await
}

/// Stores many jobs, each answered by itself.
#[utoipa::path(post, path = "/v1/topics/{topic}/jobs/batch", tag = "jobs", operation_id = "add_jobs",
    params(schema::TopicPath, schema::IdempotencyKey), request_body = schema::NewJobs,
    responses((status = 200, body = schema::AddedJobs, description = "What became of each"), schema::ChangeProblems))]
async fn add_batch(
    State(api): State<Api>,
    InTopic(name): InTopic,
    headers: HeaderMap,
    Sent(json): Sent,
) -> Result<Told, Problem> {
    let topic = api.counted(&name, api.topic(&name))?;
    let key = replays::key_of(&headers)?;
    let mut jobs = Vec::new();
    let take = |job: Result<crate::job::NewJob, Problem>| {
        api.counted(&name, job).map(|job| {
            let id = job.key.id.clone();
            jobs.push(job);
            id
        })
    };
    let items = input::batch(&json, &topic, key)?.into_iter().map(take).collect();
    let taken = input::takes_jobs(&api.topics.borrow(), &name);
    if let Err(problem) = taken {
        api.counters.known_topic(name.as_str()).added(AddOutcome::Refused, jobs.len() as u64);
        return Err(problem);
    }
    api.desk.ask(Ask::AddMany(jobs), Manner::Batch { topic: name, items }, json.len()).await
}

/// Lists a topic's jobs that are in one state.
#[utoipa::path(get, path = "/v1/topics/{topic}/jobs", tag = "jobs", operation_id = "list_jobs",
    params(schema::TopicPath, schema::ListQuery),
    responses((status = 200, body = schema::Jobs, description = "A page of them"), schema::FindProblems))]
async fn list(
    State(api): State<Api>,
    InTopic(topic): InTopic,
    RawQuery(query): RawQuery,
) -> Result<Told, Problem> {
    let input::Listing { state, cursor, limit } = input::listing(query.as_deref().unwrap_or_default())?;
    let registered = api.topics.borrow().get(topic.as_str()).is_some();
    let manner = Manner::List { topic: topic.clone(), registered };
    api.desk.ask(Ask::List { topic, state, filter: None, cursor, limit }, manner, 0).await
}

/// Shows a job; where there is none, its latest dead letter.
#[utoipa::path(get, path = "/v1/topics/{topic}/jobs/{id}", tag = "jobs", operation_id = "get_job",
    params(schema::JobPath),
    responses((status = 200, body = schema::Job, description = "It"), schema::FindProblems))]
async fn show(State(api): State<Api>, OfJob(key): OfJob) -> Result<Told, Problem> {
    api.desk.ask(Ask::Get(key), Manner::Plain, 0).await
}

/// Changes a job that waits: when it is due, its body, its priority, its limit of attempts.
#[utoipa::path(patch, path = "/v1/topics/{topic}/jobs/{id}", tag = "jobs", operation_id = "change_job",
    params(schema::JobPath), request_body = schema::JobChange,
    responses((status = 204, description = "It is changed"), schema::ChangeProblems))]
async fn change(State(api): State<Api>, OfJob(key): OfJob, Sent(json): Sent) -> Result<Told, Problem> {
    let change = input::change(&json)?;
    api.desk.ask(Ask::Change(key, change), Manner::Plain, json.len()).await
}

/// Removes a job, in whichever state it is.
#[utoipa::path(delete, path = "/v1/topics/{topic}/jobs/{id}", tag = "jobs", operation_id = "delete_job",
    params(schema::JobPath),
    responses((status = 204, description = "It is gone"), schema::FindProblems))]
async fn delete(State(api): State<Api>, OfJob(key): OfJob) -> Result<Told, Problem> {
    api.desk.ask(Ask::Delete(key), Manner::Plain, 0).await
}

/// Delivers a delayed job now.
#[utoipa::path(post, path = "/v1/topics/{topic}/jobs/{id}/run", tag = "jobs", operation_id = "run_job",
    params(schema::JobPath, schema::IdempotencyKey),
    responses((status = 204, description = "It is ready"), schema::ChangeProblems))]
async fn run(State(api): State<Api>, OfJob(key): OfJob, Sent(json): Sent) -> Result<Told, Problem> {
    input::nothing(&json)?;
    api.desk.ask(Ask::Run(key), Manner::Plain, 0).await
}
