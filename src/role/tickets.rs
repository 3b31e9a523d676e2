//! Settles leases by their tickets, for dq-server and dq-http-server. Proves a ticket with the secret of its lane.
//! Remembers what was settled recently. If a client repeats a report because the answer was lost, the client gets the
//! same answer.
//!
//! A thread that asks the store calls [`Tickets::prepare`] before it settles a lease, and [`Tickets::settled`] after
//! that. Between these calls, the thread settles several leases together. `crate::settling` says what a report means.

use std::collections::{HashMap, VecDeque};
use std::mem::discriminant;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::lock;
use crate::settling::{Report, ReportVerb, SettlementEffect, SettlementPlan};
use host::now_ms;
use model::excerpt::Excerpt;
use model::job::JobKey;
use model::metrics::AttemptOutcome;
use model::ticket::{PresentedTicket, Ticket, TicketSecret};
use model::topic::Topic;
use store::{Settled, Settlement, Store, StoreError};
use telemetry::counters::Counters;

/// If no known secret of a lane proves a ticket, the store is asked for the secret of the lane again. It is asked at
/// most once in this time.
const ANEW: Duration = Duration::from_secs(10);

/// How many secrets of a lane are kept. A lane has a new secret only after it lost all its data.
const SECRETS_MAX: usize = 4;

/// How long the answer to a report is remembered, and for how many tickets.
const KEPT: Duration = Duration::from_secs(600);
const KEPT_MAX: usize = 50_000;

/// A report about the attempt that a ticket proves.
#[derive(Debug)]
pub struct TicketReport {
    /// The ticket.
    pub shown: PresentedTicket,
    /// The lane of the lease, whose secret proves the ticket.
    pub lane: usize,
    /// The job that the client names. The ticket must be for this job, and a client must have reserved the job. None:
    /// the ticket must be for an attempt that its receiver answers later.
    pub reserved: Option<JobKey>,
    /// The topic. None: it was removed meanwhile, so the defaults apply.
    pub topic: Option<Arc<Topic>>,
    /// What is reported.
    pub report: Report,
}

/// What happened to the job of a ticket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SettledTicket {
    /// The job.
    pub key: JobKey,
    /// What happened to it.
    pub became: SettlementEffect,
    /// The end of the lease in Unix milliseconds, if the job stays leased.
    pub until_ms: Option<i64>,
}

/// A report with a proved ticket. The store has not answered yet.
pub(crate) struct ProvedReport {
    ticket: Ticket,
    signature: [u8; 32],
    verb: ReportVerb,
    became: SettlementEffect,
    until_ms: Option<i64>,
    /// How long the attempt took. None: the report does not end the attempt.
    took_ms: Option<u64>,
    /// The reason of a failed attempt, for the log.
    why: String,
}

/// Why a report changes nothing.
#[derive(Debug, thiserror::Error)]
pub enum TicketError {
    /// The ticket is forged, or it is for another job, or for another kind of attempt.
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
    /// Makes a value that knows no ticket yet. `counters` are those of this process.
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

    /// Adds the present secret of a lane to the known secrets.
    pub fn learn(&self, lane: usize, secret: TicketSecret) {
        let mut secrets = lock(&self.secrets);
        let known = secrets.entry(lane).or_default();
        known.asked = Some(Instant::now());
        if !known.secrets.contains(&secret) {
            known.secrets.insert(0, secret);
            known.secrets.truncate(SECRETS_MAX);
        }
    }

    /// Proves a ticket. The store never gets a forged ticket. For the proof, the store is asked at most for the secret
    /// of the lane.
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

