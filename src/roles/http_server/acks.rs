//! The route where a receiver that answers later reports the outcome of an attempt. The ticket in the path is the only
//! proof that it needs (docs/ANSWER_LATER.md).

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

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
use super::connections::ConnectionProof;
use super::problem::Problem;
use super::route_rule::{RouteRule, rule};
use super::schema;
use super::store_client::Reply;
use super::typed_body::{self, Span, word};
use host::now_ms;
use model::excerpt::Excerpt;
use model::job::JobKey;
use model::json_time;
use model::ticket::{PresentedTicket, Ticket, TicketSecret};
use model::topic::Topic;
use role::lock;
use role::settling::{Report, ReportVerb, Settling, SettlingResult};
use role::submit::Request;
use store::{Settled, Token};

/// The store is asked for a lane's secret again, at most this often, when no known secret proves a ticket.
const ANEW: Duration = Duration::from_secs(10);

/// How many secrets of a lane are kept. A lane has a new secret only after it lost all its data.
const SECRETS_MAX: usize = 4;

/// For how long, and for how many tickets, the outcome is remembered.
const KEPT: Duration = Duration::from_secs(600);
const KEPT_MAX: usize = 10_000;

pub(super) fn routes() -> OpenApiRouter<Api> {
    OpenApiRouter::new().routes(routes!(settle))
}

/// The outcome that a receiver reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
enum AckOutcome {
    Ack,
    Nack,
    Extend,
}

impl From<ReportVerb> for AckOutcome {
    fn from(verb: ReportVerb) -> AckOutcome {
        match verb {
            ReportVerb::Ack => AckOutcome::Ack,
            ReportVerb::Nack { .. } => AckOutcome::Nack,
            ReportVerb::Extend { .. } => AckOutcome::Extend,
        }
    }
}

/// The outcome of the attempt. Without a body, it is `ack`.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Settlement, example = json!({"outcome": "nack", "reason": "no such order yet", "delay": "10m"}))]
pub(super) struct AckRequest {
    /// Default: `ack`.
    #[serde(default, deserialize_with = "word")]
    outcome: Option<AckOutcome>,
    /// Only with `nack`: the delay until the next attempt, if the job has attempts left. If it is missing, the topic's
    /// retry policy decides.
    #[schema(schema_with = schema::span, required = false)]
    delay: Option<Span>,
    /// Only with `nack`: the reason. Its first 200 characters are kept with the job.
    reason: Option<String>,
    /// Only with `extend`, and required there: how much longer the receiver may take, from now on. The topic's
    /// `answer_later` remains the limit.
    #[schema(schema_with = schema::span, required = false)]
    by: Option<Span>,
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

impl From<SettlingResult> for SettledOutcome {
    fn from(became: SettlingResult) -> SettledOutcome {
        match became {
            SettlingResult::Done => SettledOutcome::Done,
            SettlingResult::Retried => SettledOutcome::Retried,
            SettlingResult::Dead => SettledOutcome::Dead,
            SettlingResult::Extended => SettledOutcome::Extended,
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
            ("delay", request.delay.is_some(), AckOutcome::Nack),
            ("reason", request.reason.is_some(), AckOutcome::Nack),
            ("by", request.by.is_some(), AckOutcome::Extend),
        ] {
            if given && outcome != of {
                let of = if of == AckOutcome::Nack { "nack" } else { "extend" };
                return Err(Problem::field(name, format!("{name} is only valid with \"{of}\"")));
            }
        }
        if outcome == AckOutcome::Extend && request.by.is_none() {
            return Err(Problem::missing("by", json_time::DURATION));
        }
        Ok(request)
    }

    fn outcome(&self) -> AckOutcome {
        self.outcome.unwrap_or(AckOutcome::Ack)
    }

