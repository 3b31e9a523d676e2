//! Moves jobs from the store to the PHP daemon's Redis, batch by batch. The export may be killed between any two steps.
//!
//! | step | if killed after it: in the store | in the PHP daemon's Redis | the next run |
//! |---|---|---|---|
//! | 0 read | the job | nothing, or the job that the import has taken over, with the import's note | moves the job |
//! | 1 write the job and remove its note, in one transaction | the job | the job | writes it once more, and goes on |
//! | 2 remove it from each other Redis where it is noted as taken over | the job | the job | the same as after step 1 |
//! | 3 remove the job from the store | nothing | the job | has nothing to do |
//! | 4 after all pages: remove noted jobs that are not pending in dq | nothing, or a dead letter | nothing | goes on |
//!
//! So step 4 removes only jobs that dq has delivered or deleted, and jobs that are dead letters in dq. No daemon runs
//! during the export.

use std::collections::{BTreeMap, HashSet};
use std::fmt::Write as _;

use anyhow::{Context as _, Result, bail};
use serde::Serialize;

use super::super::import::pending::{ImportNote, PhpJobInfo, PhpTimeContext, display_name, split};
use super::super::import::source::Source;
use super::super::progress::Progress;
use super::destination::{self, ExportedJob};
use super::fit::{self, PhpCompatibility};
use model::fields::{BodyFields, DaemonFields};
use model::job::{JobId, JobKey, State, TopicName};
use store::{Deleted, HELD_MS, Store, StoredJob};

/// How many jobs are read and written at once.
const BATCH: usize = 256;

/// What the records of the moved jobs say.
const EXPORTED: &str = "exported to the PHP daemon's Redis (dq export php-dq)";

/// The maximum number of jobs in the summary's list of jobs that were not moved.
const NAMED: usize = 10;

/// The result of an export.
#[derive(Debug, Default, Serialize)]
pub struct ExportSummary {
    /// True: this was a dry run, which changed nothing. The counts then say what would be done.
    pub dry_run: bool,
    /// Jobs that were moved.
    pub moved: u64,
    /// Moved jobs that lose their own tags or limit of attempts, because the PHP daemon has no place for them. With
    /// --reduce, jobs may also lose their headers, priority number, followers and end of life (`expire_after`).
    pub reduced: u64,
    /// Jobs that were removed from the PHP daemon's Redis: dq has delivered or deleted them since it took them over, or
    /// they are dead letters in dq.
    pub removed: u64,
    /// Dead letters, which stay in dq.
    pub dead: u64,
    /// Jobs that stay in dq, because the PHP daemon cannot take them or a step failed.
    pub left: u64,
    /// How many jobs stay in dq for each reason.
    pub reasons: BTreeMap<String, u64>,
    /// The first jobs that stay in dq, with the reasons.
    pub named: Vec<UnexportedJob>,
    /// Where the addresses differ from the PHP daemon's table `dq_redis`, or why this is not known.
    pub differences: Vec<String>,
    /// What else the user should look at.
    pub notes: Vec<String>,
}

/// A job that was not moved.
#[derive(Debug, Serialize)]
pub struct UnexportedJob {
    /// Topic and id.
    pub job: String,
    /// Why it stays in dq.
    pub reason: String,
}

impl ExportSummary {
    /// Returns whether all jobs were moved to where the PHP daemon reads them.
    pub fn is_whole(&self) -> bool {
        self.left == 0 && self.differences.is_empty()
    }

    fn add_left_job(&mut self, job: String, reason: &str) {
        self.left += 1;
        *self.reasons.entry(reason.to_owned()).or_default() += 1;
        if self.named.len() < NAMED {
            self.named.push(UnexportedJob { job, reason: reason.to_owned() });
        }
    }

    /// Returns the summary as text.
    pub fn table(&self) -> String {
        let rows = [
            (if self.dry_run { "would be moved" } else { "moved" }, self.moved),
            ("  without what only dq has, such as tags", self.reduced),
            ("removed there: delivered or deleted by dq", self.removed),
            ("dead letters, which stay in dq", self.dead),
            ("left in dq", self.left),
        ];
        let mut text = String::new();
        for (name, count) in rows {
            let _ = writeln!(text, "{name:<45} {count:>9}");
        }
        for UnexportedJob { job, reason } in &self.named {
            let _ = writeln!(text, "left in dq: {job}: {reason}");
        }
        let more = self.left - self.named.len() as u64;
        if more > 0 {
            let _ = writeln!(text, "and {more} more. Of all jobs that are left:");
            for (reason, jobs) in &self.reasons {
                let _ = writeln!(text, "{jobs:>9}  {reason}");
            }
        }
        for difference in &self.differences {
            let _ = writeln!(text, "the PHP daemon may not read these Redis servers: {difference}");
        }
        for note in &self.notes {
            let _ = writeln!(text, "note: {note}");
        }
        text
    }
}

