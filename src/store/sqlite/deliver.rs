//! The steps of a job before and after its delivery: promote, settle, expire, hand back. (Leasing is in `lease_rows`.)
//! Each function works inside a transaction of its caller, on one job or on one batch of a bounded size.

use std::collections::BTreeMap;
use std::time::Duration;

use rusqlite::{OptionalExtension, Row, params};

use super::flow;
use super::records::{body_max, ended, ended_columns};
use super::write::WriteTransaction;
use super::{browse, row};
use crate::{OUTAGE, Outcome, OwnerTag, PromotionResult, Settled, Settlement, SpreadCounts};
use model::job::{ATTEMPTS_KEPT, Attempt, Due, FIRST_ATTEMPTS_KEPT, State, TopicName};
use model::job_priority::JobPriority;
use model::record::Ending;

/// How many attempts of a job do not count because the consumer died. Further attempts of this kind count, because
/// perhaps the job itself makes the consumers crash.
const CRASHES_FORGIVEN: u32 = 3;

/// Promotes up to `limit` due jobs. Each due topic gets an equal share, so that a topic with very many due jobs does
/// not delay the others. If a topic has fewer due jobs than its share, other topics with more due jobs use the rest of
/// this share. Among these, the topic with the earliest due time comes first. Jobs of the topics in `spread` that were
/// not promoted because of an outage get a later due time instead.
pub(super) fn promote(
    w: &mut WriteTransaction<'_>,
    limit: usize,
    spread: &[(TopicName, Duration)],
) -> rusqlite::Result<(PromotionResult, SpreadCounts)> {
    let now_ms = w.now_ms();
    let mut due =
        w.db.prepare_cached("SELECT tid, name FROM topic WHERE next_due_ms <= ?1 ORDER BY next_due_ms")?
            .query_map([now_ms], |row| Ok((row.get(0)?, row::topic_name(row, 1)?)))?
            .collect::<rusqlite::Result<Vec<(i64, TopicName)>>>()?;
    if due.len() > limit {
        // There are more topics than jobs to promote. So one half of the step is for the topics that have waited
        // longest. The other half is for the topics that became due last, because these topics have no backlog.
        due.drain(limit / 2..due.len() - limit.div_ceil(2));
    }
    let share = limit / due.len().max(1);
    let (mut left, mut spread_jobs) = (limit, BTreeMap::new());
    for is_last_round in [false, true] {
        let mut have_more = Vec::new();
        for (tid, name) in due {
            if left == 0 {
                break;
            }
            let most = if is_last_round { left } else { share };
            let span = spread.iter().find(|(topic, _)| *topic == name).map(|(_, span)| *span);
            let later = span.map_or(Ok(0), |span| spread_out(w, tid, span, most))?;
            if later > 0 {
                *spread_jobs.entry(name.clone()).or_default() += later;
            }
            let moved = later + promote_topic(w, tid, most - later)?;
            left -= moved;
            if moved == most {
                have_more.push((tid, name));
            }
        }
        due = have_more;
    }
    let result = PromotionResult { jobs: limit - left, next_ms: browse::next_due(w.db)? };
    Ok((result, spread_jobs.into_iter().collect()))
}

/// Promotes up to `limit` due jobs of one topic. Returns how many it promoted.
fn promote_topic(w: &mut WriteTransaction<'_>, tid: i64, limit: usize) -> rusqlite::Result<usize> {
    let now_ms = w.now_ms();
    let moved =
        w.db.prepare_cached(
            "UPDATE job SET state = 2 WHERE seq IN
             (SELECT seq FROM job WHERE tid = ?1 AND state = 1 AND at_ms <= ?2 ORDER BY at_ms LIMIT ?3)",
        )?
        .execute(params![tid, now_ms, limit as i64])?;
    if moved > 0 {
        w.moved_many(tid, Some(State::Delayed), Some((State::Ready, now_ms)), moved as i64);
    }
    w.db.prepare_cached(
        "UPDATE topic SET next_due_ms = (SELECT min(at_ms) FROM job WHERE tid = ?1 AND state = 1) WHERE tid = ?1",
    )?
    .execute([tid])?;
    Ok(moved)
}

