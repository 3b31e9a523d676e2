//! The HTTP API for everything except jobs: topics, dead letters, the daemon itself. Requests to a real daemon, over
//! TCP and over its Unix socket.

use std::sync::Barrier;
use std::time::{Duration, Instant};

use crate::support::http::{Answer, Http};
use crate::support::mariadb::MariaDb;
use crate::support::redis::RedisServer;
use crate::support::{Daemon, SECOND, Sink, add, eventually, now_ms, on_redis, topic, without_due};
use cli::HandlerAnswer as Answered;
use serde_json::{Value, json};

/// Starts a daemon with a registry, and with one topic in the configuration file.
fn daemon_with(sink: &Sink, more: &str) -> Daemon {
    let of_file = topic("filed", sink, "delay = \"5h\"");
    if on_redis() {
        let url = MariaDb::shared().database().url().to_owned();
        return Daemon::start(&format!("{more}[registry]\nurl = \"{url}\"\n{of_file}"));
    }
    Daemon::start(&format!("{more}{of_file}"))
}

fn new_topic(name: &str, sink: &Sink) -> Value {
    json!({"name": name, "callback": sink.url()})
}

fn etag(answer: &Answer) -> String {
    answer.headers["etag"].clone()
}

#[test]
fn a_topic_that_is_registered_is_usable_by_the_next_request() {
    let sink = Sink::start();
    let daemon = daemon_with(&sink, "");
    for (n, mut http) in Http::doors(&daemon).into_iter().enumerate() {
        for round in 0..3 {
            let name = format!("t{n}{round}");
            let answer = http.ask("POST", "/v1/topics", &new_topic(&name, &sink));
            assert_eq!(answer.headers["location"], format!("/v1/topics/{name}"));
            let revision = etag(&answer);
            let shown = answer.is(201);
            assert_eq!((&shown["name"], &shown["source"]), (&json!(name), &json!("registry")));
            assert_eq!(format!("{:?}", shown["revision"].as_str().unwrap()), revision);
            let before = sink.count();
            http.ask("POST", &format!("/v1/topics/{name}/jobs"), &json!({"body": 1})).is(201);
            eventually(10 * SECOND, "the delivery", || (sink.count() > before).then_some(()));
            // dq-server learns of the change by itself.
            let mut client = daemon.client();
            let begun = Instant::now();
            eventually(5 * SECOND, "an add over TCP", || {
                (client.ask(&add(&name, "1", 0)).unwrap()["code"] == 1).then_some(())
            });
            assert!(begun.elapsed() < 4 * SECOND, "{:?}", begun.elapsed());
            http.ask("DELETE", &format!("/v1/topics/{name}?jobs=keep"), &Value::Null).is(204);
            http.ask("POST", &format!("/v1/topics/{name}/jobs"), &json!({"body": 1})).is_problem(
                404,
                "unknown_topic",
                None,
            );
        }
    }
}

#[test]
fn a_topic_is_shown_as_it_was_given_and_its_secrets_never() {
    let sink = Sink::start();
    let daemon = daemon_with(&sink, "");
    let mut given = json!({
        "name": "t", "title": "中 \"orders\"", "mode": "push", "callback": sink.url(), "method": "POST",
        "payload": "form", "headers": {"x-shop": "7"}, "job_headers": ["cookie"], "job_hosts": ["*.example.com", "[::1]:9000"], "tenant": "shop", "max_pending": 1000, "max_bytes": "10MiB", "add_rate": "30/m", "delay": "1h30m", "timeout": "1s500ms", "success": "non_empty",
        "connect_timeout": "200ms", "tls_verify": false, "re_notify_flag": "{res.code} != 0", "max_notifications": 100, "retry": "exponential", "retry_base": "2s", "retry_cap": "10m",
        "max_attempts": 4, "retry_on": ["5xx", "connect"], "answer_later": "2h", "ttr": "30s",
        "max_in_flight": 5, "rate": "6/m", "breaker_failures": 3, "breaker_pause": "20s", "catch_up": "spread 10m", "durability": "fsync", "priority": "high", "alert": ["a@example.com"],
        "creator": "somebody", "status": "offline", "secrets": ["one-secret", "two-secrets"],
        "old_secrets_until": "2999-12-01T15:50:50.000Z"
    });
    let kept = json!({"keep_done": "2h", "keep_done_jobs": 500, "keep_done_body": true, "keep_dead": "30days",
        "on_done": "", "on_done_answer": false, "on_reserve": "remove", "retried_first": true, "expire_after": "5m"});
    given.as_object_mut().unwrap().extend(kept.as_object().unwrap().clone());
    for mut http in Http::doors(&daemon) {
        let answer = http.ask("POST", "/v1/topics", &given);
        assert_eq!(answer.status, 201, "{answer:?}");
        let shown = answer.json;
        let mut expected = given.clone();
        expected["secrets"] = json!(2);
        for (field, value) in [
            ("source", json!("registry")),
            ("problem", Value::Null),
            ("revision", shown["revision"].clone()),
            ("paused", json!(false)),
            ("circuit", json!("closed")),
            ("circuit_reason", Value::Null),
            ("circuit_until_ms", Value::Null),
        ] {
            expected[field] = value;
        }
        assert_eq!(shown, expected);
        let again = http.get("/v1/topics/t");
        assert_eq!(etag(&again), format!("{:?}", shown["revision"].as_str().unwrap()));
        assert_eq!(again.is(200), shown);
        let all = http.get("/v1/topics").is(200);
        let names: Vec<_> = all["topics"].as_array().unwrap().iter().map(|t| t["name"].clone()).collect();
        assert_eq!(names, ["filed", "t"]);
        assert_eq!(all["topics"][1], shown);
        assert_eq!((&all["away"], &all["unusable"]), (&Value::Null, &json!([])));
        assert!(!all.to_string().contains("-secret"), "{all}");

        // A PATCH changes some fields, and null means the default. In a PUT, a missing field means the default.
        let patched =
            http.ask("PATCH", "/v1/topics/t", &json!({"delay": 2, "retry": ["1m", 90], "rate": null}));
        let patched = patched.is(200);
        expected["delay"] = json!("2s");
        expected["retry"] = json!(["1m", "1m30s"]);
        expected["rate"] = Value::Null;
        expected["revision"] = patched["revision"].clone();
        for field in ["retry_base", "retry_cap"] {
            expected[field] = Value::Null;
        }
        assert_eq!(patched, expected);
        let put = http.ask("PUT", "/v1/topics/t", &json!({"callback": sink.url()})).is(200);
        assert_eq!(
            (&put["delay"], &put["secrets"], &put["status"]),
            (&json!("0s"), &json!(0), &json!("online"))
        );
        http.ask("DELETE", "/v1/topics/t", &Value::Null).is(204);
        http.get("/v1/topics/t").is_problem(404, "unknown_topic", None);
    }
    assert!(!daemon.log().contains("-secret"), "{}", daemon.log());
}

