//! Looks at the nodes of Redis: whether they answer, each second; how they are, each ten; how they are set, each minute. What
//! their answers mean is judged purely.

use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::Result;

use super::condition::{Condition, NodeCondition};
use super::findings::Found;
use crate::role;
use crate::store::{Lanes, Probe, Probed, StoreError};

/// How often a node is asked whether it answers; and how many such rounds lie between looks at how it is, and how it is set.
const ROUND: Duration = Duration::from_secs(1);
const INFO_EACH: u64 = 10;
const CONFIG_EACH: u64 = 60;

/// So many rounds without an answer, one after the other, and it is down.
const MISSES: u32 = 3;

/// More than this between a node's clock and the host's, beyond what the way there explains, is told.
const CLOCK_MAX: Duration = Duration::from_millis(50);

/// A node that uses more of its memory than so many hundredths is short of it.
const MEMORY_MAX: u64 = 90;

/// What is known of a node: of each of its servers.
#[derive(Debug, Default)]
struct Known {
    servers: BTreeMap<String, KnownServer>,
}

/// What is known of a server.
#[derive(Debug, Default)]
struct KnownServer {
    misses: u32,
    why: String,
    found: BTreeMap<NodeCondition, String>,
    /// How many replicas it has had at most since this process started.
    replicas: u64,
    /// It has said which node it is.
    is_used: bool,
}

/// The watchers, one a node, so that one that hangs holds up none of the others.
pub(super) struct Watchers {
    told: Receiver<(String, BTreeMap<NodeCondition, String>)>,
    /// What each node was last found to be.
    nodes: BTreeMap<String, BTreeMap<NodeCondition, String>>,
}

impl Watchers {
    /// Starts them.
    pub(super) fn start(lanes: &Lanes) -> Result<Watchers> {
        let (tell, told) = channel();
        for lane in 0..lanes.count() {
            if let Some(name) = lanes.name(lane) {
                let (lanes, tell, name) = (lanes.clone(), tell.clone(), name.to_owned());
                role::vital_thread("watcher", move || watch(&lanes, lane, &name, &tell))?;
            }
        }
        Ok(Watchers { told, nodes: BTreeMap::new() })
    }

    /// What is found now.
    pub(super) fn found(&mut self) -> Found {
        self.nodes.extend(self.told.try_iter());
        let of = |(name, found): (&String, &BTreeMap<NodeCondition, String>)| {
            let name = name.clone();
            found.clone().into_iter().map(move |(what, detail)| (Condition::Node(name.clone(), what), detail))
        };
        self.nodes.iter().flat_map(of).collect()
    }
}

fn watch(lanes: &Lanes, lane: usize, name: &str, tell: &Sender<(String, BTreeMap<NodeCondition, String>)>) {
    let mut known = Known::default();
    for round in 0.. {
        let begun = Instant::now();
        known.look(lanes, lane, round);
        if tell.send((name.to_owned(), known.told())).is_err() {
            return;
        }
        std::thread::sleep(ROUND.saturating_sub(begun.elapsed()));
    }
}

