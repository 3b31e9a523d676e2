//! A lease: what is asked for, what it brings, and what becomes of it.

use std::time::Duration;

use super::{Left, Result, Store, Waiting};
use crate::headers::Headers;
use crate::job::{Attempt, Body, Due, JobKey, TopicName};

/// What a lease asks of one topic.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wanted {
    /// The topic.
    pub topic: TopicName,
    /// At most so many of its jobs.
    pub max: u32,
    /// How long the lease holds.
    pub hold: Duration,
    /// The topic's limit of attempts: what a lease that runs out goes by, where the job has none of its own.
    pub max_attempts: u32,
}

/// The tag of a process that holds leases: random, and locked in `run_dir/owners` as long as the process lives.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct OwnerTag(pub String);

/// Proof of a lease: opaque, random, never reused.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Token(pub Box<[u8]>);

/// A job under a lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Leased {
    /// Topic and id.
    pub key: JobKey,
    /// Its body.
    pub body: Body,
    /// What settles it.
    pub token: Token,
    /// Which attempt this is, from 1.
    pub attempt: u32,
    /// When this attempt was due, Unix milliseconds.
    pub due_ms: i64,
    /// When the job was added, Unix microseconds.
    pub stamp_us: i64,
    /// When it was leased, Unix milliseconds, by the shard's clock, which is the one that its due time is of; up to a millisecond
    /// later.
    pub leased_ms: i64,
    /// When the lease runs out, Unix milliseconds.
    pub deadline_ms: i64,
    /// Its own limit of attempts.
    pub max_attempts: Option<u32>,
    /// It is let through to see whether its receiver is back; and so often its topic's circuit was opened.
    pub probe: Option<u32>,
    /// Its own headers.
    pub headers: Headers,
}

impl Leased {
    /// For how long it had been due when it was leased. Both moments are the shard's: its clock may differ from this host's.
    pub fn late(&self) -> Duration {
        Duration::from_millis(u64::try_from(self.leased_ms.saturating_sub(self.due_ms)).unwrap_or(0))
    }
}

/// What a lease brought.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Batch {
    /// The jobs, by priority and due time within a topic.
    pub jobs: Vec<Leased>,
    /// The topics with ready jobs that are left, and how many; but for paused ones, and those whose circuit lets none
    /// through now. Of one that lets one through: one. Of those that were asked all, of others some, and each of them by and by.
    pub left: Left,
    /// The topics with ready jobs whose circuit lets none through now, and after how long it may. Nobody rings then.
    /// Told of all or some as what is left.
    pub waiting: Waiting,
}

/// What becomes of a leased job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// It was accepted: the job is done and gone.
    Ack,
    /// It was not: the job is due again.
    Retry(Due),
    /// It was not, and will not be tried again: a dead letter.
    Bury,
    /// It takes longer: the lease now ends this much after the store's now.
    Extend(Duration),
    /// Its receiver answers later: the lease is nobody's from now on, and ends this much after the store's now.
    Later(Duration),
    /// It was not begun: ready again, the attempt not counted.
    HandBack,
}

/// One leased job to settle.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settlement {
    /// Topic and id.
    pub key: JobKey,
    /// The lease's token.
    pub token: Token,
    /// What becomes of it.
    pub outcome: Outcome,
    /// The attempt, to be kept with the job.
    pub attempt: Option<Attempt>,
}

/// Whether a settlement settled anything.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Settled {
    /// It did.
    Done,
    /// The lease had ended, or the job was deleted or replaced while it was held: nothing was settled.
    Stale,
}

/// An exchange in two turns at the store. What cannot be settled is not followed by a lease.
pub(super) fn exchange_apart(
    store: &mut dyn Store,
    settlements: &[Settlement],
    wanted: &[Wanted],
    limit: usize,
    owner: Option<&OwnerTag>,
) -> (Vec<Result<Settled>>, Result<Batch>) {
    let settled = store.settle(settlements);
    let failed = settled.iter().find_map(|settled| settled.as_ref().err().cloned());
    let leased = failed.map_or_else(|| store.lease(wanted, limit, owner), Err);
    (settled, leased)
}
