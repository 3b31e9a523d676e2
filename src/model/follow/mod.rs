//! The jobs that follow a job: when a job is accepted, dq adds the jobs in its `then`. Pure.
//!
//! [`Then`] is the text that a store keeps with the job. `given` reads what a client sends, `check` says whether the
//! client may add these jobs, and `event` makes the job of `on_done`. Begin with [`Then::parse`].

mod check;
mod event;
mod given;

use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD as TEXT;
use serde::{Deserialize, Serialize};
use serde_json::value::{RawValue, to_raw_value};
use sha2::{Digest as _, Sha256};

pub use self::check::ThenRefusal;
pub use self::event::DoneEvent;
pub use self::given::{DEPTH_MAX, InvalidThen, LIST_MAX, TEXT_MAX, TREE_MAX};
use crate::destination::Destination;
use crate::headers::Headers;
use crate::job::{Body, Due, JobId, JobKey, NewJob, OnConflict, TopicName};
pub use crate::links::Then;
use crate::tags::Tags;
use crate::topic::Topics;

/// A follower, as the text of a store contains it. The API shows a follower in the same form.
#[derive(Serialize, Deserialize)]
struct StoredFollower<'a> {
    topic: TopicName,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    delay_ms: Option<u64>,
    /// The delay of the topic when the job was added. It is used if the process that adds the follower does not know
    /// the topic. Not shown by the API.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    topic_delay_ms: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    ttr_ms: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    path: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    tags: Vec<String>,
    #[serde(default, skip_serializing_if = "std::collections::BTreeMap::is_empty")]
    headers: std::collections::BTreeMap<String, String>,
    #[serde(borrow)]
    body: &'a RawValue,
    #[serde(borrow, default, skip_serializing_if = "Vec::is_empty")]
    then: Vec<StoredFollower<'a>>,
}

impl StoredFollower<'_> {
    /// Notes the delays of the topics in this job and in the jobs that follow it.
    fn note_topic_delays(&mut self, topics: &Topics) {
        let delay = topics.get(self.topic.as_str()).map(|topic| topic.delay).filter(|delay| !delay.is_zero());
        self.topic_delay_ms = delay.map(|delay| u64::try_from(delay.as_millis()).unwrap_or(u64::MAX));
        self.then.iter_mut().for_each(|next| next.note_topic_delays(topics));
    }

    fn hide_topic_delays(&mut self) {
        self.topic_delay_ms = None;
        self.then.iter_mut().for_each(StoredFollower::hide_topic_delays);
    }
}

/// The job that other jobs follow. The ids of its followers are derived from these fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PredecessorJob<'a> {
    /// Its topic and id.
    pub key: &'a JobKey,
    /// When it was added, Unix microseconds. If the job is added again, this time is different, so its followers get
    /// other ids.
    pub stamp_us: i64,
}

impl PredecessorJob<'_> {
    /// Returns the id for a follower without an id of its own. `place` is the place of the follower in the list, from
    /// 0.
    fn id_at(&self, place: usize) -> JobId {
        let of = format!("{}\n{}\n{}\n{place}", self.key.topic, self.key.id, self.stamp_us);
        let hash = Sha256::digest(of);
        let hex: String = hash[..16].iter().map(|byte| format!("{byte:02x}")).collect();
        JobId::new(format!("then-{hex}")).expect("an id of 37 bytes")
    }
}

