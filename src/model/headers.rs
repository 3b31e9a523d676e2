//! The headers that a job carries to its receiver: which headers are allowed, and the text that a store keeps. Pure.
//!
//! The text also has the job's destination, its tags and its links to other jobs, as pseudo-headers like those of
//! HTTP/2: `:path` or `:url`, `:tags`, `:then` and `:next` (what follows the job), `:after` (the job that this job
//! follows), `:ttr` (how long a client may work on the job, ms), and `:expires` (no attempt begins after this moment,
//! Unix ms). The pseudo-headers are the first members of the text, in this order. Their values contain no quotation
//! marks. No real header has such a name. An earlier release that reads such a text does not send the pseudo-headers to
//! the receiver.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fmt;
use std::time::Duration;

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};

use crate::destination::Destination;
use crate::job_parts::JobKey;
use crate::links::{self, Then};
use crate::tags::Tags;
use crate::topic::refuse_header;

/// How many headers a job may carry.
pub const HEADERS_MAX: usize = 32;

/// How many bytes the names and values of a job's headers may have together.
pub const BYTES_MAX: usize = 4096;

/// Why headers were refused: which header, and what would be accepted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidHeaders {
    /// The JSON is not an object, or a value in it is not a string.
    #[error("not an object of strings, such as {{\"x-tenant\": \"7\"}}")]
    NoObject,
    /// There are more than [`HEADERS_MAX`] headers.
    #[error("there are more than {HEADERS_MAX}")]
    TooMany,
    /// Names and values have more than [`BYTES_MAX`] bytes together.
    #[error("names and values have more than {BYTES_MAX} bytes together")]
    TooLong,
    /// A header that cannot be sent. Holds a message that names the header and says what would be accepted.
    #[error("{0}")]
    Refused(String),
    /// Two headers have the same name. Holds the name.
    #[error("{0:?} is given twice")]
    Twice(String),
    /// The value begins or ends with white space, so it would not arrive unchanged. Holds the name.
    #[error("the value of {0:?} begins or ends with a space")]
    Spaces(String),
    /// The value of `traceparent` does not follow W3C Trace Context.
    #[error("traceparent is not 00-<32 hex digits>-<16 hex digits>-<2 hex digits>")]
    Traceparent,
}

/// The name that a path has in the text of a store.
const PATH: &str = ":path";

/// The name that a URL has in the text of a store.
const URL: &str = ":url";

/// The name that tags have in the text of a store.
const TAGS: &str = ":tags";

/// The name of the member with the number of a job's priority, in the text of a Redis store. This member is the first
/// member of the text. [`Headers`] does not contain the priority, because the store itself reads this member.
pub const PRIORITY: &str = ":priority";

/// A store keeps the headers of a job as a JSON text. These members of the text have the followers of the job. `:then`
/// has the followers in full, and `:next` has only their topics and ids.
const THEN: &str = ":then";
const NEXT: &str = ":next";

/// The name of the member with the job that a follower follows, in the text of a store.
const AFTER: &str = ":after";

/// The name of the member with the time to run, in the text of a store.
const TTR: &str = ":ttr";

/// The name of the member with the moment after which no attempt begins, in the text of a store.
const EXPIRES: &str = ":expires";

/// The headers of a job by their names, and its destination, tags and links. Names are in lower case.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Headers {
    by_name: BTreeMap<String, String>,
    destination: Option<Destination>,
    tags: Tags,
    then: Then,
    after: Option<Box<JobKey>>,
    ttr: Option<Duration>,
    expires_ms: Option<i64>,
}

impl Headers {
    /// Checks a JSON object of strings and makes headers from it.
    pub fn parse(json: &str) -> Result<Headers, InvalidHeaders> {
        let Pairs(pairs) = serde_json::from_str(json).map_err(|_| InvalidHeaders::NoObject)?;
        Headers::new(pairs)
    }

    /// Checks names and values and makes headers from them.
    pub fn new(pairs: impl IntoIterator<Item = (String, String)>) -> Result<Headers, InvalidHeaders> {
        let mut headers = BTreeMap::new();
        let mut bytes = 0;
        for (name, value) in pairs {
            check(&name, &value)?;
            bytes += name.len() + value.len();
            match headers.entry(name.to_ascii_lowercase()) {
                Entry::Vacant(free) => drop(free.insert(value)),
                Entry::Occupied(_) => return Err(InvalidHeaders::Twice(short(&name))),
            }
            if headers.len() > HEADERS_MAX {
                return Err(InvalidHeaders::TooMany);
            }
        }
        if bytes > BYTES_MAX {
            return Err(InvalidHeaders::TooLong);
        }
        Ok(Headers { by_name: headers, ..Headers::default() })
    }

