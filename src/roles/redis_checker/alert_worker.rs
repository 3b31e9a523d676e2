//! Sends alerts to people: about findings that open and close, about dead letters, and about processes that are started
//! again and again. It runs on a thread of its own, which does not wait for the threads that send. A lock allows one
//! such worker per `run_dir`. A file in `run_dir` records what was sent, so that the next worker can continue from
//! there.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use jiff::tz::TimeZone;
use serde::{Deserialize, Serialize};

use super::finding_kind::FindingKind;
use super::findings::FoundConditions;
use super::restarts::Restarts;
use super::routes::{PhpMail, Routes, SharedPhpMail};
use super::senders::{DeliveryReport, Senders};
use host::{ask_master, now_ms};
use model::excerpt::Excerpt;
use model::job::TopicName;
use model::notice::{AlertLedger, DeadJob, JOBS_NAMED, Message, MessageTiming, Notice, Recipient};
use model::settings::Settings;
use model::status::Finding;
use role::{self, Context, RegistryView, TroubleLog, lock};
use store::{self, StoredJob};
use telemetry::counters;

/// How often the worker checks whether anything is due.
const TICK: Duration = Duration::from_millis(500);

/// The shortest and the longest time between two checks of the dead letters and the processes. Between these bounds,
/// `alert.gather` sets the time.
const LOOK: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(10)];

/// How long the master may take to report the state of the processes.
const MASTER_PATIENCE: Duration = Duration::from_millis(500);

/// How long the process waits at its end for messages that are being sent.
const LAST: Duration = Duration::from_secs(5);

/// How much the clocks of shards may differ from the host's clock.
const CLOCKS: Duration = Duration::from_secs(5);

/// What the worker shares with the main loop, in both directions.
#[derive(Default)]
struct SharedState {
    /// The findings that are open now. `None`: nothing has been checked yet.
    findings: Mutex<Option<Vec<Finding>>>,
    found: Mutex<FoundConditions>,
}

enum AlertWorkerMessage {
    Delivered(DeliveryReport),
    End,
}

/// The handle by which the main loop controls the worker.
pub(super) struct AlertWorkerHandle {
    shared: Arc<SharedState>,
    sender: Sender<AlertWorkerMessage>,
    ended: Receiver<()>,
    end_by: Option<Instant>,
}

impl AlertWorkerHandle {
    /// Starts the worker.
    pub(super) fn start(context: &mut Context, php: SharedPhpMail) -> Result<AlertWorkerHandle> {
        let (shared, settings) = (Arc::new(SharedState::default()), Arc::clone(&context.settings));
        let ((sender, messages), (end, ended)) = (channel(), channel());
        let zone = context.zone()?;
        let mut worker = AlertWorker {
            senders: Senders::start(&settings, &zone, &sender, AlertWorkerMessage::Delivered)?,
            topics: context.topics()?,
            shared: Arc::clone(&shared),
            lock: None,
            kept: SavedState::default(),
            is_changed: false,
            save_fails: TroubleLog::default(),
            next_look: Instant::now(),
            settings,
            zone,
            php,
        };
        // At the first start in this `run_dir`, dq reports only jobs that become dead letters from this moment on.
        if worker.has_lock() && !worker.kept.ledger.is_begun() {
            worker.look_at_dead(&PhpMail::Unknown, now_ms());
            worker.is_changed = true;
            worker.keep();
        }
        role::vital_thread("alerts", move || {
            worker.run(&messages);
            drop(end);
        })?;
        Ok(AlertWorkerHandle { shared, sender, ended, end_by: None })
    }

    /// Passes the open findings to the worker.
    pub(super) fn pass_findings(&self, open: Vec<Finding>) {
        *lock(&self.shared.findings) = Some(open);
    }

    /// Returns what the worker itself has found.
    pub(super) fn found(&self) -> FoundConditions {
        lock(&self.shared.found).clone()
    }

    /// Tells the worker to end once its messages have been sent. Returns true if the worker has ended, or if [`LAST`]
    /// has passed since the first call.
    pub(super) fn has_ended(&mut self) -> bool {
        if self.end_by.is_none() {
            self.end_by = Some(Instant::now() + LAST);
            let _ = self.sender.send(AlertWorkerMessage::End);
        }
        self.end_by.is_some_and(|by| Instant::now() >= by)
            || self.ended.try_recv() == Err(std::sync::mpsc::TryRecvError::Disconnected)
    }
}

/// The contents of the file.
#[derive(Default, Serialize, Deserialize)]
#[serde(default)]
struct SavedState {
    ledger: AlertLedger,
    restarts: Restarts,
    /// When the worker last looked for dead letters, in Unix milliseconds.
    looked_ms: i64,
}

