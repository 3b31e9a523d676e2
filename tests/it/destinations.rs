//! Jobs with their own path or URL. They do not go to the unchanged callback URL of their topic.

use std::process::Command;
use std::time::Duration;

use crate::support::http::Http;
use crate::support::mariadb::MariaDb;
use crate::support::{Daemon, SECOND, Sink, eventually, now_ms, on_redis, topic};
use cli::HandlerAnswer;
use serde_json::{Value, json};

fn dq(daemon: &Daemon, words: &[&str]) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_dq"));
    let run_dir = daemon.dir.path().join("var/run");
    let output = command.args(words).arg("--run-dir").arg(run_dir).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// Starts a daemon with a registry.
fn registering() -> Daemon {
    let url = on_redis().then(|| MariaDb::shared().database().url().to_owned());
    Daemon::start(&url.map_or(String::new(), |url| format!("[registry]\nurl = \"{url}\"\n")))
}

/// Waits until a job has arrived, and returns the path and the query of its last call.
fn arrived(sink: &Sink, id: &str) -> String {
    let call = eventually(10 * SECOND, id, || {
        sink.calls().into_iter().rev().find(|call| call.header("dq-job-id") == id)
    });
    if call.query.is_empty() { call.path } else { format!("{}?{}", call.path, call.query) }
}

fn job(http: &mut Http, id: &str) -> Value {
    http.get(&format!("/v1/topics/t/jobs/{id}")).is(200)
}

#[test]
fn a_path_goes_with_its_job_whatever_happens_to_the_job() {
    let sink = Sink::answering(|call| match call.header("dq-attempt") {
        "1" => HandlerAnswer::new(503, "again"),
        _ if call.header("dq-job-id") == "dies" => HandlerAnswer::new(410, "gone"),
        _ => HandlerAnswer::new(200, "ok"),
    });
    let daemon = Daemon::start(&topic("t", &sink, "retry = [\"10ms\"]\nmax_attempts = 3"));
    let mut http = Http::tcp(&daemon);
    // Jobs with a path are added over TCP, over HTTP and by the command line.
    let add = json!({"cmd": "add", "topic": "t", "id": "tcp", "body": 1, "delay": "1s", "path": "/merchants/7?x=1"});
    assert_eq!(daemon.client().ask(&add).unwrap()["code"], 1);
    let shown = daemon.client().ask(&json!({"cmd": "get", "topic": "t", "id": "tcp"})).unwrap();
    assert_eq!(shown["job"]["path"], "/merchants/7?x=1");
    http.ask("POST", "/v1/topics/t/jobs", &json!({"id": "http", "body": 1, "path": "?shop=7"})).is(201);
    dq(&daemon, &["add", "t", "1", "--id", "cli", "--path", "/m/7"]);
    for (id, path) in [("tcp", "/hook/merchants/7?x=1"), ("http", "/hook?shop=7"), ("cli", "/hook/m/7")] {
        eventually(10 * SECOND, id, || (sink.deliveries().get(id) == Some(&2)).then_some(()));
        assert_eq!(arrived(&sink, id), path);
    }
    // A change of the path alone is possible, and the path is shown. A change of another field keeps the path.
    let dies = json!({"id": "dies", "body": 1, "delay": "1h", "path": "/1", "headers": {"x-a": "1"}});
    http.ask("POST", "/v1/topics/t/jobs", &dies).is(201);
    http.ask("PATCH", "/v1/topics/t/jobs/dies", &json!({"path": "/2"})).is(204);
    http.ask("PATCH", "/v1/topics/t/jobs/dies", &json!({"headers": {"x-b": "2"}})).is(204);
    let listed = http.get("/v1/topics/t/jobs?state=delayed").is(200);
    let shown = job(&mut http, "dies");
    assert_eq!((&shown["path"], &shown["headers"]), (&json!("/2"), &json!({"x-b": "2"})));
    assert_eq!(listed["jobs"][0]["path"], "/2");
    assert!(dq(&daemon, &["get", "t", "dies"]).contains("path      /2\n"));
    // A dead letter keeps its path. The job still has the path when it is redriven and becomes a dead letter again.
    http.ask("POST", "/v1/topics/t/jobs/dies/run", &Value::Null).is(204);
    for calls in [2, 4] {
        eventually(10 * SECOND, "death", || (job(&mut http, "dies")["state"] == "dead").then_some(()));
        assert_eq!(sink.deliveries()["dies"], calls);
        assert_eq!(
            (arrived(&sink, "dies").as_str(), &job(&mut http, "dies")["path"]),
            ("/hook/2", &json!("/2"))
        );
        http.ask("POST", "/v1/topics/t/dead/redrive", &json!({"ids": ["dies"]})).is(200);
    }
    // (The test waits for the dead letter, because a job that is being delivered cannot be changed.)
    eventually(10 * SECOND, "death", || (job(&mut http, "dies")["state"] == "dead").then_some(()));
    // `null` removes the path. A replacement does not get the path of the replaced job.
    let again = json!({"id": "dies", "body": 1, "delay": "1h", "path": "/1"});
    http.ask("POST", "/v1/topics/t/jobs", &again);
    http.ask("PATCH", "/v1/topics/t/jobs/dies", &json!({"path": null})).is(204);
    assert_eq!(job(&mut http, "dies").get("path"), None);
}

