//! The settings of a topic as they are stored in the databases and in the snapshot. Each release can read what another
//! release wrote: a missing setting has its default, and an unknown setting is kept.
//!
//! A setting is stored as it is written in the configuration, with three exceptions: a span is a whole number of
//! milliseconds under a name that ends in `_ms`, the retry policy is one object, and a rate per second is a number. dq
//! keeps these three forms, because older releases read them.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use model::job::TopicName;
use model::retry::Retry;
use model::topic::{InvalidTopic, Setting, SettingKind, Topic};

/// A retry policy, as it is stored.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "policy")]
enum StoredRetry {
    #[serde(rename = "2n+1")]
    TwoNPlusOne { base_ms: u64 },
    #[serde(rename = "exponential")]
    Exponential { base_ms: u64, cap_ms: u64 },
    #[serde(rename = "list")]
    List { delays_ms: Vec<u64> },
}

/// The settings that are parts of the stored retry policy.
const RETRY_PARTS: [&str; 2] = ["retry_base", "retry_cap"];

/// Returns all settings of a topic as they are stored.
pub(super) fn stored(topic: &Topic) -> Map<String, Value> {
    let one = |setting: &Setting| {
        let value = setting.value(topic);
        match (setting.kind, setting.span(topic)) {
            _ if RETRY_PARTS.contains(&setting.name) => None,
            (SettingKind::Retry, _) => Some((setting.name.to_owned(), json!(retry_record(topic)))),
            (_, Some(span)) => Some((format!("{}_ms", setting.name), json!(ms(span)))),
            (SettingKind::Rate { .. }, _) => Some((setting.name.to_owned(), rate(value))),
            _ => Some((setting.name.to_owned(), value)),
        }
    };
    Topic::SETTINGS.iter().filter_map(one).collect()
}

/// Returns the stored settings as JSON, without the fields in `left_out`. Fields of `before` that this release does not
/// know are kept.
pub(super) fn stored_over(topic: &Topic, before: Option<&str>, left_out: &[&str]) -> String {
    let before = before.and_then(|text| serde_json::from_str::<Map<String, Value>>(text).ok());
    let mut all = before.unwrap_or_default();
    all.extend(stored(topic));
    all.retain(|key, _| !left_out.contains(&key.as_str()));
    Value::Object(all).to_string()
}

/// Returns whether stored settings have a value of that name.
pub(super) fn says(stored: &str, name: &str) -> bool {
    serde_json::from_str::<Map<String, Value>>(stored).is_ok_and(|all| all.contains_key(name))
}

/// Returns the topic of that name as it is stored. Its values are checked, except for the mistakes that a registered
/// topic may have ([`Topic::flaws`]).
pub(super) fn topic(name: TopicName, record: &Map<String, Value>) -> Result<Topic, InvalidTopic> {
    let mut topic = Topic::new(name, "");
    apply(record, &mut topic)?;
    topic.check_values()?;
    Ok(topic)
}

/// Copies the stored settings to a topic. The values are not checked ([`Topic::check_values`]).
pub(super) fn apply(record: &Map<String, Value>, topic: &mut Topic) -> Result<(), InvalidTopic> {
    let mut written = Map::new();
    for setting in Topic::SETTINGS {
        let is_span = matches!(setting.kind, SettingKind::Span { .. });
        let name = if is_span { format!("{}_ms", setting.name) } else { setting.name.to_owned() };
        let Some(value) = record.get(&name) else { continue };
        let wrong =
            |problem: String| InvalidTopic { field: setting.name, problem: format!("{value} {problem}") };
        match setting.kind {
            SettingKind::Retry => {
                let retry = Deserialize::deserialize(value);
                written.extend(retry_settings(retry.map_err(|e| wrong(format!("is no retry policy: {e}")))?));
            }
            SettingKind::Span { .. } => {
                let ms = value.as_u64().ok_or_else(|| wrong("is not a number of milliseconds".to_owned()))?;
                written.insert(setting.name.to_owned(), span(ms));
            }
            _ => {
                written.insert(setting.name.to_owned(), value.clone());
            }
        }
    }
    topic.assign(&written)
}

fn retry_record(topic: &Topic) -> StoredRetry {
    let (base_ms, cap_ms) = (ms(topic.retry_base), ms(topic.retry_cap));
    match &topic.retry {
        Retry::TwoNPlusOne => StoredRetry::TwoNPlusOne { base_ms },
        Retry::Exponential => StoredRetry::Exponential { base_ms, cap_ms },
        Retry::List(delays) => StoredRetry::List { delays_ms: delays.iter().copied().map(ms).collect() },
    }
}

