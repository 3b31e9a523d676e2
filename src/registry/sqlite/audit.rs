//! The audit log in the registry's file.

use rusqlite::Connection;

use model::audit::{AuditEntry, KEPT};

/// Adds an entry, and removes entries that are too old. The caller has begun a transaction.
pub(super) fn note(db: &Connection, entry: &AuditEntry) -> rusqlite::Result<()> {
    let AuditEntry { at_ms, who, action, target, detail, jobs } = entry.clone().cut();
    db.prepare_cached(
        "INSERT INTO audit (at_ms, who, action, target, detail, jobs) VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
    )?
    .execute((at_ms, who, action, target, detail, jobs))?;
    db.prepare_cached("DELETE FROM audit WHERE at_ms < ?1")?.execute([at_ms - KEPT.as_millis() as i64])?;
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
