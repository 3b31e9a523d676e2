//! The workers: threads that make the calls. They are started as they are needed, up to the concurrency.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use crate::callback::{Caller, Delivery, Verdict};
use crate::counters::Counters;
use crate::job::Attempt;
use crate::metrics::AttemptOutcome;
use crate::role::lock;
use crate::store::{Leased, Token};
use crate::topic::{Failure, Topic};

/// A worker's stack: what a TLS handshake and a request need, and some more.
const STACK: usize = 512 << 10;

/// A callback that ended.
#[derive(Debug)]
pub(super) struct Finished {
    /// The lease.
    pub token: Token,
    /// How its answer was judged.
    pub verdict: Verdict,
    /// What is kept of it.
    pub attempt: Attempt,
}

struct Call {
    topic: Arc<Topic>,
    token: Token,
    delivery: Delivery,
}

#[derive(Default)]
struct Queue {
    calls: VecDeque<Call>,
    idle: usize,
    closed: bool,
}

struct Shared {
    caller: Caller,
    counters: Counters,
    queue: Mutex<Queue>,
    called: Condvar,
    finished: Mutex<Vec<Finished>>,
    /// Written to when `finished` is no longer empty.
    tell: UnixStream,
}

/// The main loop's side of the workers.
pub(super) struct Workers {
    shared: Arc<Shared>,
    told: UnixStream,
    concurrency: u32,
    started: u32,
    busy: u32,
}

impl Workers {
    pub(super) fn new(caller: Caller, counters: Counters, concurrency: u32) -> io::Result<Workers> {
        let (told, tell) = UnixStream::pair()?;
        told.set_nonblocking(true)?;
        tell.set_nonblocking(true)?;
        let shared = Shared {
            caller,
            counters,
            queue: Mutex::default(),
            called: Condvar::new(),
            finished: Mutex::default(),
            tell,
        };
        let mut workers = Workers { shared: Arc::new(shared), told, concurrency, started: 0, busy: 0 };
        // Without a single worker there is no consumer.
        workers.start()?;
        Ok(workers)
    }

    /// How many more calls may be handed in.
    pub(super) fn free(&self) -> u32 {
        self.concurrency.saturating_sub(self.busy)
    }

    /// Hands in a call. To be used only while workers are free.
    pub(super) fn call(&mut self, topic: &Arc<Topic>, leased: &Leased, ack_url: Option<String>) {
        debug_assert!(self.free() > 0);
        self.busy += 1;
        let delivery = Delivery {
            key: leased.key.clone(),
            body: leased.body.clone(),
            attempt: leased.attempt,
            due_ms: leased.due_ms,
            stamp_us: leased.stamp_us,
            headers: leased.headers.pairs(),
            ack_url,
        };
        let call = Call { topic: Arc::clone(topic), token: leased.token.clone(), delivery };
        let mut queue = lock(&self.shared.queue);
        queue.calls.push_back(call);
        let another = queue.calls.len() > queue.idle && self.started < self.concurrency;
        drop(queue);
        self.shared.called.notify_one();
        if another && let Err(e) = self.start() {
            log::error!("cannot start another worker: {e}; going on with {}", self.started);
            self.concurrency = self.started;
        }
    }

    fn start(&mut self) -> io::Result<()> {
        let shared = Arc::clone(&self.shared);
        let name = format!("worker-{}", self.started);
        std::thread::Builder::new().name(name).stack_size(STACK).spawn(move || shared.work())?;
        self.started += 1;
        Ok(())
    }

    /// The calls that ended since the last time.
    pub(super) fn finished(&mut self) -> Vec<Finished> {
        let mut buffer = [0; 64];
        // Read before taking: what ends after the taking writes again.
        while let Ok(n) = (&self.told).read(&mut buffer)
            && n == buffer.len()
        {}
        let finished = std::mem::take(&mut *lock(&self.shared.finished));
        self.busy -= finished.len() as u32;
        finished
    }
}

/// Readable when calls have ended.
impl AsFd for Workers {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.told.as_fd()
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        lock(&self.shared.queue).closed = true;
        self.shared.called.notify_all();
    }
}

impl Shared {
    fn work(&self) {
        while let Some(call) = self.next() {
            let (begun, late_us) = (Instant::now(), late_us(call.delivery.due_ms));
            let made = catch_unwind(AssertUnwindSafe(|| self.caller.call(&call.topic, &call.delivery)));
            let (verdict, attempt) = made.unwrap_or_else(|_| panicked(&call.delivery));
            self.count(&call.delivery, &verdict, attempt.status, late_us, begun);
            let mut finished = lock(&self.finished);
            finished.push(Finished { token: call.token, verdict, attempt });
            let first = finished.len() == 1;
            drop(finished);
            if first
                && let Err(e) = (&self.tell).write(&[1])
                && e.kind() != ErrorKind::WouldBlock
            {
                log::error!("cannot tell of a callback's end: {e}");
            }
        }
    }

    fn count(
        &self,
        delivery: &Delivery,
        verdict: &Verdict,
        status: Option<u16>,
        late_us: u64,
        begun: Instant,
    ) {
        let took_us = begun.elapsed().as_micros() as u64;
        let topic = self.counters.topic(delivery.key.topic.as_str());
        let outcome = match verdict {
            Verdict::Later => return topic.answered_later(late_us, took_us),
            Verdict::Accepted => AttemptOutcome::Accepted,
            Verdict::Failed { .. } => AttemptOutcome::Failed,
            Verdict::Refused { .. } => AttemptOutcome::Refused,
        };
        topic.attempted(outcome, status, late_us, took_us);
    }

    fn next(&self) -> Option<Call> {
        let mut queue = lock(&self.queue);
        loop {
            if let Some(call) = queue.calls.pop_front() {
                return Some(call);
            }
            if queue.closed {
                return None;
            }
            queue.idle += 1;
            queue = self.called.wait(queue).unwrap_or_else(PoisonError::into_inner);
            queue.idle -= 1;
        }
    }
}

/// By how much an attempt begins after its due time, in microseconds. (By this host's clock; one that is behind the store's makes
/// it 0 at the least.)
fn late_us(due_ms: i64) -> u64 {
    let now_us = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_micros() as i64);
    now_us.saturating_sub(due_ms.saturating_mul(1000)).max(0) as u64
}

/// A bug in a call is a failed attempt of its job, and no end of the worker.
fn panicked(delivery: &Delivery) -> (Verdict, Attempt) {
    let error = "the delivery panicked; see the log".to_owned();
    let attempt = Attempt {
        number: delivery.attempt,
        at_ms: delivery.due_ms,
        took_ms: 0,
        status: None,
        answer: String::new(),
        error: error.clone(),
    };
    (Verdict::Failed { kind: Failure::Broken, reason: error, retry_after: None }, attempt)
}
