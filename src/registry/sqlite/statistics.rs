//! The statistics in SQLite: of all time, and by day.

use rusqlite::{Connection, OptionalExtension, Row, Transaction, params};

use model::metrics::{MetricSubject, PageSums, Statistics, Sums};

const COLUMNS: &str = "written, delivered, failed, deleted, dead, late_us, attempts";

fn sums(row: &Row<'_>, from: usize) -> rusqlite::Result<Sums> {
    let mut numbers = [0; Sums::COUNT];
    for (i, n) in numbers.iter_mut().enumerate() {
        *n = row.get::<_, i64>(from + i)? as u64;
    }
    Ok(Sums::new(numbers))
}

fn within_i64(n: u64) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

/// Adds the new counts in these pages. Returns how many subjects had new counts.
pub(super) fn carry(tx: &Transaction<'_>, day: &str, pages: &[PageSums]) -> rusqlite::Result<usize> {
    let mut find = tx.prepare_cached(&format!(
        "SELECT {COLUMNS} FROM statistics_carried WHERE page = ?1 AND kind = ?2 AND name = ?3"
    ))?;
    let mut stand = tx.prepare_cached(&format!(
        "INSERT OR REPLACE INTO statistics_carried (page, kind, name, {COLUMNS}) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)"
    ))?;
    let mut add = tx.prepare_cached(&format!(
        "INSERT INTO statistics (kind, name, day, {COLUMNS}) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)
         ON CONFLICT DO UPDATE SET written = written + ?4, delivered = delivered + ?5, failed = failed + ?6,
             deleted = deleted + ?7, dead = dead + ?8,
             late_us = min(late_us, 9223372036854775807 - ?9) + ?9, attempts = attempts + ?10"
    ))?;
    let mut changed = 0;
    for PageSums { page, sums: subjects } in pages {
        let page = format!("{page:016x}");
        for (subject, now) in subjects {
            let (kind, name) = subject.parts();
            let before =
                find.query_row([&page, kind, name], |row| sums(row, 0)).optional()?.unwrap_or_default();
            let new = now.since(before);
            if new == Sums::default() {
                continue;
            }
            let [a, b, c, d, e, f, g] = now.max(before).numbers().map(within_i64);
            stand.execute(params![page, kind, name, a, b, c, d, e, f, g])?;
            let [a, b, c, d, e, f, g] = new.numbers().map(within_i64);
            for day in ["", day] {
                add.execute(params![kind, name, day, a, b, c, d, e, f, g])?;
            }
            changed += 1;
        }
    }
    Ok(changed)
}

/// Returns the statistics of all time, and of the days from `since` on.
pub(super) fn read(db: &Connection, since: &str) -> rusqlite::Result<Statistics> {
    let mut query = db.prepare_cached(&format!(
        "SELECT kind, name, day, {COLUMNS} FROM statistics WHERE day = '' OR day >= ?1 ORDER BY day"
    ))?;
    let mut rows = query.query([since])?;
    let mut statistics = Statistics::default();
    while let Some(row) = rows.next()? {
        let kind: String = row.get(0)?;
        if let Some(subject) = MetricSubject::new(&kind, row.get(1)?) {
            statistics.take(subject, row.get(2)?, sums(row, 3)?);
        }
    }
    Ok(statistics)
}
