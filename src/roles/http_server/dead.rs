//! The routes of dead letters: list them, redrive them, purge them. A change of many dead letters is made in steps, so
//! that other requests get their turn at the store.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use axum::extract::{RawQuery, State};
use axum::http::StatusCode;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::RawValue;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::api::{Api, CallerContext, TopicInPath};
use super::api_response::ApiResponse;
use super::audit::AuditNote;
use super::body::JsonBody;
use super::dead_filter::{self, DeadFilter, DeadQuery};
use super::input;
use super::job_shown::JobList;
use super::problem::Problem;
use super::schema;
use super::store_client::AnswerSender;
use super::typed_body::{self, BoundedNumber, JsonDuration, given};
use host::now_ms;
use model::job::{JobId, State as JobState, TopicName};
use model::letters::{DeadLetterFilter, RedrivePace};
use model::topic::Rate;
use role::submit::{DeadLetterTask, FoundDeadLetters, ListRequest, StoreRequest};
use store::DeadLetterSelection;

/// How many dead letters one step of the store handles.
const STEP: usize = 500;

/// The default and the maximum number of dead letters that one request handles.
const LIMITS: [u32; 2] = [1000, 100_000];

/// The valid values of `rate`, as error messages describe them.
const RATE: &str = "a rate such as \"50/s\", \"30/m\" or \"500/h\"";

/// The highest rate.
const RATE_MAX: u32 = 999_999;

/// How many ids one request may name.
const IDS_MAX: usize = 1000;

/// A request may begin another step until this time after its start.
const PATIENCE: Duration = Duration::from_secs(20);

pub(super) fn routes() -> OpenApiRouter<Api> {
    OpenApiRouter::new().routes(routes!(list)).routes(routes!(redrive)).routes(routes!(purge))
}

/// Which dead letters are selected. Without `ids` and `filter`, or without a body, all dead letters of the topic are
/// selected, up to the limit.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = DeadSelection, example = json!({"limit": 100, "dry_run": true}))]
pub(super) struct PurgeRequest<'a> {
    /// Selects dead letters by their ids.
    #[serde(default, deserialize_with = "given")]
    #[schema(value_type = Option<Vec<String>>, max_items = 1000, nullable = false)]
    ids: Option<Ids>,
    /// Selects the dead letters that match the filter.
    #[serde(borrow, default, deserialize_with = "given")]
    #[schema(value_type = Option<DeadFilter>, nullable = false)]
    filter: Option<&'a RawValue>,
    /// The maximum number of dead letters to handle, 1000 by default. It does not limit `ids`.
    #[schema(value_type = Option<u32>, minimum = 1, maximum = 100000)]
    limit: Option<DeadLetterLimit>,
    /// If true, the dead letters are only counted.
    #[serde(default, deserialize_with = "given")]
    #[schema(nullable = false)]
    dry_run: Option<bool>,
}

/// Which dead letters are redriven, and how.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Redrive, example = json!({"filter": {"status": 503}, "rate": "50/s"}))]
pub(super) struct RedriveRequest<'a> {
    /// Selects dead letters by their ids: the latest dead letter of each id.
    #[serde(default, deserialize_with = "given")]
    #[schema(value_type = Option<Vec<String>>, max_items = 1000, nullable = false)]
    ids: Option<Ids>,
    /// Selects the dead letters that match the filter.
    #[serde(borrow, default, deserialize_with = "given")]
    #[schema(value_type = Option<DeadFilter>, nullable = false)]
    filter: Option<&'a RawValue>,
    /// The maximum number of dead letters to handle, 1000 by default. It does not limit `ids`.
    #[schema(value_type = Option<u32>, minimum = 1, maximum = 100000)]
    limit: Option<DeadLetterLimit>,
    /// If true, the dead letters are only counted.
    #[serde(default, deserialize_with = "given")]
    #[schema(nullable = false)]
    dry_run: Option<bool>,
    /// The pace: the jobs are `delayed`, and due one after the other. If it is missing, all jobs are due at the same
    /// time.
    #[schema(schema_with = schema::rate, required = false)]
    rate: Option<RedriveRate>,
    /// The delay until the first job is due. If it is missing, the first job is due now.
    #[schema(schema_with = schema::span, required = false)]
    delay: Option<JsonDuration>,
}

