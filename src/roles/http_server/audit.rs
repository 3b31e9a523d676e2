//! The audit log: changes through the API are recorded in the registry, with the caller who made them. The table
//! `NOTED` lists the requests that are recorded. This source file also has the route that shows the log.
//!
//! An entry is written after the change and before the answer. The answer waits for the registry for at most
//! [`PATIENCE`]. If the registry does not answer, the entry goes to the log of the process.

use std::time::Duration;

use axum::extract::{FromRequestParts, MatchedPath, RawPathParams, RawQuery, Request, State};
use axum::http::request::Parts;
use axum::http::{Method, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::access::Caller;
use super::api::Api;
use super::api_response::ApiResponse;
use super::cursor;
use super::input;
use super::problem::Problem;
use super::registrar::Registrar;
use super::reserves::RequestShare;
use super::route_rule::is_route;
use super::schema;
use host::now_ms;
use model::audit::AuditEntry;
use model::excerpt::Excerpt;

/// The default and the maximum number of entries in a page.
const LIMITS: [usize; 2] = [50, 500];

/// Whose requests are recorded.
#[derive(Clone, Copy, PartialEq, Eq)]
enum AuditedCallers {
    /// The requests of all callers.
    All,
    /// Only the requests of people. Clients with tokens add and change jobs all the time, so their requests are not
    /// recorded.
    People,
}

/// The requests that are recorded: method, path, the name of the action, and whose requests.
#[rustfmt::skip]
const NOTED: &[(&str, &str, &str, AuditedCallers)] = &[
    ("POST",   "/v1/topics",                   "topic.create",   AuditedCallers::All),
    ("PUT",    "/v1/topics/{t}",               "topic.set",      AuditedCallers::All),
    ("PATCH",  "/v1/topics/{t}",               "topic.change",   AuditedCallers::All),
    ("DELETE", "/v1/topics/{t}",               "topic.delete",   AuditedCallers::All),
    ("POST",   "/v1/topics/{t}/pause",         "topic.pause",    AuditedCallers::All),
    ("POST",   "/v1/topics/{t}/resume",        "topic.resume",   AuditedCallers::All),
    ("POST",   "/v1/topics/{t}/test",          "topic.test",     AuditedCallers::All),
    ("POST",   "/v1/topics/{t}/rotate-secret", "topic.rotate",   AuditedCallers::All),
    ("POST",   "/v1/topics/{t}/dead/redrive",  "dead.redrive",   AuditedCallers::All),
    ("POST",   "/v1/topics/{t}/dead/purge",    "dead.purge",     AuditedCallers::All),
    ("POST",   "/v1/topics/{t}/jobs",          "job.add",        AuditedCallers::People),
    ("POST",   "/v1/topics/{t}/jobs/batch",    "job.add",        AuditedCallers::People),
    ("PATCH",  "/v1/topics/{t}/jobs/{id}",     "job.change",     AuditedCallers::People),
    ("PATCH",  "/v1/topics/{t}/jobs/batch",    "job.change",     AuditedCallers::People),
    ("DELETE", "/v1/topics/{t}/jobs/batch",    "job.delete",     AuditedCallers::People),
    ("DELETE", "/v1/topics/{t}/jobs/{id}",     "job.delete",     AuditedCallers::People),
    ("POST",   "/v1/topics/{t}/jobs/{id}/run", "job.run",        AuditedCallers::People),
    ("DELETE", "/v1/topics/{t}/jobs/{id}/records", "record.forget", AuditedCallers::All),
    ("POST",   "/v1/jobs/bulk",                "bulk.start",     AuditedCallers::All),
    ("POST",   "/v1/jobs/bulk/{n}/stop",       "bulk.stop",      AuditedCallers::All),
    ("POST",   "/v1/tokens",                   "token.create",   AuditedCallers::All),
    ("DELETE", "/v1/tokens/{name}",            "token.revoke",   AuditedCallers::All),
    ("PUT",    "/v1/accounts/{name}",          "account.set",    AuditedCallers::All),
    ("DELETE", "/v1/accounts/{name}",          "account.remove", AuditedCallers::All),
    ("POST",   "/v1/alerts/test",              "alert.test",     AuditedCallers::All),
];

/// What a handler adds to an entry. The value is an extension of the answer.
#[derive(Debug, Clone, Default)]
pub(super) struct AuditNote {
    /// True if nothing was changed.
    pub is_nothing: bool,
    /// The target of the change. None: the target is in the parameters of the path.
    pub target: Option<String>,
    pub detail: String,
    pub jobs: Option<usize>,
}

/// Returns the name of the action that is recorded for a request. None: the request is not recorded.
fn action(method: &Method, route: &str, caller: &Caller) -> Option<&'static str> {
    let is_person = matches!(caller, Caller::Account(_) | Caller::Local(_));
    let (.., action, of) =
        NOTED.iter().find(|(m, known, ..)| *m == method.as_str() && is_route(known, route))?;
    (*of == AuditedCallers::All || is_person).then_some(*action)
}

