//! `dq restore`: brings a file of `dq backup` back, while no daemon runs.
//!
//! Nothing is changed before the backup is checked and the new files are complete. Old files are never removed: with
//! `--replace` they get another name.

use std::fs::File;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use nix::unistd::{AccessFlags, access};
use rusqlite::{Connection, OpenFlags};
use serde_json::json;

use super::container::{self, Manifest};
use super::staging::{Staging, folder_of, give_to_owner};
use super::{check_unused, embedded, is_full, stopped_daemon};
use super::{checksum, seal};
use crate::show::{counted, json_line, moment};
use host::now_ms;
use model::settings::files::{LOG, LOGS, MOVED, TURN_FILES, beside, database_files};
use model::settings::{RegistrySettings, Settings};
use registry::Snapshot;
use store::{HeldTurn, SqliteStore, StoreMoveMark, move_mark_of, unfinished_replacement};

/// The end of the names that old files get.
const ASIDE: &str = ".before-restore";

/// The largest number of links that are followed one after the other.
const LINKS_MAX: usize = 40;

/// Bring back the jobs, the topics and the accounts of a backup, while no daemon runs
///
/// Jobs that were delivered after the backup was made are delivered again. The command says how many jobs are due. It
/// refuses while a daemon runs. It also refuses if a file already exists where it would restore one, or if an old log
/// (-wal, -shm, -journal) exists there. With --replace, these files are kept under another name, which ends in
/// .before-restore.
#[derive(Debug, clap::Args)]
#[command(after_help = "Run it as the daemon's user, who owns the files. Examples:\n  \
                  dq restore --check /backup/dq-2026-11-21.backup\n  \
                  dq restore --config /etc/dq/dq.toml /backup/dq-2026-11-21.backup")]
pub(crate) struct RestoreArguments {
    /// The file that dq backup has made
    file: PathBuf,

    /// dq's configuration file, which says where the store and the registry are
    #[arg(long, value_name = "FILE", required_unless_present = "check")]
    config: Option<PathBuf>,

    /// Only check whether the backup is whole, and say what it has. Needs no configuration and no stopped daemon
    #[arg(long, conflicts_with_all = ["config", "replace"])]
    check: bool,

