//! A topic as clients send it to the API: its settings in their written forms. Each setting is read separately, so that
//! a problem can name the setting.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::input::{short, wrong};
use super::problem::Problem;
use super::typed_body::without_place;
use model::job::TopicName;
use model::strict_json::{StrictValue, UniqueFields};
use model::topic::{InvalidTopic, Topic};

/// The fields of an object, as they were sent.
pub(super) struct RawFields<'a>(BTreeMap<String, &'a RawValue>);

impl<'a> RawFields<'a> {
    pub(super) fn read(json: &'a [u8], known: &[&str]) -> Result<RawFields<'a>, Problem> {
        let UniqueFields(fields) = serde_json::from_slice(json).map_err(Problem::bad_json)?;
        match fields.keys().find(|name| !known.contains(&name.as_str())) {
            Some(name) => Err(Problem::unknown_field(&short(name), known)),
            None => Ok(RawFields(fields)),
        }
    }

    /// The names of the fields that were sent.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    /// Returns a field as it was sent. A null is a value.
    pub(super) fn raw(&self, name: &str) -> Option<&'a RawValue> {
        self.0.get(name).copied()
    }

    /// Returns a field. A null counts as missing.
    pub(super) fn get(&self, name: &str) -> Option<&'a RawValue> {
        self.raw(name).filter(|value| value.get() != "null")
    }

    /// Returns a field of a type, or the type's default if the field is missing. `wanted` names the valid values for
    /// the error.
    pub(super) fn plain<T: Default + Deserialize<'a>>(&self, name: &str, wanted: &str) -> Result<T, Problem> {
        let parse = |raw: &'a RawValue| serde_json::from_str(raw.get()).map_err(|_| wrong(name, raw, wanted));
        self.get(name).map_or_else(|| Ok(T::default()), parse)
    }
}

/// The settings of a topic in a request. A setting that the request does not name stays as it is, or gets its default.
pub(super) struct TopicFields<'a>(RawFields<'a>);

