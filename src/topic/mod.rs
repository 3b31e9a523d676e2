//! Topics: what a registered kind of job is called back with, and by which rules. Pure.

mod check;
mod header;
mod problem;
mod secret;
mod topics;
mod words;

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

pub use self::check::Unfit;
pub use self::header::{is_own_header, refuse_header};
pub use self::secret::signing_key;
pub use self::topics::Topics;
pub use self::words::{CatchUp, Failure, Rate, Success};
use crate::job::{Priority, TopicName};
use crate::retry::RetryPolicy;

/// Who begins a delivery.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// dq calls the callback.
    #[default]
    Push,
    /// Workers ask for jobs: dq calls nobody.
    Pull,
}

/// The HTTP method of a callback.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub enum Method {
    /// `GET`: fields go into the query.
    Get,
    /// `POST`: fields, or the JSON text, go into the request's body.
    Post,
    /// A text that dq cannot call by. It stands in databases that others write; a topic that has one is held.
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

/// How a job's body travels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Payload {
    /// The body as it was given, `application/json`.
    Json,
    /// A field for each top-level key of the body, as the PHP daemon sends it.
    Form,
}

/// Whether a topic takes new jobs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// It does.
    #[default]
    Online,
    /// Adds are refused; what is stored is still delivered.
    Offline,
}

/// A registered kind of job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Topic {
    /// Its name.
    pub name: TopicName,
    /// What people call it.
    pub title: String,
    /// Who begins a delivery.
    pub mode: Mode,
    /// The URL that is called, `http` or `https`.
    pub callback: String,
    /// How it is called.
    pub method: Method,
    /// What it is sent.
    pub payload: Payload,
    /// Headers beside dq's own.
    pub headers: BTreeMap<String, String>,
    /// When a job is due whose add does not say.
    pub delay: Duration,
    /// The longest that one callback may take, all in all.
    pub timeout: Duration,
    /// The longest that a connection may take to be made.
    pub connect_timeout: Duration,
    /// Which answers accept a job.
    pub success: Success,
    /// When it is true of an answer that was a success, the job is delivered again; empty: never.
    pub re_notify_flag: String,
    /// When a failed delivery comes again.
    pub retry: RetryPolicy,
    /// After which failures a delivery comes again; after others the job is a dead letter at once. Empty: after all.
    pub retry_on: Vec<Failure>,
    /// How many deliveries are tried before the job is a dead letter.
    pub max_attempts: u32,
    /// How long a receiver may take that says that it answers later; zero: none may say so.
    pub answer_later: Duration,
    /// How many callbacks run at the same time, at most.
    pub max_in_flight: Option<u32>,
    /// How many callbacks begin in a span, at most.
    pub rate: Option<Rate>,
    /// After so many failures of the receiver, one after the other, its jobs wait; 0: never.
    pub breaker_failures: u32,
    /// For how long they wait, the first time.
    pub breaker_pause: Duration,
    /// How a backlog is delivered that became due while nobody could deliver it.
    pub catch_up: CatchUp,
    /// Which topics are served before which.
    pub priority: Priority,
    /// Who is told of dead letters.
    pub alert: Vec<String>,
    /// Who registered it.
    pub creator: String,
    /// Whether it takes new jobs.
    pub status: Status,
    /// What callbacks are signed with.
    pub secrets: Vec<String>,
    /// For how long jobs are kept that were accepted.
    pub keep_done: Duration,
    /// For how long dead letters are kept; zero: for ever.
    pub keep_dead: Duration,
}

impl Topic {
    /// How long after the failure of attempt `number` (from 1) of `limit` the next one comes; none: they are used up. `random` is as
    /// for [`RetryPolicy::delay_after`].
    pub fn again_after(&self, number: u32, limit: u32, random: f64) -> Option<Duration> {
        (number < limit).then(|| self.retry.delay_after(number, random))
    }

    /// A topic that calls `callback`, and is otherwise as new topics are.
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
