//! The health of a topic's receiver: what the API and the command line show of callbacks, also after a restart.

use std::fs;
use std::process::Command;

use serde_json::{Value, json};

use crate::support::http::Http;
use crate::support::{Daemon, SECOND, Sink, eventually, topic};
use cli::HandlerAnswer;

const MODES: [&str; 4] = ["200", "503", "418", "slow"];

/// Adds one job of the first mode, two jobs of the second mode, and so on, and one job that never gets an answer.
fn add_jobs(http: &mut Http) {
    for (n, mode) in MODES.iter().enumerate() {
        for i in 0..=n {
            http.ask("POST", "/v1/topics/t/jobs", &json!({"id": format!("{mode}-{i}"), "body": 1})).is(201);
        }
    }
    http.ask("POST", "/v1/topics/t/jobs", &json!({"id": "hangs-0", "body": 1})).is(201);
}

fn sink() -> Sink {
    Sink::answering(|call| match call.header("dq-job-id").split('-').next().unwrap() {
        "hangs" => HandlerAnswer::new(200, "ok").after(20 * SECOND),
        "slow" => HandlerAnswer::new(200, "ok").after(SECOND * 3 / 10),
        status => HandlerAnswer::new(status.parse().unwrap(), "an answer"),
    })
}

/// Starts a daemon, and waits until it has its first samples. The health is the difference between later counts and
/// these samples.
fn daemon(sink: &Sink) -> Daemon {
    let more = "max_attempts = 1\ntimeout = \"1s\"\nbreaker_failures = 0\n";
    let daemon = Daemon::start(&topic("t", sink, more));
    let samples = daemon.dir.path().join("var/run/history.receivers");
    eventually(20 * SECOND, "the first samples", || {
        (fs::read_dir(&samples).ok()?.count() == 3).then_some(())
    });
    daemon
}

fn health(http: &mut Http, over: &str) -> Value {
    http.get(&format!("/v1/topics/t/health?over={over}")).is(200)
}

/// Checks that the health has exactly the attempts of [`add_jobs`], `times` times.
#[track_caller]
fn has_all(health: &Value, times: u64) {
    let errors = json!([{"failure": "4xx", "attempts": 3 * times}, {"failure": "503", "attempts": 2 * times},
        {"failure": "timeout", "attempts": times}]);
    let counts =
        ["attempts", "accepted", "failed", "later"].map(|name| health[name].as_u64().unwrap() / times);
    assert_eq!((counts, &health["errors"]), ([11, 5, 6, 0], &errors), "{health}");
    assert!((health["success_rate"].as_f64().unwrap() - 5.0 / 11.0).abs() < 1e-9, "{health}");
    let ranges = health["durations"].as_array().unwrap();
    let all: u64 = ranges.iter().map(|range| range["attempts"].as_u64().unwrap()).sum();
    assert_eq!((all, &ranges.last().unwrap()["up_to_us"]), (11 * times, &Value::Null));
    // Four of eleven attempts take 0.3 s, and one attempt waits a second for its answer.
    let longer_us = |us: u64| -> u64 {
        let later = ranges.iter().filter(|range| range["up_to_us"].as_u64().is_none_or(|up_to| up_to > us));
        later.map(|range| range["attempts"].as_u64().unwrap()).sum()
    };
    assert!(longer_us(250_000) >= 5 * times && longer_us(500_000) >= times, "{health}");
    assert!(health["p99_us"].as_u64().unwrap() >= 1_000_000, "{health}");
    assert!(health["since_ms"].as_i64() < health["now_ms"].as_i64(), "{health}");
}

#[test]
fn a_receivers_health_is_counted_and_outlives_restarts() {
    let sink = sink();
    let mut daemon = daemon(&sink);
    let mut http = Http::unix(&daemon);
    let none = health(&mut http, "10m");
    assert_eq!(
        (&none["attempts"], &none["success_rate"], &none["p50_us"]),
        (&json!(0), &Value::Null, &Value::Null)
    );
    add_jobs(&mut http);
    let ended = |http: &mut Http, attempts: u64| {
        eventually(30 * SECOND, "all attempts", || {
            (health(http, "10m")["attempts"] == attempts).then_some(())
        });
    };
    ended(&mut http, 11);
    for over in ["10m", "1d", "7d"] {
        let health = health(&mut http, over);
        assert_eq!((&health["over"], &health["topic"]), (&json!(over), &json!("t")));
        has_all(&health, 1);
    }
    daemon.stop();
    let daemon = Daemon::again(&daemon);
    daemon.wait_ready();
    let mut http = Http::unix(&daemon);
    has_all(&health(&mut http, "7d"), 1);
    add_jobs(&mut http);
    ended(&mut http, 22);
    for over in ["10m", "1d", "7d"] {
        has_all(&health(&mut http, over), 2);
    }

    http.get("/v1/topics/t/health?over=2d").is_problem(422, "bad_field", Some("over"));
    http.get("/v1/topics/t/health?since=1").is_problem(422, "unknown_field", Some("since"));
    http.get("/v1/topics/none/health").is_problem(404, "unknown_topic", None);

    let shown = |more: &[&str]| -> String {
        let run_dir = daemon.dir.path().join("var/run");
        let mut dq = Command::new(env!("CARGO_BIN_EXE_dq"));
        let output =
            dq.args(["topics", "health", "t"]).args(more).arg("--run-dir").arg(run_dir).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let text = shown(&[]);
    for part in ["45.45 %", "accepted        10\n", "failed          12\n", "timeout         2\n"] {
        assert!(text.contains(part), "{part:?} is missing: {text}");
    }
    has_all(&serde_json::from_str(&shown(&["--over", "7d", "--json"])).unwrap(), 2);
}
