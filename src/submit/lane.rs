//! One thread that asks the store. What has come together while the store was busy goes to it as one batch, so that requests
//! share a transaction and its way to the disk.

use std::collections::HashMap;
use std::io;
use std::mem;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Instant;

use super::letters::{find, undertake};
use super::list::list;
use super::refused::Refused;
use super::{Answer, Ask, Asker, STORE_TIMEOUT};
use crate::job::{NewJob, TopicName};
use crate::role::{self, lock};
use crate::store::{Added, CircuitView, Result, Store, StoreError};

/// So many adds go into one transaction.
const GROUP: usize = 256;

/// So many bytes of answers are given to the server together.
const PIECE: usize = 256 << 10;

/// With so many requests unanswered, clients are not read from.
const UNANSWERED_MAX: usize = 20_000;

/// With so many bytes of requests unanswered, clients are not read from.
const BYTES_MAX: usize = 64 << 20;

struct Handed<T> {
    ticket: T,
    ask: Ask,
    bytes: usize,
}

struct Shared<A: Asker> {
    queue: Mutex<Queue<A::Ticket>>,
    handed: Condvar,
    done: Mutex<Vec<Done<A>>>,
    /// The store's file is another: nothing that is added would be found by those who deliver.
    gone: AtomicBool,
}

/// An answered request: its ticket, its answer, and how many bytes it had.
type Done<A> = (<A as Asker>::Ticket, <A as Asker>::Told, usize);

struct Queue<T> {
    asks: Vec<Handed<T>>,
    /// The thread waits for some, and nobody has woken it yet: to wake one that works is a system call for nothing.
    waits: bool,
    closed: bool,
}

/// The server's side of the thread.
pub(super) struct Lane<A: Asker> {
    shared: Arc<Shared<A>>,
    /// Not yet handed over.
    fresh: Vec<Handed<A::Ticket>>,
    unanswered: usize,
    bytes: usize,
    /// When the store last answered, or was handed something while it had nothing to do.
    moved_at: Instant,
}

impl<A: Asker> Lane<A> {
    pub(super) fn start(store: Box<dyn Store>, asker: Arc<A>) -> io::Result<Lane<A>> {
        let shared = Arc::new(Shared {
            queue: Mutex::new(Queue { asks: Vec::new(), waits: false, closed: false }),
            handed: Condvar::new(),
            done: Mutex::default(),
            gone: AtomicBool::new(false),
        });
        let worker = Worker { shared: Arc::clone(&shared), store, asker, refused: Refused::default() };
        role::vital_thread("submit", move || worker.run())?;
        Ok(Lane { shared, fresh: Vec::new(), unanswered: 0, bytes: 0, moved_at: Instant::now() })
    }

    /// Takes a request; it goes to the store at the next flush.
    pub(super) fn hand_in(&mut self, ticket: A::Ticket, ask: Ask, bytes: usize) {
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
            let mut queue = lock(&self.shared.queue);
            queue.asks.append(&mut self.fresh);
            let waits = mem::take(&mut queue.waits);
            drop(queue);
            if waits {
                self.shared.handed.notify_one();
            }
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
    pub(super) fn completions(&mut self) -> Vec<(A::Ticket, A::Told)> {
        let done = mem::take(&mut *lock(&self.shared.done));
        if done.is_empty() {
            // It was another lane that answered.
            return Vec::new();
        }
        self.unanswered -= done.len();
        self.moved_at = Instant::now();
        self.bytes -= done.iter().map(|(.., bytes)| bytes).sum::<usize>();
        done.into_iter().map(|(ticket, told, _)| (ticket, told)).collect()
    }
}

impl<A: Asker> Drop for Lane<A> {
    fn drop(&mut self) {
        lock(&self.shared.queue).closed = true;
        self.shared.handed.notify_one();
    }
}

struct Worker<A: Asker> {
    shared: Arc<Shared<A>>,
    store: Box<dyn Store>,
    asker: Arc<A>,
    refused: Refused,
}

/// The kinds of asks that go to the store together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Add,
    Delete,
    Other,
}

impl Ask {
    fn kind(&self) -> Kind {
        match self {
            Ask::Add(_) | Ask::AddMany(_) => Kind::Add,
            Ask::Delete(_) => Kind::Delete,
            Ask::Get(_)
            | Ask::Change(..)
            | Ask::Run(_)
            | Ask::List { .. }
            | Ask::Count
            | Ask::Pause(..)
            | Ask::Paused
            | Ask::Settle(_)
            | Ask::Secret(_)
            | Ask::Find { .. }
            | Ask::Purge(..)
            | Ask::Dead { .. } => Kind::Other,
        }
    }
}

