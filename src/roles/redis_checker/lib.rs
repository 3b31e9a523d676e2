//! dq-redis-checker: watches the store, and reports what is wrong.
//!
//! With the embedded store it watches the database file and its disk; with Redis, each node and the spool of this host.
//! It also publishes the registry's snapshot, carries statistics to the registry, and sends alerts (`alert_worker`). A
//! finding is logged when it opens and when it closes. Open findings are in `run_dir/findings.json`, where `dq status`
//! reads them.
//!
//! This role never changes a job. Begin with [`run`], then `findings`.

mod alert_worker;
mod finding_kind;
mod findings;
mod late;
mod nodes;
mod quotas;
mod registry;
mod restarts;
mod routes;
mod senders;
mod spool;
mod statistics;
mod stranded;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::Result;
use nix::sys::statvfs::statvfs;

use self::alert_worker::AlertWorkerHandle;
use self::finding_kind::FindingKind;
use self::findings::{FindingChange, Findings, FoundConditions};
use self::nodes::Watchers;
use self::routes::SharedPhpMail;
use self::statistics::StatisticsHandle;
use host::{self, now_ms};
use model::disk_room::nearly_full_below;
use model::settings;
use model::settings::files::{LOG, beside};
use role::{self, Context, TroubleLog, lock};
use store::{Lanes, Store, StoreError};
use telemetry::counters;
use telemetry::history::HistoryWriter;

/// How often the store is asked whether it answers. Its file and its disk are checked more often: every [`ROUND`].
const PERIOD: Duration = Duration::from_secs(10);

/// How often the main loop collects what the watchers of nodes, topics and processes have found.
const ROUND: Duration = Duration::from_secs(1);

/// When this process ends, the main loop waits for the end of the alert worker. It checks at this interval.
const END_ROUND: Duration = Duration::from_millis(20);

/// If the log (WAL) is longer than this, in bytes, its changes are not copied into the file as they should be.
const LOG_MAX: u64 = 512 << 20;

/// Nothing is delivered while jobs are moved. A move that takes longer than this is a finding.
const MOVE_MAX: Duration = Duration::from_secs(60);

/// Runs the role.
pub fn run(mut context: Context) -> Result<()> {
    let mut store = context.store_without_spool()?;
    let file = match &context.settings.store {
        settings::StoreSettings::Embedded { path, min_free } => {
            Some(EmbeddedFile::new(path, &context.settings.run_dir, *min_free))
        }
        settings::StoreSettings::Redis(_) => None,
    };
    let damage = inspect(context.store_without_spool()?)?;
    let lanes = context.lanes()?;
    let (mut nodes, mut moving_since) = (Watchers::start(&lanes)?, None);
    // The thread that reads the registry is started first, because the lines below may wait for the topics.
    let php = SharedPhpMail::default();
    let registry = registry::follow(&context.settings, &php)?;
    let late = late::watch(&mut context)?;
    let spool = spool::watch(&context)?;
    let statistics = StatisticsHandle::start(&context)?;
    let mut alerts = AlertWorkerHandle::start(&mut context, php)?;
    let names: Vec<&str> = (0..lanes.count()).filter_map(|lane| lanes.name(lane)).collect();
    let is_watched = |condition: &FindingKind| condition.node().is_none_or(|node| names.contains(&node));
    let mut findings = Findings::take_up(host::findings(&context.settings.run_dir), now_ms(), is_watched);
    let mut write_fails = TroubleLog::default();
    let (mut history, mut history_fails) = (HistoryWriter::default(), TroubleLog::default());
    let (mut of_store, mut next_look, mut has_looked) = (FoundConditions::new(), Instant::now(), false);
    context.ready()?;
    while context.drain().is_none() {
        if Instant::now() >= next_look {
            next_look = Instant::now() + PERIOD;
            of_store = match file {
                Some(_) => look_at_store(store.as_mut()),
                None => FoundConditions::new(),
            };
            // At the first check, the other processes may not have created their bells yet.
            let needs_bells = file.is_some() && std::mem::replace(&mut has_looked, true);
            of_store.extend(look_at_run_dir(&context.settings.run_dir, needs_bells));
        }
        let mut found = of_store.clone();
        // The disk is checked in each round, because adds are refused from the moment when the disk is full.
        found.extend(file.as_ref().map(check_file).unwrap_or_default());
        found.extend(nodes.found());
        found.extend(move_that_lasts(&lanes, &mut moving_since).map(|what| (FindingKind::StoreFails, what)));
        found.extend(lock(&late).clone());
        found.extend(alerts.found());
        match &*lock(&damage) {
            IntegrityResult::Damaged(what) => drop(found.insert(FindingKind::Damaged, what.clone())),
            // Damage that was found before a restart counts until the whole store has been checked again.
            IntegrityResult::NotYet => {
                let before = findings.detail(&FindingKind::Damaged);
                found.extend(before.map(|what| (FindingKind::Damaged, what.to_owned())));
            }
            IntegrityResult::Whole => {}
        }
        let others = [(FindingKind::RegistryAway, &registry), (FindingKind::SpoolWaits, &spool)];
        found.extend(
            others.into_iter().filter_map(|(condition, what)| Some((condition, lock(what).clone()?))),
        );
        let changes = findings.update(found, now_ms());
        match findings.write(&context.settings.run_dir) {
            Ok(()) => write_fails.end(),
            Err(e) => {
                write_fails.pause_after(&format_args!("cannot write the findings: {e}"));
            }
        }
        changes.into_iter().for_each(log_change);
        alerts.pass_findings(findings.open());
        let run_dir = &context.settings.run_dir;
        match history.record(run_dir, now_ms(), || counters::totals(run_dir)) {
            Ok(()) => history_fails.end(),
            Err(e) => {
                history_fails.pause_for(&format_args!("cannot keep a history for the console: {e}"));
            }
        }
        context.wait(&[], Some(Instant::now() + ROUND))?;
    }
    // The process waits until messages that are being sent have arrived, so that the next worker does not send them
    // again. The wait lasts at most 5 seconds.
    while !alerts.has_ended() {
        context.wait(&[], Some(Instant::now() + END_ROUND))?;
    }
    if let Some(statistics) = statistics {
        statistics.end();
    }
    Ok(())
}

