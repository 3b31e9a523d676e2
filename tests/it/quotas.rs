//! Limits of topics and tokens, as clients and operators meet them.

use std::process::Command;

use crate::support::http::Http;
use crate::support::{Daemon, SECOND, Sink, add, eventually, on_redis, topic};
use serde_json::{Value, json};

fn later(id: usize) -> Value {
    json!({"id": id.to_string(), "body": id, "delay": "1h"})
}

/// Returns the counts of a topic in `/v1/stats`.
fn stats(http: &mut Http, topic: &str) -> Value {
    let stats = http.get("/v1/stats").is(200);
    stats["topics"].as_array().unwrap().iter().find(|one| one["topic"] == topic).cloned().unwrap_or_default()
}

fn findings(daemon: &Daemon) -> Vec<Value> {
    let all = daemon.status().unwrap_or_default()["findings"].as_array().cloned().unwrap_or_default();
    all.into_iter().filter(|one| one["name"] == "quota_nearly_used").collect()
}

#[test]
fn a_use_of_add_rate_is_shown_and_a_person_is_told() {
    let sink = Sink::start();
    let daemon = Daemon::start(&topic("t", &sink, "add_rate = \"1000/m\""));
    let mut http = Http::tcp(&daemon);
    // The used rate is a difference between two samples. So the test waits for the first sample.
    std::thread::sleep(6 * SECOND);
    let jobs: Vec<Value> = (0..900).map(later).collect();
    http.ask("POST", "/v1/topics/t/jobs/batch", &json!({ "jobs": jobs })).is(200);
    let finding = eventually(25 * SECOND, "a finding", || findings(&daemon).pop());
    assert!(finding["detail"].as_str().unwrap().starts_with("900/m of 1000/m jobs are added"), "{finding}");
    assert_eq!(stats(&mut http, "t")["add_rate_used"], 900);
    let metrics = http.get("/metrics").is(200);
    let value = |name: &str| {
        let of = |line: &str| line.strip_prefix(&format!("{name}{{topic=\"t\"}} "))?.parse::<f64>().ok();
        metrics.as_str().unwrap().lines().find_map(of)
    };
    assert_eq!(value("dq_topic_add_rate_used"), Some(15.0));
    assert!(value("dq_topic_add_rate_limit").is_some_and(|limit| (16.6..16.7).contains(&limit)));
}

#[test]
fn an_add_beyond_a_limit_is_refused_and_a_person_is_told() {
    // If there are several shards, each shard has a share of the limit. To use up all shares, the test must add many
    // more jobs than the limit.
    let most = if on_redis() { 64 } else { 20 };
    let sink = Sink::start();
    let daemon = Daemon::start(&topic("t", &sink, &format!("max_pending = {most}\nmax_bytes = \"10KiB\"")));
    let mut http = Http::tcp(&daemon);
    let jobs: Vec<Value> = (0..20 * most).map(later).collect();
    let answer = http.ask("POST", "/v1/topics/t/jobs/batch", &json!({ "jobs": jobs })).is(200);
    let results = answer["results"].as_array().unwrap();
    let of = |status: u16| results.iter().filter(|one| one["status"] == status).count();
    assert_eq!((of(201), of(429)), (most, 19 * most), "{answer}");
    let refused = results.iter().position(|one| one["status"] == 429).unwrap();
    assert_eq!(results[refused]["code"], "quota", "{}", results[refused]);
    // A single add is refused, over HTTP and over TCP.
    let answer = http.ask("POST", "/v1/topics/t/jobs", &later(refused));
    answer.is_problem(429, "quota", None);
    assert_eq!(answer.headers["retry-after"], "10", "{answer:?}");
    let answer = daemon.client().ask(&add("t", &refused.to_string(), 60_000)).unwrap();
    assert_eq!((&answer["code"], &answer["err"]), (&json!(0), &json!("quota")), "{answer}");
    assert!(answer["msg"].as_str().unwrap().contains("max_pending"), "{answer}");
    // An existing job may be replaced and changed, but it must not get too big.
    let there = results.iter().position(|one| one["status"] == 201).unwrap();
    http.ask("POST", "/v1/topics/t/jobs", &later(there)).is(200);
    let path = format!("/v1/topics/t/jobs/{there}");
    http.ask("PATCH", &path, &json!({"body": "x".repeat(11_000)})).is_problem(429, "quota", None);
    http.ask("PATCH", &path, &json!({"body": "x"})).is(204);
    // The used part of each limit is shown, and is also a metric.
    let shown = stats(&mut http, "t");
    assert_eq!(shown["delayed"], most, "{shown}");
    let bytes = shown["bytes"].as_u64().unwrap();
    assert!((most as u64..10_240).contains(&bytes), "{shown}");
    let metrics = http.get("/metrics").is(200);
    let metrics = metrics.as_str().unwrap();
    for line in [
        format!("dq_topic_bytes{{topic=\"t\"}} {bytes}"),
        format!("dq_topic_max_pending{{topic=\"t\"}} {most}"),
        "dq_topic_max_bytes{topic=\"t\"} 10240".to_owned(),
    ] {
        assert!(metrics.lines().any(|one| one == line), "{line} is missing:\n{metrics}");
    }
    let finding = eventually(15 * SECOND, "a finding", || findings(&daemon).pop());
    assert_eq!(finding["topic"], "t");
    assert!(finding["detail"].as_str().unwrap().contains(&format!("{most} of {most}")), "{finding}");
    for n in 0..20 * most {
        http.ask("DELETE", &format!("/v1/topics/t/jobs/{n}"), &Value::Null);
    }
    eventually(15 * SECOND, "no finding", || findings(&daemon).is_empty().then_some(()));
    // A refusal by a quota is not logged as a failure of the store.
    assert!(!daemon.log().contains("add failed"), "{}", daemon.log());
}

