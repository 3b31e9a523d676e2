//! The audit log: what is changed through the API is noted in the registry, with who has done it; and the route that shows it.
//!
//! An entry is written when a change is done, before it is answered; a registry that takes longer is not waited for, and where it
//! is away, the log of the process has the entry.

use std::time::Duration;

use axum::extract::{FromRequestParts, MatchedPath, RawPathParams, RawQuery, Request, State};
use axum::http::request::Parts;
use axum::http::{Method, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::access::{Caller, is_route};
use super::api::Api;
use super::cursor;
use super::input;
use super::problem::Problem;
use super::registrar::Registrar;
use super::schema;
use super::told::Told;
use crate::audit::Entry;
use crate::excerpt::Excerpt;
use crate::process::now_ms;

/// How many entries are shown at once: by default, and at most.
const LIMITS: [usize; 2] = [50, 500];

/// Whose changes are noted.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Of {
    /// Everybody's.
    All,
    /// Those of people: clients add and change jobs all the time.
    People,
}

/// What is noted, and what it is called.
#[rustfmt::skip]
const NOTED: &[(&str, &str, &str, Of)] = &[
    ("POST",   "/v1/topics",                   "topic.create",   Of::All),
    ("PUT",    "/v1/topics/{t}",               "topic.set",      Of::All),
    ("PATCH",  "/v1/topics/{t}",               "topic.change",   Of::All),
    ("DELETE", "/v1/topics/{t}",               "topic.delete",   Of::All),
    ("POST",   "/v1/topics/{t}/pause",         "topic.pause",    Of::All),
    ("POST",   "/v1/topics/{t}/resume",        "topic.resume",   Of::All),
    ("POST",   "/v1/topics/{t}/test",          "topic.test",     Of::All),
    ("POST",   "/v1/topics/{t}/dead/redrive",  "dead.redrive",   Of::All),
    ("POST",   "/v1/topics/{t}/dead/purge",    "dead.purge",     Of::All),
    ("POST",   "/v1/topics/{t}/jobs",          "job.add",        Of::People),
    ("POST",   "/v1/topics/{t}/jobs/batch",    "job.add",        Of::People),
    ("PATCH",  "/v1/topics/{t}/jobs/{id}",     "job.change",     Of::People),
    ("PATCH",  "/v1/topics/{t}/jobs/batch",    "job.change",     Of::People),
    ("DELETE", "/v1/topics/{t}/jobs/batch",    "job.delete",     Of::People),
    ("DELETE", "/v1/topics/{t}/jobs/{id}",     "job.delete",     Of::People),
    ("POST",   "/v1/topics/{t}/jobs/{id}/run", "job.run",        Of::People),
    ("POST",   "/v1/tokens",                   "token.create",   Of::All),
    ("DELETE", "/v1/tokens/{name}",            "token.revoke",   Of::All),
    ("PUT",    "/v1/accounts/{name}",          "account.set",    Of::All),
    ("DELETE", "/v1/accounts/{name}",          "account.remove", Of::All),
    ("POST",   "/v1/alerts/test",              "alert.test",     Of::All),
];

/// What a handler adds to an entry; among an answer's extensions.
#[derive(Debug, Clone, Default)]
pub(super) struct Noted {
    /// Nothing was changed.
    pub is_nothing: bool,
    /// To what it was done; none: as the path says.
    pub target: Option<String>,
    pub detail: String,
    pub jobs: Option<usize>,
}

/// What a request would be noted as.
fn action(method: &Method, route: &str, caller: &Caller) -> Option<&'static str> {
    let is_person = matches!(caller, Caller::Account(_) | Caller::Local(_));
    let (.., action, of) =
        NOTED.iter().find(|(m, known, ..)| *m == method.as_str() && is_route(known, route))?;
    (*of == Of::All || is_person).then_some(*action)
}

/// What a path names, with slashes between.
async fn target(parts: &mut Parts) -> String {
    let params = RawPathParams::from_request_parts(parts, &()).await;
    let values: Vec<String> = params.iter().flatten().map(|(_, value)| value.to_owned()).collect();
    values.join("/")
}

/// How long an answer waits for its entry.
const PATIENCE: Duration = Duration::from_secs(1);

