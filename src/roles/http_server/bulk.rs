//! The routes of operations on many jobs. The routes begin, show and stop operations, and count what an operation would
//! change. `bulk_runner` does the work itself.

use std::time::{Duration, Instant};

use axum::extract::{Extension, RawQuery, State};
use axum::http::StatusCode;
use serde::Serialize;
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::access::Caller;
use super::api::{Api, CallerContext, NameInPath};
use super::api_response::ApiResponse;
use super::audit::AuditNote;
use super::body::JsonBody;
use super::bulk_input::{self, BulkBody};
use super::cursor;
use super::input;
use super::pool::PoolHolder;
use super::problem::Problem;
use super::schema;
use super::store_client::AnswerSender;
use host::now_ms;
use model::bulk::{BulkOperation, BulkProgress, BulkRequest, RUNNING_MAX, StoredBulkOperation};
use model::job::State as JobState;
use model::json_time;
use model::scope::RequiredAccess;
use role::submit::StoreRequest;

/// The default and the maximum number of operations in a page.
const LIMITS: [usize; 2] = [50, 200];

/// The maximum time that a dry run counts, and the maximum number of jobs that it looks at.
const PATIENCE: Duration = Duration::from_secs(5);
const LOOKS: u64 = 1_000_000;

pub(super) fn routes() -> OpenApiRouter<Api> {
    OpenApiRouter::new().routes(routes!(list, begin)).routes(routes!(show)).routes(routes!(stop))
}

/// The operation that a path names.
#[derive(IntoParams)]
#[into_params(parameter_in = Path)]
#[allow(dead_code)]
struct BulkPath {
    /// The number of the operation.
    #[param(minimum = 1)]
    number: u64,
}

/// Which operations are shown.
#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
#[allow(dead_code)]
struct BulkQuery {
    /// The maximum number of operations in the page, 50 by default.
    #[param(minimum = 1, maximum = 200, required = false)]
    limit: u32,
    /// The value of `next` in the page before.
    #[param(required = false)]
    cursor: String,
}

/// How many jobs an operation would change.
#[derive(Serialize, ToSchema)]
#[schema(as = BulkDryRun)]
pub(super) struct BulkDryRunResponse {
    /// The number of jobs that the operation would change, among the jobs that were looked at.
    matched: u64,
    /// The number of jobs that the filter selects but the operation would not change, among the jobs that were looked
    /// at.
    skipped: u64,
    looked_at: u64,
    /// Whether all jobs were looked at. If not, the operation may change more than `matched`.
    is_complete: bool,
}

/// An operation on many jobs.
#[derive(Serialize, ToSchema)]
#[schema(as = BulkState)]
pub(super) struct BulkResponse {
    number: u64,
    topic: String,
    /// `cancel`, `reschedule`, `run`, `redrive` or `replay`.
    operation: &'static str,
    /// `reschedule`: the new due time. If the jobs are spread over a span, this is the beginning of the span. Null for
    /// `reschedule` with `by`, and for the other operations.
    #[schema(required = true)]
    at: Option<String>,
    /// `reschedule`: by how many milliseconds the due times change. Negative: the jobs are due earlier.
    #[schema(required = true)]
    by_ms: Option<i64>,
    /// `reschedule`: the length of the span in milliseconds.
    #[schema(required = true)]
    spread_ms: Option<i64>,
    filter: BulkFilterResponse,
    /// The maximum number of jobs changed per second.
    rate: u32,
    /// `running`, `stopping`, `done`, `stopped` or `failed`.
    state: &'static str,
    /// How many jobs or records were looked at.
    looked_at: u64,
    /// How many jobs were changed.
    changed: u64,
    /// How many jobs were not changed, although the filter selects them.
    skipped: u64,
    /// How many jobs this operation may or may not have changed. If a process dies or the store does not answer, a step
    /// is done again. Jobs that something else has changed meanwhile are counted here. The jobs of a step are also
    /// counted here if the operation is stopped while the store does not answer.
    unclear: u64,
    /// What a running operation waits for, or why the operation failed. Null: the operation waits for nothing, and has
    /// not failed.
    #[schema(required = true)]
    error: Option<String>,
    started_ms: i64,
    #[schema(required = true)]
    ended_ms: Option<i64>,
    /// Who began the operation.
    by: String,
}

/// The conditions of a filter. A condition that is null is not checked.
#[derive(Serialize, ToSchema)]
#[schema(as = BulkFilterShown)]
pub(super) struct BulkFilterResponse {
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<schema::StateWord>)]
    state: Option<JobState>,
    #[serde(skip_serializing_if = "Option::is_none")]
    id_prefix: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tag: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    due_since: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    due_until: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    outcome: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    since: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    until: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<String>,
}

/// A page of operations.
#[derive(Serialize, ToSchema)]
#[schema(as = BulkList)]
pub(super) struct BulkPage {
    /// The operations, the latest first.
    operations: Vec<BulkResponse>,
    /// The value of `cursor` for the next page. Null: this is the last page.
    #[schema(required = true)]
    next: Option<String>,
}

