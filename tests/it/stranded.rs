//! Jobs that nobody delivers are reported. A topic with jobs can be removed only with a decision about its jobs.

use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::support::http::Http;
use crate::support::{Daemon, SECOND, Sink, eventually, now_ms, on_redis};
use cli::HandlerAnswer;
use serde_json::{Value, json};

/// Returns a section that sends every alert at once to a webhook.
fn alert(hook: &Sink) -> String {
    format!(
        "[alert]\ngather = \"1s\"\ninterval = \"1s\"\nlate_after = \"2s\"\n[[alert.webhook]]\nname = \"ops\"\nurl = \"{}\"\n",
        hook.url()
    )
}

/// Returns the alerts of a kind that a webhook received: their states and contents.
fn alerts_of_kind(hook: &Sink, kind: &str) -> Vec<(String, Value)> {
    let calls = hook.calls().into_iter().map(|call| serde_json::from_str::<Value>(&call.body).unwrap());
    let alerts = calls.flat_map(|message| message["alerts"].as_array().unwrap().clone());
    alerts.filter(|a| a["kind"] == kind).map(|a| (a["state"].as_str().unwrap().to_owned(), a)).collect()
}

/// Starts a daemon with a registry in a file. If the store is on Redis, the registry is in MariaDB, because a registry
/// in a file is not allowed there.
fn daemon(more: &str) -> Daemon {
    let registry = match on_redis() {
        true => {
            format!("[registry]\nurl = \"{}\"\n", crate::support::mariadb::MariaDb::shared().database().url())
        }
        false => String::new(),
    };
    Daemon::start(&format!("{registry}{more}"))
}

fn register(http: &mut Http, name: &str, sink: &Sink, more: Value) {
    let mut topic = json!({"name": name, "callback": sink.url()});
    topic.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    http.ask("POST", "/v1/topics", &topic).is(201);
}

/// Adds `overdue` jobs that were due an hour ago, and `later` jobs that are due in an hour.
fn add(http: &mut Http, topic: &str, overdue: usize, later: usize) {
    let past = now_ms() - 3_600_000;
    let job = |n: usize| match n < overdue {
        true => json!({"id": n.to_string(), "body": n, "run_at": past}),
        false => json!({"id": n.to_string(), "body": n, "delay": "1h"}),
    };
    let jobs: Vec<Value> = (0..overdue + later).map(job).collect();
    let path = format!("/v1/topics/{topic}/jobs/batch");
    let answer = http.ask("POST", &path, &json!({ "jobs": jobs })).is(200);
    assert!(answer["results"].as_array().unwrap().iter().all(|one| one["status"] == 201), "{answer}");
}

/// Returns how many pending jobs and how many dead letters a topic has.
fn jobs(http: &mut Http, topic: &str) -> (u64, u64) {
    let stats = http.get("/v1/stats").is(200);
    let of = stats["topics"].as_array().unwrap().iter().find(|t| t["topic"] == topic).cloned();
    let count = |state: &str| of.as_ref().map_or(0, |of| of[state].as_u64().unwrap());
    (count("delayed") + count("ready") + count("leased"), count("dead"))
}

fn findings(daemon: &Daemon, name: &str, topic: &str) -> Vec<Value> {
    let status = daemon.status().unwrap_or_default();
    let all = status["findings"].as_array().cloned().unwrap_or_default();
    all.into_iter().filter(|f| f["name"] == name && f["topic"] == topic).collect()
}

fn dq(daemon: &Daemon, words: &[&str]) -> (i32, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_dq"));
    let out = command
        .args(words)
        .arg("--run-dir")
        .arg(daemon.dir.path().join("var/run"))
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&[out.stdout, out.stderr].concat()).into_owned();
    (out.status.code().unwrap_or(-1), text)
}

