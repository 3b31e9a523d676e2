//! Pull topics: clients reserve jobs over HTTP, and report their outcomes.

use std::collections::{HashMap, HashSet};
use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::support::http::{Answer, Http};
use crate::support::mariadb::MariaDb;
use crate::support::{Daemon, SECOND, SLOTS, Sink, add, all_new, eventually, now_ms, on_redis};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

/// Returns the section of a registry, for daemons that have no registry by default.
fn registry() -> String {
    match on_redis() {
        true => format!("[registry]\nurl = \"{}\"\n", MariaDb::shared().database().url()),
        false => String::new(),
    }
}

pub fn pulled(name: &str, more: &str) -> String {
    format!("[[topic]]\nname = \"{name}\"\nmode = \"pull\"\n{more}\n")
}

pub fn put(http: &mut Http, topic: &str, id: &str, more: &Value) {
    let mut job = json!({"id": id, "body": {"of": id}});
    job.as_object_mut().unwrap().extend(more.as_object().cloned().unwrap_or_default());
    let answer = http.ask("POST", &format!("/v1/topics/{topic}/jobs"), &job);
    assert!(matches!(answer.status, 200 | 201), "{answer:?}");
}

fn jobs(answer: Answer) -> Vec<Value> {
    answer.is(200)["jobs"].as_array().unwrap().clone()
}

fn reserve(http: &mut Http, topic: &str, what: &Value) -> Vec<Value> {
    jobs(http.ask("POST", &format!("/v1/topics/{topic}/reserve"), what))
}

/// Reserves one job. It must come within some seconds.
fn one(http: &mut Http, topic: &str) -> Value {
    let mut jobs = reserve(http, topic, &json!({"wait": "10s"}));
    assert_eq!(jobs.len(), 1, "{jobs:?}");
    jobs.remove(0)
}

fn begin(http: &mut Http, topic: &str, what: &Value) {
    http.begin("POST", &format!("/v1/topics/{topic}/reserve"), "", what.to_string().as_bytes());
}

/// Reports the outcome of a reserved job.
fn report(http: &mut Http, job: &Value, verb: &str, more: Value) -> Answer {
    let (topic, id) = (job["topic"].as_str().unwrap(), job["id"].as_str().unwrap());
    let mut body = json!({"token": job["token"]});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    http.ask("POST", &format!("/v1/topics/{topic}/jobs/{id}/{verb}"), &body)
}

fn ids(jobs: &[Value]) -> Vec<&str> {
    jobs.iter().map(|job| job["id"].as_str().unwrap()).collect()
}

#[test]
fn a_waiting_reserve_gets_a_job_as_soon_as_it_is_added() {
    let daemon = Daemon::start(&pulled("t", ""));
    let (mut worker, mut client) = (Http::tcp(&daemon), Http::tcp(&daemon));
    let mut fastest = Duration::MAX;
    for n in 0..10 {
        begin(&mut worker, "t", &json!({"wait": "30s"}));
        put(&mut client, "t", &n.to_string(), &json!({"tags": ["a"], "headers": {"x-a": "1"}}));
        let added = Instant::now();
        let got = jobs(worker.receive());
        fastest = fastest.min(added.elapsed());
        assert_eq!(ids(&got), [n.to_string()]);
        let job = &got[0];
        assert_eq!((&job["body"], &job["attempt"]), (&json!({"of": n.to_string()}), &json!(1)));
        assert_eq!((&job["tags"], &job["headers"]), (&json!(["a"]), &json!({"x-a": "1"})));
        let left_ms = job["lease_until_ms"].as_i64().unwrap() - now_ms();
        assert!((50_000..=60_100).contains(&left_ms), "{left_ms}");
        assert_eq!(report(&mut worker, job, "ack", json!({})).is(200)["outcome"], "done");
        client.get(&format!("/v1/topics/t/jobs/{n}")).is_problem(404, "not_found", None);
    }
    assert!(fastest < Duration::from_millis(200), "{fastest:?}");
}

#[test]
fn a_reserve_without_a_job_ends_empty_when_its_time_is_over() {
    let daemon = Daemon::start(&(pulled("t", "") + &pulled("u", "")));
    let mut http = Http::tcp(&daemon);
    let begun = Instant::now();
    assert!(reserve(&mut http, "t", &json!({"wait": "400ms"})).is_empty());
    let took = begun.elapsed();
    assert!((Duration::from_millis(400)..5 * SECOND).contains(&took), "{took:?}");
    assert!(reserve(&mut http, "t", &Value::Null).is_empty());
    for (body, field) in [
        (json!({"wait": "61s"}), "wait"),
        (json!({"max": 101}), "max"),
        (json!({"lease": "1ms"}), "lease"),
        (json!({"lease": "25h"}), "lease"),
        (json!({"topics": []}), "topics"),
    ] {
        let path = if field == "topics" { "/v1/reserve" } else { "/v1/topics/t/reserve" };
        http.ask("POST", path, &body).is_problem(422, "bad_field", Some(field));
    }
    http.ask("POST", "/v1/topics/none/reserve", &Value::Null).is_problem(404, "unknown_topic", None);
    let named = json!({"topics": ["t", "none"]});
    http.ask("POST", "/v1/reserve", &named).is_problem(404, "unknown_topic", None);
}

/// Returns the priorities of the jobs of a topic in a state, as they are listed.
fn listed_priorities(http: &mut Http, topic: &str, state: &str) -> Vec<Value> {
    let page = http.ask("GET", &format!("/v1/topics/{topic}/jobs?state={state}"), &Value::Null);
    page.is(200)["jobs"].as_array().unwrap().iter().map(|job| job["priority"].clone()).collect()
}

