//! What the receiver of a topic did: how attempts ended, how long they took, and which failures there were.
//!
//! The statuses in [`STATUSES`] are counted separately. All other statuses are counted by their class, so that each
//! topic needs the same number of cells.

use super::histogram::{ATTEMPT_BOUNDS, Histogram};
use crate::topic::Failure;

/// The kinds of failures that have no HTTP status.
const KINDS: [Failure; 4] = [Failure::Connect, Failure::Timeout, Failure::Broken, Failure::Answer];

/// How many classes of statuses there are: `1xx` to `5xx`.
const CLASSES: usize = 5;

/// The statuses that have a number of their own. New statuses are added at the end, because the position of a status in
/// this list decides the place of its number in pages and samples.
const STATUSES: [u16; 34] = [
    301, 302, 303, 307, 308, 400, 401, 402, 403, 404, 405, 406, 408, 409, 410, 411, 412, 413, 414, 415, 421,
    422, 423, 425, 429, 451, 500, 501, 502, 503, 504, 520, 522, 524,
];

/// How many of the numbers are counts of failures.
pub(super) const FAILURES: usize = KINDS.len() + CLASSES + STATUSES.len();

/// Returns the place of the number that counts a failure.
pub(super) fn failure_place(failure: Failure) -> usize {
    let class = |class: u16| KINDS.len() + usize::from(class.clamp(1, CLASSES as u16)) - 1;
    match failure {
        Failure::Connect => 0,
        Failure::Timeout => 1,
        Failure::Broken => 2,
        Failure::Answer => 3,
        Failure::Class(n) => class(n),
        Failure::Status(status) => STATUSES
            .iter()
            .position(|known| *known == status)
            .map_or_else(|| class(status / 100), |at| KINDS.len() + CLASSES + at),
    }
}

/// Returns the failure that the number at this place counts. The number of a class counts the statuses of this class
/// that have no number of their own.
fn failure_at(place: usize) -> Failure {
    match place.checked_sub(KINDS.len()) {
        None => KINDS[place],
        Some(class) if class < CLASSES => Failure::Class(class as u16 + 1),
        Some(status) => Failure::Status(STATUSES[status - CLASSES]),
    }
}

const ACCEPTED: usize = 0;
const FAILED: usize = 1;
const LATER: usize = 2;
const DURATION: usize = 3;
const FAILURE: usize = DURATION + Histogram::cells(&ATTEMPT_BOUNDS);

/// What a receiver did. The numbers are totals since the pages of counters were made, or the numbers of a span of time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReceiverCounts([u64; ReceiverCounts::COUNT]);

impl Default for ReceiverCounts {
    fn default() -> ReceiverCounts {
        ReceiverCounts([0; ReceiverCounts::COUNT])
    }
}

impl ReceiverCounts {
    /// How many numbers there are.
    pub const COUNT: usize = FAILURE + FAILURES;

    /// Makes counts from numbers in their order. Numbers that are missing are 0.
    pub fn new(numbers: impl IntoIterator<Item = u64>) -> ReceiverCounts {
        let mut counts = ReceiverCounts::default();
        counts.0.iter_mut().zip(numbers).for_each(|(count, number)| *count = number);
        counts
    }

    /// Makes counts from the parts of a page. `duration` begins with the cells of the histogram, and `failures` begins
    /// with the counts of failures.
    pub(super) fn from_cells(
        [accepted, failed, later]: [u64; 3],
        duration: &[u64],
        failures: &[u64],
    ) -> ReceiverCounts {
        let duration = &duration[..Histogram::cells(&ATTEMPT_BOUNDS)];
        let numbers = [accepted, failed, later].into_iter().chain(duration.iter().copied());
        ReceiverCounts::new(numbers.chain(failures[..FAILURES].iter().copied()))
    }

    /// Returns all numbers, in their order.
    pub fn numbers(&self) -> &[u64; ReceiverCounts::COUNT] {
        &self.0
    }

