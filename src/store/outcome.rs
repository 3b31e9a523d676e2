//! What clients do to jobs, and the results.

use crate::{Change, Result, StoredJob};
use model::job::{Due, JobKey, NewJob, State, TopicName};
use std::time::Duration;
/// The result of adding one job, with the due time of the job that is stored now, by the shard's clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Added {
    /// The job is stored as a new one.
    New {
        /// Its due time, Unix milliseconds.
        due_ms: i64,
    },
    /// The job is stored in place of a job with the same id. If the old job is leased, the new job also waits until the
    /// lease ends.
    Replaced {
        /// The due time of the new job, Unix milliseconds.
        due_ms: i64,
    },
    /// There is a job with the same id, and it stays (`keep`).
    Kept {
        /// The due time of the job that stays, Unix milliseconds.
        due_ms: i64,
    },
    /// There is a job with the same id, and the add was refused (`reject`).
    Rejected,
    /// The job waits in the spool of this host until its home answers. If its home then has a job with the same id, the
    /// new job replaces that job.
    Spooled {
        /// Its due time, Unix milliseconds, by the host's clock.
        due_ms: i64,
    },
}

impl Added {
    /// Returns when the job that is stored now is due, Unix milliseconds. None: the add was refused.
    pub fn due_ms(self) -> Option<i64> {
        match self {
            Added::New { due_ms }
            | Added::Replaced { due_ms }
            | Added::Kept { due_ms }
            | Added::Spooled { due_ms } => Some(due_ms),
            Added::Rejected => None,
        }
    }
}

/// The result of a deletion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Deleted {
    /// The job, or its dead letters, were removed.
    Done,
    /// There is no such job.
    NotFound,
    /// The spool of this host had an add of this job. The deletion has replaced this add in the spool. When the home
    /// answers, the job at the home is removed.
    Spooled,
}

impl Deleted {
    /// Returns the result. `was_there`: whether there was such a job.
    pub(crate) fn from_found(was_there: bool) -> Deleted {
        if was_there { Deleted::Done } else { Deleted::NotFound }
    }
}

/// The result of a change to one job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Changed {
    /// The change was made.
    Done,
    /// There is no such job.
    NotFound,
    /// The job is leased.
    Conflict,
}

/// What clients do to jobs.
pub trait Jobs {
    /// Stores jobs durably. Returns one answer for each, in their order.
    fn add(&mut self, jobs: &[NewJob]) -> Vec<Result<Added>>;

    /// Returns the job with this key, or its latest dead letter if there is no live job.
    fn get(&mut self, key: &JobKey) -> Result<Option<StoredJob>>;

    /// Removes jobs durably, in any state. If there is no live job with a key, its dead letters are removed. Returns
    /// one answer for each key, in their order.
    fn delete(&mut self, keys: &[JobKey]) -> Vec<Result<Deleted>>;

    /// Removes jobs as [`delete`](Jobs::delete) does, but only at their homes: it neither reads nor changes the spool.
    /// The records of the jobs contain `note`, which says why the jobs were removed. It is a short text without control
    /// characters.
    fn delete_with_note(&mut self, keys: &[JobKey], note: &str) -> Vec<Result<Deleted>>;

    /// Changes a delayed or ready job. The job keeps its attempts and its stamp.
    fn change(&mut self, key: &JobKey, change: &Change) -> Result<Changed>;

    /// Gives jobs that are held back their real due times, durably. (A job is held back if it is due at
    /// [`HELD_MS`](crate::HELD_MS).) A job whose real due time is in the past stays delayed until a timer promotes it,
    /// so that the `catch_up` of its topic applies. Nothing happens to a job that is gone or is not held back. Returns
    /// one answer for each job, in their order: whether the job was held back.
    fn release(&mut self, jobs: &[(JobKey, Due)]) -> Vec<Result<bool>>;

    /// Gives a delayed or ready job a new due time.
    fn reschedule(&mut self, key: &JobKey, due: Due) -> Result<Changed> {
        self.change(key, &Change { due: Some(due), ..Change::default() })
    }

    /// Makes a delayed job ready now.
    fn run(&mut self, key: &JobKey) -> Result<Changed> {
        self.reschedule(key, Due::In(Duration::ZERO))
    }

    /// Removes up to `limit` jobs of a topic that are in `state`. Returns how many.
    fn purge(&mut self, topic: &TopicName, state: State, limit: usize) -> Result<usize>;
}
