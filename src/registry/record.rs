//! The fields of a topic as they are stored in the databases and in the snapshot. Each release can read what another
//! one wrote: a missing field has its default, and an unknown field is kept.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use model::job::{Priority, TopicName};
use model::retry::RetryPolicy;
use model::topic::{
    CatchUp, Durability, Failure, InvalidTopic, Method, Mode, Payload, Rate, Status, Success, Topic,
};

/// All fields of a topic except its name.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Record {
    pub title: String,
    pub mode: Mode,
    pub callback: String,
    pub method: Method,
    pub payload: Payload,
    pub headers: BTreeMap<String, String>,
    pub delay_ms: u64,
    pub timeout_ms: u64,
    pub connect_timeout_ms: u64,
    pub success: Success,
    pub re_notify_flag: String,
    pub retry: Retry,
    pub retry_on: Vec<Failure>,
    pub max_attempts: u32,
    pub answer_later_ms: u64,
    pub max_in_flight: Option<u32>,
    pub rate: Option<Rate>,
    pub breaker_failures: u32,
    pub breaker_pause_ms: u64,
    pub catch_up: CatchUp,
    pub durability: Option<Durability>,
    pub priority: Priority,
    pub alert: Vec<String>,
    pub creator: String,
    pub status: Status,
    pub secrets: Vec<String>,
    pub keep_done_ms: u64,
    pub keep_dead_ms: u64,
}

/// A retry policy, as it is stored.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "policy")]
pub(super) enum Retry {
    #[serde(rename = "2n+1")]
    TwoNPlusOne { base_ms: u64 },
    #[serde(rename = "exponential")]
    Exponential { base_ms: u64, cap_ms: u64 },
    #[serde(rename = "list")]
    List { delays_ms: Vec<u64> },
}

impl Default for Record {
    fn default() -> Record {
        let name = TopicName::new("any").expect("it is a name");
        Record::of(&Topic::new(name, ""))
    }
}

impl Record {
    pub(super) fn of(topic: &Topic) -> Record {
        let topic = topic.clone();
        Record {
            title: topic.title,
            mode: topic.mode,
            callback: topic.callback,
            method: topic.method,
            payload: topic.payload,
            headers: topic.headers,
            delay_ms: ms(topic.delay),
            timeout_ms: ms(topic.timeout),
            connect_timeout_ms: ms(topic.connect_timeout),
            success: topic.success,
            re_notify_flag: topic.re_notify_flag,
            retry: match topic.retry {
                RetryPolicy::TwoNPlusOne { base } => Retry::TwoNPlusOne { base_ms: ms(base) },
                RetryPolicy::Exponential { base, cap } => {
                    Retry::Exponential { base_ms: ms(base), cap_ms: ms(cap) }
                }
                RetryPolicy::List(delays) => Retry::List { delays_ms: delays.into_iter().map(ms).collect() },
            },
            retry_on: topic.retry_on,
            max_attempts: topic.max_attempts,
            answer_later_ms: ms(topic.answer_later),
            max_in_flight: topic.max_in_flight,
            rate: topic.rate,
            breaker_failures: topic.breaker_failures,
            breaker_pause_ms: ms(topic.breaker_pause),
            catch_up: topic.catch_up,
            durability: topic.durability,
            priority: topic.priority,
            alert: topic.alert,
            creator: topic.creator,
            status: topic.status,
            secrets: topic.secrets,
            keep_done_ms: ms(topic.keep_done),
            keep_dead_ms: ms(topic.keep_dead),
        }
    }

    /// Returns the topic, if its values are valid. A flaw with which it can still be registered (`Topic::flaws`) is no
    /// error.
    pub(super) fn into_topic(self, name: TopicName) -> Result<Topic, InvalidTopic> {
        let span = Duration::from_millis;
        let topic = Topic {
            name,
            title: self.title,
            mode: self.mode,
            callback: self.callback,
            method: self.method,
            payload: self.payload,
            headers: self.headers,
            delay: span(self.delay_ms),
            timeout: span(self.timeout_ms),
            connect_timeout: span(self.connect_timeout_ms),
            success: self.success,
            re_notify_flag: self.re_notify_flag,
            retry: match self.retry {
                Retry::TwoNPlusOne { base_ms } => RetryPolicy::TwoNPlusOne { base: span(base_ms) },
                Retry::Exponential { base_ms, cap_ms } => {
                    RetryPolicy::Exponential { base: span(base_ms), cap: span(cap_ms) }
                }
                Retry::List { delays_ms } => RetryPolicy::List(delays_ms.into_iter().map(span).collect()),
            },
            retry_on: self.retry_on,
            max_attempts: self.max_attempts,
            answer_later: span(self.answer_later_ms),
            max_in_flight: self.max_in_flight,
            rate: self.rate,
            breaker_failures: self.breaker_failures,
            breaker_pause: span(self.breaker_pause_ms),
            catch_up: self.catch_up,
            durability: self.durability,
            priority: self.priority,
            alert: self.alert,
            creator: self.creator,
            status: self.status,
            secrets: self.secrets,
            keep_done: span(self.keep_done_ms),
            keep_dead: span(self.keep_dead_ms),
        };
        topic.check_values()?;
        Ok(topic)
    }

    /// Returns the record as JSON, without the fields in `left_out`. Fields of `before` that this release does not know
    /// are kept.
    pub(super) fn over(&self, before: Option<&str>, left_out: &[&str]) -> String {
        let before = before.and_then(|text| serde_json::from_str::<Map<String, Value>>(text).ok());
        let mut all = before.unwrap_or_default();
        if let Ok(Value::Object(own)) = serde_json::to_value(self) {
            all.extend(own);
        }
        all.retain(|key, _| !left_out.contains(&key.as_str()));
        Value::Object(all).to_string()
    }
}

/// Converts a span to whole milliseconds, rounded up.
fn ms(span: Duration) -> u64 {
    u64::try_from(span.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_topic_survives_storage_and_unknown_fields_are_kept() {
        let name = TopicName::new("orders").unwrap();
        let mut topic = Topic::new(name.clone(), "http://h/hook");
        topic.retry = RetryPolicy::List(vec![Duration::from_secs(1), Duration::from_millis(2500)]);
        topic.headers.insert("x-shop".into(), "7".into());
        topic.max_in_flight = Some(3);
        topic.durability = Some(Durability::Replicas(2));
        let record = Record::of(&topic);
        let text = record.over(Some(r#"{"of_later":{"a":1},"title":"old","rate":5}"#), &[]);
        assert_eq!(serde_json::from_str::<Value>(&text).unwrap()["of_later"]["a"], 1);
        let read: Record = serde_json::from_str(&text).unwrap();
        assert_eq!(read.into_topic(name.clone()).unwrap(), topic);
        let least: Record = serde_json::from_str(r#"{"callback":"http://h/hook"}"#).unwrap();
        assert_eq!(least.into_topic(name.clone()).unwrap(), Topic::new(name.clone(), "http://h/hook"));
        let bad: Record = serde_json::from_str(r#"{"callback":"nowhere"}"#).unwrap();
        assert_eq!(bad.into_topic(name).unwrap_err().field, "callback");
    }
}
