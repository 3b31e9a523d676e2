//! What all child processes share: the settings, the sockets, the link to the master, and the order to drain.
//!
//! The loop of a role waits with [`Context::wait`], or waits on [`Context::fds`] in its own way and then calls
//! [`Context::check_drain`]. When the role must drain, it takes no new work, finishes the work in flight, and returns.
//!
//! This crate never decides what a role does. Begin with [`Context`]. Both servers use [`submit`] to pass requests to
//! the store.

pub mod bulk;
pub mod expiry;
mod live;
mod metered_store;
mod metered_upkeep;
pub mod pull;
mod refusal_log;
pub mod settling;
mod spool;
pub mod submit;
pub mod tickets;
pub mod tls;
mod trouble_log;

use std::collections::HashMap;
use std::io::ErrorKind;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use jiff::tz::TimeZone;
use nix::sys::signal::Signal;

pub use self::live::{RegistryView, TopicsOrigin};
use self::metered_store::MeteredStore;
pub use self::metered_store::{ALL, EMBEDDED};
pub use self::refusal_log::RefusalLog;
pub use self::spool::SpoolStateReader;
pub use self::trouble_log::TroubleLog;
use host::{self, ChildInheritance, Link, Received, Signals, ToChild, ToMaster};
use model::settings::Settings;
use model::slot::Slot;
use store::{self, Bell, BellKind, Lanes, Store, StoreError};
use telemetry::counters::Counters;

/// How long a child waits at its start for a store that is busy.
const STORE_PATIENCE: Duration = Duration::from_secs(20);

/// How long a process stays alive after its last answers, so that the answers reach the clients.
pub const LAST_WORDS: Duration = Duration::from_millis(100);

/// The order to drain, and its time limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DrainOrder {
    /// When unfinished work is given up. `None`: there is no limit.
    pub until: Option<Instant>,
    /// Whether a process of a new generation takes over.
    pub replaced: bool,
}

/// What a child process knows about itself, and its connection to the master.
#[derive(Debug)]
pub struct Context {
    /// The slot that this process fills.
    pub slot: Slot,
    /// The settings of its generation.
    pub settings: Arc<Settings>,
    /// The counters of this process. They continue the counts of earlier processes of its slot.
    pub counters: Counters,
    /// Whether [`Context::topics`] waits, because another generation serves while this process starts.
    awaits_topics: bool,
    link: Link,
    signals: Signals,
    sockets: HashMap<String, OwnedFd>,
    /// Whether the link has ended. A link that has ended is always readable, so nothing waits on it any more.
    orphaned: bool,
    drain: Option<DrainOrder>,
    /// The moment by which the workers should have finished their present work. None: no worker has a deadline.
    workers_by: Option<Instant>,
}

impl Context {
    /// Takes over what the master passed on, sets the name of the process, and starts the log.
    pub fn begin(inherited: ChildInheritance) -> Result<Context> {
        let name = inherited.slot;
        host::set_process_name(&name).context("cannot name the process")?;
        let settings: Settings =
            serde_json::from_slice(&inherited.settings).context("cannot read the sealed settings")?;
        host::start_logs_with_fallback(&name, settings.log_dir.as_deref(), settings.log)
            .context("cannot start the log")?;
        let Some(slot) = Slot::from_name(&name) else { bail!("{name:?} is not a slot") };
        Ok(Context {
            slot,
            counters: Counters::open(&settings.run_dir, &name),
            settings: Arc::new(settings),
            awaits_topics: inherited.awaits_topics,
            link: inherited.link,
            signals: Signals::catch(&[Signal::SIGTERM]).context("cannot catch signals")?,
            sockets: inherited.sockets,
            orphaned: false,
            drain: None,
            workers_by: None,
        })
    }

    /// Returns the lanes of the store.
    pub fn lanes(&self) -> Result<Lanes> {
        Lanes::new(&self.settings.store).context("cannot find the store's lanes")
    }

    /// Opens the store. The handle counts its calls. While the store is busy or its disk is full, tries again for a
    /// while.
    pub fn store(&mut self) -> Result<Box<dyn Store>> {
        self.open(None, |settings| store::open(&settings.store, &settings.run_dir))
    }

