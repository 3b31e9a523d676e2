//! The spool: changes of jobs that wait on the host's own disk, because the home of the job does not answer or because
//! jobs are being moved. The spool is one SQLite file that all processes of the host open. docs/internals/NODES.md has
//! the rules of the spool.
//!
//! The spool keeps one entry for each job: the last change of this job. The code of the spool knows nothing about
//! nodes. The sender sends the entries in batches, and notes in the spool where it sent each entry, and what happened
//! to the batches.

mod clock;
mod room;
mod sending;

use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::Error::FromSqlConversionFailure;
use rusqlite::types::Type;
use rusqlite::{Connection, ErrorCode, OptionalExtension, Row, Transaction, TransactionBehavior, params};

pub(super) use self::clock::since_boot_ms;
use self::clock::{HostMoment, boot_id};
pub(super) use self::room::BATCH_BYTES;
pub use self::room::SpoolState;
pub(super) use self::sending::SentBatch;
use super::migrations::runner;
use super::sqlite::{BUSY, Turn, at_commit, refused};
use super::{Result, StoreError, StoredJob};
use host::file_at;
use model::headers::Headers;
use model::job::{Body, Due, JobId, JobKey, NewJob, OnConflict, State, TopicName};
use model::job_priority::JobPriority;
use model::settings::files::{TURN, beside};
use model::settings::{self, NOTHING_WAITS};

/// The migrations of the file.
#[derive(rust_embed::Embed)]
#[folder = "../../migrations/spool"]
struct SpoolMigrations;

/// A page of the file, in bytes.
const PAGE: usize = 4096;

/// The disk space that the sender needs to note which entries were sent, in bytes.
const SEND_BYTES: usize = 1 << 20;

/// When SQLite writes its log again from the beginning, it cuts the file of the log to this size.
const LOG_BYTES: usize = 4 << 20;

/// A handle to the spool of a host.
#[derive(Debug)]
pub struct Spool {
    db: Connection,
    turn: Turn,
    path: PathBuf,
    /// Device and inode of the file, and of the file of the turn, when they were opened.
    files: [(u64, u64); 2],
    bytes: usize,
    boot: String,
}

/// A change that waits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Entry {
    /// The number of the entry. Later entries have greater numbers.
    pub seq: i64,
    /// The job that is changed.
    pub key: JobKey,
    /// The job to store. None: the job is deleted.
    pub job: Option<NewJob>,
    /// Since when changes of the job wait here, in milliseconds since the present boot of the host. 0: since this boot
    /// or longer.
    pub since_ms: i64,
}

/// What the spool knows about a job.
#[derive(Debug)]
pub(super) enum SpooledJob {
    /// A waiting change stores this job.
    Job(Box<StoredJob>),
    /// A waiting change deletes the job.
    Deleted,
}

impl Spool {
    /// Opens a handle for the sender of the entries. This handle may write a little more than other handles, so that
    /// the sender can empty a full spool.
    pub(super) fn open_to_send(settings: &settings::SpoolSettings) -> Result<Spool> {
        Spool::open(&settings::SpoolSettings { bytes: settings.bytes + SEND_BYTES, ..settings.clone() })
    }

    /// Opens the spool of these settings. None: the settings allow no spool, and there is no file of an earlier spool.
    pub fn from_settings(settings: &settings::RedisSettings) -> Result<Option<Spool>> {
        settings.used_spool().map(Spool::open).transpose()
    }

