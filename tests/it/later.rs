//! Receivers that answer later, and the headers of jobs: real daemons, on the embedded store and on Redis nodes.

use std::time::Duration;

use crate::support::http::Http;
use crate::support::redis::RedisServer;
use crate::support::{Daemon, SECOND, Sink, eventually, now_ms, topic};
use cli::{HandlerAnswer, ReceivedRequest};
use nix::sys::signal::{Signal, kill};
use serde_json::{Value, json};

/// Returns a sink that answers later.
fn later() -> Sink {
    Sink::answering(|_| HandlerAnswer::new(202, "").with("dq-ack", "later"))
}

/// The settings of a topic that allows later answers. By default, a topic does not allow them.
const RETRY: &str = "retry = [\"100ms\"]\nmax_attempts = 2\nanswer_later = \"1h\"";

fn path_of(call: &ReceivedRequest) -> String {
    let url = call.header("dq-ack-url");
    format!("/{}", url.splitn(4, '/').nth(3).unwrap_or_else(|| panic!("{url:?}")))
}

fn add(http: &mut Http, topic: &str, id: &str) {
    http.ask("POST", &format!("/v1/topics/{topic}/jobs"), &json!({"id": id, "body": {"a": 1}})).is(201);
}

fn job(http: &mut Http, topic: &str, id: &str) -> Value {
    http.get(&format!("/v1/topics/{topic}/jobs/{id}")).is(200)
}

/// Waits until the answer to an attempt is settled, so that the lease continues. Returns the call of this attempt.
fn answered(http: &mut Http, sink: &Sink, id: &str, attempt: &str) -> ReceivedRequest {
    let call = eventually(10 * SECOND, &format!("attempt {attempt} at {id}"), || {
        let is = |c: &ReceivedRequest| c.header("dq-job-id") == id && c.header("dq-attempt") == attempt;
        sink.calls().into_iter().find(is)
    });
    let topic = call.header("dq-topic").to_owned();
    eventually(10 * SECOND, "a lease that goes on", || {
        let job = job(http, &topic, id);
        (job["until_ms"].as_i64()? > now_ms() + 600_000).then_some(())
    });
    call
}

#[test]
fn a_receiver_settles_its_job_later_by_the_url_in_the_callback() {
    let sink = later();
    let daemon = Daemon::start(&topic("t", &sink, RETRY));
    settles_later(&daemon, &sink);
    let mut http = Http::tcp(&daemon);
    let text = http.get("/metrics").is(200).as_str().unwrap().to_owned();
    for line in [
        "dq_attempts_total{topic=\"t\",outcome=\"later\",code_class=\"2xx\"} 5",
        "dq_deliveries_total{topic=\"t\"} 2",
        "dq_retries_total{topic=\"t\"} 2",
        "dq_dead_letters_total{topic=\"t\",cause=\"callback\"} 1",
    ] {
        assert!(text.contains(line), "{line}\n{text}");
    }
}

#[test]
fn a_receiver_that_answers_later_settles_on_redis_as_well() {
    let sink = later();
    let nodes = [RedisServer::start(), RedisServer::start()];
    let daemon = Daemon::start(&format!("{}{}", topic("t", &sink, RETRY), store(&nodes)));
    settles_later(&daemon, &sink);
}

fn store(nodes: &[RedisServer]) -> String {
    let node = |(n, server): (usize, &RedisServer)| {
        format!("[[store.node]]\nname = \"r{n}\"\nurl = \"{}\"\n", server.url())
    };
    let nodes: String = nodes.iter().enumerate().map(node).collect();
    format!("[store]\nbackend = \"redis\"\n{nodes}")
}

