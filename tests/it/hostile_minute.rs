//! All attacks of hostile neighbours at once. The attackers are a tenant with a token and its own receivers, and
//! clients without a token. Another tenant must not notice the attacks. `make hostile` runs this test for a minute on a
//! release build.

use std::collections::BTreeMap;
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::hostile::{connect_from, is_closed, token};
use crate::support::http::Http;
use crate::support::{Daemon, SECOND, Sink, eventually, now_ms, topic};
use cli::{HandlerAnswer, TcpClient};
use nix::unistd::Pid;
use protocol::dq::Framing;
use serde_json::{Value, json};

/// The address of the hostile tenant.
const TENANT: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 67);

/// Returns the address of an attacker without a token, by the number of the attack. Each attack has its own address, so
/// that no attack uses up the connections of another attack.
const fn stranger(attack: u8) -> Ipv4Addr {
    Ipv4Addr::new(127, 0, 1, attack)
}

/// Counts for each attack the connections that the daemon has closed, and the answers. If an attack had no effect, the
/// test would prove nothing.
#[derive(Default)]
struct Effects(Mutex<BTreeMap<&'static str, u64>>);

impl Effects {
    fn add(&self, attack: &'static str, count: u64) {
        *self.0.lock().unwrap().entry(attack).or_default() += count;
    }
}

/// The limits of the test. In a build without optimisation, and beside other tests, they only show that nothing stands
/// still.
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

/// An attack: its name, its address, and the port that it goes to.
#[derive(Clone, Copy)]
struct Attack<'a> {
    name: &'static str,
    source: Ipv4Addr,
    port: u16,
    over: &'a AtomicBool,
    effects: &'a Effects,
}

/// Keeps `count` connections open, and sends `bytes` on each connection. If the daemon closes a connection, opens a new
/// one.
fn hold(attack: Attack<'_>, count: usize, bytes: &[u8]) {
    let Attack { name, source, port, over, effects } = attack;
    let mut held: Vec<TcpStream> = Vec::new();
    while !over.load(Ordering::Relaxed) {
        let before = held.len();
        held.retain_mut(|stream| !is_closed(stream));
        effects.add(name, (before - held.len()) as u64);
        for _ in held.len()..count {
            let Some(mut stream) = connect_from(source, port) else {
                effects.add(name, 1);
                continue;
            };
            stream.set_write_timeout(Some(Duration::from_millis(200))).unwrap();
            let _ = stream.write_all(bytes);
            held.push(stream);
        }
        std::thread::sleep(Duration::from_millis(300));
    }
}

/// Sends a request again and again, each time on a new connection, and reads the answers.
fn repeat(attack: Attack<'_>, request: &str) {
    let Attack { name, source, port, over, effects } = attack;
    while !over.load(Ordering::Relaxed) {
        let Some(mut stream) = connect_from(source, port) else {
            std::thread::sleep(Duration::from_millis(50));
            continue;
        };
        let _ = stream.write_all(request.as_bytes());
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        effects.add(name, u64::from(answer.starts_with(b"HTTP/1.1 ")));
    }
}

/// Pings on many connections, without a token.
fn ping(attack: Attack<'_>) {
    let mut held: Vec<TcpStream> = Vec::new();
    while !attack.over.load(Ordering::Relaxed) {
        let before = held.len();
        held.retain_mut(|stream| stream.write_all(b"0014{\"cmd\":\"ping\"}").is_ok());
        attack.effects.add(attack.name, (before - held.len()) as u64);
        held.extend((held.len()..200).filter_map(|_| connect_from(attack.source, attack.port)));
        std::thread::sleep(Duration::from_millis(200));
    }
}