impl Known {
    fn look(&mut self, lanes: &Lanes, lane: usize, round: u64) {
        let asked = (SystemTime::now(), Instant::now());
        let probed = lanes.probe(lane, Probe::Time);
        let way = asked.1.elapsed();
        // A Cluster's master that is one no longer is not a server that is missed.
        self.servers.retain(|name, _| probed.iter().any(|p| p.server == *name));
        for Probed { server, told } in probed {
            let server = self.servers.entry(server).or_default();
            match told {
                Ok(told) => {
                    server.misses = 0;
                    if let Some(now_us) = told.get("us").and_then(|us| us.parse().ok()) {
                        server.put(vec![(NodeCondition::ClockOff, judge_clock(now_us, asked.0, way))]);
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
        // A server may forbid it to be asked, and one that is no Cluster's has nothing to say of it.
        if round.is_multiple_of(INFO_EACH) {
            self.judge(lanes.probe(lane, Probe::Info), |server, info| {
                server.replicas = server.replicas.max(number(info, "connected_slaves"));
                server.is_used |= info.contains_key("dq_node");
                judge_info(info, server.replicas, server.is_used)
            });
            self.judge(lanes.probe(lane, Probe::Cluster), |_, info| judge_cluster(info));
        }
        if round.is_multiple_of(CONFIG_EACH) {
            self.judge(lanes.probe(lane, Probe::Config), |_, config| judge_config(config));
        }
    }

    fn judge(
        &mut self,
        probed: Vec<Probed>,
        judge: impl Fn(&mut KnownServer, &BTreeMap<String, String>) -> Judged,
    ) {
        for Probed { server, told } in probed {
            if let (Some(server), Ok(told)) = (self.servers.get_mut(&server), told) {
                let judged = judge(server, &told);
                server.put(judged);
            }
        }
    }

    /// What is found of the node. Of several servers, each tells its own.
    fn told(&self) -> BTreeMap<NodeCondition, String> {
        let mut told: BTreeMap<NodeCondition, Vec<String>> = BTreeMap::new();
        for (name, server) in &self.servers {
            for (what, detail) in server.told() {
                let detail = if self.servers.len() > 1 { format!("{name}: {detail}") } else { detail };
                told.entry(what).or_default().push(detail);
            }
        }
        told.into_iter().map(|(what, details)| (what, details.join("; "))).collect()
    }
}

impl KnownServer {
    fn put(&mut self, judged: Judged) {
        for (what, detail) in judged {
            match detail {
                Some(detail) => drop(self.found.insert(what, detail)),
                None => drop(self.found.remove(&what)),
            }
        }
    }

    /// Of a server that is down nothing else is known.
    fn told(&self) -> BTreeMap<NodeCondition, String> {
        if self.misses >= MISSES {
            return BTreeMap::from([(NodeCondition::Down, self.why.clone())]);
        }
        self.found.clone()
    }
}

fn number(told: &BTreeMap<String, String>, key: &str) -> u64 {
    told.get(key).and_then(|n| n.parse().ok()).unwrap_or(0)
}

/// The node's clock was read somewhere on the way there and back.
fn judge_clock(now_us: u64, asked: SystemTime, way: Duration) -> Option<String> {
    let asked_us = asked.duration_since(UNIX_EPOCH).ok()?.as_micros() as i128;
    let off = i128::from(now_us) - asked_us;
    let way_us = way.as_micros() as i128;
    // Between 0 and the whole way is no difference at all.
    let beyond = if off < 0 { off } else { (off - way_us).max(0) };
    let most = CLOCK_MAX.as_micros() as i128;
    (beyond.abs() > most).then(|| {
        let word = if beyond > 0 { "ahead" } else { "behind" };
        format!(
            "{} ms {word}: jobs are due by the node's clock, and of two copies of a job the wrong one may win",
            beyond.abs() / 1000
        )
    })
}

type Judged = Vec<(NodeCondition, Option<String>)>;

/// What a node tells of how it is. `replicas`: how many it has had.
fn judge_info(info: &BTreeMap<String, String>, replicas: u64, is_used: bool) -> Judged {
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
    let connected = number(info, "connected_slaves");
    vec![
        (NodeCondition::Replica, is("role", "slave").then(|| format!("its role is replica{link}"))),
        (NodeCondition::PersistenceFails, (!failing.is_empty()).then(|| failing.join("; "))),
        (
            NodeCondition::MemoryShort,
            (max > 0 && used * 100 > max * MEMORY_MAX)
                .then(|| format!("{} of {} MiB are used (maxmemory)", used >> 20, max >> 20)),
        ),
        (
            NodeCondition::Emptied,
            (is_used && !info.contains_key("dq_node"))
                .then(|| "what it held is gone: was it started without its files, or flushed?".to_owned()),
        ),
        (
            NodeCondition::ReplicaLost,
            (connected < replicas).then(|| format!("{connected} of {replicas} are connected")),
        ),
    ]
}

/// What a server tells of its Cluster.
fn judge_cluster(info: &BTreeMap<String, String>) -> Judged {
    let all = 16384;
    let (served, state) =
        (number(info, "cluster_slots_ok"), info.get("cluster_state").map_or("", String::as_str));
    let known = info.contains_key("cluster_slots_ok");
    let away = known && (served < all || state != "ok");
    let detail = || format!("cluster_state is {state}; {served} of {all} slots are served");
    vec![(NodeCondition::SlotsAway, away.then(detail))]
}

/// What a node tells of how it is set.
fn judge_config(config: &BTreeMap<String, String>) -> Judged {
    let get = |key: &str| config.get(key).map_or("", String::as_str);
    let policy = get("maxmemory-policy");
    let kept = get("appendonly") == "yes" || !get("save").is_empty();
    vec![
        (
            NodeCondition::Evicts,
            (!policy.is_empty() && policy != "noeviction")
                .then(|| format!("maxmemory-policy is {policy}; noeviction is what keeps jobs")),
        ),
        (
            NodeCondition::NotPersistent,
            (!kept)
                .then(|| "appendonly is no, and there are no snapshots: a restart loses all jobs".to_owned()),
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect()
    }

    fn holds(judged: Judged) -> Vec<NodeCondition> {
        judged.into_iter().filter_map(|(what, detail)| detail.map(|_| what)).collect()
    }

    #[test]
    fn what_would_lose_jobs_is_found() {
        let good = [("maxmemory-policy", "noeviction"), ("appendonly", "yes"), ("save", "")];
        assert_eq!(holds(judge_config(&told(&good))), []);
        let bad = [("maxmemory-policy", "allkeys-lru"), ("appendonly", "no"), ("save", "")];
        assert_eq!(holds(judge_config(&told(&bad))), [NodeCondition::Evicts, NodeCondition::NotPersistent]);
        let snapshots = [("maxmemory-policy", "noeviction"), ("appendonly", "no"), ("save", "3600 1")];
        assert_eq!(holds(judge_config(&told(&snapshots))), []);
    }

    #[test]
    fn how_a_node_is_is_judged() {
        let good =
            [("role", "master"), ("used_memory", "50"), ("maxmemory", "100"), ("connected_slaves", "1")];
        assert_eq!(holds(judge_info(&told(&good), 1, false)), []);
        let unlimited = [("role", "master"), ("used_memory", "50"), ("maxmemory", "0")];
        assert_eq!(holds(judge_info(&told(&unlimited), 0, false)), []);
        let bad = [
            ("role", "slave"),
            ("master_link_status", "down"),
            ("aof_last_write_status", "err"),
            ("used_memory", "95"),
            ("maxmemory", "100"),
            ("connected_slaves", "0"),
        ];
        let all = [
            NodeCondition::Replica,
            NodeCondition::PersistenceFails,
            NodeCondition::MemoryShort,
            NodeCondition::Emptied,
            NodeCondition::ReplicaLost,
        ];
        assert_eq!(holds(judge_info(&told(&bad), 1, true)), all);
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
        assert_eq!(holds(judge_cluster(&told(&good))), []);
        for bad in [("fail", "16384"), ("ok", "16000"), ("fail", "0")] {
            let info = [("cluster_state", bad.0), ("cluster_slots_ok", bad.1)];
            assert_eq!(holds(judge_cluster(&told(&info))), [NodeCondition::SlotsAway]);
        }
        assert_eq!(holds(judge_cluster(&told(&[]))), []);
    }

    #[test]
    fn a_node_is_down_after_some_misses_and_up_at_the_first_answer() {
        let mut known = KnownServer { why: "refused".into(), ..KnownServer::default() };
        for misses in 0..MISSES {
            known.misses = misses;
            assert_eq!(known.told().len(), 0);
        }
        known.misses = MISSES;
        assert_eq!(known.told(), BTreeMap::from([(NodeCondition::Down, "refused".to_owned())]));
        known.misses = 0;
        assert_eq!(known.told().len(), 0);
    }

    #[test]
    fn of_several_servers_each_is_named() {
        let server = |misses| KnownServer { misses, why: "refused".into(), ..KnownServer::default() };
        let alone = Known { servers: BTreeMap::from([("h:1".to_owned(), server(MISSES))]) };
        assert_eq!(alone.told()[&NodeCondition::Down], "refused");
        let servers = [("h:1", MISSES), ("h:2", 0), ("h:3", MISSES)];
        let several =
            Known { servers: servers.map(|(name, misses)| (name.to_owned(), server(misses))).into() };
        assert_eq!(several.told()[&NodeCondition::Down], "h:1: refused; h:3: refused");
    }
}