#[test]
fn a_path_that_could_leave_the_callback_is_refused() {
    let sink = Sink::start();
    let daemon = Daemon::start(&topic("t", &sink, ""));
    let (mut http, mut client) = (Http::tcp(&daemon), daemon.client());
    http.ask("POST", "/v1/topics/t/jobs", &json!({"id": "a", "body": 1, "delay": "1h"})).is(201);
    for path in [
        "//evil.example",
        "/../admin",
        "/%2e%2e/admin",
        "@evil.example",
        "/a\\b",
        "/a#b",
        "/a b",
        "/a\r\nx: y",
        "",
        "a",
    ] {
        let new = json!({"body": 1, "path": path});
        http.ask("POST", "/v1/topics/t/jobs", &new).is_problem(422, "bad_field", Some("path"));
        let change = json!({ "path": path });
        http.ask("PATCH", "/v1/topics/t/jobs/a", &change).is_problem(422, "bad_field", Some("path"));
        let add = json!({"cmd": "add", "topic": "t", "id": "b", "body": 1, "path": path});
        let answer = client.ask(&add).unwrap();
        assert_eq!((&answer["code"], &answer["err"]), (&json!(0), &json!("bad_field")), "{answer}");
    }
    http.ask("POST", "/v1/topics/t/jobs", &json!({"body": 1, "path": 7})).is_problem(
        422,
        "bad_field",
        Some("path"),
    );
    assert_eq!(job(&mut http, "a").get("path"), None);
    assert_eq!(sink.count(), 0);
}

