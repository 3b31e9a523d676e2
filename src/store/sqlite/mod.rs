//! The embedded store: one SQLite file in WAL mode that all processes of a host open. One shard, one clock: the host's.
//!
//! Every change is one transaction, taken in turn with the other processes (`turn`). Adds, deletes and changes are on
//! the disk before they are answered; promotions, leases and settlements are there after the next of those, so that a
//! power cut can repeat a delivery and never loses one. Only the timer checkpoints, and an import.
//!
//! Nobody may open or close the file outside SQLite: closing any descriptor of it drops the process's POSIX locks.

mod bell;
mod browse;
mod carry_over;
mod change;
mod chunks;
mod connect;
mod deliver;
mod flow;
mod hung_bell;
mod letters;
mod row;
mod secret;
mod turn;
mod write;

use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::Duration;

use rusqlite::{Connection, TransactionBehavior};

pub use hung_bell::HungBell;

use self::bell::{Ringer, Rings};
use self::chunks::More;
use self::connect::{at_commit, connect, file_at, refused};
use self::flow::Ready;
use self::turn::Turn;
use self::write::{TopicIds, Write};
use super::{
    Added, Batch, Change, Changed, CircuitView, Counts, Forecast, Letter, Letters, Moved, Opening, OwnerTag,
    Page, Permit, PermitAsk, Result, Settled, Settlement, Spread, Store, StoreError, View, Wanted, Which,
    exchange_apart,
};
use crate::job::{Due, JobId, JobKey, NewJob, State, TopicName};
use crate::letters::Pace;
use crate::ticket::Secret;

/// How many jobs a transaction touches at most, so that it stays short.
const CHUNK: usize = 256;

/// Each time the log grows by so many pages (of 4 kB), the timer is rung to carry it over.
const LOG_PAGES: i32 = 1000;

/// When a transaction is on the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Durability {
    /// When it is answered.
    Full,
    /// After the next one that is `Full`, or the next checkpoint.
    Normal,
}

/// A handle to the embedded store.
#[derive(Debug)]
pub struct SqliteStore {
    db: Connection,
    path: PathBuf,
    /// Which file that was when it was opened: device and inode.
    file: (u64, u64),
    turn: Turn,
    ringer: Ringer,
    durability: Durability,
    topics: TopicIds,
    /// Pages in the log after the last commit, told by SQLite.
    log_pages: Arc<AtomicI32>,
    log_rung: i32,
    /// What [`Store::take_buried`] has not told yet.
    buried: Vec<TopicName>,
}

impl SqliteStore {
    /// Opens the file, makes it if it is not there, and brings it up to date.
    pub fn open(path: &Path, run_dir: &Path) -> Result<SqliteStore> {
        let io = |e: std::io::Error| StoreError::Unavailable(format!("cannot open {}: {e}", path.display()));
        let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
        std::fs::create_dir_all(folder).map_err(io)?;
        let turn = Turn::beside(path).map_err(io)?;
        let ringer = Ringer::new(run_dir);
        let log_pages = Arc::new(AtomicI32::new(0));
        let taken = turn.take().map_err(io)?;
        if !path.exists() {
            log::info!("a new store is made: {}", path.display());
            // Jobs are nobody else's business. While it is this process's turn nobody has it open, so that no lock is lost by this.
            OpenOptions::new().write(true).create_new(true).mode(0o600).open(path).map_err(io)?;
        }
        let db = connect(path, &log_pages).map_err(|e| match e {
            StoreError::Damaged(why) => StoreError::Damaged(format!("{}: {why}", path.display())),
            StoreError::Unavailable(why) => StoreError::Unavailable(format!("{}: {why}", path.display())),
            other => other,
        })?;
        let file = file_at(path).map_err(io)?;
        drop(taken);
        let mut store = SqliteStore {
            db,
            path: path.to_owned(),
            file,
            turn,
            ringer,
            durability: Durability::Full,
            topics: TopicIds::new(),
            log_pages,
            log_rung: 0,
            buried: Vec::new(),
        };
        // Whoever was here before may have died after a commit and before its bells.
        store.announce();
        Ok(store)
    }

