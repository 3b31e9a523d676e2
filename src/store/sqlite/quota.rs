//! The limits that apply to an add or a change. The transaction of the add or the change checks them, so they are
//! exact.

use rusqlite::{OptionalExtension, params};

use super::job_bytes::{self, job_bytes};
use super::row;
use super::write::WriteTransaction;
use crate::Change;
use model::job::{JobId, NewJob, OnConflict};
use model::quota::{OverQuota, Quota, QuotaLimit};

/// What a topic holds.
struct TopicUsage {
    /// Jobs that are delayed, ready or leased.
    pending: i64,
    /// The bytes of all jobs, dead letters included.
    bytes: i64,
}

fn held(w: &WriteTransaction<'_>, tid: i64) -> rusqlite::Result<TopicUsage> {
    let sum = "SELECT delayed + ready + leased, bytes FROM topic WHERE tid = ?1";
    let read = |r: &rusqlite::Row<'_>| Ok(TopicUsage { pending: r.get(0)?, bytes: r.get(1)? });
    let held = w.db.prepare_cached(sum)?.query_row([tid], read)?;
    Ok(TopicUsage { pending: held.pending + w.new_pending(tid), bytes: held.bytes + w.new_bytes(tid) })
}

/// Returns the bytes of the live job with that id. None: there is no such job.
fn size_of(w: &WriteTransaction<'_>, tid: i64, id: &JobId) -> rusqlite::Result<Option<i64>> {
    let size = concat!("SELECT ", job_bytes!(), " FROM job WHERE tid = ?1 AND id = ?2 AND state < 4");
    w.db.prepare_cached(size)?.query_row(params![tid, id.as_str()], |r| r.get(0)).optional()
}

/// Returns whether a job is too big. The job would change from `old` to `size` bytes, and the jobs of its topic have
/// `bytes` bytes now. It is too big if the topic would then have more than `max_bytes`. A job may always get smaller.
fn is_too_big(max_bytes: Option<u64>, bytes: i64, old: i64, size: i64) -> bool {
    let most = |max: u64| i64::try_from(max).unwrap_or(i64::MAX);
    size > old && max_bytes.is_some_and(|max| bytes + size - old > most(max))
}

/// Checks the limits of an add, and counts the add for the rates.
pub(super) fn check_add(
    w: &WriteTransaction<'_>,
    tid: i64,
    job: &NewJob,
    quota: &Quota,
) -> rusqlite::Result<Result<(), OverQuota>> {
    if quota.max_pending.is_some() || quota.max_bytes.is_some() {
        let (held, old) = (held(w, tid)?, size_of(w, tid, &job.key.id)?);
        let headers = row::headers_text(&job.headers, (w.now_ns / 1000) as i64);
        let size = job_bytes::size(&job.key.id, &job.body, headers.as_deref());
        let is_stored = old.is_none() || job.on_conflict == OnConflict::Replace;
        if old.is_none() && quota.max_pending.is_some_and(|max| held.pending >= i64::from(max)) {
            return Ok(Err(OverQuota::full(QuotaLimit::Pending)));
        }
        if is_stored && is_too_big(quota.max_bytes, held.bytes, old.unwrap_or(0), size) {
            return Ok(Err(OverQuota::full(QuotaLimit::Bytes)));
        }
    }
    let now_us = (w.now_ns / 1000) as f64;
    let mut taken = Vec::new();
    for rate in &quota.rates {
        let spent = "SELECT spent_us FROM rate WHERE name = ?1";
        let spent: Option<f64> =
            w.db.prepare_cached(spent)?.query_row([&rate.name], |r| r.get(0)).optional()?;
        let steps = rate.steps(1);
        let took = steps.take(spent.unwrap_or(0.0), now_us, 0, 1);
        if took.granted == 0 {
            let full = f64::from(steps.burst) * steps.step_us;
            return Ok(Err(OverQuota::too_fast(rate.limit, took.spent_us + steps.step_us - now_us - full)));
        }
        taken.push((&rate.name, took.spent_us));
    }
    for (name, spent_us) in taken {
        w.db.prepare_cached("INSERT OR REPLACE INTO rate (name, spent_us) VALUES (?1, ?2)")?
            .execute(params![name, spent_us])?;
    }
    Ok(Ok(()))
}

/// Returns whether a job may get the body and the headers of a change.
pub(super) fn allows_change(
    w: &WriteTransaction<'_>,
    seq: i64,
    tid: i64,
    change: &Change,
) -> rusqlite::Result<bool> {
    let is_sized = change.body.is_some() || change.has_headers();
    let max = change.max_bytes.filter(|_| is_sized);
    if max.is_none() {
        return Ok(true);
    }
    let old = "SELECT octet_length(body), coalesce(octet_length(headers), 0), stamp_us, headers FROM job WHERE seq = ?1";
    let parts = |r: &rusqlite::Row<'_>| {
        Ok((r.get::<_, i64>(0)?, r.get::<_, i64>(1)?, r.get(2)?, row::headers(r, 3, r.get(2)?)?))
    };
    let (body, headers, stamp_us, old) = w.db.prepare_cached(old)?.query_row([seq], parts)?;
    let new_body = change.body.as_ref().map_or(body, |new| new.as_str().len() as i64);
    let new_headers = change
        .headers_after(old)
        .map_or(headers, |new| row::headers_text(&new, stamp_us).map_or(0, |text| text.len() as i64));
    Ok(!is_too_big(max, held(w, tid)?.bytes, body + headers, new_body + new_headers))
}
