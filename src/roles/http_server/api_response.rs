//! Turns the store's answers into answers for clients. This runs on the store's thread.

use std::collections::BTreeMap;

use axum::http::header::{CONTENT_TYPE, ETAG, LOCATION};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Serialize;
use serde_json::value::RawValue;

use super::audit::AuditNote;
use super::cursor;
use super::problem::Problem;
use super::replays::Unfinished;
use model::job::{Attempt, JobId, JobKey, Priority, State, TopicName};
use model::json_time;
use store::{Added, Changed, Deleted, Page, Result, StoreError, View};

/// The characters that stand in a path without percent-encoding.
const PLAIN: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');

/// The answer for a client.
#[derive(Debug)]
pub(super) struct ApiResponse {
    status: StatusCode,
    location: Option<String>,
    etag: Option<String>,
    pub json: Vec<u8>,
    /// For a batch: some jobs could not be stored now.
    unfinished: bool,
    /// What the handler adds to the entry of the audit log.
    noted: Option<AuditNote>,
}

impl ApiResponse {
    pub(super) fn new(status: StatusCode, value: &impl Serialize) -> ApiResponse {
        let json = serde_json::to_vec(value).expect("answers are plain values");
        ApiResponse { json, ..ApiResponse::of(status) }
    }

    /// An answer without a body: the request is done.
    pub(super) fn done() -> ApiResponse {
        ApiResponse::of(StatusCode::NO_CONTENT)
    }

    fn of(status: StatusCode) -> ApiResponse {
        ApiResponse { status, location: None, etag: None, json: Vec::new(), unfinished: false, noted: None }
    }

    /// Adds details for the entry of the audit log.
    pub(super) fn noting(self, noted: AuditNote) -> ApiResponse {
        ApiResponse { noted: Some(noted), ..self }
    }

    /// Adds the revision as the `ETag`.
    pub(super) fn with_etag(self, revision: String) -> ApiResponse {
        ApiResponse { etag: Some(format!("\"{revision}\"")), ..self }
    }

    /// Adds the path of what was made as the `Location`.
    pub(super) fn at(self, location: String) -> ApiResponse {
        ApiResponse { location: Some(location), ..self }
    }
}

impl IntoResponse for ApiResponse {
    fn into_response(self) -> Response {
        let json = HeaderValue::from_static("application/json");
        let mut response = match self.status {
            StatusCode::NO_CONTENT => self.status.into_response(),
            status => (status, [(CONTENT_TYPE, json)], self.json).into_response(),
        };
        if self.unfinished {
            response.extensions_mut().insert(Unfinished);
        }
        if let Some(noted) = self.noted {
            response.extensions_mut().insert(noted);
        }
        // The location is percent-encoded, so it is a valid header value.
        if let Some(Ok(location)) = self.location.map(HeaderValue::try_from) {
            response.headers_mut().insert(LOCATION, location);
        }
        if let Some(Ok(etag)) = self.etag.map(HeaderValue::try_from) {
            response.headers_mut().insert(ETAG, etag);
        }
        response
    }
}

/// The response to a get.
pub(super) fn job(key: &JobKey, found: Result<Option<View>>) -> Result<ApiResponse, Problem> {
    let view = found?.ok_or_else(|| Problem::not_found(key))?;
    Ok(ApiResponse::new(StatusCode::OK, &JobResponse::of(&view)))
}

/// The response to a delete.
pub(super) fn deleted(key: &JobKey, deleted: Result<Deleted>) -> Result<ApiResponse, Problem> {
    match deleted? {
        Deleted::Done => Ok(ApiResponse::done()),
        Deleted::Spooled => Ok(ApiResponse::new(StatusCode::ACCEPTED, &BTreeMap::from([("spooled", true)]))),
        Deleted::NotFound => Err(Problem::not_found(key)),
    }
}

/// The response to a change or a run.
pub(super) fn changed(key: &JobKey, changed: Result<Changed>) -> Result<ApiResponse, Problem> {
    match changed? {
        Changed::Done => Ok(ApiResponse::done()),
        Changed::NotFound => Err(Problem::not_found(key)),
        Changed::Conflict => Err(Problem::conflict("conflict", "the job is being delivered")),
    }
}

/// The response to a listing of a topic. `is_registered`: the registry or the configuration has the topic.
pub(super) fn page(
    topic: &TopicName,
    is_registered: bool,
    page: Result<Page>,
) -> Result<ApiResponse, Problem> {
    #[derive(Serialize)]
    struct JobListResponse<'a> {
        jobs: Vec<JobResponse<'a>>,
        next: Option<String>,
        #[serde(skip_serializing_if = "Vec::is_empty")]
        away: Vec<String>,
    }
    let page = page?;
    // The jobs that are left of a removed topic can still be listed.
    if page.jobs.is_empty() && page.next.is_none() && !is_registered {
        return Err(Problem::unknown_topic(topic));
    }
    let jobs = page.jobs.iter().map(JobResponse::of).collect();
    let next = page.next.as_deref().map(cursor::shown);
    Ok(ApiResponse::new(StatusCode::OK, &JobListResponse { jobs, next, away: page.away }))
}

