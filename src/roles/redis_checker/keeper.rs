//! Tells people: of findings that open and close, of dead letters, of processes that are started again and again. On a thread of its
//! own, which waits for nobody who sends. Of all dq-redis-checkers of a host one does so at a time, by a lock; what was told lies in
//! a file in run_dir, from which the next goes on.

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

use super::condition::Condition;
use super::findings::Found;
use super::restarts::Restarts;
use super::routes::{PhpMail, Routes, SharedPhpMail};
use super::senders::{Became, Senders};
use crate::counters;
use crate::excerpt::Excerpt;
use crate::job::TopicName;
use crate::notice::{DeadJob, JOBS_NAMED, Ledger, Message, Notice, Pace, Recipient};
use crate::process::{ask_master, now_ms};
use crate::role::{self, Context, LiveTopics, lock};
use crate::settings::Settings;
use crate::status::Finding;
use crate::store::{self, View};

/// How often it looks whether something is to be done.
const TICK: Duration = Duration::from_millis(500);

/// How often it looks for dead letters, and how processes are, at most; it is as often as messages are gathered.
const LOOK: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(10)];

/// How long the master may take to say how processes are.
const MASTER_PATIENCE: Duration = Duration::from_millis(500);

/// How long the end waits for what is on its way.
const LAST: Duration = Duration::from_secs(5);

/// By so much the clocks of shards may differ from the host's.
const CLOCKS: Duration = Duration::from_secs(5);

/// What others tell the thread, and it them.
#[derive(Default)]
struct Shared {
    /// What is open now; none: nobody has looked yet.
    findings: Mutex<Option<Vec<Finding>>>,
    found: Mutex<Found>,
}

enum Word {
    Became(Became),
    End,
}

/// The thread.
pub(super) struct Alerts {
    shared: Arc<Shared>,
    tell: Sender<Word>,
    ended: Receiver<()>,
    end_by: Option<Instant>,
}

impl Alerts {
    /// Starts it.
    pub(super) fn start(context: &Context, php: SharedPhpMail) -> Result<Alerts> {
        let (shared, settings) = (Arc::new(Shared::default()), Arc::clone(&context.settings));
        let ((tell, told), (end, ended)) = (channel(), channel());
        let zone = context.zone()?;
        let mut keeper = Keeper {
            senders: Senders::start(&settings, &zone, &tell, Word::Became)?,
            topics: context.topics()?,
            shared: Arc::clone(&shared),
            lock: None,
            kept: Kept::default(),
            is_changed: false,
            next_look: Instant::now(),
            settings,
            zone,
            php,
        };
        // What dies from now on is told, also when nobody has looked before.
        if keeper.is_the_one() && !keeper.kept.ledger.is_begun() {
            keeper.look_at_dead(&PhpMail::Unknown, now_ms());
            keeper.is_changed = true;
            keeper.keep();
        }
        role::vital_thread("alerts", move || {
            keeper.run(&told);
            drop(end);
        })?;
        Ok(Alerts { shared, tell, ended, end_by: None })
    }

    /// Tells what is open now.
    pub(super) fn tell(&self, open: Vec<Finding>) {
        *lock(&self.shared.findings) = Some(open);
    }

    /// What it has found itself.
    pub(super) fn found(&self) -> Found {
        lock(&self.shared.found).clone()
    }

    /// Has it end when what is on its way has arrived. Tells whether it has.
    pub(super) fn has_ended(&mut self) -> bool {
        if self.end_by.is_none() {
            self.end_by = Some(Instant::now() + LAST);
            let _ = self.tell.send(Word::End);
        }
        self.end_by.is_some_and(|by| Instant::now() >= by)
            || self.ended.try_recv() == Err(std::sync::mpsc::TryRecvError::Disconnected)
    }
}

/// What lies in the file.
#[derive(Default, Serialize, Deserialize)]
#[serde(default)]
struct Kept {
    ledger: Ledger,
    restarts: Restarts,
    /// When dead letters were looked for last, Unix milliseconds.
    looked_ms: i64,
}

fn file(run_dir: &Path) -> PathBuf {
    run_dir.join("alerts.json")
}