#[test]
fn numbers_are_priorities_over_http_and_tcp() {
    let daemon = Daemon::start(&pulled("t", ""));
    let (mut http, mut client) = (Http::tcp(&daemon), daemon.client());
    for (id, priority) in [
        ("a", json!("low")),
        ("b", json!(4_294_967_295_u32)),
        ("c", json!(0)),
        ("d", json!("normal")),
        ("e", json!(1024)),
    ] {
        put(&mut http, "t", id, &json!({"priority": priority}));
    }
    for (id, priority) in [("f", json!(7)), ("g", json!("8")), ("h", json!(2_147_483_647_u32))] {
        let add = json!({"cmd": "add", "topic": "t", "id": id, "body": 1, "priority": priority});
        assert_eq!(client.ask(&add).unwrap()["code"], 1);
    }
    let all = [json!(0), json!(7), json!(8), json!(1024), json!("high"), json!("normal"), json!("low")];
    let all = [&all[..], &[json!(4_294_967_295_u32)]].concat();
    assert_eq!(listed_priorities(&mut http, "t", "ready"), all);
    let patch = |http: &mut Http, id: &str, priority: Value| {
        http.ask("PATCH", &format!("/v1/topics/t/jobs/{id}"), &json!({"priority": priority})).is(204);
    };
    patch(&mut http, "a", json!(7));
    patch(&mut http, "c", json!("low"));
    let shown = http.ask("GET", "/v1/topics/t/jobs/a", &Value::Null).is(200);
    assert_eq!((&shown["priority"], shown.get("headers")), (&json!(7), None));
    let mut came = Vec::new();
    for max in [1, 4, 9] {
        let jobs = reserve(&mut http, "t", &json!({"max": max}));
        came.extend(jobs.iter().map(|job| job["id"].as_str().unwrap().to_owned()));
    }
    // With several shards, the order of reserves is approximate.
    if !on_redis() {
        assert_eq!(came, ["a", "f", "g", "e", "h", "d", "c", "b"]);
    }
    assert_eq!(came.len(), 8);
}

#[test]
fn several_topics_are_served_in_order_and_jobs_in_batches() {
    let daemon = Daemon::start(&(pulled("a", "") + &pulled("b", "")));
    let mut http = Http::tcp(&daemon);
    for id in ["1", "2"] {
        put(&mut http, "b", id, &json!({"priority": if id == "2" { "high" } else { "low" }}));
    }
    put(&mut http, "a", "1", &json!({}));
    let ask = |http: &mut Http, max: u32| {
        jobs(http.ask("POST", "/v1/reserve", &json!({"topics": ["a", "b"], "max": max, "wait": "5s"})))
    };
    let first = ask(&mut http, 1);
    assert_eq!((first.len(), &first[0]["topic"]), (1, &json!("a")));
    let more = ask(&mut http, 1);
    assert_eq!((more.len(), &more[0]["topic"]), (1, &json!("b")));
    // The jobs of each topic are on all nodes.
    for id in 0..8 {
        put(&mut http, "b", &format!("b{id}"), &json!({}));
        put(&mut http, "a", &format!("a{id}"), &json!({}));
    }
    let order: Vec<Value> = (0..17).flat_map(|_| ask(&mut http, 1)).map(|job| job["topic"].clone()).collect();
    let of_b = order.iter().position(|topic| topic == "b");
    assert_eq!((order.len(), of_b), (17, Some(8)), "{order:?}");
    for id in 0..30 {
        put(&mut http, "a", &format!("x{id}"), &json!({}));
    }
    let mut seen = HashSet::new();
    eventually(10 * SECOND, "all jobs", || {
        let got = reserve(&mut http, "a", &json!({"max": 20}));
        assert!(got.len() <= 20);
        seen.extend(got.iter().map(|job| job["id"].as_str().unwrap().to_owned()));
        (seen.len() == 30).then_some(())
    });
}

#[test]
fn a_nack_brings_a_job_back_until_it_is_a_dead_letter() {
    let daemon = Daemon::start(&pulled("t", "max_attempts = 2\nretry = [\"50ms\"]\nkeep_done = \"1h\""));
    let mut http = Http::tcp(&daemon);
    put(&mut http, "t", "1", &json!({}));
    let job = one(&mut http, "t");
    let nacked = Instant::now();
    let delay = json!({"delay": "1s", "reason": "no stock"});
    assert_eq!(report(&mut http, &job, "nack", delay.clone()).is(200)["outcome"], "retried");
    // The same report gets the same answer. A different report is refused.
    assert_eq!(report(&mut http, &job, "nack", delay).is(200)["outcome"], "retried");
    report(&mut http, &job, "ack", json!({})).is_problem(410, "gone", None);
    let shown = http.get("/v1/topics/t/jobs/1").is(200);
    assert_eq!((&shown["attempts"], &shown["log"][0]["error"]), (&json!(1), &json!("no stock")));
    let again = one(&mut http, "t");
    assert!(nacked.elapsed() >= SECOND, "{:?}", nacked.elapsed());
    assert_eq!(again["attempt"], 2);
    assert_eq!(report(&mut http, &again, "nack", json!({})).is(200)["outcome"], "dead");
    assert_eq!(http.get("/v1/topics/t/jobs/1").is(200)["state"], "dead");
    let redriven = http.ask("POST", "/v1/topics/t/dead/redrive", &json!({"ids": ["1"]}));
    assert_eq!(redriven.is(200)["redriven"], 1);
    let last = one(&mut http, "t");
    report(&mut http, &last, "ack", json!({"answer": "shipped"})).is(200);
    let records = http.get("/v1/topics/t/jobs/1/records").is(200);
    let log = records["records"][0]["log"].as_array().unwrap();
    assert_eq!(log.last().unwrap()["answer"], "shipped", "{records}");
}

