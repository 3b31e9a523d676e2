//! Topics that change while the daemon runs. A change in the registry takes effect in all processes within two seconds,
//! and a database that does not answer has no effect.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::support::mariadb::MariaDb;
use crate::support::redis::TcpServer;
use crate::support::{Daemon, SECOND, SLOTS, Sink, add, all_new, eventually, free_port, on_redis, topic};
use model::job::TopicName;
use model::settings;
use model::topic::{Topic, TopicStatus};
use mysql::prelude::Queryable;
use nix::sys::signal::Signal;
use registry::{Expected, Registry, Snapshot, open};
use serde_json::json;

/// How long a test waits for a change to take effect: the promised time, and some more because all tests share the
/// machine.
const SOON: Duration = Duration::from_secs(5);

fn name(n: &str) -> TopicName {
    TopicName::new(n).unwrap()
}

fn calling(n: &str, sink: &Sink) -> Topic {
    Topic::new(name(n), sink.url())
}

/// Starts a daemon with a registry. Also returns a handle to the registry for the test.
fn daemon(server: &MariaDb, more: &str) -> (Daemon, Box<dyn Registry>) {
    if on_redis() {
        let database = server.database();
        let daemon = Daemon::start(&format!("[registry]\nurl = \"{}\"\n{more}", database.url()));
        return (daemon, open(&database.settings()).unwrap());
    }
    let daemon = Daemon::start(more);
    let path = daemon.dir.path().join("var/registry.db");
    (daemon, open(&settings::RegistrySettings::Sqlite { path }).unwrap())
}

/// Repeats a request until it gets the expected answer. Returns how long this took.
fn answers(daemon: &Daemon, request: &serde_json::Value, err: Option<&str>) -> Duration {
    let begun = Instant::now();
    let mut client = daemon.client();
    eventually(SOON, &format!("{err:?} to {request}; log:\n{}", daemon.log()), || {
        let answer = client.ask(request).unwrap();
        match err {
            None => (answer["code"] == 1).then_some(()),
            Some(err) => (answer["err"] == err).then_some(()),
        }
    });
    begun.elapsed()
}

#[test]
fn a_topic_change_takes_effect_everywhere_within_seconds() {
    let (first, second) = (Sink::start(), Sink::start());
    let (daemon, mut registry) = daemon(MariaDb::shared(), "");
    answers(&daemon, &add("t", "0", 0), Some("unknown_topic"));

    registry.put(&calling("t", &first), Expected::Absent).unwrap();
    let took = answers(&daemon, &add("t", "1", 0), None);
    println!("registered: {took:?}");
    assert!(took < 4 * SECOND, "{took:?}");
    first.wait_for(1, SOON);

    let revision = registry.get(&name("t")).unwrap().unwrap().revision;
    let moved = Topic { delay: Duration::from_millis(1), ..calling("t", &second) };
    registry.put(&moved, Expected::At(revision)).unwrap();
    let begun = Instant::now();
    let mut client = daemon.client();
    let mut id = 2;
    eventually(SOON, "a job at the second callback", || {
        client.ask(&add("t", &id.to_string(), 0)).unwrap();
        id += 1;
        (second.count() > 0).then_some(())
    });
    println!("callback changed: {:?}", begun.elapsed());

    registry.set_status(&name("t"), TopicStatus::Offline).unwrap();
    println!("offline: {:?}", answers(&daemon, &add("t", "late", 0), Some("topic_offline")));
    registry.set_status(&name("t"), TopicStatus::Online).unwrap();
    answers(&daemon, &add("t", "waits", 4000), None);

    // The jobs of the topic wait, and are delivered when it is registered again.
    registry.delete(&name("t"), Expected::Any).unwrap();
    answers(&daemon, &add("t", "x", 0), Some("unknown_topic"));
    eventually(3 * SOON, "a word on the jobs that wait", || {
        daemon.log().contains("jobs wait until the topic is registered").then_some(())
    });
    let due = Instant::now() + 5 * SECOND;
    eventually(8 * SECOND, "the due time", || (Instant::now() > due).then_some(()));
    assert!(!second.deliveries().contains_key("waits"));
    registry.put(&calling("t", &second), Expected::Absent).unwrap();
    eventually(SOON, "the job that waited", || second.deliveries().contains_key("waits").then_some(()));
    assert_eq!(second.deliveries()["waits"], 1);
}

#[test]
fn a_topic_that_is_deleted_while_its_callback_runs_ends_its_job() {
    let (began, end) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let (begins, ends) = (Arc::clone(&began), Arc::clone(&end));
    let slow = Sink::answering(move |_| {
        begins.store(true, Ordering::Relaxed);
        eventually(9 * SECOND, "the word to end", || ends.load(Ordering::Relaxed).then_some(()));
        cli::HandlerAnswer::new(200, "ok")
    });
    let (daemon, mut registry) = daemon(MariaDb::shared(), "");
    let topic = Topic { timeout: 10 * SECOND, ..calling("t", &slow) };
    registry.put(&topic, Expected::Absent).unwrap();
    answers(&daemon, &add("t", "1", 0), None);
    eventually(SOON, "the callback", || began.load(Ordering::Relaxed).then_some(()));
    registry.delete(&name("t"), Expected::Any).unwrap();
    answers(&daemon, &add("t", "x", 0), Some("unknown_topic"));
    eventually(SOON, "consumers without topics", || {
        (daemon.log().matches(" 0 topics are served").count() == 2).then_some(())
    });
    end.store(true, Ordering::Relaxed);
    let mut client = daemon.client();
    eventually(SOON, "the end of the job", || {
        let answer = client.ask(&json!({"cmd": "get", "topic": "t", "id": "1"})).unwrap();
        (answer["err"] == "not_found").then_some(())
    });
    assert_eq!(slow.deliveries()["1"], 1);
}