    /// Runs `work` in a write transaction, and rings the bells that it asks for once it is committed.
    fn write<T>(
        &mut self,
        durability: Durability,
        work: impl FnOnce(&mut Write<'_>) -> rusqlite::Result<T>,
    ) -> Result<T> {
        let turn = self.turn.take().map_err(|e| StoreError::Unavailable(format!("the store's turn: {e}")))?;
        self.check_file()?;
        if self.durability != durability {
            let level = if durability == Durability::Full { "full" } else { "normal" };
            self.db.pragma_update(None, "synchronous", level).map_err(refused)?;
            self.durability = durability;
        }
        let tx = self.db.transaction_with_behavior(TransactionBehavior::Immediate).map_err(refused)?;
        let mut write = Write::begin(&tx, &self.topics);
        let out = work(&mut write).map_err(refused)?;
        let mut rings = write.finish().map_err(refused)?;
        let (met, mut buried) = (write.met, write.buried);
        if let Err(e) = tx.commit() {
            // A log that is carried over may be used again from its beginning.
            self.ringer.ring(Rings { push: false, timer: true });
            return Err(at_commit(e));
        }
        drop(turn);
        self.buried.append(&mut buried);
        self.topics.extend(met);
        let grown = self.log_pages.load(Ordering::Relaxed) / LOG_PAGES;
        rings.timer |= grown > self.log_rung;
        self.log_rung = grown;
        self.ringer.ring(rings);
        Ok(out)
    }

    /// Whether the file is still the one that was opened. (What is written to another would be lost with it.)
    fn check_file(&self) -> Result<()> {
        match file_at(&self.path) {
            Ok(file) if file == self.file => Ok(()),
            Ok(_) => Err(StoreError::Gone(format!("{} is another file", self.path.display()))),
            Err(e) => Err(StoreError::Gone(format!("{}: {e}", self.path.display()))),
        }
    }

    /// The number of a topic, without a transaction; none: it never had a job.
    fn topic(&mut self, name: &TopicName) -> Result<Option<i64>> {
        let mut read = Write::begin(&self.db, &self.topics);
        let tid = read.topic(name).map_err(refused)?;
        let met = read.met;
        self.topics.extend(met);
        Ok(tid)
    }
}

impl Store for SqliteStore {
    fn add(&mut self, jobs: &[NewJob]) -> Vec<Result<Added>> {
        self.in_chunks(Durability::Full, jobs, change::add)
    }

    fn get(&mut self, key: &JobKey) -> Result<Option<View>> {
        match self.topic(&key.topic)? {
            Some(tid) => browse::get(&self.db, tid, key).map_err(refused),
            None => Ok(None),
        }
    }

    fn delete(&mut self, keys: &[JobKey]) -> Vec<Result<bool>> {
        self.in_chunks(Durability::Full, keys, change::delete)
    }

    fn change(&mut self, key: &JobKey, change: &Change) -> Result<Changed> {
        self.write(Durability::Full, |w| change::change(w, key, change))
    }

    fn release(&mut self, jobs: &[(JobKey, Due)]) -> Vec<Result<bool>> {
        self.in_chunks(Durability::Full, jobs, change::release)
    }

    fn promote_or_spread(
        &mut self,
        limit: usize,
        spread: &[(TopicName, Duration)],
    ) -> Result<(Moved, Spread)> {
        self.check_file()?;
        // What is not due yet costs no turn.
        let next_ms = browse::next_due(&self.db).map_err(refused)?;
        if next_ms.is_none_or(|at| at > write::now_ms()) {
            return Ok((Moved { jobs: 0, next_ms }, Spread::new()));
        }
        self.write(Durability::Normal, |w| deliver::promote(w, limit, spread))
    }

    fn lease(&mut self, wanted: &[Wanted], limit: usize, owner: Option<&OwnerTag>) -> Result<Batch> {
        self.check_file()?;
        let now_ms = write::now_ms();
        let ready = Ready::now(&self.db, now_ms).map_err(refused)?;
        let is_set_back =
            !ready.waiting.is_empty() && flow::is_set_back(&self.db, now_ms).map_err(refused)?;
        let is_ready = |want: &Wanted| ready.topics.iter().any(|(topic, ..)| *topic == want.topic);
        if limit == 0 || !is_set_back && !wanted.iter().any(is_ready) {
            let (left, waiting) = ready.left();
            return Ok(Batch { jobs: Vec::new(), left, waiting });
        }
        self.write(Durability::Normal, |w| deliver::lease(w, wanted, limit, owner))
    }

    fn settle(&mut self, settlements: &[Settlement]) -> Vec<Result<Settled>> {
        self.in_chunks(Durability::Normal, settlements, deliver::settle)
    }

    fn exchange(
        &mut self,
        settlements: &[Settlement],
        wanted: &[Wanted],
        limit: usize,
        owner: Option<&OwnerTag>,
    ) -> (Vec<Result<Settled>>, Result<Batch>) {
        if settlements.is_empty() || settlements.len() > CHUNK {
            return exchange_apart(self, settlements, wanted, limit, owner);
        }
        let exchanged = self.write(Durability::Normal, |w| {
            let settled: Vec<Settled> =
                settlements.iter().map(|one| deliver::settle(w, one)).collect::<rusqlite::Result<_>>()?;
            w.write_counts()?;
            Ok((settled, deliver::lease(w, wanted, limit, owner)?))
        });
        match exchanged {
            Ok((settled, leased)) => (settled.into_iter().map(Ok).collect(), Ok(leased)),
            // Nothing was done. What keeps jobs from being leased is not to keep others from being settled.
            Err(StoreError::Unavailable(_) | StoreError::Damaged(_)) => {
                exchange_apart(self, settlements, wanted, limit, owner)
            }
            Err(e) => (settlements.iter().map(|_| Err(e.clone())).collect(), Err(e)),
        }
    }

