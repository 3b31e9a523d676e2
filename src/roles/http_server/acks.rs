//! The route where a receiver that answers later reports the outcome of an attempt. The ticket in the path is the only
//! proof that the receiver needs (docs/ANSWER_LATER.md).

use axum::extract::{Extension, FromRequestParts, MatchedPath, RawPathParams, Request as HttpRequest, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::api::Api;
use super::api_response::ApiResponse;
use super::body::JsonBody;
use super::connections::AuthenticatedFlag;
use super::problem::Problem;
use super::route_rule::{RouteRule, rule};
use super::schema;
use super::store_client::AnswerSender;
use super::typed_body::{self, JsonDuration, word};
use model::job::JobKey;
use model::json_time;
use model::ticket::{PresentedTicket, Ticket};
use role::settling::{Report, ReportVerb, SettlementEffect};
use role::submit::StoreRequest;
use role::tickets::{SettledTicket, TicketError, TicketReport};
use store::Token;

pub(super) fn routes() -> OpenApiRouter<Api> {
    OpenApiRouter::new().routes(routes!(settle))
}

/// The outcome that a receiver reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
enum ReportedOutcome {
    Ack,
    Nack,
    Extend,
}

/// The outcome of the attempt. Without a body, it is `ack`.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Settlement, example = json!({"outcome": "nack", "reason": "no such order yet", "delay": "10m"}))]
pub(super) struct AckRequest {
    /// Default: `ack`.
    #[serde(default, deserialize_with = "word")]
    outcome: Option<ReportedOutcome>,
    /// Only with `nack`: the delay until the next attempt, if the job has attempts left. If it is missing, the topic's
    /// retry policy decides.
    #[schema(schema_with = schema::span, required = false)]
    delay: Option<JsonDuration>,
    /// Only with `nack`: the reason. Its first 200 characters are kept with the job.
    reason: Option<String>,
    /// Required with `extend`, and not allowed otherwise: how long the receiver may still take, from now on. The
    /// topic's `answer_later` remains the limit.
    #[schema(schema_with = schema::span, required = false)]
    by: Option<JsonDuration>,
}

/// What happened to the job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
#[schema(as = SettledOutcome)]
enum SettledOutcome {
    Done,
    Retried,
    Dead,
    Extended,
}

impl From<SettlementEffect> for SettledOutcome {
    fn from(became: SettlementEffect) -> SettledOutcome {
        match became {
            SettlementEffect::Done => SettledOutcome::Done,
            SettlementEffect::Retried => SettledOutcome::Retried,
            SettlementEffect::Dead => SettledOutcome::Dead,
            SettlementEffect::Extended => SettledOutcome::Extended,
        }
    }
}

/// What happened to the job.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[schema(as = Settled)]
pub(super) struct AckResponse {
    topic: String,
    id: String,
    outcome: SettledOutcome,
    /// With `extended`: the new deadline, Unix milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    until_ms: Option<i64>,
}

impl AckRequest {
    fn read(json: &[u8]) -> Result<AckRequest, Problem> {
        let request: AckRequest = typed_body::read_or_empty(json)?;
        let outcome = request.outcome();
        for (name, given, of) in [
            ("delay", request.delay.is_some(), ReportedOutcome::Nack),
            ("reason", request.reason.is_some(), ReportedOutcome::Nack),
            ("by", request.by.is_some(), ReportedOutcome::Extend),
        ] {
            if given && outcome != of {
                let of = if of == ReportedOutcome::Nack { "nack" } else { "extend" };
                return Err(Problem::field(name, format!("{name} is only valid with \"{of}\"")));
            }
        }
        if outcome == ReportedOutcome::Extend && request.by.is_none() {
            return Err(Problem::missing("by", json_time::DURATION));
        }
        Ok(request)
    }

    fn outcome(&self) -> ReportedOutcome {
        self.outcome.unwrap_or(ReportedOutcome::Ack)
    }

    fn report(self) -> Report {
        let span = |given: Option<JsonDuration>| given.map(|JsonDuration(span)| span);
        let verb = match self.outcome() {
            ReportedOutcome::Ack => ReportVerb::Ack,
            ReportedOutcome::Nack => ReportVerb::Nack { delay: span(self.delay) },
            ReportedOutcome::Extend => ReportVerb::Extend { lease: span(self.by) },
        };
        Report { verb, text: self.reason.unwrap_or_default() }
    }
}

/// A ticket that was checked. The request that carries the ticket has this value as an extension.
#[derive(Debug, Clone)]
pub(super) struct ProvedTicket {
    shown: PresentedTicket,
    lane: usize,
}

/// Passes a request on. If its route needs a ticket, the ticket is checked before the body is read.
pub(super) async fn with_ticket<F: Future<Output = Response>>(
    api: &Api,
    request: HttpRequest,
    next: impl FnOnce(HttpRequest) -> F,
) -> Response {
    let route = request.extensions().get::<MatchedPath>().map(MatchedPath::as_str);
    let is_needed = route.is_some_and(|route| rule(request.method(), route) == RouteRule::Ticket);
    if !is_needed {
        return next(request).await;
    }
    let (mut parts, body) = request.into_parts();
    let params = RawPathParams::from_request_parts(&mut parts, &()).await;
    let text = params.as_ref().ok().and_then(|params| params.iter().next()).map_or("", |(_, text)| text);
    let proved = match PresentedTicket::read(text) {
        Some(shown) => api.proved(shown).await,
        None => Err(no_ticket()),
    };
    match proved {
        Ok(proved) => {
            parts.extensions.get::<AuthenticatedFlag>().inspect(|proof| proof.record());
            parts.extensions.insert(proved);
            next(HttpRequest::from_parts(parts, body)).await
        }
        Err(problem) => problem.into_response(),
    }
}

pub(super) fn no_ticket() -> Problem {
    Problem::new(StatusCode::NOT_FOUND, "no_ticket", "this is not the ticket of an attempt")
}

impl From<TicketError> for Problem {
    fn from(e: TicketError) -> Problem {
        match e {
            TicketError::NoTicket => no_ticket(),
            TicketError::Gone(_) => Problem::new(StatusCode::GONE, "gone", e.to_string()),
            TicketError::Store(e) => e.into(),
        }
    }
}

impl From<SettledTicket> for AckResponse {
    fn from(SettledTicket { key, became, until_ms }: SettledTicket) -> AckResponse {
        AckResponse {
            topic: key.topic.as_str().into(),
            id: key.id.as_str().into(),
            outcome: became.into(),
            until_ms,
        }
    }
}

impl Api {
    /// Returns the lane of a ticket.
    pub(super) fn lane_of(&self, shown: &PresentedTicket) -> Result<usize, Problem> {
        self.lanes.of_token(&Token(shown.token().into())).ok_or_else(no_ticket)
    }

    /// Checks a ticket, and returns it. dq checks the ticket with the secret of the lane, and asks the store only for
    /// this secret. So the store never gets a forged ticket.
    async fn ticket(&self, lane: usize, shown: &PresentedTicket) -> Result<Ticket, Problem> {
        match self.tickets.proved(lane, shown) {
            Ok(ticket) => return Ok(ticket),
            Err(false) => return Err(no_ticket()),
            Err(true) => {}
        }
        let ask = |reply: AnswerSender<_>| StoreRequest::secret(lane, |secret| reply.with(secret));
        self.tickets.learn(lane, self.store_client.ask(0, ask).await??);
        self.tickets.proved(lane, shown).map_err(|_| no_ticket())
    }

    /// Checks the ticket of a receiver that answers later.
    async fn proved(&self, shown: PresentedTicket) -> Result<ProvedTicket, Problem> {
        let lane = self.lane_of(&shown)?;
        match self.ticket(lane, &shown).await?.is_reserved() {
            // This is the ticket of a client that has reserved a job. Such a client must report on another route, which
            // needs a scope.
            true => Err(no_ticket()),
            false => Ok(ProvedTicket { shown, lane }),
        }
    }

    /// Settles the lease that a ticket proves. `reserved` is the reserved job that the client names in its report.
    /// None: the report is from a receiver that answers later.
    pub(super) async fn settle(
        &self,
        (lane, shown): (usize, PresentedTicket),
        reserved: Option<JobKey>,
        report: Report,
    ) -> Result<ApiResponse, Problem> {
        let topic = self.topics.borrow().get(shown.topic().as_str()).cloned();
        let length = report.text.len();
        let response = TicketReport { shown, lane, reserved, topic, report };
        let tickets = self.tickets.clone();
        let ask =
            |reply: AnswerSender<_>| StoreRequest::report(tickets, response, |settled| reply.with(settled));
        let settled = self.store_client.ask(length, ask).await??;
        Ok(ApiResponse::new(StatusCode::OK, &AckResponse::from(settled)))
    }
}

/// Reports the outcome of an attempt that is answered later.
///
/// The URL is in the `dq-ack-url` header of the callback. The request needs no token.
#[utoipa::path(post, path = "/v1/ack/{ticket}", tag = "jobs", operation_id = "settle_attempt",
    params(("ticket" = String, Path, description = "The ticket in `dq-ack-url`."), schema::IdempotencyKey),
    request_body(content = Option<AckRequest>, content_type = "application/json"),
    responses((status = 200, body = AckResponse, description = "What happened to the job"), schema::AckErrorResponses))]
async fn settle(
    State(api): State<Api>,
    Extension(ProvedTicket { shown, lane }): Extension<ProvedTicket>,
    JsonBody(json): JsonBody,
) -> Result<ApiResponse, Problem> {
    api.settle((lane, shown), None, AckRequest::read(&json)?.report()).await
}
