//! How the file is opened, and what SQLite's errors mean.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::Duration;

use rusqlite::config::DbConfig;
use rusqlite::{Connection, ErrorCode};

use crate::migrations::runner;
use crate::{Result, StoreError};

/// The migrations of the file.
#[derive(rust_embed::Embed)]
#[folder = "../../migrations/store/sqlite"]
struct StoreMigrations;

/// How long SQLite waits for another program that has locked the file.
pub(crate) const BUSY: Duration = Duration::from_millis(500);

/// When SQLite writes its log again from the beginning, it cuts the file of the log to this size.
const LOG_BYTES: i64 = 64 << 20;

/// Opens the file, and brings it up to date. A new file can give free pages back (`free_pages`). `log_pages` is set to
/// the length of the log after each commit.
pub(super) fn connect(path: &Path, is_new: bool, log_pages: &Arc<AtomicI32>) -> Result<Connection> {
    let mut db = Connection::open(path).map_err(refused)?;
    let settings = |db: &mut Connection| -> rusqlite::Result<()> {
        db.busy_timeout(BUSY)?;
        db.set_prepared_statement_cache_capacity(64);
        if is_new {
            // This must be set before the first page is written. The setting needs about one more page for each
            // thousand pages. The additional work is too small to be measured:
            // `DQ_BENCH_PART=pages cargo bench --bench embedded_store`.
            db.pragma_update(None, "auto_vacuum", "incremental")?;
        }
        db.pragma_update(None, "journal_mode", "wal")?;
        db.pragma_update(None, "synchronous", "full")?;
        db.pragma_update(None, "wal_autocheckpoint", 0)?;
        db.pragma_update(None, "journal_size_limit", LOG_BYTES)?;
        db.pragma_update(None, "cache_size", -8192)?;
        // SQLite overwrites deleted text with zeros, but only in pages that it writes for another reason. See
        // `erase.rs`.
        db.pragma_update(None, "secure_delete", "fast")?;
        db.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
        // The triggers count the bytes of jobs for earlier releases, which may use the file during an upgrade. This
        // release counts them itself (`job_bytes`), which takes less time: a trigger runs for each job.
        db.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_TRIGGER, false)?;
        // Without this setting, SQLite plans a statement again when other values are bound to it. This planning took a
        // tenth of the time of the writes.
        db.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
        let pages = Arc::clone(log_pages);
        db.wal_hook(Some(move |_: &mut rusqlite::hooks::Wal, n| {
            pages.store(n, Ordering::Relaxed);
            Ok(())
        }))
    };
    settings(&mut db).map_err(refused)?;
    runner::<StoreMigrations>()
        .run(&mut db)
        .map_err(|e| StoreError::Unavailable(format!("cannot migrate {}: {e}", path.display())))?;
    Ok(db)
}

/// Converts an error before the commit: nothing was changed.
pub(crate) fn refused(error: rusqlite::Error) -> StoreError {
    let message = error.to_string();
    match error.sqlite_error_code() {
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => StoreError::Busy,
        Some(ErrorCode::DiskFull) => StoreError::Full(message),
        Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => StoreError::Damaged(message),
        _ if error.sqlite_error().is_some_and(|e| e.extended_code == rusqlite::ffi::SQLITE_IOERR_SHMSIZE) => {
            StoreError::Full(message)
        }
        _ => StoreError::Unavailable(message),
    }
}

/// Converts an error of the commit itself. If the disk failed, the outcome is unknown: the whole transaction may be in
/// the log already. The outcome is also unknown if the disk is too full for the shared memory of the log, because
/// SQLite writes the log before the shared memory.
pub(crate) fn at_commit(error: rusqlite::Error) -> StoreError {
    if error.sqlite_error().is_some_and(|e| e.extended_code == rusqlite::ffi::SQLITE_IOERR_SHMSIZE) {
        return StoreError::Unknown(error.to_string());
    }
    match refused(error) {
        StoreError::Unavailable(message) => StoreError::Unknown(message),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use rusqlite::StatementStatus;

    use super::*;

    #[test]
    fn statements_are_planned_once_whatever_is_bound() {
        let dir = tempfile::tempdir().unwrap();
        let db = connect(&dir.path().join("dq.db"), true, &Arc::default()).unwrap();
        let mut statement =
            db.prepare("SELECT seq FROM job WHERE tid = ?1 AND state = ?2 AND due_ms < ?3").unwrap();
        for state in [1, 2, 3] {
            assert!(!statement.exists((1, state, state)).unwrap());
        }
        assert_eq!(statement.get_status(StatementStatus::RePrepare), 0);
    }
}
