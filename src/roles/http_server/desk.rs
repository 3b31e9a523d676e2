//! Where handlers ask the store: a question goes to the store's threads, and its answer comes back to whoever waits for it.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use anyhow::Result;
use tokio::sync::{Notify, oneshot};

use super::problem::Problem;
use super::told::{self, Manner, Told};
use crate::job::JobKey;
use crate::role::{Context, lock};
use crate::submit::{Answer, Ask, Asker, STORE_TIMEOUT, Submits};

/// The HTTP port, as those who ask the store see it.
struct Http {
    answers: Arc<Notify>,
}

struct Ticket {
    line: u64,
    manner: Manner,
    to: oneshot::Sender<Result<Told, Problem>>,
}

impl Asker for Http {
    type Ticket = Ticket;
    type Told = Result<Told, Problem>;

    /// Those of one job stand in one line: what was asked of it before, and hangs, is not overtaken. All others have no order.
    fn line(ticket: &Ticket) -> u64 {
        ticket.line
    }

    fn told(&self, ticket: &Ticket, answer: Answer) -> Result<Told, Problem> {
        told::told(&ticket.manner, answer)
    }

    fn bytes(told: &Result<Told, Problem>) -> usize {
        told.as_ref().map_or(0, |told| told.json.len())
    }

    fn wake(&self) {
        self.answers.notify_one();
    }
}

/// Where handlers ask the store.
#[derive(Clone)]
pub(super) struct Desk {
    submits: Arc<Mutex<Submits<Http>>>,
    answers: Arc<Notify>,
    asked: Arc<Notify>,
    next: Arc<AtomicU64>,
}

impl Desk {
    pub(super) fn start(context: &mut Context) -> Result<Desk> {
        let answers = Arc::new(Notify::new());
        let asker = Http { answers: Arc::clone(&answers) };
        let submits = Submits::start(context.lanes()?, asker, || context.store())?;
        let asked = Arc::default();
        Ok(Desk { submits: Arc::new(Mutex::new(submits)), answers, asked, next: Arc::default() })
    }

    /// Hands over what is asked, for ever. A task of its own, which has its turn after those that are asking now: what they ask
    /// goes to the store's threads together, and wakes them once.
    pub(super) async fn hand_over(self) {
        loop {
            self.asked.notified().await;
            lock(&self.submits).flush();
        }
    }

    /// Asks the store, for a request of so many bytes.
    pub(super) async fn ask(&self, ask: Ask, manner: Manner, bytes: usize) -> Result<Told, Problem> {
        let (to, answered) = oneshot::channel();
        let of_job = |key: &JobKey| {
            let mut hasher = DefaultHasher::new();
            key.hash(&mut hasher);
            hasher.finish()
        };
        let line = ask.key().map_or_else(|| self.next.fetch_add(1, Ordering::Relaxed), of_job);
        let ticket = Ticket { line, manner, to };
        {
            let mut submits = lock(&self.submits);
            if submits.is_full() {
                return Err(Problem::unavailable("store_busy", "the store has too much to do already"));
            }
            submits
                .hand_in(ticket, ask, bytes)
                .map_err(|hung| Problem::unavailable("store_busy", hung.to_string()))?;
        }
        self.asked.notify_one();
        let unknown = "the store has not answered in time: the outcome is unknown";
        match tokio::time::timeout(STORE_TIMEOUT, answered).await {
            Ok(Ok(told)) => told,
            Ok(Err(_)) | Err(_) => Err(Problem::unavailable("unknown", unknown)),
        }
    }

    /// Waits until there are answers.
    pub(super) async fn answered(&self) {
        self.answers.notified().await;
    }

    /// Gives the store's answers to whoever waits for them.
    pub(super) fn hand_out(&self) {
        for (ticket, told) in lock(&self.submits).completions() {
            // Whoever asked may have gone.
            let _ = ticket.to.send(told);
        }
    }

    /// Whether this process must be started anew to find the store.
    pub(super) fn is_gone(&self) -> bool {
        lock(&self.submits).is_gone()
    }

    /// By when the store should have answered; none: it has nothing to answer.
    pub(super) fn due_by(&self) -> Option<Instant> {
        lock(&self.submits).due_by()
    }
}
