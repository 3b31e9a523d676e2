//! Histograms: how many values lie in each range, and their sum. In a page one is a row of cells, the sum behind them.

use super::page::Cells;

/// Upper bounds of ranges, in microseconds; one more range has what is above them all.
pub const LATENESS_BOUNDS: [u64; 17] = [
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

/// Of callbacks.
pub const ATTEMPT_BOUNDS: [u64; 15] = [
    1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000, 2_500_000, 5_000_000,
    10_000_000, 30_000_000, 60_000_000,
];

/// Of calls to the store.
pub const STORE_BOUNDS: [u64; 15] = [
    100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000,
    2_500_000, 10_000_000,
];

/// A histogram as it was read.
#[derive(Debug, Clone, Copy)]
pub struct Histogram<'a> {
    cells: &'a [u64],
    bounds: &'a [u64],
}

impl<'a> Histogram<'a> {
    /// How many cells one with these bounds has.
    pub const fn cells(bounds: &[u64]) -> usize {
        bounds.len() + 2
    }

    /// Notes a value in the histogram that begins at that cell.
    pub(super) fn note(cells: Cells<'_>, at: usize, bounds: &[u64], value_us: u64) {
        cells.add(at + bounds.partition_point(|bound| *bound < value_us), 1);
        cells.add(at + bounds.len() + 1, value_us);
    }

    /// The one that begins with these cells.
    pub(super) fn of(cells: &'a [u64], bounds: &'a [u64]) -> Histogram<'a> {
        Histogram { cells: &cells[..Self::cells(bounds)], bounds }
    }

    /// How many values there are.
    pub fn count(&self) -> u64 {
        self.cells[..=self.bounds.len()].iter().sum()
    }

    /// Their sum, in microseconds.
    pub fn sum_us(&self) -> u64 {
        self.cells[self.bounds.len() + 1]
    }

    /// For each bound, in microseconds, how many values are not above it.
    pub fn up_to(&self) -> impl Iterator<Item = (u64, u64)> {
        self.bounds.iter().zip(self.cells).scan(0, |sum, (bound, n)| {
            *sum += n;
            Some((*bound, *sum))
        })
    }
}
