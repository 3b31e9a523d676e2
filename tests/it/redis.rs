//! The daemon on Redis nodes that are killed, stopped, and emptied.

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::support::redis::RedisServer;
use crate::support::{
    Daemon, SECOND, SLOTS, Sink, add, eventually, load, new_job, now_ms, pending, stats, topic,
};
use model::job::{Due, JobId, JobKey, NewJob, TopicName};
use model::settings;
use nix::sys::signal::{Signal, kill};
use serde_json::json;
use store::{self, HELD_MS, Lanes, LeaseRequest, Store};

/// Two nodes, and a daemon on them.
struct Pair {
    nodes: [RedisServer; 2],
    lanes: Lanes,
    config: String,
    settings: settings::StoreSettings,
}

impl Pair {
    fn start(topics: &str) -> Pair {
        let nodes = [RedisServer::start(), RedisServer::start()];
        let node = |n: usize| settings::NodeSettings::server(format!("r{n}"), nodes[n].url(), 2);
        let redis = settings::RedisSettings::of_nodes("dq", SECOND, 4, vec![node(0), node(1)]);
        let sections: String = redis
            .nodes
            .iter()
            .zip(&nodes)
            .map(|(n, server)| format!("[[store.node]]\nname = \"{}\"\nurl = \"{}\"\n", n.name, server.url()))
            .collect();
        let config = format!("[store]\nbackend = \"redis\"\ntimeout = \"1s\"\nspool = 0\n{sections}{topics}");
        let settings = settings::StoreSettings::Redis(redis);
        let lanes = Lanes::new(&settings).unwrap();
        Pair { nodes, lanes, config, settings }
    }

    fn daemon(&self) -> Daemon {
        Daemon::start(&self.config)
    }

    /// Opens a store on the nodes, without a daemon.
    fn store(&self) -> Box<dyn Store> {
        self.store_of_another(4)
    }

    /// Opens a store as in another process. Stores with different numbers of connections (`pool`) share nothing.
    fn store_of_another(&self, pool: u32) -> Box<dyn Store> {
        let mut settings = self.settings.clone();
        if let settings::StoreSettings::Redis(redis) = &mut settings {
            redis.pool = pool;
        }
        store::open(&settings, Path::new("/nowhere")).unwrap()
    }

    /// Returns an id that begins with this name and has its home on this node.
    fn id_on(&self, node: usize, name: &str) -> String {
        let ids = (0..).map(|n| format!("{name}.{n}"));
        let key = |id: &String| JobKey {
            topic: TopicName::new("t").unwrap(),
            id: JobId::new(id.as_str()).unwrap(),
        };
        ids.into_iter().find(|id| self.lanes.lane_of(&key(id)) == node).unwrap()
    }
}

#[test]
fn a_node_killed_under_load_loses_no_acknowledged_jobs() {
    let sink = Sink::start();
    let mut pair = Pair::start(&topic("t", &sink, ""));
    let daemon = pair.daemon();
    let done = AtomicBool::new(false);
    let taken = std::thread::scope(|scope| {
        let adders = scope.spawn(|| {
            load(&daemon, "x", &["node_down", "unknown"], |taken| {
                taken > 20_000 || done.load(Ordering::Relaxed)
            })
        });
        for round in 0..3 {
            let so_far = sink.count();
            eventually(20 * SECOND, "deliveries", || (sink.count() > so_far + 200).then_some(()));
            pair.nodes[round % 2].kill();
            let until = now_ms() + 500;
            eventually(5 * SECOND, "half a second without it", || (now_ms() > until).then_some(()));
            pair.nodes[round % 2].start_again();
        }
        done.store(true, Ordering::Relaxed);
        adders.join().unwrap()
    });
    // A job that was leased or in flight when a node died comes again when its lease expires.
    eventually(75 * SECOND, &format!("all of {}; log:\n{}", taken.len(), daemon.log()), || {
        let come = sink.deliveries();
        taken.iter().all(|id| come.contains_key(id)).then_some(())
    });
    let mut client = daemon.client();
    // The node that came back last may count as down for a moment.
    let ask = json!({"cmd": "stats", "topic": "t"});
    eventually(20 * SECOND, "counts of both nodes", || {
        (client.ask(&ask).unwrap()["code"] == 1).then_some(())
    });
    eventually(20 * SECOND, "an empty store", || (pending(&mut client, "t") == 0).then_some(()));
}

