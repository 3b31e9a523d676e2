//! Operations on many jobs: the table `dq_bulk`, which the PHP daemon does not know.

use ::mysql::Conn;
use ::mysql::prelude::Queryable;

use super::row::get;
use super::{Result, at_change, audit};
use crate::bulk::{StoredBulk, begun, json};
use crate::{BulkClaim, BulkSave};
use model::bulk::{BulkRequest, KEPT, RUNNING_MAX, StoredBulkOperation};

const COLUMNS: &str = "n, who, request, progress, started_ms, stop, ended, ended_ms";

fn stored(mut row: ::mysql::Row) -> StoredBulk {
    let stop: i64 = get(&mut row, 5);
    StoredBulk {
        number: get(&mut row, 0),
        who: get(&mut row, 1),
        request: get(&mut row, 2),
        progress: get(&mut row, 3),
        started_ms: get(&mut row, 4),
        stop: stop != 0,
        ended: get(&mut row, 6),
        ended_ms: get(&mut row, 7),
    }
}

/// Begins an operation. The caller has the lock of the writers.
pub(super) fn begin(db: &mut Conn, request: &BulkRequest, who: &str, now_ms: i64) -> Result<Option<u64>> {
    let running: Option<u64> = db.query_first("SELECT COUNT(*) FROM dq_bulk WHERE ended IS NULL")?;
    if running.unwrap_or(0) >= RUNNING_MAX as u64 {
        return Ok(None);
    }
    let insert = "INSERT INTO dq_bulk (who, request, progress, started_ms) VALUES (?, ?, ?, ?)";
    db.exec_drop(insert, (who, json(request)?, begun()?, now_ms)).map_err(at_change)?;
    let number = db.last_insert_id();
    let last = number.saturating_sub(KEPT as u64);
    // The operation has begun. If old operations cannot be removed now, the next operation removes them.
    let _ = db.exec_drop("DELETE FROM dq_bulk WHERE ended IS NOT NULL AND n <= ?", (last,));
    Ok(Some(number))
}

/// Returns the latest operations that have a number less than `before`.
pub(super) fn read(
    db: &mut Conn,
    before: Option<u64>,
    limit: usize,
) -> std::result::Result<Vec<StoredBulkOperation>, ::mysql::Error> {
    let sql = format!("SELECT {COLUMNS} FROM dq_bulk WHERE n < ? ORDER BY n DESC LIMIT ?");
    let rows = db.exec_map(sql, (before.unwrap_or(u64::MAX), limit as u64), stored)?;
    Ok(rows.into_iter().filter_map(StoredBulk::read).collect())
}

/// Claims the first operation that is free.
pub(super) fn claim(db: &mut Conn, claim: &BulkClaim<'_>) -> Result<Option<StoredBulkOperation>> {
    let sql =
        format!("SELECT {COLUMNS} FROM dq_bulk WHERE ended IS NULL AND until_ms <= ? ORDER BY n LIMIT ?");
    let rows = db.exec_map(sql, (claim.now_ms, RUNNING_MAX as u64), stored)?;
    for free in rows.into_iter().filter_map(StoredBulk::read) {
        let take =
            "UPDATE dq_bulk SET runner = ?, until_ms = ? WHERE n = ? AND ended IS NULL AND until_ms <= ?";
        db.exec_drop(take, (claim.runner, claim.until_ms, free.number, claim.now_ms)).map_err(at_change)?;
        if db.affected_rows() == 1 {
            // The previous runner may have changed the row in the meantime, so the row is read again.
            return Ok(read(db, Some(free.number + 1), 1)?.pop().filter(|row| row.number == free.number));
        }
    }
    Ok(None)
}

/// Writes how far an operation has come.
pub(super) fn save(db: &mut Conn, save: &BulkSave<'_>) -> Result<Option<bool>> {
    db.query_drop("START TRANSACTION")?;
    let saved = in_transaction(db, save);
    match saved {
        Ok(saved) => {
            db.query_drop("COMMIT").map_err(at_change)?;
            Ok(saved)
        }
        Err(e) => {
            // If the rollback fails too, the connection is broken, and the server rolls back by itself.
            drop(db.query_drop("ROLLBACK"));
            Err(e)
        }
    }
}

fn in_transaction(db: &mut Conn, save: &BulkSave<'_>) -> Result<Option<bool>> {
    let (ended, ended_ms) = match save.ended {
        None => (None, None),
        Some((end, entry)) => (Some(end.word()), Some(entry.at_ms)),
    };
    let runner = (!save.gives_up).then_some(save.runner);
    let sql = "UPDATE dq_bulk SET progress = ?, until_ms = ?, runner = ?, ended = ?, ended_ms = ?
               WHERE n = ? AND runner = ? AND ended IS NULL";
    let values = (json(save.progress)?, save.until_ms, runner, ended, ended_ms, save.number, save.runner);
    db.exec_drop(sql, values).map_err(at_change)?;
    if db.affected_rows() == 0 {
        return Ok(None);
    }
    if let Some((_, entry)) = save.ended {
        audit::note(db, entry)?;
    }
    let stop: Option<i64> = db.exec_first("SELECT stop FROM dq_bulk WHERE n = ?", (save.number,))?;
    Ok(stop.map(|stop| stop != 0))
}

/// Asks to stop an operation. Returns false if the operation has already ended.
pub(super) fn stop(db: &mut Conn, number: u64) -> Result<bool> {
    let stop = "UPDATE dq_bulk SET stop = 1 WHERE n = ? AND ended IS NULL";
    db.exec_drop(stop, (number,)).map_err(at_change)?;
    Ok(db.affected_rows() > 0)
}
