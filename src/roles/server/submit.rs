//! The submit thread: asks the store on behalf of all connections. What has come together while the store was busy
//! goes to it as one batch, so that requests share a transaction and its way to the disk.

use std::collections::HashMap;
use std::io;
use std::mem;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use jiff::tz::TimeZone;
use mio::Waker;

use super::request::{self, Json};
use crate::job::{JobKey, NewJob, TopicName};
use crate::protocol::dq::Refusal;
use crate::role::{self, lock};
use crate::store::{Added, Result, Store, StoreError};

/// So many adds go into one transaction.
const GROUP: usize = 256;

/// So many bytes of answers are given to the event loop together.
const PIECE: usize = 256 << 10;

/// A store that has not answered for so long is taken to hang: what it has is answered with `unknown`, and nothing more
/// is handed to it until it answers.
pub(super) const STORE_TIMEOUT: Duration = Duration::from_secs(10);

/// With so many requests unanswered, connections are not read from.
const UNANSWERED_MAX: usize = 20_000;

/// With so many bytes of requests unanswered, connections are not read from.
const BYTES_MAX: usize = 64 << 20;

/// Which request of which connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Ticket {
    /// The connection's place.
    pub place: usize,
    /// Tells it from an earlier connection in that place.
    pub serial: u64,
    /// The request's number on the connection.
    pub number: u64,
}

/// What the store is asked.
#[derive(Debug)]
pub(super) enum Ask {
    Add(NewJob),
    Madd { items: Vec<Result<NewJob, Refusal>>, most: usize },
    Get { key: JobKey, most: usize },
    Del(JobKey),
    Run(JobKey),
    Stats(Option<TopicName>),
}

#[derive(Debug)]
struct Handed {
    ticket: Ticket,
    ask: Ask,
    bytes: usize,
}

#[derive(Debug, Default)]
struct Shared {
    queue: Mutex<Queue>,
    handed: Condvar,
    done: Mutex<Vec<(Ticket, Json, usize)>>,
    /// The store's file is another: nothing that is added would be found by those who deliver.
    gone: AtomicBool,
}

#[derive(Debug, Default)]
struct Queue {
    asks: Vec<Handed>,
    closed: bool,
}

/// The event loop's side of the submit thread.
#[derive(Debug)]
pub(super) struct Submit {
    shared: Arc<Shared>,
    /// Not yet handed over.
    fresh: Vec<Handed>,
    unanswered: usize,
    bytes: usize,
    /// When the store last answered, or was handed something while it had nothing to do.
    moved_at: Instant,
}

impl Submit {
    pub(super) fn start(store: Box<dyn Store>, zone: TimeZone, waker: Arc<Waker>) -> io::Result<Submit> {
        let shared = Arc::new(Shared::default());
        let worker = Worker { shared: Arc::clone(&shared), store, zone, waker };
        role::vital_thread("submit", move || worker.run())?;
        Ok(Submit { shared, fresh: Vec::new(), unanswered: 0, bytes: 0, moved_at: Instant::now() })
    }

    /// Takes a request; it goes to the store at the next flush.
    pub(super) fn hand_in(&mut self, ticket: Ticket, ask: Ask, bytes: usize) {
        if self.unanswered == 0 {
            self.moved_at = Instant::now();
        }
        self.unanswered += 1;
        self.bytes += bytes;
        self.fresh.push(Handed { ticket, ask, bytes });
    }

    /// Hands over what has come together.
    pub(super) fn flush(&mut self) {
        if !self.fresh.is_empty() {
            lock(&self.shared.queue).asks.append(&mut self.fresh);
            self.shared.handed.notify_one();
        }
    }

    /// Whether this process must be started anew to find the store.
    pub(super) fn is_gone(&self) -> bool {
        self.shared.gone.load(Ordering::Relaxed)
    }

    /// Whether the store has enough to do, so that what comes is better left with the clients.
    pub(super) fn is_full(&self) -> bool {
        (self.unanswered >= UNANSWERED_MAX || self.bytes >= BYTES_MAX) && !self.is_hung()
    }

    /// Whether the store has had something to do for so long without an answer that nothing more is handed to it.
    pub(super) fn is_hung(&self) -> bool {
        self.unanswered > 0 && self.moved_at.elapsed() >= STORE_TIMEOUT
    }

