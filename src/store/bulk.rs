//! What an operation on many jobs needs from a store. A store lists jobs without their bodies, in both directions. It
//! changes a listed job only if the job is still as it was listed.

use crate::Result;
use model::headers::Headers;
use model::job::{JobId, State, TopicName};

/// In which direction jobs are listed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// In the order of [`Views::list`](crate::Views::list).
    Forward,
    /// In the opposite order.
    Backward,
}

/// A job as it is listed, without its body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedJob {
    /// Its id.
    pub id: JobId,
    /// Its state.
    pub state: State,
    /// The due time of the next attempt. If the job is leased: of the current attempt. If the job is dead: of the last
    /// attempt. Unix milliseconds.
    pub due_ms: i64,
    /// Leased: the deadline of the lease. Dead: when the job died. Unix milliseconds.
    pub until_ms: Option<i64>,
    /// When the job was added, Unix microseconds, by the shard's clock.
    pub stamp_us: i64,
    /// When its last attempt began, Unix milliseconds. None: it had no attempt.
    pub tried_ms: Option<i64>,
    /// Its own headers, with its tags.
    pub headers: Headers,
}

/// A page of listed jobs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ListedPage {
    /// The jobs. A page may be shorter than its limit. Only the last page may be empty.
    pub jobs: Vec<ListedJob>,
    /// The cursor of the next page. None: this was the last page. The cursor names a place in the order. It stays valid
    /// when jobs are moved to other nodes.
    pub next: Option<String>,
}

/// What happens to a listed job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ListedChangeGoal {
    /// It gets this due time, Unix milliseconds, and is delayed or ready.
    Due(i64),
    /// It is deleted.
    Gone,
}

/// A change of a listed job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedJobChange {
    /// Its id.
    pub id: JobId,
    /// Its stamp when it was listed.
    pub stamp_us: i64,
    /// Its due time when it was listed.
    pub due_ms: i64,
    /// What happens to the job.
    pub aim: ListedChangeGoal,
}

/// The result of a [`ListedJobChange`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ListedChangeResult {
    /// The change was made.
    Done,
    /// The job had the new due time already: the same change was made before.
    Already,
    /// The job is not as it was listed: another job has this id, its due time is different, or it is leased and the
    /// change is a new due time. Nothing was changed.
    Differs,
    /// There is no live job with this id.
    NotFound,
}

/// Operations on many jobs that were listed.
pub trait Bulk {
    /// Lists up to `limit` jobs of a topic in one state, without their bodies. No job is left out:
    /// the call fails if a node that has jobs does not answer, or if jobs are being moved.
    fn list_in_order(
        &mut self,
        topic: &TopicName,
        state: State,
        direction: Direction,
        cursor: Option<&str>,
        limit: usize,
    ) -> Result<ListedPage>;

    /// Changes jobs of a topic, durably. A job is changed only if its stamp and its due time are as they were listed. A
    /// new due time is given to delayed and ready jobs only. If the same changes are made twice, the result is the same
    /// as if they were made once. Returns one answer for each change, in their order.
    fn change_listed(
        &mut self,
        topic: &TopicName,
        changes: &[ListedJobChange],
    ) -> Vec<Result<ListedChangeResult>>;
}