fn retry_settings(record: StoredRetry) -> Map<String, Value> {
    let named = |settings: &[(&str, Value)]| {
        settings.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect()
    };
    match record {
        StoredRetry::TwoNPlusOne { base_ms } => {
            named(&[("retry", json!("2n+1")), ("retry_base", span(base_ms))])
        }
        StoredRetry::Exponential { base_ms, cap_ms } => named(&[
            ("retry", json!("exponential")),
            ("retry_base", span(base_ms)),
            ("retry_cap", span(cap_ms)),
        ]),
        StoredRetry::List { delays_ms } => named(&[("retry", delays_ms.into_iter().map(span).collect())]),
    }
}

/// Returns a rate as it is stored: `"100/s"` as 100.
fn rate(written: Value) -> Value {
    let seconds = written.as_str().and_then(|text| text.strip_suffix("/s")?.parse::<u32>().ok());
    seconds.map_or(written, Value::from)
}

/// Returns the written form of a span in milliseconds.
fn span(ms: u64) -> Value {
    format!("{ms}ms").into()
}

/// Converts a span to whole milliseconds, rounded up.
pub(super) fn ms(span: Duration) -> u64 {
    u64::try_from(span.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::topic::{Durability, Rate};

    fn orders() -> Topic {
        Topic::new(TopicName::new("orders").unwrap(), "http://h/hook")
    }

    fn read(text: &str) -> Result<Topic, InvalidTopic> {
        topic(orders().name, &serde_json::from_str(text).unwrap())
    }

    #[test]
    fn a_topic_survives_storage_and_unknown_fields_are_kept() {
        let mut topic = orders();
        topic.headers.insert("x-shop".into(), "7".into());
        topic.max_in_flight = Some(3);
        topic.rate = Some(Rate::per_second(7));
        topic.durability = Some(Durability::Replicas(2));
        let second = Duration::from_secs(1);
        for (retry, retry_base, retry_cap) in [
            (Retry::List(vec![second, Duration::from_millis(2500)]), topic.retry_base, topic.retry_cap),
            (Retry::TwoNPlusOne, second, topic.retry_cap),
            (Retry::Exponential, second, 9 * second),
        ] {
            let topic = Topic { retry, retry_base, retry_cap, ..topic.clone() };
            let text = stored_over(&topic, Some(r#"{"of_later":{"a":1},"title":"old","rate":5}"#), &[]);
            let value: Value = serde_json::from_str(&text).unwrap();
            assert_eq!((&value["of_later"]["a"], &value["rate"]), (&json!(1), &json!(7)));
            assert_eq!(read(&text).unwrap(), topic);
        }
        assert_eq!(read(r#"{"callback":"http://h/hook"}"#).unwrap(), orders());
        assert_eq!(read(r#"{"callback":"nowhere"}"#).unwrap_err().field, "callback");
        for bad in [r#"{"delay_ms":1.5}"#, r#"{"delay_ms":"1s"}"#, r#"{"retry":{"policy":"often"}}"#] {
            assert!(read(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn the_stored_form_is_the_one_of_earlier_releases() {
        let expected = json!({
            "title": "", "mode": "push", "callback": "http://h/hook", "method": "POST", "payload": "json",
            "headers": {}, "job_headers": [], "job_hosts": [], "delay_ms": 0, "timeout_ms": 3000, "connect_timeout_ms": 1000, "tls_verify": true, "success": "status",
            "re_notify_flag": "", "max_notifications": null, "retry": {"policy": "2n+1", "base_ms": 60000}, "retry_on": [],
            "max_attempts": 10, "answer_later_ms": 0, "ttr_ms": 60000, "on_reserve": "lease", "retried_first": false, "expire_after_ms": 0, "max_in_flight": null, "rate": null,
            "max_pending": null, "max_bytes": null, "add_rate": null, "breaker_failures": 20, "breaker_pause_ms": 10000, "catch_up": "all", "durability": null,
            "priority": "normal", "tenant": "", "alert": [], "creator": "", "status": "online", "secrets": [],
            "old_secrets_until": null,
            "keep_done_ms": 86400000, "keep_done_jobs": 100000, "keep_done_body": false, "on_done": "", "on_done_answer": false, "keep_dead_ms": 0,
        });
        assert_eq!(Value::Object(stored(&orders())), expected);
    }
}