#[test]
fn a_lease_ends_at_its_deadline_unless_it_is_extended() {
    let daemon = Daemon::start(&(pulled("t", "ttr = \"500ms\"") + &pulled("u", "")));
    let mut http = Http::tcp(&daemon);
    put(&mut http, "t", "1", &json!({}));
    let job = one(&mut http, "t");
    let answer = report(&mut http, &job, "extend", json!({"lease": "1m"})).is(200);
    assert_eq!(answer["outcome"], "extended");
    assert!(answer["until_ms"].as_i64().unwrap() > now_ms() + 50_000);
    assert!(reserve(&mut http, "t", &json!({"wait": "700ms"})).is_empty(), "it is leased");
    let back = report(&mut http, &job, "extend", json!({})).is(200);
    assert!(back["until_ms"].as_i64().unwrap() <= now_ms() + 500, "{back}");
    let again = one(&mut http, "t");
    assert_eq!(again["attempt"], 2);
    report(&mut http, &job, "ack", json!({})).is_problem(410, "gone", None);
    // A lease token proves only the lease of its own job.
    let other = json!({"topic": "u", "id": "1", "token": again["token"]});
    report(&mut http, &other, "ack", json!({})).is_problem(404, "no_ticket", None);
    let forged = json!({"topic": "t", "id": "1", "token": "AAAA"});
    report(&mut http, &forged, "ack", json!({})).is_problem(404, "no_ticket", None);
    let ticket = again["token"].as_str().unwrap();
    let elsewhere = http.ask("POST", &format!("/v1/ack/{ticket}"), &Value::Null);
    elsewhere.is_problem(404, "no_ticket", None);
    report(&mut http, &again, "ack", json!({})).is(200);
}

#[test]
fn a_delayed_job_is_never_reserved_before_its_time() {
    let daemon = Daemon::start(&pulled("t", ""));
    let (mut client, mut worker) = (Http::tcp(&daemon), Http::tcp(&daemon));
    let mut added = HashMap::new();
    for n in 0..20 {
        added.insert(n.to_string(), Instant::now());
        put(&mut client, "t", &n.to_string(), &json!({"delay": "1s"}));
    }
    while !added.is_empty() {
        let got = reserve(&mut worker, "t", &json!({"wait": "10s", "max": 3}));
        assert!(!got.is_empty());
        for job in got {
            let since = added.remove(job["id"].as_str().unwrap()).unwrap();
            assert!(since.elapsed() >= SECOND, "{:?}", since.elapsed());
        }
    }
}

#[test]
fn a_topic_changes_between_push_and_pull_with_jobs_pending() {
    let sink = Sink::start();
    let daemon = Daemon::start(&registry());
    let mut http = Http::unix(&daemon);
    let topic = json!({"name": "t", "callback": sink.url(), "mode": "pull"});
    http.ask("POST", "/v1/topics", &topic).is(201);
    eventually(10 * SECOND, "the topic", || {
        let answer = http.ask("POST", "/v1/topics/t/jobs", &json!({"id": "1", "body": 1}));
        (answer.status < 300).then_some(())
    });
    for id in ["2", "3"] {
        put(&mut http, "t", id, &json!({}));
    }
    let held = one(&mut http, "t");
    let mut waiting = Http::unix(&daemon);
    put(&mut http, "t", "later", &json!({"delay": "1h"}));
    http.ask("PATCH", "/v1/topics/t", &json!({"mode": "push"})).is(200);
    sink.wait_for(2, 10 * SECOND);
    assert!(!sink.deliveries().contains_key(held["id"].as_str().unwrap()), "it is leased");
    report(&mut http, &held, "ack", json!({})).is(200);
    eventually(10 * SECOND, "a refusal", || {
        let answer = http.ask("POST", "/v1/topics/t/reserve", &Value::Null);
        (answer.status == 409 && answer.json["code"] == "not_pull").then_some(())
    });
    http.ask("PATCH", "/v1/topics/t", &json!({"mode": "pull"})).is(200);
    eventually(10 * SECOND, "pull again", || {
        let answer = http.ask("POST", "/v1/topics/t/reserve", &Value::Null);
        (answer.status == 200).then_some(())
    });
    http.ask("POST", "/v1/topics/t/jobs/later/run", &Value::Null).is(204);
    assert_eq!(one(&mut http, "t")["id"], "later");
    // A reserve that waits ends when its topic is no longer a pull topic.
    begin(&mut waiting, "t", &json!({"wait": "60s"}));
    http.ask("PATCH", "/v1/topics/t", &json!({"mode": "push"})).is(200);
    let ended = waiting.receive();
    assert!(ended.status == 409 || jobs(ended).is_empty());
    assert_eq!(sink.deliveries().len(), 2);
}

#[test]
fn a_client_that_goes_away_while_it_waits_takes_no_job() {
    let daemon = Daemon::start(&pulled("t", ""));
    let mut http = Http::unix(&daemon);
    for n in 0..10 {
        let gone: Vec<Http> = (0..5)
            .map(|_| {
                let mut gone = Http::tcp(&daemon);
                begin(&mut gone, "t", &json!({"wait": "60s"}));
                gone
            })
            .collect();
        // When this reserve is answered, at least two of these clients wait, because their reserves came before this
        // one.
        assert!(reserve(&mut http, "t", &json!({"wait": "20ms"})).is_empty());
        drop(gone);
        put(&mut http, "t", &n.to_string(), &json!({}));
        let job = one(&mut http, "t");
        assert_eq!((&job["id"], &job["attempt"]), (&json!(n.to_string()), &json!(1)));
        report(&mut http, &job, "ack", json!({})).is(200);
    }
}

/// Keeps dq-http-server busy with batches of refused jobs, until `ends`, or for a minute.
fn keep_busy(daemon: &Daemon, ends: &AtomicBool) {
    let batch = json!({"jobs": vec![json!({"id": "", "body": vec!["x"; 100]}); 1000]});
    let (mut http, begun) = (Http::unix(daemon), Instant::now());
    while !ends.load(Ordering::Relaxed) && begun.elapsed() < 60 * SECOND {
        http.ask("POST", "/v1/topics/t/jobs/batch", &batch).is(200);
    }
}

