//! The followers and events of a job, over HTTP and TCP and with the command line.

use std::process::Command;
use std::sync::Arc;

use crate::support::http::Http;
use crate::support::{Daemon, SECOND, Sink, eventually, free_port, now_ms, stats, topic};
use cli::{HandlerAnswer, ReceivedRequest};
use delivery::callback::signatures;
use serde_json::{Value, json};

const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

/// Runs `dq`, and returns what it wrote.
fn dq(daemon: &Daemon, words: &[&str]) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_dq"));
    command.args(words).arg("--run-dir").arg(daemon.dir.path().join("var/run"));
    let output = command.output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    text(output.stdout) + &text(output.stderr)
}

fn ended(http: &mut Http, topic: &str, id: &str) -> Value {
    let path = format!("/v1/topics/{topic}/jobs/{id}/records");
    eventually(20 * SECOND, "the end of the job", || {
        http.get(&path).is(200)["records"].as_array().unwrap().first().cloned()
    })
}

/// The second daemon does not know the topics of the registry, as after a reboot while the registry does not answer.
#[test]
fn what_follows_waits_until_the_delay_of_its_topic_is_known() {
    let (sink, later) = (Sink::start(), Sink::start());
    let mut daemon = Daemon::start(&topic("a", &sink, ""));
    let mut http = Http::unix(&daemon);
    let remind = json!({"name": "remind", "callback": later.url(), "delay": "1h"});
    http.ask("POST", "/v1/topics", &remind).is(201);
    let job = json!({"id": "1", "body": 1, "delay": "4s", "then": {"topic": "remind", "id": "2", "body": 2}});
    http.ask("POST", "/v1/topics/a/jobs", &job).is(201);
    daemon.stop();
    let (dir, port, web) = (Arc::clone(&daemon.dir), daemon.port, daemon.http);
    let away = format!("[registry]\nurl = \"mysql://dq@127.0.0.1:{}/dq\"\n", free_port());
    Daemon::write_config(dir.path(), port, web, &(away + &topic("a", &sink, "")));
    let mut daemon = Daemon::again(&daemon);
    daemon.wait_ready();
    sink.wait_for(1, 30 * SECOND);
    let mut client = daemon.client();
    eventually(20 * SECOND, "the end of the first job", || {
        (stats(&mut client, "a")["leased"] == 0).then_some(())
    });
    daemon.stop();
    Daemon::write_config(dir.path(), port, web, &topic("a", &sink, ""));
    let daemon = Daemon::again(&daemon);
    daemon.wait_ready();
    let mut client = daemon.client();
    eventually(20 * SECOND, "what follows", || (stats(&mut client, "remind")["delayed"] == 1).then_some(()));
    assert_eq!(later.count(), 0);
}

