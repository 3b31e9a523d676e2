//! Permits and circuits, which make ready jobs wait. Each function does the part of a transaction for one topic.

use super::commit::CommitDurability;
use super::connect::refused;
use std::time::Duration;

use rusqlite::{Connection, OptionalExtension, Row, params};

use super::write::WriteTransaction;
use super::{SqliteStore, browse, change, row, write};
use crate::{
    CircuitOpening, CircuitState, CircuitView, CircuitWaits, FlowControl, LimitQuery, LimitUse, OwnerTag,
    PERMIT_HOLDS, Pauses, Permit, PermitRequest, ReadyCounts, Result,
};
use model::flow::TokenBucket;
use model::job::TopicName;

/// Grants permits of one topic or host.
pub(super) fn permit(
    w: &mut WriteTransaction<'_>,
    owner: &OwnerTag,
    ask: &PermitRequest,
) -> rusqlite::Result<Permit> {
    let (name, now_ms) = (ask.name.as_str(), w.now_ms());
    w.db.prepare_cached("DELETE FROM permit WHERE name = ?1 AND (owner = ?2 OR until_ms <= ?3)")?
        .execute(params![name, owner.0, now_ms])?;
    // If the clock was set back, permits of other processes would last too long. So every permit ends at the latest
    // `PERMIT_HOLDS` from now, like a permit that is granted now.
    let until_ms = now_ms + PERMIT_HOLDS.as_millis() as i64;
    w.db.prepare_cached("UPDATE permit SET until_ms = ?2 WHERE name = ?1 AND until_ms > ?2")?
        .execute(params![name, until_ms])?;
    let mut permit = Permit { granted: ask.want, again: None };
    if let Some(most) = ask.max_in_flight {
        let others: u32 =
            w.db.prepare_cached("SELECT ifnull(sum(held), 0) FROM permit WHERE name = ?1")?
                .query_row([name], |r| r.get(0))?;
        permit.granted = ask.want.min(most.saturating_sub(ask.held).saturating_sub(others));
    }
    if let Some(rate) = ask.rate {
        let spent_us: Option<f64> =
            w.db.prepare_cached("SELECT spent_us FROM rate WHERE name = ?1")?
                .query_row([name], |r| r.get(0))
                .optional()?;
        let now_us = (w.now_ns / 1000) as f64;
        let taken = TokenBucket::from(rate).take(spent_us.unwrap_or(0.0), now_us, ask.unused, permit.granted);
        w.db.prepare_cached("INSERT OR REPLACE INTO rate (name, spent_us) VALUES (?1, ?2)")?
            .execute(params![name, taken.spent_us])?;
        permit = Permit { granted: taken.granted, again: taken.again };
    }
    let held = ask.held + permit.granted;
    if ask.max_in_flight.is_some() && held > 0 {
        w.db.prepare_cached("INSERT INTO permit (name, owner, held, until_ms) VALUES (?1, ?2, ?3, ?4)")?
            .execute(params![name, owner.0, held, until_ms])?;
    }
    Ok(permit)
}

/// Returns how far the limits of a topic or host are used.
fn limit_use(db: &Connection, query: &LimitQuery, now_ms: i64) -> rusqlite::Result<LimitUse> {
    let name = query.name.as_str();
    let held = db
        .prepare_cached("SELECT ifnull(sum(held), 0) FROM permit WHERE name = ?1 AND until_ms > ?2")?
        .query_row(params![name, now_ms], |r| r.get(0))?;
    let spent_us: Option<f64> = db
        .prepare_cached("SELECT spent_us FROM rate WHERE name = ?1")?
        .query_row([name], |r| r.get(0))
        .optional()?;
    let wait = |rate| TokenBucket::from(rate).wait(spent_us.unwrap_or(0.0), now_ms as f64 * 1000.0);
    Ok(LimitUse { held, again: query.rate.and_then(wait) })
}

/// Frees the permits that a dead process held.
pub(super) fn free(w: &WriteTransaction<'_>, owner: &OwnerTag) -> rusqlite::Result<()> {
    w.db.prepare_cached("DELETE FROM permit WHERE owner = ?1")?.execute([&owner.0]).map(drop)
}