impl<'a> TopicFields<'a> {
    pub(super) fn read(json: &'a [u8]) -> Result<TopicFields<'a>, Problem> {
        let settings = Topic::SETTINGS.iter().map(|setting| setting.name);
        let known: Vec<&str> = std::iter::once("name").chain(settings).collect();
        RawFields::read(json, &known).map(TopicFields)
    }

    /// Returns the name from the body or from the path. A name that differs from the name in the path is an error.
    pub(super) fn name(&self, of_path: Option<&TopicName>) -> Result<TopicName, Problem> {
        let given: Option<String> = self.0.plain("name", "a text")?;
        let given =
            given.map(|n| TopicName::new(&n).map_err(|e| Problem::invalid("name", &e))).transpose()?;
        match (given, of_path) {
            (Some(given), Some(path)) if given != *path => {
                let detail = format!("name is \"{given}\", and the path says \"{path}\": leave it out");
                Err(Problem::field("name", detail))
            }
            (Some(name), _) => Ok(name),
            (None, Some(path)) => Ok(path.clone()),
            (None, None) => Err(Problem::missing("name", "1 to 128 letters, digits, _ . -")),
        }
    }

    /// Returns the names of the fields that were sent.
    pub(super) fn names(&self) -> String {
        self.0.names().collect::<Vec<_>>().join(", ")
    }

    /// Returns the callback URL, if one was sent.
    pub(super) fn callback(&self) -> Result<Option<String>, Problem> {
        self.0.plain("callback", "a text")
    }

    /// Returns a new topic with these settings, checked by the rules of the configuration.
    pub(super) fn new_topic(&self, name: TopicName) -> Result<Topic, Problem> {
        let is_given = self.0.get("callback").is_some();
        self.topic(Topic::new(name, "")).map_err(|problem| match problem.named_field() {
            Some("callback") if !is_given => {
                Problem::missing("callback", "the http or https URL that dq calls")
            }
            _ => problem,
        })
    }

    /// Applies the settings to `topic`, and checks it by the rules of the configuration.
    pub(super) fn topic(&self, mut topic: Topic) -> Result<Topic, Problem> {
        let refused = |invalid: InvalidTopic| Problem::field(invalid.field, invalid.to_string());
        let mut given = Map::new();
        for setting in Topic::SETTINGS {
            let Some(raw) = self.0.raw(setting.name) else { continue };
            let StrictValue(value) = serde_json::from_str(raw.get()).map_err(|e| {
                match serde_json::from_str::<Value>(raw.get()) {
                    // The value is valid JSON, and only the strict reading refuses it. For valid JSON, the strict
                    // reading has only one rule: no object has a field twice. So the value has an object with a field
                    // that occurs twice.
                    Ok(_) => Problem::field(setting.name, format!("{}: {}", setting.name, without_place(&e))),
                    Err(_) => wrong(setting.name, raw, &setting.wanted()),
                }
            })?;
            setting.check_written(&value).map_err(refused)?;
            given.insert(setting.name.to_owned(), value);
        }
        topic.assign(&given).map_err(refused)?;
        topic.check().map_err(refused)?;
        Ok(topic)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::topic_shown::{TopicResponse, TopicSource};
    use super::*;
    use model::retry::Retry;
    use model::topic::TopicStatus;

    fn topic(json: &str, was: &Topic) -> Result<Topic, String> {
        let parts = TopicFields::read(json.as_bytes()).map_err(|p| p.detail)?;
        parts.topic(was.clone()).map_err(|p| p.detail)
    }

    #[test]
    fn a_patch_changes_what_it_gives_and_null_is_the_default() {
        let name = TopicName::new("t").unwrap();
        let was = Topic {
            delay: Duration::from_secs(5),
            secrets: vec!["long enough".into()],
            retry: Retry::List(vec![Duration::from_secs(1)]),
            status: TopicStatus::Offline,
            ..Topic::new(name, "http://h/")
        };
        assert_eq!(topic("{}", &was).unwrap(), was);
        let new = topic(r#"{"delay": null, "status": null, "timeout": 1.5, "retry": null}"#, &was).unwrap();
        let expected = Topic {
            delay: Duration::ZERO,
            status: TopicStatus::Online,
            timeout: Duration::from_millis(1500),
            retry: Retry::TwoNPlusOne,
            ..was.clone()
        };
        assert_eq!(new, expected);
        let changed = |json: &str, was: &Topic| topic(json, was).unwrap();
        let exponential = changed(r#"{"retry": "exponential", "retry_base": "2s", "retry_cap": "9s"}"#, &was);
        let [base, cap] = [2, 9].map(Duration::from_secs);
        let retry = Retry::Exponential;
        assert_eq!(exponential, Topic { retry, retry_base: base, retry_cap: cap, ..was.clone() });
        let named = Topic { retry: Retry::TwoNPlusOne, retry_base: base, ..was.clone() };
        assert_eq!(changed(r#"{"retry": "2n+1"}"#, &exponential), named);
        assert_eq!(changed(r#"{"retry": ["1s"]}"#, &exponential), was);
        for (json, word) in [
            (r#"{"retry_base": "1s"}"#, "retry_base"),
            (r#"{"retry": "2n+1", "retry_cap": "1s"}"#, "retry_cap"),
            (r#"{"retry": []}"#, "retry"),
            (r#"{"retry": "often"}"#, "retry"),
            (r#"{"retry": 3}"#, "retry"),
            (r#"{"title": "a\nb"}"#, "title"),
            (r#"{"headers": {"a b": "c"}}"#, "headers"),
            (r#"{"headers": {"a": "c\nd"}}"#, "headers"),
            (r#"{"max_attempts": 0}"#, "max_attempts"),
            (r#"{"mode": "poll"}"#, "mode"),
            (r#"{"keep_done_jobs": -1}"#, "keep_done_jobs"),
            (r#"{"method": "PUT"}"#, "method: \"PUT\""),
            (r#"{"secrets": 1}"#, "secrets"),
            (r#"{"source": "file"}"#, "source"),
        ] {
            let refused = topic(json, &was).unwrap_err();
            assert!(refused.contains(word), "{json}: {refused}");
        }
    }

    #[test]
    fn what_is_shown_can_be_given_again() {
        let name = TopicName::new("t").unwrap();
        let was = Topic {
            delay: Duration::from_secs(5400),
            retry: Retry::Exponential,
            retry_base: Duration::from_millis(1500),
            retry_cap: Duration::from_secs(90),
            ..Topic::new(name.clone(), "http://h/")
        };
        let mut shown = serde_json::to_value(TopicResponse::new(&was, TopicSource::Registry, None)).unwrap();
        for own in [
            "secrets",
            "source",
            "problem",
            "revision",
            "paused",
            "circuit",
            "circuit_until_ms",
            "circuit_reason",
        ] {
            shown.as_object_mut().unwrap().remove(own);
        }
        assert_eq!(topic(&shown.to_string(), &Topic::new(name, "")).unwrap(), was);
    }
}
