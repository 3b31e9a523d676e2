//! Records as the API shows them. Pure.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::value::RawValue;
use utoipa::ToSchema;

use super::api_response::ApiResponse;
use super::job_shown::JobReference;
use super::list_format::{CsvColumns, ListEnd, ListFormat};
use super::schema;
use model::follow::PredecessorJob;
use model::job::{Attempt, TopicName};
use model::json_time::rfc3339;
use model::record::{Ending, JobRecord};
use model::tags::Tags;

/// The record of a job that has ended.
#[derive(Serialize, ToSchema)]
#[schema(as = JobRecord)]
pub(super) struct RecordResponse<'a> {
    #[schema(value_type = String)]
    topic: &'a TopicName,
    id: &'a str,
    /// How the job ended.
    #[schema(value_type = schema::EndingWord)]
    outcome: Ending,
    /// When the job was added, Unix milliseconds. If it is missing, the time is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    added_ms: Option<i64>,
    /// When its last attempt was due, Unix milliseconds. If there was no attempt: when the first attempt was due.
    due_ms: i64,
    /// When its first attempt began, Unix milliseconds. If it is missing, there was no attempt.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    first_attempt_ms: Option<i64>,
    /// When its last attempt began, Unix milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    last_attempt_ms: Option<i64>,
    /// When the job ended, Unix milliseconds.
    ended_ms: i64,
    /// Why the job was removed, if dq knows the reason. The only value is `exported`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    note: Option<&'a str>,
    /// How many milliseconds after its due time the last attempt began.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    late_ms: Option<u64>,
    /// How many attempts were begun. Attempts that do not count, such as those of a killed process, are left out.
    attempts: u32,
    /// The first two attempts and the last eight, the oldest first. Answers of the receiver are only shown to callers
    /// with the scope `read` for the topic.
    #[schema(value_type = Vec<schema::AttemptMade>)]
    log: &'a [Attempt],
    /// The job's own headers, if its topic keeps bodies.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    #[schema(required = false)]
    headers: &'a BTreeMap<String, String>,
    /// The job's own time to run, milliseconds, if its topic keeps bodies.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    ttr_ms: Option<u64>,
    /// The job's tags, sorted.
    #[serde(skip_serializing_if = "Tags::is_empty")]
    #[schema(value_type = Vec<String>, required = false)]
    tags: &'a Tags,
    /// The jobs that follow when the job is accepted, each with its id. If the topic keeps no bodies, a record has only
    /// their topics and ids.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(value_type = Vec<schema::Follower>, required = false)]
    then: Vec<Box<RawValue>>,
    /// The job that this job follows.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    after: Option<JobReference<'a>>,
    /// The job's body, if its topic keeps bodies.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Value, required = false)]
    body: Option<&'a RawValue>,
}

impl<'a> From<&'a JobRecord> for RecordResponse<'a> {
    fn from(record: &'a JobRecord) -> RecordResponse<'a> {
        RecordResponse {
            topic: &record.key.topic,
            id: record.key.id.as_str(),
            outcome: record.ending,
            added_ms: record.stamp_us.map(|stamp| stamp / 1000),
            due_ms: record.due_ms,
            first_attempt_ms: record.made_attempts().first().map(|attempt| attempt.at_ms),
            last_attempt_ms: record.made_attempts().last().map(|attempt| attempt.at_ms),
            ended_ms: record.ended_ms,
            late_ms: record.late().map(|late| late.as_millis() as u64),
            attempts: record.attempts,
            note: record.note(),
            log: record.made_attempts(),
            headers: record.headers.by_name(),
            ttr_ms: record.headers.ttr().map(|ttr| ttr.as_millis() as u64),
            tags: record.headers.tags(),
            then: record
                .headers
                .then()
                .shown(PredecessorJob { key: &record.key, stamp_us: record.stamp_us.unwrap_or_default() }),
            after: record.headers.after().map(JobReference::from),
            body: record.body.as_ref().and_then(|body| serde_json::from_str(body.as_str()).ok()),
        }
    }
}

/// Describes records.
pub(super) fn described(records: &[JobRecord]) -> Vec<RecordResponse<'_>> {
    records.iter().map(RecordResponse::from).collect()
}

/// A page of records.
#[derive(Serialize, ToSchema)]
#[schema(as = JobRecords)]
pub(super) struct RecordList<'a> {
    /// The records. The records of the jobs that ended last come first.
    pub records: Vec<RecordResponse<'a>>,
    /// The value of `cursor` for the next page. Null: this is the last page.
    #[schema(required = true)]
    pub next: Option<String>,
    /// Whether all records were looked at. If not, `next` leads to the remaining records.
    pub complete: bool,
    /// How many records were looked at for this page. A filter may have left out most of them.
    pub looked_at: usize,
    /// The nodes of the store that did not answer. Their records are missing.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    pub away: Vec<String>,
}

impl RecordList<'_> {
    /// Makes the answer.
    pub(super) fn response(&self, format: ListFormat) -> ApiResponse {
        let end = ListEnd { looked_at: self.looked_at, next: self.next.as_deref(), away: &self.away };
        format.response(self, &self.records, CsvColumns { columns: COLUMNS, cells }, end)
    }
}

/// The columns of the CSV.
const COLUMNS: [&str; 15] = [
    "topic",
    "id",
    "outcome",
    "added",
    "due",
    "first_attempt",
    "last_attempt",
    "ended",
    "late_ms",
    "attempts",
    "status",
    "error",
    "answer",
    "body",
    "tags",
];

/// Returns the cells of a record.
fn cells(record: &RecordResponse<'_>) -> [String; COLUMNS.len()] {
    let moment = |ms: Option<i64>| ms.map(rfc3339).unwrap_or_default();
    let last = record.log.last();
    [
        record.topic.to_string(),
        record.id.to_owned(),
        record.outcome.word().to_owned(),
        moment(record.added_ms),
        moment(Some(record.due_ms)),
        moment(record.first_attempt_ms),
        moment(record.last_attempt_ms),
        moment(Some(record.ended_ms)),
        record.late_ms.map_or(String::new(), |late| late.to_string()),
        record.attempts.to_string(),
        last.and_then(|last| last.status).map_or(String::new(), |status| status.to_string()),
        last.map_or(String::new(), |last| last.error.clone()),
        last.map_or(String::new(), |last| last.answer.clone()),
        record.body.map_or(String::new(), |body| body.get().to_owned()),
        record.tags.to_text(),
    ]
}
