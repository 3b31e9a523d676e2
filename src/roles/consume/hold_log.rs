//! Remembers what held jobs back, so that an attempt that begins late can say why. Pure.
//!
//! The log has at most one entry for each topic, one entry for each lane, and one entry for the workers. So its size
//! has a limit.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use model::job::TopicName;
use model::late_start::{LateReason, LateStart, NOTED};

/// If a worker is free for less than this time, all workers count as busy.
const BREATH: Duration = Duration::from_secs(1);

/// The reasons that last held jobs back, and the times until which they did so.
#[derive(Debug)]
pub(super) struct LateReasonHistory {
    started: Instant,
    /// The first and the last moment of the time in which no worker was free. A worker that was free for less than
    /// [`BREATH`] does not count.
    workers_busy: Option<(Instant, Instant)>,
    /// For each lane: the time until which its store was not asked again after a failure.
    store_down: Vec<Option<Instant>>,
    topics: BTreeMap<TopicName, (LateReason, Instant)>,
}

impl LateReasonHistory {
    pub(super) fn new(lanes: usize, now: Instant) -> LateReasonHistory {
        LateReasonHistory {
            started: now,
            workers_busy: None,
            store_down: vec![None; lanes],
            topics: BTreeMap::new(),
        }
    }

    /// Forgets the topics that are not served.
    pub(super) fn keep(&mut self, is_served: impl Fn(&TopicName) -> bool) {
        self.topics.retain(|topic, _| is_served(topic));
    }

    /// Notes that a limit or a circuit held jobs of a topic back until `until`.
    pub(super) fn note_topic(&mut self, topic: &TopicName, reason: LateReason, until: Instant) {
        self.topics.insert(topic.clone(), (reason, until));
    }

    /// Notes that no worker is free.
    pub(super) fn note_workers_busy(&mut self, now: Instant) {
        let since = self.workers_busy.filter(|(_, last)| now.saturating_duration_since(*last) < BREATH);
        self.workers_busy = Some((since.map_or(now, |(since, _)| since), now));
    }

    /// Notes that the store of a lane failed, and is not asked before `until`.
    pub(super) fn note_store_down(&mut self, lane: usize, until: Instant) {
        self.store_down[lane] = Some(until);
    }

    /// Returns why an attempt begins late. None: it begins in time.
    pub(super) fn lateness(
        &self,
        topic: &TopicName,
        lane: usize,
        late: Duration,
        now: Instant,
    ) -> Option<LateStart> {
        if late < NOTED {
            return None;
        }
        let ms = u64::try_from(late.as_millis()).unwrap_or(u64::MAX);
        // None: the due time is before the start of this machine.
        let due = now.checked_sub(late);
        let after_due = |at: &Instant| due.is_none_or(|due| *at > due);
        let by_topic = self.topics.get(topic).filter(|(_, until)| after_due(until));
        let reason = match by_topic {
            Some((reason, _)) => *reason,
            None if self.store_down[lane].as_ref().is_some_and(after_due) => LateReason::StoreDown,
            None if self.were_workers_busy(due, late) => LateReason::WorkersBusy,
            None if after_due(&self.started) => LateReason::NotStarted,
            None => LateReason::Unknown,
        };
        Some(LateStart { ms, reason })
    }

    /// Returns whether all workers were busy for at least half of the time since a job was due. (A shorter time does
    /// not count. For example, the jobs of a topic that was just resumed may need all workers for a moment.)
    fn were_workers_busy(&self, due: Option<Instant>, late: Duration) -> bool {
        self.workers_busy.is_some_and(|(since, last)| {
            let from = due.map_or(since, |due| due.max(since));
            last.saturating_duration_since(from) * 2 >= late
        })
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
        let mut log = LateReasonHistory::new(2, now);
        let after = |seconds: u32| now + SECOND * seconds;
        let reason = |log: &LateReasonHistory, topic, lane, late: u32, at: u32| {
            log.lateness(topic, lane, SECOND * late, after(at)).map(|late| (late.ms, late.reason))
        };
        assert_eq!(log.lateness(&busy, 0, Duration::from_millis(999), after(60)), None);
        assert_eq!(reason(&log, &busy, 0, 61, 60), Some((61_000, LateReason::NotStarted)));
        assert_eq!(reason(&log, &busy, 0, 5, 60), Some((5_000, LateReason::Unknown)));
        let mut moment = LateReasonHistory::new(2, now);
        moment.note_workers_busy(after(59));
        assert_eq!(reason(&moment, &busy, 0, 5, 60), Some((5_000, LateReason::Unknown)), "only for a moment");
        let busy_since = |log: &mut LateReasonHistory, from_ms: u64| {
            for ms in (from_ms..=60_000).step_by(900) {
                log.note_workers_busy(now + Duration::from_millis(ms));
            }
        };
        busy_since(&mut log, 50_000);
        assert_eq!(reason(&log, &busy, 0, 5, 60), Some((5_000, LateReason::WorkersBusy)));
        assert_eq!(reason(&log, &busy, 0, 15, 60), Some((15_000, LateReason::WorkersBusy)));
        assert_eq!(
            reason(&log, &busy, 0, 30, 60),
            Some((30_000, LateReason::Unknown)),
            "busy for a third of it"
        );
        log.note_store_down(1, after(57));
        assert_eq!(reason(&log, &busy, 1, 5, 60), Some((5_000, LateReason::StoreDown)));
        log.note_topic(&limited, LateReason::TopicLimit, after(59));
        assert_eq!(reason(&log, &limited, 1, 5, 60), Some((5_000, LateReason::TopicLimit)));
        log.keep(|topic| *topic != limited);
        assert_eq!(reason(&log, &limited, 1, 5, 60), Some((5_000, LateReason::StoreDown)));
    }
}
