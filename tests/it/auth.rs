//! Who may do what: requests to a real daemon, with tokens and without, over TCP, HTTP, TLS and the Unix socket.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::support;
use crate::support::{Daemon, SECOND, Sink, add, all_new, eventually, free_port, on_redis, topic};
use cli::TcpClient;
use model::settings;
use model::token::TokenName;
use nix::sys::signal::Signal;
use registry::{Registry, Snapshot, open};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use serde_json::{Value, json};

/// How long a test waits for a change to take effect: the promised time, and some more because all tests share the
/// machine.
const SOON: Duration = Duration::from_secs(5);

trait Stream: Read + Write + Send {}
impl<T: Read + Write + Send> Stream for T {}

/// A connection to dq-http-server that is kept open.
struct Http {
    reader: BufReader<Box<dyn Stream>>,
    host: String,
    token: Option<String>,
}

#[derive(Debug)]
struct Answer {
    status: u16,
    headers: HashMap<String, String>,
    json: Value,
}

impl Http {
    fn of(stream: impl Stream + 'static, host: &str, token: Option<&str>) -> Http {
        let token = token.map(str::to_owned);
        Http { reader: BufReader::new(Box::new(stream)), host: host.to_owned(), token }
    }

    fn tcp(daemon: &Daemon, token: Option<&str>) -> Http {
        Http::of(connect(daemon.http), &format!("127.0.0.1:{}", daemon.http), token)
    }

    fn unix(daemon: &Daemon, token: Option<&str>) -> Http {
        let stream = UnixStream::connect(socket(daemon)).unwrap();
        stream.set_read_timeout(Some(30 * SECOND)).unwrap();
        Http::of(stream, "dq", token)
    }

    fn ask(&mut self, method: &str, path: &str, body: &Value) -> Answer {
        self.send(method, path, "", body).expect("an answer")
    }

    fn get(&mut self, path: &str) -> Answer {
        self.ask("GET", path, &Value::Null)
    }

    /// Sends a request with these header lines.
    fn send(&mut self, method: &str, path: &str, headers: &str, body: &Value) -> std::io::Result<Answer> {
        self.begin(method, path, headers, body)?;
        self.receive(method == "HEAD")
    }

    /// Sends a request with these header lines, and does not wait for the answer.
    fn begin(&mut self, method: &str, path: &str, headers: &str, body: &Value) -> std::io::Result<()> {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let mut head = format!("{method} {path} HTTP/1.1\r\nContent-Length: {}\r\n{headers}", body.len());
        if !headers.to_ascii_lowercase().contains("host:") {
            head += &format!("Host: {}\r\n", self.host);
        }
        if let Some(token) = &self.token {
            head += &format!("Authorization: Bearer {token}\r\n");
        }
        self.reader.get_mut().write_all(format!("{head}\r\n{body}").as_bytes())
    }

    fn receive(&mut self, head_only: bool) -> std::io::Result<Answer> {
        let (mut headers, mut status) = (HashMap::new(), 0);
        loop {
            let mut line = String::new();
            if self.reader.read_line(&mut line)? == 0 {
                return Err(ErrorKind::UnexpectedEof.into());
            }
            match line.trim_end().split_once(": ") {
                Some((name, value)) => drop(headers.insert(name.to_ascii_lowercase(), value.to_owned())),
                None if line == "\r\n" => break,
                None => status = line.split(' ').nth(1).unwrap().parse().unwrap(),
            }
        }
        let length = headers.get("content-length").filter(|_| !head_only).map_or(0, |n| n.parse().unwrap());
        let mut body = vec![0; length];
        self.reader.read_exact(&mut body)?;
        Ok(Answer { status, headers, json: serde_json::from_slice(&body).unwrap_or(Value::Null) })
    }
}

impl Answer {
    #[track_caller]
    fn is(self, status: u16) -> Value {
        assert_eq!(self.status, status, "{self:?}");
        self.json
    }

    #[track_caller]
    fn is_problem(&self, status: u16, code: &str) {
        assert_eq!((self.status, self.json["code"].as_str()), (status, Some(code)), "{self:?}");
        assert_eq!(self.headers["content-type"], "application/problem+json");
    }
}

fn connect(port: u16) -> TcpStream {
    let stream = eventually(10 * SECOND, "the HTTP port", || TcpStream::connect(("127.0.0.1", port)).ok());
    stream.set_read_timeout(Some(30 * SECOND)).unwrap();
    stream.set_nodelay(true).unwrap();
    stream
}

fn socket(daemon: &Daemon) -> PathBuf {
    daemon.dir.path().join("var/run/http.sock")
}

/// Starts a daemon that requires a token everywhere, and has the topics `a` and `b`.
fn shut(more: &str) -> (Sink, Daemon) {
    assert!(!on_redis(), "tokens need a registry");
    let sink = Sink::start();
    let topics = topic("a", &sink, "") + &topic("b", &sink, "");
    let daemon =
        Daemon::start(&format!("[server]\nauth = \"token\"\n[http]\nauth = \"token\"\n{more}{topics}"));
    (sink, daemon)
}

/// Creates a token over the Unix socket, as root may do.
fn make(daemon: &Daemon, name: &str, scopes: &[&str], expires: Option<&str>) -> String {
    let wanted = json!({"name": name, "scopes": scopes, "expires": expires});
    let made = Http::unix(daemon, None).ask("POST", "/v1/tokens", &wanted);
    assert_eq!(made.headers["cache-control"], "no-store");
    let made = made.is(201);
    assert_eq!((&made["name"], &made["scopes"]), (&json!(name), &json!(scopes)));
    made["token"].as_str().unwrap().to_owned()
}

fn revoke(daemon: &Daemon, name: &str) {
    Http::unix(daemon, None).ask("DELETE", &format!("/v1/tokens/{name}"), &Value::Null).is(204);
}

fn registry(daemon: &Daemon) -> Box<dyn Registry> {
    open(&settings::RegistrySettings::Sqlite { path: daemon.dir.path().join("var/registry.db") }).unwrap()
}

/// Waits until a token has expired.
fn wait_past(expires_ms: i64) {
    eventually(SOON, "the end of a token", || (support::now_ms() > expires_ms).then_some(()));
}

const NOBODYS: &str = "dq_aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";

