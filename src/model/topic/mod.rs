//! Topics: the registered kinds of jobs, with their callbacks and their rules. Pure.

mod check;
mod durability;
mod header;
mod problem;
mod secret;
mod topics;
mod words;

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

pub use self::check::InvalidTopic;
pub use self::durability::Durability;
pub use self::header::{is_own_header, refuse_header};
pub use self::secret::signing_key;
pub use self::topics::Topics;
pub use self::words::{CatchUp, Failure, Rate, Success};
use crate::job::{Priority, TopicName};
use crate::retry::RetryPolicy;

/// Who starts a delivery.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// dq calls the callback.
    #[default]
    Push,
    /// Workers ask for jobs. dq calls nobody.
    Pull,
}

/// The HTTP method of a callback.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub enum Method {
    /// `GET`: the fields are in the query.
    Get,
    /// `POST`: the fields, or the JSON text, are in the body of the request.
    Post,
    /// A text that is not a method that dq can use. Other programs may write it into the registry. A topic with such a
    /// method is held.
    Other(String),
}

impl From<String> for Method {
    fn from(text: String) -> Method {
        match text.as_str() {
            "GET" => Method::Get,
            "POST" => Method::Post,
            _ => Method::Other(text),
        }
    }
}

impl From<Method> for String {
    fn from(method: Method) -> String {
        match method {
            Method::Get => "GET".to_owned(),
            Method::Post => "POST".to_owned(),
            Method::Other(text) => text,
        }
    }
}

/// How the body of a job is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Payload {
    /// The body as the client sent it, as `application/json`.
    Json,
    /// A form with one field for each top-level key of the body, as the PHP daemon sends it.
    Form,
}

/// Whether a topic takes new jobs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// The topic takes new jobs.
    #[default]
    Online,
    /// Adds are refused. Jobs that are stored are still delivered.
    Offline,
}

/// A registered kind of job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Topic {
    /// The name of the topic.
    pub name: TopicName,
    /// The title, for people.
    pub title: String,
    /// Who starts a delivery.
    pub mode: Mode,
    /// The URL that is called, `http` or `https`.
    pub callback: String,
    /// The HTTP method of a callback.
    pub method: Method,
    /// How the body of a job is sent.
    pub payload: Payload,
    /// Headers of a callback in addition to dq's own.
    pub headers: BTreeMap<String, String>,
    /// The delay of a job whose add has no due time.
    pub delay: Duration,
    /// The longest time that one whole callback may take.
    pub timeout: Duration,
    /// The longest time that the connection of a callback may take to open.
    pub connect_timeout: Duration,
    /// Which answers of a receiver accept a job.
    pub success: Success,
    /// An expression. If it is true for a successful answer, the job is delivered again. Empty: never.
    pub re_notify_flag: String,
    /// When a failed delivery is tried again.
    pub retry: RetryPolicy,
    /// The failures after which a delivery is tried again. After any other failure the job becomes a dead letter at
    /// once. Empty: all failures.
    pub retry_on: Vec<Failure>,
    /// The number of attempts before a job becomes a dead letter.
    pub max_attempts: u32,
    /// How long a receiver may take that answers later. Zero: a receiver must not answer later.
    pub answer_later: Duration,
    /// The greatest number of callbacks that run at the same time. None: no limit.
    pub max_in_flight: Option<u32>,
    /// The greatest number of callbacks that begin in a span. None: no limit.
    pub rate: Option<Rate>,
    /// After this many failures of the receiver in a row, the circuit opens and the jobs wait. 0: never.
    pub breaker_failures: u32,
    /// How long the jobs wait when the circuit opens for the first time.
    pub breaker_pause: Duration,
    /// How dq delivers the backlog of jobs that became due while nobody could deliver them.
    pub catch_up: CatchUp,
    /// How safe changes of its jobs are before they are answered. None: as safe as the store is set to.
    pub durability: Option<Durability>,
    /// The priority of the topic, compared with other topics.
    pub priority: Priority,
    /// The mail addresses that get alerts about this topic.
    pub alert: Vec<String>,
    /// Who registered the topic.
    pub creator: String,
    /// Whether it takes new jobs.
    pub status: Status,
    /// The secrets that callbacks are signed with.
    pub secrets: Vec<String>,
    /// How long accepted jobs are kept.
    pub keep_done: Duration,
    /// How long dead letters are kept. Zero: for ever.
    pub keep_dead: Duration,
}

impl Topic {
    /// Returns how long after the failure of attempt `number` (from 1) of `limit` the next attempt comes. None: no
    /// attempt is left. `random` is as in [`RetryPolicy::delay_after`].
    pub fn again_after(&self, number: u32, limit: u32, random: f64) -> Option<Duration> {
        (number < limit).then(|| self.retry.delay_after(number, random))
    }

    /// Makes a topic that calls `callback` and has the defaults of a new topic in all other fields.
    pub fn new(name: TopicName, callback: impl Into<String>) -> Topic {
        Topic {
            name,
            title: String::new(),
            mode: Mode::Push,
            callback: callback.into(),
            method: Method::Post,
            payload: Payload::Json,
            headers: BTreeMap::new(),
            delay: Duration::ZERO,
            timeout: Duration::from_secs(3),
            connect_timeout: Duration::from_secs(1),
            success: Success::Status,
            re_notify_flag: String::new(),
            retry: RetryPolicy::default(),
            retry_on: Vec::new(),
            max_attempts: 10,
            answer_later: Duration::from_secs(3600),
            max_in_flight: None,
            rate: None,
            breaker_failures: 20,
            breaker_pause: Duration::from_secs(10),
            catch_up: CatchUp::All,
            durability: None,
            priority: Priority::Normal,
            alert: Vec::new(),
            creator: String::new(),
            status: Status::Online,
            secrets: Vec::new(),
            keep_done: Duration::ZERO,
            keep_dead: Duration::ZERO,
        }
    }
}
