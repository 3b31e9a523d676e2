//! dq-redis-checker: watches what the jobs are stored in. With the embedded store: the database file, and the disk that
//! it lies on. Of Redis: each node. And it passes on what the registry holds. A finding is logged when it opens, and again when it closes; those that are open lie in
//! `run_dir/findings.json`, and are shown by `dq status`.

mod condition;
mod findings;
mod nodes;
mod registry;
mod statistics;

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::Result;
use nix::sys::statvfs::statvfs;

use self::condition::Condition;
use self::findings::{Change, Findings, Found};
use self::nodes::Watchers;
use self::statistics::Statistics;
use crate::process::now_ms;
use crate::role::{self, Context, lock};
use crate::settings;
use crate::store::{Store, StoreError};

/// How often it looks.
const PERIOD: Duration = Duration::from_secs(10);

/// How often it takes what the watchers of nodes have found.
const NODES_PERIOD: Duration = Duration::from_secs(1);

/// Less room than this is a finding: bytes, and hundredths of the disk.
const ROOM: (u64, u64) = (256 << 20, 3);

/// A log that is longer than this is not carried over as it should be.
const LOG_MAX: u64 = 512 << 20;

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
    let mut nodes = Watchers::start(&context.lanes()?)?;
    let registry = registry::follow(&context.settings)?;
    let statistics = Statistics::start(&context)?;
    context.ready()?;
    while context.drain().is_none() {
        let mut found = nodes.found();
        if let Some(path) = &path {
            found.extend(look(path, inode));
            if !context.settings.run_dir.join("bells").is_dir() {
                let detail =
                    format!("{}: restart dq, which waits there for work", context.settings.run_dir.display());
                found.insert(Condition::RunDirGone, detail);
            }
            // Of nodes, each is looked at by itself.
            if let Err(e) = store.health() {
                found.insert(Condition::StoreFails, e.to_string());
            }
        }
        if let Some(what) = lock(&damage).clone() {
            found.insert(Condition::Damaged, what);
        }
        if let Some(what) = lock(&registry).clone() {
            found.insert(Condition::RegistryAway, what);
        }
        for change in findings.update(found, now_ms()) {
            match change {
                Change::Opened(finding) => log::error!("{}: {}", finding.what, finding.detail),
                Change::Closed(finding, held_ms) => {
                    log::warn!(
                        "no longer, after {:.0?}: {}",
                        Duration::from_millis(held_ms.max(0) as u64),
                        finding.what
                    );
                }
            }
        }
        if let Err(e) = findings.write(&context.settings.run_dir) {
            log::warn!("cannot write the findings: {e}");
        }
        let period = if path.is_some() { PERIOD } else { NODES_PERIOD };
        context.wait(&[], Some(Instant::now() + period))?;
    }
    if let Some(statistics) = statistics {
        statistics.end();
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
fn look(path: &Path, inode: Option<(u64, u64)>) -> Found {
    let mut found = Found::new();
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
    fn a_missing_file_is_found() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("dq.db");
        // Held open, so that its number is not given to the next.
        let _held = std::fs::File::create(&path).unwrap();
        let inode = std::fs::metadata(&path).map(|m| (m.dev(), m.ino())).ok();
        let kinds = |found: Found| found.into_keys().collect::<Vec<_>>();
        let before = kinds(look(&path, inode));
        assert!(!before.contains(&Condition::FileMissing));
        std::fs::remove_file(&path).unwrap();
        assert!(kinds(look(&path, inode)).contains(&Condition::FileMissing));
        std::fs::write(&path, "").unwrap();
        assert!(kinds(look(&path, inode)).contains(&Condition::FileReplaced));
    }
}
