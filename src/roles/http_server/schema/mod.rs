//! What `/openapi.json` says of requests and answers that are taken apart or made by hand. Tests hold it equal to what is done.
// None of these is ever made: the document is made of them.
#![allow(dead_code)]

mod problems;

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::Value;
use utoipa::openapi::schema::{ObjectBuilder, OneOfBuilder, Schema, SchemaType, Type};
use utoipa::{IntoParams, ToSchema};

pub(super) use self::problems::{AckProblems, ChangeProblems, FindProblems, ShowProblems};

/// A duration such as `90s` or `1h30m`, or a number of seconds.
pub(super) fn span() -> Schema {
    let text = ObjectBuilder::new().schema_type(Type::String).examples(["1h30m"]);
    let seconds = ObjectBuilder::new().schema_type(Type::Number).minimum(Some(0));
    let null = ObjectBuilder::new().schema_type(Type::Null);
    OneOfBuilder::new()
        .item(text)
        .item(seconds)
        .item(null)
        .description(Some("A duration such as \"90s\" or \"1h30m\", or a number of seconds."))
        .into()
}

/// A moment: RFC 3339, or Unix milliseconds.
fn moment() -> Schema {
    let text = ObjectBuilder::new().schema_type(Type::String).examples(["2026-12-01T23:50:50+08:00"]);
    let ms = ObjectBuilder::new().schema_type(Type::Integer).minimum(Some(0));
    let null = ObjectBuilder::new().schema_type(Type::Null);
    OneOfBuilder::new()
        .item(text)
        .item(ms)
        .item(null)
        .description(Some("A moment such as \"2026-12-01T23:50:50+08:00\", or Unix milliseconds."))
        .into()
}

/// So many in a span.
pub(super) fn rate() -> Schema {
    let text = ObjectBuilder::new().schema_type(Type::String).examples(["50/s"]);
    let number = ObjectBuilder::new().schema_type(Type::Integer).minimum(Some(1)).maximum(Some(999_999));
    let null = ObjectBuilder::new().schema_type(Type::Null);
    OneOfBuilder::new()
        .item(text)
        .item(number)
        .item(null)
        .description(Some("So many in a second, a minute or an hour: \"50/s\", \"30/m\", \"500/h\"; a number is of a second."))
        .into()
}

/// What a job's callbacks carry beside its topic's headers.
fn headers() -> Schema {
    let value = ObjectBuilder::new().schema_type(Type::String).pattern(Some("^([!-~]([ -~\\t]*[!-~])?)?$"));
    ObjectBuilder::new()
        .schema_type(SchemaType::from_iter([Type::Object, Type::Null]))
        .property_names(Some(ObjectBuilder::new().schema_type(Type::String).pattern(Some("^[!#$%&'*+.^_`|~0-9A-Za-z-]+$"))))
        .additional_properties(Some(value))
        .max_properties(Some(32))
        .description(Some(
            "Headers of its callbacks, 4096 bytes together. None that dq sends itself (`dq-…`, `webhook-…`, `content-type` and \
             the like); `traceparent` as W3C has it.",
        ))
        .examples([serde_json::json!({"x-tenant": "7"})])
        .into()
}

/// Which of a topic's ready jobs are delivered first.
#[derive(ToSchema, Serialize)]
#[serde(rename_all = "lowercase")]
#[schema(as = Priority)]
pub(super) enum PriorityWord {
    High,
    Normal,
    Low,
}

/// What an add does when a job of its id is there already.
#[derive(ToSchema, Serialize)]
#[serde(rename_all = "lowercase")]
#[schema(as = OnConflict)]
pub(super) enum OnConflictWord {
    Replace,
    Reject,
    Keep,
}

/// Where a job is in its life.
#[derive(ToSchema, Serialize)]
#[serde(rename_all = "lowercase")]
#[schema(as = State)]
pub(super) enum StateWord {
    Delayed,
    Ready,
    Leased,
    Dead,
}

