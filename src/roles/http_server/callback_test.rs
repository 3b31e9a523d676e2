//! The test of a callback. A test calls a topic's callback once, immediately, by the rules for jobs, and returns the
//! result. A test is not a job, so nothing is stored, counted or retried. A header tells the receiver that the request
//! is a test.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use axum::extract::State;
use axum::http::StatusCode;
use jiff::tz::TimeZone;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use tokio::sync::Semaphore;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::api::{Api, CallerContext, TopicInPath};
use super::api_response::ApiResponse;
use super::body::JsonBody;
use super::credentials::mask_sent;
use super::problem::Problem;
use super::schema;
use super::typed_body::{self, given};
use delivery::callback::{Caller, CompletedCall, Delivery, Verdict};
use host::{now_ms, random_name};
use model::job::{Body, JobId, JobKey};
use model::settings::Settings;
use model::topic::Topic;

/// How many tests run at the same time.
const MOST: usize = 4;

/// The longest timeout of a test, even if the topic's timeout is longer.
const PATIENCE: Duration = Duration::from_secs(30);

/// How long the DNS lookup of a callback's host may take when a topic is saved.
const LOOK_UP: Duration = Duration::from_secs(2);

/// Makes the test calls. The value is cheap to clone.
#[derive(Clone)]
pub(super) struct CallbackTester {
    caller: Arc<Caller>,
    free: Arc<Semaphore>,
}

impl CallbackTester {
    pub(super) fn new(settings: &Settings, zone: TimeZone) -> io::Result<CallbackTester> {
        let caller = Caller::new(1, &settings.callback, zone)?;
        Ok(CallbackTester { caller: Arc::new(caller), free: Arc::new(Semaphore::new(MOST)) })
    }

    /// Refuses a callback URL that the guard does not allow. A URL whose host name cannot be resolved now is accepted.
    pub(super) async fn check(&self, callback: &str) -> Result<(), Problem> {
        let (caller, url) = (Arc::clone(&self.caller), callback.to_owned());
        let denial = tokio::task::spawn_blocking(move || caller.denies(&url, LOOK_UP)).await;
        match denial.ok().flatten() {
            Some(why) => Err(Problem::field("callback", format!("callback: {why}"))),
            None => Ok(()),
        }
    }
}

pub(super) fn routes() -> OpenApiRouter<Api> {
    OpenApiRouter::new().routes(routes!(test))
}

/// What the receiver gets.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = TestCall, example = json!({"body": {"order": 42}}))]
pub(super) struct CallbackTestRequest<'a> {
    /// Any JSON value. Default: `{"test": true}`.
    #[serde(borrow, default, deserialize_with = "given")]
    #[schema(value_type = serde_json::Value, required = false)]
    body: Option<&'a RawValue>,
}

/// The result of a test call.
#[derive(Serialize, ToSchema)]
#[schema(as = TestOutcome)]
pub(super) struct CallbackTestResponse {
    outcome: CallbackVerdict,
    /// The status of the receiver's answer. Null if there was no answer.
    #[schema(required = true)]
    status: Option<u16>,
    duration_ms: u64,
    /// The first characters of the answer. Empty for a caller without the scope `read` for the topic.
    answer: String,
    /// Why the receiver did not accept the job. Null if the receiver accepted it.
    #[schema(required = true)]
    error: Option<String>,
    url: String,
    sent: SentCallbackRequest,
    /// The headers of the receiver's answer, as `[name, value]`. Empty if there was no answer, or for a caller without
    /// the scope `read` for the topic.
    answer_headers: Vec<(String, String)>,
}

/// The request that was sent.
#[derive(Serialize, ToSchema)]
struct SentCallbackRequest {
    /// The method and the target, such as `POST /hook`. Empty if no request was sent.
    request: String,
    /// The headers as `[name, value]`, in no particular order. Signatures and credentials are replaced by `…`.
    headers: Vec<(String, String)>,
    body: String,
}