/// Closes a connection to this host, and waits until the other side could know. On a busy host, this takes a moment.
fn close(stream: TcpStream) {
    let port = |address: SocketAddr| format!("0100007F:{:04X}", address.port());
    let ends = [port(stream.local_addr().unwrap()), port(stream.peer_addr().unwrap())];
    drop(stream);
    eventually(10 * SECOND, "the end of a connection", || {
        let all = std::fs::read_to_string("/proc/net/tcp").unwrap();
        let words = all.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
        let state = words.filter(|words| words[1..3] == ends).map(|words| words[3].to_owned()).next();
        // 01: established. 04: the kernel has not delivered the end of the connection yet (FIN-WAIT-1).
        (!matches!(state.as_deref(), Some("01" | "04"))).then_some(())
    });
}

#[test]
fn a_busy_server_gives_no_job_to_a_client_that_is_gone() {
    let daemon = Daemon::start(&pulled("t", "ttr = \"5s\""));
    let ends = AtomicBool::new(false);
    std::thread::scope(|threads| {
        (0..2).for_each(|_| drop(threads.spawn(|| keep_busy(&daemon, &ends))));
        let (mut http, mut client) = (Http::unix(&daemon), daemon.client());
        for n in 0..20 {
            let mut gone = TcpStream::connect(("127.0.0.1", daemon.http)).unwrap();
            let host = format!("Host: 127.0.0.1:{}", daemon.http);
            let body = r#"{"wait": "60s"}"#;
            let head = format!(
                "POST /v1/topics/t/reserve HTTP/1.1\r\n{host}\r\nContent-Length: {}\r\n\r\n",
                body.len()
            );
            gone.write_all((head + body).as_bytes()).unwrap();
            // When this reserve is answered, the first client waits, because its reserve came before this one.
            assert!(reserve(&mut http, "t", &json!({"wait": "20ms"})).is_empty());
            close(gone);
            assert_eq!(client.ask(&add("t", &n.to_string(), 0)).unwrap()["code"], 1);
            let job = one(&mut http, "t");
            assert_eq!((&job["id"], &job["attempt"]), (&json!(n.to_string()), &json!(1)));
            report(&mut http, &job, "ack", json!({})).is(200);
        }
        ends.store(true, Ordering::Relaxed);
    });
}

