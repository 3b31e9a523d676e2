//! The body of a job as the PHP daemon's clients and callbacks see it: a list of fields, with the times that the daemon
//! adds. Pure.
//!
//! `notify_time` is when the next (or current) delivery is due, `dq_set_time` is when the job was added, and
//! `exp_notify_nums` is the number of failed deliveries. These three fields replace fields of the same names.
//! `exp_notify_nums` is added only if a delivery has failed.

use std::borrow::Cow;
use std::fmt;

use jiff::tz::TimeZone;
use serde::de::{Deserializer, MapAccess, SeqAccess, Visitor};
use serde::ser::{SerializeMap, Serializer};
use serde_json::value::RawValue;

use crate::job::Body;
use crate::json_time;

/// The fields of a body, in their order: name and JSON text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BodyFields(Vec<(String, String)>);

/// The times and the count that dq adds to the fields of the body.
#[derive(Debug, Clone, Copy)]
pub struct DaemonFields {
    /// When the delivery is due, in Unix milliseconds.
    pub due_ms: i64,
    /// When the job was added, in Unix milliseconds.
    pub added_ms: i64,
    /// How many deliveries have failed so far.
    pub failures: u32,
}

impl BodyFields {
    /// Returns the fields of a body: the members of an object, the items of an array with their indexes as names, or
    /// any other value as the one field `body`.
    pub fn from_body(body: &Body) -> BodyFields {
        let text = body.as_str();
        let members = match text.as_bytes().first() {
            Some(b'{' | b'[') => {
                serde_json::Deserializer::from_str(text).deserialize_any(MembersVisitor).ok()
            }
            _ => None,
        };
        // An object that cannot be read also becomes the one field `body`. For example, JSON escapes in a name can make
        // invalid Unicode.
        BodyFields(members.unwrap_or_else(|| vec![("body".to_owned(), text.to_owned())]))
    }

    /// Adds the fields of the daemon, with times in `zone`.
    pub fn with(mut self, daemon_fields: DaemonFields, zone: &TimeZone) -> BodyFields {
        self.set("notify_time", quoted(&local_time(daemon_fields.due_ms, zone)));
        self.set("dq_set_time", quoted(&local_time(daemon_fields.added_ms, zone)));
        if daemon_fields.failures > 0 {
            self.set("exp_notify_nums", daemon_fields.failures.to_string());
        }
        self
    }

    fn set(&mut self, name: &str, json: String) {
        match self.0.iter_mut().find(|(n, _)| n == name) {
            Some((_, old)) => *old = json,
            None => self.0.push((name.to_owned(), json)),
        }
    }

    /// Returns whether there is a field of that name.
    pub fn has(&self, name: &str) -> bool {
        self.0.iter().any(|(known, _)| known == name)
    }

    /// Returns the fields as a form, such as `a=1&zh=%E4%B8%AD`, with the escapes of RFC 3986. `true` becomes `1`,
    /// `false` and `null` become empty, and nested values become JSON text.
    pub fn url_encoded(&self) -> String {
        let mut out = String::new();
        for (name, json) in &self.0 {
            if !out.is_empty() {
                out.push('&');
            }
            escape(name, &mut out);
            out.push('=');
            escape(&plain(json), &mut out);
        }
        out
    }
}

impl serde::Serialize for BodyFields {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let mut map = to.serialize_map(Some(self.0.len()))?;
        for (name, json) in &self.0 {
            let raw = RawValue::from_string(json.clone()).map_err(serde::ser::Error::custom)?;
            map.serialize_entry(name, &raw)?;
        }
        map.end()
    }
}

/// Returns a time in `zone`, such as `2026-11-20 23:58:21`. `at_ms` is in Unix milliseconds.
pub fn local_time(at_ms: i64, zone: &TimeZone) -> String {
    json_time::on_wall_clock(at_ms, zone).strftime("%Y-%m-%d %H:%M:%S").to_string()
}

fn quoted(plain: &str) -> String {
    format!("\"{plain}\"")
}

/// Returns a JSON value as the text of a form field.
fn plain(json: &str) -> Cow<'_, str> {
    match json {
        "true" => "1".into(),
        "false" | "null" => "".into(),
        text if text.starts_with('"') => serde_json::from_str::<String>(text).map_or(text.into(), Cow::Owned),
        other => other.into(),
    }
}

fn escape(text: &str, out: &mut String) {
    for &b in text.as_bytes() {
        if b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.' | b'_' | b'~') {
            out.push(char::from(b));
        } else {
            const HEX: [u8; 16] = *b"0123456789ABCDEF";
            out.extend(['%', char::from(HEX[usize::from(b >> 4)]), char::from(HEX[usize::from(b & 15)])]);
        }
    }
}

struct MembersVisitor;

impl<'de> Visitor<'de> for MembersVisitor {
    type Value = Vec<(String, String)>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut out: Self::Value = Vec::new();
        while let Some((name, value)) = map.next_entry::<String, &RawValue>()? {
            out.push((name, value.get().to_owned()));
        }
        Ok(out)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
        let mut out: Self::Value = Vec::new();
        while let Some(value) = seq.next_element::<&RawValue>()? {
            out.push((out.len().to_string(), value.get().to_owned()));
        }
        Ok(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(body: &str) -> BodyFields {
        BodyFields::from_body(&Body::parse(body).unwrap())
    }

    #[test]
    fn a_form_is_what_the_php_daemon_sends() {
        let body =
            r#"{"id":"nest-2","a":1,"zh":"中 文&=+","t":true,"f":false,"nul":null,"fl":1.5,"n":{"x":[1,2]}}"#;
        let daemon_fields =
            DaemonFields { due_ms: 1_795_219_101_000, added_ms: 1_795_219_100_999, failures: 0 };
        assert_eq!(
            fields(body).with(daemon_fields, &TimeZone::UTC).url_encoded(),
            "id=nest-2&a=1&zh=%E4%B8%AD%20%E6%96%87%26%3D%2B&t=1&f=&nul=&fl=1.5&n=%7B%22x%22%3A%5B1%2C2%5D%7D\
             &notify_time=2026-11-20%2023%3A58%3A21&dq_set_time=2026-11-20%2023%3A58%3A20"
        );
    }

    #[test]
    fn what_is_no_object_has_fields_too() {
        assert_eq!(fields("\"a b\"").url_encoded(), "body=a%20b");
        assert_eq!(fields("17").url_encoded(), "body=17");
        assert_eq!(fields("[\"x\",{}]").url_encoded(), "0=x&1=%7B%7D");
        assert_eq!(fields("[]").url_encoded(), "");
        assert_eq!(
            fields(r#"{"a":1,"\ud800":2}"#).url_encoded(),
            "body=%7B%22a%22%3A1%2C%22%5Cud800%22%3A2%7D"
        );
    }

    #[test]
    fn the_daemons_own_fields_win_and_failures_are_counted() {
        let daemon_fields = DaemonFields { due_ms: 0, added_ms: 0, failures: 2 };
        let json = serde_json::to_string(
            &fields(r#"{"notify_time":1,"a":{"b":2}}"#).with(daemon_fields, &TimeZone::UTC),
        )
        .unwrap();
        assert_eq!(
            json,
            r#"{"notify_time":"1970-01-01 00:00:00","a":{"b":2},"dq_set_time":"1970-01-01 00:00:00","exp_notify_nums":2}"#
        );
    }
}
