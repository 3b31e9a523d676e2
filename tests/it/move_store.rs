//! `dq move`: after a move, the new store has everything that the old store had, unchanged. This also holds if a move
//! was killed and run again.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use crate::console::{first_password, sign_in};
use crate::support::http::Http;
use crate::support::redis::RedisServer;
use crate::support::{Daemon, SECOND, Sink, eventually, free_port, now_ms, pending};
use model::follow::Then;
use model::headers::Headers;
use model::job::{Attempt, Body, Due, JobId, JobKey, NewJob, State, TopicName};
use model::job_priority::JobPriority;
use model::record::{JobRecord, RecordKeeping};
use model::settings::{NodeSettings, RedisSettings, RegistrySettings, StoreSettings};
use model::tags::Tags;
use model::topic::Topic;
use registry::Expected;
use serde_json::json;
use store::{LeaseRequest, LeasedJob, Outcome, Settlement, Store, StoredJob};

/// A folder with several stores, each with its own configuration.
struct Stage {
    dir: tempfile::TempDir,
    nodes: Vec<RedisServer>,
}

impl Stage {
    fn new(nodes: usize) -> Stage {
        let stage = Stage {
            dir: tempfile::tempdir().unwrap(),
            nodes: (0..nodes).map(|_| RedisServer::start()).collect(),
        };
        stage.write("redis", &stage.redis_section());
        for name in ["old", "new"] {
            stage.write(name, &format!("[store]\npath = \"{}\"\n", stage.file(name).display()));
        }
        stage
    }

    fn write(&self, name: &str, section: &str) {
        let run_dir = self.dir.path().join("run");
        let text = format!("run_dir = \"{}\"\n{section}", run_dir.display());
        std::fs::write(self.config(name), text).unwrap();
    }

    fn redis_section(&self) -> String {
        let node = |(n, server): (usize, &RedisServer)| {
            format!("[[store.node]]\nname = \"r{n}\"\nurl = \"{}\"\n", server.url())
        };
        let nodes: String = self.nodes.iter().enumerate().map(node).collect();
        format!("[store]\nbackend = \"redis\"\n{nodes}")
    }

    fn config(&self, name: &str) -> PathBuf {
        self.dir.path().join(format!("{name}.toml"))
    }

    fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join(format!("{name}.db"))
    }

    fn settings(&self, name: &str) -> StoreSettings {
        if name != "redis" {
            return StoreSettings::Embedded { path: self.file(name), min_free: 0 };
        }
        let node =
            |(n, server): (usize, &RedisServer)| NodeSettings::server(format!("r{n}"), server.url(), 2);
        let nodes = self.nodes.iter().enumerate().map(node).collect();
        StoreSettings::Redis(RedisSettings::of_nodes("dq", 5 * SECOND, 2, nodes))
    }

    fn open(&self, name: &str) -> store::Result<Box<dyn Store>> {
        store::open(&self.settings(name), self.dir.path())
    }

    fn command(&self, from: &str, to: &str, more: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_dq"));
        command.arg("move").arg("--from").arg(self.config(from)).arg("--to").arg(self.config(to)).args(more);
        command
    }

    fn move_jobs(&self, from: &str, to: &str, more: &[&str]) -> Output {
        self.command(from, to, more).output().unwrap()
    }
}

fn words(out: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr))
}

/// The contents of a store, in an order that does not depend on the store.
#[derive(Debug, Default, PartialEq)]
struct Dump {
    jobs: BTreeMap<String, StoredJob>,
    records: BTreeMap<String, Vec<JobRecord>>,
    paused: Vec<TopicName>,
}

fn dump(store: &mut dyn Store) -> Dump {
    let mut dump = Dump { paused: store.paused().unwrap(), ..Dump::default() };
    for counts in store.counts().unwrap() {
        for state in [State::Delayed, State::Ready, State::Leased, State::Dead] {
            let mut cursor: Option<String> = None;
            loop {
                let page = store.list(&counts.topic, state, cursor.as_deref(), 100).unwrap();
                for job in page.jobs {
                    let died = if state == State::Dead { job.until_ms } else { None };
                    let name = format!("{} {died:?}", job.key);
                    assert!(dump.jobs.insert(name, job).is_none(), "once");
                }
                cursor = page.next;
                if cursor.is_none() {
                    break;
                }
            }
        }
        let page = store.list_records(&counts.topic, None, 10_000).unwrap();
        for record in page.records {
            let key = record.key;
            dump.records.insert(key.to_string(), store.records(&key).unwrap());
        }
    }
    dump
}

