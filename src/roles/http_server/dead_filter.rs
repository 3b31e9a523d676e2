//! Which dead letters a request selects, by its query or its body.

use axum::http::StatusCode;
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use utoipa::openapi::schema::{ObjectBuilder, OneOfBuilder, Schema, Type};
use utoipa::{IntoParams, ToSchema};

use super::input::{short, wrong};
use super::problem::Problem;
use super::typed_body::{self, given};
use host::now_ms;
use model::job::LATEST_MS;
use model::json_time;
use model::letters::DeadLetterFilter;
use model::tags::Tag;

/// The fields of a filter.
pub(super) const NAMES: [&str; 7] =
    ["id_prefix", "id_contains", "died_after", "died_before", "reason", "status", "tag"];

/// The valid values of a moment, as error messages describe them.
pub(super) const MOMENT: &str = "a moment such as \"2026-12-01T23:50:50+08:00\", Unix milliseconds, or a span such as \"2h\" (that long ago)";

pub(super) const STATUS: &str = "an HTTP status";

/// The valid values of a tag, as error messages describe them.
const TAG: &str = "a tag";

/// Reads a moment in Unix milliseconds. A span, such as `2h`, means a time before now.
pub(super) fn when(text: &str) -> Option<i64> {
    match humantime::parse_duration(text) {
        // This parser also accepts `0` as a span. Here, a plain number means Unix milliseconds.
        Ok(span) if text.parse::<i64>().is_err() => {
            now_ms().checked_sub(i64::try_from(span.as_millis()).ok()?)
        }
        _ => moment_at(text),
    }
}

/// Reads a moment, and returns it in Unix milliseconds. The text is a number of Unix milliseconds, or a time in the
/// form of RFC 3339.
pub(super) fn moment_at(text: &str) -> Option<i64> {
    let at = match text.parse::<i64>() {
        // No job died before 1973, so a smaller number is something else, such as Unix seconds or a year.
        Ok(at) => (at >= json_time::FIRST_MS).then_some(at)?,
        Err(_) => text.parse::<jiff::Timestamp>().ok()?.as_millisecond(),
    };
    (at <= LATEST_MS).then_some(at)
}

/// Reads a status of HTTP.
pub(super) fn status(text: &str) -> Option<u16> {
    let number = text.parse::<u16>().ok()?;
    StatusCode::from_u16(number).ok().map(|_| number)
}

/// Sets one field of a filter. The error says what a valid value is.
fn put(filter: &mut DeadLetterFilter, name: &str, value: &str) -> Result<(), &'static str> {
    match name {
        "id_prefix" => value.clone_into(&mut filter.id_prefix),
        "id_contains" => value.clone_into(&mut filter.id_contains),
        "reason" => value.clone_into(&mut filter.reason),
        "died_after" => filter.died_after_ms = Some(when(value).ok_or(MOMENT)?),
        "died_before" => filter.died_before_ms = Some(when(value).ok_or(MOMENT)?),
        "tag" => filter.tag = Some(Tag::new(value).map_err(|_| TAG)?),
        _ => filter.status = Some(status(value).ok_or(STATUS)?),
    }
    Ok(())
}

/// The filter in a query. None: the query names no field of a filter.
#[derive(Default)]
pub(super) struct DeadLetterFilterQuery(Option<DeadLetterFilter>);

impl DeadLetterFilterQuery {
    pub(super) fn take(&mut self, name: &str, value: &str) -> Result<(), Problem> {
        let wrong = |wanted| Problem::field(name, format!("{name} is {:?}, and not {wanted}", short(value)));
        put(self.0.get_or_insert_default(), name, value).map_err(wrong)
    }

    pub(super) fn filter(self) -> Option<DeadLetterFilter> {
        self.0
    }
}

/// Reads the filter of a body, from its field `filter`.
pub(super) fn filter(raw: &RawValue) -> Result<DeadLetterFilter, Problem> {
    if !raw.get().starts_with('{') {
        return Err(wrong("filter", raw, "an object"));
    }
    let parsed: DeadFilter = typed_body::read(raw.get().as_bytes())?;
    let filter = DeadLetterFilter {
        id_prefix: parsed.id_prefix.unwrap_or_default(),
        id_contains: parsed.id_contains.unwrap_or_default(),
        reason: parsed.reason.unwrap_or_default(),
        died_after_ms: parsed.died_after.map(|FilterMoment(ms)| ms),
        died_before_ms: parsed.died_before.map(|FilterMoment(ms)| ms),
        status: parsed.status.map(|HttpStatusFilter(status)| status),
        tag: parsed.tag.map(|JobTag(tag)| tag),
    };
    // An empty filter is refused. Otherwise a client that sets no condition would select all dead letters.
    if filter == DeadLetterFilter::default() {
        return Err(wrong("filter", raw, "an object with a condition (leave it out to select all)"));
    }
    Ok(filter)
}

