//! The durability levels on real servers: how safe a change is before it is answered, and which servers are refused.

use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use serde_json::json;

use crate::support::http::Http;
use crate::support::proxy::Proxy;
use crate::support::redis::{RedisServer, TcpServer};
use crate::support::{Daemon, SECOND, Sink, add, eventually, new_job, outcomes, stats, topic};
use model::job::{Due, JobId, JobKey, OnConflict, State, TopicName};
use model::letters::RedrivePace;
use model::settings::{self, DurabilitySettings, NodeSettings};
use model::topic::{Durability, Topic};
use store::{Changed, DeadLetterSelection, Lanes, LeaseRequest, Outcome, Settled, Settlement, Store};

const LIMIT: Duration = SECOND;

/// Returns the settings of a store that shares nothing with the other stores of this process.
fn on(url: &str, durability: Durability, allow_snapshots: bool) -> settings::StoreSettings {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let prefix = format!("dq{}", NEXT.fetch_add(1, Ordering::Relaxed));
    let safety = DurabilitySettings { durability, timeout: LIMIT, allow_snapshots };
    let nodes = vec![NodeSettings::server("r", url, 2)];
    settings::StoreSettings::Redis(settings::RedisSettings {
        prefix,
        timeout: SECOND,
        pool: 4,
        nodes,
        safety,
        spool: None,
    })
}

fn open(settings: &settings::StoreSettings) -> Box<dyn Store> {
    store::open(settings, Path::new("/nowhere")).unwrap()
}

fn name(topic: &str) -> TopicName {
    TopicName::new(topic).unwrap()
}

fn key(topic: &str, id: &str) -> JobKey {
    JobKey { topic: name(topic), id: JobId::new(id).unwrap() }
}

fn job(topic: &str, id: &str) -> model::job::NewJob {
    new_job(topic, id, "1", Due::In(600 * SECOND))
}

/// Returns a word for the outcome of an add, or the code of its error.
fn added(store: &mut dyn Store, job: model::job::NewJob) -> &'static str {
    match store.add(&[job]).remove(0) {
        Ok(added) => outcomes(&[added])[0],
        Err(e) => e.code(),
    }
}

fn has(store: &mut dyn Store, topic: &str, id: &str) -> bool {
    store.get(&key(topic, id)).unwrap().is_some()
}

/// Returns how often a server was called with `command`: WAIT or WAITAOF.
fn waits(server: &TcpServer, command: &str) -> u64 {
    let output = server.cli(&["info", "commandstats"]);
    let line = output.lines().find_map(|line| line.strip_prefix(&format!("cmdstat_{command}:calls=")));
    line.map_or(0, |line| line.split(',').next().unwrap().parse().unwrap())
}

/// Starts a master, and a replica that follows it.
fn pair() -> (TcpServer, TcpServer) {
    let slow = ["--repl-diskless-sync-delay", "0", "--repl-ping-replica-period", "1"];
    let master = TcpServer::start(&slow);
    let of = master.port.to_string();
    let replica = TcpServer::start(&[&slow[..], &["--replicaof", &master.host, &of]].concat());
    eventually(20 * SECOND, "a replica that follows", || {
        master.info("slave0").filter(|found| found.contains("state=online")).map(drop)
    });
    (master, replica)
}

/// Adds a hundred jobs, deletes two, makes one a dead letter, redrives it, and removes the other jobs. Calls `seen`
/// after each part.
fn play_all(store: &mut dyn Store, mut seen: impl FnMut(&str)) {
    let jobs: Vec<_> = (0..100).map(|n| job("t", &n.to_string())).collect();
    assert!(store.add(&jobs).iter().all(Result::is_ok));
    seen("add");
    assert_eq!(
        store.delete(&[key("t", "1"), key("t", "2")]),
        [Ok(store::Deleted::Done), Ok(store::Deleted::Done)]
    );
    seen("delete");
    assert_eq!(store.run(&key("t", "3")), Ok(Changed::Done));
    seen("run");
    let wanted = LeaseRequest {
        topic: name("t"),
        max: 1,
        hold: 10 * SECOND,
        max_leased: None,
        is_own_ttr: false,
        max_attempts: 10,
    };
    let leased = store.lease(&[wanted], 10, None).unwrap().jobs.remove(0);
    let (key, token) = (leased.key, leased.token);
    let settlement = Settlement { key, token, outcome: Outcome::DeadLetter, attempt: None };
    assert_eq!(store.settle(&[settlement]), [Ok(Settled::Done)]);
    seen("settle");
    let pace = RedrivePace { after: 600 * SECOND, every: Duration::ZERO };
    assert_eq!(store.redrive(&name("t"), &DeadLetterSelection::All, 10, pace), Ok(1));
    seen("redrive");
    assert_eq!(store.purge(&name("t"), State::Delayed, 1000), Ok(98));
    seen("purge");
}

