//! `dq backup`: copies the embedded store and the registry into one file. It works whether the daemon runs or not.
//! `restore` does the opposite.
//!
//! Both copies show the same moment. First, a read transaction of the registry begins. The registry has no write-ahead
//! log, so all its writers must wait for the end of this transaction. Then a read transaction of the store begins. So
//! the registry does not change between these two moments. The registry is small. The registry is copied first, and
//! then its writers continue. No writer waits for the store's read transaction.

mod checksum;
mod container;
pub(super) mod restore;
mod seal;
mod staging;

use std::fs::OpenOptions;
use std::io::ErrorKind;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use nix::sys::signal::Signal;
use rusqlite::backup::{Backup, StepResult};
use rusqlite::config::DbConfig;
use rusqlite::{Connection, ErrorCode, OpenFlags};
use serde_json::json;

use self::container::Manifest;
use self::staging::Staging;
use super::progress::Progress;
use super::show::{json_line, moment};
use host::{RunDirLock, Signals, is_run_dir_taken, now_ms};
use model::settings::{RegistrySettings, Settings, StoreSettings};

/// How many pages are copied at a time: a megabyte.
const STEP: i32 = 256;

/// How long to wait for another process that locks a database.
const BUSY: Duration = Duration::from_secs(5);

/// The error message for a store on Redis. It says how to copy such a store.
const ON_REDIS: &str = "the store is Redis, and dq backup copies only the embedded store. Copy each node with Redis's own \
    means (redis-cli --rdb FILE), and the registry with its database's (sqlite3, mysqldump): see README.md, Backup";

/// Copy the jobs, the topics and the accounts into one file, while dq runs
///
/// The file has the embedded store, the registry if it is a SQLite file, and the key of the console's sessions, all as
/// they were at one moment. The configuration file and the files that it names (certificates, passwords) are not in it.
/// Only its owner may read the file, because it holds secrets. `dq restore` brings the data back.
#[derive(Debug, clap::Args)]
#[command(after_help = "Run it as the daemon's user, who owns the files. Example:\n  \
                  dq backup --config /etc/dq/dq.toml /backup/dq-2026-11-21.backup")]
pub(super) struct BackupArguments {
    /// The file to make; it must not exist
    file: PathBuf,

