//! Costs that must not grow: system calls and Redis commands for a thousand jobs on each path, and allocations for each
//! job in the codec. These counts hardly depend on the load of the machine. `cargo test --test it counts --
//! --nocapture` prints them.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::collections::BTreeMap;

use jiff::tz::TimeZone;
use nix::unistd::Pid;
use protocol::LocalClock;
use protocol::dq::{Framing, parse};
use serde_json::{Value, json};

const CLOCK: LocalClock<'_> = LocalClock { zone: &TimeZone::UTC, now_ms: || 0 };

use crate::support::http::Http;
use crate::support::redis::RedisServer;
use crate::support::strace::Strace;
use crate::support::{Daemon, SECOND, SLOTS, Sink, add, eventually, stats, topic};

const JOBS: usize = 1000;

/// Returns how often the threads of some processes make each system call during some work, by name.
fn system_calls(pids: &[Pid], work: impl FnOnce()) -> BTreeMap<String, u64> {
    let strace = Strace::attach(pids, &["-c"]);
    work();
    // The columns of a row: % time, seconds, usecs/call, calls, errors (may be missing), name.
    let row = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let (name, calls) = (*words.last()?, words.get(3)?.parse().ok()?);
        (words.len() >= 5 && name != "total").then(|| (name.to_owned(), calls))
    };
    strace.end().lines().filter_map(row).collect()
}

/// Returns how many scripts a server has run, and how many commands in all, including the commands of the scripts.
fn commands(server: &RedisServer) -> (u64, u64) {
    let (mut scripts, mut all) = (0, 0);
    for line in server.cli(&["INFO", "commandstats"]).lines() {
        let Some((name, rest)) = line.strip_prefix("cmdstat_").and_then(|l| l.split_once(":calls=")) else {
            continue;
        };
        let calls: u64 = rest.split(',').next().unwrap().parse().unwrap();
        all += calls;
        scripts += if name == "evalsha" { calls } else { 0 };
    }
    (scripts, all)
}

fn on(server: &RedisServer) -> String {
    format!("[store]\nbackend = \"redis\"\n[[store.node]]\nname = \"r1\"\nurl = \"{}\"\n", server.url())
}

