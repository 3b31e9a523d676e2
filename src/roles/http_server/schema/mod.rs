//! The parts of `/openapi.json` for parameters and for types of the `model` crate. (That crate knows nothing of the
//! API.) Tests compare these parts with what the daemon does.
#![allow(dead_code)] // No value of these types exists: they only describe the API.

mod follower;
mod priority;
mod problems;
mod span;
mod topic;

use serde::Serialize;
use utoipa::openapi::schema::{ArrayBuilder, ObjectBuilder, OneOfBuilder, Schema, SchemaType, Type};
use utoipa::{IntoParams, ToSchema};

use model::destination::DESTINATION_MAX;
use model::follow::LIST_MAX;
use model::tags::TAG_MAX;

pub(super) use self::follower::Follower;
pub(super) use self::priority::{job_priority, job_priority_or_null};
pub(super) use self::problems::{
    AckErrorResponses, ChangeErrorResponses, LookupErrorResponses, ReadErrorResponses, ReserveErrorResponses,
};
pub(super) use self::span::{job_expire_after, job_ttr, span};
pub(super) use self::topic::{TopicRequestSchema, rate, topic_response};

/// The id of a job.
pub(super) fn id() -> Schema {
    let text = ObjectBuilder::new().schema_type(Type::String).min_length(Some(1)).examples(["42"]);
    OneOfBuilder::new()
        .item(text)
        .item(ObjectBuilder::new().schema_type(Type::Number))
        .item(ObjectBuilder::new().schema_type(Type::Null))
        .description(Some(
            "Unique in its topic, at most 256 bytes. A number counts as its text; it has no exponent. If it is missing, dq makes one, from the Idempotency-Key if given.",
        ))
        .into()
}

/// A number of bytes.
pub(super) fn size() -> Schema {
    let text = ObjectBuilder::new().schema_type(Type::String).examples(["10MiB"]);
    let bytes = ObjectBuilder::new().schema_type(Type::Integer).minimum(Some(1));
    let null = ObjectBuilder::new().schema_type(Type::Null);
    OneOfBuilder::new()
        .item(text)
        .item(bytes)
        .item(null)
        .description(Some("A size such as \"10MiB\" or \"64kB\", or a number of bytes."))
        .into()
}