/// The maximum number of dead letters that a request handles.
type DeadLetterLimit = BoundedNumber<1, { LIMITS[1] }>;

/// The ids of dead letters. A null is refused. Otherwise a client that has no ids and sends null would select all dead
/// letters.
#[derive(Debug)]
struct Ids(Vec<String>);

impl<'de> Deserialize<'de> for Ids {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Ids, D::Error> {
        let ids = serde_json::from_str(<&RawValue>::deserialize(from)?.get());
        ids.map(Ids).map_err(|_| typed_body::invalid("a list of ids (leave it out to select all)"))
    }
}

/// The pace of a redrive.
#[derive(Debug)]
struct RedriveRate(Rate);

impl<'de> Deserialize<'de> for RedriveRate {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<RedriveRate, D::Error> {
        let rate: Option<Rate> = serde_json::from_str(<&RawValue>::deserialize(from)?.get()).ok();
        let within = rate.filter(|rate| (1..=RATE_MAX).contains(&rate.jobs));
        within.map(RedriveRate).ok_or_else(|| typed_body::invalid(RATE))
    }
}

/// The result of a redrive.
#[derive(Serialize, ToSchema)]
pub(super) struct Redriven {
    /// How many dead letters are selected, without regard to the limit. Without `ids` and `filter`, this count includes
    /// dead letters whose id is now used by a new job. These dead letters are not redriven.
    matched: usize,
    /// How many dead letters were made ready or, with a `rate` or `delay`, delayed.
    redriven: usize,
    #[serde(flatten)]
    looked: SearchCoverage,
}

/// The result of a purge.
#[derive(Serialize, ToSchema)]
pub(super) struct Purged {
    /// How many dead letters are selected, without regard to the limit.
    matched: usize,
    /// How many dead letters were removed.
    purged: usize,
    #[serde(flatten)]
    looked: SearchCoverage,
}

/// How far the search with a filter got.
#[derive(Default, Serialize, ToSchema)]
pub(super) struct SearchCoverage {
    /// True if one request could not search all dead letters. Then `matched` counts only the matches among the searched
    /// dead letters. Send the request again.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    #[schema(required = false)]
    more: bool,
    /// The nodes of the store that did not answer.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    away: Vec<String>,
}

/// A request after the check of its fields.
struct ParsedDeadLetterRequest {
    ids: Option<Vec<JobId>>,
    filter: Option<DeadLetterFilter>,
    limit: usize,
    dry_run: bool,
    pace: RedrivePace,
}

impl<'a> From<PurgeRequest<'a>> for RedriveRequest<'a> {
    fn from(PurgeRequest { ids, filter, limit, dry_run }: PurgeRequest<'a>) -> RedriveRequest<'a> {
        RedriveRequest { ids, filter, limit, dry_run, rate: None, delay: None }
    }
}

impl ParsedDeadLetterRequest {
    fn check(request: RedriveRequest<'_>) -> Result<ParsedDeadLetterRequest, Problem> {
        let filter = request.filter.map(dead_filter::filter).transpose()?;
        if filter.is_some() && request.ids.is_some() {
            return Err(Problem::field("filter", "filter and ids exclude each other: give one of them"));
        }
        let ids = |Ids(ids): Ids| {
            if ids.len() > IDS_MAX {
                return Err(Problem::field("ids", format!("ids holds more than {IDS_MAX} ids")));
            }
            let id = |text| JobId::new(text).map_err(|e| Problem::invalid("ids", &e));
            let ids = ids.into_iter().map(id).collect::<Result<BTreeSet<_>, _>>()?;
            Ok(ids.into_iter().collect())
        };
        let delay = request.delay.map_or(Duration::ZERO, |JsonDuration(delay)| delay);
        Ok(ParsedDeadLetterRequest {
            ids: request.ids.map(ids).transpose()?,
            filter,
            limit: request.limit.map_or(LIMITS[0], |BoundedNumber(limit)| limit) as usize,
            dry_run: request.dry_run.unwrap_or(false),
            pace: RedrivePace::new(request.rate.map(|RedriveRate(rate)| rate), delay),
        })
    }

