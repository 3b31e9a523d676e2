//! Reads the bodies of requests into Rust types. The same types describe the bodies in `/openapi.json`. An error names
//! the field, its value, and the valid values.

use std::time::Duration;

use serde::de::{DeserializeOwned, Deserializer, Error as _, Unexpected};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;

use super::input::{short, wrong};
use super::problem::Problem;
use model::json_time;
use model::strict_json::UniqueFields;

/// Reads a body, which is one JSON object. A field with null counts as missing, but a few types of fields accept null
/// as a value.
pub(super) fn read<'a, T: Deserialize<'a>>(json: &'a [u8]) -> Result<T, Problem> {
    // Without this check, a list with the values of the fields would be accepted in place of the object.
    if json.trim_ascii_start().first() != Some(&b'{') {
        return Err(Problem::bad_json("it begins with something else than {"));
    }
    serde_json::from_slice(json).map_err(|e| {
        // The second reading finds the wrong field. It takes longer, so it is only done after an error.
        let mut again = serde_json::Deserializer::from_slice(json);
        let named = serde_path_to_error::deserialize::<_, T>(&mut again).err();
        let mut path = named.iter().flat_map(|named| named.path().iter()).map(ToString::to_string);
        let field = path.next();
        problem(json, field.as_deref().map(|field| (field, path.next().is_some())), &e)
    })
}

/// Reads a body that may be left out. A body that is left out counts as an object without fields.
pub(super) fn read_or_empty<'a, T: Deserialize<'a>>(json: &'a [u8]) -> Result<T, Problem> {
    read(super::input::or_empty(json))
}

/// Returns the message of an error, without the place in the text.
pub(super) fn without_place(error: &serde_json::Error) -> String {
    let message = error.to_string();
    message.rsplit_once(" at line ").map_or(message.as_str(), |(message, _)| message).to_owned()
}

/// Returns the problem of a body that is not a JSON object, or whose fields do not match its type. `at` has the field
/// where the error was found. The boolean is true if the error was found in a part of the field's value.
fn problem(json: &[u8], at: Option<(&str, bool)>, error: &serde_json::Error) -> Problem {
    let fields = match serde_json::from_slice::<UniqueFields<&RawValue>>(json) {
        Ok(UniqueFields(fields)) => fields,
        Err(e) => return Problem::bad_json(e),
    };
    let message = without_place(error);
    if let Some(rest) = message.strip_prefix("unknown field `") {
        let (unknown, known) = rest.rsplit_once("`, expected ").unwrap_or((rest, ""));
        let unknown = unknown.strip_suffix("`, there are no fields").unwrap_or(unknown);
        let known: Vec<&str> = known.split('`').skip(1).step_by(2).collect();
        return Problem::unknown_field(&short(unknown), &known);
    }
    let expected = message.rsplit_once(", expected ").map_or("", |(_, expected)| expected);
    let is_in_list = |(field, is_part): (&str, bool)| {
        is_part && fields.get(field).is_some_and(|raw| raw.get().starts_with('['))
    };
    let wanted = match expected {
        // If a JSON text contains escapes that are not valid Unicode, the error names no expected type.
        "" | "a string" if at.is_some_and(is_in_list) => "a list of texts",
        "" | "a string" => "a text",
        "a sequence" => "a list",
        "a boolean" => "true or false",
        other => other,
    };
    match at.and_then(|(field, _)| Some((field, *fields.get(field)?))) {
        Some((field, raw)) => wrong(field, raw, wanted),
        None => Problem::bad_json(message),
    }
}

/// Reads a field in which null is a value. Use it with `#[serde(default, deserialize_with = "given")]`.
pub(super) fn given<'de, T: Deserialize<'de>, D: Deserializer<'de>>(from: D) -> Result<Option<T>, D::Error> {
    T::deserialize(from).map(Some)
}

/// Reads one of several words.
pub(super) fn word<'de, T: DeserializeOwned, D: Deserializer<'de>>(from: D) -> Result<Option<T>, D::Error> {
    match Value::deserialize(from)? {
        Value::Null => Ok(None),
        // For a value that is not a text, the error of serde does not name the valid words. For a wrong text, the error
        // names the valid words. So a value that is not a text is read as the empty text.
        value => {
            let text = value.as_str().unwrap_or_default().to_owned();
            T::deserialize(Value::String(text)).map(Some).map_err(D::Error::custom)
        }
    }
}

/// A duration: a text such as `"90s"`, or a number of seconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(super) struct JsonDuration(pub Duration);

