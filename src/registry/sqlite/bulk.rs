//! Operations on many jobs, in the registry's file.

use rusqlite::{Connection, OptionalExtension, Row};

use super::{Result, audit};
use crate::bulk::{StoredBulk, begun, json};
use crate::{BulkClaim, BulkSave};
use model::bulk::{BulkRequest, KEPT, RUNNING_MAX, StoredBulkOperation};

const COLUMNS: &str = "n, who, request, progress, started_ms, stop, ended, ended_ms";

fn stored(row: &Row<'_>) -> rusqlite::Result<StoredBulk> {
    Ok(StoredBulk {
        number: row.get(0)?,
        who: row.get(1)?,
        request: row.get(2)?,
        progress: row.get(3)?,
        started_ms: row.get(4)?,
        stop: row.get(5)?,
        ended: row.get(6)?,
        ended_ms: row.get(7)?,
    })
}

/// Begins an operation. The caller has begun a transaction.
pub(super) fn begin(db: &Connection, request: &BulkRequest, who: &str, now_ms: i64) -> Result<Option<u64>> {
    let running: usize =
        db.query_row("SELECT count(*) FROM bulk WHERE ended IS NULL", [], |row| row.get(0))?;
    if running >= RUNNING_MAX {
        return Ok(None);
    }
    db.prepare_cached("INSERT INTO bulk (who, request, progress, started_ms) VALUES (?1, ?2, ?3, ?4)")?
        .execute((who, json(request)?, begun()?, now_ms))?;
    let number = db.last_insert_rowid();
    db.prepare_cached("DELETE FROM bulk WHERE ended IS NOT NULL AND n <= ?1")?
        .execute([number - KEPT as i64])?;
    Ok(Some(number as u64))
}

/// Returns the latest operations that have a number less than `before`.
pub(super) fn read(
    db: &Connection,
    before: Option<u64>,
    limit: usize,
) -> rusqlite::Result<Vec<StoredBulkOperation>> {
    let before = before.and_then(|n| i64::try_from(n).ok()).unwrap_or(i64::MAX);
    let sql = format!("SELECT {COLUMNS} FROM bulk WHERE n < ?1 ORDER BY n DESC LIMIT ?2");
    let rows: Vec<StoredBulk> = db
        .prepare_cached(&sql)?
        .query_map((before, limit as i64), stored)?
        .collect::<rusqlite::Result<_>>()?;
    Ok(rows.into_iter().filter_map(StoredBulk::read).collect())
}

/// Returns the operations that a runner may claim.
pub(super) fn free(db: &Connection, now_ms: i64) -> rusqlite::Result<Vec<StoredBulkOperation>> {
    let sql =
        format!("SELECT {COLUMNS} FROM bulk WHERE ended IS NULL AND until_ms <= ?1 ORDER BY n LIMIT ?2");
    let rows: Vec<StoredBulk> = db
        .prepare_cached(&sql)?
        .query_map((now_ms, RUNNING_MAX as i64), stored)?
        .collect::<rusqlite::Result<_>>()?;
    Ok(rows.into_iter().filter_map(StoredBulk::read).collect())
}

/// Claims an operation, if it is still free.
pub(super) fn claim(
    db: &Connection,
    number: u64,
    claim: &BulkClaim<'_>,
) -> rusqlite::Result<Option<StoredBulkOperation>> {
    let sql = format!(
        "UPDATE bulk SET runner = ?2, until_ms = ?3 WHERE n = ?1 AND ended IS NULL AND until_ms <= ?4 RETURNING {COLUMNS}"
    );
    let row = (number as i64, claim.runner, claim.until_ms, claim.now_ms);
    let claimed = db.prepare_cached(&sql)?.query_row(row, stored).optional()?;
    Ok(claimed.and_then(StoredBulk::read))
}

/// Writes how far an operation has come. The caller has begun a transaction.
pub(super) fn save(db: &Connection, save: &BulkSave<'_>) -> Result<Option<bool>> {
    let (ended, ended_ms) = match save.ended {
        None => (None, None),
        Some((end, entry)) => (Some(end.word()), Some(entry.at_ms)),
    };
    let runner = (!save.gives_up).then_some(save.runner);
    let sql = "UPDATE bulk SET progress = ?3, until_ms = ?4, runner = ?5, ended = ?6, ended_ms = ?7
               WHERE n = ?1 AND runner = ?2 AND ended IS NULL RETURNING stop";
    let stop = db
        .prepare_cached(sql)?
        .query_row(
            (save.number as i64, save.runner, json(save.progress)?, save.until_ms, runner, ended, ended_ms),
            |row| row.get(0),
        )
        .optional()?;
    if let (Some(_), Some((_, entry))) = (stop, save.ended) {
        audit::note(db, entry)?;
    }
    Ok(stop)
}

/// Asks to stop an operation. Returns false if the operation has already ended.
pub(super) fn stop(db: &Connection, number: u64) -> rusqlite::Result<bool> {
    let stop = "UPDATE bulk SET stop = 1 WHERE n = ?1 AND ended IS NULL";
    Ok(db.prepare_cached(stop)?.execute([number as i64])? > 0)
}
