//! A request for an operation on many jobs: what to do, and with which jobs.

use serde::{Deserialize, Serialize};

use crate::job::{State, TopicName};
use crate::job_filter::JobFilter;
use crate::record::{Ending, RecordFilter};
use crate::tags::Tag;

/// How many jobs a second an operation changes, if the request sets no rate.
pub const RATE_DEFAULT: u32 = 5_000;
/// The highest rate that a request may set, in jobs a second.
pub const RATE_MAX: u32 = 20_000;

/// What is done to each job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BulkOperation {
    /// The job is deleted.
    Cancel,
    /// The job gets this due time, Unix milliseconds.
    At {
        /// The new due time.
        at_ms: i64,
    },
    /// The due time of the job changes by this number of milliseconds. If the number is negative, the job is due
    /// earlier.
    Shift {
        /// The difference between the new due time and the old due time, in milliseconds.
        by_ms: i64,
    },
    /// The jobs are spread over a span: each job gets a due time in this span.
    Spread {
        /// The beginning of the span, Unix milliseconds.
        from_ms: i64,
        /// The length of the span, in milliseconds.
        over_ms: i64,
    },
    /// A delayed job is due now.
    Run,
    /// A dead letter is ready again.
    Redrive,
    /// A job that has ended is added again, with its old id, body and headers.
    Replay,
}

impl BulkOperation {
    /// Returns the word for the operation in the API.
    pub fn word(self) -> &'static str {
        match self {
            BulkOperation::Cancel => "cancel",
            BulkOperation::At { .. } | BulkOperation::Shift { .. } | BulkOperation::Spread { .. } => {
                "reschedule"
            }
            BulkOperation::Run => "run",
            BulkOperation::Redrive => "redrive",
            BulkOperation::Replay => "replay",
        }
    }

    /// Returns the states of the jobs that the operation may change.
    pub fn states(self) -> &'static [State] {
        match self {
            BulkOperation::Cancel => &[State::Delayed, State::Ready, State::Leased],
            BulkOperation::At { .. } | BulkOperation::Spread { .. } => &[State::Delayed, State::Ready],
            BulkOperation::Shift { by_ms } if by_ms > 0 => &[State::Delayed, State::Ready],
            BulkOperation::Shift { .. } | BulkOperation::Run => &[State::Delayed],
            BulkOperation::Redrive => &[State::Dead],
            BulkOperation::Replay => &[],
        }
    }
}

/// Selects jobs. A condition that is not set is true for all jobs. All operations use `id_prefix` and `tag`. A replay
/// also uses the conditions about records (`outcome` to `text`). All other operations also use the conditions about
/// jobs (`states`, `due_since_ms`, `due_until_ms`).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct BulkFilter {
    /// The states. Empty: all states that the operation may change.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub states: Vec<State>,
    /// The text that the id begins with.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub id_prefix: String,
    /// A tag of the job.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tag: Option<String>,
    /// The job is due at this time or later, Unix milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub due_since_ms: Option<i64>,
    /// The job is due before this time, Unix milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub due_until_ms: Option<i64>,
    /// How the job ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub outcome: Option<Ending>,
    /// The job ended at this moment or later, Unix milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since_ms: Option<i64>,
    /// The job ended before this moment, Unix milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until_ms: Option<i64>,
    /// The status of the last answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    /// The last answer, or the error of the last attempt, contains this text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
}

impl BulkFilter {
    /// Returns the conditions about jobs that have not ended and about dead letters.
    pub fn jobs(&self) -> JobFilter {
        JobFilter {
            states: self.states.clone(),
            id_prefix: self.id_prefix.clone(),
            tag: self.tag(),
            due_since_ms: self.due_since_ms,
            due_until_ms: self.due_until_ms,
        }
    }

    /// Returns the tag. The text of the tag was checked when the operation began.
    fn tag(&self) -> Option<Tag> {
        self.tag.as_deref().and_then(|tag| Tag::new(tag).ok())
    }

    /// Returns the conditions about records.
    pub fn records(&self) -> RecordFilter {
        RecordFilter {
            id_prefix: Some(self.id_prefix.clone()).filter(|prefix| !prefix.is_empty()),
            ending: self.outcome,
            since_ms: self.since_ms,
            until_ms: self.until_ms,
            status: self.status,
            text: self.text.clone(),
            tag: self.tag(),
        }
    }
}

/// An operation on the jobs of a topic that a filter selects.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BulkRequest {
    /// The topic.
    pub topic: TopicName,
    /// What is done.
    pub operation: BulkOperation,
    /// Which jobs the operation concerns.
    pub filter: BulkFilter,
    /// The maximum number of jobs that are changed in a second.
    pub rate: u32,
    /// If true, the `text` of the filter is not searched in the answers of receivers. The field is true if the caller
    /// may not see these answers.
    #[serde(default)]
    pub hides_answers: bool,
}
