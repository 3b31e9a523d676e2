//! How those who wait hear of work: the trait that each store's bells implement.

use std::io;
use std::os::fd::AsFd;

/// What a process waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BellKind {
    /// Jobs to lease.
    Push,
    /// Jobs that are due, or will be earlier than was known.
    Timer,
}

/// Where a process waits for work; its descriptor is readable when it rang. It may ring too often, never too seldom.
pub trait Bell: AsFd + Send {
    /// Takes all rings so far. Tells whether there were any: then its owner must look for work.
    fn answer(&self) -> io::Result<bool>;

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