fn key(topic: &str, id: &str) -> JobKey {
    JobKey { topic: TopicName::new(topic).unwrap(), id: JobId::new(id).unwrap() }
}

fn lease(store: &mut dyn Store, topic: &str, max: u32, hold: Duration) -> Vec<LeasedJob> {
    let wanted = LeaseRequest {
        topic: TopicName::new(topic).unwrap(),
        max,
        hold,
        max_attempts: 9,
        max_leased: None,
        is_own_ttr: false,
    };
    store.lease(&[wanted], max as usize, None).unwrap().jobs
}

fn settle(store: &mut dyn Store, job: &LeasedJob, outcome: Outcome) {
    let attempt = Attempt {
        number: job.attempt,
        at_ms: job.leased_ms,
        took_ms: 12,
        status: Some(500),
        answer: "no\nway".to_owned(),
        error: "HTTP 500 \"quoted\" \u{1F642}".to_owned(),
        late: None,
    };
    let (key, token) = (job.key.clone(), job.token.clone());
    store.settle(&[Settlement { key, token, outcome, attempt: Some(attempt) }]).remove(0).unwrap();
}

/// Fills a store with jobs in all states. The jobs have everything that a job may have.
fn fill(store: &mut dyn Store) {
    let with_body = RecordKeeping { with_body: true, ..RecordKeeping::DEFAULT };
    let keeping = [(TopicName::new("b").unwrap(), with_body)];
    store.keep_records(&keeping, 512 << 20).unwrap();
    let headers = |n: usize| {
        let own = Headers::new([("x-trace".to_owned(), format!("a \"{n}\""))]).unwrap();
        own.with_tags(Tags::new(["customer=7"]).unwrap()).with_ttr(Some(Duration::from_secs(n as u64 + 1)))
    };
    for topic in ["a", "b"] {
        let mut jobs = Vec::new();
        for n in 0..1_200 {
            let due =
                if n % 3 == 0 { Due::In(Duration::ZERO) } else { Due::At(now_ms() + 3_600_000 + n as i64) };
            let body = Body::trusted(format!("{{\"n\":{n},\"text\":\"ü\"}}"));
            let mut job = NewJob::new(key(topic, &format!("job {n}")), body, due);
            job.priority = [
                JobPriority::default(),
                JobPriority::from_number(0),
                JobPriority::from_number(4_000_000_000),
            ][n % 3];
            job.max_attempts = (n % 5 == 0).then_some(7);
            job.attempts = u32::from(n % 7 == 0);
            if n % 4 == 0 {
                job.headers = headers(n);
            }
            jobs.push(job);
        }
        let mut big = NewJob::new(
            key(topic, "big"),
            Body::trusted("x".repeat(200_000)),
            Due::In(Duration::from_secs(3600)),
        );
        big.priority = JobPriority::from_number(5);
        jobs.push(big);
        for some in jobs.chunks(100) {
            store.add(some).into_iter().for_each(|added| assert!(added.is_ok()));
        }
        // Some jobs are delivered, some fail once, and some become dead letters, a few of them several times.
        for (n, job) in lease(store, topic, 90, Duration::from_secs(60)).iter().enumerate() {
            match n % 3 {
                0 => settle(store, job, Outcome::Ack),
                1 => settle(store, job, Outcome::Retry(Due::In(Duration::from_secs(7_200)))),
                _ => settle(store, job, Outcome::DeadLetter),
            }
        }
        for again in 0..12 {
            let one =
                NewJob::new(key(topic, "often"), Body::trusted(again.to_string()), Due::In(Duration::ZERO));
            store.add(&[NewJob { priority: JobPriority::from_number(0), ..one }]).remove(0).unwrap();
            let leased = lease(store, topic, 400, Duration::from_secs(60));
            for job in &leased {
                match job.key.id.as_str() {
                    "often" => settle(store, job, Outcome::DeadLetter),
                    _ => settle(store, job, Outcome::HandBack),
                }
            }
            store
                .add(&[NewJob::new(
                    key(topic, "often"),
                    Body::trusted("live"),
                    Due::In(Duration::from_secs(3600)),
                )])
                .remove(0)
                .unwrap();
            store.delete(&[key(topic, "often")]).remove(0).unwrap();
        }
    }
    store.pause(&TopicName::new("b").unwrap(), true).unwrap();
}