impl Then {
    fn new(followers: &[StoredFollower<'_>]) -> Then {
        if followers.is_empty() {
            return Then::default();
        }
        let links: Vec<_> = followers.iter().map(|one| (one.topic.as_str(), one.id.as_deref())).collect();
        let text = |json: serde_json::Result<String>| TEXT.encode(json.expect("these are plain values"));
        let full: Vec<String> = followers.iter().map(|one| text(serde_json::to_string(one))).collect();
        Then { full: full.join(".").into(), links: text(serde_json::to_string(&links)).into() }
    }

    /// Returns the JSON of each follower. The list is empty if the store keeps only the topics and ids of the
    /// followers.
    fn jsons(&self) -> Vec<String> {
        self.texts().filter_map(json_of).collect()
    }

    /// Returns topics and ids of the jobs that follow a job.
    pub fn keys(&self, source: PredecessorJob<'_>) -> Vec<JobKey> {
        let links = TEXT.decode(&*self.links).unwrap_or_default();
        let links: Vec<(TopicName, Option<String>)> = serde_json::from_slice(&links).unwrap_or_default();
        let key = |(place, (topic, id)): (usize, (TopicName, Option<String>))| {
            let id = id.and_then(|id| JobId::new(id).ok()).unwrap_or_else(|| source.id_at(place));
            JobKey { topic, id }
        };
        links.into_iter().enumerate().map(key).collect()
    }

    /// Returns the followers of a job in the form that the API shows, each with its id. If the store keeps only the topics
    /// and ids of these jobs, returns only the topics and ids.
    pub fn shown(&self, source: PredecessorJob<'_>) -> Vec<Box<RawValue>> {
        let jsons = self.jsons();
        let known: Vec<StoredFollower<'_>> =
            jsons.iter().filter_map(|json| serde_json::from_str(json).ok()).collect();
        let keys = self.keys(source);
        if known.len() != keys.len() {
            let key = |key: JobKey| serde_json::json!({"topic": key.topic, "id": key.id.as_str()});
            return keys.into_iter().filter_map(|one| to_raw_value(&key(one)).ok()).collect();
        }
        let with_id = |(mut one, key): (StoredFollower<'_>, JobKey)| {
            one.id = Some(key.id.as_str().to_owned());
            one.hide_topic_delays();
            to_raw_value(&one).ok()
        };
        known.into_iter().zip(keys).filter_map(with_id).collect()
    }
}

/// Decodes the text of a follower (one of [`Then::texts`]), which is base64url, and returns the JSON that it contains.
/// None: the text cannot be read.
fn json_of(text: &str) -> Option<String> {
    String::from_utf8(TEXT.decode(text).ok()?).ok()
}

/// Makes a follower from its text (one of [`Then::texts`]). `ago` is the time that has passed since `source`, the
/// followed job, was accepted. `place` is the place of the text in the list. A follower without a delay of its own uses
/// `delay` of its topic. If this is None, it uses the delay that the topic had when the followed job was added. Returns
/// None if the text cannot be read.
pub fn job_of(
    text: &str,
    source: PredecessorJob<'_>,
    place: usize,
    ago: Duration,
    delay: impl Fn(&TopicName) -> Option<Duration>,
) -> Option<NewJob> {
    let json = json_of(text)?;
    let one: StoredFollower<'_> = serde_json::from_str(&json).ok()?;
    let own = one.delay_ms.map(Duration::from_millis);
    let noted = one.topic_delay_ms.map(Duration::from_millis);
    let due = own.or_else(|| delay(&one.topic)).or(noted).unwrap_or_default().saturating_sub(ago);
    let headers = Headers::new(one.headers)
        .unwrap_or_default()
        .with_destination(one.path.map(Destination::Path))
        .with_tags(Tags::new(one.tags).unwrap_or_default())
        .with_then(Then::new(&one.then))
        .with_ttr(one.ttr_ms.map(Duration::from_millis))
        .with_after(Some(source.key.clone()));
    let id = one.id.and_then(|id| JobId::new(id).ok()).unwrap_or_else(|| source.id_at(place));
    let key = JobKey { topic: one.topic, id };
    Some(NewJob {
        on_conflict: OnConflict::Keep,
        headers,
        ..NewJob::new(key, Body::from(one.body), Due::In(due))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topic::Topic;

    fn key(topic: &str, id: &str) -> JobKey {
        JobKey { topic: TopicName::new(topic).unwrap(), id: JobId::new(id).unwrap() }
    }

    const SEVEN: fn(&TopicName) -> Option<Duration> = |_| Some(Duration::from_secs(7));

    #[test]
    fn followers_come_back_from_the_text_with_their_fields() {
        let json = r#"[{"topic": "b", "id": 7, "body": 1.50, "delay": "1m", "ttr": "90s", "headers": {"X-A": "q\""}, "tags": ["t"],
                        "path": "/x", "then": {"topic": "c", "body": null}}, {"topic": "d", "body": [ ]}]"#;
        let then = Then::parse(json).unwrap();
        let a = key("a", "1:\"x");
        let source = PredecessorJob { key: &a, stamp_us: 5 };
        let headers = Headers::default().with_then(then);
        let read = Headers::trusted(&headers.to_text());
        assert_eq!(read, headers);
        let job = |(place, text)| job_of(text, source, place, Duration::from_secs(20), SEVEN).unwrap();
        let jobs: Vec<NewJob> = read.then().texts().enumerate().map(job).collect();
        assert_eq!(jobs.iter().map(|job| job.key.clone()).collect::<Vec<_>>(), read.then().keys(source));
        assert_eq!((jobs[0].key.to_string(), jobs[0].body.as_str()), ("b:7".into(), "1.50"));
        assert_eq!((jobs[0].due, jobs[1].due), (Due::In(Duration::from_secs(40)), Due::In(Duration::ZERO)));
        assert_eq!(jobs[0].headers.by_name()["x-a"], "q\"");
        assert_eq!(jobs[0].headers.after(), Some(&a));
        assert_eq!([0, 1].map(|n| jobs[n].headers.ttr()), [Some(Duration::from_secs(90)), None]);
        assert_eq!(jobs[1].body.as_str(), "[ ]");
        assert!(jobs.iter().all(|job| job.on_conflict == OnConflict::Keep));
        let next = jobs[0].headers.then().keys(PredecessorJob { key: &jobs[0].key, stamp_us: 9 });
        assert_eq!(next[0].topic.as_str(), "c");
        assert_eq!(Headers::trusted(&jobs[0].headers.to_text()), jobs[0].headers);
    }

    #[test]
    fn a_follower_of_an_unknown_topic_has_the_delay_of_the_add() {
        let minutes = |n: u64| Duration::from_secs(60 * n);
        let topic = |name: &str| Topic::new(TopicName::new(name).unwrap(), "http://h/");
        let topics = Topics::from_iter([Topic { delay: minutes(30), ..topic("slow") }, topic("fast")]);
        let json = r#"[{"topic": "slow", "body": 1, "then": {"topic": "slow", "body": 2}}, {"topic": "fast", "body": 1},
                       {"topic": "slow", "body": 1, "delay": "1s"}]"#;
        let then = Then::parse(json).unwrap().checked(&topics, |_| true).unwrap();
        let a = key("a", "1");
        let source = PredecessorJob { key: &a, stamp_us: 1 };
        let due = |then: &Then, delay: Option<Duration>| -> Vec<Due> {
            let job = |(place, text)| job_of(text, source, place, Duration::ZERO, |_| delay).unwrap().due;
            then.texts().enumerate().map(job).collect()
        };
        let second = Due::In(Duration::from_secs(1));
        assert_eq!(due(&then, None), [Due::In(minutes(30)), Due::In(Duration::ZERO), second]);
        assert_eq!(due(&then, Some(minutes(5))), [Due::In(minutes(5)), Due::In(minutes(5)), second]);
        let first = job_of(then.texts().next().unwrap(), source, 0, Duration::ZERO, |_| None).unwrap();
        assert_eq!(due(first.headers.then(), None), [Due::In(minutes(30))]);
        assert!(then.shown(source).iter().all(|shown| !shown.get().contains("topic_delay")));
    }

