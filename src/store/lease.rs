//! Leases: what a caller asks for, what it gets, and how leases end.

use crate::{PromotionResult, SpreadCounts};
use std::time::Duration;

use super::{CircuitWaits, ReadyCounts, Reserver, Result, Store};
use model::headers::Headers;
use model::job::{Attempt, Body, Due, JobKey, TopicName};
use model::job_priority::JobPriority;

/// The approximate limit of the bytes of all bodies that one lease call gets. (A single larger job can still be
/// leased.) Without this limit, the answer to a client that reserves jobs could be too large to be sent.
pub const LEASE_BYTES: usize = 4 << 20;

/// What a lease call asks for from one topic.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaseRequest {
    /// The topic.
    pub topic: TopicName,
    /// The maximum number of jobs of the topic that may be leased. 0: no job is leased, and only the number of the
    /// topic's ready jobs is reported.
    pub max: u32,
    /// How long the lease lasts.
    pub hold: Duration,
    /// Whether a job's own `ttr` replaces `hold`, if the job has one.
    pub is_own_ttr: bool,
    /// How many jobs of the topic may be leased at once, including those that are leased already. None: no limit. (The
    /// limit of callbacks in flight is a different limit: [`FlowControl::permits`](crate::FlowControl::permits).)
    pub max_leased: Option<u32>,
    /// The topic's limit of attempts. When a lease expires, this limit is used if the job has no limit of its own.
    pub max_attempts: u32,
}

/// The tag of a process that holds leases. It is random, and names a file in `run_dir/owners` that is locked as long as
/// the process lives.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct OwnerTag(pub String);

/// Proof of a lease: opaque, random, never reused.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(pub Box<[u8]>);

/// A job under a lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeasedJob {
    /// Topic and id.
    pub key: JobKey,
    /// Its body.
    pub body: Body,
    /// The lease token, which is needed to settle the job.
    pub token: Token,
    /// Which attempt this is, from 1.
    pub attempt: u32,
    /// When this attempt was due, Unix milliseconds.
    pub due_ms: i64,
    /// When the job was added, Unix microseconds.
    pub stamp_us: i64,
    /// When it was leased, Unix milliseconds, by the shard's clock, like the due time. The value may be up to a
    /// millisecond too late.
    pub leased_ms: i64,
    /// When the lease expires, Unix milliseconds.
    pub deadline_ms: i64,
    /// Its own limit of attempts. None: the limit of the topic applies.
    pub max_attempts: Option<u32>,
    /// How often the circuit of the topic was opened in a row. This is set only if the job is a probe, which shows
    /// whether the receiver is back.
    pub probe: Option<u32>,
    /// Its own headers.
    pub headers: Headers,
}

impl LeasedJob {
    /// Returns how long the job had been due when it was leased. Both moments are by the shard's clock, which may
    /// differ from this host's clock.
    pub fn late(&self) -> Duration {
        Duration::from_millis(u64::try_from(self.leased_ms.saturating_sub(self.due_ms)).unwrap_or(0))
    }
}

/// The result of a lease call.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LeaseResult {
    /// The leased jobs. The jobs of a topic are sorted by priority and due time.
    pub jobs: Vec<LeasedJob>,
    /// The topics that still have ready jobs, with the number of these jobs. If the circuit of a topic lets one job
    /// through, the number is one. Paused topics are left out. A topic is also left out if its circuit lets no job
    /// through now. All topics of the request are included, but only some of the other topics. If the call is repeated,
    /// each of the other topics is included sooner or later.
    pub left: ReadyCounts,
    /// The topics that have ready jobs, but their circuit lets no job through now. Each topic comes with the time until
    /// its circuit may let one job through. No bell rings when that time is over. As in `left`, only some of the topics
    /// that are not in the request are included.
    pub waiting: CircuitWaits,
}

/// The outcome of a leased job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The job was accepted. It is done, and is removed.
    Ack,
    /// The job was not accepted. It is due again.
    Retry(Due),
    /// As `Retry`, but also gives the job this priority.
    RetryAs(Due, JobPriority),
    /// The job was not accepted, and will not be tried again. It becomes a dead letter.
    DeadLetter,
    /// As `DeadLetter`, but also gives the job this priority.
    DeadLetterAs(JobPriority),
    /// The attempt takes longer. The lease now ends this long after the store's present time.
    Extend(Duration),
    /// The receiver answers later. From now on the lease belongs to no process. The lease ends this long after the
    /// store's present time.
    Later(Duration),
    /// The lease continues, and from now on shows that this client has the job. (If a process owns the lease, no client
    /// is stored.)
    Name(Reserver),
    /// The attempt was not begun. The job is ready again, and the attempt does not count.
    HandBack,
    /// The attempt was not begun. The job is due again, and the attempt does not count.
    Postpone(Due),
}

