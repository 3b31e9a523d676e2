//! A topic as the API shows it: its settings, and what dq does with it now. The secrets of a topic are never shown.

use std::borrow::Cow;
use std::time::Duration;

use serde::Serialize;
use serde_json::{Map, Value};
use utoipa::openapi::{RefOr, Schema};
use utoipa::{PartialSchema, ToSchema};

use super::schema;
use model::job::TopicName;
use model::topic::Topic;
use registry::Revision;
use store::{CircuitState, CircuitView};

/// Where a topic is registered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(super) enum TopicSource {
    /// In the configuration file. The API cannot change it.
    File,
    /// In the registry.
    Registry,
}

/// A topic: its settings in their written forms, and its state.
#[derive(Debug, Serialize)]
pub(super) struct TopicResponse {
    name: String,
    #[serde(flatten)]
    settings: Map<String, Value>,
    #[serde(flatten)]
    state: TopicState,
}

/// What the API shows of a topic besides its settings.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct TopicState {
    source: TopicSource,
    /// What dq does not support in the topic's settings, and what this means for the topic. Null if there is nothing.
    /// If the text begins with `held`, the topic takes no jobs and delivers none until someone edits that setting.
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
    circuit: Option<ShownCircuit>,
    /// The time until which the circuit is open, Unix milliseconds. After that, each shard of the store lets one job
    /// through as a probe. Null if the circuit is closed, or the store does not answer.
    #[schema(required = true)]
    circuit_until_ms: Option<i64>,
    /// The failure that opened the circuit.
    #[schema(required = true)]
    circuit_reason: Option<String>,
}

/// Whether a topic's jobs wait because the receiver fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = Circuit)]
pub(super) enum ShownCircuit {
    /// No jobs wait.
    Closed,
    /// All jobs wait.
    Open,
    /// Each shard of the store lets one job through as a probe.
    HalfOpen,
}

impl ShownCircuit {
    /// Returns the state of the circuit that the store reports. If the store reports no circuit, the circuit is closed.
    pub(super) fn from_view(view: Option<&CircuitView>) -> ShownCircuit {
        match view.map(|view| view.state) {
            None => ShownCircuit::Closed,
            Some(CircuitState::Open) => ShownCircuit::Open,
            Some(CircuitState::HalfOpen) => ShownCircuit::HalfOpen,
        }
    }
}

/// The paused topics and the circuits that are not closed. None: the store does not answer.
pub(super) struct PausesAndCircuits(pub Option<(Vec<TopicName>, Vec<CircuitView>)>);

impl PausesAndCircuits {
    /// Returns whether a topic is paused, and its circuit if the circuit is not closed. None: the store does not
    /// answer.
    pub(super) fn state_of(&self, name: &str) -> Option<(bool, Option<&CircuitView>)> {
        let (paused, circuits) = self.0.as_ref()?;
        let is_paused = paused.iter().any(|paused| paused.as_str() == name);
        Some((is_paused, circuits.iter().find(|view| view.topic.as_str() == name)))
    }

    /// Whether it is known that the topic is not paused, and that its circuit is closed.
    pub(super) fn lets_through(&self, name: &TopicName) -> bool {
        matches!(self.state_of(name.as_str()), Some((false, None)))
    }
}

/// All topics.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct TopicList {
    pub topics: Vec<TopicResponse>,
    /// The entries of the registry that are not usable as topics, with the reasons.
    pub unusable: Vec<String>,
    /// Why the registry cannot be read. Then `topics` has the last known topics. Null if the registry answers.
    #[schema(required = true)]
    pub away: Option<String>,
}

pub(super) fn text(span: Duration) -> String {
    humantime::format_duration(span).to_string().replace(' ', "")
}

impl TopicResponse {
    pub(super) fn new(topic: &Topic, source: TopicSource, revision: Option<Revision>) -> TopicResponse {
        let mut settings = topic.written();
        let mut signing = topic.clone();
        signing.drop_ended_secrets(host::now_ms());
        settings.insert("secrets".to_owned(), signing.secrets.len().into());
        if signing.old_secrets_until.is_none() {
            settings.insert("old_secrets_until".to_owned(), serde_json::Value::Null);
        }
        let state = TopicState {
            source,
            problem: topic.problem(),
            revision: revision.map(|r| r.to_string()),
            paused: None,
            circuit: None,
            circuit_until_ms: None,
            circuit_reason: None,
        };
        TopicResponse { name: topic.name.to_string(), settings, state }
    }

    /// Adds a problem: what dq does not support in the topic's settings.
    pub(super) fn with_problem(mut self, problem: &str) -> TopicResponse {
        let before = self.state.problem.take();
        self.state.problem =
            Some(before.into_iter().chain([problem.to_owned()]).collect::<Vec<_>>().join("; "));
        self
    }

    /// Adds whether the topic is paused and the state of its circuit, if they are known.
    pub(super) fn with(self, held: &PausesAndCircuits) -> TopicResponse {
        let Some((is_paused, view)) = held.state_of(&self.name) else { return self };
        let state = TopicState {
            paused: Some(is_paused),
            circuit: Some(ShownCircuit::from_view(view)),
            circuit_until_ms: view.map(|view| view.until_ms),
            circuit_reason: view.map(|view| view.reason.clone()),
            ..self.state
        };
        TopicResponse { state, ..self }
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }
}

impl PartialSchema for TopicResponse {
    fn schema() -> RefOr<Schema> {
        schema::topic_response(&TopicState::schema())
    }
}

impl ToSchema for TopicResponse {
    fn name() -> Cow<'static, str> {
        "Topic".into()
    }

    fn schemas(schemas: &mut Vec<(String, RefOr<Schema>)>) {
        TopicState::schemas(schemas);
    }
}