/// Returns a problem if a move has lasted for too long. `since`: when this process first saw the move.
fn move_that_lasts(lanes: &Lanes, since: &mut Option<Instant>) -> Option<String> {
    let goal = lanes.redis().and_then(|nodes| nodes.set_state()?.goal);
    let Some(goal) = goal else {
        *since = None;
        return None;
    };
    let lasts = since.get_or_insert_with(Instant::now).elapsed() >= MOVE_MAX;
    lasts.then(|| {
        let goal = goal.join(", ");
        format!(
            "jobs are being moved to {goal}, and none is delivered: if no dq nodes move runs, run it again"
        )
    })
}

/// Logs a change.
fn log_change(change: FindingChange) {
    match change {
        FindingChange::Opened(finding) => log::error!("{}: {}", finding.what, finding.detail),
        FindingChange::Closed(finding, held_ms) => {
            let held = Duration::from_millis(held_ms.max(0) as u64);
            log::warn!("no longer, after {held:.0?}: {}", finding.what);
        }
    }
}

/// Returns what is wrong with `run_dir`. If something is wrong, makes the folder again, so that findings can be
/// written. If that fails, alerts and the log still report the finding.
fn look_at_run_dir(run_dir: &Path, needs_bells: bool) -> FoundConditions {
    let what = if !host::has_lock(run_dir) {
        "somebody has removed it, or the files in it. dq takes and delivers jobs, but the commands of dq do not find it: \
         stop it, and start it again"
    } else if needs_bells && !run_dir.join("bells").is_dir() {
        "dq needs its bells there and cannot create them again (the log has the reason)"
    } else {
        return FoundConditions::new();
    };
    let mut detail = format!("{}: {what}", run_dir.display());
    if let Err(e) = host::make_folder_in_run_dir(run_dir) {
        detail += &format!(" (the folder cannot be made again: {e})");
    }
    FoundConditions::from([(FindingKind::RunDirGone, detail)])
}

/// Returns what is wrong with the embedded store.
fn look_at_store(store: &mut dyn Store) -> FoundConditions {
    let mut found = FoundConditions::new();
    // This check is only for the embedded store. A watcher checks each node.
    if let Err(e) = store.health() {
        found.insert(FindingKind::StoreFails, e.to_string());
    }
    found
}

/// The result of checking the whole store.
#[derive(Debug)]
enum IntegrityResult {
    NotYet,
    Whole,
    Damaged(String),
}

/// How soon a store that could not be inspected is inspected again. An inspection reads the whole file.
const INSPECTED_AGAIN: Duration = Duration::from_secs(600);

/// Checks the whole store for damage, once. The check has a thread of its own, because it may take long.
fn inspect(mut store: Box<dyn Store>) -> Result<Arc<Mutex<IntegrityResult>>> {
    let damage = Arc::new(Mutex::new(IntegrityResult::NotYet));
    let found = Arc::clone(&damage);
    role::vital_thread("inspect", move || {
        let inspected = loop {
            match store.inspect() {
                Ok(()) => break IntegrityResult::Whole,
                Err(e @ StoreError::Damaged(_)) => break IntegrityResult::Damaged(e.to_string()),
                Err(e) => log::warn!("cannot inspect the store: {e}; next try in {INSPECTED_AGAIN:?}"),
            }
            std::thread::sleep(INSPECTED_AGAIN);
        };
        *lock(&found) = inspected;
    })?;
    Ok(damage)
}

