//! One thread that asks the store. Requests that arrive while the store is busy form one batch. So they share a
//! transaction and its sync to the disk.

use std::collections::{HashMap, HashSet};
use std::io;
use std::mem;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::refused::UnreportedRefusals;
use super::request::{
    AddWork, JobResponder, Responder, SettlementMaker, StoreQuestion, StoreRequest, StoreWork,
};
use super::{Frontend, QueuedRequest, STORE_TIMEOUT, ThreadLoad};
use crate::lock;
use model::job::{JobKey, NewJob};
use store::{Added, Deleted, Result, Settled, Settlement, Store, StoreError};

/// The maximum number of adds, deletes or settlements in one transaction.
const GROUP: usize = 256;

/// The server gets answers when their total size reaches this number of bytes.
const PIECE: usize = 256 << 10;

/// The server gets answers when the first of them has waited for this time.
const PIECE_TIME: Duration = Duration::from_millis(1);

/// The maximum number of unanswered requests. At this number, nothing more is read from clients.
const UNANSWERED_MAX: usize = 20_000;

/// The maximum size of the unanswered requests, in bytes. At this size, nothing more is read from clients.
const BYTES_MAX: usize = 64 << 20;

struct LaneQueue<A: Frontend> {
    queue: Mutex<LaneQueueState<A>>,
    handed: Condvar,
    done: Mutex<Vec<AnsweredRequest<A>>>,
    /// Whether the file of the store was removed or replaced. If it was, jobs that are added now would never be
    /// delivered.
    gone: AtomicBool,
}

/// An answered request: its reply address, its answer, and the length of the request in bytes.
type AnsweredRequest<A> = (<A as Frontend>::ReplyAddress, <A as Frontend>::Response, usize);

struct LaneQueueState<A: Frontend> {
    requests: Vec<QueuedRequest<A>>,
    /// Whether the thread waits for requests, and was not woken yet. A thread that works is not woken, because that
    /// would be a useless system call.
    waits: bool,
    closed: bool,
}

/// The server's side of the thread.
pub(super) struct LaneQueueHandle<A: Frontend> {
    shared: Arc<LaneQueue<A>>,
    /// Requests that were not yet given to the thread.
    fresh: Vec<QueuedRequest<A>>,
    unanswered: usize,
    bytes: usize,
    /// When the store last answered, or got a request while it had nothing to do.
    moved_at: Instant,
}

impl<A: Frontend> LaneQueueHandle<A> {
    pub(super) fn start(store: Box<dyn Store>, source: Arc<A>) -> io::Result<LaneQueueHandle<A>> {
        let shared = Arc::new(LaneQueue {
            queue: Mutex::new(LaneQueueState { requests: Vec::new(), waits: false, closed: false }),
            handed: Condvar::new(),
            done: Mutex::default(),
            gone: AtomicBool::new(false),
        });
        let refused = UnreportedRefusals::default();
        let worker = LaneQueueWorker { shared: Arc::clone(&shared), store, source, refused };
        crate::vital_thread("submit", move || worker.run())?;
        Ok(LaneQueueHandle { shared, fresh: Vec::new(), unanswered: 0, bytes: 0, moved_at: Instant::now() })
    }

    /// Takes a request. The request goes to the store at the next flush.
    pub(super) fn hand_in(&mut self, handed: QueuedRequest<A>) {
        if self.unanswered == 0 {
            self.moved_at = Instant::now();
        }
        self.unanswered += 1;
        self.bytes += handed.bytes;
        self.fresh.push(handed);
    }

    /// Returns how much the thread has to do.
    pub(super) fn load(&self) -> ThreadLoad {
        let silent = if self.unanswered == 0 { Duration::ZERO } else { self.moved_at.elapsed() };
        ThreadLoad { unanswered: self.unanswered, silent }
    }

    /// Gives all new requests to the thread.
    pub(super) fn flush(&mut self) {
        if !self.fresh.is_empty() {
            let mut queue = lock(&self.shared.queue);
            queue.requests.append(&mut self.fresh);
            let waits = mem::take(&mut queue.waits);
            drop(queue);
            if waits {
                self.shared.handed.notify_one();
            }
        }
    }

    /// Returns whether the file of the store is gone, so that this process must be started again.
    pub(super) fn is_gone(&self) -> bool {
        self.shared.gone.load(Ordering::Relaxed)
    }

