//! One node: its shards. For each shard: what dq knows of the shard, and which server has it.

mod access;
mod call;
mod cluster;
mod connector;
mod known;
mod node_server;
mod rules;
mod safety;
mod server;
mod slots;
mod wire;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use redis::{RedisError, Value};

use self::access::ConnectionParameters;
pub(super) use self::call::{Call, Failure};
use self::cluster::{Cluster, RefreshReason};
use self::connector::{Connector, NewConnection};
pub(super) use self::node_server::NodeServer;
pub(super) use self::safety::mark;
use super::script::Script;
use super::set::NodeSet;
use crate::{ProbeAnswer, ServerQuery, StoreError};
use model::job::JobKey;
use model::settings::{self, NodeAddress};

/// A node and its shards.
pub(super) struct Node {
    pub name: String,
    /// The first part of the keys of each shard.
    pub bases: Vec<String>,
    servers: Servers,
    timeout: Duration,
    pub safety: settings::DurabilitySettings,
    /// The key under which the server keeps the name of the node, if the node has only one server.
    name_key: String,
    /// For each shard: whether dq has seen that the number of shards that the shard stores is the number in the
    /// settings.
    known: Vec<AtomicBool>,
}

/// The servers of a node.
enum Servers {
    /// One server at a time.
    One(Arc<NodeServer>),
    Many(Cluster),
}

/// A connection on which a bell waits.
pub(super) struct BellConnection {
    pub connection: redis::Connection,
    pub server: Arc<NodeServer>,
}

pub(super) type Answer = Result<Value, Failure>;

/// The position of the set in a call's words: after EVALSHA, the script, the number of keys, and the base.
const SET_AT: usize = 4;

/// The position of the number of keys.
const KEYS_AT: usize = 2;

/// A shard remembers the last batch of a sender under a key: the base, this text, and the name of the sender.
pub(super) const BATCH: &str = "batch:";

impl Node {
    /// Makes a node from the settings. Does not connect yet.
    pub(super) fn new(
        node: &settings::NodeSettings,
        of: &settings::RedisSettings,
    ) -> Result<Node, StoreError> {
        let wrong = |e: RedisError| StoreError::Unavailable(format!("node {}: {e}", node.name));
        let (pool, timeout) = (node.pool.unwrap_or(of.pool), node.timeout.unwrap_or(of.timeout));
        let base = |shard| format!("{}:{{{}.{shard}}}:", of.prefix, node.name);
        let bases: Vec<String> = (0..node.shards).map(base).collect();
        let access = |url: &String| ConnectionParameters::new(url, &node.tls).map_err(wrong);
        let all = |urls: &[String]| urls.iter().map(access).collect::<Result<Vec<_>, _>>();
        let limit = of.safety.timeout;
        let one = |connector| {
            Servers::One(Arc::new(NodeServer::new(node.name.clone(), connector, pool, (timeout, limit))))
        };
        let servers = match &node.at {
            NodeAddress::Server { url } => one(Connector::to(&access(url)?).map_err(wrong)?),
            NodeAddress::Sentinel { sentinels, master_name, url } => {
                one(Connector::by_sentinels(all(sentinels)?, master_name, access(url)?).map_err(wrong)?)
            }
            NodeAddress::Cluster { seeds } => {
                Servers::Many(Cluster::new(&node.name, &bases, all(seeds)?, pool, (timeout, limit)))
            }
        };
        Ok(Node {
            name: node.name.clone(),
            name_key: format!("{}:node", of.prefix),
            servers,
            timeout,
            safety: of.safety.clone(),
            known: bases.iter().map(|_| AtomicBool::new(false)).collect(),
            bases,
        })
    }

    /// Notes that this process has met a server of the node, and may use this server.
    pub(super) fn has_met(&self, server: String) {
        for endpoint in self.masters(false) {
            endpoint.met.note(server.clone());
        }
    }

    /// Reads again where the shards of a Cluster are.
    fn refresh(&self, cluster: &Cluster, seen: u64, because: RefreshReason<'_>) {
        let moved = cluster.refresh(seen, because);
        if !moved.is_empty() {
            log::warn!("node {}: {} of its shards have another master now", self.name, moved.len());
        }
    }

