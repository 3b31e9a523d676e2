//! Changes by clients and operators: add, delete, change, release, pause. Each function does the part of a transaction
//! for one job, or for one bounded batch.

use super::carry_over;
use super::chunks::More;
use super::commit::CommitDurability;
use super::connect::refused;
use rusqlite::{OptionalExtension, params};

use super::job_bytes::{self, DEAD_LETTERS_OF_ID, ONE_JOB};
use super::write::WriteTransaction;
use super::{CHUNK, SqliteStore, browse, letters, quota, row};
use crate::{Added, Change, Changed, Deleted, HELD_MS, Jobs, Result, StoreError, StoredJob};
use model::job::{Due, JobId, JobKey, NewJob, OnConflict, State, TopicName};
use model::job_priority::JobPriority;
use model::quota::{OverQuota, QuotaLimit};
use model::record::Ending;

/// Pauses a topic, so that its jobs are no longer leased. If `paused` is false, resumes the topic and rings the
/// consumers.
pub(super) fn pause(w: &mut WriteTransaction<'_>, topic: &TopicName, paused: bool) -> rusqlite::Result<()> {
    let sql = match paused {
        true => "INSERT INTO pause (name) VALUES (?1) ON CONFLICT DO NOTHING",
        false => "DELETE FROM pause WHERE name = ?1",
    };
    let changed = w.db.prepare_cached(sql)?.execute([topic.as_str()])? > 0;
    if changed && !paused {
        w.ring_push();
    }
    Ok(())
}

/// Adds one job. A leased job that is replaced stays leased: the row now has the values of the new job, which may be
/// leased when the lease has ended.
pub(super) fn add(w: &mut WriteTransaction<'_>, job: &NewJob) -> rusqlite::Result<Result<Added, OverQuota>> {
    let tid = w.topic_or_new(&job.key.topic)?;
    if let Some(quota) = &job.quota
        && let Err(over) = quota::check_add(w, tid, job, quota)?
    {
        return Ok(Err(over));
    }
    add_to(w, tid, job).map(Ok)
}

fn add_to(w: &mut WriteTransaction<'_>, tid: i64, job: &NewJob) -> rusqlite::Result<Added> {
    let (state, at_ms) = w.place_from_now(job.due);
    let stamp_us = (w.now_ns / 1000) as i64;
    let (id, priority, body) = (job.key.id.as_str(), job.priority.stored(), job.body.as_str());
    let headers = row::headers_text(&job.headers, stamp_us);
    let inserted = w
        .db
        .prepare_cached(
            "INSERT INTO job (tid, id, state, at_ms, priority, due_ms, stamp_us, max_attempts, attempts, body, headers)
             VALUES (?1, ?2, ?3, ?4, ?5, ?4, ?6, ?7, ?8, ?9, ?10) ON CONFLICT DO NOTHING",
        )?
        .execute(params![
            tid,
            id,
            state as i64,
            at_ms,
            priority,
            stamp_us,
            job.max_attempts,
            job.attempts,
            body,
            headers
        ])?;
    if inserted == 1 {
        w.grown(tid, job_bytes::size(&job.key.id, &job.body, headers.as_deref()));
        w.moved(tid, None, Some((state, at_ms)));
        return Ok(Added::New { due_ms: at_ms });
    }
    match job.on_conflict {
        OnConflict::Keep => return Ok(Added::Kept { due_ms: due_of(w, tid, &job.key.id)? }),
        OnConflict::Reject => return Ok(Added::Rejected),
        OnConflict::Replace => {}
    }
    let (seq, old) = live(w, tid, &job.key.id)?.ok_or(rusqlite::Error::QueryReturnedNoRows)?;
    let leased = old == State::Leased;
    w.record((tid, seq), id, Ending::Replaced)?;
    w.resize((tid, seq), |w| w.db.prepare_cached(
        "UPDATE job SET priority = ?2, due_ms = ?3, stamp_us = ?4, max_attempts = ?5, body = ?6, attempts = ?9, headers = ?10,
                crashes = 0, attempts_log = NULL, replaced_due_ms = CASE WHEN ?7 THEN ?3 END,
                state = CASE WHEN ?7 THEN state ELSE ?8 END, at_ms = CASE WHEN ?7 THEN at_ms ELSE ?3 END
         WHERE seq = ?1",
    )?
    .execute(params![
        seq,
        priority,
        at_ms,
        stamp_us,
        job.max_attempts,
        body,
        leased,
        state as i64,
        job.attempts,
        headers
    ]).map(drop))?;
    if !leased {
        w.moved(tid, Some(old), Some((state, at_ms)));
    }
    Ok(Added::Replaced { due_ms: at_ms })
}

