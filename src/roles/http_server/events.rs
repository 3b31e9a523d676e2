//! The live state for the console, as server-sent events each second. The state is gathered once for all clients, and
//! only while there are clients.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Extension, State};
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use http_body_util::channel::{Channel, Sender};
use serde::Serialize;
use serde_json::Value;
use tokio::sync::{Mutex, watch};
use tokio::time::Instant;

use super::api::{Api, CallerContext};
use super::metrics::joined;
use super::pool::ResourcePool;
use super::problem::Problem;
use super::topic_shown::ShownCircuit;
use host::{findings, now_ms, whole_status};
use model::job::TopicName;
use model::metrics::{CounterTotals, LatenessHistogram, MetricSubject, Sums};
use model::token::VerifiedToken;
use model::topic::TopicStatus;

/// How often a client gets an event.
const EACH: Duration = Duration::from_secs(1);

/// How long a gathered state is shared with other clients.
const FRESH: Duration = Duration::from_millis(900);

/// How long the sources of the state may take to answer.
const PATIENCE: Duration = Duration::from_secs(2);

/// The percentiles of lateness cover the attempts in this time before the last reading of the counters.
const RECENT: Duration = Duration::from_secs(10);

/// How long one stream lasts. Then the browser connects again, and dq checks the access of the caller again.
const LONGEST: Duration = Duration::from_secs(3600);

/// A stream ends when its client reads nothing for this long.
const STALLED: Duration = Duration::from_secs(10);

/// How many clients may get events at the same time. There is a limit, because each second, dq compares all topics with
/// the last event of each client.
const LISTENERS: usize = 64;

/// How many of these places one client may take.
const OWN_LISTENERS: usize = LISTENERS / 2;

static SEATS: LazyLock<ResourcePool> = LazyLock::new(|| ResourcePool::new(LISTENERS, OWN_LISTENERS));

/// A topic at a moment.
#[derive(Debug, Clone, PartialEq, Serialize)]
struct LiveTopic {
    topic: TopicName,
    delayed: u64,
    ready: u64,
    leased: u64,
    dead: u64,
    oldest_ready_ms: Option<i64>,
    /// The bytes of the topic's jobs, dead letters included. Null: they are not counted.
    bytes: Option<u64>,
    /// How many jobs clients add in a period of `add_rate`. Null: the topic has no `add_rate`, or the number is not
    /// known.
    add_rate_used: Option<u64>,
    /// Whether the topic is paused. Null: the store does not answer.
    paused: Option<bool>,
    circuit: Option<ShownCircuit>,
    registered: bool,
    status: Option<TopicStatus>,
    sums: Sums,
}

/// The state at a moment. The sums in it never decrease.
#[derive(Debug)]
struct LiveState {
    at_ms: i64,
    topics: BTreeMap<TopicName, LiveTopic>,
    away: Vec<String>,
    /// The time of the last reading of the counters, in Unix milliseconds, and the counters. None: they were never
    /// read.
    counted: Option<(i64, Arc<CounterTotals>)>,
    /// How late the attempts of the last seconds began, in microseconds: the median and the 99th percentile. None:
    /// there were no attempts, or there is no earlier reading of the counters.
    late_us: Option<(u64, u64)>,
    sums: Option<Sums>,
    processes: Value,
    nodes: Value,
    alerts: Value,
}

/// The state that was gathered last, and the time when it was gathered.
#[derive(Default)]
pub(super) struct LiveCache(Mutex<LiveCacheState>);

#[derive(Default)]
struct LiveCacheState {
    last: Option<(Instant, Arc<LiveState>)>,
    lateness: RecentLateness,
}

impl LiveCache {
    async fn now(&self, api: &Api) -> Arc<LiveState> {
        let mut gathered = self.0.lock().await;
        if let Some((at, now)) = &gathered.last
            && at.elapsed() < FRESH
        {
            return Arc::clone(now);
        }
        let counted = gathered.last.as_ref().and_then(|(_, now)| now.counted.clone());
        let mut now = gather(api, counted).await;
        if let Some((at_ms, totals)) = &now.counted {
            now.late_us = gathered.lateness.take(*at_ms, totals.lateness());
        }
        let now = Arc::new(now);
        gathered.last = Some((Instant::now(), Arc::clone(&now)));
        now
    }
}

