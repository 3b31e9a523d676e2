//! Why a job waits, as the API shows it. This file gathers what the store, the registry and the counters know.
//! `model::waiting` decides which reasons apply.

use std::path::Path;
use std::time::Duration;

use axum::http::Uri;
use serde::Serialize;

use super::api::{Api, CallerContext};
use super::nodes::on_thread;
use super::store_client::AnswerSender;
use host::now_ms;
use model::flow::LimitName;
use model::job::{State, TopicName};
use model::scope::RequiredAccess;
use model::settings::HostLimit;
use model::topic::Rate;
use model::waiting::{HostUse, Pause, RateUse, UnclosedCircuit, WaitingJob, WaitingReason, WaitingTopic};
use role::submit::StoreRequest;
use store::{CircuitState, CircuitView, LimitQuery, LimitUse, StoredJob};
use telemetry::history;

/// How long the store may take to report how far limits are used.
const PATIENCE: Duration = Duration::from_secs(1);

/// Why a job waits: the main reason, and the other reasons.
#[derive(Debug, Serialize)]
pub(super) struct WaitingResponse {
    #[serde(flatten)]
    reason: ReasonResponse,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    also: Vec<ReasonResponse>,
}

/// A reason: its code, its data, and a sentence for people.
#[derive(Debug, Serialize)]
struct ReasonResponse {
    #[serde(flatten)]
    reason: WaitingReason,
    text: String,
}

impl WaitingResponse {
    fn new(reasons: Vec<WaitingReason>) -> Option<WaitingResponse> {
        let shown = |reason: WaitingReason| ReasonResponse { text: reason.to_string(), reason };
        let mut reasons = reasons.into_iter().map(shown);
        reasons.next().map(|reason| WaitingResponse { reason, also: reasons.collect() })
    }
}

impl Api {
    /// Returns why a job waits. None: the job does not wait.
    pub(super) async fn waiting(
        &self,
        view: &StoredJob,
        requester: &CallerContext,
    ) -> Option<WaitingResponse> {
        if matches!(view.state, State::Leased | State::Dead) {
            return None;
        }
        let job = WaitingJob {
            state: view.state,
            due_ms: view.due_ms,
            attempts: view.attempts,
            last: view.attempts_log.last(),
            is_spooled: view.is_spooled,
        };
        let mut topic = self.topic_reasons(&view.key.topic, requester).await;
        if view.state == State::Ready {
            self.add_counts(&view.key.topic, &mut topic).await;
        }
        self.add_limits(view, &mut topic).await;
        WaitingResponse::new(WaitingReason::all(job, &topic, now_ms()))
    }

    /// Returns the reasons why all jobs of a topic wait.
    async fn topic_reasons(&self, name: &TopicName, requester: &CallerContext) -> WaitingTopic {
        let held_back = self.paused().await;
        let (is_paused, circuit) = held_back.state_of(name.as_str()).unwrap_or_default();
        let pause = match is_paused {
            true => Some(self.pause_of(name, requester).await),
            false => None,
        };
        let undelivered = self.topics.borrow().undelivered(name.as_str());
        WaitingTopic { undelivered, pause, circuit: circuit.map(circuit_reason), ..WaitingTopic::default() }
    }

    /// Returns what the audit log says about the pause of a topic. Only administrators see who paused the topic.
    async fn pause_of(&self, name: &TopicName, requester: &CallerContext) -> Pause {
        // The log has the latest entry first. A repeated pause changes nothing, so the earliest pause since the last
        // resume counts.
        let entries = self.audit_of_topic(name).await.into_iter();
        let pauses = entries
            .take_while(|entry| entry.action != "topic.resume")
            .filter(|entry| entry.action == "topic.pause");
        pauses.last().map_or_else(Pause::default, |entry| Pause {
            by: Some(entry.who).filter(|who| !who.is_empty() && requester.permits(RequiredAccess::Admin)),
            since_ms: Some(entry.at_ms),
        })
    }

