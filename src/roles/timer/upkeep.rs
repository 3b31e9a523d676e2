//! Regular work for all topics, on a thread of its own: reports which topics have jobs that nobody delivers, tells the
//! store what topics keep of ended jobs, and removes dead letters at the end of the time that their topic sets.

use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use anyhow::Result;
use model::topic::{Topic, Topics};
use role::TopicsOrigin;
use store::{Store, StoreError};

/// How often the thread looks for dead letters to remove, and tells the store what topics keep. It repeats this,
/// because a node may have been away, or may be new.
const EVERY: Duration = Duration::from_secs(60);

/// How long after the start, or after a change of the topics, the jobs of unregistered topics are reported. Further
/// changes in this time do not delay the report. At the first start, and after a restore, the topics of the registry
/// come a moment later than the topics of the configuration file.
const SETTLED: Duration = Duration::from_secs(5);

/// How soon the thread tries again if the topics are not confirmed.
const UNCONFIRMED: Duration = Duration::from_secs(5);

/// `STEP`: how many dead letters are removed in one step. Between two steps, other processes can use the store. `GO`:
/// how long one round may remove dead letters.
const STEP: usize = 256;
const GO: Duration = Duration::from_secs(10);

/// The topics that the timer knows.
#[derive(Default)]
pub(super) struct KnownTopics {
    pub topics: Topics,
    /// Where they come from. No dead letters are removed before the topics are confirmed. Otherwise a `keep_dead`
    /// that was lengthened while this host was stopped would have no effect at the start.
    pub origin: TopicsOrigin,
}

/// Starts the thread. The thread uses the topics that it received last, and ends when the sender is dropped.
pub(super) fn start(mut store: Box<dyn Store>, records_max: u64) -> Result<Sender<KnownTopics>> {
    let (sender, receiver) = channel::<KnownTopics>();
    role::vital_thread("upkeep", move || {
        let mut known = KnownTopics::default();
        let mut next: Option<Instant> = None;
        let mut report_at: Option<Instant> = None;
        let mut first_retired = 0;
        loop {
            let first = next.into_iter().chain(report_at).min();
            let wait = first.map(|at| at.saturating_duration_since(Instant::now()));
            let heard = match wait {
                None => receiver.recv().map_err(RecvTimeoutError::from),
                Some(wait) => receiver.recv_timeout(wait),
            };
            match heard {
                Ok(new) => {
                    if new.topics != known.topics || known.origin == TopicsOrigin::Unknown {
                        report_at.get_or_insert_with(|| Instant::now() + SETTLED);
                    }
                    known = new;
                    keep_records(store.as_mut(), &known, records_max);
                    // A change of one topic must not cause another search for dead letters right after the last search.
                    next = next.filter(|at| *at > Instant::now()).or_else(|| Some(Instant::now()));
                }
                Err(RecvTimeoutError::Timeout) if report_at.is_some_and(|at| at <= Instant::now()) => {
                    log_unregistered(store.as_mut(), &known.topics);
                    report_at = None;
                }
                Err(RecvTimeoutError::Timeout) => {
                    keep_records(store.as_mut(), &known, records_max);
                    let pause = if known.origin.is_confirmed() {
                        first_retired = retire(store.as_mut(), &known.topics, first_retired);
                        EVERY
                    } else {
                        UNCONFIRMED
                    };
                    next = Some(Instant::now() + pause);
                }
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    })?;
    Ok(sender)
}

/// Tells the store what topics keep of their ended jobs. This also says which jobs make events, so it
/// does not wait until the topics are confirmed. It waits only until all topics are known: the embedded store uses the
/// default for topics that are not named, and would remove their older records.
fn keep_records(store: &mut dyn Store, KnownTopics { topics, origin }: &KnownTopics, records_max: u64) {
    if *origin == TopicsOrigin::Unknown {
        return;
    }
    let keeping: Vec<_> = topics.iter().map(|topic| (topic.name.clone(), topic.record_keeping())).collect();
    match store.keep_records(&keeping, records_max) {
        Ok(()) => {}
        // Other parts report a node that is down. The node gets these settings in a later round.
        Err(StoreError::NodeDown(e) | StoreError::Moving(e)) => {
            log::debug!("cannot say what is kept of ended jobs: {e}");
        }
        Err(e) => log::warn!("cannot say what is kept of ended jobs: {e}"),
    }
}

/// Logs which topics have jobs but are not registered.
fn log_unregistered(store: &mut dyn Store, topics: &Topics) {
    let counts = match store.counts() {
        Ok(counts) => counts,
        Err(e) => return log::warn!("cannot count the jobs: {e}"),
    };
    for counts in counts.iter().filter(|c| topics.get(c.topic.as_str()).is_none()) {
        if let pending @ 1.. = counts.delayed + counts.ready + counts.leased {
            log::warn!(topic = counts.topic.as_str(); "{pending} jobs wait until the topic is registered");
        }
    }
}

/// Removes dead letters that were kept long enough. Begins at the topic with the number `first`. Returns the number of
/// the topic at which the next round begins: if there was no time for some topics, they come first then.
fn retire(store: &mut dyn Store, topics: &Topics, first: usize) -> usize {
    let until = Instant::now() + GO;
    let all: Vec<&Arc<Topic>> = topics.iter().filter(|topic| !topic.keep_dead.is_zero()).collect();
    for place in 0..all.len() {
        let number = (first + place) % all.len();
        if Instant::now() >= until {
            return number;
        }
        let (topic, mut sum) = (all[number], 0);
        while Instant::now() < until {
            match store.retire(&topic.name, topic.keep_dead, STEP) {
                Ok(0) => break,
                Ok(some) => sum += some,
                // Other code reports a node that is down.
                Err(StoreError::NodeDown(e)) => {
                    log::debug!("cannot remove old dead letters: {e}");
                    break;
                }
                Err(e) => {
                    log::warn!(topic = topic.name.as_str(); "cannot remove old dead letters: {e}");
                    break;
                }
            }
        }
        if sum > 0 {
            let kept = humantime::format_duration(topic.keep_dead);
            log::info!(topic = topic.name.as_str(); "{sum} dead letters are removed: kept for {kept}");
        }
    }
    0
}