/// A value with its name.
type Named<T> = (&'static str, T);

/// Returns the tokens of the tables below, each with its scope, and tokens that are accepted nowhere.
fn all_tokens(daemon: &Daemon) -> (Vec<Named<String>>, Vec<Named<Option<String>>>) {
    let good =
        ALL.iter().map(|scope| (*scope, make(daemon, &scope.replace([':', '*'], "_"), &[scope], None)));
    let good: Vec<_> = good.collect();
    let expired = make(daemon, "expired", &["admin"], Some("1s"));
    let revoked = make(daemon, "revoked", &["admin"], None);
    revoke(daemon, "revoked");
    let tokens = registry(daemon).tokens().unwrap();
    wait_past(tokens.iter().find(|t| t.name.as_str() == "expired").unwrap().expires_ms.unwrap());
    let bad = vec![
        ("none", None),
        ("nobody's", Some(NOBODYS.to_owned())),
        ("no token", Some("Zm9vOmJhcg".to_owned())),
        ("expired", Some(expired)),
        ("revoked", Some(revoked)),
    ];
    (good, bad)
}

const ALL: &[&str] = &[
    "admin",
    "read",
    "read:a",
    "manage:a",
    "manage:b",
    "produce:a",
    "produce:b",
    "produce:*",
    "consume:a",
    "consume:b",
    "consume:*",
    "metrics",
];
const LOOK_A: &[&str] =
    &["admin", "read", "read:a", "manage:a", "produce:a", "produce:*", "consume:a", "consume:*"];
const SEE_A: &[&str] = &["admin", "read", "read:a", "manage:a"];
const SOME: &[&str] = &["admin", "read", "read:a", "manage:a", "manage:b"];
/// All scopes except `metrics`, which is the last scope of `ALL`.
const SOME_JOBS: &[&str] = ALL.split_at(ALL.len() - 1).0;
const MANAGE_A: &[&str] = &["admin", "manage:a"];
const PRODUCE_A: &[&str] = &["admin", "produce:a", "produce:*"];

#[test]
fn each_route_lets_in_who_has_its_scope_and_nobody_else() {
    let (_sink, daemon) = shut("");
    let (good, bad) = all_tokens(&daemon);
    let job = json!({"id": "1", "body": 1, "delay": "1h"});
    let later = json!({"delay": "2h"});
    #[rustfmt::skip]
    let table: &[(&str, &str, &Value, &[&str], &str)] = &[
        ("GET", "/v1/stats", &Value::Null, SOME, "read"),
        ("HEAD", "/v1/stats", &Value::Null, SOME, "read"),
        ("GET", "/metrics", &Value::Null, &["admin", "read", "metrics"], "metrics"),
        ("GET", "/v1/nodes", &Value::Null, &["admin", "read"], "read"),
        ("GET", "/v1/topics", &Value::Null, SOME, "read"),
        ("GET", "/v1/topics/a", &Value::Null, SEE_A, "read:a"),
        ("PATCH", "/v1/topics/a", &json!({"title": "x"}), MANAGE_A, "manage:a"),
        ("POST", "/v1/topics/a/pause", &Value::Null, MANAGE_A, "manage:a"),
        ("POST", "/v1/topics/a/resume", &Value::Null, MANAGE_A, "manage:a"),
        ("POST", "/v1/topics/a/test", &Value::Null, MANAGE_A, "manage:a"),
        ("POST", "/v1/topics/a/dead/redrive", &Value::Null, MANAGE_A, "manage:a"),
        ("POST", "/v1/topics/a/dead/purge", &Value::Null, MANAGE_A, "manage:a"),
        ("GET", "/v1/topics/a/records", &Value::Null, LOOK_A, "read:a"),
        ("GET", "/v1/topics/a/jobs/1/records", &Value::Null, LOOK_A, "read:a"),
        ("DELETE", "/v1/topics/a/jobs/1/records", &Value::Null, MANAGE_A, "manage:a"),
        ("GET", "/v1/records", &Value::Null, SOME_JOBS, "read"),
        ("GET", "/v1/jobs", &Value::Null, SOME_JOBS, "read"),
        ("GET", "/v1/find?id=1", &Value::Null, SOME_JOBS, "read"),
        ("POST", "/v1/topics", &json!({}), &["admin"], "admin"),
        ("POST", "/v1/stats", &Value::Null, &["admin"], "admin"),
        ("POST", "/v1/topics/a/jobs", &job, PRODUCE_A, "produce:a"),
        ("POST", "/v1/topics/%61/jobs", &job, PRODUCE_A, "produce:a"),
        ("POST", "/v1/topics/b/jobs", &job, &["admin", "produce:b", "produce:*"], "produce:b"),
        ("POST", "/v1/topics/b%2F..%2Fa/jobs", &job, &["admin", "produce:*"], "produce:b/../a"),
        ("POST", "/v1/topics/a/jobs/batch", &json!({"jobs": []}), PRODUCE_A, "produce:a"),
        ("GET", "/v1/topics/a/jobs?state=delayed", &Value::Null, LOOK_A, "read:a"),
        ("GET", "/v1/topics/a/jobs/1", &Value::Null, LOOK_A, "read:a"),
        ("GET", "/v1/topics/a/jobs/batch", &Value::Null, LOOK_A, "read:a"),
        ("PATCH", "/v1/topics/a/jobs/1", &later, PRODUCE_A, "produce:a"),
        ("PATCH", "/v1/topics/a/jobs/batch", &later, PRODUCE_A, "produce:a"),
        ("POST", "/v1/topics/a/jobs/1/run", &Value::Null, PRODUCE_A, "produce:a"),
        ("DELETE", "/v1/topics/a/jobs/1", &Value::Null, PRODUCE_A, "produce:a"),
        ("DELETE", "/v1/topics/a/jobs/batch", &Value::Null, PRODUCE_A, "produce:a"),
        ("GET", "/v1/tokens", &Value::Null, &["admin"], "admin"),
        ("POST", "/v1/tokens", &json!({}), &["admin"], "admin"),
        ("DELETE", "/v1/tokens/nobody", &Value::Null, &["admin"], "admin"),
        // Each client with a valid token learns that this path does not exist.
        ("GET", "/v1/nothing", &Value::Null, ALL, ""),
    ];
    for (method, path, body, permitted, missing) in table {
        for (scope, token) in &good {
            let answer = Http::tcp(&daemon, Some(token)).ask(method, path, body);
            let what = format!("{scope}: {method} {path}: {answer:?}");
            if permitted.contains(scope) {
                assert!(!matches!(answer.status, 401 | 403 | 429 | 500..), "{what}");
                continue;
            }
            assert_eq!(answer.status, 403, "{what}");
            if *method != "HEAD" {
                answer.is_problem(403, "forbidden");
                assert!(
                    answer.json["detail"].as_str().unwrap().contains(&format!("scope {missing},")),
                    "{what}"
                );
            }
            assert!(answer.headers["www-authenticate"].contains(&format!("scope=\"{missing}\"")), "{what}");
        }
        for (which, token) in &bad {
            let answer = Http::tcp(&daemon, token.as_deref()).ask(method, path, body);
            let what = format!("{which}: {method} {path}: {answer:?}");
            // After ten wrong tokens the status is 429.
            assert!(answer.status == 401 || token.is_some() && answer.status == 429, "{what}");
            if answer.status == 401 {
                assert!(answer.headers["www-authenticate"].starts_with("Bearer"), "{what}");
            }
        }
        // Root needs no token.
        let status = Http::unix(&daemon, None).ask(method, path, body).status;
        assert!(!matches!(status, 401 | 403), "{method} {path}: {status}");
    }
    for path in ["/healthz", "/readyz"] {
        for (which, token) in &bad {
            let answer = Http::tcp(&daemon, token.as_deref()).get(path);
            assert_eq!(answer.status, 200, "{which}: {path}");
            // Only clients with a scope to read may see nodes, folders and versions.
            let text = answer.json.to_string();
            assert!(!text.contains("main") && !text.contains("version"), "{which}: {path}: {text}");
        }
    }
    for header in
        ["Authorization: Basic Zm9vOmJhcg==\r\n", "Authorization: Bearer\r\n", "Authorization: \r\n"]
    {
        let answer = Http::tcp(&daemon, None).send("GET", "/v1/stats", header, &Value::Null).unwrap();
        assert!(matches!(answer.status, 401 | 429), "{answer:?}");
    }
    for (_, token) in &good {
        assert!(!daemon.log().contains(token.as_str()));
    }
}

fn let_in(daemon: &Daemon, token: Option<&str>) -> TcpClient {
    let mut client = daemon.client();
    if let Some(token) = token {
        client.ask(&json!({"cmd": "auth", "token": token})).unwrap();
    }
    client
}

#[test]
fn each_command_lets_in_who_has_its_scope_and_nobody_else() {
    let (_sink, daemon) = shut("");
    let (good, bad) = all_tokens(&daemon);
    let far = add("a", "1", 3_600_000);
    let of = |cmd: &str| json!({"cmd": cmd, "topic": "a", "id": "1"});
    let stats = json!({"cmd": "stats"});
    let stats_of_a = json!({"cmd": "stats", "topic": "a"});
    let table: &[(&Value, &[&str], &str)] = &[
        (&far, PRODUCE_A, "produce:a"),
        (&add("b", "1", 3_600_000), &["admin", "produce:b", "produce:*"], "produce:b"),
        (&of("get"), LOOK_A, "read:a"),
        (&of("run"), PRODUCE_A, "produce:a"),
        (&of("del"), PRODUCE_A, "produce:a"),
        (&stats, &["admin", "read"], "read"),
        (&stats_of_a, SEE_A, "read:a"),
    ];
    for (request, permitted, missing) in table {
        for (scope, token) in &good {
            let answer = let_in(&daemon, Some(token)).ask(request).unwrap();
            let what = format!("{scope}: {request}: {answer}");
            if permitted.contains(scope) {
                assert!(
                    !["forbidden", "unauthorized"].contains(&answer["err"].as_str().unwrap_or("")),
                    "{what}"
                );
            } else {
                assert_eq!((&answer["code"], &answer["err"]), (&json!(0), &json!("forbidden")), "{what}");
                assert!(answer["msg"].as_str().unwrap().contains(missing), "{what}");
            }
        }
    }
    // In a batch, each job is checked by itself.
    let (_, token) = good.iter().find(|(scope, _)| *scope == "produce:a").unwrap();
    let jobs = json!({"cmd": "madd", "jobs": [
        {"topic": "a", "id": "m", "body": 1, "delay_ms": 3_600_000},
        {"topic": "b", "id": "m", "body": 1, "delay_ms": 3_600_000},
    ]});
    let answer = let_in(&daemon, Some(token)).ask(&jobs).unwrap();
    assert_eq!(
        (&answer["data"][0]["code"], &answer["data"][1]["err"]),
        (&json!(1), &json!("forbidden")),
        "{answer}"
    );
    let (_, admin) = &good[0];
    let lost = let_in(&daemon, Some(admin)).ask(&json!({"cmd": "get", "topic": "b", "id": "m"})).unwrap();
    assert_eq!(lost["err"], "not_found");

    for (which, token) in &bad {
        let mut client = let_in(&daemon, token.as_deref());
        assert_eq!(client.ask(&json!({"cmd": "ping"})).unwrap()["code"], 1);
        for request in
            table.iter().map(|(request, ..)| *request).chain([&jobs, &json!({"cmd": "fly"}), &json!([])])
        {
            let answer = client.ask(request).unwrap();
            assert_eq!(
                (&answer["code"], &answer["err"]),
                (&json!(0), &json!("unauthorized")),
                "{which}: {request}"
            );
        }
        // After a refusal, the client may show another token on the same connection.
        let answer = client.ask(&json!({"cmd": "auth", "token": admin})).unwrap();
        assert_eq!(answer, json!({"code": 1, "msg": "succ", "data": []}));
        assert_eq!(client.ask(&far).unwrap()["code"], 1, "{which}");
        assert!(client.ask(&json!({"cmd": "auth", "token": NOBODYS})).unwrap()["code"] == 0);
        assert_eq!(
            client.ask(&far).unwrap()["err"],
            "unauthorized",
            "a wrong one takes the place of a good one"
        );
    }
    // Requests after an `auth` need not wait for the answer to the `auth`.
    let mut client = daemon.client();
    client.send(&[far.clone(), json!({"cmd": "auth", "token": admin}), far]).unwrap();
    let codes: Vec<_> = (0..3).map(|_| client.receive().unwrap()["code"].as_u64().unwrap()).collect();
    assert_eq!(codes, [0, 1, 1]);
}

#[test]
fn a_revoked_token_is_refused_soon_on_open_connections_too() {
    let (_sink, daemon) = shut("");
    let token = make(&daemon, "shop", &["produce:a", "read"], None);
    let (mut tcp, mut http) = (let_in(&daemon, Some(&token)), Http::tcp(&daemon, Some(&token)));
    assert_eq!(tcp.ask(&add("a", "1", 3_600_000)).unwrap()["code"], 1);
    http.get("/v1/stats").is(200);
    // The token is deleted directly in the registry, as another host would do it.
    registry(&daemon).delete_token(&TokenName::new("shop").unwrap()).unwrap();
    let begun = Instant::now();
    eventually(SOON, "a refusal by TCP", || {
        (tcp.ask(&add("a", "2", 3_600_000)).unwrap()["err"] == "unauthorized").then_some(())
    });
    eventually(SOON, "a refusal by HTTP", || (http.get("/v1/stats").status == 401).then_some(()));
    println!("revoked: {:?}", begun.elapsed());
    assert!(begun.elapsed() < 4 * SECOND, "{:?}", begun.elapsed());

    // If a token is deleted over the API, the API refuses it at once. A new token may be used at once.
    let token = make(&daemon, "shop", &["read"], None);
    let mut http = Http::tcp(&daemon, Some(&token));
    http.get("/v1/stats").is(200);
    revoke(&daemon, "shop");
    http.get("/v1/stats").is_problem(401, "unauthorized");
    // A token is refused after it has expired.
    let token = make(&daemon, "short", &["read"], Some("2s"));
    let mut http = Http::tcp(&daemon, Some(&token));
    let mut tcp = daemon.client();
    eventually(SOON, "the token by TCP", || {
        (tcp.ask(&json!({"cmd": "auth", "token": token})).unwrap()["code"] == 1).then_some(())
    });
    http.get("/v1/stats").is(200);
    eventually(SOON, "its end", || (http.get("/v1/stats").status == 401).then_some(()));
    assert_eq!(tcp.ask(&json!({"cmd": "stats"})).unwrap()["err"], "unauthorized");
}

#[test]
fn a_reserve_that_waits_ends_when_its_token_does() {
    let (_sink, daemon) = shut("[[topic]]\nname = \"p\"\nmode = \"pull\"\n");
    let token = make(&daemon, "shop", &["consume:p"], None);
    let short = make(&daemon, "short", &["consume:p"], Some("4s"));
    let other = make(&daemon, "other", &["consume:p"], None);
    let tcp_reserve = |wait: &str| json!({"cmd": "reserve", "topic": "p", "wait": wait});
    let http_reserve = |http: &mut Http, wait: &str| {
        http.begin("POST", "/v1/topics/p/reserve", "", &json!({ "wait": wait })).unwrap();
    };
    let mut tcp = [&token, &short].map(|token| let_in(&daemon, Some(token)));
    let mut http = [&token, &short].map(|token| Http::tcp(&daemon, Some(token)));
    tcp.iter_mut().for_each(|tcp| tcp.send(&[tcp_reserve("50s")]).unwrap());
    http.iter_mut().for_each(|http| http_reserve(http, "50s"));
    // When these reserves are answered, the others wait, because they came before.
    assert_eq!(let_in(&daemon, Some(&other)).ask(&tcp_reserve("20ms")).unwrap()["data"], json!([]));
    let mut last = Http::tcp(&daemon, Some(&other));
    http_reserve(&mut last, "20ms");
    last.receive(false).unwrap().is(200);
    let begun = Instant::now();
    // The token is deleted by another host.
    registry(&daemon).delete_token(&TokenName::new("shop").unwrap()).unwrap();
    for tcp in &mut tcp {
        assert_eq!(tcp.receive().unwrap()["data"], json!([]), "the wait ends without a job");
    }
    for http in &mut http {
        assert_eq!(http.receive(false).unwrap().is(200)["jobs"], json!([]));
    }
    assert!(begun.elapsed() < 20 * SECOND, "{:?}", begun.elapsed());
    assert_eq!(tcp[0].ask(&tcp_reserve("1s")).unwrap()["err"], "unauthorized");
}

#[test]
fn known_tokens_work_without_the_database_even_after_a_restart() {
    let (_sink, daemon) = shut("");
    let token = make(&daemon, "ops", &["admin"], None);
    let db = rusqlite::Connection::open(daemon.dir.path().join("var/registry.db")).unwrap();
    db.execute_batch("BEGIN EXCLUSIVE").unwrap();
    eventually(20 * SECOND, "a finding", || {
        let findings = std::fs::read_to_string(daemon.dir.path().join("var/run/findings.json")).ok()?;
        findings.contains("registry_away").then_some(())
    });
    for child in ["dq-server", "dq-http-server", "dq-redis-checke"] {
        daemon.kill_child(child);
    }
    daemon.wait_ready();
    assert_eq!(let_in(&daemon, Some(&token)).ask(&add("a", "1", 3_600_000)).unwrap()["code"], 1);
    let mut http = Http::tcp(&daemon, Some(&token));
    http.get("/v1/tokens").is(200);
    let refused = http.ask("POST", "/v1/tokens", &json!({"name": "x", "scopes": ["read"]}));
    assert_eq!(refused.status, 503, "{refused:?}");
    db.execute_batch("ROLLBACK").unwrap();
    eventually(20 * SECOND, "the database", || {
        let made = http.ask("POST", "/v1/tokens", &json!({"name": "y", "scopes": ["read"]}));
        (made.status == 201).then_some(())
    });
}

#[test]
fn an_old_release_snapshot_removes_no_token_and_is_repaired() {
    let (_sink, daemon) = shut("");
    let token = make(&daemon, "ops", &["admin"], None);
    let run_dir = daemon.dir.path().join("var/run");
    let (known, _) = Snapshot::read(&run_dir).unwrap().unwrap();
    let text = std::fs::read_to_string(Snapshot::file(&run_dir)).unwrap();
    assert!(!text.contains(&token), "no secret lies in it");
    Snapshot { tokens: None, ..known.clone() }.write(&run_dir).unwrap();
    let mut http = Http::tcp(&daemon, Some(&token));
    eventually(SOON, "the tokens in the snapshot", || {
        http.get("/v1/stats").is(200);
        (Snapshot::read(&run_dir).unwrap().unwrap().0 == known).then_some(())
    });
    // A snapshot of the previous release has the tokens of clients, but not the accounts.
    let tokens = known.tokens.clone().unwrap();
    let of_clients: Vec<_> = tokens.into_iter().filter(|t| !t.name.stored().starts_with('@')).collect();
    assert!(of_clients.len() < known.tokens.as_ref().unwrap().len(), "there is an account");
    Snapshot { tokens: Some(of_clients), ..known.clone() }.write(&run_dir).unwrap();
    eventually(SOON, "the accounts in the snapshot", || {
        (Snapshot::read(&run_dir).unwrap().unwrap().0 == known).then_some(())
    });
}

#[test]
fn what_is_wrong_with_a_token_that_is_asked_for_is_named() {
    let (_sink, daemon) = shut("");
    let mut http = Http::unix(&daemon, None);
    for (wanted, status, code, field) in [
        (json!({}), 422, "missing_field", "name"),
        (json!({"name": "x"}), 422, "missing_field", "scopes"),
        (json!({"name": "x", "scopes": []}), 422, "bad_field", "scopes"),
        (json!({"name": "x", "scopes": ["write"]}), 422, "bad_field", "scopes"),
        (json!({"name": "x", "scopes": "read"}), 422, "bad_field", "scopes"),
        (json!({"name": "x", "scopes": [7]}), 422, "bad_field", "scopes"),
        (json!({"name": "x", "scopes": ["produce:a b"]}), 422, "bad_field", "scopes"),
        (json!({"name": "a b", "scopes": ["read"]}), 422, "bad_field", "name"),
        (json!({"name": "", "scopes": ["read"]}), 422, "bad_field", "name"),
        (json!({"name": 7, "scopes": ["read"]}), 422, "bad_field", "name"),
        (json!({"name": "x", "scopes": ["read"], "expires": "soon"}), 422, "bad_field", "expires"),
        (json!({"name": "x", "scopes": ["read"], "expires": -1}), 422, "bad_field", "expires"),
        (json!({"name": "x", "scopes": ["read"], "expires": "0s"}), 422, "bad_field", "expires"),
        (json!({"name": "x", "scopes": ["read"], "expires": u64::MAX}), 422, "bad_field", "expires"),
        (json!({"name": "x", "scopes": ["read"], "token": "dq_x"}), 422, "unknown_field", "token"),
        (json!([]), 400, "bad_json", ""),
    ] {
        let answer = http.ask("POST", "/v1/tokens", &wanted);
        answer.is_problem(status, code);
        assert_eq!(answer.json["field"].as_str().unwrap_or(""), field, "{wanted}: {answer:?}");
    }
    let first = make(&daemon, "x", &["read"], None);
    http.ask("POST", "/v1/tokens", &json!({"name": "x", "scopes": ["admin"]})).is_problem(409, "exists");
    let shown = http.get("/v1/tokens").is(200);
    let shown = &shown["tokens"][0];
    assert_eq!(
        (&shown["name"], &shown["scopes"], &shown["expires_ms"], &shown["creator"]),
        (&json!("x"), &json!(["read"]), &Value::Null, &json!("root"))
    );
    assert!(shown.get("token").is_none() && shown.get("digest").is_none(), "{shown}");
    http.ask("DELETE", "/v1/tokens/y", &Value::Null).is_problem(404, "not_found");
    let second = make(&daemon, "y", &["read"], Some("90d"));
    assert_ne!(first, second);
    let text = |secret: &str| secret.len() == 55 && secret.starts_with("dq_");
    assert!(text(&first) && text(&second), "{first} {second}");
}

#[test]
fn wrong_tokens_are_blocked_after_ten_and_valid_ones_still_work() {
    let (_sink, mut daemon) = shut("");
    let token = make(&daemon, "ops", &["admin"], None);
    let mut http = Http::tcp(&daemon, Some(NOBODYS));
    for n in 1..=10 {
        http.get("/v1/stats").is_problem(401, "unauthorized");
        assert!(n <= 10);
    }
    for _ in 0..20 {
        let answer = http.get("/v1/stats");
        answer.is_problem(429, "too_many_failures");
        assert!((1..=60).contains(&answer.headers["retry-after"].parse::<u64>().unwrap()));
    }
    Http::tcp(&daemon, Some(&token)).get("/v1/stats").is(200);
    let mut tcp = daemon.client();
    let wrong = json!({"cmd": "auth", "token": NOBODYS});
    let errs: Vec<_> =
        (0..12).map(|_| tcp.ask(&wrong).unwrap()["err"].as_str().unwrap().to_owned()).collect();
    assert!(
        errs[..10].iter().all(|e| e == "unauthorized") && errs[10..].iter().all(|e| e == "too_many_failures")
    );
    assert_eq!(tcp.ask(&json!({"cmd": "auth", "token": token})).unwrap()["code"], 1);
    daemon.stop();
    let log = daemon.log();
    for message in
        ["refused 30 requests from 127.0.0.1 in the last ", "refused 12 requests from 127.0.0.1 in the last "]
    {
        let lines: Vec<_> = log.lines().filter(|line| line.contains(message)).collect();
        assert!(lines.len() == 1 && lines[0].contains(", all without a valid token, such as "), "{log}");
    }
    assert!(!log.contains(NOBODYS) && log.matches("unauthorized").count() == 2, "{log}");
}

#[test]
fn foreign_pages_are_refused_unless_a_valid_token_is_sent() {
    let (_sink, daemon) = shut("");
    let token = make(&daemon, "ops", &["read"], None);
    let foreign = ["Host: evil.example\r\n", "Origin: http://evil.example\r\n"];
    for headers in foreign {
        let ask = |token| Http::tcp(&daemon, token).send("GET", "/v1/stats", headers, &Value::Null).unwrap();
        ask(Some(&token)).is(200);
        ask(None).is_problem(401, "unauthorized");
    }
    let open = Daemon::start("");
    for headers in foreign {
        let answer = Http::tcp(&open, None).send("GET", "/v1/stats", headers, &Value::Null).unwrap();
        answer.is_problem(403, "foreign");
    }
    Http::tcp(&open, None).get("/v1/tokens").is(200);
    // A client may show a token where no token is needed.
    assert_eq!(open.client().ask(&json!({"cmd": "auth", "token": NOBODYS})).unwrap()["code"], 1);
}

/// Starts dq-master with a configuration that it refuses. Returns its output.
fn refused(config: &str) -> String {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("dq.toml");
    std::fs::write(&path, config).unwrap();
    let said = |arguments: &[&str]| {
        let mut command = Command::new("timeout");
        command.args(["-k", "1", "10"]).arg(env!("CARGO_BIN_EXE_dq-master")).arg("--config").arg(&path);
        let out = command.args(arguments).output().unwrap();
        assert!(!out.status.success() && out.status.code() != Some(124), "{config}: {out:?}");
        String::from_utf8_lossy(&out.stderr).into_owned()
    };
    let checked = said(&["--check"]);
    let started = said(&[]);
    for text in [&checked, &started] {
        assert!(text.contains("listen") || text.contains("auth"), "{text}");
    }
    checked
}

#[test]
fn an_unsafe_bind_or_tokens_without_a_registry_stop_the_start() {
    for (config, keys) in [
        ("[http]\nlisten = \"0.0.0.0:18088\"", ["http.listen", "http.allow"]),
        ("[http]\nlisten = \"[::]:18088\"", ["http.listen", "http.auth"]),
        ("[server]\nlisten = \"0.0.0.0:16789\"", ["server.listen", "server.auth"]),
        ("[http]\nauth = \"token\"\n[registry]\nurl = \"none\"", ["http.auth", "registry.url"]),
        ("[server]\nauth = \"token\"\n[registry]\nurl = \"none\"", ["server.auth", "registry.url"]),
        (
            "[http]\nauth = \"token\"\n[store]\nbackend = \"redis\"\n[[store.node]]\nname = \"a\"\nurl = \"redis://127.0.0.1:1\"\n[registry]\nurl = \"none\"",
            ["http.auth", "registry.url"],
        ),
    ] {
        let said = refused(config);
        assert!(keys.iter().all(|key| said.contains(key)), "{config}: {said}");
    }
}

#[test]
fn a_wide_bind_refuses_addresses_and_hosts_that_are_not_allowed() {
    let sink = Sink::start();
    let text = |listen: &str, allow: &str| {
        let (port, http) = (free_port(), free_port());
        let config = format!(
            "[server]\nlisten = \"127.0.0.1:{port}\"\n[http]\nlisten = \"{listen}:{http}\"\nallow = [\"{allow}\"]\n{}",
            topic("a", &sink, "")
        );
        let dir = Arc::new(tempfile::tempdir().unwrap());
        std::fs::write(dir.path().join("dq.toml"), config).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_dq-master"));
        command.arg("--config").arg(dir.path().join("dq.toml"));
        let daemon = Daemon::run(dir, port, http, command);
        daemon.wait_ready();
        eventually(20 * SECOND, "all processes", || (daemon.status()?["phase"] == "steady").then_some(()));
        daemon
    };
    let elsewhere = text("0.0.0.0", "10.255.255.0/24");
    let mut http = Http::tcp(&elsewhere, None);
    assert!(http.send("GET", "/healthz", "", &Value::Null).is_err(), "it is closed");
    Http::unix(&elsewhere, None).get("/v1/stats").is(200);
    assert!(elsewhere.log().contains("http.allow does not name it"));
    // On a socket for both IPv6 and IPv4, an IPv4 client is known by its IPv4 address.
    let here = text("[::]", "127.0.0.0/8");
    let host = |name: &str| {
        let header = format!("Host: {name}\r\n");
        Http::tcp(&here, None).send("GET", "/v1/stats", &header, &Value::Null).unwrap()
    };
    for good in ["127.0.0.1", "10.0.0.1:8088", "localhost"] {
        host(good).is(200);
    }
    host("evil.example").is_problem(403, "foreign");
}

/// Asks over the Unix socket as another user.
fn as_nobody(daemon: &Daemon, header: &str) -> String {
    let mut command = Command::new("curl");
    command.args(["-sS", "-i", "--max-time", "10", "-H", header]).arg("--unix-socket").arg(socket(daemon));
    let out = command.arg("http://dq/v1/tokens").uid(65534).gid(65534).current_dir("/").output().unwrap();
    String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr)
}

