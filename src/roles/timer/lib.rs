//! dq-timer: promotes due jobs to ready, expires leases, and hands back the leases of processes that died.
//!
//! One timer of a `run_dir` is active: the timer that holds the leader lock. The other timers stand by, and one of them
//! takes over as soon as the lock is free. Each lane of the store has a [`LaneWorker`](lane_worker), and a thread that
//! adds the jobs of the lane's `outbox`. The main loop watches the owners of leases, and the workers.
//!
//! A timer never makes a callback. Begin with [`run`], then `lane_worker`.

mod lane_worker;
mod leader_lock;
mod outbox;
mod spool;
mod upkeep;

use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};

use self::lane_worker::{LaneWorker, LaneWorkerHandle, SharedDeadOwner};
use self::leader_lock::LeaderLock;
use self::outbox::OutboxContext;
use self::upkeep::KnownTopics;
use host::{Owners, random_name};
use model::job::TopicName;
use model::topic::{CatchUp, Topic, Topics};
use role::{self, Context, RegistryView, TroubleLog};
use store::{BellKind, OwnerTag, Store, StoreError};

/// How long maintenance waits before it tries again, after a node was down.
const NODE_AWAY: Duration = Duration::from_secs(1);

/// The longest sleep of the main loop, which only watches the workers.
const LONGEST_SLEEP: Duration = Duration::from_secs(60);

/// How long the process waits at its end for steps that have begun. A step that is still running after that does no
/// harm, because it is done completely or not at all. The master kills a timer two seconds after `drain_timeout`.
const LAST_STEPS: Duration = Duration::from_millis(1500);

/// Runs the role.
pub fn run(mut context: Context) -> Result<()> {
    // The store is opened before this timer stands by, so that the timer can take over at once.
    let store = context.store_without_spool()?;
    let topics = context.topics()?;
    let duty = LeaderLock::await_in(&context.settings.run_dir).context("cannot stand by")?;
    context.ready()?;
    while context.drain().is_none() {
        if context.wait(&[duty.as_fd()], None)?[0] {
            log::info!("this timer is now the active one");
            let upkeep = upkeep::start(store, context.settings.records_max)?;
            return Timer::start(&mut context, topics, upkeep)?.run(&mut context);
        }
    }
    Ok(())
}

fn known_topics(topics: &RegistryView) -> KnownTopics {
    KnownTopics { topics: topics.now().clone(), origin: topics.origin() }
}

/// Returns all topics. None: the topics of the registry are not known yet.
fn whole(topics: &RegistryView) -> Option<Topics> {
    topics.is_whole().then(|| topics.now().clone())
}

/// What the main loop knows of the lane workers.
struct Timer {
    owners: Owners,
    workers: Vec<LaneWorkerHandle>,
    /// Why a lane worker has ended, and the socket that then wakes the main loop.
    failed: Receiver<anyhow::Error>,
    woken: UnixStream,
    topics: RegistryView,
    /// Sends the topics to the upkeep thread when they change.
    upkeep: Sender<KnownTopics>,
    /// The topics with `catch_up` set to a span, shared with the lane workers.
    spread: Arc<Mutex<Vec<(TopicName, Duration)>>>,
    /// The topics, shared with the threads that add the jobs of the outboxes. None: not all topics are known yet.
    known: Arc<Mutex<Option<Topics>>>,
    /// Whether the threads that add the jobs of the outboxes empty the outboxes before they end.
    adds_rest: Arc<AtomicBool>,
    /// Disconnected when all threads that add the jobs of the outboxes have ended.
    outboxes: Receiver<()>,
    /// While this value exists, the thread that sends the host's spool runs. `None`: the store has no spool.
    _spool: Option<Sender<()>>,
}

impl Timer {
    fn start(context: &mut Context, mut topics: RegistryView, upkeep: Sender<KnownTopics>) -> Result<Timer> {
        // The topics may have changed while this timer stood by.
        topics.reload();
        let _ = upkeep.send(known_topics(&topics));
        let run_dir = &context.settings.run_dir.clone();
        let (woken, wake) = UnixStream::pair()?;
        let (fail, failed) = channel();
        let spread = Arc::new(Mutex::new(spread_of(topics.now())));
        let (known, adds_rest) = (Arc::new(Mutex::new(whole(&topics))), Arc::default());
        let (alive, outboxes) = channel();
        let outbox = OutboxContext { topics: Arc::clone(&known), adds_rest: Arc::clone(&adds_rest), alive };
        let mut workers = Vec::new();
        for lane in 0..context.lanes()?.count() {
            let bell = context.bell(lane, BellKind::Timer, &random_name()?)?;
            let maintenance = maintain(context.lane(lane)?)?;
            let followers = outbox::start(context.lane(lane)?, outbox.clone())?;
            let (worker, handle) =
                LaneWorker::new(context.lane(lane)?, bell, maintenance, followers, Arc::clone(&spread))?;
            let (fail, wake) = (fail.clone(), wake.try_clone()?);
            role::vital_thread("tender", move || {
                if let Err(e) = worker.tend() {
                    let _ = fail.send(e);
                }
                drop(wake.shutdown(Shutdown::Both));
            })?;
            workers.push(handle);
        }
        let owners = Owners::watch(run_dir).context("cannot watch the owners of leases")?;
        let spool = spool::start(&context.settings.store)?;
        Ok(Timer {
            owners,
            workers,
            failed,
            woken,
            topics,
            upkeep,
            spread,
            known,
            adds_rest,
            outboxes,
            _spool: spool,
        })
    }

