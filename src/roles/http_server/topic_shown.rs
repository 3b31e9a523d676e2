//! A topic as the API shows it, and what the document says of one that is given. Secrets go in and never come out.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;
use utoipa::ToSchema;

use super::schema;
use crate::job::TopicName;
use crate::registry::Revision;
use crate::retry::RetryPolicy;
use crate::store::{CircuitState, CircuitView};
use crate::topic::Topic;

/// Where a topic comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(super) enum Source {
    /// The configuration file: it cannot be changed here.
    File,
    /// The registry.
    Registry,
}

/// A retry policy: its name, or a list of delays.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(untagged)]
pub(super) enum Retry {
    /// `2n+1`: 1, 3, 5 … times retry_base later; `exponential`: 1, 2, 4 … times, up to retry_cap.
    Name(String),
    /// These delays in turn.
    List(Vec<String>),
}

/// A topic as it is shown. Durations are texts such as `5m`.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Topic)]
pub(super) struct Shown {
    name: String,
    title: String,
    /// `push`; `pull`, which an older release has written, is not done by this one.
    mode: String,
    callback: String,
    /// `POST` or `GET`; of a topic that is held for it, what the registry says.
    method: String,
    /// `json` or `form`.
    payload: String,
    headers: BTreeMap<String, String>,
    delay: String,
    timeout: String,
    connect_timeout: String,
    /// `status`, `non_empty`, or an expression.
    success: String,
    re_notify_flag: String,
    retry: Retry,
    #[schema(required = true)]
    retry_base: Option<String>,
    #[schema(required = true)]
    retry_cap: Option<String>,
    /// After which failures it is tried again; empty: after all.
    retry_on: Vec<String>,
    max_attempts: u32,
    answer_later: String,
    #[schema(required = true)]
    max_in_flight: Option<u32>,
    /// Such as `100/s`.
    #[schema(required = true)]
    rate: Option<String>,
    breaker_failures: u32,
    breaker_pause: String,
    /// `all`, `spread …` or `skip older than …`.
    catch_up: String,
    /// `high`, `normal` or `low`.
    priority: String,
    alert: Vec<String>,
    creator: String,
    /// `online` or `offline`.
    status: String,
    /// How many there are.
    secrets: usize,
    /// Not done by this release: `0s` for all that it writes.
    keep_done: String,
    keep_dead: String,
    source: Source,
    /// What dq cannot do as it is set, and what becomes of the topic; null: all is done. A topic that begins with `offline` here
    /// takes no jobs and delivers none until somebody has edited that.
    #[schema(required = true)]
    problem: Option<String>,
    /// What If-Match takes; null: it is the file's, or the registry is away.
    #[schema(required = true)]
    revision: Option<String>,
    /// Whether its jobs wait; null: the store does not answer.
    #[schema(required = true)]
    paused: Option<bool>,
    /// Whether its jobs wait because its receiver fails; null: the store does not answer.
    #[schema(required = true)]
    circuit: Option<Circuit>,
    /// Until when, Unix milliseconds; then one of them at a time tries it.
    #[schema(required = true)]
    circuit_until_ms: Option<i64>,
    /// How it failed.
    #[schema(required = true)]
    circuit_reason: Option<String>,
}

/// Whether jobs wait because their receiver fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum Circuit {
    /// They do not.
    Closed,
    /// All of them do.
    Open,
    /// One at a time tries it.
    HalfOpen,
}

impl Circuit {
    /// As the store tells of it; none: it is closed.
    pub(super) fn of(view: Option<&CircuitView>) -> Circuit {
        match view.map(|view| view.state) {
            None => Circuit::Closed,
            Some(CircuitState::Open) => Circuit::Open,
            Some(CircuitState::HalfOpen) => Circuit::HalfOpen,
        }
    }
}

/// A topic to register, or the fields that are changed of one. What is null has its default.
#[derive(ToSchema, Serialize)]
#[serde(deny_unknown_fields)]
#[allow(dead_code)]
#[schema(as = NewTopic, example = json!({"name": "orders", "callback": "http://127.0.0.1:9000/hook", "delay": "30m"}))]
pub(super) struct Given {
    /// Needed by POST; elsewhere the path's.
    #[schema(pattern = "^[A-Za-z0-9_.-]+$", min_length = 1, max_length = 128)]
    name: Option<String>,
    #[schema(max_length = 255)]
    title: Option<String>,
    mode: Option<ModeWord>,
    /// An http or https URL.
    callback: Option<String>,
    method: Option<MethodWord>,
    /// `json` needs the method POST.
    payload: Option<PayloadWord>,
    headers: Option<BTreeMap<String, String>>,
    #[schema(schema_with = schema::span, required = false)]
    delay: String,
    #[schema(schema_with = schema::span, required = false)]
    timeout: String,
    #[schema(schema_with = schema::span, required = false)]
    connect_timeout: String,
    /// `status`, `non_empty`, or an expression over `{status}` and `{res.…}`.
    #[schema(max_length = 255, example = "status")]
    success: Option<String>,
    #[schema(max_length = 255)]
    re_notify_flag: Option<String>,
    retry: Option<Retry>,
    #[schema(schema_with = schema::span, required = false)]
    retry_base: String,
    #[schema(schema_with = schema::span, required = false)]
    retry_cap: String,
    /// `connect`, `timeout`, `broken`, `answer`, statuses such as `503`, and `5xx`.
    #[schema(max_items = 32)]
    retry_on: Option<Vec<String>>,
    #[schema(minimum = 1, maximum = 1000)]
    max_attempts: Option<u32>,
    #[schema(schema_with = schema::span, required = false)]
    answer_later: String,
    #[schema(minimum = 1, maximum = 1000000)]
    max_in_flight: Option<u32>,
    rate: Option<RateGiven>,
    #[schema(minimum = 0, maximum = 1000000)]
    breaker_failures: Option<u32>,
    #[schema(schema_with = schema::span, required = false)]
    breaker_pause: String,
    /// `all`, `spread 10m` or `skip older than 1h`.
    #[schema(example = "all")]
    catch_up: Option<String>,
    priority: Option<schema::PriorityWord>,
    #[schema(max_items = 32)]
    alert: Option<Vec<String>>,
    #[schema(max_length = 255)]
    creator: Option<String>,
    status: Option<StatusWord>,
    /// What callbacks are signed with. They are never shown.
    #[schema(max_items = 32)]
    secrets: Option<Vec<String>>,
    /// Only `0s`: this release keeps no jobs that were accepted.
    #[schema(schema_with = schema::span, required = false)]
    keep_done: String,
    #[schema(schema_with = schema::span, required = false)]
    keep_dead: String,
}

