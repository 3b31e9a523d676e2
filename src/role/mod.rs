//! What every child shares: settings, sockets, the link to the master, and the flag that says to drain.
//!
//! A role's loop waits with [`Context::wait`], or waits by its own means on [`Context::fds`] and then calls
//! [`Context::heed`]. When that says to drain, it takes nothing new, finishes what is in hand, and returns.

mod counted;
mod live;
mod refusal_log;

use std::collections::HashMap;
use std::io::ErrorKind;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use jiff::tz::TimeZone;
use nix::sys::signal::Signal;

use self::counted::Counted;
pub use self::counted::{ALL, EMBEDDED};
pub use self::live::LiveTopics;
pub use self::refusal_log::RefusalLog;
use crate::counters::Counters;
use crate::process::{self, Inherited, Link, Received, Signals, ToChild, ToMaster};
use crate::settings::Settings;
use crate::slot::Slot;
use crate::store::{self, Bell, BellKind, Lanes, Store, StoreError};

/// How long a store that is busy at the start is waited for.
const STORE_PATIENCE: Duration = Duration::from_secs(20);

/// That a child is to end, and by when.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Drain {
    /// What is not finished by then is given up; none: however long it takes.
    pub until: Option<Instant>,
    /// Whether another process takes its place.
    pub successor: bool,
}

/// A child's view of itself.
#[derive(Debug)]
pub struct Context {
    /// Which place it fills.
    pub slot: Slot,
    /// The settings of its generation.
    pub settings: Arc<Settings>,
    /// What this process counts, where the ones before it in its slot stopped.
    pub counters: Counters,
    link: Link,
    signals: Signals,
    sockets: HashMap<String, OwnedFd>,
    /// The link has ended: it would be readable for ever.
    orphaned: bool,
    drain: Option<Drain>,
    /// By when its workers should have ended what they do.
    workers_by: Option<Instant>,
}

impl Context {
    /// Takes what the master handed down, names the process, starts its log.
    pub fn begin(inherited: Inherited) -> Result<Context> {
        let name = inherited.slot;
        process::set_process_name(&name).context("cannot name the process")?;
        let settings: Settings =
            serde_json::from_slice(&inherited.settings).context("cannot read the sealed settings")?;
        process::start_logs(&name, settings.log_dir.as_deref()).context("cannot start the log")?;
        let Some(slot) = Slot::from_name(&name) else { bail!("{name:?} is no slot") };
        Ok(Context {
            slot,
            counters: Counters::open(&settings.run_dir, &name),
            settings: Arc::new(settings),
            link: inherited.link,
            signals: Signals::catch(&[Signal::SIGTERM]).context("cannot catch signals")?,
            sockets: inherited.sockets,
            orphaned: false,
            drain: None,
            workers_by: None,
        })
    }

    /// The lanes of the store.
    pub fn lanes(&self) -> Result<Lanes> {
        Lanes::new(&self.settings.store).context("cannot find the store's lanes")
    }

    /// A handle to the store, whose work is counted. One that is busy, or whose disk is full, is tried again for a while.
    pub fn store(&mut self) -> Result<Box<dyn Store>> {
        self.open(None, |settings| store::open(&settings.store, &settings.run_dir))
    }

    /// A handle to one of the store's lanes.
    pub fn lane(&mut self, lane: usize) -> Result<Box<dyn Store>> {
        self.open(Some(lane), |settings| store::open_lane(&settings.store, &settings.run_dir, lane))
    }

    /// A bell of one of the store's lanes, under a name that no other process uses.
    pub fn bell(&self, lane: usize, kind: BellKind, name: &str) -> Result<Box<dyn Bell>> {
        let Settings { store, run_dir, .. } = &*self.settings;
        store::hang_bell(store, run_dir, lane, kind, name).context("cannot hang the bell")
    }

    fn open(
        &mut self,
        lane: Option<usize>,
        open: impl Fn(&Settings) -> store::Result<Box<dyn Store>>,
    ) -> Result<Box<dyn Store>> {
        let lanes = self.lanes()?;
        let until = Instant::now() + STORE_PATIENCE;
        loop {
            match open(&self.settings) {
                Err(StoreError::Busy | StoreError::Full)
                    if Instant::now() < until && self.drain.is_none() =>
                {
                    self.wait(&[], Some(Instant::now() + Duration::from_millis(100)))?;
                }
                opened => {
                    let store = opened.context("cannot open the store")?;
                    return Ok(Box::new(Counted::new(store, self.counters.clone(), lanes, lane)));
                }
            }
        }
    }

    /// The topics, which change as the registry does.
    pub fn topics(&self) -> Result<LiveTopics> {
        LiveTopics::begin(&self.settings).context("cannot follow the topics")
    }

    /// The zone in which the TCP protocol's and the forms' times are written.
    pub fn zone(&self) -> Result<TimeZone> {
        match &self.settings.timezone {
            None => Ok(TimeZone::system()),
            Some(name) => TimeZone::get(name).with_context(|| format!("cannot find the zone {name:?}")),
        }
    }

    /// A socket that was handed down under that name.
    pub fn socket(&mut self, name: &str) -> Result<OwnedFd> {
        self.sockets.remove(name).with_context(|| format!("no socket {name:?} was handed down"))
    }

    /// Tells the master that this process works.
    pub fn ready(&self) -> Result<()> {
        log::info!("ready");
        match self.link.send(&ToMaster::Ready) {
            // A master that has died meanwhile is noticed by the next wait.
            Err(e) if e.raw_os_error() == Some(nix::libc::EPIPE) => Ok(()),
            other => other.context("cannot report ready"),
        }
    }

