//! Finds the topics that are late (the oldest ready job has waited for longer than `alert.late_after`), the topics
//! whose circuits are open, the topics whose jobs nobody delivers (`stranded`), and the topics that have nearly used up
//! their limits (`quotas`). A thread of its own asks the lanes of the store one after the other. When a lane is down,
//! the thread drops what the lane has reported about its waiting jobs. The lane's last report of paused topics and open
//! circuits still counts.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::Result;

use super::finding_kind::FindingKind;
use super::findings::FoundConditions;
use super::quotas::{TopicUsage, held, nearly_used};
use super::stranded::{WaitingJobs, problems, stranded};
use host::now_ms;
use model::job::TopicName;
use model::topic::TopicNonDeliveryReason;
use role::{self, Context, lock};
use store::{self, CircuitState, Counts, OutboxState, Store, StoreError};
use telemetry::history::add_rates;

/// The shortest and the longest time between two checks.
const PERIODS: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(5)];

/// An entry of the outbox should lead to an add at once. An entry that has waited for longer than this is a finding.
const OUTBOX_MAX: Duration = Duration::from_secs(300);

/// What one lane reports about its topics.
#[derive(Debug, Default)]
struct LaneTopicStates {
    waiting: WaitingJobs,
    /// The topics that have leased jobs.
    leased: BTreeSet<TopicName>,
    /// How many jobs and bytes each topic has.
    held: TopicUsage,
    /// The topics that are paused.
    paused: BTreeSet<TopicName>,
    /// The circuits that are not closed, each with its reason.
    open: BTreeMap<TopicName, String>,
    /// The outbox: how many entries wait for their adds, and for how long.
    outbox: OutboxState,
}

/// What was found in the last check.
pub(super) type LateFindings = Arc<Mutex<FoundConditions>>;

/// Starts the thread.
pub(super) fn watch(context: &mut Context) -> Result<LateFindings> {
    let late = LateFindings::default();
    let after = context.settings.alert.late_after;
    let lanes = (0..context.lanes()?.count()).map(|n| Ok((context.lane(n)?, LaneTopicStates::default())));
    let mut lanes: Vec<(Box<dyn Store>, LaneTopicStates)> = lanes.collect::<Result<_>>()?;
    let run_dir = context.settings.run_dir.clone();
    let (mut topics, found) = (context.topics()?, Arc::clone(&late));
    let period = (after.unwrap_or(PERIODS[1]) / 2).clamp(PERIODS[0], PERIODS[1]);
    role::vital_thread("late", move || {
        loop {
            for (store, report) in &mut lanes {
                match lane_report(store.as_mut()) {
                    Ok(now) => *report = now,
                    // It is not known how long the jobs of this lane wait. Another watcher reports that the lane is
                    // down.
                    Err(StoreError::NodeDown(_) | StoreError::Unavailable(_)) => report.waiting.clear(),
                    Err(e) => log::debug!("cannot read how long jobs wait: {e}"),
                }
            }
            topics.reload();
            let late = |condition: &FindingKind| match condition {
                FindingKind::TopicLate(topic) => Some(topic.clone()),
                _ => None,
            };
            let before: BTreeSet<String> = lock(&found).keys().filter_map(late).collect();
            let known = topics.now();
            let paused: BTreeSet<&TopicName> = lanes.iter().flat_map(|(_, report)| &report.paused).collect();
            let waiting = sums(lanes.iter().map(|(_, report)| &report.waiting));
            let is_wanted = |topic: &TopicName| known.is_delivered(topic.as_str()) && !paused.contains(topic);
            let mut now = match after {
                Some(after) => judge(&waiting, after, &before, now_ms(), is_wanted),
                None => FoundConditions::new(),
            };
            let registered = |name: &str| known.get(name).is_some();
            now.extend(circuits(lanes.iter().map(|(_, report)| &report.open), registered));
            // Until the registry is read for the first time, it is not known which topics exist.
            if topics.is_whole() {
                let is_leased = |name: &str| lanes.iter().any(|(_, report)| report.leased.contains(name));
                now.extend(stranded(&waiting, now_ms(), |name| match known.undelivered(name)? {
                    // Clients work on some jobs of the topic, so they will reserve the other jobs later.
                    TopicNonDeliveryReason::Pull if is_leased(name) => None,
                    why => Some(why),
                }));
            }
            now.extend(outbox_that_waits(lanes.iter().map(|(_, report)| &report.outbox)));
            now.extend(problems(known));
            let limited = known.iter().map(|topic| &**topic);
            let add_rates = add_rates(&run_dir, now_ms(), limited).unwrap_or_else(|e| {
                log::debug!("how fast clients add jobs is not known: {e}");
                BTreeMap::new()
            });
            now.extend(nearly_used(
                lanes.iter().map(|(_, report)| &report.held),
                known.iter().map(|topic| &**topic),
                &add_rates,
            ));
            *lock(&found) = now;
            std::thread::sleep(period);
        }
    })?;
    Ok(late)
}

/// Asks one lane for its waiting jobs, paused topics, and circuits.
fn lane_report(store: &mut dyn Store) -> store::Result<LaneTopicStates> {
    let mut open = store.circuits()?;
    let of = |counts: Counts| Some((counts.topic, (counts.ready, counts.oldest_ready_ms?)));
    let counts = store.counts()?;
    let held = held(&counts);
    let leased = counts.iter().filter(|one| one.leased > 0).map(|one| one.topic.clone()).collect();
    let waiting: WaitingJobs = counts.into_iter().filter_map(of).collect();
    // If the pause of a circuit is over, the circuit is half open. The next job is a probe, and the circuit is closed
    // if the receiver accepts it. Without waiting jobs, such a circuit delays nothing.
    open.retain(|circuit| circuit.state == CircuitState::Open || waiting.contains_key(&circuit.topic));
    let open = open.into_iter().map(|circuit| (circuit.topic, circuit.reason)).collect();
    let outbox = store.outbox()?;
    Ok(LaneTopicStates { waiting, leased, held, paused: store.paused()?.into_iter().collect(), open, outbox })
}

