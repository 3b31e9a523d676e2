//! `/metrics`: what all processes of this host have counted, how many jobs the store has, and the state of the
//! processes. Each source may hang, so a separate thread asks each source. The page leaves out data that does not
//! arrive in time.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::Duration;

use anyhow::Result;
use axum::extract::State;
use axum::http::header::{ACCEPT, CONTENT_TYPE};
use axum::http::{HeaderMap, HeaderValue};
use axum::response::{IntoResponse, Response};
use tokio::sync::oneshot;
use tokio::time::Instant;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::api::Api;
use super::schema;
use super::topic_shown::PausesAndCircuits;
use host::{ask_master, now_ms};
use model::job::TopicName;
use model::metrics::{CounterTotals, MetricKind, MetricsText};
use model::status::{DaemonStatus, ProcessState};
use model::topic::{Topic, Topics};
use role::{self, Context, EMBEDDED, SpoolStateReader};
use store::{self, CircuitState, CircuitView, Counts, OutboxState, SpoolState, Store};
use telemetry::counters;

/// How long the sources may take to answer.
pub(super) const PATIENCE: Duration = Duration::from_secs(2);

/// How many questions may wait for one thread.
const WAITING_MAX: usize = 256;

/// A thread that answers questions which may block. `Q` is the type of a question, and `T` is the type of an answer.
pub(super) struct QuestionThread<T, Q = ()>(SyncSender<(Q, oneshot::Sender<T>)>);

impl<T: Send + 'static, Q: Send + 'static> QuestionThread<T, Q> {
    pub(super) fn start(
        name: &str,
        mut work: impl FnMut(Q) -> T + Send + 'static,
    ) -> Result<QuestionThread<T, Q>> {
        let (ask, asked) = sync_channel::<(Q, oneshot::Sender<T>)>(WAITING_MAX);
        role::vital_thread(name, move || {
            while let Ok((question, to)) = asked.recv() {
                // If nobody waits for the answer any more, the question is skipped.
                if !to.is_closed() {
                    let _ = to.send(work(question));
                }
            }
        })?;
        Ok(QuestionThread(ask))
    }

    /// Sends a question to the thread. If the thread cannot answer, the receiver gets an error.
    pub(super) fn ask(&self, question: Q) -> oneshot::Receiver<T> {
        let (to, answer) = oneshot::channel();
        let _ = self.0.try_send((question, to));
        answer
    }
}

pub(super) async fn by<T>(until: Instant, answer: oneshot::Receiver<T>) -> Option<T> {
    tokio::time::timeout_at(until, answer).await.ok()?.ok()
}

/// What a node reports: its numbers of jobs, its circuits that are not closed, its outbox. An error says why the node
/// does not report.
pub(super) type NodeReport = Result<(Vec<Counts>, Vec<CircuitView>, OutboxState), String>;

/// The sources of metrics. The value is cheap to clone.
#[derive(Clone)]
pub(super) struct MetricSources(Arc<MetricThreads>);

struct MetricThreads {
    /// The sums of all counters. None: they could not be read.
    pages: QuestionThread<Option<CounterTotals>>,
    master: QuestionThread<Option<DaemonStatus>>,
    /// The threads that ask the nodes, with the names of the nodes.
    nodes: Vec<(String, QuestionThread<NodeReport>)>,
    /// The size limit of this host's spool, and the thread that reads how full the spool is. None: there is no spool.
    /// (The thread's answer is none if it cannot read the spool.)
    spool: Option<(u64, QuestionThread<Option<SpoolState>>)>,
}

impl MetricSources {
    /// Starts the threads.
    pub(super) fn start(context: &mut Context) -> Result<MetricSources> {
        let (lanes, mut nodes) = (context.lanes()?, Vec::new());
        for lane in 0..lanes.count() {
            let name = lanes.name(lane).unwrap_or(EMBEDDED).to_owned();
            let mut store: Box<dyn Store> = context.lane(lane)?;
            let mut answer =
                move || -> store::Result<_> { Ok((store.counts()?, store.circuits()?, store.outbox()?)) };
            nodes.push((
                name,
                QuestionThread::start("metrics-node", move |()| answer().map_err(|e| e.to_string()))?,
            ));
        }
        let spool = SpoolStateReader::new(&context.settings.store).map(|mut reader| -> Result<_> {
            let max_bytes = reader.settings().bytes as u64;
            Ok((max_bytes, QuestionThread::start("metrics-spool", move |()| reader.read().ok())?))
        });
        let (for_pages, for_master) = (context.settings.run_dir.clone(), context.settings.run_dir.clone());
        Ok(MetricSources(Arc::new(MetricThreads {
            pages: QuestionThread::start("metrics-pages", move |()| pages(&for_pages))?,
            master: QuestionThread::start("metrics-master", move |()| {
                ask_master(&for_master, PATIENCE).ok()
            })?,
            nodes,
            spool: spool.transpose()?,
        })))
    }
}

