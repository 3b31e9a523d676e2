//! Reads the rows of records: the records of an id, a page of the records of a topic, and the row at which a page
//! begins for a given moment.

use rusqlite::{Connection, OptionalExtension, Row, params};

use super::row;
use crate::RecordPage;
use model::job::{Body, JobId, JobKey, TopicName};
use model::record::JobRecord;

/// The condition for the records of the topic ?1.
pub(super) const IN_TOPIC: &str = "rid > ?1 << 40 AND rid < (?1 + 1) << 40";

/// The row numbers of a topic's records begin at the number of the topic, multiplied by this value.
pub(super) const OF_A_TOPIC: i64 = 1 << 40;

const COLUMNS: &str =
    "ending, ended_ms, stamp_us, due_ms, attempts, attempts_log, body, headers, rid, id, order_ms";

/// Reads the record of a job from the first columns of a row: from `ending` to `headers`, in the order of `COLUMNS`.
pub(super) fn record_of(key: JobKey, r: &Row<'_>) -> rusqlite::Result<JobRecord> {
    let (ended_ms, stamp_us) = (r.get(1)?, r.get(2)?);
    Ok(JobRecord {
        key,
        ending: row::ending(r, 0)?,
        ended_ms,
        order_ms: ended_ms,
        stamp_us: Some(stamp_us).filter(|stamp| *stamp > 0),
        due_ms: r.get(3)?,
        attempts: r.get(4)?,
        attempts_log: row::attempts_log(r.get(5)?),
        body: r.get::<_, Option<String>>(6)?.map(Body::trusted),
        headers: row::headers(r, 7, stamp_us)?,
    })
}

fn record(topic: &TopicName, r: &Row<'_>) -> rusqlite::Result<(i64, JobRecord)> {
    let record = record_of(JobKey { topic: topic.clone(), id: row::id(r, 9)? }, r)?;
    let order_ms = r.get::<_, Option<i64>>(10)?.unwrap_or(record.ended_ms);
    Ok((r.get(8)?, JobRecord { order_ms, ..record }))
}

/// Returns the records of an id, the last one first.
pub(super) fn of_id(db: &Connection, tid: i64, key: &JobKey) -> rusqlite::Result<Vec<JobRecord>> {
    let sql = format!("SELECT {COLUMNS} FROM record WHERE tid = ?1 AND id = ?2 ORDER BY rid DESC LIMIT 100");
    db.prepare_cached(&sql)?
        .query_map(params![tid, key.id.as_str()], |r| Ok(record(&key.topic, r)?.1))?
        .collect()
}

/// Returns a page of the records of a topic: only the last record of each id. The latest records come first. The cursor
/// is the number of the last row of the previous page.
pub(super) fn list(
    db: &Connection,
    tid: i64,
    topic: &TopicName,
    before: i64,
    limit: usize,
) -> rusqlite::Result<RecordPage> {
    let sql = format!(
        "SELECT {COLUMNS} FROM record r WHERE rid > ?1 << 40 AND rid < ?2
         AND NOT EXISTS (SELECT 1 FROM record newer WHERE newer.tid = ?1 AND newer.id = r.id AND newer.rid > r.rid)
         ORDER BY rid DESC LIMIT ?3"
    );
    let found: Vec<(i64, JobRecord)> = db
        .prepare_cached(&sql)?
        .query_map(params![tid, before, limit as i64], |r| record(topic, r))?
        .collect::<rusqlite::Result<_>>()?;
    let next = found.last().filter(|_| found.len() == limit).map(|(rid, _)| rid.to_string());
    Ok(RecordPage { records: found.into_iter().map(|(_, record)| record).collect(), next, away: Vec::new() })
}

/// Returns the row of the record of this id that has this `order_ms`. Without an id, or if the record is gone, returns
/// the first row that has this `order_ms` or a later one. None: there is no such row.
pub(super) fn row_after(
    db: &Connection,
    tid: i64,
    order_ms: i64,
    id: Option<&JobId>,
) -> rusqlite::Result<Option<i64>> {
    if let Some(id) = id {
        let sql = "SELECT rid FROM record WHERE tid = ?1 AND id = ?2 AND coalesce(order_ms, ended_ms) = ?3 ORDER BY rid DESC LIMIT 1";
        let row = params![tid, id.as_str(), order_ms];
        if let Some(rid) = db.prepare_cached(sql)?.query_row(row, |r| r.get(0)).optional()? {
            return Ok(Some(rid));
        }
    }
    // `order_ms` has no index, but the rows are in its order. So a binary search finds the row.
    let ends =
        format!("SELECT coalesce(min(rid), 0), coalesce(max(rid) + 1, 0) FROM record WHERE {IN_TOPIC}");
    let (mut low, mut high): (i64, i64) =
        db.prepare_cached(&ends)?.query_row([tid], |r| Ok((r.get(0)?, r.get(1)?)))?;
    let last = high;
    let mut next = db.prepare_cached(
        "SELECT rid, coalesce(order_ms, ended_ms) FROM record WHERE rid >= ?1 AND rid < ?2 ORDER BY rid LIMIT 1",
    )?;
    while low < high {
        let middle = low + (high - low) / 2;
        let found = next
            .query_row(params![middle, high], |r| Ok((r.get::<_, i64>(0)?, r.get::<_, i64>(1)?)))
            .optional()?;
        match found {
            Some((rid, at_ms)) if at_ms < order_ms => low = rid + 1,
            _ => high = middle,
        }
    }
    Ok((low < last).then_some(low))
}