/// Returns a problem if an entry of an outbox has waited for too long.
fn outbox_that_waits<'a>(
    lanes: impl Iterator<Item = &'a OutboxState> + Clone,
) -> Option<(FindingKind, String)> {
    let oldest = lanes.clone().map(|outbox| outbox.oldest).max()?;
    let entries: u64 = lanes.map(|outbox| outbox.entries).sum();
    (oldest >= OUTBOX_MAX).then(|| {
        let waits = humantime::format_duration(Duration::from_secs(oldest.as_secs()));
        let jobs = if entries == 1 { "1 job waits".to_owned() } else { format!("{entries} jobs wait") };
        let detail = format!(
            "{jobs} to be added behind jobs that have ended, the oldest for {waits}: a node does not answer, or no timer runs"
        );
        (FindingKind::OutboxWaits, detail)
    })
}

/// Adds up the waiting jobs of all lanes.
fn sums<'a>(lanes: impl Iterator<Item = &'a WaitingJobs>) -> WaitingJobs {
    let mut sums = WaitingJobs::new();
    for (topic, (ready, oldest_ms)) in lanes.flatten() {
        let sum = sums.entry(topic.clone()).or_insert((0, *oldest_ms));
        *sum = (sum.0 + ready, sum.1.min(*oldest_ms));
    }
    sums
}

/// Returns the topics that are late. A topic that was late before stays late until its oldest job waits for less than
/// half of the limit.
fn judge(
    waiting: &WaitingJobs,
    after: Duration,
    before: &BTreeSet<String>,
    now_ms: i64,
    is_wanted: impl Fn(&TopicName) -> bool,
) -> FoundConditions {
    let describe = |(topic, (ready, oldest_ms)): (&TopicName, &(u64, i64))| {
        let waits = Duration::from_millis((now_ms - oldest_ms).max(0) as u64);
        let limit = if before.contains(topic.as_str()) { after / 2 } else { after };
        let waits_text = humantime::format_duration(Duration::from_secs(waits.as_secs()));
        let detail = format!("{ready} ready jobs are not delivered, the oldest for {waits_text}");
        let is_late = waits > limit && is_wanted(topic);
        is_late.then(|| (FindingKind::TopicLate(topic.as_str().to_owned()), detail))
    };
    waiting.iter().filter_map(describe).collect()
}

/// Returns the circuits that are open, each with its reason. (A circuit that lets a probe through is not closed yet.)
fn circuits<'a>(
    lanes: impl Iterator<Item = &'a BTreeMap<TopicName, String>>,
    is_delivered: impl Fn(&str) -> bool,
) -> FoundConditions {
    let open = lanes.flatten().filter(|(topic, _)| is_delivered(topic.as_str()));
    open.map(|(topic, why)| (FindingKind::CircuitOpen(topic.as_str().to_owned()), why.clone())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outbox_that_waits_for_five_minutes_is_told() {
        let state = |entries, secs| OutboxState { entries, oldest: Duration::from_secs(secs) };
        assert_eq!(outbox_that_waits([state(9, 299), state(0, 0)].iter()), None);
        let (condition, detail) = outbox_that_waits([state(9, 1), state(1, 300)].iter()).unwrap();
        assert_eq!(condition, FindingKind::OutboxWaits);
        assert!(detail.starts_with("10 jobs wait") && detail.contains("for 5m:"), "{detail}");
    }

    #[test]
    fn a_topic_is_late_beyond_its_time_and_no_longer_at_half_of_it() {
        let topic = |name: &str| TopicName::new(name).unwrap();
        let lane =
            |n: u64, oldest: i64| WaitingJobs::from([(topic("t"), (n, oldest)), (topic("gone"), (1, 0))]);
        let after = Duration::from_secs(60);
        let judged = |lanes: &[WaitingJobs], before: &[&str], now| {
            let before = before.iter().map(|t| (*t).to_owned()).collect();
            judge(&sums(lanes.iter()), after, &before, now, |topic| topic.as_str() == "t")
        };
        assert!(judged(&[lane(1, 10_000)], &[], 70_000).is_empty());
        let found = judged(&[lane(1, 10_000), lane(2, 5_000)], &[], 70_000);
        let detail = "3 ready jobs are not delivered, the oldest for 1m 5s".to_owned();
        assert_eq!(found, FoundConditions::from([(FindingKind::TopicLate("t".into()), detail)]));
        assert_eq!(judged(&[lane(1, 10_000)], &["t"], 41_000).len(), 1);
        assert!(judged(&[lane(1, 10_000)], &["t"], 40_000).is_empty());
    }

    #[test]
    fn a_circuit_that_is_open_on_any_lane_is_found_with_its_reason() {
        let topic = |name: &str| TopicName::new(name).unwrap();
        let lane =
            BTreeMap::from([(topic("t"), "5 failures: refused".to_owned()), (topic("gone"), String::new())]);
        let found = circuits([BTreeMap::new(), lane].iter(), |name| name == "t");
        let expected = (FindingKind::CircuitOpen("t".into()), "5 failures: refused".to_owned());
        assert_eq!(found, FoundConditions::from([expected]));
    }
}
