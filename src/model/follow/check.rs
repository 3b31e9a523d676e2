//! Decides whether a client may add the jobs that follow its job. Pure.

use super::{StoredFollower, Then};
use crate::destination::Destination;
use crate::headers::Headers;
use crate::scope::RequiredAccess;
use crate::topic::Topics;

/// Why `then` is refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ThenRefusal {
    /// A job names a topic that does not exist. Holds the field, and what is wrong.
    UnknownTopic(String, String),
    /// The topic takes no new jobs. Holds the field, and why.
    Offline(String, String),
    /// The caller may not add jobs of the topic. Holds the field, and the scope that is needed.
    Forbidden(String, String),
    /// The topic does not allow this field. Holds the field, and what is wrong.
    Field(String, String),
}

impl Then {
    /// Returns these jobs with the present delays of their topics, or why the jobs may not be added. `permits` says
    /// what the caller may do.
    pub fn checked(
        self,
        topics: &Topics,
        permits: impl Fn(RequiredAccess<'_>) -> bool,
    ) -> Result<Then, ThenRefusal> {
        if self.is_empty() {
            return Ok(self);
        }
        let jsons = self.jsons();
        let mut all: Vec<StoredFollower<'_>> =
            jsons.iter().filter_map(|json| serde_json::from_str(json).ok()).collect();
        if let Some(refused) = refuse_all(&all, "then", topics, &permits) {
            return Err(refused);
        }
        all.iter_mut().for_each(|one| one.note_topic_delays(topics));
        Ok(Then::new(&all))
    }
}

fn refuse_all(
    all: &[StoredFollower<'_>],
    path: &str,
    topics: &Topics,
    permits: &dyn Fn(RequiredAccess<'_>) -> bool,
) -> Option<ThenRefusal> {
    all.iter().enumerate().find_map(|(n, one)| {
        let path = if all.len() > 1 { format!("{path}[{n}]") } else { path.to_owned() };
        refuse(one, &path, topics, permits)
            .or_else(|| refuse_all(&one.then, &format!("{path}.then"), topics, permits))
    })
}

fn refuse(
    one: &StoredFollower<'_>,
    path: &str,
    topics: &Topics,
    permits: &dyn Fn(RequiredAccess<'_>) -> bool,
) -> Option<ThenRefusal> {
    let field = |name: &str| format!("{path}.{name}");
    let name = one.topic.as_str();
    if !permits(RequiredAccess::Produce(name)) {
        return Some(ThenRefusal::Forbidden(field("topic"), RequiredAccess::Produce(name).to_string()));
    }
    let Some(topic) = topics.get(name) else {
        return Some(ThenRefusal::UnknownTopic(field("topic"), format!("topic {name} is not registered")));
    };
    if let Some(why) = topics.refusal(name) {
        return Some(ThenRefusal::Offline(field("topic"), why));
    }
    let headers = Headers::new(one.headers.clone()).unwrap_or_default();
    if let Some(problem) = topic.refuse_job_headers(&headers) {
        return Some(ThenRefusal::Field(field("headers"), problem));
    }
    let path = one.path.clone().map(Destination::Path)?;
    let problem = topic.refuse_destination(&path)?;
    Some(ThenRefusal::Field(field("path"), problem.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::TopicName;
    use crate::topic::{Topic, TopicStatus};

    #[test]
    fn each_follower_needs_its_scope_and_its_topic() {
        let topic = |name: &str| Topic::new(TopicName::new(name).unwrap(), "http://h/");
        let off = Topic { status: TopicStatus::Offline, ..topic("off") };
        let topics = Topics::from_iter([topic("a"), topic("b"), off]);
        let of = |json: &str| {
            let may = |need: RequiredAccess<'_>| need != RequiredAccess::Produce("b");
            Then::parse(json).unwrap().checked(&topics, may).err()
        };
        let field = |refused: Option<ThenRefusal>| match refused {
            Some(ThenRefusal::UnknownTopic(field, _)) => format!("unknown {field}"),
            Some(ThenRefusal::Offline(field, _)) => format!("offline {field}"),
            Some(ThenRefusal::Forbidden(field, _)) => format!("forbidden {field}"),
            Some(ThenRefusal::Field(field, _)) => format!("bad {field}"),
            None => String::new(),
        };
        let a = r#"{"topic": "a", "body": 1}"#;
        assert_eq!(field(of(a)), "");
        assert_eq!(field(of(&format!(r#"[{a}, {{"topic": "b", "body": 1}}]"#))), "forbidden then[1].topic");
        assert_eq!(field(of(r#"{"topic": "x", "body": 1}"#)), "unknown then.topic");
        assert_eq!(field(of(r#"{"topic": "off", "body": 1}"#)), "offline then.topic");
        let guarded = r#"{"topic": "a", "body": 1, "headers": {"authorization": "x"}}"#;
        assert_eq!(field(of(guarded)), "bad then.headers");
        let nested = format!(r#"{{"topic": "a", "body": 1, "then": [{a}, {{"topic": "b", "body": 1}}]}}"#);
        assert_eq!(field(of(&nested)), "forbidden then.then[1].topic");
    }
}
