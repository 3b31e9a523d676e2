//! dq-timer: moves due jobs to ready, ends leases that ran out, hands back the leases of processes that died.
//!
//! With the embedded store one timer of a `run_dir` is active: the one that holds a lock. The others stand by, and one
//! of them is active as soon as it is gone. Each lane of the store has a tender (`tender`); the main loop watches the owners of
//! leases, and the tenders.

mod tender;
mod turn_of_duty;
mod upkeep;

use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};

use self::tender::{Dead, Handle, Tender};
use self::turn_of_duty::TurnOfDuty;
use crate::job::TopicName;
use crate::process::{Owners, random_name};
use crate::role::{self, Context, LiveTopics, Trouble};
use crate::store::{BellKind, OwnerTag, Store, StoreError};
use crate::topic::{CatchUp, Topic, Topics};

/// How long housekeeping waits for a node that is down.
const NODE_AWAY: Duration = Duration::from_secs(1);

/// The longest sleep of the main loop, which only watches the others.
const LONGEST_SLEEP: Duration = Duration::from_secs(60);

/// How long the end waits for steps that were begun. One that is broken off has been done or not, as a whole.
const LAST_STEPS: Duration = Duration::from_secs(2);

/// Runs the role.
pub fn run(mut context: Context) -> Result<()> {
    // Opened before it stands by, so that it can take over at once.
    let store = context.store()?;
    let duty = TurnOfDuty::await_in(&context.settings.run_dir).context("cannot stand by")?;
    context.ready()?;
    while context.drain().is_none() {
        if context.wait(&[duty.as_fd()], None)?[0] {
            log::info!("active");
            let told = upkeep::start(store)?;
            return Timer::start(&mut context, told)?.run(&mut context);
        }
    }
    Ok(())
}

/// What the main loop knows of the tenders.
struct Timer {
    owners: Owners,
    tenders: Vec<Handle>,
    /// Why a tender has ended, and what wakes the main loop then.
    failed: Receiver<anyhow::Error>,
    woken: UnixStream,
    topics: LiveTopics,
    /// Told of them when they change.
    told: Sender<Topics>,
    /// What the tenders know of them.
    spread: Arc<Mutex<Vec<(TopicName, Duration)>>>,
}

impl Timer {
    fn start(context: &mut Context, told: Sender<Topics>) -> Result<Timer> {
        let topics = context.topics()?;
        let _ = told.send(topics.now().clone());
        let run_dir = &context.settings.run_dir.clone();
        let (woken, wake) = UnixStream::pair()?;
        let (fail, failed) = channel();
        let spread = Arc::new(Mutex::new(spread_of(topics.now())));
        let mut tenders = Vec::new();
        for lane in 0..context.lanes()?.count() {
            let bell = context.bell(lane, BellKind::Timer, &random_name()?)?;
            let maintenance = maintain(context.lane(lane)?)?;
            let (tender, handle) = Tender::new(context.lane(lane)?, bell, maintenance, Arc::clone(&spread))?;
            let (fail, wake) = (fail.clone(), wake.try_clone()?);
            role::vital_thread("tender", move || {
                if let Err(e) = tender.tend() {
                    let _ = fail.send(e);
                }
                drop(wake.shutdown(Shutdown::Both));
            })?;
            tenders.push(handle);
        }
        let owners = Owners::watch(run_dir).context("cannot watch the owners of leases")?;
        Ok(Timer { owners, tenders, failed, woken, topics, told, spread })
    }

    fn run(&mut self, context: &mut Context) -> Result<()> {
        while context.drain().is_none() {
            for owner in self.owners.dead().context("cannot look at the owners of leases")? {
                let tag = OwnerTag(owner.tag.clone());
                let dead = Dead::new(Mutex::new(Some(owner)));
                // The last of them gets the last one there is: whoever is through with it last, forgets the owner.
                for (tender, dead) in self.tenders.iter().zip(std::iter::repeat_n(dead, self.tenders.len())) {
                    tender.hand_back(tag.clone(), dead);
                }
            }
            context.workers_by(self.tenders.iter().filter_map(Handle::due_by).min());
            let fds: Vec<BorrowedFd<'_>> = std::iter::once(self.woken.as_fd())
                .chain(self.owners.fds())
                .chain(self.topics.fd())
                .collect();
            context.wait(&fds, Some(Instant::now() + LONGEST_SLEEP))?;
            if let Some(topics) = self.topics.look() {
                let _ = self.told.send(topics.clone());
                *role::lock(&self.spread) = spread_of(topics);
            }
            if let Ok(e) = self.failed.try_recv() {
                return Err(e);
            }
        }
        // They end when nobody tells them anything any more, and take their bells down.
        self.tenders.clear();
        match self.failed.recv_timeout(LAST_STEPS) {
            Ok(e) => Err(e),
            Err(RecvTimeoutError::Disconnected) => Ok(()),
            Err(RecvTimeoutError::Timeout) => {
                log::warn!("a tender is still at its last step: it is broken off");
                Ok(())
            }
        }
    }
}

/// The topics whose jobs are spread that were forgotten in an outage, and over how long.
fn spread_of(topics: &Topics) -> Vec<(TopicName, Duration)> {
    let span = |topic: &Topic| match topic.catch_up {
        CatchUp::Spread(span) => Some((topic.name.clone(), span)),
        CatchUp::All | CatchUp::Skip(_) => None,
    };
    topics.iter().filter_map(|topic| span(topic)).collect()
}

/// A thread that does the own housekeeping of a lane, which may take long, when it is told and when it said it would.
fn maintain(mut store: Box<dyn Store>) -> Result<SyncSender<()>> {
    let (told, tell) = sync_channel(1);
    let work = move || {
        let mut trouble = Trouble::default();
        // Once at the start: what was there before has rung for nobody.
        loop {
            let told = match store.maintain() {
                Ok(again) => {
                    trouble.over();
                    match again {
                        Some(again) => tell.recv_timeout(again),
                        None => tell.recv().map_err(RecvTimeoutError::from),
                    }
                }
                // Of a node that is down others say so.
                Err(StoreError::NodeDown(e)) => {
                    log::debug!("cannot maintain the store: {e}");
                    tell.recv_timeout(NODE_AWAY)
                }
                Err(e) => {
                    let again = trouble.again_at(&format_args!("cannot maintain the store: {e}"));
                    tell.recv_timeout(again.saturating_duration_since(Instant::now()))
                }
            };
            if told == Err(RecvTimeoutError::Disconnected) {
                return;
            }
        }
    };
    role::vital_thread("maintenance", work)?;
    Ok(told)
}
