//! Nodes that are added to and taken out of a running daemon's configuration, by `dq nodes` as people use it.

use std::collections::HashSet;
use std::process::Command;
use std::time::Instant;

use crate::support;
use crate::support::redis::RedisServer;
use crate::support::{Daemon, SECOND, SLOTS, Sink, add, all_new, eventually, pending, topic};
use dq::cli::Client;
use dq::settings;
use dq::store::Lanes;
use nix::sys::signal::Signal;
use serde_json::Value;

/// Nodes, of which some are in the configuration of a daemon.
struct Fleet {
    nodes: Vec<RedisServer>,
    sink: Sink,
}

impl Fleet {
    fn start(nodes: usize) -> Fleet {
        let nodes: Vec<RedisServer> = (0..nodes).map(|_| RedisServer::start()).collect();
        nodes.iter().for_each(|node| node.wait_until_old(3));
        Fleet { nodes, sink: Sink::start() }
    }

    fn config(&self, nodes: &[usize]) -> String {
        let node =
            |n: &usize| format!("[[store.node]]\nname = \"r{n}\"\nurl = \"{}\"\n", self.nodes[*n].url());
        let nodes: String = nodes.iter().map(node).collect();
        format!("[store]\nbackend = \"redis\"\ntimeout = \"1s\"\n{nodes}{}", topic("t", &self.sink, ""))
    }

    /// Gives a running daemon other nodes.
    fn reload(&self, daemon: &Daemon, nodes: &[usize]) {
        let before = daemon.wait_all_up(SLOTS);
        Daemon::write_config(daemon.dir.path(), daemon.port, daemon.http, &self.config(nodes));
        daemon.signal(Signal::SIGHUP);
        all_new(daemon, &before);
    }

    /// How many jobs a node has, whatever their state.
    fn jobs_on(&self, node: usize) -> u64 {
        let script = "local n = 0 for _, k in ipairs(redis.call('KEYS', '*:b:*')) do n = n + redis.call('HLEN', k) end return n";
        self.nodes[node].cli(&["eval", script, "0"]).trim().parse().unwrap()
    }
}

fn nodes(daemon: &Daemon, arguments: &[&str]) -> (Option<i32>, String, String) {
    let out = Command::new(env!("CARGO_BIN_EXE_dq"))
        .arg("nodes")
        .args(arguments)
        .arg("--config")
        .arg(daemon.dir.path().join("dq.toml"))
        .output()
        .unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (out.status.code(), text(out.stdout), text(out.stderr))
}

fn add_many(client: &mut Client, name: &str, jobs: usize, delay_ms: u64) {
    for from in (0..jobs).step_by(50) {
        let batch: Vec<_> =
            (from..jobs.min(from + 50)).map(|n| add("t", &format!("{name}-{n}"), delay_ms)).collect();
        client.send(&batch).unwrap();
        batch.iter().for_each(|_| assert_eq!(client.receive().unwrap()["code"], 1));
    }
}

#[test]
fn a_node_is_drained_and_taken_out_while_jobs_come_in_and_go_out() {
    let fleet = Fleet::start(2);
    let daemon = Daemon::start(&fleet.config(&[0, 1]));
    daemon.wait_all_up(SLOTS);
    let mut client = daemon.client();
    add_many(&mut client, "long", 1000, 60_000);
    add_many(&mut client, "soon", 1000, 3_000);
    assert!(fleet.jobs_on(0) > 500 && fleet.jobs_on(1) > 500);
    let (code, out, err) = std::thread::scope(|scope| {
        let drain = scope.spawn(|| nodes(&daemon, &["drain", "r1"]));
        add_many(&mut client, "meanwhile", 500, 4_000);
        drain.join().unwrap()
    });
    assert!(code == Some(0) && out.contains("r1 has no pending jobs any more"), "{out}{err}");
    assert_eq!(fleet.jobs_on(1), 0);
    let (code, out, _) = nodes(&daemon, &["list"]);
    assert!(code == Some(0) && out.lines().any(|l| l.starts_with("r1") && l.contains("draining")), "{out}");
    // The last home is kept.
    let (code, _, err) = nodes(&daemon, &["drain", "r0"]);
    assert!(code == Some(1) && err.contains("the only node that takes jobs"), "{err}");
    fleet.reload(&daemon, &[0]);
    add_many(&mut client, "after", 200, 100);
    fleet.sink.wait_for(1700, 30 * SECOND);
    let come = fleet.sink.deliveries();
    assert!(come.len() == 1700 && come.values().all(|calls| *calls == 1), "each once");
    eventually(10 * SECOND, "what is left", || (pending(&mut client, "t") == 1000).then_some(()));
    assert_eq!(fleet.jobs_on(0), 1000);
}

