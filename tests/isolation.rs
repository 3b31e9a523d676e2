//! The callbacks of one topic do not disturb the callbacks of other topics, and stay within the limits of the topic.
//! Tested with real processes and real receivers.
#![allow(missing_docs)]

#[path = "it/support/mod.rs"]
mod support;

use std::collections::HashMap;
use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard};
use std::time::{Duration, Instant};

use cli::{CallbackReceiver, HandlerAnswer, ReceivedRequest};
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use support::http::Http;
use support::redis::RedisServer;
use support::{
    Daemon, SECOND, Sink, add, all_new, eventually, in_memory, now_ms, on_redis, pending, stats, topic,
};

const MS: Duration = Duration::from_millis(1);

/// Counts how many calls a receiver handles at the same time. A call no longer counts when its caller has closed the
/// connection.
#[derive(Default)]
struct Meter {
    now: AtomicUsize,
    most: AtomicUsize,
    done: Mutex<HashMap<String, u32>>,
    /// When each call began and ended. Contains only calls that ended while the caller was still connected.
    whole: Mutex<Vec<(Instant, Instant)>>,
}

impl Meter {
    fn most(&self) -> usize {
        self.most.load(Ordering::SeqCst)
    }

    /// Returns the maximum number of calls at the same time. Only calls that ended while the caller was still connected
    /// count. (The receiver may still read a request of a killed process after the next process has begun. This request
    /// does not count.) For this count, a call ends when its answer may be sent. Its caller gets the answer a little
    /// later.
    fn most_whole(&self) -> usize {
        let whole = self.whole.lock().unwrap();
        let mut steps: Vec<(Instant, i32)> =
            whole.iter().flat_map(|(from, to)| [(*from, 1), (*to, -1)]).collect();
        steps.sort();
        let mut now = 0;
        steps
            .iter()
            .map(|(_, step)| {
                now += step;
                now
            })
            .max()
            .unwrap_or(0) as usize
    }

    fn done(&self) -> usize {
        self.done.lock().unwrap().len()
    }

    /// Starts a receiver that needs the time `takes` for each call, and accepts everything. Returns its URL.
    fn receiver(self: &Arc<Meter>, takes: Duration) -> String {
        struct There(Arc<Meter>);
        impl Drop for There {
            fn drop(&mut self) {
                self.0.now.fetch_sub(1, Ordering::SeqCst);
            }
        }
        let meter = Arc::clone(self);
        let handler = move |call: ReceivedRequest| {
            let now = meter.now.fetch_add(1, Ordering::SeqCst) + 1;
            meter.most.fetch_max(now, Ordering::SeqCst);
            let (there, id) = (There(Arc::clone(&meter)), call.header("dq-job-id").to_owned());
            let from = Instant::now();
            let then = move || {
                there.0.whole.lock().unwrap().push((from, from + takes));
                *there.0.done.lock().unwrap().entry(id.clone()).or_default() += 1;
            };
            HandlerAnswer { then: Some(Arc::new(then)), ..HandlerAnswer::new(200, "ok").after(takes) }
        };
        let receiver = CallbackReceiver::start((Ipv4Addr::LOCALHOST, 0).into(), Arc::new(handler)).unwrap();
        format!("http://{}/hook", receiver.address)
    }
}

fn calling(name: &str, url: &str, more: &str) -> String {
    format!("[[topic]]\nname = \"{name}\"\ncallback = \"{url}\"\n{more}\n")
}

/// Adds jobs that are due after `delay_ms`.
fn fill(daemon: &Daemon, topic: &str, jobs: usize, delay_ms: u64) {
    let mut client = daemon.client();
    for chunk in (0..jobs).collect::<Vec<_>>().chunks(50) {
        let requests: Vec<Value> =
            chunk.iter().map(|n| add(topic, &format!("{topic}-{n}"), delay_ms)).collect();
        client.send(&requests).unwrap();
        for _ in chunk {
            assert_eq!(client.receive().unwrap()["code"], 1);
        }
    }
}

