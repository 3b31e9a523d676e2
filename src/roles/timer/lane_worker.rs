//! Works on one lane of the store, on a thread of its own, so that a node that hangs or is down delays nothing else.
//! The worker promotes due jobs and expires leases. It then sleeps until exactly the next moment at which something is
//! due, or until its bell rings.

use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, Sender, SyncSender, TrySendError};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use nix::errno::Errno;
use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};

use host::{DeadOwner, wait_readable};
use model::job::TopicName;
use role::{TroubleLog, lock};
use store::{self, Bell, OwnerTag, Store, StoreError};

/// The maximum number of jobs that one step promotes, and of leases that it expires. Between two steps, other processes
/// can use the store.
const BATCH: usize = 256;

/// The longest sleep. Normally, no job waits for the end of this sleep. The limit only matters if a wake-up is lost
/// because the sender of the wake-up died.
const LONGEST_SLEEP: Duration = Duration::from_secs(60);

/// The longest sleep if the bells of the store may lose a ring. (A ring is lost if its receiver dies before it acts on
/// the ring.) A lost ring is repeated within this time.
const SHORTER_SLEEP: Duration = Duration::from_secs(10);

/// How long a step may take.
const STEP: Duration = Duration::from_secs(15);

/// A process may die while the store still has a call of this process to do. If this call leases jobs after the leases
/// of the process were handed back, these jobs would wait until the end of their leases. So the leases are handed back
/// a second time, after this pause.
const LATE_CALLS: Duration = Duration::from_secs(5);

/// An owner of leases that is gone. The file of the owner is removed when every lane has handed back the owner's
/// leases.
pub(super) type SharedDeadOwner = Arc<Mutex<Option<DeadOwner>>>;

/// An owner whose leases in this lane must be handed back.
struct OwnerToHandBack {
    tag: OwnerTag,
    owner: SharedDeadOwner,
    /// When the leases are handed back next.
    at: Instant,
    /// Whether the leases were handed back once. (See [`LATE_CALLS`].)
    is_second: bool,
}

/// The worker of one lane.
pub(super) struct LaneWorker {
    pub store: Box<dyn Store>,
    pub bell: Box<dyn Bell>,
    clock: TimerFd,
    /// Owners that are gone, and whose leases in this lane must be handed back.
    dead: Vec<OwnerToHandBack>,
    news: Receiver<(OwnerTag, SharedDeadOwner)>,
    /// The socket that wakes the worker. Readable when there is news. Closed when the worker must end.
    wake_reader: UnixStream,
    pub maintenance: SyncSender<()>,
    /// Wakes the thread that adds the jobs that follow other jobs (`outbox`).
    followers: SyncSender<()>,
    trouble: TroubleLog,
    hand_back_trouble: TroubleLog,
    /// The topics whose jobs are spread after an outage, each with the time over which they are spread.
    spread: Arc<Mutex<Vec<(TopicName, Duration)>>>,
    /// When the worker began its present step. `None`: it waits.
    busy_since: Arc<Mutex<Option<Instant>>>,
}

/// The handle by which the main loop controls a lane worker.
pub(super) struct LaneWorkerHandle {
    dead: Sender<(OwnerTag, SharedDeadOwner)>,
    wake_writer: UnixStream,
    busy_since: Arc<Mutex<Option<Instant>>>,
}

impl LaneWorkerHandle {
    /// Makes the worker hand back the leases of an owner that is gone.
    pub(super) fn hand_back(&self, owner: OwnerTag, dead: SharedDeadOwner) {
        // If the worker has ended, it has already reported why.
        let _ = self.dead.send((owner, dead));
        let _ = std::io::Write::write(&mut &self.wake_writer, &[1]);
    }

    /// Returns the moment by which the worker should finish its present step.
    pub(super) fn due_by(&self) -> Option<Instant> {
        lock(&self.busy_since).map(|since| since + STEP)
    }
}