    /// Returns how many replicas of the node's master the Sentinels know, including those that are down. None: no
    /// Sentinel answers, or there are no Sentinels.
    pub(super) fn known_replicas(&self) -> Option<u64> {
        match &self.servers {
            Servers::One(server) => server.connector.known_replicas(self.timeout),
            Servers::Many(_) => None,
        }
    }

    /// Returns whether Sentinels say which server is the master of the node.
    pub(super) fn has_sentinels(&self) -> bool {
        matches!(&self.servers, Servers::One(server) if server.connector.asks_sentinels())
    }

    /// Opens a separate connection to the server of a shard, for a bell that waits on it.
    pub(super) fn connect(&self, shard: usize, read_timeout: Duration) -> Result<BellConnection, RedisError> {
        let server = match &self.servers {
            Servers::One(server) => Arc::clone(server),
            Servers::Many(cluster) => {
                let seen = cluster.map().version;
                self.refresh(cluster, seen, RefreshReason::Away);
                let home = cluster.map().homes.get(shard).cloned().flatten();
                home.ok_or_else(|| std::io::Error::other("no master has its slot"))?
            }
        };
        let NewConnection { connection, era, .. } = server.connector.connect(self.timeout, read_timeout)?;
        if era != server.connector.era() {
            return Err(std::io::Error::other("the master has changed meanwhile").into());
        }
        Ok(BellConnection { connection, server })
    }

    /// Begins a call of a script on a shard. The caller adds the arguments. A fenced script gets this set of nodes.
    pub(super) fn call(&self, script: Script, shard: usize, set: Option<&NodeSet>) -> Call {
        let (mut cmd, base) = (redis::cmd("EVALSHA"), &self.bases[shard]);
        let while_moving = set.is_some_and(|set| set.moving.is_some());
        let set = set.map_or("", NodeSet::text);
        cmd.arg(script.hash());
        match script.is_fenced() {
            true => cmd.arg(2).arg(base).arg(format!("{base}{set}")),
            false => cmd.arg(1).arg(base),
        };
        let to_met = script.is_fenced();
        Call { script: Some(script), while_moving, to_met, ..Call::plain(shard, cmd) }
    }

    /// Returns the same call with another set.
    pub(super) fn by_set(&self, call: &Call, set: &NodeSet) -> Call {
        let mut cmd = redis::Cmd::new();
        for (i, argument) in call.cmd.args_iter().enumerate() {
            match argument {
                redis::Arg::Simple(_) if i == SET_AT => {
                    cmd.arg(format!("{}{}", self.bases[call.shard], set.text()))
                }
                redis::Arg::Simple(bytes) => cmd.arg(bytes),
                _ => &mut cmd,
            };
        }
        Call { while_moving: set.moving.is_some(), cmd, ..*call }
    }

    /// Returns the same call as a batch of a sender. The shard takes the batch with this number only once. See
    /// part/batch.lua. `waits`: the jobs with changes that waited in a spool, and since when each change waited, by the
    /// clock of the shard, in Unix milliseconds (`lua/part/late_letters.lua`).
    pub(super) fn as_batch(
        &self,
        call: &Call,
        sender: &str,
        number: impl std::fmt::Display,
        waits: &[(&JobKey, i64)],
    ) -> Call {
        let mut cmd = redis::Cmd::new();
        for (i, argument) in call.cmd.args_iter().enumerate() {
            let redis::Arg::Simple(bytes) = argument else { continue };
            match i {
                KEYS_AT => cmd.arg(3),
                SET_AT => cmd.arg(bytes).arg(format!("{}:{number}", self.batch_key(call.shard, sender))),
                _ => cmd.arg(bytes),
            };
        }
        for (key, since_ms) in waits {
            cmd.arg(key.topic.as_str()).arg(key.id.as_str()).arg(*since_ms);
        }
        cmd.arg(waits.len());
        Call { cmd, ..*call }
    }

