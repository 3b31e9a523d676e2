//! Clients that reserve jobs of pull topics, and report about them (docs/PULL.md). `role::pull` decides who gets which
//! jobs, on threads of its own. Its answers wait here until the event loop brings them to their connections.
//!
//! A reserve begins when all earlier requests of its connection are answered. So an answer with jobs never waits for
//! other answers while the leases run. docs/internals/PULL.md has the events and states.

use std::cell::RefCell;
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use mio::Waker;

use super::answer::{JsonBytes, ReplyAddress, reserved, settled};
use model::failure_limiter::ClientSource;
use model::job::TopicName;
use model::open_connections::OpenConnections;
use model::ticket::PresentedTicket;
use model::topic::{LEASES, Topics};
use protocol::dq::{JobReport, Refusal, ReportKind, Reserve};
use role::pull::{
    self, MAX_TOPICS, MAX_WAIT, NamedClient, NotPulled, PullHandle, ReserveHandle, ReservedLease,
};
use role::settling::{Report, ReportVerb};
use role::submit::StoreRequest;
use role::tickets::{TicketReport, Tickets};
use role::{StoreOpener, lock};
use store::{Lanes, RESERVER_NAME_MAX, Reserver, Token};

/// An answer to a reserve. If the client does not get the answer, the jobs are handed back.
pub(super) struct AnsweredReserve {
    pub reply_to: ReplyAddress,
    pub json: JsonBytes,
    pub jobs: Vec<ReservedLease>,
}

/// The answers that the event loop has not taken yet.
struct ReserveAnswerQueue {
    answers: Mutex<Vec<AnsweredReserve>>,
    waker: Arc<Waker>,
}

/// The clients that reserve jobs.
pub(super) struct Reserves {
    pull: PullHandle,
    queue: Arc<ReserveAnswerQueue>,
    places: Rc<RefCell<OpenConnections>>,
    tickets: Tickets,
    lanes: Lanes,
}

/// A reserve that waits. If it is dropped, its client gets no job.
pub(super) struct WaitingReserve {
    pub until: Instant,
    _waiting: ReserveHandle,
    _place: ReservePlaceGuard,
}

impl std::fmt::Debug for WaitingReserve {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WaitingReserve").field("until", &self.until).finish_non_exhaustive()
    }
}

/// A place among the clients that reserve. The place is free again when this value is dropped.
struct ReservePlaceGuard {
    places: Rc<RefCell<OpenConnections>>,
    source: ClientSource,
}

impl Drop for ReservePlaceGuard {
    fn drop(&mut self) {
        self.places.borrow_mut().closed(self.source);
    }
}

impl Reserves {
    /// Starts the thread that serves reserves. Up to `most` reserves may wait at the same time, and up to half of this
    /// number from one address.
    pub(super) fn start(
        store: StoreOpener,
        topics: Topics,
        waker: Arc<Waker>,
        most: usize,
    ) -> std::io::Result<Reserves> {
        let places = OpenConnections::new(most, most.div_ceil(2));
        let counters = store.counters().clone();
        Ok(Reserves {
            lanes: store.lanes().clone(),
            pull: PullHandle::start(store, topics, None)?,
            queue: Arc::new(ReserveAnswerQueue { answers: Mutex::default(), waker }),
            places: Rc::new(RefCell::new(places)),
            tickets: Tickets::new(counters),
        })
    }

    /// Begins a reserve. The caller has checked the scopes. The reserve waits no longer than the token of the client is
    /// valid (`valid_for`; None: without end).
    pub(super) fn begin(
        &self,
        reserve: Reserve,
        valid_for: Option<Duration>,
        topics: &Topics,
        ip: IpAddr,
        reply_to: ReplyAddress,
    ) -> Result<WaitingReserve, Refusal> {
        let source = ClientSource::address(ip);
        let mut reserve = checked(reserve, topics, ip)?;
        let until = valid_for.map_or(reserve.until, |left| reserve.until.min(Instant::now() + left));
        reserve.until = until;
        if self.places.borrow().check(source, 0).is_err() {
            let problem = "too many clients reserve, or half of the allowed number are from this address \
                           (http.max_reserves)";
            return Err(Refusal::new("busy", problem));
        }
        self.places.borrow_mut().opened(source);
        let place = ReservePlaceGuard { places: Rc::clone(&self.places), source };
        let queue = Arc::clone(&self.queue);
        let waiting = self.pull.reserve(reserve, move |answer| {
            let (json, jobs) = (reserved(&answer), answer.unwrap_or_default());
            lock(&queue.answers).push(AnsweredReserve { reply_to, json, jobs });
            if let Err(e) = queue.waker.wake() {
                log::error!("cannot wake the event loop: {e}");
            }
            Ok(())
        });
        Ok(WaitingReserve { until, _waiting: waiting, _place: place })
    }