#[test]
fn a_url_of_a_job_goes_to_the_listed_hosts_alone() {
    let (sink, listed, other) = (Sink::start(), Sink::start(), Sink::start());
    let hosts =
        format!("job_hosts = [\"{}\", \"*.example.com\"]\nheaders = {{ x-key = \"k\" }}", listed.address);
    let more = "retry = [\"10ms\"]\nmax_attempts = 1\nsecrets = [\"a-secret\"]";
    let daemon = Daemon::start(&(topic("t", &sink, &format!("{hosts}\n{more}")) + &topic("none", &sink, "")));
    let (mut http, mut client) = (Http::tcp(&daemon), daemon.client());
    let good = format!("http://{}/shop7?x=1", listed.address);
    http.ask("POST", "/v1/topics/t/jobs", &json!({"id": "http", "body": 1, "url": good})).is(201);
    let add = json!({"cmd": "add", "topic": "t", "id": "tcp", "body": 1, "url": good});
    assert_eq!(client.ask(&add).unwrap()["code"], 1);
    dq(&daemon, &["add", "t", "1", "--id", "cli", "--callback", &good]);
    for id in ["http", "tcp", "cli"] {
        assert_eq!(arrived(&listed, id), "/shop7?x=1");
    }
    let call = &listed.calls()[0];
    assert_eq!((call.header("x-key"), call.header("host")), ("k", listed.address.to_string().as_str()));
    assert!(call.header("webhook-signature").starts_with("v1,"));
    // Hosts that are not in `job_hosts` are refused. A topic without this list refuses all hosts.
    let bad = format!("http://{}/", other.address);
    for (name, url) in
        [("t", &*bad), ("none", &*good), ("t", "http://a@b.example.com/"), ("t", "http://example.com/")]
    {
        let add = json!({"body": 1, "url": url});
        let path = format!("/v1/topics/{name}/jobs");
        http.ask("POST", &path, &add).is_problem(422, "bad_field", Some("url"));
        let add = json!({"cmd": "add", "topic": name, "id": "x", "body": 1, "url": url});
        let answer = client.ask(&add).unwrap();
        assert!(answer["err"] == "bad_field" && answer["msg"].as_str().unwrap().contains("url"), "{answer}");
    }
    let both = json!({"body": 1, "url": good, "path": "/a"});
    http.ask("POST", "/v1/topics/t/jobs", &both).is_problem(422, "bad_field", Some("url"));
    // A change can replace a path by a URL. The URL of a change is checked as well.
    let waits = json!({"id": "waits", "body": 1, "delay": "1h", "path": "/a"});
    http.ask("POST", "/v1/topics/t/jobs", &waits).is(201);
    let at = "/v1/topics/t/jobs/waits";
    http.ask("PATCH", at, &json!({ "url": bad })).is_problem(422, "bad_field", Some("url"));
    http.ask("PATCH", at, &json!({ "url": good })).is(204);
    let shown = job(&mut http, "waits");
    assert_eq!((&shown["url"], shown.get("path")), (&json!(good), None));
    assert!(dq(&daemon, &["get", "t", "waits"]).contains(&format!("url       {good}\n")));
    assert_eq!((sink.count(), other.count()), (0, 0));
}

#[test]
fn a_host_that_is_no_longer_listed_gets_nothing_more() {
    let (sink, listed) = (Sink::start(), Sink::start());
    let daemon = registering();
    let mut http = Http::tcp(&daemon);
    // The guard holds for URLs of jobs too.
    let hosts = json!([listed.address.to_string(), "169.254.169.254"]);
    let registered = json!({"callback": sink.url(), "job_hosts": hosts, "max_attempts": 1});
    http.ask("PUT", "/v1/topics/t", &registered).is(201);
    for (id, url) in [("a", listed.url()), ("meta", "http://169.254.169.254/latest".to_owned())] {
        let new = json!({"id": id, "body": 1, "delay": "1h", "url": url});
        http.ask("POST", "/v1/topics/t/jobs", &new).is(201);
    }
    let error = |http: &mut Http, id: &str| {
        http.ask("POST", &format!("/v1/topics/t/jobs/{id}/run"), &Value::Null).is(204);
        let dead = eventually(10 * SECOND, id, || Some(job(http, id)).filter(|job| job["state"] == "dead"));
        dead["log"][0]["error"].as_str().unwrap().to_owned()
    };
    let guarded = error(&mut http, "meta");
    assert!(guarded.contains("169.254.169.254 is not called"), "{guarded}");
    http.ask("PATCH", "/v1/topics/t", &json!({"job_hosts": []})).is(200);
    let refused = error(&mut http, "a");
    assert!(refused.contains(&format!("job_hosts of topic t does not list {}", listed.address)), "{refused}");
    assert_eq!((sink.count(), listed.count()), (0, 0));
}

