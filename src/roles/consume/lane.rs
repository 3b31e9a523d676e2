//! One lane of the store. Each lane has its own thread, so that a node that hangs or is down delays only its own jobs.
//! The thread settles, leases and hands back when the main loop orders this. It reports when the lane's bell rings.

use std::io::{Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, Sender, TryRecvError};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};

use host::wait_readable;
use model::job::{JobKey, TopicName};
use model::ticket::TicketSecret;
use role::{self, lock};
use store::{
    self, Bell, CircuitOpening, LeaseRequest, LeaseResult, OwnerTag, Permit, PermitRequest, Ring, Settled,
    Settlement, Store, StoreError, TopicRing,
};

/// The maximum number of jobs that one call leases, and the maximum number that it settles. Because of this limit,
/// other processes can use the store in between.
pub(super) const BATCH: usize = 256;

/// How long the ticket secret of the lane is used before it is read again.
const SECRET_KEPT: Duration = Duration::from_secs(60);

/// The pause after a failure, before the secret is read again.
const SECRET_AGAIN: Duration = Duration::from_secs(5);

/// An order of the main loop to a lane.
#[derive(Debug)]
pub(super) enum LaneOrder {
    /// Settle these outcomes, then lease up to `limit` jobs of these topics.
    Exchange { settle: Vec<Settlement>, wanted: Vec<LeaseRequest>, limit: usize },
    /// Tell other processes that these topics have ready jobs. `rest`: also stop listening to the bell for a moment.
    PassOn { topics: Vec<TopicName>, rest: bool },
    /// Give back rings that are for other processes.
    GiveBack(Vec<TopicRing>),
    /// Listen to the bell, or stop listening to it.
    Listen(bool),
    /// Take the bell down.
    Deaf,
    /// Hand back all leases that this process still has.
    HandBack,
    /// Ask for permits of topics and hosts that have their home on this lane.
    Permits(Vec<PermitRequest>),
    /// Open the circuit of a topic: its jobs wait.
    Open(CircuitOpening),
    /// Close the circuit of a topic: its jobs wait no longer.
    Close(TopicName),
}

/// What a lane reports to the dispatcher.
#[derive(Debug)]
pub(super) enum LaneEvent {
    /// The bell rang: there may be work.
    Rang(Vec<Ring>),
    /// Rings that could not be given back.
    Kept(Vec<TopicRing>),
    /// The answer of the store to an exchange.
    Exchanged(ExchangeAnswer),
    /// The bell has been taken down.
    Deaf,
    /// The questions for permits, and the answers to them.
    Permitted {
        asks: Vec<PermitRequest>,
        permits: Vec<Result<Permit, StoreError>>,
    },
    /// A topic's circuit was opened (`Opened`) or closed (`Closed`). `is_news`: whether the circuit was in another
    /// state before.
    Opened {
        opening: CircuitOpening,
        is_news: Result<bool, StoreError>,
    },
    Closed {
        topic: TopicName,
        is_news: Result<bool, StoreError>,
    },
}

/// The answer of the store to an exchange.
#[derive(Debug, Default)]
pub(super) struct ExchangeAnswer {
    /// The settlements that the store did not take. They must be tried again.
    pub unsettled: Vec<Settlement>,
    /// Why the store did not take them. None: it has taken all settlements.
    pub not_settled: Option<StoreError>,
    /// The jobs that were leased.
    pub batch: LeaseResult,
    /// Why the lease failed.
    pub failed: Option<StoreError>,
    /// Whether some lease calls got no answer, and their leases are not taken back yet.
    pub unanswered: bool,
}

/// What a lane reports to the main loop.
pub(super) enum LaneReport {
    /// An event that the dispatcher decides on.
    Event(LaneEvent),
    /// The secret that signs the tickets of the lane's leases.
    Secret(TicketSecret),
    /// All leases were handed back. If there was an error, the timers hand them back later.
    HandedBack(Result<usize, StoreError>),
    /// The lane cannot continue.
    Ended(anyhow::Error),
}

/// The queue of lane events, and the socket that wakes the main loop.
pub(super) struct Inbox {
    news: Mutex<Vec<(usize, LaneReport)>>,
    wake_writer: UnixStream,
}

