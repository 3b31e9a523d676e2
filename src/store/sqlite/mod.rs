//! The embedded store: one SQLite file in WAL mode that all processes of a host open. It is one shard. Its clock is the
//! clock of the host.
//!
//! Every change is one transaction, and the processes take turns (`turn`). Adds, deletes and changes are on the disk
//! before they are answered. Promotions, leases and settlements are on the disk after the next add, delete or change.
//! So after a power cut, a delivery may be repeated, but none is lost. Only the maintenance of the store (by the timer,
//! an import or an export) and a restore make checkpoints.
//!
//! No code may open or close the file outside SQLite: if a process closes any descriptor of the file, it loses all its
//! POSIX locks on the file.

mod bell;
mod browse;
mod bulk;
mod carry_over;
mod change;
mod chunks;
mod commit;
mod connect;
mod deliver;
mod erase;
mod flow;
mod free_pages;
mod hung_bell;
mod job_bytes;
mod lease_rows;
mod leases;
mod letters;
mod outbox;
mod pending_records;
mod quota;
mod record_keeping;
mod record_rows;
mod records;
mod row;
mod secret;
mod take_over;
mod turn;
mod wal;
mod write;

use crate::disk::DiskReserve;
use crate::records::trim_when_due;
use crate::{Maintenance, OwnerTag, TimerWork};
use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicI32;
use std::time::{Duration, Instant};

use rusqlite::{Connection, OpenFlags};

pub use hung_bell::SocketBell;
pub use take_over::move_mark_of;
pub use turn::{HeldTurn, unfinished_replacement};

use self::bell::{BellRinger, PendingRings};
use self::carry_over::{CheckpointMode, carry_over, carry_over_all};
use self::chunks::More;
use self::commit::CommitDurability;
use self::connect::connect;
pub(super) use self::connect::{BUSY, at_commit, refused};
use self::free_pages::FreePages;
use self::pending_records::RecordBudget;
use self::turn::LogNote;
pub(super) use self::turn::Turn;
use self::wal::Log;
use self::write::{TopicRowIds, WriteTransaction};
use super::{Result, StoreError};
use host::{FileId, file_at, use_file, used_file};
use model::job::TopicName;
use model::ticket::TicketSecret;

/// The maximum number of jobs that a transaction changes. This limit keeps transactions short.
const CHUNK: usize = 256;

/// Each time the log grows by this number of pages (of 4 kB), the bell of the timer is rung, and the timer copies the
/// log into the file.
const LOG_PAGES: i32 = 1000;

/// A handle to the embedded store.
#[derive(Debug)]
pub struct SqliteStore {
    db: Connection,
    path: PathBuf,
    /// Device and inode of the file when it was opened.
    file: FileId,
    turn: Arc<Turn>,
    log: Log,
    ringer: BellRinger,
    durability: CommitDurability,
    topics: TopicRowIds,
    /// Pages in the log after the last commit, as SQLite reports them.
    log_pages: Arc<AtomicI32>,
    log_rung: i32,
    /// The topics that [`TimerWork::take_dead_letter_topics`] has not returned yet.
    dead_topics: Vec<TopicName>,
    reserve: DiskReserve,
    /// Whether the file can give free pages back.
    gives_pages_back: bool,
    free_pages: FreePages,
    /// When to look for old records again. None: this handle has not looked yet.
    trim_at: Option<Instant>,
    /// What this handle knows of the bytes of all records.
    record_budget: RecordBudget,
}

/// Returns why the file at this path is not used.
fn other_file(path: &Path, found: std::io::Result<FileId>) -> StoreError {
    let why = found.map_or_else(|e| e.to_string(), |_| "another file is in its place".to_owned());
    StoreError::OtherFile(format!("{}: {why}", path.display()))
}

impl SqliteStore {
    /// Opens the file, makes it if it is not there, and brings it up to date. If a daemon runs in `run_dir`, only the
    /// file that the daemon uses is opened (`host::used_file`). Adds are refused while the disk has fewer than
    /// `min_free` bytes left.
    pub fn open(path: &Path, run_dir: &Path, min_free: u64) -> Result<SqliteStore> {
        match move_mark_of(path) {
            Ok(None) => SqliteStore::open_marked(path, run_dir, min_free),
            Ok(Some(mark)) => Err(StoreError::Unavailable(format!("{}: {mark}", path.display()))),
            Err(e) => Err(StoreError::Unavailable(e.to_string())),
        }
    }

