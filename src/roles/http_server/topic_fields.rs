//! A topic as clients send it to the API: the fields of `[[topic]]`. Each is checked by itself, so that a problem can
//! name it.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde_json::value::RawValue;

use super::input::{Fields, wrong};
use super::problem::Problem;
use super::topic_shown::{Retry, text};
use model::job::{Priority, TopicName};
use model::json_time;
use model::retry::RetryPolicy;
use model::topic::{Failure, Success, Topic};

/// The fields that a client may send.
const GIVEN: &[&str] = &[
    "name",
    "title",
    "mode",
    "callback",
    "method",
    "payload",
    "headers",
    "delay",
    "timeout",
    "connect_timeout",
    "success",
    "re_notify_flag",
    "retry",
    "retry_base",
    "retry_cap",
    "retry_on",
    "max_attempts",
    "answer_later",
    "max_in_flight",
    "rate",
    "breaker_failures",
    "breaker_pause",
    "catch_up",
    "durability",
    "priority",
    "alert",
    "creator",
    "status",
    "secrets",
    "keep_done",
    "keep_dead",
];

/// The longest texts, in bytes. Every registry can keep as much.
const TEXT_MAX: usize = 255;
const URL_MAX: usize = 1024;

/// The most entries of a list: headers, addresses, secrets.
const LIST_MAX: usize = 32;

/// The valid values, as messages name them.
const RATE: &str = "a rate such as \"100/s\", \"30/m\", \"500/h\", or null";
const CATCH_UP: &str = "\"all\", \"spread 10m\" or \"skip older than 1h\"";
const DURABILITY: &str = "\"memory\", \"fsync\", \"replicas:1\", or null";
const RETRY_ON: &str =
    "a list of \"connect\", \"timeout\", \"broken\", \"answer\", of statuses such as \"503\" and of \"5xx\"";

/// The fields of a topic in a request. What they do not name stays, or has its default.
pub(super) struct TopicPatch<'a>(Fields<'a>);

