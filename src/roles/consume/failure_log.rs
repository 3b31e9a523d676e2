//! Limits how many failed attempts are logged, so that receivers that fail fast do not fill the disk. Pure, except for
//! the log.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use model::job::TopicName;

/// The time for which lines are counted. It begins with the first line.
const WINDOW: Duration = Duration::from_secs(60);

/// The limits of lines within `WINDOW`: for one topic, and for all topics together.
const LINES_OF_TOPIC: u32 = 100;
const LINES: u32 = 1000;

/// The lines of the present minute, and the failures without a line.
#[derive(Debug, Default)]
pub(super) struct FailureLog {
    since: Option<Instant>,
    lines: u32,
    topics: BTreeMap<TopicName, TopicFailures>,
}

#[derive(Debug, Default)]
struct TopicFailures {
    lines: u32,
    /// The failed attempts without a line. Their jobs are tried again.
    failed: u64,
    /// The dead letters without a line.
    dead: u64,
}

impl FailureLog {
    /// Returns whether a failure gets a line. A failure without a line is counted.
    pub(super) fn admits(&mut self, topic: &TopicName, is_dead: bool, now: Instant) -> bool {
        if self.since.is_some_and(|since| now.saturating_duration_since(since) >= WINDOW) {
            self.log_rest();
        }
        self.since.get_or_insert(now);
        let of_topic = self.topics.entry(topic.clone()).or_default();
        if of_topic.lines < LINES_OF_TOPIC && self.lines < LINES {
            of_topic.lines += 1;
            self.lines += 1;
            return true;
        }
        *(if is_dead { &mut of_topic.dead } else { &mut of_topic.failed }) += 1;
        false
    }

    /// Returns when the next summary is due. `None`: each failure has its line.
    pub(super) fn due(&self) -> Option<Instant> {
        let left_out = |of_topic: &TopicFailures| of_topic.failed + of_topic.dead > 0;
        self.since.filter(|_| self.topics.values().any(left_out)).map(|since| since + WINDOW)
    }

    /// Logs a summary of the failures that got no line, if their minute is over.
    pub(super) fn log_due(&mut self, now: Instant) {
        if self.due().is_some_and(|at| at <= now) {
            self.log_rest();
        }
    }

    /// Logs how many failures got no line.
    pub(super) fn log_rest(&mut self) {
        for (topic, failures) in self.left_out() {
            let TopicFailures { failed, dead, .. } = failures;
            log::error!(
                target: "notify", topic = topic.as_str();
                "{failed} more failed attempts and {dead} more dead letters within a minute have no line"
            );
        }
    }

    /// Returns the topics with failures that were not logged. A new minute begins at the next failure.
    fn left_out(&mut self) -> Vec<(TopicName, TopicFailures)> {
        (self.since, self.lines) = (None, 0);
        let topics = std::mem::take(&mut self.topics).into_iter();
        topics.filter(|(_, failures)| failures.failed + failures.dead > 0).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_minute_has_a_bounded_number_of_lines() {
        let name = |text: &str| TopicName::new(text).unwrap();
        let (mut failures, now) = (FailureLog::default(), Instant::now());
        let admitted = (0..5000).filter(|n| failures.admits(&name("a"), n % 2 == 0, now)).count();
        assert_eq!(admitted, 100);
        assert!(failures.admits(&name("b"), true, now + WINDOW / 2));
        assert_eq!(failures.due(), Some(now + WINDOW));
        let left_out = failures.left_out();
        let counts: Vec<_> = left_out.iter().map(|(topic, f)| (topic.as_str(), f.failed, f.dead)).collect();
        assert_eq!(counts, [("a", 2450, 2450)]);
        assert_eq!(failures.due(), None);
        // All topics together.
        let admitted =
            (0..3000).filter(|n| failures.admits(&name(&format!("t{}", n % 30)), true, now)).count();
        assert_eq!(admitted, 1000);
        // The next minute has its own limits.
        assert!(failures.admits(&name("a"), true, now + WINDOW));
        assert_eq!((failures.due(), failures.topics.len()), (None, 1));
    }
}
