//! The numbers of jobs. A client of beanstalkd identifies a job by its number alone, without a tube. Pure.
//!
//! | bits | what |
//! |---|---|
//! | 48 to 62 | the tag of the topic, from 1: a hash of its name |
//! | 18 to 47 | the second in which the job was put. It repeats after 34 years |
//! | 0 to 17 | a count that begins at random in each process |
//!
//! The number in decimal digits is the job's id. The tag in a number tells which topics may have the job, so no table
//! of numbers is needed. Nearly always, only one topic has this tag. In a topic, a number is unique, because the job is
//! added only if its id is free. Topics with the same tag share the counts: if k topics have the same tag, the n-th of
//! them (from 0) uses only counts that are n modulo k. After the second in which it was made, a number is not used
//! again for 34 years. So a late command for an old job does not change a new job.

use std::collections::HashMap;

use model::job::{JobId, JobKey, TopicName};
use model::topic::Topics;

const SLOT_BITS: u32 = 18;
const SECOND_BITS: u32 = 30;
const TAG_BITS: u32 = 15;

/// Returns the tag of a topic: the FNV-1a hash of its name, reduced to a number from 1 to 32767.
fn tag_of(topic: &TopicName) -> u64 {
    let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    let hash = topic.as_str().bytes().fold(0xcbf2_9ce4_8422_2325, step);
    (hash ^ (hash >> 32)) % ((1 << TAG_BITS) - 1) + 1
}

/// Returns the number of a job that was put on a port for clients of beanstalkd. None: the job was added in another
/// way.
pub(super) fn number_of(key: &JobKey) -> Option<u64> {
    let number: u64 = key.id.as_str().parse().ok()?;
    let is_own = number >> (SLOT_BITS + SECOND_BITS) == tag_of(&key.topic);
    (is_own && id_of(number) == key.id).then_some(number)
}

/// Returns the id of the job with this number.
pub(super) fn id_of(number: u64) -> JobId {
    JobId::new(number.to_string()).expect("digits are an id")
}

/// The pull topics by their tag, each list sorted by name. Here, a tag is a hash of the name of a topic, not a tag of a
/// job.
#[derive(Debug, Default)]
pub(super) struct TopicHashes(HashMap<u64, Vec<TopicName>>);

impl TopicHashes {
    pub(super) fn new(topics: &Topics) -> TopicHashes {
        let mut tags: HashMap<u64, Vec<TopicName>> = HashMap::new();
        for topic in topics.iter().filter(|topic| topics.is_pulled(topic.name.as_str())) {
            tags.entry(tag_of(&topic.name)).or_default().push(topic.name.clone());
        }
        tags.values_mut().for_each(|names| names.sort());
        TopicHashes(tags)
    }

    /// Returns the topics that may have the job with this number.
    pub(super) fn find(&self, number: u64) -> &[TopicName] {
        self.0.get(&(number >> (SLOT_BITS + SECOND_BITS))).map_or(&[], Vec::as_slice)
    }

    /// Makes a number for a job of a topic. `count` differs at each call.
    pub(super) fn number(&self, topic: &TopicName, now_ms: i64, count: u64) -> u64 {
        let tag = tag_of(topic);
        let alike = self.0.get(&tag).map_or(&[][..], Vec::as_slice);
        let rank = alike.iter().position(|name| name == topic).unwrap_or(0) as u64;
        let topics = alike.len().max(1) as u64;
        let slot = count % ((1 << SLOT_BITS) / topics) * topics + rank;
        let second = (now_ms / 1000) as u64 % (1 << SECOND_BITS);
        (tag << (SLOT_BITS + SECOND_BITS)) | (second << SLOT_BITS) | slot
    }
}

#[cfg(test)]
mod tests {
    use model::topic::{DeliveryMode, Topic};

    use super::*;

    fn name(text: &str) -> TopicName {
        TopicName::new(text).unwrap()
    }

    fn pulled(names: &[&str]) -> TopicHashes {
        let topic = |text: &&str| Topic { mode: DeliveryMode::Pull, ..Topic::new(name(text), "") };
        TopicHashes::new(&names.iter().map(topic).collect())
    }

    #[test]
    fn a_number_leads_to_its_topic() {
        let tags = pulled(&["a", "b", "default"]);
        for (topic, now_ms, random) in
            [("a", 0, 0), ("b", 1_795_000_000_000, u64::MAX), ("default", i64::MAX, 7)]
        {
            let number = tags.number(&name(topic), now_ms, random);
            assert!(number > 0 && number < 1 << 63);
            assert_eq!(tags.find(number), [name(topic)]);
            let key = |topic: &str, id: JobId| JobKey { topic: name(topic), id };
            assert_eq!(number_of(&key(topic, id_of(number))), Some(number));
            assert_eq!(number_of(&key("other", id_of(number))), None);
            assert_eq!(number_of(&key(topic, JobId::new(format!("0{number}")).unwrap())), None);
            assert_eq!(number_of(&key(topic, JobId::new("5").unwrap())), None);
        }
    }

    #[test]
    fn topics_with_the_same_tag_share_the_numbers() {
        let mut first: HashMap<u64, String> = HashMap::new();
        let pair = (0..)
            .map(|n| format!("t{n}"))
            .find_map(|text| first.insert(tag_of(&name(&text)), text.clone()).map(|other| (other, text)));
        let (a, b) = pair.unwrap();
        let tags = pulled(&[&a, &b]);
        for random in [0, 1, 17, u64::MAX, (1 << SLOT_BITS) - 1] {
            let [of_a, of_b] = [&a, &b].map(|topic| tags.number(&name(topic), 5_000, random));
            assert_eq!(of_a.abs_diff(of_b), 1);
            assert_eq!(tags.find(of_a).len(), 2);
        }
    }
}
