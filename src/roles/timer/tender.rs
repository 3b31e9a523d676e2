//! Tends one lane of the store, on a thread of its own, so that a node that hangs or is down costs nobody else: moves its due
//! jobs, ends its leases, and sleeps until exactly the next moment at which something is due, or until its bell rings.

use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, Sender, SyncSender, TrySendError};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use nix::errno::Errno;
use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};

use crate::job::TopicName;
use crate::process::{DeadOwner, wait_readable};
use crate::role::{Trouble, lock};
use crate::store::{self, Bell, OwnerTag, Store, StoreError};

/// How many jobs move in one step, so that others have their turn at the store in between.
const BATCH: usize = 256;

/// The longest sleep. Nothing depends on it: it bounds what a wake-up that was lost, with the process that would have
/// sent it, can cost.
const LONGEST_SLEEP: Duration = Duration::from_secs(60);

/// The longest sleep where a ring is lost with a process that dies: so long it may take until it is rung again.
const SHORTER_SLEEP: Duration = Duration::from_secs(10);

/// How long a step may take.
const STEP: Duration = Duration::from_secs(15);

/// An owner of leases that is gone. It is forgotten when every lane has handed back what it held there.
pub(super) type Dead = Arc<Mutex<Option<DeadOwner>>>;

/// One lane's tender.
pub(super) struct Tender {
    pub store: Box<dyn Store>,
    pub bell: Box<dyn Bell>,
    clock: TimerFd,
    /// Owners whose leases here are not handed back yet.
    dead: Vec<(OwnerTag, Dead)>,
    news: Receiver<(OwnerTag, Dead)>,
    /// Readable when there is news; closed when it is to end.
    told: UnixStream,
    pub maintenance: SyncSender<()>,
    trouble: Trouble,
    /// The topics whose jobs are spread that were forgotten in an outage, and over how long.
    spread: Arc<Mutex<Vec<(TopicName, Duration)>>>,
    /// Since when it has been at a step; none: it waits.
    busy_since: Arc<Mutex<Option<Instant>>>,
}

/// The main loop's side of a tender.
pub(super) struct Handle {
    dead: Sender<(OwnerTag, Dead)>,
    tell: UnixStream,
    busy_since: Arc<Mutex<Option<Instant>>>,
}

impl Handle {
    /// Tells of an owner that is gone.
    pub(super) fn hand_back(&self, owner: OwnerTag, dead: Dead) {
        // A tender that has ended is told of by itself.
        let _ = self.dead.send((owner, dead));
        let _ = std::io::Write::write(&mut &self.tell, &[1]);
    }

    /// By when it should be through with what it is at.
    pub(super) fn due_by(&self) -> Option<Instant> {
        lock(&self.busy_since).map(|since| since + STEP)
    }
}

impl Tender {
    pub(super) fn new(
        store: Box<dyn Store>,
        bell: Box<dyn Bell>,
        maintenance: SyncSender<()>,
        spread: Arc<Mutex<Vec<(TopicName, Duration)>>>,
    ) -> Result<(Tender, Handle)> {
        let (told, tell) = UnixStream::pair()?;
        told.set_nonblocking(true)?;
        tell.set_nonblocking(true)?;
        let (dead, news) = std::sync::mpsc::channel();
        let busy_since = Arc::new(Mutex::new(None));
        let handle = Handle { dead, tell, busy_since: Arc::clone(&busy_since) };
        let clock =
            TimerFd::new(ClockId::CLOCK_REALTIME, TimerFlags::TFD_NONBLOCK | TimerFlags::TFD_CLOEXEC)?;
        let (dead, trouble) = (Vec::new(), Trouble::default());
        Ok((
            Tender { store, bell, clock, dead, news, told, maintenance, trouble, spread, busy_since },
            handle,
        ))
    }

    /// Until it is told to end, or cannot go on.
    pub(super) fn tend(mut self) -> Result<()> {
        // The one that was active before may have died after it made jobs ready, and before it told the consumers.
        self.store.announce();
        let longest = if self.bell.loses_rings() { SHORTER_SLEEP } else { LONGEST_SLEEP };
        let mut announced = Instant::now();
        loop {
            *lock(&self.busy_since) = Some(Instant::now());
            if announced.elapsed() >= longest {
                // What was told to a process that died before it looked is told once more.
                self.store.announce();
                announced = Instant::now();
            }
            self.dead.extend(self.news.try_iter());
            let again = match self.work() {
                Ok(next_ms) => {
                    self.trouble.over();
                    self.arm(next_ms)?;
                    None
                }
                // Another start opens the file that is there.
                Err(e @ StoreError::Gone(_)) => return Err(e.into()),
                Err(e @ StoreError::Settling(_)) => Some(self.trouble.waits(&e)),
                Err(e) => Some(self.trouble.again_at(&format_args!("cannot move jobs: {e}"))),
            };
            *lock(&self.busy_since) = None;
            if !self.wait(again.unwrap_or(announced + longest), again.is_some())? {
                store::unhang(self.bell, self.store.as_mut());
                return Ok(());
            }
        }
    }

    /// Does what is to be done now, up to a batch of each kind. Gives the next moment at which something is.
    fn work(&mut self) -> Result<Option<i64>, StoreError> {
        while let Some((owner, _)) = self.dead.last() {
            let jobs = self.store.hand_back(owner)?;
            if self.bell.loses_rings() {
                // It may have been told of jobs, and not have come to look.
                self.store.announce();
            }
            if jobs > 0 {
                log::info!("{jobs} leases of {} are handed back: its process is gone", owner.0);
            }
            let Some((_, dead)) = self.dead.pop() else { break };
            // The last lane that is through with it.
            if let Some(Err(e)) =
                Arc::into_inner(dead).and_then(|d| d.into_inner().ok().flatten()).map(DeadOwner::forget)
            {
                log::warn!("cannot remove an owner's file: {e}");
            }
        }
        let spread = lock(&self.spread).clone();
        let (promoted, forgotten) = self.store.promote_or_spread(BATCH, &spread)?;
        for (topic, jobs) in forgotten {
            log::warn!("{jobs} jobs of {topic} that were due long ago are spread, as its catch_up says");
        }
        let expired = self.store.expire(BATCH)?;
        if expired.jobs > 0 {
            log::warn!("{} leases ran out", expired.jobs);
        }
        Ok([promoted.next_ms, expired.next_ms].into_iter().flatten().min())
    }

    /// Waits for the next moment, a bell, or the main loop; when the store failed, for its next try. Tells whether to go on.
    fn wait(&mut self, until: Instant, failed: bool) -> Result<bool> {
        // While the store fails, a clock that went off and a bell that rang would only wake for what cannot be done.
        let own = if failed { vec![] } else { vec![self.bell.as_fd(), self.clock.as_fd()] };
        let fds: Vec<BorrowedFd<'_>> = std::iter::once(self.told.as_fd()).chain(own).collect();
        wait_readable(&fds, Some(until))?;
        let told = std::io::Read::read(&mut &self.told, &mut [0; 64]);
        if told.is_ok_and(|n| n == 0) {
            return Ok(false);
        }
        if self.bell.answer().context("cannot answer the bell")? {
            match self.maintenance.try_send(()) {
                Ok(()) | Err(TrySendError::Full(())) => {}
                Err(TrySendError::Disconnected(())) => bail!("the maintenance thread has ended"),
            }
        }
        Ok(true)
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