    /// Opens the file, makes it if it is not there, and brings it up to date.
    pub fn open(settings: &settings::SpoolSettings) -> Result<Spool> {
        let path = &settings.path;
        let cannot = |e: &dyn std::fmt::Display| {
            StoreError::Unavailable(format!("cannot open the spool {}: {e}", path.display()))
        };
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder).map_err(|e| cannot(&e))?;
        }
        let turn = Turn::beside(path).map_err(|e| cannot(&e))?;
        let taken = turn.take().map_err(|e| cannot(&e))?;
        if !path.exists() {
            // Only the owner of the file may read jobs. During this turn no process has the file open, so no lock is
            // lost when this descriptor is closed.
            let new = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
            new.map_err(|e| cannot(&e))?;
        }
        let db = connect(path, settings.bytes).map_err(|e| {
            let is_other = e.downcast_ref::<rusqlite::Error>().and_then(rusqlite::Error::sqlite_error_code);
            match is_other {
                Some(ErrorCode::NotADatabase | ErrorCode::DatabaseCorrupt) => StoreError::Unavailable(format!(
                    "cannot open the spool {}: {e} (move it away with the files beside it, -wal, -shm and -turn: changes that wait in it are lost)",
                    path.display()
                )),
                _ => cannot(&e),
            }
        })?;
        let files = files_at(path).map_err(|e| cannot(&e))?;
        if turn.byte().map_err(|e| cannot(&e))? == NOTHING_WAITS {
            taken.set_byte(0).map_err(|e| cannot(&e))?;
        }
        drop(taken);
        let boot = boot_id().map_err(|e| cannot(&e))?;
        Ok(Spool { db, turn, path: path.clone(), files, bytes: settings.bytes, boot })
    }

    /// Returns whether the file that was opened was removed or replaced.
    pub fn is_replaced(&self) -> bool {
        !files_at(&self.path).is_ok_and(|files| files == self.files)
    }

    /// Refuses to continue with a file that was removed or replaced, because other processes do not see the changes in
    /// this file.
    fn check_files(&self) -> Result<()> {
        match self.is_replaced() {
            true => Err(StoreError::Gone(format!("the spool {}", self.path.display()))),
            false => Ok(()),
        }
    }

    /// Returns whether the spool accepts any changes.
    pub(super) fn takes(&self) -> bool {
        self.bytes > 0
    }

    /// Returns true if no change waits.
    pub fn is_empty(&self) -> Result<bool> {
        self.check_files()?;
        Ok(self.is_noted_empty() || self.has_no_entry()?)
    }

    fn is_noted_empty(&self) -> bool {
        self.turn.byte().is_ok_and(|byte| byte == NOTHING_WAITS)
    }

    fn has_no_entry(&self) -> Result<bool> {
        let mut any = self.db.prepare_cached("SELECT 1 FROM entry LIMIT 1").map_err(unread)?;
        any.exists([]).map(|any| !any).map_err(unread)
    }

    /// Returns for each of these jobs whether a change of this job waits.
    pub(super) fn holds<'a>(&self, keys: impl Iterator<Item = &'a JobKey>) -> Result<Vec<bool>> {
        if self.is_empty()? {
            return Ok(keys.map(|_| false).collect());
        }
        let sql = "SELECT 1 FROM entry WHERE topic = ? AND id = ?";
        let mut query = self.db.prepare_cached(sql).map_err(unread)?;
        keys.map(|key| query.exists([key.topic.as_str(), key.id.as_str()]).map_err(unread)).collect()
    }

    /// Stores jobs on the disk, all or none of them. Returns the due time of each job, Unix milliseconds, by the host's
    /// clock.
    pub(super) fn put(&mut self, jobs: &[&NewJob]) -> Result<Vec<i64>> {
        self.check_disk(jobs.iter().map(|job| job.body.as_str().len()).sum())?;
        let now = HostMoment::now(&self.boot);
        self.write(|tx| {
            let mut insert = tx.prepare_cached(
                // If the earlier entry of the job was sent, the shard may have taken it. So the waiting time of the
                // earlier entry does not count for the new entry.
                "INSERT OR REPLACE INTO entry (topic, id, added_us, boot, boot_ms, body, due_ms, delay_ms, priority,
                 max_attempts, attempts, headers, since_boot, since_boot_ms)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12,
                  (SELECT ifnull(since_boot, boot) FROM entry WHERE topic = ?1 AND id = ?2 AND batch IS NULL),
                  (SELECT ifnull(since_boot_ms, boot_ms) FROM entry WHERE topic = ?1 AND id = ?2 AND batch IS NULL))",
            )?;
            for job in jobs {
                let (due_ms, delay_ms) = match job.due {
                    Due::At(ms) => (Some(ms), None),
                    Due::In(delay) => {
                        (None, Some(i64::try_from(delay.as_nanos().div_ceil(1_000_000)).unwrap_or(i64::MAX)))
                    }
                };
                insert.execute(params![
                    job.key.topic.as_str(),
                    job.key.id.as_str(),
                    now.unix_us,
                    now.boot,
                    now.boot_ms,
                    job.body.as_str(),
                    due_ms,
                    delay_ms,
                    job.priority.stored(),
                    job.max_attempts,
                    job.attempts,
                    job.headers.to_text(),
                ])?;
            }
            Ok(())
        })?;
        Ok(jobs.iter().map(|job| job.due.resolve(i128::from(now.unix_us) * 1000)).collect())
    }

    /// Deletes the jobs that have a waiting change. Returns for each job whether its waiting change would have stored
    /// the job. None: the job has no waiting change.
    pub(super) fn delete(&mut self, keys: &[&JobKey]) -> Result<Vec<Option<bool>>> {
        let now = HostMoment::now(&self.boot);
        self.write(|tx| {
            let mut find =
                tx.prepare_cached("SELECT body IS NOT NULL FROM entry WHERE topic = ? AND id = ?")?;
            let mut insert = tx.prepare_cached(
                // The shard may have taken the earlier add already, and the added job may be a dead letter now. The
                // deletion must remove this dead letter, too. So the waiting time of the earlier entry counts.
                "INSERT OR REPLACE INTO entry (topic, id, added_us, boot, boot_ms, since_boot, since_boot_ms)
                 VALUES (?1, ?2, ?3, ?4, ?5,
                  (SELECT ifnull(since_boot, boot) FROM entry WHERE topic = ?1 AND id = ?2),
                  (SELECT ifnull(since_boot_ms, boot_ms) FROM entry WHERE topic = ?1 AND id = ?2))",
            )?;
            let delete = |key: &&JobKey| {
                let (topic, id) = (key.topic.as_str(), key.id.as_str());
                let found: Option<bool> = find.query_row([topic, id], |r| r.get(0)).optional()?;
                if found == Some(true) {
                    insert.execute(params![topic, id, now.unix_us, now.boot, now.boot_ms])?;
                }
                Ok(found)
            };
            keys.iter().map(delete).collect()
        })
    }

    /// Returns what the waiting change of a job says about the job. None: the job has no waiting change.
    pub(super) fn get(&self, key: &JobKey) -> Result<Option<SpooledJob>> {
        if self.is_empty()? {
            return Ok(None);
        }
        let sql = format!("SELECT {COLUMNS} FROM entry WHERE topic = ? AND id = ?");
        let mut query = self.db.prepare_cached(&sql).map_err(unread)?;
        let now = HostMoment::now(&self.boot);
        let found = query
            .query_row([key.topic.as_str(), key.id.as_str()], |r| Ok((entry(r, &now)?, r.get("added_us")?)))
            .optional()
            .map_err(unread)?;
        let Some((entry, stamp_us)) = found else { return Ok(None) };
        let Some(job) = entry.job else { return Ok(Some(SpooledJob::Deleted)) };
        let due_ms = job.due.resolve(i128::from(now.unix_us) * 1000);
        let is_due = due_ms * 1000 <= now.unix_us;
        Ok(Some(SpooledJob::Job(Box::new(StoredJob {
            reserver: None,
            key: job.key,
            state: if is_due { State::Ready } else { State::Delayed },
            body: job.body,
            due_ms,
            until_ms: None,
            stamp_us,
            priority: job.priority,
            attempts: job.attempts,
            max_attempts: job.max_attempts,
            attempts_log: Vec::new(),
            headers: job.headers,
            is_spooled: true,
        }))))
    }

    fn write<T>(&mut self, work: impl FnOnce(&Transaction<'_>) -> rusqlite::Result<T>) -> Result<T> {
        let unavailable = |path: &Path, e: std::io::Error| {
            StoreError::Unavailable(format!("the spool {}: {e}", path.display()))
        };
        let turn = self.turn.take().map_err(|e| unavailable(&self.path, e))?;
        self.check_files()?;
        if self.is_noted_empty() {
            turn.set_byte(0).map_err(|e| unavailable(&self.path, e))?;
        }
        let transaction = || {
            let tx = self.db.transaction_with_behavior(TransactionBehavior::Immediate).map_err(refused)?;
            let out = work(&tx).map_err(refused)?;
            tx.commit().map_err(at_commit)?;
            Ok(out)
        };
        let out = transaction();
        let path = self.path.display();
        out.map_err(|e| match e {
            StoreError::Full(_) if self.has_full_disk() => {
                StoreError::SpoolFull(format!("{path}: its disk is full"))
            }
            StoreError::Full(_) => StoreError::SpoolFull(format!(
                "{path} has reached its limit of {} bytes (store.spool)",
                self.bytes
            )),
            StoreError::Unavailable(why) => StoreError::Unavailable(format!("the spool {path}: {why}")),
            StoreError::Unknown(why) => StoreError::Unknown(format!("the spool {path}: {why}")),
            other => other,
        })
    }
}

