//! The fields of a request, or of a job in a `madd`, as they were sent. Each field is parsed by itself later, so that a
//! refusal can name it. dq ignores unknown fields, as the PHP daemon does. But dq refuses an add if the name of an
//! unknown field is similar to the name of a known field, and the add does not have this known field. For example, if
//! dq ignored `delay_seconds`, the job would be delivered at once.

use std::fmt;

use serde::de::{self, Deserialize, Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;

use super::Refusal;

/// The fields that a request may have.
const KNOWN: [&str; 28] = [
    "cmd",
    "topic",
    "id",
    "body",
    "delay",
    "delay_ms",
    "run_at",
    "run_at_ms",
    "fix_time",
    "priority",
    "on_conflict",
    "max_attempts",
    "headers",
    "path",
    "url",
    "tags",
    "then",
    "jobs",
    "token",
    "topics",
    "max",
    "wait",
    "lease",
    "answer",
    "reason",
    "ttr",
    "expire_after",
    "consumer",
];

/// The fields that give the due time. An add has at most one of them.
pub(super) const TIMES: [&str; 5] = ["fix_time", "delay", "delay_ms", "run_at", "run_at_ms"];

/// The other optional fields of an add.
pub(super) const OPTIONS: [&str; 9] =
    ["priority", "on_conflict", "max_attempts", "headers", "path", "url", "tags", "then", "expire_after"];

/// How many characters of an unknown name are compared, and repeated in a message.
const COMPARED_MAX: usize = 40;

/// The fields of one object.
#[derive(Clone, Copy, Default)]
pub(super) struct Fields<'a> {
    values: [Option<&'a RawValue>; KNOWN.len()],
}

impl<'a> Fields<'a> {
    /// Parses the fields of a request or a job. Also returns the unknown fields whose names look like the name of a
    /// known field.
    pub(super) fn parse(text: &'a str) -> serde_json::Result<(Fields<'a>, Vec<MisspeltField>)> {
        serde_json::from_str(text).map(|FieldsWithMisspellings { fields, mistakes }| (fields, mistakes))
    }

    /// Returns a field. A field that is null counts as missing, except the body, which may be null.
    pub(super) fn get(&self, name: &str) -> Option<&'a RawValue> {
        let value = self.values[KNOWN.iter().position(|known| *known == name)?]?;
        (value.get() != "null" || name == "body").then_some(value)
    }

    /// Refuses an add with a misspelt field if the known field that was meant is missing. If the known field is
    /// present, the misspelt field is ignored, as any unknown field is. A misspelt field of [`TIMES`] is ignored too if
    /// the add has any field of [`TIMES`].
    pub(super) fn check(&self, mistakes: Vec<MisspeltField>) -> Result<(), Refusal> {
        let is_missing = |MisspeltField { meant, .. }: &MisspeltField| match TIMES.contains(meant) {
            true => TIMES.iter().all(|time| self.get(time).is_none()),
            false => self.get(meant).is_none(),
        };
        match mistakes.into_iter().find(is_missing) {
            Some(mistake) => Err(mistake.into()),
            None => Ok(()),
        }
    }
}

/// A field whose name is similar to the name of a known field.
pub(super) struct MisspeltField {
    name: String,
    meant: &'static str,
}

impl From<MisspeltField> for Refusal {
    fn from(MisspeltField { name, meant }: MisspeltField) -> Refusal {
        let name: String = name.chars().take(COMPARED_MAX).collect();
        Refusal::new("unknown_field", format!("there is no field {name:?}: do you mean {meant}?"))
    }
}

struct FieldsWithMisspellings<'a> {
    fields: Fields<'a>,
    mistakes: Vec<MisspeltField>,
}