    /// The descriptors that become readable when [`Context::heed`] has something to heed.
    pub fn fds(&self) -> [BorrowedFd<'_>; 2] {
        [self.link.as_fd(), self.signals.as_fd()]
    }

    /// Looks whether the master, its death or a TERM said to drain.
    pub fn heed(&mut self) -> Result<Option<Drain>> {
        if self.signals.take()?.contains(&Signal::SIGTERM) {
            self.set_drain(Some(self.settings.drain_timeout), false, "TERM");
        }
        loop {
            let received = match self.link.receive() {
                // A word of another release's.
                Err(e) if e.kind() == ErrorKind::InvalidData => {
                    log::warn!("cannot understand the master: {e}");
                    continue;
                }
                other => other?,
            };
            match received {
                Received::Message(ToChild::Drain { within_ms, successor }) => {
                    self.set_drain(within_ms.map(Duration::from_millis), successor, "the master says so");
                }
                Received::Message(ToChild::ReopenLogs) => process::reopen_logs(),
                Received::Message(ToChild::Ping) => self.give_a_sign_of_life(),
                Received::Nothing => break,
                Received::Closed => {
                    self.orphaned = true;
                    self.set_drain(None, false, "the master is gone");
                    break;
                }
            }
        }
        Ok(self.drain)
    }

    /// Waits for the master, a signal, one of `fds`, or the moment. Tells which of `fds` are readable; what the master
    /// said is in [`Context::drain`].
    pub fn wait(&mut self, fds: &[BorrowedFd<'_>], until: Option<Instant>) -> Result<Vec<bool>> {
        let own = if self.orphaned { vec![self.signals.as_fd()] } else { self.fds().to_vec() };
        let count = own.len();
        let all: Vec<BorrowedFd<'_>> = own.into_iter().chain(fds.iter().copied()).collect();
        let readable = process::wait_readable(&all, until)?;
        if readable[..count].contains(&true) {
            self.heed()?;
        }
        Ok(readable[count..].to_vec())
    }

    /// Says by when its workers should have ended what they do; none: none of them has a deadline now. To be said before each
    /// wait: the master is told for how long that has not held.
    pub fn workers_by(&mut self, by: Option<Instant>) {
        self.workers_by = by;
    }

    /// Only ever from the main loop: a thread that does nothing else would prove nothing.
    fn give_a_sign_of_life(&self) {
        let overdue =
            self.workers_by.map_or(Duration::ZERO, |by| Instant::now().saturating_duration_since(by));
        // Who cannot be told is missed by the master.
        let _ = self.link.send(&ToMaster::Alive { overdue_ms: overdue.as_millis() as u64 });
    }

    /// Whether to drain.
    pub fn drain(&self) -> Option<Drain> {
        self.drain
    }

    fn set_drain(&mut self, within: Option<Duration>, successor: bool, why: &str) {
        let until = within.map(|w| Instant::now() + w);
        match &mut self.drain {
            None => {
                log::info!("draining: {why}");
                self.drain = Some(Drain { until, successor });
            }
            // The earlier end holds.
            Some(drain) => {
                drain.until = [drain.until, until].into_iter().flatten().min();
                drain.successor &= successor;
            }
        }
    }
}

/// Locks. What a thread that panicked has left behind is as good as what any other left: no lock of a role's is held
/// across a step that could leave something half done.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Starts a thread that its process cannot do without: its panic ends the process, which is then started anew.
pub fn vital_thread(name: &str, work: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
    struct AbortOnPanic;
    impl Drop for AbortOnPanic {
        fn drop(&mut self) {
            if std::thread::panicking() {
                std::process::abort();
            }
        }
    }
    let work = move || {
        let _guard = AbortOnPanic;
        work();
    };
    std::thread::Builder::new().name(name.to_owned()).spawn(work).map(drop)
}

/// Trouble that lasts is logged when it begins, when it changes, and when it is over; and is tried again ever later.
#[derive(Debug, Default)]
pub struct Trouble {
    current: Option<Current>,
    pause: Duration,
}

#[derive(Debug)]
struct Current {
    message: String,
    since: Instant,
    /// It does not pass by itself.
    is_error: bool,
}

impl Trouble {
    /// The first and the longest pause before the next try.
    const PAUSES: [Duration; 2] = [Duration::from_millis(50), Duration::from_secs(2)];

    /// The pause before the next look at what passes by itself.
    const WAIT: Duration = Duration::from_millis(200);

    /// Notes that something failed. Gives the moment of the next try.
    pub fn again_at(&mut self, error: &dyn std::fmt::Display) -> Instant {
        if self.current.is_none() {
            self.pause = Duration::ZERO;
        }
        self.note(error.to_string(), true);
        self.pause = (self.pause * 2).clamp(Self::PAUSES[0], Self::PAUSES[1]);
        Instant::now() + self.pause
    }

    /// Notes that something has to wait for what passes by itself. Gives the moment of the next look.
    pub fn waits(&mut self, what: &dyn std::fmt::Display) -> Instant {
        self.note(what.to_string(), false);
        Instant::now() + Self::WAIT
    }

    fn note(&mut self, message: String, is_error: bool) {
        if self.current.as_ref().is_some_and(|c| c.message == message) {
            return;
        }
        log::log!(if is_error { log::Level::Error } else { log::Level::Info }, "{message}");
        let since = self.current.as_ref().map_or_else(Instant::now, |c| c.since);
        let is_error = is_error || self.current.as_ref().is_some_and(|c| c.is_error);
        self.current = Some(Current { message, since, is_error });
    }

    /// Notes that it works.
    pub fn over(&mut self) {
        if let Some(Current { since, is_error, .. }) = self.current.take() {
            let level = if is_error { log::Level::Warn } else { log::Level::Info };
            log::log!(level, "works again after {:.1?}", since.elapsed());
        }
    }
}