    fn report(self) -> Report {
        let span = |given: Option<Span>| given.map(|Span(span)| span);
        let verb = match self.outcome() {
            AckOutcome::Ack => ReportVerb::Ack,
            AckOutcome::Nack => ReportVerb::Nack { delay: span(self.delay) },
            AckOutcome::Extend => ReportVerb::Extend { lease: span(self.by) },
        };
        Report { verb, text: self.reason.unwrap_or_default() }
    }
}

/// The known secrets of a lane, and when the store was asked last.
#[derive(Default)]
struct LaneSecrets {
    secrets: Vec<TicketSecret>,
    asked: Option<Instant>,
}

/// The tickets that were settled recently. A receiver that repeats its request, because the answer was lost, gets the
/// same answer.
#[derive(Default)]
struct RecentAcks {
    all: HashMap<[u8; 32], (AckOutcome, AckResponse)>,
    order: VecDeque<(Instant, [u8; 32])>,
}

impl RecentAcks {
    fn keep(&mut self, signature: [u8; 32], said: AckOutcome, came: AckResponse, now: Instant) {
        self.order.push_back((now, signature));
        self.all.insert(signature, (said, came));
        while let Some((at, oldest)) = self.order.front()
            && (now.saturating_duration_since(*at) >= KEPT || self.order.len() > KEPT_MAX)
        {
            self.all.remove(oldest);
            self.order.pop_front();
        }
    }
}

/// What the route remembers. It is cheap to clone.
#[derive(Clone, Default)]
pub(super) struct Acks {
    secrets: Arc<Mutex<HashMap<usize, LaneSecrets>>>,
    settled: Arc<Mutex<RecentAcks>>,
}

impl Acks {
    /// Returns the ticket, if a known secret of the lane proves it. The error says whether to ask the store for another
    /// secret.
    fn proved(&self, lane: usize, shown: &PresentedTicket) -> Result<Ticket, bool> {
        let secrets = lock(&self.secrets);
        let Some(known) = secrets.get(&lane) else { return Err(true) };
        match known.secrets.iter().find_map(|secret| shown.proved(secret)) {
            Some(ticket) => Ok(ticket.clone()),
            None => Err(known.asked.is_none_or(|at| at.elapsed() >= ANEW)),
        }
    }

    fn learn(&self, lane: usize, secret: TicketSecret) {
        let mut secrets = lock(&self.secrets);
        let known = secrets.entry(lane).or_default();
        known.asked = Some(Instant::now());
        if !known.secrets.contains(&secret) {
            known.secrets.insert(0, secret);
            known.secrets.truncate(SECRETS_MAX);
        }
    }
}

/// A ticket that was checked. It is an extension of the request that shows it.
#[derive(Debug, Clone)]
pub(super) struct ProvedTicket {
    shown: PresentedTicket,
    ticket: Ticket,
}

/// Passes a request on. One that needs a ticket must show a valid one, before its body is read.
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
        Some(shown) => match api.ticket(&shown).await {
            // A client that has reserved a job reports elsewhere, with a scope.
            Ok(ticket) if ticket.is_reserved() => Err(no_ticket()),
            proved => proved.map(|ticket| ProvedTicket { shown, ticket }),
        },
        None => Err(no_ticket()),
    };
    match proved {
        Ok(proved) => {
            parts.extensions.get::<ConnectionProof>().inspect(|proof| proof.record());
            parts.extensions.insert(proved);
            next(HttpRequest::from_parts(parts, body)).await
        }
        Err(problem) => problem.into_response(),
    }
}

pub(super) fn no_ticket() -> Problem {
    Problem::new(StatusCode::NOT_FOUND, "no_ticket", "this is not the ticket of an attempt")
}

fn gone(key: &JobKey) -> Problem {
    let detail = format!(
        "the attempt at job {:?} of topic {} is over: it was settled, it ran out, or the job was replaced or deleted",
        key.id.as_str(),
        key.topic
    );
    Problem::new(StatusCode::GONE, "gone", detail)
}

