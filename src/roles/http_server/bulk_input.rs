//! Reads the request for an operation on many jobs.

use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use utoipa::ToSchema;
use utoipa::openapi::schema::{ObjectBuilder, OneOfBuilder, Schema, Type};

use super::dead_filter::{MOMENT, STATUS, status, when};
use super::input::{short, wrong};
use super::problem::Problem;
use super::schema;
use super::typed_body::{self, JsonDuration, UnixMs, given, invalid, word};
use host::now_ms;
use model::bulk::{BulkFilter, BulkOperation, BulkRequest, RATE_DEFAULT, RATE_MAX};
use model::job::{ID_MAX, State, TopicName};
use model::json_time;
use model::record::Ending;
use model::tags::Tag;
use model::topic::Rate;

/// The longest text that a filter looks for, in bytes.
const TEXT_MAX: usize = 1000;

/// The valid values of `by`, as error messages describe them.
const SHIFT: &str = "a difference such as \"1h\" or \"-10m\", or a number of seconds, and not 0";

/// What is done to the jobs.
#[derive(Clone, Copy, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
#[schema(as = BulkOperation)]
pub(super) enum BulkOperationName {
    Cancel,
    Reschedule,
    Run,
    Redrive,
    Replay,
}

/// An operation on all jobs of a topic that a filter selects.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Bulk, example = json!({"topic": "orders", "operation": "reschedule", "by": "1h", "filter": {"id_prefix": "shop7-"}, "dry_run": true}))]
pub(super) struct BulkBody<'a> {
    /// The topic of the jobs.
    #[schema(value_type = String, required = true)]
    topic: Option<String>,
    /// What is done: `cancel` deletes jobs, `reschedule` gives them other due times, `run` makes delayed jobs due now,
    /// `redrive` makes dead letters ready again, and `replay` adds ended jobs again, with the bodies from their
    /// records.
    #[serde(default, deserialize_with = "word")]
    #[schema(value_type = BulkOperationName, required = true)]
    operation: Option<BulkOperationName>,
    /// `reschedule` only: the due time of all jobs. With `spread`: the beginning of the span.
    #[schema(schema_with = schema::moment, required = false)]
    at: Option<UnixMs>,
    /// `reschedule` only: the difference to the old due time.
    #[schema(schema_with = shift, required = false)]
    by: Option<Shift>,
    /// `reschedule` only: the jobs are spread over a span of this length. The span begins now, or at the time `at`.
    #[schema(schema_with = schema::span, required = false)]
    spread: Option<JsonDuration>,
    /// Selects jobs of the topic. If the filter is missing, all jobs that the operation can change are selected.
    #[serde(borrow, default, deserialize_with = "given")]
    #[schema(value_type = Option<BulkFilterBody>, nullable = false)]
    filter: Option<&'a RawValue>,
    /// The maximum number of jobs changed per second. Default: 5000. The highest value is 20000.
    #[schema(schema_with = schema::rate, required = false)]
    rate: Option<BulkRate>,
    /// If true, the jobs are only counted.
    #[serde(default, deserialize_with = "given")]
    #[schema(nullable = false)]
    dry_run: Option<bool>,
}

/// How many jobs are changed per second. It is given as a number, or as a rate with a whole number of jobs per second.
struct BulkRate(u32);

impl<'de> Deserialize<'de> for BulkRate {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<BulkRate, D::Error> {
        let rate: Option<Rate> = serde_json::from_str(<&RawValue>::deserialize(from)?.get()).ok();
        let a_second = rate.and_then(|rate| {
            let seconds = u32::try_from(rate.per.as_secs()).ok()?;
            rate.jobs.is_multiple_of(seconds).then(|| rate.jobs / seconds)
        });
        let within = a_second.filter(|jobs| (1..=RATE_MAX).contains(jobs));
        within
            .map(BulkRate)
            .ok_or_else(|| invalid(&format!("1 to {RATE_MAX} whole jobs a second: 50 or \"50/s\"")))
    }
}

