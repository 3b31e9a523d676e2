//! Settles leases by their tickets, for both servers: proves a ticket by the secret of its lane, and remembers what was
//! settled recently. So a client that repeats its report, because the answer was lost, gets the same answer.
//!
//! [`Tickets::settle`] runs on a thread that asks the store. `crate::settling` says what a report means.

use std::collections::{HashMap, VecDeque};
use std::mem::discriminant;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::lock;
use crate::settling::{Report, ReportVerb, Settling, SettlingResult};
use host::now_ms;
use model::excerpt::Excerpt;
use model::job::JobKey;
use model::metrics::AttemptOutcome;
use model::ticket::{PresentedTicket, Ticket, TicketSecret};
use model::topic::Topic;
use store::{Settled, Store, StoreError};
use telemetry::counters::Counters;

/// The store is asked for a lane's secret again, at most this often, when no known secret proves a ticket.
const ANEW: Duration = Duration::from_secs(10);

/// How many secrets of a lane are kept. A lane has a new secret only after it lost all its data.
const SECRETS_MAX: usize = 4;

/// For how long, and for how many tickets, the outcome is remembered.
const KEPT: Duration = Duration::from_secs(600);
const KEPT_MAX: usize = 10_000;

/// A report about the attempt that a ticket proves.
#[derive(Debug)]
pub struct TicketReport {
    /// The ticket.
    pub shown: PresentedTicket,
    /// The lane of the lease, whose secret proves the ticket.
    pub lane: usize,
    /// The job that the client names. Its client must have reserved it. None: its receiver answers later.
    pub reserved: Option<JobKey>,
    /// The topic. None: it was removed meanwhile, so the defaults apply.
    pub topic: Option<Arc<Topic>>,
    /// What is reported.
    pub report: Report,
}

/// What became of the job of a ticket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SettledTicket {
    /// The job.
    pub key: JobKey,
    /// What became of it.
    pub became: SettlingResult,
    /// If it stays leased: until when, in Unix milliseconds.
    pub until_ms: Option<i64>,
}

/// Why a report changes nothing.
#[derive(Debug, thiserror::Error)]
pub enum TicketError {
    /// The ticket is forged, or is one of another kind or job.
    #[error("this is not the ticket of an attempt")]
    NoTicket,
    /// The lease has ended.
    #[error(
        "the attempt at job {:?} of topic {} is over: it was settled, it ran out, or the job was replaced or deleted",
        .0.id.as_str(), .0.topic
    )]
    Gone(JobKey),
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// The known secrets of a lane, and when the store was asked last.
#[derive(Default)]
struct LaneSecrets {
    secrets: Vec<TicketSecret>,
    asked: Option<Instant>,
}

/// The tickets that were settled recently.
#[derive(Default)]
struct RecentReports {
    all: HashMap<[u8; 32], (ReportVerb, SettledTicket)>,
    order: VecDeque<(Instant, [u8; 32])>,
}

impl RecentReports {
    fn keep(&mut self, signature: [u8; 32], verb: ReportVerb, settled: SettledTicket, now: Instant) {
        self.order.push_back((now, signature));
        self.all.insert(signature, (verb, settled));
        while let Some((at, oldest)) = self.order.front()
            && (now.saturating_duration_since(*at) >= KEPT || self.order.len() > KEPT_MAX)
        {
            self.all.remove(oldest);
            self.order.pop_front();
        }
    }
}

/// What a process knows of tickets. It is cheap to clone.
#[derive(Clone)]
pub struct Tickets {
    counters: Counters,
    secrets: Arc<Mutex<HashMap<usize, LaneSecrets>>>,
    settled: Arc<Mutex<RecentReports>>,
}

impl Tickets {
    /// Knows no ticket yet. `counters` are those of this process.
    pub fn new(counters: Counters) -> Tickets {
        Tickets { counters, secrets: Arc::default(), settled: Arc::default() }
    }

    /// Returns the ticket, if a known secret of the lane proves it. The error says whether to ask the store for another
    /// secret.
    pub fn proved(&self, lane: usize, shown: &PresentedTicket) -> Result<Ticket, bool> {
        let secrets = lock(&self.secrets);
        let Some(known) = secrets.get(&lane) else { return Err(true) };
        match known.secrets.iter().find_map(|secret| shown.proved(secret)) {
            Some(ticket) => Ok(ticket.clone()),
            None => Err(known.asked.is_none_or(|at| at.elapsed() >= ANEW)),
        }
    }