/// Returns the dump that is expected after a move: Redis keeps only the last ten records of an id.
fn moved(dump: Dump) -> Dump {
    let last = |(id, mut records): (String, Vec<JobRecord>)| {
        records.truncate(10);
        (id, records)
    };
    Dump { records: dump.records.into_iter().map(last).collect(), ..dump }
}

fn compare(new: &Dump, old: &Dump) {
    for (id, job) in &old.jobs {
        assert_eq!(new.jobs.get(id), Some(job), "{id}");
    }
    assert_eq!(new.jobs.len(), old.jobs.len());
    for (id, records) in &old.records {
        assert_eq!(new.records.get(id), Some(records), "{id}");
    }
    assert_eq!(new.records.len(), old.records.len());
    assert_eq!(new.paused, old.paused);
}

/// Registers the topic `a` in the registry of the embedded stores.
fn register(stage: &Stage, callback: &str) {
    let path = stage.dir.path().join("registry.db");
    let mut registry = registry::open(&RegistrySettings::Sqlite { path }).unwrap();
    registry.put(&Topic::new(TopicName::new("a").unwrap(), callback), Expected::Any).unwrap();
}

#[test]
fn all_jobs_move_to_redis_and_back_as_they_were() {
    let stage = Stage::new(2);
    register(&stage, "http://127.0.0.1:9/");
    let mut old = stage.open("old").unwrap();
    fill(old.as_mut());
    let before = moved(dump(old.as_mut()));
    drop(old);
    assert!(before.jobs.len() > 2_300 && before.records.len() > 30 && before.paused.len() == 1);
    let dry = words(&stage.move_jobs("old", "redis", &["--dry-run"]));
    assert!(dry.contains("would be moved to redis under dq"), "{dry}");
    compare(&moved(dump(stage.open("old").unwrap().as_mut())), &before);
    let done = words(&stage.move_jobs("old", "redis", &[]));
    assert!(done.contains("moved to redis under dq") && done.contains("start dq with"), "{done}");
    compare(&dump(stage.open("redis").unwrap().as_mut()), &before);
    let refused = stage.open("old").err().expect("its jobs were moved").to_string();
    assert!(refused.contains("its jobs were moved to redis under dq"), "{refused}");
    let again = words(&stage.move_jobs("old", "redis", &[]));
    assert!(again.contains("were moved to") && again.contains("before"), "{again}");
    let again = words(&stage.move_jobs("old", "redis", &["--json"]));
    assert!(again.contains("moved_before") && !again.contains("were moved"), "{again}");
    assert!(done.contains("copied to the registry store:dq: 1 topic, 0 tokens and 0 accounts"), "{done}");
    register(&stage, "http://127.0.0.1:8/");
    let refused = words(&stage.move_jobs("redis", "new", &[]));
    assert!(refused.contains("have different settings of: topic a. With --replace-registry"), "{refused}");
    let back = words(&stage.move_jobs("redis", "new", &["--replace-registry"]));
    assert!(back.contains("moved to embedded in") && back.contains("1 topic, 0 tokens"), "{back}");
    let mut new = stage.open("new").unwrap();
    compare(&moved(dump(new.as_mut())), &before);
    assert!(stage.open("redis").is_err());
    // The new store can be used.
    let delivered = lease(new.as_mut(), "a", 3, SECOND);
    assert_eq!(delivered.len(), 3);
    delivered.iter().for_each(|job| settle(new.as_mut(), job, Outcome::Ack));
    let page = new.list_records(&TopicName::new("a").unwrap(), None, 3).unwrap();
    assert!(page.records.iter().all(|record| delivered.iter().any(|job| job.key == record.key)), "{page:?}");
}