/// A new job. Of `delay` and `run_at` at most one may be given; without them the topic's delay holds.
#[derive(ToSchema, Serialize)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"id": "42", "delay": "30m", "body": {"order": 42}}))]
pub(super) struct NewJob {
    /// Unique in its topic, up to 256 bytes. Made, if it is missing: of the Idempotency-Key if there is one.
    #[schema(min_length = 1)]
    id: Option<String>,
    /// Any JSON value.
    body: Value,
    #[schema(schema_with = span, required = false)]
    delay: Value,
    #[schema(schema_with = moment, required = false)]
    run_at: Value,
    /// `normal`, if it is missing.
    priority: Option<PriorityWord>,
    /// `replace`, if it is missing.
    on_conflict: Option<OnConflictWord>,
    /// The topic's, if it is missing.
    #[schema(minimum = 1, maximum = 1000)]
    max_attempts: Option<u32>,
    #[schema(schema_with = headers, required = false)]
    headers: Value,
}

/// Jobs to add.
#[derive(ToSchema, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct NewJobs {
    #[schema(max_items = 10000)]
    jobs: Vec<NewJob>,
}

/// What became of an added job.
#[derive(ToSchema, Serialize)]
#[schema(example = json!({
    "topic": "orders", "id": "42", "outcome": "new", "due": "2026-12-01T15:50:50.000Z", "due_ms": 1_796_140_250_000_u64
}))]
pub(super) struct AddedJob {
    topic: String,
    id: String,
    outcome: OutcomeWord,
    /// When the job is due, RFC 3339 in UTC. Of a job that was kept: when the one that stays is due.
    due: String,
    /// The same moment in Unix milliseconds.
    due_ms: i64,
}

/// `kept`: there is one with the id, and it stays.
#[derive(ToSchema, Serialize)]
#[serde(rename_all = "lowercase")]
#[schema(as = AddOutcome)]
pub(super) enum OutcomeWord {
    New,
    Replaced,
    Kept,
}

/// Each job by itself, in their order: what became of it, or a problem; each with its `status`.
#[derive(ToSchema, Serialize)]
pub(super) struct AddedJobs {
    results: Vec<AddedOrNot>,
}

/// What became of one of many.
#[derive(ToSchema, Serialize)]
pub(super) struct AddedOrNot {
    /// The status that an add of this job alone would have had.
    status: u16,
    topic: Option<String>,
    id: Option<String>,
    outcome: Option<OutcomeWord>,
    /// Of one that was stored or kept: when it is due, RFC 3339 in UTC.
    due: Option<String>,
    /// The same moment in Unix milliseconds.
    due_ms: Option<i64>,
    /// Of one that was refused: why.
    code: Option<String>,
    detail: Option<String>,
    field: Option<String>,
}

/// What is changed of a job that waits; what is not given stays. At most one of `delay` and `run_at`.
#[derive(ToSchema, Serialize)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"delay": "2h"}))]
pub(super) struct JobChange {
    #[schema(schema_with = span, required = false)]
    delay: Value,
    #[schema(schema_with = moment, required = false)]
    run_at: Value,
    /// Any JSON value, null as well.
    #[schema(required = false)]
    body: Value,
    priority: Option<PriorityWord>,
    /// Null: the topic's.
    #[schema(minimum = 1, maximum = 1000)]
    max_attempts: Option<u32>,
    /// Null: none.
    #[schema(schema_with = headers, required = false)]
    headers: Value,
}

/// A job as it is.
#[derive(ToSchema, Serialize)]
pub(super) struct Job {
    topic: String,
    id: String,
    state: StateWord,
    /// When the coming, the current or (of a dead letter) the last attempt is or was due, Unix milliseconds.
    due_ms: i64,
    /// Leased: until when. Dead: when it died.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    until_ms: Option<i64>,
    /// When it was added.
    added_ms: i64,
    priority: PriorityWord,
    /// Attempts that were begun and count.
    attempts: u32,
    /// Its own limit; else the topic's holds.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    max_attempts: Option<u32>,
    /// Its own headers, names in lower case.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    #[schema(required = false)]
    headers: BTreeMap<String, String>,
    /// The last attempts, the oldest first.
    log: Vec<AttemptMade>,
    body: Value,
}

