//! All attacks of a hostile neighbour at once: a tenant with a token and receivers of its own, and a client without a
//! token. Another tenant must not notice them. `make hostile` runs this for a minute on a release build.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::hostile::{connect_from, is_closed, token};
use crate::support::http::Http;
use crate::support::{Daemon, SECOND, Sink, eventually, now_ms, topic};
use cli::{Answer, Client};
use nix::unistd::Pid;
use protocol::dq::Framing;
use serde_json::{Value, json};

/// The client without a token, and the hostile tenant.
const STRANGER: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 66);
const TENANT: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 67);

/// The limits. Without optimisation, on a machine that other tests share, they only show that nothing stands still.
struct Bounds {
    add_p99: Duration,
    late_p99: Duration,
    memory_mib: u64,
    log_mib: u64,
}

const BOUNDS: Bounds = match cfg!(debug_assertions) {
    true => Bounds { add_p99: SECOND, late_p99: Duration::from_secs(2), memory_mib: 500, log_mib: 5 },
    false => Bounds {
        add_p99: Duration::from_millis(100),
        late_p99: Duration::from_millis(100),
        memory_mib: 300,
        log_mib: 5,
    },
};

/// Keeps `count` connections open, each of which has sent `bytes`. Opens those again that the daemon has closed.
fn hold(source: Ipv4Addr, port: u16, count: usize, bytes: &[u8], over: &AtomicBool) {
    let mut held: Vec<TcpStream> = Vec::new();
    while !over.load(Ordering::Relaxed) {
        held.retain_mut(|stream| !is_closed(stream));
        for _ in held.len()..count {
            let Some(mut stream) = connect_from(source, port) else { continue };
            stream.set_write_timeout(Some(Duration::from_millis(200))).unwrap();
            let _ = stream.write_all(bytes);
            held.push(stream);
        }
        std::thread::sleep(Duration::from_millis(300));
    }
}

/// Sends a request again and again, each on a connection of its own, and reads the answers.
fn repeat(source: Ipv4Addr, port: u16, request: &str, over: &AtomicBool) {
    while !over.load(Ordering::Relaxed) {
        let Some(mut stream) = connect_from(source, port) else {
            std::thread::sleep(Duration::from_millis(50));
            continue;
        };
        let _ = stream.write_all(request.as_bytes());
        let _ = stream.read_to_end(&mut Vec::new());
    }
}

/// Pings on many connections, without a token.
fn ping(port: u16, over: &AtomicBool) {
    let mut held: Vec<TcpStream> = Vec::new();
    while !over.load(Ordering::Relaxed) {
        held.retain_mut(|stream| stream.write_all(b"0014{\"cmd\":\"ping\"}").is_ok());
        held.extend((held.len()..200).filter_map(|_| connect_from(STRANGER, port)));
        std::thread::sleep(Duration::from_millis(200));
    }
}

/// The memory of all processes of a daemon, without what they share, in KiB.
fn memory_kib(daemon: &Daemon) -> u64 {
    let of = |pid: Pid| -> Option<u64> {
        let text = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?;
        let line = text.lines().find_map(|line| line.strip_prefix("Pss:"))?;
        line.trim().trim_end_matches(" kB").parse().ok()
    };
    daemon.children().into_values().chain([daemon.pid()]).filter_map(of).sum()
}

/// The value below which 99 of 100 lie.
fn p99(values: &mut [Duration]) -> Duration {
    values.sort_unstable();
    values.get(values.len() * 99 / 100).copied().unwrap_or_default()
}

fn request(token: &str, method: &str, path: &str, length: usize) -> String {
    let close = if length == 0 { "Connection: close\r\n" } else { "" };
    format!(
        "{method} {path} HTTP/1.1\r\nHost: dq\r\nAuthorization: Bearer {token}\r\n{close}Content-Length: {length}\r\n\r\n"
    )
}

fn prepare(root: &mut Http) {
    for part in 0..5 {
        let jobs: Vec<Value> = (0..1000).map(|n| json!({"id": format!("{part}-{n}"), "body": n})).collect();
        root.ask("POST", "/v1/topics/evil.dead/jobs/batch", &json!({"jobs": jobs})).is(200);
    }
    eventually(120 * SECOND, "dead letters", || {
        let stats = root.get("/v1/stats").is(200);
        let dead =
            stats["topics"].as_array().unwrap().iter().find(|topic| topic["topic"] == "evil.dead")?["dead"]
                .as_u64();
        (dead == Some(5000)).then_some(())
    });
}

