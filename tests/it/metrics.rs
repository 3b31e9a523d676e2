//! The counters: `/metrics` and the statistics of days agree with the work of a run, even if processes were killed or
//! replaced.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::support::mariadb::MariaDb;
use crate::support::redis::RedisServer;
use crate::support::{Daemon, SECOND, SLOTS, Sink, add, all_new, eventually, on_redis, pending, topic};
use cli::HandlerAnswer;
use model::metrics::AddOutcome;
use nix::libc;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, fork};
use serde_json::{Value, json};
use telemetry::counters::Counters;

/// Sends a request. Returns status, head and body of the answer.
fn ask(daemon: &Daemon, request: &str, body: &Value) -> Option<(u16, String, String)> {
    let mut stream = UnixStream::connect(daemon.dir.path().join("var/run/http.sock")).ok()?;
    stream.set_read_timeout(Some(20 * SECOND)).ok()?;
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let length = body.len();
    write!(
        stream,
        "{request} HTTP/1.1\r\nHost: dq\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{body}"
    )
    .ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    let status = head.split(' ').nth(1)?.parse().ok()?;
    Some((status, head.to_owned(), body.to_owned()))
}

pub fn page(daemon: &Daemon) -> String {
    eventually(10 * SECOND, "a page of metrics", || {
        let (status, head, body) = ask(daemon, "GET /metrics", &Value::Null)?;
        assert!(head.contains("text/plain; version=0.0.4"), "{head}");
        (status == 200).then_some(body)
    })
}

/// Returns the values of the page, by their names with labels.
pub fn samples(page: &str) -> BTreeMap<String, f64> {
    let sample = |line: &str| {
        let (name, value) = line.rsplit_once(' ').unwrap();
        (name.to_owned(), value.parse().unwrap())
    };
    page.lines().filter(|l| !l.starts_with('#')).map(sample).collect()
}

