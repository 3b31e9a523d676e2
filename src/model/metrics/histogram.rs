//! Histograms: how many values are in each range, and the sum of all values. In a page, a histogram is a row of cells:
//! the ranges, then the sum.

use super::cells::RowCells;

/// The upper bounds of the ranges for the duration of callbacks, in microseconds. One more range has all values above
/// the last bound. The other lists of bounds have the same form.
pub const ATTEMPT_BOUNDS: [u64; 15] = [
    1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000, 2_500_000, 5_000_000,
    10_000_000, 30_000_000, 60_000_000,
];

/// The bounds for the duration of calls to the store.
pub const STORE_BOUNDS: [u64; 15] = [
    100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000,
    2_500_000, 10_000_000,
];

/// The largest value that is added to a sum: one year.
const LONGEST_US: u64 = 366 * 24 * 3600 * 1_000_000;

/// A histogram that was read from a page.
#[derive(Debug, Clone, Copy)]
pub struct Histogram<'a> {
    cells: &'a [u64],
    bounds: &'a [u64],
}

impl<'a> Histogram<'a> {
    /// Returns how many cells a histogram with these bounds has.
    pub const fn cells(bounds: &[u64]) -> usize {
        bounds.len() + 2
    }

    /// Records a value in the histogram that begins at this cell. Values above [`LONGEST_US`] count as [`LONGEST_US`]
    /// in the sum, so that a wrong clock does not make the sum too large for the registry.
    pub(super) fn note(cells: RowCells<'_>, at: usize, bounds: &[u64], value_us: u64) {
        cells.add(at + bounds.partition_point(|bound| *bound < value_us), 1);
        cells.add(at + bounds.len() + 1, value_us.min(LONGEST_US));
    }

    /// Makes the histogram that begins with these cells.
    pub(super) fn new(cells: &'a [u64], bounds: &'a [u64]) -> Histogram<'a> {
        Histogram { cells: &cells[..Self::cells(bounds)], bounds }
    }

    /// Returns how many values are in each range.
    pub(super) fn counts(&self) -> &'a [u64] {
        &self.cells[..=self.bounds.len()]
    }

    /// Returns how many values there are.
    pub fn count(&self) -> u64 {
        self.counts().iter().sum()
    }

    /// Returns the sum of the values, in microseconds.
    pub fn sum_us(&self) -> u64 {
        self.cells[self.bounds.len() + 1]
    }

    /// Returns the same as [`Histogram::up_to`], but only for the bounds in `shown`.
    pub(super) fn up_to_shown(&self, shown: &[u64]) -> impl Iterator<Item = (u64, u64)> {
        self.up_to().filter(|(bound, _)| shown.contains(bound))
    }

    /// Returns each bound, in microseconds, and how many values are not above this bound.
    pub fn up_to(&self) -> impl Iterator<Item = (u64, u64)> {
        self.bounds.iter().zip(self.cells).scan(0, |sum, (bound, n)| {
            *sum += n;
            Some((*bound, *sum))
        })
    }
}
