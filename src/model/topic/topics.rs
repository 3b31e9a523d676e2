//! The topics that a process knows, and what it may do with the jobs of each topic. Pure.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use super::{DeliveryMode, Topic, TopicStatus};
use crate::job_parts::TopicName;

/// All topics that a process knows, by name. Cheap to clone.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Topics(Arc<HashMap<TopicName, TopicEntry>>);

/// Why the jobs of a topic are not delivered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TopicNonDeliveryReason {
    /// No topic has this name.
    Unregistered,
    /// The topic is held.
    Held(String),
    /// The mode of the topic is `pull`: no consumer delivers its jobs, and clients reserve them.
    Pull,
}

impl fmt::Display for TopicNonDeliveryReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TopicNonDeliveryReason::Unregistered => f.write_str("the topic is not registered"),
            TopicNonDeliveryReason::Held(why) => write!(f, "the topic is held: {why}"),
            TopicNonDeliveryReason::Pull => {
                f.write_str("the mode of the topic is \"pull\", and no client reserves its jobs")
            }
        }
    }
}

/// A topic, and what follows from its settings. The entry is made once, and not for each job.
#[derive(Debug, PartialEq, Eq)]
struct TopicEntry {
    topic: Arc<Topic>,
    /// Why the topic is held. None: the topic is served.
    held: Option<String>,
    /// Whether dq itself adds the jobs of the topic: see `on_done`.
    is_of_events: bool,
}

impl Topics {
    /// Returns the topic with this name.
    pub fn get(&self, name: &str) -> Option<&Arc<Topic>> {
        self.0.get(name).map(|known| &known.topic)
    }

    /// Returns all topics, in no particular order.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Topic>> {
        self.0.values().map(|known| &known.topic)
    }

    /// Returns why a topic takes no new jobs. `None`: the topic takes new jobs, or no topic has this name.
    pub fn refusal(&self, name: &str) -> Option<String> {
        let TopicEntry { topic, held, is_of_events } = self.0.get(name)?;
        if *is_of_events {
            return Some(format!("topic {name} has the events of another topic: dq alone adds its jobs"));
        }
        match (held, topic.status) {
            (Some(why), _) => Some(format!("topic {name} is held: {why}")),
            (None, TopicStatus::Offline) => Some(format!("topic {name} is offline")),
            (None, TopicStatus::Online) => None,
        }
    }

    /// Returns why the jobs of a topic are not delivered. None: the jobs are delivered.
    pub fn undelivered(&self, name: &str) -> Option<TopicNonDeliveryReason> {
        let Some(TopicEntry { topic, held, .. }) = self.0.get(name) else {
            return Some(TopicNonDeliveryReason::Unregistered);
        };
        match (held, topic.mode) {
            (Some(why), _) => Some(TopicNonDeliveryReason::Held(why.clone())),
            (None, DeliveryMode::Pull) => Some(TopicNonDeliveryReason::Pull),
            (None, DeliveryMode::Push) => None,
        }
    }

    /// Returns whether clients may reserve the jobs of a topic.
    pub fn is_pulled(&self, name: &str) -> bool {
        self.0.get(name).is_some_and(|known| known.held.is_none() && known.topic.mode == DeliveryMode::Pull)
    }

    /// Returns whether the consumers deliver the jobs of a topic.
    pub fn is_delivered(&self, name: &str) -> bool {
        self.0.get(name).is_some_and(|known| known.held.is_none() && known.topic.mode == DeliveryMode::Push)
    }
}

/// If two topics have the same name, only the first of the two topics is used. A topic with `on_done` adds another
/// topic for its events.
impl FromIterator<Topic> for Topics {
    fn from_iter<I: IntoIterator<Item = Topic>>(topics: I) -> Topics {
        let mut all = HashMap::new();
        for topic in topics {
            let name = topic.name.clone();
            all.entry(name).or_insert_with(|| TopicEntry {
                held: topic.held(),
                topic: Arc::new(topic),
                is_of_events: false,
            });
        }
        let events: Vec<Topic> = all.values().filter_map(|known| known.topic.of_events()).collect();
        for topic in events {
            let new = |topic| TopicEntry { held: None, topic: Arc::new(topic), is_of_events: true };
            all.entry(topic.name.clone()).or_insert_with(|| new(topic));
        }
        Topics(Arc::new(all))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topic::Method;

    #[test]
    fn a_topic_with_events_brings_a_topic_that_delivers_them() {
        let topic = Topic::new(TopicName::new("t").unwrap(), "http://h/");
        let secrets = vec!["s".repeat(32)];
        let with = Topic { on_done: "http://e/done".into(), secrets: secrets.clone(), ..topic.clone() };
        let topics = Topics::from_iter([with]);
        let events = topics.get("t.on_done").unwrap();
        assert_eq!((events.callback.as_str(), &events.secrets), ("http://e/done", &secrets));
        assert!(topics.is_delivered("t.on_done"));
        assert!(topics.refusal("t.on_done").unwrap().contains("dq alone"));
        assert!(events.on_done.is_empty() && topics.get("t.on_done.on_done").is_none());
        let own = Topic::new(TopicName::new("t.on_done").unwrap(), "http://own/");
        assert_eq!(own.check().unwrap_err().field, "name");
        assert!(Topics::from_iter([topic]).get("t.on_done").is_none());
    }

    #[test]
    fn jobs_are_taken_and_delivered_by_what_the_topic_says() {
        let topic = |name: &str| Topic::new(TopicName::new(name).unwrap(), "http://h/");
        let topics = Topics::from_iter([
            topic("plain"),
            Topic { status: TopicStatus::Offline, ..topic("off") },
            Topic { mode: DeliveryMode::Pull, ..topic("pull") },
            Topic { re_notify_flag: "system({res.a})".into(), ..topic("flag") },
            Topic { method: Method::Other("PUT".into()), ..topic("method") },
            topic("flag"),
        ]);
        for (name, taken, delivered) in [
            ("plain", true, true),
            ("off", false, true),
            ("pull", true, false),
            ("flag", false, false),
            ("method", false, false),
        ] {
            assert_eq!(topics.refusal(name).is_none(), taken, "{name}");
            assert_eq!(topics.undelivered(name).is_none(), delivered, "{name}");
            assert_eq!(topics.is_delivered(name), delivered, "{name}");
            assert_eq!(topics.is_pulled(name), name == "pull", "{name}");
        }
        assert_eq!(topics.refusal("off").unwrap(), "topic off is offline");
        assert!(topics.refusal("flag").unwrap().contains("\"system({res.a})\""));
        assert!(topics.undelivered("method").unwrap().to_string().contains("\"PUT\""));
        assert!(topics.undelivered("nobody").unwrap().to_string().contains("not registered"));
        assert_eq!(topics.refusal("nobody"), None, "a request gets the answer that it is unknown");
    }
}