#[test]
fn adds_beyond_a_rate_are_refused_and_say_when_to_come_again() {
    let sink = Sink::start();
    let daemon = Daemon::start(&topic("t", &sink, "add_rate = \"32/h\""));
    let mut http = Http::tcp(&daemon);
    let mut answers = (0..2000).map(|n| http.ask("POST", "/v1/topics/t/jobs", &later(n)));
    let answer = answers.find(|answer| answer.status != 201).expect("an add that is refused");
    answer.is_problem(429, "quota", None);
    let wait: u64 = answer.headers["retry-after"].parse().unwrap();
    // On Redis each shard has its share of the rate.
    assert!((60..=3600).contains(&wait), "{wait}");
}

#[test]
fn a_token_has_a_rate_of_its_own() {
    let sink = Sink::start();
    let registry = match on_redis() {
        true => {
            format!("[registry]\nurl = \"{}\"\n", crate::support::mariadb::MariaDb::shared().database().url())
        }
        false => String::new(),
    };
    let daemon = Daemon::start(&format!("[http]\nauth = \"token\"\n{registry}{}", topic("t", &sink, "")));
    let run_dir = daemon.dir.path().join("var/run");
    let dq = |words: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_dq"));
        let out = command.args(words).arg("--run-dir").arg(&run_dir).output().unwrap();
        assert!(out.status.success(), "{out:?}");
        String::from_utf8(out.stdout).unwrap().trim().to_owned()
    };
    let slow = dq(&["token", "create", "slow", "--scope", "produce:*", "--add-rate", "16/h"]);
    let free = dq(&["token", "create", "free", "--scope", "produce:*"]);
    let list = dq(&["token", "list"]);
    assert!(list.lines().any(|line| line.starts_with("slow") && line.contains("16/h")), "{list}");
    let mut http = Http::tcp(&daemon);
    let mut add = |token: &str, n: usize| {
        let head = format!("Authorization: Bearer {token}\r\nContent-Type: application/json\r\n");
        http.send("POST", "/v1/topics/t/jobs", &head, later(n).to_string().as_bytes())
    };
    let statuses: Vec<u16> = (0..200).map(|n| add(&slow, n).status).collect();
    let taken = statuses.iter().filter(|status| **status == 201).count();
    // The shares of shards are rounded up.
    assert!((16..=20).contains(&taken), "{statuses:?}");
    assert!(statuses.iter().all(|status| matches!(status, 201 | 429)), "{statuses:?}");
    (200..300).for_each(|n| assert_eq!(add(&free, n).status, 201));
    let bad = json!({"name": "bad", "scopes": ["read"], "add_rate": "fast"});
    Http::unix(&daemon).ask("POST", "/v1/tokens", &bad).is_problem(422, "bad_field", Some("add_rate"));
}