    /// Opens the store without the spool of this host. This also works while the disk of the spool fails.
    pub fn store_without_spool(&mut self) -> Result<Box<dyn Store>> {
        self.open(None, |settings| store::open(&settings.store.without_spool(), &settings.run_dir))
    }

    /// Opens one lane of the store.
    pub fn lane(&mut self, lane: usize) -> Result<Box<dyn Store>> {
        self.open(Some(lane), |settings| store::open_lane(&settings.store, &settings.run_dir, lane))
    }

    /// Makes a bell of one lane of the store. No other process may use the same `name`.
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
                Err(StoreError::Busy | StoreError::Full(_))
                    if Instant::now() < until && self.drain.is_none() =>
                {
                    self.wait(&[], Some(Instant::now() + Duration::from_millis(100)))?;
                }
                opened => {
                    let store = opened.context("cannot open the store")?;
                    return Ok(Box::new(MeteredStore::new(store, self.counters.clone(), lanes, lane)));
                }
            }
        }
    }

    /// Returns an opener. Other threads can use it to open handles to the store later.
    pub fn opener(&self) -> Result<StoreOpener> {
        let (settings, counters, lanes) = (Arc::clone(&self.settings), self.counters.clone(), self.lanes()?);
        Ok(StoreOpener { settings, counters, lanes })
    }

    /// Returns the topics, which follow the changes in the registry. If another generation serves while this one
    /// starts, and the snapshot is damaged or belongs to another registry, waits for the snapshot of this registry. If
    /// dq-redis-checker cannot read the registry, this process does not become ready. So the reload is given up.
    /// Returns early if the process must drain.
    pub fn topics(&mut self) -> Result<RegistryView> {
        let mut topics = RegistryView::begin(&self.settings).context("cannot follow the topics")?;
        if !self.awaits_topics {
            return Ok(topics);
        }
        if let Some(registry) = self.settings.registry.as_ref().filter(|_| topics.has_unusable_snapshot()) {
            log::warn!("waiting until the registry {registry} has been read");
        }
        while self.drain.is_none() && topics.has_unusable_snapshot() {
            let fds: Vec<BorrowedFd<'_>> = topics.fd().into_iter().collect();
            self.wait(&fds, None)?;
            topics.reload();
        }
        Ok(topics)
    }

    /// Returns the time zone for times in the TCP protocol and in forms.
    pub fn zone(&self) -> Result<TimeZone> {
        match &self.settings.timezone {
            None => Ok(TimeZone::system()),
            Some(name) => TimeZone::get(name).with_context(|| format!("cannot find the zone {name:?}")),
        }
    }

    /// Takes the socket with this name. The master has handed it down.
    pub fn socket(&mut self, name: &str) -> Result<OwnedFd> {
        self.sockets.remove(name).with_context(|| format!("no socket {name:?} was handed down"))
    }

    /// Reports to the master that this process works.
    pub fn ready(&self) -> Result<()> {
        log::info!("ready");
        match self.link.send(&ToMaster::Ready) {
            // If the master has died meanwhile, the next wait notices it.
            Err(e) if e.raw_os_error() == Some(nix::libc::EPIPE) => Ok(()),
            other => other.context("cannot report ready"),
        }
    }

    /// Returns the descriptors that become readable when [`Context::check_drain`] has something to handle.
    pub fn fds(&self) -> [BorrowedFd<'_>; 2] {
        [self.link.as_fd(), self.signals.as_fd()]
    }

    /// Checks whether this process must drain. The reasons are an order of the master, a dead master, and a TERM
    /// signal.
    pub fn check_drain(&mut self) -> Result<Option<DrainOrder>> {
        if self.signals.take()?.contains(&Signal::SIGTERM) {
            self.set_drain(Some(self.settings.drain_timeout), false, "TERM");
        }
        loop {
            let received = match self.link.receive() {
                // The master runs a newer or older release, and has sent a message that this release does not know.
                Err(e) if e.kind() == ErrorKind::InvalidData => {
                    log::warn!("cannot understand a message of the master: {e}");
                    continue;
                }
                other => other?,
            };
            match received {
                Received::Message(ToChild::Drain { within_ms, replaced }) => {
                    self.set_drain(within_ms.map(Duration::from_millis), replaced, "the master says so");
                }
                Received::Message(ToChild::ReopenLogs) => host::reopen_logs(),
                Received::Message(ToChild::Ping) => self.answer_ping(),
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

    /// Whether the master is gone. From then on, the link is always readable, so do not wait for it.
    pub fn is_orphaned(&self) -> bool {
        self.orphaned
    }

    /// Waits for the master, a signal, one of `fds`, or the time `until`. Returns which of `fds` are readable.
    /// [`Context::drain`] tells whether the process must drain.
    pub fn wait(&mut self, fds: &[BorrowedFd<'_>], until: Option<Instant>) -> Result<Vec<bool>> {
        let own = if self.orphaned { vec![self.signals.as_fd()] } else { self.fds().to_vec() };
        let count = own.len();
        let all: Vec<BorrowedFd<'_>> = own.into_iter().chain(fds.iter().copied()).collect();
        let readable = host::wait_readable(&all, until)?;
        if readable[..count].contains(&true) {
            self.check_drain()?;
        }
        Ok(readable[count..].to_vec())
    }

    /// Sets the moment by which the workers should have finished their present work. None: no worker has a deadline
    /// now. Call this function before each wait. The answers to the master's pings say how long ago the moment `by`
    /// passed.
    pub fn workers_by(&mut self, by: Option<Instant>) {
        self.workers_by = by;
    }

    /// Answers a ping. Only the main loop may call this function: an answer from another thread would not prove that
    /// the main loop works.
    fn answer_ping(&self) {
        let overdue =
            self.workers_by.map_or(Duration::ZERO, |by| Instant::now().saturating_duration_since(by));
        // If this fails, the master gets no answer to its ping.
        let _ = self.link.send(&ToMaster::Alive { overdue_ms: overdue.as_millis() as u64 });
    }

    /// Returns whether the process must drain.
    pub fn drain(&self) -> Option<DrainOrder> {
        self.drain
    }

    fn set_drain(&mut self, within: Option<Duration>, replaced: bool, why: &str) {
        let until = within.map(|w| Instant::now() + w);
        match &mut self.drain {
            None => {
                log::info!("draining: {why}");
                self.drain = Some(DrainOrder { until, replaced });
            }
            // The earlier of the two limits counts.
            Some(drain) => {
                drain.until = [drain.until, until].into_iter().flatten().min();
                drain.replaced &= replaced;
            }
        }
    }
}

/// Opens handles to the store. The handles count their calls. An opener is cheap to clone.
#[derive(Clone)]
pub struct StoreOpener {
    settings: Arc<Settings>,
    counters: Counters,
    lanes: Lanes,
}

impl StoreOpener {
    /// Returns the lanes of the store.
    pub fn lanes(&self) -> &Lanes {
        &self.lanes
    }

    /// Returns the counters of this process.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Opens a handle to one lane.
    pub fn open_lane(&self, lane: usize) -> store::Result<Box<dyn Store>> {
        let store = store::open_lane(&self.settings.store, &self.settings.run_dir, lane)?;
        Ok(Box::new(MeteredStore::new(store, self.counters.clone(), self.lanes.clone(), Some(lane))))
    }

    /// Makes a bell of one lane. No other process may use the same `name`.
    pub fn bell(&self, lane: usize, kind: BellKind, name: &str) -> std::io::Result<Box<dyn Bell>> {
        store::hang_bell(&self.settings.store, &self.settings.run_dir, lane, kind, name)
    }

    /// Opens a handle.
    pub fn open(&self) -> store::Result<Box<dyn Store>> {
        let store = store::open(&self.settings.store, &self.settings.run_dir)?;
        Ok(Box::new(MeteredStore::new(store, self.counters.clone(), self.lanes.clone(), None)))
    }
}

/// Locks a mutex, even if a thread panicked while it held the lock. The value is still valid, because no role holds a
/// lock across a step that could leave something half done.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Starts a thread that its process needs. If the thread panics, the process ends and is then started again.
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
