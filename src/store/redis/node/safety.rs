//! Whether a server can give changes the durability level that their topics request. dq checks this before it sends the
//! changes. After the changes, dq sends the command that waits for the level.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use redis::{Cmd, RedisError, Value};

use super::Node;
use super::call::{Call, Failure};
use super::wire::PooledConnection;
use crate::{ServerDurability, StoreError};
use model::excerpt::Excerpt;
use model::topic::Durability;

/// How old the known capability of a server may be: a server may lose its replicas at any time.
const FRESH: Duration = Duration::from_secs(1);

/// A write that changes only its own key. WAIT and WAITAOF wait for the last write of their own connection, and for all
/// writes before it. But a job may have been written on another connection: an add with `on_conflict` `keep` answers
/// for a job of an earlier add, and some requests need several calls. So each wait has a write of its own before it.
/// The key is removed first, so that the server accepts the write even if its memory is full.
const MARK: &str = "redis.call('DEL', KEYS[1] .. 'mark') redis.call('SET', KEYS[1] .. 'mark', '')";

/// The position of the shard's base in a call's words: after EVALSHA, the script, and the number of keys.
const BASE_AT: usize = 3;

/// What is known of a server: when it was asked, its name, and its capability.
#[derive(Debug, Default)]
pub(super) struct CachedDurabilitySupport(Mutex<Option<(Instant, String, ServerDurability)>>);

/// Returns a call that writes on a shard. The write changes only the key `mark` of the shard.
pub(in super::super) fn mark(shard: usize, base: &[u8]) -> Call {
    let mut cmd = redis::cmd("EVAL");
    cmd.arg(MARK).arg(1).arg(base);
    Call::plain(shard, cmd)
}

/// The wait that follows some calls.
pub(super) struct Wait {
    level: Durability,
    limit: Duration,
    /// A write, and the command that waits for it. Empty: no command is needed, because the server answers only when
    /// the changes are safe.
    pub cmds: Vec<Cmd>,
}

impl Wait {
    /// Returns the wait of calls that are made together. None: the calls need no wait.
    pub(super) fn for_calls(calls: &[&Call], capability: &ServerDurability, limit: Duration) -> Option<Wait> {
        let call = calls.iter().find(|call| call.durability != Durability::Memory)?;
        let limit_ms = u64::try_from(limit.as_millis()).unwrap_or(u64::MAX);
        let mut wait = match call.durability {
            Durability::Fsync => redis::cmd("WAITAOF"),
            _ => redis::cmd("WAIT"),
        };
        match call.durability {
            Durability::Replicas(replicas) => wait.arg(replicas).arg(limit_ms),
            _ => wait.arg(1).arg(0).arg(limit_ms),
        };
        let base = call.cmd.args_iter().nth(BASE_AT);
        let base = base.and_then(|word| if let redis::Arg::Simple(base) = word { Some(base) } else { None });
        let is_on_disk = call.durability == Durability::Fsync && capability.answers_from_disk();
        let cmds =
            if is_on_disk { Vec::new() } else { vec![mark(call.shard, base.unwrap_or_default()).cmd, wait] };
        Some(Wait { level: call.durability, limit, cmds })
    }

    /// Returns why the changes have not reached their durability level. `None`: the changes have reached it. `answers`
    /// are the answers to the wait's commands.
    fn missed(&self, answers: &[Result<Value, Failure>]) -> Option<String> {
        if answers.is_empty() {
            return None;
        }
        let limit = humantime::format_duration(self.limit);
        match (self.level, answers) {
            (_, [Err(failure), _] | [_, Err(failure)]) => Some(failure.clone().into_error().to_string()),
            (Durability::Replicas(wanted), [_, Ok(Value::Int(reached))]) => (*reached < i64::from(wanted))
                .then(|| format!("{reached} of {wanted} replicas had it within {limit}")),
            (_, [_, Ok(Value::Array(reached))]) => match reached.first() {
                Some(Value::Int(synced)) if *synced > 0 => None,
                _ => Some(format!("it was not on the disk within {limit}")),
            },
            _ => Some("the server's answer cannot be understood".to_owned()),
        }
    }