    /// Opens the file, even if it has the mark of a move.
    pub fn open_marked(path: &Path, run_dir: &Path, min_free: u64) -> Result<SqliteStore> {
        let io = |e: std::io::Error| StoreError::Unavailable(format!("cannot open {}: {e}", path.display()));
        if let Some(used) = used_file(run_dir).map_err(io)? {
            // This check comes before any file is made. A store that was moved away may be moved back later, together
            // with the files beside it. New files must not be in the places of these files.
            match file_at(path) {
                Ok(file) if file == used => {}
                other => return Err(other_file(path, other)),
            }
        }
        let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
        std::fs::create_dir_all(folder).map_err(io)?;
        let turn = Turn::beside(path).map_err(io)?;
        let ringer = BellRinger::new(run_dir);
        let log_pages = Arc::new(AtomicI32::new(0));
        let taken = turn.take().map_err(io)?;
        if let Some(why) = turn::unfinished_replacement(path) {
            return Err(StoreError::Unavailable(why));
        }
        if !path.exists() {
            log::info!("a new store is made: {}", path.display());
            // Only the owner of the file may read jobs. During this turn no process has the file open, so no lock is
            // lost when this descriptor is closed.
            OpenOptions::new().write(true).create_new(true).mode(0o600).open(path).map_err(io)?;
        }
        // `connect` may migrate the schema, and thus write to the log. So before this call, the note is set to say that
        // the log is being written.
        let before = taken.note().map_err(io)?;
        taken.set(LogNote::Writing).map_err(io)?;
        // An empty file has no pages yet. The size of the file is read without opening the file.
        let is_new = std::fs::metadata(path).is_ok_and(|file| file.len() == 0);
        let db = connect(path, is_new, &log_pages).map_err(|e| match e {
            StoreError::Damaged(why) => StoreError::Damaged(format!("{}: {why}", path.display())),
            StoreError::Unavailable(why) => StoreError::Unavailable(format!("{}: {why}", path.display())),
            other => other,
        })?;
        let file = file_at(path).map_err(io)?;
        taken.set(before).map_err(io)?;
        if use_file(run_dir, file).map_err(io)? != file {
            return Err(other_file(path, Ok(file)));
        }
        drop(taken);
        // `path` may be a link to the file. The log is beside the file itself, and on its disk.
        let real = db.path().map_or_else(|| path.to_owned(), PathBuf::from);
        let mut store = SqliteStore {
            gives_pages_back: free_pages::can_give_back(&db).map_err(refused)?,
            free_pages: FreePages::default(),
            db,
            path: path.to_owned(),
            reserve: DiskReserve::new(&real, min_free),
            file,
            turn: Arc::new(turn),
            log: Log::beside(&real),
            ringer,
            durability: CommitDurability::Full,
            topics: TopicRowIds::new(),
            log_pages,
            log_rung: 0,
            dead_topics: Vec::new(),
            trim_at: None,
            record_budget: RecordBudget::default(),
        };
        // An earlier process may have died after a commit and before it rang its bells.
        store.announce();
        Ok(store)
    }

    /// Completes a file that was restored from a backup. No other process may have the file open. Hands back all leases
    /// of processes, because none of these processes is alive. Gives the file another identity (see
    /// [`restored_as`](SqliteStore::restored_as)). Leases whose receivers answer later continue.
    pub fn complete_restore(&mut self) -> Result<()> {
        let identity = fastrand::i32(1..);
        self.db.pragma_update(None, "application_id", identity).map_err(refused)?;
        let owners: Vec<String> = self
            .db
            .prepare("SELECT DISTINCT owner FROM job WHERE state = 3 AND owner IS NOT NULL")
            .and_then(|mut owners| owners.query_map([], |row| row.get(0))?.collect())
            .map_err(refused)?;
        for owner in owners {
            self.hand_back(&OwnerTag(owner))?;
        }
        carry_over_all(&self.db)
    }

    /// Returns the identity that the file got when it was restored from a backup. None: the file was not restored, or
    /// there is no file. An import notes at its source which store it filled, and the note contains this identity. So a
    /// note from before a restore names another identity. Such a note is not valid any more, because the restored file
    /// may not have the imported jobs.
    pub fn restored_as(path: &Path) -> Result<Option<i32>> {
        if !path.exists() {
            return Ok(None);
        }
        let read = || -> rusqlite::Result<i32> {
            let db = Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_ONLY)?;
            db.query_row("PRAGMA application_id", [], |row| row.get(0))
        };
        Ok(Some(read().map_err(refused)?).filter(|identity| *identity != 0))
    }

    /// Checks that the file at the path is still the file that was opened. (Changes to a file that was removed would be
    /// lost.)
    fn check_file(&self) -> Result<()> {
        match file_at(&self.path) {
            Ok(file) if file == self.file => Ok(()),
            other => Err(other_file(&self.path, other)),
        }
    }

    /// Copies the log into the file, if the log is long.
    fn carry_over_log(&mut self) -> Result<()> {
        carry_over(&self.db, &self.turn, &mut self.log, &self.path, LOG_PAGES, CheckpointMode::Reused)?;
        Ok(())
    }

    /// Returns the number of a topic, without a transaction. None: the topic never had a job.
    fn topic(&mut self, name: &TopicName) -> Result<Option<i64>> {
        let mut read = WriteTransaction::begin(&self.db, &self.topics, self.record_budget);
        let tid = read.topic(name).map_err(refused)?;
        let met = read.met;
        self.topics.extend(met);
        Ok(tid)
    }
}

impl Maintenance for SqliteStore {
    fn secret(&mut self, _lane: usize) -> Result<TicketSecret> {
        self.shared_secret()
    }

    fn health(&mut self) -> Result<()> {
        let one: i64 = self.db.query_row("SELECT one FROM shard", [], |row| row.get(0)).map_err(refused)?;
        debug_assert_eq!(one, 1);
        self.check_file()?;
        self.log.repair_if_failed(&self.turn, &self.db)
    }

    fn inspect(&mut self) -> Result<()> {
        let found: String =
            self.db.query_row("PRAGMA quick_check(1)", [], |row| row.get(0)).map_err(refused)?;
        if found == "ok" { Ok(()) } else { Err(StoreError::Damaged(found)) }
    }

    fn announce(&mut self) {
        self.ringer.ring(PendingRings { push: true, timer: true });
    }

    fn maintain(&mut self) -> Result<Option<Duration>> {
        self.carry_over_log()?;
        let again = trim_when_due(self, |store| &mut store.trim_at)?;
        let others = [self.give_pages_back()?, self.finish_erasures()?];
        Ok(others.into_iter().flatten().chain([again]).min())
    }
}
