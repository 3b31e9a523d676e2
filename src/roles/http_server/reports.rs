//! The routes where clients report the outcomes of the jobs that they have reserved (docs/PULL.md).

use axum::extract::State;
use serde::Deserialize;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::acks::{AckResponse, no_ticket};
use super::api::{Api, JobInPath};
use super::api_response::ApiResponse;
use super::body::JsonBody;
use super::problem::Problem;
use super::reserves::lease_of;
use super::schema;
use super::typed_body::{self, JsonDuration};
use model::job::JobKey;
use model::ticket::PresentedTicket;
use role::settling::{Report, ReportVerb};

pub(super) fn routes() -> OpenApiRouter<Api> {
    OpenApiRouter::new().routes(routes!(ack)).routes(routes!(nack)).routes(routes!(extend))
}

/// The client has done the job.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Ack)]
struct JobAck {
    /// The `token` of the reserved job.
    token: String,
    /// A text of the client about the result. The first 200 characters are kept as the answer of the attempt.
    answer: Option<String>,
}

/// The client could not do the job.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Nack)]
struct JobNack {
    /// The `token` of the reserved job.
    token: String,
    /// The delay until the next attempt, if the job has attempts left. If it is missing, the topic's `retry` decides.
    #[schema(schema_with = schema::span, required = false)]
    delay: Option<JsonDuration>,
    /// Why the client could not do the job. The first 200 characters are kept with the job.
    reason: Option<String>,
}

/// The client needs more time.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Extend)]
struct JobExtend {
    /// The `token` of the reserved job.
    token: String,
    /// How long the lease lasts from now on. Default: `ttr` of the job, or of its topic if the job has none.
    #[schema(schema_with = schema::span, required = false)]
    lease: Option<JsonDuration>,
}

impl Api {
    /// Settles the lease that a token proves.
    async fn settle_reserved(
        &self,
        key: JobKey,
        token: &str,
        report: Report,
    ) -> Result<ApiResponse, Problem> {
        let shown = PresentedTicket::read(token).ok_or_else(no_ticket)?;
        let (lane, topic) = (self.lane_of(&shown)?, key.topic.clone());
        let settled = self.settle((lane, shown), Some(key), report).await?;
        self.pull.settled(&topic);
        Ok(settled)
    }
}

/// Reports that a reserved job is done.
#[utoipa::path(post, path = "/v1/topics/{topic}/jobs/{id}/ack", tag = "jobs", operation_id = "ack_job",
    params(schema::JobPathParameters, schema::IdempotencyKey), request_body = JobAck,
    responses((status = 200, body = AckResponse, description = "The job is done"), schema::AckErrorResponses))]
async fn ack(
    State(api): State<Api>,
    JobInPath(key): JobInPath,
    JsonBody(json): JsonBody,
) -> Result<ApiResponse, Problem> {
    let JobAck { token, answer } = typed_body::read(&json)?;
    let report = Report { verb: ReportVerb::Ack, text: answer.unwrap_or_default() };
    api.settle_reserved(key, &token, report).await
}

/// Reports that a reserved job could not be done. The job is tried again, or becomes a dead letter.
#[utoipa::path(post, path = "/v1/topics/{topic}/jobs/{id}/nack", tag = "jobs", operation_id = "nack_job",
    params(schema::JobPathParameters, schema::IdempotencyKey), request_body = JobNack,
    responses((status = 200, body = AckResponse, description = "What happened to the job"), schema::AckErrorResponses))]
async fn nack(
    State(api): State<Api>,
    JobInPath(key): JobInPath,
    JsonBody(json): JsonBody,
) -> Result<ApiResponse, Problem> {
    let JobNack { token, delay, reason } = typed_body::read(&json)?;
    let verb = ReportVerb::Nack { delay: delay.map(|JsonDuration(delay)| delay) };
    api.settle_reserved(key, &token, Report { verb, text: reason.unwrap_or_default() }).await
}

/// Gives the client more time for a reserved job.
#[utoipa::path(post, path = "/v1/topics/{topic}/jobs/{id}/extend", tag = "jobs", operation_id = "extend_job",
    params(schema::JobPathParameters, schema::IdempotencyKey), request_body = JobExtend,
    responses((status = 200, body = AckResponse, description = "The lease holds for longer"), schema::AckErrorResponses))]
async fn extend(
    State(api): State<Api>,
    JobInPath(key): JobInPath,
    JsonBody(json): JsonBody,
) -> Result<ApiResponse, Problem> {
    let JobExtend { token, lease } = typed_body::read(&json)?;
    let verb = ReportVerb::Extend { lease: lease_of(lease)? };
    api.settle_reserved(key, &token, Report { verb, text: String::new() }).await
}
