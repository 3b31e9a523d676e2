//! From the store's answer to JSON, on the store's thread.

use std::borrow::Cow;
use std::collections::BTreeMap;

use jiff::tz::TimeZone;
use mio::Waker;
use serde::Serialize;

use crate::fields::{Fields, Marks};
use crate::job::{Attempt, JobKey, State, TopicName};
use crate::protocol::dq::{Answer, DueAnswer, Refusal};
use crate::store::{Added, Changed, Counts, Result, StoreError, View};
use crate::submit::{self, Asker};

/// An answer's JSON.
pub(super) type Json = Cow<'static, [u8]>;

/// `{"code":1,"msg":"succ","data":[]}`, which most answers are.
pub(super) const SUCCESS: &[u8] = br#"{"code":1,"msg":"succ","data":[]}"#;

/// Which request of which connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Ticket {
    /// The connection's place.
    pub place: usize,
    /// Tells it from an earlier connection in that place.
    pub serial: u64,
    /// The request's number on the connection.
    pub number: u64,
}

/// How the store's answer is told.
#[derive(Debug)]
pub(super) enum Manner {
    /// There is one way only.
    Plain,
    /// In at most so many bytes.
    Get { most: usize },
    /// To each job, those among them that were refused before; in at most so many bytes.
    Madd { items: Vec<Result<(), Refusal>>, most: usize },
    /// Of that topic alone, if it is named.
    Stats(Option<TopicName>),
}

/// A request that the store has.
#[derive(Debug)]
pub(super) struct Asked {
    pub ticket: Ticket,
    pub manner: Manner,
}

/// The TCP port, as those who ask the store see it.
pub(super) struct Tcp {
    pub zone: TimeZone,
    pub waker: Waker,
}

impl Asker for Tcp {
    type Ticket = Asked;
    type Told = Json;

    fn line(asked: &Asked) -> u64 {
        asked.ticket.serial
    }

    fn told(&self, asked: &Asked, answer: submit::Answer) -> Json {
        match (answer, &asked.manner) {
            (submit::Answer::Added(one), _) => added(&one),
            (submit::Answer::AddedMany(all), Manner::Madd { items, most }) => added_many(items, all, *most),
            (submit::Answer::Got(key, found), Manner::Get { most }) => shown(&key, found, &self.zone, *most),
            (submit::Answer::Deleted(key, was_there), _) => deleted(&key, &was_there),
            (submit::Answer::Changed(key, change), _) => changed(&key, &change),
            (submit::Answer::Counted(counts), Manner::Stats(topic)) => counted(topic.as_ref(), counts),
            (answer, manner) => unreachable!("{answer:?} is no answer to {manner:?}"),
        }
    }

    fn bytes(json: &Json) -> usize {
        json.len()
    }

    fn wake(&self) {
        if let Err(e) = self.waker.wake() {
            log::error!("cannot wake the event loop: {e}");
        }
    }
}

/// The answer to a request that is refused.
pub(super) fn refused(refusal: &Refusal) -> Json {
    Answer::failure(refusal).to_json().into()
}

fn failed(error: &StoreError) -> Refusal {
    Refusal::new(error.code(), error.to_string())
}

fn not_found(key: &JobKey) -> Refusal {
    Refusal::new("not_found", format!("there is no job {:?} in topic {}", key.id.as_str(), key.topic))
}

/// What one add came to: when the job is due, Unix milliseconds.
fn outcome(added: &Result<Added>) -> Result<i64, Refusal> {
    match added {
        Ok(added) => {
            added.due_ms().ok_or_else(|| Refusal::new("exists", "a job with this id is there already"))
        }
        Err(e) => Err(failed(e)),
    }
}

/// The answer to an add.
fn added(added: &Result<Added>) -> Json {
    outcome(added).map_or_else(|refusal| refused(&refusal), |due_ms| Answer::added(due_ms).to_json().into())
}

