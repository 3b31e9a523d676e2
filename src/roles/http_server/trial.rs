//! `test`: calls a topic's callback once, now, by the rules by which jobs are delivered, and tells what came of it. It is no job:
//! nothing is stored, counted or tried again, and the receiver sees that by a header.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use axum::extract::State;
use axum::http::StatusCode;
use jiff::tz::TimeZone;
use serde::Serialize;
use tokio::sync::Semaphore;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::api::{Api, InTopic, Sent};
use super::input::{Fields, or_empty};
use super::problem::Problem;
use super::schema;
use super::told::Told;
use crate::callback::{Caller, Delivery, Ended, Verdict};
use crate::job::{Body, JobId, JobKey};
use crate::process::{now_ms, random_name};
use crate::settings::Settings;
use crate::topic::Topic;

/// So many are called at the same time.
const MOST: usize = 4;

/// How long a callback is waited for at most, whatever its topic says.
const PATIENCE: Duration = Duration::from_secs(30);

/// How long a name may take to be looked up when a topic is saved.
const LOOK_UP: Duration = Duration::from_secs(2);

/// Makes the calls. Cheap to clone.
#[derive(Clone)]
pub(super) struct Trials {
    caller: Arc<Caller>,
    free: Arc<Semaphore>,
}

impl Trials {
    pub(super) fn new(settings: &Settings, zone: TimeZone) -> io::Result<Trials> {
        let caller = Caller::new(1, &settings.callback, zone)?;
        Ok(Trials { caller: Arc::new(caller), free: Arc::new(Semaphore::new(MOST)) })
    }

    /// Refuses a callback that the guard would not call. One whose name nobody knows now may be saved.
    pub(super) async fn check(&self, callback: &str) -> Result<(), Problem> {
        let (caller, url) = (Arc::clone(&self.caller), callback.to_owned());
        let looked = tokio::task::spawn_blocking(move || caller.denies(&url, LOOK_UP)).await;
        match looked.ok().flatten() {
            Some(why) => Err(Problem::field("callback", format!("callback: {why}"))),
            None => Ok(()),
        }
    }
}

pub(super) fn routes() -> OpenApiRouter<Api> {
    OpenApiRouter::new().routes(routes!(test))
}

/// What a receiver is sent.
#[derive(ToSchema, Serialize)]
#[serde(deny_unknown_fields)]
#[allow(dead_code)]
#[schema(as = TestCall, example = json!({"body": {"order": 42}}))]
pub(super) struct Wanted {
    /// Any JSON value; `{"test": true}`, if it is missing.
    #[schema(required = false)]
    body: serde_json::Value,
}

/// What came of a call.
#[derive(Serialize, ToSchema)]
#[schema(as = TestOutcome)]
pub(super) struct Came {
    outcome: Outcome,
    /// The status of the receiver's answer; null: there was none.
    #[schema(required = true)]
    status: Option<u16>,
    duration_ms: u64,
    /// The first characters of the answer.
    answer: String,
    /// Why it was not accepted; null: it was.
    #[schema(required = true)]
    error: Option<String>,
    url: String,
    sent: SentRequest,
    /// Of the receiver's answer, as `[name, value]`; empty: there was none.
    answer_headers: Vec<(String, String)>,
}

/// The request, as it was sent.
#[derive(Serialize, ToSchema)]
struct SentRequest {
    /// Method and target, such as `POST /hook`; empty: it was not sent.
    request: String,
    /// As `[name, value]`, in no order. Signatures and what authorizes are `…`.
    headers: Vec<(String, String)>,
    body: String,
}

/// What a job would have become.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
#[schema(as = Verdict)]
pub(super) enum Outcome {
    /// Done.
    Accepted,
    /// Tried again.
    Failed,
    /// A dead letter at once: the receiver is gone (410) or says `dq-retry: no`, or `retry_on` does not name the failure.
    Refused,
}

/// Calls the topic's callback once, now. 200 whatever the receiver says; nothing is stored or tried again.
#[utoipa::path(post, path = "/v1/topics/{topic}/test", tag = "topics", operation_id = "test_topic",
    params(schema::TopicPath, schema::IdempotencyKey), request_body(content = Option<Wanted>, content_type = "application/json"),
    responses((status = 200, body = Came, description = "What came of it"), schema::ChangeProblems))]
async fn test(State(api): State<Api>, InTopic(name): InTopic, Sent(json): Sent) -> Result<Told, Problem> {
    let topic = api.topic(&name)?;
    let fields = Fields::of(or_empty(&json), &["body"])?;
    let body = match fields.raw("body") {
        Some(raw) => Body::from(raw),
        None => Body::trusted("{\"test\":true}"),
    };
    if let Some(why) = topic.held() {
        return Err(Problem::conflict("topic_offline", format!("topic {name} is offline: {why}")));
    }
    if topic.callback.is_empty() {
        return Err(Problem::conflict("no_callback", format!("topic {name} has no callback: it is pulled")));
    }
    let Ok(permit) = Arc::clone(&api.trials.free).try_acquire_owned() else {
        let detail = format!("{MOST} callbacks are being tested already");
        return Err(Problem::unavailable("too_many_tests", detail));
    };
    let id = random_name().map_err(|e| Problem::unavailable("no_random", e.to_string()))?;
    let id = JobId::new(format!("test-{id}")).map_err(|e| Problem::invalid("id", &e))?;
    let now = now_ms();
    let key = JobKey { topic: name, id };
    let (headers, ack_url) = (Vec::new(), None);
    let delivery = Delivery { key, body, attempt: 1, due_ms: now, stamp_us: now * 1000, headers, ack_url };
    let topic = Topic { timeout: topic.timeout.min(PATIENCE), ..(*topic).clone() };
    let (caller, url) = (Arc::clone(&api.trials.caller), topic.callback.clone());
    let call = move || {
        let _permit = permit;
        caller.test(&topic, &delivery)
    };
    let called = tokio::task::spawn_blocking(call).await;
    let Ended { verdict, attempt, seen, .. } =
        called.map_err(|_| Problem::unavailable("no_thread", "nobody could call"))?;
    let seen = seen.map(|seen| *seen).unwrap_or_default();
    let outcome = match verdict {
        // A test sends no ack_url: nobody can answer it later.
        Verdict::Accepted | Verdict::Later => Outcome::Accepted,
        Verdict::Failed { .. } => Outcome::Failed,
        Verdict::Refused { .. } => Outcome::Refused,
    };
    let came = Came {
        outcome,
        status: attempt.status,
        duration_ms: attempt.took_ms,
        answer: attempt.answer,
        error: Some(attempt.error).filter(|e| !e.is_empty()),
        url,
        sent: SentRequest { request: seen.request, headers: seen.headers, body: seen.body },
        answer_headers: seen.answer_headers,
    };
    Ok(Told::new(StatusCode::OK, &came))
}