/// Loads all scripts that the tests use into a server. (If the server does not know a script, dq makes the call twice
/// and waits twice. So the test would count too many waits.)
fn teach_scripts(server: &TcpServer) {
    play_all(&mut *open(&on(&server.url(), Durability::Memory, false)), |_| {});
}

#[test]
fn a_batch_shares_a_wait_and_settlements_do_not_wait() {
    let server = TcpServer::start_valkey(&["--appendfsync", "everysec"]);
    teach_scripts(&server);
    let proxy = Proxy::as_redis_8(server.address());
    let mut store = open(&on(&format!("redis://{}", proxy.address), Durability::Fsync, false));
    let (mut found, mut last) = (Vec::new(), waits(&server, "waitaof"));
    play_all(&mut *store, |part| {
        let now = waits(&server, "waitaof");
        found.push((part.to_owned(), now - last));
        last = now;
    });
    // The jobs are on two shards of one server. An operation of several calls waits once, at its end.
    let parts = [("add", 1), ("delete", 1), ("run", 1), ("settle", 0), ("redrive", 1), ("purge", 1)];
    assert_eq!(found, parts.map(|(part, waits)| (part.to_owned(), waits)));
}

#[test]
fn a_disk_that_is_too_slow_leaves_the_outcome_unknown() {
    // The server writes its file, but does not sync it. The operating system decides when the data reaches the disk.
    let server = TcpServer::start_valkey(&["--appendfsync", "no"]);
    let proxy = Proxy::as_redis_8(server.address());
    let mut store = open(&on(&format!("redis://{}", proxy.address), Durability::Fsync, false));
    let begun = Instant::now();
    let error = store.add(&[job("t", "a")]).remove(0).unwrap_err();
    assert!(begun.elapsed() >= LIMIT && begun.elapsed() < LIMIT + 3 * SECOND, "{:?}", begun.elapsed());
    assert_eq!(error.code(), "unknown");
    let message = error.to_string();
    assert!(message.contains("stored on the master, but not yet as safe as asked (fsync)"), "{message}");
    assert!(has(&mut *store, "t", "a"), "nothing is undone");
    server.cli(&["config", "set", "appendfsync", "everysec"]);
    let again = || model::job::NewJob { on_conflict: OnConflict::Keep, ..job("t", "a") };
    eventually(10 * SECOND, "a disk", || (added(&mut *store, again()) == "kept").then_some(()));
}

#[test]
fn a_redis_before_8_gives_fsync_only_if_it_always_syncs() {
    gives_fsync_if_it_always_syncs(&TcpServer::start(&["--appendfsync", "everysec"]), "it is Redis 7.0");
}

/// The WAITAOF of Valkey answers before the change is on the disk.
#[test]
fn a_valkey_gives_fsync_only_if_it_always_syncs() {
    gives_fsync_if_it_always_syncs(&TcpServer::start_valkey(&["--appendfsync", "everysec"]), "it is valkey");
}

fn gives_fsync_if_it_always_syncs(server: &TcpServer, is: &str) {
    let mut store = open(&on(&server.url(), Durability::Fsync, false));
    let error = store.add(&[job("t", "a")]).remove(0).unwrap_err();
    assert_eq!(error.code(), "not_durable");
    let message = error.to_string();
    assert!(
        message.contains("node r: \"fsync\" cannot be had there")
            && message.contains(is)
            && message.contains("appendfsync always"),
        "{message}"
    );
    assert!(!has(&mut *store, "t", "a"), "nothing was written");
    assert_eq!(store.delete(&[key("t", "a")]).remove(0).unwrap_err().code(), "not_durable");
    server.cli(&["config", "set", "appendfsync", "always"]);
    eventually(10 * SECOND, "adds", || (added(&mut *store, job("t", "a")) == "new").then_some(()));
    assert_eq!(waits(server, "wait") + waits(server, "waitaof"), 0, "its answer says enough");
}