/// Returns device and inode of the spool's file, and of the file of its turn.
fn files_at(path: &Path) -> std::io::Result<[(u64, u64); 2]> {
    Ok([file_at(path)?, file_at(&beside(path, TURN))?])
}

/// The columns that `entry` reads.
const COLUMNS: &str =
    "seq, topic, id, added_us, boot, boot_ms, body, due_ms, delay_ms, priority, max_attempts, attempts, headers,
    ifnull(since_boot, boot) AS since_boot, ifnull(since_boot_ms, boot_ms) AS since_boot_ms";

fn entry(r: &Row<'_>, now: &HostMoment) -> rusqlite::Result<Entry> {
    let invalid = |e: model::job::InvalidJobPart| FromSqlConversionFailure(0, Type::Text, e.into());
    let key = JobKey {
        topic: TopicName::new(&r.get::<_, String>("topic")?).map_err(invalid)?,
        id: JobId::new(r.get::<_, String>("id")?).map_err(invalid)?,
    };
    let since_boot: String = r.get("since_boot")?;
    let since_ms = match since_boot == now.boot {
        true => r.get("since_boot_ms")?,
        false => now.boot_ms_at(r.get("added_us")?),
    };
    let Some(body) = r.get::<_, Option<String>>("body")? else {
        return Ok(Entry { seq: r.get("seq")?, key, job: None, since_ms });
    };
    let since = HostMoment { unix_us: 0, boot: r.get("boot")?, boot_ms: r.get("boot_ms")? };
    let due = match r.get("due_ms")? {
        Some(at_ms) => Due::At(at_ms),
        None => now.left_of(Duration::from_millis(r.get("delay_ms")?), &since),
    };
    let job = NewJob {
        key: key.clone(),
        body: Body::trusted(body),
        due,
        priority: JobPriority::from_stored(r.get("priority")?).unwrap_or_default(),
        on_conflict: OnConflict::Replace,
        max_attempts: r.get("max_attempts")?,
        attempts: r.get("attempts")?,
        headers: Headers::trusted(&r.get::<_, String>("headers")?),
        // The change is acknowledged already, so no quota applies to it.
        quota: None,
    };
    Ok(Entry { seq: r.get("seq")?, key, job: Some(job), since_ms })
}

/// Converts an error of a read. After such an error, dq cannot answer the request, because a change of the requested
/// job may wait in the spool.
fn unread(error: rusqlite::Error) -> StoreError {
    match refused(error) {
        StoreError::Unavailable(why) => StoreError::Unavailable(format!("the spool cannot be read: {why}")),
        other => other,
    }
}

fn connect(path: &Path, bytes: usize) -> std::result::Result<Connection, Box<dyn std::error::Error>> {
    let mut db = Connection::open(path)?;
    db.busy_timeout(BUSY)?;
    db.pragma_update(None, "journal_mode", "wal")?;
    db.pragma_update(None, "synchronous", "full")?;
    db.pragma_update(None, "journal_size_limit", LOG_BYTES as i64)?;
    // This limits the length of the file, in pages. The limit applies to this connection only, so each connection sets
    // the limit again.
    db.pragma_update(None, "max_page_count", (bytes / PAGE) as i64)?;
    runner::<SpoolMigrations>().run(&mut db)?;
    Ok(db)
}