    /// If the changes are not as safe as asked, replaces the answers of the calls that succeeded with
    /// [`StoreError::Unknown`].
    pub(super) fn judge(
        &self,
        name: &str,
        calls: &[&Call],
        answers: &mut [Result<Value, Failure>],
        waited: &[Result<Value, Failure>],
    ) {
        let Some(why) = self.missed(waited) else { return };
        let value = format!(
            "node {name}: the change is stored on the master, but not yet as safe as asked ({}): {why}",
            self.level
        );
        for (call, answer) in calls.iter().zip(answers) {
            if call.durability != Durability::Memory && answer.is_ok() {
                *answer = Err(Failure::Unknown(StoreError::Unknown(value.clone())));
            }
        }
    }
}

impl CachedDurabilitySupport {
    /// Returns how safe the server of a connection can make changes. The answer is at most a second old.
    pub(super) fn read(&self, wire: &mut PooledConnection) -> Result<ServerDurability, RedisError> {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((at, server, capability)) = &*known
            && at.elapsed() < FRESH
            && **server == *wire.server
        {
            return Ok(capability.clone());
        }
        let capability = read_capability(wire).inspect_err(|_| wire.broken = true)?;
        *known = Some((Instant::now(), wire.server.to_string(), capability.clone()));
        Ok(capability)
    }
}

/// Returns why these calls must not be made: the server cannot give them the durability level that they request.
/// `None`: the calls may be made.
pub(super) fn refusal(node: &str, calls: &[&Call], capability: &ServerDurability) -> Option<StoreError> {
    let lack = calls.iter().find_map(|call| Some((call.durability, capability.lacks(call.durability)?)));
    lack.map(|(level, why)| {
        StoreError::NotDurable(format!("node {node}: \"{level}\" cannot be had there, as {why}"))
    })
}

impl Node {
    /// Returns how safe the servers of the node can make changes. Servers that do not answer are left out.
    pub(in super::super) fn capabilities(&self) -> Vec<ServerDurability> {
        let masters = self.masters(false);
        masters.iter().filter_map(|server| server.capability().ok()).collect()
    }

    /// Returns an error if the next call to the node would be refused because the node keeps snapshots only. A server
    /// that this process already uses stays usable.
    pub(in super::super) fn is_usable(&self) -> Result<(), StoreError> {
        let is_met = self.masters(false).iter().all(|server| server.met.has_any());
        if is_met { Ok(()) } else { self.keeps_jobs() }
    }

    /// Returns an error if the node keeps snapshots only and the configuration does not allow that. A server that does
    /// not answer is left out.
    pub(in super::super) fn keeps_jobs(&self) -> Result<(), StoreError> {
        let bad = |capability: &ServerDurability| capability.keeps_snapshots_only();
        if self.safety.allow_snapshots || !self.capabilities().iter().any(bad) {
            return Ok(());
        }
        Err(StoreError::Unfit(format!(
            "node {} writes no append-only file: a crash loses the jobs since its last snapshot, or all of them. Set appendonly yes \
             (CONFIG SET appendonly yes, and in its file), or store.allow_snapshots = true if that is acceptable",
            self.name
        )))
    }
}

/// Asks a server how safe it can make changes. If the server does not allow a command, the values that this command
/// would report stay unknown, and a warning is logged once.
fn read_capability(wire: &mut PooledConnection) -> Result<ServerDurability, RedisError> {
    let mut ask = |cmd: &Cmd, what: &str| -> Result<Option<Value>, RedisError> {
        match cmd.query(&mut wire.connection) {
            Ok(value) => Ok(Some(value)),
            Err(e) if e.is_io_error() => Err(e),
            Err(e) => {
                static TOLD: AtomicBool = AtomicBool::new(false);
                if !TOLD.swap(true, Ordering::Relaxed) {
                    log::warn!(
                        "redis: a server does not allow {what}, which shows how safe jobs are: {}",
                        Excerpt(e)
                    );
                }
                Ok(None)
            }
        }
    };
    let mut info = redis::cmd("INFO");
    let info = ask(info.arg("server").arg("replication").arg("persistence"), "INFO")?;
    let info = info.and_then(|value| redis::from_redis_value::<String>(value).ok()).unwrap_or_default();
    let pair = |line: &str| line.trim().split_once(':').map(|(k, v)| (k.to_owned(), v.to_owned()));
    let info: BTreeMap<String, String> = info.lines().filter_map(pair).collect();
    let mut config = redis::cmd("CONFIG");
    let config = ask(config.arg("GET").arg("appendonly").arg("appendfsync"), "CONFIG GET")?;
    let config = config.and_then(|value| redis::from_redis_value(value).ok()).unwrap_or_default();
    Ok(ServerDurability::new(&info, &config))
}