/// The readings of the last seconds. Each reading has its time, in Unix milliseconds, and the lateness of all attempts
/// until this time.
#[derive(Default)]
struct RecentLateness(VecDeque<(i64, LatenessHistogram)>);

impl RecentLateness {
    /// Adds a reading. Returns the median and the 99th percentile since the reading that was made [`RECENT`] earlier.
    fn take(&mut self, at_ms: i64, lateness: LatenessHistogram) -> Option<(u64, u64)> {
        let recent_ms = RECENT.as_millis() as i64;
        // Of the readings that are at least `RECENT` old, only the newest is kept. A reading that is older than twice
        // `RECENT` is always dropped: while no client listens, there may be no readings for hours.
        while self.0.get(1).is_some_and(|(second_ms, _)| *second_ms <= at_ms - recent_ms)
            || self.0.front().is_some_and(|(first_ms, _)| !(at_ms - 2 * recent_ms..=at_ms).contains(first_ms))
        {
            self.0.pop_front();
        }
        let before = self.0.front().map(|(_, before)| lateness.since(before));
        if self.0.back().is_none_or(|(last_ms, _)| *last_ms < at_ms) {
            self.0.push_back((at_ms, lateness));
        }
        let Some(recent) = before? else {
            self.0.drain(..self.0.len() - 1);
            return None;
        };
        recent.percentile_us(0.5).zip(recent.percentile_us(0.99))
    }
}

/// Gathers the state. Counters that cannot be read now keep their last values, because zeros would look like a restart
/// of the counting.
async fn gather(api: &Api, counted: Option<(i64, Arc<CounterTotals>)>) -> LiveState {
    let until = Instant::now() + PATIENCE;
    let settings = Arc::clone(&api.settings);
    let files = tokio::task::spawn_blocking(move || {
        let status = whole_status(&settings.run_dir, PATIENCE).ok();
        (serde_json::to_value(status), serde_json::to_value(findings(&settings.run_dir)))
    });
    let (node_counts, held, read, add_rates, files) = tokio::join!(
        api.metrics.ask_nodes(until),
        api.paused(),
        api.metrics.pages(until),
        api.add_rates(),
        files
    );
    let away = node_counts.iter().filter(|(_, counts)| counts.is_err()).map(|(name, _)| (*name).to_owned());
    let away = away.collect();
    let nodes = serde_json::to_value(api.nodes_as(&node_counts).await).unwrap_or_default();
    let (processes, alerts) = files.unwrap_or((Ok(Value::Null), Ok(Value::Null)));
    let counted = read.map(|totals| (now_ms(), Arc::new(totals))).or(counted);
    let totals = counted.as_ref().map(|(_, totals)| totals);
    let mut sums: BTreeMap<String, Sums> = BTreeMap::new();
    for (subject, of) in totals.into_iter().flat_map(|totals| totals.sums()) {
        if let MetricSubject::Topic(name) = subject {
            sums.insert(name, of);
        }
    }
    let (counts, registered) = (joined(&node_counts), api.topics.borrow().clone());
    let names = counts.keys().chain(registered.iter().map(|topic| &topic.name));
    let topic = |name: &TopicName| {
        let (counts, known) = (counts.get(name), registered.get(name.as_str()));
        let held = held.state_of(name.as_str());
        LiveTopic {
            topic: name.clone(),
            delayed: counts.map_or(0, |c| c.delayed),
            ready: counts.map_or(0, |c| c.ready),
            leased: counts.map_or(0, |c| c.leased),
            dead: counts.map_or(0, |c| c.dead),
            oldest_ready_ms: counts.and_then(|c| c.oldest_ready_ms),
            bytes: counts.and_then(|c| c.bytes),
            add_rate_used: add_rates.get(name).copied(),
            paused: held.map(|(is_paused, _)| is_paused),
            circuit: held.map(|(_, view)| ShownCircuit::from_view(view)),
            registered: known.is_some(),
            status: known.map(|topic| topic.status),
            sums: sums.get(name.as_str()).copied().unwrap_or_default(),
        }
    };
    LiveState {
        at_ms: now_ms(),
        topics: names.map(|name| (name.clone(), topic(name))).collect(),
        away,
        late_us: None,
        sums: totals.map(|_| sums.values().fold(Sums::default(), |all, of| all.plus(*of))),
        counted,
        processes: processes.unwrap_or_default(),
        nodes,
        alerts: alerts.unwrap_or_default(),
    }
}