    /// Returns the key under which a shard remembers the last batch that it took from a sender.
    fn batch_key(&self, shard: usize, sender: &str) -> String {
        format!("{}{BATCH}{sender}", self.bases[shard])
    }

    /// Begins a plain command on a key of a shard. The caller adds the other arguments.
    pub(super) fn plain(&self, command: &str, shard: usize, key: &str) -> Call {
        let mut cmd = redis::cmd(command);
        cmd.arg(format!("{}{key}", self.bases[shard]));
        Call::plain(shard, cmd)
    }

    /// Makes all calls, in one round trip to each server. Each call gets its own answer.
    pub(super) fn run(&self, calls: &[Call]) -> Vec<Answer> {
        if let Err(e) = self.know(calls) {
            return calls.iter().map(|_| Err(Failure::NotRun(e.clone()))).collect();
        }
        self.ask(&calls.iter().collect::<Vec<_>>())
    }

    /// Makes a single call.
    pub(super) fn run_one(&self, call: Call) -> Answer {
        self.run(&[call]).pop().unwrap_or_else(|| Err(Failure::NotRun(self.down("no answer"))))
    }

    fn ask(&self, calls: &[&Call]) -> Vec<Answer> {
        if calls.is_empty() {
            return Vec::new();
        }
        let cluster = match &self.servers {
            Servers::One(server) => {
                return server.run(calls).answers;
            }
            Servers::Many(cluster) => cluster,
        };
        if cluster.map().version == 0 {
            self.refresh(cluster, 0, RefreshReason::Away);
        }
        let map = cluster.map();
        let (mut answers, silent) = self.ask_masters(cluster, calls);
        if silent {
            self.refresh(cluster, map.version, RefreshReason::Away);
        }
        // The shards of these calls have moved, so the calls were not run. They are made once more, at the new masters.
        let elsewhere = |i: &usize| matches!(answers[*i], Err(Failure::Elsewhere(_)));
        let moved: Vec<usize> = (0..calls.len()).filter(elsewhere).collect();
        if let Some(by) = moved.first().and_then(|i| map.homes.get(calls[*i].shard)?.as_ref()) {
            self.refresh(cluster, map.version, RefreshReason::Moved(by));
            let again: Vec<&Call> = moved.iter().map(|i| calls[*i]).collect();
            let (second, _) = self.ask_masters(cluster, &again);
            moved.iter().zip(second).for_each(|(i, answer)| answers[*i] = answer);
        }
        answers
    }

    /// Asks the master of each shard. Also returns whether a master is silent, or a shard has no master.
    fn ask_masters(&self, cluster: &Cluster, calls: &[&Call]) -> (Vec<Answer>, bool) {
        let map = cluster.map();
        let mut answers: Vec<Answer> =
            calls.iter().map(|_| Err(Failure::NotRun(self.down("no master has its slot")))).collect();
        let mut groups: BTreeMap<&str, (&Arc<NodeServer>, Vec<usize>)> = BTreeMap::new();
        let mut silent = false;
        for (i, call) in calls.iter().enumerate() {
            match map.homes.get(call.shard).and_then(Option::as_ref) {
                Some(home) => groups.entry(&home.name).or_insert((home, Vec::new())).1.push(i),
                None => silent = true,
            }
        }
        for (master, members) in groups.into_values() {
            let some: Vec<&Call> = members.iter().map(|i| calls[*i]).collect();
            let exchange = master.run(&some);
            silent |= exchange.was_silent;
            members.into_iter().zip(exchange.answers).for_each(|(i, answer)| answers[i] = answer);
        }
        (answers, silent)
    }

    /// Returns whether the server of a shard counts as down.
    pub(super) fn is_down(&self, shard: usize) -> bool {
        match &self.servers {
            Servers::One(server) => server.is_down(),
            Servers::Many(cluster) => {
                let map = cluster.map();
                map.version > 0
                    && map.homes.get(shard).and_then(Option::as_ref).is_none_or(|home| home.is_down())
            }
        }
    }