/// One leased job to settle.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settlement {
    /// Topic and id.
    pub key: JobKey,
    /// The lease's token.
    pub token: Token,
    /// The outcome of the lease.
    pub outcome: Outcome,
    /// The record of the attempt, which is kept with the job.
    pub attempt: Option<Attempt>,
}

/// Whether a settlement had an effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Settled {
    /// The outcome was recorded.
    Done,
    /// The lease had ended, or the job was deleted or replaced while it was leased. Nothing was settled.
    Stale,
}

/// Settles and leases in two separate calls. If a settlement fails, jobs are still leased, because perhaps only one
/// shard is down.
pub(super) fn exchange_apart(
    store: &mut dyn Store,
    settlements: &[Settlement],
    wanted: &[LeaseRequest],
    limit: usize,
    owner: Option<&OwnerTag>,
) -> (Vec<Result<Settled>>, Result<LeaseResult>) {
    (store.settle(settlements), store.lease(wanted, limit, owner))
}

/// Leases: a consumer gets ready jobs, and holds them until a deadline.
pub trait Leases {
    /// Leases up to `limit` ready jobs in all, topic by topic in the given order. No job of a paused topic is leased.
    /// The circuit of a topic may also limit how many of its jobs are leased. Never waits for work.
    fn lease(
        &mut self,
        wanted: &[LeaseRequest],
        limit: usize,
        owner: Option<&OwnerTag>,
    ) -> Result<LeaseResult>;

    /// Leases this delayed or ready job, even if other jobs come before it, or its topic is paused. The due time of a
    /// delayed job becomes the present time. `max_attempts` is as in [`LeaseRequest`]. None: there is no such job, or
    /// it is leased or held back.
    fn lease_job(
        &mut self,
        key: &JobKey,
        hold: Duration,
        max_attempts: u32,
        owner: Option<&OwnerTag>,
    ) -> Result<Option<LeasedJob>>;

    /// Takes back the leases of those lease calls of this handle that never got an answer. The jobs were never
    /// delivered, so the attempts do not count. An error means that some leases are not taken back yet. Each lease call
    /// first tries to take these leases back.
    fn take_back_unanswered(&mut self) -> Result<()> {
        Ok(())
    }
}

/// The outcomes of leases.
pub trait Settlements {
    /// Settles leased jobs. Returns one answer for each, in the order of `settlements`.
    fn settle(&mut self, settlements: &[Settlement]) -> Vec<Result<Settled>>;

    /// Settles like `settle`, and then leases like [`Leases::lease`]. A store that can do both in one call does so.
    /// Jobs may be leased even if some settlements failed.
    fn exchange(
        &mut self,
        settlements: &[Settlement],
        wanted: &[LeaseRequest],
        limit: usize,
        owner: Option<&OwnerTag>,
    ) -> (Vec<Result<Settled>>, Result<LeaseResult>);
}

/// The work of timers: they promote jobs whose due time has passed, and end leases that were not settled.
pub trait TimerWork {
    /// Promotes up to `limit` due jobs on each shard. `next_ms` is the next due time.
    fn promote(&mut self, limit: usize) -> Result<PromotionResult> {
        self.promote_or_spread(limit, &[]).map(|(moved, _)| moved)
    }

    /// Does the same as [`TimerWork::promote`], with one exception. Some jobs of the topics in `spread` get a new due
    /// time instead, at random within the given span from now. These are the jobs that have been due for more than
    /// [`OUTAGE`](crate::OUTAGE), because no timer promoted them. Returns how many jobs of each topic got a new due
    /// time. (These jobs also count in `jobs`.)
    fn promote_or_spread(
        &mut self,
        limit: usize,
        spread: &[(TopicName, Duration)],
    ) -> Result<(PromotionResult, SpreadCounts)>;

    /// Ends the leases of a dead process. The first three times, the attempt of a job does not count, and the job is
    /// ready again. After that the attempt counts, and the job is dead if its attempts are used up. Returns how many
    /// leases were ended.
    fn hand_back(&mut self, owner: &OwnerTag) -> Result<usize>;

    /// Ends up to `limit` expired leases on each shard. The attempt counts. The job is ready again, or dead if its
    /// attempts are used up. `next_ms` is the next deadline.
    fn expire(&mut self, limit: usize) -> Result<PromotionResult>;

    /// Returns the topics of the dead letters that [`TimerWork::hand_back`] and [`TimerWork::expire`] of this handle
    /// have made since the last call: one entry for each dead letter.
    fn take_dead_letter_topics(&mut self) -> Vec<TopicName>;
}