    /// By when the store should have answered; none: it has nothing to answer.
    pub(super) fn due_by(&self) -> Option<Instant> {
        (self.unanswered > 0).then(|| self.moved_at + STORE_TIMEOUT)
    }

    /// The store's answers since the last call.
    pub(super) fn completions(&mut self) -> Vec<(Ticket, Json)> {
        let done = mem::take(&mut *lock(&self.shared.done));
        if done.is_empty() {
            // It was another lane that answered.
            return Vec::new();
        }
        self.unanswered -= done.len();
        self.moved_at = Instant::now();
        self.bytes -= done.iter().map(|(.., bytes)| bytes).sum::<usize>();
        done.into_iter().map(|(ticket, json, _)| (ticket, json)).collect()
    }
}

impl Drop for Submit {
    fn drop(&mut self) {
        lock(&self.shared.queue).closed = true;
        self.shared.handed.notify_one();
    }
}

struct Worker {
    shared: Arc<Shared>,
    store: Box<dyn Store>,
    zone: TimeZone,
    waker: Arc<Waker>,
}

/// The kinds of asks that go to the store together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Add,
    Del,
    Other,
}

impl Ask {
    fn kind(&self) -> Kind {
        match self {
            Ask::Add(_) | Ask::Madd { .. } => Kind::Add,
            Ask::Del(_) => Kind::Del,
            Ask::Get { .. } | Ask::Run(_) | Ask::Stats(_) => Kind::Other,
        }
    }
}

/// Divides a batch into steps of one kind each. The requests of one connection stay in their order; those of different
/// connections, which nobody has an order for, move together as far as that allows.
fn steps(batch: Vec<Handed>) -> Vec<(Kind, Vec<Handed>)> {
    let mut steps: Vec<(Kind, Vec<Handed>)> = Vec::new();
    let mut latest: HashMap<(usize, u64), usize> = HashMap::new();
    for handed in batch {
        let kind = handed.ask.kind();
        let connection = (handed.ticket.place, handed.ticket.serial);
        let from = latest.get(&connection).copied().unwrap_or(0);
        let step = (from..steps.len()).find(|i| steps[*i].0 == kind).unwrap_or_else(|| {
            steps.push((kind, Vec::new()));
            steps.len() - 1
        });
        latest.insert(connection, step);
        steps[step].1.push(handed);
    }
    steps
}

impl Worker {
    fn run(mut self) {
        while let Some(batch) = self.next() {
            for (kind, step) in steps(batch) {
                match kind {
                    Kind::Add => self.add(step),
                    Kind::Del => self.delete(step),
                    Kind::Other => self.others(step),
                }
            }
        }
    }