#[test]
fn due_jobs_that_nobody_delivers_are_told_until_they_are() {
    let (hook, sink) = (Sink::start(), Sink::start());
    let daemon = daemon(&alert(&hook));
    let mut http = Http::unix(&daemon);
    register(&mut http, "t", &sink, json!({}));
    register(&mut http, "other", &sink, json!({}));
    http.ask("POST", "/v1/topics/t/pause", &Value::Null).is(204);
    add(&mut http, "t", 3, 2);

    // A topic with jobs can be removed only with a decision about its jobs.
    let refused = http.ask("DELETE", "/v1/topics/t", &Value::Null);
    refused.is_problem(409, "topic_has_jobs", None);
    let detail = refused.json["detail"].as_str().unwrap();
    assert!(detail.contains("5 pending jobs and 0 dead letters"), "{detail}");
    http.ask("DELETE", "/v1/topics/t?jobs=all", &Value::Null).is_problem(422, "bad_field", Some("jobs"));
    http.get("/v1/topics/t").is(200);
    http.ask("DELETE", "/v1/topics/other", &Value::Null).is(204);
    http.ask("DELETE", "/v1/topics/t?jobs=keep", &Value::Null).is(204);
    http.get("/v1/topics/t").is_problem(404, "unknown_topic", None);
    assert_eq!(jobs(&mut http, "t"), (5, 0));

    let title = "nobody delivers the due jobs of topic t";
    let alert = eventually(20 * SECOND, "the alert", || alerts_of_kind(&hook, "jobs_stranded").pop()).1;
    assert_eq!(
        (&alert["state"], &alert["topic"], &alert["title"]),
        (&json!("open"), &json!("t"), &json!(title))
    );
    assert!(alert["detail"].as_str().unwrap().contains("3 due jobs wait"), "{alert}");
    let found = findings(&daemon, "jobs_stranded", "t");
    assert!(found[0]["detail"].as_str().unwrap().contains("the topic is not registered"), "{found:?}");
    let (_, text) = dq(&daemon, &["doctor"]);
    assert!(text.contains(title), "{text}");
    let (_, text) = dq(&daemon, &["status"]);
    assert!(text.contains(title) && text.contains("3 due jobs wait"), "{text}");
    let ready = http.get("/readyz").is(200);
    assert!(ready["parts"]["topics"].as_str().unwrap().starts_with("1 with due jobs that nobody"), "{ready}");
    let alerts = http.get("/v1/alerts").is(200);
    assert!(alerts["alerts"].as_array().unwrap().iter().any(|a| a["name"] == "jobs_stranded"), "{alerts}");
    assert!(findings(&daemon, "topic_late", "t").is_empty(), "one alert only");

    // The jobs are delivered when the topic is registered again. The end of the problem is reported as well.
    register(&mut http, "t", &sink, json!({}));
    http.ask("POST", "/v1/topics/t/resume", &Value::Null).is(204);
    sink.wait_for(3, 10 * SECOND);
    eventually(20 * SECOND, "its end", || {
        (alerts_of_kind(&hook, "jobs_stranded").pop()?.0 == "over").then_some(())
    });
    eventually(10 * SECOND, "readiness without a word on topics", || {
        (http.get("/readyz").is(200)["parts"]["topics"] == "ok").then_some(())
    });
    let states: Vec<String> =
        alerts_of_kind(&hook, "jobs_stranded").into_iter().map(|(state, _)| state).collect();
    assert_eq!(states, ["open", "over"], "one alert only");
}