#[test]
fn a_move_that_is_killed_goes_on() {
    for (from, to) in [("old", "redis"), ("redis", "new")] {
        let stage = Stage::new(1);
        let mut source = stage.open(from).unwrap();
        fill(source.as_mut());
        let before = moved(dump(source.as_mut()));
        drop(source);
        let mut broken = 0;
        for kill in 0..12 {
            let mut run =
                stage.command(from, to, &[]).stderr(Stdio::null()).stdout(Stdio::null()).spawn().unwrap();
            std::thread::sleep(Duration::from_millis(15 + 20 * kill));
            run.kill().unwrap();
            run.wait().unwrap();
            // After a kill, no daemon may open a store that has only a part of the jobs.
            if let Err(e) = stage.open(from) {
                let is_over = e.to_string().contains("were moved");
                assert!(is_over || e.to_string().contains("being moved"), "{e}");
                broken += i32::from(!is_over);
                assert!(
                    is_over
                        || stage.open(to).is_err()
                        || stage.file(to).metadata().is_ok_and(|m| m.len() == 0)
                        || is_empty(&stage, to)
                );
            }
        }
        println!("{from}: {broken} times broken off in the middle");
        let done = words(&stage.move_jobs(from, to, &[]));
        assert!(done.contains("moved to"), "{done}");
        compare(&moved(dump(stage.open(to).unwrap().as_mut())), &before);
    }
}

/// Returns whether a store is empty. The store must not be marked as moved.
fn is_empty(stage: &Stage, name: &str) -> bool {
    stage.open(name).unwrap().counts().unwrap().is_empty()
}

#[test]
fn a_move_that_is_given_up_leaves_the_old_store() {
    let stage = Stage::new(1);
    let mut old = stage.open("old").unwrap();
    fill(old.as_mut());
    drop(old);
    let nothing = words(&stage.move_jobs("old", "redis", &["--give-up"]));
    assert!(nothing.contains("no move of the store"), "{nothing}");
    let mut run = stage.command("old", "redis", &[]).stderr(Stdio::null()).spawn().unwrap();
    eventually(10 * SECOND, "jobs on Redis", || {
        (!stage.nodes[0].cli(&["KEYS", "*b:a"]).trim().is_empty()).then_some(())
    });
    run.kill().unwrap();
    run.wait().unwrap();
    let given_up = words(&stage.move_jobs("old", "redis", &["--give-up"]));
    assert!(given_up.contains("the move is given up"), "{given_up}");
    assert!(stage.open("old").unwrap().counts().unwrap().len() == 2);
    let refused = stage.open("redis").err().expect("it has a part of the jobs").to_string();
    assert!(refused.contains("empty it"), "{refused}");
    let again = stage.move_jobs("old", "redis", &[]);
    assert!(!again.status.success() && words(&again).contains("empty it"), "{}", words(&again));
    stage.nodes[0].cli(&["FLUSHALL"]);
    let done = words(&stage.move_jobs("old", "redis", &[]));
    assert!(done.contains("moved to"), "{done}");
}

#[test]
fn a_move_is_given_up_although_the_new_store_is_gone() {
    let mut stage = Stage::new(1);
    let mut old = stage.open("old").unwrap();
    fill(old.as_mut());
    drop(old);
    let mut run = stage.command("old", "redis", &[]).stderr(Stdio::null()).spawn().unwrap();
    eventually(10 * SECOND, "jobs on Redis", || {
        (!stage.nodes[0].cli(&["KEYS", "*b:a"]).trim().is_empty()).then_some(())
    });
    run.kill().unwrap();
    run.wait().unwrap();
    assert!(stage.open("old").is_err());
    stage.nodes.clear();
    let given_up = words(&stage.move_jobs("old", "redis", &["--give-up"]));
    assert!(given_up.contains("the move is given up") && given_up.contains("may have some"), "{given_up}");
    assert_eq!(stage.open("old").unwrap().counts().unwrap().len(), 2);
}