    /// Checks that the node answers. For a Cluster, one master that answers is enough.
    pub(super) fn ping(&self) -> Result<(), StoreError> {
        let mut failed = Err(self.down("no master is known"));
        for server in self.masters(false) {
            match server.ask::<Value>(&redis::cmd("PING")) {
                Ok(_) => return Ok(()),
                Err(e) => failed = Err(e),
            }
        }
        failed
    }

    /// Ends the waits of connections. Each connection is given as its server and the id that this server gave to it.
    pub(super) fn unblock<'a>(&self, waiting: impl Iterator<Item = &'a (Arc<NodeServer>, i64)>) {
        // A server that does not answer is not asked again. No ring is lost, because such a server gives no ring to its
        // listeners.
        let mut silent: Vec<&str> = Vec::new();
        for (server, number) in waiting {
            let mut cmd = redis::cmd("CLIENT");
            cmd.arg("UNBLOCK").arg(number);
            if !silent.contains(&server.name.as_str())
                && let Err(e) = server.ask_briefly::<Value>(&cmd)
            {
                log::debug!("node {}: cannot end a wait: {e}", server.name);
                silent.push(&server.name);
            }
        }
    }

    /// Asks each server of the node about itself, even a server that counts as down.
    pub(super) fn probe(&self, probe: ServerQuery) -> Vec<ProbeAnswer> {
        let masters = self.masters(probe == ServerQuery::Cluster);
        if masters.is_empty() {
            return vec![ProbeAnswer { server: String::new(), values: Err(self.down("no master is known")) }];
        }
        let ask = |server: Arc<NodeServer>| {
            let mut values = probe_one(&server, probe);
            if let (Ok(values), ServerQuery::Info, Servers::One(_)) = (&mut values, probe, &self.servers) {
                let name: Result<Option<String>, _> = server.ask(redis::cmd("GET").arg(&self.name_key));
                values.extend(name.ok().flatten().map(|name| ("dq_node".to_owned(), name)));
            }
            ProbeAnswer { values, server: server.connector.address() }
        };
        let probed: Vec<ProbeAnswer> = masters.into_iter().map(ask).collect();
        if probed.iter().any(|p| p.values.is_err()) {
            self.masters(true);
        }
        probed
    }

    /// Returns the masters that can be asked: those of the known map of slots. With `anew`, the map is read again
    /// first.
    fn masters(&self, anew: bool) -> Vec<Arc<NodeServer>> {
        match &self.servers {
            Servers::One(server) => vec![Arc::clone(server)],
            Servers::Many(cluster) => {
                let map = cluster.map();
                if map.version == 0 || anew {
                    self.refresh(cluster, map.version, RefreshReason::Away);
                }
                cluster.map().masters.values().cloned().collect()
            }
        }
    }

    fn down(&self, why: &str) -> StoreError {
        StoreError::NodeDown(format!("{}: {why}", self.name))
    }
}

fn probe_one(server: &NodeServer, probe: ServerQuery) -> Result<BTreeMap<String, String>, StoreError> {
    let lines = |text: String| {
        let pair = |line: &str| line.trim().split_once(':').map(|(k, v)| (k.to_owned(), v.to_owned()));
        text.lines().filter_map(pair).collect()
    };
    match probe {
        ServerQuery::Time => {
            let (seconds, micros): (u64, u64) = server.ask(&redis::cmd("TIME"))?;
            Ok(BTreeMap::from([("us".to_owned(), (seconds * 1_000_000 + micros).to_string())]))
        }
        ServerQuery::Info => {
            let values: BTreeMap<String, String> = server.ask(&redis::cmd("INFO")).map(lines)?;
            if values.get("role").is_some_and(|role| role == "slave") {
                // There may be another master by now.
                server.connector.forget();
            }
            Ok(values)
        }
        ServerQuery::Cluster => server.ask(redis::cmd("CLUSTER").arg("INFO")).map(lines),
        ServerQuery::Config => {
            let mut get = redis::cmd("CONFIG");
            server.ask(get.arg("GET").arg(&["maxmemory-policy", "appendonly", "appendfsync", "save"]))
        }
    }
}