#[test]
fn a_client_that_sent_more_and_is_gone_takes_no_job_or_place() {
    let daemon = Daemon::start(&(pulled("t", "") + "[http]\nmax_reserves = 8\n"));
    let mut http = Http::unix(&daemon);
    let long = [b'x'; 1 << 16];
    let more = [&b"\r\n"[..], b"x", b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n", &long];
    let gone = more.map(|more| {
        let mut gone = Http::tcp(&daemon);
        let body = r#"{"wait": "60s"}"#;
        let head = "POST /v1/topics/t/reserve HTTP/1.1\r\nHost: localhost\r\nContent-Length: 15\r\n\r\n";
        gone.write(&[head.as_bytes(), body.as_bytes(), more].concat());
        gone
    });
    let ask = || Http::tcp(&daemon).ask("POST", "/v1/topics/t/reserve", &Value::Null).status;
    eventually(10 * SECOND, "all places of an address", || (ask() == 503).then_some(()));
    drop(gone);
    put(&mut http, "t", "1", &json!({}));
    let job = one(&mut http, "t");
    assert_eq!((&job["id"], &job["attempt"]), (&json!("1"), &json!(1)));
    eventually(20 * SECOND, "free places", || (ask() == 200).then_some(()));
}

#[test]
fn a_client_that_sent_more_gets_its_removed_job() {
    let daemon = Daemon::start(&pulled("t", "on_reserve = \"remove\""));
    let (mut http, mut client) = (Http::unix(&daemon), Http::tcp(&daemon));
    // The client sends more than dq reads while it answers the first request.
    let next = format!("GET /healthz HTTP/1.1\r\nHost: localhost\r\nX-Pad: {}\r\n\r\n", "x".repeat(7000));
    let head = "POST /v1/topics/t/reserve HTTP/1.1\r\nHost: localhost\r\nContent-Length: 15\r\n\r\n";
    client.write(&[head.as_bytes(), br#"{"wait": "60s"}"#, next.repeat(10).as_bytes()].concat());
    // When this reserve is answered, the client waits, because its reserve came before this one.
    assert!(reserve(&mut http, "t", &json!({"wait": "20ms"})).is_empty());
    put(&mut http, "t", "1", &json!({}));
    let got = jobs(client.receive());
    assert_eq!((got.len(), &got[0]["id"], got[0].get("token")), (1, &json!("1"), None));
    (0..10).for_each(|_| assert_eq!(client.receive().status, 200));
    http.get("/v1/topics/t/jobs/1").is_problem(404, "not_found", None);
}

#[test]
fn limits_and_pauses_hold_reserves_back() {
    let more = pulled("most", "max_in_flight = 2") + &pulled("rate", "rate = \"5/s\"") + &pulled("pause", "");
    let daemon = Daemon::start(&more);
    let (mut http, mut worker) = (Http::unix(&daemon), Http::unix(&daemon));
    for topic in ["most", "rate", "pause"] {
        (0..8).for_each(|n| put(&mut http, topic, &n.to_string(), &json!({})));
    }
    let mut held = Vec::new();
    eventually(10 * SECOND, "two jobs", || {
        held.extend(reserve(&mut worker, "most", &json!({"max": 5})));
        assert!(held.len() <= 2, "{held:?}");
        (held.len() == 2).then_some(())
    });
    assert!(reserve(&mut worker, "most", &json!({"max": 5, "wait": "300ms"})).is_empty());
    begin(&mut worker, "most", &json!({"max": 5, "wait": "20s"}));
    report(&mut http, &held[0], "ack", json!({})).is(200);
    assert_eq!(jobs(worker.receive()).len(), 1, "there is room for one");
    // A rate: eight jobs at five in a second take more than a second.
    let begun = Instant::now();
    let mut all = 0;
    while all < 8 {
        let got = reserve(&mut worker, "rate", &json!({"max": 10, "wait": "10s"})).len();
        assert!(got > 0);
        all += got;
    }
    assert!(begun.elapsed() > SECOND, "{:?}", begun.elapsed());
    http.ask("POST", "/v1/topics/pause/pause", &Value::Null).is(204);
    assert!(reserve(&mut worker, "pause", &json!({"wait": "300ms"})).is_empty());
    begin(&mut worker, "pause", &json!({"wait": "20s"}));
    http.ask("POST", "/v1/topics/pause/resume", &Value::Null).is(204);
    assert_eq!(jobs(worker.receive()).len(), 1);
}

#[test]
fn a_rolling_restart_answers_those_who_wait() {
    let daemon = Daemon::start(&pulled("t", ""));
    let before = daemon.wait_all_up(SLOTS);
    let mut waiting: Vec<Http> = (0..20).map(|_| Http::tcp(&daemon)).collect();
    waiting.iter_mut().for_each(|http| begin(http, "t", &json!({"wait": "60s"})));
    let begun = Instant::now();
    daemon.signal(Signal::SIGUSR2);
    for http in &mut waiting {
        assert!(jobs(http.receive()).is_empty());
    }
    assert!(begun.elapsed() < 30 * SECOND, "{:?}", begun.elapsed());
    all_new(&daemon, &before);
    let mut http = Http::tcp(&daemon);
    put(&mut http, "t", "1", &json!({}));
    assert_eq!(one(&mut http, "t")["id"], "1");
}

#[test]
fn a_token_reserves_the_topics_of_its_scope_alone() {
    let more = "[http]\nauth = \"token\"\n".to_owned() + &registry() + &pulled("a", "") + &pulled("b", "");
    let daemon = Daemon::start(&more);
    let mut admin = Http::unix(&daemon);
    let made = admin.ask("POST", "/v1/tokens", &json!({"name": "w", "scopes": ["consume:a"]})).is(201);
    let bearer = format!("Authorization: Bearer {}\r\n", made["token"].as_str().unwrap());
    let mut http = Http::tcp(&daemon);
    let mut ask = |path: &str, body: Value| http.send("POST", path, &bearer, body.to_string().as_bytes());
    eventually(10 * SECOND, "the token", || {
        (ask("/v1/topics/a/reserve", json!({})).status == 200).then_some(())
    });
    ask("/v1/topics/b/reserve", json!({})).is_problem(403, "forbidden", None);
    ask("/v1/reserve", json!({"topics": ["a", "b"]})).is_problem(403, "forbidden", None);
    ask("/v1/reserve", json!({"topics": ["a"]})).is(200);
    ask("/v1/topics/a/jobs", json!({"body": 1})).is_problem(403, "forbidden", None);
    ask("/v1/topics/b/jobs/1/ack", json!({"token": "x"})).is_problem(403, "forbidden", None);
}

/// The answer to an ack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AckAnswer {
    Done,
    /// The ack has not settled the job.
    Refused,
    /// The ack may have settled the job.
    Unknown,
}

/// A client that works on jobs while the processes of the daemon are killed.
trait Worker {
    /// Reserves jobs. `None`: there was no answer.
    fn reserve(&mut self) -> Option<Vec<Value>>;
    fn ack(&mut self, job: &Value) -> AckAnswer;
}

/// How long the leases of the workers last, in milliseconds.
const LEASE_MS: i64 = 1500;

/// Opens a connection for each request.
struct HttpWorker(u16);

impl HttpWorker {
    /// Returns the status and the body. `Err`: whether the request was sent.
    fn ask(&self, path: &str, body: &Value) -> Result<(u16, Value), bool> {
        let body = body.to_string();
        let mut stream = TcpStream::connect(("127.0.0.1", self.0)).map_err(|_| false)?;
        stream.set_read_timeout(Some(20 * SECOND)).unwrap();
        let head = format!(
            "POST {path} HTTP/1.1\r\nHost: 127.0.0.1:{}\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}",
            self.0,
            body.len()
        );
        stream.write_all(head.as_bytes()).map_err(|_| true)?;
        let text = std::io::read_to_string(stream).map_err(|_| true)?;
        let (head, body) = text.split_once("\r\n\r\n").ok_or(true)?;
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).ok_or(true)?;
        Ok((status, serde_json::from_str(body).map_err(|_| true)?))
    }
}

impl Worker for HttpWorker {
    fn reserve(&mut self) -> Option<Vec<Value>> {
        let asked = json!({"max": 5, "wait": "1s", "lease": format!("{LEASE_MS}ms")});
        let (status, answer) = self.ask("/v1/topics/t/reserve", &asked).ok()?;
        (status == 200).then(|| answer["jobs"].as_array().unwrap().clone())
    }

    fn ack(&mut self, job: &Value) -> AckAnswer {
        let path = format!("/v1/topics/t/jobs/{}/ack", job["id"].as_str().unwrap());
        match self.ask(&path, &json!({"token": job["token"]})) {
            Ok((200, _)) => AckAnswer::Done,
            Ok((_, problem)) if ["unknown", "timeout"].map(Some).contains(&problem["code"].as_str()) => {
                AckAnswer::Unknown
            }
            Ok(_) | Err(false) => AckAnswer::Refused,
            Err(true) => AckAnswer::Unknown,
        }
    }
}

/// Keeps its connection until a request fails.
struct TcpWorker<'a>(&'a Daemon, Option<cli::TcpClient>);

impl TcpWorker<'_> {
    /// Returns the answer. `Err`: whether the request was sent.
    fn ask(&mut self, request: &Value) -> Result<Value, bool> {
        if self.1.is_none() {
            let connected = cli::TcpClient::connect(self.0.address(), protocol::dq::Framing::Binary);
            self.1 = Some(connected.map_err(|_| false)?);
        }
        let answer = self.1.as_mut().unwrap().ask(request);
        answer.map_err(|_| {
            self.1 = None;
            true
        })
    }
}

