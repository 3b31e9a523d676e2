//! Serves clients that reserve jobs of pull topics. A reserve that finds no job waits here: until a bell rings, nothing
//! is asked of the store for it.
//!
//! `broker` decides, and is pure: who waits for what, and who gets the jobs. `plan` has what it asks of the lanes. `threads`
//! has the threads: one that owns the broker, and for each lane of the store one that talks to it and one that listens to
//! its bell. They begin with the first reserve, so a process that serves none has none of them. `crate::settling` says
//! what a client's ack, nack or extend means for the lease.
//!
//! A lease made here has no owner. It ends when it is settled, or at its deadline. A job that was leased for a client that
//! is gone is handed back. If that fails, it comes back at the deadline. A client whose leases must end with its connection
//! asks for owned ones: then this process owns them, so a timer also hands them back when the process dies.

mod broker;
mod plan;
mod rates;
#[cfg(test)]
mod simulation;
mod threads;
mod waits;

use std::time::{Duration, Instant};

use model::job::TopicName;
use store::{Leased, StoreError};

pub use self::threads::{Pull, Waiting};

/// The most jobs of one reserve.
pub const MAX_JOBS: u32 = 100;

/// The most topics of one reserve.
pub const MAX_TOPICS: usize = 32;

/// The longest time that a reserve waits.
pub const MAX_WAIT: Duration = Duration::from_secs(60);

/// What a client reserves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reserve {
    /// The topics, in the order of preference.
    pub topics: Vec<TopicName>,
    /// How many jobs at most.
    pub max: u32,
    /// How long the leases hold. None: as long as the topic of the job says.
    pub lease: Option<Duration>,
    /// Whether this process owns the leases, so that they end with it.
    pub is_owned: bool,
    /// Until when the client waits if there is no job.
    pub until: Instant,
}

/// A job that a client has reserved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reserved {
    /// The job, under its lease.
    pub leased: Leased,
    /// The signed ticket, by which the client settles the lease.
    pub ticket: String,
}

/// The answer to a reserve. The list is empty if no job came in time.
pub type ReserveAnswer = Result<Vec<Reserved>, StoreError>;
