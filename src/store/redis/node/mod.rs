//! One node: its shards, how each of them stands, and which server has it.

mod access;
mod call;
mod cluster;
mod door;
mod endpoint;
mod known;
mod rules;
mod slots;
mod wire;

use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use redis::{RedisError, Value};

use self::access::Access;
pub(super) use self::call::{Call, Failure};
use self::cluster::{Because, Cluster};
use self::door::{Door, Entered};
pub(super) use self::endpoint::Endpoint;
use self::endpoint::Exchange;
use self::wire::ServerId;
use super::breaker::PAUSE;
use super::script::Script;
use super::standing::Standing;
use crate::settings::{self, At};
use crate::store::{Probe, Probed, StoreError};

/// A node and its shards.
pub(super) struct Node {
    pub name: String,
    /// What the keys of each shard begin with.
    pub bases: Vec<String>,
    servers: Servers,
    timeout: Duration,
    /// Of each shard.
    standings: Mutex<Vec<Standing>>,
    /// What each server of the node notes its name under, where it has but one.
    name_key: String,
    /// Which shards have been found to be of a node with as many as the settings say.
    known: Vec<AtomicBool>,
}

/// What a node is made of.
enum Servers {
    /// One at a time.
    One(Arc<Endpoint>),
    Many(Cluster),
}

/// A connection on which somebody waits.
pub(super) struct Waiting {
    pub connection: redis::Connection,
    pub server: Arc<Endpoint>,
}

type Answer = Result<Value, Failure>;

impl Node {
    /// A node as the settings have it. Does not connect yet.
    pub(super) fn new(node: &settings::Node, of: &settings::Redis) -> Result<Node, StoreError> {
        let wrong = |e: RedisError| StoreError::Unavailable(format!("node {}: {e}", node.name));
        let (pool, timeout) = (node.pool.unwrap_or(of.pool), node.timeout.unwrap_or(of.timeout));
        let base = |shard| format!("{}:{{{}.{shard}}}:", of.prefix, node.name);
        let bases: Vec<String> = (0..node.shards).map(base).collect();
        let access = |url: &String| Access::new(url, &node.tls).map_err(wrong);
        let all = |urls: &[String]| urls.iter().map(access).collect::<Result<Vec<_>, _>>();
        let one = |door| Servers::One(Arc::new(Endpoint::new(node.name.clone(), door, pool, timeout)));
        let servers = match &node.at {
            At::Server { url } => one(Door::to(&access(url)?).map_err(wrong)?),
            At::Sentinel { sentinels, master_name, url } => {
                one(Door::asking(all(sentinels)?, master_name, access(url)?).map_err(wrong)?)
            }
            At::Cluster { seeds } => {
                Servers::Many(Cluster::new(&node.name, &bases, all(seeds)?, pool, timeout))
            }
        };
        Ok(Node {
            name: node.name.clone(),
            name_key: format!("{}:node", of.prefix),
            servers,
            timeout,
            standings: Mutex::new(vec![Standing::default(); bases.len()]),
            known: bases.iter().map(|_| AtomicBool::new(false)).collect(),
            bases,
        })
    }

    fn standings(&self) -> MutexGuard<'_, Vec<Standing>> {
        self.standings.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From when on all that others say of a shard of this node is true; see [`Standing::known_since`].
    pub(super) fn known_since(&self, shard: usize) -> Option<Option<Instant>> {
        self.standings()[shard].known_since(self.settling(), Instant::now())
    }

    /// Whether a shard of it answers, but not all may know that yet.
    pub(super) fn is_returning(&self, shard: usize) -> bool {
        self.standings()[shard].is_returning(self.settling(), Instant::now())
    }

    /// Whether what others said then may be from before everybody knew that this node is there. `answered`: it did so then.
    pub(super) fn was_missed(&self, answered: bool, asked_at: Option<Instant>) -> bool {
        let (pause, now) = (self.settling(), Instant::now());
        self.standings().iter().any(|shard| match shard.known_since(pause, now) {
            None => answered || shard.is_returning(pause, now),
            Some(since) => since.zip(asked_at).is_some_and(|(since, asked)| asked < since),
        })
    }

    /// How long it may take to answer, or to be taken for down.
    pub(super) fn answer_time(&self) -> Duration {
        self.timeout + PAUSE / 2
    }

    /// How long after its return a node may still be taken for down by somebody: who asked it just before waits that long for
    /// an answer, and then leaves it alone for a while.
    pub(super) fn settling(&self) -> Duration {
        self.timeout + 2 * PAUSE
    }