#[test]
fn only_root_and_the_daemon_user_skip_tokens_on_the_unix_socket() {
    if !nix::unistd::geteuid().is_root() {
        eprintln!("only root can become somebody else: nothing is tested");
        return;
    }
    let (_sink, mut daemon) = shut("");
    let token = make(&daemon, "ops", &["admin"], None);
    let run_dir = daemon.dir.path().join("var/run");
    let mode = |path: &Path, mode| std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
    assert_eq!(std::fs::metadata(socket(&daemon)).unwrap().permissions().mode() & 0o777, 0o600);
    for folder in run_dir.ancestors().take(3) {
        mode(folder, 0o755);
    }
    let said = as_nobody(&daemon, "x: y");
    assert!(!said.contains("HTTP/1.1"), "the socket is for its user alone: {said}");
    // If an operator opens the socket to other users, these users need tokens.
    mode(&socket(&daemon), 0o666);
    let said = as_nobody(&daemon, "x: y");
    assert!(said.starts_with("HTTP/1.1 401 "), "{said}");
    let said = as_nobody(&daemon, &format!("Authorization: Bearer {token}"));
    assert!(said.starts_with("HTTP/1.1 200 "), "{said}");
    let said = as_nobody(&daemon, &format!("Authorization: Bearer {NOBODYS}"));
    assert!(said.starts_with("HTTP/1.1 401 "), "{said}");
    Http::unix(&daemon, None).get("/v1/tokens").is(200);
    daemon.stop();
    assert!(daemon.log().contains("refused 2 requests from user 65534 in the last "), "{}", daemon.log());
}