#[test]
fn neither_a_redirect_nor_a_new_callback_takes_a_job_elsewhere() {
    let elsewhere = Sink::start();
    let target = elsewhere.url();
    let first = Sink::answering(move |_| HandlerAnswer::new(302, "").with("location", target.clone()));
    let second = Sink::start();
    let daemon = registering();
    let mut http = Http::tcp(&daemon);
    let registered =
        json!({"callback": format!("{}?key=1", first.url()), "retry": ["10ms"], "max_attempts": 2});
    http.ask("PUT", "/v1/topics/t", &registered).is(201);
    for (id, delay) in [("a", "0s"), ("b", "1h")] {
        let new = json!({"id": id, "body": 1, "delay": delay, "path": "/7?x=1"});
        http.ask("POST", "/v1/topics/t/jobs", &new).is(201);
    }
    eventually(10 * SECOND, "death", || (job(&mut http, "a")["state"] == "dead").then_some(()));
    assert_eq!((arrived(&first, "a").as_str(), first.count()), ("/hook/7?key=1&x=1", 2));
    // The path is appended to the callback URL that the topic has at the time of the delivery.
    let callback = format!("http://{}/new/?key=2", second.address);
    http.ask("PATCH", "/v1/topics/t", &json!({ "callback": callback })).is(200);
    http.ask("POST", "/v1/topics/t/jobs/b/run", &Value::Null).is(204);
    assert_eq!(arrived(&second, "b"), "/new/7?key=2&x=1");
    assert_eq!((first.count(), elsewhere.count()), (2, 0));
}

/// Adds jobs that are due now, with a URL or without.
fn add_many(http: &mut Http, topic: &str, prefix: &str, jobs: usize, url: Option<&str>) {
    let job = |n: usize| json!({"id": format!("{prefix}{n}"), "body": n, "url": url});
    let jobs: Vec<Value> = (0..jobs).map(job).collect();
    let answer =
        http.ask("POST", &format!("/v1/topics/{topic}/jobs/batch"), &json!({ "jobs": jobs })).is(200);
    assert!(answer["results"].as_array().unwrap().iter().all(|one| one["status"] == 201), "{answer}");
}

/// Returns when the calls of a sink came, in Unix milliseconds, the earliest first.
fn times(sink: &Sink) -> Vec<i64> {
    let mut times: Vec<i64> = sink.calls().iter().map(|call| call.at_ms).collect();
    times.sort_unstable();
    times
}

#[test]
fn a_host_at_its_limit_holds_up_no_job_of_another_host() {
    const TOOK: Duration = Duration::from_millis(120);
    let slow = Sink::answering(|_| HandlerAnswer::new(200, "ok").after(TOOK));
    let (quick, other) = (Sink::start(), Sink::start());
    let daemon = Daemon::start(&format!(
        "[consume]\nprocesses = 2\nconcurrency = 4\n{}{}{}[[callback.host]]\nname = \"{}\"\nmax_in_flight = 1\n",
        topic("t", &quick, &format!("job_hosts = [\"{}\"]", slow.address)),
        topic("own", &slow, ""),
        topic("other", &other, ""),
        slow.address
    ));
    let mut http = Http::tcp(&daemon);
    // Jobs of two topics go to the slow host. In one of these topics, further jobs for another host wait behind the
    // jobs for the slow host.
    add_many(&mut http, "t", "slow", 25, Some(&slow.url()));
    add_many(&mut http, "own", "own", 15, None);
    add_many(&mut http, "t", "quick", 50, None);
    add_many(&mut http, "other", "other", 50, None);
    quick.wait_for(50, 10 * SECOND);
    other.wait_for(50, 10 * SECOND);
    assert!(slow.count() < 30, "the slow host had {} calls before the others were done", slow.count());
    slow.wait_for(40, 60 * SECOND);
    let times = times(&slow);
    let shortest = times.windows(2).map(|two| two[1] - two[0]).min().unwrap();
    assert!(shortest >= TOOK.as_millis() as i64 - 5, "two calls within {shortest} ms");
    assert!(slow.calls().iter().chain(&quick.calls()).all(|call| call.header("dq-attempt") == "1"));
    assert_eq!((times.len(), slow.deliveries().len()), (40, 40));
    eventually(10 * SECOND, "the end of all jobs", || {
        let stats = http.get("/v1/stats").is(200);
        let left = |one: &Value| ["delayed", "ready", "leased", "dead"].iter().all(|state| one[*state] == 0);
        stats["topics"].as_array().unwrap().iter().all(left).then_some(())
    });
}

