//! The console without a browser: who may sign in, what the audit log records of each person, and what the page asks
//! for.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use serde_json::{Value, json};

use crate::support::http::{Answer, Http};
use crate::support::redis::RedisServer;
use crate::support::{Daemon, SECOND, Sink, eventually, topic};

/// Returns the password from the file that the log of a new daemon names.
pub fn first_password(daemon: &Daemon) -> String {
    eventually(20 * SECOND, "the first password", || {
        let log = daemon.log();
        let path = log.split_once("sign in as admin with the password in ")?.1.split_once(',')?.0.to_owned();
        let password = fs::read_to_string(&path).unwrap();
        assert!(!log.contains(password.trim_end()), "the log shows the password");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600, "{path}");
        Some(password.trim_end().to_owned())
    })
}

/// A configuration without a registry.
pub const NO_REGISTRY: &str = "[registry]\nurl = \"none\"\n";

/// The cookie and the CSRF value of a session, as a browser has them.
struct Session {
    cookie: String,
    csrf: String,
}

impl Session {
    fn begin(http: &mut Http, name: &str, password: &str) -> Session {
        let answer = sign_in(http, name, password);
        let cookie = answer.headers["set-cookie"].clone();
        let response = answer.is(200);
        assert_eq!((&response["signed_in"], &response["name"]), (&json!(true), &json!(name)));
        Session {
            cookie: cookie.split(';').next().unwrap().to_owned(),
            csrf: response["csrf"].as_str().unwrap().to_owned(),
        }
    }

    fn ask(&self, http: &mut Http, method: &str, path: &str, body: &Value) -> Answer {
        let headers = format!("Cookie: theme=dark; {}\r\nDq-Csrf: {}\r\n", self.cookie, self.csrf);
        let body = if body.is_null() { String::new() } else { body.to_string() };
        http.send(method, path, &headers, body.as_bytes())
    }
}

pub fn sign_in(http: &mut Http, name: &str, password: &str) -> Answer {
    http.ask("POST", "/console/session", &json!({"name": name, "password": password}))
}