/// What would have happened to a job.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
#[schema(as = Verdict)]
pub(super) enum CallbackVerdict {
    /// The job would be done.
    Accepted,
    /// The job would be retried.
    Failed,
    /// The job would become a dead letter at once. Either the receiver answers 410, or it answers with `dq-retry: no`,
    /// or `retry_on` does not name the failure.
    Refused,
}

/// Calls the topic's callback once, now. The status is 200 even if the receiver does not accept the call. Nothing is
/// stored or retried.
#[utoipa::path(post, path = "/v1/topics/{topic}/test", tag = "topics", operation_id = "test_topic",
    params(schema::TopicPath, schema::IdempotencyKey), request_body(content = Option<CallbackTestRequest>, content_type = "application/json"),
    responses((status = 200, body = CallbackTestResponse, description = "The result of the call"), schema::ChangeErrorResponses))]
async fn test(
    State(api): State<Api>,
    requester: CallerContext,
    TopicInPath(name): TopicInPath,
    JsonBody(json): JsonBody,
) -> Result<ApiResponse, Problem> {
    let topic = api.topic(&name)?;
    let CallbackTestRequest { body } = typed_body::read_or_empty(&json)?;
    let body = body.map_or_else(|| Body::trusted("{\"test\":true}"), Body::from);
    if let Some(why) = topic.held() {
        return Err(Problem::conflict("topic_offline", format!("topic {name} is held: {why}")));
    }
    if topic.callback.is_empty() {
        return Err(Problem::conflict("no_callback", format!("topic {name} has no callback to test")));
    }
    let Ok(permit) = Arc::clone(&api.trials.free).try_acquire_owned() else {
        let detail = format!("{MOST} callbacks are being tested already");
        return Err(Problem::unavailable("too_many_tests", detail));
    };
    let id = random_name().map_err(|e| Problem::unavailable("no_random", e.to_string()))?;
    let id = JobId::new(format!("test-{id}")).map_err(|e| Problem::invalid("id", &e))?;
    let now = now_ms();
    let key = JobKey { topic: name.clone(), id };
    let (headers, ack_url) = (Vec::new(), None);
    let (stamp_us, destination) = (now * 1000, None);
    let delivery = Delivery { key, body, attempt: 1, due_ms: now, stamp_us, headers, destination, ack_url };
    let topic = Topic { timeout: topic.timeout.min(PATIENCE), ..(*topic).clone() };
    let own_headers: Vec<String> = topic.headers.keys().cloned().collect();
    let (caller, url) = (Arc::clone(&api.trials.caller), requester.shown(&topic).callback.clone());
    let call = move || {
        let _permit = permit;
        caller.test(&topic, &delivery)
    };
    let called = tokio::task::spawn_blocking(call).await;
    let CompletedCall { verdict, attempt, seen, .. } =
        called.map_err(|_| Problem::unavailable("no_thread", "the thread that calls the receiver failed"))?;
    let seen = seen.map(|seen| *seen).unwrap_or_default();
    let outcome = match verdict {
        // A test sends no `dq-ack-url`, so no outcome can follow later. If the receiver answers that it reports later,
        // the call counts as accepted.
        Verdict::Accepted | Verdict::Later => CallbackVerdict::Accepted,
        Verdict::Failed { .. } | Verdict::Again { .. } => CallbackVerdict::Failed,
        Verdict::Refused { .. } => CallbackVerdict::Refused,
    };
    let sees_answers = requester.sees_answers(&name);
    let mut sent = SentCallbackRequest { request: seen.request, headers: seen.headers, body: seen.body };
    if !requester.sees_credentials() {
        mask_sent(&mut sent.request, &mut sent.headers, &own_headers);
    }
    let came = CallbackTestResponse {
        outcome,
        status: attempt.status,
        duration_ms: attempt.took_ms,
        answer: if sees_answers { attempt.answer } else { String::new() },
        error: Some(attempt.error).filter(|e| !e.is_empty()),
        url,
        sent,
        answer_headers: if sees_answers { seen.answer_headers } else { Vec::new() },
    };
    Ok(ApiResponse::new(StatusCode::OK, &came))
}