    /// Returns which dead letters are selected, for the audit log.
    fn summary(&self) -> String {
        match (&self.ids, &self.filter) {
            (Some(ids), _) => {
                let some: Vec<&str> = ids.iter().take(10).map(JobId::as_str).collect();
                some.join(", ")
            }
            (None, Some(_)) => "those that a filter picks".to_owned(),
            (None, None) => "all".to_owned(),
        }
    }
}

impl Api {
    /// Does one step in the store. Returns how many dead letters it handled or counted.
    async fn step(
        &self,
        topic: &TopicName,
        which: DeadLetterSelection,
        limit: usize,
        what: DeadLetterTask,
    ) -> Result<usize, Problem> {
        let topic = topic.clone();
        let ask = |reply: AnswerSender<_>| {
            StoreRequest::dead_letters(topic, which, limit, what, |count| reply.with(count))
        };
        Ok(self.store_client.ask(0, ask).await??)
    }

    /// Returns how many dead letters are selected, how many were handled, and how far a search with a filter got.
    async fn handle_dead(
        &self,
        topic: &TopicName,
        mut wanted: ParsedDeadLetterRequest,
        count: DeadLetterTask,
        act: impl Fn(RedrivePace) -> DeadLetterTask,
    ) -> Result<(usize, usize, SearchCoverage), Problem> {
        let begun = Instant::now();
        let until = begun + PATIENCE;
        if let Some(filter) = wanted.filter.take() {
            return self.handle_selected(topic, wanted, filter, act).await;
        }
        let pieces: Vec<DeadLetterSelection> = match &wanted.ids {
            None => vec![DeadLetterSelection::All],
            Some(ids) => ids.chunks(STEP / 5).map(|some| DeadLetterSelection::Ids(some.to_vec())).collect(),
        };
        let mut matched = 0;
        for piece in &pieces {
            matched += self.step(topic, piece.clone(), wanted.limit, count).await?;
        }
        // After a topic was removed, the dead letters that remain can still be handled.
        if matched == 0 && self.topics.borrow().get(topic.as_str()).is_none() {
            return Err(Problem::unknown_topic(topic));
        }
        let mut done = 0;
        if wanted.dry_run || matched == 0 {
            return Ok((matched, done, SearchCoverage::default()));
        }
        for piece in pieces {
            loop {
                let all = piece == DeadLetterSelection::All;
                let most = if all { STEP.min(wanted.limit.min(matched) - done) } else { STEP };
                let act = act(wanted.pace.behind(done, begun.elapsed()));
                let some = self.step(topic, piece.clone(), most, act).await.map_err(|p| p.after(done))?;
                done += some;
                if !all || some == 0 || done >= wanted.limit.min(matched) || Instant::now() >= until {
                    break;
                }
            }
        }
        Ok((matched, done, SearchCoverage::default()))
    }

    /// Like `handle_dead`, but for the dead letters that match a filter. The function searches the dead letters in
    /// steps.
    async fn handle_selected(
        &self,
        topic: &TopicName,
        wanted: ParsedDeadLetterRequest,
        filter: DeadLetterFilter,
        act: impl Fn(RedrivePace) -> DeadLetterTask,
    ) -> Result<(usize, usize, SearchCoverage), Problem> {
        let begun = Instant::now();
        // A job that dies again during this request is not selected again.
        let filter = DeadLetterFilter {
            died_before_ms: Some(filter.died_before_ms.unwrap_or(i64::MAX).min(now_ms() + 1)),
            ..filter
        };
        let (mut matched, mut done, mut cursor) = (0, 0, None);
        loop {
            let (topic, filter) = (topic.clone(), filter.clone());
            let of_topic = topic.clone();
            let ask = |reply: AnswerSender<_>| {
                StoreRequest::find(of_topic, filter, cursor, STEP, |found| reply.with(found))
            };
            // The limit of reads for each client does not apply to these reads, because only a caller that may manage
            // the topic can cause them, and because one request needs many reads.
            let found = self.store_client.read(None, ask).await.and_then(|found| Ok(found?));
            let FoundDeadLetters { mut letters, next, away } = found.map_err(|p| p.after(done))?;
            matched += letters.len();
            letters.truncate(wanted.limit - done);
            if !wanted.dry_run && !letters.is_empty() {
                let (most, act) = (letters.len(), act(wanted.pace.behind(done, begun.elapsed())));
                let acted = self.step(&topic, DeadLetterSelection::Letters(letters), most, act).await;
                done += acted.map_err(|p| p.after(done))?;
            }
            let is_over = next.is_none() || begun.elapsed() >= PATIENCE;
            if is_over {
                let is_known = self.topics.borrow().get(topic.as_str()).is_some();
                if matched == 0 && next.is_none() && !is_known {
                    return Err(Problem::unknown_topic(&topic));
                }
                return Ok((matched, done, SearchCoverage { more: next.is_some(), away }));
            }
            cursor = next;
        }
    }
}