    /// Makes headers from the text that [`Headers::to_text`] wrote and a store kept. If the text cannot be read, the
    /// result has no headers, so that the job is still delivered.
    pub fn trusted(text: &str) -> Headers {
        let mut by_name: BTreeMap<String, String> = serde_json::from_str(text).unwrap_or_default();
        by_name.remove(PRIORITY);
        let (path, url) = (by_name.remove(PATH), by_name.remove(URL));
        let destination = path.map(Destination::Path).or(url.map(Destination::Url));
        let tags = by_name.remove(TAGS).map_or_else(Tags::default, |text| Tags::trusted(&text));
        let then = Then::trusted(by_name.remove(THEN), by_name.remove(NEXT));
        let after = by_name.remove(AFTER).and_then(|text| links::key_of(&text)).map(Box::new);
        let ttr = by_name.remove(TTR).and_then(|ms| ms.parse().ok()).map(Duration::from_millis);
        let expires_ms = by_name.remove(EXPIRES).and_then(|ms| ms.parse().ok());
        Headers { by_name, destination, tags, then, after, ttr, expires_ms }
    }

    /// Returns the headers with this destination.
    pub fn with_destination(self, destination: Option<Destination>) -> Headers {
        Headers { destination, ..self }
    }

    /// Returns the headers with these tags.
    pub fn with_tags(self, tags: Tags) -> Headers {
        Headers { tags, ..self }
    }

    /// Returns the tags of the job.
    pub fn tags(&self) -> &Tags {
        &self.tags
    }

    /// Returns the headers with these followers of the job.
    pub fn with_then(self, then: Then) -> Headers {
        Headers { then, ..self }
    }

    /// Returns the followers of the job.
    pub fn then(&self) -> &Then {
        &self.then
    }

    /// Sets `after`: the job that the job with these headers follows. Returns the headers.
    pub fn with_after(self, after: Option<JobKey>) -> Headers {
        Headers { after: after.map(Box::new), ..self }
    }

    /// Returns the job that the job of these headers follows.
    pub fn after(&self) -> Option<&JobKey> {
        self.after.as_deref()
    }

    /// Returns the headers with this time to run.
    pub fn with_ttr(self, ttr: Option<Duration>) -> Headers {
        Headers { ttr, ..self }
    }

    /// Returns the job's own time to run: how long a lease lasts if the client that reserves the job sets no time.
    pub fn ttr(&self) -> Option<Duration> {
        self.ttr
    }

    /// Returns the headers with `expires_ms`, the moment after which no attempt begins.
    pub fn with_expires_ms(self, expires_ms: Option<i64>) -> Headers {
        Headers { expires_ms, ..self }
    }

    /// Returns the moment after which no attempt of the job begins, in Unix milliseconds.
    pub fn expires_ms(&self) -> Option<i64> {
        self.expires_ms
    }

    /// Returns only the tags and the links to other jobs, without headers and destination.
    pub fn only_tags_and_links(&self) -> Headers {
        Headers {
            tags: self.tags.clone(),
            then: self.then.only_links(),
            after: self.after.clone(),
            ..Headers::default()
        }
    }

    /// Returns where the job goes. None: to the callback of its topic.
    pub fn destination(&self) -> Option<&Destination> {
        self.destination.as_ref()
    }

    /// Returns the destination as the first member of [`Headers::to_text`]. Empty: there is no destination.
    pub fn destination_text(destination: Option<&Destination>) -> String {
        let (name, value) = match destination {
            Some(Destination::Path(path)) => (PATH, path),
            Some(Destination::Url(url)) => (URL, url),
            None => return String::new(),
        };
        // A path or a URL has no characters that JSON escapes, so scripts can find the end of the value.
        format!("\"{name}\":{}", serde_json::Value::from(value.as_str()))
    }

    /// Returns the tags as the member of [`Headers::to_text`] that comes after the destination. Empty: there are no
    /// tags.
    pub fn tags_text(tags: &Tags) -> String {
        if tags.is_empty() {
            return String::new();
        }
        format!("\"{TAGS}\":{}", serde_json::Value::from(tags.to_text()))
    }

    /// Returns a time to run as a member of [`Headers::to_text`].
    pub fn ttr_text(ttr: Duration) -> String {
        format!("\"{TTR}\":\"{}\"", ttr.as_millis())
    }

