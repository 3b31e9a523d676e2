//! The threads that serve reserves. One thread owns the broker. Each lane of the store has two threads: one asks the
//! lane, and one listens to its bell. The lanes' threads begin with the first reserve. The threads wait for events. The
//! broker also checks every ten seconds whether a ring was lost. If a limit holds ready jobs back, or a lane fails, the
//! broker asks again after a short pause.

use std::collections::HashMap;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use super::broker::Broker;
use super::calls::LeaseCall;
use super::calls::{LaneOrder, LeaseAnswer};
use super::{Reserve, ReserveAnswer, ReservedLease, checkout};
use crate::{StoreOpener, vital_thread};
use host::{Owner, now_ms, random_name, wait_readable};
use model::job::TopicName;
use model::ticket::{Ticket, TicketSecret};
use model::topic::Topics;
use store::{BellKind, LeasedJob, OwnerTag, Permit, PermitRequest, Ring, Settlement, Store, StoreError};

/// How long the secret that signs tickets is used before it is read again.
const SECRET_KEPT: Duration = Duration::from_secs(60);

/// The pause after a failure, before the thread listens to the bell again.
const HANG_AGAIN: Duration = Duration::from_secs(1);

/// Delivers an answer to a client. Returns the answer if the client is gone.
type ReserveAnswerSender = Box<dyn FnOnce(ReserveAnswer) -> Result<(), ReserveAnswer> + Send>;

enum BrokerEvent {
    Reserve(u64, Reserve, ReserveAnswerSender),
    Leave(u64),
    Refused(Vec<ReservedLease>),
    Settled(TopicName),
    Serve(Topics),
    Drain,
    Rang(usize, Vec<Ring>),
    Leased(usize, Result<Vec<Result<LeaseAnswer, StoreError>>, StoreError>),
    Permitted(Vec<PermitRequest>, Vec<Result<Permit, StoreError>>),
}

/// Serves clients that reserve. It is cheap to clone.
#[derive(Clone)]
pub struct PullHandle {
    events: Sender<BrokerEvent>,
    owner: Option<Arc<Owner>>,
    next: Arc<AtomicU64>,
    is_gone: Arc<AtomicBool>,
}

/// A reserve that waits. If it is dropped before its answer came, its jobs go to other clients or are handed back.
pub struct ReserveHandle {
    pull: PullHandle,
    id: u64,
}

impl Drop for ReserveHandle {
    fn drop(&mut self) {
        let _ = self.pull.events.send(BrokerEvent::Leave(self.id));
    }
}

impl PullHandle {
    /// Starts the thread of the broker. `store` opens the lanes when they are needed. `owner` owns the leases of
    /// clients that ask for owned leases. None: there are no such clients.
    pub fn start(store: StoreOpener, topics: Topics, owner: Option<Owner>) -> std::io::Result<PullHandle> {
        let (events, received) = channel();
        let is_gone = Arc::new(AtomicBool::new(false));
        let owner = owner.map(Arc::new);
        let threads = BrokerThread {
            store,
            owner: owner.clone(),
            events: events.clone(),
            lanes: Vec::new(),
            delivers: HashMap::new(),
            is_gone: Arc::clone(&is_gone),
        };
        vital_thread("pull", move || threads.run(&received, topics))?;
        Ok(PullHandle { events, owner, next: Arc::default(), is_gone })
    }

    /// Reserves jobs. `deliver` gets the answer on another thread. If nobody takes the answer, `deliver` returns it.
    pub fn reserve(
        &self,
        reserve: Reserve,
        deliver: impl FnOnce(ReserveAnswer) -> Result<(), ReserveAnswer> + Send + 'static,
    ) -> ReserveHandle {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let _ = self.events.send(BrokerEvent::Reserve(id, reserve, Box::new(deliver)));
        ReserveHandle { pull: self.clone(), id }
    }

    /// Hands back jobs that were delivered to a client that is gone.
    pub fn refuse(&self, jobs: Vec<ReservedLease>) {
        let _ = self.events.send(BrokerEvent::Refused(jobs));
    }

    /// The owner of owned leases.
    pub fn owner(&self) -> Option<Arc<Owner>> {
        self.owner.clone()
    }

    /// Notes that a lease of a topic was settled.
    pub fn settled(&self, topic: &TopicName) {
        let _ = self.events.send(BrokerEvent::Settled(topic.clone()));
    }

    /// Uses these topics from now on.
    pub fn serve(&self, topics: Topics) {
        let _ = self.events.send(BrokerEvent::Serve(topics));
    }

    /// Begins to drain: all clients get an answer as soon as possible, and new clients do not wait.
    pub fn drain(&self) {
        let _ = self.events.send(BrokerEvent::Drain);
    }

    /// Whether the file of the store was removed or replaced, so that this process must be started again.
    pub fn is_gone(&self) -> bool {
        self.is_gone.load(Ordering::Relaxed)
    }
}

/// The thread of the broker.
struct BrokerThread {
    store: StoreOpener,
    owner: Option<Arc<Owner>>,
    events: Sender<BrokerEvent>,
    lanes: Vec<Sender<LaneOrder>>,
    delivers: HashMap<u64, ReserveAnswerSender>,
    is_gone: Arc<AtomicBool>,
}

