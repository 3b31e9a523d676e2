//! The HTTP API of jobs: requests to a real daemon, over TCP and over its Unix socket.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use crate::support::http::Http;
use crate::support::{
    Daemon, SECOND, SLOTS, Sink, all_new, eventually, now_ms, on_redis, topic, without_due,
};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

const FAR: &str = "10h";

fn sink_and(more: &str) -> (Sink, Daemon) {
    let sink = Sink::start();
    let daemon = Daemon::start(&format!(
        "{more}{}{}",
        topic("t", &sink, "delay = \"5h\""),
        topic("off", &sink, "status = \"offline\"")
    ));
    (sink, daemon)
}

#[test]
fn an_id_may_be_a_number_as_over_tcp() {
    let sink = Sink::start();
    let daemon = Daemon::start(&topic("t", &sink, "delay = \"1h\""));
    let mut http = Http::unix(&daemon);
    for (n, id) in ["12345678901234567890", "-7", "1.5"].into_iter().enumerate() {
        let body = format!(r#"{{"id": {id}, "body": {n}}}"#);
        let added = http.send("POST", "/v1/topics/t/jobs", "", body.as_bytes()).is(201);
        assert_eq!(added["id"], id);
        let found = daemon.client().ask(&json!({"cmd": "get", "topic": "t", "id": id})).unwrap();
        assert_eq!(found["data"]["body"], n, "{found}");
    }
    http.ask("POST", "/v1/topics/t/jobs", &json!({"id": null, "body": 1})).is(201);
}

#[test]
fn a_job_that_is_added_over_http_is_delivered_when_it_is_due() {
    let (sink, daemon) = sink_and("");
    for (n, mut http) in Http::doors(&daemon).into_iter().enumerate() {
        let body = json!({"order": n, "text": "中"});
        let added = http.ask("POST", "/v1/topics/t/jobs", &json!({"body": body, "delay": 0.2})).is(201);
        sink.wait_for(n + 1, 10 * SECOND);
        let call = sink.calls().pop().unwrap();
        assert_eq!((call.header("dq-topic"), call.header("dq-job-id")), ("t", added["id"].as_str().unwrap()));
        assert_eq!(serde_json::from_str::<Value>(&call.body).unwrap(), body);
        assert!(call.late_ms().unwrap() >= 0);
    }
}

#[test]
fn every_route_of_jobs_does_what_it_says_by_both_doors() {
    let (sink, daemon) = sink_and("");
    for (door, mut http) in Http::doors(&daemon).into_iter().enumerate() {
        // Ids may hold anything: characters that would end a path or begin a query, and characters outside ASCII.
        for (id, path) in [
            (format!("plain-{door}"), format!("plain-{door}")),
            (format!("a/b?c#d%e:f g+h/{door}"), format!("a%2Fb%3Fc%23d%25e%3Af%20g%2Bh%2F{door}")),
            (format!("中\n\"{door}"), format!("%E4%B8%AD%0A%22{door}")),
            ("batch".to_owned(), "batch".to_owned()),
        ] {
            let at = format!("/v1/topics/t/jobs/{path}");
            let job = json!({"id": id, "body": [1, {"a": null}], "delay": FAR, "priority": "high", "max_attempts": 3});
            let answer = http.ask("POST", "/v1/topics/t/jobs", &job);
            assert_eq!(answer.headers["location"].replace("%2D", "-"), at);
            assert_eq!(without_due(answer.is(201)), json!({"topic": "t", "id": id, "outcome": "new"}));

            let shown = http.get(&at).is(200);
            let due = shown["due_ms"].as_i64().unwrap();
            assert!((35_990_000..=36_000_010).contains(&(due - now_ms())), "{shown}");
            assert!((now_ms() - shown["added_ms"].as_i64().unwrap()).abs() < 10_000, "{shown}");
            let members = ["topic", "id", "state", "priority", "attempts", "max_attempts", "log", "body"];
            assert_eq!(
                members.map(|name| shown[name].clone()),
                [
                    json!("t"),
                    json!(id),
                    json!("delayed"),
                    json!("high"),
                    json!(0),
                    json!(3),
                    json!([]),
                    json!([1, {"a": null}])
                ]
            );

            let again =
                |on_conflict: &str| json!({"id": id, "body": on_conflict, "on_conflict": on_conflict});
            let answer = http.ask("POST", "/v1/topics/t/jobs", &again("reject"));
            answer.is_problem(409, "exists", None);
            let answer = http.ask("POST", "/v1/topics/t/jobs", &again("keep"));
            assert!(!answer.headers.contains_key("location"));
            assert_eq!(answer.is(200)["outcome"], "kept");
            let answer = http.ask("POST", "/v1/topics/t/jobs", &again("replace"));
            assert_eq!(answer.is(200)["outcome"], "replaced");
            let shown = http.get(&at).is(200);
            assert_eq!(shown["body"], "replace");
            let in_ms = shown["due_ms"].as_i64().unwrap() - now_ms();
            assert!((17_990_000..=18_000_010).contains(&in_ms), "the topic's delay: {shown}");

            http.ask("PATCH", &at, &json!({"run_at": "2199-01-01T00:00:00Z"})).is(204);
            assert_eq!(http.get(&at).is(200)["due_ms"], 7_226_582_400_000_i64);
            http.ask("PATCH", &at, &json!({"run_at": 7_226_582_400_001_i64})).is(204);
            assert_eq!(http.get(&at).is(200)["due_ms"], 7_226_582_400_001_i64);

            let before = http.get(&at).is(200);
            let change = json!({"body": {"a": [1]}, "priority": "low", "max_attempts": 7});
            http.ask("PATCH", &at, &change).is(204);
            http.ask("PATCH", &at, &json!({"body": null})).is(204);
            let mut expected = before;
            expected["body"] = Value::Null;
            expected["priority"] = json!("low");
            expected["max_attempts"] = json!(7);
            assert_eq!(http.get(&at).is(200), expected);
            http.ask("PATCH", &at, &json!({"max_attempts": null})).is(204);
            assert_eq!(http.get(&at).is(200).get("max_attempts"), None);

            http.ask("DELETE", &at, &Value::Null).is(204);
            for (method, body) in
                [("GET", Value::Null), ("DELETE", Value::Null), ("PATCH", json!({"delay": 1}))]
            {
                http.ask(method, &at, &body).is_problem(404, "not_found", None);
            }
            http.ask("POST", &format!("{at}/run"), &Value::Null).is_problem(404, "not_found", None);

            let before = sink.count();
            http.ask("POST", "/v1/topics/t/jobs", &json!({"id": id, "body": 1, "delay": FAR})).is(201);
            http.ask("POST", &format!("{at}/run"), &Value::Null).is(204);
            eventually(10 * SECOND, "the delivery", || (sink.count() > before).then_some(()));
        }
    }
}

#[test]
fn a_batch_is_answered_job_by_job() {
    let (_sink, daemon) = sink_and("");
    for (door, mut http) in Http::doors(&daemon).into_iter().enumerate() {
        let (a, b) = (format!("a{door}"), format!("b{door}"));
        let jobs = json!({"jobs": [
            {"id": a, "body": 1},
            {"id": b, "body": 1, "delay": "soon"},
            {"id": a, "body": 2, "on_conflict": "reject"},
            {"body": 3},
            7,
            {"id": a, "body": 4},
        ]});
        let answer = http.ask("POST", "/v1/topics/t/jobs/batch", &jobs).is(200);
        let results = answer["results"].as_array().unwrap();
        let statuses: Vec<_> = results.iter().map(|r| r["status"].as_u64().unwrap()).collect();
        assert_eq!(statuses, [201, 422, 409, 201, 400, 200], "{answer}");
        let stored = json!({"status": 201, "topic": "t", "id": a, "outcome": "new"});
        assert_eq!(without_due(results[0].clone()), stored);
        assert_eq!((&results[1]["code"], &results[1]["field"]), (&json!("bad_field"), &json!("delay")));
        assert_eq!((&results[2]["code"], &results[2]["id"]), (&json!("exists"), &json!(a)));
        let made = results[3]["id"].as_str().unwrap();
        assert_eq!(http.get(&format!("/v1/topics/t/jobs/{made}")).is(200)["body"], 3);
        assert_eq!(http.get(&format!("/v1/topics/t/jobs/{a}")).is(200)["body"], 4);
        http.get(&format!("/v1/topics/t/jobs/{b}")).is_problem(404, "not_found", None);
        let none = http.ask("POST", "/v1/topics/t/jobs/batch", &json!({"jobs": []}));
        assert_eq!(none.is(200), json!({"results": []}));
    }
}

#[test]
fn a_listing_continues_where_a_page_ends_and_stats_count_jobs() {
    let (_sink, daemon) = sink_and("");
    let mut http = Http::tcp(&daemon);
    let jobs: Vec<Value> = (0..230)
        .map(|n| json!({"id": format!("{n:03}"), "body": "x".repeat(n * 100), "delay": 3600 + n}))
        .collect();
    for some in jobs.chunks(40) {
        http.ask("POST", "/v1/topics/t/jobs/batch", &json!({"jobs": some})).is(200);
    }
    for mut http in Http::doors(&daemon) {
        for limit in [7, 100, 1000] {
            let (mut ids, mut cursor) = (Vec::new(), String::new());
            loop {
                let path = format!("/v1/topics/t/jobs?state=delayed&limit={limit}{cursor}");
                let page = http.get(&path).is(200);
                let some = page["jobs"].as_array().unwrap();
                assert!(some.len() <= limit);
                ids.extend(some.iter().map(|job| job["id"].as_str().unwrap().to_owned()));
                match page["next"].as_str() {
                    Some(next) => cursor = format!("&cursor={next}"),
                    None => break,
                }
            }
            if !on_redis() {
                assert!(ids.is_sorted(), "by due time: {ids:?}");
            }
            ids.sort();
            assert_eq!(ids, (0..230).map(|n| format!("{n:03}")).collect::<Vec<_>>());
        }
        assert_eq!(http.get("/v1/topics/t/jobs?state=dead").is(200), json!({"jobs": [], "next": null}));
        let empty = |topic: &str, delayed: u64| json!({"topic": topic, "delayed": delayed, "ready": 0, "leased": 0, "dead": 0, "add_rate_used": null, "paused": false});
        let mut stats = http.get("/v1/stats").is(200);
        for topic in stats["topics"].as_array_mut().unwrap() {
            let (delayed, bytes) = (topic["delayed"].as_u64().unwrap(), topic["bytes"].take());
            topic.as_object_mut().unwrap().remove("bytes");
            // A body of job n has n times 100 bytes. On Redis, the bytes of a topic are counted only if it has a limit.
            let is_counted = delayed > 0 && !on_redis();
            assert_eq!(bytes.as_u64().is_some_and(|bytes| bytes > 2_600_000), is_counted, "{bytes}");
        }
        assert_eq!(stats, json!({"away": [], "topics": [empty("off", 0), empty("t", 230)]}));
    }
}

/// Method, path and body; then status, code and field.
type Row<'a> = (&'a str, &'a str, &'a str, u16, &'a str, Option<&'a str>);

