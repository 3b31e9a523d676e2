//! Where jobs are kept: the trait that each store implements, and the words that it speaks.
//!
//! A [`Store`] is one handle, used by one thread; processes and threads open as many as they need. Every method that
//! changes something is one atomic step a job: a crash between any two instructions leaves every job in exactly one
//! state. No method waits for work: waiting is done on a [`Bell`].
//!
//! Room for copies on a node that was not a job's home: an add carries a stamp (`stamp_us` in a [`View`]), and of two
//! copies of an id the one with the later stamp is the job. A store that has one shard never has two.

mod bell;
mod counts;
mod dead;
mod flow;
mod lanes;
mod lease;
mod redis;
mod sqlite;

use std::time::Duration;

pub use bell::{Bell, BellKind, Ring, TopicRing};
pub use counts::Counts;
pub use dead::{Letter, Letters, Which};
pub use flow::{CircuitState, CircuitView, Left, Opening, PERMIT_HOLDS, Permit, PermitAsk, Waiting};
pub use lanes::{Lanes, Probe, Probed, hang_bell, open, open_lane, unhang};
use lease::exchange_apart;
pub use lease::{Batch, Leased, Outcome, OwnerTag, Settled, Settlement, Token, Wanted};
pub use redis::{NodeState, RedisStore};
pub use sqlite::SqliteStore;

use crate::headers::Headers;
use crate::job::{Attempt, Body, Due, JobId, JobKey, NewJob, Priority, State, TopicName};
use crate::letters::Pace;
use crate::ticket::Secret;

/// Why a store did not do what it was asked. In every case but [`StoreError::Unknown`] nothing was changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// Someone else holds the store for longer than dq waits.
    #[error("the store is locked by another program")]
    Busy,
    /// No room left.
    #[error("the store is full")]
    Full,
    /// The store's file is damaged, or not a database.
    #[error("the store is damaged: {0}")]
    Damaged(String),
    /// The store's file is not the one that was opened: it was removed or replaced.
    #[error("the store's file was removed or replaced: {0}")]
    Gone(String),
    /// The store cannot be reached, read or written.
    #[error("the store is unavailable: {0}")]
    Unavailable(String),
    /// The node that has the job, or would have it, is down.
    #[error("a node is down: {0}")]
    NodeDown(String),
    /// A node is there, and what it has may be out of date: others are asked first.
    #[error("a node has just come back: {0}")]
    Settling(String),
    /// It may have been done or not.
    #[error("the outcome is unknown: {0}")]
    Unknown(String),
}

impl StoreError {
    /// The machine-readable name that answers carry.
    pub fn code(&self) -> &'static str {
        match self {
            StoreError::Busy => "store_busy",
            StoreError::Full => "store_full",
            StoreError::Damaged(_) => "store_damaged",
            StoreError::Gone(_) => "store_gone",
            StoreError::Unavailable(_) => "store_unavailable",
            StoreError::NodeDown(_) => "node_down",
            StoreError::Settling(_) => "node_settling",
            StoreError::Unknown(_) => "unknown",
        }
    }
}

/// So many jobs a forecast of the embedded store counts, the first ones first: counting takes a step for each of them.
pub const FORECAST_MAX: u64 = 1_000_000;

/// How many jobs become due when.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Forecast {
    /// Between each moment and the next.
    pub jobs: Vec<u64>,
    /// Not all were counted.
    pub is_capped: bool,
}

/// What a store's methods give back.
pub type Result<T, E = StoreError> = std::result::Result<T, E>;

/// What became of one added job; and when the job that is stored now is due, by the shard's clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Added {
    /// It is stored.
    New {
        /// Unix milliseconds.
        due_ms: i64,
    },
    /// It is stored in the place of one with its id. If that one is leased, the replacement waits for the lease's end as well.
    Replaced {
        /// Unix milliseconds.
        due_ms: i64,
    },
    /// One with its id is there, and stays (`keep`).
    Kept {
        /// When the one that stays is due, Unix milliseconds.
        due_ms: i64,
    },
    /// One with its id is there, and the add was refused (`reject`).
    Rejected,
}

impl Added {
    /// When the job that is stored now is due, Unix milliseconds; none: the add was refused.
    pub fn due_ms(self) -> Option<i64> {
        match self {
            Added::New { due_ms } | Added::Replaced { due_ms } | Added::Kept { due_ms } => Some(due_ms),
            Added::Rejected => None,
        }
    }
}

/// What is changed of a job that waits; the rest stays as it is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Change {
    /// When it is due.
    pub due: Option<Due>,
    /// Its body.
    pub body: Option<Body>,
    /// Its place among the ready jobs.
    pub priority: Option<Priority>,
    /// Its own limit of attempts, or from now on the topic's.
    pub max_attempts: Option<Option<u32>>,
    /// Its headers, or from now on none.
    pub headers: Option<Headers>,
}

/// What became of a change to one job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Changed {
    /// It was made.
    Done,
    /// No such job.
    NotFound,
    /// The job is leased.
    Conflict,
}

