//! Separates the members that the PHP daemon has put into a body from the members of the business. Pure.

use std::fmt;

use jiff::civil::DateTime;
use serde::de::{Deserializer as _, MapAccess, Visitor};
use serde_json::value::RawValue;

use model::job::Body;

/// A number above this is not a count of failures: no topic allows so many attempts.
const FAILURES_MAX: u32 = 1_000_000;

/// A body without the members that the PHP daemon has added, and the values of these members.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PhpBody {
    /// The body without the members that the PHP daemon has added. The text of the other members is unchanged.
    pub body: Body,
    /// `exp_notify_nums`: how often the delivery had failed.
    pub failures: u32,
    /// `notify_time`: when the job is to be delivered, in the PHP daemon's time zone.
    pub notify_time: Option<DateTime>,
}

/// Takes the PHP daemon's members out of a body.
pub fn unmarked(body: Body) -> PhpBody {
    let members = match body.as_str().as_bytes().first() {
        Some(b'{') => serde_json::Deserializer::from_str(body.as_str()).deserialize_map(MembersVisitor).ok(),
        _ => None,
    };
    let Some(members) = members else { return PhpBody { body, failures: 0, notify_time: None } };
    let (mut failures, mut notify_time) = (0, None);
    let (mut text, mut found) = ("{".to_owned(), false);
    for (name, value) in &members {
        let mark = serde_json::from_str::<String>(name.get()).ok();
        let is_mark = match mark.as_deref() {
            Some("notify_time") => {
                notify_time = moment(value);
                true
            }
            Some("dq_set_time") => true,
            // A value that is not a count belongs to the business.
            Some("exp_notify_nums") => count(value).map(|n| failures = n).is_some(),
            _ => false,
        };
        found |= is_mark;
        if !is_mark {
            let comma = if text.len() > 1 { "," } else { "" };
            text += &format!("{comma}{}:{}", name.get(), value.get());
        }
    }
    text.push('}');
    let body = if found { Body::trusted(text) } else { body };
    PhpBody { body, failures, notify_time }
}

/// Reads a moment as the PHP daemon writes it: `date('Y-m-d H:i:s')`.
fn moment(value: &RawValue) -> Option<DateTime> {
    let text: String = serde_json::from_str(value.get()).ok()?;
    DateTime::strptime("%Y-%m-%d %H:%M:%S", text.trim()).ok()
}

/// Reads a count as PHP writes it: a number, or its digits as a text.
fn count(value: &RawValue) -> Option<u32> {
    value.get().trim_matches('"').parse().ok().filter(|n| *n <= FAILURES_MAX)
}

struct MembersVisitor;

impl<'de> Visitor<'de> for MembersVisitor {
    type Value = Vec<(&'de RawValue, &'de RawValue)>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut out = Vec::new();
        while let Some(member) = map.next_entry()? {
            out.push(member);
        }
        Ok(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn body(text: &str) -> (String, u32) {
        let PhpBody { body, failures, .. } = unmarked(Body::parse(text).unwrap());
        (body.as_str().to_owned(), failures)
    }

    #[test]
    fn the_import_removes_daemon_fields_and_keeps_the_rest_exactly() {
        let own = r#""b":1.0,"a":1234567890123456789,"zh":"\u4e2d文","n":{"notify_time": 1},"\ud800":[ 1 ],"e":1E+2"#;
        let all = format!(
            "{{\"notify_time\":\"2026-11-20 23:58:21\",{own},\"dq_set_time\":\"x\",\"exp_notify_nums\":3}}"
        );
        assert_eq!(body(&all), (format!("{{{own}}}"), 3));
        assert_eq!(body(r#"{"notify_time":"x","dq_set_time":"y"}"#), ("{}".to_owned(), 0));
        assert_eq!(body(r#"{"exp_notify_nums":"2", "a" : 1 }"#), (r#"{"a":1}"#.to_owned(), 2));
    }

    #[test]
    fn what_is_not_the_daemons_stays_in_the_body() {
        for text in [
            r#"{ "a" : 1 }"#,
            r#""{\"notify_time\":1}""#,
            r#"["notify_time", 1.0]"#,
            "17",
            "null",
            r#"{"exp_notify_nums":"often"}"#,
            r#"{"exp_notify_nums":-1}"#,
            r#"{"exp_notify_nums":5000000}"#,
        ] {
            assert_eq!(body(text), (text.to_owned(), 0));
        }
    }

    #[test]
    fn a_notify_time_is_read_as_php_writes_it() {
        let read = |value: &str| {
            let text = format!("{{\"a\":1,\"notify_time\":{value}}}");
            unmarked(Body::parse(&text).unwrap()).notify_time.map(|at| at.to_string())
        };
        assert_eq!(read("\"2026-11-20 23:58:21\"").as_deref(), Some("2026-11-20T23:58:21"));
        for other in ["\"x\"", "17", "null", "\"2026-11-20\"", "\"2026-02-30 00:00:00\"", "[]"] {
            assert_eq!(read(other), None, "{other}");
        }
    }
}
