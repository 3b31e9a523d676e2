//! Runs operations on many jobs. The registry stores each operation. The registry also stores the claim: which process
//! may run the operation, and until when. One thread looks for operations that no process runs. For each of these
//! operations, it starts a thread, which opens the store and the registry for itself.
//!
//! A step applies the plan that the registry has, and looks at the next page of jobs. Then it writes counts, cursor and
//! the next plan with one change of the registry. If the process dies at any point, another process applies the stored
//! plan again, and no job is changed twice. docs/internals/BULK.md has the table of what may happen between the steps.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use tokio::sync::watch;

use host::now_ms;
use model::audit::AuditEntry;
use model::bulk::{BulkEnd, BulkProgress, StoredBulkOperation};
use model::settings::Settings;
use model::topic::Topics;
use registry::{BulkClaim, BulkSave, Registry, RegistryError};
use role::bulk::BulkRun;
use role::{Context, StoreOpener, TroubleLog, lock};
use store::{Store, StoreError};

/// How long a process may run an operation without writing its progress. After that, another process continues the
/// operation.
const CLAIM: Duration = Duration::from_secs(10);

/// How often a process looks for operations that nobody runs.
const LOOK_EACH: Duration = Duration::from_secs(3);

/// How long an operation pauses before it tries again, if it waits for a node, the store or the registry.
const AGAIN: Duration = Duration::from_secs(2);

/// How many operations one process runs at a time.
const THREADS: usize = 4;

/// How many jobs an operation may look at for each job that its rate allows it to change. Looking at a job is cheaper
/// than changing it.
const LOOKS: f64 = 10.0;

/// The state for which the threads wait, and the condition variable that wakes them.
#[derive(Default)]
struct RunnerWakeup {
    state: Mutex<RunnerState>,
    changed: Condvar,
}

#[derive(Default)]
struct RunnerState {
    /// Whether `wake` was called since the thread last looked for operations. If so, a new operation probably exists.
    is_asked: bool,
    is_closing: bool,
    running: usize,
}

