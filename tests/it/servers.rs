//! The store on servers that refuse, that move their slots, or that speak only TLS.

use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::support::certificates::certificates;
use crate::support::redis::{ClusterGroup, MASTER, SentinelGroup, TcpServer};
use crate::support::{eventually, new_job, outcomes};
use model::job::{Due, JobId, JobKey, TopicName};
use model::rendezvous;
use model::settings::{self, NodeAddress, NodeSettings};
use store::{BellKind, Result, Store, StoreError, hang_bell};

/// The time limit of each step. It is long, because the machine may have other work.
const SOON: Duration = Duration::from_secs(20);

/// Returns the settings of a store that shares nothing with the other stores of this process.
fn on(node: NodeSettings) -> settings::StoreSettings {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let prefix = format!("dq{}", NEXT.fetch_add(1, Ordering::Relaxed));
    let timeout = Duration::from_secs(1);
    let safety = settings::DurabilitySettings { allow_snapshots: true, ..Default::default() };
    settings::StoreSettings::Redis(settings::RedisSettings {
        prefix,
        timeout,
        pool: 4,
        nodes: vec![node],
        safety,
        spool: None,
    })
}

fn open(settings: &settings::StoreSettings) -> Box<dyn Store> {
    store::open(settings, Path::new("/nowhere")).unwrap()
}

fn key(id: &str) -> JobKey {
    JobKey { topic: TopicName::new("t").unwrap(), id: JobId::new(id).unwrap() }
}

/// Returns the outcome of an add, as a word of `outcomes`.
fn add(store: &mut dyn Store, id: &str) -> Result<&'static str> {
    let job = new_job("t", id, "{}", Due::In(Duration::from_secs(3600)));
    store.add(&[job]).remove(0).map(|added| outcomes(&[added])[0])
}

/// Checks that adds are refused with this word while a state lasts, and accepted when it is over.
fn refuses(server: &TcpServer, word: &str, code: &str, begin: impl FnOnce(), end: impl FnOnce()) {
    let mut store = open(&on(NodeSettings::server("r", server.url(), 2)));
    assert_eq!(add(&mut *store, "before"), Ok("new"), "{word}");
    begin();
    let error = add(&mut *store, "while").unwrap_err();
    assert_eq!(error.code(), code, "{word}: {error}");
    if matches!(error, StoreError::NodeDown(_)) {
        assert!(error.to_string().contains(word), "{error}");
        // After a refusal, dq sends nothing to the server for a moment.
        assert!(add(&mut *store, "while").unwrap_err().to_string().contains("a moment ago"), "{word}");
    }
    end();
    eventually(SOON, &format!("an add after {word}"), || add(&mut *store, "after").ok());
    assert_eq!(store.get(&key("while")).unwrap(), None, "{word}: what was refused was not done");
}

#[test]
fn what_a_server_refuses_is_named_and_has_changed_nothing() {
    let server = TcpServer::start(&["--enable-protected-configs", "yes"]);
    let set = |key: &str, value: &str| drop(server.cli(&["config", "set", key, value]));
    let follow = |host: &str, port: &str| drop(server.cli(&["replicaof", host, port]));
    refuses(&server, "READONLY", "node_down", || follow("127.0.0.1", "1"), || follow("no", "one"));
    refuses(
        &server,
        "MASTERDOWN",
        "node_down",
        || {
            set("replica-serve-stale-data", "no");
            follow("127.0.0.1", "1");
        },
        || follow("no", "one"),
    );
    let replicas = |n: &'static str| move || set("min-replicas-to-write", n);
    refuses(&server, "NOREPLICAS", "node_down", replicas("1"), replicas("0"));
    refuses(
        &server,
        "MISCONF",
        "node_down",
        || {
            // A folder where nobody can write, not even root.
            set("dir", "/proc");
            set("save", "3600 1000000");
            server.cli(&["bgsave"]);
            eventually(SOON, "a failed snapshot", || {
                (server.info("rdb_last_bgsave_status")? == "err").then_some(())
            });
        },
        || set("save", ""),
    );
    refuses(&server, "OOM", "store_full", || set("maxmemory", "1mb"), || set("maxmemory", "0"));
    refuses(
        &server,
        "BUSY",
        "store_busy",
        || {
            set("busy-reply-threshold", "50");
            let (host, port) = (server.host.clone(), server.port.to_string());
            let mut endless = Command::new("redis-cli");
            endless.args(["-h", &host, "-p", &port, "eval", "while true do end", "0"]);
            std::thread::spawn(move || endless.output());
            eventually(SOON, "a busy server", || server.cli(&["get", "x"]).contains("BUSY").then_some(()));
        },
        || drop(server.cli(&["script", "kill"])),
    );
    let mut store = open(&on(NodeSettings::server("r", server.url(), 1)));
    for n in 0..3 {
        server.cli(&["script", "flush"]);
        assert_eq!(add(&mut *store, &n.to_string()), Ok("new"), "NOSCRIPT is no refusal");
    }
}