impl BulkResponse {
    fn new(row: StoredBulkOperation) -> BulkResponse {
        let StoredBulkOperation { number, who, request, progress, started_ms, is_stopping, ended } = row;
        let moment = |ms: Option<i64>| ms.map(json_time::rfc3339);
        let (at_ms, by_ms, spread_ms) = match request.operation {
            BulkOperation::At { at_ms } => (Some(at_ms), None, None),
            BulkOperation::Shift { by_ms } => (None, Some(by_ms), None),
            BulkOperation::Spread { from_ms, over_ms } => (Some(from_ms), None, Some(over_ms)),
            _ => (None, None, None),
        };
        let filter = request.filter;
        let counts = progress.counts;
        BulkResponse {
            number,
            topic: request.topic.to_string(),
            operation: request.operation.word(),
            at: moment(at_ms),
            by_ms,
            spread_ms,
            filter: BulkFilterResponse {
                state: filter.states.first().copied(),
                id_prefix: Some(filter.id_prefix).filter(|prefix| !prefix.is_empty()),
                tag: filter.tag,
                due_since: moment(filter.due_since_ms),
                due_until: moment(filter.due_until_ms),
                outcome: filter.outcome.map(model::record::Ending::word),
                since: moment(filter.since_ms),
                until: moment(filter.until_ms),
                status: filter.status,
                text: filter.text,
            },
            rate: request.rate,
            state: match ended {
                Some((end, _)) => end.word(),
                None if is_stopping => "stopping",
                None => "running",
            },
            looked_at: counts.looked_at,
            changed: counts.changed,
            skipped: counts.skipped,
            unclear: counts.unclear,
            error: progress.waits_for,
            started_ms,
            ended_ms: ended.map(|(_, at_ms)| at_ms),
            by: who,
        }
    }
}

/// Begins an operation on all jobs of a topic that a filter selects. It runs in the background, and survives the death
/// of any process. With `dry_run`, counts the jobs instead.
#[utoipa::path(post, path = "/v1/jobs/bulk", tag = "jobs", operation_id = "begin_bulk",
    params(schema::IdempotencyKey),
    request_body(content = BulkBody, content_type = "application/json"),
    responses((status = 202, body = BulkResponse, description = "The operation has begun"),
        (status = 200, body = BulkDryRunResponse, description = "How many jobs it would change"), schema::ChangeErrorResponses))]
async fn begin(
    State(api): State<Api>,
    requester: CallerContext,
    Extension(caller): Extension<Caller>,
    JsonBody(json): JsonBody,
) -> Result<ApiResponse, Problem> {
    let (mut request, is_dry_run) = bulk_input::read(&json)?;
    may(&requester, &caller, &request)?;
    request.hides_answers = !requester.sees_answers(&request.topic);
    api.topic(&request.topic)?;
    if is_dry_run {
        let counted = api.count_bulk(request, requester.holder).await?;
        let nothing = AuditNote { is_nothing: true, ..AuditNote::default() };
        return Ok(ApiResponse::new(StatusCode::OK, &counted).noting(nothing));
    }
    api.registrar.takes("operations on many jobs")?;
    let (asked, who, at_ms) = (request.clone(), caller.to_string(), now_ms());
    let begun = api.registrar.ask(move |registry| registry.begin_bulk(&asked, &who, at_ms)).await?;
    let Some(number) = begun else {
        let detail = format!(
            "{RUNNING_MAX} operations on many jobs are running: wait until one has ended, or stop one"
        );
        return Err(Problem::conflict("too_many", detail));
    };
    api.bulk.wake();
    let target = Some(request.topic.to_string());
    let detail = format!("operation {number}: {}", summary(&request));
    let row = StoredBulkOperation {
        number,
        who: caller.to_string(),
        request,
        progress: BulkProgress::default(),
        started_ms: at_ms,
        is_stopping: false,
        ended: None,
    };
    let noted = AuditNote { target, detail, ..AuditNote::default() };
    let shown = ApiResponse::new(StatusCode::ACCEPTED, &BulkResponse::new(row));
    Ok(shown.at(format!("/v1/jobs/bulk/{number}")).noting(noted))
}

/// Returns the operation and its filter, for the audit log.
fn summary(request: &BulkRequest) -> String {
    let filter = serde_json::to_string(&request.filter).unwrap_or_default();
    let operation = serde_json::to_string(&request.operation).unwrap_or_default();
    format!("{operation} {filter}")
}

/// Refuses a caller that may not manage the topic.
fn may(requester: &CallerContext, caller: &Caller, request: &BulkRequest) -> Result<(), Problem> {
    let need = RequiredAccess::Manage(request.topic.as_str());
    if requester.permits(need) {
        return Ok(());
    }
    let detail = format!("{caller} has no scope {need}, which an operation on many jobs needs");
    Err(Problem::forbidden_field("topic", detail))
}

