//! The nodes of a store, and which of them and of their shards a job belongs to.

use std::sync::{Arc, Mutex, PoisonError};

use super::node::Node;
use crate::job::JobKey;
use crate::rendezvous;
use crate::settings;
use crate::store::{Probe, Probed, Result};

/// The nodes of a store, shared by all handles of a process.
pub struct Nodes {
    pub(super) nodes: Vec<Node>,
    names: Vec<String>,
}

impl Nodes {
    /// The nodes as the settings have them; one set a process, so that handles share connections and what is known of
    /// nodes that are down. Connects when there is something to ask.
    pub fn of(settings: &settings::Redis) -> Result<Arc<Nodes>> {
        type Known = Vec<(settings::Redis, Arc<Nodes>)>;
        static KNOWN: Mutex<Known> = Mutex::new(Vec::new());
        let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, nodes)) = known.iter().find(|(s, _)| s == settings) {
            return Ok(Arc::clone(nodes));
        }
        let nodes: Vec<Node> =
            settings.nodes.iter().map(|node| Node::new(node, settings)).collect::<Result<_>>()?;
        let names = nodes.iter().map(|node| node.name.clone()).collect();
        let nodes = Arc::new(Nodes { nodes, names });
        known.push((settings.clone(), Arc::clone(&nodes)));
        Ok(nodes)
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.nodes.len()
    }

    /// What a node is called.
    pub fn name(&self, lane: usize) -> Option<&str> {
        self.names.get(lane).map(String::as_str)
    }

    /// Asks each server of a node about itself.
    pub fn probe(&self, lane: usize, probe: Probe) -> Vec<Probed> {
        self.nodes[lane].probe(probe)
    }

    /// The node where a job belongs.
    pub fn lane_of(&self, key: &JobKey) -> usize {
        self.home(key).node
    }

    /// Where a job belongs.
    pub(super) fn home(&self, key: &JobKey) -> Place {
        let parts = [key.topic.as_str().as_bytes(), key.id.as_str().as_bytes()];
        let node = rendezvous::order(&self.names, &parts)[0];
        let shard = rendezvous::first_of(self.nodes[node].bases.len() as u32, &parts) as usize;
        Place { node, shard }
    }
}

/// A shard of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Place {
    pub node: usize,
    pub shard: usize,
}