/// Selects the jobs that meet all conditions of the filter. A null is refused. `replay` accepts `id_prefix`, `tag`, and
/// the conditions about records: `outcome`, `since`, `until`, `status`, `text`. All other operations accept `state`,
/// `id_prefix`, `tag`, `due_since` and `due_until`.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = BulkFilter, example = json!({"state": "delayed", "id_prefix": "shop7-"}))]
pub(super) struct BulkFilterBody {
    /// The state of the job.
    #[serde(default, deserialize_with = "given")]
    #[schema(value_type = Option<schema::StateWord>, nullable = false)]
    state: Option<StateName>,
    /// The beginning of the id.
    #[serde(default, deserialize_with = "given")]
    #[schema(value_type = Option<String>, nullable = false, max_length = 256)]
    id_prefix: Option<Text>,
    /// A tag of the job.
    #[serde(default, deserialize_with = "given")]
    #[schema(value_type = Option<String>, nullable = false, min_length = 1, max_length = 64)]
    tag: Option<TagText>,
    /// The job is due at this moment or later.
    #[serde(default, deserialize_with = "given")]
    #[schema(schema_with = schema::moment, required = false)]
    due_since: Option<UnixMs>,
    /// The job is due before this moment.
    #[serde(default, deserialize_with = "given")]
    #[schema(schema_with = schema::moment, required = false)]
    due_until: Option<UnixMs>,
    /// How the job ended.
    #[serde(default, deserialize_with = "given")]
    #[schema(value_type = Option<schema::EndingWord>, nullable = false)]
    outcome: Option<OutcomeName>,
    /// The job ended at this moment or later: RFC 3339, Unix milliseconds, or a span before now, such as `2h`.
    #[serde(default, deserialize_with = "given")]
    #[schema(schema_with = ended, required = false)]
    since: Option<When>,
    /// The job ended before this moment.
    #[serde(default, deserialize_with = "given")]
    #[schema(schema_with = ended, required = false)]
    until: Option<When>,
    /// The status of the receiver's last answer.
    #[serde(default, deserialize_with = "given")]
    #[schema(value_type = Option<u16>, minimum = 100, maximum = 999, nullable = false)]
    status: Option<Status>,
    /// A part of the last answer, or of the error of the last attempt. Upper and lower case make no difference.
    #[serde(default, deserialize_with = "given")]
    #[schema(value_type = Option<String>, nullable = false, max_length = 1000)]
    text: Option<Text>,
}

fn shift() -> Schema {
    let text = ObjectBuilder::new().schema_type(Type::String).examples(["-10m"]);
    let null = ObjectBuilder::new().schema_type(Type::Null);
    OneOfBuilder::new()
        .item(text)
        .item(ObjectBuilder::new().schema_type(Type::Number))
        .item(null)
        .description(Some("A difference such as \"1h\" or \"-10m\", or a number of seconds. It is not 0."))
        .into()
}

fn ended() -> Schema {
    let text = ObjectBuilder::new().schema_type(Type::String).examples(["2h"]);
    let ms = ObjectBuilder::new().schema_type(Type::Integer).minimum(Some(json_time::FIRST_MS));
    OneOfBuilder::new().item(text).item(ms).into()
}

/// A difference of due times in milliseconds.
#[derive(Debug)]
struct Shift(i64);

impl<'de> Deserialize<'de> for Shift {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Shift, D::Error> {
        let raw = <&RawValue>::deserialize(from)?;
        let wrong = || invalid(SHIFT);
        let text = serde_json::from_str::<String>(raw.get()).map_or(raw.get().to_owned(), |text| text);
        let is_text = raw.get().starts_with('"');
        let (sign, rest) = match text.strip_prefix('-') {
            Some(rest) => (-1, rest),
            None => (1, text.strip_prefix('+').filter(|_| is_text).unwrap_or(&text)),
        };
        let span = if is_text { serde_json::to_string(rest).ok() } else { Some(rest.to_owned()) };
        let span = span.and_then(|span| RawValue::from_string(span).ok());
        let span = span.and_then(|span| json_time::duration(&span)).ok_or_else(wrong)?;
        let by_ms = i64::try_from(span.as_millis()).map_err(|_| wrong())?;
        if by_ms == 0 { Err(wrong()) } else { Ok(Shift(sign * by_ms)) }
    }
}