#[test]
fn a_restart_keeps_a_connection_authorized_by_a_valid_token() {
    let (_sink, daemon) = shut("");
    let (kept, goes) = (make(&daemon, "kept", &["admin"], None), make(&daemon, "goes", &["admin"], None));
    let job = add("a", "1", 3_600_000);
    let mut clients = [let_in(&daemon, Some(&kept)), let_in(&daemon, Some(&goes)), let_in(&daemon, None)];
    let mut codes =
        || clients.each_mut().map(|c| c.ask(&job).unwrap()["err"].as_str().unwrap_or("").to_owned());
    assert_eq!(codes(), ["", "", "unauthorized"]);
    for signal in [Signal::SIGHUP, Signal::SIGUSR2] {
        let before = daemon.children();
        daemon.signal(signal);
        all_new(&daemon, &before);
        assert_eq!(codes(), ["", "", "unauthorized"], "{signal}");
    }
    revoke(&daemon, "goes");
    let before = daemon.children();
    daemon.signal(Signal::SIGHUP);
    all_new(&daemon, &before);
    assert_eq!(codes(), ["", "unauthorized", "unauthorized"]);
}

#[test]
fn an_extra_connection_is_closed_and_an_extra_request_gets_503() {
    let more = "max_connections = 2\nmax_requests = 1\nidle_timeout = \"3s\"\n";
    let (_sink, daemon) = shut(more);
    let token = make(&daemon, "ops", &["admin"], None);
    // The request is in progress until its body has come.
    let mut slow = connect(daemon.http);
    let head = format!("POST /v1/topics/a/jobs HTTP/1.1\r\nHost: dq\r\nAuthorization: Bearer {token}\r\n");
    slow.write_all(format!("{head}Content-Length: 10\r\n\r\n").as_bytes()).unwrap();
    let mut second = Http::tcp(&daemon, Some(&token));
    eventually(SOON, "a request too many", || {
        let answer = second.get("/v1/stats");
        (answer.status == 503).then(|| {
            answer.is_problem(503, "busy");
            assert_eq!(answer.headers["retry-after"], "1");
        })
    });
    second.get("/healthz");
    Http::unix(&daemon, None).get("/v1/stats").is(200);
    let mut third = Http::tcp(&daemon, Some(&token));
    assert!(third.send("GET", "/healthz", "", &Value::Null).is_err());
    slow.write_all(b"{\"body\":1}").unwrap();
    let mut answer = [0; 12];
    slow.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"HTTP/1.1 201");
    // A client that sends nothing, or too slowly, is disconnected.
    let mut rest = Vec::new();
    slow.read_to_end(&mut rest).unwrap();
    eventually(20 * SECOND, "room", || {
        Http::tcp(&daemon, Some(&token)).send("GET", "/v1/stats", "", &Value::Null).ok()
    });
    let mut drip = eventually(20 * SECOND, "room", || {
        let mut drip = connect(daemon.http);
        drip.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
        drip.write_all(b"G").ok()?;
        (drip.read(&mut [0; 1]).is_err_and(|e| e.kind() == ErrorKind::WouldBlock)).then_some(drip)
    });
    let mut head = b"ET / HTTP/1.1\r\nx: ".iter().chain(std::iter::repeat(&b'x'));
    eventually(20 * SECOND, "an end", || {
        let _ = drip.write_all(&[*head.next().unwrap()]);
        (!matches!(drip.read(&mut [0; 1]), Err(e) if e.kind() == ErrorKind::WouldBlock)).then_some(())
    });
}

