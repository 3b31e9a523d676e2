//! The routes of jobs. Each handler reads its request, and asks the store.

use axum::extract::{RawQuery, State};
use axum::http::{HeaderMap, StatusCode};
use axum::routing::get;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::api::{Api, CallerContext, JobInPath, TopicInPath};
use super::api_response::{self, ApiResponse};
use super::body::JsonBody;
use super::callback_fields::may_follow;
use super::input;
use super::job_shown::{AddedJob, AddedJobs, JobList, JobResponse, SpooledDeletion};
use super::problem::Problem;
use super::schema;
use super::store_client::AnswerSender;
use model::metrics::AddOutcome;
use model::topic::Topic;
use role::submit::{ListRequest, StoreRequest};

pub(super) fn routes() -> OpenApiRouter<Api> {
    OpenApiRouter::new()
        .routes(routes!(add, list))
        .routes(routes!(add_batch))
        // With POST, this path adds a batch. With all other methods, it means the job with the id `batch`.
        .route("/v1/topics/{topic}/jobs/batch", get(show).patch(change).delete(delete))
        .routes(routes!(show, change, delete))
        .routes(routes!(run))
}

/// Stores a job.
#[utoipa::path(post, path = "/v1/topics/{topic}/jobs", tag = "jobs", operation_id = "add_job",
    params(schema::TopicPath, schema::IdempotencyKey), request_body = input::NewJobRequest,
    responses(
        (status = 201, body = AddedJob, description = "The job is stored", headers(("Location" = String, description = "The path of the job"))),
        (status = 200, body = AddedJob, description = "A job with this id existed: it was replaced, or kept"),
        (status = 202, body = AddedJob, description = "The node of the job does not answer: the job waits on the disk of this host until the node answers"),
        schema::ChangeErrorResponses))]
async fn add(
    State(api): State<Api>,
    requester: CallerContext,
    TopicInPath(name): TopicInPath,
    headers: HeaderMap,
    JsonBody(json): JsonBody,
) -> Result<ApiResponse, Problem> {
    let read = || {
        let topic = api.topic(&name)?;
        let ids = requester.id_source(&headers)?;
        let quota = requester.quota(&topic);
        let job = input::job(&json, &topic, quota.as_ref(), (ids.as_ref(), None), &api.lanes)?;
        input::takes_jobs(&api.topics.borrow(), &name)?;
        may_follow(job, &api.topics.borrow(), |need| requester.permits(need))
    };
    let job = api.count_refusal(&name, read())?;
    let key = job.key.clone();
    let ask = |reply: AnswerSender<_>| {
        StoreRequest::add(job, move |added| reply.response(api_response::added(&key, added)))
    };
    api.store_client.respond(json.len(), ask).await
}

/// Stores many jobs. Each job has its own result.
#[utoipa::path(post, path = "/v1/topics/{topic}/jobs/batch", tag = "jobs", operation_id = "add_jobs",
    params(schema::TopicPath, schema::IdempotencyKey), request_body = input::NewJobsRequest,
    responses((status = 200, body = AddedJobs, description = "The result of each job, in their order"), schema::ChangeErrorResponses))]
async fn add_batch(
    State(api): State<Api>,
    requester: CallerContext,
    TopicInPath(name): TopicInPath,
    headers: HeaderMap,
    JsonBody(json): JsonBody,
) -> Result<ApiResponse, Problem> {
    let topic = api.count_refusal(&name, api.topic(&name))?;
    let ids = requester.id_source(&headers)?;
    let mut jobs = Vec::new();
    let mut take = |job: Result<model::job::NewJob, Problem>| {
        api.count_refusal(&name, job).map(|job| {
            let id = job.key.id.clone();
            jobs.push(job);
            id
        })
    };
    let quota = requester.quota(&topic);
    let read = input::batch(&json, &topic, quota.as_ref(), ids.as_ref(), &api.lanes)?;
    let may = |job: model::job::NewJob| may_follow(job, &api.topics.borrow(), |need| requester.permits(need));
    let items: Vec<_> = read.into_iter().map(|job| take(job.and_then(may))).collect();
    let taken = input::takes_jobs(&api.topics.borrow(), &name);
    if let Err(problem) = taken {
        api.counters.known_topic(name.as_str()).added(AddOutcome::Refused, jobs.len() as u64);
        return Err(problem);
    }
    let ask = |reply: AnswerSender<_>| {
        StoreRequest::add_many(jobs, move |all| reply.response(Ok(api_response::batch(&name, &items, all))))
    };
    api.store_client.respond(json.len(), ask).await
}

impl Api {
    /// Returns a page of jobs.
    pub(super) async fn list(
        &self,
        requester: CallerContext,
        listing: ListRequest,
    ) -> Result<ApiResponse, Problem> {
        let topic = listing.topic.clone();
        let is_registered = self.topics.borrow().get(topic.as_str()).is_some();
        let sees_answers = requester.sees_answers(&topic);
        let ask = |reply: AnswerSender<_>| {
            StoreRequest::list(listing, move |page| {
                reply.response(api_response::page(&topic, is_registered, page, sees_answers))
            })
        };
        self.store_client.read(requester.holder, ask).await?
    }
}