#[test]
fn a_node_that_is_added_takes_its_share_of_the_jobs_and_a_drain_can_be_undone() {
    let fleet = Fleet::start(2);
    let daemon = Daemon::start(&fleet.config(&[0]));
    daemon.wait_all_up(SLOTS);
    let mut client = daemon.client();
    add_many(&mut client, "long", 1000, 60_000);
    add_many(&mut client, "soon", 500, 5_000);
    fleet.reload(&daemon, &[0, 1]);
    // One that is replaced or deleted now is found where it was.
    for n in 0..100 {
        assert_eq!(client.ask(&add("t", &format!("long-{n}"), 60_000)).unwrap()["code"], 1);
        let delete = serde_json::json!({"cmd": "del", "topic": "t", "id": format!("long-{}", n + 100)});
        assert_eq!(client.ask(&delete).unwrap()["code"], 1, "{n}");
    }
    let settled = |out: &str| {
        let rows: Value = serde_json::from_str(out).unwrap();
        rows.as_array().unwrap().iter().all(|r| r["is_looked_through"] == true && r["held_for_others"] == 0)
    };
    eventually(20 * SECOND, "all at home", || {
        let (_, out, _) = nodes(&daemon, &["list", "--json"]);
        (settled(&out) && fleet.jobs_on(1) > 300).then_some(())
    });
    fleet.sink.wait_for(500, 20 * SECOND);
    assert!(fleet.sink.deliveries().values().all(|calls| *calls == 1), "each once");
    eventually(10 * SECOND, "what is left", || (pending(&mut client, "t") == 900).then_some(()));
    assert_eq!(fleet.jobs_on(0) + fleet.jobs_on(1), 900);

    assert_eq!(nodes(&daemon, &["drain", "r1"]).0, Some(0));
    assert_eq!((fleet.jobs_on(0), fleet.jobs_on(1)), (900, 0));
    let (code, out, err) = nodes(&daemon, &["drain", "r1", "--undo"]);
    assert!(code == Some(0) && out.contains("new jobs go to r1 again"), "{out}{err}");
    eventually(20 * SECOND, "its share", || (fleet.jobs_on(1) > 300).then_some(()));
    eventually(20 * SECOND, "all of them", || (fleet.jobs_on(0) + fleet.jobs_on(1) == 900).then_some(()));
}

#[test]
fn a_drain_that_is_ordered_again_goes_on_and_one_that_is_undone_at_once_counts_first() {
    let mut fleet = Fleet::start(3);
    let urls: Vec<String> = fleet.nodes.iter().map(RedisServer::url).collect();
    // Each as another process has them.
    let lanes = |pool| {
        let node = |n: usize| settings::Node::server(format!("r{n}"), urls[n].clone(), 2);
        let nodes = (0..3).map(node).collect();
        let redis = settings::Redis { prefix: "dq".into(), timeout: SECOND, pool, nodes };
        Lanes::new(&settings::Store::Redis(redis)).unwrap()
    };
    let (first, second) = (lanes(4), lanes(5));
    let said = |fleet: &Fleet, node: usize| {
        let script =
            "local k = redis.call('KEYS', '*drained')[1] return k and redis.call('HGET', k, 'r1') or ''";
        fleet.nodes[node].cli(&["eval", script, "0"]).trim().to_owned()
    };
    let everywhere = |fleet: &Fleet| {
        let words: HashSet<String> = (0..3).map(|node| said(fleet, node)).collect();
        assert_eq!(words.len(), 1, "{words:?}");
        words.into_iter().next().unwrap()
    };
    let is_home = |lanes: &Lanes| lanes.nodes()[1].is_home;

    // There is nothing to undo.
    second.drain(1, false).unwrap();
    assert_eq!(everywhere(&fleet), "");
    first.drain(1, true).unwrap();
    let word = everywhere(&fleet);
    assert!(word.ends_with(" 1"), "{word}");
    [&first, &second].into_iter().for_each(|again| again.drain(1, true).unwrap());
    assert_eq!(everywhere(&fleet), word, "it was said already");

    // Undone at once: only when all go by the drain.
    let begun = Instant::now();
    second.drain(1, false).unwrap();
    assert!(!is_home(&first) && !is_home(&second));
    let at = |word: &str| word.split_once(' ').unwrap().0.parse::<i64>().unwrap();
    let undone = everywhere(&fleet);
    assert!(undone.ends_with(" 0") && at(&undone) >= at(&word) + 2000, "{word}, then {undone}");
    // Who has just begun goes by what the others go by, before and after.
    let third = lanes(6);
    while begun.elapsed() < 10 * SECOND && !is_home(&first) {
        assert!(!is_home(&third) || is_home(&first), "the same for all");
        std::thread::yield_now();
    }
    assert!(is_home(&first));
    eventually(5 * SECOND, "the others", || (is_home(&second) && is_home(&third)).then_some(()));

    // A node that is away may know of a drain that the others have not heard of.
    fleet.nodes[2].kill();
    assert!(lanes(7).drain(0, false).is_err());
}

#[test]
fn what_cannot_be_drained_is_told() {
    let mut fleet = Fleet::start(2);
    let daemon = Daemon::start(&fleet.config(&[0, 1]));
    let (code, _, err) = nodes(&daemon, &["drain", "r7"]);
    assert!(code == Some(3) && err.contains("there is no node \"r7\"; there are r0, r1"), "{err}");
    // How many shards a node has is what it had at first.
    let other = fleet.config(&[0, 1]).replace("[store]\n", "[store]\nshards_per_node = 4\n");
    Daemon::write_config(daemon.dir.path(), daemon.port, daemon.http, &other);
    daemon.signal(Signal::SIGHUP);
    eventually(10 * SECOND, "a refusal", || daemon.log().contains("store cannot be changed").then_some(()));
    Daemon::write_config(daemon.dir.path(), daemon.port, daemon.http, &fleet.config(&[0, 1]));
    fleet.nodes[1].kill();
    let (code, _, err) = nodes(&daemon, &["drain", "r1"]);
    assert!(code == Some(1) && err.contains("r1 does not answer ("), "{err}");
    let (code, out, _) = nodes(&daemon, &["list"]);
    let why = |line: &str| line.starts_with("r1") && line.contains("down") && line.contains("refused");
    assert!(code == Some(1) && out.lines().any(why), "{out}");
    let embedded = Daemon::start("");
    if !support::on_redis() {
        let (code, _, err) = nodes(&embedded, &["list"]);
        assert!(code == Some(1) && err.contains("has no nodes"), "{err}");
    }
}
