//! One node: its connections, whether it is down, and what its answers and errors mean.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use redis::{Cmd, ConnectionLike, RedisError, ServerErrorKind, Value};

use super::breaker::Breaker;
use super::script::Script;
use crate::settings;
use crate::store::{Probe, StoreError};

/// What a connection may be idle before it is asked whether it still is one: what is sent on one that the server has closed
/// meanwhile has an unknown outcome.
const FRESH: Duration = Duration::from_secs(1);

/// Why a call brought nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Failure {
    /// Nothing was changed.
    NotRun(StoreError),
    /// The server does not know the script, and has not run it.
    NoScript,
    /// It may have been done or not.
    Unknown(StoreError),
}

impl Failure {
    pub(super) fn into_error(self) -> StoreError {
        match self {
            Failure::NotRun(e) | Failure::Unknown(e) => e,
            Failure::NoScript => StoreError::Unavailable("a server forgets its scripts at once".into()),
        }
    }
}

/// Makes connections to a server.
#[derive(Debug)]
struct Manager {
    client: redis::Client,
    timeout: Duration,
}

/// A connection, and when it was last heard of.
struct Wire {
    connection: redis::Connection,
    used_at: Instant,
    /// It leads to a server that is not, or no longer, what it should be.
    stale: bool,
}

impl r2d2::ManageConnection for Manager {
    type Connection = Wire;
    type Error = RedisError;

    fn connect(&self) -> Result<Wire, RedisError> {
        let connection = connect(&self.client, self.timeout, self.timeout)?;
        Ok(Wire { connection, used_at: Instant::now(), stale: false })
    }

    fn is_valid(&self, wire: &mut Wire) -> Result<(), RedisError> {
        redis::cmd("PING").query(&mut wire.connection)
    }

    fn has_broken(&self, wire: &mut Wire) -> bool {
        wire.stale || !wire.connection.is_open()
    }
}

/// A node and its shards.
pub(super) struct Node {
    pub name: String,
    /// What the keys of each shard begin with.
    pub bases: Vec<String>,
    pool: r2d2::Pool<Manager>,
    client: redis::Client,
    timeout: Duration,
    breaker: Mutex<Breaker>,
    /// Where the node keeps how many shards it has, since it was first used.
    shards_key: String,
    /// It has been found to be what the settings say.
    known: AtomicBool,
}

/// A call of a script on a shard.
pub(super) struct Call {
    pub script: Script,
    pub cmd: Cmd,
}

impl Node {
    /// A node as the settings have it. Does not connect yet.
    pub(super) fn new(node: &settings::Node, of: &settings::Redis) -> Result<Node, StoreError> {
        let wrong = |e: RedisError| StoreError::Unavailable(format!("node {}: {e}", node.name));
        let client = redis::Client::open(node.url.as_str()).map_err(wrong)?;
        let manager = Manager { client: client.clone(), timeout: of.timeout };
        let pool = r2d2::Pool::builder()
            .max_size(of.pool)
            .min_idle(Some(0))
            .test_on_check_out(false)
            .max_lifetime(None)
            .idle_timeout(None)
            .connection_timeout(of.timeout)
            .error_handler(Box::new(Quiet))
            .build_unchecked(manager);
        let base = |shard| format!("{}:{{{}.{shard}}}:", of.prefix, node.name);
        Ok(Node {
            name: node.name.clone(),
            bases: (0..node.shards).map(base).collect(),
            pool,
            client,
            timeout: of.timeout,
            breaker: Mutex::default(),
            shards_key: format!("{}:{{{}}}:shards", of.prefix, node.name),
            known: AtomicBool::new(false),
        })
    }

    fn breaker(&self) -> MutexGuard<'_, Breaker> {
        self.breaker.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A connection of its own, for whoever waits on it.
    pub(super) fn connect(&self, read_timeout: Duration) -> Result<redis::Connection, RedisError> {
        connect(&self.client, self.timeout, read_timeout)
    }

    /// A call of a script on a shard, to which its arguments are to be added.
    pub(super) fn call(&self, script: Script, shard: usize) -> Call {
        let mut cmd = redis::cmd("EVALSHA");
        cmd.arg(script.hash()).arg(1).arg(&self.bases[shard]);
        Call { script, cmd }
    }

