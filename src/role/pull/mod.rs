//! Serves clients that reserve jobs of pull topics. A reserve that finds no job waits here. While a reserve waits, the
//! store is asked for jobs when a bell rings, when permits come, and every ten seconds in case a ring was lost. If a
//! limit prevented the lease of ready jobs, or the store failed, the store is asked again after a pause.
//!
//! `broker` decides who waits for what, and who gets the jobs. It is pure. `plan` decides what the lanes are asked for.
//! `threads` has the threads. One thread owns the broker. Each lane of the store has two threads: one talks to the
//! lane, and one listens to its bell. The threads of the lanes begin with the first reserve, so a process that gets no
//! reserve has only the thread of the broker. `crate::settling` says what a client's ack, nack or extend means for the
//! lease.
//!
//! A lease made here has no owner, unless the client asks for an owned lease. The lease ends when it is settled, or at
//! its deadline. A job that was leased for a client that is gone is handed back. If this fails, the job comes back at
//! the deadline. A client whose leases must end with its connection asks for owned leases. This process owns them, so a
//! timer hands them back if the process dies.

mod broker;
mod calls;
mod checkout;
mod lease_orders;
mod plan;
mod rates;
#[cfg(test)]
mod simulation;
#[cfg(test)]
mod slow_lanes;
mod threads;
mod waits;

use std::time::{Duration, Instant};

use model::job::TopicName;
use model::topic::Topics;
use store::{LeasedJob, StoreError};

pub use self::threads::{PullHandle, ReserveHandle};

/// The most topics of one reserve.
pub const MAX_TOPICS: usize = 32;

/// The longest time that a reserve waits.
pub const MAX_WAIT: Duration = Duration::from_secs(60);

/// What a client reserves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reserve {
    /// The topics, in the order of preference.
    pub topics: Vec<TopicName>,
    /// The maximum number of jobs.
    pub max: u32,
    /// How long the leases last. None: as long as the job or its topic says.
    pub lease: Option<Duration>,
    /// Whether this process owns the leases. Owned leases end with the process.
    pub is_owned: bool,
    /// The client, if it has named itself. The leases of its jobs show this client.
    pub client: Option<NamedClient>,
    /// The time until which the client waits if there is no job for it.
    pub until: Instant,
}

/// A client that has named itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedClient {
    /// Its name, which [`Reserver::is_name`](store::Reserver::is_name) has checked.
    pub name: String,
    /// The client's address. Empty: the client came over the Unix socket.
    pub address: String,
}

/// A job that a client has reserved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReservedLease {
    /// The job, under its lease.
    pub leased: LeasedJob,
    /// The signed ticket, by which the client settles the lease. None: the job is done, and removed.
    pub ticket: Option<String>,
}

/// Why no jobs of some topics can be reserved.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotPulled {
    /// No topic has this name.
    #[error("topic {0} is not registered")]
    Unknown(TopicName),
    /// None of the topics has jobs that clients may reserve. Contains the first topic, and the reason.
    #[error("jobs of topic {0} cannot be reserved: {1}")]
    Other(TopicName, String),
}

/// Returns the topics among `names` whose jobs clients may reserve.
pub fn pulled(topics: &Topics, names: Vec<TopicName>) -> Result<Vec<TopicName>, NotPulled> {
    if let Some(name) = names.iter().find(|name| topics.get(name.as_str()).is_none()) {
        return Err(NotPulled::Unknown(name.clone()));
    }
    let (pulled, others): (Vec<_>, Vec<_>) =
        names.into_iter().partition(|name| topics.is_pulled(name.as_str()));
    match others.first().filter(|_| pulled.is_empty()) {
        None => Ok(pulled),
        Some(name) => {
            let why = match topics.undelivered(name.as_str()) {
                None => "its mode is \"push\"".to_owned(),
                Some(why) => why.to_string(),
            };
            Err(NotPulled::Other(name.clone(), why))
        }
    }
}

/// The answer to a reserve. The list is empty if no job came in time.
pub type ReserveAnswer = Result<Vec<ReservedLease>, StoreError>;
