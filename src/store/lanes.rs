//! Opens stores: as a whole, or lane by lane. A lane is a part of a store that may hang or fail by itself: the embedded
//! store is one lane, and each node of Redis is one.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::Arc;

use super::{Bell, BellKind, MovableStore, RedisStore, Result, SqliteStore, Store, Token, redis, sqlite};
use model::job::JobKey;
use model::settings;
use model::topic::{Durability, Topics};

/// Opens the store that the settings name. `run_dir` is the folder that has the bells of the store.
pub fn open(settings: &settings::StoreSettings, run_dir: &Path) -> Result<Box<dyn Store>> {
    match settings {
        settings::StoreSettings::Embedded { path, min_free } => {
            Ok(Box::new(SqliteStore::open(path, run_dir, *min_free)?))
        }
        settings::StoreSettings::Redis(settings) => Ok(Box::new(RedisStore::open(settings)?)),
    }
}

/// Opens the old or the new store of a move, even if the store has the mark of a move. So a daemon must not call this
/// function. A daemon calls [`open`] or [`open_lane`], which refuse such a store.
pub fn open_to_move(settings: &settings::StoreSettings, run_dir: &Path) -> Result<Box<dyn MovableStore>> {
    match settings {
        settings::StoreSettings::Embedded { path, min_free } => {
            Ok(Box::new(SqliteStore::open_marked(path, run_dir, *min_free)?))
        }
        settings::StoreSettings::Redis(settings) => Ok(Box::new(RedisStore::open_marked(settings)?)),
    }
}

/// Opens a handle to one lane. The handle leases, promotes and lists only the jobs of that lane.
pub fn open_lane(settings: &settings::StoreSettings, run_dir: &Path, lane: usize) -> Result<Box<dyn Store>> {
    match settings {
        settings::StoreSettings::Embedded { .. } => open(settings, run_dir),
        settings::StoreSettings::Redis(settings) => Ok(Box::new(RedisStore::open_lane(settings, lane)?)),
    }
}

/// Creates a bell of one lane, under a name that no other process uses.
pub fn hang_bell(
    settings: &settings::StoreSettings,
    run_dir: &Path,
    lane: usize,
    kind: BellKind,
    name: &str,
) -> io::Result<Box<dyn Bell>> {
    match settings {
        settings::StoreSettings::Embedded { .. } => {
            Ok(Box::new(sqlite::SocketBell::hang(run_dir, kind, name)?))
        }
        settings::StoreSettings::Redis(settings) => {
            let nodes = redis::Nodes::from_settings(settings).map_err(io::Error::other)?;
            Ok(Box::new(redis::RedisBell::hang(&nodes, lane, kind)?))
        }
    }
}

/// Removes a bell. The rings that this bell has received may be lost with it. In this case all bells are rung, so that
/// other processes look for the work of these rings.
pub fn unhang(bell: Box<dyn Bell>, store: &mut dyn Store) {
    let loses_rings = bell.loses_rings();
    // From here on, the bell gets no more rings.
    drop(bell);
    if loses_rings {
        store.announce();
    }
}

/// A question to the servers of a node about themselves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServerQuery {
    /// Its clock. The answer has one value: `us`, Unix microseconds.
    Time,
    /// Its state: the answer of INFO, and `dq_node`, the name of the node for which dq first used the server.
    Info,
    /// Its settings that matter for jobs: `maxmemory-policy`, `appendonly`, `appendfsync`, `save`.
    Config,
    /// The state of its Cluster: the answer of CLUSTER INFO.
    Cluster,
}

/// The answer of one server of a node to a [`ServerQuery`].
#[derive(Debug, Clone)]
pub struct ProbeAnswer {
    /// Its address. Empty if it is not known.
    pub server: String,
    /// Names and values, or why there is no answer.
    pub values: Result<BTreeMap<String, String>>,
}

/// The lanes of a store: its parts that may hang or fail, each by itself. The embedded store is one lane, and each node
/// of Redis is one.
#[derive(Clone)]
pub struct Lanes(Option<Arc<redis::Nodes>>);

