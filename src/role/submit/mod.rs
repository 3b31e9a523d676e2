//! Asks the store on behalf of the many clients of a server (dq-server or dq-http-server). Each lane of the store has
//! threads of its own, so that a node that hangs delays only its own jobs. Requests that arrive while a thread is busy
//! go to the store as one batch.
//!
//! A server hands in requests, each with a reply address, and flushes. It is woken when there are answers, and then
//! takes them. These steps never wait for the store.

mod job_search;
mod lane;
mod letters;
mod list;
mod records;
mod refused;
mod request;

use std::collections::{HashMap, VecDeque};
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

pub use self::job_search::{FoundJobs, JobCursor, JobQuery};
use self::lane::LaneQueueHandle;
pub use self::letters::{DeadLetterTask, FoundDeadLetters};
pub use self::list::ListRequest;
pub use self::records::{FoundId, FoundIds, FoundRecords, RecordCursor, RecordQuery, SearchedTopic};
pub use self::request::StoreRequest;
use store::{Lanes, Result, Store};

/// A store counts as hung if it has not answered for this long. Its requests are answered with `unknown`. It gets no
/// more requests until it answers.
pub const STORE_TIMEOUT: Duration = Duration::from_secs(10);

/// The maximum number of requests, and of their bytes, that wait for earlier requests of their sequence. At one of
/// these limits, nothing more is read from clients.
const WAITING_MAX: usize = 20_000;
const WAITING_BYTES_MAX: usize = 64 << 20;

/// A thread that has requests and has answered none of them for this time is slow: perhaps a long request is under way,
/// or the store hangs.
const SLOW: Duration = Duration::from_millis(5);

/// How much a thread has to do.
#[derive(Debug, Clone, Copy)]
struct ThreadLoad {
    unanswered: usize,
    /// For how long no request was answered. Zero if the thread has nothing to do.
    silent: Duration,
}

/// The part of a server that the threads of the store use.
pub trait Frontend: Send + Sync + 'static {
    /// Identifies a request and its client, so that this client gets the answer.
    type ReplyAddress: Send;
    /// The answer that the client gets.
    type Response: Send + 'static;

    /// Returns the sequence of a request. The requests of one sequence are done in their order. In dq-server, each
    /// connection is a sequence.
    fn sequence(reply_to: &Self::ReplyAddress) -> u64;

    /// Returns the length of an answer, in bytes.
    fn bytes(response: &Self::Response) -> usize;

    /// Tells the server that there are answers.
    fn wake(&self);
}

/// The lane hangs, so the request was not passed to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the store does not answer; nothing was handed to it")]
pub struct LaneHung;

/// The server's side of all lanes.
pub struct Submitter<A: Frontend> {
    lanes: Lanes,
    /// The number of threads for each lane. The index of such a thread in its lane is called a way. While one thread
    /// waits for the store, another one collects a batch. The requests of a sequence that are in progress use the same
    /// way in all lanes. So they keep their order.
    ways: usize,
    /// The threads of each lane, one lane after the other. If there are several lanes, one more thread is for requests
    /// to all lanes together.
    threads: Vec<LaneQueueHandle<A>>,
    /// With several lanes or ways: the requests in progress, by sequence. A request to all lanes keeps its place in the
    /// sequence.
    sequences: HashMap<u64, OrderedRequestQueue<A>>,
    /// The requests that wait for earlier requests of their sequence: how many there are, and how many bytes they have.
    waiting: (usize, usize),
}

/// The requests of one sequence.
struct OrderedRequestQueue<A: Frontend> {
    /// The way that these requests use.
    way: usize,
    /// How many requests are under way, each to one lane.
    to_one: usize,
    /// Whether a request to all lanes is under way.
    to_all: bool,
    /// The number of the set of nodes that the requests under way use. With another set, the next request for the same
    /// job may go to another lane. So a request with another set waits until these requests are answered.
    set: u64,
    /// The requests that wait for the requests in progress, in their order.
    waiting: VecDeque<QueuedRequest<A>>,
}

/// A request that a server has handed in.
struct QueuedRequest<A: Frontend> {
    reply_to: A::ReplyAddress,
    request: StoreRequest<A::Response>,
    bytes: usize,
}

impl<A: Frontend> OrderedRequestQueue<A> {
    fn may_go(&self, is_to_all: bool, set: u64) -> bool {
        !self.to_all && (self.to_one == 0 || !is_to_all && self.set == set)
    }
}

impl<A: Frontend> Submitter<A> {
    /// Starts the threads. `open` returns a handle to the whole store for each of them.
    pub fn start<E: From<io::Error>>(
        lanes: Lanes,
        source: A,
        mut open: impl FnMut() -> Result<Box<dyn Store>, E>,
    ) -> Result<Submitter<A>, E> {
        let source = Arc::new(source);
        let ways = lanes.ways();
        let count = lanes.count() * ways + usize::from(lanes.count() > 1);
        let cannot = |e: io::Error| io::Error::new(e.kind(), format!("cannot start a submit thread: {e}"));
        let threads =
            (0..count).map(|_| Ok(LaneQueueHandle::start(open()?, Arc::clone(&source)).map_err(cannot)?));
        Ok(Submitter {
            threads: threads.collect::<Result<_, E>>()?,
            lanes,
            ways,
            sequences: HashMap::new(),
            waiting: (0, 0),
        })
    }

