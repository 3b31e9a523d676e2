//! Records of jobs that have ended. The transaction that ends a job also writes its record, and removes old records as
//! far as the limits ask for it.

use std::collections::BTreeMap;
use std::time::Duration;

use rusqlite::{Connection, OptionalExtension, Row, params};

use super::chunks::More;
use super::commit::Durability;
use super::connect::refused;
use super::record_rows::{list, of_id, row_after};
use super::write::Write;
use super::{CHUNK, SqliteStore};
use crate::{RecordPage, Records, Result};
use model::job::{Attempt, JobId, JobKey, NewJob, TopicName};
use model::record::{Ending, JobRecord, RECORD_BODY_MAX, RECORDS_MAX, RecordKeeping};

/// How often old records are looked for at most, and at least.
const TRIM_EVERY: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

/// How many surplus records a transaction removes for each record that it writes. With more than one, a limit that was
/// lowered is reached in the end.
const SURPLUS: i64 = 2;

/// The bytes of a row of `record`.
const BYTES: &str =
    "octet_length(id) + coalesce(octet_length(attempts_log), 0) + coalesce(octet_length(body), 0)
                     + coalesce(octet_length(headers), 0) + 64";

/// The bytes that a job needs beside its id and its body, with its entries in the indexes.
const JOB_ROOM: usize = 200;

/// The records that a transaction writes.
#[derive(Debug, Default)]
pub(super) struct PendingRecords {
    /// What the topics keep that the transaction has met.
    keeping: BTreeMap<i64, RecordKeeping>,
    /// How many records of each topic were written, and how many bytes these have.
    written: BTreeMap<i64, (i64, i64)>,
}

impl Write<'_> {
    /// Returns what a topic keeps of its ended jobs.
    fn keeping(&mut self, tid: i64) -> rusqlite::Result<RecordKeeping> {
        if let Some(known) = self.records.keeping.get(&tid) {
            return Ok(*known);
        }
        let sql = "SELECT keep_age_ms, keep_jobs, keep_body FROM topic WHERE tid = ?1";
        let keeping = self.db.prepare_cached(sql)?.query_row([tid], keeping)?;
        self.records.keeping.insert(tid, keeping);
        Ok(keeping)
    }

    /// Writes the record of a job that ends now. Its row still has everything but this attempt. Returns whether a
    /// record was written: the topic may keep none.
    pub(super) fn record(
        &mut self,
        (tid, seq): (i64, i64),
        ending: Ending,
        attempt: Option<&Attempt>,
    ) -> rusqlite::Result<bool> {
        let keeping = self.keeping(tid)?;
        if !keeping.is_on() {
            return Ok(false);
        }
        let attempt = attempt.map(|a| serde_json::to_string(a).expect("an attempt is plain values"));
        let bytes = self
            .db
            .prepare_cached(&format!(
                "INSERT INTO record (tid, id, ending, ended_ms, stamp_us, due_ms, attempts, attempts_log, body, headers)
                 SELECT tid, id, ?2, ?3, stamp_us, due_ms, attempts,
                        CASE WHEN ?4 IS NULL THEN attempts_log
                             WHEN attempts_log IS NULL THEN '[' || ?4 || ']'
                             ELSE substr(attempts_log, 1, length(attempts_log) - 1) || ',' || ?4 || ']' END,
                        CASE WHEN ?5 AND octet_length(body) <= ?6 THEN body END, CASE WHEN ?5 THEN headers END
                 FROM job WHERE seq = ?1
                 RETURNING {BYTES}"
            ))?
            .query_row(
                params![
                    seq,
                    ending as i64,
                    self.now_ms(),
                    attempt,
                    keeping.with_body,
                    RECORD_BODY_MAX as i64
                ],
                |row| row.get::<_, i64>(0),
            )?;
        let (count, sum) = self.records.written.entry(tid).or_default();
        (*count, *sum) = (*count + 1, *sum + bytes);
        Ok(true)
    }

    /// Writes the counts of the records, and removes records beyond the limits.
    pub(super) fn finish_records(&mut self) -> rusqlite::Result<()> {
        for (tid, (count, bytes)) in std::mem::take(&mut self.records.written) {
            let most = i64::from(self.keeping(tid)?.jobs);
            let there: i64 = self
                .db
                .prepare_cached(
                    "UPDATE topic SET records = records + ?2, record_bytes = record_bytes + ?3 WHERE tid = ?1
                     RETURNING records",
                )?
                .query_row(params![tid, count, bytes], |row| row.get(0))?;
            let (all, all_max) = self
                .db
                .prepare_cached(
                    "UPDATE shard SET record_bytes = record_bytes + ?1 RETURNING record_bytes, record_bytes_max",
                )?
                .query_row([bytes], |row| Ok((row.get::<_, i64>(0)?, row.get::<_, Option<i64>>(1)?)))?;
            if there > most {
                self.remove_oldest(tid, (there - most).min(SURPLUS * count))?;
            }
            let over = all - all_max.unwrap_or(RECORDS_MAX as i64);
            if over > 0
                && let Some((tid, size)) = largest(self.db)?
            {
                self.remove_oldest(tid, (over / size + 1).min(SURPLUS * count))?;
            }
        }
        Ok(())
    }

    /// Removes the oldest records of a topic. Returns how many, and their bytes.
    fn remove_oldest(&self, tid: i64, limit: i64) -> rusqlite::Result<(usize, i64)> {
        self.remove_records("?3 = 0", "1", params![tid, limit, 0])
    }

    /// Removes records. `among` says which of the topic's records are looked at, up to the limit, and `which` says which
    /// of these are removed. The parameters: topic, limit, and what the two conditions need.
    fn remove_records(
        &self,
        among: &str,
        which: &str,
        parameters: &[&dyn rusqlite::ToSql],
    ) -> rusqlite::Result<(usize, i64)> {
        let sizes: Vec<i64> = self
            .db
            .prepare_cached(&format!(
                "DELETE FROM record WHERE rid IN
                 (SELECT rid FROM (SELECT rid, ended_ms FROM record WHERE tid = ?1 AND {among} ORDER BY rid LIMIT ?2)
                  WHERE {which})
                 RETURNING {BYTES}"
            ))?
            .query_map(parameters, |row| row.get(0))?
            .collect::<rusqlite::Result<_>>()?;
        let tid = parameters[0];
        let bytes: i64 = sizes.iter().sum();
        if !sizes.is_empty() {
            self.db
                .prepare_cached(
                    "UPDATE topic SET records = records - ?2, record_bytes = record_bytes - ?3 WHERE tid = ?1",
                )?
                .execute(params![tid, sizes.len() as i64, bytes])?;
            self.db.prepare_cached("UPDATE shard SET record_bytes = record_bytes - ?1")?.execute([bytes])?;
        }
        Ok((sizes.len(), bytes))
    }

    /// Removes the oldest records of the topic that has the most bytes, up to [`CHUNK`]. Returns the bytes that are free
    /// now.
    pub(super) fn make_room(&self) -> rusqlite::Result<i64> {
        let Some((tid, _)) = largest(self.db)? else { return Ok(0) };
        Ok(self.remove_oldest(tid, CHUNK as i64)?.1)
    }
}