    fn run(&mut self, context: &mut Context) -> Result<()> {
        while context.drain().is_none() {
            self.hand_back_leases_of_dead_owners()?;
            context.workers_by(self.workers.iter().filter_map(LaneWorkerHandle::due_by).min());
            let fds: Vec<BorrowedFd<'_>> = std::iter::once(self.woken.as_fd())
                .chain(self.owners.fds())
                .chain(self.topics.fd())
                .collect();
            context.wait(&fds, Some(Instant::now() + LONGEST_SLEEP))?;
            let origin = self.topics.origin();
            let has_changed = self.topics.reload().is_some();
            if has_changed || self.topics.origin() != origin {
                let topics = self.topics.now();
                let _ = self.upkeep.send(known_topics(&self.topics));
                *role::lock(&self.spread) = spread_of(topics);
                *role::lock(&self.known) = whole(&self.topics);
            }
            if let Ok(e) = self.failed.try_recv() {
                return Err(e);
            }
        }
        // If no timer of a new generation waits for the lock, this one does what is left: it hands back the leases of
        // processes that have just died, and empties the outboxes.
        let is_last = !context.drain().is_some_and(|drain| drain.replaced);
        if is_last {
            self.hand_back_leases_of_dead_owners()?;
        }
        self.adds_rest.store(is_last, Ordering::Relaxed);
        let end_by = Instant::now() + LAST_STEPS;
        // When their handles are dropped, the workers end and remove their bells. Then the threads of the outboxes end.
        self.workers.clear();
        let mut ended = match self.failed.recv_timeout(LAST_STEPS) {
            Ok(e) => return Err(e),
            Err(ended) => ended,
        };
        if is_last && ended == RecvTimeoutError::Disconnected {
            let rest = self.outboxes.recv_timeout(end_by.saturating_duration_since(Instant::now()));
            ended = rest.err().unwrap_or(ended);
        }
        if ended == RecvTimeoutError::Timeout {
            log::warn!("a thread of a lane has not finished its last step: it is interrupted");
        }
        Ok(())
    }

    /// Makes the workers hand back the leases of processes that have died.
    fn hand_back_leases_of_dead_owners(&mut self) -> Result<()> {
        for owner in self.owners.dead().context("cannot look at the owners of leases")? {
            let tag = OwnerTag(owner.tag.clone());
            let dead = SharedDeadOwner::new(Mutex::new(Some(owner)));
            // Each worker gets a reference to the dead owner, and this loop keeps none. The worker that drops the last
            // reference removes the owner's file.
            for (worker, dead) in self.workers.iter().zip(std::iter::repeat_n(dead, self.workers.len())) {
                worker.hand_back(tag.clone(), dead);
            }
        }
        Ok(())
    }
}

/// Returns the topics whose jobs are spread after an outage, each with the time over which they are spread.
fn spread_of(topics: &Topics) -> Vec<(TopicName, Duration)> {
    let span = |topic: &Topic| match topic.catch_up {
        CatchUp::Spread(span) => Some((topic.name.clone(), span)),
        CatchUp::All | CatchUp::Skip(_) => None,
    };
    topics.iter().filter_map(|topic| span(topic)).collect()
}

/// Starts a thread for the maintenance of a lane's store, which may take long. The thread works when it is woken, and
/// after the time that the store asked for.
fn maintain(mut store: Box<dyn Store>) -> Result<SyncSender<()>> {
    let (wake_sender, wake_receiver) = sync_channel(1);
    let work = move || {
        let mut trouble = TroubleLog::default();
        // The first round runs at the start, because no bell rang for work that was there before.
        loop {
            let received = match store.maintain() {
                Ok(again) => {
                    trouble.end();
                    match again {
                        Some(again) => wake_receiver.recv_timeout(again),
                        None => wake_receiver.recv().map_err(RecvTimeoutError::from),
                    }
                }
                // Other code reports a node that is down.
                Err(StoreError::NodeDown(e)) => {
                    log::debug!("cannot maintain the store: {e}");
                    wake_receiver.recv_timeout(NODE_AWAY)
                }
                Err(e) => wake_receiver
                    .recv_timeout(trouble.pause_after(&format_args!("cannot maintain the store: {e}"))),
            };
            if received == Err(RecvTimeoutError::Disconnected) {
                return;
            }
        }
    };
    role::vital_thread("maintenance", work)?;
    Ok(wake_sender)
}