/// Sets a new due time for up to `limit` jobs that have been due for more than `OUTAGE`. The new due times are random,
/// within `span` from now.
fn spread_out(w: &WriteTransaction<'_>, tid: i64, span: Duration, limit: usize) -> rusqlite::Result<usize> {
    let (now_ms, span_ms) = (w.now_ms(), (span.as_millis() as i64).max(1));
    let sql = "SELECT seq FROM job WHERE tid = ?1 AND state = 1 AND at_ms < ?2 ORDER BY at_ms LIMIT ?3";
    let forgotten =
        w.db.prepare_cached(sql)?
            .query_map(params![tid, now_ms - OUTAGE.as_millis() as i64, limit as i64], |row| row.get(0))?
            .collect::<rusqlite::Result<Vec<i64>>>()?;
    let mut update = w.db.prepare_cached("UPDATE job SET at_ms = ?2, due_ms = ?2 WHERE seq = ?1")?;
    for seq in &forgotten {
        update.execute(params![seq, now_ms + fastrand::i64(1..=span_ms)])?;
    }
    Ok(forgotten.len())
}

/// A row under a lease.
struct LeasedRow {
    seq: i64,
    tid: i64,
    attempts: u32,
    crashes: u32,
    limit: u32,
    replaced_due_ms: Option<i64>,
    due_ms: i64,
    log: Option<String>,
    deadline_ms: i64,
}

const HELD: &str = "seq, tid, attempts, crashes, lease_limit, replaced_due_ms, due_ms, attempts_log, at_ms";

fn held(row: &Row<'_>) -> rusqlite::Result<LeasedRow> {
    Ok(LeasedRow {
        seq: row.get(0)?,
        tid: row.get(1)?,
        attempts: row.get(2)?,
        crashes: row.get(3)?,
        limit: row.get::<_, Option<u32>>(4)?.unwrap_or(u32::MAX),
        replaced_due_ms: row.get(5)?,
        due_ms: row.get(6)?,
        log: row.get(7)?,
        deadline_ms: row.get(8)?,
    })
}