macro_rules! text_value {
    ($name:ident, $value:ty, $wanted:expr, $read:expr) => {
        struct $name($value);

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(from: D) -> Result<$name, D::Error> {
                let raw = <&RawValue>::deserialize(from)?.get();
                let read: fn(&str) -> Option<$value> = $read;
                read(raw).map($name).ok_or_else(|| invalid($wanted))
            }
        }
    };
}

fn text_of(raw: &str) -> Option<String> {
    serde_json::from_str(raw).ok()
}

text_value!(Text, String, "a text of at most 1000 bytes", |raw| text_of(raw).filter(|t| t.len() <= TEXT_MAX));
text_value!(TagText, String, "a tag", |raw| text_of(raw).filter(|tag| Tag::new(tag).is_ok()));
text_value!(StateName, State, "delayed, ready, leased or dead", |raw| serde_json::from_str(raw).ok());
text_value!(OutcomeName, Ending, "delivered, dead, deleted or replaced", |raw| Ending::from_word(&text_of(
    raw
)?));
text_value!(When, i64, MOMENT, |raw| when(&text_of(raw).unwrap_or_else(|| raw.to_owned())));
text_value!(Status, u16, STATUS, status);

impl BulkFilterBody {
    /// Returns the names of the conditions that are set. The first list has the conditions of records only, and the
    /// second list has the conditions of jobs only.
    fn given(&self) -> (Vec<&'static str>, Vec<&'static str>) {
        let names = |all: &[(&'static str, bool)]| -> Vec<&'static str> {
            all.iter().filter(|(_, is_given)| *is_given).map(|(name, _)| *name).collect()
        };
        let records = [
            ("outcome", self.outcome.is_some()),
            ("since", self.since.is_some()),
            ("until", self.until.is_some()),
            ("status", self.status.is_some()),
            ("text", self.text.is_some()),
        ];
        let jobs = [
            ("state", self.state.is_some()),
            ("due_since", self.due_since.is_some()),
            ("due_until", self.due_until.is_some()),
        ];
        (names(&records), names(&jobs))
    }

    /// Checks the conditions for an operation.
    fn check(self, operation: BulkOperation) -> Result<BulkFilter, Problem> {
        let (records, jobs) = self.given();
        let is_replay = operation == BulkOperation::Replay;
        if let Some(name) = if is_replay { jobs.first() } else { records.first() } {
            let of = if is_replay { "pending jobs" } else { "records" };
            let detail =
                format!("filter.{name} is a condition of {of}, which {} does not take", operation.word());
            return Err(Problem::field("filter", detail));
        }
        if let Some(StateName(state)) = self.state
            && !operation.states().contains(&state)
        {
            let states: Vec<String> = operation.states().iter().map(State::to_string).collect();
            let detail = format!(
                "filter.state is \"{state}\", and {} takes {} jobs",
                described(operation),
                states.join(" and ")
            );
            return Err(Problem::field("filter", detail));
        }
        let id_prefix = self.id_prefix.map(|Text(text)| text).unwrap_or_default();
        if id_prefix.len() > ID_MAX {
            let detail = format!("filter.id_prefix has more than {ID_MAX} bytes, and no id begins with it");
            return Err(Problem::field("filter", detail));
        }
        Ok(BulkFilter {
            states: self.state.map(|StateName(state)| state).into_iter().collect(),
            id_prefix,
            tag: self.tag.map(|TagText(tag)| tag),
            due_since_ms: self.due_since.map(|UnixMs(ms)| ms),
            due_until_ms: self.due_until.map(|UnixMs(ms)| ms),
            outcome: self.outcome.map(|OutcomeName(ending)| ending),
            since_ms: self.since.map(|When(ms)| ms),
            until_ms: self.until.map(|When(ms)| ms),
            status: self.status.map(|Status(status)| status),
            text: self.text.map(|Text(text)| text).filter(|text| !text.is_empty()),
        })
    }
}

/// Returns the words that error messages use for an operation.
fn described(operation: BulkOperation) -> &'static str {
    match operation {
        BulkOperation::Shift { by_ms } if by_ms < 0 => "reschedule to an earlier time",
        other => other.word(),
    }
}

/// Reads what a request asks for, and whether it is only a dry run.
pub(super) fn read(json: &[u8]) -> Result<(BulkRequest, bool), Problem> {
    let body: BulkBody<'_> = typed_body::read(json)?;
    let topic = body.topic.as_deref().ok_or_else(|| Problem::missing("topic", "the name of a topic"))?;
    let topic = TopicName::new(topic).map_err(|e| Problem::invalid("topic", &e))?;
    let words = "cancel, reschedule, run, redrive or replay";
    let named = body.operation.ok_or_else(|| Problem::missing("operation", words))?;
    let operation = operation(named, &body)?;
    let filter = match body.filter {
        None => BulkFilter::default(),
        Some(raw) if !raw.get().starts_with('{') => return Err(wrong("filter", raw, "an object")),
        Some(raw) => typed_body::read::<BulkFilterBody>(raw.get().as_bytes())?.check(operation)?,
    };
    let rate = body.rate.map_or(RATE_DEFAULT, |BulkRate(rate)| rate);
    Ok((BulkRequest { topic, operation, filter, rate, hides_answers: false }, body.dry_run.unwrap_or(false)))
}

fn operation(named: BulkOperationName, body: &BulkBody<'_>) -> Result<BulkOperation, Problem> {
    let times = [("at", body.at.is_some()), ("by", body.by.is_some()), ("spread", body.spread.is_some())];
    let given: Vec<&str> = times.iter().filter(|(_, is_given)| *is_given).map(|(name, _)| *name).collect();
    let operation = match named {
        BulkOperationName::Cancel => BulkOperation::Cancel,
        BulkOperationName::Run => BulkOperation::Run,
        BulkOperationName::Redrive => BulkOperation::Redrive,
        BulkOperationName::Replay => BulkOperation::Replay,
        BulkOperationName::Reschedule => return rescheduling(body),
    };
    match given.first() {
        None => Ok(operation),
        Some(name) => {
            let detail =
                format!("{name} is a field of reschedule, and not of {}: leave it out", operation.word());
            Err(Problem::field(name, detail))
        }
    }
}

fn rescheduling(body: &BulkBody<'_>) -> Result<BulkOperation, Problem> {
    match (&body.at, &body.by, &body.spread) {
        (None, None, None) => Err(Problem::missing("by", "a reschedule with at, by or spread")),
        (Some(_), Some(_), _) | (_, Some(_), Some(_)) => {
            Err(Problem::field("by", "by excludes at and spread: give one of them"))
        }
        (_, Some(Shift(by_ms)), _) => Ok(BulkOperation::Shift { by_ms: *by_ms }),
        (Some(UnixMs(at_ms)), None, None) if *at_ms <= now_ms() => {
            let shown = json_time::rfc3339(*at_ms);
            Err(Problem::field(
                "at",
                format!("at is {}, which has passed: use the operation run", short(&shown)),
            ))
        }
        (Some(UnixMs(at_ms)), None, None) => Ok(BulkOperation::At { at_ms: *at_ms }),
        (at, None, Some(JsonDuration(over))) => {
            let over_ms = i64::try_from(over.as_millis()).unwrap_or(i64::MAX);
            if over_ms < 1000 {
                return Err(Problem::field("spread", "spread is shorter than a second: use at instead"));
            }
            let from_ms = at.map_or_else(now_ms, |UnixMs(at_ms)| at_ms.max(now_ms()));
            Ok(BulkOperation::Spread { from_ms, over_ms })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(json: &str) -> BulkRequest {
        read(json.as_bytes()).unwrap_or_else(|p| panic!("{json}: {}", p.detail)).0
    }

    #[test]
    fn a_request_says_which_jobs_and_what_is_done_to_them() {
        let json = r#"{"topic":"t","operation":"reschedule","by":"-10m","filter":{"state":"delayed","id_prefix":"a","tag":"x"},"rate":7}"#;
        let read = request(json);
        assert_eq!((read.topic.as_str(), read.rate), ("t", 7));
        for (text, jobs) in [("50/s", 50), ("120/m", 2), ("7200/h", 2), ("9", 9)] {
            let json = format!(r#"{{"topic":"t","operation":"run","rate":"{text}"}}"#);
            assert_eq!(self::read(json.as_bytes()).unwrap().0.rate, jobs, "{text}");
        }
        assert_eq!(read.operation, BulkOperation::Shift { by_ms: -600_000 });
        assert_eq!((&read.filter.states[..], &read.filter.id_prefix[..]), (&[State::Delayed][..], "a"));
        for (by, by_ms) in [("\"1h\"", 3_600_000), ("\"+1h\"", 3_600_000), ("90", 90_000), ("-1.5", -1_500)] {
            let read = request(&format!(r#"{{"topic":"t","operation":"reschedule","by":{by}}}"#));
            assert_eq!((read.operation, read.rate), (BulkOperation::Shift { by_ms }, RATE_DEFAULT));
        }
        let replay = request(
            r#"{"topic":"t","operation":"replay","filter":{"outcome":"dead","since":"2h","status":503}}"#,
        );
        assert_eq!((replay.filter.outcome, replay.filter.status), (Some(Ending::Dead), Some(503)));
        let spread =
            request(r#"{"topic":"t","operation":"reschedule","spread":"1h","at":"2099-01-01T00:00:00Z"}"#);
        assert_eq!(
            spread.operation,
            BulkOperation::Spread { from_ms: 4_070_908_800_000, over_ms: 3_600_000 }
        );
    }

    #[test]
    fn a_bad_request_is_told_what_would_do() {
        for (json, field, part) in [
            (r#"{"operation":"run"}"#, "topic", "topic"),
            (r#"{"topic":"a b","operation":"run"}"#, "topic", "letters"),
            (r#"{"topic":"t"}"#, "operation", "cancel, reschedule, run"),
            (r#"{"topic":"t","operation":"drop"}"#, "operation", "`cancel`"),
            (r#"{"topic":"t","operation":"reschedule"}"#, "by", "at, by or spread"),
            (r#"{"topic":"t","operation":"reschedule","by":"0s"}"#, "by", "not 0"),
            (r#"{"topic":"t","operation":"reschedule","by":"soon"}"#, "by", "-10m"),
            (r#"{"topic":"t","operation":"reschedule","by":"1h","spread":"1h"}"#, "by", "excludes"),
            (r#"{"topic":"t","operation":"reschedule","at":"2020-01-01T00:00:00Z"}"#, "at", "has passed"),
            (r#"{"topic":"t","operation":"reschedule","spread":"1ms"}"#, "spread", "a second"),
            (r#"{"topic":"t","operation":"cancel","by":"1h"}"#, "by", "not of cancel"),
            (
                r#"{"topic":"t","operation":"cancel","filter":{"state":"dead"}}"#,
                "filter",
                "delayed and ready and leased",
            ),
            (
                r#"{"topic":"t","operation":"cancel","filter":{"outcome":"dead"}}"#,
                "filter",
                "condition of records",
            ),
            (
                r#"{"topic":"t","operation":"replay","filter":{"state":"dead"}}"#,
                "filter",
                "condition of pending jobs",
            ),
            (
                r#"{"topic":"t","operation":"run","filter":{"state":"ready"}}"#,
                "filter",
                "run takes delayed jobs",
            ),
            (r#"{"topic":"t","operation":"run","filter":[]}"#, "filter", "an object"),
            (r#"{"topic":"t","operation":"run","filter":{"id_prefix":null}}"#, "id_prefix", "a text"),
            (r#"{"topic":"t","operation":"run","filter":{"colour":1}}"#, "colour", "unknown"),
            (r#"{"topic":"t","operation":"run","rate":0}"#, "rate", "1 to 20000"),
            (r#"{"topic":"t","operation":"run","rate":"30/m"}"#, "rate", "whole jobs a second"),
            (r#"{"topic":"t","operation":"run","rate":"20001/s"}"#, "rate", "1 to 20000"),
        ] {
            let problem = read(json.as_bytes()).unwrap_err();
            assert_eq!(problem.named_field(), Some(field), "{json}: {}", problem.detail);
            assert!(problem.detail.contains(part), "{json}: {}", problem.detail);
        }
    }
}
