//! Asks the store on behalf of many clients, whichever server has them. Threads of its own for each lane of the store, so that a node
//! that hangs holds up its own jobs alone; what has come together while one was busy goes to the store as one batch.
//!
//! A server hands requests in, each with a ticket, and flushes; it is woken when there are answers, which it then takes.
//! Neither waits for the store.

mod lane;
mod letters;
mod list;
mod refused;

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use self::lane::Lane;
pub use self::letters::Found;
use crate::job::{JobKey, NewJob, State, TopicName};
use crate::letters::{Filter, Pace};
use crate::store::{
    Added, Change, Changed, CircuitView, Counts, Lanes, Page, Result, Settled, Settlement, Store, View, Which,
};
use crate::ticket::Secret;

/// A store that has not answered for so long is taken to hang: what it has is answered with `unknown`, and nothing more
/// is handed to it until it answers.
pub const STORE_TIMEOUT: Duration = Duration::from_secs(10);

/// What the store is asked.
#[derive(Debug)]
pub enum Ask {
    /// Store a job.
    Add(NewJob),
    /// Store many.
    AddMany(Vec<NewJob>),
    /// Show a job.
    Get(JobKey),
    /// Remove a job.
    Delete(JobKey),
    /// Change a job that waits.
    Change(JobKey, Change),
    /// Deliver a job now.
    Run(JobKey),
    /// Show some of a topic's jobs in one state. Where they are large, fewer than `limit` are shown, and where to go on.
    List {
        /// The topic.
        topic: TopicName,
        /// The state.
        state: State,
        /// Of dead letters: those that this picks. There may be none of them on a page behind which there are more.
        filter: Option<Filter>,
        /// What the page before gave.
        cursor: Option<String>,
        /// How many jobs at most.
        limit: usize,
    },
    /// Name dead letters that a filter picks. Of a long look those are named that a step has found, and where to go on.
    Find {
        /// The topic.
        topic: TopicName,
        /// What picks them.
        filter: Filter,
        /// What the look before gave.
        cursor: Option<String>,
        /// How many at most.
        limit: usize,
    },
    /// Settle a leased job.
    Settle(Settlement),
    /// Tell what tickets for a lane's leases are signed with.
    Secret(usize),
    /// Count the jobs of all topics.
    Count,
    /// Have a topic's jobs delivered no more; or again, whatever its circuit says.
    Pause(TopicName, bool),
    /// Tell which topics are paused, and which circuits are not closed.
    Paused,
    /// Remove up to so many of a topic's jobs that are in one state.
    Purge(TopicName, State, usize),
    /// Do something with some of a topic's dead letters. Large numbers are asked for in several steps, so that others have
    /// their turn.
    Dead {
        /// The topic.
        topic: TopicName,
        /// Which of them.
        which: Which,
        /// How many at most; of named ids all are removed, or counted.
        limit: usize,
        /// What.
        what: Undertake,
    },
}

impl Ask {
    /// The job that it is about; of many the first.
    pub fn key(&self) -> Option<&JobKey> {
        match self {
            Ask::Add(job) => Some(&job.key),
            Ask::AddMany(jobs) => jobs.first().map(|job| &job.key),
            Ask::Get(key) | Ask::Delete(key) | Ask::Change(key, _) | Ask::Run(key) => Some(key),
            Ask::Settle(settlement) => Some(&settlement.key),
            Ask::List { .. }
            | Ask::Find { .. }
            | Ask::Secret(_)
            | Ask::Count
            | Ask::Purge(..)
            | Ask::Dead { .. }
            | Ask::Pause(..)
            | Ask::Paused => None,
        }
    }
}

/// What is done with dead letters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Undertake {
    /// It is counted how many a redrive would find: of an id one, and none whose job is live. Of all: how many letters there are.
    CountForRedrive,
    /// It is counted how many a purge would find.
    CountForPurge,
    /// They are made ready, or delayed.
    Redrive(Pace),
    /// They are removed.
    Purge,
}

/// What the store said, and of which job where it was asked of one.
#[derive(Debug)]
pub enum Answer {
    /// To an add.
    Added(Result<Added>),
    /// To an add of many: to each by itself, in their order.
    AddedMany(Vec<Result<Added>>),
    /// To a get. (Boxed: it is much larger than the others.)
    Got(JobKey, Result<Option<Box<View>>>),
    /// To a delete: whether it was there.
    Deleted(JobKey, Result<bool>),
    /// To a change or a run.
    Changed(JobKey, Result<Changed>),
    /// To a listing.
    Listed(Result<Page>),
    /// To a look for dead letters.
    Found(Result<Found>),
    /// To a settlement.
    Settled(Result<Settled>),
    /// To the question for a secret.
    Secret(Result<Secret>),
    /// To a count.
    Counted(Result<Vec<Counts>>),
    /// To what was done with dead letters, or a purge: with how many.
    Dead(Result<usize>),
    /// To a pause, or its end.
    Said(Result<()>),
    /// To the question for topics whose jobs are held back: those that are paused, and circuits.
    Paused(Result<(Vec<TopicName>, Vec<CircuitView>)>),
}

