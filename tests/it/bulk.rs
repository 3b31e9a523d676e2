//! Operations on many jobs: cancel, reschedule, run, redrive, replay. With real processes, on both stores.

use std::collections::HashMap;
use std::path::Path;

use cli::HandlerAnswer;
use serde_json::{Value, json};

use crate::support::http::Http;
use crate::support::mariadb::MariaDb;
use crate::support::redis::RedisServer;
use crate::support::{Daemon, SECOND, Sink, eventually, new_job, now_ms, topic};
use model::job::{Due, JobId, JobKey, State, TopicName};
use model::settings::{self, StoreSettings};
use store::Store;

const HOUR_MS: i64 = 3_600_000;

fn t() -> TopicName {
    TopicName::new("t").unwrap()
}

fn key(id: &str) -> JobKey {
    JobKey { topic: t(), id: JobId::new(id).unwrap() }
}

/// Returns the sections of the configuration of a daemon. Its store is on this server, and its registry is in MariaDB.
fn on(server: &RedisServer) -> String {
    let node = format!("[[store.node]]\nname = \"r0\"\nurl = \"{}\"\n", server.url());
    let registry = MariaDb::shared().database().url().to_owned();
    format!("[registry]\nurl = \"{registry}\"\n[store]\nbackend = \"redis\"\n{node}")
}

/// Opens the store of a daemon.
fn opened(dir: &Path, server: Option<&RedisServer>) -> Box<dyn Store> {
    let settings = match server {
        None => StoreSettings::Embedded { path: dir.join("var/dq.db"), min_free: 0 },
        Some(server) => {
            let node = settings::NodeSettings::server("r0".to_owned(), server.url(), 2);
            StoreSettings::Redis(settings::RedisSettings::of_nodes("dq", 5 * SECOND, 2, vec![node]))
        }
    };
    store::open(&settings, &dir.join("var/run")).unwrap()
}

/// Adds jobs with a millisecond between their due times. Returns the due time of each.
fn add(store: &mut dyn Store, count: usize, first_ms: i64) -> HashMap<String, i64> {
    let due: HashMap<String, i64> = (0..count).map(|n| (format!("j{n}"), first_ms + n as i64)).collect();
    let jobs: Vec<_> = due.iter().map(|(id, due_ms)| new_job("t", id, "{}", Due::At(*due_ms))).collect();
    for some in jobs.chunks(5_000) {
        store.add(some).into_iter().for_each(|added| assert!(added.is_ok(), "{added:?}"));
    }
    due
}

/// Returns the due times of all jobs in a state.
fn dues(store: &mut dyn Store, state: State) -> HashMap<String, i64> {
    let (mut all, mut cursor) = (HashMap::new(), None);
    loop {
        let page = store.list(&t(), state, cursor.as_deref(), 5_000).unwrap();
        all.extend(page.jobs.iter().map(|view| (view.key.id.as_str().to_owned(), view.due_ms)));
        cursor = page.next;
        if cursor.is_none() {
            return all;
        }
    }
}

/// Asks over a new connection, because an earlier connection may have been cut. None: there is no answer.
fn ask(daemon: &Daemon, path: &str) -> Option<Value> {
    let url = format!("http://127.0.0.1:{}{path}", daemon.http);
    let out = std::process::Command::new("curl").args(["-s", "--max-time", "5", &url]).output().ok()?;
    serde_json::from_slice(&out.stdout).ok()
}

fn begin(daemon: &Daemon, body: &Value) -> u64 {
    let begun = Http::tcp(daemon).ask("POST", "/v1/jobs/bulk", body).is(202);
    begun["number"].as_u64().unwrap()
}

/// Waits until an operation has this state.
fn wait(daemon: &Daemon, number: u64, state: &str) -> Value {
    eventually(60 * SECOND, &format!("{state}; log:\n{}", daemon.log()), || {
        let now = ask(daemon, &format!("/v1/jobs/bulk/{number}"))?;
        assert!(now["state"] == state || now["ended_ms"].is_null(), "{now}");
        (now["state"] == state).then_some(now)
    })
}

/// Runs an operation to its end.
fn done(daemon: &Daemon, body: &Value) -> Value {
    let number = begin(daemon, body);
    wait(daemon, number, "done")
}