/// A moment: RFC 3339, or Unix milliseconds.
pub(super) fn moment() -> Schema {
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

/// The headers that a job's callbacks carry in addition to the headers of the topic.
pub(super) fn headers() -> Schema {
    let value = ObjectBuilder::new().schema_type(Type::String).pattern(Some("^([!-~]([ -~\\t]*[!-~])?)?$"));
    ObjectBuilder::new()
        .schema_type(SchemaType::from_iter([Type::Object, Type::Null]))
        .property_names(Some(ObjectBuilder::new().schema_type(Type::String).pattern(Some("^[!#$%&'*+.^_`|~0-9A-Za-z-]+$"))))
        .additional_properties(Some(value))
        .max_properties(Some(32))
        .description(Some(
            "Headers of the job's callbacks, at most 4096 bytes together. The headers that dq sends itself (`dq-…`, \
             `webhook-…`, `content-type` and the like) are refused. `traceparent` must be valid by the W3C's rules.",
        ))
        .examples([serde_json::json!({"x-tenant": "7"})])
        .into()
}

/// What is appended to the callback of the topic for a job.
pub(super) fn job_path() -> Schema {
    ObjectBuilder::new()
        .schema_type(SchemaType::from_iter([Type::String, Type::Null]))
        .max_length(Some(DESTINATION_MAX))
        .pattern(Some("^[/?][A-Za-z0-9._~!$&'()*+,;=:/?%-]*$"))
        .description(Some(
            "A path, a query, or both. They are appended to the callback of the topic. Refused: segments of dots, two \
             slashes in a row, and what becomes one of these when it is unescaped.",
        ))
        .examples(["/merchants/7?x=1"])
        .into()
}

/// The URL that is called for a job in place of the callback of the topic.
pub(super) fn job_url() -> Schema {
    ObjectBuilder::new()
        .schema_type(SchemaType::from_iter([Type::String, Type::Null]))
        .max_length(Some(DESTINATION_MAX))
        .description(Some(
            "An http or https URL, which is called in place of the callback of the topic. `job_hosts` of the topic must \
             list its host. `path` and `url` exclude each other.",
        ))
        .examples(["https://shop7.example/hook"])
        .into()
}

/// The jobs that follow a job.
pub(super) fn then() -> Schema {
    let follower = || {
        ObjectBuilder::new()
            .schema_type(Type::Object)
            .property("topic", ObjectBuilder::new().schema_type(Type::String))
            .required("topic")
            .property(
                "id",
                ObjectBuilder::new().schema_type(SchemaType::from_iter([
                    Type::String,
                    Type::Number,
                    Type::Null,
                ])),
            )
            .property("body", ObjectBuilder::new().schema_type(SchemaType::AnyValue))
            .required("body")
            .property("delay", span())
            .property(
                "delay_ms",
                ObjectBuilder::new().schema_type(SchemaType::from_iter([Type::Integer, Type::Null])),
            )
            .property("headers", headers())
            .property("tags", tags())
            .property("path", job_path())
            .property("then", ObjectBuilder::new().schema_type(SchemaType::AnyValue))
    };
    let list = ArrayBuilder::new().items(follower()).max_items(Some(LIST_MAX));
    OneOfBuilder::new()
        .item(follower())
        .item(list)
        .item(ObjectBuilder::new().schema_type(Type::Null))
        .description(Some(
            "One job or a list of jobs that follow: dq adds them when this job is accepted. A job that follows may have \
             `then` too. See docs/FOLLOW.md.",
        ))
        .examples([serde_json::json!({"topic": "invoices", "body": {"order": 42}, "delay": "1h"})])
        .into()
}

/// The tags of a job.
pub(super) fn tags() -> Schema {
    let tag = ObjectBuilder::new()
        .schema_type(Type::String)
        .min_length(Some(1))
        .max_length(Some(TAG_MAX))
        .pattern(Some("^[^\\s\\x00-\\x1f\\x7f-\\x9f,\"\\\\]+$"));
    ArrayBuilder::new()
        .schema_type(SchemaType::from_iter([Type::Array, Type::Null]))
        .items(tag)
        .description(Some(
            "Texts by which the job is found: at most 8 different ones. A tag has at most 64 bytes, and no white space, \
             control character, comma, quotation mark or backslash.",
        ))
        .examples([serde_json::json!(["shop:7", "campaign:spring"])])
        .into()
}

/// What an add does when a job with the same id exists.
#[derive(ToSchema, Serialize)]
#[serde(rename_all = "lowercase")]
#[schema(as = OnConflict)]
pub(super) enum OnConflictWord {
    Replace,
    Reject,
    Keep,
}

/// The state of a job.
#[derive(ToSchema, Serialize)]
#[serde(rename_all = "lowercase")]
#[schema(as = State)]
pub(super) enum StateWord {
    Delayed,
    Ready,
    Leased,
    Dead,
}

/// How a job ended. `dead`: it became a dead letter. `replaced`: another job with its id took its place.
#[derive(ToSchema, Serialize)]
#[serde(rename_all = "lowercase")]
#[schema(as = Ending)]
pub(super) enum EndingWord {
    Delivered,
    Dead,
    Deleted,
    Replaced,
}

/// The form of a list.
#[derive(ToSchema, Serialize)]
#[serde(rename_all = "lowercase")]
#[schema(as = Format)]
pub(super) enum FormatWord {
    Json,
    Ndjson,
    Csv,
}

/// An attempt to deliver a job.
#[derive(ToSchema, Serialize)]
#[schema(as = Attempt)]
pub(super) struct AttemptMade {
    number: u32,
    at_ms: i64,
    took_ms: u64,
    /// The status of the receiver's answer, if there was one.
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<u16>,
    /// The first characters of the answer.
    #[serde(skip_serializing_if = "String::is_empty", default)]
    answer: String,
    /// What went wrong.
    #[serde(skip_serializing_if = "String::is_empty", default)]
    error: String,
    /// How late the attempt began, and why, if it began at least one second after its due time.
    #[serde(skip_serializing_if = "Option::is_none")]
    late: Option<AttemptLateness>,
}

/// How late an attempt began, and why.
#[derive(ToSchema, Serialize)]
struct AttemptLateness {
    /// How long after its due time it began, in milliseconds.
    ms: u64,
    /// What held the job back (docs/HISTORY.md).
    #[schema(example = "topic_limit")]
    reason: String,
}

/// Why a job waits. Besides these members, the object has the data that belongs to the `code` (docs/HTTP.md).
#[derive(ToSchema, Serialize)]
#[schema(as = Waiting)]
pub(super) struct WaitingSchema {
    /// The reason, for programs, such as `paused`.
    code: String,
    /// The reason, for people.
    text: String,
    /// Other reasons, which hold the job back too.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false, value_type = Vec<Object>)]
    also: Vec<serde_json::Value>,
}

/// What happened to jobs.
#[derive(ToSchema, Serialize)]
#[schema(as = Sums)]
pub(super) struct SumsSchema {
    /// Jobs that were stored: new jobs and replaced ones.
    written: u64,
    /// Jobs that were accepted by their receiver.
    delivered: u64,
    /// Attempts that failed.
    failed: u64,
    /// Jobs that were deleted.
    deleted: u64,
    /// Jobs that became dead letters.
    dead: u64,
    /// The delays between the due times and the beginnings of attempts, added up, in microseconds.
    late_us: u64,
    /// The number of attempts whose delays are added up in `late_us`.
    attempts: u64,
}

/// What happened to jobs on one day.
#[derive(ToSchema, Serialize)]
pub(super) struct DaySums {
    /// The day, in the time zone of `timezone`.
    #[schema(example = "2026-11-21")]
    day: String,
    #[serde(flatten)]
    sums: SumsSchema,
}

/// Which statistics are shown.
#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct StatsQuery {
    /// How many days to show, up to today. The answer then also has the sums of all time. If it is missing, the answer
    /// has no statistics.
    #[param(minimum = 1, maximum = 366, required = false)]
    days: u32,
    /// Whether to show how late attempts began, by topic.
    #[param(required = false)]
    lateness: bool,
}

