//! Makes sure that the log on the disk has everything that was written to it. When a sync fails, some pages are not
//! written, but Linux still marks them as clean. The next sync then succeeds without these pages, and commits that were
//! not synced before are missing on the disk. After a power cut, the log ends there: all later commits would be lost,
//! even if they were synced.
//!
//! So a process writes a note in the turn's file before it writes to the log. It removes the note when the write has
//! succeeded. If there was an error or the process was killed, the next process that has the turn finds the note. That
//! process first writes the whole log again and syncs it, because the pages in memory are still right. (A checkpoint is
//! not enough. It changes the database file, but the old log stays until SQLite begins a new log. After a power cut,
//! SQLite would read the incomplete old log, and overwrite the changed file with its pages.)

use std::fs::OpenOptions;
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rusqlite::{Connection, ErrorCode, Transaction, TransactionBehavior};

use super::connect::refused;
use super::turn::{LogNote, Turn, TurnGuard};
use crate::{Result, StoreError};
use model::settings::files::{LOG, beside};

/// How long to wait after a failed repair before the next one.
const AGAIN: Duration = Duration::from_millis(500);

/// How many bytes are written again at a time.
const STEP: usize = 1 << 20;

/// What a handle knows of the log.
#[derive(Debug)]
pub(super) struct Log {
    path: PathBuf,
    /// When the last repair failed, and why. None: it did not fail.
    failed: Option<(Instant, String)>,
}

impl Log {
    pub(super) fn beside(database: &Path) -> Log {
        Log { path: beside(database, LOG), failed: None }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Must be called before the log is written to, in this handle's turn. Repairs the log if that is needed.
    pub(super) fn begin(&mut self, turn: &TurnGuard<'_>, db: &Connection) -> Result<()> {
        match turn.note().map_err(cannot_note)? {
            LogNote::None => {}
            note => self.repair(turn, db, note)?,
        }
        turn.set(LogNote::Writing).map_err(cannot_note)
    }

    /// Must be called after the write, in the same turn. `error`: the error of the write, if there was one.
    pub(super) fn end(&self, turn: &TurnGuard<'_>, error: Option<&rusqlite::Error>) {
        match error {
            Some(e) if is_disk_error(e) => self.note_error(turn, e),
            _ => self.set(turn, LogNote::None),
        }
    }

    /// Notes an error of the disk. Other errors do not concern the log.
    pub(super) fn note_error(&self, turn: &TurnGuard<'_>, error: &rusqlite::Error) {
        if is_disk_error(error) {
            let path = self.path.display();
            log::error!(
                "{path}: the disk failed: {error}. Nothing is stored until the whole log is written again"
            );
            self.set(turn, LogNote::Failed);
        }
    }

    fn set(&self, turn: &TurnGuard<'_>, note: LogNote) {
        if let Err(e) = turn.set(note) {
            log::error!("{}: cannot note the state of the log: {e}", self.path.display());
        }
    }

    /// Repairs the log if the disk has failed, and no process has repaired it since.
    pub(super) fn repair_if_failed(&mut self, turn: &Turn, db: &Connection) -> Result<()> {
        match turn.note().map_err(cannot_note)? {
            LogNote::Failed => self.repair_in_turn(turn, db),
            _ => Ok(()),
        }
    }

    /// Waits for the turn, and repairs the log if that is needed.
    pub(super) fn repair_in_turn(&mut self, turn: &Turn, db: &Connection) -> Result<()> {
        let taken = turn.take().map_err(|e| StoreError::Unavailable(format!("the store's turn: {e}")))?;
        if taken.note().map_err(cannot_note)? != LogNote::None {
            self.begin(&taken, db)?;
            self.end(&taken, None);
        }
        Ok(())
    }

    fn repair(&mut self, turn: &TurnGuard<'_>, db: &Connection, note: LogNote) -> Result<()> {
        if let Some((_, why)) = self.failed.as_ref().filter(|(at, _)| at.elapsed() < AGAIN) {
            return Err(not_repaired(why));
        }
        // No other program may write to the log in the meantime.
        let alone = Transaction::new_unchecked(db, TransactionBehavior::Immediate).map_err(refused)?;
        let written = rewrite(&self.path);
        drop(alone);
        match written {
            Ok(bytes) => {
                let why = match note {
                    LogNote::Failed => "the disk had failed",
                    _ => "a process was killed while it wrote",
                };
                log::warn!("{}: {why}: all of its {bytes} bytes are written again", self.path.display());
                self.failed = None;
                Ok(())
            }
            Err(e) => {
                let why = e.to_string();
                let level = if self.failed.is_none() { log::Level::Error } else { log::Level::Debug };
                log::log!(level, "{}: the log cannot be written again: {why}", self.path.display());
                let error = not_repaired(&why);
                self.failed = Some((Instant::now(), why));
                turn.set(LogNote::Failed).map_err(cannot_note)?;
                Err(error)
            }
        }
    }
}

/// Writes each byte again at its place, so that the kernel considers all bytes unwritten. Then syncs the file. Returns
/// how many bytes there were.
fn rewrite(path: &Path) -> io::Result<u64> {
    let file = match OpenOptions::new().read(true).write(true).open(path) {
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(0),
        other => other?,
    };
    let (mut bytes, mut at) = (vec![0; STEP], 0);
    loop {
        match file.read_at(&mut bytes, at)? {
            0 => break,
            n => {
                file.write_all_at(&bytes[..n], at)?;
                at += n as u64;
            }
        }
    }
    file.sync_data()?;
    Ok(at)
}

/// Returns whether something that was written may be missing on the disk.
fn is_disk_error(error: &rusqlite::Error) -> bool {
    // The disk is full, and the file of shared memory could not grow. In this case no write to the log has failed.
    let is_room =
        error.sqlite_error().is_some_and(|e| e.extended_code == rusqlite::ffi::SQLITE_IOERR_SHMSIZE);
    error.sqlite_error_code() == Some(ErrorCode::SystemIoFailure) && !is_room
}

fn not_repaired(why: &str) -> StoreError {
    StoreError::Unavailable(format!(
        "the disk failed, and the store takes nothing until its whole log is on the disk again: {why}"
    ))
}

fn cannot_note(e: io::Error) -> StoreError {
    match e.kind() {
        ErrorKind::StorageFull => StoreError::Full(e.to_string()),
        _ => StoreError::Unavailable(format!("the store's turn: {e}")),
    }
}

#[cfg(test)]
mod tests {
    use super::super::SqliteStore;

    #[test]
    fn the_log_of_a_linked_file_is_beside_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let [disk, run_dir] = ["disk", "run"].map(|name| dir.path().join(name));
        for folder in [&disk, &run_dir] {
            std::fs::create_dir(folder).unwrap();
        }
        let (file, link) = (disk.join("jobs.db"), dir.path().join("dq.db"));
        drop(SqliteStore::open(&file, &run_dir, 0).unwrap());
        std::os::unix::fs::symlink(&file, &link).unwrap();
        let store = SqliteStore::open(&link, &run_dir, 0).unwrap();
        assert_eq!(store.log.path(), std::fs::canonicalize(&disk).unwrap().join("jobs.db-wal"));
        assert!(store.log.path().exists());
    }
}