/// Lists a topic's jobs that are in one state.
#[utoipa::path(get, path = "/v1/topics/{topic}/jobs", tag = "jobs", operation_id = "list_jobs",
    params(schema::TopicPath, schema::ListQuery),
    responses((status = 200, body = JobList, description = "A page of jobs"), schema::LookupErrorResponses))]
async fn list(
    State(api): State<Api>,
    requester: CallerContext,
    TopicInPath(topic): TopicInPath,
    RawQuery(query): RawQuery,
) -> Result<ApiResponse, Problem> {
    let input::ParsedListQuery { state, cursor, limit } =
        input::listing(query.as_deref().unwrap_or_default())?;
    api.list(requester, ListRequest { topic, state, filter: None, cursor, limit }).await
}

/// Shows a job. If there is no job with this id, shows its latest dead letter. If the job has ended, the answer is 404,
/// and its field `ended` has the last record of the job, if a record is kept.
#[utoipa::path(get, path = "/v1/topics/{topic}/jobs/{id}", tag = "jobs", operation_id = "get_job",
    params(schema::JobPathParameters),
    responses((status = 200, body = JobResponse, description = "The job"), schema::LookupErrorResponses))]
async fn show(
    State(api): State<Api>,
    requester: CallerContext,
    JobInPath(key): JobInPath,
) -> Result<ApiResponse, Problem> {
    let sees_answers = requester.sees_answers(&key.topic);
    let (ask, named) = (key.clone(), key);
    let ask = |reply: AnswerSender<_>| StoreRequest::get(ask, move |_, found| reply.with(found));
    let Some(mut view) = api.store_client.ask(0, ask).await?? else {
        // The job may have ended.
        let ask = |reply: AnswerSender<_>| {
            StoreRequest::get_or_records(named.clone(), sees_answers, move |_, found| reply.with(found))
        };
        let (view, mut records) = api.store_client.ask(0, ask).await??;
        let attempts = records.iter_mut().flat_map(|record| &mut record.attempts_log);
        api.name_pauses(&named.topic, attempts).await;
        return api_response::job(&named, view.as_ref(), &records, sees_answers);
    };
    api.name_pauses(&view.key.topic, view.attempts_log.iter_mut()).await;
    let waiting = api.waiting(&view, &requester).await;
    Ok(ApiResponse::new(StatusCode::OK, &JobResponse::new(&view, sees_answers).with_waiting(waiting)))
}

/// Changes a job that is delayed or ready: its due time, body, priority, limit of attempts, headers, path, URL, tags or
/// TTR.
#[utoipa::path(patch, path = "/v1/topics/{topic}/jobs/{id}", tag = "jobs", operation_id = "change_job",
    params(schema::JobPathParameters), request_body = input::JobChangeRequest,
    responses((status = 204, description = "The job is changed"), schema::ChangeErrorResponses))]
async fn change(
    State(api): State<Api>,
    JobInPath(key): JobInPath,
    JsonBody(json): JsonBody,
) -> Result<ApiResponse, Problem> {
    // A job may remain after its topic was removed. Then the change is checked against a topic with default settings.
    let topic = api.topic(&key.topic).unwrap_or_else(|_| Topic::new(key.topic.clone(), "").into());
    let change = input::change(&json, &topic)?;
    let ask = |reply: AnswerSender<_>| {
        StoreRequest::change(key, change, |key, changed| reply.response(api_response::changed(key, changed)))
    };
    api.store_client.respond(json.len(), ask).await
}

/// Removes a job in any state.
#[utoipa::path(delete, path = "/v1/topics/{topic}/jobs/{id}", tag = "jobs", operation_id = "delete_job",
    params(schema::JobPathParameters),
    responses(
        (status = 204, description = "The job is removed"),
        (status = 202, body = SpooledDeletion, description = "An add of this id waits on the disk of this host: the removal is done after it"),
        schema::LookupErrorResponses))]
async fn delete(State(api): State<Api>, JobInPath(key): JobInPath) -> Result<ApiResponse, Problem> {
    let ask = |reply: AnswerSender<_>| {
        StoreRequest::delete(key, |key, deleted| reply.response(api_response::deleted(key, deleted)))
    };
    api.store_client.respond(0, ask).await
}

/// Delivers a delayed job now.
#[utoipa::path(post, path = "/v1/topics/{topic}/jobs/{id}/run", tag = "jobs", operation_id = "run_job",
    params(schema::JobPathParameters, schema::IdempotencyKey),
    responses((status = 204, description = "The job is ready"), schema::ChangeErrorResponses))]
async fn run(
    State(api): State<Api>,
    JobInPath(key): JobInPath,
    JsonBody(json): JsonBody,
) -> Result<ApiResponse, Problem> {
    input::nothing(&json)?;
    let ask = |reply: AnswerSender<_>| {
        StoreRequest::run(key, |key, changed| reply.response(api_response::changed(key, changed)))
    };
    api.store_client.respond(0, ask).await
}