/// Returns whether the clock was set back after a circuit was written: the clock now shows an earlier time than the
/// time that was noted with the circuit.
pub(super) fn is_set_back(db: &Connection, now_ms: i64) -> rusqlite::Result<bool> {
    db.prepare_cached("SELECT EXISTS (SELECT 1 FROM circuit WHERE max(noted_ms, since_ms) > ?1)")?
        .query_row([now_ms], |r| r.get(0))
}

/// If the clock was set back, sets the moments of circuits back as well, so that no job waits longer than it should.
pub(super) fn set_circuits_back(w: &WriteTransaction<'_>) -> rusqlite::Result<()> {
    w.db.prepare_cached(
        "UPDATE circuit SET until_ms = max(0, until_ms - (max(noted_ms, since_ms) - ?1)),
                probe_ms = max(0, probe_ms - (max(noted_ms, since_ms) - ?1)), since_ms = min(since_ms, ?1), noted_ms = ?1
         WHERE max(noted_ms, since_ms) > ?1",
    )?
    .execute([w.now_ms()])
    .map(drop)
}

/// Opens the circuit of a topic, so that its jobs wait. Returns whether it was closed before.
pub(super) fn open(w: &mut WriteTransaction<'_>, opening: &CircuitOpening) -> rusqlite::Result<bool> {
    set_circuits_back(w)?;
    let (name, now_ms) = (opening.topic.as_str(), w.now_ms());
    let known: Option<(i64, i64, u32, String)> =
        w.db.prepare_cached("SELECT until_ms, probe_ms, opens, reason FROM circuit WHERE name = ?1")?
            .query_row([name], |r| Ok((r.get(0)?, r.get(1)?, r.get(2)?, r.get(3)?)))
            .optional()?;
    // A pause of zero means: the probe had no result, so the next job may be let through.
    let again = opening.pause.is_zero();
    let reason = match &known {
        None if again => return Ok(false),
        None => &opening.reason,
        // Several processes may see the same failure, and each may ask to open the circuit. The first of these calls
        // opens it. While a probe is in flight, only the result of the probe may open the circuit again.
        Some((until_ms, _, opens, _)) if *until_ms > now_ms && *opens >= opening.opens => return Ok(false),
        Some((_, probe_ms, ..)) if opening.opens == 1 && *probe_ms > now_ms && !again => return Ok(false),
        Some((.., reason)) if again => reason,
        Some(_) => &opening.reason,
    };
    let until_ms = now_ms.saturating_add(opening.pause.as_millis() as i64);
    w.db.prepare_cached(
        "INSERT INTO circuit (name, until_ms, probe_ms, opens, since_ms, reason, noted_ms) VALUES (?1, ?2, 0, ?3, ?4, ?5, ?4)
         ON CONFLICT DO UPDATE SET until_ms = ?2, probe_ms = 0, opens = ?3, reason = ?5, noted_ms = ?4",
    )?
    .execute(params![name, until_ms, opening.opens, now_ms, reason])?;
    Ok(known.is_none())
}

/// Closes the circuit of a topic, so that its jobs no longer wait. Returns whether it was not closed before.
pub(super) fn close(w: &mut WriteTransaction<'_>, topic: &TopicName) -> rusqlite::Result<bool> {
    let closed = w.db.prepare_cached("DELETE FROM circuit WHERE name = ?1")?.execute([topic.as_str()])? > 0;
    if closed {
        w.ring_push();
    }
    Ok(closed)
}

/// Returns the circuits that are not closed.
pub(super) fn circuits(db: &Connection, now_ms: i64) -> rusqlite::Result<Vec<CircuitView>> {
    let view = |r: &Row<'_>| {
        let until_ms = r.get(1)?;
        let state = if until_ms > now_ms { CircuitState::Open } else { CircuitState::HalfOpen };
        let (opens, since_ms, reason) = (r.get(2)?, r.get(3)?, r.get(4)?);
        Ok(CircuitView { topic: row::topic_name(r, 0)?, state, until_ms, opens, since_ms, reason })
    };
    db.prepare_cached("SELECT name, until_ms, opens, since_ms, reason FROM circuit ORDER BY name")?
        .query_map([], view)?
        .collect()
}

