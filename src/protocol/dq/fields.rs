//! The fields of a request, or of a job in a `madd`, as they were sent. Each is taken apart by itself later, so that a
//! refusal can name it. A field that dq does not know is passed over, as the PHP daemon does, unless its name shows that a
//! known one was meant: an add whose `delay_seconds` is passed over would be delivered at once.

use std::fmt;

use serde::de::{self, Deserialize, Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;

use super::Refusal;

/// The fields that a request may have.
const KNOWN: [&str; 15] = [
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
    "jobs",
    "token",
];

/// What other systems call the moment or the wait.
const OTHER_WORDS: [(&str, &str); 11] = [
    ("after", "delay"),
    ("wait", "delay"),
    ("at", "run_at"),
    ("atms", "run_at_ms"),
    ("due", "run_at"),
    ("dueat", "run_at"),
    ("duems", "run_at_ms"),
    ("eta", "run_at"),
    ("executeat", "run_at"),
    ("scheduledat", "run_at"),
    ("when", "run_at"),
];

/// A longer name is not compared with the known ones.
const COMPARED_MAX: usize = 40;

/// The fields of one object.
#[derive(Clone, Copy, Default)]
pub(super) struct Fields<'a> {
    values: [Option<&'a RawValue>; KNOWN.len()],
}

impl<'a> Fields<'a> {
    /// The fields of a request or a job.
    pub(super) fn parse(text: &'a str) -> Result<Fields<'a>, ParseError> {
        let Parsed { fields, mistake } = serde_json::from_str(text).map_err(ParseError::Json)?;
        mistake.map_or(Ok(fields), |mistake| Err(ParseError::Mistake(mistake)))
    }

    /// A field. A null is a field that is not there, but for the body, which may be null.
    pub(super) fn get(&self, name: &str) -> Option<&'a RawValue> {
        let value = self.values[KNOWN.iter().position(|known| *known == name)?]?;
        (value.get() != "null" || name == "body").then_some(value)
    }
}

/// Why an object is refused.
pub(super) enum ParseError {
    /// It is no JSON object, or has a field twice.
    Json(serde_json::Error),
    /// It has a field that is none of dq's, but looks like one.
    Mistake(Mistake),
}

/// A field whose name is close to a known one.
pub(super) struct Mistake {
    name: String,
    meant: &'static str,
}

impl From<Mistake> for Refusal {
    fn from(Mistake { name, meant }: Mistake) -> Refusal {
        Refusal::new("unknown_field", format!("there is no field {name:?}: do you mean {meant}?"))
    }
}

struct Parsed<'a> {
    fields: Fields<'a>,
    mistake: Option<Mistake>,
}

impl<'de> Deserialize<'de> for Parsed<'de> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Parsed<'de>, D::Error> {
        struct Object;
        impl<'de> Visitor<'de> for Object {
            type Value = Parsed<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Parsed<'de>, M::Error> {
                let mut parsed = Parsed { fields: Fields::default(), mistake: None };
                while let Some(name) = map.next_key()? {
                    match name {
                        Name::Known(place) => {
                            if parsed.fields.values[place].replace(map.next_value()?).is_some() {
                                return Err(de::Error::duplicate_field(KNOWN[place]));
                            }
                        }
                        Name::Unknown(mistake) => {
                            map.next_value::<IgnoredAny>()?;
                            parsed.mistake = parsed.mistake.or(mistake);
                        }
                    }
                }
                Ok(parsed)
            }
        }
        from.deserialize_map(Object)
    }
}

/// The name of a field: the place of a known one, or what an unknown one was meant to be.
enum Name {
    Known(usize),
    Unknown(Option<Mistake>),
}

impl<'de> Deserialize<'de> for Name {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Name, D::Error> {
        struct Text;
        impl Visitor<'_> for Text {
            type Value = Name;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("the name of a field")
            }

            fn visit_str<E: de::Error>(self, name: &str) -> Result<Name, E> {
                let known = KNOWN.iter().position(|known| *known == name);
                Ok(known.map_or_else(
                    || Name::Unknown(meant(name).map(|meant| Mistake { name: name.to_owned(), meant })),
                    Name::Known,
                ))
            }
        }
        from.deserialize_identifier(Text)
    }
}

/// Which field was probably meant by an unknown one: one that is spelt with other letters or signs (`runAt`), that has a
/// unit attached (`delay_seconds`), that other systems have (`eta`), or that differs by a slip of a key (`dealy`).
fn meant(name: &str) -> Option<&'static str> {
    if name.len() > COMPARED_MAX {
        return None;
    }
    let plain = |name: &str| name.replace(['_', '-', ' ', '.'], "").to_ascii_lowercase();
    let written = plain(name);
    let is_spelt = |known: &&str| plain(known) == written;
    let has_unit = |known: &&str| written.starts_with(&plain(known));
    let times = ["fix_time", "run_at", "delay"];
    let is_slip = |known: &&str| {
        let allowed = [0, 1, 2][usize::from(known.len() > 3) + usize::from(known.len() > 5)];
        strsim::osa_distance(&plain(known), &written) <= allowed
    };
    let other = || OTHER_WORDS.iter().find(|(word, _)| *word == written).map(|(_, known)| *known);
    let spelt = KNOWN.into_iter().find(is_spelt);
    spelt
        .or_else(other)
        .or_else(|| times.into_iter().find(has_unit))
        .or_else(|| KNOWN.into_iter().find(is_slip))
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
            ("dealy", "delay"),
            ("delayMs", "delay_ms"),
            ("runAt", "run_at"),
            ("run-at-ms", "run_at_ms"),
            ("run_at_seconds", "run_at"),
            ("runat", "run_at"),
            ("fixtime", "fix_time"),
            ("fix_tme", "fix_time"),
            ("eta", "run_at"),
            ("due_ms", "run_at_ms"),
            ("ID", "id"),
            ("Topic", "topic"),
            ("bdy", "body"),
            ("prioritiy", "priority"),
            ("onConflict", "on_conflict"),
            ("max_attempt", "max_attempts"),
            ("header", "headers"),
        ] {
            assert_eq!(meant(name), Some(known), "{name}");
        }
        for name in [
            "uid",
            "name",
            "type",
            "time",
            "user",
            "code",
            "TTR",
            "version",
            "trace_id",
            "",
            &"delay".repeat(99),
        ] {
            assert_eq!(meant(name), None, "{name}");
        }
    }
}
