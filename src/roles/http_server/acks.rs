//! The route by which a receiver that answers later says what came of an attempt: its ticket is all that it has to show
//! (docs/ANSWER_LATER.md).

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::extract::{Path, State};
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::api::{Api, Sent};
use super::input::{self, Fields, wrong};
use super::problem::Problem;
use super::schema;
use super::told::{Extra, Manner, Told};
use crate::excerpt::Excerpt;
use crate::job::{Attempt, Due, JobKey};
use crate::json_time;
use crate::process::now_ms;
use crate::retry::RetryPolicy;
use crate::role::lock;
use crate::store::{Outcome, Settlement, Token};
use crate::submit::Ask;
use crate::ticket::{Secret, Shown, Ticket};

/// A secret that proves nothing is looked at anew, at most so often.
const ANEW: Duration = Duration::from_secs(10);

/// How many secrets of a lane are known: it has another one only when it has lost all that it had.
const SECRETS_MAX: usize = 4;

/// For how long, and of how many tickets, it is known how they were settled.
const KEPT: Duration = Duration::from_secs(600);
const KEPT_MAX: usize = 10_000;

/// How many characters of a reason are kept with the job.
const REASON_KEPT: usize = 200;

pub(super) fn routes() -> OpenApiRouter<Api> {
    OpenApiRouter::new().routes(routes!(settle))
}

/// What a receiver says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
enum Said {
    Ack,
    Nack,
    Extend,
}

/// What came of the job. Without a body: `ack`.
#[derive(ToSchema, Serialize)]
#[serde(deny_unknown_fields)]
#[allow(dead_code)]
#[schema(as = Settlement, example = json!({"outcome": "nack", "reason": "no such order yet", "delay": "10m"}))]
pub(super) struct Settling {
    /// `ack`, if it is missing.
    outcome: Option<Said>,
    /// Of a `nack`: when the job comes again, if it has attempts left; if it is missing, as its topic has it.
    #[schema(schema_with = schema::span, required = false)]
    delay: serde_json::Value,
    /// Of a `nack`: why. Its first 200 characters stay with the job.
    reason: Option<String>,
    /// Of an `extend`: until when it may take, from now on; never longer than the topic's `answer_later`.
    #[schema(schema_with = schema::span, required = false)]
    by: serde_json::Value,
}

/// What became of the job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
#[schema(as = SettledOutcome)]
enum Became {
    Done,
    Retried,
    Dead,
    Extended,
}

/// What became of the job.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[schema(as = Settled)]
pub(super) struct Came {
    topic: String,
    id: String,
    outcome: Became,
    /// Extended: when it ends, Unix milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    until_ms: Option<i64>,
}

/// What a body says.
struct Wanted {
    said: Said,
    delay: Option<Duration>,
    reason: Option<String>,
    by: Option<Duration>,
}

impl Wanted {
    fn of(json: &[u8]) -> Result<Wanted, Problem> {
        let fields = Fields::of(input::or_empty(json), &["outcome", "delay", "reason", "by"])?;
        let said: Option<Said> = fields.plain("outcome", "\"ack\", \"nack\" or \"extend\"")?;
        let said = said.unwrap_or(Said::Ack);
        let span = |name: &str| {
            let read = |raw| json_time::duration(raw).ok_or_else(|| wrong(name, raw, json_time::DURATION));
            fields.get(name).map(read).transpose()
        };
        let wanted = Wanted {
            said,
            delay: span("delay")?,
            reason: fields.plain("reason", "a text")?,
            by: span("by")?,
        };
        for (name, given, of) in [
            ("delay", wanted.delay.is_some(), Said::Nack),
            ("reason", wanted.reason.is_some(), Said::Nack),
            ("by", wanted.by.is_some(), Said::Extend),
        ] {
            if given && said != of {
                let of = if of == Said::Nack { "nack" } else { "extend" };
                return Err(Problem::field(name, format!("{name} means something with \"{of}\" only")));
            }
        }
        if said == Said::Extend && wanted.by.is_none() {
            return Err(Problem::missing("by", json_time::DURATION));
        }
        Ok(wanted)
    }
}

/// What is known of a lane's secrets.
#[derive(Default)]
struct Known {
    secrets: Vec<Secret>,
    asked: Option<Instant>,
}

/// How tickets were settled of late: who asks again, because the answer got lost, is answered as before.
#[derive(Default)]
struct Settled {
    all: HashMap<[u8; 32], (Said, Came)>,
    order: VecDeque<(Instant, [u8; 32])>,
}

