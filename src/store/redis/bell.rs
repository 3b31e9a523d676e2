//! Waits for work without polling. There is one connection to each shard, with one outstanding call. The server answers
//! this call when the bell rings. A thread waits for this answer, and wakes the process that watches the bell.
//!
//! A ring goes to one listener only. So one ring wakes only one process, even if many processes wait. Therefore a
//! process listens only while it can take work. A process that gets a ring for a topic that it may not take passes the
//! ring on, and rests for a moment before it listens again. Rings for clients that wait for jobs are different: they
//! are entries of a stream, and reach every listener.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use redis::{ConnectionLike, Value};

use super::node::{BellConnection, Node, NodeServer};
use super::{BELL_ROUND, Nodes, answer};
use crate::{Bell, BellKind, Ring, TopicRing};
use model::job::TopicName;

/// How long to wait before the bell of a node that is down is tried again.
const PAUSE: Duration = Duration::from_millis(500);

/// How long a process does not listen after it has passed on a ring, so that another process gets the ring.
const REST: Duration = Duration::from_millis(10);

/// The size of the stack of a listener thread, in bytes. A Cluster needs many such threads. The part of the stack that
/// is not used costs only address space.
const STACK: usize = 256 << 10;

/// A bell over all shards of a node.
pub struct RedisBell {
    rung: UnixStream,
    shared: Arc<SharedBellState>,
    nodes: Arc<Nodes>,
    lane: usize,
}

#[derive(Default)]
struct SharedBellState {
    state: Mutex<ListenerControl>,
    changed: Condvar,
    /// The rings since the process last read them.
    heard: Mutex<ReceivedRings>,
    /// For each shard: the server, and the id that this server gave to the connection that waits there.
    waiting: Mutex<BTreeMap<usize, (Arc<NodeServer>, i64)>>,
}

/// What the process wants from its listeners.
#[derive(Debug, Clone, Copy, Default)]
struct ListenerControl {
    listens: bool,
    rests_until: Option<Instant>,
    over: bool,
    /// How many listeners have not ended yet.
    listeners: usize,
}

impl ListenerControl {
    fn is_resting(&self) -> bool {
        self.rests_until.is_some_and(|until| until > Instant::now())
    }
}

#[derive(Debug, Default)]
struct ReceivedRings {
    all: bool,
    topics: BTreeMap<(usize, TopicName), String>,
}

impl SharedBellState {
    fn state(&self) -> MutexGuard<'_, ListenerControl> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl RedisBell {
    /// Begins to listen on the shards of a node.
    pub fn hang(nodes: &Arc<Nodes>, lane: usize, kind: BellKind) -> io::Result<RedisBell> {
        let (rung, ring) = UnixStream::pair()?;
        rung.set_nonblocking(true)?;
        ring.set_nonblocking(true)?;
        let shared = Arc::new(SharedBellState::default());
        shared.state().listens = true;
        for (shard, base) in nodes.nodes[lane].bases.iter().enumerate() {
            let key = match kind {
                BellKind::Push => format!("{base}bell"),
                BellKind::Pull => format!("{base}pbell"),
                BellKind::Timer => format!("{base}tbell"),
            };
            let (nodes, ring, shared) = (Arc::clone(nodes), ring.try_clone()?, Arc::clone(&shared));
            shared.state().listeners += 1;
            let listener = Listener { nodes, node: lane, shard, key, kind, ring, shared };
            let thread = std::thread::Builder::new().name("bell".into()).stack_size(STACK);
            thread.spawn(move || listener.listen())?;
        }
        Ok(RedisBell { rung, shared, nodes: Arc::clone(nodes), lane })
    }
}

impl AsFd for RedisBell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.rung.as_fd()
    }
}

impl Bell for RedisBell {
    fn loses_rings(&self) -> bool {
        true
    }

