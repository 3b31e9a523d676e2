//! Watches the Redis nodes. Checks each second whether they answer. Checks their state every ten seconds, and their
//! configuration each minute. Pure functions judge the answers.

use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::Result;

use super::finding_kind::{FindingKind, NodeFindingKind};
use super::findings::FoundConditions;
use model::topic::Durability;
use store::{Lanes, ProbeAnswer, ServerDurability, ServerQuery, StoreError};

/// How often a node is asked whether it answers. `INFO_EACH`: after how many rounds its state is read. `CONFIG_EACH`:
/// after how many rounds its configuration is read.
const ROUND: Duration = Duration::from_secs(1);
const INFO_EACH: u64 = 10;
const CONFIG_EACH: u64 = 60;

/// A server is down if it does not answer in this number of rounds in a row.
const MISSES: u32 = 3;

/// A node's clock that differs by more than this from the host's clock is a finding. The time that the answer took is
/// subtracted first.
const CLOCK_MAX: Duration = Duration::from_millis(50);

/// A node that uses more than this percentage of its memory is short of memory.
const MEMORY_MAX: u64 = 90;

/// What is known of a node and of each of its servers.
#[derive(Debug, Default)]
struct NodeHealth {
    servers: BTreeMap<String, KnownServer>,
    /// The number of checks in a row that found an older set on this node than on the other nodes. (While a move begins
    /// or ends, a node may seem older for a moment.)
    older: u32,
    /// Whether the node does not answer, and has no jobs because it was forgotten or is not in the set yet. If so,
    /// nothing about the node is a finding.
    is_outside: bool,
}

/// What is known of a server.
#[derive(Debug, Default)]
struct KnownServer {
    misses: u32,
    why: String,
    found: BTreeMap<NodeFindingKind, String>,
    /// The largest number of replicas that the server has had since this process started.
    replicas: u64,
    /// Whether the server has reported the name of its node at least once. If so, the node is in use.
    is_used: bool,
    /// The part of its configuration that the server has reported.
    config: BTreeMap<String, String>,
}

/// The watchers: one for each node, so that a node that hangs delays no other node.
pub(super) struct Watchers {
    answers: Receiver<(String, BTreeMap<NodeFindingKind, String>)>,
    /// What was last found on each node.
    nodes: BTreeMap<String, BTreeMap<NodeFindingKind, String>>,
}

impl Watchers {
    /// Starts the watchers.
    pub(super) fn start(lanes: &Lanes) -> Result<Watchers> {
        let (sender, answers) = channel();
        for lane in 0..lanes.count() {
            if let Some(name) = lanes.name(lane) {
                let (lanes, sender, name) = (lanes.clone(), sender.clone(), name.to_owned());
                role::vital_thread("watcher", move || watch(&lanes, lane, &name, &sender))?;
            }
        }
        Ok(Watchers { answers, nodes: BTreeMap::new() })
    }

    /// Returns what is found now.
    pub(super) fn found(&mut self) -> FoundConditions {
        self.nodes.extend(self.answers.try_iter());
        let of = |(name, found): (&String, &BTreeMap<NodeFindingKind, String>)| {
            let name = name.clone();
            found
                .clone()
                .into_iter()
                .map(move |(what, detail)| (FindingKind::Node(name.clone(), what), detail))
        };
        self.nodes.iter().flat_map(of).collect()
    }
}

fn watch(
    lanes: &Lanes,
    lane: usize,
    name: &str,
    sender: &Sender<(String, BTreeMap<NodeFindingKind, String>)>,
) {
    let mut known = NodeHealth::default();
    for round in 0.. {
        let begun = Instant::now();
        known.check(lanes, lane, round);
        if sender.send((name.to_owned(), known.conditions())).is_err() {
            return;
        }
        std::thread::sleep(ROUND.saturating_sub(begun.elapsed()));
    }
}