#[test]
fn what_is_answered_at_replicas_is_there() {
    let (master, replica) = pair();
    teach_scripts(&master);
    let mut store = open(&on(&master.url(), Durability::Replicas(1), false));
    let before = waits(&master, "wait");
    let jobs: Vec<_> = (0..100).map(|n| job("t", &n.to_string())).collect();
    assert!(store.add(&jobs).iter().all(Result::is_ok));
    assert_eq!(waits(&master, "wait") - before, 1);
    let keys = replica.cli(&["keys", "*b:t"]);
    // The calls that loaded the scripts have left no jobs.
    let there: usize =
        keys.lines().map(|key| replica.cli(&["hlen", key]).trim().parse::<usize>().unwrap()).sum();
    assert_eq!(there, 100);
    // Now the replica still follows, but it hangs.
    replica.hang(true);
    let error = store.add(&[job("t", "late")]).remove(0).unwrap_err();
    assert_eq!(error.code(), "unknown");
    let message = error.to_string();
    assert!(message.contains("as safe as asked (replicas:1): 0 of 1 replicas had it"), "{message}");
    assert!(has(&mut *store, "t", "late"), "nothing is undone");
    assert_eq!(store.delete(&[key("t", "1")]).remove(0).unwrap_err().code(), "unknown");
    assert!(!has(&mut *store, "t", "1"));
    assert_eq!(store.run(&key("t", "2")).unwrap_err().code(), "unknown");
    assert_eq!(store.purge(&name("t"), State::Ready, 10).unwrap_err().code(), "unknown");
    // Even an add that changes nothing must wait, because its success says that the existing job is safe.
    let keep = model::job::NewJob { on_conflict: OnConflict::Keep, ..job("t", "late") };
    assert_eq!(added(&mut *store, keep.clone()), "unknown");
    replica.hang(false);
    eventually(10 * SECOND, "a replica", || (added(&mut *store, keep.clone()) == "kept").then_some(()));
    // The replica no longer follows.
    replica.kill();
    eventually(20 * SECOND, "a lost replica", || (master.info("connected_slaves")? == "0").then_some(()));
    eventually(10 * SECOND, "a refusal", || {
        (added(&mut *store, job("t", "none")) == "not_durable").then_some(())
    });
    let error = store.add(&[job("t", "never")]).remove(0).unwrap_err().to_string();
    assert!(error.contains("0 replicas follow it, of 1 that are asked for"), "{error}");
    assert!(!has(&mut *store, "t", "never"), "nothing was written");
}

#[test]
fn scripts_that_a_server_forgot_are_waited_for_too() {
    let (master, replica) = pair();
    let mut store = open(&on(&master.url(), Durability::Replicas(1), false));
    eventually(10 * SECOND, "an add", || (added(&mut *store, job("t", "a")) == "new").then_some(()));
    replica.hang(true);
    master.cli(&["script", "flush"]);
    assert_eq!(added(&mut *store, job("t", "b")), "unknown");
    replica.hang(false);
    assert!(has(&mut *store, "t", "b"));
}

#[test]
fn a_topic_may_ask_for_another_level_than_the_store() {
    let (master, replica) = pair();
    let settings = on(&master.url(), Durability::Replicas(1), false);
    let mut store = open(&settings);
    let asks = |topic: &str, level| Topic { durability: Some(level), ..Topic::new(name(topic), "http://h/") };
    let topics = [asks("fast", Durability::Memory), asks("two", Durability::Replicas(2))];
    Lanes::new(&settings).unwrap().set_topics(&topics.into_iter().collect());
    replica.hang(true);
    let batch = ["slow", "fast", "two", "fast"].iter().enumerate();
    let batch: Vec<_> = batch.map(|(n, topic)| job(topic, &n.to_string())).collect();
    let found =
        store.add(&batch).into_iter().map(|one| one.map(|one| outcomes(&[one])[0]).map_err(|e| e.code()));
    assert_eq!(found.collect::<Vec<_>>(), [Err("unknown"), Ok("new"), Err("not_durable"), Ok("new")]);
    assert!(has(&mut *store, "slow", "0") && has(&mut *store, "fast", "3") && !has(&mut *store, "two", "2"));
    replica.hang(false);
}