fn field(daemon: &Daemon, topic: &str, name: &str) -> Value {
    Http::unix(daemon).get(&format!("/v1/topics/{topic}")).is(200)[name].clone()
}

/// A test that measures lateness holds the write lock, so that it runs alone.
static ALONE: RwLock<()> = RwLock::new(());

fn beside_others() -> RwLockReadGuard<'static, ()> {
    ALONE.read().unwrap_or_else(PoisonError::into_inner)
}

/// Returns how late the jobs of a round came to a sink: the 99th percentile in ms.
fn p99(sink: &Sink, round: u32) -> i64 {
    let of_round = |call: &ReceivedRequest| call.header("dq-job-id").starts_with(&format!("{round}-"));
    let calls = sink.calls();
    let mut late: Vec<i64> = calls.iter().filter(|c| of_round(c)).map(|c| c.late_ms().unwrap()).collect();
    late.sort_unstable();
    assert!(late.len() == 500 && late[0] >= 0);
    late[495]
}

/// Compares how late the jobs of a fast topic are on two daemons that run at the same time. One daemon also has the
/// backlogs of a slow receiver and of a receiver that hangs. The other daemon has no backlogs, and shows how late jobs
/// are on this machine without them.
fn a_fast_topic_beside_backlogs(start: impl Fn(&str, &str) -> Daemon) {
    let _alone = ALONE.write().unwrap_or_else(PoisonError::into_inner);
    let (slow, hangs) = (Arc::<Meter>::default(), Arc::<Meter>::default());
    let sinks = [Sink::start(), Sink::start()];
    let topics = [
        calling("slow", &slow.receiver(3 * SECOND), "timeout = \"10s\""),
        // This topic has no circuit. A circuit would help here, but this test is not about circuits.
        calling("hangs", &hangs.receiver(3600 * SECOND), "breaker_failures = 0"),
        topic("fast", &sinks[0], ""),
    ];
    let daemons = [start("busy", &topics.concat()), start("idle", &topic("fast", &sinks[1], ""))];
    fill(&daemons[0], "slow", 1000, 0);
    fill(&daemons[0], "hangs", 1000, 0);
    eventually(10 * SECOND, "both to have their share", || {
        (slow.most() >= 16 && hangs.most() >= 16).then_some(())
    });
    let mut clients = daemons.each_ref().map(Daemon::client);
    // Other work on the machine delays everything, so one good round of three is enough.
    let is_good = |round: u32| {
        let begun = Instant::now();
        for n in 0..500_u32 {
            eventually(5 * SECOND, "its turn", || (begun.elapsed() >= 20 * MS * n).then_some(()));
            for client in &mut clients {
                assert_eq!(client.ask(&add("fast", &format!("{round}-{n}"), 50)).unwrap()["code"], 1);
            }
        }
        sinks.iter().for_each(|sink| sink.wait_for(500 * (round as usize + 1), 20 * SECOND));
        let [busy, idle] = sinks.each_ref().map(|sink| p99(sink, round));
        println!("p99 of lateness: {busy} ms, of a daemon that is idle {idle} ms");
        busy < 20.max(idle + idle / 2)
    };
    assert!((0..3).any(is_good), "it is later than by the machine's fault");
    let stats = stats(&mut daemons[0].client(), "slow");
    assert!(stats["ready"] > 100, "{stats:?}");
}

#[test]
fn a_thousand_slow_or_hanging_jobs_delay_no_other_topic() {
    // The files are in memory. (On a disk, the test would measure the disk.)
    a_fast_topic_beside_backlogs(|_, topics| Daemon::start_in(in_memory(), topics));
}

