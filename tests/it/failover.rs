//! The daemon on nodes that fail over, hang, lose data, and speak TLS.
//!
//! An asynchronous failover does not lose changes that were replicated before it, and changes that were acknowledged
//! after it. But just before a failover, a master may acknowledge a change that no replica has yet. So these tests stop
//! their load, wait until the replicas have everything, and then kill the master.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::support::certificates::certificates;
use crate::support::http::Http;
use crate::support::proxy::Proxy;
use crate::support::redis::{ClusterGroup, MASTER, RedisServer, SentinelGroup, TcpServer};
use crate::support::{Daemon, SECOND, SLOTS, Sink, add, eventually, load, now_ms, pending, stats, topic};
use cli::HandlerAnswer;
use model::rendezvous;
use serde_json::Value;

fn store(nodes: &str, topics: &str) -> String {
    format!("[store]\nbackend = \"redis\"\ntimeout = \"1s\"\nspool = 0\n{nodes}{topics}")
}

fn quoted(texts: &[String]) -> String {
    texts.iter().map(|t| format!("\"{t}\"")).collect::<Vec<_>>().join(", ")
}

fn all_come(sink: &Sink, daemon: &Daemon, taken: &HashSet<String>) {
    eventually(60 * SECOND, &format!("all of {}; log:\n{}", taken.len(), daemon.log()), || {
        let come = sink.deliveries();
        taken.iter().all(|id| come.contains_key(id)).then_some(())
    });
    let mut client = daemon.client();
    eventually(20 * SECOND, "an empty store", || (pending(&mut client, "t") == 0).then_some(()));
}

/// Waits until the replicas have all data of their master.
fn in_sync(master: &TcpServer, replicas: &[&TcpServer]) {
    eventually(20 * SECOND, "replicas in sync", || {
        let offset = master.info("master_repl_offset")?;
        let same = replicas.iter().all(|r| r.info("slave_repl_offset").as_ref() == Some(&offset));
        (same && master.info("master_repl_offset")? == offset).then_some(())
    });
}

#[test]
fn a_sentinel_failover_under_load_loses_no_replicated_jobs() {
    let sink = Sink::start();
    let group = SentinelGroup::start(2, &["--min-replicas-to-write", "1"]);
    let node = format!(
        "[[store.node]]\nname = \"s\"\nsentinels = [{}]\nmaster_name = \"{MASTER}\"\n",
        quoted(&group.urls())
    );
    let daemon = Daemon::start(&store(&node, &topic("t", &sink, "")));
    daemon.wait_all_up(SLOTS);
    let mut taken = load(&daemon, "before", &["node_down"], |taken| taken > 500);
    let mut client = daemon.client();
    for n in 0..20 {
        let id = format!("waits-{n}");
        assert_eq!(client.ask(&add("t", &id, 6000)).unwrap()["code"], 1);
        taken.insert(id);
    }
    // Deliveries may still run and change the data on the master. The added jobs stay.
    in_sync(&group.servers[0], &[&group.servers[1], &group.servers[2]]);
    group.servers[0].kill();
    let killed = now_ms();
    // The old master is dead, so another master has accepted these jobs.
    taken.extend(load(&daemon, "after", &["node_down", "unknown"], |taken| taken > 500));
    println!("adds were taken again, and 500 of them, {} ms after the master was killed", now_ms() - killed);
    assert!(group.master().is_some_and(|n| n != 0));
    all_come(&sink, &daemon, &taken);
    // The old master comes back as a replica, and no process uses it as the master.
    group.servers[0].start_again();
    eventually(20 * SECOND, "a replica", || (group.servers[0].info("role")? == "slave").then_some(()));
    let more = load(&daemon, "last", &[], |taken| taken > 200);
    all_come(&sink, &daemon, &more);
    assert!(daemon.log().contains("node s answers again"), "{}", daemon.log());
}

