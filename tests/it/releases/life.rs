//! One short life of a daemon, in which it stores a job in each state, and everything else that dq stores. Then another
//! release continues with this data.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;

use serde_json::{Value, json};

use super::fixture::{Kind, Restored, Servers};
use crate::support::http::Http;
use crate::support::{Daemon, SECOND, Sink, eventually, free_port, now_ms};

/// A moment that no test reaches: 2099.
const LATER: &str = "2099-01-01T00:00:00Z";

/// All topics of the installation.
pub const TOPICS: [&str; 6] = ["file", "push", "failing.on_done", "failing", "tried", "pull"];

/// Topics that call a port where nobody listens. They are paused, so that their jobs stay as they are.
const PAUSED: [&str; 4] = ["push", "failing", "failing.on_done", "tried"];

/// Jobs that wait in the topic `push` until 2099, with all that a job can have.
const WAITING: [&str; 3] = ["plain", "rich", "numbered"];

/// Jobs that a client has reserved or may reserve.
const PULLED: [&str; 3] = ["held", "first", "last"];

/// Jobs that were added while Redis was down.
const SPOOLED: [&str; 2] = ["spooled-1", "spooled-2"];

/// Members that the API does not read from stored data. Their values depend on the moment.
const OF_THE_MOMENT: [&str; 8] =
    ["waiting", "circuit", "circuit_until_ms", "circuit_reason", "last_used", "problem", "revision", "late"];

/// An installation after the life of its daemon.
pub struct Life {
    pub kind: Kind,
    pub dir: Arc<tempfile::TempDir>,
    pub servers: Servers,
    /// What the API showed of all stored data.
    pub expected: Value,
}

fn config(kind: Kind, servers: &Servers, sink: &Sink) -> String {
    let store = match (&servers.redis, &servers.database) {
        (Some(redis), _) => format!(
            "[store]\nbackend = \"redis\"\nshards_per_node = 2\n[[store.node]]\nname = \"r0\"\nurl = \"{}\"\n\
             [registry]\nurl = \"store\"\n",
            redis.url()
        ),
        (None, Some(database)) => {
            format!("[store]\nbackend = \"embedded\"\n[registry]\nurl = \"{}\"\n", database.url())
        }
        (None, None) => "[store]\nbackend = \"embedded\"\n".to_owned(),
    };
    println!("{} with {store}", kind.name());
    let url = sink.url();
    format!(
        "{store}[http]\nauth = \"token\"\n[[topic]]\nname = \"file\"\ncallback = \"{url}\"\nkeep_done_body = true\nkeep_done = \"3650d\"\n"
    )
}

fn start(dir: &Arc<tempfile::TempDir>, more: &str) -> Daemon {
    let daemon = Daemon::spawn(Arc::clone(dir), free_port(), more, &[]);
    daemon.wait_ready();
    eventually(20 * SECOND, "all processes", || (daemon.status()?["phase"] == "steady").then_some(()));
    daemon
}

fn add(http: &mut Http, topic: &str, job: &Value) {
    http.ask("POST", &format!("/v1/topics/{topic}/jobs"), job).is(201);
}

fn state_of(http: &mut Http, topic: &str, id: &str) -> String {
    let answer = http.get(&format!("/v1/topics/{topic}/jobs/{id}"));
    if answer.status == 404 { "none".into() } else { answer.is(200)["state"].as_str().unwrap().to_owned() }
}

