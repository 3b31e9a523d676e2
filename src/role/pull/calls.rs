//! The orders to a lane, its answers, and what the broker knows about the lane.

use std::collections::{BTreeSet, HashMap};
use std::time::{Duration, Instant};

use super::ReservedLease;
use crate::TroubleLog;
use model::job::TopicName;
use store::{LeaseRequest, PermitRequest, ReadyCounts, Settlement, StoreError};

/// How long clients wait for a lane that does not answer. After this time, they are free for other lanes.
pub(super) const PATIENCE: Duration = Duration::from_secs(1);

/// How often the store is asked to ring the bell for a topic. This interval must be much shorter than the time after
/// which the store forgets the last request.
pub(super) const REGISTER: Duration = Duration::from_secs(20);

/// The most jobs of one lease call, and the most lease calls of one order.
pub(super) const CALL_JOBS: u32 = 256;
pub(super) const CALLS: usize = 32;

/// An order to a lane.
#[derive(Debug)]
pub(super) enum LaneOrder {
    /// Ask for the rings of these topics, and then lease.
    Lease { register: Vec<TopicName>, calls: Vec<LeaseCall> },
    /// Ask for permits of topics that have their home on this lane.
    Permits(Vec<PermitRequest>),
    /// Hand back leases that nobody uses.
    HandBack(Vec<Settlement>),
    /// Note which clients have the leases.
    Name(Vec<Settlement>),
}

/// The jobs that a call has leased, and how many ready jobs remain in the store.
#[derive(Debug, Default)]
pub(super) struct LeaseAnswer {
    pub jobs: Vec<ReservedLease>,
    pub left: ReadyCounts,
    /// The topics of leased jobs that no client gets, because these jobs have expired.
    pub expired: BTreeSet<TopicName>,
}

/// One call that leases.
#[derive(Debug, Clone)]
pub(super) struct LeaseCall {
    pub(super) wanted: Vec<LeaseRequest>,
    pub(super) limit: usize,
    /// How long the clients want the leases to last. None: as long as each job, or its topic, says.
    pub(super) lease: Option<Duration>,
    /// Whether the leases end with the process.
    pub(super) is_owned: bool,
    /// The topics whose jobs are settled as done, and so removed, before a client gets the jobs.
    pub(super) removed: BTreeSet<TopicName>,
}

/// A call under way, and its clients in the order of their arrival.
#[derive(Debug)]
pub(super) struct PendingLeaseCall {
    pub(super) call: LeaseCall,
    pub(super) waiters: Vec<u64>,
}

#[derive(Debug)]
pub(super) struct RunningCalls {
    pub(super) since: Instant,
    pub(super) calls: Vec<PendingLeaseCall>,
    /// Whether its clients were freed for other lanes.
    pub(super) is_given_up: bool,
}

#[derive(Debug, Default)]
pub(super) struct BrokerLane {
    pub(super) hot: BTreeSet<TopicName>,
    /// When the store was last asked for the rings of a topic.
    pub(super) registered: HashMap<TopicName, Instant>,
    pub(super) under_way: Option<RunningCalls>,
    /// The time until which the lane pauses because its store failed, and the error of the store.
    pub(super) failing: Option<(Instant, StoreError)>,
    pub(super) trouble: TroubleLog,
}
