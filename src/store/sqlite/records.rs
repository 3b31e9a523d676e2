//! Records of jobs that have ended. The transaction that ends a job also writes its record, and removes old records if
//! the limits require it.

use std::collections::btree_map::Entry;
use std::time::Duration;

use rusqlite::{Connection, OptionalExtension, Row, params};

use super::chunks::More;
use super::commit::CommitDurability;
use super::connect::refused;
use super::free_pages::free_page_bytes;
use super::pending_records::PendingTopicRecords;
use super::record_keeping::{keep, keeping, trim};
use super::record_rows::{IN_TOPIC, OF_A_TOPIC, list, of_id, row_after};
use super::row::{attempts_log_with, headers, headers_text};
use super::write::WriteTransaction;
use super::{CHUNK, SqliteStore};
use crate::records::trim_again;
use crate::{RecordPage, Records, Result};
use model::follow::Then;
use model::job::{Attempt, JobId, JobKey, NewJob, TopicName};
use model::record::{Ending, JobRecord, NOTE_NUMBER, RECORD_BODY_MAX, RECORDS_MAX, RecordKeeping};

/// How many surplus records a transaction removes for each record that it writes. The number is greater than one. So if
/// a limit is lowered, the number of records falls until it reaches the new limit.
const SURPLUS: i64 = 2;

/// The SQL expression for the bytes of a row of `record`. `ROW_BYTES` is the part for the columns that are not texts.
const BYTES: &str =
    "octet_length(id) + coalesce(octet_length(attempts_log), 0) + coalesce(octet_length(body), 0)
                     + coalesce(octet_length(headers), 0) + 64";
pub(super) const ROW_BYTES: i64 = 64;

/// The bytes that a job needs beside its id and its body. They include the entries of the job in the indexes.
const JOB_ROOM: usize = 200;

/// The smallest number of records that are removed when room is needed. (A page becomes free only when all of its
/// records are gone.)
const ROOM_RECORDS: i64 = 16;

/// How many transactions may remove records for one batch of adds.
const ROOM_STEPS: usize = 64;

/// The values that a record gets from the row of its job.
pub(super) struct EndedRow {
    pub stamp_us: i64,
    pub due_ms: i64,
    pub attempts: u32,
    pub log: Option<String>,
    /// The body, if the topic keeps it.
    pub body: Option<String>,
    /// The headers. If the body is not kept: only the tags, and the links to the jobs before and after it.
    pub headers: Option<String>,
    /// The jobs that follow the job.
    pub then: Then,
    /// The bytes of the job.
    pub job_bytes: i64,
}

/// The columns of an [`EndedRow`]. The second parameter is [`body_max`].
macro_rules! ended_columns {
    () => {
        concat!(
            "stamp_us, due_ms, attempts, attempts_log, CASE WHEN octet_length(body) <= ?2 THEN body END,
             CASE WHEN octet_length(body) <= ?2 OR instr(headers, '\":tags\":') OR instr(headers, '\":next\":')
                  OR instr(headers, '\":after\":') THEN headers END, ",
            $crate::sqlite::job_bytes::job_bytes!()
        )
    };
}
pub(super) use ended_columns;

/// Returns the largest size, in bytes, of a body that is kept together with its headers. 0: no body is kept, because a
/// body has at least one byte.
pub(super) fn body_max(keeping: &RecordKeeping) -> i64 {
    if keeping.with_body { RECORD_BODY_MAX as i64 } else { 0 }
}

pub(super) fn ended(row: &Row<'_>) -> rusqlite::Result<EndedRow> {
    let (stamp_us, body) = (row.get(0)?, row.get::<_, Option<String>>(4)?);
    let known = headers(row, 5, stamp_us)?;
    let headers = match body {
        Some(_) => row.get(5)?,
        None => headers_text(&known.only_tags_and_links(), stamp_us),
    };
    let (due_ms, attempts, log) = (row.get(1)?, row.get(2)?, row.get(3)?);
    Ok(EndedRow {
        stamp_us,
        due_ms,
        attempts,
        log,
        body,
        headers,
        then: known.then().clone(),
        job_bytes: row.get(6)?,
    })
}

