//! Finds in the audit log when a topic was paused. So the log of a late attempt can name the pause. A consumer does not
//! see pauses, so it reports an unknown reason for the late start.

use std::time::Duration;

use super::api::Api;
use model::audit::AuditEntry;
use model::job::{Attempt, TopicName};
use model::late_start::LateReason;

/// How long the registry may take to return entries of the audit log.
const PATIENCE: Duration = Duration::from_secs(1);

/// How many of the latest entries of the audit log are searched.
const ENTRIES: usize = 1000;

/// The beginning and the end of each pause of a topic, in Unix milliseconds. The earliest pause is first.
#[derive(Debug, PartialEq, Eq)]
struct PauseIntervals(Vec<(i64, i64)>);

impl PauseIntervals {
    /// `entries` are the entries of the topic, the latest first. A repeated pause or resume changes nothing.
    fn new(entries: &[AuditEntry]) -> PauseIntervals {
        let mut times = Vec::new();
        let mut begin = None;
        for entry in entries.iter().rev() {
            match entry.action.as_str() {
                "topic.pause" => begin = begin.or(Some(entry.at_ms)),
                "topic.resume" => times.extend(begin.take().map(|begin| (begin, entry.at_ms))),
                _ => {}
            }
        }
        // If no resume follows the last pause, the topic is still paused.
        times.extend(begin.map(|begin| (begin, i64::MAX)));
        PauseIntervals(times)
    }

    /// Returns whether the topic was paused at any time between the due time and the beginning of the attempt.
    fn explains(&self, attempt: &Attempt) -> bool {
        let late_ms = attempt.late.map_or(0, |late| i64::try_from(late.ms).unwrap_or(i64::MAX));
        let due_ms = attempt.at_ms.saturating_sub(late_ms);
        self.0.iter().any(|(begin, end)| *begin < attempt.at_ms && *end > due_ms)
    }
}

fn has_unknown_reason(attempt: &Attempt) -> bool {
    attempt.late.is_some_and(|late| late.reason == LateReason::Unknown)
}

impl Api {
    /// Returns the latest entries of the audit log about a topic, the latest first. If the registry does not answer,
    /// there are no entries.
    pub(super) async fn audit_of_topic(&self, name: &TopicName) -> Vec<AuditEntry> {
        let asked = self.registrar.ask(|registry| registry.audit(None, ENTRIES));
        let Ok(Ok(entries)) = tokio::time::timeout(PATIENCE, asked).await else { return Vec::new() };
        entries.into_iter().map(|(_, entry)| entry).filter(|entry| entry.target == name.as_str()).collect()
    }

    /// If the reason for a late attempt is unknown and a pause of the topic explains the delay, sets the pause as the
    /// reason.
    pub(super) async fn name_pauses(&self, topic: &TopicName, attempts: impl Iterator<Item = &mut Attempt>) {
        let mut attempts: Vec<&mut Attempt> =
            attempts.filter(|attempt| has_unknown_reason(attempt)).collect();
        if attempts.is_empty() {
            return;
        }
        let times = PauseIntervals::new(&self.audit_of_topic(topic).await);
        for attempt in attempts.iter_mut().filter(|attempt| times.explains(attempt)) {
            attempt.late.iter_mut().for_each(|late| late.reason = LateReason::TopicPaused);
        }
    }
}

#[cfg(test)]
mod tests {
    use model::late_start::LateStart;

    use super::*;

    #[test]
    fn an_attempt_is_late_by_a_pause_that_ended_after_its_due_time() {
        let entry = |at_ms, action: &str| AuditEntry {
            at_ms,
            who: String::new(),
            action: action.to_owned(),
            target: "t".to_owned(),
            detail: String::new(),
            jobs: None,
        };
        let times = PauseIntervals::new(&[
            entry(9_000, "topic.pause"),
            entry(5_000, "topic.resume"),
            entry(4_500, "topic.resume"),
            entry(3_000, "topic.change"),
            entry(2_500, "topic.pause"),
            entry(2_000, "topic.pause"),
            entry(1_000, "topic.resume"),
        ]);
        assert_eq!(times, PauseIntervals(vec![(2_000, 4_500), (9_000, i64::MAX)]));
        let explains = |due_ms: i64, at_ms: i64| {
            let late = LateStart { ms: u64::try_from(at_ms - due_ms).unwrap(), reason: LateReason::Unknown };
            let attempt = Attempt {
                number: 1,
                at_ms,
                took_ms: 1,
                status: None,
                answer: String::new(),
                error: String::new(),
                late: Some(late),
            };
            times.explains(&attempt)
        };
        assert!(explains(3_000, 4_600) && explains(1_500, 4_600) && explains(3_000, 3_500));
        assert!(!explains(4_600, 6_000) && !explains(500, 1_900));
        assert!(explains(8_000, 10_000), "it is paused, and one job was leased by hand");
    }
}
