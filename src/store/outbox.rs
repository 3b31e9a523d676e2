//! The outbox: entries for the jobs that must follow jobs that have ended. (An event is such a job, too.) The step that
//! ends a job also writes the entries for this job. A timer adds a job for each entry (with `on_conflict` `keep`), and
//! removes the entry. docs/internals/FOLLOW.md has the rules and their proof.

use std::time::Duration;

use crate::Result;
use model::job::{JobKey, NewJob, TopicName};
use model::record::JobRecord;

/// An entry of the outbox. One job follows from it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutboxEntry {
    /// The job that has ended.
    pub key: JobKey,
    /// When that job was added, Unix microseconds.
    pub stamp_us: i64,
    /// How long ago the job ended, by the clock of its shard.
    pub ago: Duration,
    /// Why a job follows.
    pub what: OutboxCause,
}

/// Why another job follows a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OutboxCause {
    /// The job was accepted, and its `then` names the job that follows.
    Then {
        /// The place of the follower in the list `then`, from 0.
        place: usize,
        /// The text of the follower: see [`Then::texts`](model::follow::Then::texts).
        text: String,
    },
    /// The topic of the job wants an event about its end.
    Done(Box<JobRecord>),
}

/// Makes the job that follows from an entry. None: no job follows, so the entry is removed.
pub type FollowerMaker<'a> = &'a dyn Fn(&OutboxEntry) -> Option<NewJob>;

/// What a call of [`Outbox::send_followers`] did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FollowerSendResult {
    /// The topics of the jobs that the call has added: one topic for each job. (A job that the store had already is
    /// left out.)
    pub added: Vec<TopicName>,
    /// The time until there is more to do. None: no entry waits.
    pub again: Option<Duration>,
}

/// How much waits in the outbox.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct OutboxState {
    /// How many entries there are.
    pub entries: u64,
    /// How long the oldest entry has waited. Zero: there is no entry.
    pub oldest: Duration,
}

/// The outbox of a store. Each entry adds one job (with `on_conflict` `keep`), even if a process dies, or several
/// processes send the same entry.
pub trait Outbox {
    /// Returns whether the outbox may have entries. This method makes no call to a server. On Redis, the result says
    /// whether [`TimerWork`](crate::TimerWork) calls of this handle have seen entries since the last call of this
    /// method. For a node outside the set, the result is always true.
    fn has_followers(&mut self) -> Result<bool>;

    /// Adds the jobs that follow from the entries, some entries at a time. If the job of an entry cannot be added now,
    /// the entry waits. This is not an error.
    fn send_followers(&mut self, make: FollowerMaker<'_>) -> Result<FollowerSendResult>;

    /// Returns how much waits in the outbox.
    fn outbox(&mut self) -> Result<OutboxState>;
}