#[test]
fn whoever_was_slower_is_told_and_changes_nothing() {
    let sink = Sink::start();
    let daemon = daemon_with(&sink, "");
    let [mut http, mut other] = Http::doors(&daemon);
    let first = etag(&http.ask("POST", "/v1/topics", &new_topic("t", &sink)));
    http.ask("POST", "/v1/topics", &new_topic("t", &sink)).is_problem(409, "exists", None);
    let with = |tag: &str| format!("If-Match: {tag}\r\n");
    let change = |n: u32| json!({"callback": sink.url(), "max_attempts": n}).to_string();
    let second = other.send("PUT", "/v1/topics/t", &with(&first), change(2).as_bytes());
    let second = etag(&second);
    assert_ne!(first, second);
    for (method, body) in [("PUT", change(3)), ("PATCH", change(3)), ("DELETE", String::new())] {
        let answer = http.send(method, "/v1/topics/t", &with(&first), body.as_bytes());
        answer.is_problem(412, "changed", None);
        // A weak or foreign entity tag is not a revision of the topic.
        http.send(method, "/v1/topics/t", &with("\"\""), body.as_bytes()).is_problem(412, "changed", None);
        http.send(method, "/v1/topics/t", &with("abc"), body.as_bytes()).is_problem(
            422,
            "bad_field",
            Some("if-match"),
        );
    }
    http.send("PUT", "/v1/topics/t", "If-None-Match: *\r\n", change(3).as_bytes())
        .is_problem(412, "changed", None);
    http.send("PUT", "/v1/topics/u", &with("*"), change(3).as_bytes()).is_problem(412, "changed", None);
    assert_eq!(http.get("/v1/topics/t").is(200)["max_attempts"], 2);
    let listed = format!("\"nothing\", {second}");
    http.send("PATCH", "/v1/topics/t", &with(&listed), br#"{"max_attempts": 4}"#).is(200);
    http.send("PUT", "/v1/topics/u", "If-None-Match: *\r\n", change(3).as_bytes()).is(201);
    http.send("DELETE", "/v1/topics/u", &with("*"), b"").is(204);

    // If many changes are based on one revision, only one of them succeeds. Without a revision, no change is refused,
    // and no change is lost.
    let tag = etag(&http.get("/v1/topics/t"));
    const MANY: u32 = 6;
    let barrier = Barrier::new(MANY as usize);
    let race = |headers: &str, body: &(dyn Fn(u32) -> String + Sync)| -> Vec<u16> {
        std::thread::scope(|scope| {
            let racers: Vec<_> = (0..MANY)
                .map(|n| {
                    let (barrier, daemon) = (&barrier, &daemon);
                    scope.spawn(move || {
                        let mut http = Http::tcp(daemon);
                        barrier.wait();
                        http.send("PATCH", "/v1/topics/t", headers, body(n).as_bytes()).status
                    })
                })
                .collect();
            racers.into_iter().map(|r| r.join().unwrap()).collect()
        })
    };
    let mut statuses = race(&with(&tag), &|n| format!("{{\"rate\": {}}}", n + 1));
    statuses.sort();
    assert_eq!(statuses, [200, 412, 412, 412, 412, 412]);
    let fields = ["title", "creator", "re_notify_flag", "breaker_failures", "max_in_flight", "max_attempts"];
    let body = |n: u32| match n {
        0..=2 => format!("{{{:?}: \"9\"}}", fields[n as usize]),
        _ => format!("{{{:?}: 9}}", fields[n as usize]),
    };
    assert_eq!(race("", &body), [200; MANY as usize]);
    let shown = http.get("/v1/topics/t").is(200);
    for field in fields {
        assert_eq!(shown[field].to_string().trim_matches('"'), "9", "{field}: {shown}");
    }
}

#[test]
fn a_topic_of_the_configuration_file_is_shown_and_not_changed() {
    let sink = Sink::start();
    let daemon = daemon_with(&sink, "");
    for mut http in Http::doors(&daemon) {
        let answer = http.get("/v1/topics/filed");
        assert!(!answer.headers.contains_key("etag"));
        let shown = answer.is(200);
        assert_eq!(
            (&shown["source"], &shown["revision"], &shown["delay"]),
            (&json!("file"), &Value::Null, &json!("5h"))
        );
        let whole = json!({"callback": sink.url()});
        for (method, body) in [("PUT", &whole), ("PATCH", &json!({"delay": 1})), ("DELETE", &Value::Null)] {
            http.ask(method, "/v1/topics/filed", body).is_problem(409, "read_only", None);
        }
        let rotated = http.ask("POST", "/v1/topics/filed/rotate-secret", &json!({}));
        assert!(rotated.json["detail"].as_str().unwrap().ends_with("(docs/CALLBACKS.md, Signatures)"));
        rotated.is_problem(409, "read_only", None);
        http.ask("POST", "/v1/topics", &new_topic("filed", &sink)).is_problem(409, "exists", None);
    }
}

#[test]
fn without_a_registry_topics_are_those_of_the_file() {
    let sink = Sink::start();
    let daemon = Daemon::start(&format!("[registry]\nurl = \"none\"\n{}", topic("filed", &sink, "")));
    let mut http = Http::tcp(&daemon);
    assert_eq!(http.get("/v1/topics").is(200)["topics"].as_array().unwrap().len(), 1);
    http.get("/v1/topics/filed").is(200);
    http.get("/v1/topics/other").is_problem(404, "unknown_topic", None);
    http.ask("POST", "/v1/topics", &new_topic("other", &sink)).is_problem(409, "no_registry", None);
    assert!(http.get("/readyz").is(200)["parts"].get("registry").is_none());
}

/// Method, path and body; then status, code and field.
type Row<'a> = (&'a str, &'a str, &'a str, u16, &'a str, Option<&'a str>);

