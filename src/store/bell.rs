//! Where processes wait for work.

use std::io;
use std::os::fd::AsFd;

use crate::job::TopicName;

/// What a process waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BellKind {
    /// Jobs to lease.
    Push,
    /// Jobs that are due, or will be earlier than was known.
    Timer,
}

/// What a bell has rung for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ring {
    /// Whatever there is.
    All,
    /// A topic.
    Of(TopicRing),
}

/// A ring that one of those who listen was told, and nobody else.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TopicRing {
    /// What has ready jobs.
    pub topic: TopicName,
    /// On which of the lane's shards.
    pub shard: usize,
    /// Which ring it is, as the store calls it: one that is given back is the same for whoever hears it next.
    pub number: String,
}

/// Where a process waits for work; its descriptor is readable when it rang. It may ring too often, never too seldom.
pub trait Bell: AsFd + Send {
    /// Takes all rings so far. Tells whether there were any: then its owner must look for work.
    fn answer(&self) -> io::Result<bool>;

    /// What it has rung for since this was last asked; perhaps nothing any more.
    fn rings(&self) -> Vec<Ring> {
        vec![Ring::All]
    }

    /// Says whether its owner could take work now. Where a ring goes to one of those who listen, one that could not would
    /// keep it from the others.
    fn listen(&self, _could: bool) {}

    /// Whether a ring is lost with a process that dies before it has heeded it.
    fn loses_rings(&self) -> bool {
        false
    }

    /// Gives the others a moment to hear what this one was told and may not take.
    fn rest(&self) {}
}