impl WriteTransaction<'_> {
    /// Returns what the transaction knows about the records of a topic. The first call for a topic reads its row.
    fn records_of(&mut self, tid: i64) -> rusqlite::Result<&mut PendingTopicRecords> {
        let known = match self.records.0.entry(tid) {
            Entry::Occupied(known) => return Ok(known.into_mut()),
            Entry::Vacant(vacant) => vacant,
        };
        let sql = "SELECT keep_age_ms, keep_jobs, keep_body, with_event, last_record, last_order_ms, records FROM topic WHERE tid = ?1";
        let read = |row: &Row<'_>| {
            let (last, last_order_ms, there) = (row.get(4)?, row.get(5)?, row.get(6)?);
            Ok(PendingTopicRecords { keeping: keeping(row)?, last, last_order_ms, there, written: (0, 0) })
        };
        let found = self.db.prepare_cached(sql)?.query_row([tid], read)?;
        Ok(known.insert(found))
    }

    /// Returns what a topic keeps of its ended jobs.
    pub(super) fn keeping(&mut self, tid: i64) -> rusqlite::Result<RecordKeeping> {
        Ok(self.records_of(tid)?.keeping)
    }

    /// Writes the record of a job that ends now, if its topic keeps records. Must be called before the row of the job
    /// is deleted.
    pub(super) fn record(
        &mut self,
        (tid, seq): (i64, i64),
        id: &str,
        ending: Ending,
    ) -> rusqlite::Result<()> {
        self.record_with_note((tid, seq), id, ending, None)
    }

    /// Writes the record of a job that ends now, with a note that says why the job was removed.
    pub(super) fn record_with_note(
        &mut self,
        (tid, seq): (i64, i64),
        id: &str,
        ending: Ending,
        note: Option<&str>,
    ) -> rusqlite::Result<()> {
        let keeping = self.keeping(tid)?;
        if !keeping.is_on() && !keeping.with_event {
            return Ok(());
        }
        let row = self
            .db
            .prepare_cached(concat!("SELECT ", ended_columns!(), " FROM job WHERE seq = ?1"))?
            .query_row(params![seq, body_max(&keeping)], ended)?;
        let note = note.map(|note| Attempt {
            number: NOTE_NUMBER,
            at_ms: self.now_ms(),
            took_ms: 0,
            status: None,
            answer: String::new(),
            error: note.to_owned(),
            late: None,
        });
        self.record_row(tid, id, ending, row, note.as_ref())
    }

    /// Writes the record of a job from the values of its row, if its topic keeps records. Also writes the entries of
    /// the outbox for the jobs and the event that follow. `attempt`: an attempt that is not in the row yet.
    pub(super) fn record_row(
        &mut self,
        tid: i64,
        id: &str,
        ending: Ending,
        row: EndedRow,
        attempt: Option<&Attempt>,
    ) -> rusqlite::Result<()> {
        let log = match attempt {
            None => row.log,
            Some(attempt) => Some(attempts_log_with(row.log.as_deref(), attempt)),
        };
        let row = EndedRow { log, ..row };
        let keeping = self.keeping(tid)?;
        self.write_outbox(tid, id, ending, &row, keeping.with_event)?;
        if !keeping.is_on() {
            return Ok(());
        }
        let size = |text: &Option<String>| text.as_ref().map_or(0, String::len);
        let bytes = (id.len() + size(&row.log) + size(&row.body) + size(&row.headers)) as i64 + ROW_BYTES;
        let now_ms = self.now_ms();
        let of_topic = self.records_of(tid)?;
        of_topic.last += 1;
        of_topic.last_order_ms = of_topic.last_order_ms.max(now_ms);
        let order_ms = Some(of_topic.last_order_ms).filter(|order_ms| *order_ms != now_ms);
        of_topic.written = (of_topic.written.0 + 1, of_topic.written.1 + bytes);
        let rid = tid * OF_A_TOPIC + of_topic.last;
        self.db
            .prepare_cached(
                "INSERT INTO record (rid, tid, id, ending, ended_ms, stamp_us, due_ms, attempts, attempts_log, body, headers, order_ms)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12)",
            )?
            .execute(params![
                rid,
                tid,
                id,
                ending as i64,
                now_ms,
                row.stamp_us,
                row.due_ms,
                row.attempts,
                row.log,
                row.body,
                row.headers,
                order_ms
            ])?;
        Ok(())
    }

    /// Writes the counts of the records, and removes records beyond the limits.
    pub(super) fn finish_records(&mut self) -> rusqlite::Result<()> {
        let (mut all_written, mut surplus_max) = (0, 0);
        for (tid, of_topic) in std::mem::take(&mut self.records.0) {
            let PendingTopicRecords { keeping, last, last_order_ms, there, written: (count, bytes) } =
                of_topic;
            if count == 0 {
                continue;
            }
            // A RETURNING clause would cost more than the reading in `records_of`.
            self.db
                .prepare_cached(
                    "UPDATE topic SET records = records + ?2, record_bytes = record_bytes + ?3, last_record = ?4,
                         last_order_ms = ?5
                     WHERE tid = ?1",
                )?
                .execute(params![tid, count, bytes, last, last_order_ms])?;
            let over = there + count - i64::from(keeping.jobs);
            if over > 0 {
                self.remove_oldest(tid, over.min(SURPLUS * count))?;
            }
            all_written += bytes;
            surplus_max += SURPLUS * count;
        }
        if all_written > 0 && self.record_budget.spend(all_written) {
            self.keep_budget(surplus_max)?;
        }
        Ok(())
    }

    /// Compares the bytes of all records with their limit. If the records exceed the limit, removes up to `limit`
    /// records of the topic that has the most bytes. Returns how many records were removed.
    pub(super) fn keep_budget(&mut self, limit: i64) -> rusqlite::Result<usize> {
        let sql = "SELECT (SELECT coalesce(sum(record_bytes), 0) FROM topic), record_bytes_max FROM shard";
        let (all, all_max): (i64, Option<i64>) =
            self.db.prepare_cached(sql)?.query_row([], |row| Ok((row.get(0)?, row.get(1)?)))?;
        let free = all_max.unwrap_or(RECORDS_MAX as i64) - all;
        self.record_budget.renew(free);
        match largest(self.db)? {
            Some((tid, size)) if free < 0 => Ok(self.remove_oldest(tid, (-free / size + 1).min(limit))?.0),
            _ => Ok(0),
        }
    }

    /// Removes the oldest records of a topic. Returns how many it removed, and their bytes.
    pub(super) fn remove_oldest(&self, tid: i64, limit: i64) -> rusqlite::Result<(usize, i64)> {
        self.remove_records(IN_TOPIC, "1", params![tid, limit, 0])
    }

    /// Removes records. `among` says which records are checked, up to the limit. `which` says which of these records
    /// are removed. The parameters are the topic, the limit, and the values for the two conditions.
    pub(super) fn remove_records(
        &self,
        among: &str,
        which: &str,
        parameters: &[&dyn rusqlite::ToSql],
    ) -> rusqlite::Result<(usize, i64)> {
        let sizes: Vec<i64> = self
            .db
            .prepare_cached(&format!(
                "DELETE FROM record WHERE rid IN
                 (SELECT rid FROM (SELECT rid, ended_ms FROM record WHERE {among} AND ?3 IS NOT NULL ORDER BY rid LIMIT ?2)
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
        }
        Ok((sizes.len(), bytes))
    }

    /// Removes the oldest records of the topic that has the most bytes: about `needed` bytes of them, but never more
    /// than [`CHUNK`] records. Returns how many it removed.
    pub(super) fn make_room(&self, needed: i64) -> rusqlite::Result<usize> {
        let Some((tid, size)) = largest(self.db)? else { return Ok(0) };
        Ok(self.remove_oldest(tid, (needed / size + 1).clamp(ROOM_RECORDS, CHUNK as i64))?.0)
    }
}

/// Returns the topic that has the most bytes of records, and about how many bytes one of these records has.
fn largest(db: &Connection) -> rusqlite::Result<Option<(i64, i64)>> {
    db.prepare_cached(
        "SELECT tid, max(record_bytes / records, 1) FROM topic WHERE records > 0 ORDER BY record_bytes DESC LIMIT 1",
    )?
    .query_row([], |row| Ok((row.get(0)?, row.get(1)?)))
    .optional()
}

impl SqliteStore {
    /// Removes records until the free pages of the file have room for these jobs. Returns whether there is room.
    pub(super) fn makes_room(&mut self, jobs: &[NewJob]) -> bool {
        let size = |job: &NewJob| job.key.id.as_str().len() + job.body.as_str().len() + JOB_ROOM;
        let needed = jobs.iter().map(size).sum::<usize>() as i64;
        for _ in 0..ROOM_STEPS {
            let missing = free_page_bytes(&self.db).map_err(refused).map(|free| needed - free);
            let removed = match missing {
                Ok(..=0) => return true,
                Ok(missing) => self.write(CommitDurability::Normal, |w| w.make_room(missing)),
                Err(e) => Err(e),
            };
            match removed {
                Ok(0) => return false,
                Ok(_) => {}
                Err(e) => {
                    log::warn!("cannot remove records to make room for jobs: {e}");
                    return false;
                }
            }
        }
        false
    }
}

impl Records for SqliteStore {
    fn keep_records(&mut self, topics: &[(TopicName, RecordKeeping)], bytes_max: u64) -> Result<()> {
        self.write(CommitDurability::Normal, |w| keep(w, topics, bytes_max))
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
            Some(tid) => {
                let before = before.min((tid + 1) * OF_A_TOPIC);
                list(&self.db, tid, topic, before, limit).map_err(refused)
            }
            None => Ok(RecordPage::default()),
        }
    }

    fn records_after(
        &mut self,
        topic: &TopicName,
        order_ms: i64,
        id: Option<&JobId>,
    ) -> Result<Option<String>> {
        let Some(tid) = self.topic(topic)? else { return Ok(None) };
        let before = row_after(&self.db, tid, order_ms, id).map_err(refused)?;
        Ok(before.map(|rid| rid.to_string()))
    }

    fn forget(&mut self, key: &JobKey) -> Result<usize> {
        self.erase(|w| {
            let Some(tid) = w.topic(&key.topic)? else { return Ok((0, More::No)) };
            let (gone, _) =
                w.remove_records("tid = ?1 AND id = ?3", "1", params![tid, CHUNK as i64, key.id.as_str()])?;
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
        let (gone, shortest) = self.write(CommitDurability::Normal, trim)?;
        Ok((gone, trim_again(gone, shortest)))
    }
}
