//! What a topic keeps of jobs that have ended.

use std::time::Duration;

/// What a topic keeps of its jobs that have ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecordKeeping {
    /// For how long a record is kept. Zero: no records.
    pub age: Duration,
    /// How many records are kept. Zero: no records.
    pub jobs: u32,
    /// Whether records keep body and headers.
    pub with_body: bool,
    /// Whether an event is sent when a job has ended: see `on_done` of a topic.
    pub with_event: bool,
}

impl RecordKeeping {
    /// What a topic keeps by default.
    pub const DEFAULT: RecordKeeping = RecordKeeping {
        age: Duration::from_secs(86_400),
        jobs: 100_000,
        with_body: false,
        with_event: false,
    };

    /// Whether any record is kept.
    pub fn is_on(&self) -> bool {
        self.jobs > 0 && !self.age.is_zero()
    }
}
