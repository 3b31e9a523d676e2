//! A Redis Cluster: which of its masters has which shard. Each server of the Cluster knows the map of shards and
//! masters. The map is read again when a server says that a shard has moved, or when a server does not answer.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use redis::Value;

use super::super::breaker::PAUSE;
use super::access::ConnectionParameters;
use super::connector::Connector;
use super::node_server::NodeServer;
use super::server::connect;
use super::slots::{self, SlotRange};

/// The servers of a Cluster.
pub(super) struct Cluster {
    node: String,
    seeds: Vec<ConnectionParameters>,
    /// The slot of each shard.
    slots: Vec<u16>,
    pool: u32,
    timeout: Duration,
    /// How long a call waits for its changes to be safe.
    limit: Duration,
    map: Mutex<Arc<ClusterMap>>,
    /// When the map was last read. One thread at a time reads it.
    asked_at: Mutex<Option<Instant>>,
}

/// Where the shards are.
#[derive(Default)]
pub(super) struct ClusterMap {
    /// A number that grows each time that the map is read.
    pub version: u64,
    /// The master of each shard. None: no master has its slot.
    pub homes: Vec<Option<Arc<NodeServer>>>,
    /// All masters, by address.
    pub masters: BTreeMap<String, Arc<NodeServer>>,
}

/// Why the map is read again.
#[derive(Clone, Copy)]
pub(super) enum RefreshReason<'a> {
    /// This master has answered that another master has a shard.
    Moved(&'a NodeServer),
    /// A shard cannot be asked. dq searches for its slot from time to time.
    Away,
}

impl Cluster {
    pub(super) fn new(
        node: &str,
        bases: &[String],
        seeds: Vec<ConnectionParameters>,
        pool: u32,
        (timeout, limit): (Duration, Duration),
    ) -> Cluster {
        Cluster {
            node: node.to_owned(),
            seeds,
            slots: bases.iter().map(|base| slots::slot_of(base)).collect(),
            pool,
            timeout,
            limit,
            map: Mutex::default(),
            asked_at: Mutex::default(),
        }
    }

    pub(super) fn map(&self) -> Arc<ClusterMap> {
        Arc::clone(&self.map.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Reads the map again, if no other thread has read it since the version `seen`. If the reason is a shard that
    /// cannot be asked, the map is read at most once in half a second. Returns the shards that have moved to another
    /// master.
    pub(super) fn refresh(&self, seen: u64, because: RefreshReason<'_>) -> Vec<usize> {
        let mut asked_at = self.asked_at.lock().unwrap_or_else(PoisonError::into_inner);
        let before = self.map();
        let is_early = asked_at.is_some_and(|at| at.elapsed() < PAUSE);
        if before.version > seen || (matches!(because, RefreshReason::Away) && is_early) {
            return Vec::new();
        }
        let ranges = self.ask(&before, because);
        *asked_at = Some(Instant::now());
        let Some(ranges) = ranges else { return Vec::new() };
        let after = self.draw(&before, &ranges);
        let moved = |shard: &usize| match (before.homes.get(*shard), &after.homes[*shard]) {
            (Some(Some(old)), Some(new)) => !Arc::ptr_eq(old, new),
            _ => false,
        };
        let moved = (0..self.slots.len()).filter(moved).collect();
        *self.map.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(after);
        moved
    }

    fn draw(&self, before: &ClusterMap, ranges: &[SlotRange]) -> ClusterMap {
        let mut after = ClusterMap { version: before.version + 1, ..ClusterMap::default() };
        for range in ranges {
            let access = self.seeds[0].at(&range.host, range.port);
            let address = access.address();
            if after.masters.contains_key(&address) {
                continue;
            }
            let known = before.masters.get(&address).cloned();
            let new = || {
                let name = format!("{} ({address})", self.node);
                Some(Arc::new(NodeServer::new(
                    name,
                    Connector::to(&access).ok()?,
                    self.pool,
                    (self.timeout, self.limit),
                )))
            };
            if let Some(master) = known.or_else(new) {
                after.masters.insert(address, master);
            }
        }
        let home = |slot: &u16| {
            let range = ranges.iter().find(|r| (r.from..=r.to).contains(slot))?;
            after.masters.get(&self.seeds[0].at(&range.host, range.port).address()).cloned()
        };
        after.homes = self.slots.iter().map(home).collect();
        after
    }

    /// Asks one server after the other until a server returns the map: first the master that has said that a shard has
    /// moved, then masters that do not count as down, then the other masters, then the seeds.
    fn ask(&self, map: &ClusterMap, because: RefreshReason<'_>) -> Option<Vec<SlotRange>> {
        let mut cmd = redis::cmd("CLUSTER");
        cmd.arg("SLOTS");
        let mut masters: Vec<&Arc<NodeServer>> = map.masters.values().collect();
        masters.sort_by_key(|m| match because {
            RefreshReason::Moved(by) if std::ptr::eq(Arc::as_ptr(m), by) => 0,
            _ => 1 + u8::from(m.is_down()),
        });
        let mut why = String::new();
        for master in masters {
            match master.ask_briefly::<Value>(&cmd) {
                Ok(answer) => {
                    let found = slots::ranges(&answer, host_of(&master.connector.address()));
                    if !found.is_empty() {
                        return Some(found);
                    }
                }
                Err(e) => why = e.to_string(),
            }
        }
        for seed in self.seeds.iter().filter(|seed| !map.masters.contains_key(&seed.address())) {
            let asked = seed.client().and_then(|client| connect(&client, self.timeout, self.timeout));
            match asked.and_then(|mut connection| cmd.query::<Value>(&mut connection)) {
                Ok(answer) => {
                    let found = slots::ranges(&answer, seed.host().unwrap_or_default());
                    if !found.is_empty() {
                        return Some(found);
                    }
                    why = format!("{} knows of no slots", seed.address());
                }
                Err(e) => why = format!("{}: {e}", seed.address()),
            }
        }
        log::debug!("node {}: no server tells where its slots are: {why}", self.node);
        None
    }
}

/// Returns the host of an address with a port.
fn host_of(address: &str) -> &str {
    address.rsplit_once(':').map_or(address, |(host, _)| host)
}