/// Settles one leased job.
pub(super) fn settle(w: &mut WriteTransaction<'_>, settlement: &Settlement) -> rusqlite::Result<Settled> {
    let Some((seq, token)) = settlement.token.0.split_first_chunk() else { return Ok(Settled::Stale) };
    let seq = i64::from_be_bytes(*seq);
    let Some(tid) = w.topic(&settlement.key.topic)? else { return Ok(Settled::Stale) };
    if settlement.outcome == Outcome::Ack {
        let (id, keeping) = (settlement.key.id.as_str(), w.keeping(tid)?);
        // This separate query costs less than a RETURNING clause in the deletion.
        let row = w
            .db
            .prepare_cached(concat!(
                "SELECT ",
                ended_columns!(),
                " FROM job WHERE seq = ?1 AND state = 3 AND token = ?3 AND replaced_due_ms IS NULL AND tid = ?4 AND id = ?5"
            ))?
            .query_row(params![seq, body_max(&keeping), token, tid, id], ended)
            .optional()?;
        if let Some(row) = row {
            w.delete_job(tid, seq, row.job_bytes)?;
            if keeping.is_on() || keeping.with_event || !row.then.is_empty() {
                w.record_row(tid, id, Ending::Delivered, row, settlement.attempt.as_ref())?;
            }
            w.moved(tid, Some(State::Leased), None);
            return Ok(Settled::Done);
        }
    }
    let found =
        w.db.prepare_cached(&format!(
            "SELECT {HELD} FROM job WHERE seq = ?1 AND state = 3 AND token = ?2 AND tid = ?3 AND id = ?4"
        ))?
        .query_row(params![seq, token, tid, settlement.key.id.as_str()], held)
        .optional()?;
    let Some(mut held) = found else { return Ok(Settled::Stale) };
    if let Some(due_ms) = held.replaced_due_ms {
        // The job was replaced while it was leased. `Extend` does nothing here, because it would make the replacement
        // wait. `Name` does nothing here, either. Any other outcome only ends the lease. The outcome is not recorded.
        if !matches!(settlement.outcome, Outcome::Extend(_) | Outcome::Name(_)) {
            end(w, &held, w.place(Due::At(due_ms)))?;
        }
        return Ok(Settled::Stale);
    }
    if let Some(attempt) = &settlement.attempt {
        held.log = Some(appended(held.log.take(), attempt));
    }
    match &settlement.outcome {
        Outcome::Ack => unreachable!("an ack of a lease that holds has deleted the row"),
        Outcome::Retry(due) => end(w, &held, w.place(*due))?,
        Outcome::RetryAs(due, priority) => {
            set_priority(w, &held, *priority)?;
            end(w, &held, w.place(*due))?;
        }
        Outcome::DeadLetter => end(w, &held, (State::Dead, w.now_ms()))?,
        Outcome::DeadLetterAs(priority) => {
            set_priority(w, &held, *priority)?;
            end(w, &held, (State::Dead, w.now_ms()))?;
        }
        Outcome::Extend(span) | Outcome::Later(span) => {
            let deadline_ms = Due::In(*span).resolve(w.now_ns);
            let is_later = matches!(settlement.outcome, Outcome::Later(_));
            let sql =
                "UPDATE job SET at_ms = ?2, owner = CASE WHEN ?3 THEN NULL ELSE owner END WHERE seq = ?1";
            w.db.prepare_cached(sql)?.execute(params![held.seq, deadline_ms, is_later])?;
            w.deadline(deadline_ms);
        }
        Outcome::Name(reserver) => {
            let sql = "UPDATE job SET reserver = ?2 WHERE seq = ?1 AND owner IS NULL";
            let text = format!("{} {}", held.attempts, reserver.to_text());
            w.db.prepare_cached(sql)?.execute(params![held.seq, text])?;
        }
        Outcome::HandBack => {
            flow::end_probe(w, held.tid, held.deadline_ms)?;
            held.attempts = held.attempts.saturating_sub(1);
            end(w, &held, (State::Ready, held.due_ms))?;
        }
        Outcome::Postpone(due) => {
            held.attempts = held.attempts.saturating_sub(1);
            end(w, &held, w.place(*due))?;
        }
    }
    Ok(Settled::Done)
}

fn set_priority(w: &WriteTransaction<'_>, held: &LeasedRow, priority: JobPriority) -> rusqlite::Result<()> {
    let sql = "UPDATE job SET priority = ?2 WHERE seq = ?1";
    w.db.prepare_cached(sql)?.execute(params![held.seq, priority.stored()]).map(drop)
}

/// Ends a lease: the row gets its new state, with the counts that `held` has now.
fn end(w: &mut WriteTransaction<'_>, held: &LeasedRow, (state, at_ms): (State, i64)) -> rusqlite::Result<()> {
    // A dead letter keeps the due time of its last attempt.
    let due_ms = if state == State::Dead { held.due_ms } else { at_ms };
    w.db.prepare_cached(
        "UPDATE job SET state = ?2, at_ms = ?3, due_ms = ?4, attempts = ?5, crashes = ?6, attempts_log = ?7,
                token = NULL, owner = NULL, lease_limit = NULL, replaced_due_ms = NULL, reserver = NULL
         WHERE seq = ?1",
    )?
    .execute(params![held.seq, state as i64, at_ms, due_ms, held.attempts, held.crashes, held.log])?;
    w.moved(held.tid, Some(State::Leased), Some((state, at_ms)));
    if state == State::Dead {
        let mut id = w.db.prepare_cached("SELECT id FROM job WHERE seq = ?1")?;
        let id: String = id.query_row([held.seq], |row| row.get(0))?;
        w.record((held.tid, held.seq), &id, Ending::Dead)?;
    }
    Ok(())
}