fn settles_later(daemon: &Daemon, sink: &Sink) {
    let mut http = Http::tcp(daemon);
    // The receiver reports success, without a body for the first job and with a body for the second job. Then it sends
    // the same report again.
    for (id, body) in [("a", Value::Null), ("b/中", json!({"outcome": "ack"}))] {
        add(&mut http, "t", id);
        let shown = id.replace('/', "%2F").replace('中', "%E4%B8%AD");
        let call = eventually(10 * SECOND, "the call", || {
            sink.calls().into_iter().find(|c| c.header("dq-job-id").starts_with(&id[..1]))
        });
        let path = path_of(&call);
        eventually(10 * SECOND, "a lease that goes on", || {
            let job = job(&mut http, "t", &shown);
            (job["until_ms"].as_i64()? > now_ms() + 600_000).then_some(())
        });
        let done = json!({"topic": "t", "id": id, "outcome": "done"});
        assert_eq!(http.ask("POST", &path, &body).is(200), done);
        http.get(&format!("/v1/topics/t/jobs/{shown}")).is_problem(404, "not_found", None);
        assert_eq!(http.ask("POST", &path, &body).is(200), done, "the answer may have got lost");
        http.ask("POST", &path, &json!({"outcome": "nack"})).is_problem(410, "gone", None);
    }
    // The receiver reports a failure. The job is tried again as the topic says, and then becomes a dead letter. The log
    // of attempts has the reason of each failure.
    add(&mut http, "t", "n");
    let first = answered(&mut http, sink, "n", "1");
    let nack = json!({"outcome": "nack", "reason": "no such order"});
    assert_eq!(http.ask("POST", &path_of(&first), &nack).is(200)["outcome"], "retried");
    let second = answered(&mut http, sink, "n", "2");
    http.ask("POST", &path_of(&first), &json!({"outcome": "extend", "by": 9})).is_problem(410, "gone", None);
    assert_eq!(http.ask("POST", &path_of(&second), &nack).is(200)["outcome"], "dead");
    let dead = job(&mut http, "t", "n");
    assert_eq!((&dead["state"], &dead["attempts"]), (&json!("dead"), &json!(2)));
    for (n, attempt) in dead["log"].as_array().unwrap().iter().enumerate() {
        assert_eq!(
            [&attempt["number"], &attempt["status"], &attempt["error"]],
            [&json!(n + 1), &json!(202), &json!("no such order")]
        );
        assert!(attempt["at_ms"].as_i64().unwrap() > now_ms() - 60_000 && attempt.get("answer").is_none());
    }
    // The receiver gives a delay.
    add(&mut http, "t", "d");
    let call = answered(&mut http, sink, "d", "1");
    let nack = json!({"outcome": "nack", "delay": "2h"});
    assert_eq!(http.ask("POST", &path_of(&call), &nack).is(200)["outcome"], "retried");
    let shown = job(&mut http, "t", "d");
    assert!(shown["due_ms"].as_i64().unwrap() > now_ms() + 7_100_000, "{shown}");
    assert_eq!(shown["log"][0]["error"], "refused later");
}

#[test]
fn a_forged_or_foreign_ticket_fails_and_an_ended_one_is_gone() {
    let sink = later();
    let sections = format!("{}{}", topic("t", &sink, RETRY), topic("u", &sink, ""));
    let daemon = Daemon::start(&sections);
    let other = Daemon::start(&sections);
    let mut http = Http::tcp(&daemon);
    for id in ["gone", "replaced", "held"] {
        add(&mut http, "t", id);
    }
    let [gone, replaced, held] =
        ["gone", "replaced", "held"].map(|id| path_of(&answered(&mut http, &sink, id, "1")));
    let forge = |path: &str, at: usize| {
        let mut bytes = path.as_bytes().to_vec();
        let place = bytes.len() - 1 - at;
        bytes[place] = if bytes[place] == b'A' { b'B' } else { b'A' };
        String::from_utf8(bytes).unwrap()
    };
    for path in [
        forge(&held, 5),
        forge(&held, 70),
        "/v1/ack/AAAA".into(),
        "/v1/ack/%2e".into(),
        held[..held.len() - 8].into(),
    ] {
        http.ask("POST", &path, &Value::Null).is_problem(404, "no_ticket", None);
    }
    Http::tcp(&other).ask("POST", &held, &Value::Null).is_problem(404, "no_ticket", None);
    for (body, code, field) in [
        (json!({"outcome": "maybe"}), "bad_field", "outcome"),
        (json!({"outcome": "ack", "delay": 1}), "bad_field", "delay"),
        (json!({"outcome": "nack", "by": 1}), "bad_field", "by"),
        (json!({"outcome": "extend"}), "missing_field", "by"),
        (json!({"done": true}), "unknown_field", "done"),
    ] {
        http.ask("POST", &held, &body).is_problem(422, code, Some(field));
    }
    http.ask("DELETE", "/v1/topics/t/jobs/gone", &Value::Null).is(204);
    http.ask("POST", "/v1/topics/t/jobs", &json!({"id": "replaced", "body": 2, "delay": 3600})).is(200);
    for path in [gone, replaced] {
        http.ask("POST", &path, &Value::Null).is_problem(410, "gone", None);
    }
    assert_eq!(job(&mut http, "t", "replaced")["body"], 2, "what replaced it is another job");
    assert_eq!(job(&mut http, "t", "held")["state"], "leased", "nothing of all this has touched it");
    // The receiver extends the lease, but the lease never gets longer than the topic allows. If no outcome comes, the
    // lease ends.
    let far = http.ask("POST", &held, &json!({"outcome": "extend", "by": "9h"})).is(200);
    let until = far["until_ms"].as_i64().unwrap() - now_ms();
    assert!((3_500_000..3_600_000).contains(&until), "{far}");
    http.ask("POST", &held, &json!({"outcome": "extend", "by": "200ms"})).is(200);
    answered(&mut http, &sink, "held", "2");
    let log = job(&mut http, "t", "held")["log"].clone();
    assert_eq!((log[0]["number"].clone(), log[0]["error"].clone()), (json!(1), json!("the lease ran out")));
    http.ask("POST", &held, &Value::Null).is_problem(410, "gone", None);
    // If the topic does not allow later answers, a 202 is a success like any other.
    add(&mut http, "u", "x");
    eventually(10 * SECOND, "the end of x", || (http.get("/v1/topics/u/jobs/x").status == 404).then_some(()));
    let call = sink.calls().into_iter().find(|c| c.header("dq-topic") == "u").unwrap();
    assert_eq!(call.header("dq-ack-url"), "");
}