/// Lists a topic's dead letters.
#[utoipa::path(get, path = "/v1/topics/{topic}/dead", tag = "dead letters", operation_id = "list_dead",
    params(schema::TopicPath, DeadQuery),
    responses((status = 200, body = JobList, description = "A page of dead letters"), schema::LookupErrorResponses))]
async fn list(
    State(api): State<Api>,
    requester: CallerContext,
    TopicInPath(topic): TopicInPath,
    RawQuery(query): RawQuery,
) -> Result<ApiResponse, Problem> {
    let mut queried = dead_filter::DeadLetterFilterQuery::default();
    let known = [&["limit", "cursor"], &dead_filter::NAMES[..]].concat();
    let (cursor, limit) =
        input::page_with(query.as_deref().unwrap_or_default(), &known, input::LIMITS, |name, value| {
            queried.take(name, value)
        })?;
    api.list(requester, ListRequest { topic, state: JobState::Dead, filter: queried.filter(), cursor, limit })
        .await
}

/// Makes dead letters ready again, with their attempts reset. With `delay`, they become due later. With `rate`, they
/// become due one after the other.
#[utoipa::path(post, path = "/v1/topics/{topic}/dead/redrive", tag = "dead letters", operation_id = "redrive_dead",
    params(schema::TopicPath, schema::IdempotencyKey), request_body(content = Option<RedriveRequest>, content_type = "application/json"),
    responses((status = 200, body = Redriven, description = "How many were selected and redriven"), schema::ChangeErrorResponses))]
async fn redrive(
    State(api): State<Api>,
    TopicInPath(topic): TopicInPath,
    JsonBody(json): JsonBody,
) -> Result<ApiResponse, Problem> {
    let wanted = ParsedDeadLetterRequest::check(typed_body::read_or_empty(&json)?)?;
    let (is_nothing, detail) = (wanted.dry_run, wanted.summary());
    let (matched, redriven, looked) =
        api.handle_dead(&topic, wanted, DeadLetterTask::CountForRedrive, DeadLetterTask::Redrive).await?;
    let noted = AuditNote { is_nothing, detail, jobs: Some(redriven), ..AuditNote::default() };
    Ok(ApiResponse::new(StatusCode::OK, &Redriven { matched, redriven, looked }).noting(noted))
}

/// Removes dead letters. A live job with the same id stays.
#[utoipa::path(post, path = "/v1/topics/{topic}/dead/purge", tag = "dead letters", operation_id = "purge_dead",
    params(schema::TopicPath, schema::IdempotencyKey), request_body(content = Option<PurgeRequest>, content_type = "application/json"),
    responses((status = 200, body = Purged, description = "How many were selected and removed"), schema::ChangeErrorResponses))]
async fn purge(
    State(api): State<Api>,
    TopicInPath(topic): TopicInPath,
    JsonBody(json): JsonBody,
) -> Result<ApiResponse, Problem> {
    let request: PurgeRequest<'_> = typed_body::read_or_empty(&json)?;
    let wanted = ParsedDeadLetterRequest::check(request.into())?;
    let (is_nothing, detail) = (wanted.dry_run, wanted.summary());
    let purge = |_| DeadLetterTask::Purge;
    let (matched, purged, looked) =
        api.handle_dead(&topic, wanted, DeadLetterTask::CountForPurge, purge).await?;
    let noted = AuditNote { is_nothing, detail, jobs: Some(purged), ..AuditNote::default() };
    Ok(ApiResponse::new(StatusCode::OK, &Purged { matched, purged, looked }).noting(noted))
}
