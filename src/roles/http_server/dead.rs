//! The routes of dead letters: listed, made ready again, removed. Large numbers go in steps, so that others have their turn at
//! the store.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use axum::extract::{RawQuery, State};
use axum::http::StatusCode;
use serde::Serialize;
use serde_json::value::RawValue;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::api::{Api, InTopic, Sent};
use super::audit::Noted;
use super::input::{self, Fields, wrong};
use super::pick::{self, DeadFilter, DeadQuery};
use super::problem::Problem;
use super::schema;
use super::told::{Extra, Manner, Told};
use crate::job::{JobId, State as JobState, TopicName};
use crate::json_time;
use crate::letters::{Filter, Pace};
use crate::process::now_ms;
use crate::store::Which;
use crate::submit::{Ask, Found, Undertake};
use crate::topic::Rate;

/// So many dead letters are asked for in one step.
const STEP: usize = 500;

/// How many dead letters one request takes, if it does not say; and at most.
const LIMITS: [usize; 2] = [1000, 100_000];

/// What a rate is to be.
const RATE: &str = "a rate such as \"50/s\", \"30/m\" or \"500/h\"";

/// The highest rate.
const RATE_MAX: u32 = 999_999;

/// How many ids one request may name.
const IDS_MAX: usize = 1000;

/// For how long a request goes on with another step.
const PATIENCE: Duration = Duration::from_secs(20);

pub(super) fn routes() -> OpenApiRouter<Api> {
    OpenApiRouter::new().routes(routes!(list)).routes(routes!(redrive)).routes(routes!(purge))
}

/// Which dead letters are meant; without `ids` and `filter` all of the topic. Without a body: all, up to the limit.
#[derive(ToSchema, Serialize)]
#[serde(deny_unknown_fields)]
#[allow(dead_code)]
#[schema(as = DeadSelection, example = json!({"limit": 100, "dry_run": true}))]
pub(super) struct Selection {
    /// Those of these ids.
    #[schema(max_items = 1000)]
    #[schema(nullable = false)]
    ids: Option<Vec<String>>,
    /// Those that it picks.
    #[schema(nullable = false)]
    filter: Option<DeadFilter>,
    /// At most so many of the topic; 1000, if it is missing. Of named ids all are meant.
    #[schema(minimum = 1, maximum = 100000)]
    limit: Option<u32>,
    /// Only counts them.
    dry_run: Option<bool>,
}

/// Which dead letters are redriven, and how.
#[derive(ToSchema, Serialize)]
#[serde(deny_unknown_fields)]
#[allow(dead_code)]
#[schema(as = Redrive, example = json!({"filter": {"status": 503}, "rate": "50/s"}))]
pub(super) struct Redriving {
    /// Those of these ids, of each the latest.
    #[schema(max_items = 1000)]
    #[schema(nullable = false)]
    ids: Option<Vec<String>>,
    /// Those that it picks.
    #[schema(nullable = false)]
    filter: Option<DeadFilter>,
    /// At most so many of the topic; 1000, if it is missing. Of named ids all are meant.
    #[schema(minimum = 1, maximum = 100000)]
    limit: Option<u32>,
    /// Only counts them.
    dry_run: Option<bool>,
    /// They are due one after the other, and wait in `delayed`; if it is missing, all are ready.
    #[schema(schema_with = schema::rate, required = false)]
    rate: serde_json::Value,
    /// When the first is due; if it is missing, now.
    #[schema(schema_with = schema::span, required = false)]
    delay: serde_json::Value,
}

/// What a redrive came to.
#[derive(Serialize, ToSchema)]
pub(super) struct Redriven {
    /// How many are meant, whatever the limit. (Of the whole topic, those whose id is live again are among them, and stay.)
    matched: usize,
    /// How many are ready again, or will be.
    redriven: usize,
    #[serde(flatten)]
    looked: Looked,
}

/// What a purge came to.
#[derive(Serialize, ToSchema)]
pub(super) struct Purged {
    /// How many are meant, whatever the limit.
    matched: usize,
    /// How many were removed.
    purged: usize,
    #[serde(flatten)]
    looked: Looked,
}

/// How far a filter has looked.
#[derive(Default, Serialize, ToSchema)]
pub(super) struct Looked {
    /// There are more than could be looked at in one request, and `matched` is of those that were: ask again.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    #[schema(required = false)]
    more: bool,
    /// The nodes of the store that could not be asked.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    away: Vec<String>,
}

/// What a body says.
struct Wanted {
    ids: Option<Vec<JobId>>,
    filter: Option<Filter>,
    limit: usize,
    dry_run: bool,
    pace: Pace,
}

/// What both routes take.
const SELECTION: [&str; 4] = ["ids", "filter", "limit", "dry_run"];