/// One delivery that was tried.
#[derive(ToSchema, Serialize)]
#[schema(as = Attempt)]
pub(super) struct AttemptMade {
    number: u32,
    at_ms: i64,
    took_ms: u64,
    /// The status of the receiver's answer, if there was one.
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<u16>,
    /// Its first characters.
    #[serde(skip_serializing_if = "String::is_empty", default)]
    answer: String,
    /// What went wrong.
    #[serde(skip_serializing_if = "String::is_empty", default)]
    error: String,
}

/// A page of jobs.
#[derive(ToSchema, Serialize)]
pub(super) struct Jobs {
    jobs: Vec<Job>,
    /// What the next page's `cursor` is; null: this was the last.
    #[schema(required = true)]
    next: Option<String>,
    /// The nodes of the store that could not be asked, and whose jobs are missing.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    away: Vec<String>,
}

/// What was done with jobs.
#[derive(ToSchema, Serialize)]
pub(super) struct Sums {
    /// Jobs that were stored, new or in the place of others.
    written: u64,
    /// Jobs that are done.
    delivered: u64,
    /// Attempts that failed.
    failed: u64,
    /// Jobs that were deleted.
    deleted: u64,
    /// Jobs that became dead letters.
    dead: u64,
    /// By how much attempts began after their due time, all together, in microseconds.
    late_us: u64,
    /// How many attempts that is.
    attempts: u64,
}

/// What was done with jobs on a day.
#[derive(ToSchema, Serialize)]
pub(super) struct DaySums {
    /// In the zone of `timezone`.
    #[schema(example = "2026-11-21")]
    day: String,
    #[serde(flatten)]
    sums: Sums,
}

/// Of which days statistics are told.
#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct StatsQuery {
    /// Of so many days up to today, and of all time; if it is missing, none.
    #[param(minimum = 1, maximum = 366, required = false)]
    days: u32,
}

/// A page of what was changed.
#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct AuditQuery {
    /// How many entries at most; 50, if it is missing.
    #[param(minimum = 1, maximum = 500, required = false)]
    limit: u32,
    /// What the page before gave as `next`.
    #[param(required = false)]
    cursor: String,
}

/// Of which topic; of all, if it is missing.
#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct OneTopicQuery {
    #[param(pattern = "^[A-Za-z0-9_.-]+$", min_length = 1, max_length = 128, required = false)]
    topic: String,
}

/// A topic of a path.
#[derive(IntoParams)]
#[into_params(parameter_in = Path)]
pub(super) struct TopicPath {
    /// The topic's name.
    #[param(pattern = "^[A-Za-z0-9_.-]+$", min_length = 1, max_length = 128, example = "orders")]
    topic: String,
}

/// A job of a path.
#[derive(IntoParams)]
#[into_params(parameter_in = Path)]
pub(super) struct JobPath {
    /// The topic's name.
    #[param(pattern = "^[A-Za-z0-9_.-]+$", min_length = 1, max_length = 128, example = "orders")]
    topic: String,
    /// The job's id, percent-encoded.
    #[param(min_length = 1, max_length = 256, example = "42")]
    id: String,
}

/// A token of a path.
#[derive(IntoParams)]
#[into_params(parameter_in = Path)]
pub(super) struct TokenPath {
    /// The token's name.
    #[param(pattern = "^[A-Za-z0-9_.-]+$", min_length = 1, max_length = 128, example = "shop")]
    name: String,
}

/// Which jobs are shown.
#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct ListQuery {
    /// In which state.
    #[param(inline)]
    state: StateWord,
    /// How many at most; 50, if it is missing. A page of large jobs is shorter.
    #[param(minimum = 1, maximum = 1000, required = false)]
    limit: u32,
    /// What the page before gave as `next`.
    #[param(required = false)]
    cursor: String,
}

/// How a repeated request is told from a new one.
#[derive(IntoParams)]
#[into_params(parameter_in = Header)]
pub(super) struct IdempotencyKey {
    /// A request with a key that was done in the last ten minutes is answered as it was then, with
    /// `Idempotency-Replayed: true`.
    #[param(
        rename = "Idempotency-Key",
        min_length = 1,
        max_length = 255,
        pattern = "^[!-~]+$",
        required = false
    )]
    key: String,
}