impl Inbox {
    pub(super) fn new() -> Result<(Arc<Inbox>, UnixStream)> {
        let (wake_reader, wake_writer) = UnixStream::pair()?;
        wake_reader.set_nonblocking(true)?;
        wake_writer.set_nonblocking(true)?;
        Ok((Arc::new(Inbox { news: Mutex::default(), wake_writer }), wake_reader))
    }

    fn put(&self, lane: usize, news: LaneReport) {
        lock(&self.news).push((lane, news));
        // If the socket is full, this write fails. The bytes in the socket wake the main loop.
        let _ = (&self.wake_writer).write(&[1]);
    }

    /// Returns all events since the last call.
    pub(super) fn take(&self) -> Vec<(usize, LaneReport)> {
        std::mem::take(&mut *lock(&self.news))
    }
}

/// The main loop's side of a lane.
pub(super) struct LaneHandle {
    orders: Sender<LaneOrder>,
    wake_writer: UnixStream,
}

impl LaneHandle {
    /// Starts a lane's thread.
    pub(super) fn start(
        number: usize,
        store: Box<dyn Store>,
        bell: Box<dyn Bell>,
        owner: OwnerTag,
        inbox: &Arc<Inbox>,
    ) -> Result<LaneHandle> {
        let (wake_reader, wake_writer) = UnixStream::pair()?;
        wake_reader.set_nonblocking(true)?;
        wake_writer.set_nonblocking(true)?;
        let (orders, received) = std::sync::mpsc::channel();
        let inbox = Arc::clone(inbox);
        let worker = LaneWorker {
            number,
            store,
            bell: Some(bell),
            owner,
            orders: received,
            wake_reader,
            inbox,
            listens: true,
            secret_read: None,
        };
        role::vital_thread("lane", move || worker.run())?;
        Ok(LaneHandle { orders, wake_writer })
    }

    pub(super) fn order(&self, order: LaneOrder) {
        // If the thread has ended, it has reported that with `LaneReport::Ended`.
        let _ = self.orders.send(order);
        let _ = (&self.wake_writer).write(&[1]);
    }
}

/// The thread of one lane. It settles, leases and listens as the main loop orders.
struct LaneWorker {
    number: usize,
    store: Box<dyn Store>,
    bell: Option<Box<dyn Bell>>,
    owner: OwnerTag,
    orders: Receiver<LaneOrder>,
    wake_reader: UnixStream,
    inbox: Arc<Inbox>,
    listens: bool,
    /// When the secret was last read.
    secret_read: Option<Instant>,
}

impl LaneWorker {
    fn run(mut self) {
        if let Err(e) = self.work() {
            self.inbox.put(self.number, LaneReport::Ended(e));
        }
    }

    fn report(&self, event: LaneEvent) {
        self.inbox.put(self.number, LaneReport::Event(event));
    }

    /// Works until the main loop is gone.
    fn work(&mut self) -> Result<()> {
        loop {
            match self.orders.try_recv() {
                Ok(order) => self.carry_out(order),
                Err(TryRecvError::Disconnected) => return Ok(()),
                Err(TryRecvError::Empty) => self.wait()?,
            }
        }
    }

    fn wait(&mut self) -> Result<()> {
        // A lane that does not listen does not have to wait for its bell. There is one exception: a bell whose rings
        // are lost if nobody acts on them (`loses_rings`). Such a bell may have rung for this process alone, just
        // before the lane stopped listening. Nobody else would hear that ring.
        let bell = self.bell.as_ref().filter(|bell| self.listens || bell.loses_rings());
        let fds: Vec<BorrowedFd<'_>> =
            std::iter::once(self.wake_reader.as_fd()).chain(bell.map(|bell| bell.as_fd())).collect();
        let readable = wait_readable(&fds, None)?;
        if readable[0] {
            let mut buffer = [0; 64];
            while let Ok(n) = (&self.wake_reader).read(&mut buffer)
                && n == buffer.len()
            {}
        }
        if let Some(bell) = bell
            && readable[1]
            && bell.answer().context("cannot answer the bell")?
        {
            let rings = bell.rings();
            if !rings.is_empty() {
                self.report(LaneEvent::Rang(rings));
            }
        }
        Ok(())
    }