/// Returns the topic whose records have the most bytes, and about how many bytes one of them has.
fn largest(db: &Connection) -> rusqlite::Result<Option<(i64, i64)>> {
    db.prepare_cached(
        "SELECT tid, max(record_bytes / records, 1) FROM topic WHERE records > 0 ORDER BY record_bytes DESC LIMIT 1",
    )?
    .query_row([], |row| Ok((row.get(0)?, row.get(1)?)))
    .optional()
}

fn keeping(row: &Row<'_>) -> rusqlite::Result<RecordKeeping> {
    let age = row.get::<_, Option<i64>>(0)?.map(|ms| Duration::from_millis(ms.max(0) as u64));
    Ok(RecordKeeping {
        age: age.unwrap_or(RecordKeeping::DEFAULT.age),
        jobs: row.get::<_, Option<u32>>(1)?.unwrap_or(RecordKeeping::DEFAULT.jobs),
        with_body: row.get(2)?,
    })
}

/// Stores what the topics keep. Topics that are not named keep the default.
fn keep(w: &mut Write<'_>, topics: &[(TopicName, RecordKeeping)], bytes_max: u64) -> rusqlite::Result<()> {
    let bytes_max = i64::try_from(bytes_max).unwrap_or(i64::MAX);
    w.db.execute(
        "UPDATE shard SET record_bytes_max = ?1 WHERE record_bytes_max IS NOT ?1",
        [(bytes_max != RECORDS_MAX as i64).then_some(bytes_max)],
    )?;
    let mut left: BTreeMap<i64, RecordKeeping> =
        w.db.prepare_cached(
            "SELECT keep_age_ms, keep_jobs, keep_body, tid FROM topic
             WHERE keep_age_ms IS NOT NULL OR keep_jobs IS NOT NULL OR keep_body",
        )?
        .query_map([], |row| Ok((row.get(3)?, keeping(row)?)))?
        .collect::<rusqlite::Result<_>>()?;
    let mut changed = Vec::new();
    for (topic, keeping) in topics {
        let known = w.topic(topic)?;
        let before = known.and_then(|tid| left.remove(&tid)).unwrap_or(RecordKeeping::DEFAULT);
        if before != *keeping {
            changed.push((w.topic_or_new(topic)?, *keeping));
        }
    }
    changed.extend(left.into_keys().map(|tid| (tid, RecordKeeping::DEFAULT)));
    for (tid, RecordKeeping { age, jobs, with_body }) in changed {
        let age_ms = (age != RecordKeeping::DEFAULT.age).then_some(age.as_millis() as i64);
        let jobs = (jobs != RecordKeeping::DEFAULT.jobs).then_some(jobs);
        w.db.prepare_cached(
            "UPDATE topic SET keep_age_ms = ?2, keep_jobs = ?3, keep_body = ?4 WHERE tid = ?1",
        )?
        .execute(params![tid, age_ms, jobs, with_body])?;
    }
    Ok(())
}