#[test]
fn a_lost_cluster_master_only_stops_its_shards_until_failover() {
    let sink = Sink::start();
    let cluster = ClusterGroup::start();
    let node =
        format!("[[store.node]]\nname = \"c\"\ncluster = true\nurl = \"{}\"\n", cluster.servers[1].url());
    let daemon = Daemon::start(&store(&node, &topic("t", &sink, "")));
    daemon.wait_all_up(SLOTS);
    // At first, the first three servers are the masters, each with a third of the slots.
    let homes: Vec<usize> = (0..64)
        .map(|shard| {
            let slot = cluster.servers[0].cli(&["cluster", "keyslot", &format!("dq:{{c.{shard}}}:")]);
            (slot.trim().parse::<usize>().unwrap() / 5461).min(2)
        })
        .collect();
    let home = |id: &str| homes[rendezvous::first_of(64, &[b"t", id.as_bytes()]) as usize];
    let id_on = |master: usize, name: &str| {
        (0..).map(|n| format!("{name}.{n}")).find(|id| home(id) == master).unwrap()
    };
    let mut taken = load(&daemon, "before", &[], |taken| taken > 500);
    let mut client = daemon.client();
    for n in 0..20 {
        let id = id_on(0, &format!("waits-{n}"));
        assert_eq!(client.ask(&add("t", &id, 5000)).unwrap()["code"], 1);
        taken.insert(id);
    }
    eventually(20 * SECOND, "deliveries", || (sink.deliveries().len() >= taken.len() - 20).then_some(()));
    in_sync(&cluster.servers[0], &[cluster.replica_of(&cluster.servers[0])]);
    let before = sink.count();
    cluster.servers[0].kill();
    let killed = now_ms();
    let (mut lost, mut others) = (0, 0);
    let back_at = eventually(30 * SECOND, &format!("the lost shards; log:\n{}", daemon.log()), || {
        others += 1;
        let id = id_on(1 + others % 2, &format!("others-{others}"));
        let answer = client.ask(&add("t", &id, 50)).unwrap();
        assert_eq!(answer["code"], 1, "the other masters take jobs: {answer}");
        taken.insert(id);
        let id = id_on(0, &format!("lost-{others}"));
        let answer = client.ask(&add("t", &id, 50)).unwrap();
        if answer["code"] == 1 {
            taken.insert(id);
            return Some(now_ms());
        }
        lost += 1;
        assert!(["node_down", "unknown"].contains(&answer["err"].as_str().unwrap()), "{answer}");
        None
    });
    println!("{others} rounds, {lost} refusals; its shards were away for {} ms", back_at - killed);
    assert!(lost > 0 && back_at - killed < 15_000);
    taken.extend(load(&daemon, "after", &["node_down", "unknown"], |taken| taken > 500));
    all_come(&sink, &daemon, &taken);
    let mut late: Vec<i64> = sink.calls()[before..]
        .iter()
        .filter(|c| c.header("dq-job-id").starts_with("others-"))
        .map(|c| c.late_ms().unwrap())
        .collect();
    late.sort_unstable();
    assert!(late[0] >= 0 && late[late.len() * 9 / 10] < 900, "the others come in time: {late:?}");
    // The checker has named the node that was down. The old master comes back as a replica.
    cluster.servers[0].start_again();
    cluster.wait_until_good();
    let more = load(&daemon, "last", &[], |taken| taken > 200);
    all_come(&sink, &daemon, &more);
}