    /// Starts one thread, for requests that are not about a single job or lane. `store` is a handle to the whole store.
    pub fn start_reader(lanes: Lanes, source: A, store: Box<dyn Store>) -> io::Result<Submitter<A>> {
        let threads = vec![LaneQueueHandle::start(store, Arc::new(source))?];
        Ok(Submitter { threads, lanes, ways: 1, sequences: HashMap::new(), waiting: (0, 0) })
    }

    /// Returns the lane of a request. None: it is for all lanes, and there are several.
    fn lane_of(&self, request: &StoreRequest<A::Response>) -> Option<usize> {
        request.lane(&self.lanes).or((self.lanes.count() == 1).then_some(0))
    }

    /// Returns the thread for a way of that lane, or for requests to all lanes together.
    fn thread(&self, lane: Option<usize>, way: usize) -> usize {
        lane.map_or(self.threads.len() - 1, |lane| lane * self.ways + way)
    }

    /// Returns the way for a sequence that has no request under way.
    fn free_way(&self, lane: Option<usize>) -> usize {
        let first = self.thread(lane, 0);
        match lane {
            Some(_) if self.ways > 1 => {
                way_for(self.threads[first..first + self.ways].iter().map(LaneQueueHandle::load))
            }
            _ => 0,
        }
    }

    /// Takes a request. `bytes` is its length. The request goes to the store at the next flush.
    pub fn hand_in(
        &mut self,
        reply_to: A::ReplyAddress,
        request: StoreRequest<A::Response>,
        bytes: usize,
    ) -> Result<(), LaneHung> {
        let sequence = A::sequence(&reply_to);
        let lane = self.lane_of(&request);
        let under_way = self.sequences.get(&sequence);
        let way = under_way.map_or_else(|| self.free_way(lane), |queue| queue.way);
        let thread = self.thread(lane, way);
        if self.threads[thread].is_hung() {
            return Err(LaneHung);
        }
        if self.has_several_threads() {
            let set = self.lanes.set_number();
            let fresh =
                || OrderedRequestQueue { way, to_one: 0, to_all: false, set, waiting: VecDeque::new() };
            let sequence = self.sequences.entry(sequence).or_insert_with(fresh);
            if !sequence.waiting.is_empty() || !sequence.may_go(lane.is_none(), set) {
                // A request that waits needs the answers to earlier requests, which may be on any lane. So this request
                // is refused if a lane hangs.
                if self.threads.iter().any(LaneQueueHandle::is_hung) {
                    return Err(LaneHung);
                }
                sequence.waiting.push_back(QueuedRequest { reply_to, request, bytes });
                self.waiting = (self.waiting.0 + 1, self.waiting.1 + bytes);
                return Ok(());
            }
            note_under_way(sequence, lane, set);
        }
        self.threads[thread].hand_in(QueuedRequest { reply_to, request, bytes });
        Ok(())
    }

    /// Notes that a request of a sequence was answered. The requests that have waited for this answer go to the store
    /// threads.
    fn answered(&mut self, number: u64) {
        let Some(mut sequence) = self.sequences.remove(&number) else { return };
        if !std::mem::take(&mut sequence.to_all) {
            sequence.to_one = sequence.to_one.saturating_sub(1);
        }
        while let Some(first) = sequence.waiting.pop_front() {
            let (lane, set) = (self.lane_of(&first.request), self.lanes.set_number());
            if !sequence.may_go(lane.is_none(), set) {
                sequence.waiting.push_front(first);
                break;
            }
            let thread = self.thread(lane, sequence.way);
            note_under_way(&mut sequence, lane, set);
            self.waiting = (self.waiting.0 - 1, self.waiting.1 - first.bytes);
            self.threads[thread].hand_in(first);
            self.threads[thread].flush();
        }
        if sequence.to_all || sequence.to_one > 0 {
            self.sequences.insert(number, sequence);
        }
    }

    /// Whether there are several threads. One thread keeps the order of its requests, but several threads need
    /// `sequences` for this.
    fn has_several_threads(&self) -> bool {
        self.threads.len() > 1
    }

    /// Gives all new requests to the threads.
    pub fn flush(&mut self) {
        self.threads.iter_mut().for_each(LaneQueueHandle::flush);
    }

    /// Returns whether the file of the store is gone, so that this process must be started again.
    pub fn is_gone(&self) -> bool {
        self.threads.iter().any(LaneQueueHandle::is_gone)
    }

    /// Returns whether the store has so much to do that nothing more should be read from clients.
    pub fn is_full(&self) -> bool {
        let (waiting, bytes) = self.waiting;
        self.threads.iter().any(LaneQueueHandle::is_full)
            || waiting >= WAITING_MAX
            || bytes >= WAITING_BYTES_MAX
    }

