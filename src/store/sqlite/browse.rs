//! Reads that need no turn: a job, a page of jobs, counts.

use super::connect::refused;
use rusqlite::{Connection, OptionalExtension, params};

use super::{SqliteStore, row};
use crate::{Counts, FORECAST_MAX, Forecast, JobsPage, Result, StoredJob, Views};
use model::job::{JobKey, State, TopicName};

/// Returns the live job with that key, or its latest dead letter.
pub(super) fn get(db: &Connection, tid: i64, key: &JobKey) -> rusqlite::Result<Option<StoredJob>> {
    let columns = row::COLUMNS;
    let id = key.id.as_str();
    let live = format!("SELECT {columns} FROM job WHERE tid = ?1 AND id = ?2 AND state < 4");
    let dead = format!(
        "SELECT {columns} FROM job WHERE tid = ?1 AND id = ?2 AND state = 4 ORDER BY at_ms DESC LIMIT 1"
    );
    // A dead letter may be redriven between the first two queries. So live jobs are read again.
    for sql in [&live, &dead, &live] {
        let found =
            db.prepare_cached(sql)?.query_row(params![tid, id], |r| row::view(&key.topic, r)).optional()?;
        if found.is_some() {
            return Ok(found);
        }
    }
    Ok(None)
}

/// Returns the paused topics.
pub(super) fn paused(db: &Connection) -> rusqlite::Result<Vec<TopicName>> {
    db.prepare_cached("SELECT name FROM pause ORDER BY name")?
        .query_map([], |r| row::topic_name(r, 0))?
        .collect()
}

/// Returns how many delayed jobs become due in each span. Counts at most `FORECAST_MAX` jobs. The spans are counted in
/// their order, so the earliest spans are counted first.
pub(super) fn forecast(
    db: &Connection,
    topics: &[TopicName],
    edges_ms: &[i64],
) -> rusqlite::Result<Forecast> {
    let mut count = db.prepare_cached(
        "SELECT count(*) FROM (SELECT 1 FROM job WHERE state = 1 AND at_ms >= ?2 AND at_ms < ?3
         AND tid = (SELECT tid FROM topic WHERE name = ?1) LIMIT ?4)",
    )?;
    let (mut left, mut jobs) = (FORECAST_MAX, Vec::new());
    for edges in edges_ms.windows(2) {
        let before = left;
        for topic in topics {
            let most = params![topic.as_str(), edges[0], edges[1], left];
            left -= count.query_row(most, |row| row.get::<_, u64>(0))?;
        }
        jobs.push(before - left);
    }
    Ok(Forecast { jobs, is_capped: left == 0 })
}

/// Returns a moment that is not later than the next due time of a delayed job. None: no job is delayed.
pub(super) fn next_due(db: &Connection) -> rusqlite::Result<Option<i64>> {
    db.prepare_cached("SELECT min(next_due_ms) FROM topic")?.query_row([], |r| r.get(0))
}

/// Returns a moment that is not later than the next deadline of a lease. None: no job is leased.
pub(super) fn next_deadline(db: &Connection) -> rusqlite::Result<Option<i64>> {
    db.prepare_cached("SELECT next_deadline_ms FROM shard")?.query_row([], |r| r.get(0))
}

/// Returns the counts of all topics, sorted by name.
pub(super) fn counts(db: &Connection) -> rusqlite::Result<Vec<Counts>> {
    // Each of the four queries is one step into an index. (The levels are 1 to 3.)
    let oldest =
        |which| format!("(SELECT min(at_ms) FROM job WHERE state = 2 AND tid = topic.tid AND {which})");
    let [high, normal, low, numbered] =
        ["priority = 1", "priority = 2", "priority = 3", "priority NOT BETWEEN 1 AND 3"].map(oldest);
    let query = format!(
        "SELECT name, delayed, ready, leased, dead, CASE WHEN ready > 0 THEN
             nullif(min(ifnull({high}, ?1), ifnull({normal}, ?1), ifnull({low}, ?1), ifnull({numbered}, ?1)), ?1) END,
             bytes
         FROM topic ORDER BY name"
    );
    db.prepare_cached(&query)?
        .query_map([i64::MAX], |r| {
            Ok(Counts {
                topic: row::topic_name(r, 0)?,
                delayed: r.get(1)?,
                ready: r.get(2)?,
                leased: r.get(3)?,
                dead: r.get(4)?,
                oldest_ready_ms: r.get(5)?,
                bytes: Some(r.get::<_, i64>(6)?.max(0) as u64),
            })
        })?
        .collect()
}

