//! Takes over the jobs of another store. The records arrive in any order, but their rows must be in the order in which
//! the jobs ended. So the records are first collected in a separate table. At the end, they get their rows in the table
//! `record`.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use rusqlite::params;

use super::SqliteStore;
use super::commit::CommitDurability;
use super::job_bytes;
use super::record_rows::OF_A_TOPIC;
use super::records::ROW_BYTES;
use super::row::headers_text;
use super::write::WriteTransaction;
use crate::take_over::{MovableStore, StoreMoveMark, without_lease};
use crate::{Result, StoreError, StoredJob};
use model::job::State;
use model::record::JobRecord;
use model::settings::beside;
use model::settings::files::MOVED;

/// Returns the file that has the mark of a store.
fn mark_file(database: &Path) -> PathBuf {
    beside(database, MOVED)
}

/// Returns the mark of the embedded store with this file.
pub fn move_mark_of(database: &Path) -> io::Result<Option<StoreMoveMark>> {
    match fs::read_to_string(mark_file(database)) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(e),
        Ok(text) => StoreMoveMark::from_text(&text).map(Some).ok_or_else(|| {
            io::Error::other(format!("{} cannot be read: {text:?}", mark_file(database).display()))
        }),
    }
}

fn write_mark(database: &Path, mark: Option<&StoreMoveMark>) -> io::Result<()> {
    let file = mark_file(database);
    match mark {
        None => fs::remove_file(&file)?,
        Some(mark) => {
            let draft = beside(database, "-moved.new");
            let mut out =
                OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&draft)?;
            writeln!(out, "{}", mark.to_text())?;
            out.sync_all()?;
            fs::rename(&draft, &file)?;
        }
    }
    File::open(file.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new(".")))?.sync_all()
}

fn put_job(w: &mut WriteTransaction<'_>, job: &StoredJob) -> rusqlite::Result<()> {
    let tid = w.topic_or_new(&job.key.topic)?;
    let (id, at_ms) = (job.key.id.as_str(), job.until_ms.unwrap_or(job.due_ms));
    if job.state == State::Dead {
        let mut there = w.db.prepare_cached(
            "SELECT 1 FROM job WHERE state = 4 AND tid = ?1 AND id = ?2 AND at_ms = ?3 AND stamp_us = ?4",
        )?;
        if there.exists(params![tid, id, at_ms, job.stamp_us])? {
            return Ok(());
        }
    }
    let log = (!job.attempts_log.is_empty())
        .then(|| serde_json::to_string(&job.attempts_log).expect("attempts are plain values"));
    let headers = headers_text(&job.headers, job.stamp_us);
    let put = w
        .db
        .prepare_cached(
            "INSERT INTO job (tid, id, state, at_ms, priority, due_ms, stamp_us, attempts, max_attempts, attempts_log, body, headers)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12) ON CONFLICT DO NOTHING",
        )?
        .execute(params![
            tid,
            id,
            job.state as i64,
            at_ms,
            job.priority.stored(),
            job.due_ms,
            job.stamp_us,
            job.attempts,
            job.max_attempts,
            log,
            job.body.as_str(),
            headers,
        ])?;
    if put == 1 {
        w.grown(tid, job_bytes::size(&job.key.id, &job.body, headers.as_deref()));
        w.moved(tid, None, Some((job.state, at_ms)));
    }
    Ok(())
}

/// The table that collects records.
const COLLECTED: &str = "CREATE TABLE IF NOT EXISTS taken_record (
    tid INTEGER NOT NULL, id TEXT NOT NULL, ended_ms INTEGER NOT NULL, stamp_us INTEGER NOT NULL, ending INTEGER NOT NULL,
    due_ms INTEGER NOT NULL, attempts INTEGER NOT NULL, attempts_log TEXT, body TEXT, headers TEXT,
    PRIMARY KEY (tid, id, ended_ms, stamp_us, ending)
) STRICT, WITHOUT ROWID";

