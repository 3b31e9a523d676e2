//! dq-timer: moves due jobs to ready, ends leases that ran out, hands back the leases of processes that died.
//!
//! With the embedded store one timer of a `run_dir` is active: the one that holds a lock. The others stand by, and one
//! of them is active as soon as it is gone. The active one sleeps until exactly the next moment at which something is
//! due, or until its bell rings because something will be due earlier.

mod turn_of_duty;

use std::mem;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::mpsc::{RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use nix::errno::Errno;
use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};

use self::turn_of_duty::TurnOfDuty;
use crate::process::{DeadOwner, Owners, random_name};
use crate::role::{self, Context, Trouble};
use crate::store::{self, Bell, BellKind, OwnerTag, Store, StoreError};

/// How many jobs move in one step, so that others have their turn at the store in between.
const BATCH: usize = 256;

/// The longest sleep. Nothing depends on it: it bounds what a wake-up that was lost, with the process that would have
/// sent it, can cost.
const LONGEST_SLEEP: Duration = Duration::from_secs(60);

/// Runs the role.
pub fn run(mut context: Context) -> Result<()> {
    // Opened before it stands by, so that it can take over at once.
    let store = context.store()?;
    let duty = TurnOfDuty::await_in(&context.settings.run_dir).context("cannot stand by")?;
    context.ready()?;
    while context.drain().is_none() {
        if context.wait(&[duty.as_fd()], None)?[0] {
            log::info!("active");
            return Timer::start(&mut context, store)?.run(&mut context);
        }
    }
    Ok(())
}

struct Timer {
    store: Box<dyn Store>,
    bell: Box<dyn Bell>,
    owners: Owners,
    /// Owners whose leases are not handed back yet.
    dead: Vec<DeadOwner>,
    clock: TimerFd,
    maintenance: SyncSender<()>,
    trouble: Trouble,
    /// Nothing has happened for the longest sleep.
    slept_long: bool,
}

impl Timer {
    fn start(context: &mut Context, mut store: Box<dyn Store>) -> Result<Timer> {
        let run_dir = &context.settings.run_dir.clone();
        // The one that was active before may have died after it made jobs ready, and before it told the consumers.
        store.announce();
        for counts in store.counts()?.iter().filter(|c| context.topics.get(c.topic.as_str()).is_none()) {
            if let pending @ 1.. = counts.delayed + counts.ready + counts.leased {
                log::warn!("{pending} jobs of topic {} wait until it is registered", counts.topic);
            }
        }
        Ok(Timer {
            store,
            bell: store::hang_bell(&context.settings.store, run_dir, BellKind::Timer, &random_name()?)
                .context("cannot hang the bell")?,
            owners: Owners::watch(run_dir).context("cannot watch the owners of leases")?,
            dead: Vec::new(),
            clock: TimerFd::new(ClockId::CLOCK_REALTIME, TimerFlags::TFD_NONBLOCK | TimerFlags::TFD_CLOEXEC)?,
            maintenance: maintain(context.store()?)?,
            trouble: Trouble::default(),
            slept_long: false,
        })
    }

    fn run(&mut self, context: &mut Context) -> Result<()> {
        let mut owners_changed = true;
        while context.drain().is_none() {
            if mem::take(&mut self.slept_long) {
                // What was told to a process that died before it looked is told once more.
                self.store.announce();
            }
            if owners_changed {
                self.dead.append(&mut self.owners.dead().context("cannot look at the owners of leases")?);
            }
            let again = match self.work() {
                Ok(next_ms) => {
                    self.trouble.over();
                    self.arm(next_ms)?;
                    None
                }
                // Another start opens the file that is there.
                Err(e @ StoreError::Gone(_)) => return Err(e.into()),
                Err(e) => Some(self.trouble.again_at(&format_args!("cannot move jobs: {e}"))),
            };
            owners_changed = self.wait(context, again)?;
        }
        Ok(())
    }

    /// Does what is to be done now, up to a batch of each kind. Gives the next moment at which something is.
    fn work(&mut self) -> Result<Option<i64>, StoreError> {
        while let Some(owner) = self.dead.pop() {
            match self.store.hand_back(&OwnerTag(owner.tag.clone())) {
                Ok(jobs) => {
                    log::info!("{} leases of {} are handed back: its process is gone", jobs, owner.tag);
                    if let Err(e) = owner.forget() {
                        log::warn!("cannot remove an owner's file: {e}");
                    }
                }
                Err(e) => {
                    self.dead.push(owner);
                    return Err(e);
                }
            }
        }
        let promoted = self.store.promote(BATCH)?;
        let expired = self.store.expire(BATCH)?;
        if expired.jobs > 0 {
            log::warn!("{} leases ran out", expired.jobs);
        }
        Ok([promoted.next_ms, expired.next_ms].into_iter().flatten().min())
    }

    /// Waits for the next moment, a bell, an owner that comes or goes, or the master; when the store failed, for its next
    /// try. Tells whether owners may have changed.
    fn wait(&mut self, context: &mut Context, again: Option<Instant>) -> Result<bool> {
        let sleep_ends = Instant::now() + LONGEST_SLEEP;
        // While the store fails, a clock that went off and a bell that rang would only wake for what cannot be done.
        let own = if again.is_some() { vec![] } else { vec![self.bell.as_fd(), self.clock.as_fd()] };
        let count = own.len();
        let fds: Vec<BorrowedFd<'_>> = own.into_iter().chain(self.owners.fds()).collect();
        let readable = context.wait(&fds, Some(again.unwrap_or(sleep_ends)))?;
        if self.bell.answer().context("cannot answer the bell")? {
            match self.maintenance.try_send(()) {
                Ok(()) | Err(TrySendError::Full(())) => {}
                Err(TrySendError::Disconnected(())) => anyhow::bail!("the maintenance thread has ended"),
            }
        }
        self.slept_long = sleep_ends <= Instant::now();
        Ok(readable[count..].contains(&true) || self.slept_long)
    }

    /// Sets the clock to a moment; it also goes off when the host's clock is set.
    fn arm(&self, next_ms: Option<i64>) -> Result<()> {
        // Reading takes back an expiry, and the news that the clock was set, that were answered by this round.
        match self.clock.wait() {
            Ok(()) | Err(Errno::EAGAIN) => {}
            Err(e) => return Err(e).context("cannot read the clock"),
        }
        let flags = TimerSetTimeFlags::TFD_TIMER_ABSTIME | TimerSetTimeFlags::TFD_TIMER_CANCEL_ON_SET;
        match next_ms {
            None => self.clock.unset()?,
            Some(at_ms) => {
                // A moment of 0 would switch the clock off.
                let at = TimeSpec::from(Duration::from_millis(at_ms.max(1) as u64));
                match self.clock.set(Expiration::OneShot(at), flags) {
                    // The host's clock was set since it was last armed; it is armed all the same.
                    Ok(()) | Err(Errno::ECANCELED) => {}
                    Err(e) => return Err(e).context("cannot set the clock"),
                }
            }
        }
        Ok(())
    }
}

/// A thread that does the store's own housekeeping, which may take long, when it is told.
fn maintain(mut store: Box<dyn Store>) -> Result<SyncSender<()>> {
    let (told, tell) = sync_channel(1);
    let work = move || {
        let mut trouble = Trouble::default();
        // Once at the start: what was there before has rung for nobody.
        loop {
            let told = match store.maintain() {
                Ok(()) => {
                    trouble.over();
                    tell.recv().map_err(RecvTimeoutError::from)
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
