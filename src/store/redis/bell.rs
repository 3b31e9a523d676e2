//! Waiting for work without asking: on each shard one connection with one call outstanding, which the server answers when it
//! rings. A thread waits there, and wakes whoever watches the bell.
//!
//! A ring goes to one of those who listen, so that work for one wakes one, however many wait. So only who could take work
//! listens, and who was told of what it may not take passes it on, and rests for a moment before it listens again.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use redis::{ConnectionLike, Value};

use super::node::{Endpoint, Node, Waiting};
use super::{BELL_ROUND, Nodes, answer};
use crate::job::TopicName;
use crate::store::{Bell, BellKind, Ring, TopicRing};

/// How long a node that is down is left alone before its bell is tried again.
const PAUSE: Duration = Duration::from_millis(500);

/// How long one that has passed a ring on leaves the bell to the others.
const REST: Duration = Duration::from_millis(10);

/// A listener's stack. A Cluster has many of them; what a thread does not touch of it costs nothing but addresses.
const STACK: usize = 256 << 10;

/// A bell over all shards of a node.
pub struct RedisBell {
    rung: UnixStream,
    shared: Arc<Shared>,
    nodes: Arc<Nodes>,
    lane: usize,
}

#[derive(Default)]
struct Shared {
    mood: Mutex<Mood>,
    changed: Condvar,
    /// What has rung since it was last asked.
    heard: Mutex<Heard>,
    /// Of each shard, the server and the number by which it knows the connection that waits there.
    waiting: Mutex<BTreeMap<usize, (Arc<Endpoint>, i64)>>,
}

/// What the bell's owner wants of its listeners.
#[derive(Debug, Clone, Copy, Default)]
struct Mood {
    listens: bool,
    rests_until: Option<Instant>,
    over: bool,
    /// How many listeners have not ended.
    listeners: usize,
}

impl Mood {
    fn rests(&self) -> bool {
        self.rests_until.is_some_and(|until| until > Instant::now())
    }
}

#[derive(Debug, Default)]
struct Heard {
    all: bool,
    topics: BTreeMap<(usize, TopicName), String>,
}

impl Shared {
    fn mood(&self) -> MutexGuard<'_, Mood> {
        self.mood.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl RedisBell {
    /// Listens on a node's shards from now on.
    pub fn hang(nodes: &Arc<Nodes>, lane: usize, kind: BellKind) -> io::Result<RedisBell> {
        let (rung, ring) = UnixStream::pair()?;
        rung.set_nonblocking(true)?;
        ring.set_nonblocking(true)?;
        let shared = Arc::new(Shared::default());
        shared.mood().listens = true;
        for (shard, base) in nodes.nodes[lane].bases.iter().enumerate() {
            let key = format!("{base}{}", if kind == BellKind::Push { "bell" } else { "tbell" });
            let (nodes, ring, shared) = (Arc::clone(nodes), ring.try_clone()?, Arc::clone(&shared));
            shared.mood().listeners += 1;
            let listener = Listener { nodes, node: lane, shard, key, ring, shared };
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
        let Heard { all, topics } =
            std::mem::take(&mut *self.shared.heard.lock().unwrap_or_else(PoisonError::into_inner));
        let of = |((shard, topic), number)| Ring::Of(TopicRing { topic, shard, number });
        all.then_some(Ring::All).into_iter().chain(topics.into_iter().map(of)).collect()
    }

    fn listen(&self, could: bool) {
        let mut mood = self.shared.mood();
        if mood.listens != could {
            mood.listens = could;
            self.shared.changed.notify_all();
        }
    }

    fn rest(&self) {
        self.shared.mood().rests_until = Some(Instant::now() + REST);
    }
}

/// How long the end waits for listeners: as long as a server takes that answers.
const LAST_RING: Duration = Duration::from_secs(1);

/// Ends when nobody listens any more: what a listener is told after that would be told to nobody.
impl Drop for RedisBell {
    fn drop(&mut self) {
        let until = Instant::now() + LAST_RING;
        self.shared.mood().over = true;
        self.shared.changed.notify_all();
        let waiting =
            std::mem::take(&mut *self.shared.waiting.lock().unwrap_or_else(PoisonError::into_inner));
        self.nodes.nodes[self.lane].unblock(waiting.values());
        let mut mood = self.shared.mood();
        while mood.listeners > 0 && Instant::now() < until {
            let left = until.saturating_duration_since(Instant::now());
            mood = self.shared.changed.wait_timeout(mood, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

struct Listener {
    nodes: Arc<Nodes>,
    node: usize,
    shard: usize,
    key: String,
    ring: UnixStream,
    shared: Arc<Shared>,
}

impl Listener {
    fn listen(self) {
        let node = &self.nodes.nodes[self.node];
        while !self.is_over() {
            // What rang while nobody listened is not known: whoever watches looks for himself.
            self.wake(None);
            if let Err(e) = self.listen_on(node) {
                log::debug!("node {}: its bell: {e}", node.name);
                if !self.is_over() {
                    std::thread::sleep(PAUSE);
                }
            }
        }
        self.shared.mood().listeners -= 1;
        self.shared.changed.notify_all();
    }

    fn listen_on(&self, node: &Node) -> redis::RedisResult<()> {
        let Waiting { mut connection, server } = node.connect(self.shard, BELL_ROUND * 2)?;
        let number: i64 = redis::cmd("CLIENT").arg("ID").query(&mut connection)?;
        let mut waiting = self.shared.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.insert(self.shard, (server, number));
        drop(waiting);
        let mut wait = redis::cmd("BZPOPMIN");
        wait.arg(&self.key).arg(BELL_ROUND.as_secs());
        while self.may_listen() {
            // What a server refuses comes as a value.
            let Value::Array(rung) = connection.req_command(&wait)?.extract_error()? else { continue };
            let [_, Value::BulkString(what), score] = &rung[..] else { continue };
            let mood = *self.shared.mood();
            if mood.listens && !mood.over && !mood.rests() {
                self.wake(answer::text(score.clone()).ok().zip(std::str::from_utf8(what).ok()));
            } else {
                // Somebody else is to hear it.
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

    fn is_over(&self) -> bool {
        self.shared.mood().over
    }

    /// Waits until it is to listen. Tells whether it ever is.
    fn may_listen(&self) -> bool {
        let mut mood = self.shared.mood();
        loop {
            let rests = mood.rests_until.map(|until| until.saturating_duration_since(Instant::now()));
            match rests.filter(|left| !left.is_zero()) {
                _ if mood.over => return false,
                Some(left) => {
                    mood =
                        self.shared.changed.wait_timeout(mood, left).unwrap_or_else(PoisonError::into_inner).0
                }
                None if mood.listens => return true,
                None => mood = self.shared.changed.wait(mood).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }

    /// Wakes whoever watches: a topic has rung, with its score; or anything may have.
    fn wake(&self, rung: Option<(String, &str)>) {
        let mut heard = self.shared.heard.lock().unwrap_or_else(PoisonError::into_inner);
        match rung.and_then(|(number, topic)| Some((number, TopicName::new(topic).ok()?))) {
            Some((number, topic)) => drop(heard.topics.insert((self.shard, topic), number)),
            None => heard.all = true,
        }
        drop(heard);
        // A full pipe wakes as well; one that nobody reads is over.
        let _ = (&self.ring).write(&[1]);
    }
}