/// One node is down for `seconds`. Only the jobs of this node are affected: adds with their home on the node are
/// refused. All other jobs are accepted, and come in time. The jobs of the node come after its return.
fn one_away(seconds: u64, away: impl Fn(&mut RedisServer), back: impl Fn(&mut RedisServer)) {
    let sink = Sink::start();
    let mut pair = Pair::start(&topic("t", &sink, ""));
    let daemon = pair.daemon();
    daemon.wait_all_up(SLOTS);
    let mut client = daemon.client();
    let waiting = pair.id_on(1, "waiting");
    assert_eq!(client.ask(&add("t", &pair.id_on(1, "first"), 0)).unwrap()["code"], 1);
    sink.wait_for(1, 10 * SECOND);
    assert_eq!(client.ask(&add("t", &waiting, 1500)).unwrap()["code"], 1);
    let first = sink.count();
    away(&mut pair.nodes[1]);
    let begun = Instant::now();
    let mut added = HashSet::new();
    let (mut unknown, mut refused) = (0, 0);
    for n in 0.. {
        if begun.elapsed() > Duration::from_secs(seconds) {
            break;
        }
        for node in [0, 1] {
            let id = pair.id_on(node, &format!("on-{node}-{n}"));
            let answer = client.ask(&add("t", &id, 100)).unwrap();
            match answer["err"].as_str() {
                None => {
                    assert!(node == 0 && answer["code"] == 1, "{answer}");
                    added.insert(id);
                }
                Some("node_down") => {
                    assert_eq!(node, 1, "{answer}");
                    refused += 1;
                }
                // This request was in flight when the node went down.
                err => {
                    assert_eq!(err, Some("unknown"), "{answer}");
                    unknown += 1;
                }
            }
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    // Only the first requests to the node have an unknown outcome. All later requests are refused.
    let least = seconds as usize * 5;
    assert!(unknown <= 3 && refused > least && added.len() > least, "{unknown}, {refused}, {}", added.len());
    eventually(5 * SECOND, &format!("all of {}; log:\n{}", added.len(), daemon.log()), || {
        let come = sink.deliveries();
        added.iter().all(|id| come.contains_key(id)).then_some(())
    });
    let mut late: Vec<i64> = sink.calls()[first..].iter().map(|c| c.late_ms().unwrap()).collect();
    late.sort_unstable();
    assert!(late[0] >= 0 && late[late.len() * 9 / 10] < 900, "{late:?}");
    assert!(!sink.deliveries().contains_key(&waiting));
    let ready = daemon.status().unwrap();
    assert!(ready["processes"].as_array().unwrap().iter().all(|p| p["state"] == "up"), "{ready}");
    back(&mut pair.nodes[1]);
    eventually(10 * SECOND, &format!("the job that waited; log:\n{}", daemon.log()), || {
        sink.deliveries().contains_key(&waiting).then_some(())
    });
    let id = pair.id_on(1, "later");
    eventually(5 * SECOND, "an add there", || {
        (client.ask(&add("t", &id, 0)).unwrap()["code"] == 1).then_some(())
    });
    added.insert(id);
    // Just before the outage, the answer to a lease call may have been lost. Then its leases expire.
    eventually(40 * SECOND, "an empty store", || (pending(&mut client, "t") == 0).then_some(()));
    let come = sink.deliveries();
    assert!(added.iter().all(|id| come.get(id).is_some_and(|calls| *calls == 1)), "each once: {come:?}");
    assert!(pair.lanes.nodes().iter().all(|node| node.answers));
    assert!(
        daemon.log().contains("node r1 is down") && daemon.log().contains("node r1 answers again"),
        "{}",
        daemon.log()
    );
}

#[test]
fn a_node_that_is_down_for_twenty_seconds_costs_only_its_share() {
    one_away(20, RedisServer::kill, RedisServer::start_again);
}

#[test]
fn a_node_that_hangs_costs_no_other_node() {
    one_away(5, |node| node.hang(true), |node| node.hang(false));
}

#[test]
fn a_daemon_starts_while_a_node_is_down() {
    let sink = Sink::start();
    let mut pair = Pair::start(&topic("t", &sink, ""));
    // The nodes have been used before.
    drop(pair.store());
    pair.nodes[1].kill();
    let daemon = pair.daemon();
    daemon.wait_all_up(SLOTS);
    let mut client = daemon.client();
    assert_eq!(client.ask(&add("t", &pair.id_on(0, "here"), 50)).unwrap()["code"], 1);
    sink.wait_for(1, 5 * SECOND);
    pair.nodes[1].start_again();
    eventually(10 * SECOND, "the other node", || {
        (client.ask(&add("t", &pair.id_on(1, "there"), 50)).unwrap()["code"] == 1).then_some(())
    });
    sink.wait_for(2, 10 * SECOND);
}

#[test]
fn the_checker_finds_risks_and_down_nodes_and_reports_their_end() {
    let mut pair = Pair::start("");
    pair.nodes[0].cli(&["config", "set", "maxmemory-policy", "allkeys-lru"]);
    let daemon = pair.daemon();
    let findings = || -> Option<HashSet<String>> {
        let status = daemon.status()?;
        let names = status["findings"].as_array()?.iter();
        Some(
            names
                .map(|f| format!("{} {} {}", f["name"], f["node"], f["loses_jobs"]).replace('"', ""))
                .collect(),
        )
    };
    let are = |what: &[&str]| {
        let wanted: HashSet<String> = what.iter().map(|w| (*w).to_owned()).collect();
        eventually(20 * SECOND, &format!("{what:?}; log:\n{}", daemon.log()), || {
            (findings()? == wanted).then_some(())
        });
    };
    are(&["node_evicts r0 true"]);
    pair.nodes[1].kill();
    are(&["node_evicts r0 true", "node_down r1 false"]);
    pair.nodes[1].start_again();
    are(&["node_evicts r0 true"]);
    assert!(
        daemon.log().contains("no longer, after") && daemon.log().contains("node r1 is down"),
        "{}",
        daemon.log()
    );
    pair.nodes[1].cli(&["flushall"]);
    are(&["node_evicts r0 true", "node_emptied r1 true"]);
    // The checker may die, like any process. The next checker finds the same state.
    daemon.kill_child("dq-redis-checke");
    are(&["node_evicts r0 true"]);
}

#[test]
fn a_full_node_refuses_adds_and_still_delivers_its_jobs() {
    let sink = Sink::start();
    let pair = Pair::start(&topic("t", &sink, ""));
    let daemon = pair.daemon();
    let mut client = daemon.client();
    for n in 0..100 {
        assert_eq!(client.ask(&add("t", &pair.id_on(0, &n.to_string()), 1000)).unwrap()["code"], 1);
    }
    pair.nodes[0].cli(&["config", "set", "maxmemory", "1mb"]);
    let answer = client.ask(&add("t", &pair.id_on(0, "one more"), 0)).unwrap();
    assert_eq!(answer["err"], "store_full", "{answer}");
    sink.wait_for(100, 10 * SECOND);
    assert_eq!(sink.count(), 100, "each came once, and the refused one not at all");
    assert_eq!(client.ask(&add("t", &pair.id_on(1, "elsewhere"), 0)).unwrap()["code"], 1);
    pair.nodes[0].cli(&["config", "set", "maxmemory", "0"]);
    assert_eq!(client.ask(&add("t", &pair.id_on(0, "again"), 0)).unwrap()["code"], 1);
    sink.wait_for(102, 10 * SECOND);
    eventually(10 * SECOND, "an empty store", || (pending(&mut client, "t") == 0).then_some(()));
}

#[test]
fn a_full_node_releases_what_it_holds_back() {
    let node = RedisServer::start();
    let nodes = vec![settings::NodeSettings::server("r", node.url(), 1)];
    let redis = settings::RedisSettings::of_nodes("dq", SECOND, 1, nodes);
    let mut store =
        store::open(&settings::StoreSettings::Redis(redis), std::path::Path::new("/nowhere")).unwrap();
    let jobs = ["later", "now"].map(|id| new_job("t", id, "1", Due::At(HELD_MS)));
    assert!(store.add(&jobs).iter().all(Result::is_ok));
    node.cli(&["config", "set", "maxmemory", "1mb"]);
    let dues = [Due::At(now_ms() + 60_000), Due::In(Duration::ZERO)];
    for (job, due) in jobs.iter().zip(dues) {
        assert_eq!(store.release(&[(job.key.clone(), due)]), [Ok(true)], "{}", job.key);
    }
}

#[test]
fn the_shards_of_a_node_stay_as_many_as_they_were() {
    let node = RedisServer::start();
    let open = |shards| {
        let nodes = vec![settings::NodeSettings::server("r", node.url(), shards)];
        let redis = settings::RedisSettings::of_nodes("dq", SECOND, 1, nodes);
        store::open(&settings::StoreSettings::Redis(redis), std::path::Path::new("/nowhere")).unwrap()
    };
    assert_eq!(open(2).counts().unwrap(), []);
    let error = open(3).counts().unwrap_err().to_string();
    assert!(error.contains("has had 2 shards") && error.contains("cannot be 3"), "{error}");
    assert_eq!(open(2).counts().unwrap(), []);
}

#[test]
fn a_server_is_not_taken_for_another_node() {
    let servers = [RedisServer::start(), RedisServer::start()];
    let open = |urls: [usize; 2]| {
        let node = |n: usize| settings::NodeSettings::server(format!("r{n}"), servers[urls[n]].url(), 2);
        let nodes = vec![node(0), node(1)];
        let redis = settings::RedisSettings::of_nodes("dq", SECOND, 1, nodes);
        store::open(&settings::StoreSettings::Redis(redis), std::path::Path::new("/nowhere")).unwrap()
    };
    assert_eq!(open([0, 1]).counts().unwrap(), []);
    let error = open([1, 0]).counts().unwrap_err().to_string();
    assert!(error.contains("node r0: the server at its url is node r1"), "{error}");
    let error = open([0, 0]).counts().unwrap_err().to_string();
    assert!(error.contains("node r1: the server at its url is node r0"), "{error}");
    assert_eq!(open([0, 1]).counts().unwrap(), []);
}

/// Returns how many commands a server has run, and how many calls of scripts.
fn commands(node: &RedisServer) -> (u64, u64) {
    let stats = node.cli(&["info", "commandstats"]);
    let calls = |line: &str| line.split_once("calls=")?.1.split(',').next()?.parse::<u64>().ok();
    let all = stats.lines().filter(|l| !l.contains("cmdstat_info") && !l.contains("cmdstat_ping"));
    let scripts = stats.lines().filter(|l| l.starts_with("cmdstat_evalsha:")).filter_map(calls).sum();
    (all.filter_map(calls).sum(), scripts)
}

#[test]
fn a_thousand_jobs_cost_few_round_trips_and_few_commands() {
    let node = RedisServer::start();
    let nodes = vec![settings::NodeSettings::server("r", node.url(), 2)];
    let redis = settings::RedisSettings::of_nodes("dq", SECOND, 1, nodes);
    let mut store =
        store::open(&settings::StoreSettings::Redis(redis), std::path::Path::new("/nowhere")).unwrap();
    let topic = TopicName::new("t").unwrap();
    let job = |n: usize, due| new_job(topic.as_str(), &format!("job-{n}"), "{}", due);
    let mut counted = |what: &str, most: (u64, u64), work: &mut dyn FnMut(&mut dyn store::Store)| {
        let before = commands(&node);
        work(store.as_mut());
        let after = commands(&node);
        let cost = (after.0 - before.0, after.1 - before.1);
        println!("{what}: {} commands, {} calls of scripts for 1,000 jobs", cost.0, cost.1);
        assert!(cost.0 <= most.0 && cost.1 <= most.1, "{what}: {cost:?} are more than {most:?}");
    };
    let due = model::job::Due::In(Duration::from_millis(1));
    // There are two shards, and a call has up to 256 jobs. So there are 8 calls, and two more calls that find that the
    // script is missing. Each call runs a few commands.
    counted("add", (100, 10), &mut |s| {
        let jobs: Vec<_> = (0..1000).map(|n| job(n, due)).collect();
        assert!(s.add(&jobs).iter().all(Result::is_ok));
    });
    std::thread::sleep(Duration::from_millis(20));
    counted("promote", (80, 10), &mut |s| {
        let mut moved = 0;
        while moved < 1000 {
            moved += s.promote(256).unwrap().jobs;
        }
    });
    let mut leased = Vec::new();
    counted("lease", (150, 12), &mut |s| {
        let wanted = store::LeaseRequest {
            topic: topic.clone(),
            max: 256,
            hold: SECOND * 60,
            max_leased: None,
            is_own_ttr: false,
            max_attempts: 3,
        };
        while leased.len() < 1000 {
            leased.extend(s.lease(std::slice::from_ref(&wanted), 256, None).unwrap().jobs);
        }
    });
    counted("settle", (100, 10), &mut |s| {
        let settle = |j: &store::LeasedJob| store::Settlement {
            key: j.key.clone(),
            token: j.token.clone(),
            outcome: store::Outcome::Ack,
            attempt: None,
        };
        let all: Vec<_> = leased.iter().map(settle).collect();
        assert!(s.settle(&all).iter().all(|r| *r == Ok(store::Settled::Done)));
    });
}

/// `MEMORY_JOBS=1000000` measures the full size. Fewer jobs give the same result within a few percent.
#[test]
fn a_pending_job_uses_little_memory_beyond_its_id_and_body() {
    let jobs: usize = std::env::var("MEMORY_JOBS").ok().and_then(|n| n.parse().ok()).unwrap_or(50_000);
    let used = |node: &RedisServer| {
        let info = node.cli(&["info", "memory"]);
        info.lines().find_map(|l| l.strip_prefix("used_memory:")).unwrap().trim().parse::<f64>().unwrap()
    };
    let (body, id) = (format!("{{\"text\":\"{}\"}}", "x".repeat(114)), |n: usize| format!("order-{n:08}"));
    assert_eq!((body.len(), id(0).len()), (125, 14));
    let plain = RedisServer::start();
    let base = used(&plain);
    let client = redis::Client::open(plain.url()).unwrap();
    let mut connection = client.get_connection().unwrap();
    for from in (0..jobs).step_by(1000) {
        let mut pipe = redis::pipe();
        for n in from..(from + 1000).min(jobs) {
            pipe.hset("bodies", id(n), &body).zadd("due", id(n), 1_800_000_000_000_i64 + n as i64);
        }
        pipe.exec(&mut connection).unwrap();
    }
    let plain_each = (used(&plain) - base) / jobs as f64;

    let node = RedisServer::start();
    let nodes = vec![settings::NodeSettings::server("r", node.url(), 2)];
    let redis = settings::RedisSettings::of_nodes("dq", SECOND * 10, 1, nodes);
    let mut store =
        store::open(&settings::StoreSettings::Redis(redis), std::path::Path::new("/nowhere")).unwrap();
    let base = used(&node);
    for from in (0..jobs).step_by(1000) {
        let batch: Vec<_> = (from..(from + 1000).min(jobs))
            .map(|n| new_job("t", &id(n), &body, Due::At(1_800_000_000_000 + n as i64)))
            .collect();
        assert!(store.add(&batch).iter().all(Result::is_ok));
    }
    let each = (used(&node) - base) / jobs as f64;
    println!(
        "{jobs} jobs: {plain_each:.0} bytes each plain, {each:.0} with dq: {:.2} times",
        each / plain_each
    );
    assert!(each <= 1.3 * plain_each, "{each} bytes are more than 1.3 times {plain_each}");
}

#[test]
fn an_add_whose_home_is_down_is_refused() {
    let sink = Sink::start();
    let mut pair = Pair::start(&topic("t", &sink, ""));
    let daemon = pair.daemon();
    let mut client = daemon.client();
    let id = pair.id_on(1, "taken");
    assert_eq!(client.ask(&add("t", &id, 600_000)).unwrap()["code"], 1);
    pair.nodes[1].kill();
    let mut ask = |rule: &str| {
        let mut request = add("t", &id, 600_000);
        request["on_conflict"] = rule.into();
        let answer = client.ask(&request).unwrap();
        answer["err"].as_str().map_or_else(|| answer["code"].to_string(), str::to_owned)
    };
    eventually(5 * SECOND, "a node that is known to be down", || {
        (ask("reject") == "node_down").then_some(())
    });
    assert_eq!((ask("keep"), ask("replace")), ("node_down".to_owned(), "node_down".to_owned()));
    pair.nodes[1].start_again();
    eventually(10 * SECOND, "an answer", || (ask("reject") == "exists").then_some(()));
}

#[test]
fn a_node_that_missed_a_pause_delivers_no_jobs_of_the_topic() {
    let mut pair = Pair::start("");
    let mut store = pair.store();
    let job = new_job("t", &pair.id_on(1, "waits"), "1", Due::In(Duration::ZERO));
    let key = job.key.clone();
    eventually(10 * SECOND, "a stored job", || store.add(std::slice::from_ref(&job)).remove(0).ok());
    let lease = |store: &mut Box<dyn Store>| {
        let wanted = LeaseRequest {
            topic: key.topic.clone(),
            max: 9,
            hold: 60 * SECOND,
            max_leased: None,
            is_own_ttr: false,
            max_attempts: 10,
        };
        store.lease(&[wanted], 9, None).map_or(0, |batch| batch.jobs.len())
    };
    pair.nodes[1].kill();
    store.pause(&key.topic, true).unwrap();
    assert_eq!(store.paused().unwrap(), std::slice::from_ref(&key.topic));
    pair.nodes[1].start_again();
    let knows = |pair: &Pair| {
        let keys = pair.nodes[1].cli(&["keys", "*paused"]);
        !keys.trim().is_empty()
    };
    eventually(20 * SECOND, "a node that knows the pause", || {
        assert_eq!(lease(&mut store), 0);
        knows(&pair).then_some(())
    });
    let until = Instant::now() + 2 * SECOND;
    while Instant::now() < until {
        assert_eq!(lease(&mut store), 0);
    }
    // Before a new process leases jobs, it reads from the nodes which topics are paused.
    for pool in 10..18 {
        let forget = "for _, k in ipairs(redis.call('KEYS', '*pause*')) do redis.call('DEL', k) end";
        pair.nodes[1].cli(&["eval", forget, "0"]);
        assert_eq!(lease(&mut pair.store_of_another(pool)), 0);
    }
    let mut store = pair.store_of_another(20);
    store.pause(&key.topic, false).unwrap();
    eventually(5 * SECOND, "the job", || (lease(&mut store) == 1).then_some(()));
}

#[test]
fn hosts_that_serve_different_topics_are_each_told_of_their_own() {
    let sinks = [Sink::start(), Sink::start()];
    let pair = Pair::start("");
    let topics = ["t", "u"];
    let daemons =
        [0, 1].map(|n| Daemon::start(&format!("{}{}", pair.config, topic(topics[n], &sinks[n], ""))));
    daemons.iter().for_each(|daemon| drop(daemon.wait_all_up(SLOTS)));
    let mut clients = [0, 1].map(|n| daemons[n].client());
    for n in 0..60 {
        let of = n % 2;
        assert_eq!(clients[of].ask(&add(topics[of], &n.to_string(), 0)).unwrap()["code"], 1);
        sinks[of].wait_for(n / 2 + 1, 5 * SECOND);
    }
    // Ready jobs of a topic that the daemon does not serve cost little.
    let mut store = pair.store();
    let stray = |n: usize| new_job("v", &n.to_string(), "1", Due::In(Duration::ZERO));
    let jobs: Vec<NewJob> = (0..50).map(stray).collect();
    store.add(&jobs).into_iter().for_each(|added| assert!(added.is_ok(), "{added:?}"));
    let scripts = || pair.nodes.iter().map(|node| commands(node).1).sum::<u64>();
    let calls_in = |seconds: u32| {
        let (before, begun) = (scripts(), Instant::now());
        eventually(60 * SECOND, "some time", || (begun.elapsed() > seconds * SECOND).then_some(()));
        (scripts() - before) as f64 / begun.elapsed().as_secs_f64()
    };
    // The pauses between the calls grow. On a busy machine, it takes longer until they are long enough.
    let each_second = (0..5).map(|_| calls_in(5)).find(|each_second| *each_second < 200.0);
    assert!(each_second.is_some(), "200 or more a second");
}

/// When there are many ready jobs that a lease does not ask for, the store does not report all of them. If a lease has
/// no room for a topic, the consumer must not forget the ring of the bell for this topic.
#[test]
fn one_worker_serves_every_own_topic_among_many_foreign_ones() {
    let sink = Sink::start();
    let pair = Pair::start("[consume]\nprocesses = 1\nconcurrency = 1\n");
    let mut store = pair.store();
    let strays: Vec<NewJob> =
        (0..240).map(|n| new_job(&format!("v{n}"), "i", "1", Due::In(Duration::ZERO))).collect();
    store.add(&strays).into_iter().for_each(|added| assert!(added.is_ok(), "{added:?}"));
    let topics = ["a", "b", "c", "d"];
    let limits = ["", "", "", "max_in_flight = 3"];
    let own: String = topics.iter().zip(limits).map(|(name, limit)| topic(name, &sink, limit)).collect();
    let daemon = Daemon::start(&format!("{}{own}", pair.config));
    daemon.wait_all_up(SLOTS - 1);
    let mut client = daemon.client();
    for n in 0..40 {
        let jobs: Vec<_> = topics.iter().map(|t| add(t, &format!("{t}{n}"), 0)).collect();
        client.send(&jobs).unwrap();
        jobs.iter().for_each(|_| assert_eq!(client.receive().unwrap()["code"], 1));
        sink.wait_for(topics.len() * (n + 1), 5 * SECOND);
    }
}

#[test]
fn bells_rest_while_a_server_refuses_them() {
    let pair = Pair::start("");
    let daemon = pair.daemon();
    daemon.wait_all_up(SLOTS);
    pair.nodes[1].cli(&["replicaof", "127.0.0.1", "1"]);
    let refused = || {
        let stats = pair.nodes[1].cli(&["info", "commandstats"]);
        let line = stats.lines().find(|l| l.starts_with("cmdstat_bzpopmin:")).unwrap_or_default().to_owned();
        line.split_once("rejected_calls=")
            .map_or(0, |(_, n)| n.split(',').next().unwrap().parse::<u64>().unwrap())
    };
    eventually(20 * SECOND, "a refusal", || (refused() > 0).then_some(()));
    let (before, begun) = (refused(), Instant::now());
    eventually(20 * SECOND, "two seconds", || (begun.elapsed() > 2 * SECOND).then_some(()));
    let each_second = (refused() - before) as f64 / begun.elapsed().as_secs_f64();
    // There are three bells with two shards each, and each shard is asked twice a second.
    assert!(each_second < 30.0, "{each_second} a second");
    let number = daemon.log().lines().filter(|l| l.contains("node r1 is down")).count();
    assert!(number < 12, "{number} times in {}", daemon.log());
}

#[test]
fn a_server_that_has_forgotten_its_scripts_is_given_them_again() {
    let sink = Sink::start();
    let pair = Pair::start(&topic("t", &sink, ""));
    let daemon = pair.daemon();
    let mut client = daemon.client();
    for n in 0..5 {
        pair.nodes.iter().for_each(|node| drop(node.cli(&["script", "flush"])));
        for node in 0..2 {
            let id = pair.id_on(node, &n.to_string());
            assert_eq!(client.ask(&add("t", &id, 20)).unwrap()["code"], 1);
        }
        sink.wait_for(2 * (n + 1), 5 * SECOND);
    }
    assert_eq!(sink.count(), 10, "each came once");
}

/// An earlier release counts bytes, and does not say so in `counting`.
#[test]
fn bytes_that_an_earlier_release_counts_are_counted_on() {
    let pair = Pair::start("");
    let quota = Arc::new(model::quota::Quota { max_bytes: Some(1 << 30), ..Default::default() });
    let bytes = |store: &mut dyn Store| -> u64 {
        store.counts().unwrap().iter().filter_map(|counts| counts.bytes).sum()
    };
    let later = Due::In(Duration::from_secs(3600));
    let mut store = pair.store();
    let limited = NewJob { quota: Some(quota), ..new_job("t", &pair.id_on(0, "limited"), "1", later) };
    let free = |n: usize| new_job("t", &pair.id_on(0, &format!("free{n}")), "1", later);
    store.add(&[limited]).into_iter().for_each(|added| assert!(added.is_ok()));
    let keys = pair.nodes[0].cli(&["KEYS", "*:counting"]);
    let counts = |key: &&str| pair.nodes[0].cli(&["GET", key]).trim() == "1";
    let keys: Vec<&str> = keys.lines().filter(counts).collect();
    assert_eq!(keys.len(), 1, "{keys:?}");
    pair.nodes[0].cli(&["DEL", keys[0]]);
    let before = bytes(&mut *store);
    // Some of these ids are in the shard of the first job.
    let many: Vec<NewJob> = (0..20).map(free).collect();
    store.add(&many).into_iter().for_each(|added| assert!(added.is_ok()));
    assert!(bytes(&mut *store) > before, "{before}");
    pair.store_of_another(5);
    let key = pair.nodes[0].cli(&["GET", keys[0]]);
    assert_eq!(key.trim(), "1");
}

#[test]
fn two_daemons_deliver_each_job_once_and_one_continues_alone() {
    let sink = Sink::start();
    let pair = Pair::start(&topic("t", &sink, ""));
    let jobs = 20_000;
    let (mut a, b) = (pair.daemon(), pair.daemon());
    a.wait_all_up(SLOTS);
    b.wait_all_up(SLOTS);
    std::thread::scope(|scope| {
        for (c, daemon) in [&a, &b].into_iter().cycle().take(8).enumerate() {
            scope.spawn(move || {
                let mut client = daemon.client();
                for n in 0..jobs / 8 / 50 {
                    let batch: Vec<_> = (0..50).map(|i| add("t", &format!("{c}-{n}-{i}"), i * 20)).collect();
                    client.send(&batch).unwrap();
                    batch.iter().for_each(|_| assert_eq!(client.receive().unwrap()["code"], 1));
                }
            });
        }
    });
    let jobs = jobs / 8 / 50 * 50 * 8;
    sink.wait_for(jobs, 60 * SECOND);
    let mut client = b.client();
    eventually(10 * SECOND, "an empty store", || (pending(&mut client, "t") == 0).then_some(()));
    assert_eq!(sink.count(), jobs, "each came once");

    // One host dies with all its processes. The jobs that it held come back when its leases expire.
    let slow = Arc::new(AtomicBool::new(true));
    let is_slow = Arc::clone(&slow);
    let sink = Sink::answering(move |_| {
        let pause = if is_slow.load(Ordering::Relaxed) { 30 } else { 0 };
        cli::HandlerAnswer::new(200, "ok").after(Duration::from_secs(pause))
    });
    let pair = Pair::start(&topic("t", &sink, "timeout = \"1s\"\nretry = [\"100ms\"]"));
    a.stop();
    let (c, d) = (pair.daemon(), pair.daemon());
    let mut client = d.client();
    for n in 0..100 {
        assert_eq!(client.ask(&add("t", &n.to_string(), 0)).unwrap()["code"], 1);
    }
    eventually(10 * SECOND, "callbacks", || (sink.count() > 20).then_some(()));
    for pid in c.processes() {
        let _ = kill(pid, Signal::SIGKILL);
    }
    slow.store(false, Ordering::Relaxed);
    // The dead host holds at most the jobs that were called once and not settled. Their leases last 16 s.
    eventually(60 * SECOND, "an empty store", || (pending(&mut client, "t") == 0).then_some(()));
    assert_eq!(sink.deliveries().len(), 100, "the one that goes on has delivered what the dead one held");
    assert_eq!(stats(&mut client, "t").get("dead"), Some(&0));
}
