//! One server: its pool of connections, and whether dq sends nothing to it because it did not answer.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use redis::{Cmd, ConnectionLike, RedisError, Value};

use super::super::breaker::{Breaker, PAUSE};
use super::super::script::Script;
use super::call::{Call, Failure};
use super::connector::Connector;
use super::rules::{self, ConnectionFate};
use super::safety::{CachedDurabilitySupport, Wait, refusal};
use super::wire::{FailedConnects, Manager, MetServers, PoolErrorRecorder, PooledConnection};
use crate::{ServerDurability, StoreError};
use model::excerpt::Excerpt;
use model::topic::Durability;

/// How long a connection may be idle before it is checked. The reason: if the server has closed the connection
/// meanwhile, a call that is sent on it has an unknown outcome.
const FRESH: Duration = Duration::from_secs(1);

/// How long to wait for a connection. If there is none after this time, dq checks whether the server refuses
/// connections. The time doubles with each check.
const LOOK: Duration = Duration::from_millis(50);

/// How long to wait for a connection to a server that counts as down. The pool is making new connections meanwhile.
const TRIAL: Duration = Duration::from_millis(10);

/// After a failure of a server is logged, dq logs no new failure of this server for this long.
const QUIET: Duration = Duration::from_secs(10);

type PoolConnection = r2d2::PooledConnection<Manager>;

/// A fixed server; or with Sentinels, the server that is the master now.
pub(in super::super) struct NodeServer {
    /// The name for logs: the node, and for a Cluster also the address.
    pub name: String,
    pub(super) connector: Arc<Connector>,
    pub(super) met: MetServers,
    pool: r2d2::Pool<Manager>,
    timeout: Duration,
    /// How long a call waits until its changes have reached their durability level.
    limit: Duration,
    pub(super) known: CachedDurabilitySupport,
    breaker: Mutex<Breaker>,
    refusals: Arc<FailedConnects>,
    /// Why the server last counted as down.
    why: Mutex<String>,
    news: Mutex<LastLogged>,
}

/// What was last logged about a server. A server may answer and fail in turn: for example, a replica answers reads and
/// refuses writes. The failures of such a server are logged only from time to time.
#[derive(Debug, Default)]
struct LastLogged {
    told_at: Option<Instant>,
    is_open: bool,
}

impl LastLogged {
    /// Returns whether to log that the server is down.
    fn begins(&mut self) -> bool {
        let is_old = self.told_at.is_none_or(|at| at.elapsed() > QUIET);
        let tells = is_old && !self.is_open;
        if tells {
            (self.told_at, self.is_open) = (Some(Instant::now()), true);
        }
        tells
    }

    /// Returns whether to log that the server answers again.
    fn is_over(&mut self) -> bool {
        std::mem::take(&mut self.is_open)
    }
}

/// The result of some calls.
pub(super) struct CallResults {
    pub answers: Vec<Result<Value, Failure>>,
    /// Whether the server counts as down: it did not answer, dq got no connection to it, or it was down a moment ago.
    /// False if the server only closed the connection: a new connection shows whether a server answers there.
    pub was_silent: bool,
}

impl NodeServer {
    /// `timeout` is how long an answer may take. `limit` is how long changes may take to reach their durability level.
    pub(super) fn new(
        name: String,
        connector: Connector,
        pool: u32,
        (timeout, limit): (Duration, Duration),
    ) -> NodeServer {
        let (connector, refusals) = (Arc::new(connector), Arc::<FailedConnects>::default());
        let manager = Manager { connector: Arc::clone(&connector), timeout };
        let pool = r2d2::Pool::builder()
            .max_size(pool)
            .min_idle(Some(0))
            .test_on_check_out(false)
            .max_lifetime(None)
            .idle_timeout(None)
            // After a failure, the pool waits at most half of `PAUSE` before it tries again. So dq soon notices that
            // the server is back.
            .connection_timeout(PAUSE)
            .error_handler(Box::new(PoolErrorRecorder(Arc::clone(&refusals))))
            .build_unchecked(manager);
        NodeServer {
            name,
            connector,
            met: MetServers::default(),
            pool,
            timeout,
            limit,
            known: CachedDurabilitySupport::default(),
            breaker: Mutex::default(),
            refusals,
            why: Mutex::default(),
            news: Mutex::default(),
        }
    }

    fn breaker(&self) -> MutexGuard<'_, Breaker> {
        self.breaker.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether the server counts as down.
    pub(super) fn is_down(&self) -> bool {
        *self.breaker() != Breaker::Closed
    }