impl BrokerThread {
    fn run(mut self, received: &Receiver<BrokerEvent>, topics: Topics) {
        let lanes = self.store.lanes().clone();
        let (count, home_lanes) = (lanes.count(), lanes);
        let home_of = Box::new(move |name: &str| home_lanes.home_of(name));
        let mut now = Instant::now();
        let mut broker = Broker::new(count, topics, home_of, now);
        loop {
            // `next` leaves out times before its argument, so the argument is the time when the broker acted.
            let next = broker.next(now);
            let first = match next {
                None => received.recv().map_err(|_| RecvTimeoutError::Disconnected),
                Some(at) => received.recv_timeout(at.saturating_duration_since(Instant::now())),
            };
            match first {
                Ok(event) => self.take(event, &mut broker),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            while let Ok(event) = received.try_recv() {
                self.take(event, &mut broker);
            }
            now = Instant::now();
            broker.act(now);
            for (id, answer) in broker.take_answers() {
                self.deliver(id, answer, &mut broker);
            }
            for (lane, order) in broker.take_orders() {
                let _ = self.lanes[lane].send(order);
            }
        }
    }

    fn take(&mut self, event: BrokerEvent, broker: &mut Broker) {
        let now = Instant::now();
        match event {
            BrokerEvent::Reserve(id, reserve, deliver) => {
                if self.lanes.is_empty() {
                    self.start_lanes();
                }
                self.delivers.insert(id, deliver);
                broker.reserve(id, reserve, now);
            }
            BrokerEvent::Leave(id) => {
                self.delivers.remove(&id);
                broker.remove_client(id);
            }
            BrokerEvent::Refused(jobs) => self.refuse(jobs, broker),
            BrokerEvent::Settled(topic) => broker.settled(&topic),
            BrokerEvent::Serve(topics) => broker.serve(topics),
            BrokerEvent::Drain => broker.drain(now),
            BrokerEvent::Rang(lane, rings) => broker.note_ring(lane, rings),
            BrokerEvent::Leased(lane, answers) => {
                if matches!(answers, Err(StoreError::Gone(_))) {
                    self.is_gone.store(true, Ordering::Relaxed);
                }
                broker.leased(lane, answers, now);
            }
            BrokerEvent::Permitted(asks, permits) => broker.permitted(&asks, permits, now),
        }
    }

    /// Gives a client its answer. Jobs of a client that is gone are handed back.
    fn deliver(&mut self, id: u64, answer: ReserveAnswer, broker: &mut Broker) {
        let refused = match self.delivers.remove(&id) {
            Some(deliver) => deliver(answer).err(),
            None => Some(answer),
        };
        if let Some(Ok(jobs)) = refused {
            self.refuse(jobs, broker);
        }
    }

    fn refuse(&mut self, jobs: Vec<ReservedLease>, broker: &mut Broker) {
        let mut by_lane: HashMap<usize, Vec<ReservedLease>> = HashMap::new();
        for job in jobs {
            let lane = self.store.lanes().of_token(&job.leased.token).unwrap_or(0);
            by_lane.entry(lane).or_default().push(job);
        }
        by_lane.into_iter().for_each(|(lane, jobs)| broker.refuse(lane, jobs));
    }

    fn start_lanes(&mut self) {
        for number in 0..self.store.lanes().count() {
            let (orders, received) = channel();
            let lane = LaneThread {
                number,
                opener: self.store.clone(),
                store: None,
                permits_owner: OwnerTag(random_name().unwrap_or_default()),
                lease_owner: self.owner.clone(),
                secret: None,
                events: self.events.clone(),
            };
            let (opener, events) = (self.store.clone(), self.events.clone());
            let started = vital_thread("pull-lane", move || lane.run(&received))
                .and_then(|()| vital_thread("pull-bell", move || listen(&opener, number, &events)));
            if let Err(e) = started {
                log::error!("cannot start a thread for clients that reserve: {e}");
            }
            self.lanes.push(orders);
        }
    }
}

/// Listens to the bell of a lane.
fn listen(opener: &StoreOpener, lane: usize, events: &Sender<BrokerEvent>) {
    loop {
        let hung = random_name().and_then(|name| opener.bell(lane, BellKind::Pull, &name));
        let trouble = match hung {
            Err(e) => e,
            Ok(bell) => loop {
                let rang = wait_readable(&[bell.as_fd()], None).and_then(|_| bell.answer());
                match rang {
                    Ok(false) => {}
                    Ok(true) if events.send(BrokerEvent::Rang(lane, bell.rings())).is_ok() => {}
                    Ok(true) => return,
                    Err(e) => break e,
                }
            },
        };
        log::warn!("cannot listen to the bell for clients that reserve: {trouble}");
        std::thread::sleep(HANG_AGAIN);
        // Rings may have been lost in the meantime.
        if events.send(BrokerEvent::Rang(lane, vec![Ring::All])).is_err() {
            return;
        }
    }
}

/// The thread that asks one lane.
struct LaneThread {
    number: usize,
    opener: StoreOpener,
    store: Option<Box<dyn Store>>,
    /// The owner that requests for permits name. This owner has no leases.
    permits_owner: OwnerTag,
    /// The owner of owned leases.
    lease_owner: Option<Arc<Owner>>,
    /// The secret that signs tickets, and when it was read.
    secret: Option<(TicketSecret, Instant)>,
    events: Sender<BrokerEvent>,
}

impl LaneThread {
    fn run(mut self, received: &Receiver<LaneOrder>) {
        while let Ok(order) = received.recv() {
            let event = match order {
                LaneOrder::Lease { register, calls } => {
                    BrokerEvent::Leased(self.number, self.lease(&register, &calls))
                }
                LaneOrder::Permits(asks) => {
                    let owner = self.permits_owner.clone();
                    let permits = match self.open() {
                        Ok(()) => self.store().permits(&owner, &asks),
                        Err(e) => asks.iter().map(|_| Err(e.clone())).collect(),
                    };
                    BrokerEvent::Permitted(asks, permits)
                }
                LaneOrder::HandBack(settlements) => {
                    self.settle(
                        &settlements,
                        "hand back jobs that nobody took, so they come back at their deadlines",
                    );
                    continue;
                }
                LaneOrder::Name(settlements) => {
                    self.settle(&settlements, "note who has reserved jobs");
                    continue;
                }
            };
            if self.events.send(event).is_err() {
                return;
            }
        }
    }