/// The answer to a `madd`: one in `data` for each of its jobs. Where it would be longer than `most`, first the due times
/// are left out, and then the messages.
fn added_many(items: &[Result<(), Refusal>], all: Vec<Result<Added>>, most: usize) -> Json {
    #[derive(Serialize)]
    struct One {
        code: u8,
        #[serde(skip_serializing_if = "Option::is_none")]
        msg: Option<String>,
        #[serde(skip_serializing_if = "Option::is_none")]
        err: Option<&'static str>,
        #[serde(flatten)]
        due: Option<DueAnswer>,
    }
    let mut all = all.iter();
    let one = |item: &Result<(), Refusal>| {
        let outcome = item.clone().and_then(|()| outcome(all.next().expect("the store answers each job")));
        match outcome {
            Ok(due_ms) => One { code: 1, msg: Some("succ".to_owned()), err: None, due: Some(due_ms.into()) },
            Err(Refusal { err, msg }) => One { code: 0, msg: Some(msg), err: Some(err), due: None },
        }
    };
    let mut answers: Vec<One> = items.iter().map(one).collect();
    let shorten: [fn(&mut One); 2] = [|one| one.due = None, |one| one.msg = None];
    let mut json = Answer::with(&answers).to_json();
    for shorten in shorten {
        if json.len() > most {
            answers.iter_mut().for_each(shorten);
            json = Answer::with(&answers).to_json();
        }
    }
    json.into()
}

/// The answer to a `get`: the body's fields in `data`, as the PHP daemon has them, and what dq knows of the job in `job`.
/// The latter gives way, first the attempts and then the rest, where it would make the answer longer than `most`.
fn shown(key: &JobKey, found: Result<Option<Box<View>>>, zone: &TimeZone, most: usize) -> Json {
    #[derive(Serialize)]
    struct Shown<'a> {
        #[serde(flatten)]
        answer: Answer<'a, &'a Fields>,
        #[serde(skip_serializing_if = "Option::is_none")]
        job: Option<About<'a>>,
    }
    #[derive(Serialize)]
    struct About<'a> {
        state: State,
        due_ms: i64,
        #[serde(skip_serializing_if = "Option::is_none")]
        until_ms: Option<i64>,
        added_ms: i64,
        attempts: u32,
        #[serde(skip_serializing_if = "BTreeMap::is_empty")]
        headers: &'a BTreeMap<String, String>,
        #[serde(skip_serializing_if = "Option::is_none")]
        log: Option<&'a [Attempt]>,
    }
    let view = match found {
        Ok(Some(view)) => view,
        Ok(None) => return refused(&not_found(key)),
        Err(e) => return refused(&failed(&e)),
    };
    let failures = if view.state == State::Leased { view.attempts.saturating_sub(1) } else { view.attempts };
    let marks = Marks { due_ms: view.due_ms, added_ms: view.stamp_us / 1000, failures };
    let fields = Fields::of(&view.body).with(marks, zone);
    let about = |log| About {
        state: view.state,
        due_ms: view.due_ms,
        until_ms: view.until_ms,
        added_ms: marks.added_ms,
        attempts: view.attempts,
        headers: view.headers.by_name(),
        log,
    };
    let mut json = Vec::new();
    for job in [Some(about(Some(&*view.attempts_log))), Some(about(None)), None] {
        let shown = Shown { answer: Answer::with(&fields), job };
        json = serde_json::to_vec(&shown).expect("views are plain values");
        if json.len() <= most {
            break;
        }
    }
    json.into()
}

/// The answer to a `del`.
fn deleted(key: &JobKey, was_there: &Result<bool>) -> Json {
    match was_there {
        Ok(true) => SUCCESS.into(),
        Ok(false) => refused(&not_found(key)),
        Err(e) => refused(&failed(e)),
    }
}

/// The answer to a `run`.
fn changed(key: &JobKey, change: &Result<Changed>) -> Json {
    match change {
        Ok(Changed::Done) => SUCCESS.into(),
        Ok(Changed::NotFound) => refused(&not_found(key)),
        Ok(Changed::Conflict) => refused(&Refusal::new("conflict", "the job is being delivered")),
        Err(e) => refused(&failed(e)),
    }
}

/// The answer to `stats`: the counts of each topic that ever had a job under its name; of a named one always.
fn counted(topic: Option<&TopicName>, counts: Result<Vec<Counts>>) -> Json {
    #[derive(Serialize, Default)]
    struct One {
        delayed: u64,
        ready: u64,
        leased: u64,
        dead: u64,
    }
    let counts = match counts {
        Ok(counts) => counts,
        Err(e) => return refused(&failed(&e)),
    };
    let wanted = counts.into_iter().filter(|c| topic.is_none_or(|t| *t == c.topic));
    let one = |c: Counts| {
        let Counts { topic, delayed, ready, leased, dead, .. } = c;
        (topic.to_string(), One { delayed, ready, leased, dead })
    };
    let mut all: BTreeMap<String, One> = wanted.map(one).collect();
    if let Some(topic) = topic {
        all.entry(topic.to_string()).or_default();
    }
    if all.is_empty() { SUCCESS.into() } else { Answer::with(all).to_json().into() }
}