/// The outcome of an add.
#[derive(Serialize)]
struct Outcome<'a> {
    topic: &'a TopicName,
    id: &'a str,
    outcome: &'static str,
    due: String,
    due_ms: i64,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    spooled: bool,
}

fn outcome<'a>(
    topic: &'a TopicName,
    id: &'a JobId,
    added: Result<Added>,
) -> Result<(StatusCode, Outcome<'a>), Problem> {
    let (status, outcome, due_ms) = match added? {
        Added::New { due_ms } => (StatusCode::CREATED, "new", due_ms),
        Added::Replaced { due_ms } => (StatusCode::OK, "replaced", due_ms),
        Added::Kept { due_ms } => (StatusCode::OK, "kept", due_ms),
        Added::Spooled { due_ms } => (StatusCode::ACCEPTED, "spooled", due_ms),
        Added::Rejected => {
            let detail = format!("a job {:?} is there already", id.as_str());
            return Err(Problem::conflict("exists", detail));
        }
    };
    let due = json_time::rfc3339(due_ms);
    let spooled = outcome == "spooled";
    Ok((status, Outcome { topic, id: id.as_str(), outcome, due, due_ms, spooled }))
}

/// The response to an add.
pub(super) fn added(key: &JobKey, added: Result<Added>) -> Result<ApiResponse, Problem> {
    let (status, outcome) = outcome(&key.topic, &key.id, added)?;
    let id = utf8_percent_encode(key.id.as_str(), PLAIN);
    let location = format!("/v1/topics/{}/jobs/{id}", key.topic);
    let told = ApiResponse::new(status, &outcome);
    Ok(ApiResponse { location: (status == StatusCode::CREATED).then_some(location), ..told })
}

/// Builds the answer to a batch: one result for each job, in the order of the request.
pub(super) fn batch(
    topic: &TopicName,
    items: &[Result<JobId, Problem>],
    added: Vec<Result<Added>>,
) -> ApiResponse {
    #[derive(Serialize)]
    struct BatchSuccess<'a> {
        status: u16,
        #[serde(flatten)]
        outcome: Outcome<'a>,
    }
    #[derive(Serialize)]
    struct BatchFailure<'a> {
        #[serde(flatten)]
        problem: Problem,
        #[serde(skip_serializing_if = "Option::is_none")]
        id: Option<&'a str>,
    }
    #[derive(Serialize)]
    #[serde(untagged)]
    enum BatchItem<'a> {
        Done(BatchSuccess<'a>),
        Failed(BatchFailure<'a>),
    }
    let unfinished = added.iter().any(Result::is_err);
    let mut added = added.into_iter();
    let mut one = |item: &'_ Result<JobId, Problem>| -> Result<serde_json::Value, serde_json::Error> {
        let one = match item {
            Err(problem) => BatchItem::Failed(BatchFailure { problem: problem.clone(), id: None }),
            Ok(id) => {
                let answer = added.next().unwrap_or_else(|| Err(StoreError::Unknown("no answer".into())));
                match outcome(topic, id, answer) {
                    Ok((status, outcome)) => {
                        BatchItem::Done(BatchSuccess { status: status.as_u16(), outcome })
                    }
                    Err(problem) => BatchItem::Failed(BatchFailure { problem, id: Some(id.as_str()) }),
                }
            }
        };
        serde_json::to_value(one)
    };
    let results: Vec<_> = items.iter().map(|item| one(item).expect("answers are plain values")).collect();
    ApiResponse { unfinished, ..ApiResponse::new(StatusCode::OK, &BTreeMap::from([("results", results)])) }
}

/// A job, as the API shows it.
#[derive(Serialize)]
struct JobResponse<'a> {
    topic: &'a TopicName,
    id: &'a str,
    state: State,
    due_ms: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    until_ms: Option<i64>,
    added_ms: i64,
    priority: Priority,
    attempts: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_attempts: Option<u32>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    spooled: bool,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    headers: &'a BTreeMap<String, String>,
    log: &'a [Attempt],
    body: &'a RawValue,
}

impl<'a> JobResponse<'a> {
    fn of(view: &'a View) -> JobResponse<'a> {
        JobResponse {
            topic: &view.key.topic,
            id: view.key.id.as_str(),
            state: view.state,
            due_ms: view.due_ms,
            until_ms: view.until_ms,
            added_ms: view.stamp_us / 1000,
            priority: view.priority,
            attempts: view.attempts,
            max_attempts: view.max_attempts,
            spooled: view.is_spooled,
            headers: view.headers.by_name(),
            log: &view.attempts_log,
            // A damaged store may hold a body that is not JSON. It is shown as null.
            body: serde_json::from_str(view.body.as_str()).unwrap_or(RawValue::NULL),
        }
    }
}
