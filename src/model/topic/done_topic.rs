//! The name of the topic whose jobs are the events of another topic.

use crate::job_parts::{TOPIC_MAX, TopicName};

/// The end of the name of a topic for the events of another topic.
pub const DONE_SUFFIX: &str = ".on_done";

/// Returns the name of the topic whose jobs are the events of a topic. None: the name would be too long.
pub fn done_topic(topic: &TopicName) -> Option<TopicName> {
    (topic.as_str().len() + DONE_SUFFIX.len() <= TOPIC_MAX)
        .then(|| TopicName::new(&format!("{topic}{DONE_SUFFIX}")).ok())
        .flatten()
}
