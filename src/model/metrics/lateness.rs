//! How late attempts began: the ranges, and percentiles that are computed from them. From 1 ms to 7 days, the ranges
//! are so narrow that the error of a percentile is at most a sixteenth.

use super::histogram::Histogram;

/// The bounds that `/metrics` shows, in microseconds. Each of these bounds is also in [`LATENESS_BOUNDS`].
pub const LATENESS_SHOWN: [u64; 22] = [
    1_000,
    2_000,
    5_000,
    10_000,
    20_000,
    50_000,
    100_000,
    250_000,
    500_000,
    1_000_000,
    2_500_000,
    5_000_000,
    10_000_000,
    30_000_000,
    60_000_000,
    300_000_000,
    600_000_000,
    1_800_000_000,
    3_600_000_000,
    21_600_000_000,
    86_400_000_000,
    604_800_000_000,
];

/// The smallest width of a range, in microseconds. The width is about a sixteenth of 1 ms. So percentiles below 1 ms
/// are less exact.
const WIDTH_LEAST: u64 = 60;

/// Returns the bound that follows `bound`: it is a sixteenth higher, but at least [`WIDTH_LEAST`] higher. It is never
/// higher than `shown`, which is the next bound of [`LATENESS_SHOWN`].
const fn next_bound(bound: u64, shown: u64) -> u64 {
    let step = if bound / 16 > WIDTH_LEAST { bound / 16 } else { WIDTH_LEAST };
    if bound + step < shown { bound + step } else { shown }
}

const fn count_bounds() -> usize {
    let (mut count, mut bound, mut shown) = (0, 0, 0);
    while shown < LATENESS_SHOWN.len() {
        bound = next_bound(bound, LATENESS_SHOWN[shown]);
        if bound == LATENESS_SHOWN[shown] {
            shown += 1;
        }
        count += 1;
    }
    count
}

/// The upper bounds of the ranges, in microseconds. One more range has all values above the last bound.
pub const LATENESS_BOUNDS: [u64; count_bounds()] = {
    let (mut bounds, mut at, mut bound, mut shown) = ([0; count_bounds()], 0, 0, 0);
    while at < bounds.len() {
        bound = next_bound(bound, LATENESS_SHOWN[shown]);
        if bound == LATENESS_SHOWN[shown] {
            shown += 1;
        }
        bounds[at] = bound;
        at += 1;
    }
    bounds
};

/// How many ranges there are.
pub const LATENESS_RANGES: usize = LATENESS_BOUNDS.len() + 1;

/// How late attempts began: the number of attempts in each range.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LatenessHistogram([u64; LATENESS_RANGES]);

impl Default for LatenessHistogram {
    fn default() -> LatenessHistogram {
        LatenessHistogram([0; LATENESS_RANGES])
    }
}

impl LatenessHistogram {
    /// Makes a [`LatenessHistogram`] from the number of attempts in each range. Numbers that are missing are 0.
    pub fn new(counts: impl IntoIterator<Item = u64>) -> LatenessHistogram {
        let mut lateness = LatenessHistogram::default();
        lateness.0.iter_mut().zip(counts).for_each(|(mine, count)| *mine = count);
        lateness
    }

    /// Makes a [`LatenessHistogram`] from ranges that have attempts: the upper bound of each range, in microseconds,
    /// and the number of attempts. The range above all bounds has no upper bound.
    pub fn from_ranges(ranges: impl IntoIterator<Item = (Option<u64>, u64)>) -> LatenessHistogram {
        let mut lateness = LatenessHistogram::default();
        for (bound, count) in ranges {
            lateness.0[range_of(bound.unwrap_or(u64::MAX))] += count;
        }
        lateness
    }

    /// Returns the ranges that have attempts, in the form of [`LatenessHistogram::from_ranges`].
    pub fn ranges(&self) -> impl Iterator<Item = (Option<u64>, u64)> {
        let ranges = self.0.iter().enumerate().filter(|(_, count)| **count > 0);
        ranges.map(|(at, count)| (LATENESS_BOUNDS.get(at).copied(), *count))
    }

    /// Returns the number of attempts in each range.
    pub fn counts(&self) -> &[u64; LATENESS_RANGES] {
        &self.0
    }

