//! One lane of the store, on a thread of its own, so that a node that hangs or is down holds up its own jobs alone: settles,
//! leases and hands back as the main loop orders, and tells it when its bell rings.

use std::io::{Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, Sender, TryRecvError};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};

use crate::excerpt::Excerpt;
use crate::job::{JobKey, TopicName};
use crate::process::wait_readable;
use crate::role::{self, lock};
use crate::store::{
    self, Batch, Bell, Opening, OwnerTag, Permit, PermitAsk, Ring, Settled, Settlement, Store, StoreError,
    TopicRing, Wanted,
};
use crate::ticket::Secret;

/// The most jobs that one lease or settlement takes, so that others have their turn at the store.
pub(super) const BATCH: usize = 256;

/// How long the secret is taken for what it was.
const SECRET_KEPT: Duration = Duration::from_secs(60);

/// How long one that could not be read is left alone.
const SECRET_AGAIN: Duration = Duration::from_secs(5);

/// What a lane is to do.
pub(super) enum Order {
    /// Settle these, then lease so many of those.
    Exchange { settle: Vec<Settlement>, wanted: Vec<Wanted>, limit: usize },
    /// Tell others of these topics; and leave the bell to them for a moment.
    PassOn { topics: Vec<TopicName>, rest: bool },
    /// Give rings back that are for others.
    GiveBack(Vec<TopicRing>),
    /// Whether to listen to the bell; or none any more.
    Listen(bool),
    /// Take the bell down.
    Deaf,
    /// Hand back all that is still held.
    HandBack,
    /// Ask for permits of topics whose home it is.
    Permits(Vec<PermitAsk>),
    /// Have a topic's jobs wait.
    Open(Opening),
    /// Have a topic's jobs wait no longer.
    Close(TopicName),
}

/// What a lane tells.
pub(super) enum News {
    /// There may be work.
    Rang(Vec<Ring>),
    /// Rings that could not be given back.
    Kept(Vec<TopicRing>),
    /// What came of an exchange: what is to be settled again, what was leased, and what went wrong.
    Exchanged {
        unsettled: Vec<Settlement>,
        batch: Batch,
        failed: Option<StoreError>,
    },
    /// What tickets for its leases are signed with.
    Secret(Secret),
    /// The bell is taken down.
    Deaf,
    /// All is handed back, or is not, which the timers mend.
    HandedBack(Result<usize, StoreError>),
    /// What was asked, and what is granted.
    Permitted {
        asks: Vec<PermitAsk>,
        permits: Vec<Result<Permit, StoreError>>,
    },
    /// A topic's circuit was opened, or closed; and whether it was the other before.
    Opened {
        opening: Opening,
        is_news: Result<bool, StoreError>,
    },
    Closed {
        topic: TopicName,
        is_news: Result<bool, StoreError>,
    },
    /// It cannot go on.
    Ended(anyhow::Error),
}

/// Where lanes tell, and what wakes the main loop then.
pub(super) struct Inbox {
    news: Mutex<Vec<(usize, News)>>,
    tell: UnixStream,
}

impl Inbox {
    pub(super) fn new() -> Result<(Arc<Inbox>, UnixStream)> {
        let (told, tell) = UnixStream::pair()?;
        told.set_nonblocking(true)?;
        tell.set_nonblocking(true)?;
        Ok((Arc::new(Inbox { news: Mutex::default(), tell }), told))
    }

    fn put(&self, lane: usize, news: News) {
        lock(&self.news).push((lane, news));
        // What fills it wakes as well.
        let _ = (&self.tell).write(&[1]);
    }

    /// All news since the last call.
    pub(super) fn take(&self) -> Vec<(usize, News)> {
        std::mem::take(&mut *lock(&self.news))
    }
}

/// The main loop's side of a lane.
pub(super) struct Lane {
    orders: Sender<Order>,
    tell: UnixStream,
}

impl Lane {
    /// Starts a lane's thread.
    pub(super) fn start(
        number: usize,
        store: Box<dyn Store>,
        bell: Box<dyn Bell>,
        owner: OwnerTag,
        inbox: &Arc<Inbox>,
    ) -> Result<Lane> {
        let (told, tell) = UnixStream::pair()?;
        told.set_nonblocking(true)?;
        tell.set_nonblocking(true)?;
        let (orders, received) = std::sync::mpsc::channel();
        let inbox = Arc::clone(inbox);
        let worker = Worker {
            number,
            store,
            bell: Some(bell),
            owner,
            orders: received,
            told,
            inbox,
            listens: true,
            secret_read: None,
        };
        role::vital_thread("lane", move || worker.run())?;
        Ok(Lane { orders, tell })
    }

    pub(super) fn order(&self, order: Order) {
        // One that has ended has told so.
        let _ = self.orders.send(order);
        let _ = (&self.tell).write(&[1]);
    }
}

struct Worker {
    number: usize,
    store: Box<dyn Store>,
    bell: Option<Box<dyn Bell>>,
    owner: OwnerTag,
    orders: Receiver<Order>,
    told: UnixStream,
    inbox: Arc<Inbox>,
    listens: bool,
    /// When the secret was last read.
    secret_read: Option<Instant>,
}

