//! Leases the rows of jobs. Each function does the part of a transaction for one bounded batch, or for one job.

use std::time::Duration;

use rusqlite::{OptionalExtension, Row, params};

use super::flow::{self, ReadyTopics};
use super::row;
use super::write::WriteTransaction;
use crate::{HELD_MS, LEASE_BYTES, LeaseRequest, LeaseResult, LeasedJob, OwnerTag, Token};
use model::job::{Body, Due, JobKey, State, TopicName};

/// How many random bytes a token has. The number of the row comes before them.
const TOKEN_RANDOM: usize = 16;

/// Leases up to `limit` ready jobs, topic by topic.
pub(super) fn lease(
    w: &mut WriteTransaction<'_>,
    wanted: &[LeaseRequest],
    limit: usize,
    owner: Option<&OwnerTag>,
) -> rusqlite::Result<LeaseResult> {
    flow::set_circuits_back(w)?;
    let mut found = ReadyTopics::now(w.db, w.now_ms())?;
    let mut jobs = Vec::new();
    let mut bytes = LEASE_BYTES;
    for want in wanted {
        let room = limit - jobs.len();
        if room == 0 || bytes == 0 {
            break;
        }
        let Some((_, ready, probe)) = found.topics.iter_mut().find(|(t, ..)| *t == want.topic) else {
            continue;
        };
        let Some(tid) = w.topic(&want.topic)? else { continue };
        let deadline_ms = Due::In(want.hold).resolve(w.now_ns);
        let most = room.min(want.max as usize).min(if probe.is_some() { 1 } else { usize::MAX });
        let most = most.min(may_lease(w, tid, want)?);
        let (most, used) = fitting(w, tid, most, bytes)?;
        if most == 0 {
            continue;
        }
        bytes = bytes.saturating_sub(used);
        let mut batch = take(w, tid, want, most, owner, deadline_ms)?;
        if !batch.is_empty() {
            let count = batch.len() as i64;
            w.moved_many(tid, Some(State::Ready), Some((State::Leased, deadline_ms)), count);
            *ready = ready.saturating_sub(batch.len() as u64);
            if probe.is_some() {
                flow::probe(w, &want.topic, deadline_ms)?;
                batch.iter_mut().for_each(|job| job.probe = *probe);
                found.waiting.push((want.topic.clone(), want.hold));
            }
        }
        jobs.append(&mut batch);
    }
    let (left, waiting) = found.left();
    Ok(LeaseResult { jobs, left, waiting })
}

/// Returns how many more jobs of a topic may be leased.
fn may_lease(w: &WriteTransaction<'_>, tid: i64, want: &LeaseRequest) -> rusqlite::Result<usize> {
    let Some(most) = want.max_leased else { return Ok(usize::MAX) };
    let sql = "SELECT leased FROM topic WHERE tid = ?1";
    let leased: i64 = w.db.prepare_cached(sql)?.query_row([tid], |row| row.get(0))?;
    Ok(usize::try_from(i64::from(most) - leased).unwrap_or(0))
}

/// Returns how many of the next ready jobs of a topic may be leased: at most `most`, and at most `bytes` bytes of
/// bodies. The first job may be leased even if its body is longer. Also returns how many bytes the bodies have
/// together.
fn fitting(
    w: &WriteTransaction<'_>,
    tid: i64,
    most: usize,
    bytes: usize,
) -> rusqlite::Result<(usize, usize)> {
    let sql =
        "SELECT octet_length(body) FROM job WHERE tid = ?1 AND state = 2 ORDER BY priority, at_ms LIMIT ?2";
    let mut select = w.db.prepare_cached(sql)?;
    let mut lengths = select.query(params![tid, most as i64])?;
    let (mut count, mut used) = (0, 0);
    while let Some(row) = lengths.next()? {
        let length: usize = row.get(0)?;
        if count > 0 && used + length > bytes {
            break;
        }
        (count, used) = (count + 1, used + length);
    }
    Ok((count, used))
}

/// The beginning of a statement that leases rows. The condition that follows selects the rows. Parameters: deadline,
/// random bytes of the token, owner, limit of attempts.
macro_rules! lease_update {
    () => {
        "UPDATE job SET state = 3, at_ms = ?1, attempts = attempts + 1, token = randomblob(?2), owner = ?3,
                lease_limit = coalesce(max_attempts, ?4) "
    };
}

/// The columns that [`leased_row`] reads.
macro_rules! leased_columns {
    () => {
        "RETURNING id, body, token, attempts, due_ms, stamp_us, max_attempts, seq, priority, headers"
    };
}

