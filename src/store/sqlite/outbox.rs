//! The outbox of the embedded store. Jobs and entries are in one file, so one transaction adds the jobs that follow and
//! removes the entries.

use std::time::Duration;

use rusqlite::{Row, params};

use super::commit::CommitDurability;
use super::connect::refused;
use super::record_rows::record_of;
use super::records::EndedRow;
use super::write::{WriteTransaction, now_ms};
use super::{SqliteStore, change, row};
use crate::{
    Added, FollowerMaker, FollowerSendResult, Outbox, OutboxCause, OutboxEntry, OutboxState, Result,
};
use model::job::{JobKey, TopicName};
use model::record::Ending;

/// The maximum number of entries that a transaction sends.
const STEP: usize = 64;

/// The columns of a record come first: see `record_of`.
const COLUMNS: &str = "ending, ended_ms, stamp_us, due_ms, attempts, attempts_log, body, headers, number, topic, id, place, follower";

impl WriteTransaction<'_> {
    /// Writes the entries for the jobs and the event that follow a job that ends now.
    pub(super) fn write_outbox(
        &mut self,
        tid: i64,
        id: &str,
        ending: Ending,
        ended: &EndedRow,
        with_event: bool,
    ) -> rusqlite::Result<()> {
        let has_event = with_event && matches!(ending, Ending::Delivered | Ending::Dead);
        let followers: Vec<&str> = match ending {
            Ending::Delivered => ended.then.texts().collect(),
            _ => Vec::new(),
        };
        if followers.is_empty() && !has_event {
            return Ok(());
        }
        let mut name = self.db.prepare_cached("SELECT name FROM topic WHERE tid = ?1")?;
        let topic: String = name.query_row([tid], |row| row.get(0))?;
        let mut insert = self.db.prepare_cached(
            "INSERT INTO outbox (topic, id, stamp_us, ended_ms, place, follower) VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
        )?;
        for (place, text) in followers.iter().enumerate() {
            insert.execute(params![topic, id, ended.stamp_us, self.now_ms(), place as i64, text])?;
        }
        if has_event {
            self.db
                .prepare_cached(
                    "INSERT INTO outbox (topic, id, stamp_us, ended_ms, ending, due_ms, attempts, attempts_log, body, headers)
                     VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)",
                )?
                .execute(params![
                    topic,
                    id,
                    ended.stamp_us,
                    self.now_ms(),
                    ending as i64,
                    ended.due_ms,
                    ended.attempts,
                    ended.log,
                    ended.body,
                    ended.headers
                ])?;
        }
        self.ring_timer();
        Ok(())
    }
}

/// Reads an entry. `now_ms` is the present time.
fn entry(r: &Row<'_>, now_ms: i64) -> rusqlite::Result<OutboxEntry> {
    let key = JobKey { topic: row::topic_name(r, 9)?, id: row::id(r, 10)? };
    let (ended_ms, stamp_us): (i64, i64) = (r.get(1)?, r.get(2)?);
    let what = match r.get::<_, Option<i64>>(11)? {
        Some(place) => OutboxCause::Then { place: place as usize, text: r.get(12)? },
        None => OutboxCause::Done(Box::new(record_of(key.clone(), r)?)),
    };
    let ago = Duration::from_millis(u64::try_from(now_ms - ended_ms).unwrap_or(0));
    Ok(OutboxEntry { key, stamp_us, ago, what })
}

/// Adds the jobs that follow from the first entries, and removes these entries. Returns the topics of the added jobs,
/// and whether there may be more entries.
fn send(w: &mut WriteTransaction<'_>, make: FollowerMaker<'_>) -> rusqlite::Result<(Vec<TopicName>, bool)> {
    let now_ms = w.now_ms();
    let sql = format!("SELECT {COLUMNS} FROM outbox ORDER BY number LIMIT ?1");
    let entries: Vec<(i64, rusqlite::Result<OutboxEntry>)> =
        w.db.prepare_cached(&sql)?
            .query_map([STEP as i64], |r| Ok((r.get(8)?, entry(r, now_ms))))?
            .collect::<rusqlite::Result<_>>()?;
    let mut added = Vec::new();
    for (number, entry) in &entries {
        let job = match entry {
            Ok(entry) => make(entry),
            Err(e) => {
                log::error!("entry {number} of the outbox cannot be read, and is dropped: {e}");
                None
            }
        };
        if let Some(job) = job
            && let Ok(Added::New { .. }) = change::add(w, &job)?
        {
            added.push(job.key.topic);
        }
        w.db.prepare_cached("DELETE FROM outbox WHERE number = ?1")?.execute([number])?;
    }
    Ok((added, entries.len() == STEP))
}

impl Outbox for SqliteStore {
    fn has_followers(&mut self) -> Result<bool> {
        let some = "SELECT 1 FROM outbox LIMIT 1";
        let mut some = self.db.prepare_cached(some).map_err(refused)?;
        some.exists([]).map_err(refused)
    }

    fn send_followers(&mut self, make: FollowerMaker<'_>) -> Result<FollowerSendResult> {
        if !self.has_followers()? {
            return Ok(FollowerSendResult::default());
        }
        // Perhaps the transactions that ended the jobs are not on the disk yet. So this transaction does not have to be
        // on the disk, either. The log keeps the order: if this transaction survives a power cut, the earlier
        // transactions survive too.
        let (added, more) = self.write(CommitDurability::Normal, |w| send(w, make))?;
        Ok(FollowerSendResult { added, again: more.then_some(Duration::ZERO) })
    }

    fn outbox(&mut self) -> Result<OutboxState> {
        let sql = "SELECT count(*), min(ended_ms) FROM outbox";
        let read = |r: &Row<'_>| Ok((r.get::<_, i64>(0)?, r.get::<_, Option<i64>>(1)?));
        let (entries, first) = self.db.query_row(sql, [], read).map_err(refused)?;
        let oldest = first.map_or(0, |ms| u64::try_from(now_ms() - ms).unwrap_or(0));
        Ok(OutboxState { entries: entries as u64, oldest: Duration::from_millis(oldest) })
    }
}