#[test]
fn a_server_that_loads_its_data_is_away_until_it_has_them() {
    let slow = ["--key-load-delay", "1000", "--loading-process-events-interval-bytes", "1024"];
    // The server is slow only when it loads a snapshot.
    let server = TcpServer::start(&[&slow[..], &["--appendonly", "no"]].concat());
    let mut store = open(&on(NodeSettings::server("r", server.url(), 2)));
    assert_eq!(add(&mut *store, "before"), Ok("new"));
    server.cli(&["eval", "for i = 1, 3000 do redis.call('set', 'k' .. i, i) end", "0"]);
    server.cli(&["save"]);
    server.kill();
    server.begin_again();
    let error = eventually(SOON, "a server that loads", || {
        let error = add(&mut *store, "while").expect_err("it has nothing yet");
        error.to_string().contains("LOADING").then_some(error)
    });
    assert_eq!(error.code(), "node_down");
    eventually(SOON, "an add", || add(&mut *store, "after").ok());
    assert!(store.get(&key("before")).unwrap().is_some());
}

#[test]
fn a_bell_works_again_after_its_server_was_a_replica() {
    let server = TcpServer::start(&[]);
    let settings = on(NodeSettings::server("r", server.url(), 2));
    let mut store = open(&settings);
    let bell = hang_bell(&settings, Path::new("/nowhere"), 0, BellKind::Push, "test").unwrap();
    server.cli(&["replicaof", "127.0.0.1", "1"]);
    server.cli(&["replicaof", "no", "one"]);
    eventually(SOON, "an add", || add(&mut *store, "i").ok());
    // When the bell is quiet, its listener has started again and has looked for jobs.
    let mut quiet = 0;
    eventually(SOON, "a quiet bell", || {
        quiet = if bell.answer().unwrap() { 0 } else { quiet + 1 };
        (quiet > 100).then_some(())
    });
    store.run(&key("i")).unwrap();
    eventually(SOON, "a ring", || bell.answer().unwrap().then_some(()));
}

fn by_sentinels(sentinels: Vec<String>) -> settings::StoreSettings {
    let at = NodeAddress::Sentinel { sentinels, master_name: MASTER.into(), url: "redis://m/".into() };
    on(NodeSettings { pool: Some(IDLE as u32), ..NodeSettings::new("s", at, 2) })
}

/// The number of idle connections.
const IDLE: usize = 16;

#[test]
fn a_sentinel_that_is_down_or_wrong_is_passed_over() {
    let group = SentinelGroup::start(1, &[]);
    // This Sentinel believes that the replica is the master.
    let wrong = SentinelGroup::sentinel(&group.servers[1]);
    eventually(SOON, "a sentinel that answers", || wrong.info("redis_mode"));
    let gone = format!("redis://{}:1", wrong.host);
    let mut store = open(&by_sentinels(vec![gone, wrong.url(), group.urls()[0].clone()]));
    assert_eq!(add(&mut *store, "i"), Ok("new"));
    assert_eq!(group.master(), Some(0));
    group.servers[0].hang(true);
    let error = add(&mut *store, "j").unwrap_err();
    assert_eq!(error.code(), "unknown", "{error}");
    let error = add(&mut *store, "j").unwrap_err();
    assert_eq!(error.code(), "node_down", "{error}");
}

