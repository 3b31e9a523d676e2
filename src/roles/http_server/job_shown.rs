//! Jobs, and the results of adds, as the API shows them.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::value::RawValue;
use utoipa::ToSchema;

use super::problem::Problem;
use super::schema;
use super::waiting::WaitingResponse;
use model::destination::Destination;
use model::follow::PredecessorJob;
use model::job::{Attempt, JobId, JobKey, State, TopicName};
use model::job_priority::JobPriority;
use model::json_time;
use model::tags::Tags;
use store::{Reserver, StoredJob};

/// A job.
#[derive(Serialize, ToSchema)]
#[schema(as = Job)]
pub(super) struct JobResponse<'a> {
    #[schema(value_type = String)]
    topic: &'a TopicName,
    id: &'a str,
    #[schema(value_type = schema::StateWord)]
    state: State,
    /// When the next attempt is due, Unix milliseconds. For a leased job: the current attempt. For a dead letter: the
    /// last attempt.
    due_ms: i64,
    /// For a leased job: when its lease ends. For a dead letter: when it died. Unix milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    until_ms: Option<i64>,
    /// The client that has reserved the job, if it has named itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    consumer: Option<ReserverResponse<'a>>,
    /// When the job was added, Unix milliseconds.
    added_ms: i64,
    #[schema(schema_with = schema::job_priority)]
    priority: JobPriority,
    /// How many attempts were begun. Attempts that do not count, such as those of a killed process, are left out.
    attempts: u32,
    /// The job's own limit of attempts. If it is missing, the topic's limit applies.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    max_attempts: Option<u32>,
    /// How long the lease of the job lasts, in milliseconds, if the client that reserves the job names no time. If it
    /// is missing, `ttr` of the topic applies.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    ttr_ms: Option<u64>,
    /// No attempt of the job begins after this moment, Unix milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    expires_ms: Option<i64>,
    /// True: the job waits on the disk of this host until its node answers.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    #[schema(required = false)]
    spooled: bool,
    /// The job's own headers. Their names are in lower case.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    #[schema(required = false)]
    headers: &'a BTreeMap<String, String>,
    /// What is appended to the callback of the topic for this job.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    path: Option<&'a str>,
    /// The URL that is called for this job in place of the callback of the topic.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    url: Option<&'a str>,
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
    /// The first two attempts and the last eight, the oldest first. Answers of the receiver are only shown to callers
    /// with the scope `read` for the topic.
    #[schema(value_type = Vec<schema::AttemptMade>)]
    log: Cow<'a, [Attempt]>,
    #[schema(value_type = Value)]
    body: &'a RawValue,
    /// Why the job waits. The field is missing in lists, and if the job is leased or a dead letter.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<schema::WaitingSchema>, nullable = false)]
    waiting: Option<WaitingResponse>,
}

/// A client that has reserved a job.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[schema(as = Consumer)]
pub(super) struct ReserverResponse<'a> {
    /// The name that the client gave itself.
    name: &'a str,
    /// The address of the client. Null: the Unix socket.
    #[schema(required = true)]
    address: Option<&'a str>,
    /// When the client got the job, Unix milliseconds.
    since_ms: i64,
}

impl<'a> From<&'a Reserver> for ReserverResponse<'a> {
    fn from(Reserver { name, address, since_ms }: &'a Reserver) -> ReserverResponse<'a> {
        let address = Some(address.as_str()).filter(|address| !address.is_empty());
        ReserverResponse { name, address, since_ms: *since_ms }
    }
}

/// Topic and id of a job.
#[derive(Debug, Clone, Copy, Serialize, ToSchema)]
pub(super) struct JobReference<'a> {
    #[schema(value_type = String)]
    topic: &'a TopicName,
    id: &'a str,
}

impl<'a> From<&'a JobKey> for JobReference<'a> {
    fn from(key: &'a JobKey) -> JobReference<'a> {
        JobReference { topic: &key.topic, id: key.id.as_str() }
    }
}

/// The columns of a table of jobs: see [`JobResponse::cells`].
pub(super) const COLUMNS: [&str; 13] = [
    "topic", "id", "state", "added", "due", "until", "priority", "attempts", "status", "error", "answer",
    "body", "tags",
];