impl NodeHealth {
    fn check(&mut self, lanes: &Lanes, lane: usize, round: u64) {
        let asked = (SystemTime::now(), Instant::now());
        let probed = lanes.probe(lane, ServerQuery::Time);
        let way = asked.1.elapsed();
        // A server that is no longer a master of the Cluster is forgotten, and is not reported as down.
        self.servers.retain(|name, _| probed.iter().any(|p| p.server == *name));
        for ProbeAnswer { server, values } in probed {
            let server = self.servers.entry(server).or_default();
            match values {
                Ok(values) => {
                    server.misses = 0;
                    if let Some(now_us) = values.get("us").and_then(|us| us.parse().ok()) {
                        server.put(vec![(NodeFindingKind::ClockOff, judge_clock(now_us, asked.0, way))]);
                    }
                }
                Err(e) => {
                    server.misses = server.misses.saturating_add(1);
                    server.why = match e {
                        StoreError::NodeDown(why) => why,
                        e => e.to_string(),
                    };
                }
            }
        }
        let is_down = self.servers.values().any(|server| server.misses >= MISSES);
        self.is_outside = is_down && lanes.is_outside(lane);
        // These requests may bring no values: a server may forbid CONFIG, and a server outside a Cluster reports
        // nothing about a Cluster.
        if round.is_multiple_of(CONFIG_EACH) {
            self.judge(lanes.probe(lane, ServerQuery::Config), |server, config| {
                server.config.clone_from(config);
                judge_config(config)
            });
        }
        if round.is_multiple_of(INFO_EACH) {
            let (asked, allows_snapshots) = (lanes.asked_levels(), lanes.allows_snapshots());
            self.judge(lanes.probe(lane, ServerQuery::Info), |server, info| {
                server.replicas = server.replicas.max(connected_replicas(info));
                server.is_used |= info.contains_key("dq_node");
                let mut judged = judge_info(info, server.replicas, server.is_used);
                let capability = ServerDurability::new(info, &server.config);
                judged.push((
                    NodeFindingKind::NotDurable,
                    judge_durability(&capability, &asked, allows_snapshots),
                ));
                judged
            });
            self.judge(lanes.probe(lane, ServerQuery::Cluster), |_, info| judge_cluster(info));
            let is_older = lanes.count() > 1 && lanes.nodes().get(lane).is_some_and(|state| state.is_older);
            self.older = if is_older { self.older.saturating_add(1) } else { 0 };
        }
    }

    fn judge(
        &mut self,
        probed: Vec<ProbeAnswer>,
        judge: impl Fn(&mut KnownServer, &BTreeMap<String, String>) -> NodeCheckResults,
    ) {
        for ProbeAnswer { server, values } in probed {
            if let (Some(server), Ok(values)) = (self.servers.get_mut(&server), values) {
                let judged = judge(server, &values);
                server.put(judged);
            }
        }
    }

    /// Returns what is found on the node. If it has several servers, each detail names its server.
    fn conditions(&self) -> BTreeMap<NodeFindingKind, String> {
        let mut details_of: BTreeMap<NodeFindingKind, Vec<String>> = BTreeMap::new();
        if self.is_outside {
            return BTreeMap::new();
        }
        for (name, server) in &self.servers {
            for (what, detail) in server.conditions() {
                let detail = if self.servers.len() > 1 { format!("{name}: {detail}") } else { detail };
                details_of.entry(what).or_default().push(detail);
            }
        }
        if self.older > 1 {
            let advice =
                "a replica that lagged was promoted, or a backup was restored: dq nodes move looks at it";
            details_of.insert(NodeFindingKind::Older, vec![advice.to_owned()]);
        }
        details_of.into_iter().map(|(what, details)| (what, details.join("; "))).collect()
    }
}

impl KnownServer {
    fn put(&mut self, judged: NodeCheckResults) {
        for (what, detail) in judged {
            match detail {
                Some(detail) => drop(self.found.insert(what, detail)),
                None => drop(self.found.remove(&what)),
            }
        }
    }

    /// Returns what is found on the server. If the server is down, this is the only finding.
    fn conditions(&self) -> BTreeMap<NodeFindingKind, String> {
        if self.misses >= MISSES {
            return BTreeMap::from([(NodeFindingKind::Down, self.why.clone())]);
        }
        self.found.clone()
    }
}