/// Has a request done, and notes what it has changed. Both go on when whoever asks has gone: what is changed is noted.
pub(super) async fn noted<F: Future<Output = Response> + Send + 'static>(
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
    let target = target(&mut parts).await;
    let (answer, registrar) = (next(Request::from_parts(parts, body)), registrar.clone());
    let done = tokio::spawn(async move {
        let response = answer.await;
        if let Some(entry) = entry(&response, caller, action, target) {
            // It is written also when nobody waits for it any more.
            let note = tokio::spawn(note(registrar, entry));
            let _ = tokio::time::timeout(PATIENCE, note).await;
        }
        response
    });
    done.await.unwrap_or_else(|_| Problem::unavailable("no_thread", "nobody could do it").into_response())
}

async fn note(registrar: Registrar, entry: Entry) {
    let written = entry.clone();
    if let Err(e) = registrar.ask(move |registry| registry.note(&written)).await {
        let Entry { who, action, target, detail, .. } = &entry;
        let (target, detail, jobs) = (Excerpt(target), Excerpt(detail), entry.jobs.unwrap_or_default());
        log::warn!("cannot note in the audit log: {e}: {who} {action} {target:?} {detail:?} ({jobs} jobs)");
    }
}

/// What is noted of a request that was answered so; none: it has changed nothing.
fn entry(response: &Response, caller: Caller, action: &str, target: String) -> Option<Entry> {
    let Noted { is_nothing, target: to, detail, jobs } =
        response.extensions().get::<Noted>().cloned().unwrap_or_default();
    let is_repeat = response.headers().contains_key("idempotency-replayed");
    let outcome = match response.status() {
        status if status.is_success() => "",
        // Some of it may have been done, or all.
        StatusCode::SERVICE_UNAVAILABLE | StatusCode::GATEWAY_TIMEOUT => "not done, or not known to be done",
        _ => return None,
    };
    if is_nothing || is_repeat {
        return None;
    }
    let detail = [detail.as_str(), outcome].into_iter().filter(|text| !text.is_empty()).collect::<Vec<_>>();
    Some(Entry {
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

/// Something that was changed.
#[derive(Serialize, ToSchema)]
#[schema(as = AuditEntry)]
struct Shown {
    at_ms: i64,
    /// `root`, `account ann`, `token shop`; empty: whoever reaches a port that asks for nothing.
    who: String,
    /// Such as `topic.pause`.
    action: String,
    /// A topic, a job as `topic/id`, a token, an account.
    target: String,
    detail: String,
    /// With how many jobs it was done; null: it is not about a number of them.
    #[schema(required = true)]
    jobs: Option<u64>,
}

/// A page of the audit log.
#[derive(Serialize, ToSchema)]
#[schema(as = Audit)]
struct Page {
    /// The latest first.
    entries: Vec<Shown>,
    /// What `cursor` takes for those before them; null: there are none.
    #[schema(required = true)]
    next: Option<String>,
}

/// Shows who changed what, the latest first. Entries are kept for 90 days.
#[utoipa::path(get, path = "/v1/audit", tag = "daemon", operation_id = "get_audit",
    params(schema::AuditQuery),
    responses((status = 200, body = Page, description = "A page of it"), schema::FindProblems))]
async fn list(State(api): State<Api>, RawQuery(query): RawQuery) -> Result<Told, Problem> {
    let query = query.unwrap_or_default();
    let (cursor, limit) = input::page_with(&query, &["limit", "cursor"], LIMITS, |_, _| Ok(()))?;
    let strange = |_| Problem::field("cursor", "cursor is not what another page gave in next");
    let before: Option<u64> = cursor.map(|cursor| cursor.parse()).transpose().map_err(strange)?;
    api.registrar.keeps("the audit log")?;
    let mut page = api.registrar.ask(move |registry| registry.audit(before, limit + 1)).await?;
    let has_more = page.len() > limit;
    page.truncate(limit);
    let next = page.last().filter(|_| has_more).map(|(number, _)| cursor::shown(&number.to_string()));
    let shown = |(_, entry): (u64, Entry)| {
        let Entry { at_ms, who, action, target, detail, jobs } = entry;
        Shown { at_ms, who, action, target, detail, jobs }
    };
    Ok(Told::new(StatusCode::OK, &Page { entries: page.into_iter().map(shown).collect(), next }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::token::TokenName;

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