impl Wanted {
    fn of(json: &[u8], more: &[&str]) -> Result<Wanted, Problem> {
        let known = [&SELECTION[..], more].concat();
        let fields = Fields::of(input::or_empty(json), &known)?;
        let filter = fields.raw("filter").map(pick::filter).transpose()?;
        if filter.is_some() && fields.raw("ids").is_some() {
            return Err(Problem::field("filter", "filter and ids both say which: give one of them"));
        }
        let span = |raw| json_time::duration(raw).ok_or_else(|| wrong("delay", raw, json_time::DURATION));
        let delay = fields.get("delay").map(span).transpose()?.unwrap_or_default();
        let rate: Option<Rate> = fields.plain("rate", RATE)?;
        if let (Some(rate), Some(raw)) = (rate, fields.get("rate"))
            && !(1..=RATE_MAX).contains(&rate.jobs)
        {
            return Err(wrong("rate", raw, RATE));
        }
        let ids: Option<Vec<&RawValue>> = fields.plain("ids", "a list of ids")?;
        // Whoever has no ids to name may not mean all there are.
        if let (None, Some(raw)) = (&ids, fields.raw("ids")) {
            return Err(wrong("ids", raw, "a list of ids; without it all are meant"));
        }
        if ids.as_ref().is_some_and(|ids| ids.len() > IDS_MAX) {
            return Err(Problem::field("ids", format!("ids holds more than {IDS_MAX} of them")));
        }
        let id = |raw: &&RawValue| -> Result<JobId, Problem> {
            let text: String = serde_json::from_str(raw.get()).map_err(|_| wrong("ids", raw, "a text"))?;
            JobId::new(text).map_err(|e| Problem::invalid("ids", &e))
        };
        let ids = ids.map(|ids| ids.iter().map(id).collect::<Result<BTreeSet<_>, _>>()).transpose()?;
        let ids = ids.map(|ids| ids.into_iter().collect());
        let limits = format!("a whole number from 1 to {}", LIMITS[1]);
        let limit: Option<usize> = fields.plain("limit", &limits)?;
        if let (Some(limit), Some(raw)) = (limit, fields.get("limit"))
            && !(1..=LIMITS[1]).contains(&limit)
        {
            return Err(wrong("limit", raw, &limits));
        }
        let dry_run = fields.plain::<Option<bool>>("dry_run", "true or false")?.unwrap_or(false);
        Ok(Wanted { ids, filter, limit: limit.unwrap_or(LIMITS[0]), dry_run, pace: Pace::of(rate, delay) })
    }

    /// Which are meant, for the audit log.
    fn shown(&self) -> String {
        match (&self.ids, &self.filter) {
            (Some(ids), _) => {
                let some: Vec<&str> = ids.iter().take(10).map(JobId::as_str).collect();
                some.join(", ")
            }
            (None, Some(_)) => "those that a filter picks".to_owned(),
            (None, None) => "of all".to_owned(),
        }
    }
}

impl Api {
    /// One step of the store's: with how many it was done.
    async fn step(
        &self,
        topic: &TopicName,
        which: Which,
        limit: usize,
        what: Undertake,
    ) -> Result<usize, Problem> {
        let ask = Ask::Dead { topic: topic.clone(), which, limit, what };
        Ok(self.desk.ask(ask, Manner::Plain, 0).await?.count)
    }

    /// How many are meant, and with how many it was done.
    async fn with_dead(
        &self,
        topic: &TopicName,
        mut wanted: Wanted,
        count: Undertake,
        act: impl Fn(Pace) -> Undertake,
    ) -> Result<(usize, usize, Looked), Problem> {
        let begun = Instant::now();
        let until = begun + PATIENCE;
        if let Some(filter) = wanted.filter.take() {
            return self.with_picked(topic, wanted, filter, act).await;
        }
        let pieces: Vec<Which> = match &wanted.ids {
            None => vec![Which::All],
            Some(ids) => ids.chunks(STEP / 5).map(|some| Which::Ids(some.to_vec())).collect(),
        };
        let mut matched = 0;
        for piece in &pieces {
            matched += self.step(topic, piece.clone(), wanted.limit, count).await?;
        }
        // What is left of a topic that was taken out can still be taken care of.
        if matched == 0 && self.topics.borrow().get(topic.as_str()).is_none() {
            return Err(Problem::unknown_topic(topic));
        }
        let mut done = 0;
        if wanted.dry_run || matched == 0 {
            return Ok((matched, done, Looked::default()));
        }
        for piece in pieces {
            loop {
                let all = piece == Which::All;
                let most = if all { STEP.min(wanted.limit.min(matched) - done) } else { STEP };
                let act = act(wanted.pace.behind(done, begun.elapsed()));
                let some = self.step(topic, piece.clone(), most, act).await.map_err(|p| p.after(done))?;
                done += some;
                if !all || some == 0 || done >= wanted.limit.min(matched) || Instant::now() >= until {
                    break;
                }
            }
        }
        Ok((matched, done, Looked::default()))
    }

