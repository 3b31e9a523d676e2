//! The bytes of jobs. A topic's row has their sum, so each write that changes the bytes of a job also counts the
//! change, and each deletion of jobs goes through this file.

use rusqlite::Params;

use super::write::WriteTransaction;
use model::job::{Body, JobId};

/// The SQL expression for the bytes of a row of `job`.
macro_rules! job_bytes {
    () => {
        "(octet_length(id) + octet_length(body) + coalesce(octet_length(headers), 0))"
    };
}
pub(super) use job_bytes;

/// Selects the dead letters of an id, for [`WriteTransaction::delete_jobs`]. Parameters: topic, id.
pub(super) const DEAD_LETTERS_OF_ID: &str = "tid = ?1 AND id = ?2 AND state = 4";

/// Selects one job, for [`WriteTransaction::delete_jobs`]. Parameter: its row.
pub(super) const ONE_JOB: &str = "seq = ?1";

/// Returns the bytes of a job with these values, as [`job_bytes`] counts them.
pub(super) fn size(id: &JobId, body: &Body, headers: Option<&str>) -> i64 {
    (id.as_str().len() + body.as_str().len() + headers.map_or(0, str::len)) as i64
}

impl WriteTransaction<'_> {
    /// Returns the bytes of a job.
    fn job_bytes(&self, seq: i64) -> rusqlite::Result<i64> {
        self.db
            .prepare_cached(concat!("SELECT ", job_bytes!(), " FROM job WHERE seq = ?1"))?
            .query_row([seq], |row| row.get(0))
    }

    /// Deletes a job whose bytes the caller has already read.
    pub(super) fn delete_job(&mut self, tid: i64, seq: i64, bytes: i64) -> rusqlite::Result<()> {
        self.db.prepare_cached("DELETE FROM job WHERE seq = ?1")?.execute([seq])?;
        self.grown(tid, -bytes);
        Ok(())
    }

    /// Deletes the jobs of a topic that the SQL condition `which` selects. Returns how many jobs it deleted.
    pub(super) fn delete_jobs(
        &mut self,
        tid: i64,
        which: &str,
        parameters: impl Params + Copy,
    ) -> rusqlite::Result<usize> {
        let sum = format!(concat!("SELECT coalesce(sum(", job_bytes!(), "), 0) FROM job WHERE {}"), which);
        let bytes: i64 = self.db.prepare_cached(&sum)?.query_row(parameters, |row| row.get(0))?;
        let gone = self.db.prepare_cached(&format!("DELETE FROM job WHERE {which}"))?.execute(parameters)?;
        self.grown(tid, -bytes);
        Ok(gone)
    }

    /// Runs `change`, which changes a job, and counts the difference in bytes.
    pub(super) fn resize(
        &mut self,
        (tid, seq): (i64, i64),
        change: impl FnOnce(&mut Self) -> rusqlite::Result<()>,
    ) -> rusqlite::Result<()> {
        let before = self.job_bytes(seq)?;
        change(self)?;
        let after = self.job_bytes(seq)?;
        self.grown(tid, after - before);
        Ok(())
    }
}