/// A master hangs, and a replica takes its place. When the old master continues, it accepts adds for a moment, until it
/// learns that it was replaced. These adds are lost.
#[test]
fn a_master_that_wakes_after_it_was_replaced_is_given_nothing() {
    let group = SentinelGroup::start(1, &[]);
    let settings = by_sentinels(group.urls());
    let (settings, group) = (&settings, &group);
    let run = |name: &'static str, until: Instant| -> Vec<String> {
        std::thread::scope(|scope| {
            let adder = |c: usize| {
                scope.spawn(move || {
                    let mut store = open(settings);
                    let ids = (0..).map(|n| format!("{name}-{c}-{n}")).take_while(|_| Instant::now() < until);
                    ids.filter(|id| add(&mut *store, id).is_ok()).collect::<Vec<_>>()
                })
            };
            let adders: Vec<_> = (0..IDLE).map(adder).collect();
            adders.into_iter().flat_map(|a| a.join().unwrap()).collect()
        })
    };
    let soon = |ms| Instant::now() + Duration::from_millis(ms);
    // After these adds, there are many idle connections.
    assert!(!run("before", soon(300)).is_empty());
    let used = Instant::now();
    group.servers[0].hang(true);
    let mut store = open(settings);
    eventually(SOON, "an add that another master has taken", || add(&mut *store, "x").ok());
    assert!(used.elapsed() < Duration::from_secs(12), "they were asked one after the other");
    group.servers[0].hang(false);
    let taken = run("after", soon(3000));
    assert!(taken.len() > 100);
    eventually(SOON, "a replica", || (group.servers[0].info("role")? == "slave").then_some(()));
    let lost: Vec<&String> = taken.iter().filter(|id| store.get(&key(id)).unwrap().is_none()).collect();
    assert!(lost.is_empty(), "{} of {} are lost", lost.len(), taken.len());
}

/// A Cluster, and a store on it.
struct OnCluster {
    cluster: ClusterGroup,
    settings: settings::StoreSettings,
    prefix: String,
}

const SHARDS: u32 = 64;

impl OnCluster {
    fn start() -> OnCluster {
        let cluster = ClusterGroup::start();
        let settings =
            on(NodeSettings::new("c", NodeAddress::Cluster { seeds: cluster.urls()[..1].to_vec() }, SHARDS));
        let settings::StoreSettings::Redis(redis) = &settings else { unreachable!() };
        let prefix = redis.prefix.clone();
        OnCluster { cluster, settings, prefix }
    }

    /// Returns the slot of a job's shard.
    fn slot(&self, id: &str) -> u16 {
        self.slot_by(&self.cluster.servers[0], id)
    }

    /// Asks this server for the slot of a job's shard.
    fn slot_by(&self, server: &TcpServer, id: &str) -> u16 {
        let shard = rendezvous::first_of(SHARDS, &[b"t", id.as_bytes()]);
        let base = format!("{}:{{c.{shard}}}:", self.prefix);
        server.cli(&["cluster", "keyslot", &base]).trim().parse().unwrap()
    }

    /// Returns the keys of a slot on a server.
    fn keys(&self, server: usize, slot: u16) -> Vec<String> {
        let output =
            self.cluster.servers[server].cli(&["cluster", "getkeysinslot", &slot.to_string(), "100"]);
        output.lines().filter(|l| !l.is_empty()).map(str::to_owned).collect()
    }
}