impl<'a> JobResponse<'a> {
    /// Describes a job. `sees_answers`: the caller may see what receivers answered.
    pub(super) fn new(view: &'a StoredJob, sees_answers: bool) -> JobResponse<'a> {
        let without = |attempt: &Attempt| Attempt { answer: String::new(), ..attempt.clone() };
        let log = match sees_answers {
            true => Cow::from(&view.attempts_log),
            false => view.attempts_log.iter().map(without).collect(),
        };
        JobResponse {
            topic: &view.key.topic,
            id: view.key.id.as_str(),
            state: view.state,
            due_ms: view.due_ms,
            until_ms: view.until_ms,
            consumer: view.reserver.as_ref().map(ReserverResponse::from),
            added_ms: view.stamp_us / 1000,
            priority: view.priority,
            attempts: view.attempts,
            max_attempts: view.max_attempts,
            ttr_ms: view.headers.ttr().map(|ttr| ttr.as_millis() as u64),
            expires_ms: view.headers.expires_ms(),
            spooled: view.is_spooled,
            headers: view.headers.by_name(),
            path: view.headers.destination().and_then(Destination::path),
            url: view.headers.destination().and_then(Destination::own_url),
            tags: view.headers.tags(),
            then: view.headers.then().shown(PredecessorJob { key: &view.key, stamp_us: view.stamp_us }),
            after: view.headers.after().map(JobReference::from),
            log,
            // A damaged store may hold a body that is not JSON. Such a body is shown as null.
            body: serde_json::from_str(view.body.as_str()).unwrap_or(RawValue::NULL),
            waiting: None,
        }
    }

    /// Returns the cells of the job in a table.
    pub(super) fn cells(&self) -> [String; COLUMNS.len()] {
        let last = self.log.last();
        [
            self.topic.to_string(),
            self.id.to_owned(),
            self.state.to_string(),
            json_time::rfc3339(self.added_ms),
            json_time::rfc3339(self.due_ms),
            self.until_ms.map(json_time::rfc3339).unwrap_or_default(),
            self.priority.to_string(),
            self.attempts.to_string(),
            last.and_then(|last| last.status).map_or(String::new(), |status| status.to_string()),
            last.map_or(String::new(), |last| last.error.clone()),
            last.map_or(String::new(), |last| last.answer.clone()),
            self.body.get().to_owned(),
            self.tags.to_text(),
        ]
    }

    /// Adds the reason why the job waits.
    pub(super) fn with_waiting(self, waiting: Option<WaitingResponse>) -> JobResponse<'a> {
        JobResponse { waiting, ..self }
    }
}

/// A page of jobs.
#[derive(Serialize, ToSchema)]
#[schema(as = Jobs)]
pub(super) struct JobList<'a> {
    pub jobs: Vec<JobResponse<'a>>,
    /// The value of `cursor` for the next page. Null: this is the last page.
    #[schema(required = true)]
    pub next: Option<String>,
    /// The nodes of the store that did not answer. Their jobs are missing.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    pub away: Vec<String>,
}

/// The result of an add.
#[derive(Serialize, ToSchema)]
#[schema(example = json!({
    "topic": "orders", "id": "42", "outcome": "new", "due": "2026-12-01T15:50:50.000Z", "due_ms": 1_796_140_250_000_u64
}))]
pub(super) struct AddedJob<'a> {
    #[schema(value_type = String)]
    topic: &'a TopicName,
    id: &'a str,
    outcome: AddOutcomeWord,
    /// When the job is due, RFC 3339 in UTC. With the outcome `kept`: when the existing job is due.
    due: String,
    /// The same moment in Unix milliseconds.
    due_ms: i64,
    /// True: the job waits on the disk of this host until its node answers.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    #[schema(required = false)]
    spooled: bool,
}

impl<'a> AddedJob<'a> {
    pub(super) fn new(
        topic: &'a TopicName,
        id: &'a JobId,
        outcome: AddOutcomeWord,
        due_ms: i64,
    ) -> AddedJob<'a> {
        let spooled = outcome == AddOutcomeWord::Spooled;
        AddedJob { topic, id: id.as_str(), outcome, due: json_time::rfc3339(due_ms), due_ms, spooled }
    }
}

/// `kept`: an existing job with this id stays. `spooled`: the job waits on this host until its node answers.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
#[schema(as = AddOutcome)]
pub(super) enum AddOutcomeWord {
    New,
    Replaced,
    Kept,
    Spooled,
}

/// The result of a removal that waits in this host's spool. The spool had an add of this job, and the removal has
/// replaced this add.
#[derive(Serialize, ToSchema)]
pub(super) struct SpooledDeletion {
    /// Always true.
    pub spooled: bool,
}

/// The results of the jobs, in the order of the request.
#[derive(Serialize, ToSchema)]
pub(super) struct AddedJobs<'a> {
    pub results: Vec<AddResult<'a>>,
}

/// The result of one job of a batch.
#[derive(Serialize, ToSchema)]
#[serde(untagged)]
pub(super) enum AddResult<'a> {
    /// The job was stored or kept.
    Done(SuccessfulAdd<'a>),
    /// The job was refused.
    Refused(RefusedAdd),
}

/// A job of a batch that was stored or kept.
#[derive(Serialize, ToSchema)]
pub(super) struct SuccessfulAdd<'a> {
    /// The status that an add of this job alone would have.
    pub status: u16,
    #[serde(flatten)]
    pub job: AddedJob<'a>,
}

/// A job of a batch that was refused. `status` is the status that an add of this job alone would have.
#[derive(Serialize, ToSchema)]
pub(super) struct RefusedAdd {
    #[serde(flatten)]
    pub problem: Problem,
    /// The id, if it is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub id: Option<String>,
}