impl Lanes {
    /// Returns the lanes of the store that the settings name.
    pub fn new(settings: &settings::StoreSettings) -> Result<Lanes> {
        match settings {
            settings::StoreSettings::Embedded { .. } => Ok(Lanes(None)),
            settings::StoreSettings::Redis(settings) => {
                Ok(Lanes(Some(redis::Nodes::from_settings(settings)?)))
            }
        }
    }

    /// Returns how many lanes there are. There is always at least one.
    pub fn count(&self) -> usize {
        self.0.as_ref().map_or(1, |nodes| nodes.count())
    }

    /// Returns how many batches a server process may send to a lane at the same time, each with a thread of its own.
    /// The embedded store has one writer. With more batches at a time, its commits would be smaller, and each job would
    /// cost more.
    pub fn ways(&self) -> usize {
        if self.0.is_some() { 2 } else { 1 }
    }

    /// Returns the name of a lane's node. None: the lane is not a node.
    pub fn name(&self, lane: usize) -> Option<&str> {
        self.0.as_ref().and_then(|nodes| nodes.name(lane))
    }

    /// Asks the servers of a lane's node about themselves, even if they count as down. In a Cluster, each master is
    /// asked. In any other node, one server is asked.
    pub fn probe(&self, lane: usize, probe: ServerQuery) -> Vec<ProbeAnswer> {
        self.0.as_ref().map_or_else(Vec::new, |nodes| nodes.probe(lane, probe))
    }

    /// Returns the states of the nodes. The embedded store has no nodes.
    pub fn nodes(&self) -> Vec<redis::NodeState> {
        self.0.as_ref().map_or_else(Vec::new, |nodes| nodes.states())
    }

    /// Returns whether a lane is a node that has no jobs, because the newest set does not name it.
    pub fn is_outside(&self, lane: usize) -> bool {
        self.0.as_ref().is_some_and(|nodes| nodes.is_outside(lane))
    }

    /// Returns the set number. It changes when the set of the nodes that hold jobs changes. 0: no set is known.
    pub fn set_number(&self) -> u64 {
        self.0.as_ref().map_or(0, |nodes| nodes.set_number())
    }

    /// Returns which nodes hold jobs, according to the newest set that this process knows. None: this process knows no
    /// set, or the store is embedded.
    pub fn set(&self) -> Option<redis::NodeSetView> {
        self.0.as_ref().and_then(|nodes| nodes.set_state())
    }

    /// Notes the durability levels that the topics ask for now, for all handles of this process.
    pub fn set_topics(&self, topics: &Topics) {
        // The embedded store has one level. The API shows which topics ask for another level.
        if let Some(nodes) = &self.0 {
            nodes.set_topics(topics);
        }
    }

    /// Returns the durability levels that the store or any topic asks for. The embedded store has only one level, so it
    /// returns none.
    pub fn asked_levels(&self) -> Vec<Durability> {
        self.0.as_ref().map_or_else(Vec::new, |nodes| nodes.asked_levels())
    }

    /// Returns whether the configuration allows Redis servers without an append-only file. Such a server saves only
    /// snapshots, or nothing at all.
    pub fn allows_snapshots(&self) -> bool {
        self.0.as_ref().is_some_and(|nodes| nodes.allows_snapshots())
    }

    /// Returns the nodes, for code that changes which of them hold jobs. None: the store is embedded.
    pub fn redis(&self) -> Option<&redis::Nodes> {
        self.0.as_deref()
    }

    /// Returns the lane that grants the permits of a topic. It stays the same lane when nodes are down.
    pub fn home_of(&self, name: &str) -> usize {
        self.0.as_ref().map_or(0, |nodes| nodes.home_of(name))
    }

    /// Returns the lane of a lease. None: the token is not a lease token.
    pub fn of_token(&self, token: &Token) -> Option<usize> {
        self.0.as_ref().map_or(Some(0), |nodes| nodes.lane_of_token(token))
    }

    /// Returns whether the home of a job is known to be down.
    pub fn is_home_down(&self, key: &JobKey) -> bool {
        self.0.as_ref().is_some_and(|nodes| nodes.is_home_down(key))
    }

    /// Returns the lane where a job belongs.
    pub fn lane_of(&self, key: &JobKey) -> usize {
        self.0.as_ref().map_or(0, |nodes| nodes.lane_of(key))
    }
}
