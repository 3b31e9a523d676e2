//! A write transaction: what it changes is counted as it goes, and the counts, the next due times and the bells follow
//! from that when it ends.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rusqlite::{Connection, OptionalExtension, params};

use super::bell::Rings;
use super::browse;
use crate::job::{Due, State, TopicName};

/// The numbers of the topics, by name.
pub(super) type TopicIds = HashMap<TopicName, i64>;

/// The work of one transaction.
pub(super) struct Write<'c> {
    /// The connection, inside the transaction.
    pub db: &'c Connection,
    /// The shard's clock when the transaction began, Unix nanoseconds.
    pub now_ns: i128,
    /// The topics known before the transaction.
    known: &'c TopicIds,
    /// The topics that it met first; they become known when it is committed.
    pub met: TopicIds,
    deltas: BTreeMap<i64, [i64; 4]>,
    due: BTreeMap<i64, i64>,
    deadline_ms: Option<i64>,
    rings: Rings,
    /// The topics of leases that came to nothing and whose jobs are dead letters now, one for each.
    pub buried: Vec<TopicName>,
}

/// The clock of the embedded store's shard: this host's. Unix nanoseconds.
pub(super) fn now_ns() -> i128 {
    // A clock before 1970 is taken for 1970.
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_nanos() as i128)
}

/// The same, cut down to whole milliseconds.
pub(super) fn now_ms() -> i64 {
    (now_ns() / 1_000_000) as i64
}

impl<'c> Write<'c> {
    pub(super) fn begin(db: &'c Connection, known: &'c TopicIds) -> Write<'c> {
        Write {
            db,
            now_ns: now_ns(),
            known,
            met: TopicIds::new(),
            deltas: BTreeMap::new(),
            due: BTreeMap::new(),
            deadline_ms: None,
            rings: Rings::default(),
            buried: Vec::new(),
        }
    }

    /// The clock, cut down to whole milliseconds: what promotion and expiry compare with.
    pub(super) fn now_ms(&self) -> i64 {
        (self.now_ns / 1_000_000) as i64
    }

    /// The state and moment of a job that is due then: ready when that is now.
    pub(super) fn place(&self, due: Due) -> (State, i64) {
        let now_ms = self.now_ms();
        let at_ms = if due == Due::In(Duration::ZERO) { now_ms } else { due.resolve(self.now_ns) };
        (if at_ms <= now_ms { State::Ready } else { State::Delayed }, at_ms)
    }

    /// The number of a topic that has been seen.
    pub(super) fn topic(&mut self, name: &TopicName) -> rusqlite::Result<Option<i64>> {
        if let Some(tid) = self.known.get(name).or(self.met.get(name)) {
            return Ok(Some(*tid));
        }
        let mut find = self.db.prepare_cached("SELECT tid FROM topic WHERE name = ?1")?;
        let tid = find.query_row([name.as_str()], |row| row.get(0)).optional()?;
        if let Some(tid) = tid {
            self.met.insert(name.clone(), tid);
        }
        Ok(tid)
    }

    /// The number of a topic, given out now if it is new.
    pub(super) fn topic_or_new(&mut self, name: &TopicName) -> rusqlite::Result<i64> {
        if let Some(tid) = self.topic(name)? {
            return Ok(tid);
        }
        self.db.prepare_cached("INSERT INTO topic (name) VALUES (?1)")?.execute([name.as_str()])?;
        let tid = self.db.last_insert_rowid();
        self.met.insert(name.clone(), tid);
        Ok(tid)
    }

    /// Notes that a job came into being (`from` none), moved, or went (`to` none).
    pub(super) fn moved(&mut self, tid: i64, from: Option<State>, to: Option<(State, i64)>) {
        self.moved_many(tid, from, to, 1);
    }

    /// Notes that `count` jobs moved; for those that are delayed or leased now, the earliest moment of them.
    pub(super) fn moved_many(&mut self, tid: i64, from: Option<State>, to: Option<(State, i64)>, count: i64) {
        let delta = self.deltas.entry(tid).or_default();
        if let Some(from) = from {
            delta[from as usize - 1] -= count;
        }
        let Some((to, at_ms)) = to else { return };
        delta[to as usize - 1] += count;
        match to {
            State::Delayed => {
                let due = self.due.entry(tid).or_insert(at_ms);
                *due = at_ms.min(*due);
            }
            State::Ready => self.rings.push = true,
            State::Leased => self.deadline(at_ms),
            State::Dead => {}
        }
    }

    /// Rings for work that there may be.
    pub(super) fn ring_push(&mut self) {
        self.rings.push = true;
    }

    /// Notes that a lease ends then.
    pub(super) fn deadline(&mut self, at_ms: i64) {
        self.deadline_ms = Some(self.deadline_ms.map_or(at_ms, |d| d.min(at_ms)));
    }

    /// Writes counts and next moments. Gives the bells to ring after the commit.
    pub(super) fn finish(&mut self) -> rusqlite::Result<Rings> {
        if let Some(earliest) = self.due.values().min() {
            let known = browse::next_due(self.db)?;
            self.rings.timer |= known.is_none_or(|k| *earliest < k);
            let mut lower = self.db.prepare_cached(
                "UPDATE topic SET next_due_ms = ?2 WHERE tid = ?1 AND (next_due_ms IS NULL OR next_due_ms > ?2)",
            )?;
            for (tid, due_ms) in &self.due {
                lower.execute(params![tid, due_ms])?;
            }
        }
        if let Some(deadline_ms) = self.deadline_ms {
            let mut lower = self.db.prepare_cached(
                "UPDATE shard SET next_deadline_ms = ?1 WHERE next_deadline_ms IS NULL OR next_deadline_ms > ?1",
            )?;
            self.rings.timer |= lower.execute([deadline_ms])? > 0;
        }
        self.write_counts()?;
        Ok(self.rings)
    }

    /// Writes the counts, so that what has been made ready so far is found in the same transaction.
    pub(super) fn write_counts(&mut self) -> rusqlite::Result<()> {
        let mut count = self.db.prepare_cached(
            "UPDATE topic SET delayed = delayed + ?2, ready = ready + ?3, leased = leased + ?4, dead = dead + ?5
             WHERE tid = ?1",
        )?;
        for (tid, [delayed, ready, leased, dead]) in &std::mem::take(&mut self.deltas) {
            if [delayed, ready, leased, dead] != [&0; 4] {
                count.execute(params![tid, delayed, ready, leased, dead])?;
            }
        }
        Ok(())
    }
}