/// Shifts many jobs, kills dq-http-server twice during this, and checks each job.
fn play_kills(daemon: &Daemon, server: Option<&RedisServer>) {
    const JOBS: usize = 20_000;
    let mut store = opened(daemon.dir.path(), server);
    let before = add(&mut *store, JOBS, now_ms() + HOUR_MS);
    let number = begin(daemon, &json!({"topic": "t", "operation": "reschedule", "by": "1h", "rate": 5000}));
    for least in [2_000, 9_000] {
        eventually(60 * SECOND, &format!("{least} jobs; log:\n{}", daemon.log()), || {
            let now = ask(daemon, &format!("/v1/jobs/bulk/{number}"))?;
            assert_eq!(now["state"], "running", "the kill must come before the end: {now}");
            (now["changed"].as_u64()? >= least).then_some(())
        });
        daemon.kill_child("dq-http-server");
        eventually(20 * SECOND, "a new process", || ask(daemon, "/v1/nodes"));
    }
    let end = wait(daemon, number, "done");
    let after = dues(&mut *store, State::Delayed);
    assert_eq!(after.len(), JOBS);
    for (id, due_ms) in before {
        assert_eq!(after[&id], due_ms + HOUR_MS, "{id}");
    }
    let counts = [&end["changed"], &end["skipped"], &end["unclear"], &end["looked_at"]];
    assert_eq!(counts, [&json!(JOBS), &json!(0), &json!(0), &json!(JOBS)], "{end}");
    let audit = Http::unix(daemon).get("/v1/audit").is(200);
    let of = |action: &str| {
        audit["entries"]
            .as_array()
            .unwrap()
            .iter()
            .filter(|e| e["action"] == action)
            .cloned()
            .collect::<Vec<_>>()
    };
    assert_eq!((of("bulk.start").len(), of("bulk.end").len()), (1, 1), "{audit}");
    assert_eq!((&of("bulk.end")[0]["jobs"], &of("bulk.end")[0]["target"]), (&json!(JOBS), &json!("t")));
}

#[test]
fn a_shift_is_killed_twice_and_shifts_each_job_once() {
    let sink = Sink::start();
    let daemon = Daemon::start(&format!("[store]\nbackend = \"embedded\"\n{}", topic("t", &sink, "")));
    play_kills(&daemon, None);
}

#[test]
fn on_redis_a_shift_is_killed_twice_and_shifts_each_job_once() {
    let (sink, server) = (Sink::start(), RedisServer::start());
    let daemon = Daemon::start(&format!("{}{}", on(&server), topic("t", &sink, "")));
    play_kills(&daemon, Some(&server));
}

/// Does each operation once.
fn play_operations(daemon: &Daemon, sink: &Sink, server: Option<&RedisServer>) {
    let mut store = opened(daemon.dir.path(), server);
    let first_ms = now_ms() + HOUR_MS;
    let before = add(&mut *store, 1_000, first_ms);
    let some = json!({"id_prefix": "j1", "due_until": first_ms + 500});
    let is_some = |id: &str| id.starts_with("j1") && id[1..].parse::<i64>().unwrap() < 500;
    let count = before.keys().filter(|id| is_some(id)).count();

    // A dry run counts, and changes nothing.
    let dry = json!({"topic": "t", "operation": "reschedule", "by": "-10m", "filter": some, "dry_run": true});
    let counted = Http::tcp(daemon).ask("POST", "/v1/jobs/bulk", &dry).is(200);
    // The search ends when no further job is due before `due_until`.
    assert_eq!(counted, json!({"matched": count, "skipped": 0, "looked_at": 500, "is_complete": true}));
    assert_eq!(dues(&mut *store, State::Delayed), before);

    let mut shift = dry.clone();
    shift["dry_run"] = json!(false);
    assert_eq!(done(daemon, &shift)["changed"], count);
    for (id, due_ms) in dues(&mut *store, State::Delayed) {
        assert_eq!(due_ms, before[&id] - if is_some(&id) { 600_000 } else { 0 }, "{id}");
    }

    // All jobs are shifted to one moment, and then spread over a span.
    let at_ms = first_ms + 5 * HOUR_MS;
    let end = done(daemon, &json!({"topic": "t", "operation": "reschedule", "at": at_ms}));
    assert_eq!((&end["changed"], &end["skipped"]), (&json!(1_000), &json!(0)), "{end}");
    assert!(dues(&mut *store, State::Delayed).values().all(|due_ms| *due_ms == at_ms));
    let spread = json!({"topic": "t", "operation": "reschedule", "at": at_ms, "spread": "1000s"});
    assert_eq!(done(daemon, &spread)["changed"], 1_000);
    let after = dues(&mut *store, State::Delayed);
    assert!(after.values().all(|due_ms| (at_ms..at_ms + 1_000_000).contains(due_ms)));
    let early = after.values().filter(|due_ms| **due_ms < at_ms + 500_000).count();
    assert!((400..600).contains(&early), "{early} of 1000 in the first half");

    let cancel = json!({"topic": "t", "operation": "cancel", "filter": {"id_prefix": "j9"}});
    assert_eq!(done(daemon, &cancel)["changed"], 111);
    assert_eq!(dues(&mut *store, State::Delayed).len(), 889);
    assert_eq!(store.records(&key("j99")).unwrap()[0].ending.word(), "deleted");

    // The operation `run` makes jobs due now, so they are delivered.
    let run = json!({"topic": "t", "operation": "run", "filter": {"id_prefix": "j8"}, "rate": 200});
    assert_eq!(done(daemon, &run)["changed"], 111);
    sink.wait_for(111, 20 * SECOND);
    assert!(sink.deliveries().iter().all(|(id, times)| id.starts_with("j8") && *times == 1));

    // Jobs that have ended are added again, with their bodies.
    eventually(20 * SECOND, "records", || (store.records(&key("j88")).unwrap().len() == 1).then_some(()));
    let replay =
        json!({"topic": "t", "operation": "replay", "filter": {"outcome": "delivered", "id_prefix": "j88"}});
    let end = done(daemon, &replay);
    assert_eq!((&end["changed"], &end["skipped"]), (&json!(11), &json!(0)), "{end}");
    eventually(20 * SECOND, "the replayed jobs", || (sink.count() == 122).then_some(()));
    assert_eq!(sink.deliveries()["j888"], 2);
    let tagged = json!({"id": "tagged", "body": 1, "tags": ["shop:7"], "delay": 0});
    Http::tcp(daemon).ask("POST", "/v1/topics/t/jobs", &tagged).is(201);
    eventually(20 * SECOND, "a record", || (store.records(&key("tagged")).unwrap().len() == 1).then_some(()));
    let replay = json!({"topic": "t", "operation": "replay", "filter": {"tag": "shop:7"}});
    assert_eq!(done(daemon, &replay)["changed"], 1);
    eventually(20 * SECOND, "the tagged job", || (sink.deliveries()["tagged"] == 2).then_some(()));
}