/// The name of a node, and its report.
pub(super) type NamedNodeReport<'a> = (&'a str, NodeReport);

impl MetricSources {
    /// Returns the sums of all counters of this host. None: they did not arrive in time, or could not be read.
    pub(super) async fn pages(&self, until: Instant) -> Option<CounterTotals> {
        by(until, self.0.pages.ask(())).await.flatten()
    }

    /// Asks all nodes at the same time.
    pub(super) async fn ask_nodes(&self, until: Instant) -> Vec<NamedNodeReport<'_>> {
        let asked: Vec<_> = self.0.nodes.iter().map(|(name, asked)| (name.as_str(), asked.ask(()))).collect();
        let mut counted = Vec::new();
        for (name, answer) in asked {
            let answer = by(until, answer).await;
            counted.push((name, answer.unwrap_or_else(|| Err("no answer in time".to_owned()))));
        }
        counted
    }

    /// Returns how full the spool is, and its limit. None: there is no spool, or it could not be read in time.
    pub(super) async fn spool(&self, until: Instant) -> Option<(SpoolState, u64)> {
        let (max_bytes, asked) = self.0.spool.as_ref()?;
        by(until, asked.ask(())).await.flatten().map(|state| (state, *max_bytes))
    }

    /// Returns how many jobs each topic has on the nodes that answer, and which nodes do not answer. None: no node
    /// answers.
    pub(super) async fn counts(&self) -> Option<(BTreeMap<TopicName, Counts>, Vec<String>)> {
        let nodes = self.ask_nodes(Instant::now() + PATIENCE).await;
        let away: Vec<String> =
            nodes.iter().filter(|(_, counts)| counts.is_err()).map(|(name, _)| (*name).to_owned()).collect();
        (away.len() < nodes.len()).then(|| (joined(&nodes), away))
    }
}

/// Adds up the counts of all nodes that answered, by topic.
pub(super) fn joined(nodes: &[NamedNodeReport<'_>]) -> BTreeMap<TopicName, Counts> {
    let mut topics: BTreeMap<TopicName, Counts> = BTreeMap::new();
    for one in nodes.iter().filter_map(|(_, answer)| answer.as_ref().ok()).flat_map(|(counts, ..)| counts) {
        match topics.get_mut(&one.topic) {
            None => drop(topics.insert(one.topic.clone(), one.clone())),
            Some(sum) => {
                sum.delayed += one.delayed;
                sum.ready += one.ready;
                sum.leased += one.leased;
                sum.dead += one.dead;
                sum.oldest_ready_ms = [sum.oldest_ready_ms, one.oldest_ready_ms].into_iter().flatten().min();
                sum.bytes = [sum.bytes, one.bytes].into_iter().flatten().reduce(|a, b| a + b);
            }
        }
    }
    topics
}

pub(super) fn routes() -> OpenApiRouter<Api> {
    OpenApiRouter::new().routes(routes!(metrics))
}

/// Reads the sums of all counters of this host.
fn pages(run_dir: &Path) -> Option<CounterTotals> {
    counters::totals(run_dir).inspect_err(|e| log::warn!("cannot read the pages of counters: {e}")).ok()
}

/// Returns the counters and the current state, for Prometheus.
#[utoipa::path(get, path = "/metrics", tag = "daemon", operation_id = "get_metrics",
    responses(
        (status = 200, body = String, content_type = "text/plain", description = "The text format of Prometheus, or OpenMetrics if the client accepts it"),
        schema::ReadErrorResponses))]