    fn carry_out(&mut self, order: LaneOrder) {
        match order {
            LaneOrder::Exchange { settle, wanted, limit } => {
                if limit > 0 {
                    self.read_secret();
                }
                let answer = self.exchange(settle, &wanted, limit);
                self.report(LaneEvent::Exchanged(answer));
            }
            LaneOrder::PassOn { topics, rest } => {
                if let Some(bell) = self.bell.as_ref().filter(|_| rest) {
                    bell.rest();
                }
                if !topics.is_empty() {
                    self.store.pass_on(&topics);
                }
            }
            LaneOrder::GiveBack(rings) => {
                if let Err(e) = self.store.give_back(&rings) {
                    log::debug!("cannot give rings back: {e}");
                    self.report(LaneEvent::Kept(rings));
                }
            }
            LaneOrder::Listen(listens) => {
                self.listens = listens;
                if let Some(bell) = &self.bell {
                    bell.listen(listens);
                }
            }
            LaneOrder::Deaf => {
                if let Some(bell) = self.bell.take() {
                    store::unhang(bell, self.store.as_mut());
                }
                self.report(LaneEvent::Deaf);
            }
            LaneOrder::HandBack => {
                let handed_back = self.store.hand_back(&self.owner);
                self.inbox.put(self.number, LaneReport::HandedBack(handed_back));
            }
            LaneOrder::Permits(asks) => {
                let permits = self.store.permits(&self.owner, &asks);
                self.report(LaneEvent::Permitted { asks, permits });
            }
            LaneOrder::Open(opening) => {
                let is_news = self.store.open_circuit(&opening);
                self.report(LaneEvent::Opened { opening, is_news });
            }
            LaneOrder::Close(topic) => {
                let is_news = self.store.close_circuit(&topic);
                self.report(LaneEvent::Closed { topic, is_news });
            }
        }
    }

    /// Reports the ticket secret before a lease, because the leased jobs may need it. Reads the secret again from time
    /// to time, because a node that lost its data has a new secret.
    fn read_secret(&mut self) {
        if self.secret_read.is_some_and(|at| at.elapsed() < SECRET_KEPT) {
            return;
        }
        match self.store.secret(self.number) {
            Ok(secret) => {
                self.secret_read = Some(Instant::now());
                self.inbox.put(self.number, LaneReport::Secret(secret));
            }
            // Until the secret is known, receivers cannot answer later. The secret is read again after a while, and not
            // with each lease.
            Err(e) => {
                self.secret_read = Instant::now().checked_sub(SECRET_KEPT - SECRET_AGAIN);
                log::debug!("cannot read the secret of tickets: {e}");
            }
        }
    }

    fn exchange(&mut self, settle: Vec<Settlement>, wanted: &[LeaseRequest], limit: usize) -> ExchangeAnswer {
        let (settled, leased) = match limit {
            0 => (self.store.settle(&settle), Ok(LeaseResult::default())),
            _ => self.store.exchange(&settle, wanted, limit, Some(&self.owner)),
        };
        let (batch, failed) = match leased {
            Ok(batch) => (batch, None),
            Err(e) => (LeaseResult::default(), Some(e)),
        };
        let (mut unsettled, mut not_settled) = (Vec::new(), None);
        for (settlement, settled) in settle.into_iter().zip(settled) {
            match settled {
                Ok(Settled::Done) => {}
                Ok(Settled::Stale) => {
                    let JobKey { topic, id } = &settlement.key;
                    log::info!(
                        topic = topic.as_str(), id = id.as_str();
                        "was deleted, replaced or taken back while it was delivered"
                    );
                }
                Err(e) => {
                    unsettled.push(settlement);
                    not_settled = Some(e);
                }
            }
        }
        let taken_back = self.store.take_back_unanswered();
        if let Err(e) = &taken_back {
            log::debug!("cannot take back leases without an answer: {e}");
        }
        ExchangeAnswer { unsettled, not_settled, batch, failed, unanswered: taken_back.is_err() }
    }
}