impl Worker for TcpWorker<'_> {
    fn reserve(&mut self) -> Option<Vec<Value>> {
        let asked =
            json!({"cmd": "reserve", "topic": "t", "max": 5, "wait": "1s", "lease": format!("{LEASE_MS}ms")});
        let answer = self.ask(&asked).ok()?;
        (answer["code"] == 1).then(|| answer["data"].as_array().unwrap().clone())
    }

    fn ack(&mut self, job: &Value) -> AckAnswer {
        let ack = json!({"cmd": "ack", "topic": "t", "id": job["id"], "token": job["token"]});
        match self.ask(&ack) {
            Ok(answer) if answer["code"] == 1 => AckAnswer::Done,
            Ok(answer) if ["unknown", "timeout"].map(Some).contains(&answer["err"].as_str()) => {
                AckAnswer::Unknown
            }
            Ok(_) | Err(false) => AckAnswer::Refused,
            Err(true) => AckAnswer::Unknown,
        }
    }
}

/// `done`: the jobs with an ack that was answered with success, and the moment of the first such answer in Unix
/// milliseconds. `unknown`: the jobs with an ack that may have been done.
#[derive(Default)]
struct Acked {
    done: HashMap<String, i64>,
    unknown: HashSet<String>,
}

/// Works on jobs until `stop` is set, even if processes of the daemon are killed.
fn work(mut worker: impl Worker, stop: &AtomicBool, acked: &Mutex<Acked>) {
    while !stop.load(Ordering::Relaxed) {
        let Some(got) = worker.reserve() else {
            std::thread::sleep(Duration::from_millis(20));
            continue;
        };
        for job in got {
            let id = job["id"].as_str().unwrap();
            // While this worker waited for the answer to an earlier ack, the lease of this job may have ended, and
            // another worker may have acked the job. So the job came again only if it was leased after that ack.
            let leased_ms = job["lease_until_ms"].as_i64().unwrap() - LEASE_MS;
            let done_ms = acked.lock().unwrap().done.get(id).copied();
            assert!(done_ms.is_none_or(|done| leased_ms <= done + 1), "{id} came again after its ack");
            let answer = worker.ack(&job);
            let mut acked = acked.lock().unwrap();
            match answer {
                AckAnswer::Done => _ = acked.done.entry(id.to_owned()).or_insert_with(crate::support::now_ms),
                AckAnswer::Unknown => _ = acked.unknown.insert(id.to_owned()),
                AckAnswer::Refused => {}
            }
        }
    }
}

/// Stops the workers when this value is dropped, also if the test fails.
struct Stops<'a>(&'a AtomicBool);

impl Drop for Stops<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn kills_lose_no_job_and_an_acked_job_never_comes_again() {
    let daemon = Daemon::start(&pulled("t", "max_attempts = 100\nretry = [\"10ms\"]"));
    daemon.wait_all_up(SLOTS);
    let (stop, acked, mut added) = (AtomicBool::new(false), Mutex::<Acked>::default(), HashSet::new());
    std::thread::scope(|scope| {
        let _stops = Stops(&stop);
        for _ in 0..2 {
            scope.spawn(|| work(HttpWorker(daemon.http), &stop, &acked));
            scope.spawn(|| work(TcpWorker(&daemon, None), &stop, &acked));
        }
        let mut roles: Vec<String> = daemon.children().into_keys().collect();
        roles.sort();
        assert_eq!(roles.len(), SLOTS);
        for kill in 0..2 * SLOTS {
            for n in 0..20 {
                // An add without an answer may have been done. So the next try adds another job.
                let mut tries = 0;
                let (id, answer) = eventually(20 * SECOND, "an add", || {
                    tries += 1;
                    let id = format!("{kill}-{n}-{tries}");
                    let mut client =
                        cli::TcpClient::connect(daemon.address(), protocol::dq::Framing::Binary).ok()?;
                    let answer = client.ask(&add("t", &id, (n % 4) * 50)).ok()?;
                    Some((id, answer))
                });
                assert_eq!(answer["code"], 1, "{answer}");
                added.insert(id);
            }
            daemon.kill_child(&roles[kill % roles.len()]);
        }
        let is_ended =
            |acked: &Acked| added.iter().all(|id| acked.done.contains_key(id) || acked.unknown.contains(id));
        let until = Instant::now() + 60 * SECOND;
        while acked.lock().is_ok_and(|acked| !is_ended(&acked)) && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(50));
        }
        // The test waits for the time of two leases. A job that is not settled would come again in this time.
        std::thread::sleep(4 * SECOND);
    });
    let Acked { done, unknown } = acked.into_inner().unwrap();
    let mut client = daemon.client();
    assert_eq!(crate::support::pending(&mut client, "t"), 0);
    // A job may be gone only if its ack was answered with success, or may have been done.
    let lost: Vec<_> = added.iter().filter(|id| !done.contains_key(*id) && !unknown.contains(*id)).collect();
    assert!(lost.is_empty(), "{lost:?}");
    assert!(done.len() > added.len() / 2, "{} of {}", done.len(), added.len());
}

/// Allows this process enough open files for 5,000 connections. Returns 5,000, or how many connections the limit of the
/// host permits.
pub fn five_thousand() -> usize {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, hard.min(20_000).max(soft), hard).unwrap();
    if hard >= 11_000 { 5_000 } else { (hard as usize - 500) / 2 }
}

