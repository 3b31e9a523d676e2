//! The routes where clients report the outcomes of jobs that they have reserved (docs/PULL.md).

use axum::extract::State;
use axum::http::StatusCode;
use serde::Deserialize;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::acks::{AckOutcome, AckResponse, SettledOutcome, gone, no_ticket};
use super::api::{Api, OfJob};
use super::api_response::ApiResponse;
use super::body::Sent;
use super::problem::Problem;
use super::reserves::lease_of;
use super::schema;
use super::store_client::Reply;
use super::typed_body::{self, Span};
use host::now_ms;
use model::excerpt::Excerpt;
use model::job::JobKey;
use model::ticket::PresentedTicket;
use model::topic::Topic;
use role::pull::{Became, Report, Settling, Verb};
use role::submit::Request;
use store::Settled;

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
    /// What came of it. The first 200 characters are kept as the answer of the attempt.
    answer: Option<String>,
}

/// The client could not do the job.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Nack)]
struct JobNack {
    /// The `token` of the reserved job.
    token: String,
    /// The delay until the next attempt, if the job has attempts left. Default: as the topic's `retry` says.
    #[schema(schema_with = schema::span, required = false)]
    delay: Option<Span>,
    /// Why. The first 200 characters are kept with the job.
    reason: Option<String>,
}

/// The client needs more time.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Extend)]
struct JobExtend {
    /// The `token` of the reserved job.
    token: String,
    /// How long the lease holds from now on. Default: `ttr` of the topic.
    #[schema(schema_with = schema::span, required = false)]
    lease: Option<Span>,
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
        let ticket = self.ticket(&shown).await?;
        if !ticket.is_reserved() || ticket.key != key {
            return Err(no_ticket());
        }
        let said = match report.verb {
            Verb::Ack => AckOutcome::Ack,
            Verb::Nack { .. } => AckOutcome::Nack,
            Verb::Extend { .. } => AckOutcome::Extend,
        };
        if let Some(known) = self.acks.known(&shown, said) {
            return known.map(|came| ApiResponse::new(StatusCode::OK, &came)).ok_or_else(|| gone(&key));
        }
        let topic = self.topics.borrow().get(key.topic.as_str()).cloned();
        // If the topic was removed meanwhile, the defaults apply.
        let topic = topic.unwrap_or_else(|| Topic::new(key.topic.clone(), "").into());
        let now = now_ms();
        let Settling { settlement, became, hold } =
            Settling::new(&ticket, &topic, &report, fastrand::f64(), now);
        let ask = |reply: Reply<_>| Request::settle(settlement, |settled| reply.with(settled));
        if self.store_client.ask(report.text.len(), ask).await?? != Settled::Done {
            return Err(gone(&key));
        }
        self.pull.settled(&key.topic);
        let (shown_id, why) = (Excerpt(&key.id), Excerpt(&report.text));
        let (topic, attempt) = (&key.topic, ticket.attempt);
        let became = match became {
            Became::Done => SettledOutcome::Done,
            Became::Retried => {
                log::warn!(target: "notify", "{topic}:{shown_id} was refused at attempt {attempt}: {why}");
                SettledOutcome::Retried
            }
            Became::Dead => {
                log::error!(target: "notify", "{topic}:{shown_id} is a dead letter after attempt {attempt}: {why}");
                SettledOutcome::Dead
            }
            Became::Extended => SettledOutcome::Extended,
        };
        let until_ms = hold.map(|hold| now.saturating_add(hold.as_millis() as i64));
        let came = AckResponse::new(&key, became, until_ms);
        let told = ApiResponse::new(StatusCode::OK, &came);
        if became != SettledOutcome::Extended {
            self.acks.remember(&shown, said, came);
        }
        Ok(told)
    }
}

/// Reports that a reserved job is done.
#[utoipa::path(post, path = "/v1/topics/{topic}/jobs/{id}/ack", tag = "jobs", operation_id = "ack_job",
    params(schema::JobPath, schema::IdempotencyKey), request_body = JobAck,
    responses((status = 200, body = AckResponse, description = "The job is done"), schema::AckProblems))]
async fn ack(State(api): State<Api>, OfJob(key): OfJob, Sent(json): Sent) -> Result<ApiResponse, Problem> {
    let JobAck { token, answer } = typed_body::read(&json)?;
    let report = Report { verb: Verb::Ack, text: answer.unwrap_or_default() };
    api.settle_reserved(key, &token, report).await
}

/// Reports that a reserved job could not be done. It is tried again, or becomes a dead letter.
#[utoipa::path(post, path = "/v1/topics/{topic}/jobs/{id}/nack", tag = "jobs", operation_id = "nack_job",
    params(schema::JobPath, schema::IdempotencyKey), request_body = JobNack,
    responses((status = 200, body = AckResponse, description = "What happened to the job"), schema::AckProblems))]
async fn nack(State(api): State<Api>, OfJob(key): OfJob, Sent(json): Sent) -> Result<ApiResponse, Problem> {
    let JobNack { token, delay, reason } = typed_body::read(&json)?;
    let verb = Verb::Nack { delay: delay.map(|Span(delay)| delay) };
    api.settle_reserved(key, &token, Report { verb, text: reason.unwrap_or_default() }).await
}

/// Gives the client more time for a reserved job.
#[utoipa::path(post, path = "/v1/topics/{topic}/jobs/{id}/extend", tag = "jobs", operation_id = "extend_job",
    params(schema::JobPath, schema::IdempotencyKey), request_body = JobExtend,
    responses((status = 200, body = AckResponse, description = "The lease holds for longer"), schema::AckProblems))]
async fn extend(State(api): State<Api>, OfJob(key): OfJob, Sent(json): Sent) -> Result<ApiResponse, Problem> {
    let JobExtend { token, lease } = typed_body::read(&json)?;
    let verb = Verb::Extend { lease: lease_of(lease)? };
    api.settle_reserved(key, &token, Report { verb, text: String::new() }).await
}