/// Asks for large jobs again and again on some connections, and reads no answer.
fn read_nothing(attack: Attack<'_>, token: &str) {
    let frame = |json: Value| {
        let json = json.to_string();
        [&(json.len() as u32).to_be_bytes()[..], json.as_bytes()].concat()
    };
    let get = frame(json!({"cmd": "get", "topic": "evil.large", "id": "1"}));
    let asks = get.repeat(10_000);
    let mut held: Vec<TcpStream> = Vec::new();
    while !attack.over.load(Ordering::Relaxed) {
        held.retain_mut(|stream| match stream.write_all(&asks) {
            Ok(()) => true,
            // The daemon stops reading from a client that reads no answers.
            Err(e) if e.kind() == ErrorKind::WouldBlock => {
                attack.effects.add(attack.name, 1);
                true
            }
            Err(_) => false,
        });
        for _ in held.len()..20 {
            let Some(mut stream) = connect_from(attack.source, attack.port) else { continue };
            stream.set_write_timeout(Some(Duration::from_millis(50))).unwrap();
            let _ = stream.write_all(&frame(json!({"cmd": "auth", "token": token})));
            held.push(stream);
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Adds jobs over the limits of a topic, and jobs with headers that a receiver may trust.
fn add_too_much(attack: Attack<'_>, token: &str) {
    let mut client =
        TcpClient::connect(SocketAddr::from(([127, 0, 0, 1], attack.port)), Framing::Binary).unwrap();
    client.ask(&json!({"cmd": "auth", "token": token})).unwrap();
    while !attack.over.load(Ordering::Relaxed) {
        let forged = json!({"cmd": "add", "topic": "evil.limited", "id": "h", "body": 1, "headers": {"X_Forwarded_For": "10.0.0.1"}});
        assert_eq!(client.ask(&forged).unwrap()["err"], "bad_field");
        let jobs: Vec<Value> =
            (0..100).map(|n| json!({"id": n.to_string(), "body": "x".repeat(100), "delay": "1h"})).collect();
        let answer = client.ask(&json!({"cmd": "madd", "topic": "evil.limited", "jobs": jobs})).unwrap();
        let refused = answer["data"].as_array().unwrap().iter().filter(|job| job["err"] == "quota").count();
        attack.effects.add(attack.name, refused as u64);
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Returns the memory of the processes of a daemon, by name, in KiB. Each process counts with its part of the shared
/// memory.
fn memory_kib(daemon: &Daemon) -> BTreeMap<String, u64> {
    let of = |pid: Pid| -> Option<u64> {
        let text = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?;
        let line = text.lines().find_map(|line| line.strip_prefix("Pss:"))?;
        line.trim().trim_end_matches(" kB").parse().ok()
    };
    let all = daemon.children().into_iter().chain([("dq-master".to_owned(), daemon.pid())]);
    all.filter_map(|(name, pid)| Some((name, of(pid)?))).collect()
}

/// Returns the 99th percentile.
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
        HandlerAnswer::new(200, "")
    });
    let refusing = Sink::answering(|_| HandlerAnswer::new(500, &"x".repeat(5000)));
    let hanging = Sink::answering(|_| HandlerAnswer::new(200, "").after(Duration::from_secs(3)));
    let flooding = Sink::answering(|_| HandlerAnswer::new(200, &"x".repeat(8 << 20)));
    let hangs = "timeout = \"2s\"\nbreaker_failures = 0\nmax_attempts = 1\ntenant = \"evil\"\n";
    let limited = "delay = \"1h\"\nadd_rate = \"100/s\"\nmax_pending = 50\nmax_bytes = \"10KiB\"\n";
    let hanging_topics: String = (0..5).map(|n| topic(&format!("evil.hangs{n}"), &hanging, hangs)).collect();
    let dir = tempfile::tempdir().unwrap();
    let logs = dir.path().join("logs");
    let daemon = Daemon::start_in(
        dir,
        &format!(
            "log_dir = \"{}\"\n[server]\nauth = \"token\"\n[http]\nauth = \"token\"\n{}{}{}{}{}{hanging_topics}",
            logs.display(),
            topic("good.orders", &good, ""),
            topic("evil.dead", &refusing, "breaker_failures = 0\nmax_attempts = 1\n"),
            topic("evil.floods", &flooding, hangs),
            topic("evil.limited", &refusing, limited),
            topic("evil.large", &refusing, "delay = \"1h\"\n"),
        ),
    );
    let mut root = Http::unix(&daemon);
    prepare(&mut root);
    let large = json!({"id": "1", "body": "x".repeat(100_000)});
    root.ask("POST", "/v1/topics/evil.large/jobs", &large).is(201);
    let (evil, own) = (token(&daemon, "evil", "produce:evil.*"), token(&daemon, "good", "produce:good.*"));
    let (http, tcp) = (daemon.http, daemon.address().port());
    let (over, effects) = (AtomicBool::new(false), Effects::default());
    let most_kib: Mutex<BTreeMap<String, u64>> = Mutex::default();
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
        let attack = |name, source, port| Attack { name, source, port, over, effects: &effects };
        let half_head = format!("GET / HTTP/1.1\r\nHost: dq\r\nx-long: {}", "x".repeat(400_000));
        let sign_in = json!({"name": "admin", "password": "guess"}).to_string();
        let sign_in = format!(
            "POST /console/session HTTP/1.1\r\nHost: 127.0.0.1:{http}\r\nOrigin: http://127.0.0.1:{http}\r\n\
             Connection: close\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{sign_in}",
            sign_in.len()
        );
        let forged = "GET /v1/stats HTTP/1.1\r\nHost: dq\r\nConnection: close\r\nCookie: dq_session=admin.99999999999999.AAAA\r\n\r\n";
        let same_key = request(&evil, "POST", "/v1/topics/evil.limited/jobs", 10)
            .replace("Content-Length", "Connection: close\r\nIdempotency-Key: k\r\nContent-Length")
            + "{\"body\":1}";
        scope.spawn(move || hold(attack("silent connections", stranger(1), http), 1000, b""));
        scope.spawn(move || hold(attack("bodies without a ticket", stranger(2), http), 125, ack));
        scope.spawn(move || hold(attack("half frames", stranger(3), tcp), 100, &frame));
        scope.spawn(move || ping(attack("pings", stranger(4), tcp)));
        scope.spawn(move || hold(attack("half heads", stranger(5), http), 100, half_head.as_bytes()));
        scope.spawn(move || repeat(attack("wrong passwords", stranger(6), http), &sign_in));
        scope.spawn(move || repeat(attack("forged sessions", stranger(7), http), forged));
        scope.spawn(move || repeat(attack("one key again and again", TENANT, http), &same_key));
        scope.spawn(move || hold(attack("half bodies", TENANT, http), 60, &body));
        let evil = evil.as_str();
        scope.spawn(move || read_nothing(attack("answers that nobody reads", TENANT, tcp), evil));
        scope.spawn(move || add_too_much(attack("adds over the limits", TENANT, tcp), evil));
        for _ in 0..2 {
            let wrong = wrong.clone();
            scope.spawn(move || repeat(attack("wrong tokens", stranger(8), http), &wrong));
        }
        for _ in 0..40 {
            let search = search.clone();
            scope.spawn(move || repeat(attack("searches", TENANT, http), &search));
        }
        // Adds jobs for receivers that hang, always more than dq can deliver.
        let mut client = TcpClient::connect(daemon.address(), Framing::Binary).unwrap();
        client.ask(&json!({"cmd": "auth", "token": evil})).unwrap();
        scope.spawn(move || {
            while !over.load(Ordering::Relaxed) {
                let hanging = (0..5).map(|n| format!("evil.hangs{n}"));
                for topic in hanging.chain(["evil.floods".to_owned()]) {
                    let jobs: Vec<Value> =
                        (0..200).map(|id| json!({"id": id.to_string(), "body": 1})).collect();
                    client.ask(&json!({"cmd": "madd", "topic": topic, "jobs": jobs})).unwrap();
                }
                std::thread::sleep(Duration::from_millis(500));
            }
        });
        let (daemon, most_kib) = (&daemon, &most_kib);
        scope.spawn(move || {
            while !over.load(Ordering::Relaxed) {
                let now = memory_kib(daemon);
                let mut most = most_kib.lock().unwrap();
                if now.values().sum::<u64>() > most.values().sum() {
                    *most = now;
                }
                drop(most);
                std::thread::sleep(Duration::from_millis(500));
            }
        });

        // The other tenant adds jobs, over the two ports in turn.
        let begun = Instant::now();
        let mut client = TcpClient::connect(daemon.address(), Framing::Binary).unwrap();
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
    println!("jobs that were at least 50 ms late, by second: {:?}", late_by_second(&late.lock().unwrap()));
    let (add_p99, late_p99) = (p99(&mut adds), p99(&mut late.lock().unwrap()));
    let most_kib = most_kib.into_inner().unwrap();
    println!("memory in KiB: {most_kib:?}");
    let memory = most_kib.values().sum::<u64>() >> 10;
    let log = folder_bytes(&logs) + daemon.log().len() as u64;
    println!(
        "{seconds} s under attack: {added} adds of another tenant, p99 {add_p99:?}; lateness p99 {late_p99:?}; memory up to \
         {memory} MiB; log {} KiB",
        log >> 10
    );
    let effects = effects.0.into_inner().unwrap();
    println!("what the attacks reached: {effects:?}");
    // A client that sends no valid token is disconnected after ten seconds.
    let is_soon = |name: &str| !matches!(name, "half frames" | "pings");
    let without: Vec<_> =
        effects.iter().filter(|(name, n)| **n == 0 && (seconds > 15 || is_soon(name))).collect();
    assert!(effects.len() == 13 && without.is_empty(), "without effect: {without:?}; {effects:?}");
    assert!(add_p99 < BOUNDS.add_p99, "adds: p99 {add_p99:?}");
    assert!(late_p99 <= BOUNDS.late_p99, "lateness: p99 {late_p99:?}");
    assert!(memory < BOUNDS.memory_mib, "{memory} MiB");
    assert!(log < BOUNDS.log_mib << 20, "{log} bytes of log");
}

/// Returns for each second how many jobs were at least 50 ms late, and the greatest lateness. `late` has the lateness
/// of each call, in the order in which the calls came.
fn late_by_second(late: &[Duration]) -> BTreeMap<usize, (u32, Duration)> {
    let mut seconds: BTreeMap<usize, (u32, Duration)> = BTreeMap::new();
    // About 70 jobs become due in a second.
    for (n, late) in late.iter().enumerate().filter(|(_, late)| **late >= Duration::from_millis(50)) {
        let (count, most) = seconds.entry(n / 70).or_default();
        *count += 1;
        *most = (*most).max(*late);
    }
    seconds
}

fn folder_bytes(folder: &Path) -> u64 {
    std::fs::read_dir(folder).unwrap().map(|file| file.unwrap().metadata().unwrap().len()).sum()
}