const KEEP: &str = "keep_done_body = true";

#[test]
fn each_operation_changes_what_its_filter_selects() {
    let sink = Sink::start();
    let daemon = Daemon::start(&format!("[store]\nbackend = \"embedded\"\n{}", topic("t", &sink, KEEP)));
    play_operations(&daemon, &sink, None);
}

#[test]
fn on_redis_each_operation_changes_what_its_filter_selects() {
    let (sink, server) = (Sink::start(), RedisServer::start());
    let daemon = Daemon::start(&format!("{}{}", on(&server), topic("t", &sink, KEEP)));
    play_operations(&daemon, &sink, Some(&server));
}

#[test]
fn dead_letters_are_redriven_and_new_ones_stay() {
    let sink = Sink::answering(|_| HandlerAnswer::new(410, "no"));
    let more = topic("t", &sink, "max_attempts = 1");
    let daemon = Daemon::start(&format!("[store]\nbackend = \"embedded\"\n{more}"));
    let mut store = opened(daemon.dir.path(), None);
    add(&mut *store, 300, now_ms());
    eventually(20 * SECOND, "dead letters", || (store.counts().unwrap()[0].dead == 300).then_some(()));
    let redrive = json!({"topic": "t", "operation": "redrive", "rate": 100});
    let end = done(&daemon, &redrive);
    // The jobs become dead letters again. The operation does not redrive them a second time.
    assert_eq!((&end["changed"], &end["skipped"]), (&json!(300), &json!(0)), "{end}");
    eventually(20 * SECOND, "dead letters again", || {
        (store.counts().unwrap()[0].dead == 300 && sink.count() == 600).then_some(())
    });
}

#[test]
fn an_operation_is_stopped_and_what_it_did_stays() {
    let sink = Sink::start();
    let daemon = Daemon::start(&format!("[store]\nbackend = \"embedded\"\n{}", topic("t", &sink, "")));
    let mut store = opened(daemon.dir.path(), None);
    let before = add(&mut *store, 5_000, now_ms() + HOUR_MS);
    let shift = json!({"topic": "t", "operation": "reschedule", "by": "1h", "rate": 500});
    let number = begin(&daemon, &shift);
    let place = format!("/v1/jobs/bulk/{number}");
    eventually(20 * SECOND, "a beginning", || (ask(&daemon, &place)?["changed"].as_u64()? > 0).then_some(()));
    let stopping = Http::tcp(&daemon).ask("POST", &format!("{place}/stop"), &Value::Null).is(202);
    assert_eq!(stopping["state"], "stopping");
    let end = wait(&daemon, number, "stopped");
    let after = dues(&mut *store, State::Delayed);
    let changed = before.iter().filter(|(id, due_ms)| after[*id] == **due_ms + HOUR_MS).count();
    let same = before.iter().filter(|(id, due_ms)| after[*id] == **due_ms).count();
    assert_eq!((changed + same, &end["changed"]), (5_000, &json!(changed)), "{end}");
    assert!(same > 0);
    // If the operation has ended, a request to stop it changes nothing.
    let again = Http::tcp(&daemon).ask("POST", &format!("{place}/stop"), &Value::Null).is(202);
    assert_eq!(again["state"], "stopped");
}