#[test]
fn a_server_that_keeps_snapshots_only_is_refused_unless_it_may() {
    let server = TcpServer::start(&["--appendonly", "no", "--save", "3600 1"]);
    let refused = store::open(&on(&server.url(), Durability::Memory, false), Path::new("/nowhere"));
    let error = refused.err().unwrap();
    assert_eq!(error.code(), "nodes_unfit");
    let message = error.to_string();
    assert!(message.contains("node r") && message.contains("appendonly yes"), "{message}");
    assert!(message.contains("store.allow_snapshots = true"), "{message}");
    let mut store = open(&on(&server.url(), Durability::Memory, true));
    assert_eq!(added(&mut *store, job("t", "a")), "new");
    // At the level `fsync`, the server is refused even if snapshots are allowed: it cannot say that a change is on the
    // disk.
    let mut store = open(&on(&server.url(), Durability::Fsync, true));
    assert_eq!(added(&mut *store, job("t", "a")), "not_durable");
}

#[test]
fn a_server_that_comes_back_without_its_file_is_refused() {
    let server = TcpServer::start(&[]);
    let mut store = open(&on(&server.url(), Durability::Memory, false));
    assert_eq!(added(&mut *store, job("t", "a")), "new");
    server.kill();
    server.start_again_with(&["--appendonly", "no"]);
    eventually(20 * SECOND, "a refusal", || {
        (added(&mut *store, job("t", "b")) == "nodes_unfit").then_some(())
    });
    server.cli(&["config", "set", "appendonly", "yes"]);
    eventually(20 * SECOND, "an add", || (added(&mut *store, job("t", "c")) == "new").then_some(()));
}

#[test]
fn a_server_that_may_not_be_asked_is_used_but_not_for_fsync() {
    let server = TcpServer::start(&["--appendfsync", "always"]);
    let user = |name: &str, rules: &[&str]| {
        server.cli(&[&["acl", "setuser", name, "on", ">secret", "~*", "&*", "+@all"][..], rules].concat());
        format!("redis://{name}:secret@{}", server.address())
    };
    let silent = user("silent", &["-info", "-config"]);
    let mut store = open(&on(&silent, Durability::Memory, false));
    assert_eq!(added(&mut *store, job("t", "a")), "new");
    let mut store = open(&on(&silent, Durability::Fsync, false));
    assert_eq!(added(&mut *store, job("t", "a")), "not_durable");
    let mut store = open(&on(&user("brief", &["-info"]), Durability::Fsync, false));
    assert_eq!(added(&mut *store, job("t", "a")), "new");
}

#[test]
fn a_daemon_answers_unknown_and_its_pages_tell_the_level() {
    let (master, replica) = pair();
    let sink = Sink::start();
    let nodes = format!("[[store.node]]\nname = \"r\"\nurl = \"{}\"\n", master.url());
    let store = format!(
        "[store]\nbackend = \"redis\"\ndurability = \"replicas:1\"\ndurability_timeout = \"1s\"\n{nodes}"
    );
    let topics = topic("t", &sink, "") + &topic("fast", &sink, "durability = \"memory\"");
    let daemon = Daemon::start(&format!("{store}{topics}"));
    let mut client = daemon.client();
    assert_eq!(client.ask(&add("t", "a", 600_000)).unwrap()["code"], 1);
    let mut http = Http::tcp(&daemon);
    let page = http.get("/v1/nodes").is(200);
    let node = &page["nodes"][0];
    assert_eq!((&node["durability"], &node["replicas"]), (&json!("memory"), &json!(1)), "{node}");
    assert_eq!(http.get("/v1/topics/fast").is(200)["durability"], "memory");
    assert_eq!(http.get("/v1/topics/t").is(200)["durability"], json!(null));
    replica.hang(true);
    let answer = client.ask(&add("t", "late", 600_000)).unwrap();
    assert_eq!((&answer["code"], &answer["err"]), (&json!(0), &json!("unknown")), "{answer}");
    assert!(answer["msg"].as_str().unwrap().contains("stored on the master"), "{answer}");
    assert_eq!(client.ask(&add("fast", "a", 600_000)).unwrap()["code"], 1);
    let body = json!({"id": "http", "body": 1, "delay": "10m"});
    http.ask("POST", "/v1/topics/t/jobs", &body).is_problem(503, "unknown", None);
    assert_eq!(stats(&mut client, "t")["delayed"], 3, "nothing is undone");
    replica.hang(false);
}