#[test]
fn whatever_is_wrong_with_a_request_is_named() {
    let (_sink, daemon) = sink_and("[server]\nmax_frame = \"4KiB\"\n");
    let long = "x".repeat(257);
    let (jobs, job, batch) = ("/v1/topics/t/jobs", "/v1/topics/t/jobs/1", "/v1/topics/t/jobs/batch");
    let huge = format!(r#"{{"body": "{}"}}"#, "x".repeat(5000));
    let many = format!(
        r#"{{"body": 1, {}}}"#,
        (0..100).map(|n| format!("\"f{n}\": 1")).collect::<Vec<_>>().join(",")
    );
    #[rustfmt::skip]
    let table: &[Row] = &[
        ("POST", jobs, "", 400, "bad_json", None),
        ("POST", jobs, "{", 400, "bad_json", None),
        ("POST", jobs, "[]", 400, "bad_json", None),
        ("POST", jobs, "null", 400, "bad_json", None),
        ("POST", jobs, r#"{"body": 1} x"#, 400, "bad_json", None),
        ("POST", jobs, r#"{"id": "a", "body": 1, "id": "b"}"#, 400, "bad_json", None),
        ("POST", jobs, r#"{}"#, 422, "missing_field", Some("body")),
        ("POST", jobs, r#"{"id": 7e3, "body": 1}"#, 422, "bad_field", Some("id")),
        ("POST", jobs, r#"{"id": "", "body": 1}"#, 422, "bad_field", Some("id")),
        ("POST", jobs, r#"{"body": 1, "dealy": 1}"#, 422, "unknown_field", Some("dealy")),
        ("POST", jobs, r#"{"body": 1, "colour": {}}"#, 422, "unknown_field", Some("colour")),
        ("POST", jobs, &many, 422, "unknown_field", Some("f0")),
        ("POST", jobs, r#"{"body": 1, "delay": -1}"#, 422, "bad_field", Some("delay")),
        ("POST", jobs, r#"{"body": 1, "delay": "90"}"#, 422, "bad_field", Some("delay")),
        ("POST", jobs, r#"{"body": 1, "delay": true}"#, 422, "bad_field", Some("delay")),
        ("POST", jobs, r#"{"body": 1, "delay": 1e300}"#, 422, "bad_field", Some("delay")),
        ("POST", jobs, r#"{"body": 1, "run_at": "tomorrow"}"#, 422, "bad_field", Some("run_at")),
        ("POST", jobs, r#"{"body": 1, "run_at": 1.5}"#, 422, "bad_field", Some("run_at")),
        ("POST", jobs, r#"{"body": 1, "delay": 1, "run_at": 1}"#, 422, "bad_field", Some("run_at")),
        ("POST", jobs, r#"{"body": 1, "priority": "urgent"}"#, 422, "bad_field", Some("priority")),
        ("POST", jobs, r#"{"body": 1, "priority": -1}"#, 422, "bad_field", Some("priority")),
        ("POST", jobs, r#"{"body": 1, "priority": 4294967296}"#, 422, "bad_field", Some("priority")),
        ("POST", jobs, r#"{"body": 1, "priority": 1.5}"#, 422, "bad_field", Some("priority")),
        ("POST", jobs, r#"{"body": 1, "on_conflict": 1}"#, 422, "bad_field", Some("on_conflict")),
        ("POST", jobs, r#"{"body": 1, "max_attempts": 0}"#, 422, "bad_field", Some("max_attempts")),
        ("POST", jobs, r#"{"body": 1, "max_attempts": "3"}"#, 422, "bad_field", Some("max_attempts")),
        ("POST", jobs, &huge, 413, "too_large", None),
        ("POST", "/v1/topics/nobody/jobs", r#"{"body": 1}"#, 404, "unknown_topic", None),
        ("POST", "/v1/topics/off/jobs", r#"{"body": 1}"#, 409, "topic_offline", None),
        ("POST", "/v1/topics/a%20b/jobs", r#"{"body": 1}"#, 422, "bad_field", Some("topic")),
        ("POST", batch, r#"{}"#, 422, "missing_field", Some("jobs")),
        ("POST", batch, r#"{"jobs": {}}"#, 422, "bad_field", Some("jobs")),
        ("POST", batch, r#"{"jobs": [], "topic": "t"}"#, 422, "unknown_field", Some("topic")),
        ("POST", "/v1/topics/nobody/jobs/batch", r#"{"jobs": []}"#, 404, "unknown_topic", None),
        ("POST", "/v1/topics/off/jobs/batch", r#"{"jobs": []}"#, 409, "topic_offline", None),
        ("GET", jobs, "", 422, "missing_field", Some("state")),
        ("GET", "/v1/topics/t/jobs?state=done", "", 422, "bad_field", Some("state")),
        ("GET", "/v1/topics/t/jobs?state=dead&limit=0", "", 422, "bad_field", Some("limit")),
        ("GET", "/v1/topics/t/jobs?state=dead&limit=1001", "", 422, "bad_field", Some("limit")),
        ("GET", "/v1/topics/t/jobs?state=dead&cursor=2.1", "", 422, "bad_field", Some("cursor")),
        ("GET", "/v1/topics/t/jobs?state=dead&page=2", "", 422, "unknown_field", Some("page")),
        ("GET", "/v1/topics/nobody/jobs?state=dead", "", 404, "unknown_topic", None),
        ("GET", &format!("{jobs}/{long}"), "", 422, "bad_field", Some("id")),
        ("GET", &format!("{jobs}/%FF"), "", 400, "bad_path", None),
        ("GET", job, "", 404, "not_found", None),
        ("GET", "/v1/topics/t/jobs/batch", "", 404, "not_found", None),
        ("GET", "/v1/topics/nobody/jobs/1", "", 404, "not_found", None),
        ("PATCH", job, r#"{}"#, 422, "missing_field", Some("delay")),
        ("PATCH", job, r#"{"id": 1}"#, 422, "unknown_field", Some("id")),
        ("PATCH", job, r#"{"priority": "urgent"}"#, 422, "bad_field", Some("priority")),
        ("PATCH", job, r#"{"priority": "5"}"#, 422, "bad_field", Some("priority")),
        ("PATCH", job, r#"{"max_attempts": 0}"#, 422, "bad_field", Some("max_attempts")),
        ("PATCH", job, r#"{"delay": 1, "run_at": 1}"#, 422, "bad_field", Some("run_at")),
        ("PATCH", jobs, r#"{}"#, 405, "no_method", None),
        ("PUT", job, r#"{}"#, 405, "no_method", None),
        ("GET", "/v1/topics/t/jobs/1/run", "", 405, "no_method", None),
        ("GET", "/v1/nothing", "", 404, "no_route", None),
        ("GET", "/v1/topics/t/jobs/", "", 404, "no_route", None),
        ("GET", "/v1/topics/t/jobs/a/b", "", 404, "no_route", None),
    ];
    for (method, path, body, status, code, field) in table {
        for mut http in Http::doors(&daemon) {
            let answer = http.send(method, path, "", body.as_bytes());
            println!("{method} {path} {body:.60} -> {}", answer.json["detail"]);
            answer.is_problem(*status, code, *field);
            assert!(!answer.headers["x-request-id"].is_empty());
        }
    }
    let mut http = Http::tcp(&daemon);
    http.send("PUT", job, "", b"").headers.get("allow").expect("what would be allowed");
    http.send("POST", jobs, "Content-Type: text/plain\r\n", b"{}").is_problem(415, "not_json", None);
    let added =
        http.send("POST", jobs, "Content-Type: application/json; charset=utf-8\r\n", br#"{"body": null}"#);
    assert_eq!(added.is(201)["topic"], "t");
    http.send("POST", jobs, "", b"{\"body\": \"\xff\"}").is_problem(400, "bad_json", None);
}

#[test]
fn a_request_has_an_id_its_own_or_one_that_is_made() {
    let (_sink, daemon) = sink_and("");
    for mut http in Http::doors(&daemon) {
        let answer = http.send("GET", "/v1/stats", "X-Request-Id: abc-1\r\n", b"");
        assert_eq!(answer.headers["x-request-id"], "abc-1");
        let made = http.get("/v1/stats").headers["x-request-id"].clone();
        assert!(made.len() >= 16 && made != http.get("/v1/stats").headers["x-request-id"]);
        http.send("GET", "/v1/nothing", "X-Request-Id: find-me\r\n", b"").is(404);
        let bad = http.send("GET", "/v1/nothing", "X-Request-Id: a b\r\n", b"");
        assert_ne!(bad.headers["x-request-id"], "a b");
    }
    // The log has the first refusal of each source.
    assert_eq!(daemon.log().matches("[find-me]").count(), 2, "{}", daemon.log());
}

#[test]
fn a_web_page_of_somebody_elses_reaches_nothing() {
    let (_sink, daemon) = sink_and("");
    let mut http = Http::tcp(&daemon);
    let own = format!("Host: localhost:{}\r\n", daemon.http);
    http.send("GET", "/v1/stats", &own, b"").is(200);
    let rebound = http.send("GET", "/v1/stats", "Host: evil.example\r\n", b"");
    rebound.is_problem(403, "foreign", None);
    let job = br#"{"body": 1}"#;
    let answer = http.send("POST", "/v1/topics/t/jobs", "Origin: http://evil.example\r\n", job);
    answer.is_problem(403, "foreign", None);
    let mut unix = Http::unix(&daemon);
    unix.send("GET", "/v1/stats", "Host: whatever\r\n", b"").is(200);
}

/// Counts the transactions in a SQLite log. The last frame of a transaction has the size of the database in its header.
/// The other frames have 0 in this place.
fn commits(daemon: &Daemon) -> usize {
    let log = std::fs::read(daemon.dir.path().join("var/dq.db-wal")).unwrap();
    let number = |at: usize| u32::from_be_bytes(log[at..at + 4].try_into().unwrap());
    let (page, salt) = (number(8) as usize, &log[16..24]);
    let frames = log[32..].chunks_exact(24 + page);
    frames.filter(|f| f[8..16] == *salt && f[4..8] != [0; 4]).count()
}

#[test]
fn adds_that_come_at_the_same_time_share_transactions() {
    if on_redis() {
        return; // This test is about the log of the embedded store.
    }
    let (_sink, daemon) = sink_and("");
    Http::tcp(&daemon).ask("POST", "/v1/topics/t/jobs", &json!({"body": 1})).is(201);
    let before = commits(&daemon);
    // There are so few requests that SQLite writes no checkpoint of the log in the meantime, even if each request needs
    // its own commit.
    const CONNECTIONS: usize = 20;
    const EACH: usize = 5;
    let all_there = std::sync::Barrier::new(CONNECTIONS);
    std::thread::scope(|scope| {
        for _ in 0..CONNECTIONS {
            scope.spawn(|| {
                let mut http = Http::tcp(&daemon);
                all_there.wait();
                for _ in 0..EACH {
                    http.ask("POST", "/v1/topics/t/jobs", &json!({"body": 1})).is(201);
                }
            });
        }
    });
    let commits = commits(&daemon) - before;
    println!("{} adds in {commits} transactions", CONNECTIONS * EACH);
    assert!((1..CONNECTIONS * EACH * 2 / 3).contains(&commits), "{commits}");
    let stats = Http::tcp(&daemon).get("/v1/stats").is(200);
    assert_eq!(stats["topics"][1]["delayed"], 1 + CONNECTIONS * EACH);
}

#[test]
fn no_request_fails_across_a_restart() {
    let (_sink, daemon) = sink_and("");
    let before = daemon.wait_all_up(SLOTS);
    let (stop, added) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for connection in 0..8 {
            let (stop, added, daemon) = (&stop, &added, &daemon);
            scope.spawn(move || {
                let open = || if connection % 2 == 0 { Http::tcp(daemon) } else { Http::unix(daemon) };
                let mut http = open();
                while !stop.load(Ordering::Relaxed) {
                    let answer = http.ask("POST", "/v1/topics/t/jobs", &json!({"body": 1}));
                    let last = answer.headers.get("connection").is_some_and(|c| c == "close");
                    let path = answer.headers.get("location").cloned();
                    answer.is(201);
                    added.fetch_add(1, Ordering::Relaxed);
                    if last {
                        http = open();
                    }
                    if connection == 0 {
                        let shown = http.get(&path.unwrap());
                        if shown.headers.get("connection").is_some_and(|c| c == "close") {
                            http = open();
                        }
                        shown.is(200);
                    }
                    std::thread::sleep(Duration::from_millis(1));
                }
            });
        }
        for _ in 0..2 {
            let before = daemon.children();
            daemon.signal(Signal::SIGUSR2);
            all_new(&daemon, &before);
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert_eq!(before.len(), daemon.children().len());
    let added = added.load(Ordering::Relaxed);
    println!("{added} adds");
    let stats = Http::tcp(&daemon).get("/v1/stats").is(200);
    assert_eq!(stats["topics"][1]["delayed"], added);
}

#[test]
fn a_store_that_cannot_take_a_job_is_told_and_works_again_after() {
    if on_redis() {
        return; // This test is about the file of the embedded store.
    }
    let (_sink, daemon) = sink_and("");
    let mut http = Http::tcp(&daemon);
    http.ask("POST", "/v1/topics/t/jobs", &json!({"id": "a", "body": 1})).is(201);
    let other = rusqlite::Connection::open(daemon.dir.path().join("var/dq.db")).unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    let answer = http.ask("POST", "/v1/topics/t/jobs", &json!({"id": "b", "body": 1}));
    answer.is_problem(503, "store_busy", None);
    assert_eq!(answer.headers["retry-after"], "1");
    http.get("/v1/topics/t/jobs/a").is(200);
    other.execute_batch("ROLLBACK").unwrap();
    http.ask("POST", "/v1/topics/t/jobs", &json!({"id": "b", "body": 1})).is(201);
}

#[test]
fn a_job_that_is_being_delivered_cannot_be_moved() {
    let sink = Sink::answering(|_| cli::HandlerAnswer::new(200, "ok").after(3 * SECOND));
    let daemon = Daemon::start(&topic("t", &sink, "timeout = \"20s\""));
    let mut http = Http::tcp(&daemon);
    http.ask("POST", "/v1/topics/t/jobs", &json!({"id": "a", "body": 1})).is(201);
    eventually(10 * SECOND, "the callback", || (sink.count() == 1).then_some(()));
    assert_eq!(http.get("/v1/topics/t/jobs/a").is(200)["state"], "leased");
    for change in [json!({"delay": 1}), json!({"body": 2})] {
        http.ask("PATCH", "/v1/topics/t/jobs/a", &change).is_problem(409, "conflict", None);
    }
    http.ask("POST", "/v1/topics/t/jobs/a/run", &Value::Null).is_problem(409, "conflict", None);
}