/// An export that runs.
pub struct Export {
    store: Box<dyn Store>,
    /// The PHP daemon's nodes, in the order of its table dq_redis.
    nodes: Vec<Source>,
    buckets: u32,
    clock: PhpTimeContext,
    fit: PhpCompatibility,
    progress: Progress,
    /// The result so far.
    pub summary: ExportSummary,
}

impl Export {
    pub fn new(
        store: Box<dyn Store>,
        nodes: Vec<Source>,
        buckets: u32,
        clock: PhpTimeContext,
        fit: PhpCompatibility,
        dry_run: bool,
        progress: Progress,
    ) -> Export {
        let summary = ExportSummary { dry_run, ..ExportSummary::default() };
        Export { store, nodes, buckets, clock, fit, progress, summary }
    }

    /// Moves all pending jobs. Then removes jobs from the PHP daemon's Redis: the jobs that dq has delivered or
    /// deleted, and the jobs that are dead letters.
    pub fn run(&mut self) -> Result<()> {
        let topics = self.store.counts()?;
        let met: HashSet<TopicName> = topics.iter().map(|topic| topic.topic.clone()).collect();
        for topic in topics {
            let name = topic.topic;
            self.summary.dead += topic.dead;
            if topic.delayed + topic.ready + topic.leased > 0 {
                self.summary.notes.extend(self.fit.note(&name));
            }
            for state in [State::Delayed, State::Ready, State::Leased] {
                self.move_jobs(&name, state)?;
            }
        }
        for node in 0..self.nodes.len() {
            self.remove_done(node, &met)?;
        }
        Ok(())
    }

    fn move_jobs(&mut self, topic: &TopicName, state: State) -> Result<()> {
        let mut cursor = None;
        loop {
            let page = self.store.list(topic, state, cursor.as_deref(), BATCH)?;
            if let Some(away) = page.away.first() {
                bail!(
                    "node {away} does not answer: nothing is removed from the PHP daemon's Redis before all jobs are moved"
                );
            }
            self.move_page(&page.jobs)?;
            self.progress.step(page.jobs.len() as u64);
            match page.next {
                Some(next) => cursor = Some(next),
                None => return Ok(()),
            }
        }
    }

    fn move_page(&mut self, jobs: &[StoredJob]) -> Result<()> {
        let mut by_node: Vec<Vec<ExportedJob>> = self.nodes.iter().map(|_| Vec::new()).collect();
        let mut keys = Vec::new();
        for job in jobs {
            let returned = match self.returned(job) {
                Ok(returned) => returned,
                Err(reason) => {
                    self.summary.add_left_job(job.key.to_string(), reason);
                    continue;
                }
            };
            by_node[home_of(&returned.name, self.nodes.len())].push(returned);
            keys.push(job.key.clone());
            self.summary.moved += 1;
            self.summary.reduced += u64::from(fit::is_reduced(job));
        }
        if self.summary.dry_run {
            return Ok(());
        }
        let clock = self.clock.clone();
        // An entry without a note, or one that has changed since its note, was added by the PHP daemon.
        let is_other =
            |entry: &PhpJobInfo| matches!(note(entry, &clock), ImportNote::Nothing | ImportNote::Otherwise);
        for (node, jobs) in self.nodes.iter_mut().zip(&by_node) {
            for name in destination::give_back(node, jobs, is_other)? {
                self.summary.moved -= 1;
                let reason = "the PHP daemon has another job of this name: delete one of them";
                self.summary.add_left_job(display_name(&name), reason);
                keys.retain(|key| format!("{}:{}", key.topic, key.id).as_bytes() != name);
            }
        }
        self.remove_elsewhere(&keys)?;
        for (key, deleted) in keys.iter().zip(self.store.delete_with_note(&keys, EXPORTED)) {
            if !matches!(deleted, Ok(Deleted::Done)) {
                self.summary.moved -= 1;
                let reason = "it is written, but could not be removed: run the export again";
                self.summary.add_left_job(key.to_string(), reason);
            }
        }
        // No other process maintains the store now, so its log would grow without end. If this call fails, it is
        // repeated after the next page.
        let _ = self.store.maintain();
        Ok(())
    }