#[test]
fn a_thousand_slow_or_hanging_jobs_delay_no_other_on_two_nodes() {
    let nodes = [RedisServer::start(), RedisServer::start()];
    for node in &nodes {
        // This is the recommended setting. With `always`, the test would measure the disk.
        node.cli(&["config", "set", "appendfsync", "everysec"]);
    }
    a_fast_topic_beside_backlogs(|prefix, topics| on(&nodes, prefix, topics));
}

#[test]
fn hanging_topics_of_a_tenant_take_half_of_the_workers() {
    if on_redis() {
        return; // The counts of two nodes are not from the same moment.
    }
    let _beside = beside_others();
    // Without a tenant, each of the topics has its own share of the workers.
    for (tenant, callbacks) in [("tenant = \"shops\"", 7..=8), ("", 10..=15)] {
        let meter = Arc::<Meter>::default();
        let url = meter.receiver(4 * SECOND);
        let more = format!("timeout = \"10s\"\n{tenant}");
        let topics: String = (0..4).map(|n| calling(&format!("hangs{n}"), &url, &more)).collect();
        let daemon = Daemon::start(&format!("[consume]\nprocesses = 1\nconcurrency = 16\n{topics}"));
        (0..4).for_each(|n| fill(&daemon, &format!("hangs{n}"), 30, 0));
        eventually(40 * SECOND, "two more rounds", || {
            (meter.done() as u64 > 2 * callbacks.end()).then_some(())
        });
        // (The test counts calls and not leases. After the answer to a callback, its job stays leased until the outcome
        // is in the store.)
        let most = meter.most_whole() as u64;
        assert!(callbacks.contains(&most), "{tenant}: {most}");
    }
}

#[test]
fn a_rate_holds_over_two_processes() {
    let _others = beside_others();
    let sink = Sink::start();
    let daemon = Daemon::start(&topic("t", &sink, "rate = \"100/s\""));
    fill(&daemon, "t", 1000, 0);
    let at = |n: usize| {
        eventually(20 * SECOND, &format!("{n} calls"), || {
            (sink.count() >= n).then(|| sink.calls()[n - 1].at_ms)
        })
    };
    let (from, to) = (at(100), at(700));
    let rate = 600_000.0 / (to - from) as f64;
    println!("{rate:.1} a second");
    assert!((50.0..110.0).contains(&rate), "{rate:.1} a second");
    let mut client = daemon.client();
    eventually(5 * SECOND, "all to be settled that came", || {
        (pending(&mut client, "t") as usize + sink.count() <= 1030).then_some(())
    });
    sink.wait_for(1000, 10 * SECOND);
    assert_eq!(sink.count(), 1000, "each came once");
}

#[test]
fn max_in_flight_holds_over_processes_a_crash_and_a_restart() {
    let _others = beside_others();
    let meter = Arc::<Meter>::default();
    let daemon = Daemon::start(&calling("t", &meter.receiver(50 * MS), "max_in_flight = 5"));
    fill(&daemon, "t", 600, 0);
    let reaches = |n: usize| {
        eventually(20 * SECOND, &format!("{n} jobs; log:\n{}", daemon.log()), || {
            (meter.done() >= n).then_some(())
        });
    };
    reaches(100);
    assert_eq!(meter.most(), 5, "before anything happens");
    daemon.kill_child("dq-consume-0");
    daemon.kill_child("dq-consume-1");
    reaches(250);
    let before = daemon.children();
    daemon.signal(Signal::SIGUSR2);
    all_new(&daemon, &before);
    let begun = Instant::now();
    let from = meter.done();
    reaches(550);
    let rate = (550 - from) as f64 / begun.elapsed().as_secs_f64();
    println!("at most {} at the same time, {rate:.0} a second", meter.most());
    assert_eq!(meter.most_whole(), 5, "never more, and not fewer");
    // If each call kept its permit for a second too long, there would be only about 5 calls a second.
    assert!(rate > 15.0, "{rate} a second are too few for five at a time");
    reaches(600);
    let mut client = daemon.client();
    eventually(5 * SECOND, "an empty store", || (pending(&mut client, "t") == 0).then_some(()));
}

