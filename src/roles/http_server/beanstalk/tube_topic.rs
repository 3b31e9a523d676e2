//! Finds the topic of a tube, and the tube of a topic. Pure.
//!
//! If the name of a tube is valid as the name of a topic and does not begin with `tube--`, the topic has the same name.
//! Any other tube has a topic whose name begins with `tube--`:
//!
//! - The bytes of the tube's name follow. A byte that is not a letter, digit, `_` or `.` is written as `-` and two hex
//!   digits: `a/b` is `tube--a-2fb`. So these bytes never have two `-` in a row. A later `--` can only be the beginning
//!   of a hash (see below).
//! - If the result is too long for a topic, it is cut, and `--` and a hash of the tube's name are appended. In this
//!   case the tube's name is kept in the title of the topic.
//!
//! So each tube has one topic. Two tubes have the same topic only if two hashes of 64 bits are equal.

use sha2::{Digest as _, Sha256};

use model::job::{TOPIC_MAX, TopicName};
use model::topic::Topic;
use protocol::beanstalk::TubeName;

const MAPPED: &str = "tube--";

/// How many hex digits of a hash stand at the end of a long name.
const HASH_DIGITS: usize = 16;

/// Returns the topic of a tube.
pub(super) fn topic_of(tube: &TubeName) -> TopicName {
    let name = tube.as_str();
    if !name.starts_with(MAPPED)
        && let Ok(topic) = TopicName::new(name)
    {
        return topic;
    }
    let mut text = MAPPED.to_owned();
    for byte in name.bytes() {
        match byte {
            b'_' | b'.' => text.push(byte.into()),
            _ if byte.is_ascii_alphanumeric() => text.push(byte.into()),
            _ => text.push_str(&format!("-{byte:02x}")),
        }
    }
    if text.len() > TOPIC_MAX {
        let hash: String = Sha256::digest(name).iter().map(|byte| format!("{byte:02x}")).collect();
        text.truncate(TOPIC_MAX - HASH_DIGITS - 2);
        let kept = text.trim_end_matches('-').len();
        text.truncate(kept.max(MAPPED.len()));
        text.push_str("--");
        text.push_str(&hash[..HASH_DIGITS]);
    }
    TopicName::new(&text).expect("all its bytes are those of a topic's name")
}

/// Returns the tube of a topic. None: no tube has this topic.
pub(super) fn tube_of(topic: &Topic) -> Option<TubeName> {
    let name = topic.name.as_str();
    let tube = match name.strip_prefix(MAPPED) {
        None => TubeName::new(name.as_bytes())?,
        Some(rest) => TubeName::new(&unescaped(rest).unwrap_or_else(|| topic.title.clone().into_bytes()))?,
    };
    (topic_of(&tube) == topic.name).then_some(tube)
}

/// Decodes the part of a topic's name that follows `tube--`. None: the name has a hash.
fn unescaped(text: &str) -> Option<Vec<u8>> {
    let mut bytes = text.bytes();
    let mut name = Vec::new();
    while let Some(byte) = bytes.next() {
        name.push(match byte {
            b'-' => {
                let digits = [bytes.next()?, bytes.next()?];
                u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?
            }
            byte => byte,
        });
    }
    Some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tube(name: &str) -> TubeName {
        TubeName::new(name.as_bytes()).unwrap()
    }

    fn registered(name: &str, title: &str) -> Topic {
        Topic { title: title.to_owned(), ..Topic::new(TopicName::new(name).unwrap(), "") }
    }

    #[test]
    fn a_tube_and_its_topic_name_each_other() {
        let long = format!("{}/{}", "a".repeat(105), "b".repeat(90));
        for (name, topic) in [
            ("default", "default"),
            ("a.b_c-d", "a.b_c-d"),
            ("jobs/a+b", "tube--jobs-2fa-2bb"),
            ("$_(1);-", "tube---24_-281-29-3b-2d"),
            ("tube--a", "tube--tube-2d-2da"),
            (&"x".repeat(128), &"x".repeat(128)),
            (&long, &format!("tube--{}--", "a".repeat(104)[..104].to_owned())),
        ] {
            let known = topic_of(&tube(name));
            assert!(known.as_str().starts_with(topic), "{known}");
            assert_eq!(tube_of(&registered(known.as_str(), name)), Some(tube(name)));
            if name.len() < 100 {
                assert_eq!(known.as_str(), topic);
                assert_eq!(tube_of(&registered(topic, "")), Some(tube(name)));
            }
        }
        let (a, b) = ("x".repeat(199) + "a", "x".repeat(199) + "b");
        assert_ne!(topic_of(&tube(&a)), topic_of(&tube(&b)));
        for (topic, title) in [("-a", ""), ("tube--a", "a"), ("tube--a--0123456789abcdef", "a")] {
            assert_eq!(tube_of(&registered(topic, title)), None, "{topic}");
        }
    }
}