impl<'a> TopicPatch<'a> {
    pub(super) fn of(json: &'a [u8]) -> Result<TopicPatch<'a>, Problem> {
        Fields::of(json, GIVEN).map(TopicPatch)
    }

    /// Returns the name from the body or from the path. A name that differs from the path's is an error.
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

    /// Reads a field. A missing field keeps `was`, a null means `default`.
    fn value<T>(
        &self,
        field: &str,
        was: T,
        default: T,
        read: impl FnOnce(&'a RawValue) -> Result<T, Problem>,
    ) -> Result<T, Problem> {
        match self.0.raw(field) {
            None => Ok(was),
            Some(raw) if raw.get() == "null" => Ok(default),
            Some(raw) => read(raw),
        }
    }

    fn plain<T: DeserializeOwned>(
        &self,
        field: &str,
        was: T,
        default: T,
        wanted: &str,
    ) -> Result<T, Problem> {
        let read = |raw: &RawValue| serde_json::from_str(raw.get()).map_err(|_| wrong(field, raw, wanted));
        self.value(field, was, default, read)
    }

    fn text(&self, field: &str, was: String, most: usize) -> Result<String, Problem> {
        let text = self.plain(field, was, String::new(), "a text")?;
        check_text(field, &text, most)?;
        Ok(text)
    }

    fn list(&self, field: &str, was: Vec<String>) -> Result<Vec<String>, Problem> {
        let list = self.plain(field, was, Vec::new(), "a list of texts")?;
        if list.len() > LIST_MAX {
            return Err(Problem::field(
                field,
                format!("{field} holds {}, which is more than {LIST_MAX}", list.len()),
            ));
        }
        list.iter().try_for_each(|text| check_text(field, text, TEXT_MAX))?;
        Ok(list)
    }

    fn span(&self, field: &str, was: Duration, default: Duration) -> Result<Duration, Problem> {
        self.value(field, was, default, |raw| {
            json_time::duration(raw).ok_or_else(|| wrong(field, raw, json_time::DURATION))
        })
    }

    fn success(&self, was: Success) -> Result<Success, Problem> {
        let wanted = "\"status\", \"non_empty\" or an expression such as \"{res.code} == 0\"";
        let success = self.plain("success", was, Success::Status, wanted)?;
        if let Success::When(expression) = &success {
            check_text("success", expression, TEXT_MAX)?;
        }
        Ok(success)
    }

    fn retry_on(&self, was: Vec<Failure>) -> Result<Vec<Failure>, Problem> {
        let failures = self.plain("retry_on", was, Vec::new(), RETRY_ON)?;
        if failures.len() > LIST_MAX {
            return Err(Problem::field("retry_on", format!("retry_on holds more than {LIST_MAX}")));
        }
        Ok(failures)
    }

    fn headers(&self, was: BTreeMap<String, String>) -> Result<BTreeMap<String, String>, Problem> {
        let headers = self.plain("headers", was, BTreeMap::new(), "an object of texts")?;
        if headers.len() > LIST_MAX {
            return Err(Problem::field("headers", format!("headers holds more than {LIST_MAX}")));
        }
        // The check of the whole topic covers their names and values. Here only the length counts.
        if let Some(name) = headers.iter().find(|(_, v)| v.len() > URL_MAX).map(|(name, _)| name) {
            let detail = format!("headers: the value of {name:?} is longer than {URL_MAX} bytes");
            return Err(Problem::field("headers", detail));
        }
        Ok(headers)
    }

    fn retry(&self, was: RetryPolicy) -> Result<RetryPolicy, Problem> {
        let default = || (Retry::Name("2n+1".to_owned()), Duration::from_secs(60), Duration::from_secs(3600));
        let (kind, base, cap) = match &was {
            RetryPolicy::TwoNPlusOne { base } => (Retry::Name("2n+1".into()), *base, default().2),
            RetryPolicy::Exponential { base, cap } => (Retry::Name("exponential".into()), *base, *cap),
            RetryPolicy::List(list) => {
                (Retry::List(list.iter().copied().map(text).collect()), default().1, default().2)
            }
        };
        let wanted = "\"2n+1\", \"exponential\" or a list of durations such as [\"1m\", \"5m\"]";
        let none = |field: &str, beside: &str| match self.0.get(field) {
            Some(_) => {
                Err(Problem::field(field, format!("{field} has no effect with {beside}: leave it out")))
            }
            None => Ok(()),
        };
        let raw = self.0.get("retry");
        let given = raw.filter(|raw| raw.get().starts_with('['));
        let listed = given.is_some()
            || raw.is_none() && matches!(kind, Retry::List(_)) && self.0.raw("retry").is_none();
        if listed {
            none("retry_base", "a list")?;
            none("retry_cap", "a list")?;
            let Some(raw) = given else { return Ok(was) };
            let delays: Vec<&RawValue> =
                serde_json::from_str(raw.get()).map_err(|_| wrong("retry", raw, wanted))?;
            if delays.len() > LIST_MAX {
                return Err(Problem::field("retry", format!("retry lists more than {LIST_MAX} delays")));
            }
            let delays = delays
                .into_iter()
                .map(|d| json_time::duration(d).ok_or_else(|| wrong("retry", d, json_time::DURATION)));
            return Ok(RetryPolicy::List(delays.collect::<Result<_, _>>()?));
        }
        let name = match kind {
            Retry::Name(name) => name,
            Retry::List(_) => "2n+1".to_owned(),
        };
        let name = self.plain("retry", name, "2n+1".to_owned(), wanted)?;
        let base = self.span("retry_base", base, default().1)?;
        let cap = self.span("retry_cap", cap, default().2)?;
        match name.as_str() {
            "2n+1" => {
                none("retry_cap", "\"2n+1\"")?;
                Ok(RetryPolicy::TwoNPlusOne { base })
            }
            "exponential" => Ok(RetryPolicy::Exponential { base, cap }),
            _ => {
                Err(raw.map_or_else(|| Problem::missing("retry", wanted), |raw| wrong("retry", raw, wanted)))
            }
        }
    }

    /// Applies the fields to `was`, and checks the topic by the rules of the configuration.
    pub(super) fn topic(&self, was: Topic) -> Result<Topic, Problem> {
        let new = Topic::new(was.name.clone(), "");
        let topic = Topic {
            title: self.text("title", was.title, TEXT_MAX)?,
            mode: self.plain("mode", was.mode, new.mode, "\"push\"")?,
            callback: self.text("callback", was.callback, URL_MAX)?,
            method: self.plain("method", was.method, new.method, "\"POST\" or \"GET\"")?,
            payload: self.plain("payload", was.payload, new.payload, "\"json\" or \"form\"")?,
            headers: self.headers(was.headers)?,
            delay: self.span("delay", was.delay, new.delay)?,
            timeout: self.span("timeout", was.timeout, new.timeout)?,
            connect_timeout: self.span("connect_timeout", was.connect_timeout, new.connect_timeout)?,
            success: self.success(was.success)?,
            re_notify_flag: self.text("re_notify_flag", was.re_notify_flag, TEXT_MAX)?,
            retry: self.retry(was.retry)?,
            retry_on: self.retry_on(was.retry_on)?,
            max_attempts: self.plain("max_attempts", was.max_attempts, new.max_attempts, "a whole number")?,
            answer_later: self.span("answer_later", was.answer_later, new.answer_later)?,
            max_in_flight: self.plain("max_in_flight", was.max_in_flight, None, "a whole number, or null")?,
            rate: self.plain("rate", was.rate, None, RATE)?,
            breaker_failures: self.plain(
                "breaker_failures",
                was.breaker_failures,
                new.breaker_failures,
                "a whole number",
            )?,
            breaker_pause: self.span("breaker_pause", was.breaker_pause, new.breaker_pause)?,
            catch_up: self.plain("catch_up", was.catch_up, new.catch_up, CATCH_UP)?,
            durability: self.plain("durability", was.durability, None, DURABILITY)?,
            priority: self.plain(
                "priority",
                was.priority,
                Priority::Normal,
                "\"high\", \"normal\" or \"low\"",
            )?,
            alert: self.list("alert", was.alert)?,
            creator: self.text("creator", was.creator, TEXT_MAX)?,
            status: self.plain("status", was.status, new.status, "\"online\" or \"offline\"")?,
            secrets: self.list("secrets", was.secrets)?,
            keep_done: self.span("keep_done", was.keep_done, new.keep_done)?,
            keep_dead: self.span("keep_dead", was.keep_dead, new.keep_dead)?,
            name: new.name,
        };
        topic.check().map_err(|unfit| Problem::field(unfit.field, unfit.to_string()))?;
        Ok(topic)
    }
}

/// Checks that every registry can keep a text unchanged: its length, and that it holds no control character.
fn check_text(field: &str, text: &str, most: usize) -> Result<(), Problem> {
    if text.len() > most {
        return Err(Problem::field(
            field,
            format!("{field} is {} bytes long, which is more than {most}", text.len()),
        ));
    }
    match text.chars().find(|c| c.is_control()) {
        Some(c) => Err(Problem::field(field, format!("{field} holds the control character {c:?}"))),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::topic_shown::{Source, TopicResponse};
    use super::*;
    use model::topic::Status;

    fn topic(json: &str, was: &Topic) -> Result<Topic, String> {
        let parts = TopicPatch::of(json.as_bytes()).map_err(|p| p.detail)?;
        parts.topic(was.clone()).map_err(|p| p.detail)
    }

    #[test]
    fn a_patch_changes_what_it_gives_and_null_is_the_default() {
        let name = TopicName::new("t").unwrap();
        let was = Topic {
            delay: Duration::from_secs(5),
            secrets: vec!["long enough".into()],
            retry: RetryPolicy::List(vec![Duration::from_secs(1)]),
            status: Status::Offline,
            ..Topic::new(name, "http://h/")
        };
        assert_eq!(topic("{}", &was).unwrap(), was);
        let new = topic(r#"{"delay": null, "status": null, "timeout": 1.5, "retry": null}"#, &was).unwrap();
        let expected = Topic {
            delay: Duration::ZERO,
            status: Status::Online,
            timeout: Duration::from_millis(1500),
            retry: RetryPolicy::default(),
            ..was.clone()
        };
        assert_eq!(new, expected);
        let policy = |json: &str, was: &Topic| topic(json, was).unwrap().retry;
        let exponential = policy(r#"{"retry": "exponential", "retry_base": "2s"}"#, &was);
        let base = Duration::from_secs(2);
        assert_eq!(exponential, RetryPolicy::Exponential { base, cap: Duration::from_secs(3600) });
        let was_exponential = Topic { retry: exponential, ..was.clone() };
        assert_eq!(policy(r#"{"retry": "2n+1"}"#, &was_exponential), RetryPolicy::TwoNPlusOne { base });
        assert_eq!(policy(r#"{"retry": ["1s"]}"#, &was_exponential), was.retry);
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
            (r#"{"mode": "pull"}"#, "mode: \"pull\" is not supported by this release"),
            (r#"{"keep_done": "1h"}"#, "keep_done: \"1h\" is not supported by this release"),
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
        let retry =
            RetryPolicy::Exponential { base: Duration::from_millis(1500), cap: Duration::from_secs(90) };
        let was = Topic { delay: Duration::from_secs(5400), retry, ..Topic::new(name.clone(), "http://h/") };
        let mut shown = serde_json::to_value(TopicResponse::of(&was, Source::Registry, None)).unwrap();
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