    /// Returns the request to the store for a report. The caller has checked the scope.
    pub(super) fn report(
        &self,
        report: JobReport,
        topics: &Topics,
    ) -> Result<StoreRequest<JsonBytes>, Refusal> {
        let JobReport { key, token, kind } = report;
        let no_ticket = || Refusal::new("no_ticket", "this is not the token of a reserved job");
        let shown = PresentedTicket::read(&token).ok_or_else(no_ticket)?;
        let lane = self.lanes.of_token(&Token(shown.token().into())).ok_or_else(no_ticket)?;
        let (verb, text) = match kind {
            ReportKind::Ack { answer } => (ReportVerb::Ack, answer),
            ReportKind::Nack { delay, reason } => (ReportVerb::Nack { delay }, reason),
            ReportKind::Extend { lease } => (ReportVerb::Extend { lease: lease_of(lease)? }, String::new()),
        };
        let (topic, name) = (topics.get(key.topic.as_str()).cloned(), key.topic.clone());
        let found = TicketReport { shown, lane, reserved: Some(key), topic, report: Report { verb, text } };
        let pull = self.pull.clone();
        Ok(StoreRequest::report(self.tickets.clone(), found, move |result| {
            if result.is_ok() {
                pull.settled(&name);
            }
            settled(result)
        }))
    }

    /// Returns the answers since the last call.
    pub(super) fn answers(&self) -> Vec<AnsweredReserve> {
        std::mem::take(&mut *lock(&self.queue.answers))
    }

    /// Hands back the jobs of a client that is gone.
    pub(super) fn hand_back(&self, jobs: Vec<ReservedLease>) {
        if !jobs.is_empty() {
            self.pull.refuse(jobs);
        }
    }

    /// Uses these topics from now on.
    pub(super) fn serve(&self, topics: Topics) {
        self.pull.serve(topics);
    }

    /// Begins to drain: all clients get an answer as soon as possible, and new clients do not wait.
    pub(super) fn drain(&self) {
        self.pull.drain();
    }

    /// Whether the file of the store is gone, so that this process must be started again.
    pub(super) fn is_gone(&self) -> bool {
        self.pull.is_gone()
    }
}

/// Checks the bounds and the topics of a reserve.
fn checked(reserve: Reserve, topics: &Topics, ip: IpAddr) -> Result<pull::Reserve, Refusal> {
    let bad = |problem: String| Err(Refusal::new("bad_field", problem));
    let Reserve { topics: given, max, wait, lease, consumer } = reserve;
    if given.len() > MAX_TOPICS {
        return bad(format!("topics names {} topics, and not 1 to {MAX_TOPICS}", given.len()));
    }
    if wait > MAX_WAIT {
        return bad("wait is at most \"1m\"".to_owned());
    }
    let lease = lease_of(lease)?;
    if consumer.as_deref().is_some_and(|name| !Reserver::is_name(name)) {
        return bad(format!(
            "consumer is not a name of 1 to {RESERVER_NAME_MAX} bytes without control characters"
        ));
    }
    let client = consumer.map(|name| NamedClient { name, address: ip.to_canonical().to_string() });
    let mut names: Vec<TopicName> = Vec::new();
    for name in given {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    let topics = pull::pulled(topics, names).map_err(|e| match e {
        NotPulled::Unknown(_) => Refusal::new("unknown_topic", e.to_string()),
        NotPulled::Other(..) => Refusal::new("not_pull", e.to_string()),
    })?;
    Ok(pull::Reserve { topics, max, lease, is_owned: false, client, until: Instant::now() + wait })
}

fn lease_of(lease: Option<Duration>) -> Result<Option<Duration>, Refusal> {
    match lease {
        Some(lease) if !(LEASES.0..=LEASES.1).contains(&lease) => {
            Err(Refusal::new("bad_field", "lease is not within 100ms to 1day"))
        }
        lease => Ok(lease),
    }
}
