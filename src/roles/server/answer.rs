//! Turns the store's answers into JSON, on the store's thread.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::tz::TimeZone;
use mio::Waker;
use serde::Serialize;
use serde_json::value::RawValue;

use model::destination::Destination;
use model::fields::{BodyFields, DaemonFields};
use model::follow::PredecessorJob;
use model::job::{Attempt, JobKey, State, TopicName};
use model::tags::Tags;
use protocol::dq::{Answer, DueAnswer, Refusal};
use role::pull::{ReserveAnswer, ReservedLease};
use role::settling::SettlementEffect;
use role::submit::Frontend;
use role::tickets::{SettledTicket, TicketError};
use store::{Added, Changed, Counts, Deleted, Result, StoreError, StoredJob};

/// The JSON of an answer.
pub(super) type JsonBytes = Cow<'static, [u8]>;

/// The most frequent answer: `{"code":1,"msg":"succ","data":[]}`.
pub(super) const SUCCESS: &[u8] = br#"{"code":1,"msg":"succ","data":[]}"#;

/// The success answer of a change that waits in the spool, on this host's disk.
const SPOOLED: &[u8] = br#"{"code":1,"msg":"succ","data":[],"spooled":true}"#;

/// Names one request of one connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ReplyAddress {
    /// The place of the connection in the slab.
    pub place: usize,
    /// Distinguishes the connection from an earlier one in the same place.
    pub serial: u64,
    /// The request's number on the connection.
    pub number: u64,
}

/// The part of the TCP port that the store's threads use.
pub(super) struct TcpFrontend {
    pub waker: Arc<Waker>,
}

impl Frontend for TcpFrontend {
    type ReplyAddress = ReplyAddress;
    type Response = JsonBytes;

    fn sequence(reply_to: &ReplyAddress) -> u64 {
        reply_to.serial
    }

    fn bytes(json: &JsonBytes) -> usize {
        json.len()
    }

    fn wake(&self) {
        if let Err(e) = self.waker.wake() {
            log::error!("cannot wake the event loop: {e}");
        }
    }
}

/// Returns the answer to a refused request.
pub(super) fn refused(refusal: &Refusal) -> JsonBytes {
    Answer::failure(refusal).to_json().into()
}

fn failed(error: &StoreError) -> Refusal {
    Refusal::new(error.code(), error.to_string())
}

fn not_found(key: &JobKey) -> Refusal {
    Refusal::new("not_found", format!("there is no job {:?} in topic {}", key.id.as_str(), key.topic))
}

/// Returns the outcome of one add: when the job is due, in Unix milliseconds, and whether it waits in the spool.
fn outcome(added: &Result<Added>) -> Result<(i64, bool), Refusal> {
    match added {
        Ok(added) => {
            let due_ms = added.due_ms();
            let exists = || Refusal::new("exists", "a job with this id is there already");
            due_ms.map(|due_ms| (due_ms, matches!(added, Added::Spooled { .. }))).ok_or_else(exists)
        }
        Err(e) => Err(failed(e)),
    }
}

/// Returns the answer to an add.
pub(super) fn added(added: Result<Added>) -> JsonBytes {
    match outcome(&added) {
        Ok((due_ms, true)) => Answer::spooled(due_ms).to_json().into(),
        Ok((due_ms, false)) => Answer::added(due_ms).to_json().into(),
        Err(refusal) => refused(&refusal),
    }
}

/// Returns the answer to a `madd`: `data` has one entry for each job. If the answer is longer than `most` bytes, the
/// due times are left out first, and then the messages.
pub(super) fn added_many(items: &[Result<(), Refusal>], all: Vec<Result<Added>>, most: usize) -> JsonBytes {
    #[derive(Serialize)]
    struct BatchItemAnswer {
        code: u8,
        #[serde(skip_serializing_if = "Option::is_none")]
        msg: Option<String>,
        #[serde(skip_serializing_if = "Option::is_none")]
        err: Option<&'static str>,
        #[serde(flatten)]
        due: Option<DueAnswer>,
        #[serde(skip_serializing_if = "std::ops::Not::not")]
        spooled: bool,
    }
    let mut all = all.iter();
    let one = |item: &Result<(), Refusal>| {
        let outcome = item.clone().and_then(|()| outcome(all.next().expect("the store answers each job")));
        match outcome {
            Ok((due_ms, spooled)) => BatchItemAnswer {
                code: 1,
                msg: Some("succ".to_owned()),
                err: None,
                due: Some(due_ms.into()),
                spooled,
            },
            Err(Refusal { err, msg }) => {
                BatchItemAnswer { code: 0, msg: Some(msg), err: Some(err), due: None, spooled: false }
            }
        }
    };
    let mut answers: Vec<BatchItemAnswer> = items.iter().map(one).collect();
    let shorten: [fn(&mut BatchItemAnswer); 2] = [|one| one.due = None, |one| one.msg = None];
    let mut json = Answer::with(&answers).to_json();
    for shorten in shorten {
        if json.len() > most {
            answers.iter_mut().for_each(shorten);
            json = Answer::with(&answers).to_json();
        }
    }
    json.into()
}

