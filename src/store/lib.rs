//! Keeps the jobs. [`Store`] is the trait that both stores implement: `sqlite` (embedded) and `redis` (nodes of Redis).
//!
//! A [`Store`] is one handle and is used by one thread. Processes and threads open as many as they need. Every method
//! that changes something is one atomic step for each job: a crash between any two instructions leaves every job in
//! exactly one state.
//!
//! A store never makes a callback. It never decides when to retry: callers pass the new due time. No method waits for
//! work: a process waits on a [`Bell`].
//!
//! Begin with the trait in this file, then `sqlite/change.rs` or `redis/change.rs` with `redis/lua/add.lua`. A table in
//! docs/internals/NODES.md says what must be true when a process dies between two steps.

mod bell;
mod bulk;
mod capability;
mod counts;
mod dead;
mod disk;
mod flow;
mod lanes;
mod lease;
mod migrations;
mod outbox;
mod outcome;
mod records;
mod redis;
mod reserver;
mod spool;
mod sqlite;
mod take_over;

use std::time::Duration;

pub use bell::{Bell, BellKind, Ring, TopicRing};
pub use bulk::{
    Bulk, Direction, ListedChangeGoal, ListedChangeResult, ListedJob, ListedJobChange, ListedPage,
};
pub use capability::ServerDurability;
pub use counts::{Counts, Views};
pub use dead::{DeadLetterKey, DeadLetterOperation, DeadLetterSelection, DeadLetters};
pub use disk::lack_of_room;
pub use flow::{
    CircuitOpening, CircuitState, CircuitView, CircuitWaits, FlowControl, LimitQuery, LimitUse, PERMIT_HOLDS,
    Pauses, Permit, PermitRequest, ReadyCounts,
};
pub use lanes::{Lanes, ProbeAnswer, ServerQuery, hang_bell, open, open_lane, open_to_move, unhang};
use lease::exchange_apart;
pub use lease::{
    LEASE_BYTES, LeaseRequest, LeaseResult, LeasedJob, Leases, Outcome, OwnerTag, Settled, Settlement,
    Settlements, TimerWork, Token,
};
pub use migrations::migrations;
pub use outbox::{FollowerMaker, FollowerSendResult, Outbox, OutboxCause, OutboxEntry, OutboxState};
pub use outcome::{Added, Changed, Deleted, Jobs};
pub use records::{RecordPage, Records};
pub use redis::{
    MoveProgress, MoveSummary, NodeMembership, NodeSetView, NodeState, RedisStore, RedisTableChange,
    RedisTables, SetChangeRequest, SpoolSender,
};
pub use reserver::{RESERVER_NAME_MAX, Reserver};
pub use spool::{Spool, SpoolState};
pub use sqlite::{HeldTurn, SqliteStore, move_mark_of, unfinished_replacement};
pub use take_over::{MovableStore, StoreMoveMark};

use model::destination::Destination;
use model::headers::Headers;
use model::job::{Attempt, Body, Due, JobKey, State, TopicName};
use model::job_priority::JobPriority;
use model::quota::OverQuota;
use model::tags::Tags;
use model::ticket::TicketSecret;

/// Why a store did not do what it was asked to do. After [`StoreError::Unknown`], the change may have happened. After
/// any other error of a call about one job, nothing was changed. A call about a whole topic (for example a purge, a
/// redrive or a pause) may have changed some of the jobs or nodes before the error.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// Another program holds the lock of the store for longer than dq waits.
    #[error("the store is locked by another program")]
    Busy,
    /// The store has no room left.
    #[error("the store is full: {0}")]
    Full(String),
    /// The store's file is damaged, or not a database.
    #[error("the store is damaged: {0}")]
    Damaged(String),
    /// The spool's file was removed or replaced.
    #[error("a file was removed or replaced: {0}")]
    Gone(String),
    /// The file of the embedded store is missing, or it is not the file that the daemon uses. A running daemon only
    /// uses the file with which it started.
    #[error("not the store's file: {0}")]
    OtherFile(String),
    /// The store cannot be reached, read or written.
    #[error("the store is unavailable: {0}")]
    Unavailable(String),
    /// A node that the call needs is down, for example the home of the job.
    #[error("a node is down: {0}")]
    NodeDown(String),
    /// The configuration does not fit the nodes, for one of three reasons: the configuration does not name all nodes;
    /// the nodes are of an earlier release; the nodes may lose data in a crash, and the configuration does not allow
    /// this.
    #[error("the nodes do not fit the configuration: {0}")]
    Unfit(String),
    /// Jobs are being moved between nodes. Until the move is over, only the mover changes jobs on the nodes. Jobs can
    /// still be read, and adds may wait in the spool.
    #[error("the nodes are being changed: {0}")]
    Moving(String),
    /// The home of the job does not answer, or jobs are being moved, and the spool of this host has no room for more
    /// changes.
    #[error("the spool is full: {0}")]
    SpoolFull(String),
    /// A limit of the topic or of the token does not allow the add or the change.
    #[error("{0}")]
    OverQuota(OverQuota),
    /// The server cannot make the change as safe as the topic of the job asks, so the change was not made.
    #[error("not as safe as asked: {0}")]
    NotDurable(String),
    /// The change may or may not have happened. Or the change has happened, but is not yet as safe as the topic of the
    /// job asks.
    #[error("the outcome is unknown: {0}")]
    Unknown(String),
}