#[test]
fn the_configuration_file_wins_which_is_told_once() {
    let (mine, other) = (Sink::start(), Sink::start());
    let (daemon, mut registry) = daemon(MariaDb::shared(), &topic("t", &mine, ""));
    registry.put(&calling("t", &other), Expected::Absent).unwrap();
    registry.put(&calling("plain", &other), Expected::Absent).unwrap();
    answers(&daemon, &add("plain", "1", 0), None);
    answers(&daemon, &add("t", "1", 0), None);
    mine.wait_for(1, SOON);
    other.wait_for(1, SOON);
    registry.put(&Topic { title: "x".into(), ..calling("plain", &other) }, Expected::Any).unwrap();
    let file = Snapshot::file(&daemon.dir.path().join("var/run"));
    eventually(SOON, "the next snapshot", || {
        std::fs::read_to_string(&file).unwrap().contains("\"title\":\"x\"").then_some(())
    });
    let line = "topic t is as the configuration file has it";
    assert_eq!(daemon.log().matches(line).count(), 1, "{}", daemon.log());
    assert_eq!(other.deliveries().len(), 1, "not the file's");
}

#[test]
fn dq_runs_and_starts_without_the_database_and_catches_up_later() {
    let sink = Sink::start();
    let server = MariaDb::start();
    let database = server.database();
    let config = format!("[registry]\nurl = \"{}\"\n", database.url());
    let dir = Arc::new(tempfile::tempdir().unwrap());
    let mut daemon = Daemon::spawn(Arc::clone(&dir), free_port(), &config, &[]);
    daemon.wait_ready();
    let mut registry = open(&database.settings()).unwrap();
    registry.put(&calling("t", &sink), Expected::Absent).unwrap();
    answers(&daemon, &add("t", "1", 0), None);
    drop(registry);

    server.kill();
    eventually(15 * SECOND, "a finding", || {
        let findings = std::fs::read_to_string(dir.path().join("var/run/findings.json")).ok()?;
        findings.contains("registry_away").then_some(())
    });
    answers(&daemon, &add("t", "2", 0), None);
    sink.wait_for(2, SOON);
    for child in ["dq-server", "dq-consume-0", "dq-consume-1", "dq-redis-checke"] {
        daemon.kill_child(child);
    }
    daemon.wait_ready();
    answers(&daemon, &add("t", "3", 0), None);
    sink.wait_for(3, SOON);
    daemon.stop();
    let mut daemon = Daemon::again(&daemon);
    daemon.wait_ready();
    answers(&daemon, &add("t", "4", 0), None);
    sink.wait_for(4, SOON);

    server.start_again();
    let mut registry = open(&database.settings()).unwrap();
    registry.put(&calling("u", &sink), Expected::Absent).unwrap();
    println!("back again: {:?}", answers(&daemon, &add("u", "5", 0), None));
    sink.wait_for(5, SOON);

    // A database that hangs has no effect, too.
    server.hang(true);
    answers(&daemon, &add("u", "6", 0), None);
    sink.wait_for(6, SOON);
    daemon.stop();
    server.hang(false);
}

#[test]
fn nodes_come_from_the_php_table_even_without_the_database() {
    let (sink, server) = (Sink::start(), MariaDb::start());
    let database = server.database();
    let nodes = [TcpServer::start(&[]), TcpServer::start(&[])];
    // The tables are created when the registry is first opened.
    drop(open(&database.settings()).unwrap());
    let mut console = database.console();
    let mut insert = |node: &TcpServer| {
        let row = format!("INSERT INTO dq_redis (t_name, t_content) VALUES ('一', '{}:')", node.address());
        console.query_drop(row).unwrap();
    };
    insert(&nodes[0]);
    let config = format!(
        "[store]\nbackend = \"redis\"\nnodes_from_registry = true\n[registry]\nurl = \"{}\"\n{}",
        database.url(),
        topic("t", &sink, "")
    );
    let dir = Arc::new(tempfile::tempdir().unwrap());
    let mut daemon = Daemon::spawn(Arc::clone(&dir), free_port(), &config, &[]);
    let before = daemon.wait_all_up(SLOTS);
    answers(&daemon, &add("t", "1", 0), None);
    sink.wait_for(1, SOON);
    let is_used = |node: &TcpServer| !node.cli(&["keys", "dq*"]).trim().is_empty();
    assert!(is_used(&nodes[0]) && !is_used(&nodes[1]));

    insert(&nodes[1]);
    daemon.signal(Signal::SIGHUP);
    let before = all_new(&daemon, &before);
    for n in 2..30 {
        answers(&daemon, &add("t", &n.to_string(), 0), None);
    }
    sink.wait_for(29, 2 * SOON);
    assert!(is_used(&nodes[1]), "a node that was added takes its share at HUP");

    server.kill();
    daemon.signal(Signal::SIGUSR2);
    all_new(&daemon, &before);
    daemon.stop();
    let mut daemon = Daemon::again(&daemon);
    daemon.wait_ready();
    answers(&daemon, &add("t", "30", 0), None);
    sink.wait_for(30, 2 * SOON);
    // The master does not read the database, and the process that reads it for the master at the start has ended.
    assert!(!daemon.children().contains_key("dq-nodes"));
    daemon.stop();
}
