//! The audit log: the table `dq_audit`, which the PHP daemon does not know.

use ::mysql::Conn;
use ::mysql::prelude::Queryable;

use super::row::get;
use super::{Result, at_change};
use model::audit::{AuditEntry, KEPT};

/// Adds an entry, and removes entries that are too old.
pub(super) fn note(db: &mut Conn, entry: &AuditEntry) -> Result<()> {
    let AuditEntry { at_ms, who, action, target, detail, jobs } = entry.clone().cut();
    let insert = "INSERT INTO dq_audit (at_ms, who, action, target, detail, jobs) VALUES (?, ?, ?, ?, ?, ?)";
    db.exec_drop(insert, (at_ms, who, action, target, detail, jobs)).map_err(at_change)?;
    let oldest_ms = at_ms - KEPT.as_millis() as i64;
    db.exec_drop("DELETE FROM dq_audit WHERE at_ms < ?", (oldest_ms,)).map_err(at_change)
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