/// Removes up to [`CHUNK`] records that their topics do not keep any more. Returns how many, and the shortest age of all
/// topics that have records.
fn trim(w: &Write<'_>) -> rusqlite::Result<(usize, Option<Duration>)> {
    let topics: Vec<(i64, i64, RecordKeeping)> =
        w.db.prepare_cached(
            "SELECT keep_age_ms, keep_jobs, keep_body, tid, records FROM topic WHERE records > 0",
        )?
        .query_map([], |row| Ok((row.get(3)?, row.get(4)?, keeping(row)?)))?
        .collect::<rusqlite::Result<_>>()?;
    let (mut left, shortest) = (CHUNK as i64, topics.iter().map(|(.., keeping)| keeping.age).min());
    for (tid, there, keeping) in &topics {
        let most = if keeping.is_on() { i64::from(keeping.jobs) } else { 0 };
        if *there > most {
            left -= w.remove_oldest(*tid, left.min(there - most))?.0 as i64;
        }
        // Records were written in the order of their rows, unless the clock was set back.
        let before = w.now_ms().saturating_sub(keeping.age.as_millis() as i64);
        let oldest = "SELECT ended_ms FROM record WHERE tid = ?1 ORDER BY rid LIMIT 1";
        let oldest: Option<i64> =
            w.db.prepare_cached(oldest)?.query_row([tid], |row| row.get(0)).optional()?;
        if left > 0 && oldest.is_some_and(|at| at <= before) {
            left -= w.remove_records("1", "ended_ms <= ?3", params![tid, left, before])?.0 as i64;
        }
        if left <= 0 {
            break;
        }
    }
    Ok(((CHUNK as i64 - left) as usize, shortest))
}

impl SqliteStore {
    /// Removes records until the store's file has room for these jobs without growing. Returns whether it has.
    pub(super) fn makes_room(&mut self, jobs: &[NewJob]) -> bool {
        let size = |job: &NewJob| job.key.id.as_str().len() + job.body.as_str().len() + JOB_ROOM;
        let mut needed = jobs.iter().map(size).sum::<usize>() as i64;
        while needed > 0 {
            match self.write(Durability::Normal, |w| w.make_room()) {
                Ok(freed @ 1..) => needed -= freed,
                Ok(_) => return false,
                Err(e) => {
                    log::warn!("cannot remove records to make room for jobs: {e}");
                    return false;
                }
            }
        }
        true
    }
}

impl Records for SqliteStore {
    fn keep_records(&mut self, topics: &[(TopicName, RecordKeeping)], bytes_max: u64) -> Result<()> {
        self.write(Durability::Normal, |w| keep(w, topics, bytes_max))
    }

    fn records(&mut self, key: &JobKey) -> Result<Vec<JobRecord>> {
        let Some(tid) = self.topic(&key.topic)? else { return Ok(Vec::new()) };
        of_id(&self.db, tid, key).map_err(refused)
    }

    fn list_records(&mut self, topic: &TopicName, cursor: Option<&str>, limit: usize) -> Result<RecordPage> {
        let before = match cursor.map(str::parse) {
            None => i64::MAX,
            Some(Ok(before)) => before,
            Some(Err(_)) => return Ok(RecordPage::default()),
        };
        match self.topic(topic)? {
            Some(tid) => list(&self.db, tid, topic, before, limit).map_err(refused),
            None => Ok(RecordPage::default()),
        }
    }

    fn records_after(
        &mut self,
        topic: &TopicName,
        ended_ms: i64,
        id: Option<&JobId>,
    ) -> Result<Option<String>> {
        let Some(tid) = self.topic(topic)? else { return Ok(None) };
        let before = row_after(&self.db, tid, ended_ms, id).map_err(refused)?;
        Ok(before.map(|rid| rid.to_string()))
    }

    fn forget(&mut self, key: &JobKey) -> Result<usize> {
        self.until_done(|w| {
            let Some(tid) = w.topic(&key.topic)? else { return Ok((0, More::No)) };
            let (gone, _) = w.remove_records("id = ?3", "1", params![tid, CHUNK as i64, key.id.as_str()])?;
            Ok((gone, More::if_full(gone, CHUNK)))
        })
    }

    fn purge_records(&mut self, topic: &TopicName, limit: usize) -> Result<usize> {
        let mut left = limit;
        self.until_done(|w| {
            let Some(tid) = w.topic(topic)? else { return Ok((0, More::No)) };
            let step = left.min(CHUNK);
            let (gone, _) = w.remove_oldest(tid, step as i64)?;
            left -= gone;
            Ok((gone, More::if_full(gone, step)))
        })
    }

    fn trim_records(&mut self) -> Result<(usize, Duration)> {
        let (gone, shortest) = self.write(Durability::Normal, |w| trim(w))?;
        let (least, most) = TRIM_EVERY;
        let again = match gone {
            0 => shortest.map_or(most, |age| (age / 100).clamp(least, most)),
            // The others have their turn in between.
            _ => Duration::from_millis(5),
        };
        Ok((gone, again))
    }
}