impl StoreError {
    /// Returns the machine-readable name of the error, which answers to clients contain.
    pub fn code(&self) -> &'static str {
        match self {
            StoreError::Busy => "store_busy",
            StoreError::Full(_) => "store_full",
            StoreError::Damaged(_) => "store_damaged",
            StoreError::Gone(_) | StoreError::OtherFile(_) => "store_gone",
            StoreError::Unavailable(_) => "store_unavailable",
            StoreError::NodeDown(_) => "node_down",
            StoreError::Unfit(_) => "nodes_unfit",
            StoreError::Moving(_) => "nodes_moving",
            StoreError::SpoolFull(_) => "spool_full",
            StoreError::OverQuota(_) => "quota",
            StoreError::NotDurable(_) => "not_durable",
            StoreError::Unknown(_) => "unknown",
        }
    }
}

/// The maximum number of jobs that a forecast of the embedded store counts, beginning with the earliest job. Counting
/// takes one step for each job.
pub const FORECAST_MAX: u64 = 1_000_000;

/// How many jobs become due in each of several spans.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Forecast {
    /// The number of jobs for each span, in the order of the spans.
    pub jobs: Vec<u64>,
    /// Whether the count stopped at [`FORECAST_MAX`], so that jobs may be missing from `jobs`.
    pub is_capped: bool,
}

/// The result of a method of a store.
pub type Result<T, E = StoreError> = std::result::Result<T, E>;

/// A change to a delayed or ready job. A field that is `None` leaves the job as it is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Change {
    /// The new due time.
    pub due: Option<Due>,
    /// The new body.
    pub body: Option<Body>,
    /// The new priority.
    pub priority: Option<JobPriority>,
    /// The job's own limit of attempts. `Some(None)`: from now on the limit of the topic applies.
    pub max_attempts: Option<Option<u32>>,
    /// The new headers, in place of all old ones. If there are none, the job has no headers from now on. (The
    /// destination and the tags in these headers are always empty, because a change has separate fields for them.)
    pub headers: Option<Headers>,
    /// The new destination. `Some(None)`: from now on the job goes to the callback of its topic.
    pub destination: Option<Option<Destination>>,
    /// The new tags, in place of all old ones. If there are none, the job has no tags from now on.
    pub tags: Option<Tags>,
    /// The new time to run. `Some(None)`: from now on the time to run of the topic applies.
    pub ttr: Option<Option<Duration>>,
    /// The topic's limit for the bytes of all its jobs together. The embedded store checks it if the body, or something
    /// that is stored with the headers, changes. A store on Redis checks it only if the body changes. None: no limit.
    pub max_bytes: Option<u64>,
}

impl Change {
    /// Returns whether the change concerns the headers or something that is stored with them: the destination, the tags
    /// or the time to run.
    pub(crate) fn has_headers(&self) -> bool {
        self.headers.is_some() || self.destination.is_some() || self.tags.is_some() || self.ttr.is_some()
    }

    /// Returns the headers of a job after the change, with all that is stored with them. None: the headers stay as they
    /// are.
    pub(crate) fn headers_after(&self, old: Headers) -> Option<Headers> {
        if !self.has_headers() {
            return None;
        }
        let destination = self.destination.clone().unwrap_or_else(|| old.destination().cloned());
        let tags = self.tags.clone().unwrap_or_else(|| old.tags().clone());
        let ttr = self.ttr.unwrap_or_else(|| old.ttr());
        let (then, after, expires_ms) = (old.then().clone(), old.after().cloned(), old.expires_ms());
        let headers = self.headers.clone().unwrap_or(old);
        let headers = headers.with_destination(destination).with_tags(tags);
        Some(headers.with_then(then).with_after(after).with_ttr(ttr).with_expires_ms(expires_ms))
    }
}