    fn hand_back(&mut self, owner: &OwnerTag) -> Result<usize> {
        self.until_done(|w| {
            let jobs = deliver::hand_back(w, owner, CHUNK)?;
            Ok((jobs, More::if_full(jobs, CHUNK)))
        })
    }

    fn expire(&mut self, limit: usize) -> Result<Moved> {
        let next_ms = browse::next_deadline(&self.db).map_err(refused)?;
        if next_ms.is_none_or(|at| at > write::now_ms()) {
            return Ok(Moved { jobs: 0, next_ms });
        }
        self.write(Durability::Normal, |w| deliver::expire(w, limit))
    }

    fn take_buried(&mut self) -> Vec<TopicName> {
        std::mem::take(&mut self.buried)
    }

    fn list(&mut self, topic: &TopicName, state: State, cursor: Option<&str>, limit: usize) -> Result<Page> {
        match self.topic(topic)? {
            Some(tid) => browse::list(&self.db, tid, topic, state, cursor, limit).map_err(refused),
            None => Ok(Page::default()),
        }
    }

    fn dead_since(&mut self, topic: &TopicName, since_ms: i64, limit: usize) -> Result<Vec<View>> {
        match self.topic(topic)? {
            Some(tid) => browse::dead_since(&self.db, tid, topic, since_ms, limit).map_err(refused),
            None => Ok(Vec::new()),
        }
    }

    fn redrive(&mut self, topic: &TopicName, which: &Which, limit: usize, pace: Pace) -> Result<usize> {
        self.redrive_some(topic, which, limit, pace)
    }

    fn purge(&mut self, topic: &TopicName, state: State, limit: usize) -> Result<usize> {
        let mut left = limit;
        self.until_done(|w| {
            let step = left.min(CHUNK);
            let gone = letters::purge(w, topic, state, step)?;
            left -= gone;
            Ok((gone, More::if_full(gone, step)))
        })
    }

    fn letters(&mut self, topic: &TopicName, ids: &[JobId], what: Letters) -> Result<usize> {
        let mut sum = 0;
        for some in ids.chunks(CHUNK) {
            sum += self.write(Durability::Full, |w| letters::letters(w, topic, some, what))?;
        }
        Ok(sum)
    }

    fn purge_letters(&mut self, topic: &TopicName, named: &[Letter]) -> Result<usize> {
        let mut sum = 0;
        for some in named.chunks(CHUNK) {
            sum += self.write(Durability::Full, |w| letters::purge_letters(w, topic, some))?;
        }
        Ok(sum)
    }

    fn retire(&mut self, topic: &TopicName, age: Duration, limit: usize) -> Result<usize> {
        self.write(Durability::Normal, |w| letters::retire(w, topic, age, limit))
    }

    fn counts(&mut self) -> Result<Vec<Counts>> {
        browse::counts(&self.db).map_err(refused)
    }

    fn forecast(&mut self, topics: &[TopicName], edges_ms: &[i64]) -> Result<Forecast> {
        browse::forecast(&self.db, topics, edges_ms).map_err(refused)
    }

    fn pause(&mut self, topic: &TopicName, paused: bool) -> Result<()> {
        self.write(Durability::Full, |w| change::pause(w, topic, paused))
    }

    fn paused(&mut self) -> Result<Vec<TopicName>> {
        browse::paused(&self.db).map_err(refused)
    }

    fn permits(&mut self, owner: &OwnerTag, asks: &[PermitAsk]) -> Vec<Result<Permit>> {
        self.in_chunks(Durability::Normal, asks, |w, ask| flow::permit(w, owner, ask))
    }

    fn open_circuit(&mut self, opening: &Opening) -> Result<bool> {
        self.write(Durability::Normal, |w| flow::open(w, opening))
    }

    fn close_circuit(&mut self, topic: &TopicName) -> Result<bool> {
        self.write(Durability::Normal, |w| flow::close(w, topic))
    }

    fn circuits(&mut self) -> Result<Vec<CircuitView>> {
        flow::circuits(&self.db, write::now_ms()).map_err(refused)
    }

    fn secret(&mut self, _lane: usize) -> Result<Secret> {
        self.shared_secret()
    }

    fn health(&mut self) -> Result<()> {
        let one: i64 = self.db.query_row("SELECT one FROM shard", [], |row| row.get(0)).map_err(refused)?;
        debug_assert_eq!(one, 1);
        self.check_file()
    }

    fn inspect(&mut self) -> Result<()> {
        let found: String =
            self.db.query_row("PRAGMA quick_check(1)", [], |row| row.get(0)).map_err(refused)?;
        if found == "ok" { Ok(()) } else { Err(StoreError::Damaged(found)) }
    }

    fn announce(&mut self) {
        self.ringer.ring(Rings { push: true, timer: true });
    }

    fn maintain(&mut self) -> Result<Option<Duration>> {
        carry_over::carry_over(&self.db, &self.turn, &self.path).map(|()| None)
    }
}