impl LaneWorker {
    pub(super) fn new(
        store: Box<dyn Store>,
        bell: Box<dyn Bell>,
        maintenance: SyncSender<()>,
        followers: SyncSender<()>,
        spread: Arc<Mutex<Vec<(TopicName, Duration)>>>,
    ) -> Result<(LaneWorker, LaneWorkerHandle)> {
        let (wake_reader, wake_writer) = UnixStream::pair()?;
        wake_reader.set_nonblocking(true)?;
        wake_writer.set_nonblocking(true)?;
        let (dead, news) = std::sync::mpsc::channel();
        let busy_since = Arc::new(Mutex::new(None));
        let handle = LaneWorkerHandle { dead, wake_writer, busy_since: Arc::clone(&busy_since) };
        let clock =
            TimerFd::new(ClockId::CLOCK_REALTIME, TimerFlags::TFD_NONBLOCK | TimerFlags::TFD_CLOEXEC)?;
        let (dead, trouble) = (Vec::new(), TroubleLog::default());
        Ok((
            LaneWorker {
                store,
                bell,
                clock,
                dead,
                news,
                wake_reader,
                maintenance,
                followers,
                trouble,
                hand_back_trouble: TroubleLog::default(),
                spread,
                busy_since,
            },
            handle,
        ))
    }

    /// Works until the main loop ends it, or until it cannot continue.
    pub(super) fn tend(mut self) -> Result<()> {
        // The previous active timer may have died after it made jobs ready, but before it rang the bell of the
        // consumers.
        self.store.announce();
        let longest = if self.bell.loses_rings() { SHORTER_SLEEP } else { LONGEST_SLEEP };
        let mut announced = Instant::now();
        loop {
            *lock(&self.busy_since) = Some(Instant::now());
            if announced.elapsed() >= longest {
                // If a process dies before it acts on a ring, the ring is repeated here.
                self.store.announce();
                announced = Instant::now();
            }
            let now = Instant::now();
            let first = |(tag, owner)| OwnerToHandBack { tag, owner, at: now, is_second: false };
            self.dead.extend(self.news.try_iter().map(first));
            let again = match self.work() {
                Ok(next_ms) => {
                    self.trouble.end();
                    self.arm(next_ms)?;
                    None
                }
                // The file of the embedded store was removed or replaced. This process has the old file open, so it
                // ends. The next process opens the new file.
                Err(e @ StoreError::Gone(_)) => return Err(e.into()),
                Err(e) => {
                    if matches!(e, StoreError::Full(_)) {
                        // The maintenance may make room. It must not wait until this pause is over.
                        let _ = self.maintenance.try_send(());
                    }
                    Some(Instant::now() + self.trouble.pause_after_store("cannot move jobs", &e))
                }
            };
            *lock(&self.busy_since) = None;
            let hand_back_at = self.dead.iter().map(|dead| dead.at);
            let next = again.unwrap_or_else(|| hand_back_at.fold(announced + longest, Instant::min));
            if !self.wait(next, again.is_some())? {
                store::unhang(self.bell, self.store.as_mut());
                return Ok(());
            }
        }
    }