    /// Makes all calls in one round trip. Each call gets its own answer. If one of the calls has `to_met`, and this
    /// process has not met the server, no call is sent.
    pub(super) fn run(&self, calls: &[&Call]) -> CallResults {
        let silent = |why: &str| CallResults {
            answers: calls.iter().map(|_| Err(Failure::NotRun(self.down(why)))).collect(),
            was_silent: true,
        };
        if !self.breaker().admit(Instant::now()) {
            let why = self.why.lock().unwrap_or_else(PoisonError::into_inner).clone();
            return silent(&format!("it was down a moment ago: {why}"));
        }
        let mut wire = match self.checkout(self.patience()) {
            Ok(wire) => wire,
            Err(why) => {
                self.open_breaker(&why);
                self.met.forget();
                return silent(&why);
            }
        };
        if calls.iter().any(|call| call.to_met) && !self.met.has(&wire.server) {
            self.breaker().let_next(Instant::now());
            let unmet = || Err(Failure::Unmet(wire.server.to_string()));
            return CallResults { answers: calls.iter().map(|_| unmet()).collect(), was_silent: false };
        }
        let wait = match self.wait_for(&mut wire, calls) {
            Ok(wait) => wait,
            Err(e) => {
                let not_run = || Err(Failure::NotRun(e.clone()));
                return CallResults { answers: calls.iter().map(|_| not_run()).collect(), was_silent: false };
            }
        };
        let cmds = calls.iter().map(|c| &c.cmd);
        let (mut answers, mut is_down) = match self.exchange(&mut wire, cmds, wait.as_ref()) {
            Ok(answered) => answered,
            Err(e) => {
                let answers = calls.iter().map(|_| Err(self.unknown(&e))).collect();
                return CallResults { answers, was_silent: self.is_silence(&e) };
            }
        };
        let mut waited = answers.split_off(calls.len());
        // A server that was restarted knows no scripts. It has not run the calls of scripts that it did not know.
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
            match self.exchange(&mut wire, cmds.iter(), wait.as_ref()) {
                Ok((mut second, is_down_now)) => {
                    is_down |= is_down_now;
                    waited = second.split_off(cmds.len());
                    for ((i, _), answer) in missing.iter().zip(second.into_iter().skip(missing.len())) {
                        answers[*i] = answer;
                    }
                }
                Err(e) => {
                    missing.iter().for_each(|(i, _)| answers[*i] = Err(self.unknown(&e)));
                    let was_silent = self.is_silence(&e);
                    return CallResults { answers, was_silent };
                }
            }
        }
        if let Some(wait) = &wait {
            wait.judge(&self.name, calls, &mut answers, &waited);
        }
        if is_down {
            self.met.forget();
        } else {
            self.closes_breaker();
        }
        CallResults { answers, was_silent: false }
    }

    /// Returns the wait that must follow these calls. Returns an error if the calls must not be made.
    fn wait_for(&self, wire: &mut PooledConnection, calls: &[&Call]) -> Result<Option<Wait>, StoreError> {
        if calls.iter().all(|call| call.durability == Durability::Memory) {
            return Ok(None);
        }
        let capability = self.known.read(wire).map_err(|e| self.down(&words(&e)))?;
        refusal(&self.name, calls, &capability).map_or(Ok(()), Err)?;
        Ok(Wait::for_calls(calls, &capability, self.limit))
    }

    /// Returns how safe the server can make changes. If the server counts as down, waits only 10 ms for a connection.
    pub(super) fn capability(&self) -> Result<ServerDurability, StoreError> {
        let mut wire = self.checkout(self.patience()).map_err(|why| self.down(&why))?;
        self.known.read(&mut wire).map_err(|e| self.down(&words(&e)))
    }

    /// Runs a command that concerns no shard, even if the server counts as down.
    pub(super) fn ask<T: redis::FromRedisValue>(&self, cmd: &Cmd) -> Result<T, StoreError> {
        self.ask_within(self.timeout, cmd)
    }

    /// Runs a command as `ask` does. If the server counts as down, waits only 10 ms for a connection.
    pub(super) fn ask_briefly<T: redis::FromRedisValue>(&self, cmd: &Cmd) -> Result<T, StoreError> {
        self.ask_within(self.patience(), cmd)
    }

    fn patience(&self) -> Duration {
        if self.is_down() { TRIAL } else { self.timeout }
    }

    fn ask_within<T: redis::FromRedisValue>(&self, patience: Duration, cmd: &Cmd) -> Result<T, StoreError> {
        let mut wire = self.checkout(patience).map_err(|why| self.down(&why))?;
        let answer = cmd.query(&mut wire.connection);
        answer.map_err(|e| {
            wire.broken |= e.is_io_error();
            self.down(&words(&e))
        })
    }

    /// Returns a connection that works. Fails at once if the server refuses connections.
    fn checkout(&self, patience: Duration) -> Result<PoolConnection, String> {
        let until = Instant::now() + patience;
        let (refused, mut look) = (self.refusals.count(), LOOK);
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let mut wire = match self.pool.get_timeout(look.min(left)) {
                Ok(wire) => wire,
                Err(_) if self.refusals.count() != refused => return Err(self.refusals.last()),
                Err(_) if left > look => {
                    look *= 2;
                    continue;
                }
                Err(_) if self.is_down() && self.refusals.count() > 0 => return Err(self.refusals.last()),
                Err(_) => return Err("no connection in time".to_owned()),
            };
            if wire.is_past(&self.connector) {
                continue;
            }
            if wire.used_at.elapsed() < FRESH {
                return Ok(wire);
            }
            let alive: redis::RedisResult<Value> = redis::cmd("PING").query(&mut wire.connection);
            match alive {
                Ok(_) => return Ok(wire),
                // The server closed this connection while it was idle. The next connection of the pool may be new.
                Err(e) if e.is_connection_dropped() => wire.broken = true,
                Err(e) => {
                    wire.broken = true;
                    return Err(words(&e));
                }
            }
        }
    }

    /// Makes calls in one round trip. `wait` has the commands that wait until the changes are safe. Also returns
    /// whether the server counts as down because of an answer.
    fn exchange<'a>(
        &self,
        wire: &mut PooledConnection,
        cmds: impl Iterator<Item = &'a Cmd>,
        wait: Option<&'a Wait>,
    ) -> Result<(Vec<Result<Value, Failure>>, bool), RedisError> {
        let waits = wait.map_or(&[][..], |wait| &wait.cmds);
        if !waits.is_empty() {
            wire.connection.set_read_timeout(Some(self.timeout + self.limit))?;
        }
        let exchanged = self.exchange_all(wire, cmds.chain(waits));
        if !waits.is_empty() && wire.connection.set_read_timeout(Some(self.timeout)).is_err() {
            wire.broken = true;
        }
        exchanged
    }

    fn exchange_all<'a>(
        &self,
        wire: &mut PooledConnection,
        cmds: impl Iterator<Item = &'a Cmd>,
    ) -> Result<(Vec<Result<Value, Failure>>, bool), RedisError> {
        let mut packed = Vec::new();
        let mut count = 0;
        for cmd in cmds {
            cmd.write_packed_command(&mut packed);
            count += 1;
        }
        let values = wire.connection.req_packed_commands(&packed, 0, count).and_then(|values| {
            if values.len() == count {
                return Ok(values);
            }
            let why = format!("{} answers to {count} calls", values.len());
            Err(RedisError::from((redis::ErrorKind::UnexpectedReturnType, "strange answer", why)))
        });
        // After an error, the answers on this connection can no longer be matched to the calls.
        let values = values.inspect_err(|_| wire.broken = true)?;
        wire.used_at = Instant::now();
        let mut is_down = false;
        let understood = values.into_iter().map(|value| self.parse_answer(value, &mut is_down)).collect();
        Ok((understood, is_down))
    }

    fn parse_answer(&self, value: Value, is_down: &mut bool) -> Result<Value, Failure> {
        let Value::ServerError(error) = value else { return Ok(value) };
        let rule = rules::rule_for(error.code());
        let details = Excerpt(error.details().unwrap_or_default());
        let text = format!("node {}: {} {details}", self.name, Excerpt(error.code()));
        if rule.wires == ConnectionFate::AllDropped {
            self.connector.forget();
        }
        if rule.opens_breaker {
            *is_down = true;
            self.open_breaker(&text);
        }
        Err(rule.failure(text, error.details().unwrap_or_default()))
    }

    fn unknown(&self, why: &RedisError) -> Failure {
        Failure::Unknown(StoreError::Unknown(format!("node {}: {}", self.name, words(why))))
    }

    fn down(&self, why: &str) -> StoreError {
        StoreError::NodeDown(format!("{}: {why}", self.name))
    }

    /// Returns whether an error means that the server does not answer. If so, the server counts as down from now on. A
    /// closed connection is not such an error: the next connection shows which server answers.
    fn is_silence(&self, why: &RedisError) -> bool {
        if why.is_connection_dropped() {
            return false;
        }
        // The server will not answer on the other connections either.
        self.connector.forget();
        self.open_breaker(&words(why));
        self.met.forget();
        true
    }

    fn closes_breaker(&self) {
        if self.breaker().succeeded() && self.news.lock().is_ok_and(|mut news| news.is_over()) {
            log::warn!("node {} answers again", self.name);
        }
    }

    fn open_breaker(&self, why: &str) {
        why.clone_into(&mut self.why.lock().unwrap_or_else(PoisonError::into_inner));
        if self.breaker().failed(Instant::now()) && self.news.lock().is_ok_and(|mut news| news.begins()) {
            log::error!("node {} is down: {why}", self.name);
        }
    }
}

/// Returns the error as text, for display.
fn words(e: &RedisError) -> String {
    if e.is_timeout() { "no answer in time".to_owned() } else { Excerpt(e).to_string() }
}

fn load(script: Script) -> Cmd {
    let mut cmd = redis::cmd("SCRIPT");
    cmd.arg("LOAD").arg(script.text());
    cmd
}