/// Starts a daemon on these nodes.
fn on(nodes: &[RedisServer], prefix: &str, topics: &str) -> Daemon {
    let node = |(n, server): (usize, &RedisServer)| {
        format!("[[store.node]]\nname = \"r{n}\"\nurl = \"{}\"\n", server.url())
    };
    let nodes: String = nodes.iter().enumerate().map(node).collect();
    Daemon::start(&format!("[store]\nbackend = \"redis\"\nprefix = \"{prefix}\"\n{nodes}{topics}"))
}

/// Starts two daemons on the same nodes, as on two hosts.
fn two_hosts(nodes: &[RedisServer], topics: &str) -> [Daemon; 2] {
    [on(nodes, "dq", topics), on(nodes, "dq", topics)]
}

#[test]
fn limits_hold_over_two_hosts() {
    let _others = beside_others();
    let (meter, sink) = (Arc::<Meter>::default(), Sink::start());
    let nodes = [RedisServer::start(), RedisServer::start()];
    let topics =
        calling("t", &meter.receiver(50 * MS), "max_in_flight = 5") + &topic("r", &sink, "rate = \"100/s\"");
    let [a, b] = two_hosts(&nodes, &topics);
    fill(&a, "t", 400, 0);
    fill(&b, "r", 700, 0);
    let at = |n: usize| {
        eventually(20 * SECOND, &format!("{n} calls"), || {
            (sink.count() >= n).then(|| sink.calls()[n - 1].at_ms)
        })
    };
    let (from, to) = (at(100), at(400));
    let rate = 300_000.0 / (to - from) as f64;
    eventually(20 * SECOND, "jobs", || (meter.done() >= 200).then_some(()));
    a.kill_child("dq-consume-0");
    b.kill_child("dq-consume-1");
    eventually(20 * SECOND, "all jobs", || (meter.done() >= 400).then_some(()));
    println!("{rate:.1} a second, at most {} at the same time", meter.most());
    assert!((50.0..110.0).contains(&rate), "{rate:.1} a second");
    assert_eq!(meter.most_whole(), 5);
}

#[test]
fn each_process_limits_a_topic_alone_while_its_home_is_down() {
    let _others = beside_others();
    let meter = Arc::<Meter>::default();
    let mut nodes = [RedisServer::start(), RedisServer::start()];
    let [a, _b] = two_hosts(&nodes, &calling("t", &meter.receiver(50 * MS), "max_in_flight = 2"));
    fill(&a, "t", 50, 0);
    eventually(10 * SECOND, "all jobs", || (meter.done() >= 50).then_some(()));
    assert_eq!(meter.most(), 2);
    // Each node is down once, so the home of the topic is down once. Jobs with a home on the running node are stored at
    // once.
    for (lost, node) in nodes.iter_mut().enumerate() {
        node.kill();
        let (before, mut taken, mut client) = (meter.done(), 0, a.client());
        for n in 0..40 {
            let answer = client.ask(&add("t", &format!("{lost}-{n}"), 0)).unwrap();
            // A spooled add does not count, because its job is delivered later, when the home of the job is back.
            taken += usize::from(answer["code"] == 1 && answer["spooled"] != true);
        }
        assert!(taken >= 8, "{taken}");
        eventually(20 * SECOND, "all that was taken", || (meter.done() >= before + taken).then_some(()));
        assert!(meter.most() <= 2 * 4, "{}: as many as there are processes", meter.most());
        node.start_again();
        eventually(20 * SECOND, "both nodes", || {
            let answer = Http::unix(&a).get("/v1/nodes").is(200);
            let all = answer["nodes"].as_array()?;
            all.iter().all(|node| node["answers"] == true).then_some(())
        });
    }
}

