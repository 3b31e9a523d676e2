//! How many jobs there are.

use crate::job::TopicName;

/// How many jobs of a topic are in each state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Counts {
    /// The topic.
    pub topic: TopicName,
    /// Waiting for their due time.
    pub delayed: u64,
    /// May be leased.
    pub ready: u64,
    /// Held by a consumer.
    pub leased: u64,
    /// Dead letters.
    pub dead: u64,
    /// When the ready job that waits longest was due, Unix milliseconds; none: none is ready.
    pub oldest_ready_ms: Option<i64>,
}

impl Counts {
    /// Those of a topic that has no jobs.
    pub fn none(topic: TopicName) -> Counts {
        Counts { topic, delayed: 0, ready: 0, leased: 0, dead: 0, oldest_ready_ms: None }
    }
}