#[test]
fn the_rate_of_a_host_holds_for_all_its_topics_together() {
    let (sink, quick) = (Sink::start(), Sink::start());
    let daemon = Daemon::start(&format!(
        "{}{}[[callback.host]]\nname = \"{}\"\nrate = \"20/s\"\n",
        topic("t", &quick, &format!("job_hosts = [\"{}\"]", sink.address)),
        topic("own", &sink, ""),
        sink.address
    ));
    let mut http = Http::tcp(&daemon);
    add_many(&mut http, "t", "a", 30, Some(&sink.url()));
    add_many(&mut http, "own", "b", 30, None);
    add_many(&mut http, "t", "quick", 30, None);
    quick.wait_for(30, 5 * SECOND);
    sink.wait_for(60, 30 * SECOND);
    // The rate gives 20 permits in a second. A few more permits may be left from the time before.
    let times = times(&sink);
    let most = times.iter().map(|at| times.iter().filter(|t| (*at..at + 1000).contains(t)).count()).max();
    assert!(most.unwrap() <= 24, "{most:?} calls in a second");
    assert_eq!((times.len(), sink.deliveries().len()), (60, 60));
}

#[test]
fn a_backlog_of_a_host_at_its_limit_is_passed_quickly() {
    let slow = Sink::answering(|_| HandlerAnswer::new(200, "ok").after(Duration::from_millis(500)));
    let quick = Sink::start();
    let daemon = Daemon::start(&format!(
        "{}[[callback.host]]\nname = \"{}\"\nmax_in_flight = 2\n",
        topic("t", &quick, &format!("job_hosts = [\"{}\"]", slow.address)),
        slow.address
    ));
    let mut http = Http::tcp(&daemon);
    add_many(&mut http, "t", "slow", 3000, Some(&slow.url()));
    add_many(&mut http, "t", "quick", 20, None);
    quick.wait_for(20, 10 * SECOND);
    // Nearly all jobs of the slow host are postponed, and not leased again and again.
    let stats = http.get("/v1/stats").is(200);
    assert!(stats["topics"][0]["delayed"].as_u64().unwrap() > 2500, "{stats}");
    let before = slow.count();
    slow.wait_for(before + 6, 10 * SECOND);
    assert!(slow.calls().iter().all(|call| call.header("dq-attempt") == "1"));
}

#[test]
fn a_job_says_which_limit_holds_it_back() {
    let (sink, limited) = (Sink::start(), Sink::start());
    let daemon = Daemon::start(&format!(
        "{}{}{}[[callback.host]]\nname = \"{}\"\nrate = \"6/m\"\n",
        topic("t", &sink, &format!("job_hosts = [\"{}\"]", limited.address)),
        topic("rated", &sink, "rate = \"6/m\"\n"),
        topic("own", &limited, ""),
        limited.address
    ));
    let mut http = Http::tcp(&daemon);
    add_many(&mut http, "rated", "r", 3, None);
    add_many(&mut http, "own", "o", 3, None);
    add_many(&mut http, "t", "t", 3, Some(&limited.url()));
    // Finds a job of a topic that has `code` as its first reason to wait. Returns all that the API says about the
    // waiting.
    let mut waits = |topic: &str, state: &str, code: &str| {
        eventually(10 * SECOND, code, || {
            let jobs = http.get(&format!("/v1/topics/{topic}/jobs?state={state}")).is(200)["jobs"].clone();
            jobs.as_array().unwrap().iter().find_map(|job| {
                let job = http.get(&format!("/v1/topics/{topic}/jobs/{}", job["id"].as_str().unwrap()));
                (job.json["waiting"]["code"] == code).then(|| job.json["waiting"].clone())
            })
        })
    };
    let rated = waits("rated", "ready", "rate");
    let next_ms = rated["next_ms"].as_i64().unwrap() - now_ms();
    assert!((-1000..=10_000).contains(&next_ms), "{rated}");
    assert!(rated["text"].as_str().unwrap().starts_with("the rate of the topic, 6/m, lets"), "{rated}");
    let own = waits("own", "ready", "host_limit");
    assert_eq!((&own["host"], &own["limit"]), (&json!(limited.address.to_string()), &json!("rate = 6/m")));
    // A job with its own URL is postponed.
    let postponed = waits("t", "delayed", "not_due");
    assert_eq!(postponed["also"][0]["code"], "host_limit", "{postponed}");
}
