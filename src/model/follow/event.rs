//! Makes the job that sends an event to the `on_done` URL of a topic when one of its jobs has ended. Pure.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;
use serde_json::value::RawValue;
use sha2::{Digest as _, Sha256};

use super::PredecessorJob;
use crate::headers::Headers;
use crate::job::{Attempt, Body, Due, JobId, JobKey, NewJob, OnConflict, TopicName};
use crate::json_time::rfc3339;
use crate::record::{Ending, JobRecord};
use crate::tags::Tags;
use crate::topic::done_topic;

/// The event that a job has ended, in the form of Standard Webhooks.
#[derive(Serialize)]
pub struct DoneEvent<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    timestamp: String,
    data: EventData<'a>,
}

/// A record, with the names that the API gives to its fields.
#[derive(Serialize)]
struct EventData<'a> {
    topic: &'a TopicName,
    id: &'a str,
    outcome: Ending,
    #[serde(skip_serializing_if = "Option::is_none")]
    added_ms: Option<i64>,
    due_ms: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    first_attempt_ms: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    last_attempt_ms: Option<i64>,
    ended_ms: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    late_ms: Option<u64>,
    attempts: u32,
    log: Vec<Attempt>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    headers: &'a BTreeMap<String, String>,
    #[serde(skip_serializing_if = "Tags::is_empty")]
    tags: &'a Tags,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    then: Vec<Box<RawValue>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    after: Option<JobReference<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    body: Option<&'a RawValue>,
}

/// Topic and id of a job.
#[derive(Debug, Clone, Copy, Serialize)]
struct JobReference<'a> {
    topic: &'a str,
    id: &'a str,
}

impl<'a> DoneEvent<'a> {
    /// Describes the end of a job. None: the job was deleted or replaced, so there is no event. `with_answer`: whether
    /// the event contains the answers of the receiver.
    pub fn new(record: &'a JobRecord, with_answer: bool) -> Option<DoneEvent<'a>> {
        let kind = match record.ending {
            Ending::Delivered => "job.accepted",
            Ending::Dead => "job.dead",
            Ending::Deleted | Ending::Replaced => return None,
        };
        let mut log = record.attempts_log.clone();
        if !with_answer {
            log.iter_mut().for_each(|attempt| attempt.answer.clear());
        }
        let source = PredecessorJob { key: &record.key, stamp_us: record.stamp_us.unwrap_or_default() };
        let after = record.headers.after();
        let data = EventData {
            topic: &record.key.topic,
            id: record.key.id.as_str(),
            outcome: record.ending,
            added_ms: record.stamp_us.map(|stamp| stamp / 1000),
            due_ms: record.due_ms,
            first_attempt_ms: log.first().map(|attempt| attempt.at_ms),
            last_attempt_ms: log.last().map(|attempt| attempt.at_ms),
            ended_ms: record.ended_ms,
            late_ms: record.late().map(|late| late.as_millis() as u64),
            attempts: record.attempts,
            log,
            headers: record.headers.by_name(),
            tags: record.headers.tags(),
            then: record.headers.then().shown(source),
            after: after.map(|key| JobReference { topic: key.topic.as_str(), id: key.id.as_str() }),
            body: record.body.as_ref().and_then(|body| serde_json::from_str(body.as_str()).ok()),
        };
        Some(DoneEvent { kind, timestamp: rfc3339(record.ended_ms), data })
    }

    /// Returns the job that delivers the event. The id of this job is derived from the record. None: the name of the
    /// topic is too long.
    pub fn job(&self) -> Option<NewJob> {
        let EventData { topic, id, outcome, added_ms, ended_ms, .. } = &self.data;
        let of = format!("{topic}\n{id}\n{}\n{added_ms:?}\n{ended_ms}", outcome.word());
        let topic = done_topic(topic)?;
        let hash = Sha256::digest(of);
        let hex: String = hash[..16].iter().map(|byte| format!("{byte:02x}")).collect();
        let after = JobKey { topic: self.data.topic.clone(), id: JobId::new(self.data.id).ok()? };
        let key = JobKey { topic, id: JobId::new(format!("done-{hex}")).ok()? };
        let body = Body::trusted(serde_json::to_string(self).ok()?);
        Some(NewJob {
            on_conflict: OnConflict::Keep,
            headers: Headers::default().with_after(Some(after)),
            ..NewJob::new(key, body, Due::In(Duration::ZERO))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_has_the_record_and_the_answer_only_if_asked() {
        let key = JobKey { topic: TopicName::new("t").unwrap(), id: JobId::new("7").unwrap() };
        let attempt = Attempt {
            number: 1,
            at_ms: 1_000,
            took_ms: 3,
            status: Some(200),
            answer: "secret".into(),
            error: String::new(),
            late: None,
        };
        let record = JobRecord {
            key,
            ending: Ending::Delivered,
            ended_ms: 1_796_140_250_000,
            order_ms: 1_796_140_250_000,
            stamp_us: Some(5_000),
            due_ms: 900,
            attempts: 1,
            attempts_log: vec![attempt],
            body: None,
            headers: Headers::default(),
        };
        let of = |with_answer| {
            let job = DoneEvent::new(&record, with_answer).unwrap().job().unwrap();
            (job.key.topic.to_string(), job.body.as_str().to_owned())
        };
        let (topic, text) = of(false);
        assert_eq!(topic, "t.on_done");
        let begin =
            r#"{"type":"job.accepted","timestamp":"2026-12-01T15:50:50.000Z","data":{"topic":"t","id":"7","#;
        assert!(text.starts_with(begin) && !text.contains("secret"), "{text}");
        assert!(of(true).1.contains(r#""answer":"secret""#));
        let gone = JobRecord { ending: Ending::Deleted, ..record };
        assert!(DoneEvent::new(&gone, true).is_none());
        assert_eq!(done_topic(&TopicName::new(&"x".repeat(121)).unwrap()), None);
    }
}