    fn answer(&self) -> io::Result<bool> {
        let mut rang = false;
        loop {
            match (&self.rung).read(&mut [0; 64]) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(_) => rang = true,
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(rang),
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
    }

    fn rings(&self) -> Vec<Ring> {
        let ReceivedRings { all, topics } =
            std::mem::take(&mut *self.shared.heard.lock().unwrap_or_else(PoisonError::into_inner));
        let of = |((shard, topic), number)| Ring::Of(TopicRing { topic, shard, number });
        all.then_some(Ring::All).into_iter().chain(topics.into_iter().map(of)).collect()
    }

    fn listen(&self, could: bool) {
        let mut state = self.shared.state();
        if state.listens != could {
            state.listens = could;
            self.shared.changed.notify_all();
        }
    }

    fn rest(&self) {
        self.shared.state().rests_until = Some(Instant::now() + REST);
    }
}

/// How long a drop waits for the listeners to end. A server may take that long to answer.
const LAST_RING: Duration = Duration::from_secs(1);

/// Waits for at most a second until no listener is left. A listener that still gets a ring gives the ring back before
/// it ends. Without this wait, the process could end first, and the ring would be lost.
impl Drop for RedisBell {
    fn drop(&mut self) {
        let until = Instant::now() + LAST_RING;
        self.shared.state().over = true;
        self.shared.changed.notify_all();
        let waiting =
            std::mem::take(&mut *self.shared.waiting.lock().unwrap_or_else(PoisonError::into_inner));
        self.nodes.nodes[self.lane].unblock(waiting.values());
        let mut state = self.shared.state();
        while state.listeners > 0 && Instant::now() < until {
            let left = until.saturating_duration_since(Instant::now());
            state = self.shared.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// How many rings are read at once.
const READ: usize = 1000;

/// Returns the entries of a stream: the id of each, and its topic.
fn entries(value: Value) -> Vec<(String, String)> {
    let Value::Array(entries) = value else { return Vec::new() };
    let entry = |entry: Value| {
        let Value::Array(parts) = entry else { return None };
        let [id, Value::Array(fields)] = <[Value; 2]>::try_from(parts).ok()? else { return None };
        Some((answer::text(id).ok()?, answer::text(fields.into_iter().nth(1)?).ok()?))
    };
    entries.into_iter().filter_map(entry).collect()
}

struct Listener {
    nodes: Arc<Nodes>,
    node: usize,
    shard: usize,
    key: String,
    kind: BellKind,
    ring: UnixStream,
    shared: Arc<SharedBellState>,
}

impl Listener {
    fn listen(self) {
        let node = &self.nodes.nodes[self.node];
        while !self.is_over() {
            // The listener does not know of rings that came while it did not listen. So the process looks for work
            // itself.
            self.wake(None);
            if let Err(e) = self.listen_on(node) {
                log::debug!("node {}: its bell: {e}", node.name);
                if !self.is_over() {
                    std::thread::sleep(PAUSE);
                }
            }
        }
        self.shared.state().listeners -= 1;
        self.shared.changed.notify_all();
    }

    fn listen_on(&self, node: &Node) -> redis::RedisResult<()> {
        let BellConnection { mut connection, server } = node.connect(self.shard, BELL_ROUND * 2)?;
        let number: i64 = redis::cmd("CLIENT").arg("ID").query(&mut connection)?;
        let mut waiting = self.shared.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.insert(self.shard, (server, number));
        drop(waiting);
        if self.kind == BellKind::Pull {
            return self.read_on(&mut connection);
        }
        let mut wait = redis::cmd("BZPOPMIN");
        wait.arg(&self.key).arg(BELL_ROUND.as_secs());
        while self.may_listen() {
            // The redis crate returns an error of the server as a value.
            let Value::Array(rung) = connection.req_command(&wait)?.extract_error()? else { continue };
            let [_, Value::BulkString(what), score] = &rung[..] else { continue };
            let state = *self.shared.state();
            if state.listens && !state.over && !state.is_resting() {
                self.wake(answer::text(score.clone()).ok().zip(std::str::from_utf8(what).ok()));
            } else {
                // The process cannot use this ring now. The ring is given back, so that another process gets it.
                let mut again = redis::cmd("ZADD");
                again
                    .arg(&self.key)
                    .arg("NX")
                    .arg(redis::from_redis_value::<String>(score.clone())?)
                    .arg(&what[..]);
                connection.req_command(&again)?.extract_error()?;
            }
        }
        Ok(())
    }

    /// Reads the stream of rings. Each listener gets each entry.
    fn read_on(&self, connection: &mut impl ConnectionLike) -> redis::RedisResult<()> {
        let mut newest = redis::cmd("XREVRANGE");
        newest.arg(&self.key).arg("+").arg("-").arg("COUNT").arg(1);
        let found = connection.req_command(&newest)?.extract_error()?;
        let mut last = entries(found).pop().map_or_else(|| "0-0".to_owned(), |(id, _)| id);
        // The listener does not read the entries up to this one. They may be for work that no process has looked for.
        // So the process looks for work now.
        self.wake(None);
        while self.may_listen() {
            let mut wait = redis::cmd("XREAD");
            wait.arg("COUNT").arg(READ).arg("BLOCK").arg(BELL_ROUND.as_millis() as u64);
            wait.arg("STREAMS").arg(&self.key).arg(&last);
            let Value::Array(streams) = connection.req_command(&wait)?.extract_error()? else { continue };
            for stream in streams {
                let Value::Array(named) = stream else { continue };
                let Some(rings) = named.into_iter().nth(1) else { continue };
                for (id, topic) in entries(rings) {
                    self.wake(Some((id.clone(), &topic)));
                    last = id;
                }
            }
        }
        Ok(())
    }

    fn is_over(&self) -> bool {
        self.shared.state().over
    }

    /// Waits until the listener may listen. Returns false if the bell is closed.
    fn may_listen(&self) -> bool {
        let mut state = self.shared.state();
        loop {
            let rest = state.rests_until.map(|until| until.saturating_duration_since(Instant::now()));
            match rest.filter(|left| !left.is_zero()) {
                _ if state.over => return false,
                Some(left) => {
                    state = self
                        .shared
                        .changed
                        .wait_timeout(state, left)
                        .unwrap_or_else(PoisonError::into_inner)
                        .0
                }
                None if state.listens => return true,
                None => state = self.shared.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }

    /// Wakes the process that watches the bell. `rung`: the number of the ring, and the topic that rang. None: any
    /// topic may have rung.
    fn wake(&self, rung: Option<(String, &str)>) {
        let mut heard = self.shared.heard.lock().unwrap_or_else(PoisonError::into_inner);
        match rung.and_then(|(number, topic)| Some((number, TopicName::new(topic).ok()?))) {
            Some((number, topic)) => drop(heard.topics.insert((self.shard, topic), number)),
            None => heard.all = true,
        }
        drop(heard);
        // If the socket is full, the process wakes anyway. If its other end is closed, the bell is closed.
        let _ = (&self.ring).write(&[1]);
    }
}