/// Returns the answer to a `get`: `data` has the fields of the body, as the PHP daemon returns them; `job` has what dq
/// knows of the job. If the answer is longer than `most` bytes, the log of attempts is left out first, and then all of
/// `job`.
pub(super) fn job_found(
    key: &JobKey,
    found: Result<Option<StoredJob>>,
    zone: &TimeZone,
    most: usize,
    sees_answers: bool,
) -> JsonBytes {
    #[derive(Serialize)]
    struct JobView<'a> {
        #[serde(flatten)]
        answer: Answer<'a, &'a BodyFields>,
        #[serde(skip_serializing_if = "Option::is_none")]
        job: Option<JobDetails<'a>>,
    }
    #[derive(Serialize)]
    struct JobDetails<'a> {
        state: State,
        due_ms: i64,
        #[serde(skip_serializing_if = "Option::is_none")]
        until_ms: Option<i64>,
        #[serde(skip_serializing_if = "Option::is_none")]
        consumer: Option<&'a str>,
        added_ms: i64,
        attempts: u32,
        #[serde(skip_serializing_if = "Option::is_none")]
        ttr_ms: Option<u64>,
        #[serde(skip_serializing_if = "Option::is_none")]
        expires_ms: Option<i64>,
        #[serde(skip_serializing_if = "std::ops::Not::not")]
        spooled: bool,
        #[serde(skip_serializing_if = "BTreeMap::is_empty")]
        headers: &'a BTreeMap<String, String>,
        #[serde(skip_serializing_if = "Option::is_none")]
        path: Option<&'a str>,
        #[serde(skip_serializing_if = "Option::is_none")]
        url: Option<&'a str>,
        #[serde(skip_serializing_if = "Tags::is_empty")]
        tags: &'a Tags,
        #[serde(skip_serializing_if = "Vec::is_empty")]
        then: Vec<Box<RawValue>>,
        #[serde(skip_serializing_if = "Option::is_none")]
        after: Option<String>,
        #[serde(skip_serializing_if = "Option::is_none")]
        log: Option<&'a [Attempt]>,
    }
    let mut view = match found {
        Ok(Some(view)) => view,
        Ok(None) => return refused(&not_found(key)),
        Err(e) => return refused(&failed(&e)),
    };
    if !sees_answers {
        view.attempts_log.iter_mut().for_each(|attempt| attempt.answer.clear());
    }
    let failures = if view.state == State::Leased { view.attempts.saturating_sub(1) } else { view.attempts };
    let daemon_fields = DaemonFields { due_ms: view.due_ms, added_ms: view.stamp_us / 1000, failures };
    let fields = BodyFields::from_body(&view.body).with(daemon_fields, zone);
    let about = |log| JobDetails {
        state: view.state,
        due_ms: view.due_ms,
        until_ms: view.until_ms,
        consumer: view.reserver.as_ref().map(|client| client.name.as_str()),
        added_ms: daemon_fields.added_ms,
        attempts: view.attempts,
        ttr_ms: view.headers.ttr().map(|ttr| ttr.as_millis() as u64),
        expires_ms: view.headers.expires_ms(),
        spooled: view.is_spooled,
        headers: view.headers.by_name(),
        path: view.headers.destination().and_then(Destination::path),
        url: view.headers.destination().and_then(Destination::own_url),
        tags: view.headers.tags(),
        then: view.headers.then().shown(PredecessorJob { key: &view.key, stamp_us: view.stamp_us }),
        after: view.headers.after().map(ToString::to_string),
        log,
    };
    let mut json = Vec::new();
    for job in [Some(about(Some(&*view.attempts_log))), Some(about(None)), None] {
        let shown = JobView { answer: Answer::with(&fields), job };
        json = serde_json::to_vec(&shown).expect("views are plain values");
        if json.len() <= most {
            break;
        }
    }
    json.into()
}

