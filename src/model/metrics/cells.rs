//! The numbers of one row of a page.

use std::sync::atomic::{AtomicU64, Ordering};

/// The cells of one row. Each cell has one number.
#[derive(Debug, Clone, Copy)]
pub struct RowCells<'a>(pub(super) &'a [AtomicU64]);

impl RowCells<'_> {
    /// Adds `n` to the number in one cell. The addition is one instruction, so that several processes can add at the
    /// same time.
    #[inline]
    pub fn add(self, cell: usize, n: u64) {
        self.0[cell].fetch_add(n, Ordering::Relaxed);
    }
}
