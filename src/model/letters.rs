//! Selects dead letters, and decides when redriven jobs are due. Pure.

use std::time::Duration;

use crate::job::Attempt;
use crate::tags::{Tag, Tags};
use crate::topic::Rate;

/// A filter of dead letters. A dead letter must meet all conditions that are set. An empty filter selects all dead
/// letters.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DeadLetterFilter {
    /// The text that the id begins with. Empty: any.
    pub id_prefix: String,
    /// The text that the id contains. Empty: any.
    pub id_contains: String,
    /// The job became a dead letter at this time or later, in Unix milliseconds.
    pub died_after_ms: Option<i64>,
    /// The job became a dead letter before this time, in Unix milliseconds.
    pub died_before_ms: Option<i64>,
    /// The text that the error of the last attempt contains. Empty: any.
    pub reason: String,
    /// The HTTP status of the last attempt.
    pub status: Option<u16>,
    /// A tag of the job.
    pub tag: Option<Tag>,
}

impl DeadLetterFilter {
    /// Returns whether the filter selects a dead letter with this id, these tags and this last attempt. `died_ms`: when
    /// the job became a dead letter, in Unix milliseconds.
    pub fn picks(&self, id: &str, tags: &Tags, died_ms: i64, last: Option<&Attempt>) -> bool {
        let has_reason = || self.reason.is_empty() || last.is_some_and(|a| a.error.contains(&self.reason));
        id.starts_with(&self.id_prefix)
            && id.contains(&self.id_contains)
            && self.died_after_ms.is_none_or(|at| died_ms >= at)
            && self.died_before_ms.is_none_or(|at| died_ms < at)
            && self.status.is_none_or(|status| last.is_some_and(|a| a.status == Some(status)))
            && self.tag.as_ref().is_none_or(|tag| tags.has(tag))
            && has_reason()
    }
}

/// When the jobs of one redrive are due, counted from the store's current time. By default, all jobs are due at once.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RedrivePace {
    /// When the first job is due.
    pub after: Duration,
    /// The time from one job to the next.
    pub every: Duration,
}

impl RedrivePace {
    /// Makes a pace. The first job is due when the time `after` has passed. The other jobs follow at the rate. Without
    /// a rate, all jobs are due when the time `after` has passed.
    pub fn new(rate: Option<Rate>, after: Duration) -> RedrivePace {
        RedrivePace { after, every: rate.map_or(Duration::ZERO, |rate| rate.per / rate.jobs.max(1)) }
    }

    /// Returns the pace for the jobs after the first `count` jobs. The spans of the returned pace count from a moment
    /// that is `elapsed` later than the start of this pace.
    pub fn behind(self, count: usize, elapsed: Duration) -> RedrivePace {
        RedrivePace { after: self.due(count).saturating_sub(elapsed), ..self }
    }

    /// Returns when a job is due, if `count` jobs come before it.
    pub fn due(self, count: usize) -> Duration {
        self.after.saturating_add(self.every.saturating_mul(count as u32))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_picks_by_all_of_what_it_says() {
        let last = Attempt {
            number: 3,
            at_ms: 900,
            took_ms: 5,
            status: Some(503),
            answer: String::new(),
            error: "status 503".into(),
            late: None,
        };
        let all = DeadLetterFilter::default();
        let reason = |reason: &str| DeadLetterFilter { reason: reason.into(), ..DeadLetterFilter::default() };
        let tags = Tags::new(["shop:7"]).unwrap();
        let of = |filter: &DeadLetterFilter| filter.picks("order-42", &tags, 1000, Some(&last));
        let with_tag =
            |tag: &str| DeadLetterFilter { tag: Some(Tag::new(tag).unwrap()), ..DeadLetterFilter::default() };
        assert!(of(&all) && all.picks("x", &tags, 0, None) && of(&with_tag("shop:7")));
        assert!(of(&DeadLetterFilter { id_prefix: "order-".into(), status: Some(503), ..reason("503") }));
        assert!(of(&DeadLetterFilter {
            died_after_ms: Some(1000),
            died_before_ms: Some(1001),
            ..reason("")
        }));
        for not in [
            DeadLetterFilter { id_prefix: "rder".into(), ..reason("") },
            DeadLetterFilter { id_contains: "43".into(), ..reason("") },
            DeadLetterFilter { died_after_ms: Some(1001), ..reason("") },
            DeadLetterFilter { died_before_ms: Some(1000), ..reason("") },
            DeadLetterFilter { status: Some(500), ..reason("") },
            reason("lease"),
            with_tag("shop:8"),
        ] {
            assert!(!of(&not), "{not:?}");
        }
        assert!(!reason("5").picks("x", &tags, 0, None), "one without an attempt has no reason");
    }

    #[test]
    fn a_pace_goes_on_where_it_was() {
        let [second, tenth] = [1000, 100].map(Duration::from_millis);
        let pace = RedrivePace::new(Some(Rate::per_second(10)), second);
        assert_eq!((pace.every, pace.due(5)), (tenth, second + 5 * tenth));
        assert_eq!(pace.behind(5, second).after, 5 * tenth);
        assert_eq!(pace.behind(0, 9 * second).after, Duration::ZERO);
        assert_eq!(RedrivePace::new(None, Duration::ZERO), RedrivePace::default());
        assert_eq!(RedrivePace::default().behind(7, second), RedrivePace::default());
    }
}
