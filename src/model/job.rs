//! A job as a client adds it, and an attempt as it is stored. The module `job_parts` has the parts of jobs. Pure: no
//! I/O, no clock.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::headers::Headers;
pub use crate::job_parts::{
    Body, Due, ID_MAX, InvalidJobPart, JobId, JobKey, LATEST_MS, OnConflict, Priority, State, TOPIC_MAX,
    TopicName,
};
use crate::job_priority::JobPriority;
use crate::late_start::LateStart;
use crate::quota::Quota;

/// A job as a client adds it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewJob {
    /// Topic and id.
    pub key: JobKey,
    /// The body.
    pub body: Body,
    /// When it is due.
    pub due: Due,
    /// Its priority among the ready jobs of its topic.
    pub priority: JobPriority,
    /// What happens if there is already a job with the same id.
    pub on_conflict: OnConflict,
    /// Its own limit of attempts. None: the limit of the topic.
    pub max_attempts: Option<u32>,
    /// The number of attempts that were made before this add. These attempts count for the limit of attempts.
    pub attempts: u32,
    /// The headers that its callbacks carry in addition to the headers of the topic.
    pub headers: Headers,
    /// The limits that apply to the add. None: no limits apply, or the add was acknowledged before.
    pub quota: Option<Arc<Quota>>,
}

impl NewJob {
    /// Returns a job with defaults for everything else. When the job is added, it replaces a job with the same id.
    pub fn new(key: JobKey, body: Body, due: Due) -> NewJob {
        NewJob {
            key,
            body,
            due,
            priority: JobPriority::default(),
            on_conflict: OnConflict::Replace,
            max_attempts: None,
            attempts: 0,
            headers: Headers::default(),
            quota: None,
        }
    }
}

/// One attempt, as it is stored with its job. The stores also keep the array from [`Attempt::to_array`]. So the order
/// of the fields must not change. The order of the fields of [`LateStart`] must not change either.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attempt {
    /// The number of the attempt, from 1.
    pub number: u32,
    /// When the attempt began, in Unix milliseconds.
    pub at_ms: i64,
    /// How long it took, in milliseconds.
    pub took_ms: u64,
    /// The HTTP status, if there was an answer.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub status: Option<u16>,
    /// The first bytes of the answer.
    #[serde(skip_serializing_if = "String::is_empty", default)]
    pub answer: String,
    /// Why the attempt failed.
    #[serde(skip_serializing_if = "String::is_empty", default)]
    pub error: String,
    /// If the attempt began late: how late it began, and why.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub late: Option<LateStart>,
}

impl Attempt {
    /// Returns the values in the order of the fields, as a JSON array. The last values are left out if they are empty.
    /// serde reads an array as it reads an object, and the array is about 40 bytes shorter.
    pub fn to_array(&self) -> String {
        let Attempt { number, at_ms, took_ms, status, answer, error, late } = self;
        let values = (number, at_ms, took_ms, status);
        let array = match (answer.as_str(), error.as_str(), late.as_ref().map(|late| (late.ms, late.reason)))
        {
            ("", "", None) => serde_json::to_string(&values),
            (_, "", None) => serde_json::to_string(&(number, at_ms, took_ms, status, answer)),
            (_, _, late) => serde_json::to_string(&(number, at_ms, took_ms, status, answer, error, late)),
        };
        array.expect("an attempt is plain values")
    }
}

/// How many attempts are stored with a job.
pub const ATTEMPTS_KEPT: usize = 10;

/// How many of the stored attempts are the first attempts of the job. The other stored attempts are the last attempts.
pub const FIRST_ATTEMPTS_KEPT: usize = 2;