/// Returns the row and the state of the live job with that id.
fn live(w: &WriteTransaction<'_>, tid: i64, id: &JobId) -> rusqlite::Result<Option<(i64, State)>> {
    w.db.prepare_cached("SELECT seq, state FROM job WHERE tid = ?1 AND id = ?2 AND state < 4")?
        .query_row(params![tid, id.as_str()], |row| Ok((row.get(0)?, row::state(row, 1)?)))
        .optional()
}

/// Returns when the live job with that id is due. For a leased job that was replaced, returns when the replacement is
/// due.
fn due_of(w: &WriteTransaction<'_>, tid: i64, id: &JobId) -> rusqlite::Result<i64> {
    let due = "SELECT coalesce(replaced_due_ms, due_ms) FROM job WHERE tid = ?1 AND id = ?2 AND state < 4";
    w.db.prepare_cached(due)?.query_row(params![tid, id.as_str()], |row| row.get(0))
}

/// Deletes one live job, or its dead letters if there is no live job. `note`: why the job is deleted, for the record of
/// the job. Returns whether there was a job or a dead letter.
pub(super) fn delete(
    w: &mut WriteTransaction<'_>,
    key: &JobKey,
    note: Option<&str>,
) -> rusqlite::Result<bool> {
    let Some(tid) = w.topic(&key.topic)? else { return Ok(false) };
    if let Some((seq, state)) = live(w, tid, &key.id)? {
        w.record_with_note((tid, seq), key.id.as_str(), Ending::Deleted, note)?;
        w.delete_jobs(tid, ONE_JOB, params![seq])?;
        w.moved(tid, Some(state), None);
        return Ok(true);
    }
    let dead = w.delete_jobs(tid, DEAD_LETTERS_OF_ID, params![tid, key.id.as_str()])?;
    w.moved_many(tid, Some(State::Dead), None, dead as i64);
    Ok(dead > 0)
}

/// Changes a delayed or ready job.
pub(super) fn change(
    w: &mut WriteTransaction<'_>,
    key: &JobKey,
    change: &Change,
) -> rusqlite::Result<Result<Changed, OverQuota>> {
    let Some(tid) = w.topic(&key.topic)? else { return Ok(Ok(Changed::NotFound)) };
    let Some((seq, old)) = live(w, tid, &key.id)? else { return Ok(Ok(Changed::NotFound)) };
    if old == State::Leased {
        return Ok(Ok(Changed::Conflict));
    }
    if !quota::allows_change(w, seq, tid, change)? {
        return Ok(Err(OverQuota::full(QuotaLimit::Bytes)));
    }
    let body = change.body.as_ref().map(|body| body.as_str());
    let priority = change.priority.map(JobPriority::stored);
    if body.is_some() || priority.is_some() || change.max_attempts.is_some() {
        let write = "UPDATE job SET body = coalesce(?2, body), priority = coalesce(?3, priority),
                                    max_attempts = CASE WHEN ?4 THEN ?5 ELSE max_attempts END WHERE seq = ?1";
        let (sets_max, max) = (change.max_attempts.is_some(), change.max_attempts.flatten());
        w.resize((tid, seq), |w| {
            w.db.prepare_cached(write)?.execute(params![seq, body, priority, sets_max, max]).map(drop)
        })?;
    }
    if change.has_headers() {
        let old = "SELECT stamp_us, headers FROM job WHERE seq = ?1";
        let read = |r: &rusqlite::Row<'_>| Ok((r.get(0)?, row::headers(r, 1, r.get(0)?)?));
        let (stamp_us, old) = w.db.prepare_cached(old)?.query_row([seq], read)?;
        let headers = change.headers_after(old).unwrap_or_default();
        w.resize((tid, seq), |w| {
            let mut write = w.db.prepare_cached("UPDATE job SET headers = ?2 WHERE seq = ?1")?;
            write.execute(params![seq, row::headers_text(&headers, stamp_us)]).map(drop)
        })?;
    }
    if let Some(due) = change.due {
        let (state, at_ms) = w.place_from_now(due);
        w.db.prepare_cached("UPDATE job SET state = ?2, at_ms = ?3, due_ms = ?3 WHERE seq = ?1")?
            .execute(params![seq, state as i64, at_ms])?;
        w.moved(tid, Some(old), Some((state, at_ms)));
    }
    Ok(Ok(Changed::Done))
}