impl Life {
    pub fn lead(kind: Kind) -> Life {
        let dir = Arc::new(tempfile::tempdir().unwrap());
        let mut servers = Servers::start(kind);
        let sink = Sink::start();
        let mut daemon = start(&dir, &config(kind, &servers, &sink));
        let mut http = Http::unix(&daemon);
        let nobody = "http://127.0.0.1:9/";
        let topics = [
            json!({"name": "push", "callback": nobody, "priority": "high", "keep_done": "3650d", "max_in_flight": 3}),
            json!({"name": "failing", "callback": nobody, "on_done": nobody, "max_attempts": 1}),
            json!({"name": "tried", "callback": nobody, "retry": "exponential", "retry_base": "365d", "retry_cap": "365d"}),
            json!({"name": "pull", "mode": "pull", "ttr": "2s"}),
        ];
        for topic in &topics {
            http.ask("POST", "/v1/topics", topic).is(201);
        }
        let scopes = ["produce:push", "read"];
        let made = http.ask("POST", "/v1/tokens", &json!({"name": "shop", "scopes": scopes})).is(201);
        let account = json!({"role": "read", "password": "a password of 2026"});
        http.ask("PUT", "/v1/accounts/ann", &account).is(204);
        eventually(20 * SECOND, "what the daemon knows of its registry", || {
            let known = std::fs::read_to_string(dir.path().join("var/run/registry/topics.json")).ok()?;
            (known.contains("shop") && known.contains("@ann")).then_some(())
        });
        add(&mut http, "push", &json!({"id": "plain", "body": 1, "run_at": LATER}));
        let rich = json!({
            "id": "rich", "body": ["bücher", 7], "run_at": LATER, "priority": "high", "max_attempts": 7,
            "headers": {"x-shop": "7"}, "tags": ["shop:7", "spring"], "ttr": "5m", "expire_after": "100d", "path": "/rich",
            "then": [{"topic": "file", "id": "after-rich", "body": "then"}],
        });
        add(&mut http, "push", &rich);
        add(
            &mut http,
            "push",
            &json!({"id": "numbered", "body": [], "run_at": LATER, "priority": 4_000_000_000_u32}),
        );
        for (id, priority) in [("last", 9), ("first", 3)] {
            add(&mut http, "pull", &json!({"id": id, "body": id, "run_at": LATER, "priority": priority}));
        }
        // Jobs that end, each in a different way.
        add(&mut http, "file", &json!({"id": "done", "body": "is kept", "tags": ["shop:7"]}));
        add(&mut http, "failing", &json!({"id": "dead", "body": "of old"}));
        add(&mut http, "tried", &json!({"id": "tried", "body": "twice"}));
        add(&mut http, "push", &json!({"id": "deleted", "body": 1, "run_at": LATER}));
        http.ask("DELETE", "/v1/topics/push/jobs/deleted", &Value::Null).is(204);
        add(&mut http, "push", &json!({"id": "replaced", "body": 1, "run_at": LATER}));
        http.ask("POST", "/v1/topics/push/jobs", &json!({"id": "replaced", "body": 2, "run_at": LATER}))
            .is(200);
        sink.wait_for(1, 20 * SECOND);
        eventually(20 * SECOND, "a dead letter", || {
            (state_of(&mut http, "failing", "dead") == "dead").then_some(())
        });
        eventually(20 * SECOND, "an attempt", || {
            (http.get("/v1/topics/tried/jobs/tried").is(200)["attempts"] == 1).then_some(())
        });
        let shift = json!({"topic": "push", "operation": "reschedule", "by": "1h", "filter": {"id_prefix": "replaced"}});
        let number = http.ask("POST", "/v1/jobs/bulk", &shift).is(202)["number"].clone();
        eventually(20 * SECOND, "the end of a bulk operation", || {
            (http.get(&format!("/v1/jobs/bulk/{number}")).is(200)["state"] == "done").then_some(())
        });
        eventually(20 * SECOND, "an event", || {
            let events = http.get("/v1/topics/failing.on_done/jobs?state=delayed").is(200);
            events["jobs"].as_array()?.first().map(|_| ())
        });
        for topic in PAUSED {
            http.ask("POST", &format!("/v1/topics/{topic}/pause"), &Value::Null).is(204);
        }
        add(&mut http, "failing", &json!({"id": "paused", "body": "was due while its topic was paused"}));
        eventually(20 * SECOND, "a ready job", || {
            (state_of(&mut http, "failing", "paused") == "ready").then_some(())
        });
        let mut expected = shown(&mut http);
        expected["token"] = made["token"].clone();
        if kind == Kind::Embedded {
            let mut backup = Command::new(env!("CARGO_BIN_EXE_dq"));
            let output = backup.arg("backup").arg("--config").arg(dir.path().join("dq.toml"));
            let output = output.arg(dir.path().join("backup.db")).output().unwrap();
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        }
        add(&mut http, "pull", &json!({"id": "held", "body": "held"}));
        let wanted = json!({"wait": "10s", "consumer": "a worker"});
        let reserved = http.ask("POST", "/v1/topics/pull/reserve", &wanted).is(200);
        assert_eq!(reserved["jobs"][0]["id"], "held");
        if let Some(redis) = &mut servers.redis {
            redis.kill();
            for id in SPOOLED {
                eventually(20 * SECOND, "a job in the spool", || {
                    let job = json!({"id": id, "body": id, "run_at": LATER});
                    (http.ask("POST", "/v1/topics/push/jobs", &job).status == 202).then_some(())
                });
            }
        }
        daemon.kill_all();
        if let Some(redis) = &mut servers.redis {
            redis.start_again();
        }
        Life { kind, dir, servers, expected }
    }