/// Returns the next state of a job after an attempt that counts, but has no result because the consumer died or the
/// lease expired. The job is ready again, or dead if its attempts are used up.
fn after_loss(w: &mut WriteTransaction<'_>, held: &LeasedRow) -> rusqlite::Result<(State, i64)> {
    if held.attempts < held.limit {
        return Ok((State::Ready, held.due_ms));
    }
    let mut name = w.db.prepare_cached("SELECT name FROM topic WHERE tid = ?1")?;
    w.dead_topics.push(name.query_row([held.tid], |r| row::topic_name(r, 0))?);
    Ok((State::Dead, w.now_ms()))
}

fn appended(log: Option<String>, attempt: &Attempt) -> String {
    let mut attempts = row::attempts_log(log);
    attempts.push(attempt.clone());
    let surplus = attempts.len().saturating_sub(ATTEMPTS_KEPT);
    if surplus > 0 {
        attempts.drain(FIRST_ATTEMPTS_KEPT..FIRST_ATTEMPTS_KEPT + surplus);
    }
    serde_json::to_string(&attempts).expect("attempts are plain values")
}

fn find(
    w: &WriteTransaction<'_>,
    which: &str,
    key: &dyn rusqlite::ToSql,
    limit: usize,
) -> rusqlite::Result<Vec<LeasedRow>> {
    w.db.prepare_cached(&format!("SELECT {HELD} FROM job WHERE state = 3 AND {which} LIMIT ?2"))?
        .query_map(params![key, limit as i64], held)?
        .collect()
}

/// Hands back up to `limit` leases of a process that died.
pub(super) fn hand_back(
    w: &mut WriteTransaction<'_>,
    owner: &OwnerTag,
    limit: usize,
) -> rusqlite::Result<usize> {
    flow::free(w, owner)?;
    let leases = find(w, "owner = ?1", &owner.0, limit)?;
    for mut held in leases.iter().map(|h| LeasedRow { log: h.log.clone(), ..*h }) {
        flow::end_probe(w, held.tid, held.deadline_ms)?;
        let to = match held.replaced_due_ms {
            Some(due_ms) => w.place(Due::At(due_ms)),
            None if held.crashes < CRASHES_FORGIVEN => {
                held.crashes += 1;
                held.attempts = held.attempts.saturating_sub(1);
                (State::Ready, held.due_ms)
            }
            None => {
                held.log = Some(lost(w, &mut held, "the consumer died"));
                after_loss(w, &held)?
            }
        };
        end(w, &held, to)?;
    }
    Ok(leases.len())
}

/// Ends up to `limit` expired leases.
pub(super) fn expire(w: &mut WriteTransaction<'_>, limit: usize) -> rusqlite::Result<PromotionResult> {
    let now_ms = w.now_ms();
    let leases = find(w, "at_ms <= ?1", &now_ms, limit)?;
    let jobs = leases.len();
    for mut held in leases {
        let to = match held.replaced_due_ms {
            Some(due_ms) => w.place(Due::At(due_ms)),
            None => {
                held.log = Some(lost(w, &mut held, "the lease ran out"));
                after_loss(w, &held)?
            }
        };
        end(w, &held, to)?;
    }
    let exact = "UPDATE shard SET next_deadline_ms = (SELECT min(at_ms) FROM job WHERE state = 3)
                 WHERE next_deadline_ms <= ?1";
    w.db.prepare_cached(exact)?.execute([now_ms])?;
    Ok(PromotionResult { jobs, next_ms: browse::next_deadline(w.db)? })
}

/// Returns the recorded attempts of a job, and after them the present attempt, which ended with `error`.
fn lost(w: &WriteTransaction<'_>, held: &mut LeasedRow, error: &str) -> String {
    let attempt = Attempt {
        number: held.attempts,
        at_ms: w.now_ms(),
        took_ms: 0,
        status: None,
        answer: String::new(),
        error: error.to_owned(),
        late: None,
    };
    appended(held.log.take(), &attempt)
}