impl Kept {
    /// What the one before has left; none: it cannot be read, and alerts may be told once more.
    fn read(run_dir: &Path) -> Kept {
        let path = file(run_dir);
        let read = match std::fs::read(&path) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Kept::default(),
            other => other.and_then(|bytes| Ok(serde_json::from_slice(&bytes)?)),
        };
        read.unwrap_or_else(|e| {
            log::warn!("{}: {e}; what is open is told anew", path.display());
            Kept::default()
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

struct Keeper {
    settings: Arc<Settings>,
    zone: TimeZone,
    senders: Senders,
    topics: LiveTopics,
    php: SharedPhpMail,
    shared: Arc<Shared>,
    /// Held by the one that tells.
    lock: Option<File>,
    kept: Kept,
    /// It is no longer as it lies in the file.
    is_changed: bool,
    next_look: Instant,
}

impl Keeper {
    fn run(&mut self, told: &Receiver<Word>) {
        let mut ends = false;
        loop {
            match told.recv_timeout(TICK) {
                Ok(Word::Became(became)) => self.note(became),
                Ok(Word::End) | Err(RecvTimeoutError::Disconnected) => ends = true,
                Err(RecvTimeoutError::Timeout) => {}
            }
            // Another one may be about to end.
            if !self.is_the_one() {
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

    /// Whether this one tells; it goes on from where the one before stopped.
    fn is_the_one(&mut self) -> bool {
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
                self.kept = Kept::read(run_dir);
                true
            }
            Err(e) => {
                log::debug!("cannot lock alerts: {e}");
                false
            }
        }
    }

    fn pace(&self) -> Pace {
        Pace { gather: self.settings.alert.gather, interval: self.settings.alert.interval }
    }

    fn step(&mut self) {
        self.topics.look();
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
            self.is_changed |= ledger.conditions(&findings, now, |notice| routes.of(notice));
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
            Some(trouble) => drop(found.insert(Condition::AlertsNotSent, trouble)),
            None => drop(found.remove(&Condition::AlertsNotSent)),
        }
    }

    /// Tells of jobs that have died since the last look. How many is what the processes of this host have counted; which, is asked
    /// of the store.
    fn look_at_dead(&mut self, php: &PhpMail, now: i64) {
        let pages = match counters::read(&self.settings.run_dir) {
            Ok(pages) => pages.iter().map(counters::Reading::sums).collect::<Vec<_>>(),
            Err(e) => return log::warn!("cannot read the pages of counters: {e}"),
        };
        let since_ms = std::mem::replace(&mut self.kept.looked_ms, now) - CLOCKS.as_millis() as i64;
        for (topic, count) in self.kept.ledger.deaths(&pages) {
            let (jobs, why) = match dead_jobs(&self.settings, &topic, since_ms, count) {
                Ok(jobs) => (jobs, String::new()),
                Err(e) => (Vec::new(), format!("which ones is not known: {e:#}")),
            };
            let notice = Notice { detail: why, ..Notice::dead(&topic, count, jobs, now) };
            let routes = Routes { alert: &self.settings.alert, topics: self.topics.now(), php };
            for to in routes.of(&notice) {
                self.kept.ledger.outbox.put(&to, &notice, now);
            }
        }
    }

    fn look_at_processes(&mut self, now: i64) {
        // A master that says nothing now is asked again.
        let Ok(status) = ask_master(&self.settings.run_dir, MASTER_PATIENCE) else { return };
        let restarting = self.kept.restarts.look(&status, self.settings.alert.restarts_within, now);
        let mut found = lock(&self.shared.found);
        found.retain(|condition, _| condition.process().is_none());
        found.extend(restarting);
    }

    /// Notes what became of a message.
    fn note(&mut self, (to, sent): Became) {
        self.is_changed = true;
        let shown = Excerpt(&to);
        let outbox = &mut self.kept.ledger.outbox;
        match sent {
            Ok(()) => {
                log::info!("alerts are sent to {shown}");
                outbox.sent(&to, now_ms());
            }
            Err(e) => {
                log::warn!("cannot send alerts to {shown}: {}; it is tried again", Excerpt(&e));
                let given_up = outbox.failed(&to, &e.to_string(), now_ms());
                if given_up > 0 {
                    log::error!("{given_up} alerts to {shown} are given up, after a day: {}", Excerpt(&e));
                }
            }
        }
    }

    /// Writes down what was told, if it has changed.
    fn keep(&mut self) {
        if !self.is_changed {
            return;
        }
        self.kept.ledger.outbox.tidy(self.pace(), now_ms());
        let bytes = serde_json::to_vec(&self.kept).expect("what is kept is plain values");
        match Kept::write(&bytes, &self.settings.run_dir) {
            Ok(()) => self.is_changed = false,
            Err(e) => log::warn!("cannot write what was told: {e}"),
        }
    }
}

/// Some of the jobs of a topic that died at that moment or later.
fn dead_jobs(settings: &Settings, topic: &str, since_ms: i64, count: u64) -> Result<Vec<DeadJob>> {
    // What is counted together is no topic's.
    let Ok(topic) = TopicName::new(topic) else { return Ok(Vec::new()) };
    let limit = usize::try_from(count).unwrap_or(usize::MAX).min(JOBS_NAMED);
    let mut store = store::open(&settings.store, &settings.run_dir).context("cannot open the store")?;
    let dead = store.dead_since(&topic, since_ms, limit)?;
    Ok(dead.iter().map(dead_job).collect())
}

fn dead_job(view: &View) -> DeadJob {
    let last = view.attempts_log.last();
    let reason = match last {
        None => "its lease ran out, and nobody has settled it".to_owned(),
        Some(attempt) if !attempt.error.is_empty() => attempt.error.clone(),
        Some(attempt) => attempt.status.map_or_else(|| "no answer".to_owned(), |status| status.to_string()),
    };
    let answer = last.map(|attempt| attempt.answer.trim()).filter(|answer| !answer.is_empty());
    DeadJob {
        id: view.key.id.as_str().to_owned(),
        attempts: view.attempts,
        reason: answer.map_or(reason.clone(), |answer| format!("{reason}: {answer}")),
        died_ms: view.until_ms.unwrap_or_default(),
    }
}