    /// Hands back the leases of the owners that are gone.
    fn hand_back(&mut self) -> Result<(), StoreError> {
        let now = Instant::now();
        let (due, later): (Vec<_>, _) =
            std::mem::take(&mut self.dead).into_iter().partition(|dead| dead.at <= now);
        self.dead = later;
        if due.is_empty() {
            return Ok(());
        }
        let (mut outcome, mut failed) = (Ok(()), Vec::new());
        for dead in due {
            let jobs = match self.store.hand_back(&dead.tag) {
                Ok(jobs) => jobs,
                // One shard may be down. The other shards have handed back their leases of this owner. The loop
                // continues, because these shards can also hand back the leases of the other owners.
                Err(e) => {
                    failed.push(dead);
                    outcome = Err(e);
                    continue;
                }
            };
            if self.bell.loses_rings() {
                // The owner may have got a ring and died before it leased the jobs. So the bell rings again.
                self.store.announce();
            }
            if jobs > 0 {
                log::info!("{jobs} leases of {} are handed back: its process is gone", dead.tag.0);
            }
            if !dead.is_second {
                self.dead.push(OwnerToHandBack { at: Instant::now() + LATE_CALLS, is_second: true, ..dead });
                continue;
            }
            // The last lane that is done with the owner removes the owner's file.
            let last = Arc::into_inner(dead.owner).and_then(|owner| owner.into_inner().ok().flatten());
            if let Some(Err(e)) = last.map(DeadOwner::forget) {
                log::warn!("cannot remove an owner's file: {e}");
            }
        }
        let (pause, result) = match outcome {
            Ok(()) => {
                self.hand_back_trouble.end();
                (Duration::ZERO, Ok(()))
            }
            // The whole store cannot be used, so the caller pauses.
            Err(e @ (StoreError::Gone(_) | StoreError::Moving(_))) => (Duration::ZERO, Err(e)),
            // A shard is down. The work on the other shards goes on.
            Err(e) => {
                let what = format_args!("cannot hand back the leases of a process that is gone: {e}");
                (self.hand_back_trouble.pause_after(&what), Ok(()))
            }
        };
        let at = Instant::now() + pause;
        self.dead.extend(failed.into_iter().map(|dead| OwnerToHandBack { at, ..dead }));
        result
    }

    /// Does what is due now, up to a batch of each kind. Returns the next moment at which something is due.
    fn work(&mut self) -> Result<Option<i64>, StoreError> {
        self.hand_back()?;
        let spread = lock(&self.spread).clone();
        let (promoted, forgotten) = self.store.promote_or_spread(BATCH, &spread)?;
        for (topic, jobs) in forgotten {
            log::warn!(topic = topic.as_str(); "{jobs} jobs that were due long ago are spread, as catch_up says");
        }
        let expired = self.store.expire(BATCH)?;
        if expired.jobs > 0 {
            log::warn!("{} leases expired", expired.jobs);
        }
        if self.store.has_followers()? {
            // If the channel is full, a wake-up for the thread is already in it. If the thread has ended, the process
            // ends too.
            let _ = self.followers.try_send(());
        }
        Ok([promoted.next_ms, expired.next_ms].into_iter().flatten().min())
    }

    /// Waits until the next moment at which something is due, until a bell rings, or until the main loop wakes the
    /// worker. After a failure of the store, waits for the next try. Returns whether the worker continues.
    fn wait(&mut self, until: Instant, failed: bool) -> Result<bool> {
        // While the store fails, the clock and the bell must not wake the worker, because it could do nothing.
        let own = if failed { vec![] } else { vec![self.bell.as_fd(), self.clock.as_fd()] };
        let fds: Vec<BorrowedFd<'_>> = std::iter::once(self.wake_reader.as_fd()).chain(own).collect();
        wait_readable(&fds, Some(until))?;
        let received = std::io::Read::read(&mut &self.wake_reader, &mut [0; 64]);
        if received.is_ok_and(|n| n == 0) {
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

    /// Arms the timer `clock` to fire at this moment. The timer also fires when the time of the host is set.
    fn arm(&self, next_ms: Option<i64>) -> Result<()> {
        // The timer may have fired during this round. The round has already done everything that is due. A read of the
        // timer removes this signal.
        match self.clock.wait() {
            Ok(()) | Err(Errno::EAGAIN) => {}
            Err(e) => return Err(e).context("cannot read the clock"),
        }
        let flags = TimerSetTimeFlags::TFD_TIMER_ABSTIME | TimerSetTimeFlags::TFD_TIMER_CANCEL_ON_SET;
        match next_ms {
            None => self.clock.unset()?,
            Some(at_ms) => {
                // A time of 0 would switch the clock off.
                let at = TimeSpec::from(Duration::from_millis(at_ms.max(1) as u64));
                match self.clock.set(Expiration::OneShot(at), flags) {
                    // The host's clock was set after the timer was last armed. In spite of this error, the timer is
                    // armed.
                    Ok(()) | Err(Errno::ECANCELED) => {}
                    Err(e) => return Err(e).context("cannot set the clock"),
                }
            }
        }
        Ok(())
    }
}