/// Returns a receiver that fails until the flag is set.
fn failing() -> (Sink, Arc<AtomicBool>) {
    let works = Arc::new(AtomicBool::new(false));
    let now = Arc::clone(&works);
    let sink = Sink::answering(move |_| match now.load(Ordering::SeqCst) {
        true => HandlerAnswer::new(200, "ok"),
        false => HandlerAnswer::new(500, "broken"),
    });
    (sink, works)
}

const BREAKER: &str =
    "breaker_failures = 10\nbreaker_pause = \"1s\"\nretry = [\"100ms\"]\nmax_attempts = 1000";

/// Returns how many callbacks may begin before every node knows that the circuit is open. Each host has two consumers.
/// For each consumer, this is the sum of the failures that it counts, the jobs that it has in flight, and the jobs that
/// it leases from each node before the node knows. Without a circuit, each job would be tried again every 100 ms. The
/// jobs would then cause thousands of callbacks.
fn most_before(hosts: usize) -> usize {
    const NODES: usize = 2;
    hosts * 2 * (10 + 32 * (1 + NODES))
}

fn circuit_is(daemon: &Daemon, state: &str) {
    eventually(15 * SECOND, &format!("circuit {state}; log:\n{}", daemon.log()), || {
        (field(daemon, "t", "circuit") == state).then_some(())
    });
}

#[test]
fn jobs_of_a_dead_receiver_wait_without_loss_until_it_is_back() {
    let _others = beside_others();
    let (sink, works) = failing();
    let daemon = Daemon::start(&topic("t", &sink, BREAKER));
    assert_eq!(field(&daemon, "t", "circuit"), "closed");
    assert_eq!(field(&daemon, "t", "circuit_until_ms"), Value::Null);
    fill(&daemon, "t", 200, 0);
    circuit_is(&daemon, "open");
    assert!(field(&daemon, "t", "circuit_until_ms").as_i64().unwrap() > now_ms() - 1000);
    assert_eq!(field(&daemon, "t", "circuit_reason"), "status 500");
    let page = Http::unix(&daemon).get("/metrics").is(200).as_str().unwrap().to_owned();
    let state = page.lines().find(|l| l.starts_with("dq_circuit_state{topic=\"t\"}")).unwrap().to_owned();
    assert!(state.ends_with(" 2") || state.ends_with(" 1"), "{state}");
    // Three pauses of 1 s, 2 s and 4 s have passed. After each pause, one job of each shard was tried.
    let (begun, probes) = (Instant::now(), if support::on_redis() { 4 } else { 1 });
    eventually(15 * SECOND, "three pauses", || (begun.elapsed() >= 7500 * MS).then_some(()));
    let tried = sink.count();
    println!("{tried} attempts of 200 jobs in {:?}", begun.elapsed());
    assert!(tried <= most_before(1) + 4 * probes, "{tried} attempts");
    // After these kills, no process knows when the pause ends.
    daemon.kill_child("dq-consume-0");
    daemon.kill_child("dq-consume-1");
    works.store(true, Ordering::SeqCst);
    let mut client = daemon.client();
    eventually(25 * SECOND, &format!("an empty store; log:\n{}", daemon.log()), || {
        (pending(&mut client, "t") == 0).then_some(())
    });
    assert_eq!(sink.deliveries().len(), 200);
    circuit_is(&daemon, "closed");
    let log = daemon.log();
    let lines = |what: &str| log.lines().filter(|l| l.contains(what) && l.contains("WARN")).count();
    assert_eq!((lines("its receiver fails"), lines("its receiver is back")), (1, 1), "{log}");
}

