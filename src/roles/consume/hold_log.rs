//! Remembers what held jobs back, so that an attempt that begins late can say why. Pure.
//!
//! It has one entry for each topic and each lane, so it cannot grow.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use model::job::TopicName;
use model::late_start::{LateReason, LateStart, NOTED};

/// What held jobs back last, and until when.
#[derive(Debug)]
pub(super) struct HoldLog {
    started: Instant,
    /// When no worker was free the last time.
    workers_busy: Option<Instant>,
    /// For each lane: until when its store was not asked the last time, because it had failed.
    store_down: Vec<Option<Instant>>,
    topics: BTreeMap<TopicName, (LateReason, Instant)>,
}

impl HoldLog {
    pub(super) fn new(lanes: usize, now: Instant) -> HoldLog {
        HoldLog { started: now, workers_busy: None, store_down: vec![None; lanes], topics: BTreeMap::new() }
    }

    /// Forgets the topics that are not served.
    pub(super) fn keep(&mut self, is_served: impl Fn(&TopicName) -> bool) {
        self.topics.retain(|topic, _| is_served(topic));
    }

    /// Notes that a limit or a circuit held jobs of a topic back until then.
    pub(super) fn note_topic(&mut self, topic: &TopicName, reason: LateReason, until: Instant) {
        self.topics.insert(topic.clone(), (reason, until));
    }

    /// Notes that no worker is free.
    pub(super) fn note_workers_busy(&mut self, now: Instant) {
        self.workers_busy = Some(now);
    }

    /// Notes that the store of a lane failed, and is not asked until then.
    pub(super) fn note_store_down(&mut self, lane: usize, until: Instant) {
        self.store_down[lane] = Some(until);
    }

    /// Returns why an attempt begins late. None: it begins in time. `has_its_share`: its topic may begin no other callback
    /// now, because it has its share of the workers.
    pub(super) fn lateness(
        &self,
        topic: &TopicName,
        lane: usize,
        late: Duration,
        has_its_share: impl FnOnce() -> bool,
        now: Instant,
    ) -> Option<LateStart> {
        if late < NOTED {
            return None;
        }
        let ms = u64::try_from(late.as_millis()).unwrap_or(u64::MAX);
        // None: that is before this machine was started.
        let due = now.checked_sub(late);
        let after_due = |at: &Instant| due.is_none_or(|due| *at > due);
        let by_topic = self.topics.get(topic).filter(|(_, until)| after_due(until));
        let reason = match by_topic {
            Some((reason, _)) => *reason,
            None if self.store_down[lane].as_ref().is_some_and(after_due) => LateReason::StoreDown,
            None if self.workers_busy.as_ref().is_some_and(after_due) => LateReason::WorkersBusy,
            None if after_due(&self.started) => LateReason::NotStarted,
            None if has_its_share() => LateReason::WorkersBusy,
            None => LateReason::Unknown,
        };
        Some(LateStart { ms, reason })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_late_attempt_names_what_held_it_back() {
        let now = Instant::now();
        let (busy, limited) = (TopicName::new("busy").unwrap(), TopicName::new("limited").unwrap());
        let mut log = HoldLog::new(2, now);
        let after = |seconds: u32| now + SECOND * seconds;
        let reason = |log: &HoldLog, topic, lane, late: u32, at: u32| {
            log.lateness(topic, lane, SECOND * late, || false, after(at)).map(|late| (late.ms, late.reason))
        };
        assert_eq!(log.lateness(&busy, 0, Duration::from_millis(999), || false, after(60)), None);
        let share = log.lateness(&busy, 0, SECOND, || true, after(60)).unwrap();
        assert_eq!(share.reason, LateReason::WorkersBusy);
        assert_eq!(reason(&log, &busy, 0, 61, 60), Some((61_000, LateReason::NotStarted)));
        assert_eq!(reason(&log, &busy, 0, 5, 60), Some((5_000, LateReason::Unknown)));
        log.note_workers_busy(after(58));
        assert_eq!(reason(&log, &busy, 0, 5, 60), Some((5_000, LateReason::WorkersBusy)));
        assert_eq!(reason(&log, &busy, 0, 1, 60), Some((1_000, LateReason::Unknown)));
        log.note_store_down(1, after(57));
        assert_eq!(reason(&log, &busy, 1, 5, 60), Some((5_000, LateReason::StoreDown)));
        log.note_topic(&limited, LateReason::TopicLimit, after(59));
        assert_eq!(reason(&log, &limited, 1, 5, 60), Some((5_000, LateReason::TopicLimit)));
        log.keep(|topic| *topic != limited);
        assert_eq!(reason(&log, &limited, 1, 5, 60), Some((5_000, LateReason::StoreDown)));
    }
}