    /// Waits for requests; none: the event loop is gone.
    fn next(&self) -> Option<Vec<Handed>> {
        let mut queue = lock(&self.shared.queue);
        while queue.asks.is_empty() {
            if queue.closed {
                return None;
            }
            queue = self.shared.handed.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
        Some(mem::take(&mut queue.asks))
    }

    fn finish(&self, answers: Vec<(Ticket, Json, usize)>) {
        if answers.is_empty() {
            return;
        }
        lock(&self.shared.done).extend(answers);
        if let Err(e) = self.waker.wake() {
            log::error!("cannot wake the event loop: {e}");
        }
    }

    fn add(&mut self, step: Vec<Handed>) {
        let mut group: Vec<(Ticket, usize)> = Vec::new();
        let mut jobs: Vec<NewJob> = Vec::new();
        for Handed { ticket, ask, bytes } in step {
            match ask {
                Ask::Add(job) => {
                    group.push((ticket, bytes));
                    jobs.push(job);
                    if jobs.len() >= GROUP {
                        self.add_group(&mut group, &mut jobs);
                    }
                }
                Ask::Madd { items, most } => {
                    // The adds that its connection made before it come before it.
                    self.add_group(&mut group, &mut jobs);
                    let json = self.madd(items, most);
                    self.finish(vec![(ticket, json, bytes)]);
                }
                _ => unreachable!("a step of adds holds adds"),
            }
        }
        self.add_group(&mut group, &mut jobs);
    }

    fn add_group(&mut self, group: &mut Vec<(Ticket, usize)>, jobs: &mut Vec<NewJob>) {
        if jobs.is_empty() {
            return;
        }
        let added = self.store.add(jobs);
        self.note("add", &added);
        let answers =
            group.drain(..).zip(&added).map(|((ticket, bytes), one)| (ticket, request::added(one), bytes));
        let answers = answers.collect();
        jobs.clear();
        self.finish(answers);
    }

    fn madd(&mut self, items: Vec<Result<NewJob, Refusal>>, most: usize) -> Json {
        let mut good = Vec::new();
        let places: Vec<Result<usize, Refusal>> = items
            .into_iter()
            .map(|item| {
                item.map(|job| {
                    good.push(job);
                    good.len() - 1
                })
            })
            .collect();
        let mut added: Vec<Result<Added>> = Vec::new();
        for group in good.chunks(GROUP) {
            let some = self.store.add(group);
            self.note("madd", &some);
            added.extend(some);
        }
        let all: Vec<_> = places.into_iter().map(|place| place.map(|i| added[i].clone())).collect();
        request::added_many(&all, most)
    }

    fn delete(&mut self, step: Vec<Handed>) {
        let (mut keys, mut group) = (Vec::new(), Vec::new());
        for Handed { ticket, ask, bytes } in step {
            let Ask::Del(key) = ask else { unreachable!("a step of deletes holds deletes") };
            keys.push(key);
            group.push((ticket, bytes));
        }
        for (keys, group) in keys.chunks(GROUP).zip(group.chunks(GROUP)) {
            let there = self.store.delete(keys);
            self.note("del", &there);
            let answers = group.iter().zip(keys.iter().zip(&there));
            let answers =
                answers.map(|((ticket, bytes), (key, one))| (*ticket, request::deleted(key, one), *bytes));
            self.finish(answers.collect());
        }
    }

    /// Logs what the store refused; clients are told as well.
    fn note<T>(&self, what: &str, results: &[Result<T>]) {
        let failed = || results.iter().filter_map(|r| r.as_ref().err());
        if let Some(e) = failed().next() {
            log::error!("{what}, {} of {}: {e}", failed().count(), results.len());
            self.shared.gone.fetch_or(matches!(e, StoreError::Gone(_)), Ordering::Relaxed);
        }
    }

    fn others(&mut self, step: Vec<Handed>) {
        let mut answers = Vec::new();
        let mut waiting = 0;
        for Handed { ticket, ask, bytes } in step {
            let json = match ask {
                Ask::Get { key, most } => request::shown(&key, self.store.get(&key), &self.zone, most),
                Ask::Run(key) => request::changed(&key, &self.store.run(&key)),
                Ask::Stats(topic) => request::counted(topic.as_ref(), self.store.counts()),
                Ask::Add(_) | Ask::Madd { .. } | Ask::Del(_) => unreachable!("those have steps of their own"),
            };
            waiting += json.len();
            answers.push((ticket, json, bytes));
            // The first need not wait for the last.
            if waiting >= PIECE {
                self.finish(mem::take(&mut answers));
                waiting = 0;
            }
        }
        self.finish(answers);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::JobId;

    fn handed(place: usize, number: u64, what: &str) -> Handed {
        let key = JobKey { topic: TopicName::new("t").unwrap(), id: JobId::new("i").unwrap() };
        let ask = match what {
            "add" => Ask::Madd { items: Vec::new(), most: 0 },
            "del" => Ask::Del(key),
            _ => Ask::Get { key, most: 0 },
        };
        Handed { ticket: Ticket { place, serial: 0, number }, ask, bytes: 0 }
    }

    #[test]
    fn a_batch_becomes_few_steps_and_each_connection_keeps_its_order() {
        let batch = (0..50)
            .flat_map(|c| ["add", "get", "del"].into_iter().zip(0..).map(move |(w, n)| handed(c, n, w)));
        let steps = steps(batch.collect());
        assert_eq!(
            steps.iter().map(|(kind, s)| (*kind, s.len())).collect::<Vec<_>>(),
            [(Kind::Add, 50), (Kind::Other, 50), (Kind::Del, 50)]
        );
        let one: Vec<_> =
            ["del", "add", "add", "get", "add"].into_iter().zip(0..).map(|(w, n)| handed(1, n, w)).collect();
        let order: Vec<u64> =
            super::steps(one).into_iter().flat_map(|(_, s)| s).map(|h| h.ticket.number).collect();
        assert_eq!(order, [0, 1, 2, 3, 4]);
    }
}