#[test]
fn two_hosts_share_a_breaker() {
    let _others = beside_others();
    let (sink, works) = failing();
    let nodes = [RedisServer::start(), RedisServer::start()];
    let [a, b] = two_hosts(&nodes, &topic("t", &sink, BREAKER));
    fill(&a, "t", 200, 0);
    circuit_is(&a, "open");
    circuit_is(&b, "open");
    let begun = Instant::now();
    eventually(5 * SECOND, "two pauses", || (begun.elapsed() >= 3500 * MS).then_some(()));
    let tried = sink.count();
    println!("{tried} attempts of 200 jobs");
    assert!(tried <= most_before(2) + 3 * 4, "{tried} attempts");
    works.store(true, Ordering::SeqCst);
    let mut client = b.client();
    eventually(25 * SECOND, "an empty store", || (pending(&mut client, "t") == 0).then_some(()));
    circuit_is(&b, "closed");
}

#[test]
fn a_topic_is_resumed_by_hand_whatever_its_circuit_says() {
    let _others = beside_others();
    let (sink, works) = failing();
    let more = "breaker_failures = 3\nbreaker_pause = \"10m\"\nretry = [\"10ms\"]\nmax_attempts = 1000";
    let daemon = Daemon::start(&topic("t", &sink, more));
    fill(&daemon, "t", 20, 0);
    circuit_is(&daemon, "open");
    works.store(true, Ordering::SeqCst);
    Http::unix(&daemon).ask("POST", "/v1/topics/t/resume", &Value::Null).is(204);
    assert_eq!(field(&daemon, "t", "circuit"), "closed");
    let mut client = daemon.client();
    eventually(5 * SECOND, "an empty store", || (pending(&mut client, "t") == 0).then_some(()));
}

#[test]
fn overdue_jobs_of_an_outage_follow_the_catch_up_of_their_topic() {
    let _others = beside_others();
    let (all, spread, skip) = (Sink::start(), Sink::start(), Sink::start());
    let config = topic("all", &all, "")
        + &topic("spread", &spread, "catch_up = \"spread 6s\"")
        + &topic("skip", &skip, "catch_up = \"skip older than 5s\"");
    let mut daemon = Daemon::start(&config);
    for name in ["all", "spread", "skip"] {
        fill(&daemon, name, 120, 2000);
    }
    let due = now_ms() + 2000;
    assert_eq!(daemon.client().ask(&add("skip", "later", 16_000)).unwrap()["code"], 1);
    daemon.stop();
    assert_eq!(all.count() + spread.count() + skip.count(), 0, "it stopped in time");
    eventually(20 * SECOND, "the outage", || (now_ms() > due + 10_500).then_some(()));
    let again = Daemon::again(&daemon);
    again.wait_ready();
    all.wait_for(120, 3 * SECOND);
    spread.wait_for(120, 9 * SECOND);
    let mut at: Vec<i64> = spread.calls().iter().map(|call| call.at_ms).collect();
    at.sort_unstable();
    println!("120 jobs within {} ms, the first half within {}", at[119] - at[0], at[60] - at[0]);
    assert!((4000..6500).contains(&(at[119] - at[0])) && (1500..4500).contains(&(at[60] - at[0])));
    let late: Vec<i64> = spread.calls().iter().map(|call| call.late_ms().unwrap()).collect();
    assert!(late.iter().all(|ms| (0..2000).contains(ms)), "due anew: {late:?}");
    skip.wait_for(1, 10 * SECOND);
    let mut client = again.client();
    eventually(5 * SECOND, "dead letters", || (stats(&mut client, "skip")["dead"] == 120).then_some(()));
    assert_eq!(skip.calls()[0].header("dq-job-id"), "later");
    assert_eq!(skip.count(), 1, "none of them was called for");
    let page = Http::unix(&again).get("/v1/topics/skip/jobs?state=dead&limit=1").is(200);
    let error = page["jobs"][0]["log"][0]["error"].as_str().unwrap().to_owned();
    assert!(error.starts_with("not called: it has been due for 1"), "{error}");
    assert!(again.log().contains("jobs that were due long ago are spread"), "{}", again.log());
    assert_eq!(json!(spread.count()), json!(120), "each came once");
}
