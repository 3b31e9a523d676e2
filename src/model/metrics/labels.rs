//! The labels of counters: the outcomes, causes and operations, with their names in `/metrics`.

/// The outcome of an add.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AddOutcome {
    /// Stored.
    New,
    /// Stored, and an existing job with the same id was replaced.
    Replaced,
    /// An existing job with the same id was kept, because of `keep`.
    Kept,
    /// The new job was refused, because of `reject`: there is a job with the same id.
    Exists,
    /// The store did not accept the job.
    Failed,
    /// The store may or may not have stored the job.
    Unknown,
    /// The job was refused before the store was called, or because of a quota.
    Refused,
}

impl AddOutcome {
    pub(super) const NAMES: [&str; 7] = ["new", "replaced", "kept", "exists", "failed", "unknown", "refused"];
}

/// The outcome of a delete.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeleteOutcome {
    /// The job was there, and was deleted.
    Deleted,
    /// There was no such job.
    NotFound,
    /// The store did not delete the job, or it is not known whether the store deleted the job.
    Failed,
}

impl DeleteOutcome {
    pub(super) const NAMES: [&str; 3] = ["deleted", "not_found", "failed"];
}

/// How an attempt ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AttemptOutcome {
    /// The receiver accepted the job.
    Accepted,
    /// The receiver did not accept the job.
    Failed,
    /// The receiver refused the job for good.
    Refused,
}

impl AttemptOutcome {
    pub(super) const NAMES: [&str; 3] = ["accepted", "failed", "refused"];
}

/// The classes of HTTP statuses. `none` means that there was no answer.
pub(super) const CODE_CLASSES: [&str; 6] = ["none", "1xx", "2xx", "3xx", "4xx", "5xx"];

/// Why a job became a dead letter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeathCause {
    /// The callbacks of the job failed until its attempts were used up, or the receiver refused the job for good.
    Callback,
    /// The last lease of the job expired, because nobody settled it.
    Lease,
}

impl DeathCause {
    pub(super) const NAMES: [&str; 2] = ["callback", "lease"];
}

/// Why a dead letter was removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PurgeCause {
    /// Somebody asked to remove the dead letter.
    Asked,
    /// The topic's time for keeping dead letters was over.
    Retention,
}

impl PurgeCause {
    pub(super) const NAMES: [&str; 2] = ["asked", "retention"];
}

/// The kinds of calls to the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoreOperation {
    /// Adds of jobs, in batches.
    Add,
    /// Reads of a job, of a listing or of counts.
    Read,
    /// Deletes, in batches.
    Delete,
    /// Changes, redrives and purges.
    Change,
    /// Promotions of due jobs, in batches.
    Promote,
    /// Leases, in batches.
    Lease,
    /// Outcomes of leases, in batches.
    Settle,
    /// Ends of leases that expired, and of leases of owners that are gone.
    Expire,
}

impl StoreOperation {
    pub(super) const NAMES: [&str; 8] =
        ["add", "read", "delete", "change", "promote", "lease", "settle", "expire"];
}