#[test]
fn neighbours_do_not_notice_an_attack() {
    let seconds = std::env::var("HOSTILE_SECONDS").map_or(5, |text| text.parse().unwrap());
    let late: Arc<Mutex<Vec<Duration>>> = Arc::default();
    let noted = Arc::clone(&late);
    let good = Sink::answering(move |call| {
        let due_ms: i64 = call.header("dq-due-at").parse().unwrap();
        noted.lock().unwrap().push(Duration::from_millis(now_ms().saturating_sub(due_ms).max(0) as u64));
        Answer::new(200, "")
    });
    let refusing = Sink::answering(|_| Answer::new(500, &"x".repeat(5000)));
    let hanging = Sink::answering(|_| Answer::new(200, "").after(Duration::from_secs(3)));
    let hangs = "timeout = \"2s\"\nbreaker_failures = 0\nmax_attempts = 1\n";
    let hanging_topics: String = (0..5).map(|n| topic(&format!("evil.hangs{n}"), &hanging, hangs)).collect();
    let dir = tempfile::tempdir().unwrap();
    let logs = dir.path().join("logs");
    let daemon = Daemon::start_in(
        dir,
        &format!(
            "log_dir = \"{}\"\n[server]\nauth = \"token\"\n[http]\nauth = \"token\"\n{}{}{hanging_topics}",
            logs.display(),
            topic("good.orders", &good, ""),
            topic("evil.dead", &refusing, "breaker_failures = 0\nmax_attempts = 1\n"),
        ),
    );
    let mut root = Http::unix(&daemon);
    prepare(&mut root);
    let (evil, own) = (token(&daemon, "evil", "produce:evil.*"), token(&daemon, "good", "produce:good.*"));
    let (http, tcp) = (daemon.http, daemon.address().port());
    let over = AtomicBool::new(false);
    let most_kib = AtomicU64::new(0);
    let (mut adds, mut added) = (Vec::new(), 0);
    std::thread::scope(|scope| {
        let over = &over;
        let length: u32 = 60_000;
        let frame = [&length.to_be_bytes()[..], &vec![b' '; 59_000]].concat();
        let ack = b"POST /v1/ack/x HTTP/1.1\r\nHost: dq\r\nContent-Length: 100\r\n\r\n";
        let search = request(&evil, "GET", "/v1/topics/evil.dead/dead?reason=nothing", 0);
        let wrong = request("dq_aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "GET", "/v1/stats", 0);
        let body = request(&evil, "POST", "/v1/topics/evil.hangs0/jobs", 900_000).into_bytes();
        let body = [body, vec![b' '; 800_000]].concat();
        scope.spawn(move || hold(STRANGER, http, 400, b"", over));
        scope.spawn(move || hold(STRANGER, http, 125, ack, over));
        scope.spawn(move || hold(STRANGER, tcp, 100, &frame, over));
        scope.spawn(move || ping(tcp, over));
        scope.spawn(move || hold(TENANT, http, 60, &body, over));
        for _ in 0..2 {
            let wrong = wrong.clone();
            scope.spawn(move || repeat(STRANGER, http, &wrong, over));
        }
        for _ in 0..40 {
            let search = search.clone();
            scope.spawn(move || repeat(TENANT, http, &search, over));
        }
        // Jobs for receivers that hang, always more than can be delivered.
        let mut client = Client::connect(daemon.address(), Framing::Binary).unwrap();
        client.ask(&json!({"cmd": "auth", "token": evil})).unwrap();
        scope.spawn(move || {
            while !over.load(Ordering::Relaxed) {
                for n in 0..5 {
                    let jobs: Vec<Value> =
                        (0..200).map(|id| json!({"id": id.to_string(), "body": 1})).collect();
                    let topic = format!("evil.hangs{n}");
                    client.ask(&json!({"cmd": "madd", "topic": topic, "jobs": jobs})).unwrap();
                }
                std::thread::sleep(Duration::from_millis(500));
            }
        });
        let (daemon, most_kib) = (&daemon, &most_kib);
        scope.spawn(move || {
            while !over.load(Ordering::Relaxed) {
                most_kib.fetch_max(memory_kib(daemon), Ordering::Relaxed);
                std::thread::sleep(Duration::from_millis(500));
            }
        });

        // The other tenant adds jobs, in turn over both ports.
        let begun = Instant::now();
        let mut client = Client::connect(daemon.address(), Framing::Binary).unwrap();
        client.ask(&json!({"cmd": "auth", "token": own})).unwrap();
        let mut failed = None;
        while begun.elapsed() < Duration::from_secs(seconds) && failed.is_none() {
            added += 1;
            let job = json!({"id": added.to_string(), "body": {"n": added}, "delay": "300ms"});
            let text = job.to_string();
            let before = Instant::now();
            let took = if added % 2 == 0 {
                let add = json!({"cmd": "add", "topic": "good.orders", "id": added.to_string(), "delay_ms": 300, "body": 1});
                let answer = client.ask(&add);
                failed = answer
                    .as_ref()
                    .ok()
                    .is_none_or(|answer| answer["code"] != 1)
                    .then(|| format!("{answer:?}"));
                before.elapsed()
            } else {
                let mut stream = connect_from(Ipv4Addr::LOCALHOST, http).expect("a connection");
                let head = request(&own, "POST", "/v1/topics/good.orders/jobs", text.len());
                let head = head.replace("Content-Length", "Connection: close\r\nContent-Length");
                stream.write_all(format!("{head}{text}").as_bytes()).unwrap();
                let mut answer = String::new();
                let read = stream.read_to_string(&mut answer);
                failed = (!answer.starts_with("HTTP/1.1 201")).then(|| format!("{read:?}: {answer}"));
                before.elapsed()
            };
            adds.push(took);
            std::thread::sleep(Duration::from_millis(10));
        }
        over.store(true, Ordering::Relaxed);
        assert!(failed.is_none(), "add {added}: {failed:?}");
    });
    good.wait_for(added, 30 * SECOND);
    let (add_p99, late_p99) = (p99(&mut adds), p99(&mut late.lock().unwrap()));
    let (memory, log) =
        (most_kib.load(Ordering::Relaxed) >> 10, folder_bytes(&logs) + daemon.log().len() as u64);
    println!(
        "{seconds} s under attack: {added} adds of another tenant, p99 {add_p99:?}; lateness p99 {late_p99:?}; memory up to \
         {memory} MiB; log {} KiB",
        log >> 10
    );
    assert!(add_p99 < BOUNDS.add_p99, "adds: p99 {add_p99:?}");
    assert!(late_p99 <= BOUNDS.late_p99, "lateness: p99 {late_p99:?}");
    assert!(memory < BOUNDS.memory_mib, "{memory} MiB");
    assert!(log < BOUNDS.log_mib << 20, "{log} bytes of log");
}

fn folder_bytes(folder: &Path) -> u64 {
    std::fs::read_dir(folder).unwrap().map(|file| file.unwrap().metadata().unwrap().len()).sum()
}
