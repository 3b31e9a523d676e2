//! A server that is spoken with: its pool of connections, and whether it is left alone since it did not answer.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use redis::{Cmd, ConnectionLike, RedisError, Value};

use super::super::breaker::{Breaker, PAUSE};
use super::super::script::Script;
use super::call::{Call, Failure};
use super::door::Door;
use super::rules::{self, Wires};
use super::wire::{Listening, Manager, Refusals, ServerId, Wire};
use crate::excerpt::Excerpt;
use crate::store::StoreError;

/// What a connection may be idle before it is asked whether it still is one: what is sent on one that the server has closed
/// meanwhile has an unknown outcome.
const FRESH: Duration = Duration::from_secs(1);

/// For how long a connection is waited for before somebody looks whether the server refuses them; doubles each time.
const LOOK: Duration = Duration::from_millis(50);

/// How long a server that is left alone is waited for when it is tried again: connections to it are being made meanwhile.
const TRIAL: Duration = Duration::from_millis(10);

/// How long nothing more is told of a server that fails again.
const QUIET: Duration = Duration::from_secs(10);

type Pooled = r2d2::PooledConnection<Manager>;

/// A server, or whichever one is the master now.
pub(in super::super) struct Endpoint {
    /// What logs call it: the node, and of a Cluster its address.
    pub name: String,
    pub(super) door: Arc<Door>,
    pool: r2d2::Pool<Manager>,
    timeout: Duration,
    breaker: Mutex<Breaker>,
    refusals: Arc<Refusals>,
    /// Why it was taken for down at last.
    why: Mutex<String>,
    news: Mutex<News>,
}

/// What has been told of a server: one that answers and fails by turns, as a replica does, is told of now and then.
#[derive(Debug, Default)]
struct News {
    told_at: Option<Instant>,
    is_open: bool,
}

impl News {
    /// Whether it is told that the server is down.
    fn begins(&mut self) -> bool {
        let is_old = self.told_at.is_none_or(|at| at.elapsed() > QUIET);
        let tells = is_old && !self.is_open;
        if tells {
            (self.told_at, self.is_open) = (Some(Instant::now()), true);
        }
        tells
    }

    /// Whether it is told that it is no longer.
    fn is_over(&mut self) -> bool {
        std::mem::take(&mut self.is_open)
    }
}

/// What came of some calls.
pub(super) struct Exchange {
    pub answers: Vec<Result<Value, Failure>>,
    /// Who answered; and whether it is news.
    pub server: Option<(Arc<ServerId>, bool)>,
    /// It did not answer, or was not even asked. Not so when the connection was closed: the next one says who answers.
    pub was_silent: bool,
}

impl Endpoint {
    pub(super) fn new(name: String, door: Door, pool: u32, timeout: Duration) -> Endpoint {
        let (door, refusals) = (Arc::new(door), Arc::<Refusals>::default());
        let manager = Manager { door: Arc::clone(&door), timeout };
        let pool = r2d2::Pool::builder()
            .max_size(pool)
            .min_idle(Some(0))
            .test_on_check_out(false)
            .max_lifetime(None)
            .idle_timeout(None)
            // A server that does not answer is tried again after half of that, so that its return is seen in time.
            .connection_timeout(PAUSE)
            .error_handler(Box::new(Listening(Arc::clone(&refusals))))
            .build_unchecked(manager);
        Endpoint {
            name,
            door,
            pool,
            timeout,
            breaker: Mutex::default(),
            refusals,
            why: Mutex::default(),
            news: Mutex::default(),
        }
    }

    fn breaker(&self) -> MutexGuard<'_, Breaker> {
        self.breaker.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether it is taken for down.
    pub(super) fn is_down(&self) -> bool {
        *self.breaker() != Breaker::Closed
    }

