//! dq-redis-checker: watches what the jobs are stored in. With the embedded store: the database file, and the disk that
//! it lies on. Of Redis: each node. And it passes on what the registry holds, and tells people what is wrong. A finding is logged
//! when it opens, and again when it closes; those that are open lie in `run_dir/findings.json`, and are shown by `dq status`.

mod condition;
mod findings;
mod keeper;
mod late;
mod nodes;
mod registry;
mod restarts;
mod routes;
mod senders;
mod statistics;
mod stranded;

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::Result;
use nix::sys::statvfs::statvfs;

use self::condition::Condition;
use self::findings::{Change, Findings, Found};
use self::keeper::Alerts;
use self::nodes::Watchers;
use self::routes::SharedPhpMail;
use self::statistics::Statistics;
use crate::counters;
use crate::history::Recorder;
use crate::process::{self, now_ms};
use crate::role::{self, Context, Trouble, lock};
use crate::settings;
use crate::store::{Store, StoreError};

/// How often it looks at the file and the disk.
const PERIOD: Duration = Duration::from_secs(10);

/// How often it takes what others have found: the watchers of nodes, of topics and of processes.
const ROUND: Duration = Duration::from_secs(1);

/// How often it looks whether all is told, at the end.
const END_ROUND: Duration = Duration::from_millis(20);

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
    let damage = inspect(context.store()?)?;
    let mut nodes = Watchers::start(&context.lanes()?)?;
    let late = late::watch(&mut context)?;
    let php = SharedPhpMail::default();
    let registry = registry::follow(&context.settings, &php)?;
    let statistics = Statistics::start(&context)?;
    let mut alerts = Alerts::start(&context, php)?;
    let mut findings = Findings::take_up(process::findings(&context.settings.run_dir), now_ms());
    let (mut history, mut history_fails) = (Recorder::default(), Trouble::default());
    let (mut of_file, mut next_look, mut has_looked) = (Found::new(), Instant::now(), false);
    context.ready()?;
    while context.drain().is_none() {
        if Instant::now() >= next_look {
            next_look = Instant::now() + PERIOD;
            if let Some(path) = &path {
                // At the first look the others may not have hung their bells yet.
                let run_dir = std::mem::replace(&mut has_looked, true).then_some(&*context.settings.run_dir);
                of_file = look_at_file(path, inode, run_dir, store.as_mut());
            }
        }
        let mut found = of_file.clone();
        found.extend(nodes.found());
        found.extend(lock(&late).clone());
        found.extend(alerts.found());
        match &*lock(&damage) {
            Inspected::Damaged(what) => drop(found.insert(Condition::Damaged, what.clone())),
            // What was damaged before a restart is so until it was looked through.
            Inspected::NotYet => {
                let before = findings.detail(&Condition::Damaged);
                found.extend(before.map(|what| (Condition::Damaged, what.to_owned())));
            }
            Inspected::Whole => {}
        }
        if let Some(what) = lock(&registry).clone() {
            found.insert(Condition::RegistryAway, what);
        }
        let changes = findings.update(found, now_ms());
        if let Err(e) = findings.write(&context.settings.run_dir) {
            log::warn!("cannot write the findings: {e}");
        }
        changes.into_iter().for_each(tell);
        alerts.tell(findings.open());
        let run_dir = &context.settings.run_dir;
        match history.record(run_dir, now_ms(), || counters::totals(run_dir)) {
            Ok(()) => history_fails.over(),
            Err(e) => drop(history_fails.waits(&format_args!("cannot keep a history for the console: {e}"))),
        }
        context.wait(&[], Some(Instant::now() + ROUND))?;
    }
    // What is on its way arrives, and is not sent again by the next.
    while !alerts.has_ended() {
        context.wait(&[], Some(Instant::now() + END_ROUND))?;
    }
    if let Some(statistics) = statistics {
        statistics.end();
    }
    Ok(())
}

/// Says what has changed.
fn tell(change: Change) {
    match change {
        Change::Opened(finding) => log::error!("{}: {}", finding.what, finding.detail),
        Change::Closed(finding, held_ms) => {
            let held = Duration::from_millis(held_ms.max(0) as u64);
            log::warn!("no longer, after {held:.0?}: {}", finding.what);
        }
    }
}

/// What is wrong with the embedded store, where it is; and with the folder of its bells, if that is to be looked at.
fn look_at_file(
    path: &Path,
    inode: Option<(u64, u64)>,
    run_dir: Option<&Path>,
    store: &mut dyn Store,
) -> Found {
    let mut found = look(path, inode);
    if let Some(run_dir) = run_dir.filter(|run_dir| !run_dir.join("bells").is_dir()) {
        let detail = format!(
            "{}: dq waits there for work, and cannot make it again: the log tells why",
            run_dir.display()
        );
        found.insert(Condition::RunDirGone, detail);
    }
    // Of nodes, each is looked at by itself.
    if let Err(e) = store.health() {
        found.insert(Condition::StoreFails, e.to_string());
    }
    found
}

/// What came of looking at the whole store.
#[derive(Debug)]
enum Inspected {
    NotYet,
    Whole,
    Damaged(String),
}

/// Looks at the whole store for damage, once, on a thread of its own: it may take long.
fn inspect(mut store: Box<dyn Store>) -> Result<Arc<Mutex<Inspected>>> {
    let damage = Arc::new(Mutex::new(Inspected::NotYet));
    let found = Arc::clone(&damage);
    role::vital_thread("inspect", move || {
        let inspected = match store.inspect() {
            Err(e @ StoreError::Damaged(_)) => Inspected::Damaged(e.to_string()),
            Err(e) => {
                log::warn!("cannot inspect the store: {e}");
                return;
            }
            Ok(()) => Inspected::Whole,
        };
        *lock(&found) = inspected;
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