#[test]
fn an_operation_waits_for_a_node_that_is_away() {
    let (sink, server) = (Sink::start(), RedisServer::start());
    let daemon = Daemon::start(&format!("{}{}", on(&server), topic("t", &sink, "")));
    let mut store = opened(daemon.dir.path(), Some(&server));
    let before = add(&mut *store, 3_000, now_ms() + HOUR_MS);
    let shift = json!({"topic": "t", "operation": "reschedule", "by": "1h", "rate": 1000});
    let number = begin(&daemon, &shift);
    let place = format!("/v1/jobs/bulk/{number}");
    eventually(20 * SECOND, "a beginning", || (ask(&daemon, &place)?["changed"].as_u64()? > 0).then_some(()));
    server.hang(true);
    eventually(40 * SECOND, &format!("a reason; log:\n{}", daemon.log()), || {
        let now = ask(&daemon, &place)?;
        assert_eq!(now["state"], "running", "{now}");
        now["error"].as_str().is_some_and(|why| !why.is_empty()).then_some(())
    });
    server.hang(false);
    let end = wait(&daemon, number, "done");
    assert_eq!((&end["changed"], &end["error"]), (&json!(3_000), &Value::Null), "{end}");
    let after = dues(&mut *store, State::Delayed);
    assert!(before.iter().all(|(id, due_ms)| after[id] == due_ms + HOUR_MS));
}

#[test]
fn operations_are_listed_and_bad_requests_are_refused() {
    let sink = Sink::start();
    let daemon = Daemon::start(&format!("[store]\nbackend = \"embedded\"\n{}", topic("t", &sink, "")));
    let mut http = Http::tcp(&daemon);
    http.ask("POST", "/v1/jobs/bulk", &json!({"topic": "no", "operation": "run"})).is_problem(
        404,
        "unknown_topic",
        None,
    );
    let bad = json!({"topic": "t", "operation": "run", "at": 5});
    http.ask("POST", "/v1/jobs/bulk", &bad).is_problem(422, "bad_field", Some("at"));
    http.get("/v1/jobs/bulk/1").is_problem(404, "not_found", None);
    http.get("/v1/jobs/bulk/x").is_problem(404, "not_found", None);
    http.ask("POST", "/v1/jobs/bulk/7/stop", &Value::Null).is_problem(404, "not_found", None);
    http.get("/v1/jobs/bulk?limit=201").is_problem(422, "bad_field", Some("limit"));
    for _ in 0..3 {
        assert_eq!(done(&daemon, &json!({"topic": "t", "operation": "run"}))["looked_at"], 0);
    }
    let first = http.get("/v1/jobs/bulk?limit=2").is(200);
    let numbers = |page: &Value| -> Vec<u64> {
        page["operations"].as_array().unwrap().iter().map(|one| one["number"].as_u64().unwrap()).collect()
    };
    assert_eq!(numbers(&first), [3, 2]);
    let rest = http.get(&format!("/v1/jobs/bulk?cursor={}", first["next"].as_str().unwrap())).is(200);
    assert_eq!((numbers(&rest), &rest["next"]), (vec![1], &Value::Null));
    // When a topic is removed, its operation ends. (Topics of the file cannot be removed.)
    let more = json!({"name": "gone", "callback": sink.url()});
    http.ask("POST", "/v1/topics", &more).is(201);
    let jobs: Vec<Value> = (0..500).map(|n| json!({"id": n.to_string(), "delay": "1h", "body": 1})).collect();
    http.ask("POST", "/v1/topics/gone/jobs/batch", &json!({"jobs": jobs})).is(200);
    let number = begin(&daemon, &json!({"topic": "gone", "operation": "cancel", "rate": 20}));
    http.ask("DELETE", "/v1/topics/gone?jobs=keep", &Value::Null).is(204);
    let end = wait(&daemon, number, "failed");
    assert!(end["error"].as_str().unwrap().contains("was removed"), "{end}");
}
