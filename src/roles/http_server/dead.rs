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
use super::input::{self, Fields, wrong};
use super::problem::Problem;
use super::schema;
use super::told::{Manner, Told};
use crate::job::{JobId, State as JobState, TopicName};
use crate::store::Which;
use crate::submit::{Ask, Undertake};

/// So many dead letters are asked for in one step.
const STEP: usize = 500;

/// How many dead letters one request takes, if it does not say; and at most.
const LIMITS: [usize; 2] = [1000, 100_000];

/// How many ids one request may name.
const IDS_MAX: usize = 1000;

/// For how long a request goes on with another step.
const PATIENCE: Duration = Duration::from_secs(20);

pub(super) fn routes() -> OpenApiRouter<Api> {
    OpenApiRouter::new().routes(routes!(list)).routes(routes!(redrive)).routes(routes!(purge))
}

/// Which dead letters are meant; without `ids` all of the topic. Without a body: all, up to the limit.
#[derive(ToSchema, Serialize)]
#[serde(deny_unknown_fields)]
#[allow(dead_code)]
#[schema(as = DeadSelection, example = json!({"limit": 100, "dry_run": true}))]
pub(super) struct Selection {
    /// Those of these ids.
    #[schema(max_items = 1000)]
    #[schema(nullable = false)]
    ids: Option<Vec<String>>,
    /// At most so many of the topic; 1000, if it is missing. Of named ids all are meant.
    #[schema(minimum = 1, maximum = 100000)]
    limit: Option<u32>,
    /// Only counts them.
    dry_run: Option<bool>,
}

/// What a redrive came to.
#[derive(Serialize, ToSchema)]
pub(super) struct Redriven {
    /// How many are meant, whatever the limit. (Of the whole topic, those whose id is live again are among them, and stay.)
    matched: usize,
    /// How many are ready again.
    redriven: usize,
}

/// What a purge came to.
#[derive(Serialize, ToSchema)]
pub(super) struct Purged {
    /// How many are meant, whatever the limit.
    matched: usize,
    /// How many were removed.
    purged: usize,
}

/// What a body says.
struct Wanted {
    ids: Option<Vec<JobId>>,
    limit: usize,
    dry_run: bool,
}

impl Wanted {
    fn of(json: &[u8]) -> Result<Wanted, Problem> {
        let fields = Fields::of(input::or_empty(json), &["ids", "limit", "dry_run"])?;
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
        Ok(Wanted { ids, limit: limit.unwrap_or(LIMITS[0]), dry_run })
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
        wanted: Wanted,
        [count, act]: [Undertake; 2],
    ) -> Result<(usize, usize), Problem> {
        let until = Instant::now() + PATIENCE;
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
            return Ok((matched, done));
        }
        for piece in pieces {
            loop {
                let all = piece == Which::All;
                let most = if all { STEP.min(wanted.limit - done) } else { STEP };
                let some = self.step(topic, piece.clone(), most, act).await.map_err(|p| p.after(done))?;
                done += some;
                if !all || some == 0 || done >= wanted.limit || Instant::now() >= until {
                    break;
                }
            }
        }
        Ok((matched, done))
    }
}

/// Lists a topic's dead letters.
#[utoipa::path(get, path = "/v1/topics/{topic}/dead", tag = "dead letters", operation_id = "list_dead",
    params(schema::TopicPath, schema::DeadQuery),
    responses((status = 200, body = schema::Jobs, description = "A page of them"), schema::FindProblems))]
async fn list(
    State(api): State<Api>,
    InTopic(topic): InTopic,
    RawQuery(query): RawQuery,
) -> Result<Told, Problem> {
    let (cursor, limit) = input::page(query.as_deref().unwrap_or_default())?;
    let registered = api.topics.borrow().get(topic.as_str()).is_some();
    let manner = Manner::List { topic: topic.clone(), registered };
    api.desk.ask(Ask::List { topic, state: JobState::Dead, cursor, limit }, manner, 0).await
}

/// Makes dead letters ready, with their attempts reset.
#[utoipa::path(post, path = "/v1/topics/{topic}/dead/redrive", tag = "dead letters", operation_id = "redrive_dead",
    params(schema::TopicPath, schema::IdempotencyKey), request_body(content = Option<Selection>, content_type = "application/json"),
    responses((status = 200, body = Redriven, description = "How many"), schema::ChangeProblems))]
async fn redrive(State(api): State<Api>, InTopic(topic): InTopic, Sent(json): Sent) -> Result<Told, Problem> {
    let how = [Undertake::CountForRedrive, Undertake::Redrive];
    let (matched, redriven) = api.with_dead(&topic, Wanted::of(&json)?, how).await?;
    Ok(Told::new(StatusCode::OK, &Redriven { matched, redriven }))
}

/// Removes dead letters. A job that is live again under the id of one stays.
#[utoipa::path(post, path = "/v1/topics/{topic}/dead/purge", tag = "dead letters", operation_id = "purge_dead",
    params(schema::TopicPath, schema::IdempotencyKey), request_body(content = Option<Selection>, content_type = "application/json"),
    responses((status = 200, body = Purged, description = "How many"), schema::ChangeProblems))]
async fn purge(State(api): State<Api>, InTopic(topic): InTopic, Sent(json): Sent) -> Result<Told, Problem> {
    let how = [Undertake::CountForPurge, Undertake::Purge];
    let (matched, purged) = api.with_dead(&topic, Wanted::of(&json)?, how).await?;
    Ok(Told::new(StatusCode::OK, &Purged { matched, purged }))
}
