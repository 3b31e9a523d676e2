//! The log stays small, whatever clients send and receivers answer.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::support::http::Http;
use crate::support::{Daemon, SECOND, Sink, eventually, topic};
use cli::HandlerAnswer;
use nix::sys::signal::Signal;

/// How often each refused request is sent.
const REQUESTS: usize = 2000;

/// How much the log may grow for all refused requests, in bytes: a line or two for each process.
const GROWTH: usize = 4096;

/// Sends requests that are refused: paths of 60 kB (some of them look like tickets), and a body that is not JSON.
fn attack_http(http: &mut Http) {
    let long = "a".repeat(60_000);
    let (console, ticket) = (format!("/console/{long}"), format!("/{long}/v1/ack/x"));
    for n in 0..REQUESTS {
        let answer = match n % 4 {
            0 => http.get(&console),
            1 => http.send("POST", &ticket, "", b""),
            2 => http.send("POST", "/v1/ack/x", "Content-Type: text/plain\r\n", b"x"),
            _ => http.get("/v1/nothing%1b%5b2J"),
        };
        assert!((400..500).contains(&answer.status), "{answer:?}");
    }
}

/// Sends frames that are refused, a hundred at a time.
fn attack_tcp(daemon: &Daemon, token: Option<&str>) {
    let mut client = daemon.client();
    if let Some(token) = token {
        assert_eq!(client.ask(&json!({"cmd": "auth", "token": token})).unwrap()["code"], 1);
    }
    let frames: Vec<Value> = (0..100)
        .map(|n| match n % 2 {
            0 => json!({"cmd": "get", "topic": "x".repeat(60_000), "id": "1"}),
            _ => json!({"cmd": "add", "topic": "nothing", "id": "\u{1b}[2J\n", "body": n}),
        })
        .collect();
    for _ in 0..REQUESTS / 100 {
        client.send(&frames).unwrap();
        for _ in &frames {
            assert_eq!(client.receive().unwrap()["code"], 0);
        }
    }
}

/// Returns the log lines about refusals after the first `bytes` bytes.
fn lines_after(daemon: &Daemon, bytes: usize) -> Vec<String> {
    let log = daemon.log()[bytes..].to_owned();
    log.lines()
        .filter(|line| line.contains("refused") || line.contains("a wrong "))
        .map(str::to_owned)
        .collect()
}

/// Returns how many refusals of each process and source the summary lines report.
fn counted(lines: &[String]) -> BTreeMap<String, u64> {
    let mut counts = BTreeMap::new();
    for line in lines.iter().filter(|line| line.contains(" in the last ")) {
        let process = line.split(['[', ' ']).find(|word| word.starts_with("dq-")).unwrap();
        let mut words = line.split_once("refused ").unwrap().1.split(' ');
        let count: u64 = words.next().unwrap().parse().unwrap();
        let source = words.skip(2).take_while(|word| *word != "in").collect::<Vec<_>>().join(" ");
        *counts.entry(format!("{process} {source}")).or_default() += count;
    }
    counts
}

#[track_caller]
fn is_small(daemon: &Daemon, before: usize) {
    let growth = daemon.log().len() - before;
    assert!(growth < GROWTH, "{growth} bytes: {:.4000}", lines_after(daemon, before).join("\n"));
}

#[test]
fn refused_requests_have_one_line_and_then_one_a_minute() {
    let sink = Sink::start();
    let daemon = Daemon::start(&topic("t", &sink, ""));
    let before = daemon.log().len();
    attack_http(&mut Http::tcp(&daemon));
    attack_http(&mut Http::unix(&daemon));
    attack_tcp(&daemon, None);
    is_small(&daemon, before);
    let first = lines_after(&daemon, before);
    let of_tcp = "refused a request from 127.0.0.1: GET /console/aaa";
    assert!(
        first.iter().any(|line| line.contains(of_tcp) && line.contains("…: 414 uri_too_long: ")),
        "{first:#?}"
    );
    assert!(
        first.iter().any(|line| line.contains("refused a request from 127.0.0.1: bad_field: topic ")),
        "{first:#?}"
    );
    assert!(first.iter().any(|line| line.contains("refused a request from user ")), "{first:#?}");

    // Each process reports the number of refusals when the minute is over.
    let user = format!("dq-http-server user {}", nix::unistd::geteuid());
    let of_all = ["dq-http-server 127.0.0.1", "dq-server 127.0.0.1", &user];
    let expected: BTreeMap<String, u64> = of_all.map(|of| (of.to_owned(), REQUESTS as u64)).into();
    let lines = eventually(75 * SECOND, "the counts", || {
        let lines = lines_after(&daemon, before);
        (counted(&lines) == expected).then_some(lines)
    });
    assert!(!lines.iter().any(|line| line.contains("token")), "none is needed here: {lines:#?}");
    is_small(&daemon, before);
}