/// Returns the answer to a `del`.
pub(super) fn deleted(key: &JobKey, deleted: Result<Deleted>) -> JsonBytes {
    match deleted {
        Ok(Deleted::Done) => SUCCESS.into(),
        Ok(Deleted::Spooled) => SPOOLED.into(),
        Ok(Deleted::NotFound) => refused(&not_found(key)),
        Err(e) => refused(&failed(&e)),
    }
}

/// Returns the answer to a `run`.
pub(super) fn changed(key: &JobKey, change: Result<Changed>) -> JsonBytes {
    match change {
        Ok(Changed::Done) => SUCCESS.into(),
        Ok(Changed::NotFound) => refused(&not_found(key)),
        Ok(Changed::Conflict) => refused(&Refusal::new("conflict", "the job is being delivered")),
        Err(e) => refused(&failed(&e)),
    }
}

/// Returns the answer to a `reserve`: `data` is the list of the jobs.
pub(super) fn reserved(answer: &ReserveAnswer) -> JsonBytes {
    #[derive(Serialize)]
    struct ReservedJob<'a> {
        topic: &'a str,
        id: &'a str,
        body: &'a RawValue,
        headers: &'a BTreeMap<String, String>,
        tags: &'a Tags,
        #[serde(skip_serializing_if = "Option::is_none")]
        path: Option<&'a str>,
        #[serde(skip_serializing_if = "Option::is_none")]
        url: Option<&'a str>,
        attempt: u32,
        due_ms: i64,
        added_ms: i64,
        #[serde(skip_serializing_if = "Option::is_none")]
        token: Option<&'a str>,
        #[serde(skip_serializing_if = "Option::is_none")]
        lease_until_ms: Option<i64>,
    }
    let one = |ReservedLease { leased, ticket }: &'_ ReservedLease| {
        let destination = leased.headers.destination();
        serde_json::value::to_raw_value(&ReservedJob {
            topic: leased.key.topic.as_str(),
            id: leased.key.id.as_str(),
            body: serde_json::from_str(leased.body.as_str()).unwrap_or(RawValue::NULL),
            headers: leased.headers.by_name(),
            tags: leased.headers.tags(),
            path: destination.and_then(Destination::path),
            url: destination.and_then(Destination::own_url),
            attempt: leased.attempt,
            due_ms: leased.due_ms,
            added_ms: leased.stamp_us / 1000,
            token: ticket.as_deref(),
            lease_until_ms: ticket.as_ref().map(|_| leased.deadline_ms),
        })
        .expect("jobs are plain values")
    };
    match answer {
        Ok(jobs) => Answer::with(jobs.iter().map(one).collect::<Vec<_>>()).to_json().into(),
        Err(e) => refused(&failed(e)),
    }
}

/// Returns the answer to an `ack`, a `nack` or an `extend`: `data` says what happened to the job.
pub(super) fn settled(settled: std::result::Result<SettledTicket, TicketError>) -> JsonBytes {
    #[derive(Serialize)]
    struct ReportAnswer<'a> {
        topic: &'a str,
        id: &'a str,
        outcome: &'a str,
        #[serde(skip_serializing_if = "Option::is_none")]
        until_ms: Option<i64>,
    }
    match settled {
        Ok(SettledTicket { key, became, until_ms }) => {
            let outcome = match became {
                SettlementEffect::Done => "done",
                SettlementEffect::Retried => "retried",
                SettlementEffect::Dead => "dead",
                SettlementEffect::Extended => "extended",
            };
            let (topic, id) = (key.topic.as_str(), key.id.as_str());
            Answer::with(ReportAnswer { topic, id, outcome, until_ms }).to_json().into()
        }
        Err(TicketError::Store(e)) => refused(&failed(&e)),
        Err(e @ TicketError::NoTicket) => refused(&Refusal::new("no_ticket", e.to_string())),
        Err(e @ TicketError::Gone(_)) => refused(&Refusal::new("gone", e.to_string())),
    }
}

/// Returns the answer to `stats`: the counts of all topics that the store counts, or of the topic that the client
/// named. The named topic is always included.
pub(super) fn counted(topic: Option<&TopicName>, counts: Result<Vec<Counts>>) -> JsonBytes {
    #[derive(Serialize, Default)]
    struct TopicCounts {
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
        (topic.to_string(), TopicCounts { delayed, ready, leased, dead })
    };
    let mut all: BTreeMap<String, TopicCounts> = wanted.map(one).collect();
    if let Some(topic) = topic {
        all.entry(topic.to_string()).or_default();
    }
    if all.is_empty() { SUCCESS.into() } else { Answer::with(all).to_json().into() }
}