#[test]
fn a_move_is_refused_while_followers_wait_in_the_outbox() {
    let stage = Stage::new(0);
    let mut old = stage.open("old").unwrap();
    let headers = Headers::default().with_then(Then::parse(r#"{"topic": "b", "body": 1}"#).unwrap());
    let job = NewJob { headers, ..NewJob::new(key("a", "1"), Body::trusted("1"), Due::In(Duration::ZERO)) };
    old.add(&[job]).remove(0).unwrap();
    let leased = lease(old.as_mut(), "a", 1, SECOND);
    settle(old.as_mut(), &leased[0], Outcome::Ack);
    drop(old);
    let dry = words(&stage.move_jobs("old", "new", &["--dry-run"]));
    assert!(dry.contains("would be refused now") && dry.contains("would be moved to"), "{dry}");
    let refused = words(&stage.move_jobs("old", "new", &[]));
    assert!(refused.contains("still has 1 entries") && refused.contains("stop it with TERM"), "{refused}");
    assert!(stage.open("old").is_ok() && stage.open("new").is_ok(), "nothing was marked");
}

#[test]
fn jobs_move_to_another_file_after_a_daemon_has_run() {
    let stage = Stage::new(0);
    let mut old = stage.open("old").unwrap();
    fill(old.as_mut());
    let before = dump(old.as_mut());
    drop(old);
    // A daemon leaves its file when it ends.
    let run_dir = stage.dir.path().join("run");
    std::fs::create_dir_all(&run_dir).unwrap();
    std::fs::write(run_dir.join("dq-master.pid"), "").unwrap();
    let done = words(&stage.move_jobs("old", "new", &[]));
    assert!(done.contains("moved to"), "{done}");
    compare(&dump(stage.open("new").unwrap().as_mut()), &before);
    assert!(stage.open("old").is_err(), "its jobs were moved");
}

#[test]
fn a_leased_job_waits_for_the_end_of_its_lease() {
    let stage = Stage::new(1);
    let mut old = stage.open("old").unwrap();
    let job = NewJob::new(key("a", "1"), Body::trusted("1"), Due::In(Duration::ZERO));
    old.add(&[job]).remove(0).unwrap();
    let leased = lease(old.as_mut(), "a", 1, Duration::from_secs(600)).remove(0);
    drop(old);
    for (from, to) in [("old", "redis"), ("redis", "new")] {
        assert!(stage.move_jobs(from, to, &[]).status.success());
        let view = stage.open(to).unwrap().get(&key("a", "1")).unwrap().unwrap();
        assert_eq!((view.state, view.due_ms, view.attempts), (State::Delayed, leased.deadline_ms, 0));
    }
}

#[test]
fn a_move_is_refused_where_it_could_mix_or_lose_jobs() {
    let stage = Stage::new(1);
    let refused = |from: &str, to: &str| {
        let out = stage.move_jobs(from, to, &[]);
        assert!(!out.status.success());
        words(&out)
    };
    assert!(refused("old", "redis").contains("there is no store at"), "{}", refused("old", "redis"));
    for (name, id) in [("old", "1"), ("redis", "2")] {
        let job = NewJob::new(key("a", id), Body::trusted("1"), Due::In(Duration::from_secs(600)));
        stage.open(name).unwrap().add(&[job]).remove(0).unwrap();
    }
    let words = refused("old", "redis");
    assert!(words.contains("is not empty: topic a has 1 jobs"), "{words}");
    assert!(refused("old", "old").contains("both configurations name the same store"));
    let lock = host::RunDirLock::take(&stage.dir.path().join("run"), Duration::ZERO).unwrap();
    assert!(refused("old", "new").contains("stop the daemon"));
    drop(lock);
    // If the master of a daemon was killed, a child may still write.
    let child = rusqlite::Connection::open(stage.file("old")).unwrap();
    child.query_row("SELECT count(*) FROM job", [], |_| Ok(())).unwrap();
    assert!(refused("old", "new").contains("another process uses"), "{}", refused("old", "new"));
    drop(child);
    assert!(stage.open("old").is_ok() && stage.open("redis").is_ok(), "nothing was marked");
}

#[test]
fn a_topic_of_the_registry_is_not_left_behind() {
    let stage = Stage::new(1);
    let job = NewJob::new(key("a", "1"), Body::trusted("1"), Due::In(Duration::from_secs(600)));
    stage.open("old").unwrap().add(&[job]).remove(0).unwrap();
    register(&stage, "http://127.0.0.1:9/");
    let none = format!("{}[registry]\nurl = \"none\"\n", stage.redis_section());
    stage.write("redis", &none);
    let refused = stage.move_jobs("old", "redis", &[]);
    assert!(!refused.status.success());
    assert!(words(&refused).contains("topic a is in the registry"), "{}", words(&refused));
    assert!(words(&refused).contains("leave registry.url out"), "{}", words(&refused));
    assert!(stage.open("old").is_ok() && stage.open("redis").is_ok(), "nothing was marked");
    // If the topic is in the configuration file, nothing is lost, so the move is done.
    stage.write("redis", &format!("{none}[[topic]]\nname = \"a\"\ncallback = \"http://127.0.0.1:9/\"\n"));
    let done = stage.move_jobs("old", "redis", &[]);
    assert!(done.status.success(), "{}", words(&done));
}

#[test]
fn a_daemon_goes_on_with_the_jobs_and_topics_in_the_new_store() {
    let (sink, server) = (Sink::start(), RedisServer::start());
    let mut daemon = Daemon::start("[store]\nbackend = \"embedded\"\n");
    let mut http = Http::unix(&daemon);
    http.ask("POST", "/v1/topics", &json!({"name": "t", "callback": sink.url(), "payload": "json"})).is(201);
    let token = json!({"name": "shop", "scopes": ["produce:t"]});
    let token = http.ask("POST", "/v1/tokens", &token).is(201)["token"].as_str().unwrap().to_owned();
    let password = first_password(&daemon);
    for (id, delay_ms) in [("soon", 4_000), ("later", 3_600_000)] {
        let job = json!({"cmd": "add", "topic": "t", "id": id, "body": id, "delay_ms": delay_ms});
        assert_eq!(daemon.client().ask(&job).unwrap()["code"], 1);
    }
    daemon.stop();
    let config = |name: &str| daemon.dir.path().join(name);
    let text = std::fs::read_to_string(config("dq.toml")).unwrap();
    let section = format!("backend = \"redis\"\n[[store.node]]\nname = \"r0\"\nurl = \"{}\"\n", server.url());
    std::fs::write(config("redis.toml"), text.replace("backend = \"embedded\"\n", &section)).unwrap();
    let mut run = Command::new(env!("CARGO_BIN_EXE_dq"));
    run.current_dir(Path::new(daemon.dir.path()));
    let out = run.args(["move", "--from", "dq.toml", "--to", "redis.toml"]).output().unwrap();
    assert!(out.status.success(), "{}", words(&out));
    let copied = "copied to the registry store:dq: 1 topic, 1 token and 1 account";
    assert!(words(&out).contains(copied), "{}", words(&out));
    // With the old store, the daemon does not start.
    let mut old = Daemon::spawn(
        std::sync::Arc::clone(&daemon.dir),
        free_port(),
        "start_timeout = \"2s\"\n[store]\nbackend = \"embedded\"\n",
        &[],
    );
    assert!(!old.wait_exit(20 * SECOND).success());
    assert!(old.log().contains("its jobs were moved to redis under dq"), "{}", old.log());
    std::fs::copy(config("redis.toml"), config("dq.toml")).unwrap();
    let daemon = Daemon::again(&daemon);
    daemon.wait_ready();
    sink.wait_for(1, 20 * SECOND);
    assert_eq!(sink.calls()[0].header("dq-job-id"), "soon");
    let mut http = Http::tcp(&daemon);
    let authorization = format!("authorization: Bearer {token}\r\n");
    assert_eq!(http.send("GET", "/v1/topics", &authorization, b"").status, 200);
    assert_eq!(sign_in(&mut http, "admin", &password).status, 200);
    eventually(10 * SECOND, "one job left", || (pending(&mut daemon.client(), "t") == 1).then_some(()));
    assert_eq!(sink.count(), 1);
}