    /// Adds how many jobs are ready and leased, and whether the workers are busy.
    async fn add_counts(&self, name: &TopicName, topic: &mut WaitingTopic) {
        if let Some((counts, _)) = self.metrics.counts().await {
            let own = counts.get(name);
            topic.ready = own.map_or(0, |own| own.ready);
            // A job that is answered later is leased, too. But it does not count for `max_in_flight`, and it keeps no
            // worker busy. The counts do not show which jobs are answered later, so the topics that may have such jobs
            // are left out.
            let topics = self.topics.borrow();
            let callbacks = |name: &TopicName, leased: u64| match topics.get(name.as_str()) {
                Some(known) if known.answer_later.is_zero() => leased,
                _ => 0,
            };
            topic.leased = own.map_or(0, |own| callbacks(name, own.leased));
            topic.leased_of_all = counts.iter().map(|(name, one)| callbacks(name, one.leased)).sum();
        }
        let consume = &self.settings.consume;
        topic.workers = u64::from(consume.processes) * u64::from(consume.concurrency);
    }

    /// Adds the limits of the topic and of the receiver's host, and how far they are used. A job that is not due yet
    /// does not wait for the limits of its topic. But if its topic has `job_hosts`, the job may have been postponed
    /// because of the limits of a host.
    async fn add_limits(&self, view: &StoredJob, topic: &mut WaitingTopic) {
        let name = &view.key.topic;
        let Ok(known) = self.topic(name) else { return };
        let is_ready = view.state == State::Ready;
        let rate = known.rate.filter(|_| is_ready);
        let may_have_host = is_ready || !known.job_hosts.is_empty();
        let host = match known.url_for(view.headers.destination()) {
            Ok(url) if may_have_host => self.host_limit(&url),
            Ok(_) | Err(_) => None,
        };
        let of_topic = rate.map(|rate| LimitQuery { name: LimitName::from(name), rate: Some(rate) });
        let of_host = host.map(|host| LimitQuery { name: LimitName::from_host(&host.name), rate: host.rate });
        let mut uses = self.limit_uses(of_topic.iter().chain(&of_host).cloned().collect()).await.into_iter();
        let next_ms = |used: &LimitUse| used.again.map(|again| now_ms() + again.as_millis() as i64);
        if is_ready {
            topic.max_in_flight = known.max_in_flight;
        }
        if let Some(limit) = rate {
            let next_ms = uses.next().flatten().as_ref().and_then(next_ms);
            topic.rate = Some(RateUse { limit, used: self.callback_rate(name, limit).await, next_ms });
        }
        if let (Some(host), Some(used)) = (host, uses.next().flatten()) {
            topic.host = Some(HostUse {
                name: host.name.clone(),
                max_in_flight: host.max_in_flight,
                in_flight: used.held,
                rate: host.rate,
                next_ms: next_ms(&used),
            });
        }
    }

    /// Returns the limits of a URL's host, if the host has limits.
    fn host_limit(&self, url: &str) -> Option<&HostLimit> {
        let uri: Uri = url.split('#').next()?.parse().ok()?;
        self.settings.consume.host_limits.iter().find(|limit| limit.host.matches(&uri))
    }

    /// Returns how far limits are used. None: the store does not answer in time.
    async fn limit_uses(&self, queries: Vec<LimitQuery>) -> Vec<Option<LimitUse>> {
        let count = queries.len();
        if count == 0 {
            return Vec::new();
        }
        let ask = |reply: AnswerSender<_>| StoreRequest::limit_use(queries, |uses| reply.with(uses));
        match tokio::time::timeout(PATIENCE, self.store_client.ask(0, ask)).await {
            Ok(Ok(uses)) => uses.into_iter().map(Result::ok).collect(),
            Ok(Err(_)) | Err(_) => vec![None; count],
        }
    }

    /// Returns how many callbacks of a topic begin on this host in one period of a rate.
    async fn callback_rate(&self, name: &TopicName, rate: Rate) -> Option<u64> {
        let own = name.clone();
        let measured = move |run_dir: &Path| {
            let limited = std::iter::once((&own, rate));
            history::measured_rates(run_dir, now_ms(), limited, |sums| sums.attempts)
        };
        on_thread(self, measured).await.ok()?.ok()?.remove(name)
    }
}

fn circuit_reason(view: &CircuitView) -> UnclosedCircuit {
    UnclosedCircuit {
        since_ms: view.since_ms,
        until_ms: view.until_ms,
        is_half_open: view.state == CircuitState::HalfOpen,
        reason: view.reason.clone(),
    }
}