fn dq(daemon: &Daemon, words: &[&str], stdin: &str) -> String {
    let mut child = Command::new(env!("CARGO_BIN_EXE_dq"))
        .args(words)
        .args(["--run-dir", daemon.dir.path().join("var/run").to_str().unwrap()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(stdin.as_bytes()).unwrap();
    let out = child.wait_with_output().unwrap();
    assert!(out.status.success(), "{words:?}: {out:?}");
    String::from_utf8(out.stdout).unwrap()
}

#[test]
fn the_page_is_built_in_and_may_load_nothing_from_elsewhere() {
    let daemon = Daemon::start("[http]\nauth = \"token\"\n");
    let mut http = Http::tcp(&daemon);
    let page = http.get("/");
    assert_eq!((page.status, page.headers["content-type"].as_str()), (200, "text/html; charset=utf-8"));
    let policy = &page.headers["content-security-policy"];
    for part in
        ["default-src 'none'", "script-src 'self'", "frame-ancestors 'none'", "require-trusted-types-for"]
    {
        assert!(policy.contains(part), "{policy}");
    }
    assert!(!policy.contains("unsafe"), "{policy}");
    let text = page.json.as_str().unwrap().to_owned();
    let inside: Vec<&str> = text.split("\"/console/").skip(1).map(|t| t.split('"').next().unwrap()).collect();
    assert!(inside.contains(&"app.js") && inside.contains(&"style.css"), "{inside:?}");
    let mut bytes = text.len();
    for path in inside.iter().collect::<BTreeSet<_>>() {
        let answer = http.get(&format!("/console/{path}"));
        let etag = answer.headers["etag"].clone();
        bytes += answer.headers["content-length"].parse::<usize>().unwrap();
        answer.is(200);
        let again = http.send("GET", &format!("/console/{path}"), &format!("If-None-Match: {etag}\r\n"), b"");
        assert_eq!((again.status, again.headers.get("content-type")), (304, None), "{path}");
    }
    assert!(bytes < 200_000, "what the page names has {bytes} bytes");
    assert_eq!(http.get("/console/../Cargo.toml").status, 404);
    http.get("/console/nothing.js").is_problem(404, "no_route", None);
    // The page holds no data. Data needs a token or a session.
    assert_eq!(http.get("/v1/stats").status, 401);
    assert_eq!(http.get("/console/session").is(200)["signed_in"], false);
}

#[test]
fn a_session_follows_its_role_until_the_password_changes() {
    let sink = Sink::start();
    let daemon = Daemon::start(&format!("[http]\nauth = \"token\"\n{}", topic("t", &sink, "delay = \"5h\"")));
    let mut http = Http::tcp(&daemon);
    let password = first_password(&daemon);
    sign_in(&mut http, "admin", "not the password").is_problem(403, "wrong_password", None);
    sign_in(&mut http, "nobody", &password).is_problem(403, "wrong_password", None);
    let answer = sign_in(&mut http, "admin", &password);
    let cookie = &answer.headers["set-cookie"];
    for part in [
        format!("dq_session_{}=admin.", daemon.http).as_str(),
        "; HttpOnly",
        "; SameSite=Strict",
        "; Path=/",
        "; Max-Age=43200",
    ] {
        assert!(cookie.contains(part) && !cookie.contains("Secure"), "{cookie}");
    }
    let admin = Session::begin(&mut http, "admin", &password);
    admin.ask(&mut http, "GET", "/v1/stats", &Value::Null).is(200);
    admin.ask(&mut http, "POST", "/v1/topics/t/jobs", &json!({"id": "1", "body": 1})).is(201);
    // A browser sends the cookie by itself, even if another site makes the request. So a change also needs a value that
    // only the page knows.
    let forged = Session { csrf: "00".repeat(32), ..Session::begin(&mut http, "admin", &password) };
    let refused = forged.ask(&mut http, "DELETE", "/v1/topics/t/jobs/1", &Value::Null);
    refused.is_problem(403, "no_csrf", None);
    forged.ask(&mut http, "GET", "/v1/topics/t/jobs/1", &Value::Null).is(200);
    for foreign in ["Sec-Fetch-Site: cross-site", "Origin: http://evil.example", "Origin: null"] {
        let refused = http.send("POST", "/console/session", &format!("{foreign}\r\n"), b"{}");
        refused.is_problem(403, "foreign", None);
    }
    // The answer to a sign-in is not kept for its idempotency key either.
    let shown = json!({"name": "admin", "password": password}).to_string();
    let key = "Idempotency-Key: k\r\nContent-Type: application/json\r\n";
    for _ in 0..2 {
        let answer = http.send("POST", "/console/session", key, shown.as_bytes());
        assert!(answer.status == 200 && !answer.headers.contains_key("idempotency-replayed"), "{answer:?}");
    }

    assert_eq!(
        dq(&daemon, &["console", "password", "ann", "--role", "read"], "the eyes of ann\n").trim(),
        "set: ann (read)"
    );
    let ann = Session::begin(&mut http, "ann", "the eyes of ann");
    ann.ask(&mut http, "GET", "/v1/topics/t/jobs/1", &Value::Null).is(200);
    ann.ask(&mut http, "POST", "/v1/topics/t/pause", &Value::Null).is_problem(403, "forbidden", None);
    ann.ask(&mut http, "DELETE", "/v1/topics/t/jobs/1", &Value::Null).is_problem(403, "forbidden", None);
    ann.ask(&mut http, "GET", "/v1/tokens", &Value::Null).is_problem(403, "forbidden", None);
    ann.ask(&mut http, "GET", "/v1/audit", &Value::Null).is_problem(403, "forbidden", None);
    let accounts = admin.ask(&mut http, "GET", "/v1/accounts", &Value::Null).is(200);
    let named: Vec<(&str, &str)> = accounts["accounts"]
        .as_array()
        .unwrap()
        .iter()
        .map(|a| (a["name"].as_str().unwrap(), a["role"].as_str().unwrap()))
        .collect();
    assert_eq!(named, [("admin", "admin"), ("ann", "read")]);
    assert!(!accounts.to_string().contains("argon2"));

    // A restart ends no session.
    daemon.kill_child("dq-http-server");
    let mut http = Http::tcp(&daemon);
    ann.ask(&mut http, "GET", "/v1/stats", &Value::Null).is(200);
    let body = json!({"role": "read", "password": "other eyes of ann"});
    admin.ask(&mut http, "PUT", "/v1/accounts/ann", &body).is(204);
    ann.ask(&mut http, "GET", "/v1/stats", &Value::Null).is_problem(401, "unauthorized", None);
    let ann = Session::begin(&mut http, "ann", "other eyes of ann");
    admin.ask(&mut http, "DELETE", "/v1/accounts/ann", &Value::Null).is(204);
    assert_eq!(ann.ask(&mut http, "GET", "/v1/stats", &Value::Null).status, 401);
    admin.ask(&mut http, "DELETE", "/v1/accounts/ann", &Value::Null).is_problem(404, "not_found", None);
    let short = admin.ask(&mut http, "PUT", "/v1/accounts/bob", &json!({"password": "short"}));
    short.is_problem(422, "bad_field", Some("password"));
    let out = admin.ask(&mut http, "DELETE", "/console/session", &Value::Null);
    let gone = format!("dq_session_{}=; ", daemon.http);
    assert!(out.headers["set-cookie"].contains(&gone) && out.status == 204, "{out:?}");
}

#[test]
fn wrong_passwords_are_limited_and_then_a_right_one_fails_too() {
    let daemon = Daemon::start("");
    let mut http = Http::tcp(&daemon);
    let password = first_password(&daemon);
    let refused = (0..10).filter(|n| sign_in(&mut http, "admin", &format!("a guess {n}")).status == 403);
    assert_eq!(refused.count(), 10);
    let answer = sign_in(&mut http, "admin", &password);
    answer.is_problem(429, "too_many_failures", None);
    assert!(answer.headers["retry-after"].parse::<u64>().unwrap() <= 61);
    assert!(!daemon.log().contains("a guess"), "no password is logged");
}

#[test]
fn the_first_account_is_made_when_a_late_redis_answers() {
    let mut node = RedisServer::start();
    let store =
        format!("[store]\nbackend = \"redis\"\n[[store.node]]\nname = \"r0\"\nurl = \"{}\"\n", node.url());
    node.kill();
    let daemon = Daemon::start(&store);
    eventually(20 * SECOND, "a line in the log", || {
        daemon.log().contains("the console's first account is made when the registry answers").then_some(())
    });
    node.start_again();
    let password = first_password(&daemon);
    assert_eq!(sign_in(&mut Http::tcp(&daemon), "admin", &password).status, 200);
}

#[test]
fn all_parts_say_that_without_a_registry_there_are_no_accounts() {
    let daemon = Daemon::start(NO_REGISTRY);
    let mut http = Http::tcp(&daemon);
    let session = http.get("/console/session").is(200);
    assert_eq!((&session["signed_in"], &session["has_accounts"]), (&json!(false), &json!(false)));
    let refused = sign_in(&mut http, "admin", "a password");
    refused.is_problem(409, "no_registry", None);
    assert!(refused.json["detail"].as_str().unwrap().contains("registry.url"), "{refused:?}");
    http.get("/v1/accounts").is_problem(404, "no_registry", None);
    let account = json!({"role": "read", "password": "a good password"});
    http.ask("PUT", "/v1/accounts/ann", &account).is_problem(409, "no_registry", None);
    http.ask("DELETE", "/v1/accounts/ann", &Value::Null).is_problem(409, "no_registry", None);
    let token = json!({"name": "shop", "scopes": ["read"]});
    http.ask("POST", "/v1/tokens", &token).is_problem(409, "no_registry", None);
    eventually(10 * SECOND, "a line in the log", || {
        (daemon.log().matches("nobody can sign in to the console").count() == 1).then_some(())
    });
    let config = daemon.dir.path().join("dq.toml");
    let mut doctor = Command::new(env!("CARGO_BIN_EXE_dq"));
    let printed = doctor.args(["doctor", "--json", "--config"]).arg(&config).output().unwrap();
    let printed: Value = serde_json::from_slice(&printed.stdout).unwrap();
    let is_it = |line: &&Value| line["check"] == "registry" && line["verdict"] == "warn";
    let line =
        printed["checks"].as_array().unwrap().iter().find(is_it).unwrap_or_else(|| panic!("{printed}"));
    assert!(line["detail"].as_str().unwrap().contains("nobody can sign in to the console"), "{line}");
    assert!(line["advice"].as_str().unwrap().contains("registry.url"), "{line}");
}

#[test]
fn whoever_hangs_up_is_counted_and_what_he_has_changed_is_noted() {
    let sink = Sink::start();
    let daemon = Daemon::start(&topic("t", &sink, ""));
    let password = first_password(&daemon);
    let hang_up = |request: String| {
        let mut stream = TcpStream::connect(("127.0.0.1", daemon.http)).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        stream.shutdown(std::net::Shutdown::Both).unwrap();
    };
    let mut door = Http::unix(&daemon);
    // A request may be dropped before it has begun. Then nothing is done, and nothing is recorded.
    let mut asked = None::<Instant>;
    eventually(30 * SECOND, "the pause is noted", || {
        let is_paused = door.get("/v1/topics/t").is(200)["paused"] == true;
        if !is_paused && asked.is_none_or(|at| at.elapsed() >= SECOND) {
            asked = Some(Instant::now());
            hang_up(
                "POST /v1/topics/t/pause HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n".into(),
            );
        }
        let audit = door.get("/v1/audit").is(200);
        (is_paused && audit["entries"][0]["action"] == "topic.pause").then_some(())
    });
    for n in 0..12 {
        let body = json!({"name": "admin", "password": format!("guess number {n}")}).to_string();
        let length = body.len();
        hang_up(format!(
            "POST /console/session HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
        ));
    }
    let mut http = Http::tcp(&daemon);
    eventually(20 * SECOND, "who has hung up ten times has struck out", || {
        (sign_in(&mut http, "admin", &password).status == 429).then_some(())
    });
}

#[test]
fn the_audit_log_shows_who_changed_what_and_how_many_jobs() {
    let sink = Sink::answering(|_| cli::HandlerAnswer::new(500, "no"));
    let daemon = Daemon::start(&topic("t", &sink, "max_attempts = 1"));
    let mut http = Http::tcp(&daemon);
    let password = first_password(&daemon);
    let admin = Session::begin(&mut http, "admin", &password);
    for id in ["1", "2"] {
        http.ask("POST", "/v1/topics/t/jobs", &json!({"id": id, "body": 1})).is(201);
    }
    eventually(20 * SECOND, "two dead letters", || {
        let dead = http.get("/v1/topics/t/dead").is(200);
        (dead["jobs"].as_array()?.len() == 2).then_some(())
    });
    let mut by_admin = |method: &str, path: &str, body: Value| admin.ask(&mut http, method, path, &body);
    by_admin("POST", "/v1/topics/t/pause", Value::Null).is(204);
    by_admin("POST", "/v1/topics", json!({"name": "new", "callback": "http://127.0.0.1:9/", "mode": "push"}))
        .is(201);
    by_admin("PATCH", "/v1/topics/new", json!({"title": "x", "delay": "5m"})).is(200);
    by_admin("POST", "/v1/topics/t/dead/purge", json!({"dry_run": true})).is(200);
    by_admin("POST", "/v1/topics/t/dead/purge", json!({})).is(200);
    by_admin("DELETE", "/v1/topics/none", Value::Null).is(404);
    by_admin("POST", "/v1/tokens", json!({"name": "shop", "scopes": ["read", "produce:t"]})).is(201);
    // The audit log records a change of a job by a person, but not by a client.
    http.ask("POST", "/v1/topics/t/jobs", &json!({"id": "3", "body": 1, "delay": "1h"})).is(201);
    admin.ask(&mut http, "DELETE", "/v1/topics/t/jobs/3", &Value::Null).is(204);
    let entries = eventually(10 * SECOND, "six entries", || {
        let audit = admin.ask(&mut http, "GET", "/v1/audit?limit=10", &Value::Null).is(200);
        let entries = audit["entries"].as_array()?.clone();
        (entries.len() == 6).then_some(entries)
    });
    let shown: BTreeSet<String> = entries
        .iter()
        .map(|e| {
            format!(
                "{} {} [{}] {}",
                e["action"].as_str().unwrap(),
                e["target"].as_str().unwrap(),
                e["detail"].as_str().unwrap(),
                e["jobs"]
            )
        })
        .collect();
    let expected = [
        "topic.pause t [] null",
        "topic.create new [] null",
        "topic.change new [delay, title] null",
        "dead.purge t [all] 2",
        "token.create shop [read produce:t] null",
        "job.delete t/3 [] null",
    ];
    assert_eq!(shown, expected.map(str::to_owned).into_iter().collect());
    assert!(entries.iter().all(|e| e["who"] == "account admin"), "{entries:?}");
    let page = admin.ask(&mut http, "GET", "/v1/audit?limit=4", &Value::Null).is(200);
    let next = page["next"].as_str().unwrap();
    let rest = admin.ask(&mut http, "GET", &format!("/v1/audit?cursor={next}"), &Value::Null).is(200);
    assert_eq!((rest["entries"].as_array().unwrap().len(), &rest["next"]), (2, &Value::Null));
    admin.ask(&mut http, "GET", "/v1/audit?limit=0", &Value::Null).is_problem(
        422,
        "bad_field",
        Some("limit"),
    );
}

#[test]
fn what_happens_is_told_each_second_until_the_server_ends() {
    let sink = Sink::start();
    let daemon = Daemon::start(&topic("t", &sink, ""));
    let mut http = Http::tcp(&daemon);
    let mut stream = TcpStream::connect(("127.0.0.1", daemon.http)).unwrap();
    stream.set_read_timeout(Some(20 * SECOND)).unwrap();
    write!(stream, "GET /v1/events HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n").unwrap();
    let mut lines = BufReader::new(stream).lines().map_while(Result::ok);
    let mut next = || -> Option<Value> {
        let line = lines.find(|line| line.starts_with("data: "))?;
        Some(serde_json::from_str(line.strip_prefix("data: ").unwrap()).unwrap())
    };
    let first = next().unwrap();
    assert_eq!((&first["full"], &first["topics"][0]["topic"]), (&json!(true), &json!("t")));
    assert!(first["processes"]["processes"].as_array().unwrap().len() >= 5, "{first}");
    assert_eq!(first["nodes"][0]["answers"], true);
    for id in 0..5 {
        http.ask("POST", "/v1/topics/t/jobs", &json!({"id": id.to_string(), "body": 1})).is(201);
    }
    sink.wait_for(5, 20 * SECOND);
    let shown = eventually(20 * SECOND, "five deliveries", || {
        let event = next()?;
        (event["sums"]["delivered"] == 5).then_some(event)
    });
    assert_eq!(shown["full"], false);
    let [p50, p99] = ["late_p50_us", "late_p99_us"].map(|name| shown[name].as_u64().unwrap());
    assert!(p50 <= p99 && p99 < 20_000_000, "{shown}");
    // If the counters cannot be read, their last values are shown, with the time of reading.
    let metrics = daemon.dir.path().join("var/run/metrics");
    let away = metrics.with_extension("away");
    std::fs::rename(&metrics, &away).unwrap();
    std::fs::write(&metrics, "in the way").unwrap();
    let mut before = next().unwrap();
    let stale = eventually(20 * SECOND, "counters that are not read anew", || {
        let event = next()?;
        let is_stale = event["counted_at_ms"] == before["counted_at_ms"];
        before = event;
        is_stale.then(|| before.clone())
    });
    assert_eq!(stale["sums"]["delivered"], 5);
    std::fs::remove_file(&metrics).unwrap();
    std::fs::rename(&away, &metrics).unwrap();
    eventually(20 * SECOND, "counters that are", || {
        (next()?["counted_at_ms"].as_i64() > stale["counted_at_ms"].as_i64()).then_some(())
    });
    // When dq restarts, it ends the stream, and does not wait until the client ends it.
    daemon.signal(nix::sys::signal::Signal::SIGHUP);
    eventually(20 * SECOND, "the end of the stream", || next().is_none().then_some(()));
}

#[test]
fn what_becomes_due_and_what_was_done_is_told_for_charts() {
    let sink = Sink::start();
    let daemon = Daemon::start(&format!("{}{}", topic("t", &sink, ""), topic("u", &sink, "")));
    let mut http = Http::tcp(&daemon);
    for (topic, delay) in [("t", "30s"), ("t", "90s"), ("t", "95s"), ("u", "3h 10m"), ("u", "50h")] {
        http.ask("POST", &format!("/v1/topics/{topic}/jobs"), &json!({"body": 1, "delay": delay})).is(201);
    }
    http.ask("POST", "/v1/topics/t/jobs", &json!({"body": 1})).is(201);
    let jobs = |forecast: &Value| -> Vec<(usize, u64)> {
        let buckets = forecast["buckets"].as_array().unwrap().iter().map(|b| b["jobs"].as_u64().unwrap());
        buckets.enumerate().filter(|(_, jobs)| *jobs > 0).collect()
    };
    let forecast = http.get("/v1/forecast").is(200);
    assert_eq!((jobs(&forecast), &forecast["later"]), (vec![(0, 1), (1, 2), (13, 1)], &json!(1)));
    let of_one = http.get("/v1/forecast?topic=u").is(200);
    assert_eq!((jobs(&of_one), &of_one["later"]), (vec![(13, 1)], &json!(1)));
    http.get("/v1/forecast?colour=red").is_problem(422, "unknown_field", Some("colour"));

    let point = eventually(60 * SECOND, "a point of the history", || {
        let history = http.get("/v1/history").is(200);
        let points = history["seconds"].as_array()?.clone();
        points.into_iter().find(|point| point["delivered"] == 1)
    });
    assert!(point["late_p99_us"].as_u64().unwrap() >= point["late_p50_us"].as_u64().unwrap());
    assert!((1..=20_000).contains(&point["span_ms"].as_i64().unwrap()), "{point}");
    assert!(point["late_mean_us"].is_u64(), "{point}");
    // Each topic has its own history.
    let mut delivered = |topic: &str| -> u64 {
        let history = http.get(&format!("/v1/history?topic={topic}")).is(200);
        assert_eq!(history["minutes"], json!([]));
        history["seconds"].as_array().unwrap().iter().map(|p| p["delivered"].as_u64().unwrap()).sum()
    };
    eventually(60 * SECOND, "a point of the topic", || (delivered("t") == 1).then_some(()));
    assert_eq!(delivered("u"), 0);
    http.get("/v1/history?topic=a%20b").is_problem(422, "bad_field", Some("topic"));
    http.get("/v1/history?colour=red").is_problem(422, "unknown_field", Some("colour"));
}

#[test]
fn a_topic_is_checked_before_it_is_registered() {
    let daemon = Daemon::start("");
    let mut http = Http::tcp(&daemon);
    let checked =
        http.ask("POST", "/v1/check/topic", &json!({"name": "a b", "callback": "x", "delay": "1h"})).is(200);
    let fields: Vec<&str> =
        checked["problems"].as_array().unwrap().iter().map(|p| p["field"].as_str().unwrap()).collect();
    assert_eq!((fields, &checked["gives_up_after_ms"]), (vec!["callback", "name"], &Value::Null));
    let checked =
        http.ask("POST", "/v1/check/topic", &json!({"name": "a", "callback": "http://127.0.0.1:9/"})).is(200);
    assert_eq!((&checked["problems"], &checked["gives_up_after_ms"]), (&json!([]), &json!(81 * 60_000)));
    assert_eq!(checked["timetable"][2], json!({"attempt": 3, "after_ms": 240_000}));
    assert_eq!(http.get("/v1/topics").is(200)["topics"], json!([]), "nothing is registered by it");
}

#[test]
fn alert_channels_are_shown_without_what_is_secret() {
    let more = "[alert]\nto = [\"ops@example.com\"]\n\
        [alert.smtp]\nhost = \"mail.example.com\"\nuser = \"me\"\npassword = \"hunter22\"\nfrom = \"dq@example.com\"\n\
        [[alert.webhook]]\nname = \"chat\"\nurl = \"https://chat.example.com/secret-path\"\n";
    let daemon = Daemon::start(more);
    let shown = Http::tcp(&daemon).get("/v1/alerts/channels").is(200);
    assert_eq!(
        (&shown["mail"]["host"], &shown["webhooks"][0]["host"]),
        (&json!("mail.example.com"), &json!("chat.example.com"))
    );
    assert_eq!(shown["mail"]["recipients"], json!(["ops@example.com"]));
    let text = shown.to_string();
    assert!(!text.contains("hunter22") && !text.contains("secret-path"), "{text}");
}

/// Returns the keys of a dictionary.
fn keys(language: &str) -> Vec<String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("assets/console/words");
    let text = |file: String| std::fs::read_to_string(folder.join(file)).unwrap();
    let all = text(format!("{language}.js")) + &text(format!("{language}_pages.js"));
    let key = |line: &str| Some(line.trim().strip_prefix('\'')?.split_once("': ")?.0.to_owned());
    all.lines().filter_map(key).collect()
}

#[test]
fn both_languages_have_all_words_and_each_setting_is_explained() {
    let (english, chinese) = (keys("en"), keys("zh"));
    let set = |keys: &[String]| keys.iter().cloned().collect::<BTreeSet<_>>();
    assert_eq!(set(&english).len(), english.len(), "a key stands in it twice");
    assert!(english.len() > 200, "{}", english.len());
    let missing: Vec<_> = set(&english).symmetric_difference(&set(&chinese)).cloned().collect();
    assert!(missing.is_empty(), "in one language alone: {missing:?}");
    let daemon = Daemon::start("");
    let document = Http::tcp(&daemon).get("/openapi.json").is(200);
    let fields = document["components"]["schemas"]["NewTopic"]["properties"].as_object().unwrap();
    for field in fields.keys() {
        for key in [format!("field.{field}"), format!("field.{field}.help")] {
            assert!(english.contains(&key), "{key}");
        }
    }
    // The dictionaries have all words that the pages ask for.
    let mut sources = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("assets/console")];
    while let Some(path) = sources.pop() {
        if path.is_dir() {
            sources.extend(std::fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        } else if path.extension().is_some_and(|e| e == "js") && !path.ends_with("uPlot.iife.min.js") {
            let text = std::fs::read_to_string(&path).unwrap();
            for asked in text.split(" t('").chain(text.split("(t('")).skip(1) {
                let key = asked.split('\'').next().unwrap().to_owned();
                let is_whole = asked[key.len()..].starts_with("')") || asked[key.len()..].starts_with("',");
                assert!(!is_whole || english.contains(&key), "{}: {key:?}", path.display());
            }
        }
    }
}

#[test]
fn each_problem_and_each_alert_has_words_in_chinese() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let text = |file: &str| std::fs::read_to_string(root.join(file)).unwrap();
    let words = text("assets/console/words/zh_problems.js");
    let (codes, alerts) = words.split_once("codes: {").unwrap().1.split_once("alerts: {").unwrap();
    let (codes, waiting) = codes.split_once("waiting: {").unwrap();
    // In docs/HTTP.md, a row of the table of errors has a status and its codes.
    let table = text("docs/HTTP.md");
    let rows = table.split_once("\n## Errors\n").unwrap().1.lines().filter(|line| {
        line.strip_prefix("| ").is_some_and(|row| row.starts_with(|c: char| c.is_ascii_digit()))
    });
    let listed: Vec<&str> = rows.flat_map(|row| row.split('|').nth(2).unwrap().split('`')).collect();
    let listed: Vec<&str> =
        listed.into_iter().filter(|code| code.starts_with(|c: char| c.is_ascii_lowercase())).collect();
    assert!(listed.len() > 40, "{listed:?}");
    for code in listed {
        let key = if code.starts_with("store_") { "store" } else { code };
        assert!(codes.contains(&format!("\n    {key}: '")), "{code}");
    }
    let reasons =
        table.split_once("\n**Why a job waits**").unwrap().1.split_once("\n**A change**").unwrap().0;
    let reasons: Vec<&str> =
        reasons.lines().filter_map(|row| row.strip_prefix("| `")?.split('`').next()).collect();
    assert!(reasons.len() == 17 && reasons.contains(&"workers_busy"), "{reasons:?}");
    for code in reasons.into_iter().filter(|code| *code != "code") {
        assert!(waiting.contains(&format!("\n    {code}: '")), "{code}");
    }
    for kind in model::notice::KINDS {
        assert!(alerts.contains(&format!("\n    {kind}: '")), "{kind}");
    }
}

