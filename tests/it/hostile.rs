//! Hostile neighbours: clients without a token, and tenants that try to use up everything. Other clients must not
//! notice them.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddrV4, TcpStream};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::support::http::Http;
use crate::support::{Daemon, SECOND, Sink, all_new, eventually, free_port, stats, topic};
use cli::HandlerAnswer;
use nix::sys::signal::Signal;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, SockaddrIn, bind, connect, socket};
use serde_json::{Value, json};

/// The address that a hostile client connects from. All other clients use 127.0.0.1.
const HOSTILE: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 66);

/// Connects from a loopback address to a port of 127.0.0.1. None: no connection could be made.
pub fn connect_from(source: Ipv4Addr, port: u16) -> Option<TcpStream> {
    let fd: OwnedFd = socket(AddressFamily::Inet, SockType::Stream, SockFlag::SOCK_CLOEXEC, None).ok()?;
    bind(fd.as_raw_fd(), &SockaddrIn::from(SocketAddrV4::new(source, 0))).ok()?;
    connect(fd.as_raw_fd(), &SockaddrIn::from(SocketAddrV4::new(Ipv4Addr::LOCALHOST, port))).ok()?;
    let stream = TcpStream::from(fd);
    stream.set_read_timeout(Some(30 * SECOND)).ok()?;
    Some(stream)
}

/// Connects as the hostile client does.
fn connect_hostile(port: u16) -> TcpStream {
    connect_from(HOSTILE, port).expect("a connection")
}

