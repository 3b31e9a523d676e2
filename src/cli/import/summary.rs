//! The result of an import: counted while it runs, and printed at its end.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde::Serialize;

use super::pending::{PhpJobInfo, PhpJobState, display_name};

/// The limit of two lists in the summary: the jobs that were not taken over, and the names without a job.
const NAMED: usize = 10;

/// The counts. Each job that was seen is in one of three places, and has one of six outcomes.
#[derive(Debug, Default, Serialize)]
pub struct ImportSummary {
    /// True: this was a dry run, which changed nothing. `taken` then counts the jobs that would be taken over.
    pub dry_run: bool,
    /// Jobs seen.
    pub jobs: u64,
    /// Of these, the jobs in a bucket.
    pub waiting: u64,
    /// The jobs in a ready list.
    pub ready: u64,
    /// The jobs that are in no bucket and in no list.
    pub stranded: u64,
    /// Taken over.
    pub taken: u64,
    /// Taken over by an import before this one.
    pub already: u64,
    /// Not taken, because dq has a job with that id, which a client has added meanwhile.
    pub kept: u64,
    /// Not taken: dq cannot take these jobs as they are.
    pub cannot: u64,
    /// Not taken: the PHP daemon changed these jobs after dq had taken them over. dq still has the older versions.
    pub changed: u64,
    /// Not taken: the store has returned an error for these jobs.
    pub failed: u64,
    /// Names that are in a bucket or a list, but have no job.
    pub orphaned: u64,
    /// Jobs of topics that are not registered, by topic.
    pub unregistered: BTreeMap<String, u64>,
    /// The topics that dq cannot serve with their settings, and why.
    pub half_taken: BTreeMap<String, String>,
    /// The first of the jobs that were not taken over.
    pub left: Vec<SkippedJob>,
    /// The first of the names without a job.
    pub orphans: Vec<String>,
    /// The nodes of the PHP daemon that `--from` does not name. Their jobs are missing.
    pub unnamed_nodes: Vec<String>,
    /// Why the registry could not be read. Then it is not known whether `--from` names all nodes. `None`: the registry
    /// was read.
    pub unread_registry: Option<String>,
    /// The signs that the PHP daemon or another import runs.
    pub running: Vec<String>,
    /// What else the user should look at.
    pub notes: Vec<String>,
    /// Why the import stopped early. `None`: it did not stop early.
    pub stopped: Option<String>,
    /// Whether the import stopped for a reason that only the user can remove.
    #[serde(skip)]
    pub is_refused: bool,
}

/// A job that was not taken over.
#[derive(Debug, Serialize)]
pub struct SkippedJob {
    /// The name of the job.
    pub job: String,
    /// The address of the Redis that has the job.
    pub at: String,
    /// Why it was not taken over.
    pub reason: String,
}

impl ImportSummary {
    /// Returns whether all jobs could be taken over.
    pub fn is_whole(&self) -> bool {
        self.cannot + self.changed + self.failed == 0
            && self.unnamed_nodes.is_empty()
            && self.unread_registry.is_none()
            && self.stopped.is_none()
    }

    /// Counts a job, and its place: a bucket, a ready list, or neither.
    pub fn count_entry(&mut self, entry: &PhpJobInfo) {
        self.jobs += 1;
        *match entry.place() {
            PhpJobState::Waiting => &mut self.waiting,
            PhpJobState::Ready => &mut self.ready,
            PhpJobState::Stranded => &mut self.stranded,
        } += 1;
    }

    /// Adds the name of a job that was not taken over. The caller has counted the job.
    pub fn add_left_job(&mut self, entry: &PhpJobInfo, at: &str, reason: impl Into<String>) {
        if self.left.len() < NAMED {
            self.left.push(SkippedJob {
                job: entry.display_name(),
                at: at.to_owned(),
                reason: reason.into(),
            });
        }
    }

    /// Counts names that have no job, and keeps the first of them.
    pub fn found_orphans(&mut self, names: &[Vec<u8>]) {
        self.orphaned += names.len() as u64;
        let more = NAMED.saturating_sub(self.orphans.len());
        self.orphans.extend(names.iter().take(more).map(|name| display_name(name)));
    }

    /// Returns the summary as a text for people.
    pub fn table(&self) -> String {
        let mut rows = vec![
            ("jobs seen", self.jobs),
            ("  waiting for their due time", self.waiting),
            ("  ready", self.ready),
            ("  stranded, in neither of the two", self.stranded),
            (if self.dry_run { "would be taken over" } else { "taken over" }, self.taken),
            ("taken over before", self.already),
            ("left: cannot be taken", self.cannot),
        ];
        if !self.dry_run {
            rows.extend([
                ("left: changed since, and dq has the older", self.changed),
                ("left: not taken by the store", self.failed),
                ("kept: dq has a job of that id", self.kept),
            ]);
        }
        rows.push(("names without a job", self.orphaned));
        let mut text = String::new();
        let width = rows.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
        for (name, count) in rows {
            let _ = writeln!(text, "{name:<width$}  {count:>9}");
        }
        for (topic, jobs) in &self.unregistered {
            let _ = writeln!(text, "topic {topic} is not registered: {jobs} jobs wait until it is");
        }
        for (topic, problem) in &self.half_taken {
            let _ = writeln!(
                text,
                "topic {topic} is held: dq cannot use one of its settings, and its jobs wait: {problem}"
            );
        }
        for SkippedJob { job, at, reason } in &self.left {
            let _ = writeln!(text, "left in {at}: {job}: {reason}");
        }
        let more = self.cannot + self.changed + self.failed - self.left.len() as u64;
        if more > 0 {
            let _ = writeln!(text, "and {more} more");
        }
        for name in &self.orphans {
            let _ = writeln!(text, "no job of this name: {name}");
        }
        if self.orphaned > self.orphans.len() as u64 {
            let _ = writeln!(text, "and {} more", self.orphaned - self.orphans.len() as u64);
        }
        self.print_notes(&mut text);
        if let Some(why) = &self.stopped {
            let _ = writeln!(text, "stopped early, with the counts so far: {why}");
        }
        if !self.dry_run && (self.failed > 0 || self.stopped.is_some()) {
            let next = match self.is_refused {
                true => "the import was refused, and is refused again until you correct that",
                false => "run it again when this is corrected: it goes on where it was",
            };
            let _ = writeln!(text, "{next}");
        }
        text
    }

    /// Appends the notes that are not about a single job.
    fn print_notes(&self, text: &mut String) {
        if let Some(why) = &self.unread_registry {
            let _ = writeln!(
                text,
                "the registry could not be read: {why}. Its topics count as not registered here, and its table dq_redis \
                 was not compared with --from, so jobs of other nodes may be missing"
            );
        }
        for node in &self.unnamed_nodes {
            let _ = writeln!(text, "not named by --from, so that its jobs are missing: {node}");
        }
        for sign in &self.running {
            let _ = writeln!(text, "the PHP daemon seems to run: {sign}");
        }
        if !self.running.is_empty() && self.dry_run {
            let _ = writeln!(text, "the import will refuse to begin until it is stopped");
        }
        for note in &self.notes {
            let _ = writeln!(text, "note: {note}");
        }
    }
}