#[test]
fn a_server_without_a_file_makes_dq_not_ready_which_says_why() {
    let (server, sink) = (TcpServer::start(&[]), Sink::start());
    let node =
        format!("[store]\nbackend = \"redis\"\n[[store.node]]\nname = \"r\"\nurl = \"{}\"\n", server.url());
    let daemon = Daemon::start(&(node + &topic("t", &sink, "")));
    let mut http = Http::tcp(&daemon);
    http.get("/readyz").is(200);
    server.kill();
    server.start_again_with(&["--appendonly", "no"]);
    let tells =
        |text: &serde_json::Value| text.as_str().is_some_and(|text| text.contains("Set appendonly yes"));
    eventually(20 * SECOND, "that dq is not ready", || {
        let answer = http.get("/readyz");
        let parts = &answer.json["parts"];
        (answer.status == 503 && tells(&parts["store"]) && tells(&parts["node r"])).then_some(())
    });
    let page = http.get("/v1/nodes").is(200);
    let node = &page["nodes"][0];
    assert!(node["answers"] == false && tells(&node["detail"]), "{node}");
    server.cli(&["config", "set", "appendonly", "yes"]);
    eventually(20 * SECOND, "that dq is ready", || (http.get("/readyz").status == 200).then_some(()));
}

#[test]
fn a_level_that_a_node_cannot_give_is_told_before_a_job_is() {
    let server = RedisServer::start();
    server.cli(&["config", "set", "appendfsync", "everysec"]);
    let sink = Sink::start();
    let nodes = format!("[[store.node]]\nname = \"r\"\nurl = \"{}\"\n", server.url());
    let store = format!("[store]\nbackend = \"redis\"\n{nodes}");
    let topics = topic("t", &sink, "durability = \"fsync\"");
    let daemon = Daemon::start(&format!("{store}{topics}"));
    let mut client = daemon.client();
    let answer = client.ask(&add("t", "a", 600_000)).unwrap();
    assert_eq!(answer["err"], "not_durable", "{answer}");
    let mut http = Http::tcp(&daemon);
    let found = eventually(30 * SECOND, "an alert", || {
        let alerts = http.get("/v1/alerts").is(200);
        alerts["alerts"].as_array().unwrap().iter().find(|alert| alert["name"] == "node_not_durable").cloned()
    });
    assert!(found["detail"].as_str().unwrap().contains("\"fsync\" cannot be had"), "{found}");
    let config = daemon.dir.path().join("dq.toml");
    let dq = |arguments: &[&str]| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_dq"));
        let out = command.args(arguments).arg("--config").arg(&config).output().unwrap();
        String::from_utf8(out.stdout).unwrap()
    };
    let doctor = dq(&["doctor"]);
    let line = doctor.lines().find(|line| line.contains("durability \"fsync\" cannot be had there"));
    assert!(line.is_some_and(|line| line.starts_with("FAIL")), "{doctor}");
    let list = dq(&["nodes", "list"]);
    let words: Vec<&str> = list.lines().nth(1).unwrap().split_whitespace().collect();
    assert_eq!(words[..4], ["r", "up", "memory", "0"], "{list}");
    server.cli(&["config", "set", "appendfsync", "always"]);
    eventually(10 * SECOND, "an add", || {
        (client.ask(&add("t", "a", 600_000)).unwrap()["code"] == 1).then_some(())
    });
    let list = dq(&["nodes", "list"]);
    assert!(list.lines().nth(1).unwrap().contains("fsync"), "{list}");
}

#[test]
fn the_embedded_store_has_one_level() {
    let daemon = Daemon::start("");
    let mut http = Http::tcp(&daemon);
    let page = http.get("/v1/nodes").is(200);
    if !crate::support::on_redis() {
        assert_eq!(page["nodes"][0]["durability"], "fsync");
        let given = |level: &str| json!({"callback": "http://127.0.0.1:9/", "durability": level});
        for level in ["memory", "replicas:1"] {
            let refused = http.ask("PUT", "/v1/topics/t", &given(level));
            refused.is_problem(422, "bad_field", Some("durability"));
        }
        assert_eq!(http.ask("PUT", "/v1/topics/t", &given("fsync")).is(201)["durability"], "fsync");
        http.ask("PATCH", "/v1/topics/t", &json!({"durability": "memory"})).is_problem(
            422,
            "bad_field",
            Some("durability"),
        );
    }
}
