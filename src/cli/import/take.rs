//! Takes jobs over from a source into the store, batch by batch. The import may be killed between any two steps.
//!
//! A job is held back in the store until its source has a note about it. So when a job is delivered, the next run
//! already knows that the job was taken over. Otherwise a job could be delivered, leave the store, and be added again.
//!
//! | step | if killed after it: in the store | noted at the source | the next run |
//! |---|---|---|---|
//! | 0 read | nothing | nothing | takes the job as if it came for the first time |
//! | 1 add, held back | held back | nothing | finds its own job at step 1, and goes on with step 2 |
//! | 2 note that it is held | held back | `held:` and its fingerprint | goes on with step 3 |
//! | 3 set its due time | delivered, or pending | `held:` and its fingerprint | finds nothing held back at step 3 |
//! | 4 note that it is taken over | delivered, or pending | its fingerprint | skips the job |
//!
//! Step 3 changes a job only if it is still held back. So step 3 does not undo what a client adds, deletes or changes
//! meanwhile.

use std::collections::{BTreeMap, HashMap, HashSet};

use anyhow::{Result, bail};
use thiserror::Error;

use super::super::progress::Progress;
use super::pending::{ImportNote, ParsedPhpJob, PhpJobInfo, PhpTimeContext, split};
use super::source::Source;
use super::summary::ImportSummary;
use model::job::{Due, JobKey, NewJob, Priority, State, TopicName};
use store::{Added, HELD_MS, Store, StoreError};

/// How many jobs are handed to the store at once.
const BATCH: usize = 256;

/// If the store takes no job from this many batches in a row, the import stops.
const FRUITLESS: u32 = 5;

/// An import that runs.
pub struct ImportRun {
    /// The store that takes the jobs. `None`: it is a dry run.
    store: Option<Box<dyn Store>>,
    /// The topics that have jobs in the store, or had jobs there before. `None`: the store could not be asked.
    met: Option<HashSet<TopicName>>,
    registered: HashSet<TopicName>,
    /// The topics whose jobs are taken over. Empty: all topics.
    only: Vec<TopicName>,
    clock: PhpTimeContext,
    /// How many jobs have a `notify_time` that differs from their due time, counted for each difference in minutes.
    /// Such jobs show that the PHP daemon has another time zone.
    zone_errors: BTreeMap<i64, u64>,
    fruitless: u32,
    progress: Progress,
    /// The result so far.
    pub summary: ImportSummary,
}

/// An import that cannot go on before the user has decided something.
#[derive(Debug, Error)]
#[error("{0}")]
struct ImportRefusal(String);

/// A job on its way into the store.
struct ImportedJob {
    entry: PhpJobInfo,
    job: NewJob,
    /// What an earlier import has noted about the job.
    noted: ImportNote,
}

/// Who added the job that already has the id in the store.
enum ExistingJobOrigin {
    /// An earlier import that was killed after step 1.
    HeldBack,
    /// An earlier import, when the entry was different.
    Older,
    /// A client.
    Client,
}

impl ImportRun {
    /// Returns an import into a store, or a dry run.
    pub fn new(
        mut store: Option<Box<dyn Store>>,
        registered: HashSet<TopicName>,
        only: Vec<TopicName>,
        clock: PhpTimeContext,
        summary: ImportSummary,
        progress: Progress,
    ) -> ImportRun {
        let met = store.as_mut().and_then(|store| store.counts().ok());
        let met = met.map(|counts| counts.into_iter().map(|c| c.topic).collect());
        let zone_errors = BTreeMap::new();
        ImportRun { store, met, registered, only, clock, zone_errors, fruitless: 0, progress, summary }
    }

    fn is_selected(&self, name: &[u8]) -> bool {
        let topic = split(name).map_or(name, |(topic, _)| topic);
        self.only.is_empty() || self.only.iter().any(|t| t.as_str().as_bytes() == topic)
    }