fn collect_record(w: &mut WriteTransaction<'_>, record: &JobRecord) -> rusqlite::Result<()> {
    let (tid, stamp_us) = (w.topic_or_new(&record.key.topic)?, record.stamp_us.unwrap_or(0));
    let log = (!record.attempts_log.is_empty())
        .then(|| serde_json::to_string(&record.attempts_log).expect("attempts are plain values"));
    w.db.prepare_cached(
        "INSERT INTO taken_record VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10) ON CONFLICT DO NOTHING",
    )?
    .execute(params![
        tid,
        record.key.id.as_str(),
        record.ended_ms,
        stamp_us,
        record.ending as i64,
        record.due_ms,
        record.attempts,
        log,
        record.body.as_ref().map(|body| body.as_str()),
        headers_text(&record.headers, stamp_us),
    ])?;
    Ok(())
}

/// Gives the collected records their rows, and counts them.
fn place_records(w: &mut WriteTransaction<'_>) -> rusqlite::Result<()> {
    w.db.execute(
        "INSERT INTO record (rid, tid, id, ending, ended_ms, stamp_us, due_ms, attempts, attempts_log, body, headers)
         SELECT t.tid * ?1 + last_record + row_number() OVER (PARTITION BY t.tid ORDER BY ended_ms, stamp_us),
                t.tid, id, ending, ended_ms, stamp_us, due_ms, attempts, attempts_log, body, headers
         FROM taken_record t JOIN topic ON topic.tid = t.tid
         WHERE NOT EXISTS (SELECT 1 FROM record r WHERE r.tid = t.tid AND r.id = t.id AND r.ended_ms = t.ended_ms
                                  AND r.stamp_us = t.stamp_us AND r.ending = t.ending)",
        [OF_A_TOPIC],
    )?;
    w.db.execute(
        "UPDATE topic SET (records, record_bytes, last_record, last_order_ms) = (
             SELECT count(*), coalesce(sum(octet_length(id) + coalesce(octet_length(attempts_log), 0)
                        + coalesce(octet_length(body), 0) + coalesce(octet_length(headers), 0) + ?2), 0),
                    coalesce(max(rid) - topic.tid * ?1, last_record), coalesce(max(ended_ms), last_order_ms)
             FROM record WHERE rid > topic.tid * ?1 AND rid < (topic.tid + 1) * ?1)
         WHERE tid IN (SELECT tid FROM taken_record)",
        [OF_A_TOPIC, ROW_BYTES],
    )?;
    w.db.execute_batch("DROP TABLE taken_record")
}

impl MovableStore for SqliteStore {
    fn move_mark(&mut self) -> Result<Option<StoreMoveMark>> {
        move_mark_of(&self.path).map_err(|e| StoreError::Unavailable(e.to_string()))
    }

    fn set_move_mark(&mut self, mark: Option<&StoreMoveMark>) -> Result<()> {
        let cannot = |e| StoreError::Unavailable(format!("{}: {e}", mark_file(&self.path).display()));
        write_mark(&self.path, mark).map_err(cannot)
    }

    fn take_over(&mut self, jobs: &[StoredJob]) -> Result<()> {
        self.write(CommitDurability::Normal, |w| {
            jobs.iter().try_for_each(|job| match job.state {
                State::Leased => put_job(w, &without_lease(job)),
                _ => put_job(w, job),
            })
        })?;
        self.carry_over_log()
    }

    fn take_over_records(&mut self, records: &[JobRecord]) -> Result<()> {
        self.write(CommitDurability::Normal, |w| {
            w.db.execute_batch(COLLECTED)?;
            records.iter().try_for_each(|record| collect_record(w, record))
        })?;
        self.carry_over_log()
    }

    fn end_take_over(&mut self) -> Result<()> {
        self.write(CommitDurability::Full, |w| {
            w.db.execute_batch(COLLECTED)?;
            place_records(w)
        })
    }
}
