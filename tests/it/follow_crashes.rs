//! Processes of the daemon are killed, or the daemon is stopped, while jobs have followers. Each follower is added
//! once, and no follower is lost.

use std::collections::HashMap;
use std::path::Path;
use std::time::Duration;

use cli::HandlerAnswer;
use serde_json::json;

use crate::support::redis::RedisServer;
use crate::support::{Daemon, SECOND, Sink, eventually, stats, topic};
use model::job::{JobId, JobKey, TopicName};
use model::record::Ending;
use model::settings::{self, StoreSettings};
use protocol::dq::Framing;
use store::Store;

const KILLS: usize = 15;

/// The processes that are killed, one after the other.
const ROLES: [&str; 5] = ["dq-timer-0", "dq-consume-0", "dq-server", "dq-timer-1", "dq-consume-1"];

/// How many jobs are added between two kills. Each job has two followers, and one of these has a follower.
const JOBS: usize = 20;

fn play(daemon: &Daemon, sink: &Sink, open: impl FnOnce(&Path) -> Box<dyn Store>) {
    let mut client = daemon.client();
    let mut sum = 0;
    for kill in 0..KILLS {
        for _ in 0..JOBS {
            let then = json!([{"topic": "u", "id": format!("u{sum}"), "body": 1, "delay_ms": sum % 30},
                              {"topic": "u", "id": format!("v{sum}"), "body": 2, "then": {"topic": "w", "id": format!("w{sum}"), "body": 3}}]);
            let add = json!({"cmd": "add", "topic": "t", "id": format!("t{sum}"), "body": 1, "delay_ms": sum % 40, "then": then});
            // If an add is not answered, it is sent again, as a client does it.
            eventually(20 * SECOND, "an add", || match client.ask(&add) {
                Ok(answer) if answer["code"] == 1 => Some(()),
                _ => {
                    if let Ok(new) = cli::TcpClient::connect(daemon.address(), Framing::Digits) {
                        client = new;
                    }
                    None
                }
            });
            sum += 1;
        }
        daemon.kill_child(ROLES[kill % ROLES.len()]);
    }
    let ids: Vec<(&str, String)> = (0..sum)
        .flat_map(|n| {
            [("t", format!("t{n}")), ("u", format!("u{n}")), ("u", format!("v{n}")), ("w", format!("w{n}"))]
        })
        .collect();
    let mut lacking = Vec::new();
    let mut delivered: HashMap<String, u32> = HashMap::new();
    eventually(60 * SECOND, "a delivery of each follower", || {
        delivered = sink.deliveries();
        lacking = ids.iter().filter(|(_, id)| !delivered.contains_key(id)).collect();
        lacking.is_empty().then_some(())
    });
    let mut client = daemon.client();
    for name in ["t", "u", "w"] {
        eventually(30 * SECOND, "nothing in flight", || {
            let stats = stats(&mut client, name);
            (stats["delayed"] + stats["ready"] + stats["leased"] == 0).then_some(())
        });
    }
    let mut store = open(daemon.dir.path());
    assert_eq!(store.outbox().unwrap().entries, 0);
    // Each follower has one record. So it was added once, because each add of a job leads to one record.
    for (topic, id) in ids.iter().filter(|(topic, _)| *topic != "t") {
        let key = JobKey { topic: TopicName::new(topic).unwrap(), id: JobId::new(id.as_str()).unwrap() };
        let endings: Vec<Ending> = store.records(&key).unwrap().iter().map(|record| record.ending).collect();
        assert_eq!(endings, [Ending::Delivered], "{key}");
    }
}

fn topics(sink: &Sink) -> String {
    ["t", "u", "w"].map(|name| topic(name, sink, "max_attempts = 100")).concat()
}

fn sink() -> Sink {
    Sink::answering(|_| HandlerAnswer::new(200, "ok").after(Duration::from_millis(5)))
}

fn open_embedded(dir: &Path) -> Box<dyn Store> {
    let settings = StoreSettings::Embedded { path: dir.join("var/dq.db"), min_free: 0 };
    store::open(&settings, &dir.join("var/run")).unwrap()
}

fn redis_config(servers: &[RedisServer], sink: &Sink) -> String {
    let node = |(n, server): (usize, &RedisServer)| {
        format!("[[store.node]]\nname = \"r{n}\"\nurl = \"{}\"\n", server.url())
    };
    let nodes: String = servers.iter().enumerate().map(node).collect();
    format!("[store]\nbackend = \"redis\"\n{nodes}{}", topics(sink))
}

fn open_redis(servers: &[RedisServer], dir: &Path) -> Box<dyn Store> {
    let node =
        |(n, server): (usize, &RedisServer)| settings::NodeSettings::server(format!("r{n}"), server.url(), 2);
    let nodes = servers.iter().enumerate().map(node).collect();
    let redis = settings::RedisSettings::of_nodes("dq", 5 * SECOND, 2, nodes);
    store::open(&StoreSettings::Redis(redis), &dir.join("var/run")).unwrap()
}

#[test]
fn each_follower_is_added_once_over_kills() {
    let sink = sink();
    let daemon = Daemon::start(&format!("[store]\nbackend = \"embedded\"\n{}", topics(&sink)));
    play(&daemon, &sink, open_embedded);
}

/// A consumer ends a job after the order to drain. The job that follows is added before dq has stopped.
fn stop_during_callbacks(daemon: &mut Daemon, sink: &Sink, open: impl FnOnce(&Path) -> Box<dyn Store>) {
    let mut client = daemon.client();
    for n in 0..JOBS {
        let then = json!({"topic": "u", "id": format!("u{n}"), "body": 1, "delay": "1h"});
        let add = json!({"cmd": "add", "topic": "t", "id": format!("t{n}"), "body": 1, "then": then});
        assert_eq!(client.ask(&add).unwrap()["code"], 1);
    }
    sink.wait_for(JOBS, 20 * SECOND);
    assert!(sink.accepted() < JOBS, "all callbacks have ended before the stop");
    daemon.stop();
    assert!(!daemon.log().contains("is killed"), "{}", daemon.log());
    let mut store = open(daemon.dir.path());
    assert_eq!(store.outbox().unwrap().entries, 0);
    let counts = store.counts().unwrap();
    let jobs = |name: &str| counts.iter().find(|c| c.topic.as_str() == name).map_or(0, |c| c.delayed);
    assert_eq!(jobs("u"), JOBS as u64);
}

fn slow_sink() -> Sink {
    Sink::answering(|_| HandlerAnswer::new(200, "ok").after(2 * SECOND))
}

#[test]
fn a_stop_adds_what_follows_the_last_jobs() {
    let sink = slow_sink();
    let mut daemon = Daemon::start(&format!("[store]\nbackend = \"embedded\"\n{}", topics(&sink)));
    stop_during_callbacks(&mut daemon, &sink, open_embedded);
}

#[test]
fn a_stop_adds_what_follows_the_last_jobs_on_redis() {
    let (sink, servers) = (slow_sink(), [RedisServer::start(), RedisServer::start()]);
    let mut daemon = Daemon::start(&redis_config(&servers, &sink));
    stop_during_callbacks(&mut daemon, &sink, |dir| open_redis(&servers, dir));
}

#[test]
fn each_follower_is_added_once_on_redis_over_kills() {
    let (sink, servers) = (sink(), [RedisServer::start(), RedisServer::start()]);
    let daemon = Daemon::start(&redis_config(&servers, &sink));
    play(&daemon, &sink, |dir| open_redis(&servers, dir));
}