    /// The file of `dq backup`.
    pub fn backup(&self) -> PathBuf {
        self.dir.path().join("backup.db")
    }
}

/// Returns what the API shows of all stored data.
fn shown(http: &mut Http) -> Value {
    let mut jobs = serde_json::Map::new();
    let pending = [("push", "replaced"), ("tried", "tried"), ("failing", "dead"), ("failing", "paused")];
    let waiting = WAITING.map(|id| ("push", id));
    for (topic, id) in waiting.iter().chain(&pending).chain(&[("pull", "first"), ("pull", "last")]) {
        let at = format!("/v1/topics/{topic}/jobs/{id}");
        jobs.insert(format!("{topic}/{id}"), http.get(&at).is(200));
    }
    let mut records = serde_json::Map::new();
    for (topic, id) in [("file", "done"), ("push", "deleted"), ("push", "replaced")] {
        let at = format!("/v1/topics/{topic}/jobs/{id}/records");
        records.insert(format!("{topic}/{id}"), http.get(&at).is(200));
    }
    let mut shown = json!({"jobs": jobs, "records": records});
    for (name, at) in [
        ("topics", "/v1/topics"),
        ("tokens", "/v1/tokens"),
        ("accounts", "/v1/accounts"),
        ("audit", "/v1/audit"),
        ("bulk", "/v1/jobs/bulk"),
    ] {
        shown[name] = http.get(at).is(200);
    }
    // The oldest entry comes first, so that the entries that a later daemon adds are at the end.
    shown["audit"]["entries"].as_array_mut().unwrap().reverse();
    shown
}

/// Fails if something that was shown before is missing now, or has another value.
fn has_all(now: &Value, before: &Value, at: &str) {
    match (now, before) {
        (Value::Object(now), Value::Object(before)) => {
            for (name, value) in before.iter().filter(|(name, _)| !OF_THE_MOMENT.contains(&name.as_str())) {
                let found = now.get(name).unwrap_or_else(|| panic!("{at}.{name} is gone"));
                has_all(found, value, &format!("{at}.{name}"));
            }
        }
        (Value::Array(now), Value::Array(before)) => {
            assert!(now.len() >= before.len(), "{at}: {now:?}, and not {before:?}");
            for (n, (now, before)) in now.iter().zip(before).enumerate() {
                has_all(now, before, &format!("{at}[{n}]"));
            }
        }
        _ => assert_eq!(now, before, "{at}"),
    }
}