impl<'de> Deserialize<'de> for FieldsWithMisspellings<'de> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<FieldsWithMisspellings<'de>, D::Error> {
        struct ParsedFieldsVisitor;
        impl<'de> Visitor<'de> for ParsedFieldsVisitor {
            type Value = FieldsWithMisspellings<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<M: MapAccess<'de>>(
                self,
                mut map: M,
            ) -> Result<FieldsWithMisspellings<'de>, M::Error> {
                let mut parsed = FieldsWithMisspellings { fields: Fields::default(), mistakes: Vec::new() };
                while let Some(name) = map.next_key()? {
                    match name {
                        FieldName::Known(place) => {
                            if parsed.fields.values[place].replace(map.next_value()?).is_some() {
                                return Err(de::Error::duplicate_field(KNOWN[place]));
                            }
                        }
                        FieldName::Unknown(mistake) => {
                            map.next_value::<IgnoredAny>()?;
                            // The list has at most as many entries as there are known fields, so that it does not grow
                            // with the request.
                            if parsed.mistakes.len() < KNOWN.len() {
                                parsed.mistakes.extend(mistake);
                            }
                        }
                    }
                }
                Ok(parsed)
            }
        }
        from.deserialize_map(ParsedFieldsVisitor)
    }
}

/// The name of a field: the index of a known one in `KNOWN`, or the known field that an unknown name probably means.
enum FieldName {
    Known(usize),
    Unknown(Option<MisspeltField>),
}

impl<'de> Deserialize<'de> for FieldName {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<FieldName, D::Error> {
        struct FieldNameVisitor;
        impl Visitor<'_> for FieldNameVisitor {
            type Value = FieldName;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("the name of a field")
            }

            fn visit_str<E: de::Error>(self, name: &str) -> Result<FieldName, E> {
                let known = KNOWN.iter().position(|known| *known == name);
                Ok(known.map_or_else(
                    || {
                        FieldName::Unknown(
                            meant(name).map(|meant| MisspeltField { name: name.to_owned(), meant }),
                        )
                    },
                    FieldName::Known,
                ))
            }
        }
        from.deserialize_identifier(FieldNameVisitor)
    }
}

/// Returns the known field that an unknown name probably means. The name is spelt with other letters or signs
/// (`runAt`), has a unit attached (`delay_seconds`), is the name that other systems use (`eta`, `sendAt`), or has a
/// typing error (`prioritiy`).
fn meant(name: &str) -> Option<&'static str> {
    let words = words(name);
    let written = words.concat();
    let plain = |known: &str| known.replace('_', "");
    let is_slip = |known: &str| {
        let known = plain(known);
        let allowed = if known.len() > 5 { 2 } else { 1 };
        known.as_bytes().first() == written.as_bytes().first()
            && strsim::osa_distance(&known, &written) <= allowed
    };
    let all = || TIMES.into_iter().chain(OPTIONS);
    let spelt = all().find(|known| plain(known) == written);
    spelt.or_else(|| meant_time(&words)).or_else(|| all().find(|known| is_slip(known)))
}

/// Splits a name such as `runAt`, `run_at` or `run-at` into its words, in small letters.
fn words(name: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut was_small = false;
    for c in name.chars().take(COMPARED_MAX) {
        let begins = !c.is_ascii_alphanumeric() || (was_small && c.is_ascii_uppercase());
        if begins && words.last().is_some_and(|word| !word.is_empty()) {
            words.push(String::new());
        }
        if let Some(word) = words.last_mut().filter(|_| c.is_ascii_alphanumeric()) {
            word.push(c.to_ascii_lowercase());
        }
        was_small = c.is_ascii_lowercase() || c.is_ascii_digit();
    }
    words
}

/// A name that begins with one of these words says how long to wait.
const WAITS: [&str; 5] = ["after", "countdown", "in", "timer", "wait"];

/// Verbs for what is done to a job at its due time.
const DEEDS: [&str; 16] = [
    "available",
    "begin",
    "call",
    "deliver",
    "delivery",
    "exec",
    "execute",
    "fire",
    "notify",
    "process",
    "publish",
    "release",
    "run",
    "send",
    "start",
    "visible",
];

/// A name that begins with one of these words gives a moment.
const MOMENTS: [&str; 7] = ["at", "due", "eta", "schedule", "scheduled", "trigger", "when"];

