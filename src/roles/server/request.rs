//! From a client's command to what the store is asked, and from the store's answer to JSON.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use jiff::tz::TimeZone;
use serde::Serialize;

use super::lanes::Submits;
use super::submit::{Ask, Ticket};
use crate::fields::{Fields, Marks};
use crate::job::{Attempt, Due, JobKey, NewJob, State, TopicName};
use crate::protocol::dq::{self, Add, Answer, Command, DIGITS_MAX, Framing, Refusal};
use crate::role::LiveTopics;
use crate::settings::Settings;
use crate::store::{Added, Changed, Counts, Result, StoreError, View};
use crate::topic::Status;

/// An answer's JSON.
pub(super) type Json = Cow<'static, [u8]>;

/// `{"code":1,"msg":"succ","data":[]}`, which most answers are.
const SUCCESS: &[u8] = br#"{"code":1,"msg":"succ","data":[]}"#;

/// The most jobs of a `madd` in the digits framing: their answers, shortened, fit into its longest frame.
const MADD_DIGITS_MAX: usize = 200;

/// The longest answer in bytes.
fn longest(framing: Framing) -> usize {
    match framing {
        Framing::Digits => DIGITS_MAX,
        Framing::Binary => usize::MAX,
    }
}

/// What became of a request that was taken.
pub(super) enum Taken {
    /// It is answered.
    Answered(Json),
    /// The store is asked.
    Asked {
        /// Whether the answer may be as long as a body.
        is_get: bool,
    },
}

/// What the event loop knows without the store.
pub(super) struct Front {
    pub settings: Arc<Settings>,
    pub topics: LiveTopics,
    pub zone: TimeZone,
}

impl Front {
    /// Whether a client is let in beside `open` others.
    pub(super) fn admit(&self, peer: SocketAddr, open: usize) -> Result<(), String> {
        let server = &self.settings.server;
        if !server.allow.is_empty() && !server.allow.iter().any(|net| net.contains(&peer.ip().to_canonical()))
        {
            return Err("server.allow does not name it".into());
        }
        if open >= server.max_connections {
            return Err(format!("{open} connections are open (server.max_connections)"));
        }
        Ok(())
    }

    /// Takes a request: hands it to the store, or answers it at once.
    pub(super) fn take(&self, json: &[u8], framing: Framing, ticket: Ticket, submit: &mut Submits) -> Taken {
        let hung = || Refusal::new("store_busy", "the store does not answer; nothing was handed to it");
        let ask = match dq::parse(json, &self.zone).and_then(|command| self.ask(command, framing)) {
            Ok(Some(ask)) => ask,
            Ok(None) => return Taken::Answered(SUCCESS.into()),
            Err(refusal) => {
                log::info!(target: "request", "refused: {}", refusal.msg);
                return Taken::Answered(refused(&refusal));
            }
        };
        let is_get = matches!(ask, Ask::Get { .. });
        if submit.hand_in(ticket, ask, json.len()).is_err() {
            return Taken::Answered(refused(&hung()));
        }
        Taken::Asked { is_get }
    }

    /// What the store is asked; nothing, for a ping.
    fn ask(&self, command: Command, framing: Framing) -> Result<Option<Ask>, Refusal> {
        Ok(Some(match command {
            Command::Add(add) => Ask::Add(self.job(add)?),
            Command::Madd(adds) if framing == Framing::Digits && adds.len() > MADD_DIGITS_MAX => {
                let problem = format!(
                    "jobs holds {} of them; the answers of {MADD_DIGITS_MAX} are what 4 digits of length can say",
                    adds.len()
                );
                return Err(Refusal::new("bad_field", problem));
            }
            Command::Madd(adds) => {
                let items = adds.into_iter().map(|add| add.and_then(|add| self.job(add))).collect();
                Ask::Madd { items, most: longest(framing) }
            }
            Command::Get(key) => Ask::Get { key, most: longest(framing) },
            Command::Del(key) => Ask::Del(key),
            Command::Run(key) => Ask::Run(key),
            Command::Stats(Some(topic)) if self.topics.now().get(topic.as_str()).is_none() => {
                return Err(unregistered(&topic));
            }
            Command::Stats(topic) => Ask::Stats(topic),
            Command::Ping => return Ok(None),
        }))
    }

