//! How the file is opened, and what SQLite's errors mean.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::Duration;

use rusqlite::{Connection, ErrorCode};

use crate::store::{Result, StoreError};

refinery::embed_migrations!("migrations/store/sqlite");

/// How long SQLite waits for another program that holds the file.
pub(super) const BUSY: Duration = Duration::from_millis(500);

/// The log's file is cut to this size when it starts again from its beginning.
const LOG_BYTES: i64 = 64 << 20;

/// Device and inode of a file, by its metadata alone.
pub(super) fn file_at(path: &Path) -> std::io::Result<(u64, u64)> {
    std::fs::metadata(path).map(|m| (m.dev(), m.ino()))
}

/// Opens the file, and brings it up to date. `log_pages` gets how long the log is after each commit.
pub(super) fn connect(path: &Path, log_pages: &Arc<AtomicI32>) -> Result<Connection> {
    let mut db = Connection::open(path).map_err(refused)?;
    let settings = |db: &mut Connection| -> rusqlite::Result<()> {
        db.busy_timeout(BUSY)?;
        db.set_prepared_statement_cache_capacity(64);
        db.pragma_update(None, "journal_mode", "wal")?;
        db.pragma_update(None, "synchronous", "full")?;
        db.pragma_update(None, "wal_autocheckpoint", 0)?;
        db.pragma_update(None, "journal_size_limit", LOG_BYTES)?;
        db.pragma_update(None, "cache_size", -8192)?;
        db.set_db_config(rusqlite::config::DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
        let pages = Arc::clone(log_pages);
        db.wal_hook(Some(move |_: &mut rusqlite::hooks::Wal, n| {
            pages.store(n, Ordering::Relaxed);
            Ok(())
        }))
    };
    settings(&mut db).map_err(refused)?;
    // The release before this one may open the file of the one after it: a migration that it does not know is no error.
    let mut migrations = migrations::runner().set_abort_missing(false);
    migrations = migrations.set_grouped(true);
    migrations
        .run(&mut db)
        .map_err(|e| StoreError::Unavailable(format!("cannot migrate {}: {e}", path.display())))?;
    Ok(db)
}

/// What a failure before the commit means: nothing was changed.
pub(super) fn refused(error: rusqlite::Error) -> StoreError {
    let message = error.to_string();
    match error.sqlite_error_code() {
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => StoreError::Busy,
        Some(ErrorCode::DiskFull) => StoreError::Full,
        Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => StoreError::Damaged(message),
        _ if error.sqlite_error().is_some_and(|e| e.extended_code == rusqlite::ffi::SQLITE_IOERR_SHMSIZE) => {
            StoreError::Full
        }
        _ => StoreError::Unavailable(message),
    }
}

/// What a failure of the commit itself means: an error of the disk may have come after the log had it all.
pub(super) fn at_commit(error: rusqlite::Error) -> StoreError {
    match refused(error) {
        StoreError::Unavailable(message) => StoreError::Unknown(message),
        other => other,
    }
}