impl Settled {
    fn keep(&mut self, signature: [u8; 32], said: Said, came: Came, now: Instant) {
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

/// What the route remembers. Cheap to clone.
#[derive(Clone, Default)]
pub(super) struct Acks {
    secrets: Arc<Mutex<HashMap<usize, Known>>>,
    settled: Arc<Mutex<Settled>>,
}

impl Acks {
    /// The ticket, if one of the lane's secrets that are known proves it; else, whether the store is to be asked for another.
    fn proved(&self, lane: usize, shown: &Shown) -> Result<Ticket, bool> {
        let secrets = lock(&self.secrets);
        let Some(known) = secrets.get(&lane) else { return Err(true) };
        match known.secrets.iter().find_map(|secret| shown.proved(secret)) {
            Some(ticket) => Ok(ticket.clone()),
            None => Err(known.asked.is_none_or(|at| at.elapsed() >= ANEW)),
        }
    }

    fn learn(&self, lane: usize, secret: Secret) {
        let mut secrets = lock(&self.secrets);
        let known = secrets.entry(lane).or_default();
        known.asked = Some(Instant::now());
        if !known.secrets.contains(&secret) {
            known.secrets.insert(0, secret);
            known.secrets.truncate(SECRETS_MAX);
        }
    }
}

fn no_ticket() -> Problem {
    Problem::new(StatusCode::NOT_FOUND, "no_ticket", "this is no ticket of an attempt")
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
    /// The ticket that is shown, if it is one. Of one that is forged the store hears nothing.
    async fn ticket(&self, shown: &Shown) -> Result<Ticket, Problem> {
        let lane = self.lanes.of_token(&Token(shown.token().into())).ok_or_else(no_ticket)?;
        match self.acks.proved(lane, shown) {
            Ok(ticket) => return Ok(ticket),
            Err(false) => return Err(no_ticket()),
            Err(true) => {}
        }
        let told = self.desk.ask(Ask::Secret(lane), Manner::Plain, 0).await?;
        if let Extra::Secret(secret) = told.extra {
            self.acks.learn(lane, secret);
        }
        self.acks.proved(lane, shown).map_err(|_| no_ticket())
    }

    /// What is to become of the job, and what its topic says that this is.
    fn outcome(&self, ticket: &Ticket, wanted: &Wanted) -> (Outcome, Became, Option<i64>) {
        match wanted.said {
            Said::Ack => (Outcome::Ack, Became::Done, None),
            Said::Extend => {
                let now = now_ms();
                let left = Duration::from_millis(ticket.until_ms.saturating_sub(now).max(0) as u64);
                let by = wanted.by.unwrap_or_default().min(left);
                (Outcome::Extend(by), Became::Extended, Some(now + by.as_millis() as i64))
            }
            Said::Nack => {
                let (number, limit) = (ticket.attempt, ticket.limit);
                let topic = self.topics.borrow().get(ticket.key.topic.as_str()).cloned();
                let again = match topic {
                    Some(topic) => topic.again_after(number, limit, fastrand::f64()),
                    // It was taken out meanwhile.
                    None => (number < limit).then(|| RetryPolicy::default().delay_after(number, 0.0)),
                };
                match again {
                    None => (Outcome::Bury, Became::Dead, None),
                    Some(delay) => {
                        (Outcome::Retry(Due::In(wanted.delay.unwrap_or(delay))), Became::Retried, None)
                    }
                }
            }
        }
    }
}

/// Says what came of an attempt that is answered later. The URL is the one that the callback carried in `dq-ack-url`; nothing else
/// is needed.
#[utoipa::path(post, path = "/v1/ack/{ticket}", tag = "jobs", operation_id = "settle_attempt",
    params(("ticket" = String, Path, description = "As `dq-ack-url` has it."), schema::IdempotencyKey),
    request_body(content = Option<Settling>, content_type = "application/json"),
    responses((status = 200, body = Came, description = "What became of the job"), schema::AckProblems))]
async fn settle(
    State(api): State<Api>,
    ticket: Result<Path<String>, axum::extract::rejection::PathRejection>,
    Sent(json): Sent,
) -> Result<Told, Problem> {
    let Path(text) = ticket?;
    let shown = Shown::read(&text).ok_or_else(no_ticket)?;
    let ticket = api.ticket(&shown).await?;
    let wanted = Wanted::of(&json)?;
    let before = lock(&api.acks.settled).all.get(&shown.signature()).cloned();
    if let Some((said, came)) = before {
        return if said == wanted.said {
            Ok(Told::new(StatusCode::OK, &came))
        } else {
            Err(gone(&ticket.key))
        };
    }
    let (outcome, became, until_ms) = api.outcome(&ticket, &wanted);
    let attempt = (wanted.said == Said::Nack).then(|| Attempt {
        number: ticket.attempt,
        at_ms: ticket.began_ms,
        took_ms: now_ms().saturating_sub(ticket.began_ms).max(0) as u64,
        status: Some(StatusCode::ACCEPTED.as_u16()),
        answer: String::new(),
        error: reason(wanted.reason.as_deref()),
    });
    let why = attempt.as_ref().map_or(String::new(), |attempt| attempt.error.clone());
    let settlement =
        Settlement { key: ticket.key.clone(), token: Token(ticket.token.clone()), outcome, attempt };
    let told = api.desk.ask(Ask::Settle(settlement), Manner::Plain, json.len()).await?;
    if told.count == 0 {
        return Err(gone(&ticket.key));
    }
    let JobKey { topic, id } = &ticket.key;
    let (shown_id, why, number) = (Excerpt(id), Excerpt(&why), ticket.attempt);
    match became {
        Became::Done => {
            log::debug!(target: "notify", "{topic}:{shown_id} accepted later at attempt {number}")
        }
        Became::Dead => {
            log::error!(target: "notify", "{topic}:{shown_id} is a dead letter after attempt {number}: {why}")
        }
        Became::Retried => {
            log::warn!(target: "notify", "{topic}:{shown_id} failed later at attempt {number}: {why}")
        }
        Became::Extended => {}
    }
    let came = Came { topic: topic.as_str().into(), id: id.as_str().into(), outcome: became, until_ms };
    let told = Told::new(StatusCode::OK, &came);
    if became != Became::Extended {
        lock(&api.acks.settled).keep(shown.signature(), wanted.said, came, Instant::now());
    }
    Ok(told)
}

/// Why a receiver says no, as it stands with the job.
fn reason(said: Option<&str>) -> String {
    match said.map(str::trim).filter(|text| !text.is_empty()) {
        Some(text) => text.chars().take(REASON_KEPT).collect(),
        None => "refused later".to_owned(),
    }
}