/// A chain of three jobs, each in its own topic.
fn goes_through_a_chain(store: &str) {
    let sink = Sink::start();
    let topics: String = ["a", "b", "c"].map(|name| topic(name, &sink, "")).concat();
    let daemon = Daemon::start(&format!("{store}{topics}"));
    let mut http = Http::tcp(&daemon);
    let then = json!({"topic": "b", "body": {"n": 2}, "path": "/second", "delay_ms": 300,
                      "then": [{"topic": "c", "id": "last", "body": {"n": 3}}]});
    http.ask(
        "POST",
        "/v1/topics/a/jobs",
        &json!({"id": "first", "body": {"n": 1}, "delay": "1h", "then": then}),
    )
    .is(201);
    let shown = http.get("/v1/topics/a/jobs/first").is(200);
    let second = shown["then"][0]["id"].as_str().unwrap().to_owned();
    assert_eq!((&shown["then"][0]["topic"], &shown["then"][0]["body"]), (&json!("b"), &json!({"n": 2})));
    assert_eq!(shown["then"][0]["then"][0]["topic"], "c");
    assert!(dq(&daemon, &["get", "a", "first"]).contains(&format!("then      b:{second}\n")));
    http.ask("POST", "/v1/topics/a/jobs/first/run", &json!({})).is(204);
    let last = ended(&mut http, "c", "last");
    assert_eq!(last["after"], json!({"topic": "b", "id": second}));
    let first = ended(&mut http, "a", "first");
    assert_eq!(first["then"], json!([{"topic": "b", "id": second}]));
    let middle = ended(&mut http, "b", &second);
    assert_eq!(
        (&middle["after"], &middle["then"]),
        (&json!({"topic": "a", "id": "first"}), &json!([{"topic": "c", "id": "last"}]))
    );
    assert!(middle["due_ms"].as_i64() >= first["ended_ms"].as_i64().map(|ms| ms + 300), "{first} {middle}");
    assert!(dq(&daemon, &["get", "b", &second]).contains("after     a:first\nthen      c:last\n"));
    let calls = sink.calls();
    let bodies: Vec<&str> = calls.iter().map(|call| &*call.body).collect();
    assert_eq!(bodies, [r#"{"n":1}"#, r#"{"n":2}"#, r#"{"n":3}"#]);
    assert!(calls[1].path.ends_with("/second"), "{}", calls[1].path);
    assert!(calls.iter().all(|call| call.headers.iter().all(|(name, _)| !name.starts_with(':'))));
    // Followers can also be given over TCP and with the command line.
    let add = json!({"cmd": "add", "topic": "a", "id": "tcp", "body": 1, "then": {"topic": "c", "id": "after-tcp", "body": 1}});
    assert_eq!(daemon.client().ask(&add).unwrap()["code"], 1);
    ended(&mut http, "c", "after-tcp");
    dq(&daemon, &["add", "a", "1", "--then", r#"{"topic": "c", "id": "after-cli", "body": 1}"#]);
    ended(&mut http, "c", "after-cli");
}

#[test]
fn a_chain_of_three_is_delivered_in_its_order() {
    goes_through_a_chain("");
}

#[test]
fn a_chain_goes_over_three_nodes_of_redis() {
    use crate::support::redis::RedisServer;
    let servers = [RedisServer::start(), RedisServer::start(), RedisServer::start()];
    let node = |(n, server): (usize, &RedisServer)| {
        format!("[[store.node]]\nname = \"r{n}\"\nurl = \"{}\"\n", server.url())
    };
    let nodes: String = servers.iter().enumerate().map(node).collect();
    goes_through_a_chain(&format!("[store]\nbackend = \"redis\"\n{nodes}"));
}

#[test]
fn what_may_not_follow_is_refused_by_its_field() {
    let sink = Sink::start();
    let off = topic("off", &sink, "status = \"offline\"");
    let daemon = Daemon::start(&format!(
        "[http]\nauth = \"token\"\n[server]\nauth = \"token\"\n{}{}{off}",
        topic("a", &sink, ""),
        topic("b", &sink, "")
    ));
    let mut unix = Http::unix(&daemon);
    let one = json!({"topic": "b", "body": 1});
    let with = |then: Value| json!({"id": "x", "body": 1, "delay": "1h", "then": then});
    for (then, status, code, field) in [
        (json!({"topic": "nobody", "body": 1}), 422, "bad_field", "then.topic"),
        (json!([one, {"topic": "nobody", "body": 1}]), 422, "bad_field", "then[1].topic"),
        (json!([one, {"topic": "b", "bodi": 1}]), 422, "bad_field", "then[1].bodi"),
        (json!({"topic": "b"}), 422, "bad_field", "then.body"),
        (json!({"topic": "b", "body": 1, "headers": {"cookie": "x"}}), 422, "bad_field", "then.headers"),
    ] {
        unix.ask("POST", "/v1/topics/a/jobs", &with(then)).is_problem(status, code, Some(field));
    }
    let offline = with(json!({"topic": "off", "body": 1}));
    unix.ask("POST", "/v1/topics/a/jobs", &offline).is_problem(409, "topic_offline", None);
    // A token that may add jobs to one topic cannot add jobs to another topic by `then`.
    let token = unix.ask("POST", "/v1/tokens", &json!({"name": "p", "scopes": ["produce:a"]})).is(201);
    let secret = token["token"].as_str().unwrap().to_owned();
    let mut tcp = Http::tcp(&daemon);
    let send = |tcp: &mut Http, path: &str, body: &Value| {
        let headers = format!("authorization: Bearer {secret}\r\n");
        tcp.send("POST", path, &headers, body.to_string().as_bytes())
    };
    send(&mut tcp, "/v1/topics/a/jobs", &with(json!([one]))).is_problem(403, "forbidden", Some("then.topic"));
    send(&mut tcp, "/v1/topics/a/jobs", &with(json!({"topic": "a", "body": 1}))).is(201);
    let nested = json!({"topic": "a", "body": 1, "then": one});
    let batch = json!({"jobs": [with(nested), {"id": "y", "body": 1, "delay": "1h"}]});
    let answer = send(&mut tcp, "/v1/topics/a/jobs/batch", &batch).is(200);
    assert_eq!(
        (&answer["results"][0]["status"], &answer["results"][0]["field"]),
        (&json!(403), &json!("then.then.topic"))
    );
    assert_eq!(answer["results"][1]["status"], 201);
    let mut client = daemon.client();
    assert_eq!(client.ask(&json!({"cmd": "auth", "token": secret})).unwrap()["code"], 1);
    let mut add = with(one);
    (add["cmd"], add["topic"]) = (json!("add"), json!("a"));
    let refused = client.ask(&add).unwrap();
    assert_eq!(refused["err"], "forbidden", "{refused}");
    assert!(refused["msg"].as_str().unwrap().starts_with("then.topic: "), "{refused}");
}

/// Returns whether a call is signed with the secret.
fn is_signed(call: &ReceivedRequest) -> bool {
    let at_s = call.header("webhook-timestamp").parse().unwrap();
    let wanted = signatures(&[SECRET.to_owned()], call.header("webhook-id"), at_s, &call.bytes);
    wanted.as_deref() == Some(call.header("webhook-signature"))
}

#[test]
fn the_end_of_a_job_is_told_with_a_signed_event() {
    let sink = Sink::answering(|call| match call.header("dq-job-id") {
        "bad" => HandlerAnswer::new(410, "gone for good"),
        _ => HandlerAnswer::new(200, "well done"),
    });
    // The receiver of the events fails at first.
    let failed = std::sync::atomic::AtomicBool::new(false);
    let events = Sink::answering(move |_| match failed.swap(true, std::sync::atomic::Ordering::Relaxed) {
        false => HandlerAnswer::new(503, "not yet"),
        true => HandlerAnswer::new(200, "ok"),
    });
    let daemon = Daemon::start(&format!("[http]\nauth = \"none\"\n{}", topic("plain", &sink, "")));
    let mut http = Http::unix(&daemon);
    let with = |answer: bool| {
        json!({"callback": sink.url(), "on_done": events.url(), "on_done_answer": answer, "secrets": [SECRET],
               "max_attempts": 1})
    };
    let put =
        |http: &mut Http, name: &str, topic: &Value| http.ask("PUT", &format!("/v1/topics/{name}"), topic);
    put(&mut http, "t", &with(false)).is(201);
    put(&mut http, "answers", &with(true)).is(201);
    put(&mut http, "x.on_done", &json!({"callback": sink.url()})).is_problem(422, "bad_field", Some("name"));
    let wrong = json!({"callback": sink.url(), "on_done": "ftp://x"});
    put(&mut http, "u", &wrong).is_problem(422, "bad_field", Some("on_done"));
    // A new `on_done` takes effect after a timer has written it into the store.
    let mut n = 0;
    eventually(20 * SECOND, "an event", || {
        n += 1;
        let probe = json!({"id": format!("probe-{n}"), "body": 1});
        http.ask("POST", "/v1/topics/t/jobs", &probe);
        http.ask("POST", "/v1/topics/answers/jobs", &probe);
        std::thread::sleep(std::time::Duration::from_millis(100));
        let calls = events.calls();
        ["t", "answers"]
            .iter()
            .all(|t| calls.iter().any(|call| call.header("dq-topic") == format!("{t}.on_done")))
            .then_some(())
    });
    http.ask("POST", "/v1/topics/t/jobs", &json!({"id": "good", "body": 1, "tags": ["a"]})).is(201);
    http.ask("POST", "/v1/topics/t/jobs", &json!({"id": "bad", "body": 1})).is(201);
    http.ask("POST", "/v1/topics/answers/jobs", &json!({"id": "good", "body": 1})).is(201);
    let event_of = |topic: &str, id: &str| {
        eventually(20 * SECOND, "the event", || {
            let is = |call: &ReceivedRequest| {
                let event: Value = serde_json::from_str(&call.body).unwrap();
                (event["data"]["topic"] == topic && event["data"]["id"] == id).then(|| (call.clone(), event))
            };
            events.calls().iter().find_map(is)
        })
    };
    for (topic, id, kind) in
        [("t", "good", "job.accepted"), ("t", "bad", "job.dead"), ("answers", "good", "job.accepted")]
    {
        let (call, event) = event_of(topic, id);
        assert!(is_signed(&call), "{call:?}");
        assert_eq!(event["type"], kind);
        // The data is the record as the API shows it, perhaps without the answers.
        let mut record = ended(&mut http, topic, id);
        if topic == "t" {
            assert!(record["log"][0]["answer"].is_string());
            record["log"][0].as_object_mut().unwrap().remove("answer");
        }
        assert_eq!(event["data"], record);
        assert!(now_ms() >= record["ended_ms"].as_i64().unwrap());
    }
    // A client cannot add an event. The topic of events is shown with the other topics.
    http.ask("POST", "/v1/topics/t.on_done/jobs", &json!({"body": 1})).is_problem(409, "topic_offline", None);
}
