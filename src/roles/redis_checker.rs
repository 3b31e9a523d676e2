//! dq-redis-checker: watches what the jobs are stored in. With the embedded store: the database file, and the disk that
//! it lies on. A finding is logged when it opens, and again when it closes.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fmt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::Result;
use nix::sys::statvfs::statvfs;

use crate::role::{self, Context, lock};
use crate::settings;
use crate::store::{Store, StoreError};

/// How often it looks.
const PERIOD: Duration = Duration::from_secs(10);

/// Less room than this is a finding: bytes, and hundredths of the disk.
const ROOM: (u64, u64) = (256 << 20, 3);

/// A log that is longer than this is not carried over as it should be.
const LOG_MAX: u64 = 512 << 20;

/// What may be wrong.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Condition {
    DiskNearlyFull,
    FileMissing,
    FileReplaced,
    LogTooLong,
    StoreFails,
    Damaged,
    RunDirGone,
}

impl fmt::Display for Condition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Condition::DiskNearlyFull => "the store's disk is nearly full",
            Condition::FileMissing => "the store's file is gone",
            Condition::FileReplaced => "the store's file is another than at the start",
            Condition::LogTooLong => "the store's log is not carried over",
            Condition::StoreFails => "the store does not answer",
            Condition::Damaged => "the store is damaged",
            Condition::RunDirGone => "run_dir is gone",
        })
    }
}

/// The conditions that hold, and since when.
#[derive(Debug, Default)]
struct Findings {
    open: BTreeMap<Condition, Instant>,
}

/// What changed from one look to the next.
#[derive(Debug, PartialEq, Eq)]
enum Change {
    Opened(Condition, String),
    Closed(Condition, Duration),
}

impl Findings {
    /// Compares what is found now with what was open.
    fn update(&mut self, found: BTreeMap<Condition, String>, now: Instant) -> Vec<Change> {
        let mut changes = Vec::new();
        let over: Vec<Condition> = self.open.keys().filter(|c| !found.contains_key(c)).cloned().collect();
        for condition in over {
            let since = self.open.remove(&condition).unwrap_or(now);
            changes.push(Change::Closed(condition, now.duration_since(since)));
        }
        for (condition, detail) in found {
            if let Entry::Vacant(new) = self.open.entry(condition.clone()) {
                new.insert(now);
                changes.push(Change::Opened(condition, detail));
            }
        }
        changes
    }
}

/// Runs the role.
pub fn run(mut context: Context) -> Result<()> {
    let path = match &context.settings.store {
        settings::Store::Embedded { path } => Some(path.clone()),
        settings::Store::Redis(_) => None,
    };
    let mut store = context.store()?;
    let inode = path.as_ref().and_then(|p| std::fs::metadata(p).map(|m| (m.dev(), m.ino())).ok());
    let mut findings = Findings::default();
    let damage = inspect(context.store()?)?;
    context.ready()?;
    while context.drain().is_none() {
        let mut found = path.as_ref().map(|path| look(path, inode)).unwrap_or_default();
        if let Err(e) = store.health() {
            found.insert(Condition::StoreFails, e.to_string());
        }
        if let Some(what) = lock(&damage).clone() {
            found.insert(Condition::Damaged, what);
        }
        if path.is_some() && !context.settings.run_dir.join("bells").is_dir() {
            let detail =
                format!("{}: restart dq, which waits there for work", context.settings.run_dir.display());
            found.insert(Condition::RunDirGone, detail);
        }
        for change in findings.update(found, Instant::now()) {
            match change {
                Change::Opened(condition, detail) => log::error!("{condition}: {detail}"),
                Change::Closed(condition, after) => log::warn!("no longer, after {after:.0?}: {condition}"),
            }
        }
        context.wait(&[], Some(Instant::now() + PERIOD))?;
    }
    Ok(())
}

/// Looks at the whole store for damage, once, on a thread of its own: it may take long.
fn inspect(mut store: Box<dyn Store>) -> Result<Arc<Mutex<Option<String>>>> {
    let damage = Arc::new(Mutex::new(None));
    let found = Arc::clone(&damage);
    role::vital_thread("inspect", move || match store.inspect() {
        Err(e @ StoreError::Damaged(_)) => *lock(&found) = Some(e.to_string()),
        Err(e) => log::warn!("cannot inspect the store: {e}"),
        Ok(()) => {}
    })?;
    Ok(damage)
}

/// Looks at the file by its metadata alone: who opens and closes it outside SQLite drops SQLite's locks.
fn look(path: &Path, inode: Option<(u64, u64)>) -> BTreeMap<Condition, String> {
    let mut found = BTreeMap::new();
    match std::fs::metadata(path) {
        Err(e) => drop(found.insert(Condition::FileMissing, format!("{}: {e}", path.display()))),
        Ok(m) if inode.is_some_and(|i| i != (m.dev(), m.ino())) => {
            let advice = "processes that find it so open the new one";
            found.insert(Condition::FileReplaced, format!("{}: {advice}", path.display()));
        }
        Ok(_) => {}
    }
    let log = PathBuf::from(format!("{}-wal", path.display()));
    if let Ok(m) = std::fs::metadata(&log)
        && m.len() > LOG_MAX
    {
        found.insert(Condition::LogTooLong, format!("{} has {} MiB", log.display(), m.len() >> 20));
    }
    let folder = path.parent().unwrap_or(Path::new("/"));
    if let Ok(disk) = statvfs(folder) {
        let (free, all) =
            (disk.blocks_available() * disk.fragment_size(), disk.blocks() * disk.fragment_size());
        let (bytes, hundredths) = ROOM;
        // A small disk is not near its end only because it is small.
        if free < bytes.min(all / 10).max(all / 100 * hundredths) {
            let detail = format!("{} of {} MiB are free under {}", free >> 20, all >> 20, folder.display());
            found.insert(Condition::DiskNearlyFull, detail);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_finding_opens_once_and_closes_once() {
        let mut findings = Findings::default();
        let now = Instant::now();
        let found = || BTreeMap::from([(Condition::DiskNearlyFull, "1 MiB".to_owned())]);
        assert_eq!(
            findings.update(found(), now),
            [Change::Opened(Condition::DiskNearlyFull, "1 MiB".into())]
        );
        let minute = Duration::from_secs(60);
        assert_eq!(findings.update(found(), now + minute), []);
        assert_eq!(
            findings.update(BTreeMap::new(), now + 2 * minute),
            [Change::Closed(Condition::DiskNearlyFull, 2 * minute)]
        );
        assert_eq!(findings.update(BTreeMap::new(), now), []);
    }

    #[test]
    fn a_missing_file_is_found() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("dq.db");
        // Held open, so that its number is not given to the next.
        let _held = std::fs::File::create(&path).unwrap();
        let inode = std::fs::metadata(&path).map(|m| (m.dev(), m.ino())).ok();
        let kinds = |found: BTreeMap<Condition, String>| found.into_keys().collect::<Vec<_>>();
        let before = kinds(look(&path, inode));
        assert!(!before.contains(&Condition::FileMissing));
        std::fs::remove_file(&path).unwrap();
        assert!(kinds(look(&path, inode)).contains(&Condition::FileMissing));
        std::fs::write(&path, "").unwrap();
        assert!(kinds(look(&path, inode)).contains(&Condition::FileReplaced));
    }
}
