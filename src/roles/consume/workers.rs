//! The workers: one for each callback that may be in flight. They are tasks of the one thread that makes the calls.

use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use jiff::tz::TimeZone;

use delivery::callback::{Call, Caller, CompletedCall, Delivery, Verdict};
use model::job::{Attempt, TopicName};
use model::metrics::AttemptOutcome;
use model::settings::Settings;
use model::topic::{Failure, Topic};
use role::lock;
use store::{LeasedJob, Token};
use telemetry::counters::Counters;

/// A callback that ended.
#[derive(Debug)]
pub(super) struct FinishedCallback {
    /// The lease token of its job.
    pub token: Token,
    /// How its answer was judged.
    pub verdict: Verdict,
    /// What is recorded about the attempt.
    pub attempt: Attempt,
}

struct FinishedCallbackQueue {
    counters: Counters,
    finished: Mutex<Vec<FinishedCallback>>,
    /// Whether the main loop has been woken because `finished` is not empty.
    is_woken: AtomicBool,
    wake_writer: UnixStream,
}

/// The main loop's side of the workers.
pub(super) struct Workers {
    shared: Arc<FinishedCallbackQueue>,
    caller: Caller,
    wake_reader: UnixStream,
    /// Calls that [`Workers::begin`] has not passed to `caller` yet.
    fresh: Vec<Call>,
}

impl Workers {
    pub(super) fn new(settings: &Settings, zone: TimeZone, counters: Counters) -> io::Result<Workers> {
        let (wake_reader, wake_writer) = UnixStream::pair()?;
        wake_reader.set_nonblocking(true)?;
        wake_writer.set_nonblocking(true)?;
        let shared = Arc::new(FinishedCallbackQueue {
            counters,
            finished: Mutex::default(),
            is_woken: AtomicBool::new(false),
            wake_writer,
        });
        let (concurrency, telling) = (settings.consume.concurrency, Arc::clone(&shared));
        let caller =
            Caller::with_notifier(concurrency, &settings.callback, zone, move || telling.wake_main_loop())?;
        Ok(Workers { shared, caller, wake_reader, fresh: Vec::new() })
    }

    /// Adds a call. The next [`Workers::begin`] begins it. The caller ensures that there are never more than
    /// `consume.concurrency` calls.
    pub(super) fn call(
        &mut self,
        topic: &Arc<Topic>,
        leased: &LeasedJob,
        began: Instant,
        ack_url: Option<String>,
    ) {
        let delivery = Delivery {
            key: leased.key.clone(),
            body: leased.body.clone(),
            attempt: leased.attempt,
            due_ms: leased.due_ms,
            stamp_us: leased.stamp_us,
            headers: leased.headers.pairs(),
            destination: leased.headers.destination().cloned(),
            ack_url,
        };
        let (shared, token) = (Arc::clone(&self.shared), leased.token.clone());
        let (name, expected_us) = (leased.key.topic.clone(), expected_us(leased));
        let on_completion = Box::new(move |ended| shared.record_end(token, &name, expected_us, ended));
        self.fresh.push(Call { topic: Arc::clone(topic), delivery, is_test: false, began, on_completion });
    }

    /// Begins the calls that were added.
    pub(super) fn begin(&mut self) {
        if !self.fresh.is_empty() {
            self.caller.begin(std::mem::take(&mut self.fresh));
        }
    }

    /// Returns the calls that ended since this function was last used.
    pub(super) fn finished(&mut self) -> Vec<FinishedCallback> {
        let mut buffer = [0; 64];
        // The socket is read before `finished` is taken: a call that ends after that writes to the socket again.
        while let Ok(n) = (&self.wake_reader).read(&mut buffer)
            && n == buffer.len()
        {}
        self.shared.is_woken.store(false, Ordering::SeqCst);
        std::mem::take(&mut *lock(&self.shared.finished))
    }
}

/// Readable when calls have ended.
impl AsFd for Workers {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wake_reader.as_fd()
    }
}

impl FinishedCallbackQueue {
    fn record_end(&self, token: Token, topic: &TopicName, expected_us: i64, ended: CompletedCall) {
        self.count(topic, expected_us, &ended);
        let CompletedCall { verdict, attempt, .. } = ended;
        lock(&self.finished).push(FinishedCallback { token, verdict, attempt });
    }

    /// Wakes the main loop if `finished` is not empty and the loop has not been woken yet.
    fn wake_main_loop(&self) {
        if lock(&self.finished).is_empty() || self.is_woken.swap(true, Ordering::SeqCst) {
            return;
        }
        if let Err(e) = (&self.wake_writer).write(&[1])
            && e.kind() != ErrorKind::WouldBlock
        {
            log::error!("cannot wake the main loop after a callback: {e}");
        }
    }

    fn count(&self, topic: &TopicName, expected_us: i64, ended: &CompletedCall) {
        // The lateness is measured by this host's clock. If that clock is behind the store's, the measured lateness is
        // too small. It is never less than 0.
        let late_us = ended.began_us.saturating_sub(expected_us).max(0) as u64;
        let took_us = ended.took.as_micros() as u64;
        let topic = self.counters.topic(topic.as_str());
        let (outcome, failure) = match ended.verdict {
            Verdict::Later => return topic.answered_later(late_us, took_us),
            Verdict::Accepted => (AttemptOutcome::Accepted, None),
            Verdict::Failed { kind, .. } => (AttemptOutcome::Failed, Some(kind)),
            Verdict::Again { .. } => (AttemptOutcome::Failed, Some(Failure::Answer)),
            Verdict::Refused { kind, .. } => (AttemptOutcome::Refused, Some(kind)),
        };
        topic.attempted(outcome, ended.attempt.status, late_us, took_us);
        if let Some(failure) = failure {
            topic.failed_with(failure);
        }
    }
}

/// Returns the earliest time when an attempt could begin, in Unix microseconds. This is the later of two times: the due
/// time of the job, and the time when the job was added. A retry is always due after the add, so it counts from its own
/// due time.
fn expected_us(leased: &LeasedJob) -> i64 {
    leased.due_ms.saturating_mul(1000).max(leased.stamp_us)
}
