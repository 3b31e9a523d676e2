//! Copies the write-ahead log into the file (a checkpoint). Only the maintenance of the store and a restore do this, so
//! that no other process has to do it at a commit. The timer, an import and an export run the maintenance.

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

/// How long a checkpoint waits for readers. The writers wait during this time, too.
const READERS: Duration = Duration::from_millis(10);

/// The result of a checkpoint.
struct CheckpointResult {
    /// Whether a reader prevented the checkpoint from finishing.
    has_reader: bool,
    /// How many pages are in the log.
    log: i64,
    /// How many of these are in the file.
    carried: i64,
}

fn checkpoint(db: &Connection, mode: &str) -> rusqlite::Result<CheckpointResult> {
    db.query_row(&format!("PRAGMA wal_checkpoint({mode})"), [], |row| {
        Ok(CheckpointResult {
            has_reader: row.get("busy")?,
            log: row.get("log")?,
            carried: row.get("checkpointed")?,
        })
    })
}

/// What happens to the log when all of it is in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CheckpointMode {
    /// The next writer begins at the beginning of the log again. The old content stays in the log until it is
    /// overwritten.
    Reused,
    /// The log becomes empty.
    Emptied,
}

/// Returns how many more bytes the file will take when the log is copied into it. The copy needs this space: without
/// it, the log could neither end nor grow, and the store would stand still.
pub(super) fn owed_bytes(db: &Connection, file: &Path) -> u64 {
    let pragma = |name| db.pragma_query_value(None, name, |row| row.get::<_, u64>(0));
    let whole = pragma("page_count").and_then(|pages| Ok(pages * pragma("page_size")?));
    // (If the file is gone, the add says so.)
    let Ok(length) = std::fs::metadata(file).map(|file| file.len()) else { return 0 };
    whole.map_or(0, |whole| whole.saturating_sub(length))
}

/// Copies the log into the file, if the log has `least_pages` pages or more, or if disk space is scarce. Returns false
/// if a reader still needs the log.
pub(super) fn carry_over(
    db: &Connection,
    turn: &Turn,
    log: &mut Log,
    path: &Path,
    least_pages: i32,
    after: CheckpointMode,
) -> Result<bool> {
    let scarce = free_bytes(log.path()).is_some_and(|free| free < SCARCE_BYTES);
    let enough = i64::from(if scarce { least_pages.min(1) } else { least_pages });
    if checkpoint(db, "NOOP").map_err(refused)?.log < enough {
        return Ok(true);
    }
    // Pages that are copied into the file must be in the log on the disk first.
    log.repair_in_turn(turn, db)?;
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
        // A reader, perhaps a backup, still reads the old pages of the file. The copy is tried again at the next ring.
        log::debug!("{} pages of the log of {} wait for a reader", pages.log - pages.carried, path.display());
        return Ok(false);
    }
    let taken = take()?;
    log.begin(&taken, db)?;
    let mode = match after {
        CheckpointMode::Reused => "RESTART",
        CheckpointMode::Emptied => "TRUNCATE",
    };
    let ended = db.busy_timeout(READERS).and_then(|()| checkpoint(db, mode));
    log.end(&taken, ended.as_ref().err());
    db.busy_timeout(BUSY).map_err(refused)?;
    ended.map(|pages| !pages.has_reader).map_err(refused)
}

/// Copies the whole log into the file, and empties the log. No other process may have the file open.
pub(super) fn carry_over_all(db: &Connection) -> Result<()> {
    checkpoint(db, "TRUNCATE").map(drop).map_err(refused)
}