/// Divides a batch into steps of one kind each. The requests of one line stay in their order; those of different lines, which
/// nobody has an order for, move together as far as that allows.
fn steps<T>(batch: Vec<Handed<T>>, line: fn(&T) -> u64) -> Vec<(Kind, Vec<Handed<T>>)> {
    let mut steps: Vec<(Kind, Vec<Handed<T>>)> = Vec::new();
    let mut latest: HashMap<u64, usize> = HashMap::new();
    for handed in batch {
        let kind = handed.ask.kind();
        let line = line(&handed.ticket);
        let from = latest.get(&line).copied().unwrap_or(0);
        let step = (from..steps.len()).find(|i| steps[*i].0 == kind).unwrap_or_else(|| {
            steps.push((kind, Vec::new()));
            steps.len() - 1
        });
        latest.insert(line, step);
        steps[step].1.push(handed);
    }
    steps
}

impl<A: Asker> Worker<A> {
    fn run(mut self) {
        while let Some(batch) = self.next() {
            for (kind, step) in steps(batch, A::line) {
                match kind {
                    Kind::Add => self.add(step),
                    Kind::Delete => self.delete(step),
                    Kind::Other => self.others(step),
                }
            }
        }
    }

    /// Waits for requests; none: the server is gone.
    fn next(&self) -> Option<Vec<Handed<A::Ticket>>> {
        let mut queue = lock(&self.shared.queue);
        while queue.asks.is_empty() {
            if queue.closed {
                return None;
            }
            queue.waits = true;
            queue = self.shared.handed.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
        Some(mem::take(&mut queue.asks))
    }

    /// An answer as its client gets it.
    fn told(&self, ticket: A::Ticket, bytes: usize, answer: Answer) -> Done<A> {
        let told = self.asker.told(&ticket, answer);
        (ticket, told, bytes)
    }

    fn finish(&self, answers: Vec<Done<A>>) {
        if answers.is_empty() {
            return;
        }
        let mut done = lock(&self.shared.done);
        // Whoever has not taken the ones before has been woken for them, and takes these with them.
        let is_first = done.is_empty();
        done.extend(answers);
        drop(done);
        if is_first {
            self.asker.wake();
        }
    }

    fn add(&mut self, step: Vec<Handed<A::Ticket>>) {
        let mut group: Vec<(A::Ticket, usize)> = Vec::new();
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
                Ask::AddMany(many) => {
                    // The adds that its line made before it come before it.
                    self.add_group(&mut group, &mut jobs);
                    let mut added: Vec<Result<Added>> = Vec::new();
                    for some in many.chunks(GROUP) {
                        let some = self.store.add(some);
                        self.note("madd", &some);
                        added.extend(some);
                    }
                    self.finish(vec![self.told(ticket, bytes, Answer::AddedMany(added))]);
                }
                _ => unreachable!("a step of adds holds adds"),
            }
        }
        self.add_group(&mut group, &mut jobs);
    }

    fn add_group(&mut self, group: &mut Vec<(A::Ticket, usize)>, jobs: &mut Vec<NewJob>) {
        if jobs.is_empty() {
            return;
        }
        let added = self.store.add(jobs);
        self.note("add", &added);
        jobs.clear();
        let answers = group.drain(..).zip(added);
        let answers = answers.map(|((ticket, bytes), one)| self.told(ticket, bytes, Answer::Added(one)));
        self.finish(answers.collect());
    }

    fn delete(&mut self, step: Vec<Handed<A::Ticket>>) {
        let (mut keys, mut group) = (Vec::new(), Vec::new());
        for Handed { ticket, ask, bytes } in step {
            let Ask::Delete(key) = ask else { unreachable!("a step of deletes holds deletes") };
            keys.push(key);
            group.push((ticket, bytes));
        }
        let mut group = group.into_iter();
        for keys in keys.chunks(GROUP) {
            let there = self.store.delete(keys);
            self.note("del", &there);
            let answers = group.by_ref().take(keys.len()).zip(keys.iter().zip(there));
            let answers = answers.map(|((ticket, bytes), (key, one))| {
                self.told(ticket, bytes, Answer::Deleted(key.clone(), one))
            });
            self.finish(answers.collect());
        }
    }

    /// Logs what the store refused; clients are told as well.
    fn note<T>(&mut self, what: &str, results: &[Result<T>]) {
        let failed = || results.iter().filter_map(|r| r.as_ref().err());
        if let Some(e) = failed().next() {
            self.refused.note(what, (failed().count(), results.len()), e);
            self.shared.gone.fetch_or(matches!(e, StoreError::Gone(_)), Ordering::Relaxed);
        }
        if let Some(line) = self.refused.told(Instant::now()) {
            log::error!("{line}");
        }
    }

    fn others(&mut self, step: Vec<Handed<A::Ticket>>) {
        let mut answers = Vec::new();
        let mut waiting = 0;
        for Handed { ticket, ask, bytes } in step {
            let answer = match ask {
                Ask::Get(key) => {
                    let found = self.store.get(&key);
                    Answer::Got(key, found.map(|view| view.map(Box::new)))
                }
                Ask::Run(key) => {
                    let changed = self.store.run(&key);
                    Answer::Changed(key, changed)
                }
                Ask::Change(key, change) => {
                    let changed = self.store.change(&key, &change);
                    Answer::Changed(key, changed)
                }
                Ask::List { topic, state, filter, cursor, limit } => {
                    Answer::Listed(list(self.store.as_mut(), &topic, (state, filter), cursor, limit))
                }
                Ask::Find { topic, filter, cursor, limit } => {
                    Answer::Found(find(self.store.as_mut(), &topic, &filter, cursor, limit))
                }
                Ask::Settle(settlement) => {
                    let settled = self.store.settle(&[settlement]).pop();
                    Answer::Settled(
                        settled.unwrap_or_else(|| Err(StoreError::Unknown("no answer".to_owned()))),
                    )
                }
                Ask::Secret(lane) => Answer::Secret(self.store.secret(lane)),
                Ask::Count => Answer::Counted(self.store.counts()),
                Ask::Pause(topic, true) => Answer::Said(self.store.pause(&topic, true)),
                Ask::Pause(topic, false) => Answer::Said(resume(self.store.as_mut(), &topic)),
                Ask::Paused => Answer::Paused(held_back(self.store.as_mut())),
                Ask::Purge(topic, state, limit) => Answer::Dead(self.store.purge(&topic, state, limit)),
                Ask::Dead { topic, which, limit, what } => {
                    let done = undertake(&mut *self.store, topic, &which, limit, what);
                    Answer::Dead(done)
                }
                Ask::Add(_) | Ask::AddMany(_) | Ask::Delete(_) => {
                    unreachable!("those have steps of their own")
                }
            };
            let done = self.told(ticket, bytes, answer);
            waiting += A::bytes(&done.1);
            answers.push(done);
            // The first need not wait for the last.
            if waiting >= PIECE {
                self.finish(mem::take(&mut answers));
                waiting = 0;
            }
        }
        self.finish(answers);
    }
}

