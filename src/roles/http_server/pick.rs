//! Which dead letters a request means, as its query or its body says it.

use axum::http::StatusCode;
use serde_json::value::RawValue;
use utoipa::openapi::schema::{ObjectBuilder, OneOfBuilder, Schema, Type};
use utoipa::{IntoParams, ToSchema};

use super::input::{Fields, short, wrong};
use super::problem::Problem;
use crate::job::LATEST_MS;
use crate::letters::Filter;
use crate::process::now_ms;

/// What a filter may say.
pub(super) const NAMES: [&str; 6] =
    ["id_prefix", "id_contains", "died_after", "died_before", "reason", "status"];

/// What a moment is to be.
const MOMENT: &str = "a moment such as \"2026-12-01T23:50:50+08:00\", Unix milliseconds, or a span such as \"2h\", that long ago";

const STATUS: &str = "an HTTP status";

/// A moment, Unix milliseconds, or a span, which is one ago.
fn when(text: &str) -> Option<i64> {
    let at = if let Ok(at) = text.parse::<i64>() {
        at
    } else if let Ok(span) = humantime::parse_duration(text) {
        now_ms().checked_sub(i64::try_from(span.as_millis()).ok()?)?
    } else {
        text.parse::<jiff::Timestamp>().ok()?.as_millisecond()
    };
    (at <= LATEST_MS).then_some(at)
}

fn status(text: &str) -> Option<u16> {
    let number = text.parse::<u16>().ok()?;
    StatusCode::from_u16(number).ok().map(|_| number)
}

/// Takes one of the names and its value into a filter; else, what it should have been.
fn put(filter: &mut Filter, name: &str, value: &str) -> Result<(), &'static str> {
    match name {
        "id_prefix" => value.clone_into(&mut filter.id_prefix),
        "id_contains" => value.clone_into(&mut filter.id_contains),
        "reason" => value.clone_into(&mut filter.reason),
        "died_after" => filter.died_after_ms = Some(when(value).ok_or(MOMENT)?),
        "died_before" => filter.died_before_ms = Some(when(value).ok_or(MOMENT)?),
        _ => filter.status = Some(status(value).ok_or(STATUS)?),
    }
    Ok(())
}

/// A filter's part of a query; none: it says nothing of one.
#[derive(Default)]
pub(super) struct Queried(Option<Filter>);

impl Queried {
    pub(super) fn take(&mut self, name: &str, value: &str) -> Result<(), Problem> {
        let wrong = |wanted| Problem::field(name, format!("{name} is {:?}, and not {wanted}", short(value)));
        put(self.0.get_or_insert_default(), name, value).map_err(wrong)
    }

    pub(super) fn filter(self) -> Option<Filter> {
        self.0
    }
}

/// A filter as a body has it, under `filter`.
pub(super) fn filter(raw: &RawValue) -> Result<Filter, Problem> {
    let fields = match raw.get().as_bytes().first() {
        Some(b'{') => Fields::of(raw.get().as_bytes(), &NAMES)?,
        _ => return Err(wrong("filter", raw, "an object")),
    };
    let mut filter = Filter::default();
    for name in NAMES {
        let Some(raw) = fields.get(name) else { continue };
        let (is_text, is_number) =
            (raw.get().starts_with('"'), raw.get().starts_with(|c: char| c.is_ascii_digit()));
        let may_be_number = matches!(name, "died_after" | "died_before" | "status");
        let wanted = match name {
            "status" => STATUS,
            _ if may_be_number => MOMENT,
            _ => "a text",
        };
        let value = match is_text && name != "status" {
            true => serde_json::from_str(raw.get()).map_err(|_| wrong(name, raw, wanted))?,
            false if is_number && may_be_number => raw.get().to_owned(),
            false => return Err(wrong(name, raw, wanted)),
        };
        put(&mut filter, name, &value).map_err(|wanted| wrong(name, raw, wanted))?;
    }
    // Whoever has nothing to say of them may not mean all there are.
    if filter == Filter::default() {
        return Err(wrong("filter", raw, "one that says something; without it all are meant"));
    }
    Ok(filter)
}

fn moment() -> Schema {
    let text = ObjectBuilder::new().schema_type(Type::String).examples(["2h"]);
    let ms = ObjectBuilder::new().schema_type(Type::Integer).minimum(Some(0));
    let null = ObjectBuilder::new().schema_type(Type::Null);
    OneOfBuilder::new()
        .item(text)
        .item(ms)
        .item(null)
        .description(Some(
            "A moment (RFC 3339, or Unix milliseconds), or a span such as \"2h\": that long ago.",
        ))
        .into()
}

/// Picks dead letters: by all of what it says, which must be something.
#[derive(ToSchema, serde::Serialize)]
#[serde(deny_unknown_fields)]
#[allow(dead_code)]
#[schema(as = DeadFilter, example = json!({"died_after": "2h", "status": 503}), min_properties = 1)]
pub(super) struct DeadFilter {
    /// What the id begins with.
    id_prefix: Option<String>,
    /// What stands in the id.
    id_contains: Option<String>,
    #[schema(schema_with = moment, required = false)]
    died_after: serde_json::Value,
    #[schema(schema_with = moment, required = false)]
    died_before: serde_json::Value,
    /// What stands in the last attempt's error.
    reason: Option<String>,
    /// The last attempt's status.
    #[schema(minimum = 100, maximum = 999)]
    status: Option<u16>,
}

/// Which dead letters are shown.
#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
#[allow(dead_code)]
pub(super) struct DeadQuery {
    /// How many at most; 50, if it is missing. A page of large jobs is shorter; with a filter it may be shorter, or empty, as well.
    #[param(minimum = 1, maximum = 1000, required = false)]
    limit: u32,
    /// What the page before gave as `next`.
    #[param(required = false)]
    cursor: String,
    /// Only those whose id begins so.
    #[param(required = false)]
    id_prefix: String,
    /// Only those in whose id this stands.
    #[param(required = false)]
    id_contains: String,
    /// Only those that died then or later: RFC 3339, Unix milliseconds, or a span ago, such as `2h`.
    #[param(required = false)]
    died_after: String,
    /// Only those that died before.
    #[param(required = false)]
    died_before: String,
    /// Only those in whose last attempt's error this stands.
    #[param(required = false)]
    reason: String,
    /// Only those whose last attempt was answered with this status.
    #[param(required = false, minimum = 100, maximum = 999)]
    status: u16,
}