/// The number of account rows in a daemon's registry.
fn account_rows(daemon: &Daemon) -> usize {
    let db = rusqlite::Connection::open(daemon.dir.path().join("var/registry.db")).unwrap();
    db.query_row("SELECT count(*) FROM token WHERE name LIKE '@%'", [], |row| row.get(0)).unwrap()
}

#[test]
fn signing_out_ends_all_sessions_of_the_account() {
    let daemon = Daemon::start("[http]\nauth = \"token\"\n");
    let mut http = Http::tcp(&daemon);
    let password = first_password(&daemon);
    dq(&daemon, &["console", "password", "ann", "--role", "admin"], "the password of ann\n");
    // A new password keeps the role.
    let output = dq(&daemon, &["console", "password", "ann"], "the password of ann\n");
    assert_eq!(output, "set: ann (admin)\n");
    let here = Session::begin(&mut http, "admin", &password);
    let elsewhere = Session::begin(&mut http, "admin", &password);
    let other = Session::begin(&mut http, "ann", "the password of ann");
    for session in [&here, &elsewhere, &other] {
        session.ask(&mut http, "GET", "/v1/stats", &Value::Null).is(200);
    }
    here.ask(&mut http, "DELETE", "/console/session", &Value::Null).is(204);
    for session in [&here, &elsewhere] {
        assert_eq!(session.ask(&mut http, "GET", "/v1/stats", &Value::Null).status, 401);
    }
    other.ask(&mut http, "GET", "/v1/stats", &Value::Null).is(200);
    let again = Session::begin(&mut http, "admin", &password);
    again.ask(&mut http, "GET", "/v1/stats", &Value::Null).is(200);
}