    /// Adds the attempts of another [`LatenessHistogram`].
    pub fn join(&mut self, other: &LatenessHistogram) {
        self.0.iter_mut().zip(other.0).for_each(|(mine, count)| *mine = mine.wrapping_add(count));
    }

    /// Returns the attempts after the moment of `before`. None: the numbers were reset to 0 after that moment.
    pub fn since(&self, before: &LatenessHistogram) -> Option<LatenessHistogram> {
        let falls = self.0.iter().zip(before.0).any(|(now, before)| *now < before);
        (!falls).then(|| LatenessHistogram(std::array::from_fn(|at| self.0[at] - before.0[at])))
    }

    /// Returns the lateness, in microseconds, that this share of the attempts did not exceed. Within a range, the
    /// attempts are assumed to be spread evenly. If the result is above the last bound, the last bound is returned.
    /// None: there are no attempts.
    pub fn percentile_us(&self, share: f64) -> Option<u64> {
        let wanted = share * self.0.iter().sum::<u64>() as f64;
        let mut below = 0.0;
        for (at, count) in self.0.iter().enumerate().filter(|(_, count)| **count > 0) {
            let count = *count as f64;
            if below + count >= wanted {
                let low = if at == 0 { 0 } else { LATENESS_BOUNDS[at - 1] };
                let high = LATENESS_BOUNDS.get(at).copied().unwrap_or(low);
                return Some(low + ((high - low) as f64 * ((wanted - below) / count).clamp(0.0, 1.0)) as u64);
            }
            below += count;
        }
        None
    }
}

impl<'a> From<&Histogram<'a>> for LatenessHistogram {
    fn from(histogram: &Histogram<'a>) -> LatenessHistogram {
        LatenessHistogram::new(histogram.counts().iter().copied())
    }
}

/// Returns the range of a value, in microseconds.
pub(super) fn range_of(value_us: u64) -> usize {
    LATENESS_BOUNDS.partition_point(|bound| *bound < value_us)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_range_is_at_most_a_sixteenth_wide() {
        assert!(LATENESS_BOUNDS.is_sorted_by(|a, b| a < b));
        assert!(LATENESS_SHOWN.iter().all(|shown| LATENESS_BOUNDS.contains(shown)));
        assert_eq!(LATENESS_BOUNDS.last(), LATENESS_SHOWN.last());
        for two in LATENESS_BOUNDS.windows(2).filter(|two| two[0] >= 1000) {
            assert!(two[1] - two[0] <= two[0] / 16, "{two:?}");
        }
    }

    #[test]
    fn a_percentile_is_close_to_the_attempts() {
        for value_us in [1000, 5_000_000, 3_435_000_000, 5 * 86_400_000_000_u64] {
            let mut lateness = LatenessHistogram::default();
            lateness.0[range_of(value_us)] = 7;
            for share in [0.01, 0.5, 0.99] {
                let percentile = lateness.percentile_us(share).unwrap();
                assert!(
                    percentile.abs_diff(value_us) <= value_us / 16,
                    "{value_us} is shown as {percentile}"
                );
            }
        }
        // Example: a daemon has been up for eight minutes, and all its attempts began eight minutes late. The
        // percentile must not be much longer.
        let late = LatenessHistogram::from_ranges([(Some(LATENESS_BOUNDS[range_of(480_000_000)]), 100)]);
        assert!(late.percentile_us(0.5).unwrap() < 511_000_000);
        assert_eq!(LatenessHistogram::default().percentile_us(0.5), None);
        let beyond = LatenessHistogram::from_ranges([(None, 1)]);
        assert_eq!(beyond.percentile_us(0.5), LATENESS_BOUNDS.last().copied());
    }

    #[test]
    fn ranges_are_the_same_after_they_were_told() {
        let late = LatenessHistogram::new((0..LATENESS_RANGES as u64).map(|n| n % 3));
        assert_eq!(LatenessHistogram::from_ranges(late.ranges()), late);
        let mut more = late.clone();
        more.join(&late);
        assert_eq!(more.since(&late), Some(late.clone()));
        assert_eq!(late.since(&more), None, "the numbers have begun anew");
    }
}
