//! The outbox: what must follow jobs that have ended. The step that ends a job also writes the entries for this job. A
//! timer adds a job for each entry (`keep`), and removes the entry. docs/internals/FOLLOW.md has the rules and their
//! proof.

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

/// Why something follows a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OutboxCause {
    /// The job was accepted, and its `then` names the job that follows.
    Then {
        /// The place of the follower in the list `then`, from 0.
        place: usize,
        /// Its text: see [`Then::texts`](model::follow::Then::texts).
        text: String,
    },
    /// The topic of the job wants an event about its end.
    Done(Box<JobRecord>),
}

/// Makes the job that follows from an entry. None: nothing follows, so the entry is removed.
pub type FollowerMaker<'a> = &'a dyn Fn(&OutboxEntry) -> Option<NewJob>;

/// What a call of [`Outbox::send_followers`] did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FollowerSendResult {
    /// The topics of the jobs that it has added: one entry for each job. (A job that was there already is not counted.)
    pub added: Vec<TopicName>,
    /// When there is more to do. None: nothing waits.
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

/// The outbox of a store. Each entry leads to one add (`keep`), even if processes die or several send at once.
pub trait Outbox {
    /// Returns whether there are entries, as far as this is known without a call to a server. On Redis: whether
    /// [`TimerWork`](crate::TimerWork) calls of this handle have seen entries since the last call of this method.
    fn has_followers(&mut self) -> Result<bool>;

    /// Adds the jobs that follow from the entries, some entries at a time. Entries that cannot be sent now wait. This
    /// is not an error.
    fn send_followers(&mut self, make: FollowerMaker<'_>) -> Result<FollowerSendResult>;

    /// Returns how much waits in the outbox.
    fn outbox(&mut self) -> Result<OutboxState>;
}