/// Checks that the processes of a daemon use nearly no processor time in four of ten seconds. In the other seconds,
/// they may finish earlier work, or check whether the waiting clients are still connected. These checks come every ten
/// seconds, and take as many seconds as the clients needed to connect.
pub fn costs_nothing_while_clients_wait(daemon: &Daemon) {
    let spent = || -> HashMap<String, Duration> {
        let usage = |pid: nix::unistd::Pid| host::usage_of(pid.as_raw()).expect("it runs").cpu;
        daemon.children().into_iter().map(|(name, pid)| (name, usage(pid))).collect()
    };
    let busy = || -> Vec<(String, Duration)> {
        let before = spent();
        std::thread::sleep(SECOND);
        let spent = spent().into_iter().map(|(name, after)| (name.clone(), after - before[&name]));
        spent.filter(|(_, spent)| *spent > Duration::from_millis(50)).collect()
    };
    let seconds: Vec<_> = (0..10).map(|_| busy()).collect();
    let quiet = seconds.iter().filter(|busy| busy.is_empty()).count();
    assert!(quiet >= 4, "processor time in a second, while nothing happens: {seconds:?}");
}

#[test]
fn one_of_five_thousand_waiting_clients_gets_the_job() {
    let clients = five_thousand();
    let more = "[http]\nmax_connections = 12000\nmax_connections_per_source = 12000\nmax_reserves = 12000\n";
    let daemon = Daemon::start(&(more.to_owned() + &pulled("t", "")));
    daemon.wait_all_up(SLOTS);
    let mut waiting: Vec<Http> = (0..clients).map(|_| Http::tcp(&daemon)).collect();
    waiting.iter_mut().for_each(|http| begin(http, "t", &json!({"wait": "60s"})));
    let mut client = Http::unix(&daemon);
    // This reserve came after all other reserves, so the other clients wait when it is answered.
    let asked = Instant::now();
    assert!(reserve(&mut client, "t", &json!({"wait": "10ms"})).is_empty());
    assert!(asked.elapsed() < 10 * SECOND);
    costs_nothing_while_clients_wait(&daemon);
    put(&mut client, "t", "1", &json!({}));
    assert!(reserve(&mut client, "t", &json!({"wait": "300ms"})).is_empty(), "somebody has it");
    daemon.signal(Signal::SIGUSR2);
    let got: Vec<Value> = waiting.iter_mut().flat_map(|http| jobs(http.receive())).collect();
    assert_eq!(ids(&got), ["1"]);
    assert_eq!(got[0]["attempt"], 1);
}

/// Runs `dq` against a daemon. Returns its exit code and its output.
fn dq(daemon: &Daemon, words: &[&str]) -> (i32, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_dq"));
    command.args(words).arg("--run-dir").arg(daemon.dir.path().join("var/run")).stdin(Stdio::null());
    let out = command.output().unwrap();
    let text = String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr);
    (out.status.code().unwrap(), text)
}

#[test]
fn the_command_line_reserves_and_reports() {
    let daemon = Daemon::start(&pulled("t", "keep_done = \"1h\""));
    let mut http = Http::unix(&daemon);
    assert_eq!(dq(&daemon, &["reserve", "t"]), (1, "no job is ready\n".to_owned()));
    put(&mut http, "t", "1", &json!({}));
    let (code, text) = dq(&daemon, &["reserve", "t", "--wait", "10s", "--lease", "1m", "--json"]);
    let job: Value = serde_json::from_str(&text).unwrap();
    assert_eq!((code, &job["id"]), (0, &json!("1")));
    let token = job["token"].as_str().unwrap();
    let (code, text) = dq(&daemon, &["extend", "t", "1", token, "--by", "2m"]);
    assert!(code == 0 && text.starts_with("extended: t:1, leased until 20"), "{text}");
    let (code, text) = dq(&daemon, &["nack", "t", "1", token, "--delay", "10ms", "--reason", "no stock"]);
    assert_eq!((code, text.as_str()), (0, "retried: t:1\n"));
    let (code, text) = dq(&daemon, &["reserve", "t", "--wait", "10s", "--json"]);
    let job: Value = serde_json::from_str(&text).unwrap();
    assert_eq!((code, &job["attempt"]), (0, &json!(2)));
    let (code, text) = dq(&daemon, &["ack", "t", "1", job["token"].as_str().unwrap(), "--answer", "ok"]);
    assert_eq!((code, text.as_str()), (0, "done: t:1\n"));
    assert_ne!(dq(&daemon, &["ack", "t", "1", "AAAA"]).0, 0);
}

#[test]
fn a_command_is_run_for_each_job_and_its_exit_decides() {
    let more = "keep_done = \"1h\"\nmax_attempts = 2\nretry = [\"10ms\"]\nttr = \"1s\"";
    let mut daemon = Daemon::start(&pulled("t", more));
    let mut http = Http::unix(&daemon);
    (0..6).for_each(|n| put(&mut http, "t", &n.to_string(), &json!({"tags": ["a"]})));
    // The command takes longer than the lease, so `dq` extends the lease while the command runs. One job fails.
    let script = "sleep 1.5; cat; echo \" $DQ_TOPIC $DQ_TAGS $DQ_ATTEMPT\"; test $DQ_ID != 3";
    let mut command = Command::new(env!("CARGO_BIN_EXE_dq"));
    command.args(["reserve", "t", "--exec", script, "--workers", "3", "--run-dir"]);
    command.arg(daemon.dir.path().join("var/run")).stdout(Stdio::null()).stderr(Stdio::null());
    let mut worker = command.spawn().unwrap();
    let counts = |http: &mut Http| {
        let stats = http.get("/v1/stats").is(200);
        let of_t = stats["topics"].as_array().unwrap().iter().find(|t| t["topic"] == "t").cloned();
        of_t.map(|t| [&t["ready"], &t["leased"], &t["delayed"], &t["dead"]].map(|n| n.as_u64().unwrap()))
    };
    eventually(60 * SECOND, "all jobs", || (counts(&mut http) == Some([0, 0, 0, 1])).then_some(()));
    let records = http.get("/v1/topics/t/jobs/0/records").is(200);
    let log = &records["records"][0]["log"];
    assert_eq!(log.as_array().unwrap().len(), 1, "its lease did not run out: {records}");
    assert_eq!(log[0]["answer"], "{\"of\":\"0\"} t a 1");
    let dead = http.get("/v1/topics/t/jobs/3").is(200);
    assert!(dead["log"][1]["error"].as_str().unwrap().starts_with("exit status: 1"), "{dead}");
    // After TERM, `dq` waits until the running command has finished.
    put(&mut http, "t", "last", &json!({}));
    eventually(20 * SECOND, "the last job", || (counts(&mut http)? == [0, 1, 0, 1]).then_some(()));
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(worker.id() as i32), Signal::SIGTERM).unwrap();
    assert!(worker.wait().unwrap().success());
    assert_eq!(counts(&mut http), Some([0, 0, 0, 1]));
    drop(http);
    daemon.stop();
}