    /// Returns whether the store has so much to do that nothing more should be read from clients.
    pub(super) fn is_full(&self) -> bool {
        (self.unanswered >= UNANSWERED_MAX || self.bytes >= BYTES_MAX) && !self.is_hung()
    }

    /// Returns whether the lane hangs: the store has not answered for `STORE_TIMEOUT`, and gets no more requests.
    pub(super) fn is_hung(&self) -> bool {
        self.unanswered > 0 && self.moved_at.elapsed() >= STORE_TIMEOUT
    }

    /// Returns the time by which the store should have answered. None: the store has nothing to answer.
    pub(super) fn due_by(&self) -> Option<Instant> {
        (self.unanswered > 0).then(|| self.moved_at + STORE_TIMEOUT)
    }

    /// Returns the store's answers since the last call.
    pub(super) fn completions(&mut self) -> Vec<(A::ReplyAddress, A::Response)> {
        let done = mem::take(&mut *lock(&self.shared.done));
        if done.is_empty() {
            // The server was woken by the answers of another lane.
            return Vec::new();
        }
        self.unanswered -= done.len();
        self.moved_at = Instant::now();
        self.bytes -= done.iter().map(|(.., bytes)| bytes).sum::<usize>();
        done.into_iter().map(|(reply_to, response, _)| (reply_to, response)).collect()
    }
}

impl<A: Frontend> Drop for LaneQueueHandle<A> {
    fn drop(&mut self) {
        lock(&self.shared.queue).closed = true;
        self.shared.handed.notify_one();
    }
}

struct LaneQueueWorker<A: Frontend> {
    shared: Arc<LaneQueue<A>>,
    store: Box<dyn Store>,
    source: Arc<A>,
    refused: UnreportedRefusals,
}

/// Where a request comes from: its reply address, and its length in bytes.
type Origin<A> = (<A as Frontend>::ReplyAddress, usize);

type AddRequest<A> = (Origin<A>, AddWork<<A as Frontend>::Response>);
type DeleteRequest<A> = (Origin<A>, JobKey, JobResponder<Result<Deleted>, <A as Frontend>::Response>);
type SettleRequest<A> = (Origin<A>, SettlementMaker<<A as Frontend>::Response>);
type OtherRequest<A> = (Origin<A>, StoreQuestion<<A as Frontend>::Response>);

/// The origin of an add, and the function that makes its response.
type AddResponder<A> = (Origin<A>, Responder<Result<Added>, <A as Frontend>::Response>);

/// The origin of a settlement, and the function that makes its response.
type SettleResponder<A> = (Origin<A>, Responder<Result<Settled>, <A as Frontend>::Response>);

/// Settlements that share a transaction. Each is for a different job.
struct SettleGroup<A: Frontend> {
    keys: HashSet<JobKey>,
    settlements: Vec<Settlement>,
    respond: Vec<SettleResponder<A>>,
}

/// Requests of one kind, which go to the store together.
enum RequestBatch<A: Frontend> {
    Add(Vec<AddRequest<A>>),
    Delete(Vec<DeleteRequest<A>>),
    Settle(Vec<SettleRequest<A>>),
    Other(Vec<OtherRequest<A>>),
}

impl<A: Frontend> RequestBatch<A> {
    fn new(origin: Origin<A>, work: StoreWork<A::Response>) -> RequestBatch<A> {
        match work {
            StoreWork::Add(add) => RequestBatch::Add(vec![(origin, add)]),
            StoreWork::Delete(key, respond) => RequestBatch::Delete(vec![(origin, key, respond)]),
            StoreWork::Settle(_, make) => RequestBatch::Settle(vec![(origin, make)]),
            StoreWork::Other(_, ask) => RequestBatch::Other(vec![(origin, ask)]),
        }
    }

    /// Appends a request of the same kind. Returns a request of another kind.
    fn push(
        &mut self,
        origin: Origin<A>,
        work: StoreWork<A::Response>,
    ) -> Option<(Origin<A>, StoreWork<A::Response>)> {
        match (self, work) {
            (RequestBatch::Add(all), StoreWork::Add(add)) => all.push((origin, add)),
            (RequestBatch::Delete(all), StoreWork::Delete(key, respond)) => all.push((origin, key, respond)),
            (RequestBatch::Settle(all), StoreWork::Settle(_, make)) => all.push((origin, make)),
            (RequestBatch::Other(all), StoreWork::Other(_, ask)) => all.push((origin, ask)),
            (_, work) => return Some((origin, work)),
        }
        None
    }
}