/// Shows the operations on jobs of the topics that the caller may read, the latest first.
#[utoipa::path(get, path = "/v1/jobs/bulk", tag = "jobs", operation_id = "list_bulk", params(BulkQuery),
    responses((status = 200, body = BulkPage, description = "A page of operations"), schema::LookupErrorResponses))]
async fn list(
    State(api): State<Api>,
    requester: CallerContext,
    RawQuery(query): RawQuery,
) -> Result<ApiResponse, Problem> {
    let query = query.unwrap_or_default();
    let (cursor, limit) = input::page_with(&query, &["limit", "cursor"], LIMITS, |_, _| Ok(()))?;
    let wrong_cursor = |_| Problem::field("cursor", "cursor is not the next of another page");
    let before: Option<u64> = cursor.map(|cursor| cursor.parse()).transpose().map_err(wrong_cursor)?;
    api.registrar.keeps("operations on many jobs")?;
    let mut rows = api.registrar.ask(move |registry| registry.bulks(before, limit + 1)).await?;
    let has_more = rows.len() > limit;
    rows.truncate(limit);
    let next = rows.last().filter(|_| has_more).map(|row| cursor::write(&row.number.to_string()));
    let operations =
        rows.into_iter().filter(|row| requester.permits(RequiredAccess::Jobs(row.request.topic.as_str())));
    let operations = operations.map(BulkResponse::new).collect();
    Ok(ApiResponse::new(StatusCode::OK, &BulkPage { operations, next }))
}

/// Shows an operation: its progress, or how it ended.
#[utoipa::path(get, path = "/v1/jobs/bulk/{number}", tag = "jobs", operation_id = "get_bulk", params(BulkPath),
    responses((status = 200, body = BulkResponse, description = "The operation"), schema::LookupErrorResponses))]
async fn show(
    State(api): State<Api>,
    requester: CallerContext,
    NameInPath(number): NameInPath,
) -> Result<ApiResponse, Problem> {
    let row = api.bulk_row(&requester, &number).await?;
    Ok(ApiResponse::new(StatusCode::OK, &BulkResponse::new(row)))
}

/// Stops an operation. The changes that it has made stay. The operation ends after its current step.
#[utoipa::path(post, path = "/v1/jobs/bulk/{number}/stop", tag = "jobs", operation_id = "stop_bulk",
    params(BulkPath, schema::IdempotencyKey),
    responses((status = 202, body = BulkResponse, description = "The operation stops soon, or has ended"), schema::ChangeErrorResponses))]
async fn stop(
    State(api): State<Api>,
    requester: CallerContext,
    Extension(caller): Extension<Caller>,
    NameInPath(number): NameInPath,
    JsonBody(json): JsonBody,
) -> Result<ApiResponse, Problem> {
    input::nothing(&json)?;
    let mut row = api.bulk_row(&requester, &number).await?;
    may(&requester, &caller, &row.request)?;
    let number = row.number;
    let has_stopped = api.registrar.ask(move |registry| registry.stop_bulk(number)).await?;
    row.is_stopping = has_stopped;
    let noted = AuditNote {
        is_nothing: !has_stopped,
        target: Some(row.request.topic.to_string()),
        detail: format!("operation {number}"),
        jobs: None,
    };
    Ok(ApiResponse::new(StatusCode::ACCEPTED, &BulkResponse::new(row)).noting(noted))
}

impl Api {
    /// Returns an operation that the requester may see.
    async fn bulk_row(
        &self,
        requester: &CallerContext,
        number: &str,
    ) -> Result<StoredBulkOperation, Problem> {
        self.registrar.keeps("operations on many jobs")?;
        let detail = || format!("there is no operation {}", input::short(number));
        let not_found = || Problem::new(StatusCode::NOT_FOUND, "not_found", detail());
        let wanted: u64 = number.parse().map_err(|_| not_found())?;
        let found = self.registrar.ask(move |registry| registry.bulk(wanted)).await?;
        found
            .filter(|row| requester.permits(RequiredAccess::Jobs(row.request.topic.as_str())))
            .ok_or_else(not_found)
    }

    /// Counts what an operation would change. The function counts in steps, so that other requests get their turn.
    async fn count_bulk(
        &self,
        request: BulkRequest,
        holder: Option<PoolHolder>,
    ) -> Result<BulkDryRunResponse, Problem> {
        let (until, started_ms) = (Instant::now() + PATIENCE, now_ms());
        let (mut progress, mut matched) = (BulkProgress::default(), 0);
        loop {
            let (request, before) = (request.clone(), progress);
            let ask = |reply: AnswerSender<_>| {
                StoreRequest::look_at_many(request, started_ms, before, |found| reply.with(found))
            };
            let (after, more) = self.store_client.read(holder.clone(), ask).await??;
            matched += more;
            progress = after;
            if progress.is_looked || Instant::now() >= until || progress.counts.looked_at >= LOOKS {
                return Ok(BulkDryRunResponse {
                    matched,
                    skipped: progress.counts.skipped,
                    looked_at: progress.counts.looked_at,
                    is_complete: progress.is_looked,
                });
            }
        }
    }
}