/// Returns a page of a topic's jobs in one state. The cursor is the place of the last job on the page before: priority
/// (used for ready jobs), moment, row number.
pub(super) fn list(
    db: &Connection,
    tid: i64,
    topic: &TopicName,
    state: State,
    cursor: Option<&str>,
    limit: usize,
) -> rusqlite::Result<JobsPage> {
    let after = match cursor.map(parse_cursor) {
        None => [i64::MIN; 3],
        Some(Some(place)) => place,
        Some(None) => return Ok(JobsPage::default()),
    };
    // The state is part of the query's text, so that SQLite uses the index of that state.
    let number = state as i64;
    let (columns, order) =
        (row::COLUMNS, if state == State::Ready { "priority, at_ms, seq" } else { "at_ms, seq" });
    let place = if state == State::Ready { "?2, ?3, ?4" } else { "?3, ?4" };
    let sql = format!(
        "SELECT {columns} FROM job WHERE tid = ?1 AND state = {number} AND ({order}) > ({place}) AND ?2 IS NOT NULL
         ORDER BY {order} LIMIT ?5"
    );
    let mut jobs = Vec::new();
    let mut next = None;
    let mut query = db.prepare_cached(&sql)?;
    let mut rows = query.query(params![tid, after[0], after[1], after[2], limit as i64])?;
    while let Some(r) = rows.next()? {
        let view = row::view(topic, r)?;
        next = Some(format!("{}.{}.{}", view.priority.stored(), r.get::<_, i64>(2)?, r.get::<_, i64>(10)?));
        jobs.push(view);
    }
    Ok(JobsPage { next: next.filter(|_| jobs.len() == limit), jobs, away: Vec::new() })
}

/// Returns the dead letters of a topic that died at `since_ms` or later, the latest first.
pub(super) fn dead_since(
    db: &Connection,
    tid: i64,
    topic: &TopicName,
    since_ms: i64,
    limit: usize,
) -> rusqlite::Result<Vec<StoredJob>> {
    let columns = row::COLUMNS;
    let sql = format!(
        "SELECT {columns} FROM job WHERE tid = ?1 AND state = 4 AND at_ms >= ?2 ORDER BY at_ms DESC, seq DESC LIMIT ?3"
    );
    db.prepare_cached(&sql)?
        .query_map(params![tid, since_ms, limit as i64], |r| row::view(topic, r))?
        .collect()
}

/// Reads a cursor.
pub(super) fn parse_cursor(text: &str) -> Option<[i64; 3]> {
    let parts: Vec<i64> = text.split('.').map(str::parse).collect::<Result<_, _>>().ok()?;
    parts.try_into().ok()
}

impl Views for SqliteStore {
    fn list(
        &mut self,
        topic: &TopicName,
        state: State,
        cursor: Option<&str>,
        limit: usize,
    ) -> Result<JobsPage> {
        match self.topic(topic)? {
            Some(tid) => list(&self.db, tid, topic, state, cursor, limit).map_err(refused),
            None => Ok(JobsPage::default()),
        }
    }

    fn delayed_from(&mut self, _: &TopicName, due_ms: i64) -> Result<String> {
        // The cursor is the place just before the first row with this due time.
        Ok(format!("0.{due_ms}.-1"))
    }

    fn dead_since(&mut self, topic: &TopicName, since_ms: i64, limit: usize) -> Result<Vec<StoredJob>> {
        match self.topic(topic)? {
            Some(tid) => dead_since(&self.db, tid, topic, since_ms, limit).map_err(refused),
            None => Ok(Vec::new()),
        }
    }

    fn counts(&mut self) -> Result<Vec<Counts>> {
        counts(&self.db).map_err(refused)
    }

    fn forecast(&mut self, topics: &[TopicName], edges_ms: &[i64]) -> Result<Forecast> {
        forecast(&self.db, topics, edges_ms).map_err(refused)
    }
}