#[test]
fn a_client_that_takes_no_answer_is_given_up() {
    let (_sink, daemon) = shut("max_connections = 1\nidle_timeout = \"1s\"\n");
    let token = make(&daemon, "ops", &["admin"], None);
    let body = json!({"id": "1", "body": "x".repeat(900_000), "delay": "1h"});
    Http::unix(&daemon, None).ask("POST", "/v1/topics/a/jobs", &body).is(201);
    let mut deaf = connect(daemon.http);
    let ask =
        format!("GET /v1/topics/a/jobs/1 HTTP/1.1\r\nHost: dq\r\nAuthorization: Bearer {token}\r\n\r\n");
    deaf.write_all(ask.repeat(100).as_bytes()).unwrap();
    eventually(10 * SECOND, "room for another", || {
        let mut http = Http::tcp(&daemon, Some(&token));
        http.send("GET", "/v1/stats", "", &Value::Null).ok()
    });
}

/// Accepts any certificate, and records it.
#[derive(Debug)]
struct Anybody(Mutex<Vec<u8>>);

impl rustls::client::danger::ServerCertVerifier for Anybody {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<rustls::client::danger::ServerCertVerified, rustls::Error> {
        *self.0.lock().unwrap() = certificate.to_vec();
        Ok(rustls::client::danger::ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &rustls::DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        Ok(rustls::client::danger::HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &rustls::DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        let algorithms = rustls::crypto::ring::default_provider().signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, certificate, signature, &algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<rustls::SignatureScheme> {
        rustls::crypto::ring::default_provider().signature_verification_algorithms.supported_schemes()
    }
}

type Encrypted = rustls::StreamOwned<rustls::ClientConnection, TcpStream>;

/// Opens an HTTP connection with TLS. Also returns the server's certificate.
fn tls(port: u16, token: Option<&str>) -> std::io::Result<(Http, Vec<u8>)> {
    let (stream, shown) = encrypted(port, &[b"h2", b"http/1.1"])?;
    assert_eq!(stream.conn.alpn_protocol(), Some(&b"http/1.1"[..]));
    Ok((Http::of(stream, &format!("127.0.0.1:{port}"), token), shown))
}

/// Opens a connection with TLS. Also returns the server's certificate.
fn encrypted(port: u16, protocols: &[&[u8]]) -> std::io::Result<(Encrypted, Vec<u8>)> {
    let seen = Arc::new(Anybody(Mutex::default()));
    let mut config =
        rustls::ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .dangerous()
            .with_custom_certificate_verifier(Arc::clone(&seen) as _)
            .with_no_client_auth();
    config.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
    let mut socket = connect(port);
    let mut client =
        rustls::ClientConnection::new(Arc::new(config), ServerName::try_from("127.0.0.1").unwrap()).unwrap();
    while client.is_handshaking() {
        client.complete_io(&mut socket)?;
    }
    let shown = seen.0.lock().unwrap().clone();
    Ok((rustls::StreamOwned::new(client, socket), shown))
}

fn send_frame(stream: &mut Encrypted, request: &Value) {
    let json = request.to_string();
    stream.write_all(&[&(json.len() as u32).to_be_bytes()[..], json.as_bytes()].concat()).unwrap();
}

fn receive_frame(stream: &mut Encrypted) -> Value {
    let mut length = [0; 4];
    stream.read_exact(&mut length).unwrap();
    let mut json = vec![0; u32::from_be_bytes(length) as usize];
    stream.read_exact(&mut json).unwrap();
    serde_json::from_slice(&json).unwrap()
}

#[test]
fn the_tcp_port_speaks_tls_and_a_hup_ends_its_connections() {
    let dir = Arc::new(tempfile::tempdir().unwrap());
    certify(dir.path(), "first");
    let sink = Sink::start();
    let tls = "tls = { cert = \"cert.pem\", key = \"key.pem\" }\n";
    let config = format!("[server]\nauth = \"token\"\n{tls}{}", topic("a", &sink, ""));
    let daemon = Daemon::spawn(Arc::clone(&dir), free_port(), &config, &[]);
    daemon.wait_all_up(support::SLOTS);
    let token = make(&daemon, "ops", &["admin"], None);
    let port = daemon.address().port();
    let (mut client, first) = encrypted(port, &[]).unwrap();
    let mut ask = |request: &Value| {
        send_frame(&mut client, request);
        receive_frame(&mut client)
    };
    assert_eq!(ask(&json!({"cmd": "ping"}))["code"], 1);
    assert_eq!(ask(&json!({"cmd": "stats"}))["err"], "unauthorized");
    assert_eq!(ask(&json!({"cmd": "auth", "token": token}))["code"], 1);
    // A body that needs many TLS records.
    let large = "x".repeat(700_000);
    let add = json!({"cmd": "add", "topic": "a", "id": "1", "delay_ms": 3_600_000, "body": {"text": large}});
    assert_eq!(ask(&add)["code"], 1);
    assert_eq!(ask(&json!({"cmd": "get", "topic": "a", "id": "1"}))["data"]["text"], large.as_str());
    // Many requests before the first answer is read.
    let ping = json!({"cmd": "ping"}).to_string();
    let frame = [&(ping.len() as u32).to_be_bytes()[..], ping.as_bytes()].concat();
    client.write_all(&frame.repeat(3000)).unwrap();
    (0..3000).for_each(|_| assert_eq!(receive_frame(&mut client)["code"], 1));

    // A client without TLS gets no answer. The connection of a client that sends nothing is closed.
    let mut plain = connect(port);
    plain.write_all(&frame).unwrap();
    let mut said = Vec::new();
    let _ = plain.read_to_end(&mut said);
    assert!(!String::from_utf8_lossy(&said).contains("code"), "{said:?}");
    assert_eq!(connect(port).read(&mut [0; 10]).unwrap_or(0), 0);

    // A client that closes its sending side still gets its answers.
    let (mut last, _) = encrypted(port, &[]).unwrap();
    send_frame(&mut last, &json!({"cmd": "auth", "token": token}));
    send_frame(&mut last, &json!({"cmd": "get", "topic": "a", "id": "1"}));
    last.conn.send_close_notify();
    last.flush().unwrap();
    assert_eq!(receive_frame(&mut last)["code"], 1);
    assert_eq!(receive_frame(&mut last)["data"]["text"], large.as_str());
    assert_eq!(last.read(&mut [0; 10]).unwrap(), 0);

    // After HUP, the connection is ended as TLS prescribes, and the next connection has the new certificate.
    certify(dir.path(), "second");
    let before = daemon.children();
    daemon.signal(Signal::SIGHUP);
    all_new(&daemon, &before);
    assert_eq!(client.read(&mut [0; 10]).unwrap(), 0);
    let (mut client, second) = encrypted(port, &[]).unwrap();
    assert_ne!(first, second);
    send_frame(&mut client, &json!({"cmd": "ping"}));
    assert_eq!(receive_frame(&mut client)["code"], 1);
}

/// Writes a certificate and its key.
fn certify(dir: &Path, name: &str) {
    let mut command = Command::new("openssl");
    command.args("req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -x509 -days 2".split(' '));
    command.args(["-subj", &format!("/CN={name}"), "-keyout", "key.new", "-out", "cert.new"]);
    let made = command.current_dir(dir).output().unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    for file in ["key", "cert"] {
        std::fs::rename(dir.join(format!("{file}.new")), dir.join(format!("{file}.pem"))).unwrap();
    }
}

#[test]
fn over_tls_a_session_is_bound_to_its_host() {
    let dir = Arc::new(tempfile::tempdir().unwrap());
    certify(dir.path(), "only");
    let config = "[http]\ntls = { cert = \"cert.pem\", key = \"key.pem\" }\n";
    let daemon = Daemon::spawn(Arc::clone(&dir), free_port(), config, &[]);
    daemon.wait_ready();
    let file = dir.path().join("var/run/first-password");
    let password = eventually(10 * SECOND, "a first password", || std::fs::read_to_string(&file).ok());
    let (mut http, _) = tls(daemon.http, None).unwrap();
    let who = json!({"name": "admin", "password": password.trim()});
    let signed_in = http.ask("POST", "/console/session", &who);
    let cookie = &signed_in.headers["set-cookie"];
    assert!(cookie.starts_with("__Host-") && cookie.contains("; Secure"), "{cookie}");
    assert!(cookie.contains("; Path=/") && !cookie.contains("Domain"), "{cookie}");
    let age = &signed_in.headers["strict-transport-security"];
    assert!(age.starts_with("max-age="), "{age}");
    signed_in.is(200);
}

#[test]
fn a_hup_shows_a_new_certificate_and_no_request_fails() {
    let dir = Arc::new(tempfile::tempdir().unwrap());
    certify(dir.path(), "first");
    let sink = Sink::start();
    let config = format!(
        "[http]\nauth = \"token\"\ntls = {{ cert = \"cert.pem\", key = \"key.pem\" }}\n{}",
        topic("a", &sink, "")
    );
    let daemon = Daemon::spawn(Arc::clone(&dir), free_port(), &config, &[]);
    daemon.wait_ready();
    daemon.wait_all_up(support::SLOTS);
    // The Unix socket works as before.
    let token = make(&daemon, "ops", &["admin"], None);
    let (mut http, first) = tls(daemon.http, Some(&token)).unwrap();
    http.get("/v1/stats").is(200);
    // A client that does not complete the TLS handshake delays nobody. A client without TLS gets no HTTP answer.
    let silent: Vec<TcpStream> = (0..20).map(|_| connect(daemon.http)).collect();
    let mut plain = connect(daemon.http);
    plain.write_all(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n").unwrap();
    let mut said = Vec::new();
    let _ = plain.read_to_end(&mut said);
    assert!(!said.starts_with(b"HTTP"), "{said:?}");
    tls(daemon.http, None).unwrap().0.get("/v1/stats").is_problem(401, "unauthorized");
    drop(silent);

    let (stop, asked) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for kept in [true, true, false] {
            let (stop, asked, daemon, token) = (&stop, &asked, &daemon, &token);
            scope.spawn(move || {
                let mut open = None;
                while !stop.load(Ordering::Relaxed) {
                    let http = open.get_or_insert_with(|| tls(daemon.http, Some(token)).unwrap().0);
                    let answer = http.get("/v1/stats");
                    assert_eq!(answer.status, 200);
                    asked.fetch_add(1, Ordering::Relaxed);
                    if !kept || answer.headers.get("connection").is_some_and(|c| c == "close") {
                        open = None;
                    }
                    std::thread::sleep(Duration::from_millis(2));
                }
            });
        }
        let more = |n: usize| {
            let before = asked.load(Ordering::Relaxed);
            eventually(10 * SECOND, "requests", || {
                (asked.load(Ordering::Relaxed) > before + n).then_some(())
            });
        };
        more(50);
        certify(dir.path(), "second");
        let before = daemon.children();
        daemon.signal(Signal::SIGHUP);
        all_new(&daemon, &before);
        more(50);
        stop.store(true, Ordering::Relaxed);
    });
    let (_, second) = tls(daemon.http, Some(&token)).unwrap();
    assert_ne!(first, second, "the certificate is the new one");

    // If a file cannot be used, nothing changes, and the log names the file.
    std::fs::write(
        dir.path().join("key.pem"),
        "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n",
    )
    .unwrap();
    daemon.signal(Signal::SIGHUP);
    eventually(SOON, "a refusal", || {
        let log = daemon.log();
        (log.contains("http.tls.key") && log.contains("key.pem")).then_some(())
    });
    certify(dir.path(), "third");
    std::fs::copy(dir.path().join("cert.pem"), dir.path().join("cert.kept")).unwrap();
    certify(dir.path(), "fourth");
    std::fs::rename(dir.path().join("cert.kept"), dir.path().join("cert.pem")).unwrap();
    daemon.signal(Signal::SIGHUP);
    eventually(SOON, "another refusal", || {
        daemon.log().contains("is not the key of the certificate").then_some(())
    });
    let (mut http, still) = tls(daemon.http, Some(&token)).unwrap();
    assert_eq!(still, second);
    http.get("/v1/stats").is(200);
}

#[test]
fn scopes_of_some_topics_show_no_others_and_no_credentials() {
    let sink = Sink::answering(|_| cli::HandlerAnswer::new(500, "the secret of the receiver"));
    let daemon = Daemon::start("[server]\nauth = \"token\"\n[http]\nauth = \"token\"\n");
    let mut root = Http::unix(&daemon, None);
    let callback = format!("http://user:word@{}/hook?key=word", sink.address);
    for name in ["shop7.orders", "shop7.refunds", "shop70"] {
        let topic = json!({"name": name, "callback": callback, "headers": {"x-key": "word", "authorization": "word"}, "max_attempts": 1});
        root.ask("POST", "/v1/topics", &topic).is(201);
    }
    root.ask("POST", "/v1/topics/shop7.orders/jobs", &json!({"id": "1", "body": 1})).is(201);
    eventually(10 * SECOND, "a dead letter", || {
        (root.get("/v1/topics/shop7.orders/jobs/1").json["state"] == "dead").then_some(())
    });
    let with = |scope: &str| {
        let token = make(&daemon, &scope.replace([':', '*'], "_"), &[scope], None);
        (Http::tcp(&daemon, Some(&token)), token)
    };
    let (mut manager, _) = with("manage:shop7.*");
    let (mut reader, reading) = with("read:shop7.*");
    let (mut producer, producing) = with("produce:shop7.orders");
    let (mut overseer, _) = with("read");

    // Who sees which topics.
    let names = |http: &mut Http| -> Vec<String> {
        let topics = http.get("/v1/topics").is(200)["topics"].clone();
        topics.as_array().unwrap().iter().map(|topic| topic["name"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(names(&mut manager), ["shop7.orders", "shop7.refunds"]);
    assert_eq!(names(&mut reader), ["shop7.orders", "shop7.refunds"]);
    assert_eq!(names(&mut overseer).len(), 3);
    let stats = reader.get("/v1/stats").is(200);
    assert!(!stats.to_string().contains("shop70"), "{stats}");

    // Who sees credentials.
    for http in [&mut manager, &mut reader, &mut overseer] {
        let shown = http.get("/v1/topics/shop7.orders").is(200);
        let listed = http.get("/v1/topics").is(200).to_string();
        assert!(!shown.to_string().contains("word") && !listed.contains("word"), "{shown}");
        assert_eq!(shown["headers"], json!({"x-key": "***", "authorization": "***"}));
    }
    assert_eq!(root.get("/v1/topics/shop7.orders").is(200)["callback"], callback);

    let tested = manager.ask("POST", "/v1/topics/shop7.orders/test", &Value::Null).is(200);
    let text = tested.to_string();
    assert!(!text.contains("word") && !text.contains("the secret"), "{tested}");
    let tested = root.ask("POST", "/v1/topics/shop7.orders/test", &Value::Null).is(200);
    assert_eq!((&tested["url"], &tested["answer"]), (&json!(callback), &json!("the secret of the receiver")));

    // Only clients with a scope to read may see what the receiver answered.
    let answer =
        |http: &mut Http| http.get("/v1/topics/shop7.orders/jobs/1").is(200)["log"][0]["answer"].clone();
    let listed = |http: &mut Http| {
        http.get("/v1/topics/shop7.orders/dead").is(200)["jobs"][0]["log"][0]["answer"].clone()
    };
    for (http, is_shown) in [
        (&mut root, true),
        (&mut reader, true),
        (&mut overseer, true),
        (&mut producer, false),
        (&mut manager, false),
    ] {
        for answer in [answer(http), listed(http)] {
            assert_eq!(answer == "the secret of the receiver", is_shown, "{answer}");
        }
    }
    for (token, is_shown) in [(reading, true), (producing, false)] {
        let get = json!({"cmd": "get", "topic": "shop7.orders", "id": "1"});
        let got = let_in(&daemon, Some(&token)).ask(&get).unwrap().to_string();
        assert_eq!(got.contains("the secret"), is_shown, "{got}");
    }

    // This client may change the topic, but may not see its credentials. A change by the client keeps the credentials.
    // A change to another host removes them, so that this host does not get them.
    let shown = manager.get("/v1/topics/shop7.orders").is(200);
    let back = json!({"callback": shown["callback"], "headers": shown["headers"], "title": "orders"});
    manager.ask("PATCH", "/v1/topics/shop7.orders", &back).is(200);
    let kept = root.get("/v1/topics/shop7.orders").is(200);
    assert_eq!((&kept["callback"], &kept["headers"]["authorization"]), (&json!(callback), &json!("word")));
    let moved = json!({"callback": format!("http://127.0.0.1:{}/", free_port())});
    manager.ask("PATCH", "/v1/topics/shop7.orders", &moved).is(200);
    assert_eq!(root.get("/v1/topics/shop7.orders").is(200)["headers"], json!({}));
    let put = json!({"callback": moved["callback"], "headers": {"authorization": "***"}});
    manager.ask("PUT", "/v1/topics/shop7.refunds", &put).is(200);
    assert_eq!(root.get("/v1/topics/shop7.refunds").is(200)["headers"], json!({}));
    manager.ask("PUT", "/v1/topics/shop7.new", &put).is(201);
    manager.ask("PUT", "/v1/topics/shop70", &put).is_problem(403, "forbidden");
}

#[test]
fn an_operation_on_many_jobs_needs_manage_of_its_topic() {
    let (_sink, daemon) = shut("");
    let of_a = json!({"topic": "a", "operation": "cancel"});
    let dry = json!({"topic": "a", "operation": "cancel", "dry_run": true});
    let manager = make(&daemon, "manager", &["manage:a"], None);
    let begun = Http::tcp(&daemon, Some(&manager)).ask("POST", "/v1/jobs/bulk", &of_a);
    assert_eq!((begun.status, &begun.json["by"]), (202, &json!("token manager")), "{begun:?}");
    let place = format!("/v1/jobs/bulk/{}", begun.json["number"]);
    for (n, scope) in ["read", "produce:a", "manage:b", "consume:*"].into_iter().enumerate() {
        let token = make(&daemon, &format!("t{n}"), &[scope], None);
        let mut http = Http::tcp(&daemon, Some(&token));
        for body in [&of_a, &dry] {
            let refused = http.ask("POST", "/v1/jobs/bulk", body);
            refused.is_problem(403, "forbidden");
            assert!(refused.json["detail"].as_str().unwrap().contains("scope manage:a,"), "{refused:?}");
        }
        // A client that may look at the jobs of the topic sees the operation. Other clients do not see it.
        let sees = scope != "manage:b";
        assert_eq!(http.get(&place).status, if sees { 200 } else { 404 }, "{scope}");
        let listed = http.get("/v1/jobs/bulk").json["operations"].as_array().unwrap().len();
        assert_eq!(listed, usize::from(sees), "{scope}");
        let stopped = http.ask("POST", &format!("{place}/stop"), &Value::Null);
        assert_eq!(stopped.status, if sees { 403 } else { 404 }, "{scope}: {stopped:?}");
    }
    let metrics = make(&daemon, "m", &["metrics"], None);
    assert_eq!(Http::tcp(&daemon, Some(&metrics)).ask("POST", "/v1/jobs/bulk", &of_a).status, 403);
    assert_eq!(
        Http::tcp(&daemon, Some(&manager)).ask("POST", &format!("{place}/stop"), &Value::Null).status,
        202
    );
}