/// The topics that are not paused and have ready jobs, as a lease finds them.
#[derive(Debug, Default)]
pub(super) struct ReadyTopics {
    /// The topics with jobs that may be leased, with the number of ready jobs. If the circuit lets only one job
    /// through, the number is 1, and the last value is how often the circuit was opened in a row.
    pub topics: Vec<(TopicName, u64, Option<u32>)>,
    /// The topics with jobs that may not be leased because of the circuit, and for how long.
    pub waiting: CircuitWaits,
}

impl ReadyTopics {
    /// Reads the topics as they are now.
    pub(super) fn now(db: &Connection, now_ms: i64) -> rusqlite::Result<ReadyTopics> {
        let mut find = db.prepare_cached(
            "SELECT topic.name, ready, max(until_ms, probe_ms), opens FROM topic
             LEFT JOIN circuit ON circuit.name = topic.name
             WHERE ready > 0 AND topic.name NOT IN (SELECT name FROM pause)",
        )?;
        let mut rows = find.query([])?;
        let mut found = ReadyTopics::default();
        while let Some(r) = rows.next()? {
            let (topic, opens) = (row::topic_name(r, 0)?, r.get(3)?);
            match r.get::<_, Option<i64>>(2)?.map(|until_ms| until_ms - now_ms) {
                Some(left @ 1..) => found.waiting.push((topic, Duration::from_millis(left as u64))),
                Some(_) => found.topics.push((topic, 1, opens)),
                None => found.topics.push((topic, r.get::<_, i64>(1)? as u64, None)),
            }
        }
        Ok(found)
    }

    /// Returns the topics with jobs that may still be leased, with the number of these jobs. Also returns `waiting`.
    pub(super) fn left(self) -> (ReadyCounts, CircuitWaits) {
        let left = self.topics.into_iter().filter(|(_, ready, _)| *ready > 0);
        (left.map(|(topic, ready, _)| (topic, ready)).collect(), self.waiting)
    }
}

/// Notes that a job of a topic was let through as a probe. The next job may be let through when the lease of this job
/// has ended.
pub(super) fn probe(w: &WriteTransaction<'_>, topic: &TopicName, deadline_ms: i64) -> rusqlite::Result<()> {
    w.db.prepare_cached("UPDATE circuit SET probe_ms = ?2, noted_ms = ?3 WHERE name = ?1")?
        .execute(params![topic.as_str(), deadline_ms, w.now_ms()])
        .map(drop)
}

/// Lets the next job of a topic through if the lease that ends at this moment was the lease of its probe. Call it when
/// such a lease ends and the probe has no result.
pub(super) fn end_probe(w: &WriteTransaction<'_>, tid: i64, deadline_ms: i64) -> rusqlite::Result<()> {
    let sql = "UPDATE circuit SET probe_ms = 0, noted_ms = ?3
               WHERE probe_ms = ?2 AND name = (SELECT name FROM topic WHERE tid = ?1)";
    w.db.prepare_cached(sql)?.execute(params![tid, deadline_ms, w.now_ms()]).map(drop)
}

impl Pauses for SqliteStore {
    fn pause(&mut self, topic: &TopicName, paused: bool) -> Result<()> {
        self.write(CommitDurability::Full, |w| change::pause(w, topic, paused))
    }

    fn paused(&mut self) -> Result<Vec<TopicName>> {
        browse::paused(&self.db).map_err(refused)
    }
}

impl FlowControl for SqliteStore {
    fn permits(&mut self, owner: &OwnerTag, asks: &[PermitRequest]) -> Vec<Result<Permit>> {
        self.in_chunks(CommitDurability::Normal, asks, |w, ask| permit(w, owner, ask))
    }

    fn limit_use(&mut self, queries: &[LimitQuery]) -> Vec<Result<LimitUse>> {
        let now_ms = write::now_ms();
        queries.iter().map(|query| limit_use(&self.db, query, now_ms).map_err(refused)).collect()
    }

    fn open_circuit(&mut self, opening: &CircuitOpening) -> Result<bool> {
        self.write(CommitDurability::Normal, |w| open(w, opening))
    }

    fn close_circuit(&mut self, topic: &TopicName) -> Result<bool> {
        self.write(CommitDurability::Normal, |w| close(w, topic))
    }

    fn circuits(&mut self) -> Result<Vec<CircuitView>> {
        circuits(&self.db, write::now_ms()).map_err(refused)
    }
}