/// A job as it is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct View {
    /// Topic and id.
    pub key: JobKey,
    /// Its state.
    pub state: State,
    /// Its body.
    pub body: Body,
    /// When the coming, the current or (of a dead letter) the last attempt is or was due, Unix milliseconds.
    pub due_ms: i64,
    /// Leased: the lease's deadline. Dead: when it died.
    pub until_ms: Option<i64>,
    /// When it was added, Unix microseconds, by the shard's clock.
    pub stamp_us: i64,
    /// Its place among the ready jobs.
    pub priority: Priority,
    /// Attempts that were begun and count.
    pub attempts: u32,
    /// Its own limit of attempts.
    pub max_attempts: Option<u32>,
    /// The last attempts, the oldest first.
    pub attempts_log: Vec<Attempt>,
    /// Its own headers.
    pub headers: Headers,
}

/// The moved jobs of a promotion or an expiry, and when there is more to do.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Moved {
    /// How many jobs moved.
    pub jobs: usize,
    /// When the next one is due (in the past: the batch was full), Unix milliseconds. None: nothing waits.
    pub next_ms: Option<i64>,
}

/// The due time of a job that is held back: nobody delivers it until [`Store::release`] gives it its own. It lies near the end
/// of the year 9999, and no client is likely to name it.
pub const HELD_MS: i64 = 253_402_300_000_017;

/// A job that has been due for so long, and is not ready, was forgotten in an outage.
pub const OUTAGE: Duration = Duration::from_secs(10);

/// How many jobs of which topics got a new due time.
pub type Spread = Vec<(TopicName, usize)>;

/// A page of a listing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Page {
    /// The jobs.
    pub jobs: Vec<View>,
    /// Where the next page begins; none: this was the last.
    pub next: Option<String>,
    /// The nodes that could not be asked, and whose jobs are missing.
    pub away: Vec<String>,
}

/// One handle to the store.
pub trait Store: Send {
    /// Stores jobs durably, each answered by itself, in their order.
    fn add(&mut self, jobs: &[NewJob]) -> Vec<Result<Added>>;

    /// The job of that key; where there is none, its latest dead letter.
    fn get(&mut self, key: &JobKey) -> Result<Option<View>>;

    /// Removes jobs durably, in whichever state they are; where there is none, its dead letters. Tells of each by itself
    /// whether it was there.
    fn delete(&mut self, keys: &[JobKey]) -> Vec<Result<bool>>;

    /// Changes a delayed or ready job. It stays the same one, with its attempts and its stamp.
    fn change(&mut self, key: &JobKey, change: &Change) -> Result<Changed>;

    /// Gives jobs that are held back, that is due at [`HELD_MS`], their due times, durably, each answered by itself. A job that is
    /// not held back, or is gone, stays as it is. Tells of each whether it was held back.
    fn release(&mut self, jobs: &[(JobKey, Due)]) -> Vec<Result<bool>>;

    /// Gives a delayed or ready job a new due time.
    fn reschedule(&mut self, key: &JobKey, due: Due) -> Result<Changed> {
        self.change(key, &Change { due: Some(due), ..Change::default() })
    }

    /// Makes a delayed job ready now.
    fn run(&mut self, key: &JobKey) -> Result<Changed> {
        self.reschedule(key, Due::In(Duration::ZERO))
    }

    /// Moves up to `limit` due jobs of each shard to ready. `next_ms` is the next due time.
    fn promote(&mut self, limit: usize) -> Result<Moved> {
        self.promote_or_spread(limit, &[]).map(|(moved, _)| moved)
    }

    /// The same; but jobs of these topics that were due for more than [`OUTAGE`], because nobody promoted them, get a new due
    /// time at random within the span from now. Tells of how many. (They count in `jobs`.)
    fn promote_or_spread(
        &mut self,
        limit: usize,
        spread: &[(TopicName, Duration)],
    ) -> Result<(Moved, Spread)>;

    /// Leases up to `limit` ready jobs in all, topic by topic in the given order; of paused topics none, and of those whose
    /// circuit is open as many as it lets through. Never waits for work.
    fn lease(&mut self, wanted: &[Wanted], limit: usize, owner: Option<&OwnerTag>) -> Result<Batch>;

    /// Settles leased jobs, each answered by itself, in their order.
    fn settle(&mut self, settlements: &[Settlement]) -> Vec<Result<Settled>>;

    /// Settles, and then leases, as these two do; where the store can, with one turn at it. What is leased may be there although
    /// some could not be settled.
    fn exchange(
        &mut self,
        settlements: &[Settlement],
        wanted: &[Wanted],
        limit: usize,
        owner: Option<&OwnerTag>,
    ) -> (Vec<Result<Settled>>, Result<Batch>);

    /// Makes the jobs that a dead process held ready again. The attempt is refunded, up to three times a job; after
    /// that it counts. Tells how many there were.
    fn hand_back(&mut self, owner: &OwnerTag) -> Result<usize>;