    /// Rename files that are in the way
    #[arg(long)]
    replace: bool,

    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Runs `dq restore`.
pub(crate) fn run(arguments: &RestoreArguments) -> Result<()> {
    host::keep_new_files_private();
    let Some(config) = arguments.config.as_ref().filter(|_| !arguments.check) else {
        return check_only(arguments);
    };
    let settings = crate::settings(config)?;
    let store = embedded(&settings)?;
    let (backup, manifest) = container::open(&arguments.file)?;
    // While this lock and `turn` are held, no daemon starts in this run_dir, and no daemon opens the store.
    let _lock = stopped_daemon(&settings)?;
    // Nothing is written before this check. So a damaged backup changes nothing.
    check_whole(&backup, &arguments.file)?;
    std::fs::create_dir_all(folder_of(store))
        .with_context(|| format!("cannot make the folder of {}", store.display()))?;
    let turn = HeldTurn::take(store).with_context(|| format!("cannot lock {}", store.display()))?;
    for file in TURN_FILES.map(|suffix| beside(store, suffix)) {
        give_to_owner(&File::open(&file)?, folder_of(store)).context("cannot set the owner")?;
    }
    if let Some(why) = unfinished_replacement(store) {
        bail!(why);
    }
    match move_mark_of(store)? {
        // A move that goes on would continue with the jobs of the backup.
        Some(mark @ (StoreMoveMark::Leaves(_) | StoreMoveMark::Takes(_))) => {
            bail!("{}: {mark}", store.display())
        }
        // With `--replace`, the mark gets another name, like the other files of the old store.
        Some(StoreMoveMark::Left(_) | StoreMoveMark::GivenUp(_)) | None => {}
    }
    let targets = targets(&settings, store, &backup)?;
    let mark = Some(beside(store, MOVED)).filter(|mark| mark.exists());
    let in_the_way = || -> Vec<PathBuf> {
        targets.iter().flat_map(FileToRestore::in_the_way).chain(mark.clone()).collect()
    };
    check_free(&in_the_way(), arguments.replace)?;
    check_unused(store)?;
    // `check_unused` has opened the store, and SQLite may have made a `-wal` file. So the files are listed again.
    let in_the_way = in_the_way();
    let has_registry = container::has(&backup, container::REGISTRY)?;
    if has_registry {
        remove_snapshot(&settings)?;
    }
    let restored = restore(&backup, &targets, &in_the_way, &turn).map_err(|e| match is_full(&e) {
        true => e.context("the disk is full, nothing was changed"),
        false => e,
    })?;
    print_result(arguments, &settings, &manifest, &restored, (&in_the_way, has_registry))
}

/// Removes the snapshot of the old registry. Otherwise a daemon could use the old settings of topics before it has read
/// the restored registry: for example, a timer could remove restored dead letters.
fn remove_snapshot(settings: &Settings) -> Result<()> {
    let file = Snapshot::file(&settings.run_dir);
    match std::fs::remove_file(&file) {
        Err(e) if e.kind() != ErrorKind::NotFound => {
            Err(e).with_context(|| format!("cannot remove {}", file.display()))
        }
        _ => Ok(()),
    }
}

/// Fails if a backup is damaged. Returns false if the backup has no checksum.
fn check_whole(backup: &Connection, file: &Path) -> Result<bool> {
    let name = file.display().to_string();
    let has_seal = seal::check(file, &name)?;
    container::check(backup, &name)?;
    if !has_seal && container::is_sealed(backup).with_context(|| format!("{name} is damaged"))? {
        bail!("{name} is damaged: its last line is missing or damaged. Take another backup");
    }
    checksum::check(backup, &name)
}

/// Says whether a backup is whole, and what it has.
fn check_only(arguments: &RestoreArguments) -> Result<()> {
    let (backup, Manifest { made_ms, instance, version }) = container::open(&arguments.file)?;
    let has_checksum = check_whole(&backup, &arguments.file)?;
    let jobs: u64 = backup.query_row("SELECT count(*) FROM job", [], |row| row.get(0))?;
    let has_registry = container::has(&backup, container::REGISTRY)?;
    if arguments.json {
        return json_line(
            &json!({"made_ms": made_ms, "instance": instance, "version": version, "jobs": jobs,
            "registry": has_registry, "checksum": has_checksum}),
        );
    }
    let file = arguments.file.display();
    println!("{file}: {jobs} jobs as of {} (instance {instance}, dq {version})", moment(made_ms));
    println!("the registry is {}", if has_registry { "included" } else { "not included" });
    println!(
        "{}",
        match has_checksum {
            true => "it is whole: its structure and its checksum are right",
            false => "its structure is whole; it has no checksum, because an earlier release made it",
        }
    );
    Ok(())
}

/// Follows the links from a path, and returns the file at the end. The links stay, and only this file is replaced.
fn linked_file(path: &Path) -> Result<PathBuf> {
    let mut file = path.to_owned();
    for _ in 0..LINKS_MAX {
        match std::fs::read_link(&file) {
            Ok(target) => file = folder_of(&file).join(target),
            Err(_) => return Ok(file),
        }
    }
    bail!("{} is a link that leads through more than {LINKS_MAX} links", path.display())
}

/// A file to restore.
struct FileToRestore {
    /// The name of the file in the backup. None: it is the store itself.
    part: Option<&'static str>,
    path: PathBuf,
}

impl FileToRestore {
    /// Returns the existing files at the places of this file and its logs.
    fn in_the_way(&self) -> impl Iterator<Item = PathBuf> {
        let files = match self.part {
            Some(container::SESSION_KEY) => vec![self.path.clone()],
            _ => database_files(&self.path),
        };
        files.into_iter().filter(|path| path.symlink_metadata().is_ok())
    }
}

/// Returns the files to restore. The store is the last one. The key of the console's sessions is left out if it is
/// unchanged or cannot be made.
fn targets(settings: &Settings, store: &Path, backup: &Connection) -> Result<Vec<FileToRestore>> {
    let mut targets = Vec::new();
    if container::has(backup, container::REGISTRY)? {
        match &settings.registry {
            Some(RegistrySettings::Sqlite { path }) => {
                targets.push(FileToRestore { part: Some(container::REGISTRY), path: linked_file(path)? });
            }
            other => {
                let found = other.as_ref().map_or("none".to_owned(), ToString::to_string);
                bail!(
                    "the backup has a registry in SQLite, and the configuration has another registry: {found}"
                );
            }
        }
    }
    if container::has(backup, container::SESSION_KEY)? {
        let path = settings.session_key_path();
        // By default the key is in the run_dir. systemd removes the run_dir when dq is stopped, and only root can make
        // it again. Without the key, people must sign in again.
        let above = folder_of(&path).ancestors().find(|folder| folder.exists());
        let has_place = above.is_some_and(|folder| access(folder, AccessFlags::W_OK).is_ok());
        if !has_place {
            eprintln!("dq: {} cannot be made, so people must sign in to the console again", path.display());
        }
        if has_place
            && std::fs::read(&path).ok() != Some(container::first_piece(backup, container::SESSION_KEY)?)
        {
            targets.push(FileToRestore { part: Some(container::SESSION_KEY), path: linked_file(&path)? });
        }
    }
    targets.push(FileToRestore { part: None, path: linked_file(store)? });
    Ok(targets)
}

/// Fails if files are in the way and may not be renamed.
fn check_free(in_the_way: &[PathBuf], replace: bool) -> Result<()> {
    if let Some(first) = in_the_way.first().filter(|_| !replace) {
        let what = match in_the_way.iter().any(|path| path.to_string_lossy().ends_with(LOG)) {
            true => "an old log would be applied to the restored file",
            false => "it would be replaced",
        };
        let all: Vec<_> = in_the_way.iter().map(|path| path.display().to_string()).collect();
        bail!(
            "{} exists, and {what} (in the way: {}). Rename these files, or let --replace rename them to …{ASIDE}",
            first.display(),
            all.join(", ")
        );
    }
    match in_the_way.iter().map(|path| old_name(path)).find(|path| path.symlink_metadata().is_ok()) {
        Some(path) => {
            bail!("{} exists already, from an earlier restore: rename or remove it", path.display())
        }
        None => Ok(()),
    }
}

/// Returns the name that an old file gets. The name of a log or a mark keeps its ending, so that it still belongs to
/// its database.
fn old_name(path: &Path) -> PathBuf {
    let name = path.to_string_lossy();
    for log in LOGS.into_iter().chain([MOVED]) {
        if let Some(database) = name.strip_suffix(log) {
            return format!("{database}{ASIDE}{log}").into();
        }
    }
    beside(path, ASIDE)
}

/// What was restored.
struct RestoreSummary {
    jobs: u64,
    topics: u64,
    /// Jobs that are delivered as soon as dq runs.
    due: u64,
}

fn restore(
    backup: &Connection,
    targets: &[FileToRestore],
    in_the_way: &[PathBuf],
    turn: &HeldTurn,
) -> Result<RestoreSummary> {
    let mut staged = Vec::new();
    let mut restored = None;
    for target in targets {
        let folder = folder_of(&target.path);
        std::fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
        let staging = Staging::beside(&target.path)?;
        let file = staging.file("new");
        match target.part {
            Some(name) => {
                container::extract(backup, name, &file)?;
                if name == container::REGISTRY {
                    let registry = Connection::open_with_flags(&file, OpenFlags::SQLITE_OPEN_READ_ONLY)?;
                    container::check(&registry, "the registry in the backup")?;
                }
            }
            None => restored = Some(rebuild_store(backup, &file)?),
        }
        staged.push(staging);
    }
    turn.begin_replacement().context("cannot note that the store is being replaced")?;
    match put_in_place(&staged, in_the_way) {
        Ok(()) => turn.end_replacement().context("the files are in place, but this cannot be noted")?,
        Err(e) => {
            // If all old files are back in their places, nothing was replaced.
            if in_the_way.iter().all(|path| path.symlink_metadata().is_ok()) {
                turn.give_up_replacement().context("cannot remove the note of the replacement")?;
            }
            return Err(e);
        }
    }
    restored.context("the store is one of the targets")
}

/// Renames the files that are in the way, and puts the new files in their places. If a step fails, the earlier steps
/// are undone.
fn put_in_place(staged: &[Staging], in_the_way: &[PathBuf]) -> Result<()> {
    let (mut moved, mut published): (Vec<&Path>, Vec<&Staging>) = (Vec::new(), Vec::new());
    let mut all = || -> Result<()> {
        for path in in_the_way {
            std::fs::rename(path, old_name(path))
                .with_context(|| format!("cannot rename {}", path.display()))?;
            moved.push(path);
        }
        for staging in staged {
            staging.publish("new")?;
            published.push(staging);
        }
        Ok(())
    };
    let Err(e) = all() else { return Ok(()) };
    let undone = published.iter().map(|staging| std::fs::remove_file(staging.place()));
    let undone = undone.chain(moved.iter().map(|path| std::fs::rename(old_name(path), path)));
    match undone.filter_map(std::result::Result::err).next() {
        None => Err(e),
        Some(undo) => {
            Err(e.context(format!("the old files end in {ASIDE}, and could not be renamed back: {undo}")))
        }
    }
}

/// Writes the store of a backup into a new file without free pages. The new file has `auto_vacuum`. So when pages
/// become free later, it can give them back to the disk.
fn rebuild_store(backup: &Connection, file: &Path) -> Result<RestoreSummary> {
    let vacuum: i64 = backup.query_row("PRAGMA auto_vacuum", [], |row| row.get(0))?;
    if vacuum == 0 {
        // This setting applies to the file that VACUUM makes.
        backup.execute_batch("PRAGMA auto_vacuum = incremental")?;
    }
    backup.execute("VACUUM INTO ?1", [file.to_str().context("the path of the store is not UTF-8")?])?;
    let db = Connection::open(file)?;
    container::drop_tables(&db)?;
    let due = "SELECT count(*) FROM job WHERE state IN (2, 3) OR state = 1 AND at_ms <= ?1";
    let restored = RestoreSummary {
        jobs: db.query_row("SELECT count(*) FROM job", [], |row| row.get(0))?,
        topics: db.query_row("SELECT count(DISTINCT tid) FROM job", [], |row| row.get(0))?,
        due: db.query_row(due, [now_ms()], |row| row.get(0))?,
    };
    db.close().map_err(|(_, e)| e)?;
    // `complete_restore` hands back leases, because the processes that had them are gone. It rings no bell, because
    // this folder has no bells.
    let mut store = SqliteStore::open(file, folder_of(file), 0).map_err(|e| anyhow::anyhow!("{e}"))?;
    store.complete_restore().map_err(|e| anyhow::anyhow!("cannot complete the store of the backup: {e}"))?;
    Ok(restored)
}

fn print_result(
    arguments: &RestoreArguments,
    settings: &Settings,
    manifest: &Manifest,
    restored: &RestoreSummary,
    (moved, has_registry): (&[PathBuf], bool),
) -> Result<()> {
    let RestoreSummary { jobs, topics, due } = restored;
    if arguments.json {
        return json_line(&json!({"made_ms": manifest.made_ms, "jobs": jobs, "topics": topics, "due": due}));
    }
    let made_at = moment(manifest.made_ms);
    println!(
        "restored {} of {} as of {made_at} (instance {})",
        counted(*jobs, "job"),
        counted(*topics, "topic"),
        manifest.instance
    );
    println!("jobs that were delivered after {made_at} are delivered again");
    println!("{due} jobs are due now, and are delivered as soon as dq runs");
    println!(
        "jobs that were deleted or changed after that are as they were; jobs that were added are missing"
    );
    for path in moved {
        println!("{} is now {}", path.display(), old_name(path).display());
    }
    if settings.registry.is_some() && !has_registry {
        println!("the backup has no registry: topics and accounts are as they are now");
    }
    println!(
        "not restored: the configuration file and the files that it names; start dq when they are in place"
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_old_log_stays_with_its_database() {
        let name = |path: &str| old_name(Path::new(path)).display().to_string();
        assert_eq!(name("/v/dq.db"), "/v/dq.db.before-restore");
        assert_eq!(name("/v/dq.db-wal"), "/v/dq.db.before-restore-wal");
        assert_eq!(name("/v/r.db-journal"), "/v/r.db.before-restore-journal");
    }

    #[test]
    fn a_file_in_the_way_stops_a_restore_unless_it_may_be_renamed() {
        let dir = tempfile::tempdir().unwrap();
        let old = dir.path().join("dq.db-wal");
        check_free(&[], false).unwrap();
        let message = check_free(std::slice::from_ref(&old), false).unwrap_err().to_string();
        assert!(message.contains("an old log would be applied"), "{message}");
        check_free(std::slice::from_ref(&old), true).unwrap();
        std::fs::write(old_name(&old), "").unwrap();
        let message = check_free(std::slice::from_ref(&old), true).unwrap_err().to_string();
        assert!(message.contains("from an earlier restore"), "{message}");
    }

    #[test]
    fn a_restore_that_fails_half_way_is_undone() {
        let dir = tempfile::tempdir().unwrap();
        let [first, second] = ["registry.db", "dq.db"].map(|name| dir.path().join(name));
        std::fs::write(&first, "old").unwrap();
        let staged = [Staging::beside(&first).unwrap(), Staging::beside(&second).unwrap()];
        // The second file was never written.
        std::fs::write(staged[0].file("new"), "new").unwrap();
        assert!(put_in_place(&staged, std::slice::from_ref(&first)).is_err());
        assert_eq!(std::fs::read(&first).unwrap(), b"old");
        assert!(!old_name(&first).exists() && !second.exists());
        std::fs::write(staged[1].file("new"), "new").unwrap();
        put_in_place(&staged, std::slice::from_ref(&first)).unwrap();
        assert_eq!([&first, &second].map(|path| std::fs::read(path).unwrap()), [b"new", b"new"]);
        assert_eq!(std::fs::read(old_name(&first)).unwrap(), b"old");
    }

    #[test]
    fn a_file_of_an_earlier_release_can_give_pages_back_afterwards() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("dq.db");
        drop(SqliteStore::open(&path, dir.path(), 0).unwrap());
        let db = Connection::open(&path).unwrap();
        let vacuum = |db: &Connection| db.query_row("PRAGMA auto_vacuum", [], |row| row.get::<_, i64>(0));
        db.query_row("PRAGMA journal_mode = delete", [], |_| Ok(())).unwrap();
        db.execute_batch("PRAGMA auto_vacuum = none").unwrap();
        db.execute_batch("VACUUM").unwrap();
        assert_eq!(vacuum(&db), Ok(0), "as in an earlier release");
        container::create(&db, &Manifest { made_ms: 1, instance: "h".into(), version: "1".into() }).unwrap();
        drop(db);
        let (backup, _) = container::open(&path).unwrap();
        let file = dir.path().join("new");
        rebuild_store(&backup, &file).unwrap();
        assert_eq!(vacuum(&Connection::open(&file).unwrap()), Ok(2));
    }
}
