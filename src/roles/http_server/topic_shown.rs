//! A topic as the API shows it, and the description of a topic that clients send. The secrets of a topic are never
//! shown.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;
use utoipa::ToSchema;

use super::schema;
use model::job::TopicName;
use model::retry::RetryPolicy;
use model::topic::Topic;
use registry::Revision;
use store::{CircuitState, CircuitView};

/// Where a topic is registered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(super) enum Source {
    /// In the configuration file. The API cannot change it.
    File,
    /// In the registry.
    Registry,
}

/// A retry policy: its name, or a list of delays.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(untagged)]
pub(super) enum Retry {
    /// `2n+1`: the delays are 1, 3, 5 … times `retry_base`. `exponential`: they are 1, 2, 4 … times `retry_base`, up to
    /// `retry_cap`.
    Name(String),
    /// The delays, in their order.
    List(Vec<String>),
}

/// A topic. Durations are texts such as `5m`.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Topic)]
pub(super) struct TopicResponse {
    name: String,
    title: String,
    /// `push`. A topic of an older release may have `pull`, which this release does not support.
    mode: String,
    callback: String,
    /// `POST` or `GET`. A topic that is held because of another method shows the method in the registry.
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
    /// The failures that are retried. An empty list means all failures.
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
    /// `memory`, `fsync` or `replicas:1`. Null means the value of `store.durability`.
    #[schema(required = true)]
    durability: Option<String>,
    /// `high`, `normal` or `low`.
    priority: String,
    alert: Vec<String>,
    creator: String,
    /// `online` or `offline`.
    status: String,
    /// The number of secrets. The secrets themselves are never shown.
    secrets: usize,
    /// Not supported by this release, which always writes `0s`.
    keep_done: String,
    keep_dead: String,
    source: Source,
    /// What dq does not support in the topic's settings, and what this means for the topic. Null if there is nothing.
    /// If the text begins with `offline`, the topic takes no jobs and delivers none until someone edits that setting.
    #[schema(required = true)]
    problem: Option<String>,
    /// The revision, for `If-Match`. Null for a topic of the configuration file, and while the registry does not
    /// answer.
    #[schema(required = true)]
    revision: Option<String>,
    /// Whether the topic is paused, so that its jobs wait. Null while the store does not answer.
    #[schema(required = true)]
    paused: Option<bool>,
    /// The topic's circuit. Null while the store does not answer.
    #[schema(required = true)]
    circuit: Option<Circuit>,
    /// Until when the circuit is open, Unix milliseconds. Then one job at a time is let through as a probe. Null if the
    /// circuit is closed, or the store does not answer.
    #[schema(required = true)]
    circuit_until_ms: Option<i64>,
    /// The failure that opened the circuit.
    #[schema(required = true)]
    circuit_reason: Option<String>,
}

/// Whether a topic's jobs wait because the receiver fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum Circuit {
    /// No jobs wait.
    Closed,
    /// All jobs wait.
    Open,
    /// One job at a time is let through as a probe.
    HalfOpen,
}

impl Circuit {
    /// Reads the store's view. Without one, the circuit is closed.
    pub(super) fn of(view: Option<&CircuitView>) -> Circuit {
        match view.map(|view| view.state) {
            None => Circuit::Closed,
            Some(CircuitState::Open) => Circuit::Open,
            Some(CircuitState::HalfOpen) => Circuit::HalfOpen,
        }
    }
}

/// A topic to register, or the fields of a topic to change. A null means the default.
#[derive(ToSchema, Serialize)]
#[serde(deny_unknown_fields)]
#[allow(dead_code)]
#[schema(as = NewTopic, example = json!({"name": "orders", "callback": "http://127.0.0.1:9000/hook", "delay": "30m"}))]
pub(super) struct Given {
    /// Required for POST. For other methods, the name in the path.
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
    /// How safe a change of a job is before it is answered: `memory`, `fsync` or `replicas:1`. Null means the value of
    /// `store.durability`.
    #[schema(pattern = "^(memory|fsync|replicas:[1-9][0-9]*)$", example = "fsync")]
    durability: Option<String>,
    priority: Option<schema::PriorityWord>,
    #[schema(max_items = 32)]
    alert: Option<Vec<String>>,
    #[schema(max_length = 255)]
    creator: Option<String>,
    status: Option<StatusWord>,
    /// The secrets that sign callbacks. They are never shown.
    #[schema(max_items = 32)]
    secrets: Option<Vec<String>>,
    /// Only `0s`: this release does not keep accepted jobs.
    #[schema(schema_with = schema::span, required = false)]
    keep_done: String,
    #[schema(schema_with = schema::span, required = false)]
    keep_dead: String,
}

/// A number of callbacks a second, or a text such as `30/m`.
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

/// The paused topics and the circuits that are not closed. None: the store does not answer.
pub(super) struct Paused(pub Option<(Vec<TopicName>, Vec<CircuitView>)>);

impl Paused {
    /// Whether a topic is paused, and its circuit, if that is not closed. None: the store does not answer.
    pub(super) fn of(&self, name: &str) -> Option<(bool, Option<&CircuitView>)> {
        let (paused, circuits) = self.0.as_ref()?;
        let is_paused = paused.iter().any(|paused| paused.as_str() == name);
        Some((is_paused, circuits.iter().find(|view| view.topic.as_str() == name)))
    }

    /// Whether a topic is known to be neither paused nor held back by its circuit.
    pub(super) fn lets_through(&self, name: &TopicName) -> bool {
        matches!(self.of(name.as_str()), Some((false, None)))
    }
}

/// All topics.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Topics {
    pub topics: Vec<TopicResponse>,
    /// The entries of the registry that are not usable as topics, and why.
    pub unusable: Vec<String>,
    /// Why the registry cannot be read. The topics are the last known ones then. Null if the registry answers.
    #[schema(required = true)]
    pub away: Option<String>,
}

/// Returns the word that the configuration uses for a value.
fn word(value: &impl Serialize) -> String {
    serde_json::to_value(value).ok().and_then(|v| v.as_str().map(str::to_owned)).unwrap_or_default()
}

pub(super) fn text(span: Duration) -> String {
    humantime::format_duration(span).to_string().replace(' ', "")
}

impl TopicResponse {
    pub(super) fn of(topic: &Topic, source: Source, revision: Option<Revision>) -> TopicResponse {
        let (retry, base, cap) = match &topic.retry {
            RetryPolicy::TwoNPlusOne { base } => (Retry::Name("2n+1".into()), Some(*base), None),
            RetryPolicy::Exponential { base, cap } => {
                (Retry::Name("exponential".into()), Some(*base), Some(*cap))
            }
            RetryPolicy::List(delays) => {
                (Retry::List(delays.iter().copied().map(text).collect()), None, None)
            }
        };
        TopicResponse {
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
            durability: topic.durability.map(|level| level.to_string()),
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

    /// Adds whether the topic's jobs are held back, if that is known.
    pub(super) fn with(self, held: &Paused) -> TopicResponse {
        let Some((is_paused, view)) = held.of(&self.name) else { return self };
        TopicResponse {
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