async fn metrics(State(api): State<Api>, headers: HeaderMap) -> Response {
    let sources = &api.metrics.0;
    let until = Instant::now() + PATIENCE;
    let master = sources.master.ask(());
    let (counted, totals, spool, add_rates, held) = tokio::join!(
        api.metrics.ask_nodes(until),
        api.metrics.pages(until),
        api.metrics.spool(until),
        api.add_rates(),
        tokio::time::timeout_at(until, api.paused())
    );
    let accept = headers.get(ACCEPT).map(|v| String::from_utf8_lossy(v.as_bytes())).unwrap_or_default();
    let is_open_metrics = accept.contains("application/openmetrics-text");
    let mut text = MetricsText::new(is_open_metrics);
    if let Some(totals) = totals {
        totals.write_metrics(&mut text);
    }
    write_jobs(&mut text, &counted);
    if let Ok(held) = held {
        write_pauses(&mut text, &joined(&counted), &held);
    }
    write_outbox(&mut text, &counted);
    write_limits(&mut text, &joined(&counted), &api.topics.borrow());
    write_add_rates(&mut text, &add_rates, &api.topics.borrow());
    if let Some((state, max_bytes)) = spool {
        write_spool(&mut text, &state, max_bytes);
    }
    if let Some(status) = by(until, master).await.flatten() {
        write_processes(&mut text, &status);
    }
    text.family("dq_build_info", MetricKind::Gauge, "Always 1. The label names the release.");
    text.sample(&[("version", env!("CARGO_PKG_VERSION"))], 1.0);
    let kind = HeaderValue::from_static(MetricsText::content_type(is_open_metrics));
    ([(CONTENT_TYPE, kind)], text.end()).into_response()
}

/// Writes which topics are paused. If the store does not report the pauses, there are no samples.
fn write_pauses(text: &mut MetricsText, topics: &BTreeMap<TopicName, Counts>, held: &PausesAndCircuits) {
    text.family("dq_topic_paused", MetricKind::Gauge, "Whether the topic is paused: 1 or 0.");
    for topic in topics.keys() {
        if let Some((is_paused, _)) = held.state_of(topic.as_str()) {
            text.sample(&[("topic", topic.as_str())], f64::from(u8::from(is_paused)));
        }
    }
}