    /// Makes all calls in one round trip. Each is answered by itself.
    pub(super) fn run(&self, calls: &[Call]) -> Vec<Result<Value, Failure>> {
        let fail = |failure: Failure| calls.iter().map(|_| Err(failure.clone())).collect();
        if !self.breaker().admit(Instant::now()) {
            return fail(Failure::NotRun(self.down("it was a moment ago")));
        }
        let mut wire = match self.checkout() {
            Ok(wire) => wire,
            Err(e) => {
                self.trip(&e);
                return fail(Failure::NotRun(self.down(&e)));
            }
        };
        if let Err(e) = self.know(&mut wire) {
            return fail(Failure::NotRun(e));
        }
        let mut answers = match self.exchange(&mut wire, calls.iter().map(|c| &c.cmd)) {
            Ok(answers) => answers,
            Err(e) => return fail(e),
        };
        // A server that was started anew knows no scripts: what it did not know it has not run.
        let missing: Vec<usize> =
            (0..calls.len()).filter(|i| answers[*i] == Err(Failure::NoScript)).collect();
        if !missing.is_empty() {
            let loads = missing.iter().map(|i| load(calls[*i].script));
            let again = missing.iter().map(|i| calls[*i].cmd.clone());
            let cmds: Vec<Cmd> = loads.chain(again).collect();
            match self.exchange(&mut wire, cmds.iter()) {
                Ok(second) => {
                    for (i, answer) in missing.iter().zip(second.into_iter().skip(missing.len())) {
                        answers[*i] = answer;
                    }
                }
                Err(e) => missing.iter().for_each(|i| answers[*i] = Err(e.clone())),
            }
        }
        if !answers.iter().any(is_down) && self.breaker().succeeded() {
            log::warn!("node {} answers again", self.name);
        }
        answers
    }

    /// One call, alone.
    pub(super) fn run_one(&self, call: Call) -> Result<Value, Failure> {
        self.run(&[call]).pop().unwrap_or_else(|| Err(Failure::NotRun(self.down("no answer"))))
    }

    /// Whether the node answers.
    pub(super) fn ping(&self) -> Result<(), StoreError> {
        let mut wire = self.checkout().map_err(|e| self.down(&e))?;
        let pong: redis::RedisResult<Value> = redis::cmd("PING").query(&mut wire.connection);
        pong.map(drop).map_err(|e| self.down(&e.to_string()))
    }

    /// Ends the waiting of these connections.
    pub(super) fn unblock(&self, numbers: &[i64]) {
        if numbers.is_empty() {
            return;
        }
        // Where the node does not answer, nobody is told anything there either.
        let Ok(mut wire) = self.checkout() else { return };
        for number in numbers {
            let ended: redis::RedisResult<Value> =
                redis::cmd("CLIENT").arg("UNBLOCK").arg(number).query(&mut wire.connection);
            if let Err(e) = ended {
                return log::debug!("node {}: cannot end a wait: {e}", self.name);
            }
        }
    }

    /// Asks the node about itself, whether it is taken for down or not.
    pub(super) fn probe(&self, probe: Probe) -> Result<BTreeMap<String, String>, StoreError> {
        let down = |e: RedisError| self.down(&e.to_string());
        let mut wire = self.checkout().map_err(|e| self.down(&e))?;
        let connection = &mut wire.connection;
        match probe {
            Probe::Time => {
                let (seconds, micros): (u64, u64) = redis::cmd("TIME").query(connection).map_err(down)?;
                Ok(BTreeMap::from([("us".to_owned(), (seconds * 1_000_000 + micros).to_string())]))
            }
            Probe::Info => {
                let text: String = redis::cmd("INFO").query(connection).map_err(down)?;
                let pair =
                    |line: &str| line.trim().split_once(':').map(|(k, v)| (k.to_owned(), v.to_owned()));
                Ok(text.lines().filter_map(pair).collect())
            }
            Probe::Config => {
                let mut get = redis::cmd("CONFIG");
                get.arg("GET").arg("maxmemory-policy").arg("appendonly").arg("save");
                get.query(connection).map_err(down)
            }
        }
    }

    /// Checks, once, that the node has as many shards as when it was first used: jobs would not be found otherwise.
    fn know(&self, wire: &mut Wire) -> Result<(), StoreError> {
        if self.known.load(Ordering::Relaxed) {
            return Ok(());
        }
        let own = self.bases.len();
        let mut first = redis::cmd("SET");
        first.arg(&self.shards_key).arg(own).arg("NX").arg("GET");
        let before: Option<usize> = first.query(&mut wire.connection).map_err(|e| {
            self.trip(&e.to_string());
            self.down(&e.to_string())
        })?;
        match before {
            Some(shards) if shards != own => {
                let name = &self.name;
                Err(StoreError::Unavailable(format!(
                    "node {name} has had {shards} shards since it was first used: store.shards_per_node cannot be {own}"
                )))
            }
            _ => {
                self.known.store(true, Ordering::Relaxed);
                Ok(())
            }
        }
    }

