//! Which durability level each topic asks for. Pure.

use std::collections::HashMap;

use model::job::TopicName;
use model::topic::Durability;

/// The durability levels of topics.
#[derive(Debug, Default)]
pub(super) struct TopicDurabilityLevels {
    /// The level of a topic that sets no level.
    pub store: Durability,
    /// The levels of the topics that set a level.
    pub topics: HashMap<TopicName, Durability>,
}

impl TopicDurabilityLevels {
    pub(super) fn new(store: Durability) -> TopicDurabilityLevels {
        TopicDurabilityLevels { store, topics: HashMap::new() }
    }

    /// Returns the level of topics that ask for no level.
    pub(super) fn store(&self) -> Durability {
        self.store
    }

    pub(super) fn level_of(&self, topic: &TopicName) -> Durability {
        self.topics.get(topic).copied().unwrap_or(self.store)
    }
}