#[test]
fn a_cluster_master_that_is_away_keeps_no_job_of_the_others() {
    let slow = Sink::answering(|_| HandlerAnswer { after: 20 * SECOND, ..HandlerAnswer::new(200, "") });
    let brief = Sink::answering(|_| HandlerAnswer { after: 3 * SECOND, ..HandlerAnswer::new(200, "") });
    let sink = Sink::start();
    let cluster = ClusterGroup::start();
    let master_of = |shard: u32| {
        let slot = cluster.servers[0].cli(&["cluster", "keyslot", &format!("dq:{{c.{shard}}}:")]);
        (slot.trim().parse::<usize>().unwrap() / 5461).min(2)
    };
    let homes: Vec<usize> = (0..64).map(master_of).collect();
    // The master of the first shard stays up, because this shard has the paused topics.
    let (lost, stays) = ((homes[0] + 1) % 3, homes[0]);
    let id_on = |topic: &str, master: usize, name: &str| {
        let home = |id: &str| homes[rendezvous::first_of(64, &[topic.as_bytes(), id.as_bytes()]) as usize];
        (0..).map(|n| format!("{name}.{n}")).find(|id| home(id) == master).unwrap()
    };
    let url = cluster.servers[stays].url();
    let node = format!("[[store.node]]\nname = \"c\"\ncluster = true\nurl = \"{url}\"\n");
    let late = |name, sink| topic(name, sink, "timeout = \"30s\"");
    let topics = late("slow", &slow) + &late("brief", &brief) + &topic("t", &sink, "");
    let daemon = Daemon::start(&store(&node, &topics));
    let before = daemon.wait_all_up(SLOTS);
    let mut client = daemon.client();
    // Processes of this host have leases on all masters. When these processes die, the leases on the lost master cannot
    // be handed back.
    for n in 0..8 {
        for master in 0..3 {
            for topic in ["slow", "brief"] {
                let job = add(topic, &id_on(topic, master, &n.to_string()), 0);
                assert_eq!(client.ask(&job).unwrap()["code"], 1);
            }
        }
    }
    eventually(20 * SECOND, "leases", || {
        let mut leased = |topic| stats(&mut client, topic)["leased"];
        (leased("slow") >= 20 && leased("brief") >= 20).then_some(())
    });
    cluster.replica_of(&cluster.servers[lost]).kill();
    cluster.servers[lost].kill();
    let mut taken = HashSet::new();
    let mut arrives = |name: &str| {
        let id = id_on("t", stays, name);
        assert_eq!(client.ask(&add("t", &id, 500)).unwrap()["code"], 1);
        eventually(30 * SECOND, &format!("{name}; log:\n{}", daemon.log()), || {
            sink.deliveries().contains_key(&id).then_some(())
        });
        taken.insert(id);
    };
    // The outcomes of some callbacks cannot be settled. The jobs of the other masters are still delivered.
    eventually(20 * SECOND, "outcomes that wait", || daemon.log().contains("settle: ").then_some(()));
    arrives("beside-outcomes");
    arrives("beside-outcomes-again");
    for name in ["dq-consume-0", "dq-consume-1"] {
        daemon.kill_child(name);
    }
    eventually(20 * SECOND, "new processes", || {
        let now = daemon.children();
        ["dq-consume-0", "dq-consume-1"]
            .iter()
            .all(|name| now.get(*name).is_some_and(|pid| *pid != before[*name]))
            .then_some(())
    });
    arrives("delayed");
    // A pause that is refused stops no jobs, also not later.
    let mut http = Http::unix(&daemon);
    let answer = http.ask("POST", "/v1/topics/t/pause", &Value::Null);
    assert_eq!(answer.status, 503, "{answer:?}");
    assert_eq!(http.get("/v1/topics/t").is(200)["paused"], false);
    arrives("refused");
    cluster.servers[lost].start_again();
    let id = id_on("t", lost, "back");
    eventually(60 * SECOND, "the lost master", || {
        (client.ask(&add("t", &id, 0)).ok()?["code"] == 1).then_some(())
    });
    eventually(30 * SECOND, "its job", || sink.deliveries().contains_key(&id).then_some(()));
}

#[test]
fn the_checker_names_the_down_cluster_master_and_missing_slots() {
    let cluster = ClusterGroup::start();
    let node =
        format!("[[store.node]]\nname = \"c\"\ncluster = true\nurl = \"{}\"\n", cluster.servers[1].url());
    let daemon = Daemon::start(&store(&node, ""));
    let found = |what: &str| -> Option<String> {
        let status = daemon.status()?;
        let finding = status["findings"].as_array()?.iter().find(|f| f["name"] == what)?.clone();
        Some(finding["detail"].as_str()?.to_owned())
    };
    // No server takes over from the first master, because its replica is killed, too.
    let replica = cluster.replica_of(&cluster.servers[0]);
    replica.kill();
    cluster.servers[0].kill();
    let detail =
        eventually(30 * SECOND, &format!("who is down; log:\n{}", daemon.log()), || found("node_down"));
    assert!(detail.contains(&cluster.servers[0].address()), "{detail}");
    assert!(!detail.contains(&cluster.servers[1].address()), "{detail}");
    let detail = eventually(30 * SECOND, "slots that are away", || found("node_slots_away"));
    assert!(detail.contains("of 16384 slots are served"), "{detail}");
    cluster.servers[0].start_again();
    eventually(40 * SECOND, "no finding", || {
        (found("node_down").is_none() && found("node_slots_away").is_none()).then_some(())
    });
}

