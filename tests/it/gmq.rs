//! The port for clients of gmq-redis: push, pop and ack, as these clients send them.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use crate::support::http::Http;
use crate::support::{Daemon, SECOND, SLOTS, all_new, eventually, free_port};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

/// A daemon with a port for clients of gmq-redis.
struct Gmq {
    daemon: Daemon,
    port: u16,
}

impl Gmq {
    fn start(section: &str, more: &str) -> Gmq {
        let port = free_port();
        let topics: String = ["a", "b"]
            .map(|name| format!("[[topic]]\nname = \"{name}\"\nmode = \"pull\"\nmax_attempts = 100\n"))
            .concat();
        let text = format!("[gmq]\nlisten = \"127.0.0.1:{port}\"\n{section}\n{more}\n{topics}");
        Gmq { daemon: Daemon::start(&text), port }
    }

    fn client(&self) -> Client {
        let stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        stream.set_read_timeout(Some(20 * SECOND)).unwrap();
        Client { lines: BufReader::new(stream) }
    }
}

struct Client {
    lines: BufReader<TcpStream>,
}

impl Client {
    fn send(&mut self, text: &str) {
        self.lines.get_mut().write_all(text.as_bytes()).unwrap();
    }

    /// Returns the next line. Empty: the connection is closed.
    fn line(&mut self) -> String {
        let mut line = String::new();
        self.lines.read_line(&mut line).unwrap();
        line
    }

    fn call(&mut self, method: &str, params: &Value) -> Value {
        self.send(&json!({"method": format!("Service.{method}"), "params": params, "id": 1}).to_string());
        serde_json::from_str(&self.line()).unwrap()
    }

    fn push(&mut self, topic: &str, id: &str, delay: u32, ttr: u32) {
        let job = json!({"id": id, "topic": topic, "body": "x", "delay": delay.to_string(), "TTR": ttr.to_string()});
        assert_eq!(self.call("Push", &json!([job])), json!({"id": 1, "result": "success", "error": null}));
    }

    fn pop(&mut self, topics: &[&str]) -> Value {
        let answer = self.call("Pop", &json!([topics]));
        assert_eq!(answer["error"], Value::Null, "{answer}");
        answer["result"].clone()
    }

    fn ack(&mut self, id: &str) -> Value {
        self.call("Ack", &json!([id]))
    }

    fn is_acked(&mut self, id: &str) {
        assert_eq!(self.ack(id), json!({"id": 1, "result": true, "error": null}));
    }

    fn is_empty(&mut self, topics: &[&str]) {
        assert_eq!(self.call("Pop", &json!([topics]))["error"], "empty");
    }
}