/// Starts `dq reserve --exec` for the topic `t`.
fn start_worker(script: &str, more: &[&str]) -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_dq"));
    command.args(["reserve", "t", "--exec", script]).args(more);
    command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

#[test]
fn a_command_that_does_not_read_its_job_ends_no_worker() {
    let daemon = Daemon::start(&pulled("t", ""));
    let mut http = Http::unix(&daemon);
    // Each body is larger than a pipe's buffer, so `dq` is still writing when the command ends.
    (0..20).for_each(|n| put(&mut http, "t", &n.to_string(), &json!({"body": "x".repeat(200_000)})));
    let run_dir = daemon.dir.path().join("var/run").display().to_string();
    let mut worker = start_worker("true", &["--workers", "4", "--run-dir", &run_dir]);
    eventually(60 * SECOND, "all jobs", || {
        assert_eq!(worker.try_wait().unwrap(), None, "the worker runs");
        let stats = http.get("/v1/stats").is(200);
        let t = stats["topics"].as_array().unwrap().iter().find(|t| t["topic"] == "t")?.clone();
        ["ready", "leased", "delayed", "dead"].iter().all(|state| t[*state] == 0).then_some(())
    });
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(worker.id() as i32), Signal::SIGTERM).unwrap();
    assert!(worker.wait().unwrap().success());
}

#[test]
fn a_process_that_a_command_leaves_behind_holds_no_job() {
    let daemon = Daemon::start(&pulled("t", "keep_done = \"1h\""));
    let mut http = Http::unix(&daemon);
    put(&mut http, "t", "1", &json!({}));
    let run_dir = daemon.dir.path().join("var/run").display().to_string();
    let mut worker = start_worker("echo done; sleep 60 &", &["--run-dir", &run_dir]);
    let record = eventually(20 * SECOND, "the end of the job", || {
        let records = http.get("/v1/topics/t/jobs/1/records").is(200);
        records["records"].get(0).cloned()
    });
    assert_eq!(record["log"][0]["answer"], "done", "{record}");
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(worker.id() as i32), Signal::SIGTERM).unwrap();
    assert!(worker.wait().unwrap().success());
}

#[test]
fn a_worker_that_stops_loses_no_job_that_it_was_given() {
    let daemon = Daemon::start(&pulled("t", ""));
    let mut http = Http::unix(&daemon);
    let run_dir = daemon.dir.path().join("var/run").display().to_string();
    for round in 0..20 {
        (0..30).for_each(|n| put(&mut http, "t", &format!("{round}-{n}"), &json!({})));
        let mut worker = start_worker("true", &["--workers", "4", "--run-dir", &run_dir]);
        std::thread::sleep(Duration::from_millis(30 + 7 * round));
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(worker.id() as i32), Signal::SIGTERM).unwrap();
        worker.wait().unwrap();
    }
    // `dq` reports each job that a worker got. A job that came too late for a worker was handed back.
    eventually(10 * SECOND, "no leased job", || {
        let stats = http.get("/v1/stats").is(200);
        let t = stats["topics"].as_array().unwrap().iter().find(|t| t["topic"] == "t")?.clone();
        (t["leased"] == 0).then_some(())
    });
}

#[test]
fn a_worker_that_waits_ends_at_once_and_takes_no_job() {
    let daemon = Daemon::start(&pulled("t", "keep_done = \"1h\""));
    let mut http = Http::unix(&daemon);
    let run_dir = daemon.dir.path().join("var/run").display().to_string();
    let url = format!("http://127.0.0.1:{}", daemon.http);
    for (n, door) in [["--run-dir", &run_dir], ["--url", &url]].iter().enumerate() {
        let mut worker = start_worker("cat", &[door[0], door[1], "--workers", "2"]);
        // A worker that has done a job waits for the next job.
        put(&mut http, "t", &format!("first{n}"), &json!({}));
        eventually(20 * SECOND, "the first job", || {
            let records = http.get(&format!("/v1/topics/t/jobs/first{n}/records")).is(200);
            records["records"][0].is_object().then_some(())
        });
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(worker.id() as i32), Signal::SIGTERM).unwrap();
        let asked = Instant::now();
        assert!(worker.wait().unwrap().success());
        assert!(asked.elapsed() < 5 * SECOND, "{door:?} waited: {:?}", asked.elapsed());
        put(&mut http, "t", &format!("next{n}"), &json!({}));
        let job = one(&mut http, "t");
        assert_eq!((&job["id"], &job["attempt"]), (&json!(format!("next{n}")), &json!(1)));
        report(&mut http, &job, "ack", json!({})).is(200);
    }
}

#[test]
fn due_jobs_that_nobody_reserves_are_told_of() {
    let daemon = Daemon::start(&(pulled("worked", "") + &pulled("alone", "")));
    let mut http = Http::unix(&daemon);
    for topic in ["worked", "alone"] {
        (0..2).for_each(|n| put(&mut http, topic, &n.to_string(), &json!({})));
    }
    one(&mut http, "worked");
    let status = eventually(40 * SECOND, "the topic alone", || {
        let (_, text) = dq(&daemon, &["status"]);
        text.contains("nobody delivers the due jobs of topic alone").then_some(text)
    });
    assert!(status.contains("no client reserves its jobs"), "{status}");
    assert!(!status.contains("due jobs of topic worked"), "{status}");
}
