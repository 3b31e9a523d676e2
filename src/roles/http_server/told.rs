//! From the store's answer to what the client is told, on the store's thread.

use std::collections::BTreeMap;

use axum::http::header::{CONTENT_TYPE, ETAG, LOCATION};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Serialize;
use serde_json::value::RawValue;

use super::audit::Noted;
use super::cursor;
use super::problem::Problem;
use super::replays::Unfinished;
use crate::job::{Attempt, JobId, JobKey, Priority, State, TopicName};
use crate::json_time;
use crate::store::{Added, Changed, CircuitView, Result, Settled, StoreError, View};
use crate::submit::{Answer, Found};
use crate::ticket::Secret;

/// What stands for itself in a path.
const PLAIN: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');

/// How the store's answer is told.
#[derive(Debug)]
pub(super) enum Manner {
    /// There is one way only.
    Plain,
    /// A job was added.
    Job(JobKey),
    /// Jobs were added; some of the batch were refused before.
    Batch { topic: TopicName, items: Vec<Result<JobId, Problem>> },
    /// A topic's jobs, and whether it is registered.
    List { topic: TopicName, registered: bool },
}

/// What the client is told.
#[derive(Debug)]
pub(super) struct Told {
    status: StatusCode,
    location: Option<String>,
    etag: Option<String>,
    pub json: Vec<u8>,
    /// Of dead letters: how many there were; of a settlement: 1, or 0 if the lease was over.
    pub count: usize,
    /// Of a batch: some jobs could not be stored now.
    unfinished: bool,
    /// Of topics whose jobs are held back: those that are paused, and circuits that are not closed.
    pub held: (Vec<TopicName>, Vec<CircuitView>),
    /// What handlers ask for themselves.
    pub extra: Extra,
    /// What the audit log says of it, beside what the request does.
    noted: Option<Noted>,
}

/// What the store has told a handler, and no client is told.
#[derive(Debug, Default)]
pub(super) enum Extra {
    #[default]
    None,
    Secret(Secret),
    Found(Found),
}

impl Told {
    pub(super) fn new(status: StatusCode, value: &impl Serialize) -> Told {
        let json = serde_json::to_vec(value).expect("answers are plain values");
        Told { json, ..Told::of(status) }
    }

    /// It is done, and there is nothing to say about it.
    pub(super) fn done() -> Told {
        Told::of(StatusCode::NO_CONTENT)
    }

    fn of(status: StatusCode) -> Told {
        Told {
            status,
            location: None,
            etag: None,
            json: Vec::new(),
            count: 0,
            held: Default::default(),
            unfinished: false,
            extra: Extra::None,
            noted: None,
        }
    }

    /// With what the audit log says of it.
    pub(super) fn noting(self, noted: Noted) -> Told {
        Told { noted: Some(noted), ..self }
    }

    /// Of this revision.
    pub(super) fn with_etag(self, revision: String) -> Told {
        Told { etag: Some(format!("\"{revision}\"")), ..self }
    }

    /// Made there.
    pub(super) fn at(self, location: String) -> Told {
        Told { location: Some(location), ..self }
    }
}

impl IntoResponse for Told {
    fn into_response(self) -> Response {
        let json = HeaderValue::from_static("application/json");
        let mut response = match self.status {
            StatusCode::NO_CONTENT => self.status.into_response(),
            status => (status, [(CONTENT_TYPE, json)], self.json).into_response(),
        };
        if self.unfinished {
            response.extensions_mut().insert(Unfinished);
        }
        if let Some(noted) = self.noted {
            response.extensions_mut().insert(noted);
        }
        // It is percent-encoded: any of it may stand in a header.
        if let Some(Ok(location)) = self.location.map(HeaderValue::try_from) {
            response.headers_mut().insert(LOCATION, location);
        }
        if let Some(Ok(etag)) = self.etag.map(HeaderValue::try_from) {
            response.headers_mut().insert(ETAG, etag);
        }
        response
    }
}

/// What the client is told.
pub(super) fn told(manner: &Manner, answer: Answer) -> Result<Told, Problem> {
    match (answer, manner) {
        (Answer::Added(one), Manner::Job(key)) => added(key, one),
        (Answer::AddedMany(all), Manner::Batch { topic, items }) => Ok(batch(topic, items, all)),
        (Answer::Got(key, found), _) => {
            let view = found?.ok_or_else(|| Problem::not_found(&key))?;
            Ok(Told::new(StatusCode::OK, &Shown::of(&view)))
        }
        (Answer::Deleted(key, was_there), _) => match was_there? {
            true => Ok(Told::done()),
            false => Err(Problem::not_found(&key)),
        },
        (Answer::Changed(key, change), _) => match change? {
            Changed::Done => Ok(Told::done()),
            Changed::NotFound => Err(Problem::not_found(&key)),
            Changed::Conflict => Err(Problem::conflict("conflict", "the job is being delivered")),
        },
        (Answer::Listed(page), Manner::List { topic, registered }) => {
            #[derive(Serialize)]
            struct Listed<'a> {
                jobs: Vec<Shown<'a>>,
                next: Option<String>,
                #[serde(skip_serializing_if = "Vec::is_empty")]
                away: Vec<String>,
            }
            let page = page?;
            // What is left of a topic that was taken out can still be looked at.
            if page.jobs.is_empty() && page.next.is_none() && !registered {
                return Err(Problem::unknown_topic(topic));
            }
            let jobs = page.jobs.iter().map(Shown::of).collect();
            Ok(Told::new(
                StatusCode::OK,
                &Listed { jobs, next: page.next.as_deref().map(cursor::shown), away: page.away },
            ))
        }
        (Answer::Found(found), _) => Ok(Told { extra: Extra::Found(found?), ..Told::done() }),
        (Answer::Secret(secret), _) => Ok(Told { extra: Extra::Secret(secret?), ..Told::done() }),
        (Answer::Settled(settled), _) => {
            Ok(Told { count: usize::from(settled? == Settled::Done), ..Told::done() })
        }
        (Answer::Said(said), _) => said.map(|()| Told::done()).map_err(Problem::from),
        (Answer::Paused(held), _) => Ok(Told { held: held?, ..Told::done() }),
        (Answer::Counted(counts), _) => counts.map(|_| Told::done()).map_err(Problem::from),
        (Answer::Dead(count), _) => Ok(Told { count: count?, ..Told::done() }),
        (answer, manner) => unreachable!("{answer:?} is no answer to {manner:?}"),
    }
}

