//! A write transaction. The transaction counts what it changes. At its end, it writes the counts and the next due
//! times, and decides which bells to ring.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rusqlite::{Connection, OptionalExtension, params};

use super::bell::PendingRings;
use super::browse;
use super::pending_records::{PendingRecords, RecordBudget};
use model::job::{Due, State, TopicName};

/// The states in which a job is pending.
const PENDING: [State; 3] = [State::Delayed, State::Ready, State::Leased];

/// The numbers of the topics, by name.
pub(super) type TopicRowIds = HashMap<TopicName, i64>;

/// What is added to the counts of a topic.
#[derive(Debug, Default, PartialEq, Eq)]
struct CountsDelta {
    /// The numbers of jobs, by state.
    jobs: [i64; 4],
    /// The bytes of all jobs.
    bytes: i64,
}

/// The work of one transaction.
pub(super) struct WriteTransaction<'c> {
    /// The connection, inside the transaction.
    pub db: &'c Connection,
    /// The shard's clock when the transaction began, Unix nanoseconds.
    pub now_ns: i128,
    /// The topics that the handle knew before the transaction.
    known: &'c TopicRowIds,
    /// The topics that this transaction has looked up for the first time. These topics become known when the
    /// transaction is committed.
    pub met: TopicRowIds,
    deltas: BTreeMap<i64, CountsDelta>,
    due: BTreeMap<i64, i64>,
    deadline_ms: Option<i64>,
    rings: PendingRings,
    /// The topics of dead letters that come from leases that expired or were handed back, one entry for each dead
    /// letter.
    pub dead_topics: Vec<TopicName>,
    /// The records that this transaction has written.
    pub records: PendingRecords,
    /// What the handle knows about the bytes of all records. After the commit, the handle keeps the new value.
    pub record_budget: RecordBudget,
}

/// Returns the present time of the embedded store's shard, by the clock of this host. Unix nanoseconds.
pub(super) fn now_ns() -> i128 {
    // A clock before 1970 counts as 1970.
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_nanos() as i128)
}

/// Returns the present time as [`now_ns`] does, in Unix milliseconds, rounded down.
pub(super) fn now_ms() -> i64 {
    (now_ns() / 1_000_000) as i64
}

impl<'c> WriteTransaction<'c> {
    pub(super) fn begin(
        db: &'c Connection,
        known: &'c TopicRowIds,
        record_budget: RecordBudget,
    ) -> WriteTransaction<'c> {
        WriteTransaction {
            db,
            now_ns: now_ns(),
            known,
            met: TopicRowIds::new(),
            deltas: BTreeMap::new(),
            due: BTreeMap::new(),
            deadline_ms: None,
            rings: PendingRings::default(),
            dead_topics: Vec::new(),
            records: PendingRecords::default(),
            record_budget,
        }
    }

    /// Returns the time when the transaction began, rounded down to whole milliseconds. Promotion and expiry compare
    /// due times and deadlines with this time.
    pub(super) fn now_ms(&self) -> i64 {
        (self.now_ns / 1_000_000) as i64
    }

    /// Returns the state and the `at_ms` of a job with that due time. The job is ready if it is due now.
    pub(super) fn place(&self, due: Due) -> (State, i64) {
        let now_ms = self.now_ms();
        let at_ms = if due == Due::In(Duration::ZERO) { now_ms } else { due.resolve(self.now_ns) };
        (if at_ms <= now_ms { State::Ready } else { State::Delayed }, at_ms)
    }

    /// Returns the state and the `at_ms` of a job that a client adds or changes. A due time in the past means now. So
    /// the lateness and the age of the oldest ready job count from the add or the change, and not from the past due
    /// time.
    pub(super) fn place_from_now(&self, due: Due) -> (State, i64) {
        let (state, at_ms) = self.place(due);
        (state, at_ms.max(self.now_ms()))
    }

    /// Returns the number of a topic. None: the topic never had a job.
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

    /// Returns the number of a topic. A new topic gets one now.
    pub(super) fn topic_or_new(&mut self, name: &TopicName) -> rusqlite::Result<i64> {
        if let Some(tid) = self.topic(name)? {
            return Ok(tid);
        }
        self.db.prepare_cached("INSERT INTO topic (name) VALUES (?1)")?.execute([name.as_str()])?;
        let tid = self.db.last_insert_rowid();
        self.met.insert(name.clone(), tid);
        Ok(tid)
    }

    /// Returns how many pending jobs of a topic this transaction has added and not written to the counts yet.
    pub(super) fn new_pending(&self, tid: i64) -> i64 {
        self.deltas
            .get(&tid)
            .map_or(0, |delta| PENDING.iter().map(|state| delta.jobs[*state as usize - 1]).sum())
    }

    /// Returns how many bytes of jobs this transaction has added to a topic and not written to the counts yet.
    pub(super) fn new_bytes(&self, tid: i64) -> i64 {
        self.deltas.get(&tid).map_or(0, |delta| delta.bytes)
    }

    /// Notes that the jobs of a topic have `bytes` more bytes (less, if negative).
    pub(super) fn grown(&mut self, tid: i64, bytes: i64) {
        self.deltas.entry(tid).or_default().bytes += bytes;
    }

    /// Notes that a job was made (`from` is None), changed its state, or was removed (`to` is None).
    pub(super) fn moved(&mut self, tid: i64, from: Option<State>, to: Option<(State, i64)>) {
        self.moved_many(tid, from, to, 1);
    }

    /// Notes that `count` jobs changed their state. If they are delayed or leased now, `to` has their earliest `at_ms`.
    pub(super) fn moved_many(&mut self, tid: i64, from: Option<State>, to: Option<(State, i64)>, count: i64) {
        let delta = &mut self.deltas.entry(tid).or_default().jobs;
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

    /// Makes the commit ring the bell of the timer, because there may be work.
    pub(super) fn ring_timer(&mut self) {
        self.rings.timer = true;
    }

    /// Makes the commit ring the bells of the consumers, because there may be work.
    pub(super) fn ring_push(&mut self) {
        self.rings.push = true;
    }

    /// Notes that a lease ends at that moment.
    pub(super) fn deadline(&mut self, at_ms: i64) {
        self.deadline_ms = Some(self.deadline_ms.map_or(at_ms, |d| d.min(at_ms)));
    }

    /// Writes the counts, the next due times of the topics and the next deadline of a lease. Returns the bells to ring
    /// after the commit.
    pub(super) fn finish(&mut self) -> rusqlite::Result<PendingRings> {
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
        self.finish_records()?;
        Ok(self.rings)
    }

    /// Writes the counts. A later step of the same transaction then finds the jobs that the transaction has made ready.
    pub(super) fn write_counts(&mut self) -> rusqlite::Result<()> {
        let mut count = self.db.prepare_cached(
            "UPDATE topic SET delayed = delayed + ?2, ready = ready + ?3, leased = leased + ?4, dead = dead + ?5,
                              bytes = bytes + ?6
             WHERE tid = ?1",
        )?;
        for (tid, delta) in &std::mem::take(&mut self.deltas) {
            if *delta != CountsDelta::default() {
                let CountsDelta { jobs: [delayed, ready, leased, dead], bytes } = delta;
                count.execute(params![tid, delayed, ready, leased, dead, bytes])?;
            }
        }
        Ok(())
    }
}