/// `words`: the name of a client's field, split into words. If other systems use this name for a due time or a delay,
/// returns the field of dq with the same meaning. None: the name has another meaning. For example, `created_at` and
/// `expire_at` are fields of the client's own.
fn meant_time(words: &[String]) -> Option<&'static str> {
    let (first, rest) = words.split_first()?;
    let (first, second) = (first.as_str(), rest.first().map(String::as_str));
    let is_wait = |word: &String| ["delay", "defer", "postpon"].iter().any(|wait| word.starts_with(wait));
    let waits = words.iter().any(is_wait) || WAITS.contains(&first) || second == Some("after");
    let is_moment = match second {
        None => MOMENTS.contains(&first),
        Some("at" | "time" | "date" | "on" | "ms") => MOMENTS.contains(&first) || DEEDS.contains(&first),
        Some(second) => (first, second) == ("not", "before"),
    };
    let is_ms = |word: &String| word == "ms" || word.starts_with("milli") || word.starts_with("msec");
    match (waits, words.iter().any(is_ms)) {
        (true, false) => Some("delay"),
        (true, true) => Some("delay_ms"),
        (false, true) if is_moment || first == "fix" => Some("run_at_ms"),
        (false, false) if is_moment => Some("run_at"),
        (false, _) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_that_was_probably_meant_is_named() {
        for (name, known) in [
            ("delay_seconds", "delay"),
            ("delaySeconds", "delay"),
            ("delay_s", "delay"),
            ("Delay", "delay"),
            ("delays", "delay"),
            ("job_delay", "delay"),
            ("delay_in_milliseconds", "delay_ms"),
            ("delayMillis", "delay_ms"),
            ("delay_msec", "delay_ms"),
            (&"delay".repeat(99), "delay"),
            ("dealy", "delay"),
            ("deferred", "delay"),
            ("run_after", "delay"),
            ("wait_s", "delay"),
            ("delayMs", "delay_ms"),
            ("runAt", "run_at"),
            ("run-at-ms", "run_at_ms"),
            ("runAtMillis", "run_at_ms"),
            ("run_at_seconds", "run_at"),
            ("runat", "run_at"),
            ("send_at", "run_at"),
            ("executeTime", "run_at"),
            ("notify_time", "run_at"),
            ("not_before", "run_at"),
            ("schedule_at", "run_at"),
            ("due_time", "run_at"),
            ("fixtime", "fix_time"),
            ("fix_tme", "fix_time"),
            ("fix_time_ms", "run_at_ms"),
            ("eta", "run_at"),
            ("due_ms", "run_at_ms"),
            ("prioritiy", "priority"),
            ("onConflict", "on_conflict"),
            ("max_attempt", "max_attempts"),
            ("header", "headers"),
            ("expireAfter", "expire_after"),
            ("Path", "path"),
            ("paths", "path"),
            ("URL", "url"),
            ("Tags", "tags"),
            ("tag", "tags"),
        ] {
            assert_eq!(meant(name), Some(known), "{name}");
        }
        let own = "uid _id name type time user code TTR version trace_id unit run rat relay job topics boy created_at \
                   expire_at timestamp sender _ 订单 ms";
        for name in own.split_whitespace() {
            assert_eq!(meant(name), None, "{name}");
        }
        assert_eq!(meant(""), None);
    }

    #[test]
    fn who_gives_the_field_may_call_others_as_they_like() {
        let is_refused = |json: &str| {
            let (fields, mistakes) = Fields::parse(json).unwrap();
            fields.check(mistakes).is_err()
        };
        assert!(is_refused(r#"{"id":"a","eta":5}"#));
        assert!(!is_refused(r#"{"id":"a","eta":5,"delay":"1h"}"#));
        assert!(is_refused(r#"{"id":"a","header":{}}"#));
        assert!(!is_refused(r#"{"id":"a","header":{},"headers":{}}"#));
    }
}