    /// Returns the headers as one line of JSON. Empty: the job has no headers, no destination, no tags, no links, no
    /// time to run, and no expiry.
    pub fn to_text(&self) -> String {
        if self.is_empty() {
            return String::new();
        }
        let headers = serde_json::to_string(&self.by_name).expect("texts are plain values");
        let member = |name: &str, value: &str| match value {
            "" => String::new(),
            value => format!("\"{name}\":\"{value}\""),
        };
        let mut members = vec![
            Headers::destination_text(self.destination.as_ref()),
            Headers::tags_text(&self.tags),
            member(THEN, self.then.full()),
            member(NEXT, self.then.links()),
            member(AFTER, &self.after.as_deref().map(links::key_text).unwrap_or_default()),
            self.ttr.map(Headers::ttr_text).unwrap_or_default(),
            member(EXPIRES, &self.expires_ms.map(|ms| ms.to_string()).unwrap_or_default()),
            headers[1..headers.len() - 1].to_owned(),
        ];
        members.retain(|member| !member.is_empty());
        format!("{{{}}}", members.join(","))
    }

    /// Returns whether [`Headers::to_text`] returns an empty text.
    pub fn is_empty(&self) -> bool {
        self.by_name.is_empty()
            && self.destination.is_none()
            && self.tags.is_empty()
            && self.then.is_empty()
            && self.after.is_none()
            && self.ttr.is_none()
            && self.expires_ms.is_none()
    }

    /// Returns the values by name.
    pub fn by_name(&self) -> &BTreeMap<String, String> {
        &self.by_name
    }

    /// Returns names and values.
    pub fn pairs(&self) -> Vec<(String, String)> {
        self.by_name.iter().map(|(name, value)| (name.clone(), value.clone())).collect()
    }
}

fn check(name: &str, value: &str) -> Result<(), InvalidHeaders> {
    if name.len() > BYTES_MAX {
        return Err(InvalidHeaders::TooLong);
    }
    if let Some(why) = refuse_header(name, value) {
        return Err(InvalidHeaders::Refused(why));
    }
    if value.trim().len() != value.len() {
        return Err(InvalidHeaders::Spaces(short(name)));
    }
    if name.eq_ignore_ascii_case("traceparent") && !is_traceparent(value) {
        return Err(InvalidHeaders::Traceparent);
    }
    Ok(())
}

/// Returns whether a value follows <https://www.w3.org/TR/trace-context/#traceparent-header>. Version 00 has exactly
/// four parts. In a later version, other parts may follow.
fn is_traceparent(value: &str) -> bool {
    let hex = |part: &str, digits: usize| {
        part.len() == digits && part.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
    };
    let some = |part: &str| part.bytes().any(|b| b != b'0');
    let parts: Vec<&str> = value.split('-').collect();
    let [version, trace, parent, flags, rest @ ..] = parts.as_slice() else { return false };
    let known = hex(version, 2) && *version != "ff" && (rest.is_empty() || *version != "00");
    known && hex(trace, 32) && some(trace) && hex(parent, 16) && some(parent) && hex(flags, 2)
}

/// Returns the beginning of a name, at most 80 characters, for a message.
fn short(name: &str) -> String {
    name.chars().take(80).collect()
}

/// The members of an object. A name that occurs twice in the object occurs twice here.
struct Pairs(Vec<(String, String)>);

