//! The audit log: the table `dq_audit`, which the PHP daemon does not know.

use ::mysql::Conn;
use ::mysql::prelude::Queryable;

use super::row::get;
use super::{Result, at_change};
use model::audit::{AuditEntry, ENTRIES_MAX, KEPT, REMOVED_MAX};

/// Adds an entry, and removes some of the oldest entries if they are too old or too many.
pub(super) fn note(db: &mut Conn, entry: &AuditEntry) -> Result<()> {
    let AuditEntry { at_ms, who, action, target, detail, jobs } = entry.clone().cut();
    let insert = "INSERT INTO dq_audit (at_ms, who, action, target, detail, jobs) VALUES (?, ?, ?, ?, ?, ?)";
    db.exec_drop(insert, (at_ms, who, action, target, detail, jobs)).map_err(at_change)?;
    let (oldest_ms, last) =
        (at_ms - KEPT.as_millis() as i64, db.last_insert_id().saturating_sub(ENTRIES_MAX));
    // MySQL cannot delete from a table that a subquery reads, so the numbers are read first.
    let oldest = format!("SELECT seq FROM dq_audit ORDER BY seq LIMIT {REMOVED_MAX}");
    let Some(newest) = db.query_map(oldest, |seq: u64| seq).map_err(at_change)?.pop() else { return Ok(()) };
    let delete = "DELETE FROM dq_audit WHERE seq <= ? AND (at_ms < ? OR seq <= ?)";
    db.exec_drop(delete, (newest, oldest_ms, last)).map_err(at_change)
}

/// Returns the latest entries that have a number less than `before`.
pub(super) fn read(
    db: &mut Conn,
    before: Option<u64>,
    limit: usize,
) -> std::result::Result<Vec<(u64, AuditEntry)>, ::mysql::Error> {
    let query = "SELECT seq, at_ms, who, action, target, detail, jobs FROM dq_audit WHERE seq < ? ORDER BY seq DESC LIMIT ?";
    db.exec_map(query, (before.unwrap_or(u64::MAX), limit as u64), |mut row: ::mysql::Row| {
        let entry = AuditEntry {
            at_ms: get(&mut row, 1),
            who: get(&mut row, 2),
            action: get(&mut row, 3),
            target: get(&mut row, 4),
            detail: get(&mut row, 5),
            jobs: get(&mut row, 6),
        };
        (get(&mut row, 0), entry)
    })
}
