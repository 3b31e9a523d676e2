//! What a job consists of: its topic's name, its id, body, state, priority and due time. Pure: no I/O, no clock.
//!
//! A moment is an `i64` in Unix milliseconds, and its name ends in `_ms`. A span is a [`Duration`].

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

/// The latest due time that dq accepts: the end of the year 9999.
pub const LATEST_MS: i64 = 253_402_300_799_999;

/// The longest topic name, in bytes.
pub const TOPIC_MAX: usize = 128;

/// The longest job id, in bytes.
pub const ID_MAX: usize = 256;

/// Why a topic's name, an id or a body was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidJobPart {
    /// A topic's name that is empty, is longer than 128 bytes, or has a character that is not allowed.
    #[error("topic {0:?} is not 1 to {TOPIC_MAX} letters, digits, `_`, `.` or `-`")]
    Topic(String),
    /// An id that is empty or too long. Holds its length in bytes.
    #[error("an id has 1 to {ID_MAX} bytes, and this one has {0}")]
    Id(usize),
    /// A body that is not JSON.
    #[error("the body is not JSON: {0}")]
    Body(String),
}

/// The name of a topic: 1 to 128 letters, digits, `_`, `.` or `-`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct TopicName(Arc<str>);

impl TopicName {
    /// Checks a text and makes a name from it.
    pub fn new(name: &str) -> Result<TopicName, InvalidJobPart> {
        let allowed = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'.' | b'-');
        if name.is_empty() || name.len() > TOPIC_MAX || !name.bytes().all(allowed) {
            return Err(InvalidJobPart::Topic(name.chars().take(TOPIC_MAX).collect()));
        }
        Ok(TopicName(name.into()))
    }

    /// Returns the name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for TopicName {
    type Error = InvalidJobPart;
    fn try_from(name: String) -> Result<TopicName, InvalidJobPart> {
        TopicName::new(&name)
    }
}

impl From<TopicName> for String {
    fn from(name: TopicName) -> String {
        name.0.as_ref().to_owned()
    }
}

impl std::borrow::Borrow<str> for TopicName {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for TopicName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The client's id of a job, unique in its topic: any text of 1 to 256 bytes.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct JobId(Box<str>);

impl JobId {
    /// Checks a text and makes an id from it.
    pub fn new(id: impl Into<Box<str>>) -> Result<JobId, InvalidJobPart> {
        let id = id.into();
        if id.is_empty() || id.len() > ID_MAX {
            return Err(InvalidJobPart::Id(id.len()));
        }
        Ok(JobId(id))
    }

    /// Returns the id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What identifies a job: its topic and its id.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct JobKey {
    /// The topic.
    pub topic: TopicName,
    /// The client's id.
    pub id: JobId,
}

impl fmt::Display for JobKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.topic, self.id)
    }
}

/// A job's body: any JSON value, kept as the text that the client sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Body(Box<str>);

impl Body {
    /// Checks that `text` is one JSON value, and makes a body from it.
    pub fn parse(text: &str) -> Result<Body, InvalidJobPart> {
        match serde_json::from_str::<&RawValue>(text) {
            Ok(raw) => Ok(Body::from(raw)),
            Err(e) => Err(InvalidJobPart::Body(e.to_string())),
        }
    }

    /// Makes a body from the text that a store kept. The text was checked when the job was added.
    pub fn trusted(text: impl Into<Box<str>>) -> Body {
        Body(text.into())
    }

    /// Returns the JSON text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<&RawValue> for Body {
    fn from(raw: &RawValue) -> Body {
        Body(raw.get().into())
    }
}

/// When a job is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Due {
    /// The job is due when this span has passed since the add or the change, by the store's clock.
    In(Duration),
    /// The job is due at this moment, in Unix milliseconds. If the moment is past, the job is due now.
    At(i64),
}

impl Due {
    /// Returns the due time in Unix milliseconds, if the shard's clock shows `now_ns` (Unix nanoseconds). A relative
    /// due time counts from the next whole millisecond, so that no job is early.
    pub fn resolve(self, now_ns: i128) -> i64 {
        let at = match self {
            Due::At(at_ms) => i128::from(at_ms),
            Due::In(span) => {
                let ceil_ms = (now_ns + 999_999).div_euclid(1_000_000);
                let span_ms = span.as_nanos().div_ceil(1_000_000);
                ceil_ms.saturating_add(i128::try_from(span_ms).unwrap_or(i128::MAX))
            }
        };
        i64::try_from(at.clamp(0, i128::from(LATEST_MS))).unwrap_or(LATEST_MS)
    }
}

/// The three levels of priority, for topics and for jobs without a priority number
/// ([`JobPriority`](crate::job_priority::JobPriority)).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Priority {
    /// Served before the other levels.
    High = 1,
    /// The default.
    #[default]
    Normal = 2,
    /// Served after the other levels.
    Low = 3,
}

impl Priority {
    /// Returns the priority that has this number in a store or in the PHP daemon's tables.
    pub fn from_number(n: i64) -> Option<Priority> {
        match n {
            1 => Some(Priority::High),
            2 => Some(Priority::Normal),
            3 => Some(Priority::Low),
            _ => None,
        }
    }
}

/// What an add does when there is already a job with the same id. Dead letters do not count.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnConflict {
    /// The new job replaces the old one, and its attempts are counted from 0 again.
    #[default]
    Replace,
    /// The add fails.
    Reject,
    /// The add succeeds and changes nothing.
    Keep,
}

/// The state of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// Waits for its due time.
    Delayed = 1,
    /// May be leased.
    Ready = 2,
    /// Leased to a consumer until a deadline.
    Leased = 3,
    /// A dead letter: it used up its attempts, or was refused for good.
    Dead = 4,
}

impl State {
    /// All states, in the order of a job's life.
    pub const ALL: [State; 4] = [State::Delayed, State::Ready, State::Leased, State::Dead];

    /// Returns the state that has this number in a store.
    pub fn from_number(n: i64) -> Option<State> {
        State::ALL.into_iter().find(|s| *s as i64 == n)
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            State::Delayed => "delayed",
            State::Ready => "ready",
            State::Leased => "leased",
            State::Dead => "dead",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_topic_name_is_checked() {
        for good in ["a", "order_openvip.checker-2", &"x".repeat(128)] {
            assert!(TopicName::new(good).is_ok(), "{good}");
        }
        for bad in ["", "a b", "中", "a:b", "a/b", &"x".repeat(129)] {
            assert!(TopicName::new(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn an_id_is_any_text_up_to_its_limit() {
        assert!(JobId::new("a:b/c 中").is_ok());
        assert_eq!(JobId::new(""), Err(InvalidJobPart::Id(0)));
        assert_eq!(JobId::new("x".repeat(257)), Err(InvalidJobPart::Id(257)));
    }

    #[test]
    fn a_relative_due_is_never_early() {
        let now_ns = 1_000_000_000_000_000_001;
        assert_eq!(Due::In(Duration::ZERO).resolve(now_ns), 1_000_000_000_001);
        assert_eq!(Due::In(Duration::from_micros(1)).resolve(now_ns), 1_000_000_000_002);
        assert_eq!(Due::In(Duration::MAX).resolve(now_ns), LATEST_MS);
        assert_eq!(Due::At(-5).resolve(now_ns), 0);
    }

    #[test]
    fn a_body_is_one_json_value() {
        assert_eq!(Body::parse(" {\"a\": 1} ").unwrap().as_str(), "{\"a\": 1}");
        assert!(Body::parse("{").is_err());
        assert!(Body::parse("1 2").is_err());
    }
}