    fn open(&mut self) -> Result<(), StoreError> {
        if self.store.is_none() {
            self.store = Some(self.opener.open_lane(self.number)?);
        }
        Ok(())
    }

    /// The store, which `open` has opened.
    fn store(&mut self) -> &mut dyn Store {
        self.store.as_mut().expect("it was opened").as_mut()
    }

    fn lease(
        &mut self,
        register: &[TopicName],
        calls: &[LeaseCall],
    ) -> Result<Vec<Result<LeaseAnswer, StoreError>>, StoreError> {
        self.open()?;
        if !register.is_empty() {
            self.store().ring_pull(register)?;
        }
        if !calls.is_empty() && self.secret.as_ref().is_none_or(|(_, read)| read.elapsed() >= SECRET_KEPT) {
            let number = self.number;
            self.secret = Some((self.store().secret(number)?, Instant::now()));
        }
        let mut answers = Vec::new();
        for call in calls {
            let answer = self.call(call);
            if let Err(e @ StoreError::Gone(_)) = answer {
                return Err(e);
            }
            answers.push(answer);
            if answers.last().is_some_and(Result::is_err) {
                break;
            }
        }
        Ok(answers)
    }

    fn call(&mut self, call: &LeaseCall) -> Result<LeaseAnswer, StoreError> {
        let owner = self.lease_owner.as_ref().filter(|_| call.is_owned);
        let owner = owner.map(|owner| OwnerTag(owner.tag().to_owned()));
        let (batch, expired) = checkout::lease_unexpired(self.store(), call, owner.as_ref())?;
        for (topic, _) in &batch.waiting {
            // A circuit of a pull topic is from the time when dq called a receiver for the topic. A pull topic has no
            // receiver to protect. If the circuit cannot be closed, the next call tries again.
            let is_wanted = call.wanted.iter().any(|want| want.topic == *topic);
            if let Some(Err(e)) = is_wanted.then(|| self.store().close_circuit(topic)) {
                log::debug!(topic = topic.as_str(); "an old circuit cannot be closed: {e}");
            }
        }
        let mut jobs = batch.jobs;
        checkout::remove(self.store(), &mut jobs, &call.removed);
        checkout::count(self.opener.counters(), &jobs, &call.removed);
        let Some((secret, _)) = &self.secret else { return Ok(LeaseAnswer::default()) };
        let limits: HashMap<&TopicName, u32> =
            call.wanted.iter().map(|want| (&want.topic, want.max_attempts)).collect();
        let began_ms = now_ms();
        let reserved = |leased: LeasedJob| {
            if call.removed.contains(&leased.key.topic) {
                return ReservedLease { leased, ticket: None };
            }
            let by_topic = limits.get(&leased.key.topic).copied().unwrap_or(u32::MAX);
            let ticket = Ticket {
                key: leased.key.clone(),
                token: leased.token.0.clone(),
                attempt: leased.attempt,
                limit: leased.max_attempts.unwrap_or(by_topic),
                began_ms,
                until_ms: Ticket::reserved(leased.headers.ttr()),
            };
            ReservedLease { ticket: Some(ticket.sign(secret)), leased }
        };
        Ok(LeaseAnswer { jobs: jobs.into_iter().map(reserved).collect(), left: batch.left, expired })
    }

    /// Settles leases. If this fails, the leases end at their deadlines.
    fn settle(&mut self, settlements: &[Settlement], what: &str) {
        let failed = match self.open() {
            Ok(()) => self.store().settle(settlements).into_iter().find_map(Result::err),
            Err(e) => Some(e),
        };
        if let Some(e) = failed {
            log::warn!("cannot {what}: {e}");
        }
    }
}
