//! The workers, as many as callbacks may be in flight at a time: tasks of the one thread that makes the calls.

use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use jiff::tz::TimeZone;

use crate::callback::{Call, Caller, Delivery, Ended, Verdict};
use crate::counters::Counters;
use crate::job::{Attempt, TopicName};
use crate::metrics::AttemptOutcome;
use crate::role::lock;
use crate::settings::Settings;
use crate::store::{Leased, Token};
use crate::topic::Topic;

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

struct Shared {
    counters: Counters,
    finished: Mutex<Vec<Finished>>,
    /// The main loop has been told of what is in `finished`.
    told: AtomicBool,
    tell: UnixStream,
}

/// The main loop's side of the workers.
pub(super) struct Workers {
    shared: Arc<Shared>,
    caller: Caller,
    told: UnixStream,
    concurrency: u32,
    busy: u32,
    /// Not handed over yet.
    fresh: Vec<Call>,
}

impl Workers {
    pub(super) fn new(settings: &Settings, zone: TimeZone, counters: Counters) -> io::Result<Workers> {
        let (told, tell) = UnixStream::pair()?;
        told.set_nonblocking(true)?;
        tell.set_nonblocking(true)?;
        let shared =
            Arc::new(Shared { counters, finished: Mutex::default(), told: AtomicBool::new(false), tell });
        let (concurrency, telling) = (settings.consume.concurrency, Arc::clone(&shared));
        let caller = Caller::telling(concurrency, &settings.callback, zone, move || telling.tell())?;
        Ok(Workers { shared, caller, told, concurrency, busy: 0, fresh: Vec::new() })
    }

    /// How many more calls may be handed in.
    pub(super) fn free(&self) -> u32 {
        self.concurrency.saturating_sub(self.busy)
    }

    /// Hands in a call, which begins with the next [`Workers::begin`]. To be used only while workers are free.
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
        let (shared, token) = (Arc::clone(&self.shared), leased.token.clone());
        let (name, due_ms) = (leased.key.topic.clone(), leased.due_ms);
        let tell = Box::new(move |ended| shared.ended(token, &name, due_ms, ended));
        self.fresh.push(Call { topic: Arc::clone(topic), delivery, is_test: false, tell });
    }

    /// Begins the calls that were handed in.
    pub(super) fn begin(&mut self) {
        if !self.fresh.is_empty() {
            self.caller.begin(std::mem::take(&mut self.fresh));
        }
    }

    /// The calls that ended since the last time.
    pub(super) fn finished(&mut self) -> Vec<Finished> {
        let mut buffer = [0; 64];
        // Read before taking: what ends after the taking writes again.
        while let Ok(n) = (&self.told).read(&mut buffer)
            && n == buffer.len()
        {}
        self.shared.told.store(false, Ordering::SeqCst);
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

impl Shared {
    fn ended(&self, token: Token, topic: &TopicName, due_ms: i64, ended: Ended) {
        self.count(topic, due_ms, &ended);
        let Ended { verdict, attempt, .. } = ended;
        lock(&self.finished).push(Finished { token, verdict, attempt });
    }

    /// Tells the main loop, if there is anything of which it has not been told.
    fn tell(&self) {
        if lock(&self.finished).is_empty() || self.told.swap(true, Ordering::SeqCst) {
            return;
        }
        if let Err(e) = (&self.tell).write(&[1])
            && e.kind() != ErrorKind::WouldBlock
        {
            log::error!("cannot tell of a callback's end: {e}");
        }
    }

    fn count(&self, topic: &TopicName, due_ms: i64, ended: &Ended) {
        // By this host's clock: one that is behind the store's makes it 0 at the least.
        let late_us = ended.began_us.saturating_sub(due_ms.saturating_mul(1000)).max(0) as u64;
        let took_us = ended.took.as_micros() as u64;
        let topic = self.counters.topic(topic.as_str());
        let outcome = match ended.verdict {
            Verdict::Later => return topic.answered_later(late_us, took_us),
            Verdict::Accepted => AttemptOutcome::Accepted,
            Verdict::Failed { .. } => AttemptOutcome::Failed,
            Verdict::Refused { .. } => AttemptOutcome::Refused,
        };
        topic.attempted(outcome, ended.attempt.status, late_us, took_us);
    }
}
