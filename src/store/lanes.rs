//! Opens stores: as a whole, or lane by lane. A lane is a part of a store that may hang or fail by itself: the embedded store is
//! one, of Redis each node is.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::Arc;

use super::{Bell, BellKind, RedisStore, Result, SqliteStore, Store, Token, redis, sqlite};
use crate::job::{JobKey, TopicName};
use crate::settings;

/// Opens the store that the settings name. `run_dir` is where its bells hang.
pub fn open(settings: &settings::Store, run_dir: &Path) -> Result<Box<dyn Store>> {
    match settings {
        settings::Store::Embedded { path } => Ok(Box::new(SqliteStore::open(path, run_dir)?)),
        settings::Store::Redis(settings) => Ok(Box::new(RedisStore::open(settings)?)),
    }
}

/// A handle to one lane: only that lane's jobs are leased, moved and listed by it.
pub fn open_lane(settings: &settings::Store, run_dir: &Path, lane: usize) -> Result<Box<dyn Store>> {
    match settings {
        settings::Store::Embedded { .. } => open(settings, run_dir),
        settings::Store::Redis(settings) => Ok(Box::new(RedisStore::open_lane(settings, lane)?)),
    }
}

/// Hangs a bell of one lane, under a name that no other process uses.
pub fn hang_bell(
    settings: &settings::Store,
    run_dir: &Path,
    lane: usize,
    kind: BellKind,
    name: &str,
) -> io::Result<Box<dyn Bell>> {
    match settings {
        settings::Store::Embedded { .. } => Ok(Box::new(sqlite::HungBell::hang(run_dir, kind, name)?)),
        settings::Store::Redis(settings) => {
            let nodes = redis::Nodes::of(settings).map_err(io::Error::other)?;
            Ok(Box::new(redis::RedisBell::hang(&nodes, lane, kind)?))
        }
    }
}

/// Takes a bell down. What it has rung for and nobody has looked at is for others.
pub fn unhang(bell: Box<dyn Bell>, store: &mut dyn Store) {
    let loses_rings = bell.loses_rings();
    // Nobody listens any more after this.
    drop(bell);
    if loses_rings {
        store.announce();
    }
}

/// What a node is asked about itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Probe {
    /// Its clock: `us`, Unix microseconds.
    Time,
    /// How it is: what INFO tells; and `dq_node`, which node it was when it was first used.
    Info,
    /// How it is set, as far as jobs hang on it: `maxmemory-policy`, `appendonly`, `save`.
    Config,
    /// How the Cluster is that it belongs to: what CLUSTER INFO tells.
    Cluster,
}

/// What a server of a node tells of itself.
#[derive(Debug, Clone)]
pub struct Probed {
    /// Its address; empty where it is not known.
    pub server: String,
    /// Names and values; or why it tells nothing.
    pub told: Result<BTreeMap<String, String>>,
}

/// The lanes of a store: its parts that may hang or fail each by itself. The embedded store is one, of Redis each node is.
#[derive(Clone)]
pub struct Lanes(Option<Arc<redis::Nodes>>);

impl Lanes {
    /// Those of that store.
    pub fn new(settings: &settings::Store) -> Result<Lanes> {
        match settings {
            settings::Store::Embedded { .. } => Ok(Lanes(None)),
            settings::Store::Redis(settings) => Ok(Lanes(Some(redis::Nodes::of(settings)?))),
        }
    }

    /// How many there are; never 0.
    pub fn count(&self) -> usize {
        self.0.as_ref().map_or(1, |nodes| nodes.count())
    }

    /// How many batches of a server may be on their way to a lane together, by as many threads. The embedded store has one
    /// writer, whose commits are the dearer the smaller they are.
    pub fn ways(&self) -> usize {
        if self.0.is_some() { 2 } else { 1 }
    }

    /// What a lane's node is called; none: it is no node.
    pub fn name(&self, lane: usize) -> Option<&str> {
        self.0.as_ref().and_then(|nodes| nodes.name(lane))
    }

    /// Asks the servers of a lane's node about themselves, whether they are taken for down or not. One answers for a node,
    /// each master for a Cluster.
    pub fn probe(&self, lane: usize, probe: Probe) -> Vec<Probed> {
        self.0.as_ref().map_or_else(Vec::new, |nodes| nodes.probe(lane, probe))
    }

    /// How the nodes are to each other; of the embedded store there are none.
    pub fn nodes(&self) -> Vec<redis::NodeState> {
        self.0.as_ref().map_or_else(Vec::new, |nodes| nodes.states())
    }

    /// Has a lane's node drained of its jobs, which go to the others, or no longer. The timers do it.
    pub fn drain(&self, lane: usize, drained: bool) -> Result<()> {
        self.0.as_ref().map_or(Ok(()), |nodes| nodes.drain(lane, drained))
    }

    /// The lane that grants a topic's permits, whichever are down.
    pub fn home_of(&self, topic: &TopicName) -> usize {
        self.0.as_ref().map_or(0, |nodes| nodes.home_of(topic))
    }

    /// The lane of a lease; none: it is no token of one.
    pub fn of_token(&self, token: &Token) -> Option<usize> {
        self.0.as_ref().map_or(Some(0), |nodes| nodes.lane_of_token(token))
    }

    /// Where a job belongs.
    pub fn of(&self, key: &JobKey) -> usize {
        self.0.as_ref().map_or(0, |nodes| nodes.lane_of(key))
    }
}
