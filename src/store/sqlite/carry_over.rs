//! Carries the write-ahead log over into the file, which only the timer does, and an import: in other processes a commit
//! never waits for it.

use std::path::Path;
use std::time::Duration;

use nix::sys::statvfs::statvfs;
use rusqlite::Connection;

use super::LOG_PAGES;
use super::connect::{BUSY, refused};
use super::turn::Turn;
use crate::store::{Result, StoreError};

/// With less room than this, the log is carried over however short it is, so that it can be used again.
const SCARCE_BYTES: u64 = 8 << 20;

/// How long readers are waited for while writers wait too.
const READERS: Duration = Duration::from_millis(10);

/// What a checkpoint tells: pages in the log, and those of them that are in the file.
struct Pages {
    log: i64,
    carried: i64,
}

fn checkpoint(db: &Connection, mode: &str) -> rusqlite::Result<Pages> {
    db.query_row(&format!("PRAGMA wal_checkpoint({mode})"), [], |row| {
        Ok(Pages { log: row.get("log")?, carried: row.get("checkpointed")? })
    })
}

/// Does it, where there is enough to do.
pub(super) fn carry_over(db: &Connection, turn: &Turn, path: &Path) -> Result<()> {
    let scarce = path
        .parent()
        .and_then(|folder| statvfs(folder).ok())
        .is_some_and(|disk| disk.blocks_available() * disk.fragment_size() < SCARCE_BYTES);
    let enough = if scarce { 1 } else { i64::from(LOG_PAGES) };
    if checkpoint(db, "NOOP").map_err(refused)?.log < enough {
        return Ok(());
    }
    // Most of it beside the writers, who do not wait; then the rest in a turn, so that the next writer begins the log
    // anew instead of making it longer.
    let pages = checkpoint(db, "PASSIVE").map_err(refused)?;
    if pages.log - pages.carried > i64::from(LOG_PAGES) {
        // A reader, perhaps a backup, still needs what is in the file: the next ring tries again.
        log::debug!("{} pages of the log of {} wait for a reader", pages.log - pages.carried, path.display());
        return Ok(());
    }
    let _turn = turn.take().map_err(|e| StoreError::Unavailable(format!("the store's turn: {e}")))?;
    db.busy_timeout(READERS).map_err(refused)?;
    let restarted = checkpoint(db, "RESTART");
    db.busy_timeout(BUSY).map_err(refused)?;
    restarted.map(drop).map_err(refused)
}