#[test]
fn wrong_passwords_for_one_account_do_not_block_another() {
    let daemon = Daemon::start("");
    let mut http = Http::tcp(&daemon);
    let password = first_password(&daemon);
    for n in 0..11 {
        sign_in(&mut http, "ann", &format!("a guess {n}"));
    }
    assert_eq!(sign_in(&mut http, "ann", "a guess").status, 429);
    Session::begin(&mut http, "admin", &password);
}

#[test]
fn one_address_guesses_no_more_than_fifty_passwords() {
    let daemon = Daemon::start("");
    let mut http = Http::tcp(&daemon);
    let password = first_password(&daemon);
    for n in 0..50 {
        assert_eq!(sign_in(&mut http, &format!("account{n}"), "a guess").status, 403, "{n}");
    }
    assert_eq!(sign_in(&mut http, "another", "a guess").status, 429);
    // The right password does not help from this address, but the Unix socket works.
    assert_eq!(sign_in(&mut http, "admin", &password).status, 429);
    Http::unix(&daemon).get("/v1/stats").is(200);
}

#[test]
fn hosts_with_one_session_key_share_sign_ins() {
    let shared = tempfile::tempdir().unwrap();
    let key = shared.path().join("key");
    fs::write(&key, [7; 32]).unwrap();
    fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).unwrap();
    let registry = format!("sqlite:{}", shared.path().join("registry.db").display());
    let config =
        format!("[http]\nsession_key_file = \"{}\"\n[registry]\nurl = \"{registry}\"\n", key.display());
    let first = Daemon::start(&config);
    let session = Session::begin(&mut Http::tcp(&first), "admin", &first_password(&first));
    let second = Daemon::start(&config);
    eventually(10 * SECOND, "the account on the other host", || {
        let answer = session.ask(&mut Http::tcp(&second), "GET", "/v1/accounts", &Value::Null);
        (answer.status == 200).then_some(())
    });
    assert!(!second.dir.path().join("var/run/session-key").exists());
}