fn file(run_dir: &Path) -> PathBuf {
    run_dir.join("alerts.json")
}

impl SavedState {
    /// Reads the state that the previous worker has saved. If the file cannot be read, the state starts empty, and
    /// alerts may be sent again.
    fn read(run_dir: &Path) -> SavedState {
        let path = file(run_dir);
        let read = match std::fs::read(&path) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return SavedState::default(),
            other => other.and_then(|bytes| Ok(serde_json::from_slice(&bytes)?)),
        };
        read.unwrap_or_else(|e| {
            log::warn!("{}: {e}; alerts about open findings may be sent again", path.display());
            SavedState::default()
        })
    }

    fn write(bytes: &[u8], run_dir: &Path) -> io::Result<()> {
        let path = file(run_dir);
        let draft = path.with_extension("draft");
        let mut out = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&draft)?;
        out.write_all(bytes)?;
        std::fs::rename(draft, path)
    }
}

struct AlertWorker {
    settings: Arc<Settings>,
    zone: TimeZone,
    senders: Senders,
    topics: RegistryView,
    php: SharedPhpMail,
    shared: Arc<SharedState>,
    /// The lock of the worker that sends. `None`: another worker has the lock.
    lock: Option<File>,
    kept: SavedState,
    /// Whether `kept` differs from the file. If so, the file must be written again.
    is_changed: bool,
    save_fails: TroubleLog,
    next_look: Instant,
}

impl AlertWorker {
    fn run(&mut self, messages: &Receiver<AlertWorkerMessage>) {
        let mut ends = false;
        loop {
            match messages.recv_timeout(TICK) {
                Ok(AlertWorkerMessage::Delivered(became)) => self.note(became),
                Ok(AlertWorkerMessage::End) | Err(RecvTimeoutError::Disconnected) => ends = true,
                Err(RecvTimeoutError::Timeout) => {}
            }
            // Another worker may still hold the lock until it ends. This worker tries again in each round.
            if !self.has_lock() {
                if ends {
                    return;
                }
                continue;
            }
            if !ends {
                self.step();
            }
            self.keep();
            if ends && !self.kept.ledger.outbox.is_sending() {
                return;
            }
        }
    }

    /// Whether this worker is the one that sends alerts. When this worker gets the lock, it continues from where the
    /// previous worker stopped.
    fn has_lock(&mut self) -> bool {
        if self.lock.is_some() {
            return true;
        }
        let run_dir = &self.settings.run_dir;
        let open = || -> io::Result<Option<File>> {
            let file = OpenOptions::new()
                .write(true)
                .create(true)
                .truncate(false)
                .mode(0o600)
                .open(run_dir.join("alerts.lock"))?;
            Ok(file.try_lock().is_ok().then_some(file))
        };
        match open() {
            Ok(None) => false,
            Ok(Some(lock)) => {
                self.lock = Some(lock);
                self.kept = SavedState::read(run_dir);
                true
            }
            Err(e) => {
                log::debug!("cannot lock alerts: {e}");
                false
            }
        }
    }

    fn pace(&self) -> MessageTiming {
        MessageTiming { gather: self.settings.alert.gather, interval: self.settings.alert.interval }
    }

    fn step(&mut self) {
        self.topics.reload();
        let php = lock(&self.php).clone();
        let now = now_ms();
        if Instant::now() >= self.next_look {
            self.next_look = Instant::now() + self.settings.alert.gather.clamp(LOOK[0], LOOK[1]);
            self.is_changed = true;
            self.look_at_dead(&php, now);
            self.look_at_processes(now);
        }
        let findings = lock(&self.shared.findings).clone();
        let routes = Routes { alert: &self.settings.alert, topics: self.topics.now(), php: &php };
        let (pace, ledger) = (self.pace(), &mut self.kept.ledger);
        if let Some(findings) = findings {
            self.is_changed |= ledger.conditions(&findings, now, |notice| routes.recipients(notice));
        }
        ledger.outbox.keep(|to| routes.knows(to));
        let can_be_sent = |to: &Recipient| matches!(to, Recipient::Webhook(_)) || routes.smtp().is_some();
        for dispatch in ledger.outbox.take_due(pace, now, can_be_sent) {
            let message = Message::new(&self.settings.instance, dispatch.notices, &self.zone);
            if !self.senders.send(routes.smtp(), &dispatch.to, message) {
                ledger.outbox.put_off(&dispatch.to);
            }
        }
        let mut found = lock(&self.shared.found);
        match ledger.outbox.trouble() {
            Some(trouble) => drop(found.insert(FindingKind::AlertsNotSent, trouble)),
            None => drop(found.remove(&FindingKind::AlertsNotSent)),
        }
    }

