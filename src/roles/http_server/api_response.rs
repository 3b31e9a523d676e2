//! Turns the store's answers into answers for clients. Most functions of this file run on a thread that asks the store.
//! `job` runs on the thread of the handler that calls it.

use axum::http::header::{CONTENT_TYPE, ETAG, LOCATION};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Serialize;

use super::audit::AuditNote;
use super::cursor;
use super::job_shown::{
    AddOutcomeWord, AddResult, AddedJob, AddedJobs, JobList, JobResponse, RefusedAdd, SpooledDeletion,
    SuccessfulAdd,
};
use super::problem::Problem;
use super::record_shown::RecordResponse;
use super::replays::PartialResultMark;
use model::job::{JobId, JobKey, TopicName};
use model::record::JobRecord;
use store::{Added, Changed, Deleted, JobsPage, Result, StoreError, StoredJob};

/// The characters that are percent-encoded in a path: all except letters, digits, `-`, `_`, `.` and `~`.
const PLAIN: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');

/// The answer for a client.
#[derive(Debug)]
pub(super) struct ApiResponse {
    status: StatusCode,
    location: Option<String>,
    etag: Option<String>,
    pub json: Vec<u8>,
    content_type: &'static str,
    headers: Vec<(&'static str, String)>,
    /// For a batch: true if some jobs could not be stored now.
    unfinished: bool,
    /// What the handler adds to the entry of the audit log.
    noted: Option<AuditNote>,
}

impl ApiResponse {
    pub(super) fn new(status: StatusCode, value: &impl Serialize) -> ApiResponse {
        let json = serde_json::to_vec(value).expect("answers are plain values");
        ApiResponse { json, ..ApiResponse::without_body(status) }
    }