fn leased_row(
    row: &Row<'_>,
    topic: &TopicName,
    leased_ms: i64,
    deadline_ms: i64,
) -> rusqlite::Result<LeasedJob> {
    let (seq, random): (i64, Vec<u8>) = (row.get(7)?, row.get(2)?);
    Ok(LeasedJob {
        key: JobKey { topic: topic.clone(), id: row::id(row, 0)? },
        body: Body::trusted(row.get::<_, String>(1)?),
        token: Token([&seq.to_be_bytes(), random.as_slice()].concat().into()),
        attempt: row.get(3)?,
        due_ms: row.get(4)?,
        stamp_us: row.get(5)?,
        leased_ms,
        deadline_ms,
        max_attempts: row.get(6)?,
        probe: None,
        headers: row::headers(row, 9, row.get(5)?)?,
    })
}

/// Leases one delayed or ready job. A job that is held back is not leased.
pub(super) fn lease_job(
    w: &mut WriteTransaction<'_>,
    key: &JobKey,
    hold: Duration,
    max_attempts: u32,
    owner: Option<&OwnerTag>,
) -> rusqlite::Result<Option<LeasedJob>> {
    let Some(tid) = w.topic(&key.topic)? else { return Ok(None) };
    let sql = "SELECT seq, state FROM job WHERE tid = ?1 AND id = ?2 AND state < 3 AND at_ms <> ?3";
    let found =
        w.db.prepare_cached(sql)?
            .query_row(params![tid, key.id.as_str(), HELD_MS], |row| Ok((row.get(0)?, row.get(1)?)))
            .optional()?;
    let Some((seq, state)): Option<(i64, i64)> = found else { return Ok(None) };
    let (now_ms, deadline_ms) = (w.now_ms(), Due::In(hold).resolve(w.now_ns));
    if state == State::Delayed as i64 {
        // The due time becomes the present time. So the job is ready, and not delayed, if the lease is handed back.
        let sql = "UPDATE job SET due_ms = ?2 WHERE seq = ?1";
        w.db.prepare_cached(sql)?.execute(params![seq, now_ms])?;
    }
    let sql = concat!(lease_update!(), "WHERE seq = ?5 ", leased_columns!());
    let owner = owner.map(|owner| owner.0.as_str());
    let leased =
        w.db.prepare_cached(sql)?
            .query_row(params![deadline_ms, TOKEN_RANDOM as i64, owner, max_attempts, seq], |row| {
                leased_row(row, &key.topic, now_ms, deadline_ms)
            })?;
    w.moved(tid, State::from_number(state), Some((State::Leased, deadline_ms)));
    Ok(Some(leased))
}

fn take(
    w: &mut WriteTransaction<'_>,
    tid: i64,
    want: &LeaseRequest,
    limit: usize,
    owner: Option<&OwnerTag>,
    deadline_ms: i64,
) -> rusqlite::Result<Vec<LeasedJob>> {
    let (db, now_ms) = (w.db, w.now_ms());
    let mut update = db.prepare_cached(concat!(
        lease_update!(),
        "WHERE seq IN (SELECT seq FROM job WHERE tid = ?6 AND state = 2 ORDER BY priority, at_ms LIMIT ?5) ",
        leased_columns!()
    ))?;
    let owner = owner.map(|o| o.0.as_str());
    let leased = |row: &Row<'_>| -> rusqlite::Result<((i64, i64, i64), LeasedJob)> {
        let job = leased_row(row, &want.topic, now_ms, deadline_ms)?;
        Ok(((row.get(8)?, job.due_ms, row.get(7)?), job))
    };
    let mut jobs = update
        .query_map(
            params![deadline_ms, TOKEN_RANDOM as i64, owner, want.max_attempts, limit as i64, tid],
            leased,
        )?
        .collect::<rusqlite::Result<Vec<_>>>()?;
    jobs.sort_by_key(|(order, _)| *order);
    for ((.., seq), job) in jobs.iter_mut().filter(|_| want.is_own_ttr) {
        let Some(ttr) = job.headers.ttr() else { continue };
        job.deadline_ms = Due::In(ttr).resolve(w.now_ns);
        db.prepare_cached("UPDATE job SET at_ms = ?2 WHERE seq = ?1")?.execute([*seq, job.deadline_ms])?;
        w.deadline(job.deadline_ms);
    }
    Ok(jobs.into_iter().map(|(_, job)| job).collect())
}