impl<'de> Deserialize<'de> for Pairs {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Pairs, D::Error> {
        struct PairsVisitor;
        impl<'de> Visitor<'de> for PairsVisitor {
            type Value = Vec<(String, String)>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of strings")
            }
            fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Self::Value, M::Error> {
                let mut pairs = Vec::new();
                while let Some(pair) = map.next_entry()? {
                    // The loop keeps at most one header more than allowed. That is enough for [`Headers::new`] to
                    // refuse the headers.
                    if pairs.len() <= HEADERS_MAX {
                        pairs.push(pair);
                    }
                }
                Ok(pairs)
            }
        }
        from.deserialize_map(PairsVisitor).map(Pairs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_to_run_comes_behind_the_other_members() {
        let ttr = Some(Duration::from_millis(1500));
        let own = Headers::parse(r#"{"X-A": "7"}"#).unwrap();
        let all = own.with_tags(Tags::new(["a"]).unwrap()).with_ttr(ttr).with_expires_ms(Some(9));
        assert_eq!(all.to_text(), r#"{":tags":"a",":ttr":"1500",":expires":"9","x-a":"7"}"#);
        assert!(!Headers::default().with_expires_ms(Some(1)).is_empty());
        assert_eq!((Headers::trusted(&all.to_text()), all.ttr()), (all.clone(), ttr));
        assert!(!Headers::default().with_ttr(ttr).is_empty() && all.only_tags_and_links().ttr().is_none());
    }

    #[test]
    fn headers_are_kept_in_lower_case_and_read_again() {
        let headers = Headers::parse(r#"{"X-Tenant": "a \"b\"\\", "tracestate": ""}"#).unwrap();
        assert_eq!(
            headers.pairs(),
            [("tracestate", ""), ("x-tenant", "a \"b\"\\")].map(|(n, v)| (n.to_owned(), v.to_owned()))
        );
        assert_eq!(Headers::trusted(&headers.to_text()), headers);
        assert_eq!((Headers::default().to_text(), Headers::trusted("")), (String::new(), Headers::default()));
        assert!(Headers::parse("{}").unwrap().is_empty());
    }

    #[test]
    fn a_destination_is_the_first_member_of_the_text() {
        let path = Destination::from_path("/a?x='1'").unwrap();
        let alone = Headers::default().with_destination(Some(path.clone()));
        assert_eq!(alone.to_text(), r#"{":path":"/a?x='1'"}"#);
        let both = Headers::parse(r##"{"#a": "1", "x-b": "2"}"##).unwrap().with_destination(Some(path));
        assert_eq!(both.to_text(), r##"{":path":"/a?x='1'","#a":"1","x-b":"2"}"##);
        let url = Destination::from_url("https://[::1]:9/a?x=1").unwrap();
        let with_url = both.clone().with_destination(Some(url));
        assert!(with_url.to_text().starts_with(r##"{":url":"https://[::1]:9/a?x=1","#a""##));
        for headers in [alone, both, with_url] {
            assert!(!headers.is_empty());
            assert_eq!(Headers::trusted(&headers.to_text()), headers);
        }
        assert!(Headers::parse(r#"{":path": "/a"}"#).is_err());
    }

    #[test]
    fn tags_follow_the_destination_in_the_text() {
        let tags = Tags::new(["shop:7", "a"]).unwrap();
        let alone = Headers::default().with_tags(tags.clone());
        assert_eq!(alone.to_text(), r#"{":tags":"a shop:7"}"#);
        let path = Destination::from_path("/a").unwrap();
        let all = Headers::parse(r##"{"#a": "1"}"##).unwrap().with_destination(Some(path)).with_tags(tags);
        assert_eq!(all.to_text(), r##"{":path":"/a",":tags":"a shop:7","#a":"1"}"##);
        assert_eq!(all.only_tags_and_links(), alone);
        for headers in [alone, all] {
            assert!(!headers.is_empty());
            assert_eq!(Headers::trusted(&headers.to_text()), headers);
        }
    }

    #[test]
    fn what_is_no_header_or_not_free_is_refused_by_name() {
        let long = format!(r#"{{"a": "{}"}}"#, "x".repeat(4096));
        let many = (0..33).map(|n| format!("\"a{n}\": \"\"")).collect::<Vec<_>>().join(",");
        let many = format!("{{{many}}}");
        for (json, word) in [
            ("[]", "not an object"),
            ("7", "not an object"),
            (r#"{"a": 1}"#, "not an object"),
            (r#"{"": "x"}"#, "not a valid name"),
            (r#"{"a b": "x"}"#, "a b"),
            (r#"{"中": "x"}"#, "中"),
            (r#"{"a": "中"}"#, "visible"),
            (r#"{"a": "x\ny"}"#, "visible"),
            (r#"{"a": " x"}"#, "space"),
            (r#"{"Host": "x"}"#, "Host"),
            (r#"{"Transfer-Encoding": "chunked"}"#, "Transfer-Encoding"),
            (r#"{"dq-topic": "x"}"#, "dq-topic"),
            (r#"{"Webhook-Signature": "x"}"#, "Webhook-Signature"),
            (r#"{"x-a": "1", "X-A": "2"}"#, "twice"),
            (r#"{"traceparent": "x"}"#, "traceparent"),
            (&long, "bytes"),
            (&many, "32"),
        ] {
            let why = Headers::parse(json).expect_err(json).to_string();
            assert!(why.contains(word), "{json}: {why}");
        }
    }

    #[test]
    fn a_traceparent_is_as_w3c_has_it() {
        let of = |value: &str| is_traceparent(value);
        let good = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        assert!(of(good) && of(&good.replacen("00", "01", 1)) && of(&format!("cc{}-more", &good[2..])));
        for bad in [
            &good[1..],
            &good.to_uppercase(),
            &good.replacen("00", "ff", 1),
            &format!("{good}-more"),
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
        ] {
            assert!(!of(bad), "{bad}");
        }
    }
}