impl RunnerWakeup {
    /// Waits until this process ends, or until the time `until`. Returns whether this process ends.
    fn sleep(&self, until: Instant) -> bool {
        let mut state = lock(&self.state);
        while !state.is_closing {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }

    /// Waits until there may be an operation to run. Returns false if this process ends.
    fn wait(&self, at_most: Duration) -> bool {
        let until = Instant::now() + at_most;
        let mut state = lock(&self.state);
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let may_begin = state.running < THREADS;
            if state.is_closing || may_begin && (state.is_asked || left.is_zero()) {
                state.is_asked = false;
                return !state.is_closing;
            }
            let left = if may_begin { left } else { LOOK_EACH };
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// Controls the threads that run operations. The value is cheap to clone.
#[derive(Clone, Default)]
pub(super) struct BulkRunner(Arc<RunnerWakeup>);

impl BulkRunner {
    /// Starts the thread that looks for operations, if there is a registry.
    pub(super) fn start(context: &Context, topics: watch::Receiver<Topics>) -> Result<BulkRunner> {
        let runner = BulkRunner::default();
        if context.settings.registry.is_none() {
            return Ok(runner);
        }
        let shared = BulkContext {
            settings: Arc::clone(&context.settings),
            opener: context.opener()?,
            signals: Arc::clone(&runner.0),
            topics,
        };
        role::vital_thread("bulk", move || shared.dispatch())
            .context("cannot start the thread of operations")?;
        Ok(runner)
    }

    /// Tells the threads that there is a new operation.
    pub(super) fn wake(&self) {
        lock(&self.0.state).is_asked = true;
        self.0.changed.notify_all();
    }

    /// Tells the threads that this process ends. Other processes continue its operations.
    pub(super) fn close(&self) {
        lock(&self.0.state).is_closing = true;
        self.0.changed.notify_all();
    }
}

/// What the threads share.
#[derive(Clone)]
struct BulkContext {
    settings: Arc<Settings>,
    opener: StoreOpener,
    signals: Arc<RunnerWakeup>,
    topics: watch::Receiver<Topics>,
}

/// Counts a thread as running, until it ends in any way.
struct ThreadCountGuard(Arc<RunnerWakeup>);

impl ThreadCountGuard {
    fn begin(signals: &Arc<RunnerWakeup>) -> ThreadCountGuard {
        lock(&signals.state).running += 1;
        ThreadCountGuard(Arc::clone(signals))
    }
}

impl Drop for ThreadCountGuard {
    fn drop(&mut self) {
        lock(&self.0.state).running -= 1;
        self.0.changed.notify_all();
    }
}

/// Why an operation stops in this thread.
enum BulkStopReason {
    /// The operation has ended, or another process runs it.
    Over,
    /// The operation continues after a while.
    Waits(String),
    /// This process ends.
    Closing,
}

impl From<StoreError> for BulkStopReason {
    fn from(e: StoreError) -> BulkStopReason {
        BulkStopReason::Waits(e.to_string())
    }
}

impl BulkContext {
    fn open_registry(&self) -> registry::Result<Box<dyn Registry>> {
        let none = || RegistryError::Away("there is no registry".to_owned());
        registry::open_known(self.settings.registry.as_ref().ok_or_else(none)?, &self.settings.run_dir)
    }

    /// Looks for operations that no process runs, and starts a thread for each operation.
    fn dispatch(&self) {
        let (mut open, mut trouble, mut wait) = (None, TroubleLog::default(), Duration::ZERO);
        while self.signals.wait(wait) {
            let registry = match open.take() {
                Some(registry) => Ok(registry),
                None => self.open_registry(),
            };
            let runner = format!("{:016x}", fastrand::u64(..));
            let claimed = registry.and_then(|mut registry: Box<dyn Registry>| {
                let now_ms = now_ms();
                let until_ms = now_ms + CLAIM.as_millis() as i64;
                let claimed = registry.claim_bulk(&BulkClaim { runner: &runner, now_ms, until_ms })?;
                Ok((registry, claimed))
            });
            wait = match claimed {
                Ok((registry, claimed)) => {
                    open = Some(registry);
                    trouble.end();
                    match claimed {
                        Some(row) => self.begin(row, runner),
                        None => LOOK_EACH,
                    }
                }
                Err(e) => {
                    trouble.pause_after(&format_args!("cannot look for operations on jobs: {e}")).max(AGAIN)
                }
            };
        }
    }

    /// Starts the thread of an operation. Returns how long to wait before the search for the next operation.
    fn begin(&self, row: StoredBulkOperation, runner: String) -> Duration {
        let (shared, running) = (self.clone(), ThreadCountGuard::begin(&self.signals));
        let name = format!("bulk-{}", row.number);
        let run = move || {
            let _running = running;
            Run::new(shared, row, runner).run();
        };
        match std::thread::Builder::new().name(name).spawn(run) {
            Ok(_) => Duration::ZERO,
            Err(e) => {
                log::error!("cannot start the thread of an operation: {e}");
                LOOK_EACH
            }
        }
    }
}

/// An operation that this process runs.
struct Run {
    shared: BulkContext,
    row: StoredBulkOperation,
    runner: String,
    bulk: BulkRun,
    /// Whether the plan may have been applied before.
    is_again: bool,
    /// The time from which another process may continue the operation.
    claimed_until: Instant,
}

impl Run {
    fn new(shared: BulkContext, row: StoredBulkOperation, runner: String) -> Run {
        let bulk = BulkRun::new(&row.request, row.number, row.started_ms);
        Run { shared, bulk, row, runner, is_again: true, claimed_until: Instant::now() + CLAIM }
    }

    /// Runs the operation until it ends, must wait, or is continued by another process.
    fn run(mut self) {
        let mut registry = match self.shared.open_registry() {
            Ok(registry) => registry,
            // The claim is not given up here. The claim ends at its deadline.
            Err(e) => return log::warn!("operation {} waits: {e}", self.row.number),
        };
        let paused = match self.shared.opener.open() {
            Ok(mut store) => self.steps(store.as_mut(), registry.as_mut()),
            Err(e) => e.into(),
        };
        let (waits_for, again_ms) = match paused {
            BulkStopReason::Over => return,
            BulkStopReason::Closing => (None, 0),
            BulkStopReason::Waits(why) => {
                let (topic, number) = (self.row.request.topic.as_str(), self.row.number);
                log::warn!(topic; "operation {number} waits: {why}");
                (Some(why), now_ms() + AGAIN.as_millis() as i64)
            }
        };
        self.row.progress.waits_for = waits_for;
        let save = BulkSave { until_ms: again_ms, gives_up: true, ..self.as_saved() };
        if let Err(e) = registry.save_bulk(&save) {
            log::warn!("cannot write that operation {} waits: {e}", self.row.number);
        }
    }

    /// Runs one step after the other. Returns why the operation stops here.
    fn steps(&mut self, store: &mut dyn Store, registry: &mut dyn Registry) -> BulkStopReason {
        loop {
            let begun = Instant::now();
            let looked_before = self.row.progress.counts.looked_at;
            let changes = self.row.progress.plan.len();
            match self.step(store, registry) {
                Ok(()) => {}
                Err(pause) => return pause,
            }
            let looks = (self.row.progress.counts.looked_at - looked_before) as f64;
            let rate = f64::from(self.row.request.rate.max(1));
            let least = (changes as f64 / rate).max(looks / (rate * LOOKS));
            if self.shared.signals.sleep(begun + Duration::from_secs_f64(least)) {
                return BulkStopReason::Closing;
            }
        }
    }

    fn step(&mut self, store: &mut dyn Store, registry: &mut dyn Registry) -> Result<(), BulkStopReason> {
        // If this process was delayed for too long, another process may run the operation now.
        if Instant::now() >= self.claimed_until {
            return Err(BulkStopReason::Over);
        }
        let topic = self.row.request.topic.as_str();
        if self.shared.topics.borrow().get(topic).is_none() {
            self.row.progress.waits_for = Some(format!("topic {topic} was removed"));
            return self.end(registry, BulkEnd::Failed);
        }
        let applied = self.bulk.apply(store, &self.row.progress.plan, self.is_again);
        match applied {
            Ok(counts) => self.row.progress.counts.add(counts),
            // A part of the plan may be applied already. Somebody wants to stop this operation, so the operation does
            // not wait until the rest of the plan can be applied.
            Err(e) if self.row.is_stopping => {
                self.row.progress.counts.unclear += self.row.progress.plan.len() as u64;
                self.row.progress.waits_for = Some(e.to_string());
            }
            Err(e) => return Err(e.into()),
        }
        self.row.progress.plan.clear();
        self.is_again = false;
        if self.row.is_stopping {
            return self.end(registry, BulkEnd::Stopped);
        }
        if self.row.progress.is_looked {
            self.row.progress.waits_for = None;
            return self.end(registry, BulkEnd::Done);
        }
        let page = self.bulk.page(self.row.request.rate);
        let next = self.bulk.look(store, &self.row.progress, page, now_ms())?;
        self.save(registry, next)
    }

    fn as_saved(&self) -> BulkSave<'_> {
        BulkSave {
            number: self.row.number,
            runner: &self.runner,
            progress: &self.row.progress,
            until_ms: now_ms() + CLAIM.as_millis() as i64,
            gives_up: false,
            ended: None,
        }
    }

    /// Writes counts, cursor and the next plan. The next plan is not applied before this write is done.
    fn save(&mut self, registry: &mut dyn Registry, next: BulkProgress) -> Result<(), BulkStopReason> {
        let before = std::mem::replace(&mut self.row.progress, next);
        let begun = Instant::now();
        match registry.save_bulk(&self.as_saved()) {
            Ok(Some(is_stopping)) => {
                self.row.is_stopping = is_stopping;
                self.claimed_until = begun + CLAIM;
                Ok(())
            }
            Ok(None) => Err(BulkStopReason::Over),
            Err(e) => {
                // The registry may have the old or the new progress. So the page is looked at again later. Changes that
                // were already made are then recognized.
                self.row.progress = before;
                Err(BulkStopReason::Waits(format!("the registry does not answer: {e}")))
            }
        }
    }

    fn end(&mut self, registry: &mut dyn Registry, end: BulkEnd) -> Result<(), BulkStopReason> {
        let counts = self.row.progress.counts;
        let unclear =
            if counts.unclear > 0 { format!(", {} unclear", counts.unclear) } else { String::new() };
        let detail = format!(
            "operation {} ({}) {}: {} skipped{unclear}",
            self.row.number,
            self.row.request.operation.word(),
            end.word(),
            counts.skipped
        );
        log::info!(topic = self.row.request.topic.as_str(); "{detail}, {} changed", counts.changed);
        let entry = AuditEntry {
            at_ms: now_ms(),
            who: self.row.who.clone(),
            action: "bulk.end".to_owned(),
            target: self.row.request.topic.to_string(),
            detail,
            jobs: Some(counts.changed),
        };
        let save = BulkSave { ended: Some((end, &entry)), gives_up: true, ..self.as_saved() };
        match registry.save_bulk(&save) {
            Ok(_) => Err(BulkStopReason::Over),
            Err(e) => Err(BulkStopReason::Waits(format!("the registry does not answer: {e}"))),
        }
    }
}