#[test]
fn refused_requests_without_a_token_are_only_counted() {
    let sink = Sink::start();
    let mut daemon = Daemon::start(&format!(
        "[server]\nauth = \"token\"\n[http]\nauth = \"token\"\n{}",
        topic("t", &sink, "")
    ));
    let made =
        Http::unix(&daemon).ask("POST", "/v1/tokens", &json!({"name": "shop", "scopes": ["produce:t"]}));
    let token = made.is(201)["token"].as_str().unwrap().to_owned();
    let before = daemon.log().len();
    let mut http = Http::tcp(&daemon);
    attack_http(&mut http);
    let wrong = "Authorization: Bearer dq_nobodys\r\n";
    for _ in 0..20 {
        assert!(matches!(http.send("GET", "/v1/stats", wrong, b"").status, 401 | 429));
    }
    assert_eq!(
        http.ask("POST", "/console/session", &json!({"name": "admin", "password": "guess"})).status,
        403
    );
    assert!(lines_after(&daemon, before).iter().all(|line| line.contains(" in the last ")));
    // The first refusal with a valid token gets its own log line. Later refusals are only counted.
    attack_tcp(&daemon, Some(&token));
    attack_tcp(&daemon, None);
    is_small(&daemon, before);
    let mut own = lines_after(&daemon, before);
    own.retain(|line| !line.contains(" in the last "));
    assert!(own.len() == 1 && own[0].contains("bad_field: topic "), "{own:#?}");

    // At the end, the counts that wait for their minute are logged.
    daemon.signal(Signal::SIGTERM);
    assert!(daemon.wait_exit(40 * SECOND).success());
    let lines = lines_after(&daemon, before);
    let expected = [("dq-http-server 127.0.0.1", REQUESTS + 21), ("dq-server 127.0.0.1", 2 * REQUESTS)];
    assert_eq!(counted(&lines), expected.map(|(of, n)| (of.to_owned(), n as u64)).into(), "{lines:#?}");
    assert!(lines.iter().any(|line| line.contains("all without a valid token, such as GET /console/aaa")));
    assert!(lines.iter().any(|line| line.contains(", such as forbidden: token shop has no scope ")));
    assert!(!daemon.log().contains("dq_nobodys") && !daemon.log().contains("guess"));
}

#[test]
fn ids_and_reasons_are_cut_and_escaped_in_the_log() {
    let sink = Sink::answering(|_| HandlerAnswer::new(500, "no"));
    let rule = format!("success = \"{{res.code}} == '{}'\"", "n".repeat(900));
    let daemon = Daemon::start(&topic("t", &sink, &rule));
    let id = format!("\u{1b}[2J\n{}", "i".repeat(240));
    let added = daemon.client().ask(&json!({"cmd": "add", "topic": "t", "id": id, "delay_ms": 0, "body": 1}));
    assert_eq!(added.unwrap()["code"], 1);
    let line = eventually(20 * SECOND, "a failed attempt", || {
        daemon.log().lines().find(|line| line.contains("failed at attempt 1")).map(str::to_owned)
    });
    assert!(
        line.contains("t:\\u{1b}[2J\\niiii") && line.contains("… failed at attempt 1: {res.code}"),
        "{line}"
    );
    let written = line.split_once("] ").unwrap().1.chars().count();
    assert!(written < 500, "{written} characters: {line}");
}