/// docs/REDIS.md explains why ASK is not followed.
#[test]
fn a_moving_slot_blocks_only_its_shard_and_splits_nothing() {
    let on = OnCluster::start();
    let mut store = open(&on.settings);
    let ids: Vec<String> = (0..200).map(|n| n.to_string()).collect();
    ids.iter().for_each(|id| assert_eq!(add(&mut *store, id), Ok("new")));
    let slot = on.slot(&ids[0]);
    let elsewhere = ids.iter().find(|id| on.slot(id) / 5461 != slot / 5461).unwrap();
    // The first three servers are the masters, each with a third of the slots.
    let from = usize::from(slot / 5461).min(2);
    let (from, to) = (from, (from + 1) % 3);
    let servers = &on.cluster.servers;
    let id = |n: usize| servers[n].cli(&["cluster", "myid"]).trim().to_owned();
    let (from_id, to_id, text) = (id(from), id(to), slot.to_string());
    let set = |n: usize, words: &[&str]| {
        let answer = servers[n].cli(&[&["cluster", "setslot", &text], words].concat());
        assert_eq!(answer.trim(), "OK");
    };
    set(to, &["importing", &from_id]);
    set(from, &["migrating", &to_id]);
    let keys = on.keys(from, slot);
    assert!(keys.len() > 2, "{keys:?}");
    let move_key = |key: &String| {
        let port = servers[to].port.to_string();
        let moved = servers[from].cli(&["migrate", &servers[to].host, &port, key, "0", "5000"]);
        assert_eq!(moved.trim(), "OK", "{key}");
    };
    // Half of the shard is on each of the two servers.
    keys[..keys.len() / 2].iter().for_each(move_key);
    let before = [on.keys(from, slot), on.keys(to, slot)];
    let error = add(&mut *store, &ids[0]).unwrap_err();
    assert!(error.code() == "node_down" && error.to_string().contains("ASK"), "{error}");
    assert_eq!(store.get(&key(&ids[0])).unwrap_err().code(), "node_down");
    assert_eq!([on.keys(from, slot), on.keys(to, slot)], before, "nothing was done anywhere");
    // The other shards of this server still work.
    assert_eq!(add(&mut *store, elsewhere), Ok("replaced"));
    let beside = ids.iter().find(|id| usize::from(on.slot(id) / 5461).min(2) == from && on.slot(id) != slot);
    assert_eq!(add(&mut *store, beside.unwrap()), Ok("replaced"));
    keys[keys.len() / 2..].iter().for_each(move_key);
    set(to, &["node", &to_id]);
    set(from, &["node", &to_id]);
    // When a call gets the answer MOVED, the store makes the call again at the new server.
    assert_eq!(add(&mut *store, &ids[0]), Ok("replaced"));
    assert_eq!(on.keys(from, slot), Vec::<String>::new());
    let all = store.counts().unwrap();
    assert_eq!(all[0].delayed, 200, "no job was lost, and none doubled");
}

#[test]
fn a_cluster_keeps_its_shard_count_whichever_master_is_away() {
    let on = OnCluster::start();
    assert_eq!(add(&mut *open(&on.settings), "i"), Ok("new"));
    let with = |shards| {
        let settings::StoreSettings::Redis(mut redis) = on.settings.clone() else { unreachable!() };
        redis.nodes[0].shards = shards;
        redis.nodes[0].at = NodeAddress::Cluster { seeds: on.cluster.urls() };
        settings::StoreSettings::Redis(redis)
    };
    let shard_0 = format!("{}:{{c.0}}:", on.prefix);
    let slot: usize = on.cluster.servers[0].cli(&["cluster", "keyslot", &shard_0]).trim().parse().unwrap();
    // The server with the first shard hangs, and its replica is dead. So no other server takes over.
    let lost = &on.cluster.servers[(slot / 5461).min(2)];
    on.cluster.replica_of(lost).kill();
    lost.hang(true);
    let beside = &on.cluster.servers[((slot / 5461).min(2) + 1) % 3];
    let home = |id: &String| usize::from(on.slot_by(beside, id) / 5461).min(2);
    let elsewhere = (0..).map(|n| n.to_string()).find(|id| home(id) != (slot / 5461).min(2)).unwrap();
    let mut begins = open(&with(SHARDS));
    let (taken, moved) = (add(&mut *begins, &elsewhere), begins.promote(10));
    let error = open(&with(65)).counts().unwrap_err().to_string();
    lost.hang(false);
    assert!(taken.is_ok() && moved.is_ok(), "who begins now has to do with the others: {taken:?} {moved:?}");
    assert!(error.contains("has had 64 shards") && error.contains("cannot be 65"), "{error}");
}