    fn checkout(&self) -> Result<r2d2::PooledConnection<Manager>, String> {
        loop {
            let mut wire = self.pool.get().map_err(|e| e.to_string())?;
            if wire.used_at.elapsed() < FRESH {
                return Ok(wire);
            }
            let alive: redis::RedisResult<Value> = redis::cmd("PING").query(&mut wire.connection);
            match alive {
                Ok(_) => return Ok(wire),
                // One that was closed meanwhile goes; the next is perhaps a new one.
                Err(e) if e.is_connection_dropped() => {}
                Err(e) => return Err(e.to_string()),
            }
        }
    }

    fn exchange<'a>(
        &self,
        wire: &mut Wire,
        cmds: impl Iterator<Item = &'a Cmd>,
    ) -> Result<Vec<Result<Value, Failure>>, Failure> {
        let mut packed = Vec::new();
        let mut count = 0;
        for cmd in cmds {
            cmd.write_packed_command(&mut packed);
            count += 1;
        }
        match wire.connection.req_packed_commands(&packed, 0, count) {
            Ok(values) if values.len() == count => {
                wire.used_at = Instant::now();
                let answers: Vec<_> = values.into_iter().map(|value| self.understand(value)).collect();
                wire.stale = answers.iter().any(is_down);
                Ok(answers)
            }
            Ok(values) => {
                let why = format!("{} answers to {count} calls", values.len());
                Err(Failure::Unknown(StoreError::Unknown(format!("node {}: {why}", self.name))))
            }
            Err(e) => {
                if !e.is_connection_dropped() {
                    self.trip(&e.to_string());
                }
                Err(Failure::Unknown(StoreError::Unknown(format!("node {}: {e}", self.name))))
            }
        }
    }

    /// An error that a server answers with says that nothing was changed: a script's first change is what is refused, and
    /// what a script does after its first change is never refused.
    fn understand(&self, value: Value) -> Result<Value, Failure> {
        let Value::ServerError(error) = value else { return Ok(value) };
        let kind = error.kind();
        let text = format!("node {}: {} {}", self.name, error.code(), error.details().unwrap_or_default());
        if kind == Some(ServerErrorKind::NoScript) {
            return Err(Failure::NoScript);
        }
        Err(Failure::NotRun(match (kind, error.code()) {
            (_, "OOM") => StoreError::Full,
            (_, "BUSY") => StoreError::Busy,
            (
                Some(
                    ServerErrorKind::ReadOnly
                    | ServerErrorKind::BusyLoading
                    | ServerErrorKind::MasterDown
                    | ServerErrorKind::ClusterDown
                    | ServerErrorKind::TryAgain
                    | ServerErrorKind::Moved
                    | ServerErrorKind::Ask,
                ),
                _,
            )
            | (_, "NOREPLICAS") => {
                self.trip(&text);
                StoreError::NodeDown(text)
            }
            _ => StoreError::Unavailable(text),
        }))
    }

    fn down(&self, why: &str) -> StoreError {
        StoreError::NodeDown(format!("{}: {why}", self.name))
    }

    /// Notes that the node does not answer.
    fn trip(&self, why: &str) {
        if self.breaker().failed(Instant::now()) {
            log::error!("node {} is down: {why}", self.name);
        }
    }
}

/// Connects to a server, which may take that long for it and for each write; and so long for an answer.
fn connect(
    client: &redis::Client,
    timeout: Duration,
    read_timeout: Duration,
) -> Result<redis::Connection, RedisError> {
    let connection = client.get_connection_with_timeout(timeout)?;
    connection.set_read_timeout(Some(read_timeout))?;
    connection.set_write_timeout(Some(timeout))?;
    Ok(connection)
}

/// Whether a server has answered that it can do nothing.
fn is_down(answer: &Result<Value, Failure>) -> bool {
    matches!(answer, Err(Failure::NotRun(StoreError::NodeDown(_))))
}

fn load(script: Script) -> Cmd {
    let mut cmd = redis::cmd("SCRIPT");
    cmd.arg("LOAD").arg(script.text());
    cmd
}

/// The pool's own reports: what matters is told by those who wait.
#[derive(Debug)]
struct Quiet;

impl r2d2::HandleError<RedisError> for Quiet {
    fn handle_error(&self, error: RedisError) {
        log::debug!("redis: {error}");
    }
}
