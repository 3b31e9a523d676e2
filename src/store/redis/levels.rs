//! How safe a change must be before it is answered, by topic.

use std::collections::{BTreeMap, BTreeSet};

use super::RedisStore;
use super::node;
use super::nodes::{Nodes, Place};
use crate::{Result, ServerDurability, StoreError};
use model::job::TopicName;
use model::topic::{Durability, Topics};

impl Nodes {
    /// Sets the levels that the topics ask for now.
    pub fn set_topics(&self, topics: &Topics) {
        let asked = topics.iter().filter_map(|topic| Some((topic.name.clone(), topic.durability?))).collect();
        self.levels_mut().topics = asked;
    }

    /// Returns the levels that the store or any topic asks for.
    pub fn asked_levels(&self) -> Vec<Durability> {
        let levels = self.levels();
        let all: BTreeSet<Durability> = levels.topics.values().copied().chain([levels.store]).collect();
        all.into_iter().collect()
    }

    /// Returns whether the configuration allows nodes that keep snapshots only.
    pub fn allows_snapshots(&self) -> bool {
        self.nodes.iter().all(|node| node.safety.allow_snapshots)
    }

    /// Returns how safe changes of a topic's jobs must be.
    pub(super) fn level(&self, topic: &TopicName) -> Durability {
        self.levels().level_of(topic)
    }

    /// Groups items by the level of their topic. The durability level `memory`, which needs no wait, comes first.
    pub(super) fn by_level<'a>(
        &self,
        topics: impl Iterator<Item = &'a TopicName>,
    ) -> BTreeMap<Durability, Vec<usize>> {
        let levels = self.levels();
        let mut groups: BTreeMap<Durability, Vec<usize>> = BTreeMap::new();
        for (i, topic) in topics.enumerate() {
            groups.entry(levels.level_of(topic)).or_default().push(i);
        }
        groups
    }

    /// Returns how safe a node can make changes. If the node has several servers, this is what all servers that answer
    /// can do. None: no server of the node answers.
    pub(super) fn capability(&self, node: usize) -> Option<ServerDurability> {
        let all = self.nodes[node].capabilities().into_iter();
        all.min_by_key(|one| (one.alone(), one.replicas))
    }

    /// Returns an error if a node keeps snapshots only and the configuration does not allow that.
    pub(super) fn keep_jobs(&self, lane: Option<usize>) -> Result<()> {
        let mut nodes =
            self.nodes.iter().enumerate().filter(|(node, _)| lane.is_none_or(|lane| lane == *node));
        nodes.try_for_each(|(_, node)| node.keeps_jobs())
    }
}

impl RedisStore {
    /// Waits until the changes on these shards are as safe as the topic asks.
    pub(super) fn confirm(&self, topic: &TopicName, places: impl Iterator<Item = Place>) -> Result<()> {
        self.confirm_level(self.nodes.level(topic), places)
    }

    /// Waits until the changes on these shards are as safe as the level says.
    pub(super) fn confirm_level(&self, level: Durability, places: impl Iterator<Item = Place>) -> Result<()> {
        if level == Durability::Memory {
            return Ok(());
        }
        let call = |place: Place| {
            let base = self.nodes.nodes[place.node].bases[place.shard].as_bytes();
            (place, node::Call { durability: level, ..node::mark(place.shard, base) })
        };
        for (_, answer) in self.ask_all_by(places.map(call).collect()) {
            answer.map_err(|e| match e {
                e @ StoreError::Unknown(_) => e,
                e => StoreError::Unknown(format!(
                    "the change is stored on the master, but perhaps not as safe as asked ({level}): {e}"
                )),
            })?;
        }
        Ok(())
    }
}