fn write_jobs(text: &mut MetricsText, nodes: &[NamedNodeReport<'_>]) {
    text.family("dq_store_up", MetricKind::Gauge, "Whether the node reports how many jobs it has: 1 or 0.");
    for (name, counts) in nodes {
        text.sample(&[("node", name)], f64::from(u8::from(counts.is_ok())));
    }
    let topics = joined(nodes);
    text.family("dq_jobs", MetricKind::Gauge, "Jobs in the store, on the nodes that answer.");
    for (topic, c) in &topics {
        for (state, n) in [("delayed", c.delayed), ("ready", c.ready), ("leased", c.leased), ("dead", c.dead)]
        {
            text.sample(&[("topic", topic.as_str()), ("state", state)], n as f64);
        }
    }
    let circuits =
        nodes.iter().filter_map(|(_, answer)| answer.as_ref().ok()).flat_map(|(_, c, _)| c.clone());
    let circuits: BTreeMap<TopicName, CircuitState> =
        CircuitView::join(circuits).into_iter().map(|view| (view.topic, view.state)).collect();
    text.family(
        "dq_circuit_state",
        MetricKind::Gauge,
        "The circuit of a topic: 0 closed, 1 half open (one job at a time tries), 2 open (all jobs wait).",
    );
    for topic in topics.keys().chain(circuits.keys().filter(|topic| !topics.contains_key(*topic))) {
        let state = match circuits.get(topic) {
            None => 0.0,
            Some(CircuitState::HalfOpen) => 1.0,
            Some(CircuitState::Open) => 2.0,
        };
        text.sample(&[("topic", topic.as_str())], state);
    }
    text.family(
        "dq_oldest_ready_seconds",
        MetricKind::Gauge,
        "For how long the oldest ready job has been due; 0: none is ready.",
    );
    let now_ms = now_ms();
    for (topic, counts) in &topics {
        let waits_ms = counts.oldest_ready_ms.map_or(0, |due_ms| now_ms.saturating_sub(due_ms).max(0));
        text.sample(&[("topic", topic.as_str())], waits_ms as f64 / 1e3);
    }
}

/// Writes how many bytes the topics have, and the limits of their jobs and bytes.
fn write_limits(text: &mut MetricsText, counts: &BTreeMap<TopicName, Counts>, topics: &Topics) {
    let bytes = "Bytes of a topic's jobs, dead letters included, on the nodes that answer and count them.";
    text.family("dq_topic_bytes", MetricKind::Gauge, bytes);
    for (topic, bytes) in counts.iter().filter_map(|(topic, c)| Some((topic, c.bytes?))) {
        text.sample(&[("topic", topic.as_str())], bytes as f64);
    }
    type TopicLimitReader = fn(&Topic) -> Option<f64>;
    let limits: [(&str, &str, TopicLimitReader); 2] = [
        ("dq_topic_max_pending", "How many jobs of a topic may be pending: max_pending.", |topic| {
            topic.max_pending.map(f64::from)
        }),
        ("dq_topic_max_bytes", "How many bytes the jobs of a topic may have: max_bytes.", |topic| {
            topic.max_bytes.map(|size| size.0 as f64)
        }),
    ];
    for (name, help, limit) in limits {
        text.family(name, MetricKind::Gauge, help);
        for (topic, limit) in topics.iter().filter_map(|topic| Some((topic, limit(topic)?))) {
            text.sample(&[("topic", topic.name.as_str())], limit);
        }
    }
}

/// Writes how fast clients add jobs to the topics with an `add_rate`, and how fast they may add jobs.
fn write_add_rates(text: &mut MetricsText, used: &BTreeMap<TopicName, u64>, topics: &Topics) {
    let limited = || topics.iter().filter_map(|topic| Some((&topic.name, topic.add_rate?)));
    let help = "How many jobs clients may add to a topic in a second: add_rate.";
    text.family("dq_topic_add_rate_limit", MetricKind::Gauge, help);
    for (topic, rate) in limited() {
        let a_second = f64::from(rate.jobs) / rate.per.as_secs_f64();
        text.sample(&[("topic", topic.as_str())], a_second);
    }
    let help = "How many jobs clients add in a second to a topic that has an add_rate, on this host.";
    text.family("dq_topic_add_rate_used", MetricKind::Gauge, help);
    for (topic, rate, jobs) in limited().filter_map(|(topic, rate)| Some((topic, rate, used.get(topic)?))) {
        text.sample(&[("topic", topic.as_str())], *jobs as f64 / rate.per.as_secs_f64());
    }
}

fn write_outbox(text: &mut MetricsText, nodes: &[NamedNodeReport<'_>]) {
    let states = || nodes.iter().filter_map(|(_, answer)| answer.as_ref().ok()).map(|(_, _, outbox)| outbox);
    let entries: u64 = states().map(|outbox| outbox.entries).sum();
    let oldest = states().map(|outbox| outbox.oldest).max().unwrap_or_default();
    for (name, help, value) in [
        (
            "dq_outbox_entries",
            "Jobs and events that follow jobs that have ended, and are not added yet.",
            entries as f64,
        ),
        (
            "dq_outbox_oldest_seconds",
            "For how long the oldest of these has waited; 0: none waits.",
            oldest.as_secs_f64(),
        ),
    ] {
        text.family(name, MetricKind::Gauge, help);
        text.sample(&[], value);
    }
}

fn write_spool(text: &mut MetricsText, state: &SpoolState, max_bytes: u64) {
    let waits_ms = state.oldest_ms.map_or(0, |since_ms| now_ms().saturating_sub(since_ms).max(0));
    for (name, help, value) in [
        ("dq_spool_entries", "Changes that wait on this host's disk for their nodes.", state.entries as f64),
        ("dq_spool_bytes", "Bytes that these changes take on the disk.", state.bytes as f64),
        ("dq_spool_max_bytes", "How many bytes they may take: store.spool.", max_bytes as f64),
        (
            "dq_spool_oldest_seconds",
            "For how long the oldest of these changes has waited; 0: none waits.",
            waits_ms as f64 / 1e3,
        ),
    ] {
        text.family(name, MetricKind::Gauge, help);
        text.sample(&[], value);
    }
}

fn write_processes(text: &mut MetricsText, status: &DaemonStatus) {
    // During a rolling restart, the processes of both generations report all restarts of their slot. So the restarts
    // are not added up. The greatest number is used.
    let mut restarts: BTreeMap<&str, u32> = BTreeMap::new();
    let mut processes: BTreeMap<(&str, &str), u32> = BTreeMap::new();
    for process in &status.processes {
        let sum = restarts.entry(&process.name).or_default();
        *sum = process.restarts.max(*sum);
        let state = match process.state {
            ProcessState::Waiting => "waiting",
            ProcessState::Starting => "starting",
            ProcessState::Up => "up",
            ProcessState::Draining => "draining",
            ProcessState::Killed => "killed",
            ProcessState::Gone => "gone",
        };
        *processes.entry((&process.name, state)).or_default() += 1;
    }
    text.family(
        "dq_process_restarts_total",
        MetricKind::Counter,
        "How often a slot's process ended unasked and was started again, since this dq-master was started.",
    );
    for (slot, n) in restarts {
        text.sample(&[("slot", slot)], f64::from(n));
    }
    text.family("dq_processes", MetricKind::Gauge, "Processes, by slot and state.");
    for ((slot, state), n) in processes {
        text.sample(&[("slot", slot), ("state", state)], f64::from(n));
    }
}