/// What became of an added job.
#[derive(Serialize)]
struct Outcome<'a> {
    topic: &'a TopicName,
    id: &'a str,
    outcome: &'static str,
    due: String,
    due_ms: i64,
}

fn outcome<'a>(
    topic: &'a TopicName,
    id: &'a JobId,
    added: Result<Added>,
) -> Result<(StatusCode, Outcome<'a>), Problem> {
    let (status, outcome, due_ms) = match added? {
        Added::New { due_ms } => (StatusCode::CREATED, "new", due_ms),
        Added::Replaced { due_ms } => (StatusCode::OK, "replaced", due_ms),
        Added::Kept { due_ms } => (StatusCode::OK, "kept", due_ms),
        Added::Rejected => {
            let detail = format!("a job {:?} is there already", id.as_str());
            return Err(Problem::conflict("exists", detail));
        }
    };
    let due = json_time::rfc3339(due_ms);
    Ok((status, Outcome { topic, id: id.as_str(), outcome, due, due_ms }))
}

fn added(key: &JobKey, added: Result<Added>) -> Result<Told, Problem> {
    let (status, outcome) = outcome(&key.topic, &key.id, added)?;
    let id = utf8_percent_encode(key.id.as_str(), PLAIN);
    let location = format!("/v1/topics/{}/jobs/{id}", key.topic);
    let told = Told::new(status, &outcome);
    Ok(Told { location: (status == StatusCode::CREATED).then_some(location), ..told })
}

/// Each job by itself, in their order.
fn batch(topic: &TopicName, items: &[Result<JobId, Problem>], added: Vec<Result<Added>>) -> Told {
    #[derive(Serialize)]
    struct Done<'a> {
        status: u16,
        #[serde(flatten)]
        outcome: Outcome<'a>,
    }
    #[derive(Serialize)]
    struct Failed<'a> {
        #[serde(flatten)]
        problem: Problem,
        #[serde(skip_serializing_if = "Option::is_none")]
        id: Option<&'a str>,
    }
    #[derive(Serialize)]
    #[serde(untagged)]
    enum One<'a> {
        Done(Done<'a>),
        Failed(Failed<'a>),
    }
    let unfinished = added.iter().any(Result::is_err);
    let mut added = added.into_iter();
    let mut one = |item: &'_ Result<JobId, Problem>| -> Result<serde_json::Value, serde_json::Error> {
        let one = match item {
            Err(problem) => One::Failed(Failed { problem: problem.clone(), id: None }),
            Ok(id) => {
                let answer = added.next().unwrap_or_else(|| Err(StoreError::Unknown("no answer".into())));
                match outcome(topic, id, answer) {
                    Ok((status, outcome)) => One::Done(Done { status: status.as_u16(), outcome }),
                    Err(problem) => One::Failed(Failed { problem, id: Some(id.as_str()) }),
                }
            }
        };
        serde_json::to_value(one)
    };
    let results: Vec<_> = items.iter().map(|item| one(item).expect("answers are plain values")).collect();
    Told { unfinished, ..Told::new(StatusCode::OK, &BTreeMap::from([("results", results)])) }
}

/// A job as it is shown.
#[derive(Serialize)]
struct Shown<'a> {
    topic: &'a TopicName,
    id: &'a str,
    state: State,
    due_ms: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    until_ms: Option<i64>,
    added_ms: i64,
    priority: Priority,
    attempts: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_attempts: Option<u32>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    headers: &'a BTreeMap<String, String>,
    log: &'a [Attempt],
    body: &'a RawValue,
}

impl<'a> Shown<'a> {
    fn of(view: &'a View) -> Shown<'a> {
        Shown {
            topic: &view.key.topic,
            id: view.key.id.as_str(),
            state: view.state,
            due_ms: view.due_ms,
            until_ms: view.until_ms,
            added_ms: view.stamp_us / 1000,
            priority: view.priority,
            attempts: view.attempts,
            max_attempts: view.max_attempts,
            headers: view.headers.by_name(),
            log: &view.attempts_log,
            // A store that is damaged shows nothing for a body.
            body: serde_json::from_str(view.body.as_str()).unwrap_or(RawValue::NULL),
        }
    }
}