#[test]
fn a_session_needs_the_key_that_is_not_in_the_registry() {
    let daemon = Daemon::start("[http]\nauth = \"token\"\n");
    let key = daemon.dir.path().join("var/run/session-key");
    let mut http = Http::tcp(&daemon);
    let session = Session::begin(&mut http, "admin", &first_password(&daemon));
    assert_eq!(fs::metadata(&key).unwrap().permissions().mode() & 0o777, 0o600);
    let before = fs::read(&key).unwrap();
    assert_eq!(before.len(), 32);
    // A new process uses the same session key. A process with another key does not know the session.
    daemon.kill_child("dq-http-server");
    let mut http = Http::tcp(&daemon);
    session.ask(&mut http, "GET", "/v1/stats", &Value::Null).is(200);
    assert_eq!(fs::read(&key).unwrap(), before);
    fs::write(&key, [9; 32]).unwrap();
    daemon.kill_child("dq-http-server");
    let mut http = Http::tcp(&daemon);
    assert_eq!(session.ask(&mut http, "GET", "/v1/stats", &Value::Null).status, 401);
}

#[test]
fn no_first_account_is_made_again_once_there_was_one() {
    let daemon = Daemon::start("[http]\nauth = \"token\"\n");
    let password = first_password(&daemon);
    let mut root = Http::unix(&daemon);
    root.ask("DELETE", "/v1/accounts/admin", &Value::Null).is(204);
    assert_eq!(root.get("/v1/accounts").is(200)["accounts"], json!([]));
    root.ask("DELETE", "/v1/accounts/admin", &Value::Null).is_problem(404, "not_found", None);
    let mut http = Http::tcp(&daemon);
    sign_in(&mut http, "admin", &password).is_problem(403, "wrong_password", None);
    fs::remove_file(daemon.dir.path().join("var/run/first-password")).unwrap();
    daemon.kill_child("dq-http-server");
    let mut http = Http::tcp(&daemon);
    assert_eq!(http.get("/console/session").is(200)["signed_in"], false);
    sign_in(&mut http, "admin", &password).is_problem(403, "wrong_password", None);
    assert_eq!((account_rows(&daemon), daemon.log().matches("sign in as admin").count()), (1, 1));
    assert!(!daemon.dir.path().join("var/run/first-password").exists());
    // The account can be made again by hand.
    dq(&daemon, &["console", "password", "admin"], "a new password\n");
    Session::begin(&mut http, "admin", "a new password");
}

#[test]
fn without_a_console_nobody_signs_in_and_the_api_works() {
    let daemon = Daemon::start("[http]\nconsole = false\n");
    let mut http = Http::tcp(&daemon);
    for path in ["/", "/console/app.js", "/console/session"] {
        http.get(path).is_problem(404, "no_route", None);
    }
    sign_in(&mut http, "admin", "x").is_problem(404, "no_route", None);
    http.get("/v1/stats").is(200);
    assert!(!daemon.dir.path().join("var/run/first-password").exists());
    assert!(!daemon.dir.path().join("var/run/session-key").exists());
    assert_eq!(account_rows(&daemon), 0);
}