    /// Takes over the jobs of all sources. If something stops the import, the summary names the reason.
    pub fn take_over(&mut self, sources: &mut [Source]) {
        let taken = sources.iter_mut().try_for_each(|source| self.take_from(source));
        self.progress.end();
        if let Err(e) = taken {
            self.summary.is_refused = e.is::<ImportRefusal>();
            self.summary.stopped = Some(format!("{e:#}"));
        }
        // The note names the difference that most jobs have. A single job may differ, because the business may have set
        // its `notify_time`.
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
        let ready = source.ready(|name| self.is_selected(name))?;
        let mut cursor = Some(0);
        while let Some(at) = cursor {
            let page = source.bodies(at)?;
            let seen = page.items.len() as u64;
            let bodies: Vec<_> = page.items.into_iter().filter(|(name, _)| self.is_selected(name)).collect();
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

    /// Counts names that are in a bucket or a list, but have no job.
    fn look_for_orphans(&mut self, source: &mut Source, ready: HashMap<Vec<u8>, Priority>) -> Result<()> {
        for bucket in source.buckets().to_vec() {
            let mut cursor = Some(0);
            while let Some(at) = cursor {
                let page = source.bucket(&bucket, at)?;
                // The names in the lists are checked below.
                let wanted =
                    page.items.into_iter().filter(|name| self.is_selected(name) && !ready.contains_key(name));
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

    fn take(&mut self, source: &mut Source, entries: Vec<PhpJobInfo>) -> Result<()> {
        let passages = self.begin(source, entries)?;
        if passages.is_empty() {
            return Ok(());
        }
        let Some(mut store) = self.store.take() else {
            self.summary.taken += passages.len() as u64;
            return Ok(());
        };
        let passed = self.transfer(source, store.as_mut(), passages);
        // If no daemon runs, nobody else maintains the store, and its log would grow without end. If this call fails,
        // the store is maintained after the next batch, or by a daemon.
        let _ = store.maintain();
        self.store = Some(store);
        passed
    }

    /// Step 0: reads entries. Returns the entries that are not taken over yet.
    fn begin(&mut self, source: &Source, entries: Vec<PhpJobInfo>) -> Result<Vec<ImportedJob>> {
        let mut passages = Vec::new();
        for entry in entries {
            self.summary.count_entry(&entry);
            let ParsedPhpJob { job, notify_ms } = match entry.parse(&self.clock) {
                Ok(understood) => understood,
                Err(reason) => {
                    self.summary.cannot += 1;
                    self.summary.add_left_job(&entry, &source.shown, reason);
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
            if matches!(noted, ImportNote::Held | ImportNote::Taken) {
                self.check_store(source, &entry, &job.key.topic)?;
            }
            match noted {
                ImportNote::Taken => self.summary.already += 1,
                _ => passages.push(ImportedJob { entry, job, noted }),
            }
        }
        Ok(passages)
    }

    /// Fails for an entry that has a note of an import, if this store never had a job of its topic. In this case
    /// another store has the job.
    fn check_store(&self, source: &Source, entry: &PhpJobInfo, topic: &TopicName) -> Result<()> {
        if self.met.as_ref().is_some_and(|met| !met.contains(topic)) {
            return Err(ImportRefusal(format!(
                "{}: {} is noted as taken over, but this store never had a job of topic {topic}: another store took \
                 it. Name that store in the configuration; or, to take all jobs into this one, remove the notes first \
                 (redis-cli DEL {}). Jobs that the other store has delivered since are then delivered again",
                source.shown,
                entry.display_name(),
                source.notes()
            ))
            .into());
        }
        Ok(())
    }

    /// Does steps 1 to 4.
    fn transfer(
        &mut self,
        source: &mut Source,
        store: &mut dyn Store,
        passages: Vec<ImportedJob>,
    ) -> Result<()> {
        let topics: Vec<TopicName> = passages.iter().map(|passage| passage.job.key.topic.clone()).collect();
        let (held, new): (Vec<_>, Vec<_>) = passages.into_iter().partition(|p| p.noted == ImportNote::Held);
        let mut failed = None;
        let (added, kept) = self.hold(source, store, new, &mut failed);
        let mut notes: Vec<(&[u8], Vec<u8>)> =
            added.iter().map(|passage| (&*passage.entry.name, passage.entry.held_note())).collect();
        let is_taken = |entry: &PhpJobInfo| entry.fingerprint().into_bytes();
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

    /// Step 1: adds the jobs, and holds them back. Returns the jobs that are now in the store. Also returns the entries
    /// whose ids were already taken by jobs of clients.
    fn hold(
        &mut self,
        source: &Source,
        store: &mut dyn Store,
        new: Vec<ImportedJob>,
        failed: &mut Option<StoreError>,
    ) -> (Vec<ImportedJob>, Vec<PhpJobInfo>) {
        let hold = |passage: &ImportedJob| NewJob { due: Due::At(HELD_MS), ..passage.job.clone() };
        let jobs: Vec<NewJob> = new.iter().map(hold).collect();
        let added = if jobs.is_empty() { Vec::new() } else { store.add(&jobs) };
        let (mut there, mut kept) = (Vec::new(), Vec::new());
        for (passage, added) in new.into_iter().zip(added) {
            let taken = match added {
                Ok(Added::New { .. } | Added::Replaced { .. } | Added::Spooled { .. }) => Ok(None),
                Ok(Added::Kept { .. } | Added::Rejected) => find_existing(store, &passage).map(Some),
                Err(e) => Err(e),
            };
            match taken {
                Ok(None | Some(ExistingJobOrigin::HeldBack)) => there.push(passage),
                Ok(Some(ExistingJobOrigin::Client)) => {
                    self.summary.kept += 1;
                    kept.push(passage.entry);
                }
                Ok(Some(ExistingJobOrigin::Older)) => {
                    self.summary.changed += 1;
                    let reason = "it has changed since it was taken over, and dq still has it as it was: \
                                  delete the job in dq to take this one";
                    self.summary.add_left_job(&passage.entry, &source.shown, reason);
                }
                Err(e) => self.fail(source, &passage.entry, e, failed),
            }
        }
        (there, kept)
    }

    /// Step 3: sets the due times of jobs. Returns the entries for which this succeeded.
    fn release(
        &mut self,
        source: &Source,
        store: &mut dyn Store,
        held: Vec<ImportedJob>,
        failed: &mut Option<StoreError>,
    ) -> Vec<PhpJobInfo> {
        let jobs: Vec<(JobKey, Due)> = held.iter().map(|p| (p.job.key.clone(), p.job.due)).collect();
        let released = if jobs.is_empty() { Vec::new() } else { store.release(&jobs) };
        let mut done = Vec::new();
        for (ImportedJob { entry, noted, .. }, released) in held.into_iter().zip(released) {
            match released {
                // An earlier run released this job, and was killed after its step 3.
                Ok(false) if noted == ImportNote::Held => self.summary.already += 1,
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

    fn fail(&mut self, source: &Source, entry: &PhpJobInfo, e: StoreError, failed: &mut Option<StoreError>) {
        self.summary.failed += 1;
        self.summary.add_left_job(entry, &source.shown, format!("{}: {e}", e.code()));
        *failed = Some(e);
    }
}

/// Looks for a stored job with the id of this new job. Returns who added the stored job.
fn find_existing(store: &mut dyn Store, passage: &ImportedJob) -> Result<ExistingJobOrigin, StoreError> {
    let there = store.get(&passage.job.key)?;
    let held = there.filter(|view| view.state == State::Delayed && view.due_ms == HELD_MS);
    Ok(match held {
        Some(view) if view.body == passage.job.body => ExistingJobOrigin::HeldBack,
        Some(_) => ExistingJobOrigin::Older,
        None if passage.noted == ImportNote::Nothing => ExistingJobOrigin::Client,
        None => ExistingJobOrigin::Older,
    })
}