#[test]
fn a_server_that_keeps_forgetting_its_scripts_loses_no_jobs() {
    let sink = Sink::start();
    let server = RedisServer::start();
    let node = format!("[[store.node]]\nname = \"r\"\nurl = \"{}\"\n", server.url());
    let daemon = Daemon::start(&store(&node, &topic("t", &sink, "")));
    let stop = AtomicBool::new(false);
    let taken = std::thread::scope(|scope| {
        let flushes = scope.spawn(|| {
            let mut flushes = 0;
            while !stop.load(Ordering::Relaxed) {
                server.cli(&["script", "flush"]);
                flushes += 1;
            }
            flushes
        });
        // If the server forgets a script between its loading and its call, the script does not run. So the outcome is
        // never `unknown`.
        let taken = load(&daemon, "x", &["store_unavailable"], |taken| taken > 3000);
        stop.store(true, Ordering::Relaxed);
        let flushes = flushes.join().unwrap();
        assert!(flushes > 20, "{flushes}");
        taken
    });
    all_come(&sink, &daemon, &taken);
}

#[test]
fn a_connection_that_hangs_costs_no_other_node() {
    let sink = Sink::start();
    let (near, far) = (RedisServer::start(), TcpServer::start(&[]));
    let proxy = Proxy::to(far.address());
    let nodes = format!(
        "[[store.node]]\nname = \"r0\"\nurl = \"{}\"\n[[store.node]]\nname = \"r1\"\nurl = \"redis://{}\"\ntimeout = \"500ms\"\n",
        near.url(),
        proxy.address
    );
    let daemon = Daemon::start(&store(&nodes, &topic("t", &sink, "")));
    daemon.wait_all_up(SLOTS);
    let names = ["r0".to_owned(), "r1".to_owned()];
    let id_on = |node: usize, name: &str| {
        let home = |id: &String| rendezvous::order(&names, &[b"t", id.as_bytes()])[0];
        (0..).map(|n| format!("{name}.{n}")).find(|id| home(id) == node).unwrap()
    };
    let mut client = daemon.client();
    for node in [0, 1] {
        assert_eq!(client.ask(&add("t", &id_on(node, "first"), 0)).unwrap()["code"], 1);
    }
    sink.wait_for(2, 10 * SECOND);
    let first = sink.count();
    let waiting = id_on(1, "waiting");
    assert_eq!(client.ask(&add("t", &waiting, 1000)).unwrap()["code"], 1);
    proxy.hang(true);
    for n in 0..40 {
        assert_eq!(client.ask(&add("t", &id_on(0, &format!("near-{n}")), 100)).unwrap()["code"], 1);
        if n % 10 == 0 {
            let begun = now_ms();
            let answer = client.ask(&add("t", &id_on(1, &format!("far-{n}")), 0)).unwrap();
            // The first request is on its way when the connection hangs.
            assert!(answer["err"] == "node_down" || n == 0 && answer["err"] == "unknown", "{answer}");
            assert!(now_ms() - begun < 1500, "{} ms", now_ms() - begun);
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    eventually(5 * SECOND, "the other node's jobs", || (sink.count() >= first + 40).then_some(()));
    let mut late: Vec<i64> = sink.calls()[first..].iter().map(|c| c.late_ms().unwrap()).collect();
    late.sort_unstable();
    assert!(late[0] >= 0 && late[late.len() * 9 / 10] < 900, "{late:?}");
    assert!(!sink.deliveries().contains_key(&waiting));
    proxy.hang(false);
    eventually(10 * SECOND, &format!("the job that waited; log:\n{}", daemon.log()), || {
        sink.deliveries().contains_key(&waiting).then_some(())
    });
    eventually(10 * SECOND, "a job that is taken", || {
        (client.ask(&add("t", &id_on(1, "after"), 0)).unwrap()["code"] == 1).then_some(())
    });
}

#[test]
fn jobs_arrive_from_a_server_with_tls_and_a_password_file() {
    let sink = Sink::start();
    let dir = tempfile::tempdir().unwrap();
    certificates(dir.path());
    let server = TcpServer::start_tls(dir.path(), &[]);
    std::fs::write(dir.path().join("password"), "p@ss/word\n").unwrap();
    server.cli(&["config", "set", "requirepass", "p@ss/word"]);
    let file = |name: &str| dir.path().join(name).display().to_string();
    let node = format!(
        "[[store.node]]\nname = \"r\"\nurl = \"{}\"\npassword_file = \"{}\"\nca_file = \"{}\"\ncert_file = \"{}\"\nkey_file = \"{}\"\n",
        server.url(),
        file("password"),
        file("ca.pem"),
        file("server.pem"),
        file("server.key")
    );
    let daemon = Daemon::start(&store(&node, &topic("t", &sink, "")));
    let taken = load(&daemon, "x", &[], |taken| taken > 200);
    all_come(&sink, &daemon, &taken);
    assert!(!daemon.log().contains("p@ss"), "{}", daemon.log());
}