/// Waits until the page has all these values.
fn eventually_says(daemon: &Daemon, what: &str, wanted: &[(&str, f64)]) {
    let mut missed = String::new();
    let until = Instant::now() + 10 * SECOND;
    while Instant::now() < until {
        let samples = samples(&page(daemon));
        let wrong = wanted.iter().filter(|(name, n)| samples.get(*name).copied().unwrap_or(0.0) != *n);
        let wrong: Vec<_> = wrong.map(|(name, n)| (name, n, samples.get(*name))).collect();
        if wrong.is_empty() {
            return;
        }
        missed = format!("{wrong:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
    panic!("{what}: {missed}; log:\n{}", daemon.log());
}

/// Starts a sink that accepts, fails or refuses as a job's id says, and a daemon that makes two attempts for a job.
fn start() -> (Sink, Daemon) {
    start_with("")
}

fn start_with(sections: &str) -> (Sink, Daemon) {
    let sink = Sink::answering(|call| match call.header("dq-job-id").as_bytes()[0] {
        b'f' => HandlerAnswer::new(500, "no"),
        b'g' => HandlerAnswer::new(410, "gone"),
        _ => HandlerAnswer::new(200, "ok"),
    });
    let more = "retry = [\"10ms\"]\nmax_attempts = 2\ntimeout = \"20s\"";
    let daemon = Daemon::start(&format!("[timer]\nprocesses = 2\n{sections}{}", topic("t", &sink, more)));
    (sink, daemon)
}

/// Plays one round. 20 jobs are accepted. 3 jobs fail twice and become dead letters. 2 jobs are refused and become dead
/// letters. 3 jobs wait and are deleted.
fn round(daemon: &Daemon, n: usize) {
    let mut client = daemon.client();
    let mut take = |request: &Value, code: i64| {
        let answer = client.ask(request).unwrap();
        assert_eq!(answer["code"], code, "{request}: {answer}");
    };
    for i in 0..20 {
        take(&add("t", &format!("a{n}-{i}"), 0), 1);
    }
    (0..3).for_each(|i| take(&add("t", &format!("f{n}-{i}"), 0), 1));
    (0..2).for_each(|i| take(&add("t", &format!("g{n}-{i}"), 0), 1));
    for i in 0..2 {
        take(&add("t", &format!("d{n}-{i}"), 3_600_000), 1);
        take(&add("t", &format!("d{n}-{i}"), 3_600_000), 1);
        take(&json!({"cmd": "del", "topic": "t", "id": format!("d{n}-{i}")}), 1);
    }
    take(&json!({"cmd": "del", "topic": "t", "id": "none"}), 0);
    take(&add("unknown", "x", 0), 0);
    let job = json!({"id": format!("d{n}-http"), "body": 1, "delay": "1h"});
    assert_eq!(ask(daemon, "POST /v1/topics/t/jobs", &job).unwrap().0, 201);
    assert_eq!(ask(daemon, &format!("DELETE /v1/topics/t/jobs/d{n}-http"), &Value::Null).unwrap().0, 204);
    eventually(20 * SECOND, "an empty store", || (pending(&mut client, "t") == 0).then_some(()));
}

/// Checks that the page agrees with `rounds` rounds.
fn agrees(daemon: &Daemon, rounds: usize, what: &str) {
    let n = rounds as f64;
    eventually_says(
        daemon,
        what,
        &[
            ("dq_adds_total{topic=\"t\",outcome=\"new\"}", 28.0 * n),
            ("dq_adds_total{topic=\"t\",outcome=\"replaced\"}", 2.0 * n),
            ("dq_adds_total{topic=\"(other)\",outcome=\"refused\"}", n),
            ("dq_deletes_total{topic=\"t\",outcome=\"deleted\"}", 3.0 * n),
            ("dq_deletes_total{topic=\"t\",outcome=\"not_found\"}", n),
            ("dq_attempts_total{topic=\"t\",outcome=\"accepted\",code_class=\"2xx\"}", 20.0 * n),
            ("dq_attempts_total{topic=\"t\",outcome=\"failed\",code_class=\"5xx\"}", 6.0 * n),
            ("dq_attempts_total{topic=\"t\",outcome=\"refused\",code_class=\"4xx\"}", 2.0 * n),
            ("dq_deliveries_total{topic=\"t\"}", 20.0 * n),
            ("dq_retries_total{topic=\"t\"}", 3.0 * n),
            ("dq_dead_letters_total{topic=\"t\",cause=\"callback\"}", 5.0 * n),
            ("dq_schedule_lateness_seconds_count{topic=\"t\"}", 28.0 * n),
            ("dq_attempt_duration_seconds_count{topic=\"t\"}", 28.0 * n),
            ("dq_jobs{topic=\"t\",state=\"dead\"}", 5.0 * n),
            ("dq_jobs{topic=\"t\",state=\"ready\"}", 0.0),
        ],
    );
}

/// Returns promtool, which `make tools` installs.
pub fn promtool() -> Command {
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/tools/prometheus/usr/bin/promtool");
    Command::new(if own.exists() { own.as_path() } else { Path::new("promtool") })
}

#[test]
fn the_metrics_page_is_correct_after_kills_and_restarts() {
    let (_sink, daemon) = start();
    daemon.wait_all_up(SLOTS);
    round(&daemon, 0);
    agrees(&daemon, 1, "at first");
    for (n, child) in ["dq-consume-0", "dq-consume-1", "dq-server", "dq-http-server"].into_iter().enumerate()
    {
        daemon.kill_child(child);
        daemon.wait_ready();
        daemon.wait_all_up(SLOTS);
        round(&daemon, n + 1);
        agrees(&daemon, n + 2, &format!("after {child} was killed"));
    }
    let before = daemon.wait_all_up(SLOTS);
    daemon.signal(Signal::SIGUSR2);
    // Two generations work at the same time.
    round(&daemon, 5);
    all_new(&daemon, &before);
    agrees(&daemon, 6, "after USR2");
    round(&daemon, 6);
    daemon.signal(Signal::SIGTTOU);
    eventually(10 * SECOND, "one consumer", || (daemon.children().len() == SLOTS - 1).then_some(()));
    agrees(&daemon, 7, "with a consumer less");
    let said = samples(&page(&daemon));
    assert_eq!(said["dq_process_restarts_total{slot=\"dq-server\"}"], 1.0);
    assert_eq!(said[&format!("dq_build_info{{version=\"{}\"}}", env!("CARGO_PKG_VERSION"))], 1.0);
    assert!(said.contains_key("dq_processes{slot=\"dq-timer-0\",state=\"up\"}"), "{said:?}");
    let node = if on_redis() { "r0" } else { "embedded" };
    assert_eq!(said[&format!("dq_store_up{{node=\"{node}\"}}")], 1.0);
    assert!(said[&format!("dq_store_latency_seconds_count{{node=\"{node}\",operation=\"settle\"}}")] > 0.0);
    if !on_redis() {
        assert_eq!(said["dq_node_written_total{node=\"embedded\"}"], 210.0);
        assert_eq!(said["dq_node_delivered_total{node=\"embedded\"}"], 140.0);
        assert_eq!(said["dq_node_deleted_total{node=\"embedded\"}"], 21.0);
    }
}

#[test]
fn a_job_added_after_its_due_time_is_late_from_its_add() {
    let (sink, daemon) = start();
    let mut client = daemon.client();
    // Both jobs are due in 2019. The job that fails is tried again 10 ms later.
    for id in ["a-old", "f-old"] {
        let job = json!({"cmd": "add", "topic": "t", "id": id, "body": {}, "run_at": 1_551_398_400_000_i64});
        assert_eq!(client.ask(&job).unwrap()["code"], 1);
    }
    // If a change gives a due time in the past, the job is due now.
    assert_eq!(client.ask(&add("t", "a-changed", 3_600_000)).unwrap()["code"], 1);
    let changed = json!({"run_at": 1_551_398_400_000_i64});
    assert_eq!(ask(&daemon, "PATCH /v1/topics/t/jobs/a-changed", &changed).unwrap().0, 204);
    eventually(20 * SECOND, "four calls", || (sink.calls().len() == 4).then_some(()));
    eventually_says(
        &daemon,
        "four attempts, which are not years late",
        &[
            ("dq_schedule_lateness_seconds_count{topic=\"t\"}", 4.0),
            ("dq_schedule_lateness_seconds_bucket{topic=\"t\",le=\"30.0\"}", 4.0),
        ],
    );
    let said = samples(&page(&daemon));
    assert!(said["dq_schedule_lateness_seconds_sum{topic=\"t\"}"] < 60.0, "{said:?}");
    let buckets = said.keys().filter(|name| name.starts_with("dq_schedule_lateness_seconds_bucket"));
    assert_eq!(buckets.count(), 23, "the bounds that are shown, and +Inf");
    // The API and `dq status` show the same values.
    let (_, _, body) = ask(&daemon, "GET /v1/stats?lateness=true", &Value::Null).unwrap();
    let stats: Value = serde_json::from_str(&body).unwrap();
    let ranges = stats["topics"][0]["lateness"].as_array().unwrap();
    assert_eq!(ranges.iter().map(|range| range["attempts"].as_u64().unwrap()).sum::<u64>(), 4, "{body}");
    assert!(ranges.iter().all(|range| range["up_to_us"].as_u64().unwrap() <= 30_000_000), "{body}");
    let shown = daemon.status().unwrap();
    let p99_ms = shown["topics"][0]["late_p99_ms"].as_f64().unwrap();
    let last_us = ranges.last().unwrap()["up_to_us"].as_u64().unwrap() as f64;
    assert!((last_us * 0.9..=last_us).contains(&(p99_ms * 1000.0)), "{p99_ms} ms, {body}");
    assert_eq!(ask(&daemon, "GET /v1/stats?lateness=yes", &Value::Null).unwrap().0, 422);
}

#[test]
fn the_page_is_as_prometheus_wants_it() {
    let (_sink, daemon) = start();
    round(&daemon, 0);
    agrees(&daemon, 1, "at first");
    let page = page(&daemon);
    let mut check = promtool()
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("promtool, which `make tools` gets");
    check.stdin.take().unwrap().write_all(page.as_bytes()).unwrap();
    let said = check.wait_with_output().unwrap();
    let (out, err) = (String::from_utf8_lossy(&said.stdout), String::from_utf8_lossy(&said.stderr));
    assert!(said.status.success() && out.is_empty() && err.is_empty(), "{out}{err}\n{page}");
    let open = "GET /metrics HTTP/1.1\r\nAccept: application/openmetrics-text;version=1.0.0\r\nX: ";
    let (_, head, body) = ask(&daemon, open, &Value::Null).unwrap();
    assert!(head.contains("application/openmetrics-text; version=1.0.0"), "{head}");
    assert!(body.ends_with("# EOF\n") && body.contains("# TYPE dq_adds counter\n"), "{body}");
}

#[test]
fn kills_lose_no_count_of_an_add_and_invent_no_counts() {
    let (sink, daemon) = start();
    let mut taken = 0;
    for n in 0..4 {
        let mut client = daemon.client();
        let batch: Vec<_> = (0..500).map(|i| add("t", &format!("a{n}-{i}"), 0)).collect();
        client.send(&batch).unwrap();
        for i in 0..batch.len() {
            match client.receive() {
                Ok(answer) if answer["code"] == 1 => taken += 1,
                _ => break,
            }
            if i == 50 + 100 * n {
                kill(daemon.child(["dq-server", "dq-consume-0"][n % 2]), Signal::SIGKILL).unwrap();
            }
        }
        daemon.wait_ready();
    }
    let mut client = daemon.client();
    eventually(30 * SECOND, "an empty store", || (pending(&mut client, "t") == 0).then_some(()));
    let said = samples(&page(&daemon));
    let (added, delivered) =
        (said["dq_adds_total{topic=\"t\",outcome=\"new\"}"], said["dq_deliveries_total{topic=\"t\"}"]);
    let arrived = sink.deliveries().len() as f64;
    println!("{taken} taken, {added} counted, {arrived} arrived, {delivered} counted");
    assert!(f64::from(taken) <= added && added <= arrived && delivered <= arrived);
}

/// Returns a topic's totals in the statistics, and the sums over its days.
fn totals(daemon: &Daemon) -> Option<[Value; 2]> {
    let (status, _, body) = ask(daemon, "GET /v1/stats?days=2", &Value::Null)?;
    assert_eq!(status, 200, "{body}");
    let all: Value = serde_json::from_str(&body).unwrap();
    let topic = all["topics"].as_array()?.iter().find(|t| t["topic"] == "t")?.clone();
    let days = topic["days"].as_array()?;
    let fields = ["written", "delivered", "failed", "deleted", "dead", "attempts"];
    let sum = |field: &str| days.iter().filter_map(|day| day[field].as_u64()).sum::<u64>();
    let of_days: serde_json::Map<_, _> = fields.iter().map(|f| ((*f).to_owned(), json!(sum(f)))).collect();
    let of_all: serde_json::Map<_, _> =
        fields.iter().map(|f| ((*f).to_owned(), topic["totals"][f].clone())).collect();
    Some([of_all.into(), of_days.into()])
}

#[test]
fn daily_statistics_are_correct_although_the_checker_is_killed() {
    if on_redis() {
        // Without a database there are no statistics.
        return;
    }
    let (_sink, mut daemon) = start();
    let says = |daemon: &Daemon, rounds: u64| {
        let sums = json!({"written": 30 * rounds, "delivered": 20 * rounds, "failed": 8 * rounds,
            "deleted": 3 * rounds, "dead": 5 * rounds, "attempts": 28 * rounds});
        eventually(20 * SECOND, &format!("{sums}; log:\n{}", daemon.log()), || {
            let [all, days] = totals(daemon)?;
            assert!(all["written"].as_u64() <= sums["written"].as_u64(), "{all}");
            (all == sums && days == sums).then_some(())
        });
    };
    round(&daemon, 0);
    says(&daemon, 1);
    for n in 1..3 {
        round(&daemon, n);
        daemon.kill_child("dq-redis-checke");
    }
    says(&daemon, 3);
    // Counts from the last moments of the daemon are stored when the daemon ends, or after its next start.
    round(&daemon, 3);
    daemon.stop();
    let daemon = Daemon::again(&daemon);
    daemon.wait_ready();
    says(&daemon, 4);
    let (_, _, body) = ask(&daemon, "GET /v1/stats?days=1", &Value::Null).unwrap();
    let all: Value = serde_json::from_str(&body).unwrap();
    assert_eq!(all["nodes"][0]["node"], "embedded");
    assert_eq!(all["nodes"][0]["totals"]["written"], 120);
    for wrong in ["0", "367", "x"] {
        let (status, _, body) = ask(&daemon, &format!("GET /v1/stats?days={wrong}"), &Value::Null).unwrap();
        assert!(status == 422 && body.contains("days"), "{body}");
    }
}

#[test]
fn statistics_wait_while_the_database_is_away_and_arrive_later() {
    let server = MariaDb::start();
    let database = server.database();
    let (_sink, daemon) = start_with(&format!("[registry]\nurl = \"{}\"\n", database.url()));
    let carried = |rounds: u64| {
        eventually(40 * SECOND, &format!("{rounds} rounds; log:\n{}", daemon.log()), || {
            let (status, _, body) = ask(&daemon, "GET /v1/stats?days=1", &Value::Null)?;
            let all: Value = serde_json::from_str(&body).unwrap();
            let topic = all["topics"].as_array()?.iter().find(|t| t["topic"] == "t")?;
            (status == 200
                && topic["totals"]["written"] == 30 * rounds
                && topic["totals"]["dead"] == 5 * rounds)
                .then_some(())
        });
    };
    round(&daemon, 0);
    carried(1);
    server.kill();
    round(&daemon, 1);
    let (status, _, body) = ask(&daemon, "GET /v1/stats?days=1", &Value::Null).unwrap();
    assert!(status == 503 && body.contains("registry_away"), "{status} {body}");
    assert_eq!(ask(&daemon, "GET /v1/stats", &Value::Null).unwrap().0, 200);
    eventually(20 * SECOND, "a word on it", || {
        daemon.log().contains("statistics wait in run_dir/metrics").then_some(())
    });
    daemon.kill_child("dq-redis-checke");
    server.start_again();
    round(&daemon, 2);
    carried(3);
}

#[test]
fn with_a_node_away_or_hung_the_page_is_told_without_it() {
    let mut nodes = [RedisServer::start(), RedisServer::start()];
    let node = |(n, server): (usize, &RedisServer)| {
        format!("[[store.node]]\nname = \"own{n}\"\nurl = \"{}\"\n", server.url())
    };
    let store: String = nodes.iter().enumerate().map(node).collect();
    let (_sink, daemon) = start_with(&format!("[store]\nbackend = \"redis\"\n{store}"));
    round(&daemon, 0);
    agrees(&daemon, 1, "with both");
    let up = |n: f64| [("dq_store_up{node=\"own0\"}", 1.0), ("dq_store_up{node=\"own1\"}", n)];
    eventually_says(&daemon, "both are up", &up(1.0));
    nodes[1].hang(true);
    eventually_says(&daemon, "one hangs", &up(0.0));
    eventually_says(&daemon, "what was counted", &[("dq_deliveries_total{topic=\"t\"}", 20.0)]);
    nodes[1].hang(false);
    eventually_says(&daemon, "it goes on", &up(1.0));
    nodes[1].kill();
    eventually_says(&daemon, "one is dead", &up(0.0));
    eventually_says(&daemon, "what was counted", &[("dq_deliveries_total{topic=\"t\"}", 20.0)]);
}

#[test]
fn counting_costs_some_nanoseconds_and_no_system_call() {
    let dir = tempfile::tempdir().unwrap();
    let counters = Counters::open(dir.path(), "dq-server");
    let names: Vec<String> = (0..100).map(|n| format!("some-topic-{n}")).collect();
    names.iter().for_each(|name| counters.topic(name).added(AddOutcome::New, 1));
    let count = |n: usize| {
        (0..n).for_each(|i| counters.topic(&names[i % names.len()]).added(AddOutcome::New, 1));
    };
    let begun = Instant::now();
    count(100_000);
    let each = begun.elapsed() / 100_000;
    println!("{each:?} an addition, with finding its topic among {}", names.len());
    // The bound is generous, because the build is not optimised and other tests run.
    assert!(each < Duration::from_micros(200), "{each:?}");
    // SAFETY: the child uses only the counters of this test, and ends without unwinding.
    match unsafe { fork() }.unwrap() {
        ForkResult::Child => {
            // SAFETY: the call only changes the child. From here on, all system calls except read, write and exit kill
            // the child.
            let is_strict = 0 == unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_STRICT) };
            count(1_000);
            // SAFETY: the call ends the child's only thread.
            unsafe { libc::syscall(libc::SYS_exit, i32::from(is_strict)) };
            unreachable!()
        }
        ForkResult::Parent { child } => {
            assert_eq!(waitpid(child, None), Ok(WaitStatus::Exited(child, 1)));
        }
    }
}