/// Waits until the daemon has closed a connection. Returns what the daemon has sent before.
fn rest(mut stream: TcpStream) -> String {
    let mut bytes = Vec::new();
    match stream.read_to_end(&mut bytes) {
        Ok(_) => {}
        Err(e) if matches!(e.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe) => {}
        Err(e) => panic!("{e}"),
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Whether the daemon has closed a connection that sends nothing.
pub fn is_closed(stream: &mut TcpStream) -> bool {
    stream.set_nonblocking(true).unwrap();
    let read = stream.read(&mut [0; 1]);
    stream.set_nonblocking(false).unwrap();
    !matches!(read, Err(e) if e.kind() == ErrorKind::WouldBlock)
}

pub fn token(daemon: &Daemon, name: &str, scope: &str) -> String {
    let wanted = json!({"name": name, "scopes": [scope]});
    let made = Http::unix(daemon).ask("POST", "/v1/tokens", &wanted).is(201);
    made["token"].as_str().unwrap().to_owned()
}

fn resident_kib(daemon: &Daemon, process: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", daemon.child(process))).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

#[test]
fn one_address_leaves_connections_for_the_others() {
    let limits = "max_connections = 40\nmax_connections_per_source = 20\n";
    let daemon = Daemon::start(&format!("[server]\n{limits}[http]\n{limits}"));
    for port in [daemon.http, daemon.address().port()] {
        let mut silent: Vec<TcpStream> = (0..60).map(|_| connect_hostile(port)).collect();
        eventually(10 * SECOND, "the connections beyond the limit end", || {
            (silent.iter_mut().filter_map(|stream| (!is_closed(stream)).then_some(())).count() == 20)
                .then_some(())
        });
        Http::tcp(&daemon).get("/healthz").is(200);
        assert_eq!(daemon.client().ask(&json!({"cmd": "ping"})).unwrap()["code"], 1);
    }
}

#[test]
fn who_proves_nothing_is_disconnected_after_ten_seconds() {
    let daemon = Daemon::start("[server]\nauth = \"token\"\n[http]\nauth = \"token\"\n");
    let secret = token(&daemon, "ops", "read");
    let begun = Instant::now();
    let silent = connect_hostile(daemon.http);
    let mut asking = connect_hostile(daemon.http);
    let mut pinging = connect_hostile(daemon.address().port());
    // This client sends a request with a body that never ends, to a route that needs no token.
    let mut signing_in = connect_hostile(daemon.http);
    signing_in
        .write_all(b"POST /console/session HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 100\r\n\r\n{")
        .unwrap();
    let mut known = connect_hostile(daemon.http);
    let mut known_asks = || {
        let head =
            format!("GET /v1/stats HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {secret}\r\n\r\n");
        known.write_all(head.as_bytes()).unwrap();
        let mut start = [0; 12];
        known.read_exact(&mut start).unwrap();
        assert_eq!(&start, b"HTTP/1.1 200");
        known.set_nonblocking(true).unwrap();
        eventually(SECOND, "the rest", || match known.read(&mut [0; 10_000]) {
            Err(e) if e.kind() == ErrorKind::WouldBlock => Some(()),
            _ => None,
        });
        known.set_nonblocking(false).unwrap();
    };
    known_asks();
    // Pings and requests that need no token do not keep a connection open.
    let ping = b"0014{\"cmd\":\"ping\"}";
    eventually(25 * SECOND, "the end of the connection that pings", || {
        (pinging.write_all(ping).is_err() || is_closed(&mut pinging)).then_some(())
    });
    eventually(25 * SECOND, "the end of the connection that asks for the health", || {
        let ask = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n";
        (asking.write_all(ask).is_err() || matches!(asking.read(&mut [0; 10_000]), Ok(0) | Err(_)))
            .then_some(())
    });
    assert!(begun.elapsed() >= Duration::from_secs(9), "{:?}", begun.elapsed());
    assert_eq!(rest(silent), "");
    rest(signing_in);
    assert!(begun.elapsed() < Duration::from_secs(28), "{:?}", begun.elapsed());
    known_asks();
}

#[test]
fn a_wrong_ticket_is_refused_before_its_body_comes() {
    let daemon = Daemon::start("[http]\nauth = \"token\"\n");
    let begun = Instant::now();
    let mut waiting = Vec::new();
    for key in ["", "Idempotency-Key: a\r\n"] {
        for _ in 0..100 {
            let mut stream = connect_hostile(daemon.http);
            let head = format!("POST /v1/ack/x HTTP/1.1\r\nHost: dq\r\n{key}Content-Length: 100\r\n\r\n");
            stream.write_all(head.as_bytes()).unwrap();
            waiting.push(stream);
        }
        for mut stream in waiting.drain(..) {
            let mut start = [0; 12];
            stream.read_exact(&mut start).unwrap();
            assert_eq!(&start, b"HTTP/1.1 404");
        }
    }
    assert!(begun.elapsed() < 20 * SECOND);
}

#[test]
fn frames_that_do_not_end_take_little_memory() {
    let daemon = Daemon::start("[server]\nmax_frame = \"1MiB\"\n");
    let before = resident_kib(&daemon, "dq-server");
    let length: u32 = 1_000_000;
    let frame = [&length.to_be_bytes()[..], &vec![b' '; 990_000]].concat();
    let mut half: Vec<TcpStream> = Vec::new();
    let mut honest = daemon.client();
    for _ in 0..100 {
        let mut stream = connect_hostile(daemon.address().port());
        // The daemon may close the connection during the write.
        let _ = stream.write_all(&frame);
        half.push(stream);
        assert_eq!(honest.ask(&json!({"cmd": "ping"})).unwrap()["code"], 1);
    }
    let closed = half.iter_mut().filter_map(|stream| is_closed(stream).then_some(())).count();
    let grown = resident_kib(&daemon, "dq-server").saturating_sub(before);
    assert!(closed >= 50, "{closed} connections were closed");
    assert!(grown < 70 << 10, "{grown} KiB more");
    assert!(daemon.log().contains("unfinished requests and unread answers"), "{}", daemon.log());
}

#[test]
fn heads_that_do_not_end_take_little_memory() {
    let daemon = Daemon::start("[http]\nauth = \"token\"\n");
    let before = resident_kib(&daemon, "dq-http-server");
    let head = format!("GET /v1/stats HTTP/1.1\r\nHost: dq\r\nx-long: {}", "x".repeat(400_000));
    let mut half: Vec<TcpStream> = (0..100)
        .map(|_| {
            let mut stream = connect_hostile(daemon.http);
            // The daemon may close the connection during the write.
            let _ = stream.write_all(head.as_bytes());
            stream
        })
        .collect();
    eventually(10 * SECOND, "heads that are too long are refused", || {
        half.iter_mut().all(is_closed).then_some(())
    });
    let grown = resident_kib(&daemon, "dq-http-server").saturating_sub(before);
    assert!(grown < 20 << 10, "{grown} KiB more");
    // If only the query is too long, the request is refused with a reason.
    let ask =
        format!("GET /v1/stats?{} HTTP/1.1\r\nHost: dq\r\nConnection: close\r\n\r\n", "x".repeat(20_000));
    let mut stream = connect_hostile(daemon.http);
    stream.write_all(ask.as_bytes()).unwrap();
    let mut answer = String::new();
    std::io::Read::read_to_string(&mut stream, &mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 4"), "{answer}");
}

/// Sends this request on 60 connections of the hostile client, and reads no answer. Returns the connections, and the
/// most memory that dq-http-server had during this time.
fn ask_and_read_nothing(daemon: &Daemon, ask: &str) -> (Vec<TcpStream>, u64) {
    let mut most = 0;
    let held = (0..60).map(|_| {
        let mut stream = connect_hostile(daemon.http);
        let _ = stream.write_all(ask.as_bytes());
        std::thread::sleep(Duration::from_millis(20));
        most = most.max(resident_kib(daemon, "dq-http-server"));
        stream
    });
    (held.collect(), most)
}

#[test]
fn answers_that_nobody_reads_take_little_memory() {
    let daemon = Daemon::start(&format!(
        "[server]\nmax_frame = \"2MiB\"\n{}",
        topic("t", &Sink::start(), "delay = \"1h\"")
    ));
    let mut root = Http::unix(&daemon);
    for n in 0..20 {
        let job = json!({"id": n.to_string(), "body": "x".repeat(1_000_000)});
        root.ask("POST", "/v1/topics/t/jobs", &job).is(201);
    }
    let before = resident_kib(&daemon, "dq-http-server");
    let ask = "GET /v1/topics/t/jobs?state=delayed&limit=1000 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n";
    let (mut held, mut most) = ask_and_read_nothing(&daemon, ask);
    eventually(20 * SECOND, "an answer that is refused", || {
        let refused = held.iter_mut().any(|stream| {
            let mut begin = [0; 12];
            stream.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
            stream.peek(&mut begin).is_ok_and(|n| begin[..n].starts_with(b"HTTP/1.1 503"))
        });
        most = most.max(resident_kib(&daemon, "dq-http-server"));
        refused.then_some(())
    });
    let grown = most.saturating_sub(before);
    assert!(grown < 150 << 10, "{grown} KiB more");
    // Other clients get their answers.
    root.get("/v1/topics/t/jobs?state=delayed&limit=1").is(200);
    Http::tcp(&daemon).get("/v1/stats").is(200);
}

#[test]
fn reserves_whose_answers_nobody_reads_take_little_memory() {
    let more = "mode = \"pull\"\nmax_attempts = 1000";
    let daemon = Daemon::start(&format!("[[topic]]\nname = \"t\"\n{more}\n"));
    let mut root = Http::unix(&daemon);
    for n in 0..100 {
        let job = json!({"id": n.to_string(), "body": "x".repeat(900_000)});
        root.ask("POST", "/v1/topics/t/jobs", &job).is(201);
    }
    let before = resident_kib(&daemon, "dq-http-server");
    let body = r#"{"max":100,"lease":"100ms"}"#;
    let ask = format!(
        "POST /v1/topics/t/reserve HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    let (_held, most) = ask_and_read_nothing(&daemon, &ask);
    let grown = most.max(resident_kib(&daemon, "dq-http-server")).saturating_sub(before);
    assert!(grown < 150 << 10, "{grown} KiB more");
    // Another client gets a job, and no job has become a dead letter.
    let some =
        Http::tcp(&daemon).ask("POST", "/v1/topics/t/reserve", &json!({"max": 1, "wait": "30s"})).is(200);
    assert_eq!(some["jobs"].as_array().unwrap().len(), 1);
    assert_eq!(stats(&mut daemon.client(), "t")["dead"], 0);
}

#[test]
fn a_client_that_goes_away_keeps_its_place_in_the_meantime() {
    let begun = Arc::new(AtomicUsize::new(0));
    let sink = Sink::answering({
        let begun = Arc::clone(&begun);
        move |_| {
            begun.fetch_add(1, Ordering::Relaxed);
            HandlerAnswer { after: 8 * SECOND, ..HandlerAnswer::new(200, "") }
        }
    });
    let daemon =
        Daemon::start(&format!("[http]\nmax_requests = 4\n{}", topic("t", &sink, "timeout = \"60s\"")));
    // A client may use half of `max_requests`, and this client now uses its half.
    for n in 1..=2 {
        let mut stream = connect_hostile(daemon.http);
        let head = format!("POST /v1/topics/t/test HTTP/1.1\r\nHost: 127.0.0.1\r\nIdempotency-Key: {n}\r\n");
        stream.write_all(format!("{head}Content-Length: 2\r\n\r\n{{}}").as_bytes()).unwrap();
        eventually(20 * SECOND, "the call", || (begun.load(Ordering::Relaxed) == n).then_some(()));
    }
    let status = || {
        let mut stream = connect_hostile(daemon.http);
        let ask = "GET /v1/stats HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n";
        stream.write_all(ask.as_bytes()).unwrap();
        rest(stream)[9..12].to_owned()
    };
    // dq notices soon that the clients have disconnected, but their requests still run.
    for _ in 0..20 {
        assert_eq!(status(), "503");
        std::thread::sleep(Duration::from_millis(50));
    }
    eventually(30 * SECOND, "a free place", || (status() == "200").then_some(()));
}

#[test]
fn bodies_that_do_not_end_leave_memory_and_places_for_others() {
    let daemon = Daemon::start(&format!(
        "[http]\nmax_requests = 40\nauth = \"token\"\n{}",
        topic("t", &Sink::start(), "")
    ));
    let (hostile, other) = (token(&daemon, "hostile", "produce:t"), token(&daemon, "other", "produce:t"));
    let head = format!(
        "POST /v1/topics/t/jobs HTTP/1.1\r\nHost: dq\r\nAuthorization: Bearer {hostile}\r\nContent-Length: 900000\r\n\r\n"
    );
    let mut half: Vec<TcpStream> = (0..60)
        .map(|_| {
            let mut stream = connect_hostile(daemon.http);
            let _ = stream.write_all(head.as_bytes());
            let _ = stream.write_all(&vec![b' '; 100_000]);
            stream
        })
        .collect();
    eventually(10 * SECOND, "the requests beyond its share are refused", || {
        (half.iter_mut().filter_map(|stream| is_closed(stream).then_some(())).count() >= 40).then_some(())
    });
    let ask = format!(
        "POST /v1/topics/t/jobs HTTP/1.1\r\nHost: dq\r\nAuthorization: Bearer {other}\r\nConnection: close\r\n\
         Content-Length: 10\r\n\r\n{{\"body\":1}}"
    );
    let mut stream = connect_from(Ipv4Addr::LOCALHOST, daemon.http).unwrap();
    stream.write_all(ask.as_bytes()).unwrap();
    assert!(rest(stream).starts_with("HTTP/1.1 201"));
}

#[test]
fn long_reads_of_one_client_do_not_delay_the_adds_of_others() {
    let refusing = Sink::answering(|_| HandlerAnswer::new(500, "no"));
    let once = "breaker_failures = 0\nmax_attempts = 1";
    let daemon = Daemon::start(&format!(
        "[http]\nauth = \"token\"\n{}{}",
        topic("t", &refusing, once),
        topic("u", &Sink::start(), "")
    ));
    let mut admin = Http::unix(&daemon);
    const LETTERS: usize = 6000;
    for part in 0..LETTERS / 1000 {
        let jobs: Vec<Value> = (0..1000).map(|n| json!({"id": format!("{part}-{n}"), "body": n})).collect();
        admin.ask("POST", "/v1/topics/t/jobs/batch", &json!({"jobs": jobs})).is(200);
    }
    eventually(60 * SECOND, "dead letters", || {
        let stats = admin.get("/v1/stats").is(200);
        let of_t = stats["topics"].as_array().unwrap().iter().find(|topic| topic["topic"] == "t")?.clone();
        (of_t["dead"] == LETTERS).then_some(())
    });
    let hostile = token(&daemon, "hostile", "produce:t");
    let ask = format!(
        "GET /v1/topics/t/dead?reason=nothing HTTP/1.1\r\nHost: dq\r\nAuthorization: Bearer {hostile}\r\n\
         Connection: close\r\n\r\n"
    );
    let reads: Vec<TcpStream> = (0..200)
        .map(|_| {
            let mut stream = connect_hostile(daemon.http);
            stream.write_all(ask.as_bytes()).unwrap();
            stream
        })
        .collect();
    let mut slowest = Duration::ZERO;
    for n in 0..50 {
        let begun = Instant::now();
        admin
            .ask("POST", "/v1/topics/u/jobs", &json!({"id": format!("{n}"), "body": 1, "delay": "1h"}))
            .is(201);
        slowest = slowest.max(begun.elapsed());
    }
    assert!(slowest < SECOND, "an add took {slowest:?}");
    // Each read is answered: with its page, or with 503.
    let answers: Vec<String> = reads.into_iter().map(rest).collect();
    let served = answers.iter().filter(|answer| answer.starts_with("HTTP/1.1 200")).count();
    let busy = answers.iter().filter(|answer| answer.starts_with("HTTP/1.1 503")).count();
    assert!(served >= 2 && served + busy == answers.len(), "{served} pages, {busy} times busy");
}

#[test]
fn files_are_private_whatever_the_umask() {
    let sink = Sink::answering(|_| HandlerAnswer::new(500, "no"));
    let dir = Arc::new(tempfile::tempdir().unwrap());
    let (port, http) = (free_port(), free_port());
    let config = format!("log_dir = \"logs\"\n{}", topic("t", &sink, "max_attempts = 1"));
    Daemon::write_config(dir.path(), port, http, &config);
    let mut command = Command::new("sh");
    command.args(["-c", "umask 000; exec \"$0\" --config \"$1\"", env!("CARGO_BIN_EXE_dq-master")]);
    command.arg(dir.path().join("dq.toml"));
    let daemon = Daemon::run(Arc::clone(&dir), port, http, command);
    daemon.wait_ready();
    Http::tcp(&daemon).ask("POST", "/v1/topics/t/jobs", &json!({"id": "1", "body": 1})).is(201);
    eventually(10 * SECOND, "a line of the log and a password", || {
        let logs = std::fs::read_dir(dir.path().join("logs")).ok()?.count();
        (logs >= 3 && dir.path().join("var/run/first-password").exists()).then_some(())
    });
    let before = daemon.children();
    daemon.signal(Signal::SIGUSR2);
    all_new(&daemon, &before);
    let mut open = Vec::new();
    let mut folders = vec![dir.path().join("var"), dir.path().join("logs")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap()) {
            let Ok(found) = entry.metadata() else { continue };
            if found.is_dir() {
                folders.push(entry.path());
            }
            if found.permissions().mode() & 0o077 != 0 {
                open.push(format!("{:o} {}", found.permissions().mode(), entry.path().display()));
            }
        }
    }
    assert_eq!(open, Vec::<String>::new());
}

#[test]
fn files_that_an_earlier_release_left_open_are_closed() {
    let dir = Arc::new(tempfile::tempdir().unwrap());
    let start = || {
        let daemon = Daemon::spawn(Arc::clone(&dir), free_port(), "", &[]);
        daemon.wait_ready();
        daemon
    };
    let daemon = start();
    let database = dir.path().join("var/dq.db");
    drop(daemon);
    std::fs::set_permissions(&database, std::fs::Permissions::from_mode(0o644)).unwrap();
    let daemon = start();
    assert_eq!(std::fs::metadata(&database).unwrap().permissions().mode() & 0o777, 0o640);
    assert!(daemon.log().contains("no longer open to other users"));
    let is_root = nix::unistd::geteuid().is_root();
    assert_eq!(daemon.log().contains("dq runs as root"), is_root);
}