/// A moment in Unix milliseconds, as [`when`] reads it.
#[derive(Debug)]
struct FilterMoment(i64);

impl<'de> Deserialize<'de> for FilterMoment {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<FilterMoment, D::Error> {
        let raw = <&RawValue>::deserialize(from)?.get();
        let text = serde_json::from_str(raw).unwrap_or_else(|_| raw.to_owned());
        when(&text).map(FilterMoment).ok_or_else(|| typed_body::invalid(MOMENT))
    }
}

/// A status of HTTP, as a number.
#[derive(Debug)]
struct HttpStatusFilter(u16);

impl<'de> Deserialize<'de> for HttpStatusFilter {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<HttpStatusFilter, D::Error> {
        let raw = <&RawValue>::deserialize(from)?.get();
        status(raw).map(HttpStatusFilter).ok_or_else(|| typed_body::invalid(STATUS))
    }
}

/// A tag of a job.
#[derive(Debug)]
struct JobTag(Tag);

impl<'de> Deserialize<'de> for JobTag {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<JobTag, D::Error> {
        let text: Option<String> = serde_json::from_str(<&RawValue>::deserialize(from)?.get()).ok();
        let tag = text.and_then(|text| Tag::new(&text).ok());
        tag.map(JobTag).ok_or_else(|| typed_body::invalid(TAG))
    }
}

fn moment() -> Schema {
    let text = ObjectBuilder::new().schema_type(Type::String).examples(["2h"]);
    let ms = ObjectBuilder::new().schema_type(Type::Integer).minimum(Some(json_time::FIRST_MS));
    OneOfBuilder::new()
        .item(text)
        .item(ms)
        .description(Some(
            "A moment (RFC 3339, or Unix milliseconds), or a span such as \"2h\", which means that long ago.",
        ))
        .into()
}

/// Selects the dead letters that match all fields of the filter. At least one field is required. A null is refused,
/// because it may stand for a condition whose value the client does not have.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = DeadFilter, example = json!({"died_after": "2h", "status": 503}), min_properties = 1)]
pub(super) struct DeadFilter {
    /// The beginning of the id.
    #[serde(default, deserialize_with = "given")]
    #[schema(nullable = false)]
    id_prefix: Option<String>,
    /// A part of the id.
    #[serde(default, deserialize_with = "given")]
    #[schema(nullable = false)]
    id_contains: Option<String>,
    #[serde(default, deserialize_with = "given")]
    #[schema(schema_with = moment, required = false)]
    died_after: Option<FilterMoment>,
    #[serde(default, deserialize_with = "given")]
    #[schema(schema_with = moment, required = false)]
    died_before: Option<FilterMoment>,
    /// A part of the error of the last attempt.
    #[serde(default, deserialize_with = "given")]
    #[schema(nullable = false)]
    reason: Option<String>,
    /// The status of the receiver's answer to the last attempt.
    #[serde(default, deserialize_with = "given")]
    #[schema(value_type = Option<u16>, minimum = 100, maximum = 999, nullable = false)]
    status: Option<HttpStatusFilter>,
    /// A tag of the job.
    #[serde(default, deserialize_with = "given")]
    #[schema(value_type = Option<String>, nullable = false, min_length = 1, max_length = 64)]
    tag: Option<JobTag>,
}

/// Which dead letters are shown.
#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
#[allow(dead_code)]
pub(super) struct DeadQuery {
    /// The maximum number of dead letters in the page, 50 by default. A page of large jobs is shorter. With a filter, a
    /// page may also be shorter or empty.
    #[param(minimum = 1, maximum = 1000, required = false)]
    limit: u32,
    /// The value of `next` in the page before.
    #[param(required = false)]
    cursor: String,
    /// Only dead letters whose id begins with this text.
    #[param(required = false)]
    id_prefix: String,
    /// Only dead letters whose id contains this text.
    #[param(required = false)]
    id_contains: String,
    /// Only jobs that died at this moment or later: RFC 3339, Unix milliseconds, or a span before now, such as `2h`.
    #[param(required = false)]
    died_after: String,
    /// Only jobs that died before this moment.
    #[param(required = false)]
    died_before: String,
    /// Only jobs whose last attempt has an error that contains this text.
    #[param(required = false)]
    reason: String,
    /// Only jobs whose last attempt was answered with this status.
    #[param(required = false, minimum = 100, maximum = 999)]
    status: u16,
    /// Only jobs that have this tag.
    #[param(required = false)]
    tag: String,
}
