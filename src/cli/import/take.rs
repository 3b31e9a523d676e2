//! Takes over: from a source into the store, batch by batch, in steps between which the import may be killed.
//!
//! A job is held back in the store until it is noted at its source: nobody delivers a job of which the next run would not
//! know that it is there. Hence no job is delivered, gone from the store, and added again.
//!
//! | step | killed behind it: in the store | noted at the source | the next run |
//! |---|---|---|---|
//! | 0 read | nothing | nothing | takes it as if it came for the first time |
//! | 1 add, held back | held back | nothing | finds its own job at step 1, and goes on with step 2 |
//! | 2 note that it is held | held back | `held:` and its fingerprint | goes on with step 3 |
//! | 3 release: its due time | delivered, or waits for it | `held:` and its fingerprint | step 3 finds nothing held back, and changes nothing |
//! | 4 note that it is taken over | delivered, or waits for it | its fingerprint | passes it over |
//!
//! Step 3 changes a job only if it is held back still. What a client adds, deletes or changes meanwhile stays so.

use std::collections::{BTreeMap, HashMap, HashSet};

use anyhow::{Result, bail};

use super::super::progress::Progress;
use super::pending::{Clock, Entry, Noted, Understood, split};
use super::source::Source;
use super::summary::Summary;
use crate::job::{Due, JobKey, NewJob, Priority, State, TopicName};
use crate::store::{Added, HELD_MS, Store, StoreError};

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
    clock: Clock,
    /// How many jobs show that the PHP daemon's time zone is another one, by how many minutes.
    zone_errors: BTreeMap<i64, u64>,
    fruitless: u32,
    progress: Progress,
    /// What it came to so far.
    pub summary: Summary,
}

/// A job on its way into the store.
struct Passage {
    entry: Entry,
    job: NewJob,
    /// What was noted of it before.
    noted: Noted,
}

/// Whose job it is that has the id in the store already.
enum Taken {
    /// An import's that was killed behind step 1.
    HeldBack,
    /// An import's, of what the entry was before.
    Older,
    /// A client's.
    Client,
}