    /// Returns what the receiver did after the moment of the counts `before`. None: the counts were reset to 0 after
    /// that moment.
    pub fn since(&self, before: &ReceiverCounts) -> Option<ReceiverCounts> {
        let falls = self.0.iter().zip(before.0).any(|(now, before)| *now < before);
        (!falls).then(|| ReceiverCounts(std::array::from_fn(|i| self.0[i] - before.0[i])))
    }

    /// Returns the number of attempts in which the receiver accepted the job.
    pub fn accepted(&self) -> u64 {
        self.0[ACCEPTED]
    }

    /// Returns the number of attempts in which the receiver did not accept the job.
    pub fn failed(&self) -> u64 {
        self.0[FAILED]
    }

    /// Returns the number of attempts that the receiver answers later.
    pub fn later(&self) -> u64 {
        self.0[LATER]
    }

    /// Returns the number of all attempts.
    pub fn attempts(&self) -> u64 {
        self.accepted() + self.failed() + self.later()
    }

    /// Returns the share of the attempts in which the receiver accepted the job. Attempts that the receiver answers
    /// later do not count. None: no attempt has a result yet.
    pub fn success_rate(&self) -> Option<f64> {
        let ended = self.accepted() + self.failed();
        (ended > 0).then(|| self.accepted() as f64 / ended as f64)
    }

    /// Returns how long attempts took: how many are in each range, and the upper bound of the range in microseconds.
    /// The last range has no upper bound.
    pub fn durations(&self) -> impl Iterator<Item = (Option<u64>, u64)> {
        let counts = &self.0[DURATION..=DURATION + ATTEMPT_BOUNDS.len()];
        counts.iter().enumerate().map(|(at, count)| (ATTEMPT_BOUNDS.get(at).copied(), *count))
    }

    /// Returns a percentile of the durations, in microseconds: the upper bound of the range that contains the
    /// percentile. `part` is 0.5 for the median. None: there were no attempts, or the percentile is above the last
    /// bound.
    pub fn duration_us(&self, part: f64) -> Option<u64> {
        let all: u64 = self.durations().map(|(_, count)| count).sum();
        let wanted = ((all as f64 * part).ceil() as u64).max(1);
        let mut sum = 0;
        self.durations().find_map(|(bound, count)| {
            sum += count;
            (sum >= wanted).then_some(bound)
        })?
    }

    /// Returns the failures, and how many attempts ended with each failure, the most frequent first. A class stands for
    /// its statuses that are not counted separately.
    pub fn failures(&self) -> Vec<(Failure, u64)> {
        let counts = self.0[FAILURE..].iter().enumerate().filter(|(_, count)| **count > 0);
        let mut failures: Vec<_> = counts.map(|(place, count)| (failure_at(place), *count)).collect();
        failures.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        failures
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_failure_has_a_number_and_rare_statuses_share_one() {
        for place in 0..FAILURES {
            assert_eq!(failure_place(failure_at(place)), place);
        }
        let counted = |status| failure_at(failure_place(Failure::Status(status)));
        assert_eq!(counted(503), Failure::Status(503));
        assert_eq!(counted(418), Failure::Class(4));
        assert_eq!(counted(204), Failure::Class(2));
        assert_eq!((counted(42), counted(999)), (Failure::Class(1), Failure::Class(5)));
    }

    #[test]
    fn percentiles_are_upper_bounds_of_ranges() {
        let none = ReceiverCounts::default();
        assert_eq!((none.duration_us(0.5), none.success_rate(), none.failures()), (None, None, Vec::new()));
        let mut some = none;
        (some.0[ACCEPTED], some.0[FAILED], some.0[LATER]) = (6, 2, 2);
        // Nine attempts took up to a millisecond, and one took more than a minute.
        (some.0[DURATION], some.0[DURATION + ATTEMPT_BOUNDS.len()]) = (9, 1);
        assert_eq!((some.duration_us(0.5), some.duration_us(0.9)), (Some(1000), Some(1000)));
        assert_eq!(some.duration_us(0.99), None, "it is longer than the last bound");
        assert_eq!((some.attempts(), some.success_rate()), (10, Some(0.75)));
        assert_eq!(some.since(&none), Some(some));
        assert_eq!(none.since(&some), None, "the counters have begun anew");
    }
}
