//! Takes over: from a source into the store, and then a note at the source. A crash between any two of these leaves jobs
//! that are in the store and not noted: the next run adds them again, and the store keeps those that it has.

use std::collections::{HashMap, HashSet};

use anyhow::{Result, bail};

use super::super::progress::Progress;
use super::pending::{Entry, split};
use super::source::Source;
use super::summary::Summary;
use crate::job::{NewJob, Priority, TopicName};
use crate::store::{Added, Store};

/// How many jobs are handed to the store at once.
const BATCH: usize = 256;

/// After so many batches in a row of which the store took nothing, it is not asked for more.
const FRUITLESS: u32 = 5;

/// One import.
pub struct Import {
    /// Where the jobs go; none: a dry run.
    store: Option<Box<dyn Store>>,
    /// The topics of which the store ever had a job; none: it does not say.
    met: Option<HashSet<TopicName>>,
    registered: HashSet<TopicName>,
    /// The topics that are asked for; empty: all.
    only: Vec<TopicName>,
    fruitless: u32,
    progress: Progress,
    /// What it came to so far.
    pub summary: Summary,
}

impl Import {
    /// One into that store, or a dry run.
    pub fn new(
        mut store: Option<Box<dyn Store>>,
        registered: HashSet<TopicName>,
        only: Vec<TopicName>,
        progress: Progress,
    ) -> Import {
        let met = store.as_mut().and_then(|store| store.counts().ok());
        let met = met.map(|counts| counts.into_iter().map(|c| c.topic).collect());
        let summary = Summary { dry_run: store.is_none(), ..Summary::default() };
        Import { store, met, registered, only, fruitless: 0, progress, summary }
    }

    fn wants(&self, name: &[u8]) -> bool {
        let topic = split(name).map_or(name, |(topic, _)| topic);
        self.only.is_empty() || self.only.iter().any(|t| t.as_str().as_bytes() == topic)
    }

    /// Takes over what there is in these. What stops it is in the summary.
    pub fn take_over(&mut self, sources: &mut [Source]) {
        let taken = sources.iter_mut().try_for_each(|source| self.take_from(source));
        self.progress.end();
        self.summary.stopped = taken.err().map(|e| format!("{e:#}"));
    }

    fn take_from(&mut self, source: &mut Source) -> Result<()> {
        let ready = source.ready(|name| self.wants(name))?;
        let mut cursor = Some(0);
        while let Some(at) = cursor {
            let page = source.bodies(at)?;
            let seen = page.items.len() as u64;
            let bodies: Vec<_> = page.items.into_iter().filter(|(name, _)| self.wants(name)).collect();
            let mut bodies = bodies.into_iter().peekable();
            while bodies.peek().is_some() {
                let some = bodies.by_ref().take(BATCH).collect();
                let entries = source.entries_of(some, &ready)?;
                self.take(source, entries)?;
            }
            self.progress.step(seen);
            cursor = page.next;
        }
        self.look_for_orphans(source, ready)
    }

    /// Names that lead nowhere.
    fn look_for_orphans(&mut self, source: &mut Source, ready: HashMap<Vec<u8>, Priority>) -> Result<()> {
        for bucket in [0, 1] {
            let mut cursor = Some(0);
            while let Some(at) = cursor {
                let page = source.bucket(bucket, at)?;
                // Those of the lists come by themselves.
                let wanted =
                    page.items.into_iter().filter(|name| self.wants(name) && !ready.contains_key(name));
                self.summary.found_orphans(&source.without_entry(wanted.collect())?);
                cursor = page.next;
            }
        }
        let mut names = ready.into_keys().peekable();
        while names.peek().is_some() {
            let some = names.by_ref().take(BATCH).collect();
            self.summary.found_orphans(&source.without_entry(some)?);
        }
        Ok(())
    }

    fn take(&mut self, source: &mut Source, entries: Vec<Entry>) -> Result<()> {
        let (mut jobs, mut from) = (Vec::new(), Vec::new());
        for entry in entries {
            self.summary.saw(&entry);
            let job = match entry.job() {
                Ok(job) => job,
                Err(reason) => {
                    self.summary.cannot += 1;
                    self.summary.leave(&entry, &source.shown, reason);
                    continue;
                }
            };
            if !self.registered.contains(&job.key.topic) {
                *self.summary.unregistered.entry(job.key.topic.to_string()).or_default() += 1;
            }
            if self.is_taken(source, &entry, &job)? {
                self.summary.already += 1;
            } else {
                jobs.push(job);
                from.push(entry);
            }
        }
        if jobs.is_empty() {
            return Ok(());
        }
        let Some(store) = &mut self.store else {
            self.summary.taken += jobs.len() as u64;
            return Ok(());
        };
        let added = store.add(&jobs);
        let (mut notes, mut failed) = (Vec::new(), None);
        for (entry, added) in from.iter().zip(added) {
            match added {
                Ok(Added::New { .. } | Added::Replaced { .. }) => self.summary.taken += 1,
                Ok(Added::Kept { .. } | Added::Rejected) if entry.noted.is_none() => self.summary.kept += 1,
                Ok(Added::Kept { .. } | Added::Rejected) => {
                    self.summary.changed += 1;
                    let reason = "it has changed since it was taken over, and dq still has it as it was: \
                                  delete that one to take this one";
                    self.summary.leave(entry, &source.shown, reason);
                    continue;
                }
                Err(e) => {
                    self.summary.failed += 1;
                    self.summary.leave(entry, &source.shown, format!("{}: {e}", e.code()));
                    failed = Some(e);
                    continue;
                }
            }
            notes.push((&*entry.name, entry.fingerprint()));
        }
        source.note(&notes)?;
        // No daemon may run, and its log would grow without end. What fails is done after the next batch, or by the daemon.
        let _ = store.maintain();
        self.fruitless = if notes.is_empty() && failed.is_some() { self.fruitless + 1 } else { 0 };
        match failed {
            Some(e) if self.fruitless >= FRUITLESS => {
                bail!("the store has taken nothing for {FRUITLESS} batches: {e}")
            }
            _ => {}
        }
        if let Some(met) = &mut self.met {
            met.extend(jobs.into_iter().map(|job| job.key.topic));
        }
        Ok(())
    }

    /// Whether a job is noted as it is. What is noted and cannot have been in this store is in another one.
    fn is_taken(&self, source: &Source, entry: &Entry, job: &NewJob) -> Result<bool> {
        let topic = &job.key.topic;
        let is_taken = entry.noted.as_deref() == Some(entry.fingerprint().as_bytes());
        if is_taken && self.met.as_ref().is_some_and(|met| !met.contains(topic)) {
            bail!(
                "{}: {} is noted as taken over, but this store never had a job of topic {topic}: it is a new one \
                 (to take all of them once more: redis-cli DEL {})",
                source.shown,
                entry.shown(),
                source.notes()
            );
        }
        Ok(is_taken)
    }
}