/// The file of the embedded store.
struct EmbeddedFile {
    path: PathBuf,
    /// The folder that records which file the daemon uses.
    run_dir: PathBuf,
    /// Adds are refused while the disk has fewer free bytes than this.
    min_free: u64,
}

impl EmbeddedFile {
    fn new(path: &Path, run_dir: &Path, min_free: u64) -> EmbeddedFile {
        EmbeddedFile { path: path.to_owned(), run_dir: run_dir.to_owned(), min_free }
    }
}

/// Checks the file by its metadata alone. If the file were opened and closed outside SQLite, SQLite would lose its
/// locks.
fn check_file(file: &EmbeddedFile) -> FoundConditions {
    let EmbeddedFile { path, run_dir, min_free } = file;
    let mut found = FoundConditions::new();
    let advice = "dq takes and delivers no jobs until it is moved back (docs/RUNBOOK.md)";
    match (host::file_at(path), host::used_file(run_dir)) {
        (Err(e), _) => {
            drop(found.insert(FindingKind::FileMissing, format!("{}: {e}: {advice}", path.display())))
        }
        (Ok(file), Ok(Some(used))) if file != used => {
            found.insert(FindingKind::FileReplaced, format!("{}: {advice}", path.display()));
        }
        (Ok(_), _) => {}
    }
    // `path` may be a link to the file.
    let path = &std::fs::canonicalize(path).unwrap_or_else(|_| path.clone());
    let log = beside(path, LOG);
    if let Ok(m) = std::fs::metadata(&log)
        && m.len() > LOG_MAX
    {
        found.insert(FindingKind::LogTooLong, format!("{} has {} MiB", log.display(), m.len() >> 20));
    }
    let folder = path.parent().unwrap_or(Path::new("/"));
    if let Ok(disk) = statvfs(folder) {
        let (free, all) =
            (disk.blocks_available() * disk.fragment_size(), disk.blocks() * disk.fragment_size());
        if free < nearly_full_below(all, *min_free) {
            let mut detail =
                format!("{} of {} MiB are free under {}", free >> 20, all >> 20, folder.display());
            if free < *min_free {
                let min_free = min_free >> 20;
                detail +=
                    &format!("; this is less than store.min_free ({min_free} MiB), so adds are refused");
            }
            found.insert(FindingKind::DiskNearlyFull, detail);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_dir_that_cannot_be_made_again_is_found() {
        let dir = tempfile::tempdir().unwrap();
        let run_dir = dir.path().join("run");
        let lock = host::RunDirLock::take(&run_dir, Duration::ZERO).unwrap();
        assert_eq!(look_at_run_dir(&run_dir, false), FoundConditions::new());
        std::fs::remove_dir_all(&run_dir).unwrap();
        let detail = look_at_run_dir(&run_dir, false).remove(&FindingKind::RunDirGone).unwrap();
        assert!(detail.contains("removed it") && !detail.contains("made again"), "{detail}");
        assert!(run_dir.is_dir());
        std::fs::remove_dir(&run_dir).unwrap();
        std::fs::write(&run_dir, "").unwrap();
        let detail = look_at_run_dir(&run_dir, false).remove(&FindingKind::RunDirGone).unwrap();
        assert!(detail.contains("removed it") && detail.contains("cannot be made again: "), "{detail}");
        drop(lock);
    }

    #[test]
    fn a_missing_file_is_found() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("dq.db");
        // The file stays open, so that the next file does not get the same inode.
        let _held = std::fs::File::create(&path).unwrap();
        let _run_dir = host::RunDirLock::take(dir.path(), Duration::ZERO).unwrap();
        host::use_file(dir.path(), host::file_at(&path).unwrap()).unwrap();
        let file = EmbeddedFile::new(&path, dir.path(), 0);
        let kinds = |found: FoundConditions| found.into_keys().collect::<Vec<_>>();
        let before = kinds(check_file(&file));
        assert!(!before.contains(&FindingKind::FileMissing));
        std::fs::remove_file(&path).unwrap();
        assert!(kinds(check_file(&file)).contains(&FindingKind::FileMissing));
        std::fs::write(&path, "").unwrap();
        assert!(kinds(check_file(&file)).contains(&FindingKind::FileReplaced));
        let found = check_file(&EmbeddedFile::new(&path, dir.path(), u64::MAX / 2));
        assert!(found[&FindingKind::DiskNearlyFull].contains("adds are refused"), "{found:?}");
    }
}