    /// Notes which server answers for some shards.
    fn meet(&self, server: &ServerId, shards: impl Iterator<Item = usize>) {
        let (mut standings, now) = (self.standings(), Instant::now());
        // Since when a master of a Cluster is one it does not say.
        let is_new = server.took_over && matches!(self.servers, Servers::Many(_));
        let is_old = !is_new && server.is_older_than(self.settling() + Duration::from_secs(1));
        shards.for_each(|shard| standings[shard].met(&server.run_id, is_old, now));
    }

    /// Notes that shards have gone to other masters, whom nobody has met yet.
    fn refresh(&self, cluster: &Cluster, seen: u64, because: Because<'_>) {
        let moved = cluster.refresh(seen, because);
        if !moved.is_empty() {
            log::warn!("node {}: {} of its shards have another master now", self.name, moved.len());
            let mut standings = self.standings();
            moved.into_iter().for_each(|shard| standings[shard].failed());
        }
    }

    /// A connection of its own to the server of a shard, for whoever waits on it.
    pub(super) fn connect(&self, shard: usize, read_timeout: Duration) -> Result<Waiting, RedisError> {
        let server = match &self.servers {
            Servers::One(server) => Arc::clone(server),
            Servers::Many(cluster) => {
                let seen = cluster.map().version;
                self.refresh(cluster, seen, Because::Away);
                let home = cluster.map().homes.get(shard).cloned().flatten();
                home.ok_or_else(|| std::io::Error::other("no master has its slot"))?
            }
        };
        let Entered { connection, server: who, era } = server.door.enter(self.timeout, read_timeout)?;
        if era != server.door.era() {
            return Err(std::io::Error::other("there was another master meanwhile").into());
        }
        match &self.servers {
            Servers::One(_) => self.meet(&who, 0..self.bases.len()),
            Servers::Many(_) => self.meet(&who, std::iter::once(shard)),
        }
        Ok(Waiting { connection, server })
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

    /// Makes all calls, in one round trip to each server. Each is answered by itself.
    pub(super) fn run(&self, calls: &[Call]) -> Vec<Answer> {
        if let Err(e) = self.know(calls) {
            return calls.iter().map(|_| Err(Failure::NotRun(e.clone()))).collect();
        }
        self.ask(&calls.iter().collect::<Vec<_>>())
    }

    /// One call, alone.
    pub(super) fn run_one(&self, call: Call) -> Answer {
        self.run(&[call]).pop().unwrap_or_else(|| Err(Failure::NotRun(self.down("no answer"))))
    }

    fn ask(&self, calls: &[&Call]) -> Vec<Answer> {
        if calls.is_empty() {
            return Vec::new();
        }
        let cluster = match &self.servers {
            Servers::One(server) => {
                let exchange = server.run(calls);
                self.judge(calls, &exchange);
                return exchange.answers;
            }
            Servers::Many(cluster) => cluster,
        };
        if cluster.map().version == 0 {
            self.refresh(cluster, 0, Because::Away);
        }
        let map = cluster.map();
        let (mut answers, silent) = self.ask_masters(cluster, calls);
        if silent {
            self.refresh(cluster, map.version, Because::Away);
        }
        // Those were not run. They are asked once more, where they are.
        let elsewhere = |i: &usize| matches!(answers[*i], Err(Failure::Elsewhere(_)));
        let moved: Vec<usize> = (0..calls.len()).filter(elsewhere).collect();
        if let Some(by) = moved.first().and_then(|i| map.homes.get(calls[*i].shard)?.as_ref()) {
            self.refresh(cluster, map.version, Because::Moved(by));
            let again: Vec<&Call> = moved.iter().map(|i| calls[*i]).collect();
            let (second, _) = self.ask_masters(cluster, &again);
            moved.iter().zip(second).for_each(|(i, answer)| answers[*i] = answer);
        }
        answers
    }

    /// Asks the master of each shard. Tells whether there is one that is silent, or none at all.
    fn ask_masters(&self, cluster: &Cluster, calls: &[&Call]) -> (Vec<Answer>, bool) {
        let map = cluster.map();
        let mut answers: Vec<Answer> =
            calls.iter().map(|_| Err(Failure::NotRun(self.down("no master has its slot")))).collect();
        let mut groups: BTreeMap<&str, (&Arc<Endpoint>, Vec<usize>)> = BTreeMap::new();
        let mut silent = false;
        for (i, call) in calls.iter().enumerate() {
            match map.homes.get(call.shard).and_then(Option::as_ref) {
                Some(home) => groups.entry(&home.name).or_insert((home, Vec::new())).1.push(i),
                None => {
                    silent = true;
                    self.standings()[call.shard].failed();
                }
            }
        }
        for (master, members) in groups.into_values() {
            let some: Vec<&Call> = members.iter().map(|i| calls[*i]).collect();
            let exchange = master.run(&some);
            self.judge(&some, &exchange);
            silent |= exchange.was_silent;
            members.into_iter().zip(exchange.answers).for_each(|(i, answer)| answers[i] = answer);
        }
        (answers, silent)
    }

    /// Notes what answers say of the shards.
    fn judge(&self, calls: &[&Call], exchange: &Exchange) {
        if let Some((server, is_new)) = &exchange.server {
            match &self.servers {
                Servers::One(_) if *is_new => self.meet(server, 0..self.bases.len()),
                _ => self.meet(server, calls.iter().map(|call| call.shard)),
            }
        }
        let now = Instant::now();
        let mut standings = self.standings();
        for (call, answer) in calls.iter().zip(&exchange.answers) {
            match answer {
                _ if exchange.was_silent => standings[call.shard].failed(),
                Err(failure) if failure.is_away() => standings[call.shard].failed(),
                // The connection was closed.
                Err(Failure::Unknown(_)) => {}
                _ => standings[call.shard].answered(now),
            }
        }
    }

    /// Whether the node answers: of a Cluster, any of its masters.
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

    /// Ends the waiting of connections, by the numbers that their servers know them by.
    pub(super) fn unblock<'a>(&self, waiting: impl Iterator<Item = &'a (Arc<Endpoint>, i64)>) {
        // Where a server does not answer, nobody is told anything there either.
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

    /// Asks each server of the node about itself, whether it is taken for down or not.
    pub(super) fn probe(&self, probe: Probe) -> Vec<Probed> {
        let masters = self.masters(probe == Probe::Cluster);
        if masters.is_empty() {
            return vec![Probed { server: String::new(), told: Err(self.down("no master is known")) }];
        }
        let ask = |server: Arc<Endpoint>| {
            let mut told = probe_one(&server, probe);
            if let (Ok(told), Probe::Info, Servers::One(_)) = (&mut told, probe, &self.servers) {
                let name: Result<Option<String>, _> = server.ask(redis::cmd("GET").arg(&self.name_key));
                told.extend(name.ok().flatten().map(|name| ("dq_node".to_owned(), name)));
            }
            Probed { told, server: server.door.address() }
        };
        let probed: Vec<Probed> = masters.into_iter().map(ask).collect();
        if probed.iter().any(|p| p.told.is_err()) {
            self.masters(true);
        }
        probed
    }

    /// Who can be asked; found out anew, or as it is known.
    fn masters(&self, anew: bool) -> Vec<Arc<Endpoint>> {
        match &self.servers {
            Servers::One(server) => vec![Arc::clone(server)],
            Servers::Many(cluster) => {
                let map = cluster.map();
                if map.version == 0 || anew {
                    self.refresh(cluster, map.version, Because::Away);
                }
                cluster.map().masters.values().cloned().collect()
            }
        }
    }

    fn down(&self, why: &str) -> StoreError {
        StoreError::NodeDown(format!("{}: {why}", self.name))
    }
}

fn probe_one(server: &Endpoint, probe: Probe) -> Result<BTreeMap<String, String>, StoreError> {
    let lines = |text: String| {
        let pair = |line: &str| line.trim().split_once(':').map(|(k, v)| (k.to_owned(), v.to_owned()));
        text.lines().filter_map(pair).collect()
    };
    match probe {
        Probe::Time => {
            let (seconds, micros): (u64, u64) = server.ask(&redis::cmd("TIME"))?;
            Ok(BTreeMap::from([("us".to_owned(), (seconds * 1_000_000 + micros).to_string())]))
        }
        Probe::Info => {
            let told: BTreeMap<String, String> = server.ask(&redis::cmd("INFO")).map(lines)?;
            if told.get("role").is_some_and(|role| role == "slave") {
                // Perhaps there is another master by now.
                server.door.forget();
            }
            Ok(told)
        }
        Probe::Cluster => server.ask(redis::cmd("CLUSTER").arg("INFO")).map(lines),
        Probe::Config => {
            let mut get = redis::cmd("CONFIG");
            server.ask(get.arg("GET").arg("maxmemory-policy").arg("appendonly").arg("save"))
        }
    }
}