/// Counts the allocations of each thread.
struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: every call goes to the system's allocator unchanged. The counter is a plain number that belongs to the
// thread.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let _ = ALLOCATIONS.try_with(|n| n.set(n.get() + 1));
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn realloc(&self, place: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        let _ = ALLOCATIONS.try_with(|n| n.set(n.get() + 1));
        // SAFETY: as the caller promises.
        unsafe { System.realloc(place, layout, size) }
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(place, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

fn allocations<T>(work: impl FnOnce() -> T) -> (T, u64) {
    let before = ALLOCATIONS.get();
    let done = work();
    (done, ALLOCATIONS.get() - before)
}

/// Adds jobs like a program that sends all requests before it reads the answers.
fn add_all(daemon: &Daemon, delay_ms: u64) {
    let mut client = daemon.client();
    let jobs: Vec<_> = (0..JOBS).map(|n| add("a", &format!("j{n}"), delay_ms)).collect();
    client.send(&jobs).unwrap();
    for _ in 0..JOBS {
        assert_eq!(client.receive().unwrap()["code"], 1);
    }
}

/// The cost of a thousand jobs.
#[derive(Debug, Default)]
struct Cost {
    system_calls: u64,
    scripts: u64,
    commands: u64,
}

fn cost(what: &str, pids: &[Pid], server: Option<&RedisServer>, work: impl FnOnce()) -> Cost {
    let before = server.map(commands).unwrap_or_default();
    let calls = system_calls(pids, work);
    let after = server.map(commands).unwrap_or_default();
    let cost = Cost {
        system_calls: calls.values().sum(),
        scripts: after.0 - before.0,
        commands: after.1 - before.1,
    };
    println!("{what}, {JOBS} jobs: {cost:?}, {calls:?}");
    cost
}

/// Returns the costs of adding and of delivering on a daemon.
fn costs(store: &str, server: Option<&RedisServer>) -> [Cost; 3] {
    let sink = Sink::start();
    let daemon = Daemon::start(&format!(
        "{store}[consume]\nprocesses = 1\nconcurrency = 64\n{}",
        topic("a", &sink, "")
    ));
    let slots = daemon.wait_all_up(SLOTS - 1);
    let mut http = Http::tcp(&daemon);
    let name = if server.is_some() { "redis" } else { "embedded" };
    let over_tcp =
        cost(&format!("{name}, add over TCP"), &[slots["dq-server"]], server, || add_all(&daemon, 60_000));
    let jobs: Vec<_> =
        (0..JOBS).map(|n| json!({"id": format!("h{n}"), "delay": "1h", "body": {"n": n}})).collect();
    let over_http = cost(&format!("{name}, add over HTTP"), &[slots["dq-http-server"]], server, || {
        for some in jobs.chunks(100) {
            http.ask("POST", "/v1/topics/a/jobs/batch", &json!({"jobs": some})).is(200);
        }
    });
    http.ask("POST", "/v1/topics/a/pause", &Value::Null).is(204);
    add_all(&daemon, 0);
    let workers = [slots["dq-consume-0"], slots["dq-timer-0"], slots["dq-timer-1"]];
    let delivered = cost(&format!("{name}, deliver"), &workers, server, || {
        http.ask("POST", "/v1/topics/a/resume", &Value::Null).is(204);
        sink.wait_for(JOBS, 60 * SECOND);
        eventually(20 * SECOND, "all are settled", || {
            let counts = stats(&mut daemon.client(), "a");
            (counts["leased"] == 0).then_some(())
        });
    });
    [over_tcp, over_http, delivered]
}

/// Fails if one of the costs is greater than its maximum in `most`.
fn holds(what: &str, cost: &Cost, most: Cost) {
    let Cost { system_calls, scripts, commands } = most;
    let good = cost.system_calls <= system_calls && cost.scripts <= scripts && cost.commands <= commands;
    assert!(good, "{what}: {cost:?}, and not at most {most:?}");
}

/// On a busy machine, batches are smaller, so there are more calls. The bounds leave room for this. But one more call
/// for each job would exceed the bounds.
#[test]
fn a_thousand_jobs_cost_few_system_calls_and_commands() {
    let most = |system_calls, scripts, commands| Cost { system_calls, scripts, commands };
    let server = RedisServer::start();
    let [tcp, http, delivered] = costs(&on(&server), Some(&server));
    holds("redis, add over TCP", &tcp, most(300, 100, 400));
    holds("redis, add over HTTP", &http, most(400, 60, 300));
    holds("redis, deliver", &delivered, most(10_000, 700, 5_500));
    let [tcp, http, delivered] = costs("", None);
    holds("embedded, add over TCP", &tcp, most(700, 0, 0));
    holds("embedded, add over HTTP", &http, most(1_000, 0, 0));
    holds("embedded, deliver", &delivered, most(12_000, 0, 0));
}

/// A lease asks for jobs of the topics that are known to have ready jobs. It asks for jobs of all topics only from time
/// to time.
#[test]
fn jobs_of_many_topics_cost_few_commands() {
    const TOPICS: usize = 300;
    let (server, sink) = (RedisServer::start(), Sink::start());
    let topics: String = (0..TOPICS).map(|n| topic(&format!("t{n}"), &sink, "")).collect();
    let daemon =
        Daemon::start(&format!("{}[consume]\nprocesses = 1\nconcurrency = 32\n{topics}", on(&server)));
    daemon.wait_all_up(SLOTS - 1);
    let mut client = daemon.client();
    let jobs: Vec<_> =
        (0..10 * TOPICS).map(|n| add(&format!("t{}", n % TOPICS), &format!("j{n}"), 2000)).collect();
    client.send(&jobs).unwrap();
    jobs.iter().for_each(|_| assert_eq!(client.receive().unwrap()["code"], 1));
    let before = commands(&server);
    sink.wait_for(jobs.len(), 60 * SECOND);
    let after = commands(&server);
    let (scripts, all) = (after.0 - before.0, after.1 - before.1);
    println!("redis, deliver from {TOPICS} topics, {} jobs: {scripts} scripts, {all} commands", jobs.len());
    let each = all / jobs.len() as u64;
    assert!(each <= 45, "{each} commands a job");
}

#[test]
fn an_add_is_taken_apart_with_few_allocations() {
    let frame =
        br#"{"cmd":"add","topic":"orders","id":"10042","delay_ms":60000,"body":{"order":10042,"paid":true}}"#;
    let (parsed, n) = allocations(|| parse(frame, CLOCK));
    assert!(parsed.is_ok());
    assert!(n <= 3, "topic, id and body; and not {n}");
    let mut out = Vec::with_capacity(256);
    let (fits, n) = allocations(|| Framing::Digits.append(br#"{"code":1,"msg":"succ","data":[]}"#, &mut out));
    assert_eq!((fits, n, &out[..5]), (true, 0, &b"0033{"[..]));
}

/// Returns the process's share of the memory, in bytes.
fn memory(pid: Pid) -> u64 {
    let output = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap();
    let line = output.lines().find_map(|line| line.strip_prefix("Pss_Anon:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
}

/// The bound also shows that no process uses huge pages. With huge pages, each process would have 15 MB, although it
/// uses only 2 MB. (The pages of the executable are not counted, because they are larger in a build without
/// optimisation.)
#[test]
fn an_idle_daemon_allocates_less_than_60_megabytes() {
    let daemon = Daemon::start("");
    // Until the first account exists, dq-http-server hashes its password, and this needs 19 MB for a moment.
    let first_password = daemon.dir.path().join("var/run/first-password");
    eventually(20 * SECOND, "the first account", || first_password.exists().then_some(()));
    let bytes: u64 = daemon.processes().into_iter().map(memory).sum();
    println!("all processes have {bytes} bytes");
    assert!(bytes < 60_000_000, "{bytes}");
}