#[test]
fn a_topic_that_is_removed_with_its_jobs_delivers_none_of_them() {
    let (end, began) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let (ends, begins) = (Arc::clone(&end), Arc::clone(&began));
    let slow = Sink::answering(move |_| {
        begins.store(true, Ordering::Relaxed);
        eventually(20 * SECOND, "the word to end", || ends.load(Ordering::Relaxed).then_some(()));
        cli::HandlerAnswer::new(200, "ok")
    });
    let daemon = daemon("");
    let mut http = Http::unix(&daemon);
    register(&mut http, "t", &slow, json!({"max_in_flight": 1, "timeout": "30s"}));
    add(&mut http, "t", 600, 400);
    eventually(10 * SECOND, "a callback", || began.load(Ordering::Relaxed).then_some(()));

    // A refused request loses no job, and the topic continues.
    let wrong = http.send("DELETE", "/v1/topics/t?jobs=purge", "If-Match: \"1f2e\"\r\n", b"");
    wrong.is_problem(412, "changed", None);
    assert_eq!(jobs(&mut http, "t"), (1000, 0));
    assert_eq!(http.get("/v1/topics/t").is(200)["paused"], false);

    assert_eq!(
        http.ask("DELETE", "/v1/topics/t?jobs=purge", &Value::Null).is(200),
        json!({"purged": 1000, "records": 1000})
    );
    http.get("/v1/topics/t").is_problem(404, "unknown_topic", None);
    assert_eq!(jobs(&mut http, "t"), (0, 0));
    end.store(true, Ordering::Relaxed);
    http.ask("DELETE", "/v1/topics/t?jobs=purge", &Value::Null).is_problem(404, "unknown_topic", None);

    // A new topic with this name starts empty.
    let sink = Sink::start();
    register(&mut http, "t", &sink, json!({}));
    assert_eq!(http.get("/v1/topics/t").is(200)["paused"], false);
    http.ask("POST", "/v1/topics/t/jobs", &json!({"id": "new", "body": 1})).is(201);
    sink.wait_for(1, 10 * SECOND);
    assert_eq!((sink.count(), slow.count()), (1, 1), "of the jobs of before only the one that was in flight");
}

#[test]
fn a_killed_purge_removes_nothing_or_is_finished_by_the_next() {
    const JOBS: usize = 10_000;
    let daemon = daemon("");
    for step in [0, 3, 10, 40, 100] {
        let sink = Sink::start();
        let mut http = Http::unix(&daemon);
        register(&mut http, "t", &sink, json!({}));
        http.ask("POST", "/v1/topics/t/pause", &Value::Null).is(204);
        add(&mut http, "t", JOBS / 2, JOBS / 2);
        http.ask("POST", "/v1/topics/t/resume", &Value::Null).is(204);
        http.begin("DELETE", "/v1/topics/t?jobs=purge", "", b"");
        let until = Instant::now() + Duration::from_millis(step);
        eventually(SECOND, "the moment", || (Instant::now() >= until).then_some(()));
        daemon.kill_child("dq-http-server");
        let mut http = eventually(10 * SECOND, "another dq-http-server", || {
            let mut http = Http::unix(&daemon);
            (http.get("/readyz").status == 200).then_some(http)
        });
        let delivered = sink.accepted();
        let is_there = http.get("/v1/topics/t").status == 200;
        let (pending, _) = jobs(&mut http, "t");
        println!("killed after {step} ms: topic {is_there}, {pending} jobs left, {delivered} delivered");
        if is_there {
            // The jobs that were leased before the pause were delivered. No job was removed.
            eventually(10 * SECOND, "all jobs, or that they were delivered", || {
                (jobs(&mut http, "t").0 as usize + sink.accepted() >= JOBS).then_some(())
            });
        } else {
            let before = sink.count();
            let answer = http.ask("DELETE", "/v1/topics/t?jobs=purge", &Value::Null);
            assert!([200, 404].contains(&answer.status), "{answer:?}");
            assert_eq!(sink.count(), before, "none is delivered of a topic that is gone");
        }
        let answer = http.ask("DELETE", "/v1/topics/t?jobs=purge", &Value::Null);
        assert!([200, 404].contains(&answer.status), "{answer:?}");
        assert_eq!(jobs(&mut http, "t"), (0, 0));
    }
}