    /// Makes all calls in one round trip. Each is answered by itself.
    pub(super) fn run(&self, calls: &[&Call]) -> Exchange {
        let silent = |why: &str| Exchange {
            answers: calls.iter().map(|_| Err(Failure::NotRun(self.down(why)))).collect(),
            server: None,
            was_silent: true,
        };
        if !self.breaker().admit(Instant::now()) {
            let why = self.why.lock().unwrap_or_else(PoisonError::into_inner).clone();
            return silent(&format!("it was a moment ago: {why}"));
        }
        let mut wire = match self.checkout(self.patience()) {
            Ok(wire) => wire,
            Err(why) => {
                self.open_breaker(&why);
                return silent(&why);
            }
        };
        let server = Some((Arc::clone(&wire.server), std::mem::take(&mut wire.is_new)));
        let (mut answers, mut is_down) = match self.exchange(&mut wire, calls.iter().map(|c| &c.cmd)) {
            Ok(answered) => answered,
            Err(e) => {
                let answers = calls.iter().map(|_| Err(self.unknown(&e))).collect();
                return Exchange { answers, server, was_silent: self.is_silence(&e) };
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
                Ok((second, is_down_now)) => {
                    is_down |= is_down_now;
                    for ((i, _), answer) in missing.iter().zip(second.into_iter().skip(missing.len())) {
                        answers[*i] = answer;
                    }
                }
                Err(e) => {
                    missing.iter().for_each(|(i, _)| answers[*i] = Err(self.unknown(&e)));
                    let was_silent = self.is_silence(&e);
                    return Exchange { answers, server, was_silent };
                }
            }
        }
        if !is_down && self.breaker().succeeded() && self.news.lock().is_ok_and(|mut news| news.is_over()) {
            log::warn!("node {} answers again", self.name);
        }
        Exchange { answers, server, was_silent: false }
    }

    /// Runs a command of no shard, whether the server is taken for down or not.
    pub(super) fn ask<T: redis::FromRedisValue>(&self, cmd: &Cmd) -> Result<T, StoreError> {
        self.ask_within(self.timeout, cmd)
    }

    /// The same; hardly waits for a server that is taken for down.
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

    /// A connection that is one. Waits no longer for a server that refuses.
    fn checkout(&self, patience: Duration) -> Result<Pooled, String> {
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
            if wire.is_past(&self.door) {
                continue;
            }
            if wire.used_at.elapsed() < FRESH {
                return Ok(wire);
            }
            let alive: redis::RedisResult<Value> = redis::cmd("PING").query(&mut wire.connection);
            match alive {
                Ok(_) => return Ok(wire),
                // One that was closed meanwhile goes; the next is perhaps a new one.
                Err(e) if e.is_connection_dropped() => wire.broken = true,
                Err(e) => {
                    wire.broken = true;
                    return Err(words(&e));
                }
            }
        }
    }

    /// Makes calls in one round trip; and tells whether the server answers that it can do nothing.
    fn exchange<'a>(
        &self,
        wire: &mut Wire,
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
        // What an answer is to is not known any more.
        let values = values.inspect_err(|_| wire.broken = true)?;
        wire.used_at = Instant::now();
        let mut is_down = false;
        let understood = values.into_iter().map(|value| self.understand(value, &mut is_down)).collect();
        Ok((understood, is_down))
    }

    fn understand(&self, value: Value, is_down: &mut bool) -> Result<Value, Failure> {
        let Value::ServerError(error) = value else { return Ok(value) };
        let rule = rules::of(error.code());
        let details = Excerpt(error.details().unwrap_or_default());
        let text = format!("node {}: {} {details}", self.name, Excerpt(error.code()));
        if rule.wires == Wires::AllDropped {
            self.door.forget();
        }
        if rule.opens_breaker {
            *is_down = true;
            self.open_breaker(&text);
        }
        Err(rule.failure(text))
    }

    fn unknown(&self, why: &RedisError) -> Failure {
        Failure::Unknown(StoreError::Unknown(format!("node {}: {}", self.name, words(why))))
    }

    fn down(&self, why: &str) -> StoreError {
        StoreError::NodeDown(format!("{}: {why}", self.name))
    }

    /// Whether an error means that the server does not answer. A connection that was closed says nothing of it; the next
    /// one says who answers.
    fn is_silence(&self, why: &RedisError) -> bool {
        if why.is_connection_dropped() {
            return false;
        }
        // Nor will it on the others.
        self.door.forget();
        self.open_breaker(&words(why));
        true
    }

    fn open_breaker(&self, why: &str) {
        why.clone_into(&mut self.why.lock().unwrap_or_else(PoisonError::into_inner));
        if self.breaker().failed(Instant::now()) && self.news.lock().is_ok_and(|mut news| news.begins()) {
            log::error!("node {} is down: {why}", self.name);
        }
    }
}

/// What went wrong, for people.
fn words(e: &RedisError) -> String {
    if e.is_timeout() { "no answer in time".to_owned() } else { Excerpt(e).to_string() }
}

fn load(script: Script) -> Cmd {
    let mut cmd = redis::cmd("SCRIPT");
    cmd.arg("LOAD").arg(script.text());
    cmd
}