    /// The same with those that a filter picks, which are looked for in steps.
    async fn with_picked(
        &self,
        topic: &TopicName,
        wanted: Wanted,
        filter: Filter,
        act: impl Fn(Pace) -> Undertake,
    ) -> Result<(usize, usize, Looked), Problem> {
        let begun = Instant::now();
        // What dies again meanwhile is not meant.
        let filter = Filter {
            died_before_ms: Some(filter.died_before_ms.unwrap_or(i64::MAX).min(now_ms() + 1)),
            ..filter
        };
        let (mut matched, mut done, mut cursor) = (0, 0, None);
        loop {
            let (topic, filter) = (topic.clone(), filter.clone());
            let ask = Ask::Find { topic: topic.clone(), filter, cursor, limit: STEP };
            let told = self.desk.ask(ask, Manner::Plain, 0).await.map_err(|p| p.after(done))?;
            let Extra::Found(Found { mut letters, next, away }) = told.extra else {
                unreachable!("it was asked for")
            };
            matched += letters.len();
            letters.truncate(wanted.limit - done);
            if !wanted.dry_run && !letters.is_empty() {
                let (most, act) = (letters.len(), act(wanted.pace.behind(done, begun.elapsed())));
                let acted = self.step(&topic, Which::Letters(letters), most, act).await;
                done += acted.map_err(|p| p.after(done))?;
            }
            let is_over = next.is_none() || begun.elapsed() >= PATIENCE;
            if is_over {
                let is_known = self.topics.borrow().get(topic.as_str()).is_some();
                if matched == 0 && next.is_none() && !is_known {
                    return Err(Problem::unknown_topic(&topic));
                }
                return Ok((matched, done, Looked { more: next.is_some(), away }));
            }
            cursor = next;
        }
    }
}

/// Lists a topic's dead letters.
#[utoipa::path(get, path = "/v1/topics/{topic}/dead", tag = "dead letters", operation_id = "list_dead",
    params(schema::TopicPath, DeadQuery),
    responses((status = 200, body = schema::Jobs, description = "A page of them"), schema::FindProblems))]
async fn list(
    State(api): State<Api>,
    InTopic(topic): InTopic,
    RawQuery(query): RawQuery,
) -> Result<Told, Problem> {
    let mut queried = pick::Queried::default();
    let known = [&["limit", "cursor"], &pick::NAMES[..]].concat();
    let (cursor, limit) =
        input::page_with(query.as_deref().unwrap_or_default(), &known, input::LIMITS, |name, value| {
            queried.take(name, value)
        })?;
    let registered = api.topics.borrow().get(topic.as_str()).is_some();
    let manner = Manner::List { topic: topic.clone(), registered };
    let ask = Ask::List { topic, state: JobState::Dead, filter: queried.filter(), cursor, limit };
    api.desk.ask(ask, manner, 0).await
}

/// Makes dead letters ready, with their attempts reset; or delayed, so that they are due one after the other.
#[utoipa::path(post, path = "/v1/topics/{topic}/dead/redrive", tag = "dead letters", operation_id = "redrive_dead",
    params(schema::TopicPath, schema::IdempotencyKey), request_body(content = Option<Redriving>, content_type = "application/json"),
    responses((status = 200, body = Redriven, description = "How many"), schema::ChangeProblems))]
async fn redrive(State(api): State<Api>, InTopic(topic): InTopic, Sent(json): Sent) -> Result<Told, Problem> {
    let wanted = Wanted::of(&json, &["rate", "delay"])?;
    let (is_nothing, detail) = (wanted.dry_run, wanted.shown());
    let (matched, redriven, looked) =
        api.with_dead(&topic, wanted, Undertake::CountForRedrive, Undertake::Redrive).await?;
    let noted = Noted { is_nothing, detail, jobs: Some(redriven), ..Noted::default() };
    Ok(Told::new(StatusCode::OK, &Redriven { matched, redriven, looked }).noting(noted))
}

/// Removes dead letters. A job that is live again under the id of one stays.
#[utoipa::path(post, path = "/v1/topics/{topic}/dead/purge", tag = "dead letters", operation_id = "purge_dead",
    params(schema::TopicPath, schema::IdempotencyKey), request_body(content = Option<Selection>, content_type = "application/json"),
    responses((status = 200, body = Purged, description = "How many"), schema::ChangeProblems))]
async fn purge(State(api): State<Api>, InTopic(topic): InTopic, Sent(json): Sent) -> Result<Told, Problem> {
    let wanted = Wanted::of(&json, &[])?;
    let (is_nothing, detail) = (wanted.dry_run, wanted.shown());
    let purge = |_| Undertake::Purge;
    let (matched, purged, looked) = api.with_dead(&topic, wanted, Undertake::CountForPurge, purge).await?;
    let noted = Noted { is_nothing, detail, jobs: Some(purged), ..Noted::default() };
    Ok(Told::new(StatusCode::OK, &Purged { matched, purged, looked }).noting(noted))
}