/// An event. The first event has the whole state. A later event has the changes since the event before.
#[derive(Serialize)]
struct LiveEvent<'a> {
    at_ms: i64,
    full: bool,
    instance: &'a str,
    version: &'static str,
    topics: Vec<&'a LiveTopic>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    gone: Vec<&'a TopicName>,
    away: &'a [String],
    late_p50_us: Option<u64>,
    late_p99_us: Option<u64>,
    /// When the sums and the lateness were read. A client computes rates from this time. Null if the counters were
    /// never read.
    counted_at_ms: Option<i64>,
    sums: Option<Sums>,
    #[serde(skip_serializing_if = "Option::is_none")]
    processes: Option<&'a Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    nodes: Option<&'a Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    alerts: Option<&'a Value>,
}

impl<'a> LiveEvent<'a> {
    fn new(now: &'a LiveState, before: Option<&'a LiveState>, instance: &'a str) -> LiveEvent<'a> {
        let is_new = |topic: &&LiveTopic| before.is_none_or(|b| b.topics.get(&topic.topic) != Some(*topic));
        let gone = before.into_iter().flat_map(|b| b.topics.keys());
        let differs = |of: fn(&LiveState) -> &Value| {
            let now = of(now);
            before.is_none_or(|before| of(before) != now).then_some(now)
        };
        LiveEvent {
            at_ms: now.at_ms,
            full: before.is_none(),
            instance,
            version: env!("CARGO_PKG_VERSION"),
            topics: now.topics.values().filter(is_new).collect(),
            gone: gone.filter(|name| !now.topics.contains_key(*name)).collect(),
            away: &now.away,
            late_p50_us: now.late_us.map(|(p50, _)| p50),
            late_p99_us: now.late_us.map(|(_, p99)| p99),
            counted_at_ms: now.counted.as_ref().map(|(at_ms, _)| *at_ms),
            sums: now.sums,
            processes: differs(|now| &now.processes),
            nodes: differs(|now| &now.nodes),
            alerts: differs(|now| &now.alerts),
        }
    }

    fn framed(&self) -> Bytes {
        let json = serde_json::to_string(self).unwrap_or_default();
        format!("event: now\ndata: {json}\n\n").into()
    }
}

/// The route is not in `/openapi.json`, because its answer has no end.
pub(super) fn routes() -> Router<Api> {
    Router::new().route("/v1/events", get(events))
}

async fn events(
    State(api): State<Api>,
    requester: CallerContext,
    pass: Option<Extension<VerifiedToken>>,
) -> Response {
    let Some(seat) = SEATS.take(requester.holder, 1) else {
        let detail =
            format!("{LISTENERS} clients already follow the events, or {OWN_LISTENERS} are this one");
        return Problem::unavailable("busy", detail).into_response();
    };
    let (mut to, body) = Channel::<Bytes>::new(1);
    let closing = api.closing.subscribe();
    tokio::spawn(async move {
        let _seat = seat;
        // A client that goes away is not an error.
        let _ = send_events(&api, &mut to, closing, pass.map(|Extension(pass)| pass)).await;
    });
    ([(CONTENT_TYPE, "text/event-stream"), (CACHE_CONTROL, "no-store")], Body::new(body)).into_response()
}

async fn send_events(
    api: &Api,
    to: &mut Sender<Bytes>,
    mut closing: watch::Receiver<bool>,
    pass: Option<VerifiedToken>,
) -> Result<(), http_body_util::channel::SendError> {
    to.send_data(Bytes::from_static(b"retry: 1000\n\n")).await?;
    let begun = Instant::now();
    let mut before: Option<Arc<LiveState>> = None;
    loop {
        let round = Instant::now();
        let is_good = pass.as_ref().is_none_or(|p| api.tokens.borrow().passed(p, now_ms()).is_some());
        if !is_good || begun.elapsed() >= LONGEST || *closing.borrow() {
            return Ok(());
        }
        let now = api.live.now(api).await;
        if before.as_ref().is_none_or(|before| !Arc::ptr_eq(before, &now)) {
            let event = LiveEvent::new(&now, before.as_deref(), &api.settings.instance).framed();
            // A client that reads nothing must not delay the end of the process.
            tokio::select! {
                sent = tokio::time::timeout(STALLED, to.send_data(event)) => match sent {
                    Ok(sent) => sent?,
                    Err(_) => return Ok(()),
                },
                _ = closing.wait_for(|closing| *closing) => return Ok(()),
            }
            before = Some(now);
        }
        tokio::select! {
            () = tokio::time::sleep_until(round + EACH) => {}
            _ = closing.wait_for(|closing| *closing) => return Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn now(topics: &[(&str, u64)], alerts: Value) -> LiveState {
        let topic = |(name, ready): &(&str, u64)| {
            let topic = TopicName::new(name).unwrap();
            let of = LiveTopic {
                topic: topic.clone(),
                delayed: 0,
                ready: *ready,
                leased: 0,
                dead: 0,
                oldest_ready_ms: None,
                bytes: None,
                add_rate_used: None,
                paused: Some(false),
                circuit: Some(ShownCircuit::Closed),
                registered: true,
                status: Some(TopicStatus::Online),
                sums: Sums::default(),
            };
            (topic, of)
        };
        LiveState {
            at_ms: 1,
            topics: topics.iter().map(topic).collect(),
            away: vec![],
            counted: None,
            late_us: Some((1, 2)),
            sums: Some(Sums::default()),
            processes: Value::Null,
            nodes: Value::Null,
            alerts,
        }
    }

    #[test]
    fn one_is_told_all_at_first_and_then_what_is_not_as_it_was() {
        let (first, second) =
            (now(&[("a", 1), ("b", 1), ("c", 1)], "x".into()), now(&[("a", 1), ("b", 2)], "x".into()));
        let event_of = |now: &LiveState, before: Option<&LiveState>| -> Value {
            let framed = LiveEvent::new(now, before, "host").framed();
            let text = std::str::from_utf8(&framed).unwrap().to_owned();
            serde_json::from_str(text.strip_prefix("event: now\ndata: ").unwrap().trim_end()).unwrap()
        };
        let full = event_of(&first, None);
        assert_eq!((&full["full"], full["topics"].as_array().unwrap().len()), (&Value::Bool(true), 3));
        assert_eq!((&full["alerts"], &full["topics"][0]["circuit"]), (&"x".into(), &"closed".into()));
        let next = event_of(&second, Some(&first));
        assert_eq!(next["topics"].as_array().unwrap().len(), 1);
        assert_eq!((&next["topics"][0]["topic"], &next["gone"][0]), (&"b".into(), &"c".into()));
        assert!(next.get("alerts").is_none() && next["full"] == false, "{next}");
        assert_eq!(event_of(&now(&[], "y".into()), Some(&second))["alerts"], "y");
    }

    #[test]
    fn lateness_is_that_of_the_last_ten_seconds() {
        let mut recent = RecentLateness::default();
        let mut all = LatenessHistogram::default();
        let mut percentiles = None;
        for second in 0..60 {
            // In the first half, all attempts are an hour late. Later, no attempt is late.
            let bound_us = if second < 30 { 3_600_000_000 } else { 1000 };
            all.join(&LatenessHistogram::from_ranges([(Some(bound_us), 5)]));
            percentiles = recent.take(1000 * second, all.clone());
            assert_eq!(percentiles.is_some(), second > 0);
            assert_eq!(
                percentiles.is_some_and(|(_, p99)| p99 > 3_000_000_000),
                (1..39).contains(&second),
                "{second}"
            );
        }
        assert!(recent.0.len() <= 12 && percentiles.unwrap().0 <= 1000);
        assert_eq!(recent.take(59_000, all.clone()), percentiles, "nothing was read anew");
        assert_eq!(recent.take(3_600_000, all.clone()), None, "after a gap");
        assert_eq!(recent.take(3_601_000, LatenessHistogram::default()), None, "the counts have begun anew");
        assert_eq!(recent.take(3_602_000, LatenessHistogram::default()), None, "no attempts");
    }
}