impl Worker {
    fn run(mut self) {
        if let Err(e) = self.work() {
            self.inbox.put(self.number, News::Ended(e));
        }
    }

    /// Until the main loop is gone.
    fn work(&mut self) -> Result<()> {
        loop {
            match self.orders.try_recv() {
                Ok(order) => self.obey(order),
                Err(TryRecvError::Disconnected) => return Ok(()),
                Err(TryRecvError::Empty) => self.wait()?,
            }
        }
    }

    fn wait(&mut self) -> Result<()> {
        // One that nobody listens to is left to ring; but for what was told to this process alone just before.
        let bell = self.bell.as_ref().filter(|bell| self.listens || bell.loses_rings());
        let fds: Vec<BorrowedFd<'_>> =
            std::iter::once(self.told.as_fd()).chain(bell.map(|bell| bell.as_fd())).collect();
        let readable = wait_readable(&fds, None)?;
        if readable[0] {
            let mut buffer = [0; 64];
            while let Ok(n) = (&self.told).read(&mut buffer)
                && n == buffer.len()
            {}
        }
        if let Some(bell) = bell
            && readable[1]
            && bell.answer().context("cannot answer the bell")?
        {
            let rings = bell.rings();
            if !rings.is_empty() {
                self.inbox.put(self.number, News::Rang(rings));
            }
        }
        Ok(())
    }

    fn obey(&mut self, order: Order) {
        match order {
            Order::Exchange { settle, wanted, limit } => {
                if limit > 0 {
                    self.read_secret();
                }
                let exchanged = self.exchange(settle, &wanted, limit);
                self.inbox.put(self.number, exchanged);
            }
            Order::PassOn { topics, rest } => {
                if let Some(bell) = self.bell.as_ref().filter(|_| rest) {
                    bell.rest();
                }
                if !topics.is_empty() {
                    self.store.pass_on(&topics);
                }
            }
            Order::GiveBack(rings) => {
                if let Err(e) = self.store.give_back(&rings) {
                    log::debug!("cannot give rings back: {e}");
                    self.inbox.put(self.number, News::Kept(rings));
                }
            }
            Order::Listen(listens) => {
                self.listens = listens;
                if let Some(bell) = &self.bell {
                    bell.listen(listens);
                }
            }
            Order::Deaf => {
                if let Some(bell) = self.bell.take() {
                    store::unhang(bell, self.store.as_mut());
                }
                self.inbox.put(self.number, News::Deaf);
            }
            Order::HandBack => {
                let handed_back = self.store.hand_back(&self.owner);
                self.inbox.put(self.number, News::HandedBack(handed_back));
            }
            Order::Permits(asks) => {
                let permits = self.store.permits(&self.owner, &asks);
                self.inbox.put(self.number, News::Permitted { asks, permits });
            }
            Order::Open(opening) => {
                let is_news = self.store.open_circuit(&opening);
                self.inbox.put(self.number, News::Opened { opening, is_news });
            }
            Order::Close(topic) => {
                let is_news = self.store.close_circuit(&topic);
                self.inbox.put(self.number, News::Closed { topic, is_news });
            }
        }
    }

    /// Tells the secret before what may need it, and now and then anew: a node may have lost it with all that it had.
    fn read_secret(&mut self) {
        if self.secret_read.is_some_and(|at| at.elapsed() < SECRET_KEPT) {
            return;
        }
        match self.store.secret(self.number) {
            Ok(secret) => {
                self.secret_read = Some(Instant::now());
                self.inbox.put(self.number, News::Secret(secret));
            }
            // What is leased meanwhile cannot be answered later. It is tried again in a while, and not with each lease.
            Err(e) => {
                self.secret_read = Instant::now().checked_sub(SECRET_KEPT - SECRET_AGAIN);
                log::debug!("cannot read the secret of tickets: {e}");
            }
        }
    }

    fn exchange(&mut self, settle: Vec<Settlement>, wanted: &[Wanted], limit: usize) -> News {
        let (settled, leased) = match limit {
            0 => (self.store.settle(&settle), Ok(Batch::default())),
            _ => self.store.exchange(&settle, wanted, limit, Some(&self.owner)),
        };
        let (batch, mut failed) = match leased {
            Ok(batch) => (batch, None),
            Err(e) => (Batch::default(), Some(e)),
        };
        let mut unsettled = Vec::new();
        for (settlement, settled) in settle.into_iter().zip(settled) {
            match settled {
                Ok(Settled::Done) => {}
                Ok(Settled::Stale) => {
                    let JobKey { topic, id } = &settlement.key;
                    log::info!(
                        "{topic}:{}: deleted, replaced or taken back while it was delivered",
                        Excerpt(id)
                    );
                }
                Err(e) => {
                    unsettled.push(settlement);
                    failed = Some(e);
                }
            }
        }
        News::Exchanged { unsettled, batch, failed }
    }
}