    #[test]
    fn a_made_id_depends_on_job_version_and_place() {
        let then = Then::parse(r#"[{"topic": "b", "body": 1}, {"topic": "b", "body": 1}]"#).unwrap();
        let (a, b) = (key("a", "1"), key("a", "2"));
        let mut all: Vec<JobKey> = [(&a, 1), (&a, 2), (&b, 1)]
            .into_iter()
            .flat_map(|(key, stamp_us)| then.keys(PredecessorJob { key, stamp_us }))
            .collect();
        assert_eq!(then.keys(PredecessorJob { key: &a, stamp_us: 1 }), all[..2]);
        all.sort();
        all.dedup();
        assert_eq!(all.len(), 6);
    }

    #[test]
    fn what_follows_is_shown_with_ids_and_links_are_left() {
        let then = Then::parse(r#"{"topic": "b", "body": {"n": 1}, "delay": 2}"#).unwrap();
        let a = key("a", "1");
        let source = PredecessorJob { key: &a, stamp_us: 1 };
        let id = then.keys(source)[0].id.as_str().to_owned();
        let shown = then.shown(source);
        let full = format!(r#"{{"topic":"b","id":"{id}","delay_ms":2000,"body":{{"n": 1}}}}"#);
        assert_eq!(shown[0].get(), full);
        let links = then.only_links();
        assert!(!links.is_empty() && links.texts().next().is_none());
        let link: serde_json::Value = serde_json::from_str(links.shown(source)[0].get()).unwrap();
        assert_eq!(link, serde_json::json!({"topic": "b", "id": id}));
    }
}