#[test]
fn a_later_answer_works_after_restarts_and_needs_no_token() {
    let sink = later();
    let mut daemon = Daemon::start(&format!(
        "[http]\nauth = \"token\"\npublic_url = \"https://dq.example.com/base/\"\n{}",
        topic("t", &sink, "answer_later = \"2h\"")
    ));
    let mut http = Http::unix(&daemon);
    add(&mut http, "t", "a");
    add(&mut http, "t", "b");
    let [a, b] = ["a", "b"].map(|id| answered(&mut http, &sink, id, "1"));
    assert!(a.header("dq-ack-url").starts_with("https://dq.example.com/base/v1/ack/"), "{:?}", a.headers);
    for name in ["dq-consume-0", "dq-consume-1", "dq-timer-0", "dq-timer-1", "dq-http-server"] {
        daemon.kill_child(name);
    }
    daemon.stop();
    let daemon = Daemon::again(&daemon);
    daemon.wait_ready();
    let mut http = Http::tcp(&daemon);
    http.get("/v1/topics").is_problem(401, "unauthorized", None);
    let path = |call: &ReceivedRequest| path_of(call).replace("/base", "");
    assert_eq!(http.ask("POST", &path(&a), &Value::Null).is(200)["outcome"], "done");
    assert_eq!(
        http.ask("POST", &path(&b), &json!({"outcome": "nack", "delay": 60})).is(200)["outcome"],
        "retried"
    );
    assert_eq!(sink.count(), 2, "none was delivered again");
}

#[test]
fn a_job_is_settled_at_another_host_than_the_one_that_called() {
    let (near, far) = (later(), Sink::start());
    let nodes = [RedisServer::start(), RedisServer::start()];
    let one = Daemon::start(&format!("{}{}", topic("t", &near, RETRY), store(&nodes)));
    // This daemon has no topic `t`, so its consumers do not take the jobs of `t`.
    let other = Daemon::start(&format!("{}{}", topic("u", &far, ""), store(&nodes)));
    let (mut here, mut there) = (Http::tcp(&one), Http::tcp(&other));
    let ids: Vec<String> = (0..6).map(|n| format!("job-{n}")).collect();
    ids.iter().for_each(|id| add(&mut here, "t", id));
    let paths: Vec<String> = ids.iter().map(|id| path_of(&answered(&mut here, &near, id, "1"))).collect();
    // The host that made the calls dies.
    kill(one.pid(), Signal::SIGKILL).unwrap();
    one.children().into_values().for_each(|pid| kill(pid, Signal::SIGKILL).unwrap_or(()));
    for (n, path) in paths.iter().enumerate() {
        let said = if n % 2 == 0 { "ack" } else { "nack" };
        let answer = there.ask("POST", path, &json!({"outcome": said})).is(200);
        assert_eq!(answer["outcome"], if n % 2 == 0 { "done" } else { "retried" });
    }
}

#[test]
fn a_receiver_may_be_faster_than_its_own_answer() {
    let sink = Sink::answering(|_| {
        HandlerAnswer::new(202, "").with("dq-ack", "later").after(Duration::from_millis(700))
    });
    let daemon = Daemon::start(&topic("t", &sink, RETRY));
    let mut http = Http::tcp(&daemon);
    add(&mut http, "t", "a");
    sink.wait_for(1, 10 * SECOND);
    let path = path_of(&sink.calls()[0]);
    assert_eq!(http.ask("POST", &path, &Value::Null).is(200)["outcome"], "done");
    eventually(10 * SECOND, "its answer", || (sink.accepted() == 1).then_some(()));
    http.get("/v1/topics/t/jobs/a").is_problem(404, "not_found", None);
    assert_eq!(http.get("/v1/topics/t/jobs?state=leased").is(200)["jobs"], json!([]));
}

const TRACE: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

