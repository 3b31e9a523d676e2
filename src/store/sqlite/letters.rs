//! Dead letters, and the operations that change many jobs at a time: redrive, purge. Each function works
//! inside a transaction of its caller, on one batch of a bounded size.

use super::commit::CommitDurability;
use std::time::Duration;

use rusqlite::{OptionalExtension, params};

use super::job_bytes::{DEAD_LETTERS_OF_ID, job_bytes};
use super::write::WriteTransaction;
use super::{CHUNK, More, SqliteStore};
use crate::{DeadLetterKey, DeadLetterOperation, DeadLetterSelection, DeadLetters, Result, StoreError};
use model::job::{Due, JobId, State, TopicName};
use model::letters::RedrivePace;
use model::record::Ending;

impl SqliteStore {
    /// Makes dead letters ready, in steps.
    pub(super) fn redrive_some(
        &mut self,
        topic: &TopicName,
        which: &DeadLetterSelection,
        limit: usize,
        pace: RedrivePace,
    ) -> Result<usize> {
        // Each named dead letter is tried only once. A redriven job may end soon, and its id may have another dead
        // letter. A second step with the same names would also redrive that other dead letter.
        let parts: Vec<DeadLetterSelection> = match which {
            DeadLetterSelection::All => vec![DeadLetterSelection::All],
            DeadLetterSelection::Ids(ids) => {
                ids.chunks(CHUNK).map(|some| DeadLetterSelection::Ids(some.to_vec())).collect()
            }
            DeadLetterSelection::Letters(named) => {
                named.chunks(CHUNK).map(|some| DeadLetterSelection::Letters(some.to_vec())).collect()
            }
        };
        let mut done = 0;
        for part in &parts {
            let committed = done;
            let moved = self.until_done(|w| {
                let step = (limit - done).min(CHUNK);
                let Redriven { found, moved } = redrive(w, topic, part, step, (pace, done))?;
                done += moved;
                let more =
                    if *part == DeadLetterSelection::All { More::if_full(found, step) } else { More::No };
                Ok((moved, more))
            });
            match moved {
                Err(e) if committed > 0 => {
                    return Err(StoreError::Unknown(format!("only the first {committed} are done: {e}")));
                }
                moved => drop(moved?),
            }
        }
        Ok(done)
    }
}

/// The result of one step of a redrive.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Redriven {
    /// Dead letters that could be redriven, up to the limit.
    pub found: usize,
    /// Dead letters that were redriven: only one of each id.
    pub moved: usize,
}

/// Makes up to `limit` dead letters ready, or delayed as the pace says, with their attempts reset. If dead letters are
/// named, only the first `limit` of these names are used. A dead letter stays if a live job has its id. `done`: how
/// many dead letters the earlier steps of this redrive have redriven. The pace continues after these dead letters.
pub(super) fn redrive(
    w: &mut WriteTransaction<'_>,
    topic: &TopicName,
    which: &DeadLetterSelection,
    limit: usize,
    (pace, done): (RedrivePace, usize),
) -> rusqlite::Result<Redriven> {
    let Some(tid) = w.topic(topic)? else { return Ok(Redriven::default()) };
    let free = "NOT EXISTS (SELECT 1 FROM job live WHERE live.tid = job.tid AND live.id = job.id AND live.state < 4)";
    let mut seqs: Vec<i64> = Vec::new();
    match which {
        DeadLetterSelection::All => {
            let sql = format!(
                "SELECT seq FROM job WHERE tid = ?1 AND state = 4 AND {free} ORDER BY at_ms LIMIT ?2"
            );
            let mut find = w.db.prepare_cached(&sql)?;
            for seq in find.query_map(params![tid, limit as i64], |row| row.get(0))? {
                seqs.push(seq?);
            }
        }
        DeadLetterSelection::Ids(ids) => {
            // The latest dead letter of each id.
            let sql = format!(
                "SELECT seq FROM job WHERE tid = ?1 AND id = ?2 AND state = 4 AND {free} ORDER BY at_ms DESC LIMIT 1"
            );
            let mut find = w.db.prepare_cached(&sql)?;
            for id in ids.iter().take(limit) {
                seqs.extend(
                    find.query_row(params![tid, id.as_str()], |row| row.get::<_, i64>(0)).optional()?,
                );
            }
        }
        DeadLetterSelection::Letters(letters) => {
            let sql = format!(
                "SELECT seq FROM job WHERE tid = ?1 AND id = ?2 AND state = 4 AND at_ms = ?3 AND {free} LIMIT 1"
            );
            let mut find = w.db.prepare_cached(&sql)?;
            for DeadLetterKey { id, died_ms } in letters.iter().take(limit) {
                let found = find.query_row(params![tid, id.as_str(), died_ms], |row| row.get::<_, i64>(0));
                seqs.extend(found.optional()?);
            }
        }
    }
    let mut moved = 0;
    for seq in &seqs {
        // If two dead letters have the same id, only the first is redriven. Then a live job has the id, so the second
        // stays a dead letter.
        let (state, at_ms) = w.place(Due::In(pace.due(done + moved)));
        let one =
            w.db.prepare_cached(
                "UPDATE OR IGNORE job SET state = ?3, at_ms = ?2, due_ms = ?2, attempts = 0, crashes = 0
                 WHERE seq = ?1 AND state = 4",
            )?
            .execute(params![seq, at_ms, state as i64])?;
        if one > 0 {
            w.moved(tid, Some(State::Dead), Some((state, at_ms)));
        }
        moved += one;
    }
    Ok(Redriven { found: seqs.len(), moved })
}

