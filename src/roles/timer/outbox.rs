//! Adds the jobs that follow from the outbox of one lane. This work has a thread of its own, because the jobs may
//! belong to other nodes, and a node that hangs must not delay promotions. The store finds the entries and makes the
//! adds (`store::Outbox`). This module says which job follows from an entry.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::Result;

use host::now_ms;
use model::follow::{self, DoneEvent, PredecessorJob};
use model::job::{NewJob, TopicName};
use model::topic::Topics;
use role::{TroubleLog, lock};
use store::{FollowerSendResult, OutboxCause, OutboxEntry, Store};

/// If the topics of the registry are not known yet, the thread waits this long before it checks again.
const TOPICS_PAUSE: Duration = Duration::from_millis(200);

/// How long a thread may add what is left, when dq stops. After the longer time [`LAST_STEPS`](super::LAST_STEPS), the
/// process ends.
const REST_TIME: Duration = Duration::from_secs(1);

/// What the threads of all lanes share.
#[derive(Clone)]
pub(super) struct OutboxContext {
    /// None until the topics of the registry are known: a job without a delay of its own needs the delay of its topic.
    /// Without this delay, the job would be delivered too early.
    pub topics: Arc<Mutex<Option<Topics>>>,
    /// Whether a thread adds all that is left before it ends. Otherwise the next timer does so.
    pub adds_rest: Arc<AtomicBool>,
    /// The channel on which the timer notices that all threads have ended. Nothing is sent.
    pub alive: Sender<()>,
}

/// Starts the thread. The thread looks for entries when it is woken. It also looks for entries at the start, because an
/// earlier timer may have died before its work was done. The thread ends when the sender is dropped.
pub(super) fn start(mut store: Box<dyn Store>, context: OutboxContext) -> Result<SyncSender<()>> {
    let (sender, receiver) = sync_channel(1);
    let OutboxContext { topics, adds_rest, alive } = context;
    role::vital_thread("outbox", move || {
        let (mut trouble, _alive) = (TroubleLog::default(), alive);
        loop {
            let Some(known) = lock(&topics).clone() else {
                match receiver.recv_timeout(TOPICS_PAUSE) {
                    Err(RecvTimeoutError::Disconnected) => return,
                    _ => continue,
                }
            };
            let wait = match store.send_followers(&|entry| follower(entry, &known)) {
                Ok(sent) => {
                    trouble.end();
                    sent.again
                }
                Err(e) => Some(trouble.pause_after(&format_args!("cannot add what follows jobs: {e}"))),
            };
            let heard = match wait {
                Some(wait) => receiver.recv_timeout(wait),
                None => receiver.recv().map_err(RecvTimeoutError::from),
            };
            if heard == Err(RecvTimeoutError::Disconnected) {
                if adds_rest.load(Ordering::Relaxed) {
                    add_rest(store.as_mut(), &known);
                }
                return;
            }
        }
    })?;
    Ok(sender)
}

/// Adds what is left when dq stops, so that a store that is moved or exported afterwards has an empty outbox. What
/// cannot be added within [`REST_TIME`] is added after the next start.
fn add_rest(store: &mut dyn Store, topics: &Topics) {
    let until = Instant::now() + REST_TIME;
    while Instant::now() < until {
        match store.send_followers(&|entry| follower(entry, topics)) {
            Ok(FollowerSendResult { again: Some(Duration::ZERO), .. }) => {}
            Ok(FollowerSendResult { again: None, .. }) => return,
            Ok(FollowerSendResult { again: Some(pause), .. }) if Instant::now() + pause < until => {
                std::thread::sleep(pause);
            }
            Ok(_) => break,
            Err(e) => {
                return log::warn!("cannot empty the outbox: {e}. The rest is added after the next start");
            }
        }
    }
    log::warn!("some jobs and events are still in the outbox. They are added after the next start");
}

/// Returns the job that follows from an entry. A job is added even if its topic is not registered any more. The job
/// then waits until the topic is registered again.
fn follower(entry: &OutboxEntry, topics: &Topics) -> Option<NewJob> {
    let OutboxEntry { key, stamp_us, ago, what } = entry;
    let job = match what {
        OutboxCause::Then { place, text } => {
            let delay = |topic: &TopicName| topics.get(topic.as_str()).map(|topic| topic.delay);
            let job = follow::job_of(text, PredecessorJob { key, stamp_us: *stamp_us }, *place, *ago, delay);
            job.map(|job| with_expiry(job, topics))
        }
        OutboxCause::Done(record) => {
            let with_answer = topics.get(key.topic.as_str()).is_some_and(|topic| topic.on_done_answer);
            DoneEvent::new(record, with_answer).and_then(|event| event.job())
        }
    };
    if job.is_none() {
        let (topic, id) = (key.topic.as_str(), key.id.as_str());
        log::error!(topic, id; "what follows this job cannot be read, and is dropped");
    }
    job
}

/// Returns the job with the moment after which no attempt may begin. The settings of the job's topic give this moment.
fn with_expiry(job: NewJob, topics: &Topics) -> NewJob {
    let topic = topics.get(job.key.topic.as_str());
    let expires_ms = topic.and_then(|topic| topic.expires_ms(None, job.due, now_ms()));
    NewJob { headers: job.headers.clone().with_expires_ms(expires_ms), ..job }
}
