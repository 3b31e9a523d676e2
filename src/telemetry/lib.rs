//! What dq counts: pages of counters that all processes map into memory, and samples of them over time.
//!
//! Counting never blocks. Begin with [`counters::Counters`], then [`history`].

pub mod counters;
pub mod history;