/// Returns the parameters of a path, joined by slashes.
async fn target(parts: &mut Parts) -> String {
    let params = RawPathParams::from_request_parts(parts, &()).await;
    let values: Vec<String> = params.iter().flatten().map(|(_, value)| value.to_owned()).collect();
    values.join("/")
}

/// The maximum time that an answer waits for its entry.
const PATIENCE: Duration = Duration::from_secs(1);

/// Runs a request, and records what it changed. The request and the recording continue even if the client disconnects,
/// so that each change gets its entry.
pub(super) async fn record_changes<F: Future<Output = Response> + Send + 'static>(
    registrar: &Registrar,
    request: Request,
    next: impl FnOnce(Request) -> F,
) -> Response {
    let caller = request.extensions().get::<Caller>().cloned();
    let route = request.extensions().get::<MatchedPath>();
    let named = route.zip(caller.as_ref()).and_then(|(route, c)| action(request.method(), route.as_str(), c));
    let (Some(action), Some(caller), true) = (named, caller, registrar.is_there()) else {
        return next(request).await;
    };
    let (mut parts, body) = request.into_parts();
    let place = parts.extensions.get::<RequestShare>().cloned();
    let target = target(&mut parts).await;
    let (answer, registrar) = (next(Request::from_parts(parts, body)), registrar.clone());
    let done = tokio::spawn(async move {
        // The request keeps its place until it is done, even if the client disconnects.
        let _place = place;
        let response = answer.await;
        if let Some(entry) = entry(&response, caller, action, target) {
            // The entry is written even if the answer no longer waits for it.
            let note = tokio::spawn(note(registrar, entry));
            let _ = tokio::time::timeout(PATIENCE, note).await;
        }
        response
    });
    done.await.unwrap_or_else(|_| Problem::unavailable("no_thread", "the task failed").into_response())
}

async fn note(registrar: Registrar, entry: AuditEntry) {
    let written = entry.clone();
    if let Err(e) = registrar.ask(move |registry| registry.note(&written)).await {
        let AuditEntry { who, action, target, detail, .. } = &entry;
        let (target, detail, jobs) = (Excerpt(target), Excerpt(detail), entry.jobs.unwrap_or_default());
        log::warn!("cannot write to the audit log: {e}: {who} {action} {target:?} {detail:?} ({jobs} jobs)");
    }
}

/// Returns the entry for an answered request. None: the request changed nothing.
fn entry(response: &Response, caller: Caller, action: &str, target: String) -> Option<AuditEntry> {
    let AuditNote { is_nothing, target: to, detail, jobs } =
        response.extensions().get::<AuditNote>().cloned().unwrap_or_default();
    let is_repeat = response.headers().contains_key("idempotency-replayed");
    let outcome = match response.status() {
        status if status.is_success() => "",
        // Some or all of the change may have been made.
        StatusCode::SERVICE_UNAVAILABLE | StatusCode::GATEWAY_TIMEOUT => "not done, or outcome unknown",
        _ => return None,
    };
    if is_nothing || is_repeat {
        return None;
    }
    let detail = [detail.as_str(), outcome].into_iter().filter(|text| !text.is_empty()).collect::<Vec<_>>();
    Some(AuditEntry {
        at_ms: now_ms(),
        who: caller.to_string(),
        action: action.to_owned(),
        target: to.unwrap_or(target),
        detail: detail.join("; "),
        jobs: jobs.map(|jobs| jobs as u64),
    })
}

