//! Copies the write-ahead log into the file (a checkpoint). Only the timer and an import do this, so that no other
//! process has to do it at a commit.

use std::path::Path;
use std::time::Duration;

use rusqlite::Connection;

use super::LOG_PAGES;
use super::connect::{BUSY, refused};
use super::turn::Turn;
use super::wal::Log;
use crate::disk::free_bytes;
use crate::{Result, StoreError};

/// If the disk has less free space than this, the log is copied even if it is short, so that its space can be used
/// again.
const SCARCE_BYTES: u64 = 8 << 20;

/// How long to wait for readers while writers wait too.
const READERS: Duration = Duration::from_millis(10);

/// The result of a checkpoint: the pages in the log, and how many of them are in the file.
struct Pages {
    log: i64,
    carried: i64,
}

fn checkpoint(db: &Connection, mode: &str) -> rusqlite::Result<Pages> {
    db.query_row(&format!("PRAGMA wal_checkpoint({mode})"), [], |row| {
        Ok(Pages { log: row.get("log")?, carried: row.get("checkpointed")? })
    })
}

/// Copies the log into the file, if the log has this many pages or disk space is scarce.
pub(super) fn carry_over(
    db: &Connection,
    turn: &Turn,
    log: &mut Log,
    path: &Path,
    least_pages: i32,
) -> Result<()> {
    let scarce = free_bytes(path).is_some_and(|free| free < SCARCE_BYTES);
    let enough = if scarce { 1 } else { i64::from(least_pages) };
    if checkpoint(db, "NOOP").map_err(refused)?.log < enough {
        return Ok(());
    }
    // Pages that are copied into the file must be in the log on the disk first.
    log.mend_in_turn(turn, db)?;
    // Most pages are copied while the writers continue. The rest is copied in a turn, so that the next writer begins a
    // new log instead of making the old one longer.
    let take = || turn.take().map_err(|e| StoreError::Unavailable(format!("the store's turn: {e}")));
    let pages = match checkpoint(db, "PASSIVE") {
        Ok(pages) => pages,
        Err(e) => {
            log.note_error(&take()?, &e);
            return Err(refused(e));
        }
    };
    if pages.log - pages.carried > i64::from(LOG_PAGES) {
        // A reader, perhaps a backup, still needs what is in the file: the next ring tries again.
        log::debug!("{} pages of the log of {} wait for a reader", pages.log - pages.carried, path.display());
        return Ok(());
    }
    let taken = take()?;
    log.begin(&taken, db)?;
    let restarted = db.busy_timeout(READERS).and_then(|()| checkpoint(db, "RESTART"));
    log.end(&taken, restarted.as_ref().err());
    db.busy_timeout(BUSY).map_err(refused)?;
    restarted.map(drop).map_err(refused)
}

/// Copies the whole log into the file, and empties the log. No other process may have the file open.
pub(super) fn carry_over_all(db: &Connection) -> Result<()> {
    checkpoint(db, "TRUNCATE").map(drop).map_err(refused)
}