fn number(values: &BTreeMap<String, String>, key: &str) -> u64 {
    values.get(key).and_then(|n| n.parse().ok()).unwrap_or(0)
}

/// Judges a node's clock. The node read its clock at some time between the request (`asked`) and the answer (`way`
/// later).
fn judge_clock(now_us: u64, asked: SystemTime, way: Duration) -> Option<String> {
    let asked_us = asked.duration_since(UNIX_EPOCH).ok()?.as_micros() as i128;
    let off = i128::from(now_us) - asked_us;
    let way_us = way.as_micros() as i128;
    // If `off` is between 0 and `way`, the clock counts as right. The node may have read its clock at any time between
    // the request and the answer.
    let beyond = if off < 0 { off } else { (off - way_us).max(0) };
    let most = CLOCK_MAX.as_micros() as i128;
    (beyond.abs() > most).then(|| {
        let word = if beyond > 0 { "ahead" } else { "behind" };
        format!("{} ms {word}: jobs are due by the node's clock", beyond.abs() / 1000)
    })
}

type NodeCheckResults = Vec<(NodeFindingKind, Option<String>)>;

/// Returns how many replicas are connected. A client that only fetches a snapshot (`redis-cli --rdb`) is in the list of
/// replicas for a moment. Such a client names no port and never acknowledges an offset. A replica names its port before
/// it asks for data. A replica without a port (it listens on a Unix socket only) acknowledges an offset once a second.
fn connected_replicas(info: &BTreeMap<String, String>) -> u64 {
    let is_replica = |(key, value): (&String, &String)| {
        let is_listed = key.strip_prefix("slave").is_some_and(|n| n.parse::<u32>().is_ok());
        let is_zero = |field: &str| value.split(',').any(|part| part.strip_prefix(field) == Some("=0"));
        is_listed && !(is_zero("port") && is_zero("offset"))
    };
    info.iter().filter(|line| is_replica(*line)).count() as u64
}

/// Judges the state of a node. `replicas`: the largest number of replicas that the node has had.
fn judge_info(info: &BTreeMap<String, String>, replicas: u64, is_used: bool) -> NodeCheckResults {
    let is = |key: &str, value: &str| info.get(key).is_some_and(|v| v == value);
    let link = if is("master_link_status", "down") { ", and its link to the master is down" } else { "" };
    let (used, max) = (number(info, "used_memory"), number(info, "maxmemory"));
    let failing = [
        ("aof_last_write_status", "the append-only file cannot be written"),
        ("aof_last_bgrewrite_status", "the append-only file cannot be rewritten"),
        ("rdb_last_bgsave_status", "the snapshot cannot be written"),
    ];
    let failing: Vec<&str> =
        failing.iter().filter(|(key, _)| is(key, "err")).map(|(_, what)| *what).collect();
    let connected = connected_replicas(info);
    vec![
        (NodeFindingKind::Replica, is("role", "slave").then(|| format!("its role is replica{link}"))),
        (NodeFindingKind::PersistenceFails, (!failing.is_empty()).then(|| failing.join("; "))),
        (
            NodeFindingKind::MemoryShort,
            (max > 0 && used * 100 > max * MEMORY_MAX)
                .then(|| format!("{} of {} MiB are used (maxmemory)", used >> 20, max >> 20)),
        ),
        (
            NodeFindingKind::Emptied,
            (is_used && !info.contains_key("dq_node"))
                .then(|| "its data is gone: was it started without its files, or flushed?".to_owned()),
        ),
        (
            NodeFindingKind::ReplicaLost,
            (connected < replicas).then(|| format!("{connected} of {replicas} are connected")),
        ),
    ]
}

/// Returns why a node cannot keep jobs at the durability level that the store and the topics require. `None`: the node
/// can keep them.
fn judge_durability(
    capability: &ServerDurability,
    asked: &[Durability],
    allows_snapshots: bool,
) -> Option<String> {
    if capability.keeps_snapshots_only() && !allows_snapshots {
        let unused = "it writes no append-only file, and is not used: set appendonly yes, or store.allow_snapshots = true";
        return Some(unused.to_owned());
    }
    let lack = asked.iter().find_map(|level| Some((level, capability.lacks(*level)?)));
    lack.map(|(level, why)| {
        format!("\"{level}\" cannot be had, as {why}: changes that ask for it are refused")
    })
}

