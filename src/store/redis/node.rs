//! One node: its connections, whether it is down, and what its answers and errors mean.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use redis::{Cmd, ConnectionLike, RedisError, ServerErrorKind, Value};

use super::breaker::{Breaker, PAUSE};
use super::script::Script;
use super::standing::Standing;
use super::wire::{Manager, Quiet, ServerId, Wire, connect, identify};
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

/// A node and its shards.
pub(super) struct Node {
    pub name: String,
    /// What the keys of each shard begin with.
    pub bases: Vec<String>,
    pool: r2d2::Pool<Manager>,
    client: redis::Client,
    timeout: Duration,
    breaker: Mutex<Breaker>,
    /// Of each shard.
    standings: Mutex<Vec<Standing>>,
    /// Where the node keeps how many shards it has, since it was first used.
    shards_key: String,
    /// It has been found to be what the settings say.
    known: AtomicBool,
}

/// A call on a shard.
pub(super) struct Call {
    pub shard: usize,
    /// The script that it is of; none: it is a plain command.
    pub script: Option<Script>,
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
            standings: Mutex::new(vec![Standing::default(); node.shards as usize]),
            // One shard there always is.
            shards_key: format!("{}shards", base(0)),
            known: AtomicBool::new(false),
        })
    }

    fn breaker(&self) -> MutexGuard<'_, Breaker> {
        self.breaker.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn standings(&self) -> MutexGuard<'_, Vec<Standing>> {
        self.standings.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From when on all that others say of a shard of this node is true; see [`Standing::known_since`].
    pub(super) fn known_since(&self, shard: usize) -> Option<Option<Instant>> {
        self.standings()[shard].known_since(self.settling(), Instant::now())
    }

    /// How long after its return a node may still be taken for down by somebody: who asked it just before waits that long for
    /// an answer, and then leaves it alone for a while.
    pub(super) fn settling(&self) -> Duration {
        self.timeout + 2 * PAUSE
    }

    /// Notes which server answers for some shards.
    fn meet(&self, server: &ServerId, shards: impl Iterator<Item = usize>) {
        let (mut standings, now) = (self.standings(), Instant::now());
        let is_old = server.uptime > self.settling() + Duration::from_secs(1);
        shards.for_each(|shard| standings[shard].met(&server.run_id, is_old, now));
    }

    /// A connection of its own to the server of a shard, for whoever waits on it.
    pub(super) fn connect(
        &self,
        _shard: usize,
        read_timeout: Duration,
    ) -> Result<redis::Connection, RedisError> {
        let mut connection = connect(&self.client, self.timeout, read_timeout)?;
        self.meet(&identify(&mut connection)?, 0..self.bases.len());
        Ok(connection)
    }

    /// A call of a script on a shard, to which its arguments are to be added.
    pub(super) fn call(&self, script: Script, shard: usize) -> Call {
        let mut cmd = redis::cmd("EVALSHA");
        cmd.arg(script.hash()).arg(1).arg(&self.bases[shard]);
        Call { shard, script: Some(script), cmd }
    }

    /// A plain command on a key of a shard, to which its other arguments are to be added.
    pub(super) fn plain(&self, command: &str, shard: usize, key: &str) -> Call {
        let mut cmd = redis::cmd(command);
        cmd.arg(format!("{}{key}", self.bases[shard]));
        Call { shard, script: None, cmd }
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
                self.trip(&e, calls);
                return fail(Failure::NotRun(self.down(&e)));
            }
        };
        if let Err(e) = self.know(&mut wire) {
            return fail(Failure::NotRun(e));
        }
        let mut answers = match self.exchange(&mut wire, calls.iter().map(|c| &c.cmd)) {
            Ok(answers) => answers,
            Err(e) => {
                self.trip_unless_closed(&e, calls);
                return fail(self.unknown(&e));
            }
        };
        // A server that was started anew knows no scripts: what it did not know it has not run.
        let missing: Vec<(usize, Script)> = calls
            .iter()
            .enumerate()
            .filter(|(i, _)| answers[*i] == Err(Failure::NoScript))
            .filter_map(|(i, call)| Some((i, call.script?)))
            .collect();
        if !missing.is_empty() {
            let loads = missing.iter().map(|(_, script)| load(*script));
            let again = missing.iter().map(|(i, _)| calls[*i].cmd.clone());
            let cmds: Vec<Cmd> = loads.chain(again).collect();
            match self.exchange(&mut wire, cmds.iter()) {
                Ok(second) => {
                    for ((i, _), answer) in missing.iter().zip(second.into_iter().skip(missing.len())) {
                        answers[*i] = answer;
                    }
                }
                Err(e) => {
                    self.trip_unless_closed(&e, calls);
                    missing.iter().for_each(|(i, _)| answers[*i] = Err(self.unknown(&e)));
                }
            }
        }
        self.judge(calls, &answers);
        answers
    }

    /// Notes what answers say of the node and of its shards.
    fn judge(&self, calls: &[Call], answers: &[Result<Value, Failure>]) {
        let now = Instant::now();
        let mut standings = self.standings();
        for (call, answer) in calls.iter().zip(answers) {
            if is_down(answer) {
                standings[call.shard].failed();
            } else {
                standings[call.shard].answered(now);
            }
        }
        drop(standings);
        match answers.iter().find(|a| is_down(a)) {
            Some(Err(Failure::NotRun(e))) => self.open_breaker(&e.to_string()),
            _ if self.breaker().succeeded() => log::warn!("node {} answers again", self.name),
            _ => {}
        }
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
            self.open_breaker(&e.to_string());
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
            if let Some(server) = wire.server.take() {
                self.meet(&server, 0..self.bases.len());
            }
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
    ) -> Result<Vec<Result<Value, Failure>>, RedisError> {
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
                Err(RedisError::from((redis::ErrorKind::UnexpectedReturnType, "strange answer", why)))
            }
            Err(e) => Err(e),
        }
    }

    fn unknown(&self, why: &RedisError) -> Failure {
        Failure::Unknown(StoreError::Unknown(format!("node {}: {why}", self.name)))
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
            | (_, "NOREPLICAS") => StoreError::NodeDown(text),
            _ => StoreError::Unavailable(text),
        }))
    }

    fn down(&self, why: &str) -> StoreError {
        StoreError::NodeDown(format!("{}: {why}", self.name))
    }

    /// Notes that the node does not answer, and what of it was asked.
    fn trip(&self, why: &str, calls: &[Call]) {
        let mut standings = self.standings();
        calls.iter().for_each(|call| standings[call.shard].failed());
        drop(standings);
        self.open_breaker(why);
    }

    /// A connection that was closed says nothing of the node; the next one says who answers.
    fn trip_unless_closed(&self, why: &RedisError, calls: &[Call]) {
        if !why.is_connection_dropped() {
            self.trip(&why.to_string(), calls);
        }
    }

    fn open_breaker(&self, why: &str) {
        if self.breaker().failed(Instant::now()) {
            log::error!("node {} is down: {why}", self.name);
        }
    }
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