    /// dq's configuration file, which says where the store and the registry are
    #[arg(long, value_name = "FILE")]
    config: PathBuf,

    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Takes the lock of a stopped daemon, so that no daemon starts in its run_dir. None: there is no lock file.
pub(super) fn stopped_daemon(settings: &Settings) -> Result<Option<RunDirLock>> {
    let run_dir = &settings.run_dir;
    if is_run_dir_taken(run_dir) {
        bail!(
            "a daemon runs in {}, or another dq command uses it: stop the daemon, or wait until the command has ended",
            run_dir.display()
        );
    }
    // A lock file that is missing is not made here, because it would then belong to the user of this command.
    match run_dir.join("dq-master.pid").exists() {
        true => Ok(Some(RunDirLock::take(run_dir, Duration::ZERO).context("stop the daemon first")?)),
        false => Ok(None),
    }
}

/// Fails if another process has the store open: a child of a daemon whose master was killed, or an import.
pub(super) fn check_unused(store: &Path) -> Result<()> {
    if !store.exists() {
        return Ok(());
    }
    let alone = || -> rusqlite::Result<()> {
        let db = Connection::open_with_flags(store, OpenFlags::SQLITE_OPEN_READ_WRITE)?;
        db.set_db_config(rusqlite::config::DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
        db.execute_batch("PRAGMA locking_mode = exclusive; BEGIN EXCLUSIVE; ROLLBACK")
    };
    match alone().map_err(|e| e.sqlite_error_code()) {
        Err(Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked)) => {
            bail!("another process uses {}: wait until it has ended (dq-master, dq import)", store.display())
        }
        // A damaged store may be replaced by a backup. Other commands fail when they open it.
        _ => Ok(()),
    }
}

/// Runs `dq backup`.
pub(super) fn run(arguments: &BackupArguments) -> Result<()> {
    host::keep_new_files_private();
    let settings = super::settings(&arguments.config)?;
    let file = &arguments.file;
    let store = embedded(&settings)?;
    if file.try_exists()? {
        bail!("{} exists already: name a new file", file.display());
    }
    let interrupts = Signals::catch(&[Signal::SIGINT, Signal::SIGTERM])?;
    let made = make(&settings, store, file, interrupts).map_err(|e| match is_full(&e) {
        true => e.context(format!("the disk of {} is full, nothing is left there", file.display())),
        false => e,
    })?;
    let (made_at, bytes) = (moment(made.made_ms), std::fs::metadata(file)?.len());
    if arguments.json {
        return json_line(&json!({"file": file, "made_ms": made.made_ms, "jobs": made.jobs, "bytes": bytes,
            "registry": made.has_registry}));
    }
    println!("{}: {} jobs as of {made_at}, {:.1} MiB", file.display(), made.jobs, bytes as f64 / 1048576.0);
    if let Some(registry @ RegistrySettings::Mysql(_)) = &settings.registry {
        println!("not included: the registry {registry}; copy it with mysqldump");
    }
    println!("not included: {} and the files that it names", arguments.config.display());
    Ok(())
}

/// Returns the file of the embedded store. Fails if the store is Redis.
fn embedded(settings: &Settings) -> Result<&Path> {
    match &settings.store {
        StoreSettings::Embedded { path, .. } => Ok(path),
        StoreSettings::Redis(_) => bail!(ON_REDIS),
    }
}

/// A backup that was made.
struct BackupSummary {
    made_ms: i64,
    jobs: u64,
    has_registry: bool,
}

fn make(settings: &Settings, store: &Path, file: &Path, mut interrupts: Signals) -> Result<BackupSummary> {
    let staging = Staging::beside(file)?;
    let copy = staging.file("backup");
    let registry = match &settings.registry {
        Some(RegistrySettings::Sqlite { path }) if path.exists() => Some(open(path)?),
        _ => None,
    };
    let from = open(store)?;
    // From here to COMMIT, nobody writes to the registry.
    if let Some(registry) = &registry {
        begin_read(registry).context("cannot read the registry")?;
    }
    begin_read(&from).context("cannot read the store")?;
    let made_ms = now_ms();
    let jobs =
        from.query_row("SELECT coalesce(sum(delayed + ready + leased + dead), 0) FROM topic", [], |row| {
            row.get(0)
        })?;
    let registry_copy = staging.file("registry.db");
    if let Some(registry) = &registry {
        copy_pages(registry, &registry_copy, |_, _| Ok(())).context("cannot copy the registry")?;
        registry.execute_batch("COMMIT")?;
    }

    let mut progress: Option<Progress> = None;
    let mut shown = 0;
    let copied = copy_pages(&from, &copy, |done, all| {
        if !interrupts.take()?.is_empty() {
            bail!("interrupted: nothing is left of the backup");
        }
        let mib = |pages: u64| pages / u64::from(STEP.unsigned_abs());
        progress.get_or_insert_with(|| Progress::begin(mib(all), "MiB")).step(mib(done) - shown);
        shown = mib(done);
        Ok(())
    });
    if let Some(progress) = progress {
        progress.end();
    }
    copied.context("cannot copy the store")?;
    drop(from);

    let db = Connection::open(&copy)?;
    // A copy has the journal mode of the original, which may need further files. With the mode `delete`, the copy is a
    // single file.
    db.pragma_update(None, "journal_mode", "delete")?;
    container::check(&db, "the store")?;
    db.execute_batch("BEGIN")?;
    let (instance, version) = (settings.instance.clone(), env!("CARGO_PKG_VERSION").to_owned());
    container::create(&db, &Manifest { made_ms, instance, version })?;
    if registry.is_some() {
        container::put(&db, container::REGISTRY, &registry_copy)?;
    }
    let key = settings.session_key_path();
    if key.exists() {
        container::put(&db, container::SESSION_KEY, &key)?;
    }
    checksum::write(&db).context("cannot compute the checksum")?;
    db.execute_batch("COMMIT")?;
    db.close().map_err(|(_, e)| e)?;
    seal::write(&copy).context("cannot seal the backup")?;
    staging.publish("backup")?;
    Ok(BackupSummary { made_ms, jobs, has_registry: registry.is_some() })
}

/// Opens a database that exists. When the connection is closed, nothing is copied from the `-wal` file into the
/// database. So this file stays for the daemon.
fn open(path: &Path) -> Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let db = Connection::open_with_flags(path, flags)
        .with_context(|| format!("cannot open {}", path.display()))?;
    db.busy_timeout(BUSY)?;
    db.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
    Ok(db)
}

/// Begins a read transaction: from now on the connection sees the database as it is at this moment.
fn begin_read(db: &Connection) -> rusqlite::Result<()> {
    db.execute_batch("BEGIN")?;
    db.query_row("SELECT count(*) FROM sqlite_master", [], |_| Ok(()))
}

/// Copies the pages of a database into a new file that only its owner may read. `report` gets the number of pages that
/// are copied so far, and the number of all pages. The source is in a read transaction, so other processes may continue
/// to write to the source.
fn copy_pages(from: &Connection, to: &Path, mut report: impl FnMut(u64, u64) -> Result<()>) -> Result<()> {
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(to)?;
    let mut copy = Connection::open(to)?;
    // The copy is useless until it is complete, so it is synced only then.
    copy.pragma_update(None, "synchronous", "off")?;
    let backup = Backup::new(from, &mut copy)?;
    loop {
        let step = backup.step(STEP)?;
        let at = backup.progress();
        let [all, left] = [at.pagecount, at.remaining].map(|pages| u64::from(pages.unsigned_abs()));
        report(all - left, all)?;
        match step {
            StepResult::Done => return Ok(()),
            StepResult::More => {}
            _ => std::thread::sleep(Duration::from_millis(10)),
        }
    }
}

/// Returns whether an error says that the disk is full.
fn is_full(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        let sqlite = cause.downcast_ref::<rusqlite::Error>().and_then(rusqlite::Error::sqlite_error_code);
        let io = cause.downcast_ref::<std::io::Error>().map(std::io::Error::kind);
        sqlite == Some(ErrorCode::DiskFull) || io == Some(ErrorKind::StorageFull)
    })
}
