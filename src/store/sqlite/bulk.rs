//! Operations on many jobs: lists without bodies, and changes of jobs that are still as they were listed.

use rusqlite::{Connection, OptionalExtension, params};

use super::commit::CommitDurability;
use super::connect::refused;
use super::job_bytes::ONE_JOB;
use super::write::WriteTransaction;
use super::{SqliteStore, row};
use crate::{
    Bulk, Direction, ListedChangeGoal, ListedChangeResult, ListedJob, ListedJobChange, ListedPage, Result,
};
use model::job::{State, TopicName};
use model::record::Ending;

/// Returns a page of a topic's jobs in one state. The cursor is the place of the last job on the page before: priority
/// (used for ready jobs), moment, row number.
fn list(
    db: &Connection,
    (tid, state): (i64, State),
    direction: Direction,
    cursor: Option<&str>,
    limit: usize,
) -> rusqlite::Result<ListedPage> {
    let (than, word, begin) = match direction {
        Direction::Forward => (">", "", [i64::MIN; 3]),
        Direction::Backward => ("<", " DESC", [i64::MAX; 3]),
    };
    let place = match cursor.map(super::browse::parse_cursor) {
        None => begin,
        Some(Some(place)) => place,
        Some(None) => return Ok(ListedPage::default()),
    };
    let columns: &[&str] =
        if state == State::Ready { &["priority", "at_ms", "seq"] } else { &["at_ms", "seq"] };
    let order: Vec<String> = columns.iter().map(|column| format!("{column}{word}")).collect();
    let (order, columns) = (order.join(", "), columns.join(", "));
    let places = if state == State::Ready { "?2, ?3, ?4" } else { "?3, ?4" };
    // The state is part of the query's text, so that SQLite uses the index of that state.
    let sql = format!(
        "SELECT id, at_ms, due_ms, stamp_us, attempts_log, headers, priority, seq FROM job
         WHERE tid = ?1 AND state = {} AND ({columns}) {than} ({places}) AND ?2 IS NOT NULL ORDER BY {order} LIMIT ?5",
        state as i64
    );
    let mut page = ListedPage::default();
    let mut query = db.prepare_cached(&sql)?;
    let mut rows = query.query(params![tid, place[0], place[1], place[2], limit as i64])?;
    let mut last = None;
    while let Some(r) = rows.next()? {
        let (at_ms, stamp_us): (i64, i64) = (r.get(1)?, r.get(3)?);
        page.jobs.push(ListedJob {
            id: row::id(r, 0)?,
            state,
            due_ms: r.get(2)?,
            until_ms: matches!(state, State::Leased | State::Dead).then_some(at_ms),
            stamp_us,
            tried_ms: row::attempts_log(r.get(4)?).last().map(|attempt| attempt.at_ms),
            headers: row::headers(r, 5, stamp_us)?,
        });
        last = Some(format!("{}.{at_ms}.{}", r.get::<_, i64>(6)?, r.get::<_, i64>(7)?));
    }
    page.next = last.filter(|_| page.jobs.len() == limit);
    Ok(page)
}

/// Changes one job, if it is as it was listed.
fn change(
    w: &mut WriteTransaction<'_>,
    tid: i64,
    change: &ListedJobChange,
) -> rusqlite::Result<ListedChangeResult> {
    let sql = "SELECT seq, state, stamp_us, due_ms FROM job WHERE tid = ?1 AND id = ?2 AND state < 4";
    let read = |r: &rusqlite::Row<'_>| {
        Ok((r.get::<_, i64>(0)?, row::state(r, 1)?, r.get::<_, i64>(2)?, r.get::<_, i64>(3)?))
    };
    let found = w.db.prepare_cached(sql)?.query_row(params![tid, change.id.as_str()], read).optional()?;
    let Some((seq, old, stamp_us, due_ms)) = found else { return Ok(ListedChangeResult::NotFound) };
    if stamp_us != change.stamp_us {
        return Ok(ListedChangeResult::Differs);
    }
    match change.aim {
        ListedChangeGoal::Due(to_ms) if due_ms == to_ms => return Ok(ListedChangeResult::Already),
        _ if due_ms != change.due_ms => return Ok(ListedChangeResult::Differs),
        ListedChangeGoal::Due(_) if old == State::Leased => return Ok(ListedChangeResult::Differs),
        ListedChangeGoal::Due(to_ms) => {
            let to = if to_ms <= w.now_ms() { State::Ready } else { State::Delayed };
            w.db.prepare_cached("UPDATE job SET state = ?2, at_ms = ?3, due_ms = ?3 WHERE seq = ?1")?
                .execute(params![seq, to as i64, to_ms])?;
            w.moved(tid, Some(old), Some((to, to_ms)));
        }
        ListedChangeGoal::Gone => {
            w.record((tid, seq), change.id.as_str(), Ending::Deleted)?;
            w.delete_jobs(tid, ONE_JOB, params![seq])?;
            w.moved(tid, Some(old), None);
        }
    }
    Ok(ListedChangeResult::Done)
}

impl Bulk for SqliteStore {
    fn list_in_order(
        &mut self,
        topic: &TopicName,
        state: State,
        direction: Direction,
        cursor: Option<&str>,
        limit: usize,
    ) -> Result<ListedPage> {
        match self.topic(topic)? {
            Some(tid) => list(&self.db, (tid, state), direction, cursor, limit).map_err(refused),
            None => Ok(ListedPage::default()),
        }
    }

    fn change_listed(
        &mut self,
        topic: &TopicName,
        changes: &[ListedJobChange],
    ) -> Vec<Result<ListedChangeResult>> {
        self.in_chunks(CommitDurability::Full, changes, |w, one| match w.topic(topic)? {
            Some(tid) => change(w, tid, one),
            None => Ok(ListedChangeResult::NotFound),
        })
    }
}