/// Divides requests into batches of one kind each. The requests of one sequence keep their order. Requests of different
/// sequences have no order, so they may share a batch.
fn by_kind<A: Frontend>(requests: Vec<QueuedRequest<A>>) -> Vec<RequestBatch<A>> {
    let mut batches: Vec<RequestBatch<A>> = Vec::new();
    let mut latest: HashMap<u64, usize> = HashMap::new();
    for QueuedRequest { reply_to, request: StoreRequest(work), bytes } in requests {
        let sequence = A::sequence(&reply_to);
        let mut at = latest.get(&sequence).copied().unwrap_or(0);
        let mut left = Some(((reply_to, bytes), work));
        while let Some((origin, work)) = left {
            left = match batches.get_mut(at) {
                Some(batch) => batch.push(origin, work),
                None => {
                    batches.push(RequestBatch::new(origin, work));
                    None
                }
            };
            at += usize::from(left.is_some());
        }
        latest.insert(sequence, at);
    }
    batches
}

impl<A: Frontend> LaneQueueWorker<A> {
    fn run(mut self) {
        while let Some(requests) = self.next() {
            for batch in by_kind(requests) {
                match batch {
                    RequestBatch::Add(adds) => self.add(adds),
                    RequestBatch::Delete(deletes) => self.delete(deletes),
                    RequestBatch::Settle(settles) => self.settle(settles),
                    RequestBatch::Other(others) => self.others(others),
                }
            }
        }
    }