    fn job(&self, add: Add) -> Result<NewJob, Refusal> {
        let name = &add.key.topic;
        let Some(topic) = self.topics.now().get(name.as_str()) else {
            return Err(unregistered(name));
        };
        if topic.status == Status::Offline {
            return Err(Refusal::new("topic_offline", format!("topic {name} is offline")));
        }
        Ok(NewJob {
            due: add.due.unwrap_or(Due::In(topic.delay)),
            key: add.key,
            body: add.body,
            priority: add.priority,
            on_conflict: add.on_conflict,
            max_attempts: add.max_attempts,
            attempts: 0,
        })
    }
}

fn unregistered(topic: &TopicName) -> Refusal {
    Refusal::new("unknown_topic", format!("topic {topic} is not registered"))
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

/// What one add came to.
fn outcome(added: &Result<Added>) -> Result<(), Refusal> {
    match added {
        Ok(Added::New | Added::Replaced | Added::Kept) => Ok(()),
        Ok(Added::Rejected) => Err(Refusal::new("exists", "a job with this id is there already")),
        Err(e) => Err(failed(e)),
    }
}

/// The answer to an add.
pub(super) fn added(added: &Result<Added>) -> Json {
    outcome(added).map_or_else(|refusal| refused(&refusal), |()| SUCCESS.into())
}

/// The answer to a `madd`: one in `data` for each of its jobs; without their messages, where these would make it longer
/// than `most`.
pub(super) fn added_many(all: &[Result<Result<Added>, Refusal>], most: usize) -> Json {
    #[derive(Serialize)]
    struct One {
        code: u8,
        #[serde(skip_serializing_if = "Option::is_none")]
        msg: Option<String>,
        #[serde(skip_serializing_if = "Option::is_none")]
        err: Option<&'static str>,
    }
    let one =
        |item: &Result<Result<Added>, Refusal>| match item.as_ref().map_err(Clone::clone).and_then(outcome) {
            Ok(()) => One { code: 1, msg: Some("succ".to_owned()), err: None },
            Err(Refusal { err, msg }) => One { code: 0, msg: Some(msg), err: Some(err) },
        };
    let mut answers: Vec<One> = all.iter().map(one).collect();
    let json = Answer::with(&answers).to_json();
    if json.len() <= most {
        return json.into();
    }
    answers.iter_mut().for_each(|answer| answer.msg = None);
    Answer::with(&answers).to_json().into()
}

/// The answer to a `get`: the body's fields in `data`, as the PHP daemon has them, and what dq knows of the job in `job`.
/// The latter gives way, first the attempts and then the rest, where it would make the answer longer than `most`.
pub(super) fn shown(key: &JobKey, found: Result<Option<View>>, zone: &TimeZone, most: usize) -> Json {
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
pub(super) fn deleted(key: &JobKey, was_there: &Result<bool>) -> Json {
    match was_there {
        Ok(true) => SUCCESS.into(),
        Ok(false) => refused(&not_found(key)),
        Err(e) => refused(&failed(e)),
    }
}

/// The answer to a `run`.
pub(super) fn changed(key: &JobKey, change: &Result<Changed>) -> Json {
    match change {
        Ok(Changed::Done) => SUCCESS.into(),
        Ok(Changed::NotFound) => refused(&not_found(key)),
        Ok(Changed::Conflict) => refused(&Refusal::new("conflict", "the job is being delivered")),
        Err(e) => refused(&failed(e)),
    }
}

/// The answer to `stats`: the counts of each topic that ever had a job under its name; of a named one always.
pub(super) fn counted(topic: Option<&TopicName>, counts: Result<Vec<Counts>>) -> Json {
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
        let Counts { topic, delayed, ready, leased, dead } = c;
        (topic.to_string(), One { delayed, ready, leased, dead })
    };
    let mut all: BTreeMap<String, One> = wanted.map(one).collect();
    if let Some(topic) = topic {
        all.entry(topic.to_string()).or_default();
    }
    if all.is_empty() { SUCCESS.into() } else { Answer::with(all).to_json().into() }
}