impl Import {
    /// One into that store, or a dry run.
    pub fn new(
        mut store: Option<Box<dyn Store>>,
        registered: HashSet<TopicName>,
        only: Vec<TopicName>,
        clock: Clock,
        summary: Summary,
        progress: Progress,
    ) -> Import {
        let met = store.as_mut().and_then(|store| store.counts().ok());
        let met = met.map(|counts| counts.into_iter().map(|c| c.topic).collect());
        let zone_errors = BTreeMap::new();
        Import { store, met, registered, only, clock, zone_errors, fruitless: 0, progress, summary }
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
        // One that many jobs agree on; a single one may have it from the business.
        if let Some((minutes, jobs)) = self.zone_errors.iter().max_by_key(|(_, jobs)| **jobs) {
            self.summary.notes.push(format!(
                "timezone: the notify_time of {jobs} jobs is read {} minutes {} than they are due, so that the PHP daemon \
                 seems to have another time zone: set `timezone` to it",
                minutes.abs(),
                if *minutes > 0 { "later" } else { "earlier" }
            ));
        }
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
        for bucket in source.buckets().to_vec() {
            let mut cursor = Some(0);
            while let Some(at) = cursor {
                let page = source.bucket(&bucket, at)?;
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
        let passages = self.begin(source, entries)?;
        if passages.is_empty() {
            return Ok(());
        }
        let Some(mut store) = self.store.take() else {
            self.summary.taken += passages.len() as u64;
            return Ok(());
        };
        let passed = self.pass(source, store.as_mut(), passages);
        // No daemon may run, and its log would grow without end. What fails is done after the next batch, or by the daemon.
        let _ = store.maintain();
        self.store = Some(store);
        passed
    }

    /// Step 0: understands entries. Gives those that are not taken over yet.
    fn begin(&mut self, source: &Source, entries: Vec<Entry>) -> Result<Vec<Passage>> {
        let mut passages = Vec::new();
        for entry in entries {
            self.summary.saw(&entry);
            let Understood { job, notify_ms } = match entry.understand(&self.clock) {
                Ok(understood) => understood,
                Err(reason) => {
                    self.summary.cannot += 1;
                    self.summary.leave(&entry, &source.shown, reason);
                    continue;
                }
            };
            if !self.registered.contains(&job.key.topic) {
                *self.summary.unregistered.entry(job.key.topic.to_string()).or_default() += 1;
            }
            if let Some(minutes) = entry.zone_error_min(notify_ms) {
                *self.zone_errors.entry(minutes).or_default() += 1;
            }
            let noted = entry.noted(notify_ms);
            if matches!(noted, Noted::Held | Noted::Taken) {
                self.check_store(source, &entry, &job.key.topic)?;
            }
            match noted {
                Noted::Taken => self.summary.already += 1,
                _ => passages.push(Passage { entry, job, noted }),
            }
        }
        Ok(passages)
    }

    /// What is noted and cannot have been in this store is in another one.
    fn check_store(&self, source: &Source, entry: &Entry, topic: &TopicName) -> Result<()> {
        if self.met.as_ref().is_some_and(|met| !met.contains(topic)) {
            bail!(
                "{}: {} is noted as taken over, but this store never had a job of topic {topic}: it is a new one \
                 (to take all of them once more: redis-cli DEL {})",
                source.shown,
                entry.shown(),
                source.notes()
            );
        }
        Ok(())
    }

    /// Steps 1 to 4.
    fn pass(&mut self, source: &mut Source, store: &mut dyn Store, passages: Vec<Passage>) -> Result<()> {
        let topics: Vec<TopicName> = passages.iter().map(|passage| passage.job.key.topic.clone()).collect();
        let (held, new): (Vec<_>, Vec<_>) = passages.into_iter().partition(|p| p.noted == Noted::Held);
        let mut failed = None;
        let (added, kept) = self.hold(source, store, new, &mut failed);
        let mut notes: Vec<(&[u8], Vec<u8>)> =
            added.iter().map(|passage| (&*passage.entry.name, passage.entry.held_note())).collect();
        let is_taken = |entry: &Entry| entry.fingerprint().into_bytes();
        notes.extend(kept.iter().map(|entry| (&*entry.name, is_taken(entry))));
        source.note(&notes)?;
        let released = self.release(source, store, held.into_iter().chain(added).collect(), &mut failed);
        let notes: Vec<(&[u8], Vec<u8>)> =
            released.iter().map(|entry| (&*entry.name, is_taken(entry))).collect();
        source.note(&notes)?;
        let is_fruitless = released.is_empty() && kept.is_empty();
        if let Some(met) = &mut self.met {
            met.extend(topics);
        }
        match failed {
            Some(e) if is_fruitless => {
                self.fruitless += 1;
                if self.fruitless >= FRUITLESS {
                    bail!("the store has taken nothing for {FRUITLESS} batches: {e}");
                }
            }
            _ => self.fruitless = 0,
        }
        Ok(())
    }

    /// Step 1: adds jobs, held back. Gives those that are there now, and the entries whose ids clients have taken.
    fn hold(
        &mut self,
        source: &Source,
        store: &mut dyn Store,
        new: Vec<Passage>,
        failed: &mut Option<StoreError>,
    ) -> (Vec<Passage>, Vec<Entry>) {
        let hold = |passage: &Passage| NewJob { due: Due::At(HELD_MS), ..passage.job.clone() };
        let jobs: Vec<NewJob> = new.iter().map(hold).collect();
        let added = if jobs.is_empty() { Vec::new() } else { store.add(&jobs) };
        let (mut there, mut kept) = (Vec::new(), Vec::new());
        for (passage, added) in new.into_iter().zip(added) {
            let taken = match added {
                Ok(Added::New { .. } | Added::Replaced { .. }) => Ok(None),
                Ok(Added::Kept { .. } | Added::Rejected) => whose(store, &passage).map(Some),
                Err(e) => Err(e),
            };
            match taken {
                Ok(None | Some(Taken::HeldBack)) => there.push(passage),
                Ok(Some(Taken::Client)) => {
                    self.summary.kept += 1;
                    kept.push(passage.entry);
                }
                Ok(Some(Taken::Older)) => {
                    self.summary.changed += 1;
                    let reason = "it has changed since it was taken over, and dq still has it as it was: \
                                  delete that one to take this one";
                    self.summary.leave(&passage.entry, &source.shown, reason);
                }
                Err(e) => self.fail(source, &passage.entry, e, failed),
            }
        }
        (there, kept)
    }

    /// Step 3: gives jobs their due times. Gives those that have it.
    fn release(
        &mut self,
        source: &Source,
        store: &mut dyn Store,
        held: Vec<Passage>,
        failed: &mut Option<StoreError>,
    ) -> Vec<Entry> {
        let jobs: Vec<(JobKey, Due)> = held.iter().map(|p| (p.job.key.clone(), p.job.due)).collect();
        let released = if jobs.is_empty() { Vec::new() } else { store.release(&jobs) };
        let mut done = Vec::new();
        for (Passage { entry, noted, .. }, released) in held.into_iter().zip(released) {
            match released {
                // The run before was killed behind its step 3.
                Ok(false) if noted == Noted::Held => self.summary.already += 1,
                Ok(_) => self.summary.taken += 1,
                Err(e) => {
                    self.fail(source, &entry, e, failed);
                    continue;
                }
            }
            done.push(entry);
        }
        done
    }

    fn fail(&mut self, source: &Source, entry: &Entry, e: StoreError, failed: &mut Option<StoreError>) {
        self.summary.failed += 1;
        self.summary.leave(entry, &source.shown, format!("{}: {e}", e.code()));
        *failed = Some(e);
    }
}

/// Whose job it is that has the id of this one.
fn whose(store: &mut dyn Store, passage: &Passage) -> Result<Taken, StoreError> {
    let there = store.get(&passage.job.key)?;
    let held = there.filter(|view| view.state == State::Delayed && view.due_ms == HELD_MS);
    Ok(match held {
        Some(view) if view.body == passage.job.body => Taken::HeldBack,
        Some(_) => Taken::Older,
        None if passage.noted == Noted::Nothing => Taken::Client,
        None => Taken::Older,
    })
}