    /// Waits for requests. None: the server is gone.
    fn next(&self) -> Option<Vec<QueuedRequest<A>>> {
        let mut queue = lock(&self.shared.queue);
        while queue.requests.is_empty() {
            if queue.closed {
                return None;
            }
            queue.waits = true;
            queue = self.shared.handed.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
        Some(mem::take(&mut queue.requests))
    }

    fn finish(&self, answers: Vec<AnsweredRequest<A>>) {
        if answers.is_empty() {
            return;
        }
        let mut done = lock(&self.shared.done);
        // If earlier answers were not taken yet, the server was already woken. It then takes these answers too.
        let is_first = done.is_empty();
        done.extend(answers);
        drop(done);
        if is_first {
            self.source.wake();
        }
    }

    fn add(&mut self, adds: Vec<AddRequest<A>>) {
        let (mut group, mut jobs) = (Vec::new(), Vec::new());
        for ((reply_to, bytes), add) in adds {
            match add {
                AddWork::One(job, respond) => {
                    group.push(((reply_to, bytes), respond));
                    jobs.push(*job);
                    if jobs.len() >= GROUP {
                        self.add_group(&mut group, &mut jobs);
                    }
                }
                AddWork::Many(many, respond) => {
                    // The earlier adds of the same sequence must come first.
                    self.add_group(&mut group, &mut jobs);
                    let mut added: Vec<Result<Added>> = Vec::new();
                    for some in many.chunks(GROUP) {
                        let some = self.store.add(some);
                        self.note("madd", &some);
                        added.extend(some);
                    }
                    self.finish(vec![(reply_to, respond(added), bytes)]);
                }
            }
        }
        self.add_group(&mut group, &mut jobs);
    }

    fn add_group(&mut self, group: &mut Vec<AddResponder<A>>, jobs: &mut Vec<NewJob>) {
        if jobs.is_empty() {
            return;
        }
        let added = self.store.add(jobs);
        self.note("add", &added);
        jobs.clear();
        let answers = group.drain(..).zip(added);
        let answers = answers.map(|(((reply_to, bytes), respond), one)| (reply_to, respond(one), bytes));
        self.finish(answers.collect());
    }

    fn delete(&mut self, deletes: Vec<DeleteRequest<A>>) {
        let (mut keys, mut group) = (Vec::new(), Vec::new());
        for (origin, key, respond) in deletes {
            keys.push(key);
            group.push((origin, respond));
        }
        let mut group = group.into_iter();
        for keys in keys.chunks(GROUP) {
            let there = self.store.delete(keys);
            self.note("del", &there);
            let answers = group.by_ref().take(keys.len()).zip(keys.iter().zip(there));
            let answers = answers
                .map(|(((reply_to, bytes), respond), (key, one))| (reply_to, respond(key, one), bytes));
            self.finish(answers.collect());
        }
    }

    /// Settles leases. Two reports about the same job are settled one after the other.
    fn settle(&mut self, settles: Vec<SettleRequest<A>>) {
        let mut group = SettleGroup { keys: HashSet::new(), settlements: Vec::new(), respond: Vec::new() };
        for ((reply_to, bytes), make) in settles {
            match make(self.store.as_mut()) {
                Ok((settlement, respond)) => {
                    if group.keys.contains(&settlement.key) || group.settlements.len() >= GROUP {
                        self.settle_group(&mut group);
                    }
                    group.keys.insert(settlement.key.clone());
                    group.settlements.push(settlement);
                    group.respond.push(((reply_to, bytes), respond));
                }
                Err(response) => {
                    // The earlier requests of the same sequence are answered first.
                    self.settle_group(&mut group);
                    self.finish(vec![(reply_to, response, bytes)]);
                }
            }
        }
        self.settle_group(&mut group);
    }

    fn settle_group(&mut self, group: &mut SettleGroup<A>) {
        if group.settlements.is_empty() {
            return;
        }
        let settled = self.store.settle(&group.settlements);
        self.note("settle", &settled);
        group.keys.clear();
        group.settlements.clear();
        let answers = group.respond.drain(..).zip(settled);
        let answers = answers.map(|(((reply_to, bytes), respond), one)| (reply_to, respond(one), bytes));
        self.finish(answers.collect());
    }

    /// Logs what the store refused. Clients get an error, too.
    fn note<T>(&mut self, what: &str, results: &[Result<T>]) {
        // A refusal because of a quota is not a failure of the store.
        let is_failure = |e: &&StoreError| !matches!(e, StoreError::OverQuota(_));
        let failed = || results.iter().filter_map(|r| r.as_ref().err()).filter(is_failure);
        if let Some(e) = failed().next() {
            self.refused.note(what, (failed().count(), results.len()), e);
            self.shared.gone.fetch_or(matches!(e, StoreError::Gone(_)), Ordering::Relaxed);
        }
        if let Some(line) = self.refused.take_line(Instant::now()) {
            log::error!("{line}");
        }
    }

    fn others(&mut self, others: Vec<OtherRequest<A>>) {
        let mut answers = Vec::new();
        let (mut waiting, mut since) = (0, Instant::now());
        for ((reply_to, bytes), ask) in others {
            let response = ask(self.store.as_mut());
            waiting += A::bytes(&response);
            answers.push((reply_to, response, bytes));
            // The first answers do not wait for the last one.
            if waiting >= PIECE || since.elapsed() >= PIECE_TIME {
                self.finish(mem::take(&mut answers));
                (waiting, since) = (0, Instant::now());
            }
        }
        self.finish(answers);
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{TestRequestSource, key};
    use super::*;

    fn handed(sequence: u64, number: u64, what: &str) -> QueuedRequest<TestRequestSource> {
        let request = match what {
            "add" => StoreRequest::add_many(Vec::new(), |_| ()),
            "del" => StoreRequest::delete(key(), |_, _| ()),
            _ => StoreRequest::get(key(), |_, _| ()),
        };
        QueuedRequest { reply_to: (sequence, number), request, bytes: 0 }
    }

    fn addresses(batch: &RequestBatch<TestRequestSource>) -> (&'static str, Vec<(u64, u64)>) {
        match batch {
            RequestBatch::Add(all) => ("add", all.iter().map(|((reply_to, _), _)| *reply_to).collect()),
            RequestBatch::Delete(all) => ("del", all.iter().map(|((reply_to, _), ..)| *reply_to).collect()),
            RequestBatch::Settle(all) => ("settle", all.iter().map(|((reply_to, _), _)| *reply_to).collect()),
            RequestBatch::Other(all) => ("get", all.iter().map(|((reply_to, _), _)| *reply_to).collect()),
        }
    }

    #[test]
    fn a_batch_becomes_few_steps_and_each_line_keeps_its_order() {
        let batch = (0..50)
            .flat_map(|c| ["add", "get", "del"].into_iter().zip(0..).map(move |(w, n)| handed(c, n, w)));
        let kinds: Vec<_> =
            by_kind(batch.collect()).iter().map(addresses).map(|(kind, t)| (kind, t.len())).collect();
        assert_eq!(kinds, [("add", 50), ("get", 50), ("del", 50)]);
        let one: Vec<_> =
            ["del", "add", "add", "get", "add"].into_iter().zip(0..).map(|(w, n)| handed(1, n, w)).collect();
        let order: Vec<u64> =
            by_kind(one).iter().flat_map(|batch| addresses(batch).1).map(|reply_to| reply_to.1).collect();
        assert_eq!(order, [0, 1, 2, 3, 4]);
    }
}