/// Which page of the audit log is shown.
#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct AuditQuery {
    /// The maximum number of entries in the page, 50 by default.
    #[param(minimum = 1, maximum = 500, required = false)]
    limit: u32,
    /// The `next` of the page before.
    #[param(required = false)]
    cursor: String,
}

/// Which topic is shown. If the parameter is missing, all topics are shown.
#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct OneTopicQuery {
    #[param(pattern = "^[A-Za-z0-9_.-]+$", min_length = 1, max_length = 128, required = false)]
    topic: String,
}

/// The topic in a path.
#[derive(IntoParams)]
#[into_params(parameter_in = Path)]
pub(super) struct TopicPath {
    /// The topic's name.
    #[param(pattern = "^[A-Za-z0-9_.-]+$", min_length = 1, max_length = 128, example = "orders")]
    topic: String,
}

/// The job in a path.
#[derive(IntoParams)]
#[into_params(parameter_in = Path)]
pub(super) struct JobPathParameters {
    /// The topic's name.
    #[param(pattern = "^[A-Za-z0-9_.-]+$", min_length = 1, max_length = 128, example = "orders")]
    topic: String,
    /// The job's id, percent-encoded.
    #[param(min_length = 1, max_length = 256, example = "42")]
    id: String,
}

/// The token in a path.
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
    /// The state of the jobs.
    #[param(inline)]
    state: StateWord,
    /// The maximum number of jobs in the page, 50 by default. A page of large jobs is shorter.
    #[param(minimum = 1, maximum = 1000, required = false)]
    limit: u32,
    /// The `next` of the page before.
    #[param(required = false)]
    cursor: String,
}

/// The key that marks a repeated request.
#[derive(IntoParams)]
#[into_params(parameter_in = Header)]
pub(super) struct IdempotencyKey {
    /// If the same request with this key was answered with success or 409 in the last ten minutes, nothing is done, and
    /// the earlier answer is sent again.
    #[param(
        rename = "Idempotency-Key",
        min_length = 1,
        max_length = 255,
        pattern = "^[!-~]+$",
        required = false
    )]
    key: String,
}