#[test]
fn a_run_says_why_the_job_is_not_delivered() {
    let sink = Sink::answering(|_| HandlerAnswer::new(500, "no"));
    let daemon = daemon("");
    let mut http = Http::unix(&daemon);
    register(&mut http, "slow", &sink, json!({"rate": "1/h"}));
    add(&mut http, "slow", 0, 2);
    let (code, text) = dq(&daemon, &["run", "slow", "0"]);
    assert_eq!(code, 0, "{text}");
    sink.wait_for(1, 10 * SECOND);
    let (code, text) = dq(&daemon, &["run", "slow", "1"]);
    assert!(code == 0 && text.contains("it is not delivered yet: the rate of the topic, 1/h"), "{text}");
    // A dead letter cannot be run.
    register(&mut http, "once", &sink, json!({"max_attempts": 1}));
    add(&mut http, "once", 1, 0);
    eventually(10 * SECOND, "a dead letter", || (jobs(&mut http, "once") == (0, 1)).then_some(()));
    for words in [&["run", "once", "0"][..], &["reschedule", "once", "0", "--delay", "1h"]] {
        let (code, text) = dq(&daemon, words);
        assert!(code == 3 && text.contains("is a dead letter: dq dead redrive once --id 0"), "{text}");
    }
    // A new callback is called at once only if the circuit is closed.
    register(&mut http, "down", &sink, json!({"breaker_failures": 1, "breaker_pause": "1h"}));
    add(&mut http, "down", 1, 0);
    eventually(10 * SECOND, "an open circuit", || {
        (http.get("/v1/topics/down").is(200)["circuit"] == "open").then_some(())
    });
    let (code, text) = dq(&daemon, &["topics", "set", "down", "--callback", "http://127.0.0.1:9/new"]);
    assert!(code == 0 && text.contains("dq topics resume down"), "{text}");
    let (code, text) = dq(&daemon, &["topics", "set", "down", "--timeout", "5s"]);
    assert!(code == 0 && !text.contains("resume"), "{text}");
}

#[test]
fn a_delete_command_shows_the_stranded_jobs_and_asks() {
    let (daemon, sink) = (daemon(""), Sink::start());
    let mut http = Http::unix(&daemon);
    let fill = |http: &mut Http| {
        register(http, "t", &sink, json!({}));
        http.ask("POST", "/v1/topics/t/pause", &Value::Null).is(204);
        add(http, "t", 2, 1);
    };
    fill(&mut http);
    // Without a terminal, the decision must be in the command.
    for words in [&["topics", "delete", "t"][..], &["topics", "delete", "t", "--yes"]] {
        let (code, text) = dq(&daemon, words);
        assert_eq!(code, 4, "{text}");
        for part in ["3 pending jobs and 0 dead letters", "--purge", "--keep", "topic_has_jobs"] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }
    assert_eq!(dq(&daemon, &["topics", "delete", "t", "--purge", "--keep"]).0, 2);
    assert_eq!(dq(&daemon, &["topics", "delete", "t", "--keep"]), (0, "deleted: t\n".to_owned()));
    assert_eq!(jobs(&mut http, "t"), (3, 0));
    // A job that is run is ready, and the command says that nobody delivers it.
    let (code, text) = dq(&daemon, &["run", "t", "2"]);
    assert!(code == 0 && text.starts_with("ready: t:2\nit is not delivered yet: "), "{text}");
    assert!(text.contains("not registered"), "{text}");
    // Jobs that were left behind can still be removed.
    let (code, text) = dq(&daemon, &["topics", "delete", "t", "--purge"]);
    assert_eq!((code, text.as_str()), (0, "deleted: t\n3 jobs are removed with it\n"));
    assert_eq!(jobs(&mut http, "t"), (0, 0));

    // At a terminal, the command asks.
    let at_terminal = |said: &str| {
        let run_dir = daemon.dir.path().join("var/run");
        let line = format!("{} topics delete t --run-dir {}", env!("CARGO_BIN_EXE_dq"), run_dir.display());
        let mut child = Command::new("script")
            .args(["-qec", &line, "/dev/null"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("script is installed (bsdutils)");
        std::io::Write::write_all(child.stdin.as_mut().unwrap(), said.as_bytes()).unwrap();
        let out = child.wait_with_output().unwrap();
        (out.status.code(), String::from_utf8_lossy(&out.stdout).into_owned())
    };
    fill(&mut http);
    let (code, text) = at_terminal("y\nn\n");
    assert!(code == Some(1) && text.contains("3 pending jobs and 0 dead letters"), "{code:?} {text}");
    http.get("/v1/topics/t").is(200);
    let (code, text) = at_terminal("y\npurge\n");
    assert!(code == Some(0) && text.contains("3 jobs are removed with it"), "{code:?} {text}");
    http.get("/v1/topics/t").is_problem(404, "unknown_topic", None);
    assert_eq!(jobs(&mut http, "t"), (0, 0));
}