    /// Each of these jobs has been written to one Redis. Removes the job from each other Redis where an import has
    /// taken it over. (The order of the rows decides which Redis a job belongs to. This order may have been different
    /// when the PHP daemon added the job.)
    fn remove_elsewhere(&mut self, keys: &[JobKey]) -> Result<()> {
        let names: Vec<Vec<u8>> =
            keys.iter().map(|key| format!("{}:{}", key.topic, key.id).into_bytes()).collect();
        let clock = self.clock.clone();
        let count = self.nodes.len();
        for (place, node) in self.nodes.iter_mut().enumerate() {
            let is_elsewhere = |name: &&Vec<u8>| home_of(name, count) != place;
            let elsewhere: Vec<Vec<u8>> = names.iter().filter(is_elsewhere).cloned().collect();
            let noted = node.noted_of(elsewhere)?;
            if !noted.is_empty() {
                let ready = node.ready(|name| noted.iter().any(|noted| noted == name))?;
                let is_taken = |entry: &PhpJobInfo| note(entry, &clock) != ImportNote::Otherwise;
                destination::remove(node, &noted, &ready, is_taken)?;
            }
        }
        Ok(())
    }

    /// Returns a job in the PHP daemon's form, or the reason why the PHP daemon cannot keep it.
    fn returned(&self, job: &StoredJob) -> Result<ExportedJob, &'static str> {
        if job.due_ms == HELD_MS {
            return Err("an import was interrupted: run `dq import php-dq` again first");
        }
        self.fit.check(job)?;
        if !job.body.as_str().starts_with(['{', '[']) {
            return Err(
                "its body is neither an object nor a list, so the PHP daemon cannot add its own fields",
            );
        }
        // The attempt of a lease has not ended, so it has not failed.
        let failures = job.attempts.saturating_sub(u32::from(job.state == State::Leased));
        let daemon_fields = DaemonFields { due_ms: job.due_ms, added_ms: job.stamp_us / 1000, failures };
        let fields = BodyFields::from_body(&job.body).with(daemon_fields, &self.clock.zone);
        let body = serde_json::to_string(&fields).map_err(|_| "its body cannot be written as JSON")?;
        let topic = job.key.topic.as_str();
        Ok(ExportedJob {
            name: format!("{topic}:{}", job.key.id).into_bytes(),
            body,
            // Rounded up, so that the job is not early.
            due_s: (job.due_ms + 999).div_euclid(1000),
            bucket: crc32fast::hash(topic.as_bytes()) % self.buckets,
        })
    }

    /// Removes from a node the jobs that dq took over from there and that are not pending in dq any more. (They were
    /// delivered or deleted, or are dead letters.) `met` has the topics that have jobs in the store, or had jobs there
    /// before.
    fn remove_done(&mut self, node: usize, met: &HashSet<TopicName>) -> Result<()> {
        let ready = self.nodes[node].ready(|_| true)?;
        let clock = self.clock.clone();
        // An entry that has changed since it was noted is another job, which the PHP daemon has added.
        let gone = |entry: &PhpJobInfo| note(entry, &clock) != ImportNote::Otherwise;
        let mut cursor = 0;
        loop {
            let page = self.nodes[node].noted_names(cursor)?;
            let mut done = Vec::new();
            for name in page.items {
                let key = job_key(&name)?;
                if !met.contains(&key.topic) {
                    bail!(
                        "{} was taken over, but the store never had a job of topic {}: it is not the store that took it \
                         over, so nothing is removed",
                        display_name(&name),
                        key.topic
                    );
                }
                if self.store.get(&key)?.is_none_or(|view| view.state == State::Dead) {
                    done.push(name);
                }
            }
            self.summary.removed += done.len() as u64;
            if !self.summary.dry_run {
                destination::remove(&mut self.nodes[node], &done, &ready, gone)?;
            }
            match page.next {
                Some(next) => cursor = next,
                None => break,
            }
        }
        if !self.summary.dry_run && self.summary.is_whole() {
            self.nodes[node].forget_notes()?;
        }
        Ok(())
    }
}

/// Returns the position of the Redis that has the job with this name. The PHP daemon uses the same formula:
/// `crc32("topic:id") % number of nodes`.
fn home_of(name: &[u8], nodes: usize) -> usize {
    crc32fast::hash(name) as usize % nodes
}

/// Returns the key of the job with this name.
fn job_key(name: &[u8]) -> Result<JobKey> {
    let text = |bytes| std::str::from_utf8(bytes).ok();
    let key = split(name).and_then(|(topic, id)| {
        let topic = TopicName::new(text(topic)?).ok()?;
        Some(JobKey { topic, id: JobId::new(text(id)?).ok()? })
    });
    key.with_context(|| format!("the note of {} is not of a job", display_name(name)))
}

/// Returns what is noted about an entry.
fn note(entry: &PhpJobInfo, clock: &PhpTimeContext) -> ImportNote {
    entry.noted(entry.parse(clock).ok().and_then(|parsed| parsed.notify_ms))
}