    /// Reports jobs that became dead letters since the last check. The number of these jobs comes from the counters of
    /// this host's processes, and the jobs themselves come from the store.
    fn look_at_dead(&mut self, php: &PhpMail, now: i64) {
        let pages = match counters::read(&self.settings.run_dir) {
            Ok(pages) => pages.iter().map(counters::PageReading::sums).collect::<Vec<_>>(),
            Err(e) => return log::warn!("cannot read the pages of counters: {e}"),
        };
        let since_ms = std::mem::replace(&mut self.kept.looked_ms, now) - CLOCKS.as_millis() as i64;
        for (topic, count) in self.kept.ledger.deaths(&pages) {
            let (jobs, why) = match dead_jobs(&self.settings, &topic, since_ms, count) {
                Ok(jobs) => (jobs, String::new()),
                Err(e) => (Vec::new(), format!("the jobs are not known: {e:#}")),
            };
            let notice = Notice { detail: why, ..Notice::dead(&topic, count, jobs, now) };
            let routes = Routes { alert: &self.settings.alert, topics: self.topics.now(), php };
            for to in routes.recipients(&notice) {
                self.kept.ledger.outbox.put(&to, &notice, now);
            }
        }
    }

    fn look_at_processes(&mut self, now: i64) {
        // If the master does not answer now, it is asked again at the next check.
        let Ok(status) = ask_master(&self.settings.run_dir, MASTER_PATIENCE) else { return };
        let restarting = self.kept.restarts.check(&status, self.settings.alert.restarts_within, now);
        let mut found = lock(&self.shared.found);
        found.retain(|condition, _| condition.process().is_none());
        found.extend(restarting);
    }

    /// Records what happened to a message.
    fn note(&mut self, (to, sent): DeliveryReport) {
        self.is_changed = true;
        let shown = Excerpt(&to);
        let outbox = &mut self.kept.ledger.outbox;
        match sent {
            Ok(()) => {
                log::info!("alerts are sent to {shown}");
                outbox.sent(&to, now_ms());
            }
            Err(e) => {
                log::warn!("cannot send alerts to {shown}: {} (dq tries again)", Excerpt(&e));
                let given_up = outbox.failed(&to, &e.to_string(), e.is_refusal(), now_ms());
                if given_up > 0 {
                    log::error!("{given_up} alerts to {shown} were dropped after a day: {}", Excerpt(&e));
                }
            }
        }
    }

    /// Saves the state if it has changed.
    fn keep(&mut self) {
        if !self.is_changed {
            return;
        }
        self.kept.ledger.outbox.tidy(self.pace(), now_ms());
        let bytes = serde_json::to_vec(&self.kept).expect("the state is plain values");
        match SavedState::write(&bytes, &self.settings.run_dir) {
            Ok(()) => {
                self.is_changed = false;
                self.save_fails.end();
            }
            Err(e) => {
                self.save_fails.pause_after(&format_args!("cannot save the state of alerts: {e}"));
            }
        }
    }
}

/// Returns some of the jobs of a topic that became dead letters at `since_ms` or later.
fn dead_jobs(settings: &Settings, topic: &str, since_ms: i64, count: u64) -> Result<Vec<DeadJob>> {
    // The counters have no room for some topics. They count these topics together, under `(other)`, which is not the
    // name of a topic.
    let Ok(topic) = TopicName::new(topic) else { return Ok(Vec::new()) };
    let limit = usize::try_from(count).unwrap_or(usize::MAX).min(JOBS_NAMED);
    let mut store = store::open(&settings.store, &settings.run_dir).context("cannot open the store")?;
    let dead = store.dead_since(&topic, since_ms, limit)?;
    Ok(dead.iter().map(dead_job).collect())
}

/// Returns what an alert says about a dead letter. The text leaves out the receiver's answer. A person who may change
/// the topic chooses who gets its alerts, but is perhaps not allowed to see answers.
fn dead_job(view: &StoredJob) -> DeadJob {
    let last = view.attempts_log.last();
    let reason = match last {
        None => "its lease ran out, and nobody has settled it".to_owned(),
        Some(attempt) if !attempt.error.is_empty() => attempt.error.clone(),
        Some(attempt) => attempt.status.map_or_else(|| "no answer".to_owned(), |status| status.to_string()),
    };
    DeadJob {
        id: view.key.id.as_str().to_owned(),
        attempts: view.attempts,
        reason,
        died_ms: view.until_ms.unwrap_or_default(),
    }
}