#[test]
fn the_headers_of_a_job_come_with_each_of_its_callbacks() {
    let sink = Sink::answering(|call| {
        HandlerAnswer::new(if call.header("dq-attempt") == "1" { 500 } else { 200 }, "")
    });
    let daemon = Daemon::start(&topic("t", &sink, RETRY));
    let mut http = Http::tcp(&daemon);
    let headers = json!({"X-Tenant": "a \"7\"", "traceparent": TRACE});
    http.ask("POST", "/v1/topics/t/jobs", &json!({"id": "a", "body": 1, "delay": "1h", "headers": headers}))
        .is(201);
    let lower = json!({"x-tenant": "a \"7\"", "traceparent": TRACE});
    assert_eq!(job(&mut http, "t", "a")["headers"], lower);
    http.ask("POST", "/v1/topics/t/jobs/a/run", &Value::Null).is(204);
    sink.wait_for(1, 10 * SECOND);
    let mut tcp = daemon.client();
    let jobs = json!([
        {"id": "b", "body": 1, "headers": {"x-tenant": "8"}},
        {"id": "c", "body": 1, "headers": []},
        {"id": "d", "body": 1, "headers": {"dq-topic": "8"}},
    ]);
    let answer = tcp.ask(&json!({"cmd": "madd", "topic": "t", "jobs": jobs})).unwrap();
    let codes: Vec<_> = answer["data"].as_array().unwrap().iter().map(|one| one["code"].clone()).collect();
    assert_eq!(codes, [json!(1), json!(1), json!(0)], "{answer}");
    sink.wait_for(3, 10 * SECOND);
    eventually(10 * SECOND, "two attempts each", || (sink.count() == 6).then_some(()));
    for call in sink.calls() {
        let expected = match call.header("dq-job-id") {
            "a" => ("a \"7\"", TRACE),
            "b" => ("8", ""),
            _ => ("", ""),
        };
        assert_eq!((call.header("x-tenant"), call.header("traceparent")), expected, "{:?}", call.headers);
    }
    // Headers can be changed and removed. Wrong headers are refused.
    http.ask("POST", "/v1/topics/t/jobs", &json!({"id": "e", "body": 1, "delay": "1h", "headers": headers}))
        .is(201);
    http.ask("PATCH", "/v1/topics/t/jobs/e", &json!({"headers": {"x-b": "1"}})).is(204);
    assert_eq!(job(&mut http, "t", "e")["headers"], json!({"x-b": "1"}));
    http.ask("PATCH", "/v1/topics/t/jobs/e", &json!({"headers": null})).is(204);
    assert_eq!(job(&mut http, "t", "e").get("headers"), None);
    for bad in [
        json!({"host": "x"}),
        json!({"Cookie": "x"}),
        json!({"a": 1}),
        json!({"traceparent": "x"}),
        json!([]),
        json!("x"),
    ] {
        let job = json!({"id": "e", "body": 1, "headers": bad});
        http.ask("POST", "/v1/topics/t/jobs", &job).is_problem(422, "bad_field", Some("headers"));
        http.ask("PATCH", "/v1/topics/t/jobs/e", &json!({"headers": bad})).is_problem(
            422,
            "bad_field",
            Some("headers"),
        );
    }
}

#[test]
fn a_topics_headers_are_final_and_guarded_ones_must_be_listed() {
    let sink = Sink::answering(|_| HandlerAnswer::new(200, ""));
    let own = "headers = { x-shop = \"7\" }\n";
    let two = topic("t", &sink, own) + &topic("listed", &sink, "job_headers = [\"Authorization\"]\n");
    let daemon = Daemon::start(&two);
    let (mut http, mut tcp) = (Http::tcp(&daemon), daemon.client());
    let with = |id: &str, name: &str| json!({"id": id, "body": 1, "headers": {name: "job"}});
    for name in ["authorization", "Cookie", "X-Forwarded-For", "forwarded", "via", "x-real-ip"] {
        http.ask("POST", "/v1/topics/t/jobs", &with("a", name)).is_problem(422, "bad_field", Some("headers"));
        let add = json!({"cmd": "add", "topic": "t", "id": "a", "body": 1, "headers": {name: "job"}});
        let answer = tcp.ask(&add).unwrap();
        assert_eq!((&answer["code"], &answer["err"]), (&json!(0), &json!("bad_field")), "{answer}");
        assert!(answer["msg"].as_str().unwrap().contains("job_headers"), "{answer}");
    }
    http.ask("POST", "/v1/topics/t/jobs", &with("b", "x-shop")).is(201);
    http.ask("POST", "/v1/topics/listed/jobs", &with("c", "authorization")).is(201);
    sink.wait_for(2, 10 * SECOND);
    for call in sink.calls() {
        let expected = if call.header("dq-job-id") == "b" { ("7", "") } else { ("", "job") };
        assert_eq!((call.header("x-shop"), call.header("authorization")), expected, "{:?}", call.headers);
    }
}