/// Starts this release in an installation of an older release. Checks that all data is there, and lets each job end.
pub fn continues_from(old: &Restored) {
    let sink = Sink::start();
    let daemon = start(&old.dir, &config(old.kind, &old.servers, &sink));
    let mut http = Http::unix(&daemon);
    // The topic in the configuration file has another callback URL, because the port is different in each test.
    let mut expected = old.expected.clone();
    for topic in expected["topics"]["topics"].as_array_mut().unwrap() {
        if topic["name"] == "file" {
            *topic = json!({"name": "file", "source": "file"});
        }
    }
    // The audit log keeps entries for 90 days. The retry may be due already, so the state of its job is not compared.
    let since = now_ms() - 80 * 86_400_000;
    let audit = expected["audit"]["entries"].as_array_mut().unwrap();
    audit.retain(|entry| entry["at_ms"].as_i64().unwrap() > since);
    expected["jobs"]["tried/tried"].as_object_mut().unwrap().remove("state");
    let token = expected["token"].take();
    expected.as_object_mut().unwrap().remove("token");
    has_all(&shown(&mut http), &expected, "");
    let job = json!({"id": "by-token", "body": 1, "run_at": LATER}).to_string();
    let bearer = format!("Authorization: Bearer {}\r\n", token.as_str().unwrap());
    Http::tcp(&daemon).send("POST", "/v1/topics/push/jobs", &bearer, job.as_bytes()).is(201);
    Http::tcp(&daemon).send("POST", "/v1/topics/pull/reserve", &bearer, b"{}").is_problem(
        403,
        "forbidden",
        None,
    );
    let session = json!({"name": "ann", "password": "a password of 2026"});
    assert_eq!(
        Http::tcp(&daemon).ask("POST", "/console/session", &session).status,
        200,
        "the account of ann"
    );

    for topic in ["push", "failing", "tried"] {
        let change = json!({"callback": sink.url(), "on_done": sink.url()});
        http.ask("PATCH", &format!("/v1/topics/{topic}"), &change).is(200);
    }
    for topic in PAUSED {
        http.ask("POST", &format!("/v1/topics/{topic}/resume"), &Value::Null).is(204);
    }
    http.ask("POST", "/v1/topics/failing/dead/redrive", &json!({})).is(200);
    let spooled = if old.kind == Kind::Redis { &SPOOLED[..] } else { &[] };
    let mut left: BTreeSet<&str> =
        WAITING.into_iter().chain(["by-token"]).chain(spooled.iter().copied()).collect();
    left.extend(["replaced", "tried"]);
    let all: BTreeSet<String> =
        left.iter().chain(&["dead", "paused", "after-rich"]).map(|id| (*id).to_owned()).collect();
    // A job that was in the spool may not be at its home yet.
    eventually(30 * SECOND, "all jobs that are run now", || {
        left.retain(|id| {
            let topic = if *id == "tried" { "tried" } else { "push" };
            http.ask("POST", &format!("/v1/topics/{topic}/jobs/{id}/run"), &Value::Null).status == 404
        });
        left.is_empty().then_some(())
    });
    eventually(30 * SECOND, &format!("all of {all:?}"), || {
        let came: BTreeSet<String> = sink.deliveries().into_keys().collect();
        all.is_subset(&came).then_some(())
    });
    // The event about the dead letter has waited as well, and is delivered.
    eventually(30 * SECOND, "an event", || {
        sink.calls().iter().any(|call| call.header("dq-topic") == "failing.on_done").then_some(())
    });
    let twice: Vec<_> =
        sink.deliveries().into_iter().filter(|(id, count)| all.contains(id) && *count > 1).collect();
    assert!(twice.is_empty(), "{twice:?} came more than once");
    let rich = sink.calls().into_iter().find(|call| call.header("dq-job-id") == "rich").unwrap();
    assert_eq!(rich.header("x-shop"), "7");
    if old.has_reserved_job() {
        pull(&mut http);
    }
    eventually(30 * SECOND, "records of the end", || {
        let record = http.get("/v1/topics/push/jobs/rich/records").is(200);
        (record["records"][0]["outcome"] == "delivered").then_some(())
    });
    println!("{} calls, all jobs ended", sink.count());
}

/// Reserves all jobs, and reports that they are done. A client of the older daemon had reserved one of these jobs, but
/// this client is gone.
fn pull(http: &mut Http) {
    for id in ["first", "last"] {
        http.ask("POST", &format!("/v1/topics/pull/jobs/{id}/run"), &Value::Null).is(204);
    }
    let mut left = PULLED.to_vec();
    eventually(30 * SECOND, "all reserved jobs", || {
        let wanted = json!({"wait": "1s", "max": 10, "lease": "1m"});
        let reserved = http.ask("POST", "/v1/topics/pull/reserve", &wanted).is(200);
        for job in reserved["jobs"].as_array().unwrap() {
            let id = job["id"].as_str().unwrap();
            let ack =
                http.ask("POST", &format!("/v1/topics/pull/jobs/{id}/ack"), &json!({"token": job["token"]}));
            assert_eq!(ack.is(200)["outcome"], "done");
            left.retain(|other| *other != id);
        }
        left.is_empty().then_some(())
    });
}

impl Restored {
    /// Returns whether a client had reserved a job. A backup has no reserved job, because it was made before the
    /// reserve.
    fn has_reserved_job(&self) -> bool {
        !self.dir.path().join("backup.db").exists()
    }
}