impl Api {
    /// Checks a ticket, and returns it. A forged ticket never reaches the store, which is only asked for the lane's
    /// secret.
    pub(super) async fn ticket(&self, shown: &PresentedTicket) -> Result<Ticket, Problem> {
        let lane = self.lanes.of_token(&Token(shown.token().into())).ok_or_else(no_ticket)?;
        match self.acks.proved(lane, shown) {
            Ok(ticket) => return Ok(ticket),
            Err(false) => return Err(no_ticket()),
            Err(true) => {}
        }
        let ask = |reply: Reply<_>| Request::secret(lane, |secret| reply.with(secret));
        self.acks.learn(lane, self.store_client.ask(0, ask).await??);
        self.acks.proved(lane, shown).map_err(|_| no_ticket())
    }

    /// Settles the lease that a ticket proves. A report that was made before gets the same answer.
    pub(super) async fn settle(
        &self,
        shown: &PresentedTicket,
        ticket: &Ticket,
        report: Report,
    ) -> Result<ApiResponse, Problem> {
        let (key, said) = (&ticket.key, AckOutcome::from(report.verb));
        let before = lock(&self.acks.settled).all.get(&shown.signature()).cloned();
        if let Some((outcome, came)) = before {
            return if outcome == said {
                Ok(ApiResponse::new(StatusCode::OK, &came))
            } else {
                Err(gone(key))
            };
        }
        let topic = self.topics.borrow().get(key.topic.as_str()).cloned();
        // If the topic was removed meanwhile, the defaults apply.
        let topic = topic.unwrap_or_else(|| Topic::new(key.topic.clone(), "").into());
        let now = now_ms();
        let Settling { settlement, became, hold } =
            Settling::new(ticket, &topic, &report, fastrand::f64(), now);
        let why = settlement.attempt.as_ref().map_or(String::new(), |attempt| attempt.error.clone());
        let ask = |reply: Reply<_>| Request::settle(settlement, |settled| reply.with(settled));
        if self.store_client.ask(report.text.len(), ask).await?? != Settled::Done {
            return Err(gone(key));
        }
        log_outcome(ticket, became, &why);
        let came = AckResponse {
            topic: key.topic.as_str().into(),
            id: key.id.as_str().into(),
            outcome: became.into(),
            until_ms: hold.map(|hold| now.saturating_add(hold.as_millis() as i64)),
        };
        let response = ApiResponse::new(StatusCode::OK, &came);
        if became != SettlingResult::Extended {
            lock(&self.acks.settled).keep(shown.signature(), said, came, Instant::now());
        }
        Ok(response)
    }
}

/// Logs what became of a job.
fn log_outcome(ticket: &Ticket, became: SettlingResult, why: &str) {
    let (topic, id, number, why) = (&ticket.key.topic, Excerpt(&ticket.key.id), ticket.attempt, Excerpt(why));
    let (done, failed) = match ticket.is_reserved() {
        true => ("done by a client", "was refused"),
        false => ("accepted later", "was reported as failed"),
    };
    match became {
        SettlingResult::Done => log::debug!(target: "notify", "{topic}:{id} {done} at attempt {number}"),
        SettlingResult::Dead => {
            log::error!(target: "notify", "{topic}:{id} is a dead letter after attempt {number}: {why}")
        }
        SettlingResult::Retried => {
            log::warn!(target: "notify", "{topic}:{id} {failed} at attempt {number}: {why}")
        }
        SettlingResult::Extended => {}
    }
}

/// Reports the outcome of an attempt that is answered later.
///
/// The URL is the one in the `dq-ack-url` header of the callback. It needs no token.
#[utoipa::path(post, path = "/v1/ack/{ticket}", tag = "jobs", operation_id = "settle_attempt",
    params(("ticket" = String, Path, description = "The ticket in `dq-ack-url`."), schema::IdempotencyKey),
    request_body(content = Option<AckRequest>, content_type = "application/json"),
    responses((status = 200, body = AckResponse, description = "What happened to the job"), schema::AckProblems))]
async fn settle(
    State(api): State<Api>,
    Extension(ProvedTicket { shown, ticket }): Extension<ProvedTicket>,
    JsonBody(json): JsonBody,
) -> Result<ApiResponse, Problem> {
    api.settle(&shown, &ticket, AckRequest::read(&json)?.report()).await
}