    /// Proves the ticket of a report, and returns what the store is asked to do with its lease. `Err`: the store is not
    /// asked, and the value is the answer to the report. A repeated report gets the same answer as before.
    pub(crate) fn prepare(
        &self,
        store: &mut dyn Store,
        found: TicketReport,
    ) -> Result<(Settlement, ProvedReport), Result<SettledTicket, TicketError>> {
        let TicketReport { shown, lane, reserved, topic, report } = found;
        let ticket = self.prove(store, lane, &shown).map_err(Err)?;
        if ticket.is_reserved() != reserved.is_some()
            || reserved.as_ref().is_some_and(|key| *key != ticket.key)
        {
            return Err(Err(TicketError::NoTicket));
        }
        let (signature, verb) = (shown.signature(), report.verb);
        if let Some(answer) = self.earlier_answer(&signature, verb) {
            return Err(answer.ok_or(TicketError::Gone(ticket.key)));
        }
        let topic = topic.unwrap_or_else(|| Topic::new(ticket.key.topic.clone(), "").into());
        let at_ms = now_ms();
        let SettlementPlan { settlement, became, hold } =
            SettlementPlan::new(&ticket, &topic, &report, fastrand::f64(), at_ms);
        let took_ms = settlement.attempt.as_ref().map(|attempt| attempt.took_ms);
        let why = settlement.attempt.as_ref().map_or(String::new(), |attempt| attempt.error.clone());
        let until_ms = hold.map(|hold| at_ms.saturating_add(hold.as_millis() as i64));
        Ok((settlement, ProvedReport { ticket, signature, verb, became, until_ms, took_ms, why }))
    }

    /// Returns the answer to an earlier report with this ticket. The inner `None`: the earlier report had another verb.
    fn earlier_answer(&self, signature: &[u8; 32], verb: ReportVerb) -> Option<Option<SettledTicket>> {
        let (before, settled) = lock(&self.settled).all.get(signature).cloned()?;
        Some((discriminant(&before) == discriminant(&verb)).then_some(settled))
    }

    /// Returns the answer to a report. `answer` is the store's answer about the lease.
    pub(crate) fn settled(
        &self,
        report: ProvedReport,
        answer: Result<Settled, StoreError>,
    ) -> Result<SettledTicket, TicketError> {
        let ProvedReport { ticket, signature, verb, became, until_ms, took_ms, why } = report;
        if answer? != Settled::Done {
            // After this report was prepared, the same report may have been settled for another request.
            let earlier = self.earlier_answer(&signature, verb).flatten();
            return earlier.ok_or(TicketError::Gone(ticket.key));
        }
        log_outcome(&ticket, became, &why);
        if let Some(took_ms) = took_ms.filter(|_| ticket.is_reserved()) {
            let is_done = became == SettlementEffect::Done;
            let outcome = if is_done { AttemptOutcome::Accepted } else { AttemptOutcome::Failed };
            self.counters.topic(ticket.key.topic.as_str()).reported(outcome, took_ms.saturating_mul(1000));
        }
        let settled = SettledTicket { key: ticket.key, became, until_ms };
        if became != SettlementEffect::Extended {
            lock(&self.settled).keep(signature, verb, settled.clone(), Instant::now());
        }
        Ok(settled)
    }
}

/// Logs what happened to a job.
fn log_outcome(ticket: &Ticket, became: SettlementEffect, why: &str) {
    let (topic, id) = (ticket.key.topic.as_str(), ticket.key.id.as_str());
    let (attempt, why) = (ticket.attempt, Excerpt(why));
    let (done, failed) = match ticket.is_reserved() {
        true => ("done by a client", "was refused"),
        false => ("accepted later", "was reported as failed"),
    };
    match became {
        SettlementEffect::Done => {
            log::debug!(target: "notify", topic, id, attempt; "{done} at attempt {attempt}")
        }
        SettlementEffect::Dead => {
            log::error!(target: "notify", topic, id, attempt; "is a dead letter after attempt {attempt}: {why}")
        }
        SettlementEffect::Retried => {
            log::warn!(target: "notify", topic, id, attempt; "{failed} at attempt {attempt}: {why}")
        }
        SettlementEffect::Extended => {}
    }
}
