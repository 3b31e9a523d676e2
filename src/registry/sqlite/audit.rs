//! The audit log in the registry's file.

use rusqlite::Connection;

use model::audit::{AuditEntry, ENTRIES_MAX, KEPT, REMOVED_MAX};

/// Adds an entry, and removes some of the oldest entries if they are too old or too many. The caller has begun a
/// transaction.
pub(super) fn note(db: &Connection, entry: &AuditEntry) -> rusqlite::Result<()> {
    let AuditEntry { at_ms, who, action, target, detail, jobs } = entry.clone().cut();
    db.prepare_cached(
        "INSERT INTO audit (at_ms, who, action, target, detail, jobs) VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
    )?
    .execute((at_ms, who, action, target, detail, jobs))?;
    let (oldest_ms, last) = (at_ms - KEPT.as_millis() as i64, db.last_insert_rowid());
    db.prepare_cached(
        "DELETE FROM audit WHERE seq IN (SELECT seq FROM audit ORDER BY seq LIMIT ?3) AND (at_ms < ?1 OR seq <= ?2)",
    )?
    .execute((oldest_ms, last - ENTRIES_MAX as i64, REMOVED_MAX as i64))?;
    Ok(())
}

/// Returns the latest entries that have a number less than `before`.
pub(super) fn read(
    db: &Connection,
    before: Option<u64>,
    limit: usize,
) -> rusqlite::Result<Vec<(u64, AuditEntry)>> {
    let before = before.and_then(|n| i64::try_from(n).ok()).unwrap_or(i64::MAX);
    db.prepare_cached(
        "SELECT seq, at_ms, who, action, target, detail, jobs FROM audit WHERE seq < ?1 ORDER BY seq DESC LIMIT ?2",
    )?
    .query_map((before, limit as i64), |row| {
        let entry = AuditEntry {
            at_ms: row.get(1)?,
            who: row.get(2)?,
            action: row.get(3)?,
            target: row.get(4)?,
            detail: row.get(5)?,
            jobs: row.get(6)?,
        };
        Ok((row.get(0)?, entry))
    })?
    .collect()
}