/// Judges what a server reports about its Cluster.
fn judge_cluster(info: &BTreeMap<String, String>) -> NodeCheckResults {
    let all = 16384;
    let (served, state) =
        (number(info, "cluster_slots_ok"), info.get("cluster_state").map_or("", String::as_str));
    let known = info.contains_key("cluster_slots_ok");
    let away = known && (served < all || state != "ok");
    let detail = || format!("cluster_state is {state}; {served} of {all} slots are served");
    vec![(NodeFindingKind::SlotsAway, away.then(detail))]
}

/// Judges the configuration of a node.
fn judge_config(config: &BTreeMap<String, String>) -> NodeCheckResults {
    let get = |key: &str| config.get(key).map_or("", String::as_str);
    let policy = get("maxmemory-policy");
    let kept = get("appendonly") == "yes" || !get("save").is_empty();
    vec![
        (
            NodeFindingKind::Evicts,
            (!policy.is_empty() && policy != "noeviction")
                .then(|| format!("maxmemory-policy is {policy}; only noeviction keeps jobs safe")),
        ),
        (
            NodeFindingKind::NotPersistent,
            (!kept)
                .then(|| "appendonly is no, and there are no snapshots: a restart loses all jobs".to_owned()),
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect()
    }

    fn holds(judged: NodeCheckResults) -> Vec<NodeFindingKind> {
        judged.into_iter().filter_map(|(what, detail)| detail.map(|_| what)).collect()
    }

    #[test]
    fn what_would_lose_jobs_is_found() {
        let good = [("maxmemory-policy", "noeviction"), ("appendonly", "yes"), ("save", "")];
        assert_eq!(holds(judge_config(&values(&good))), []);
        let bad = [("maxmemory-policy", "allkeys-lru"), ("appendonly", "no"), ("save", "")];
        assert_eq!(
            holds(judge_config(&values(&bad))),
            [NodeFindingKind::Evicts, NodeFindingKind::NotPersistent]
        );
        let snapshots = [("maxmemory-policy", "noeviction"), ("appendonly", "no"), ("save", "3600 1")];
        assert_eq!(holds(judge_config(&values(&snapshots))), []);
    }

    #[test]
    fn how_a_node_is_is_judged() {
        let good = [
            ("role", "master"),
            ("used_memory", "50"),
            ("maxmemory", "100"),
            ("slave0", "ip=h,port=1,state=online,offset=9,lag=0"),
        ];
        assert_eq!(holds(judge_info(&values(&good), 1, false)), []);
        let unlimited = [("role", "master"), ("used_memory", "50"), ("maxmemory", "0")];
        assert_eq!(holds(judge_info(&values(&unlimited), 0, false)), []);
        let bad = [
            ("role", "slave"),
            ("master_link_status", "down"),
            ("aof_last_write_status", "err"),
            ("used_memory", "95"),
            ("maxmemory", "100"),
            ("connected_slaves", "0"),
            ("slave_repl_offset", "9"),
        ];
        let all = [
            NodeFindingKind::Replica,
            NodeFindingKind::PersistenceFails,
            NodeFindingKind::MemoryShort,
            NodeFindingKind::Emptied,
            NodeFindingKind::ReplicaLost,
        ];
        assert_eq!(holds(judge_info(&values(&bad), 1, true)), all);
    }

    #[test]
    fn a_client_that_fetches_a_snapshot_is_no_replica() {
        let connected = |slaves: &[&str]| {
            let named = |(n, slave): (usize, &&str)| (format!("slave{n}"), (*slave).to_owned());
            connected_replicas(&slaves.iter().enumerate().map(named).collect())
        };
        for fetching in ["wait_bgsave", "send_bulk", "online"] {
            assert_eq!(connected(&[&format!("ip=10.0.0.9,port=0,state={fetching},offset=0,lag=0")]), 0);
        }
        let replicas = [
            "ip=10.0.0.1,port=6379,state=online,offset=1400,lag=0",
            "ip=10.0.0.2,port=6379,state=send_bulk,offset=0,lag=0",
            "ip=10.0.0.3,port=0,state=online,offset=1400,lag=1",
        ];
        assert_eq!(connected(&replicas), 3);
    }

    #[test]
    fn a_node_that_cannot_give_a_level_is_found() {
        let kept = ServerDurability {
            version: Some((8, 0)),
            aof: Some(true),
            replicas: Some(1),
            ..ServerDurability::default()
        };
        let asked = [Durability::Memory, Durability::Fsync, Durability::Replicas(1)];
        assert_eq!(judge_durability(&kept, &asked, false), None);
        let values = judge_durability(&kept, &[Durability::Replicas(2)], false).unwrap();
        assert!(values.starts_with("\"replicas:2\" cannot be had"), "{values}");
        let snapshots = ServerDurability { aof: Some(false), ..kept };
        assert!(judge_durability(&snapshots, &[Durability::Memory], false).unwrap().contains("is not used"));
        assert_eq!(judge_durability(&snapshots, &[Durability::Memory], true), None);
        assert!(judge_durability(&snapshots, &asked, true).unwrap().contains("\"fsync\""));
    }

    #[test]
    fn a_clock_is_judged_beyond_what_the_way_explains() {
        let asked = UNIX_EPOCH + Duration::from_secs(1000);
        let way = Duration::from_millis(40);
        for (us, off) in [(1_000_000_000, false), (1_000_080_000, false), (999_960_000, false)] {
            assert_eq!(judge_clock(us, asked, way).is_some(), off, "{us}");
        }
        assert!(judge_clock(1_000_100_000, asked, way).unwrap().contains("60 ms ahead"));
        assert!(judge_clock(999_900_000, asked, way).unwrap().contains("100 ms behind"));
    }

    #[test]
    fn a_cluster_that_lacks_slots_is_found() {
        let good = [("cluster_state", "ok"), ("cluster_slots_ok", "16384")];
        assert_eq!(holds(judge_cluster(&values(&good))), []);
        for bad in [("fail", "16384"), ("ok", "16000"), ("fail", "0")] {
            let info = [("cluster_state", bad.0), ("cluster_slots_ok", bad.1)];
            assert_eq!(holds(judge_cluster(&values(&info))), [NodeFindingKind::SlotsAway]);
        }
        assert_eq!(holds(judge_cluster(&values(&[]))), []);
    }

    #[test]
    fn a_node_is_down_after_some_misses_and_up_at_the_first_answer() {
        let mut known = KnownServer { why: "refused".into(), ..KnownServer::default() };
        for misses in 0..MISSES {
            known.misses = misses;
            assert_eq!(known.conditions().len(), 0);
        }
        known.misses = MISSES;
        assert_eq!(known.conditions(), BTreeMap::from([(NodeFindingKind::Down, "refused".to_owned())]));
        known.misses = 0;
        assert_eq!(known.conditions().len(), 0);
    }

    #[test]
    fn of_several_servers_each_is_named() {
        let server = |misses| KnownServer { misses, why: "refused".into(), ..KnownServer::default() };
        let servers = BTreeMap::from([("h:1".to_owned(), server(MISSES))]);
        let mut alone = NodeHealth { servers, ..NodeHealth::default() };
        assert_eq!(alone.conditions()[&NodeFindingKind::Down], "refused");
        alone.is_outside = true;
        assert_eq!(alone.conditions(), BTreeMap::new(), "a node without jobs may be down");
        let servers = [("h:1", MISSES), ("h:2", 0), ("h:3", MISSES)];
        let several = NodeHealth {
            servers: servers.map(|(name, misses)| (name.to_owned(), server(misses))).into(),
            ..NodeHealth::default()
        };
        assert_eq!(several.conditions()[&NodeFindingKind::Down], "h:1: refused; h:3: refused");
    }
}