/// Sets the real due time of one job if the job is held back. (The due time of such a job is `HELD_MS`.) Returns
/// whether the job was held back.
pub(super) fn release(w: &mut WriteTransaction<'_>, (key, due): &(JobKey, Due)) -> rusqlite::Result<bool> {
    let Some(tid) = w.topic(&key.topic)? else { return Ok(false) };
    let (state, at_ms) = match due {
        // The job is delayed even if this moment is in the past: a timer finds the job, and applies the `catch_up` of
        // its topic.
        Due::At(_) => (State::Delayed, w.place(*due).1),
        Due::In(_) => w.place(*due),
    };
    // With `state < 4` in the query, SQLite uses the index of live ids.
    let released = w
        .db
        .prepare_cached(
            "UPDATE job SET state = ?3, at_ms = ?4, due_ms = ?4
             WHERE tid = ?1 AND id = ?2 AND state < 4 AND state = ?5 AND at_ms = ?6",
        )?
        .execute(params![tid, key.id.as_str(), state as i64, at_ms, State::Delayed as i64, HELD_MS])?;
    if released > 0 {
        w.moved(tid, Some(State::Delayed), Some((state, at_ms)));
    }
    Ok(released > 0)
}

impl Jobs for SqliteStore {
    fn add(&mut self, jobs: &[NewJob]) -> Vec<Result<Added>> {
        // The jobs are written into the log, and later into the file.
        let bytes = || jobs.iter().map(|job| job.body.as_str().len() as u64).sum::<u64>();
        if let Some(lack) = self.reserve.lack(|| carry_over::owed_bytes(&self.db, &self.path) + 2 * bytes())
            && !self.makes_room(jobs)
        {
            return jobs.iter().map(|_| Err(StoreError::Full(lack.clone()))).collect();
        }
        let added = self.in_chunks(CommitDurability::Full, jobs, add).into_iter();
        added.map(|one| one.and_then(|added| added.map_err(StoreError::OverQuota))).collect()
    }

    fn get(&mut self, key: &JobKey) -> Result<Option<StoredJob>> {
        match self.topic(&key.topic)? {
            Some(tid) => browse::get(&self.db, tid, key).map_err(refused),
            None => Ok(None),
        }
    }

    fn delete(&mut self, keys: &[JobKey]) -> Vec<Result<Deleted>> {
        let deleted = self.in_chunks(CommitDurability::Full, keys, |w, key| delete(w, key, None));
        deleted.into_iter().map(|one| one.map(Deleted::from_found)).collect()
    }

    fn delete_with_note(&mut self, keys: &[JobKey], note: &str) -> Vec<Result<Deleted>> {
        let deleted = self.in_chunks(CommitDurability::Full, keys, |w, key| delete(w, key, Some(note)));
        deleted.into_iter().map(|one| one.map(Deleted::from_found)).collect()
    }

    fn change(&mut self, key: &JobKey, to: &Change) -> Result<Changed> {
        self.write(CommitDurability::Full, |w| change(w, key, to))?.map_err(StoreError::OverQuota)
    }

    fn release(&mut self, jobs: &[(JobKey, Due)]) -> Vec<Result<bool>> {
        self.in_chunks(CommitDurability::Full, jobs, release)
    }

    fn purge(&mut self, topic: &TopicName, state: State, limit: usize) -> Result<usize> {
        let mut left = limit;
        self.until_done(|w| {
            let step = left.min(CHUNK);
            let gone = letters::purge(w, topic, state, step)?;
            left -= gone;
            Ok((gone, More::if_full(gone, step)))
        })
    }
}