/// The topics that are paused, and the circuits that are not closed.
fn held_back(store: &mut dyn Store) -> Result<(Vec<TopicName>, Vec<CircuitView>)> {
    Ok((store.paused()?, store.circuits()?))
}

/// Has a topic's jobs delivered again, whatever held them back.
fn resume(store: &mut dyn Store, topic: &TopicName) -> Result<()> {
    store.pause(topic, false)?;
    store.close_circuit(topic).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::{JobId, JobKey, TopicName};

    /// Its line, and its number there.
    type Ticket = (u64, u64);

    fn handed(line: u64, number: u64, what: &str) -> Handed<Ticket> {
        let key = JobKey { topic: TopicName::new("t").unwrap(), id: JobId::new("i").unwrap() };
        let ask = match what {
            "add" => Ask::AddMany(Vec::new()),
            "del" => Ask::Delete(key),
            _ => Ask::Get(key),
        };
        Handed { ticket: (line, number), ask, bytes: 0 }
    }

    #[test]
    fn a_batch_becomes_few_steps_and_each_line_keeps_its_order() {
        let batch = (0..50)
            .flat_map(|c| ["add", "get", "del"].into_iter().zip(0..).map(move |(w, n)| handed(c, n, w)));
        let steps = steps(batch.collect(), |ticket| ticket.0);
        assert_eq!(
            steps.iter().map(|(kind, s)| (*kind, s.len())).collect::<Vec<_>>(),
            [(Kind::Add, 50), (Kind::Other, 50), (Kind::Delete, 50)]
        );
        let one: Vec<_> =
            ["del", "add", "add", "get", "add"].into_iter().zip(0..).map(|(w, n)| handed(1, n, w)).collect();
        let order: Vec<u64> =
            super::steps(one, |t| t.0).into_iter().flat_map(|(_, s)| s).map(|h| h.ticket.1).collect();
        assert_eq!(order, [0, 1, 2, 3, 4]);
    }
}
