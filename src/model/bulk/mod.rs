//! Operations on many jobs: what a request contains, the order in which jobs are visited, and what happens to each job.
//! Pure: [`BulkWalk`] decides what happens, and `roles/http_server/bulk_runner.rs` does it. docs/internals/BULK.md has
//! the reasons for the rules, and says what is true after a crash between any two steps.

mod progress;
mod request;
#[cfg(test)]
mod simulation;
mod walk;

pub use progress::{BulkCounts, BulkEnd, BulkProgress, PlannedJobChange, RECORDS_LEG, StoredBulkOperation};
pub use request::{BulkFilter, BulkOperation, BulkRequest, RATE_DEFAULT, RATE_MAX};
pub use walk::{BulkDecision, BulkWalk, VisitedJob, WalkLeg};

/// How many operations of all hosts together may run or wait at a time.
pub const RUNNING_MAX: usize = 16;

/// How many operations are kept, including those that have ended.
pub const KEPT: usize = 1000;

/// The largest number of jobs that are listed and changed in one step.
pub const PAGE_MAX: usize = 500;
