//! The previous release writes pages with version 1 of the layout. This module knows how many cells a topic had, and
//! which current cell gets the number of each old cell. dq reads the pages of version 1, so that no sum falls at an
//! upgrade. dq writes nothing to these pages. The cells of version 1 differ in two ways: the histogram of lateness had
//! 18 ranges, and there were no cells for failures.

use super::histogram::Histogram;
use super::lateness::{LATENESS_BOUNDS, LATENESS_RANGES, range_of};
use super::{FAILURES, LATENESS, TOPIC_CELLS as CELLS_NOW};

/// How many words a row of a topic had.
pub(super) const ROW: usize = 128;

/// The upper bounds of the ranges of lateness, in microseconds.
const BOUNDS: [u64; 17] = [
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
    3_600_000_000,
];

/// How many cells a topic had. The cells for failures were added later.
pub(super) const TOPIC_CELLS: usize =
    FAILURES - Histogram::cells(&LATENESS_BOUNDS) + Histogram::cells(&BOUNDS);

/// Returns the current cells with the numbers of a topic in a page of version 1. The ranges of lateness were wide in
/// version 1. The exact lateness of an attempt in a wide range is not known. So all attempts of a wide range count in
/// the narrow range that is in the middle of the wide range.
pub(super) fn current_cells(cells: &[u64]) -> Vec<u64> {
    let (before, rest) = cells.split_at(LATENESS);
    let (wide, after) = rest.split_at(BOUNDS.len() + 1);
    let mut narrow = [0; LATENESS_RANGES];
    for (at, count) in wide.iter().enumerate() {
        let low = if at == 0 { 0 } else { BOUNDS[at - 1] };
        let high = BOUNDS.get(at).copied().unwrap_or(low + 2);
        narrow[range_of(low.midpoint(high))] += count;
    }
    [before, &narrow, after, &[0; CELLS_NOW - FAILURES]].concat()
}

#[cfg(test)]
mod tests {
    use super::super::{ATTEMPT_BOUNDS, DURATION};
    use super::*;

    #[test]
    fn numbers_of_version_1_keep_their_places_and_bounds() {
        let old: Vec<u64> = (0..TOPIC_CELLS as u64).map(|n| n + 1).collect();
        let new = current_cells(&old);
        assert_eq!(new.len(), CELLS_NOW);
        assert_eq!(new[..LATENESS], old[..LATENESS]);
        let (was, now) =
            (Histogram::new(&old[LATENESS..], &BOUNDS), Histogram::new(&new[LATENESS..], &LATENESS_BOUNDS));
        assert_eq!((was.count(), was.sum_us()), (now.count(), now.sum_us()));
        assert!(was.up_to().eq(now.up_to_shown(&BOUNDS)));
        let duration = Histogram::cells(&ATTEMPT_BOUNDS);
        let behind = LATENESS + Histogram::cells(&BOUNDS);
        assert_eq!(new[DURATION..][..duration], old[behind..][..duration]);
        assert_eq!(new[FAILURES - 1], *old.last().unwrap());
        assert!(new[FAILURES..].iter().all(|failures| *failures == 0));
    }
}