pub(super) fn routes() -> OpenApiRouter<Api> {
    OpenApiRouter::new().routes(routes!(list))
}

/// An entry of the audit log.
#[derive(Serialize, ToSchema)]
#[schema(as = AuditEntry)]
struct AuditEntryResponse {
    at_ms: i64,
    /// The caller: `root`, `account ann`, `token shop`. Empty for a caller that needed no token.
    who: String,
    /// The action, such as `topic.pause`.
    action: String,
    /// The target: a topic, a job as `topic/id`, a token, an account.
    target: String,
    detail: String,
    /// The number of jobs that were changed. Null if the action does not count jobs.
    #[schema(required = true)]
    jobs: Option<u64>,
}

/// A page of the audit log.
#[derive(Serialize, ToSchema)]
#[schema(as = Audit)]
struct AuditPage {
    /// The entries, the latest first.
    entries: Vec<AuditEntryResponse>,
    /// The value of `cursor` for the next page, which has older entries. Null: this is the last page.
    #[schema(required = true)]
    next: Option<String>,
}

/// Shows who changed what, the latest first. Entries are kept for 90 days.
#[utoipa::path(get, path = "/v1/audit", tag = "daemon", operation_id = "get_audit",
    params(schema::AuditQuery),
    responses((status = 200, body = AuditPage, description = "A page of the audit log"), schema::LookupErrorResponses))]
async fn list(State(api): State<Api>, RawQuery(query): RawQuery) -> Result<ApiResponse, Problem> {
    let query = query.unwrap_or_default();
    let (cursor, limit) = input::page_with(&query, &["limit", "cursor"], LIMITS, |_, _| Ok(()))?;
    let wrong_cursor = |_| Problem::field("cursor", "cursor is not the next of another page");
    let before: Option<u64> = cursor.map(|cursor| cursor.parse()).transpose().map_err(wrong_cursor)?;
    api.registrar.keeps("the audit log")?;
    let mut page = api.registrar.ask(move |registry| registry.audit(before, limit + 1)).await?;
    let has_more = page.len() > limit;
    page.truncate(limit);
    let next = page.last().filter(|_| has_more).map(|(number, _)| cursor::write(&number.to_string()));
    let shown = |(_, entry): (u64, AuditEntry)| {
        let AuditEntry { at_ms, who, action, target, detail, jobs } = entry;
        AuditEntryResponse { at_ms, who, action, target, detail, jobs }
    };
    Ok(ApiResponse::new(StatusCode::OK, &AuditPage { entries: page.into_iter().map(shown).collect(), next }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::token::TokenName;

    #[test]
    fn changes_of_jobs_are_noted_when_a_person_makes_them() {
        let person = Caller::Account(TokenName::new("ann").unwrap());
        let client = Caller::Token(TokenName::new("shop").unwrap());
        let run = "/v1/topics/{topic}/jobs/{id}/run";
        assert_eq!(action(&Method::POST, run, &person), Some("job.run"));
        assert_eq!(action(&Method::POST, run, &Caller::Local(0)), Some("job.run"));
        assert_eq!(action(&Method::POST, run, &client), None);
        assert_eq!(action(&Method::POST, "/v1/topics/{topic}/pause", &client), Some("topic.pause"));
        assert_eq!(action(&Method::GET, "/v1/topics", &person), None);
        assert_eq!(action(&Method::POST, "/v1/check/topic", &person), None);
    }
}