#[test]
fn whatever_is_wrong_with_a_request_is_named() {
    let sink = Sink::start();
    let daemon = daemon_with(&sink, "[server]\nmax_frame = \"4KiB\"\n");
    let mut http = Http::tcp(&daemon);
    http.ask("POST", "/v1/topics", &new_topic("t", &sink)).is(201);
    let url = "\"callback\": \"http://127.0.0.1:9/\"";
    let with = |more: &str| format!("{{\"name\": \"n\", {url}, {more}}}");
    let bad: Vec<(String, &str)> = [
        (r#""delay": "soon""#, "delay"),
        (r#""delay": -1"#, "delay"),
        (r#""delay": "4000days""#, "delay"),
        (r#""timeout": "1ms""#, "timeout"),
        (r#""timeout": "2h""#, "timeout"),
        (r#""timeout": []"#, "timeout"),
        (r#""retry": "often""#, "retry"),
        (r#""retry": []"#, "retry"),
        (r#""retry": ["x"]"#, "retry"),
        (r#""retry": ["1m"], "retry_base": "1m""#, "retry_base"),
        (r#""retry_cap": "1m""#, "retry_cap"),
        (r#""method": "PUT""#, "method"),
        (r#""method": "GET""#, "method"),
        (r#""payload": 1"#, "payload"),
        (r#""success": 1"#, "success"),
        (r#""connect_timeout": "0s""#, "connect_timeout"),
        (r#""retry_on": "5xx""#, "retry_on"),
        (r#""retry_on": ["6xx"]"#, "retry_on"),
        (r#""answer_later": -1"#, "answer_later"),
        (r#""rate": "7/d""#, "rate"),
        (r#""breaker_failures": -1"#, "breaker_failures"),
        (r#""breaker_pause": "0s""#, "breaker_pause"),
        (r#""catch_up": "some""#, "catch_up"),
        (r#""catch_up": "spread 1ms""#, "catch_up"),
        (r#""durability": "disk""#, "durability"),
        (r#""durability": "replicas:0""#, "durability"),
        (r#""keep_dead": "x""#, "keep_dead"),
        (r#""mode": "poll""#, "mode"),
        (r#""ttr": "10ms""#, "ttr"),
        (r#""ttr": "25h""#, "ttr"),
        (r#""status": "on""#, "status"),
        (r#""priority": 1"#, "priority"),
        (r#""max_attempts": 1001"#, "max_attempts"),
        (r#""rate": 0"#, "rate"),
        (r#""max_attempts": 1.5"#, "max_attempts"),
        (r#""max_in_flight": "3""#, "max_in_flight"),
        (r#""headers": []"#, "headers"),
        (r#""headers": {"a b": "c"}"#, "headers"),
        (r#""headers": {"a": 1}"#, "headers"),
        (r#""headers": {"Host": "elsewhere"}"#, "headers"),
        (r#""headers": {"webhook-id": "1"}"#, "headers"),
        (r#""headers": {"x-a": "1", "X-A": "2"}"#, "headers"),
        (r#""success": "{res.code} = 0""#, "success"),
        (r#""re_notify_flag": "system({res.code})""#, "re_notify_flag"),
        (r#""secrets": ["long enough", "whsec_hush"]"#, "secrets"),
        (r#""alert": "a@b""#, "alert"),
        (r#""alert": [1]"#, "alert"),
        (r#""secrets": 2"#, "secrets"),
        (r#""title": 1"#, "title"),
        (r#""title": "a\u0000b""#, "title"),
        (r#""keep_done": "x""#, "keep_done"),
    ]
    .map(|(field, name)| (with(field), name))
    .into();
    for (body, field) in &bad {
        for (method, path) in [("POST", "/v1/topics"), ("PUT", "/v1/topics/n")] {
            http.send(method, path, "", body.as_bytes()).is_problem(422, "bad_field", Some(field));
        }
        let patch = body.replace("\"name\": \"n\", ", "");
        let answer = http.send("PATCH", "/v1/topics/t", "", patch.as_bytes());
        answer.is_problem(422, "bad_field", Some(field));
        assert!(answer.json["detail"].as_str().unwrap().contains(field), "{answer:?}");
    }
    let huge = with(&format!("\"title\": \"{}\"", "x".repeat(5000)));
    let long = with(&format!("\"title\": \"{}\"", "x".repeat(300)));
    let many = format!("{{\"ids\": [{}]}}", vec!["\"1\""; 1001].join(","));
    let (redrive, purge, test) =
        ("/v1/topics/t/dead/redrive", "/v1/topics/t/dead/purge", "/v1/topics/t/test");
    #[rustfmt::skip]
    let table: &[Row] = &[
        ("POST", "/v1/topics", "", 400, "bad_json", None),
        ("POST", "/v1/topics", "[]", 400, "bad_json", None),
        ("POST", "/v1/topics", r#"{"name": "a", "name": "b"}"#, 400, "bad_json", None),
        ("POST", "/v1/topics", "{}", 422, "missing_field", Some("name")),
        ("POST", "/v1/topics", r#"{"name": "a b"}"#, 422, "bad_field", Some("name")),
        ("POST", "/v1/topics", r#"{"name": 7}"#, 422, "bad_field", Some("name")),
        ("POST", "/v1/topics", r#"{"name": "n"}"#, 422, "missing_field", Some("callback")),
        ("POST", "/v1/topics", r#"{"name": "n", "callback": "nowhere"}"#, 422, "bad_field", Some("callback")),
        ("POST", "/v1/topics", r#"{"name": "n", "callback": "file:///etc/passwd"}"#, 422, "bad_field", Some("callback")),
        ("POST", "/v1/topics", &with("\"colour\": 1"), 422, "unknown_field", Some("colour")),
        ("POST", "/v1/topics", &with("\"source\": \"file\""), 422, "unknown_field", Some("source")),
        ("POST", "/v1/topics", &huge, 413, "too_large", None),
        ("POST", "/v1/topics", &long, 422, "bad_field", Some("title")),
        ("PUT", "/v1/topics/other", &with("\"delay\": 1"), 422, "bad_field", Some("name")),
        ("PUT", "/v1/topics/a%20b", &with("\"delay\": 1"), 422, "bad_field", Some("topic")),
        ("PATCH", "/v1/topics/t", r#"{"name": "u"}"#, 422, "bad_field", Some("name")),
        ("PATCH", "/v1/topics/nobody", r#"{"delay": 1}"#, 404, "unknown_topic", None),
        ("DELETE", "/v1/topics/nobody", "", 404, "unknown_topic", None),
        ("GET", "/v1/topics/nobody", "", 404, "unknown_topic", None),
        ("DELETE", "/v1/topics", "", 405, "no_method", None),
        ("GET", "/v1/topics/nobody/dead", "", 404, "unknown_topic", None),
        ("GET", "/v1/topics/t/dead?limit=0", "", 422, "bad_field", Some("limit")),
        ("GET", "/v1/topics/t/dead?state=ready", "", 422, "unknown_field", Some("state")),
        ("GET", "/v1/topics/t/dead?cursor=x", "", 422, "bad_field", Some("cursor")),
        ("POST", "/v1/topics/nobody/dead/redrive", "{}", 404, "unknown_topic", None),
        ("POST", "/v1/topics/nobody/dead/purge", "", 404, "unknown_topic", None),
        ("POST", redrive, "7", 400, "bad_json", None),
        ("POST", redrive, r#"{"ids": "1"}"#, 422, "bad_field", Some("ids")),
        ("POST", redrive, r#"{"ids": [1]}"#, 422, "bad_field", Some("ids")),
        ("POST", redrive, r#"{"ids": [""]}"#, 422, "bad_field", Some("ids")),
        ("POST", purge, &many, 422, "bad_field", Some("ids")),
        ("POST", purge, r#"{"limit": 0}"#, 422, "bad_field", Some("limit")),
        ("POST", purge, r#"{"limit": 100001}"#, 422, "bad_field", Some("limit")),
        ("POST", purge, r#"{"dry_run": "yes"}"#, 422, "bad_field", Some("dry_run")),
        ("POST", purge, r#"{"state": "dead"}"#, 422, "unknown_field", Some("state")),
        ("POST", purge, "null", 400, "bad_json", None),
        ("POST", purge, r#"{"dry_run": null}"#, 422, "bad_field", Some("dry_run")),
        ("POST", purge, r#"{"filter": {"status": 503, "died_after": null}}"#, 422, "bad_field", Some("died_after")),
        ("POST", purge, r#"{"filter": {"died_after": 1796140250}}"#, 422, "bad_field", Some("died_after")),
        ("POST", purge, r#"{"filter": {"died_after": "2026"}}"#, 422, "bad_field", Some("died_after")),
        ("POST", purge, r#"{"filter": {"died_after": -5}}"#, 422, "bad_field", Some("died_after")),
        ("GET", "/v1/topics/t/dead?status=503&status=404", "", 422, "bad_field", Some("status")),
        ("DELETE", "/v1/topics/t?jobs=keep&jobs=purge", "", 422, "bad_field", Some("jobs")),
        ("GET", "/v1/stats?days=1&days=2", "", 422, "bad_field", Some("days")),
        ("GET", "/v1/forecast?topic=a&topic=b", "", 422, "bad_field", Some("topic")),
        ("PATCH", "/v1/topics/t", r#"{"headers": {"x-a": "1", "x-a": "2"}}"#, 422, "bad_field", Some("headers")),
        ("PATCH", "/v1/topics/t", r#"{"a`b": 2}"#, 422, "unknown_field", Some("a`b")),
        ("POST", "/v1/topics/t/jobs", r#"{"body": 1, "a`b, expected c": 2}"#, 422, "unknown_field", Some("a`b, expected c")),
        ("POST", "/v1/topics/t/pause", r#"{"x, expected `y`": 1}"#, 422, "unknown_field", Some("x, expected `y`")),
        ("POST", "/v1/tokens", r#"{"name": "a", "scopes": ["read", 3]}"#, 422, "bad_field", Some("scopes")),
        ("DELETE", "/v1/tokens/%ff", "", 400, "bad_path", None),
        ("PUT", "/v1/accounts/%ff", r#"{"password": "long enough"}"#, 400, "bad_path", None),
        ("POST", "/v1/topics/nobody/test", "", 404, "unknown_topic", None),
        ("POST", test, r#"{"url": "http://127.0.0.1/"}"#, 422, "unknown_field", Some("url")),
        ("POST", "/v1/nodes", "{}", 405, "no_method", None),
        ("POST", "/v1/processes", "{}", 405, "no_method", None),
        ("POST", "/v1/alerts", "{}", 405, "no_method", None),
    ];
    for (method, path, body, status, code, field) in table {
        for mut http in Http::doors(&daemon) {
            let answer = http.send(method, path, "", body.as_bytes());
            println!("{method} {path} {body:.60} -> {}", answer.json["detail"]);
            answer.is_problem(*status, code, *field);
        }
    }
    // A password or a secret is not repeated.
    for (method, path, body) in [
        ("PUT", "/v1/accounts/bob", r#"{"password": ["hunter2hunter2"]}"#),
        ("PATCH", "/v1/topics/t", r#"{"secrets": ["\ud800hunter2hunter2"]}"#),
    ] {
        let refused = http.send(method, path, "", body.as_bytes()).is(422);
        assert!(!refused.to_string().contains("hunter2"), "{refused}");
    }
    let scopes = http.ask("POST", "/v1/tokens", &json!({"name": "a", "scopes": ["read", 3]})).is(422);
    assert!(scopes["detail"].as_str().unwrap().contains("not a list of texts"), "{scopes}");
    // The answer has the values that the registry keeps, in whole milliseconds.
    let finer = http.ask("PATCH", "/v1/topics/t", &json!({"delay": "1500us", "retry": ["1.0001s"]})).is(200);
    assert_eq!((&finer["delay"], &finer["retry"]), (&json!("2ms"), &json!(["1s1ms"])));
    assert_eq!(http.get("/v1/topics/t").is(200)["delay"], "2ms");
    let text = http.send("POST", "/v1/topics", "Content-Type: text/plain\r\n", b"{}");
    text.is_problem(415, "not_json", None);
    let fat = format!("x-fat: {}\r\n", "x".repeat(17 << 10));
    http.send("GET", "/v1/topics", &fat, b"").is_problem(431, "headers_too_large", None);
    let mut http = Http::tcp(&daemon);
    let path = format!("/v1/topics?{}", "x".repeat(9000));
    http.get(&path).is_problem(414, "uri_too_long", None);
}

#[test]
fn topics_are_shown_but_not_changed_while_the_registry_is_away() {
    let sink = Sink::start();
    let (server, database);
    let more = if on_redis() {
        return; // The daemon would share its store with another registry. A test with the embedded store is enough.
    } else {
        server = MariaDb::start();
        database = server.database();
        format!("[registry]\nurl = \"{}\"\n{}", database.url(), topic("filed", &sink, ""))
    };
    let daemon = Daemon::start(&more);
    let mut http = Http::tcp(&daemon);
    http.ask("POST", "/v1/topics", &new_topic("t", &sink)).is(201);
    let check = |http: &mut Http, what: &str| {
        let begun = Instant::now();
        let answer = http.ask("POST", "/v1/topics", &new_topic("late", &sink));
        println!("{what}: {:?} after {:?}", answer.json, begun.elapsed());
        assert_eq!(answer.status, 503);
        assert!(["registry_away", "unknown"].contains(&answer.json["code"].as_str().unwrap()), "{answer:?}");
        assert!(begun.elapsed() < 8 * SECOND);
        let shown = http.get("/v1/topics/t").is(200);
        assert_eq!((&shown["source"], &shown["revision"]), (&json!("registry"), &Value::Null));
        http.get("/v1/topics/nobody").is_problem(503, "registry_away", None);
        let all = http.get("/v1/topics").is(200);
        assert!(all["away"].is_string(), "{all}");
        assert_eq!(all["topics"].as_array().unwrap().len(), 2);
        http.ask("POST", "/v1/topics/t/jobs", &json!({"body": 1})).is(201);
        let ready = eventually(20 * SECOND, "a registry that is known to be away", || {
            let ready = http.get("/readyz").is(200);
            ready["parts"]["registry"].as_str().unwrap().starts_with("away").then_some(ready)
        });
        assert_eq!(ready["ready"], true, "dq goes on: {ready}");
    };
    server.hang(true);
    check(&mut http, "it hangs");
    // While the registry's server hangs, no other request is delayed.
    let begun = Instant::now();
    http.get("/v1/stats").is(200);
    assert!(begun.elapsed() < 4 * SECOND, "{:?}", begun.elapsed());
    server.hang(false);
    server.kill();
    check(&mut http, "it is away");
    server.start_again();
    eventually(20 * SECOND, "a change", || {
        (http.ask("PUT", "/v1/topics/t", &json!({"callback": sink.url()})).status == 200).then_some(())
    });
    assert!(http.get("/v1/topics/t").is(200)["revision"].is_string());
}

#[test]
fn a_locked_registry_is_reported_after_five_seconds() {
    if on_redis() {
        return; // This test is about the file of the registry.
    }
    let sink = Sink::start();
    let daemon = daemon_with(&sink, "");
    let mut http = Http::tcp(&daemon);
    http.ask("POST", "/v1/topics", &new_topic("t", &sink)).is(201);
    let other = rusqlite::Connection::open(daemon.dir.path().join("var/registry.db")).unwrap();
    other.execute_batch("BEGIN EXCLUSIVE").unwrap();
    let begun = Instant::now();
    http.ask("POST", "/v1/topics", &new_topic("u", &sink)).is_problem(503, "registry_away", None);
    assert!((4 * SECOND..7 * SECOND).contains(&begun.elapsed()), "{:?}", begun.elapsed());
    other.execute_batch("ROLLBACK").unwrap();
    http.ask("POST", "/v1/topics", &new_topic("u", &sink)).is(201);
}

/// Starts a daemon and a sink that refuses jobs. A refused job becomes a dead letter at once.
fn with_dead_letters(ids: &[&str]) -> (Sink, Daemon, Http) {
    let sink = Sink::answering(|call| {
        Answered::new(
            if call.header("dq-test").is_empty() && call.body == "\"bad\"" { 500 } else { 200 },
            "so",
        )
    });
    let daemon = Daemon::start(&topic("t", &sink, "max_attempts = 1"));
    let mut http = Http::tcp(&daemon);
    for id in ids {
        http.ask("POST", "/v1/topics/t/jobs", &json!({"id": id, "body": "bad"})).is(201);
        // The test waits for each dead letter before the next add, because an id may have several dead letters.
        eventually(10 * SECOND, "a dead letter", || {
            (http.get(&format!("/v1/topics/t/jobs/{id}")).is(200)["state"] == "dead").then_some(())
        });
    }
    (sink, daemon, http)
}

fn dead(http: &mut Http) -> Vec<String> {
    let page = http.get("/v1/topics/t/dead").is(200);
    let mut ids: Vec<String> =
        page["jobs"].as_array().unwrap().iter().map(|job| job["id"].as_str().unwrap().to_owned()).collect();
    ids.sort();
    ids
}

#[test]
fn dead_letters_are_listed_redriven_and_purged() {
    let (sink, _daemon, mut http) = with_dead_letters(&["a", "a", "b", "c", "d", "e"]);
    assert_eq!(dead(&mut http), ["a", "a", "b", "c", "d", "e"]);
    let first = http.get("/v1/topics/t/dead?limit=4").is(200);
    let next = http.get(&format!("/v1/topics/t/dead?cursor={}", first["next"].as_str().unwrap())).is(200);
    assert_eq!((first["jobs"].as_array().unwrap().len(), next["jobs"].as_array().unwrap().len()), (4, 2));
    assert_eq!(first["jobs"][0]["log"][0]["status"], 500);

    // The id `a` gets a live job beside its dead letters.
    http.ask("POST", "/v1/topics/t/jobs", &json!({"id": "a", "body": 1, "delay": "1h"})).is(201);
    let mut ask =
        |what: &str, body: Value| http.ask("POST", &format!("/v1/topics/t/dead/{what}"), &body).is(200);
    let dry = json!({"ids": ["a", "b", "nobody"], "dry_run": true});
    assert_eq!(ask("redrive", dry.clone()), json!({"matched": 1, "redriven": 0}));
    assert_eq!(ask("purge", dry), json!({"matched": 3, "purged": 0}));
    assert_eq!(ask("redrive", json!({"dry_run": true, "limit": 1})), json!({"matched": 6, "redriven": 0}));
    assert_eq!(ask("purge", json!({"ids": ["a", "nobody"]})), json!({"matched": 2, "purged": 2}));
    assert_eq!(ask("purge", json!({"ids": ["a"]})), json!({"matched": 0, "purged": 0}));
    assert_eq!(ask("redrive", json!({"ids": ["b", "a"]})), json!({"matched": 1, "redriven": 1}));
    eventually(10 * SECOND, "the job that was redriven", || (sink.deliveries()["b"] == 2).then_some(()));
    eventually(10 * SECOND, "its end", || (dead(&mut http) == ["b", "c", "d", "e"]).then_some(()));
    assert_eq!(http.get("/v1/topics/t/jobs/a").is(200)["state"], "delayed", "the live one stays");
    let mut ask =
        |what: &str, body: Value| http.ask("POST", &format!("/v1/topics/t/dead/{what}"), &body).is(200);
    assert_eq!(ask("purge", json!({"limit": 1})), json!({"matched": 4, "purged": 1}));
    assert_eq!(ask("purge", Value::Null), json!({"matched": 3, "purged": 3}));
    assert_eq!(http.get("/v1/topics/t/dead").is(200), json!({"jobs": [], "next": null}));
}

#[test]
fn a_callback_test_calls_like_a_job_and_leaves_nothing_behind() {
    let sink = Sink::answering(|call| match &call.body[..] {
        "\"refuse\"" => Answered::new(410, "gone"),
        "\"fail\"" => Answered::new(500, "oh no"),
        _ => Answered::new(200, "fine"),
    });
    let guarded =
        format!("[callback]\nguard = \"strict\"\nallow = [\"127.0.0.1/32\"]\n{}", topic("t", &sink, ""));
    let daemon = Daemon::start(&guarded);
    // A person who writes directly into the registry avoids the check that is made when a topic is saved. But the guard
    // also checks each call.
    let path = daemon.dir.path().join("var/registry.db");
    let mut registry = registry::open(&model::settings::RegistrySettings::Sqlite { path }).unwrap();
    for (name, callback) in [("meta", "http://169.254.169.254/"), ("denied", "http://127.0.0.2:1/")] {
        let name = model::job::TopicName::new(name).unwrap();
        registry.put(&model::topic::Topic::new(name, callback), registry::Expected::Any).unwrap();
    }
    let mut http = Http::unix(&daemon);
    eventually(10 * SECOND, "the topics", || {
        let test = http.ask("POST", "/v1/topics/denied/test", &Value::Null);
        (test.status == 200).then_some(())
    });
    let mut test =
        |topic: &str, body: Value| http.ask("POST", &format!("/v1/topics/{topic}/test"), &body).is(200);
    let came = test("t", json!({"body": {"order": 1}}));
    let of = |came: &Value| ["outcome", "status", "answer", "error", "url"].map(|f| came[f].clone());
    assert_eq!(of(&came), [json!("accepted"), json!(200), json!("fine"), Value::Null, json!(sink.url())]);
    assert!(came["duration_ms"].as_u64().unwrap() < 3000);
    let call = sink.calls().pop().unwrap();
    assert_eq!(
        (&call.body[..], call.header("dq-test"), call.header("dq-topic")),
        ("{\"order\":1}", "1", "t")
    );
    assert!((call.header("dq-due-at").parse::<i64>().unwrap() - now_ms()).abs() < 10_000);
    // The answer shows what the receiver has got, and what it has answered.
    assert_eq!((&came["sent"]["request"], &came["sent"]["body"]), (&json!("POST /hook"), &json!(call.body)));
    let sent: Vec<(String, String)> = serde_json::from_value(came["sent"]["headers"].clone()).unwrap();
    assert!(sent.len() > 8 && sent.iter().all(|(name, value)| call.header(name) == *value), "{sent:?}");
    let answered: Vec<(String, String)> = serde_json::from_value(came["answer_headers"].clone()).unwrap();
    assert!(answered.contains(&("content-length".into(), "4".into())), "{answered:?}");
    assert_eq!(of(&test("t", json!({"body": "fail"})))[..3], [json!("failed"), json!(500), json!("oh no")]);
    assert_eq!(test("t", json!({"body": "refuse"}))["outcome"], "refused");
    assert_eq!(test("t", Value::Null)["outcome"], "accepted");
    for guarded in ["meta", "denied"] {
        let came = test(guarded, json!({}));
        assert_eq!(came["answer_headers"], json!([]));
        assert_eq!((&came["outcome"], &came["status"]), (&json!("failed"), &Value::Null), "{came}");
        println!("{came}");
    }
    assert_eq!(sink.count(), 4, "nothing is tried again");
    let stats = http.get("/v1/stats").is(200);
    assert!(
        stats["topics"].as_array().unwrap().iter().all(|t| t["dead"] == 0 && t["delayed"] == 0),
        "{stats}"
    );

    http.ask("POST", "/v1/topics/t/jobs", &json!({"body": 1})).is(201);
    eventually(5 * SECOND, "a job", || (sink.count() == 5).then_some(()));
    assert_eq!(sink.calls().pop().unwrap().header("dq-test"), "", "a job is no test");
}

#[test]
fn a_callback_that_the_guard_denies_is_not_saved() {
    let sink = Sink::start();
    let config = "[callback]\nguard = \"strict\"\nallow = [\"127.0.0.1/32\"]\n";
    let daemon = Daemon::start(&format!("{config}{}", topic("filed", &sink, "")));
    let mut http = Http::tcp(&daemon);
    let given = |callback: &str| json!({"name": "t", "callback": callback});
    http.ask("POST", "/v1/topics", &given(&sink.url())).is(201);
    for (callback, address) in [
        ("http://169.254.169.254/latest", "169.254.169.254"),
        ("http://2852039166/", "169.254.169.254"),
        ("http://0xa9.254.0251.0376/", "169.254.169.254"),
        ("http://127.0.0.1@[::ffff:a9fe:a9fe]/", "::ffff:169.254.169.254"),
        ("http://10.0.0.1:8080/hook", "10.0.0.1"),
        ("https://[::1]/", "::1"),
    ] {
        let patch = json!({"callback": callback});
        for (method, path, body) in [
            ("POST", "/v1/topics", json!({"name": "new", "callback": callback})),
            ("PUT", "/v1/topics/t", given(callback)),
            ("PATCH", "/v1/topics/t", patch),
        ] {
            let answer = http.ask(method, path, &body);
            answer.is_problem(422, "bad_field", Some("callback"));
            let detail = answer.json["detail"].as_str().unwrap();
            assert!(detail.contains(address) && detail.contains("callback.allow"), "{detail}");
        }
    }
    assert_eq!(http.get("/v1/topics/t").is(200)["callback"], sink.url());
    // A name that cannot be resolved now is accepted. The guard checks its address when the callback is called.
    http.ask("PATCH", "/v1/topics/t", &json!({"callback": "http://nowhere.invalid/"})).is(200);
    http.ask("PATCH", "/v1/topics/t", &json!({"title": "other"})).is(200);
    let secret = http.ask("PATCH", "/v1/topics/t", &json!({"secrets": ["whsec_hush"]}));
    secret.is_problem(422, "bad_field", Some("secrets"));
    assert!(!secret.json.to_string().contains("hush"), "{secret:?}");
    // Addresses in the configuration file are checked with the file.
    let file = "[[topic]]\nname = \"a\"\ncallback = \"http://2852039166/\"\n";
    let dir = tempfile::tempdir().unwrap();
    Daemon::write_config(dir.path(), 1, 2, file);
    let mut check = std::process::Command::new(env!("CARGO_BIN_EXE_dq-master"));
    let checked = check.arg("--check").arg("--config").arg(dir.path().join("dq.toml")).output().unwrap();
    let printed = String::from_utf8_lossy(&checked.stderr).into_owned();
    assert!(
        !checked.status.success()
            && printed.contains("topic[0].callback")
            && printed.contains("169.254.169.254"),
        "{printed}"
    );
}

#[test]
fn only_a_few_callback_tests_run_at_once_and_block_nobody() {
    let sink = Sink::answering(|_| Answered::new(200, "late").after(4 * SECOND));
    let daemon = Daemon::start(&topic("t", &sink, "timeout = \"20s\""));
    let mut statuses: Vec<u16> = std::thread::scope(|scope| {
        let many: Vec<_> = (0..8)
            .map(|_| scope.spawn(|| Http::tcp(&daemon).ask("POST", "/v1/topics/t/test", &Value::Null).status))
            .collect();
        eventually(3 * SECOND, "calls", || (sink.count() >= 4).then_some(()));
        let begun = Instant::now();
        Http::tcp(&daemon).get("/v1/stats").is(200);
        assert!(begun.elapsed() < 3 * SECOND);
        many.into_iter().map(|one| one.join().unwrap()).collect()
    });
    statuses.sort();
    assert_eq!(statuses, [200, 200, 200, 200, 503, 503, 503, 503]);
    Http::tcp(&daemon).ask("POST", "/v1/topics/t/test", &Value::Null).is(200);
}

#[test]
fn the_daemon_shows_nodes_processes_alerts_and_readiness() {
    let sink = Sink::start();
    let daemon = daemon_with(&sink, "");
    for mut http in Http::doors(&daemon) {
        let status = http.get("/v1/processes").is(200);
        assert_eq!((&status["phase"], &status["pid"]), (&json!("steady"), &json!(daemon.pid().as_raw())));
        let processes = status["processes"].as_array().unwrap();
        assert!(
            processes.iter().any(|p| p["name"] == "dq-http-server" && p["memory_bytes"].as_u64() > Some(0))
        );
        assert!(http.get("/v1/alerts").is(200)["alerts"].is_array());
        let ready = http.get("/readyz").is(200);
        for part in ["store", "timer", "consume", "processes", "registry"] {
            assert_eq!(ready["parts"][part], "ok", "{ready}");
        }
    }
    let mut http = Http::tcp(&daemon);
    http.ask("POST", "/v1/topics/filed/jobs", &json!({"body": 1})).is(201);
    let nodes = http.get("/v1/nodes").is(200)["nodes"].clone();
    let sum = |field: &str| nodes.as_array().unwrap().iter().map(|n| n[field].as_u64().unwrap()).sum::<u64>();
    assert_eq!((sum("delayed"), sum("dead")), (1, 0), "{nodes}");
    if !on_redis() {
        assert_eq!((&nodes[0]["name"], &nodes[0]["answers"]), (&json!("embedded"), &json!(true)));
    }
}

#[test]
fn a_down_node_is_reported_while_the_other_one_is_shown() {
    if on_redis() {
        return; // This test brings its own nodes.
    }
    let sink = Sink::start();
    let mut servers = [RedisServer::start(), RedisServer::start()];
    let nodes: String = servers
        .iter()
        .enumerate()
        .map(|(n, s)| format!("[[store.node]]\nname = \"r{n}\"\nurl = \"{}\"\n", s.url()))
        .collect();
    let daemon = Daemon::start(&format!(
        "[store]\nbackend = \"redis\"\ntimeout = \"500ms\"\nspool = 0\n{nodes}{}",
        topic("t", &sink, "delay = \"5h\"")
    ));
    let mut http = Http::tcp(&daemon);
    let both = http.get("/v1/nodes").is(200);
    assert!(
        both["nodes"].as_array().unwrap().iter().all(|n| n["answers"] == true && n["delayed"] == 0),
        "{both}"
    );
    http.get("/v1/topics/t/dead").is(200);
    servers[1].kill();
    let one = eventually(10 * SECOND, "a node that is known to be down", || {
        let one = http.get("/v1/nodes").is(200);
        (one["nodes"][1]["answers"] == false).then_some(one)
    });
    assert_eq!(
        (&one["nodes"][0]["answers"], &one["nodes"][1]["delayed"]),
        (&json!(true), &Value::Null),
        "{one}"
    );
    assert!(one["nodes"][1]["detail"].is_string());
    eventually(10 * SECOND, "a node that is shown as down", || {
        let ready = http.get("/readyz").is(200);
        assert_eq!(ready["parts"]["node r0"], "ok");
        (ready["parts"]["node r1"] != "ok").then_some(())
    });
    assert_eq!(http.get("/v1/topics/t/dead").is(200)["away"], json!(["r1"]));
    let stats = http.get("/v1/stats").is(200);
    assert_eq!((&stats["away"], &stats["topics"][0]["topic"]), (&json!(["r1"]), &json!("t")));
    http.ask("POST", "/v1/topics/t/dead/purge", &Value::Null).is_problem(503, "node_down", None);
    // An id that the client gives has a fixed home. An id that dq makes gets a home on a node that answers.
    let (mut taken, mut refused) = (0, 0);
    for id in 0..20 {
        let answer = http.ask("POST", "/v1/topics/t/jobs", &json!({"id": id.to_string(), "body": 1}));
        match answer.status {
            201 => taken += 1,
            _ => {
                answer.is_problem(503, "node_down", None);
                refused += 1;
            }
        }
        http.ask("POST", "/v1/topics/t/jobs", &json!({"body": 1})).is(201);
    }
    assert!(taken > 0 && refused > 0, "{taken} are taken, {refused} refused");
}

#[test]
fn a_post_that_is_sent_again_with_its_key_is_not_done_again() {
    let sink = Sink::answering(|_| Answered::new(200, "ok").after(Duration::from_millis(700)));
    let daemon = daemon_with(&sink, "");
    let mut http = Http::tcp(&daemon);
    let key = |key: &str| format!("Idempotency-Key: {key}\r\n");
    let jobs = "/v1/topics/filed/jobs";
    let first = http.send("POST", jobs, &key("k1"), br#"{"body": 1}"#);
    assert!(!first.headers.contains_key("idempotency-replayed"));
    let again = http.send("POST", jobs, &key("k1"), br#"{"body": 1}"#);
    assert_eq!(again.headers["idempotency-replayed"], "true");
    assert_eq!(
        (first.headers["location"].clone(), first.status),
        (again.headers["location"].clone(), again.status)
    );
    assert_ne!(first.headers["x-request-id"], again.headers["x-request-id"]);
    let id = first.is(201)["id"].as_str().unwrap().to_owned();
    assert_eq!(again.json["id"], id);
    let other = http.send("POST", jobs, &key("k1"), br#"{"body": 2}"#);
    other.is_problem(422, "key_reused", None);
    http.send("POST", jobs, &key("k 1"), br#"{"body": 1}"#).is_problem(
        422,
        "bad_field",
        Some("Idempotency-Key"),
    );
    http.send("POST", jobs, &key(&"k".repeat(256)), br#"{"body": 1}"#).is_problem(
        422,
        "bad_field",
        Some("Idempotency-Key"),
    );
    http.send("POST", jobs, &key(&"k".repeat(255)), br#"{"body": 1}"#).is(201);

    // If a request failed and is sent again with the same key, it is carried out this time. A request of any kind that
    // was carried out is not repeated.
    let topic = new_topic("made", &sink).to_string();
    http.send("POST", "/v1/topics/made/jobs", &key("k2"), br#"{"body": 1}"#).is_problem(
        404,
        "unknown_topic",
        None,
    );
    let made = http.send("POST", "/v1/topics", &key("k2"), topic.as_bytes());
    let again = http.send("POST", "/v1/topics", &key("k2"), topic.as_bytes());
    assert_eq!(etag(&made), etag(&again));
    assert_eq!(made.is(201), again.is(201));
    http.send("POST", "/v1/topics/made/jobs", &key("k2"), br#"{"body": 1, "delay": "1h"}"#).is(201);

    // While the request is being done, a request with the same key is refused.
    let statuses: Vec<u16> = std::thread::scope(|scope| {
        let send = || Http::tcp(&daemon).send("POST", "/v1/topics/made/test", &key("k3"), b"{}").status;
        let slow = scope.spawn(send);
        eventually(5 * SECOND, "the call", || (sink.count() == 1).then_some(()));
        let meanwhile = Http::tcp(&daemon).send("POST", "/v1/topics/made/test", &key("k3"), b"{}");
        meanwhile.is_problem(409, "in_progress", None);
        vec![slow.join().unwrap(), send()]
    });
    assert_eq!((statuses, sink.count()), (vec![200, 200], 1));
    // If a client disconnects, its request continues. A client that repeats the request gets its answer.
    drop({
        let mut gone = Http::tcp(&daemon);
        gone.begin("POST", "/v1/topics/made/test", &key("k4"), b"{}");
        eventually(5 * SECOND, "the call", || (sink.count() == 2).then_some(()));
        gone
    });
    let again = eventually(10 * SECOND, "its answer", || {
        let answer = http.send("POST", "/v1/topics/made/test", &key("k4"), b"{}");
        (answer.status != 409).then_some(answer)
    });
    assert_eq!((again.headers["idempotency-replayed"].as_str(), sink.count()), ("true", 2));
    again.is(200);

    // For an add without an id, the job itself keeps the key. So the next process knows the key, too.
    daemon.kill_child("dq-http-server");
    let mut http = Http::tcp(&daemon);
    let kept = http.send("POST", jobs, &key("k1"), br#"{"body": 1}"#);
    assert!(!kept.headers.contains_key("idempotency-replayed"));
    assert_eq!(without_due(kept.is(200)), json!({"topic": "filed", "id": id, "outcome": "kept"}));
    let listed = http.get(&format!("{jobs}?state=delayed")).is(200);
    assert_eq!(listed["jobs"].as_array().unwrap().iter().filter(|j| j["id"] == id).count(), 1);
}

#[test]
fn a_paused_topic_takes_jobs_and_delivers_none_until_resumed() {
    let sink = Sink::start();
    let daemon = daemon_with(&sink, "");
    let mut http = Http::unix(&daemon);
    http.ask("POST", "/v1/topics/nope/pause", &Value::Null).is_problem(404, "unknown_topic", None);
    for name in ["a", "b"] {
        http.ask("POST", "/v1/topics", &new_topic(name, &sink)).is(201);
    }
    http.ask("POST", "/v1/topics/a/pause", &Value::Null).is(204);
    http.ask("POST", "/v1/topics/a/pause", &Value::Null).is(204);
    let paused = |http: &mut Http| {
        let topics = http.get("/v1/topics").is(200)["topics"].clone();
        let all = topics.as_array().unwrap().iter().filter(|topic| topic["paused"] == true);
        all.map(|topic| topic["name"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(paused(&mut http), ["a"]);
    assert_eq!(http.get("/v1/topics/a").is(200)["paused"], true);
    // The topic stays paused after a change of the topic, and after restarts of processes.
    assert_eq!(http.ask("PATCH", "/v1/topics/a", &json!({"delay": "10ms"})).is(200)["paused"], true);
    daemon.kill_child("dq-consume-0");
    daemon.kill_child("dq-timer-0");
    let add = |http: &mut Http, name: &str| {
        http.ask("POST", &format!("/v1/topics/{name}/jobs"), &json!({"body": name})).is(201)
    };
    (0..20).for_each(|_| drop(add(&mut http, "a")));
    (0..5).for_each(|_| drop(add(&mut http, "b")));
    sink.wait_for(5, 10 * SECOND);
    let ready = |http: &mut Http| {
        let all = http.get("/v1/stats").is(200)["topics"].clone();
        all.as_array().unwrap().iter().find(|t| t["topic"] == "a").unwrap()["ready"].clone()
    };
    eventually(10 * SECOND, "all jobs ready", || (ready(&mut http) == 20).then_some(()));
    assert!(sink.calls().iter().all(|call| call.header("dq-topic") == "b"));
    // A job says why it waits.
    let jobs = http.get("/v1/topics/a/jobs?state=ready&limit=1").is(200)["jobs"].clone();
    let job = http.get(&format!("/v1/topics/a/jobs/{}", jobs[0]["id"].as_str().unwrap())).is(200);
    let waiting = &job["waiting"];
    assert_eq!((&jobs[0]["waiting"], &waiting["code"]), (&Value::Null, &json!("paused")), "{job}");
    assert!(now_ms() - waiting["since_ms"].as_i64().unwrap() < 60_000, "{job}");
    assert_eq!(waiting["by"], http.get("/v1/audit").is(200)["entries"][0]["who"], "{job}");
    let text = waiting["text"].as_str().unwrap();
    assert!(text.starts_with("the topic is paused since 2"), "{job}");
    http.ask("POST", "/v1/topics/a/resume", &Value::Null).is(204);
    sink.wait_for(25, 10 * SECOND);
    assert_eq!(paused(&mut http), [""; 0]);
    // The pause of a removed topic can still be ended.
    http.ask("POST", "/v1/topics/a/pause", &Value::Null).is(204);
    http.ask("DELETE", "/v1/topics/a", &Value::Null).is(204);
    http.ask("POST", "/v1/topics/a/resume", &Value::Null).is(204);
    assert_eq!(http.ask("POST", "/v1/topics", &new_topic("a", &sink)).is(201)["paused"], false);
}

#[test]
fn a_batch_that_failed_to_store_is_stored_once_when_sent_again() {
    if on_redis() {
        return; // This test is about the file of the embedded store.
    }
    let sink = Sink::start();
    let daemon = daemon_with(&sink, "");
    let mut http = Http::tcp(&daemon);
    let mut send = || {
        let body = br#"{"jobs": [{"body": 1}, {"body": 2}, {"body": 3, "id": "own"}]}"#;
        http.send("POST", "/v1/topics/filed/jobs/batch", "Idempotency-Key: b1\r\n", body)
    };
    let statuses = |answer: &Answer| {
        let results = answer.json["results"].as_array().unwrap();
        results.iter().map(|one| one["status"].as_u64().unwrap()).collect::<Vec<_>>()
    };
    let other = rusqlite::Connection::open(daemon.dir.path().join("var/dq.db")).unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    assert_eq!(statuses(&send()), [503, 503, 503]);
    other.execute_batch("ROLLBACK").unwrap();
    let stored = send();
    assert!(!stored.headers.contains_key("idempotency-replayed"));
    assert_eq!(statuses(&stored), [201, 201, 201]);
    assert_eq!(send().headers["idempotency-replayed"], "true");
    // A process that knows nothing of the first request also finds the stored jobs.
    daemon.kill_child("dq-http-server");
    let mut http = eventually(10 * SECOND, "another process", || {
        let mut http = Http::tcp(&daemon);
        (http.get("/readyz").status == 200).then_some(http)
    });
    let body = br#"{"jobs": [{"body": 1}, {"body": 2}, {"body": 3, "id": "own"}]}"#;
    let again = http.send("POST", "/v1/topics/filed/jobs/batch", "Idempotency-Key: b1\r\n", body);
    assert_eq!(statuses(&again), [200, 200, 200]);
    assert_eq!(http.get("/v1/stats").is(200)["topics"][0]["delayed"], 3);
}

#[test]
fn a_registry_without_its_file_is_away_and_its_topics_remain() {
    if on_redis() {
        return; // This test is about the file of one host.
    }
    let sink = Sink::start();
    let daemon = daemon_with(&sink, "");
    let mut http = Http::unix(&daemon);
    http.ask("POST", "/v1/topics", &new_topic("kept", &sink)).is(201);
    let file = daemon.dir.path().join("var/registry.db");
    let aside = daemon.dir.path().join("aside.db");
    std::fs::rename(&file, &aside).unwrap();
    http.wait_for_alert("registry_away");
    http.ask("PATCH", "/v1/topics/kept", &json!({"delay": "1s"})).is_problem(503, "registry_away", None);
    daemon.kill_child("dq-redis-checke");
    daemon.kill_child("dq-http-server");
    let mut http = eventually(10 * SECOND, "another process", || {
        let mut http = Http::unix(&daemon);
        (http.get("/readyz").status == 200).then_some(http)
    });
    http.ask("POST", "/v1/topics/kept/jobs", &json!({"body": 1})).is(201);
    sink.wait_for(1, 10 * SECOND);
    assert!(!file.exists(), "nobody has made an empty one");
    std::fs::rename(&aside, &file).unwrap();
    eventually(10 * SECOND, "a registry that is back", || {
        (http.ask("PATCH", "/v1/topics/kept", &json!({"delay": "1s"})).status == 200).then_some(())
    });
}