/// A server, as those who ask the store for it see it. All but [`Asker::wake`] and [`Asker::told`] is theirs alone.
pub trait Asker: Send + Sync + 'static {
    /// Which request of whom, and what its answer is made by.
    type Ticket: Send;
    /// An answer as the client gets it.
    type Told: Send;

    /// The line that a request stands in: those of one line are done in their order.
    fn line(ticket: &Self::Ticket) -> u64;

    /// The answer as the client gets it. It is made on the store's thread, so that a long one holds up no other client.
    fn told(&self, ticket: &Self::Ticket, answer: Answer) -> Self::Told;

    /// The length of such an answer, in bytes.
    fn bytes(told: &Self::Told) -> usize;

    /// Lets the server know that there are answers.
    fn wake(&self);
}

/// The lane hangs: nothing was handed to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the store does not answer; nothing was handed to it")]
pub struct Hung;

/// The server's side of all lanes.
pub struct Submits<A: Asker> {
    lanes: Lanes,
    /// Of each lane so many: what a line asks goes through one of them, so that a batch is made up while another is on its way.
    ways: usize,
    /// Those of each lane, one lane after the other; and one for what is asked of all of them together, where there are several.
    threads: Vec<Lane<A>>,
}

impl<A: Asker> Submits<A> {
    /// Starts the threads. `open` gives a handle to the whole store for each.
    pub fn start<E: From<io::Error>>(
        lanes: Lanes,
        asker: A,
        mut open: impl FnMut() -> Result<Box<dyn Store>, E>,
    ) -> Result<Submits<A>, E> {
        let asker = Arc::new(asker);
        let ways = lanes.ways();
        let count = lanes.count() * ways + usize::from(lanes.count() > 1);
        let cannot = |e: io::Error| io::Error::new(e.kind(), format!("cannot start a submit thread: {e}"));
        let threads = (0..count).map(|_| Ok(Lane::start(open()?, Arc::clone(&asker)).map_err(cannot)?));
        Ok(Submits { threads: threads.collect::<Result<_, E>>()?, lanes, ways })
    }

    /// The lane that a request is for; none: all of them together.
    fn lane_of(&self, ask: &Ask) -> Option<usize> {
        match ask {
            Ask::Secret(lane) => Some(*lane),
            Ask::Settle(settlement) => self.lanes.of_token(&settlement.token),
            _ => ask.key().map(|key| self.lanes.of(key)),
        }
    }

    fn thread_for(&mut self, ask: &Ask, line: u64) -> &mut Lane<A> {
        let lane = self.lane_of(ask).or((self.lanes.count() == 1).then_some(0));
        let way = usize::try_from(line % self.ways as u64).unwrap_or(0);
        let thread = lane.map_or(self.threads.len() - 1, |lane| lane * self.ways + way);
        &mut self.threads[thread]
    }

    /// Takes a request of so many bytes; it goes to the store at the next flush.
    pub fn hand_in(&mut self, ticket: A::Ticket, ask: Ask, bytes: usize) -> Result<(), Hung> {
        let lane = self.thread_for(&ask, A::line(&ticket));
        if lane.is_hung() {
            return Err(Hung);
        }
        lane.hand_in(ticket, ask, bytes);
        Ok(())
    }

    /// Hands over what has come together.
    pub fn flush(&mut self) {
        self.threads.iter_mut().for_each(Lane::flush);
    }

    /// Whether this process must be started anew to find the store.
    pub fn is_gone(&self) -> bool {
        self.threads.iter().any(Lane::is_gone)
    }

    /// Whether the store has enough to do, so that what comes is better left with the clients.
    pub fn is_full(&self) -> bool {
        self.threads.iter().any(Lane::is_full)
    }

    /// By when the store should have answered; none: it has nothing to answer.
    pub fn due_by(&self) -> Option<Instant> {
        self.threads.iter().filter_map(Lane::due_by).min()
    }

    /// The store's answers since the last call.
    pub fn completions(&mut self) -> Vec<(A::Ticket, A::Told)> {
        self.threads.iter_mut().flat_map(Lane::completions).collect()
    }
}