#[test]
fn conversations_go_as_with_gmq_redis() {
    let gmq = Gmq::start("", "[[topic]]\nname = \"push\"\ncallback = \"http://127.0.0.1:9/\"\n");
    let mut client = gmq.client();
    let push = |job: &str| format!(r#"{{"method":"Service.Push","params":[{job}],"id":7}}"#);
    let ok = r#"{"id":7,"result":"success","error":null}"#;
    let failed = |why: &str| format!(r#"{{"id":7,"result":null,"error":"{why}"#);
    let job = r#"{"TTR":"9","body":"{\"a\":\"é\"}","consume_num":"0","delay":"0","id":"1","status":"3","topic":"a"}"#;
    for (sent, answer) in [
        (push(r#"{"id":"1","topic":"a","body":"{\"a\":\"é\"}","delay":"0","TTR":"9"}"#), ok.to_owned()),
        (push(r#"{"id":"1","topic":"a","body":"y","delay":"0","TTR":"9"}"#), failed("job \\\"1\\\" exists already in topic a")),
        (push(r#"{"id":2,"topic":"b","body":5,"delay":0,"TTR":0}"#), ok.to_owned()),
        (push(r#"{"id":"3","topic":"none","body":"y","delay":"0","TTR":"9"}"#), failed("topic none is not registered: add it")),
        (push(r#"{"id":"3","topic":"push","body":"y","delay":"0","TTR":"9"}"#), failed("the jobs of topic push cannot be popped")),
        (push(r#"{"id":"3","topic":"a","body":"y","delay":"0","TTR":"86401"}"#), failed("job.TTR is 86401 seconds")),
        (push(r#"{"id":"3","topic":"a","body":"y","delay":"5s","TTR":"9"}"#), failed("job.delay")),
        (r#"{"method":"Service.Pop","params":[["b","a"]],"id":7}"#.to_owned(), r#"{"id":7,"result":{"TTR":"0","body":"5","consume_num":"0","delay":"0","id":"2","status":"3","topic":"b"},"error":null}"#.to_owned()),
        (r#"{"method":"Service.Ack","params":["2"],"id":7}"#.to_owned(), failed("job \\\"2\\\" is not popped")),
        (r#"{"method":"Service.Pop","params":[["b","a"]],"id":7}"#.to_owned(), format!(r#"{{"id":7,"result":{job},"error":null}}"#)),
        (r#"{"method":"Service.Ack","params":["1"],"id":7}"#.to_owned(), r#"{"id":7,"result":true,"error":null}"#.to_owned()),
        (r#"{"method":"Service.Ack","params":["1"],"id":7}"#.to_owned(), failed("job \\\"1\\\" is not popped")),
        (r#"{"method":"Service.Pop","params":[["push"]],"id":7}"#.to_owned(), failed("the jobs of topic push cannot be popped")),
        (r#"{"method":"Service.Pop","params":[["none"]],"id":7}"#.to_owned(), failed("topic none is not registered")),
        (r#"{"method":"Service.None","params":[],"id":7}"#.to_owned(), failed("rpc: can't find method Service.None")),
    ] {
        client.send(&sent);
        let line = client.line();
        assert!(line.starts_with(&answer), "{sent}\n{line}");
    }
    client.send("GET / HTTP/1.1\r\n\r\n");
    assert_eq!(client.line(), "", "the connection is closed");
}

#[test]
fn the_order_of_topics_is_their_priority() {
    let gmq = Gmq::start("", "");
    let mut client = gmq.client();
    for (topic, id) in [("a", "1"), ("b", "2"), ("a", "3")] {
        client.push(topic, id, 0, 60);
    }
    let mut topic = |topics: &[&str]| client.pop(topics)["topic"].as_str().unwrap().to_owned();
    assert_eq!([topic(&["b", "a"]), topic(&["b", "a"]), topic(&["b", "a"])], ["b", "a", "a"]);
}

#[test]
fn a_pop_waits_two_seconds_and_delays_no_other_call() {
    let gmq = Gmq::start("", "");
    let mut client = gmq.client();
    let begun = Instant::now();
    client.is_empty(&["a"]);
    assert!((2 * SECOND..6 * SECOND).contains(&begun.elapsed()), "{:?}", begun.elapsed());
    client.send(r#"{"method":"Service.Pop","params":[["a"]],"id":"pop"}"#);
    client.push("a", "1", 0, 60);
    let popped: Value = serde_json::from_str(&client.line()).unwrap();
    assert_eq!((&popped["id"], &popped["result"]["id"]), (&json!("pop"), &json!("1")));
}

#[test]
fn no_delay_and_no_ttr_ends_early() {
    let gmq = Gmq::start("", "");
    let mut client = gmq.client();
    let pushed = Instant::now();
    client.push("a", "1", 1, 2);
    let job = client.pop(&["a"]);
    assert!(pushed.elapsed() >= SECOND, "{:?}", pushed.elapsed());
    assert_eq!((&job["delay"], &job["TTR"], &job["consume_num"]), (&json!("1"), &json!("2"), &json!("0")));
    for times in 1..3 {
        let begun = Instant::now();
        let again = eventually(10 * SECOND, "the job again", || {
            Some(client.call("Pop", &json!([["a"]]))["result"].clone()).filter(|job| !job.is_null())
        });
        // The earlier lease of the job began less than 100 milliseconds before `begun`. So the bound is 1.9 s.
        let took = begun.elapsed();
        assert!((SECOND + 900 * MS..6 * SECOND).contains(&took), "{took:?}");
        assert_eq!(again["consume_num"], times.to_string());
    }
    let over = Instant::now() + 2 * SECOND + 500 * MS;
    eventually(10 * SECOND, "the end of the TTR", || (Instant::now() > over).then_some(()));
    assert!(client.ack("1")["error"].as_str().unwrap().contains("its TTR ran out"));
    client.pop(&["a"]);
    client.is_acked("1");
    client.is_empty(&["a"]);
}

const MS: Duration = Duration::from_millis(1);

#[test]
fn a_client_may_send_many_calls_ahead() {
    const CALLS: u64 = 700;
    let gmq = Gmq::start("", "");
    let mut client = gmq.client();
    // The calls together are longer than the memory that a client may have for incomplete requests.
    let mut sender = client.lines.get_ref().try_clone().unwrap();
    let sends = std::thread::spawn(move || {
        let long = "x".repeat(60_000);
        for id in 0..CALLS {
            let call = json!({"method": "Service.No", "params": [long], "id": id}).to_string();
            if sender.write_all(call.as_bytes()).is_err() {
                return;
            }
        }
    });
    for id in 0..CALLS {
        let line = client.line();
        let answer: Value = serde_json::from_str(&line).unwrap_or_else(|e| panic!("{e}: {line:?} for {id}"));
        assert_eq!(answer["id"], id);
    }
    sends.join().unwrap();
    // An id stays in memory until the answer, so it may not be long.
    client.send(&json!({"method": "Service.Pop", "params": [["a"]], "id": "x".repeat(1000)}).to_string());
    assert_eq!(client.line(), "");
}

#[test]
fn the_last_pop_of_an_id_decides_what_an_ack_means() {
    let gmq = Gmq::start("", "");
    let (mut client, mut other) = (gmq.client(), gmq.client());
    client.push("a", "1", 0, 60);
    client.push("b", "1", 0, 60);
    client.pop(&["a"]);
    client.pop(&["b"]);
    other.is_acked("1");
    let mut http = Http::tcp(&gmq.daemon);
    http.get("/v1/topics/b/jobs/1").is_problem(404, "not_found", None);
    let left = http.get("/v1/topics/a/jobs/1").is(200);
    assert_eq!((&left["body"], &left["ttr_ms"]), (&json!("x"), &json!(60_000)));
}

#[test]
fn a_client_that_goes_away_takes_no_job_with_it() {
    let gmq = Gmq::start("", "");
    let mut client = gmq.client();
    for n in 0..20 {
        let mut waiting = gmq.client();
        waiting.send(r#"{"method":"Service.Pop","params":[["a"]],"id":1}"#);
        let id = n.to_string();
        // The answer to another call shows that the pop has begun.
        waiting.ack("none");
        drop(waiting);
        // Until dq has seen the end of the connection, it may still give a job to this client.
        client.push("a", &id, 0, 60);
        let job = client.pop(&["a"]);
        assert_eq!(job["id"], id);
        client.is_acked(&id);
    }
}

#[test]
fn a_restart_loses_no_job_and_no_ack() {
    let gmq = Gmq::start("", "");
    let mut client = gmq.client();
    client.push("a", "1", 0, 60);
    client.pop(&["a"]);
    client.push("a", "2", 0, 0);
    let before = gmq.daemon.wait_all_up(SLOTS);
    let mut waiting = gmq.client();
    waiting.send(r#"{"method":"Service.Pop","params":[["b"]],"id":1}"#);
    waiting.ack("none");
    gmq.daemon.signal(Signal::SIGUSR2);
    assert!(waiting.line().contains("empty"));
    assert_eq!((client.line(), waiting.line()), (String::new(), String::new()), "connections are closed");
    let mut client = gmq.client();
    client.is_acked("1");
    assert_eq!(client.pop(&["a"])["id"], "2");
    all_new(&gmq.daemon, &before);
    client = gmq.client();
    client.is_empty(&["a"]);
}

#[test]
fn scopes_and_places_bound_what_clients_do() {
    let section =
        "scopes = [\"produce:a\", \"consume:b\"]\nmax_connections_per_source = 2\nidle_timeout = \"3s\"";
    let gmq = Gmq::start(section, "");
    let (mut client, mut second) = (gmq.client(), gmq.client());
    client.push("a", "1", 0, 60);
    let refused = client.call("Pop", &json!([["a"]]));
    assert_eq!(refused["error"], "gmq.scopes does not permit consume:a");
    let refused = second.call("Push", &json!([{"id": "1", "topic": "b"}]));
    assert_eq!(refused["error"], "gmq.scopes does not permit produce:b");
    let mut third = gmq.client();
    assert_eq!(third.line(), "", "it is closed at once");
    let idle = Instant::now();
    assert_eq!(second.line(), "");
    assert!(idle.elapsed() >= SECOND, "{:?}", idle.elapsed());
}

#[test]
fn a_topic_that_removes_is_popped_as_with_ttr_0() {
    let plain = "[[topic]]\nname = \"plain\"\nmode = \"pull\"\non_reserve = \"remove\"\n";
    let gmq = Gmq::start("", plain);
    let (mut client, mut http) = (gmq.client(), Http::tcp(&gmq.daemon));
    client.push("plain", "1", 0, 60);
    let popped = client.pop(&["a", "plain"]);
    assert_eq!((&popped["id"], &popped["TTR"], &popped["body"]), (&json!("1"), &json!("0"), &json!("x")));
    http.get("/v1/topics/plain/jobs/1").is_problem(404, "not_found", None);
    assert!(client.ack("1")["error"].as_str().unwrap().contains("not popped"));
    client.is_empty(&["plain"]);
}