    /// An answer that is not JSON, with headers.
    pub(super) fn text(
        content_type: &'static str,
        text: String,
        headers: Vec<(&'static str, String)>,
    ) -> ApiResponse {
        ApiResponse {
            json: text.into_bytes(),
            content_type,
            headers,
            ..ApiResponse::without_body(StatusCode::OK)
        }
    }

    /// An answer without a body: the request is done.
    pub(super) fn done() -> ApiResponse {
        ApiResponse::without_body(StatusCode::NO_CONTENT)
    }

    fn without_body(status: StatusCode) -> ApiResponse {
        ApiResponse {
            status,
            location: None,
            etag: None,
            json: Vec::new(),
            content_type: "application/json",
            headers: Vec::new(),
            unfinished: false,
            noted: None,
        }
    }

    /// Adds details for the entry of the audit log.
    pub(super) fn noting(self, noted: AuditNote) -> ApiResponse {
        ApiResponse { noted: Some(noted), ..self }
    }

    /// Adds the revision as the `ETag`.
    pub(super) fn with_etag(self, revision: String) -> ApiResponse {
        ApiResponse { etag: Some(format!("\"{revision}\"")), ..self }
    }

    /// Adds the path of the new job or topic as the `Location`.
    pub(super) fn at(self, location: String) -> ApiResponse {
        ApiResponse { location: Some(location), ..self }
    }
}

impl IntoResponse for ApiResponse {
    fn into_response(self) -> Response {
        let content_type = HeaderValue::from_static(self.content_type);
        let mut response = match self.status {
            StatusCode::NO_CONTENT => self.status.into_response(),
            status => (status, [(CONTENT_TYPE, content_type)], self.json).into_response(),
        };
        if self.unfinished {
            response.extensions_mut().insert(PartialResultMark);
        }
        if let Some(noted) = self.noted {
            response.extensions_mut().insert(noted);
        }
        for (name, value) in self.headers {
            // A node's name may have any character. A header that cannot be sent is left out.
            if let Ok(value) = HeaderValue::try_from(value) {
                response.headers_mut().insert(name, value);
            }
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

/// The response to a get. A job that has ended is not found, but its last record says how it ended. `sees_answers`: the
/// caller may see what receivers answered.
pub(super) fn job(
    key: &JobKey,
    view: Option<&StoredJob>,
    records: &[JobRecord],
    sees_answers: bool,
) -> Result<ApiResponse, Problem> {
    let ended = || records.first().map(RecordResponse::from);
    let view = view.ok_or_else(|| Problem::not_found(key).with_end(ended().as_ref()))?;
    Ok(ApiResponse::new(StatusCode::OK, &JobResponse::new(view, sees_answers)))
}

/// The response to a delete.
pub(super) fn deleted(key: &JobKey, deleted: Result<Deleted>) -> Result<ApiResponse, Problem> {
    match deleted? {
        Deleted::Done => Ok(ApiResponse::done()),
        Deleted::Spooled => Ok(ApiResponse::new(StatusCode::ACCEPTED, &SpooledDeletion { spooled: true })),
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
/// `sees_answers`: the caller may see what receivers answered.
pub(super) fn page(
    topic: &TopicName,
    is_registered: bool,
    page: Result<JobsPage>,
    sees_answers: bool,
) -> Result<ApiResponse, Problem> {
    let page = page?;
    // After a topic was removed, the jobs that remain can still be listed.
    if page.jobs.is_empty() && page.next.is_none() && !is_registered {
        return Err(Problem::unknown_topic(topic));
    }
    let jobs = page.jobs.iter().map(|view| JobResponse::new(view, sees_answers)).collect();
    let next = page.next.as_deref().map(cursor::write);
    Ok(ApiResponse::new(StatusCode::OK, &JobList { jobs, next, away: page.away }))
}

/// Returns the result of an add that was not refused, and its status.
fn outcome<'a>(
    topic: &'a TopicName,
    id: &'a JobId,
    added: Result<Added>,
) -> Result<(StatusCode, AddedJob<'a>), Problem> {
    let (status, outcome, due_ms) = match added? {
        Added::New { due_ms } => (StatusCode::CREATED, AddOutcomeWord::New, due_ms),
        Added::Replaced { due_ms } => (StatusCode::OK, AddOutcomeWord::Replaced, due_ms),
        Added::Kept { due_ms } => (StatusCode::OK, AddOutcomeWord::Kept, due_ms),
        Added::Spooled { due_ms } => (StatusCode::ACCEPTED, AddOutcomeWord::Spooled, due_ms),
        Added::Rejected => {
            let detail = format!("a job {:?} is there already", id.as_str());
            return Err(Problem::conflict("exists", detail));
        }
    };
    Ok((status, AddedJob::new(topic, id, outcome, due_ms)))
}

/// The response to an add.
pub(super) fn added(key: &JobKey, added: Result<Added>) -> Result<ApiResponse, Problem> {
    let (status, outcome) = outcome(&key.topic, &key.id, added)?;
    let id = utf8_percent_encode(key.id.as_str(), PLAIN);
    let location = format!("/v1/topics/{}/jobs/{id}", key.topic);
    let response = ApiResponse::new(status, &outcome);
    Ok(ApiResponse { location: (status == StatusCode::CREATED).then_some(location), ..response })
}

/// Builds the answer to a batch: one result for each job, in the order of the request.
pub(super) fn batch<'a>(
    topic: &'a TopicName,
    items: &'a [Result<JobId, Problem>],
    added: Vec<Result<Added>>,
) -> ApiResponse {
    let unfinished = added.iter().any(Result::is_err);
    let mut added = added.into_iter();
    let mut result = |item: &'a Result<JobId, Problem>| match item {
        Err(problem) => AddResult::Refused(RefusedAdd { problem: problem.clone(), id: None }),
        Ok(id) => {
            let answer = added.next().unwrap_or_else(|| Err(StoreError::Unknown("no answer".into())));
            match outcome(topic, id, answer) {
                Ok((status, job)) => AddResult::Done(SuccessfulAdd { status: status.as_u16(), job }),
                Err(problem) => AddResult::Refused(RefusedAdd { problem, id: Some(id.to_string()) }),
            }
        }
    };
    let results = items.iter().map(&mut result).collect();
    ApiResponse { unfinished, ..ApiResponse::new(StatusCode::OK, &AddedJobs { results }) }
}
