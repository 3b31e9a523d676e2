//! The counts of dq: pages of counters that all processes map into memory, and samples of these counters over time.
//!
//! Counting never blocks. Begin with [`counters::Counters`], then [`history`].

pub mod counters;
pub mod history;