impl<'de> Deserialize<'de> for JsonDuration {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<JsonDuration, D::Error> {
        let raw = <&RawValue>::deserialize(from)?;
        json_time::duration(raw).map(JsonDuration).ok_or_else(|| invalid(json_time::DURATION))
    }
}

/// A moment in Unix milliseconds: RFC 3339, or a number of milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(super) struct UnixMs(pub i64);

impl<'de> Deserialize<'de> for UnixMs {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<UnixMs, D::Error> {
        let raw = <&RawValue>::deserialize(from)?;
        json_time::moment_ms(raw).map(UnixMs).ok_or_else(|| invalid(json_time::MOMENT))
    }
}

/// A whole number within bounds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(super) struct BoundedNumber<const LEAST: u32, const MOST: u32>(pub u32);

impl<'de, const LEAST: u32, const MOST: u32> Deserialize<'de> for BoundedNumber<LEAST, MOST> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let raw = <&RawValue>::deserialize(from)?;
        let count = raw.get().parse().ok().filter(|n| (LEAST..=MOST).contains(n));
        count.map(BoundedNumber).ok_or_else(|| invalid(&format!("a whole number from {LEAST} to {MOST}")))
    }
}

/// Returns the error for a wrong value. `wanted` describes the valid values.
pub(super) fn invalid<E: serde::de::Error>(wanted: &str) -> E {
    E::invalid_value(Unexpected::Other("this"), &wanted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Deserialize)]
    #[serde(rename_all = "lowercase")]
    enum TestColor {
        Red,
        Green,
    }

    #[derive(Debug, Default, Deserialize)]
    #[serde(deny_unknown_fields, default)]
    struct TestBody<'a> {
        delay: Option<JsonDuration>,
        at: Option<UnixMs>,
        number: Option<BoundedNumber<1, 1000>>,
        #[serde(deserialize_with = "word")]
        color: Option<TestColor>,
        #[serde(borrow, deserialize_with = "given")]
        any: Option<&'a RawValue>,
        text: Option<String>,
    }

    #[test]
    fn a_body_is_read_and_a_null_is_a_missing_field() {
        let json = br#"{"delay":"1m","at":1800000000000,"number":3,"color":"red","any":null,"text":null}"#;
        let body: TestBody<'_> = read(json).unwrap();
        assert_eq!(body.delay, Some(JsonDuration(Duration::from_secs(60))));
        assert_eq!((body.at, body.number), (Some(UnixMs(1_800_000_000_000)), Some(BoundedNumber(3))));
        assert!(matches!(body.color, Some(TestColor::Red)) && body.text.is_none());
        assert_eq!(body.any.unwrap().get(), "null");
        let nothing: TestBody<'_> = read_or_empty(b"").unwrap();
        assert!(nothing.any.is_none() && nothing.delay.is_none() && nothing.color.is_none());
    }

    #[test]
    fn an_error_names_the_field_its_value_and_what_would_do() {
        for (json, field, parts) in [
            (r#"{"delay":"soon"}"#, "delay", ["\"soon\"", "and not a duration such as"]),
            (r#"{"delay":[1]}"#, "delay", ["[1]", "and not a duration such as"]),
            (r#"{"at":-1}"#, "at", ["-1", "and not a moment such as"]),
            (r#"{"number":0}"#, "number", ["0", "and not a whole number from 1 to 1000"]),
            (r#"{"number":1.5}"#, "number", ["1.5", "and not a whole number"]),
            (r#"{"color":"blue"}"#, "color", ["\"blue\"", "`red` or `green`"]),
            (r#"{"color":3}"#, "color", ["3", "`red` or `green`"]),
            (r#"{"text":3}"#, "text", ["3", "and not a text"]),
            (r#"{"text":"\ud800"}"#, "text", [r#""\ud800""#, "and not a text"]),
            (
                r#"{"colour":"red"}"#,
                "colour",
                ["is unknown here", "delay, at, number, color, any, text only"],
            ),
        ] {
            let problem = read::<TestBody<'_>>(json.as_bytes()).unwrap_err();
            assert_eq!(problem.named_field(), Some(field), "{json}: {}", problem.detail);
            for part in parts {
                assert!(problem.detail.contains(part), "{json}: {}", problem.detail);
            }
        }
        for json in ["", "[]", "3", "{", r#"{"text":"a"} x"#, r#"{"text":"a","text":"b"}"#] {
            let problem = read::<TestBody<'_>>(json.as_bytes()).unwrap_err();
            assert_eq!(problem.named_field(), None, "{json}: {}", problem.detail);
            assert!(problem.detail.contains("not a JSON object"), "{json}: {}", problem.detail);
        }
    }
}