    /// Returns the time by which the store should have answered. None: the store has nothing to answer.
    pub fn due_by(&self) -> Option<Instant> {
        self.threads.iter().filter_map(LaneQueueHandle::due_by).min()
    }

    /// Returns the store's answers since the last call.
    pub fn completions(&mut self) -> Vec<(A::ReplyAddress, A::Response)> {
        let done: Vec<(A::ReplyAddress, A::Response)> =
            self.threads.iter_mut().flat_map(LaneQueueHandle::completions).collect();
        if self.has_several_threads() {
            done.iter().for_each(|(reply_to, _)| self.answered(A::sequence(reply_to)));
        }
        done
    }
}

/// Returns the way (the number of a store thread) for the requests of a new sequence. Among the ways that are not slow, this is the way with the fewest
/// unanswered requests. If all ways are slow, it is the way that has answered last, because the others may hang.
fn way_for(loads: impl Iterator<Item = ThreadLoad>) -> usize {
    let key = |load: &ThreadLoad| (load.silent.max(SLOW), load.unanswered);
    loads.enumerate().min_by_key(|(_, load)| key(load)).map_or(0, |(way, _)| way)
}

/// Notes that a request of a sequence is under way, to one lane or to all.
fn note_under_way<A: Frontend>(sequence: &mut OrderedRequestQueue<A>, lane: Option<usize>, set: u64) {
    sequence.set = set;
    match lane {
        Some(_) => sequence.to_one += 1,
        None => sequence.to_all = true,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Sender, channel};

    use super::*;
    use model::job::{JobId, JobKey, TopicName};

    /// A server whose reply addresses are pairs: the sequence of a request, and its number in the sequence. It is woken
    /// by a message.
    pub(super) struct TestRequestSource(std::sync::Mutex<Sender<()>>);

    impl Frontend for TestRequestSource {
        type ReplyAddress = (u64, u64);
        type Response = ();

        fn sequence(reply_to: &(u64, u64)) -> u64 {
            reply_to.0
        }

        fn bytes((): &()) -> usize {
            0
        }

        fn wake(&self) {
            let _ = crate::lock(&self.0).send(());
        }
    }

    pub(super) fn key() -> JobKey {
        JobKey { topic: TopicName::new("t").unwrap(), id: JobId::new("i").unwrap() }
    }

    /// Makes a request that is answered only after `before` has returned.
    fn get(before: impl FnOnce() + Send + 'static) -> StoreRequest<()> {
        StoreRequest::get(key(), |_, found| {
            found.unwrap();
            before();
        })
    }

    #[test]
    fn a_slow_request_holds_back_only_its_own_sequence() {
        let dir = tempfile::tempdir().unwrap();
        let settings = config::development(dir.path(), std::iter::empty()).unwrap();
        let (wake, woken) = channel();
        let source = Arc::new(TestRequestSource(std::sync::Mutex::new(wake)));
        let open = || store::open(&settings.store, dir.path()).unwrap();
        let threads = (0..2).map(|_| LaneQueueHandle::start(open(), Arc::clone(&source)).unwrap()).collect();
        let lanes = Lanes::new(&settings.store).unwrap();
        let mut submitter = Submitter { threads, lanes, ways: 2, sequences: HashMap::new(), waiting: (0, 0) };

        let (open_gate, gate) = channel::<()>();
        submitter.hand_in((1, 1), get(move || _ = gate.recv()), 10).unwrap();
        submitter.flush();
        submitter.hand_in((1, 2), get(|| ()), 10).unwrap();
        submitter.hand_in((2, 1), get(|| ()), 10).unwrap();
        submitter.flush();
        let mut answered = Vec::new();
        let mut wait_for = |submitter: &mut Submitter<TestRequestSource>, count: usize| {
            while answered.len() < count {
                woken.recv_timeout(STORE_TIMEOUT).expect("the store answers");
                answered.extend(submitter.completions().into_iter().map(|(reply_to, ())| reply_to));
            }
            answered.clone()
        };
        assert_eq!(wait_for(&mut submitter, 1), [(2, 1)]);
        assert_eq!(submitter.threads[0].load().unanswered, 2, "sequence 1 keeps its thread");
        open_gate.send(()).unwrap();
        assert_eq!(wait_for(&mut submitter, 3), [(2, 1), (1, 1), (1, 2)]);
        assert!(submitter.sequences.is_empty());
    }

    #[test]
    fn a_sequence_gets_the_way_with_the_fewest_requests() {
        let way = |loads: [(usize, Duration); 2]| {
            way_for(loads.into_iter().map(|(unanswered, silent)| ThreadLoad { unanswered, silent }))
        };
        let (soon, long) = (Duration::ZERO, STORE_TIMEOUT);
        assert_eq!(way([(0, soon), (0, soon)]), 0);
        assert_eq!(way([(1, soon), (0, soon)]), 1);
        assert_eq!(way([(3, soon), (2, soon)]), 1);
        assert_eq!(way([(2, soon), (2, soon)]), 0);
        // A thread that hangs gets nothing while the other one answers.
        assert_eq!(way([(1, long), (9, soon)]), 1);
        assert_eq!(way([(1, long), (2, SLOW * 2)]), 1);
    }
}