    /// Ends up to `limit` leases of each shard that ran out: the attempt counts, and the job is ready again or, its attempts used
    /// up, dead. `next_ms` is the next deadline.
    fn expire(&mut self, limit: usize) -> Result<Moved>;

    /// The topics of the dead letters that this handle has made by [`Store::hand_back`] and [`Store::expire`] since the last
    /// call: one for each of them.
    fn take_buried(&mut self) -> Vec<TopicName>;

    /// A topic's jobs in one state: delayed by due time, ready by priority and due time, leased by deadline, dead by
    /// when they died. `cursor` is what the page before gave; one that is not is an empty last page.
    fn list(&mut self, topic: &TopicName, state: State, cursor: Option<&str>, limit: usize) -> Result<Page>;

    /// A topic's dead letters that died at that moment or later, the latest first: up to `limit`, or fewer whose bodies are big.
    fn dead_since(&mut self, topic: &TopicName, since_ms: i64, limit: usize) -> Result<Vec<View>>;

    /// Makes up to `limit` dead letters ready with their attempts reset, or delayed as the pace has it. One whose id is live stays
    /// dead; of one id one is taken, if only the id is named the latest.
    fn redrive(&mut self, topic: &TopicName, which: &Which, limit: usize, pace: Pace) -> Result<usize>;

    /// Removes up to `limit` jobs of a topic that are in `state`.
    fn purge(&mut self, topic: &TopicName, state: State, limit: usize) -> Result<usize>;

    /// Counts or removes all dead letters of some ids, also of one that is live again: the live job stays. Tells how many
    /// there were.
    fn letters(&mut self, topic: &TopicName, ids: &[JobId], what: Letters) -> Result<usize>;

    /// Removes these dead letters, and no others of their ids. Tells how many there were.
    fn purge_letters(&mut self, topic: &TopicName, letters: &[Letter]) -> Result<usize>;

    /// Removes dead letters that died so long ago, up to about `limit` of each shard; to be called until there are none.
    fn retire(&mut self, topic: &TopicName, age: Duration, limit: usize) -> Result<usize>;

    /// The counts of all topics that ever had a job, by name.
    fn counts(&mut self) -> Result<Vec<Counts>>;

    /// How many delayed jobs of these topics become due between each of these moments, Unix milliseconds, and the next; they
    /// ascend. The embedded store counts up to [`FORECAST_MAX`] in all. Jobs on nodes that are away are missing.
    fn forecast(&mut self, topics: &[TopicName], edges_ms: &[i64]) -> Result<Forecast>;

    /// Has a topic's jobs no longer leased; or leased again. What is leased goes on. On several nodes those that are away are told
    /// when they are back; with any error it may hold in part, until it is said again.
    fn pause(&mut self, topic: &TopicName, paused: bool) -> Result<()>;

    /// The topics that are paused, by name.
    fn paused(&mut self) -> Result<Vec<TopicName>>;

    /// Grants permits to begin callbacks of topics with limits, at their home; of each topic by itself, in their order. What is
    /// held is forgotten when it is not told again for [`PERMIT_HOLDS`], and with [`Store::hand_back`].
    fn permits(&mut self, owner: &OwnerTag, asks: &[PermitAsk]) -> Vec<Result<Permit>>;

    /// Has a topic's jobs wait, and then one at a time let through. Tells whether the circuit was closed. One that was opened as
    /// often already, and is still open, stays as it is. A handle to a lane speaks of that alone.
    fn open_circuit(&mut self, opening: &Opening) -> Result<bool>;

    /// Has a topic's jobs wait no longer. Tells whether the circuit was not closed.
    fn close_circuit(&mut self, topic: &TopicName) -> Result<bool>;

    /// The circuits that are not closed, by topic.
    fn circuits(&mut self) -> Result<Vec<CircuitView>>;

    /// What tickets for leases of that lane are signed with: made at first use, and the same for all who ask.
    fn secret(&mut self, lane: usize) -> Result<Secret>;

    /// Whether the store answers; how is told by the error.
    fn health(&mut self) -> Result<()>;

    /// Looks at all of it for damage. May take long; holds nobody up.
    fn inspect(&mut self) -> Result<()>;

    /// Tells others that topics have ready jobs, which whoever was told of them may not take.
    fn pass_on(&mut self, _topics: &[TopicName]) {}

    /// Gives rings back that are for others, so that one of them hears them, as long as there are ready jobs. Given back twice they
    /// are the same.
    fn give_back(&mut self, _rings: &[TopicRing]) -> Result<()> {
        Ok(())
    }

    /// Rings for work that there may be: whoever would have rung may have died before it did.
    fn announce(&mut self);

    /// Does what the store itself needs now and then (embedded: carries the log over into the file; Redis: moves jobs home that
    /// were added elsewhere). Called by the timer when its bell rang and after the time that this gives, if it gives one; and by
    /// an import, beside which no daemon may run.
    fn maintain(&mut self) -> Result<Option<Duration>>;
}