/// A job as it is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredJob {
    /// Topic and id.
    pub key: JobKey,
    /// Its state.
    pub state: State,
    /// Its body.
    pub body: Body,
    /// The due time of the next attempt. If the job is leased: of the current attempt. If the job is dead: of the last
    /// attempt. Unix milliseconds.
    pub due_ms: i64,
    /// Leased: the deadline of the lease. Dead: when the job died. Unix milliseconds.
    pub until_ms: Option<i64>,
    /// When the job was added, Unix microseconds, by the shard's clock.
    pub stamp_us: i64,
    /// Its priority among the ready jobs.
    pub priority: JobPriority,
    /// How many attempts were begun. Attempts that do not count are left out.
    pub attempts: u32,
    /// Its own limit of attempts. None: the limit of the topic applies.
    pub max_attempts: Option<u32>,
    /// The first and the last attempts, the oldest first. Attempts between them may be missing.
    pub attempts_log: Vec<Attempt>,
    /// Its own headers.
    pub headers: Headers,
    /// Leased: the client that has reserved the job, if the client has named itself.
    pub reserver: Option<Reserver>,
    /// Whether the job waits in the spool of this host until its home answers.
    pub is_spooled: bool,
}

/// The result of a promotion or an expiry: how many jobs moved, and when there is more to do.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PromotionResult {
    /// How many jobs moved.
    pub jobs: usize,
    /// When the next job is due, or the next lease ends, Unix milliseconds. If this moment is in the past, the batch
    /// was full, and there is more to do now. None: nothing waits.
    pub next_ms: Option<i64>,
}

/// The due time of a job that is held back: the job is not delivered until [`Jobs::release`] sets its real due time.
/// The moment is near the end of the year 9999, and no client is likely to name exactly this moment.
pub const HELD_MS: i64 = 253_402_300_000_017;

/// If a job has been due for this long and is not ready, no timer promoted it: there was an outage.
pub const OUTAGE: Duration = Duration::from_secs(10);

/// The topics with jobs that got a new due time, each with the number of these jobs.
pub type SpreadCounts = Vec<(TopicName, usize)>;

/// A page of a listing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct JobsPage {
    /// The jobs.
    pub jobs: Vec<StoredJob>,
    /// The cursor of the next page. None: this was the last page.
    pub next: Option<String>,
    /// The nodes that could not be asked. Their jobs are missing from the page.
    pub away: Vec<String>,
}

/// How long the store rings the bells of [`BellKind::Pull`] after a process has called [`Maintenance::ring_pull`].
pub const PULL_RINGS: Duration = Duration::from_secs(60);

/// One handle to the store.
pub trait Store:
    Jobs
    + Leases
    + Settlements
    + TimerWork
    + DeadLetters
    + Records
    + Outbox
    + Views
    + Bulk
    + Pauses
    + FlowControl
    + Maintenance
    + Send
{
}

impl<
    T: Jobs
        + Leases
        + Settlements
        + TimerWork
        + DeadLetters
        + Records
        + Outbox
        + Views
        + Bulk
        + Pauses
        + FlowControl
        + Maintenance
        + Send,
> Store for T
{
}

/// The store's own maintenance, and the calls that wake processes that wait for work.
pub trait Maintenance {
    /// Returns the secret that signs the tickets for leases of a lane. The secret is made when it is first needed, and
    /// is the same for all callers.
    fn secret(&mut self, lane: usize) -> Result<TicketSecret>;

    /// Checks whether the store answers. The error says what is wrong.
    fn health(&mut self) -> Result<()>;

    /// Looks for damage in the whole store. The check may take long, but blocks no other process. Redis has no such
    /// check: the result is always `Ok`.
    fn inspect(&mut self) -> Result<()>;

    /// Rings again for topics with ready jobs that this process may not take, so that another process takes these jobs.
    /// The embedded store does nothing here, because each of its rings reaches all processes.
    fn pass_on(&mut self, _topics: &[TopicName]) {}

    /// Makes the store ring the bells of [`BellKind::Pull`] for these topics, from now until [`PULL_RINGS`] after the
    /// last call. The embedded store does nothing here, because it always rings these bells for all topics.
    fn ring_pull(&mut self, _topics: &[TopicName]) -> Result<()> {
        Ok(())
    }

    /// Gives back rings that are for other processes, so that one of these processes gets them. A ring is dropped if
    /// its topic has no ready jobs or is paused. Giving a ring back twice has the same effect as giving it back once.
    fn give_back(&mut self, _rings: &[TopicRing]) -> Result<()> {
        Ok(())
    }

    /// Rings all bells in case there is work: a process may have died after it made work and before it rang.
    fn announce(&mut self);

    /// Does the regular work of the store: removes records that are too old. Embedded: also copies the write-ahead log
    /// into the file, and gives free pages back to the disk. Redis: also gives the nodes that were away the changes
    /// that they have missed. A timer calls this method after each ring of its bell. If the method returns a time, the
    /// timer also calls it again after this time. An import calls this method, too, because perhaps no daemon is
    /// running.
    fn maintain(&mut self) -> Result<Option<Duration>>;
}
