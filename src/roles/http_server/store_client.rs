//! Passes requests of handlers to the store's threads, and the answers back to the handlers.
//!
//! Long reads, such as a search through dead letters, have a separate thread, so adds and settlements do not wait for
//! them. Each client has only a few long reads at a time, so that other clients get their turn.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::Result;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, oneshot};

use super::api_response::ApiResponse;
use super::pool::PoolHolder;
use super::problem::Problem;
use model::job::JobKey;
use role::submit::{Frontend, STORE_TIMEOUT, StoreRequest, Submitter};
use role::{Context, lock};

/// The part of the HTTP port that the store's threads use.
struct HttpFrontend {
    answers: Arc<Notify>,
}

impl Frontend for HttpFrontend {
    /// The sequence of a request. Requests about the same job have the same sequence. So if a request hangs, no later
    /// request about this job overtakes it. Other requests have no order.
    type ReplyAddress = u64;
    type Response = AnswerDelivery;

    fn sequence(reply_to: &u64) -> u64 {
        *reply_to
    }

    fn bytes(delivery: &AnswerDelivery) -> usize {
        delivery.bytes
    }

    fn wake(&self) {
        self.answers.notify_one();
    }
}

/// An answer on its way to the handler that waits for it.
pub(super) struct AnswerDelivery {
    bytes: usize,
    deliver: Box<dyn FnOnce() + Send>,
}

/// Where a handler waits for its answer.
pub(super) struct AnswerSender<T>(oneshot::Sender<T>);

impl<T: Send + 'static> AnswerSender<T> {
    /// Returns the answer, to be delivered to the handler that waits for it.
    pub(super) fn with(self, answer: T) -> AnswerDelivery {
        // The handler may be gone.
        AnswerDelivery { bytes: 0, deliver: Box::new(move || drop(self.0.send(answer))) }
    }
}

impl AnswerSender<Result<ApiResponse, Problem>> {
    /// Returns the response for the client, to be delivered to the handler that waits for it.
    pub(super) fn response(self, response: Result<ApiResponse, Problem>) -> AnswerDelivery {
        let bytes = response.as_ref().map_or(0, |response| response.json.len());
        AnswerDelivery { bytes, ..self.with(response) }
    }
}

/// How many long reads each client may have at a time. Further reads of the client wait.
const READS_MAX: usize = 2;

/// If further reads of the same client wait, a finished read keeps its turn during a pause. The length of the pause is
/// the duration of the read, times this number. Some clients always have more reads than they may have at a time. Such
/// a client uses about half of the time of the reading thread. In the other half, the processor is free for adds and
/// deliveries. A client that reads one page after the other never has this pause.
const PAUSES: u32 = 3;

/// The maximum length of this pause.
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// Passes requests to the store's threads. The value is cheap to clone.
#[derive(Clone)]
pub(super) struct StoreClient {
    submits: Arc<Mutex<Submitter<HttpFrontend>>>,
    /// The way to the separate thread for long reads.
    reads: Arc<Mutex<Submitter<HttpFrontend>>>,
    /// The turns of each client for long reads. A client without a long read has no entry.
    turns: Arc<Mutex<HashMap<PoolHolder, Arc<Semaphore>>>>,
    answers: Arc<Notify>,
    asked: Arc<Notify>,
    next: Arc<AtomicU64>,
}

impl StoreClient {
    pub(super) fn start(context: &mut Context) -> Result<StoreClient> {
        let answers = Arc::new(Notify::new());
        let asker = || HttpFrontend { answers: Arc::clone(&answers) };
        let submits = Submitter::start(context.lanes()?, asker(), || context.store())?;
        let reads = Submitter::start_reader(context.lanes()?, asker(), context.store()?)?;
        let (submits, reads) = (Arc::new(Mutex::new(submits)), Arc::new(Mutex::new(reads)));
        let (asked, next) = (Arc::default(), Arc::default());
        Ok(StoreClient { submits, reads, turns: Arc::default(), answers, asked, next })
    }

    /// Hands the requests over to the store's threads, forever. This function runs as a separate task, after the
    /// handlers that are asking now. So their requests go to the store's threads together, and wake the threads once.
    pub(super) async fn hand_over(self) {
        loop {
            self.asked.notified().await;
            lock(&self.submits).flush();
            lock(&self.reads).flush();
        }
    }