/// `cargo test --test it bells -- --nocapture` shows how many threads a bell needs, and how much memory they take.
#[test]
fn the_bells_of_a_cluster_cost_a_thread_a_shard_and_little_else() {
    // Other tests use memory of this process, too. So the test starts itself again, alone in its own process.
    const ALONE: &str = "TEST_ALONE";
    if std::env::var_os(ALONE).is_none() {
        let name = "servers::the_bells_of_a_cluster_cost_a_thread_a_shard_and_little_else";
        let mut alone = Command::new(std::env::current_exe().unwrap());
        let out = alone.args(["--exact", name, "--nocapture"]).env(ALONE, "1").output().unwrap();
        let printed = String::from_utf8_lossy(&out.stdout);
        assert!(
            out.status.success() && printed.contains("1 passed"),
            "{printed}{}",
            String::from_utf8_lossy(&out.stderr)
        );
        return;
    }
    // The processes of the daemon use small pages, too.
    host::use_small_pages();
    let on = OnCluster::start();
    let mut store = open(&on.settings);
    add(&mut *store, "i").unwrap();
    let status = |what: &str| -> u64 {
        let all = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = all.lines().find_map(|l| l.strip_prefix(what)).unwrap();
        line.split_whitespace().next().unwrap().parse().unwrap()
    };
    let pss = || -> u64 {
        let all = std::fs::read_to_string("/proc/self/smaps_rollup").unwrap();
        let line = all.lines().find_map(|l| l.strip_prefix("Pss:")).unwrap();
        line.split_whitespace().next().unwrap().parse().unwrap()
    };
    let before = (status("Threads:"), pss());
    let bell = hang_bell(&on.settings, Path::new("/nowhere"), 0, BellKind::Push, "test").unwrap();
    let waiting = || {
        let of = |n: usize| on.cluster.servers[n].info("blocked_clients").unwrap().parse::<u32>().unwrap();
        (0..3).map(of).sum::<u32>()
    };
    eventually(SOON, "a listener on each shard", || (waiting() == SHARDS).then_some(()));
    let after = (status("Threads:"), pss());
    println!("a bell over {SHARDS} shards: {} threads, {} KiB", after.0 - before.0, after.1 - before.1);
    // Each thread has its own heap of mimalloc, of some 130 KiB.
    assert!(after.1 - before.1 < 192 * u64::from(SHARDS), "{} KiB", after.1 - before.1);
    let mut rang = 0;
    eventually(SOON, "quiet", || {
        rang = if bell.answer().unwrap() { 0 } else { rang + 1 };
        (rang > 50).then_some(())
    });
    store.run(&key("i")).unwrap();
    eventually(SOON, "a ring", || bell.answer().unwrap().then_some(()));
    let begun = Instant::now();
    drop(bell);
    assert!(begun.elapsed() < Duration::from_millis(900), "listeners are ended on each of the servers");
    assert_eq!(waiting(), 0);
}

#[test]
fn a_tls_server_is_trusted_only_by_its_certificate() {
    let dir = tempfile::tempdir().unwrap();
    let server = {
        certificates(dir.path());
        TcpServer::start_tls(dir.path(), &[])
    };
    let read = |name: &str| std::fs::read_to_string(dir.path().join(name)).unwrap();
    let with = |ca: Option<String>, own: Option<(String, String)>| {
        let tls = settings::TlsClientSettings { ca, own };
        open(&on(NodeSettings { tls, ..NodeSettings::server("r", server.url(), 2) }))
    };
    let own = || Some((read("server.pem"), read("server.key")));
    let mut store = with(Some(read("ca.pem")), own());
    assert_eq!(add(&mut *store, "i"), Ok("new"));
    assert_eq!(store.counts().unwrap()[0].delayed, 1);
    // The server requires a client certificate. Its own certificate is signed by a CA that the system does not know.
    for (ca, own) in [(Some(read("ca.pem")), None), (None, own()), (Some(read("other.pem")), own())] {
        let mut store = with(ca, own);
        eventually(SOON, "a refusal that says why", || {
            let error = add(&mut *store, "j").unwrap_err();
            assert_eq!(error.code(), "node_down", "{error}");
            error.to_string().to_lowercase().contains("certificate").then_some(())
        });
    }
}