    /// Takes the present secret of a lane.
    pub fn learn(&self, lane: usize, secret: TicketSecret) {
        let mut secrets = lock(&self.secrets);
        let known = secrets.entry(lane).or_default();
        known.asked = Some(Instant::now());
        if !known.secrets.contains(&secret) {
            known.secrets.insert(0, secret);
            known.secrets.truncate(SECRETS_MAX);
        }
    }

    /// Proves a ticket. A forged one never reaches the store, which is only asked for the secret of its lane.
    fn prove(
        &self,
        store: &mut dyn Store,
        lane: usize,
        shown: &PresentedTicket,
    ) -> Result<Ticket, TicketError> {
        match self.proved(lane, shown) {
            Ok(ticket) => return Ok(ticket),
            Err(false) => return Err(TicketError::NoTicket),
            Err(true) => {}
        }
        self.learn(lane, store.secret(lane)?);
        self.proved(lane, shown).map_err(|_| TicketError::NoTicket)
    }

    /// Settles the lease that a ticket proves. A report that was made before gets the same answer.
    pub(crate) fn settle(
        &self,
        store: &mut dyn Store,
        found: &TicketReport,
    ) -> Result<SettledTicket, TicketError> {
        let TicketReport { shown, lane, reserved, topic, report } = found;
        let ticket = self.prove(store, *lane, shown)?;
        if ticket.is_reserved() != reserved.is_some()
            || reserved.as_ref().is_some_and(|key| *key != ticket.key)
        {
            return Err(TicketError::NoTicket);
        }
        let before = lock(&self.settled).all.get(&shown.signature()).cloned();
        if let Some((verb, settled)) = before {
            let is_same = discriminant(&verb) == discriminant(&report.verb);
            return if is_same { Ok(settled) } else { Err(TicketError::Gone(ticket.key)) };
        }
        let topic = topic.clone().unwrap_or_else(|| Topic::new(ticket.key.topic.clone(), "").into());
        let now = now_ms();
        let Settling { settlement, became, hold } =
            Settling::new(&ticket, &topic, report, fastrand::f64(), now);
        let why = settlement.attempt.as_ref().map_or(String::new(), |attempt| attempt.error.clone());
        let took_ms = settlement.attempt.as_ref().map(|attempt| attempt.took_ms);
        let no_answer = || Err(StoreError::Unknown("no answer".to_owned()));
        if store.settle(&[settlement]).pop().unwrap_or_else(no_answer)? != Settled::Done {
            return Err(TicketError::Gone(ticket.key));
        }
        log_outcome(&ticket, became, &why);
        if let Some(took_ms) = took_ms.filter(|_| ticket.is_reserved()) {
            let is_done = became == SettlingResult::Done;
            let outcome = if is_done { AttemptOutcome::Accepted } else { AttemptOutcome::Failed };
            self.counters.topic(ticket.key.topic.as_str()).reported(outcome, took_ms.saturating_mul(1000));
        }
        let until_ms = hold.map(|hold| now.saturating_add(hold.as_millis() as i64));
        let settled = SettledTicket { key: ticket.key, became, until_ms };
        if became != SettlingResult::Extended {
            lock(&self.settled).keep(shown.signature(), report.verb, settled.clone(), Instant::now());
        }
        Ok(settled)
    }
}

/// Logs what became of a job.
fn log_outcome(ticket: &Ticket, became: SettlingResult, why: &str) {
    let (topic, id, number, why) = (&ticket.key.topic, Excerpt(&ticket.key.id), ticket.attempt, Excerpt(why));
    let (done, failed) = match ticket.is_reserved() {
        true => ("done by a client", "was refused"),
        false => ("accepted later", "was reported as failed"),
    };
    match became {
        SettlingResult::Done => log::debug!(target: "notify", "{topic}:{id} {done} at attempt {number}"),
        SettlingResult::Dead => {
            log::error!(target: "notify", "{topic}:{id} is a dead letter after attempt {number}: {why}")
        }
        SettlingResult::Retried => {
            log::warn!(target: "notify", "{topic}:{id} {failed} at attempt {number}: {why}")
        }
        SettlingResult::Extended => {}
    }
}