    /// Sends the store a request of `bytes` bytes, and waits for the answer. `make` gets the [`AnswerSender`] for this
    /// answer.
    pub(super) async fn ask<T: Send + 'static>(
        &self,
        bytes: usize,
        make: impl FnOnce(AnswerSender<T>) -> StoreRequest<AnswerDelivery>,
    ) -> Result<T, Problem> {
        self.ask_on(&self.submits, bytes, make).await
    }

    /// Sends the store a read that may take long. The read takes one of the turns of the client `holder`. None: the
    /// read is not limited.
    pub(super) async fn read<T: Send + 'static>(
        &self,
        holder: Option<PoolHolder>,
        make: impl FnOnce(AnswerSender<T>) -> StoreRequest<AnswerDelivery>,
    ) -> Result<T, Problem> {
        let Some(holder) = holder else { return self.ask_on(&self.reads, 0, make).await };
        let turn = self.turn(holder).await?;
        let begun = Instant::now();
        let answer = self.ask_on(&self.reads, 0, make).await;
        // The list of turns has one reference to the semaphore. Each read that runs or waits has another reference.
        if Arc::strong_count(turn.semaphore()) > 1 + READS_MAX {
            let pause = (begun.elapsed() * PAUSES).min(PAUSE_MAX);
            tokio::spawn(async move {
                tokio::time::sleep(pause).await;
                drop(turn);
            });
        }
        answer
    }

    /// Waits until a client may begin another long read.
    async fn turn(&self, holder: PoolHolder) -> Result<OwnedSemaphorePermit, Problem> {
        let turns = {
            let mut all = lock(&self.turns);
            all.retain(|_, turns| Arc::strong_count(turns) > 1);
            Arc::clone(all.entry(holder).or_insert_with(|| Arc::new(Semaphore::new(READS_MAX))))
        };
        match tokio::time::timeout(STORE_TIMEOUT, turns.acquire_owned()).await {
            Ok(Ok(turn)) => Ok(turn),
            Ok(Err(_)) | Err(_) => {
                let detail = format!(
                    "this client has more than {READS_MAX} long reads at a time: wait for their answers"
                );
                Err(Problem::unavailable("busy", detail))
            }
        }
    }

    async fn ask_on<T: Send + 'static>(
        &self,
        submits: &Mutex<Submitter<HttpFrontend>>,
        bytes: usize,
        make: impl FnOnce(AnswerSender<T>) -> StoreRequest<AnswerDelivery>,
    ) -> Result<T, Problem> {
        let (to, answered) = oneshot::channel();
        let request = make(AnswerSender(to));
        let of_job = |key: &JobKey| {
            let mut hasher = DefaultHasher::new();
            key.hash(&mut hasher);
            hasher.finish()
        };
        let line = request.key().map_or_else(|| self.next.fetch_add(1, Ordering::Relaxed), of_job);
        {
            let mut submits = lock(submits);
            if submits.is_full() {
                return Err(Problem::unavailable("store_busy", "the store has too much to do already"));
            }
            submits
                .hand_in(line, request, bytes)
                .map_err(|hung| Problem::unavailable("store_busy", hung.to_string()))?;
        }
        self.asked.notify_one();
        let unknown = "the store has not answered in time: the outcome is unknown";
        match tokio::time::timeout(STORE_TIMEOUT, answered).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(_)) | Err(_) => Err(Problem::unavailable("unknown", unknown)),
        }
    }

    /// Asks the store, and returns what the client gets. The response is made on the store's thread.
    pub(super) async fn respond(
        &self,
        bytes: usize,
        make: impl FnOnce(AnswerSender<Result<ApiResponse, Problem>>) -> StoreRequest<AnswerDelivery>,
    ) -> Result<ApiResponse, Problem> {
        self.ask(bytes, make).await?
    }

    /// Wakes the main loop.
    pub(super) fn wake(&self) {
        self.answers.notify_one();
    }

    /// Waits until there are answers.
    pub(super) async fn answered(&self) {
        self.answers.notified().await;
    }

    /// Gives the store's answers to the handlers that wait for them.
    pub(super) fn hand_out(&self) {
        for submits in [&self.submits, &self.reads] {
            for (_, delivery) in lock(submits).completions() {
                (delivery.deliver)();
            }
        }
    }

    /// Whether this process must be restarted to find the store.
    pub(super) fn is_gone(&self) -> bool {
        lock(&self.submits).is_gone() || lock(&self.reads).is_gone()
    }

    /// Returns the time by which the store should have answered. None: the store has nothing to answer.
    pub(super) fn due_by(&self) -> Option<Instant> {
        [&self.submits, &self.reads].into_iter().filter_map(|submits| lock(submits).due_by()).min()
    }
}