/// So many a second, or a text such as `30/m`.
#[derive(ToSchema, Serialize)]
#[serde(untagged)]
#[allow(dead_code)]
pub(super) enum RateGiven {
    Number(u32),
    Text(String),
}

macro_rules! words {
    ($($name:ident = $($word:ident $text:literal)|+;)*) => {$(
        #[allow(dead_code, missing_docs)]
        #[derive(ToSchema, Serialize)]
        pub(super) enum $name { $(#[serde(rename = $text)] $word),+ }
    )*};
}
words! {
    ModeWord = Push "push";
    MethodWord = Post "POST" | Get "GET";
    PayloadWord = Json "json" | Form "form";
    StatusWord = Online "online" | Offline "offline";
}

/// The topics that are paused, and the circuits that are not closed; none: the store does not answer.
pub(super) struct Paused(pub Option<(Vec<TopicName>, Vec<CircuitView>)>);

impl Paused {
    /// Whether a topic is paused, and its circuit, if that is not closed; none: the store does not answer.
    pub(super) fn of(&self, name: &str) -> Option<(bool, Option<&CircuitView>)> {
        let (paused, circuits) = self.0.as_ref()?;
        let is_paused = paused.iter().any(|paused| paused.as_str() == name);
        Some((is_paused, circuits.iter().find(|view| view.topic.as_str() == name)))
    }

    /// Whether nothing is said of a topic.
    pub(super) fn lets_through(&self, name: &TopicName) -> bool {
        matches!(self.of(name.as_str()), Some((false, None)))
    }
}

/// All topics.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Topics {
    pub topics: Vec<Shown>,
    /// What stands in the registry and cannot be a topic, and why.
    pub unusable: Vec<String>,
    /// Why the registry cannot be read, so that these are the topics as they were last known; null: it can.
    #[schema(required = true)]
    pub away: Option<String>,
}

/// A word of the configuration, as text.
fn word(value: &impl Serialize) -> String {
    serde_json::to_value(value).ok().and_then(|v| v.as_str().map(str::to_owned)).unwrap_or_default()
}

pub(super) fn text(span: Duration) -> String {
    humantime::format_duration(span).to_string().replace(' ', "")
}

impl Shown {
    pub(super) fn of(topic: &Topic, source: Source, revision: Option<Revision>) -> Shown {
        let (retry, base, cap) = match &topic.retry {
            RetryPolicy::TwoNPlusOne { base } => (Retry::Name("2n+1".into()), Some(*base), None),
            RetryPolicy::Exponential { base, cap } => {
                (Retry::Name("exponential".into()), Some(*base), Some(*cap))
            }
            RetryPolicy::List(delays) => {
                (Retry::List(delays.iter().copied().map(text).collect()), None, None)
            }
        };
        Shown {
            name: topic.name.to_string(),
            title: topic.title.clone(),
            mode: word(&topic.mode),
            callback: topic.callback.clone(),
            method: word(&topic.method),
            payload: word(&topic.payload),
            headers: topic.headers.clone(),
            delay: text(topic.delay),
            timeout: text(topic.timeout),
            connect_timeout: text(topic.connect_timeout),
            success: word(&topic.success),
            re_notify_flag: topic.re_notify_flag.clone(),
            retry,
            retry_base: base.map(text),
            retry_cap: cap.map(text),
            retry_on: topic.retry_on.iter().map(ToString::to_string).collect(),
            max_attempts: topic.max_attempts,
            answer_later: text(topic.answer_later),
            max_in_flight: topic.max_in_flight,
            rate: topic.rate.map(|rate| rate.to_string()),
            breaker_failures: topic.breaker_failures,
            breaker_pause: text(topic.breaker_pause),
            catch_up: topic.catch_up.to_string(),
            priority: word(&topic.priority),
            alert: topic.alert.clone(),
            creator: topic.creator.clone(),
            status: word(&topic.status),
            secrets: topic.secrets.len(),
            keep_done: text(topic.keep_done),
            keep_dead: text(topic.keep_dead),
            source,
            problem: topic.problem(),
            revision: revision.map(|r| r.to_string()),
            paused: None,
            circuit: None,
            circuit_until_ms: None,
            circuit_reason: None,
        }
    }

    /// With what is known of which topics' jobs are held back.
    pub(super) fn with(self, held: &Paused) -> Shown {
        let Some((is_paused, view)) = held.of(&self.name) else { return self };
        Shown {
            paused: Some(is_paused),
            circuit: Some(Circuit::of(view)),
            circuit_until_ms: view.map(|view| view.until_ms),
            circuit_reason: view.map(|view| view.reason.clone()),
            ..self
        }
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }
}
