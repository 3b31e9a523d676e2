//! Bells: where processes wait for work.

use std::io;
use std::os::fd::AsFd;

use model::job::TopicName;

/// What a process waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BellKind {
    /// Jobs to lease.
    Push,
    /// Jobs of pull topics, which clients wait to reserve. A ring reaches all processes that listen.
    Pull,
    /// A due time or a lease deadline that is earlier than all that the timer knows. Embedded: also new entries of the
    /// outbox, an erasure, or a write-ahead log that has grown.
    Timer,
}

/// What a bell rang for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ring {
    /// There may be work of any topic.
    All,
    /// There is work of one topic.
    Of(TopicRing),
}

/// A ring for one topic. If the bell is of the kind [`BellKind::Push`], the ring reaches only one of the listening
/// processes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TopicRing {
    /// The topic that has ready jobs.
    pub topic: TopicName,
    /// The shard of the lane where the jobs are.
    pub shard: usize,
    /// The number that the store gave to the ring. If the ring is given back, the next process gets it with the same
    /// number.
    pub number: String,
}

/// The place where a process waits for work. Its descriptor is readable after a ring. The bell always rings when there
/// is work, but it may also ring without need.
pub trait Bell: AsFd + Send {
    /// Takes all rings so far. Returns whether there were any. If so, the caller must look for work.
    fn answer(&self) -> io::Result<bool>;

    /// Returns what the bell rang for since the last call of this method. The list may be empty.
    fn rings(&self) -> Vec<Ring> {
        vec![Ring::All]
    }

    /// Sets whether this process could take work now. A ring may go to only one listener. So a process that cannot take
    /// work must not listen: the other processes would miss the rings that this process gets.
    fn listen(&self, _could: bool) {}

    /// Returns whether a ring is lost if the process that received it dies before it acts on it.
    fn loses_rings(&self) -> bool {
        false
    }

    /// Stops listening for a moment, so that other processes get the rings for work that this process may not take.
    fn rest(&self) {}
}