/// Counts or removes the dead letters of some ids.
pub(super) fn letters(
    w: &mut WriteTransaction<'_>,
    topic: &TopicName,
    ids: &[JobId],
    what: DeadLetterOperation,
) -> rusqlite::Result<usize> {
    let Some(tid) = w.topic(topic)? else { return Ok(0) };
    let mut sum = 0;
    for id in ids {
        let key = params![tid, id.as_str()];
        sum += match what {
            DeadLetterOperation::Count => {
                w.db.prepare_cached("SELECT count(*) FROM job WHERE tid = ?1 AND id = ?2 AND state = 4")?
                    .query_row(key, |row| row.get(0))?
            }
            DeadLetterOperation::Remove => w.delete_jobs(tid, DEAD_LETTERS_OF_ID, key)?,
        };
    }
    if what == DeadLetterOperation::Remove {
        w.moved_many(tid, Some(State::Dead), None, sum as i64);
    }
    Ok(sum)
}

/// Removes up to `limit` jobs of a topic that are in `state`.
pub(super) fn purge(
    w: &mut WriteTransaction<'_>,
    topic: &TopicName,
    state: State,
    limit: usize,
) -> rusqlite::Result<usize> {
    let Some(tid) = w.topic(topic)? else { return Ok(0) };
    let state_number = state as i64;
    // There is no index of leased jobs by topic, because there are never many leased jobs.
    let job_bytes = job_bytes!();
    let sql =
        format!("SELECT seq, id, {job_bytes} FROM job WHERE tid = ?1 AND state = {state_number} LIMIT ?2");
    let jobs: Vec<(i64, String, i64)> =
        w.db.prepare_cached(&sql)?
            .query_map(params![tid, limit as i64], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?
            .collect::<rusqlite::Result<_>>()?;
    for (seq, id, bytes) in &jobs {
        // A dead letter got its record when it died.
        if state != State::Dead {
            w.record((tid, *seq), id, Ending::Deleted)?;
        }
        w.delete_job(tid, *seq, *bytes)?;
    }
    w.moved_many(tid, Some(state), None, jobs.len() as i64);
    Ok(jobs.len())
}

/// Removes these dead letters.
pub(super) fn purge_letters(
    w: &mut WriteTransaction<'_>,
    topic: &TopicName,
    letters: &[DeadLetterKey],
) -> rusqlite::Result<usize> {
    let Some(tid) = w.topic(topic)? else { return Ok(0) };
    let mut gone = 0;
    for DeadLetterKey { id, died_ms } in letters {
        let which =
            "seq IN (SELECT seq FROM job WHERE tid = ?1 AND id = ?2 AND state = 4 AND at_ms = ?3 LIMIT 1)";
        gone += w.delete_jobs(tid, which, params![tid, id.as_str(), died_ms])?;
    }
    w.moved_many(tid, Some(State::Dead), None, gone as i64);
    Ok(gone)
}

/// Removes up to `limit` dead letters that died at least `age` ago.
pub(super) fn retire(
    w: &mut WriteTransaction<'_>,
    topic: &TopicName,
    age: Duration,
    limit: usize,
) -> rusqlite::Result<usize> {
    let Some(tid) = w.topic(topic)? else { return Ok(0) };
    let before_ms = w.now_ms().saturating_sub(age.as_millis() as i64);
    let which =
        "seq IN (SELECT seq FROM job WHERE tid = ?1 AND state = 4 AND at_ms <= ?2 ORDER BY at_ms LIMIT ?3)";
    let gone = w.delete_jobs(tid, which, params![tid, before_ms, limit as i64])?;
    w.moved_many(tid, Some(State::Dead), None, gone as i64);
    Ok(gone)
}

impl DeadLetters for SqliteStore {
    fn redrive(
        &mut self,
        topic: &TopicName,
        which: &DeadLetterSelection,
        limit: usize,
        pace: RedrivePace,
    ) -> Result<usize> {
        self.redrive_some(topic, which, limit, pace)
    }

    fn letters(&mut self, topic: &TopicName, ids: &[JobId], what: DeadLetterOperation) -> Result<usize> {
        let mut sum = 0;
        for some in ids.chunks(CHUNK) {
            sum += self.write(CommitDurability::Full, |w| letters(w, topic, some, what))?;
        }
        Ok(sum)
    }

    fn purge_letters(&mut self, topic: &TopicName, named: &[DeadLetterKey]) -> Result<usize> {
        let mut sum = 0;
        for some in named.chunks(CHUNK) {
            sum += self.write(CommitDurability::Full, |w| purge_letters(w, topic, some))?;
        }
        Ok(sum)
    }

    fn retire(&mut self, topic: &TopicName, age: Duration, limit: usize) -> Result<usize> {
        self.write(CommitDurability::Normal, |w| retire(w, topic, age, limit))
    }
}
