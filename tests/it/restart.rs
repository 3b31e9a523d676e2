//! Rolling restarts with real signals and real processes.

use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::support::steps::Steps;
use crate::support::{
    Daemon, SECOND, SLOTS, Sink, add, all_new, eventually, faulty, free_port, install, lives, on_redis,
    pending, takes, topic,
};
use cli::{HandlerAnswer, TcpClient};
use nix::sys::signal::Signal;
use nix::unistd::Pid;
use protocol::dq::Framing;

/// Clients that add about 2,000 jobs a second until `stop` is set. Half of them open a connection for each call, as the
/// Java client does. The other clients keep their connections, do not wait for each answer, and send frames in two
/// parts. Each add must be answered with success.
struct Load<'a> {
    daemon: &'a Daemon,
    stop: &'a AtomicBool,
    added: &'a AtomicUsize,
}

/// Sets its flag when it is dropped, so that other threads also end when an assertion fails.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl Load<'_> {
    const CLIENTS: u64 = 8;
    /// Each of the 8 clients adds 25 jobs every 100 ms: 2,000 jobs a second.
    const BATCH: u64 = 25;
    const PERIOD: Duration = Duration::from_millis(100);

    fn start<'s>(&'s self, scope: &'s std::thread::Scope<'s, '_>) {
        for c in 0..Self::CLIENTS {
            scope.spawn(move || {
                let framing = if c % 2 == 0 { Framing::Digits } else { Framing::Binary };
                let connect = || TcpClient::connect(self.daemon.address(), framing).expect("a connection");
                let mut kept = (c >= Self::CLIENTS / 2).then(connect);
                let (mut n, begun) = (0, Instant::now());
                while !self.stop.load(Ordering::Relaxed) {
                    let batch: Vec<_> =
                        (n..n + Self::BATCH).map(|i| add("t", &format!("{c}-{i}"), i % 30)).collect();
                    match &mut kept {
                        Some(client) => {
                            client
                                .send_in_pieces(&batch, if c % 4 < 2 { 1 } else { 2 })
                                .expect("a batch that is sent");
                            batch.iter().for_each(|request| self.taken(request, client.receive()));
                        }
                        None => batch.iter().for_each(|request| self.taken(request, connect().ask(request))),
                    }
                    n += Self::BATCH;
                    let next = begun + Self::PERIOD * (n / Self::BATCH) as u32;
                    std::thread::sleep(next.saturating_duration_since(Instant::now()));
                }
            });
        }
    }

    fn taken(&self, request: &serde_json::Value, answer: std::io::Result<serde_json::Value>) {
        let answer = answer.expect("an answer");
        assert_eq!(answer["code"], 1, "{request}: {answer}");
        self.added.fetch_add(1, Ordering::Relaxed);
    }

    /// Waits until 1,000 further adds have been accepted.
    fn goes_on(&self) {
        let so_far = self.added.load(Ordering::Relaxed);
        eventually(20 * SECOND, "further adds", || {
            (self.added.load(Ordering::Relaxed) >= so_far + 1000).then_some(())
        });
    }
}

#[test]
fn restarts_under_heavy_adds_lose_nothing_and_refuse_nobody() {
    let sink = Sink::start();
    let daemon = Daemon::start(&topic("t", &sink, ""));
    let first = daemon.wait_all_up(SLOTS);
    let master = daemon.pid();
    let (stop, added) = (AtomicBool::new(false), AtomicUsize::new(0));
    let load = Load { daemon: &daemon, stop: &stop, added: &added };
    std::thread::scope(|scope| {
        // If an assertion below fails, the clients end, too.
        let _stop = Stop(&stop);
        load.start(scope);
        // Three USR2 in a row, each after the previous restart, with one HUP between them.
        for signal in [Signal::SIGUSR2, Signal::SIGHUP, Signal::SIGUSR2, Signal::SIGUSR2] {
            let before = daemon.wait_all_up(SLOTS);
            load.goes_on();
            daemon.signal(signal);
            all_new(&daemon, &before);
        }
        // Then three signals close together: the second and the third signal lead to one more restart after the first
        // restart.
        let before = daemon.wait_all_up(SLOTS);
        for pause_ms in [5, 5, 0] {
            daemon.signal(Signal::SIGUSR2);
            std::thread::sleep(Duration::from_millis(pause_ms));
        }
        all_new(&daemon, &before);
        load.goes_on();
        stop.store(true, Ordering::Relaxed);
    });
    let last = daemon.wait_all_up(SLOTS);
    assert!(first.values().all(|old| last.values().all(|new| new != old)), "every child is new");
    assert_eq!(daemon.pid(), master);
    let added = added.load(Ordering::Relaxed);
    sink.wait_for(added, 20 * SECOND);
    let mut client = daemon.client();
    eventually(5 * SECOND, "an empty store", || (pending(&mut client, "t") == 0).then_some(()));
    assert_eq!(sink.count(), added, "each came once");
    assert!(sink.calls().iter().all(|c| c.late_ms().unwrap() >= 0), "none early");
    assert_eq!(daemon.status().unwrap()["renewal"]["refused"], serde_json::Value::Null);
}

#[test]
fn signals_in_quick_succession_are_one_more_restart() {
    let daemon = Daemon::start("");
    let before = daemon.wait_all_up(SLOTS);
    for signal in [Signal::SIGHUP, Signal::SIGUSR2, Signal::SIGHUP, Signal::SIGUSR2] {
        daemon.signal(signal);
    }
    all_new(&daemon, &before);
    eventually(20 * SECOND, "quiet", || {
        let log = daemon.log();
        let begun = log.matches("is started beside").count();
        (begun == log.matches("is ready; the older ones drain").count() && daemon.children().len() == SLOTS)
            .then_some(begun)
    });
    assert!(daemon.log().matches("is started beside").count() <= 3, "{}", daemon.log());
    daemon.wait_ready();
}

#[test]
fn a_restart_requested_while_an_executable_is_tried_follows_it() {
    let daemon = Daemon::start("");
    let before = daemon.wait_all_up(SLOTS);
    daemon.signal(Signal::SIGUSR2);
    eventually(5 * SECOND, "the try", || daemon.log().contains(" is tried (").then_some(()));
    // The signal goes to the old image. The new image does the restart.
    daemon.signal(Signal::SIGHUP);
    eventually(20 * SECOND, &format!("two restarts; log:\n{}", daemon.log()), || {
        (daemon.log().matches("is ready; the older ones drain").count() == 2).then_some(())
    });
    all_new(&daemon, &before);
    daemon.wait_all_up(SLOTS);
    assert_eq!(daemon.status().unwrap()["generation"], 3);
}

#[test]
fn a_callback_longer_than_drain_timeout_is_finished_once() {
    let sink = Sink::answering(|_| HandlerAnswer::new(200, "ok").after(3 * SECOND));
    let daemon =
        Daemon::start(&format!("drain_timeout = \"500ms\"\n{}", topic("t", &sink, "timeout = \"10s\"")));
    assert!(takes(&daemon, "t", "slow"));
    eventually(5 * SECOND, "the callback", || (sink.count() == 1).then_some(()));
    let before = daemon.wait_all_up(SLOTS);
    daemon.signal(Signal::SIGHUP);
    all_new(&daemon, &before);
    assert_eq!((sink.accepted(), sink.count()), (1, 1));
    let mut client = daemon.client();
    eventually(5 * SECOND, "an empty store", || (pending(&mut client, "t") == 0).then_some(()));
}

#[test]
fn hup_brings_new_topics_and_moves_ports() {
    let sink = Sink::start();
    let daemon = Daemon::start(&topic("t", &sink, ""));
    assert_eq!(daemon.client().ask(&add("u", "i", 0)).unwrap()["err"], "unknown_topic");
    let (before, new_port) = (daemon.wait_all_up(SLOTS), free_port());
    let config = topic("t", &sink, "") + &topic("u", &sink, "");
    Daemon::write_config(daemon.dir.path(), new_port, daemon.http, &config);
    daemon.signal(Signal::SIGHUP);
    all_new(&daemon, &before);
    let mut client =
        TcpClient::connect((std::net::Ipv4Addr::LOCALHOST, new_port).into(), Framing::Binary).unwrap();
    assert_eq!(client.ask(&add("u", "i", 0)).unwrap()["code"], 1);
    sink.wait_for(1, 5 * SECOND);
    eventually(5 * SECOND, "the end of the old port", || {
        TcpClient::connect(daemon.address(), Framing::Binary).is_err().then_some(())
    });
}

#[test]
fn an_impossible_restart_is_refused_and_a_later_one_works() {
    let sink = Sink::start();
    let good = topic("t", &sink, "");
    let daemon = Daemon::start(&good);
    let before = daemon.wait_all_up(SLOTS);
    let file = daemon.dir.path().join("dq.toml");
    let busy = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let busy_port = busy.local_addr().unwrap().port();
    let another_store =
        if on_redis() { "store.backend cannot be changed" } else { "store.path cannot be changed" };
    type Spoil<'a> = Box<dyn Fn() + 'a>;
    let dir = daemon.dir.path();
    let write = |port: u16, text: &str| Daemon::write_config(dir, port, daemon.http, text);
    let cases: Vec<(Spoil<'_>, &str)> = vec![
        (Box::new(|| std::fs::write(&file, "[server").unwrap()), "line 1"),
        (Box::new(|| std::fs::remove_file(&file).unwrap()), "cannot read"),
        (Box::new(|| write(daemon.port, "drain_timeout = \"soon\"\n")), "drain_timeout"),
        (Box::new(|| write(daemon.port, "run_dir = \"elsewhere\"\n")), "run_dir cannot be changed"),
        (Box::new(|| write(daemon.port, "[store]\npath = \"other.db\"\n")), another_store),
        (Box::new(|| write(busy_port, &good)), "address in use"),
        // The folder for logs is a file.
        (Box::new(|| write(daemon.port, "log_dir = \"dq.toml\"\n")), "cannot start the log in log_dir"),
        (Box::new(|| write(daemon.port, "log_dir = \"dq.toml\"\n")), "cannot start the log in log_dir"),
    ];
    for (n, (spoil, reason)) in cases.iter().enumerate() {
        spoil();
        let seen = daemon.log().matches(reason).count();
        daemon.signal(if n % 2 == 0 { Signal::SIGHUP } else { Signal::SIGUSR2 });
        eventually(10 * SECOND, &format!("{reason}; log:\n{}", daemon.log()), || {
            (daemon.log().matches(reason).count() > seen).then_some(())
        });
        // `dq status` also reports this.
        eventually(10 * SECOND, reason, || {
            daemon.status()?["renewal"]["refused"].as_str()?.contains(reason).then_some(())
        });
        eventually(10 * SECOND, "the old generation", || (daemon.children() == before).then_some(()));
        assert!(takes(&daemon, "t", &n.to_string()));
    }
    sink.wait_for(cases.len(), 5 * SECOND);
    write(daemon.port, &good);
    daemon.signal(Signal::SIGHUP);
    all_new(&daemon, &before);
    assert!(takes(&daemon, "t", "after"));
}

/// Returns a program that never ends, whatever its arguments are.
fn endless(dir: &Path) -> std::path::PathBuf {
    let (source, program) = (dir.join("endless.c"), dir.join("endless"));
    std::fs::write(&source, "#include <unistd.h>\nint main(void) { for (;;) pause(); }\n").unwrap();
    assert!(Command::new("cc").arg("-o").arg(&program).arg(&source).status().unwrap().success());
    program
}

#[test]
fn a_kept_connection_survives_restarts_with_its_pending_data() {
    let sink = Sink::start();
    let daemon = Daemon::start(&topic("t", &sink, ""));
    // A client that has sent nothing yet, a client that has sent half a frame, and a client that has not read its
    // answers.
    let mut silent = daemon.client();
    let mut half = daemon.client();
    let bytes = br#"0014{"cmd":"ping"}"#;
    let mut digits = TcpClient::connect(daemon.address(), Framing::Digits).unwrap();
    std::io::Write::write_all(&mut digits.stream, &bytes[..9]).unwrap();
    half.send(&[add("t", "before", 3_600_000)]).unwrap();
    let mut unread = daemon.client();
    unread.send(&vec![serde_json::json!({"cmd": "ping"}); 500]).unwrap();
    for signal in [Signal::SIGHUP, Signal::SIGUSR2] {
        let before = daemon.wait_all_up(SLOTS);
        daemon.signal(signal);
        all_new(&daemon, &before);
    }
    assert_eq!(silent.ask(&add("t", "after", 3_600_000)).unwrap()["code"], 1);
    std::io::Write::write_all(&mut digits.stream, &bytes[9..]).unwrap();
    assert_eq!(digits.receive().unwrap()["code"], 1);
    assert_eq!(half.receive().unwrap()["code"], 1);
    (0..500).for_each(|_| assert_eq!(unread.receive().unwrap()["code"], 1));
    assert_eq!(pending(&mut silent, "t"), 2);
}

#[test]
fn a_connection_with_a_large_frame_in_hand_is_passed_on_as_well() {
    let sink = Sink::start();
    let daemon = Daemon::start(&topic("t", &sink, ""));
    let mut clients: Vec<TcpClient> = (0..4).map(|_| daemon.client()).collect();
    let body = "x".repeat(900_000);
    for round in 0..3 {
        // Some bytes of each frame arrive before the next dq-server takes over. The other bytes arrive later.
        let frames: Vec<Vec<u8>> = (0..clients.len())
            .map(|c| {
                let id = format!("{round}-{c}");
                let json = serde_json::json!({"cmd": "add", "topic": "t", "id": id, "delay_ms": 3_600_000, "body": body});
                let mut bytes = Vec::new();
                assert!(Framing::Binary.append(json.to_string().as_bytes(), &mut bytes));
                bytes
            })
            .collect();
        for (client, frame) in clients.iter_mut().zip(&frames) {
            std::io::Write::write_all(&mut client.stream, &frame[..700_000]).unwrap();
        }
        let before = daemon.wait_all_up(SLOTS);
        daemon.signal(Signal::SIGHUP);
        all_new(&daemon, &before);
        for (client, frame) in clients.iter_mut().zip(&frames) {
            std::io::Write::write_all(&mut client.stream, &frame[700_000..]).unwrap();
            assert_eq!(client.receive().unwrap()["code"], 1);
        }
    }
    assert_eq!(pending(&mut clients[0], "t"), 12);
}

#[test]
fn the_old_server_answers_if_the_new_one_lacks_descriptors() {
    let sink = Sink::start();
    let daemon = Daemon::start(&topic("t", &sink, ""));
    let mut clients: Vec<TcpClient> = (0..60).map(|_| daemon.client()).collect();
    for client in &mut clients {
        assert_eq!(client.ask(&serde_json::json!({"cmd": "ping"})).unwrap()["code"], 1);
    }
    let before = daemon.wait_all_up(SLOTS);
    // The old server is stopped. It continues only when the new server has room for few connections.
    let old = before["dq-server"];
    nix::sys::signal::kill(old, Signal::SIGSTOP).unwrap();
    daemon.signal(Signal::SIGHUP);
    let new = eventually(10 * SECOND, "the new dq-server", || {
        daemon.processes().into_iter().find(|pid| {
            *pid != old
                && std::fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|c| c.trim() == "dq-server")
        })
    });
    eventually(10 * SECOND, "the new generation", || {
        daemon.log().contains("is ready; the older").then_some(())
    });
    let limit =
        Command::new("prlimit").args(["--pid", &new.to_string(), "--nofile=40:20000"]).status().unwrap();
    assert!(limit.success());
    let requests: Vec<_> = (0..clients.len()).map(|c| add("t", &c.to_string(), 3_600_000)).collect();
    for (client, request) in clients.iter_mut().zip(&requests) {
        client.send(std::slice::from_ref(request)).unwrap();
    }
    nix::sys::signal::kill(old, Signal::SIGCONT).unwrap();
    // Each request is answered once, by the old server or by the new server.
    for client in &mut clients {
        assert_eq!(client.receive().unwrap()["code"], 1, "{}", daemon.log());
    }
    // The old server may pass its connections on after it has answered. So the limit stays until it has ended.
    eventually(20 * SECOND, "the end of the old one", || (!lives(old)).then_some(()));
    let limit =
        Command::new("prlimit").args(["--pid", &new.to_string(), "--nofile=20000:20000"]).status().unwrap();
    assert!(limit.success());
    let log = daemon.log();
    let alive = |client: &mut TcpClient| {
        client.ask(&serde_json::json!({"cmd": "ping"})).is_ok_and(|a| a["code"] == 1)
    };
    let kept = clients.iter_mut().filter_map(|c| alive(c).then_some(())).count();
    assert!(log.contains("is not taken over: its socket did not arrive"), "{log}");
    assert!((1..60).contains(&kept), "{kept} went over, the others were closed after their answers");
    let mut client = daemon.client();
    assert_eq!(pending(&mut client, "t"), 60);
}

#[test]
fn a_moved_port_is_released_while_a_callback_still_runs() {
    let sink = Sink::answering(|_| HandlerAnswer::new(200, "ok").after(4 * SECOND));
    let daemon = Daemon::start(&topic("t", &sink, "timeout = \"20s\""));
    assert!(takes(&daemon, "t", "slow"));
    eventually(5 * SECOND, "the callback", || (sink.count() == 1).then_some(()));
    daemon.wait_all_up(SLOTS);
    let new_port = free_port();
    Daemon::write_config(daemon.dir.path(), new_port, daemon.http, &topic("t", &sink, "timeout = \"20s\""));
    daemon.signal(Signal::SIGHUP);
    eventually(3 * SECOND, "the end of the old port", || {
        TcpClient::connect(daemon.address(), Framing::Binary).is_err().then_some(())
    });
    assert_eq!(sink.accepted(), 0, "the callback still runs");
    eventually(10 * SECOND, "its end", || (sink.accepted() == 1).then_some(()));
}

#[test]
fn a_disabled_port_drains_its_connections_without_delay() {
    let sink = Sink::start();
    let daemon = Daemon::start(&topic("t", &sink, ""));
    let mut clients: Vec<TcpClient> = (0..100).map(|_| daemon.client()).collect();
    assert_eq!(clients[0].ask(&add("t", "i", 3_600_000)).unwrap()["code"], 1);
    let server = daemon.child("dq-server");
    let text = std::fs::read_to_string(daemon.dir.path().join("dq.toml")).unwrap();
    let port = format!("listen = \"127.0.0.1:{}\"", daemon.port);
    std::fs::write(daemon.dir.path().join("dq.toml"), text.replace(&port, "listen = \"\"")).unwrap();
    daemon.signal(Signal::SIGHUP);
    eventually(5 * SECOND, "the end of dq-server", || (!lives(server)).then_some(()));
    for client in &mut clients {
        assert_eq!(std::io::Read::read(&mut client.stream, &mut [0; 1]).unwrap_or(0), 0);
    }
    eventually(5 * SECOND, "six processes", || (daemon.children().len() == SLOTS - 1).then_some(()));
}

fn executable_of(pid: Pid) -> String {
    std::fs::read_link(format!("/proc/{pid}/exe")).unwrap().display().to_string()
}

#[test]
fn usr2_runs_the_newest_executable_unless_it_is_broken() {
    let sink = Sink::start();
    let dir = Arc::new(tempfile::tempdir().unwrap());
    let program = dir.path().join("dq-master");
    // A file that is being written cannot be executed. So the new file gets its name when it is complete.
    let install = |from: &Path| {
        let draft = dir.path().join("draft");
        std::fs::copy(from, &draft).unwrap();
        std::fs::rename(draft, &program).unwrap();
    };
    let own = Path::new(env!("CARGO_BIN_EXE_dq"));
    install(own);
    let (port, http) = (free_port(), free_port());
    Daemon::write_config(
        dir.path(),
        port,
        http,
        &format!("start_timeout = \"6s\"\n{}", topic("t", &sink, "")),
    );
    let mut command = Command::new(&program);
    command.arg("--config").arg(dir.path().join("dq.toml"));
    let daemon = Daemon::run(Arc::clone(&dir), port, http, command);
    daemon.wait_ready();
    let before = daemon.wait_all_up(SLOTS);
    let master = daemon.pid();
    // Four bad executables: a program that refuses, a program that accepts everything, a file that cannot be executed,
    // and a program that does not end.
    let script = |name: &str, text: &str| {
        let path = dir.path().join(name);
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        path
    };
    let refusals = [
        (Path::new("/bin/false").to_owned(), "ended with code 1"),
        (Path::new("/bin/true").to_owned(), "ended with code 0, and does not say that it is dq"),
        (script("text", "no program"), "is no executable of dq"),
        (script("script", "#!/bin/sh\n"), "is no executable of dq"),
        (endless(dir.path()), "is given up: it has not come to an end in time"),
    ];
    for (program, reason) in &refusals {
        install(program);
        daemon.signal(Signal::SIGUSR2);
        eventually(10 * SECOND, reason, || daemon.log().contains(reason).then_some(()));
        eventually(10 * SECOND, reason, || {
            daemon.status()?["renewal"]["refused"].as_str()?.contains(reason).then_some(())
        });
        eventually(10 * SECOND, "the old generation", || (daemon.children() == before).then_some(()));
    }
    // A child that dies now is started again from the old executable.
    daemon.kill_child("dq-consume-0");
    assert!(executable_of(daemon.child("dq-consume-0")).contains("deleted"));
    let before = daemon.wait_all_up(SLOTS);
    install(own);
    daemon.signal(Signal::SIGUSR2);
    for pid in all_new(&daemon, &before).values() {
        assert_eq!(executable_of(*pid), program.display().to_string());
    }
    assert_eq!(executable_of(master), program.display().to_string(), "the master has gone over too");
    let comm = std::fs::read_to_string(format!("/proc/{master}/comm")).unwrap();
    assert_eq!(comm.trim(), "dq-master");
    assert!(daemon.log().contains("has taken the process over"));
    // Each further upgrade hands over the same things again, including the lock and the sockets.
    let descriptors = || std::fs::read_dir(format!("/proc/{master}/fd")).unwrap().count();
    let count = descriptors();
    for _ in 0..3 {
        let before = daemon.wait_all_up(SLOTS);
        daemon.signal(Signal::SIGUSR2);
        all_new(&daemon, &before);
    }
    eventually(5 * SECOND, "as many descriptors as before", || (descriptors() <= count).then_some(()));
    let held = host::RunDirLock::take(&dir.path().join("var/run"), Duration::ZERO).unwrap_err().to_string();
    assert!(held.contains(&format!("pid {master}")), "{held}");
    assert!(takes(&daemon, "t", "after"));
    sink.wait_for(1, 5 * SECOND);
}

#[test]
fn usr2_after_a_change_of_a_link_runs_the_old_release() {
    let dir = Arc::new(tempfile::tempdir().unwrap());
    let (port, http) = (free_port(), free_port());
    Daemon::write_config(dir.path(), port, http, "");
    let releases = ["one", "two"].map(|name| dir.path().join(name));
    for release in &releases {
        std::fs::create_dir(release).unwrap();
        install(release, &faulty());
    }
    let current = dir.path().join("current");
    symlink(&releases[0], &current).unwrap();
    let mut command = Command::new(current.join("dq-master"));
    command.arg("--config").arg(dir.path().join("dq.toml"));
    let daemon = Daemon::run(Arc::clone(&dir), port, http, command);
    daemon.wait_ready();
    let before = daemon.wait_all_up(SLOTS);
    std::fs::remove_file(&current).unwrap();
    symlink(&releases[1], &current).unwrap();
    daemon.signal(Signal::SIGUSR2);
    all_new(&daemon, &before);
    let log = daemon.log();
    assert!(log.contains("one/dq-master has not changed, so only the configuration is new"), "{log}");

    let before = daemon.wait_all_up(SLOTS);
    install(&releases[0], &faulty());
    daemon.signal(Signal::SIGUSR2);
    all_new(&daemon, &before);
    assert_eq!(daemon.log().matches("has not changed").count(), 1, "{}", daemon.log());
}

/// In the old release, dq-master contained all of dq. In the new release, dq-master executes the `dq` beside it.
#[test]
fn usr2_goes_over_to_the_dq_beside_a_new_dq_master() {
    // Without a fault, `faulty` works like a dq-master of the previous release.
    let daemon = Daemon::spawn_copy_of(&faulty(), "");
    daemon.wait_ready();
    let (dir, master) = (daemon.dir.path(), daemon.pid());
    let before = daemon.wait_all_up(SLOTS);
    install(dir, Path::new(env!("CARGO_BIN_EXE_dq-master")));
    daemon.signal(Signal::SIGUSR2);
    let reason = "ended with code 127";
    eventually(10 * SECOND, reason, || {
        daemon.status()?["renewal"]["refused"].as_str()?.contains(reason).then_some(())
    });
    assert_eq!(daemon.wait_all_up(SLOTS), before, "without the dq beside it nothing changes");

    std::fs::copy(env!("CARGO_BIN_EXE_dq"), dir.join("dq")).unwrap();
    // A signal is not lost and ends no process, even if it comes after the new dq-master was executed and before `dq`
    // is executed.
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                daemon.signal(Signal::SIGUSR1);
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        let _stop = Stop(&is_over);
        for _ in 0..3 {
            let before = daemon.wait_all_up(SLOTS);
            daemon.signal(Signal::SIGUSR2);
            all_new(&daemon, &before);
        }
    });
    assert_eq!(daemon.pid(), master);
    for pid in daemon.wait_all_up(SLOTS).into_values().chain([master]) {
        assert_eq!(executable_of(pid), dir.join("dq").display().to_string());
    }
}

/// If the new `dq` works but the new dq-master does not, the daemon would continue after an upgrade, but its next start
/// would fail.
#[test]
fn usr2_refuses_a_new_dq_whose_dq_master_does_not_work() {
    let (dir, port, http) = (Arc::new(tempfile::tempdir().unwrap()), free_port(), free_port());
    std::fs::copy(env!("CARGO_BIN_EXE_dq"), dir.path().join("dq")).unwrap();
    install(dir.path(), Path::new(env!("CARGO_BIN_EXE_dq-master")));
    Daemon::write_config(dir.path(), port, http, "");
    let daemon = Daemon::run_copy(Arc::clone(&dir), port, http);
    daemon.wait_ready();
    let before = daemon.wait_all_up(SLOTS);
    let broken = dir.path().join("broken");
    std::fs::write(&broken, &std::fs::read(env!("CARGO_BIN_EXE_dq-master")).unwrap()[..4096]).unwrap();
    install(dir.path(), &broken);
    daemon.signal(Signal::SIGUSR2);
    eventually(10 * SECOND, &format!("a refusal; log:\n{}", daemon.log()), || {
        let status = daemon.status()?;
        let why = status["renewal"]["refused"].as_str()?;
        (why.contains("cannot execute ") && why.contains("/dq-master: ")).then_some(())
    });
    assert_eq!(daemon.wait_all_up(SLOTS), before, "nothing has changed");
    install(dir.path(), Path::new(env!("CARGO_BIN_EXE_dq-master")));
    daemon.signal(Signal::SIGUSR2);
    all_new(&daemon, &before);
}

#[test]
fn ttin_and_ttou_change_the_consumers_and_a_restart_keeps_that() {
    let daemon = Daemon::start("");
    let consumers = || daemon.children().keys().filter(|n| n.starts_with("dq-consume")).count();
    let wait =
        |n: usize| eventually(10 * SECOND, &format!("{n} consumers"), || (consumers() == n).then_some(()));
    wait(2);
    daemon.signal(Signal::SIGTTIN);
    wait(3);
    let before = daemon.children();
    daemon.signal(Signal::SIGHUP);
    all_new(&daemon, &before);
    wait(3);
    for n in [2, 1] {
        daemon.signal(Signal::SIGTTOU);
        wait(n);
    }
    daemon.signal(Signal::SIGTTOU);
    eventually(5 * SECOND, "a refusal", || {
        daemon.log().contains("the last one is not removed").then_some(())
    });
    assert_eq!(consumers(), 1);
    daemon.signal(Signal::SIGTTIN);
    wait(2);
}

#[test]
fn usr1_opens_the_log_files_anew() {
    let daemon = Daemon::start("log_dir = \"logs\"\n");
    let logs = daemon.dir.path().join("logs");
    let main_log = || {
        let entries = std::fs::read_dir(&logs).unwrap().flatten();
        entries.map(|e| e.path()).find(|p| p.file_name().unwrap().to_string_lossy().starts_with("dq_"))
    };
    let file = main_log().unwrap();
    std::fs::rename(&file, logs.join("moved.txt")).unwrap();
    daemon.signal(Signal::SIGUSR1);
    eventually(5 * SECOND, "a new file", || file.exists().then_some(()));
    // The children use the new file too: it contains what they log during a drain.
    let before = daemon.wait_all_up(SLOTS);
    daemon.signal(Signal::SIGHUP);
    all_new(&daemon, &before);
    eventually(5 * SECOND, "the children's lines", || {
        let text = std::fs::read_to_string(&file).unwrap();
        ["dq-server", "dq-consume-0", "dq-timer-0"]
            .iter()
            .all(|name| text.contains(&format!("{name}[{}] draining", before[*name])))
            .then_some(())
    });
}

#[test]
fn term_overrides_a_restart_that_is_under_way() {
    let sink = Sink::answering(|_| HandlerAnswer::new(200, "ok").after(Duration::from_secs(2)));
    let mut daemon = Daemon::start(&topic("t", &sink, "timeout = \"10s\""));
    assert!(takes(&daemon, "t", "slow"));
    eventually(5 * SECOND, "the callback", || (sink.count() == 1).then_some(()));
    daemon.signal(Signal::SIGHUP);
    daemon.signal(Signal::SIGTERM);
    assert!(daemon.wait_exit(10 * SECOND).success());
    assert_eq!(sink.accepted(), 1, "the callback in flight is finished");
    assert!(daemon.children().is_empty());
    assert!(!daemon.dir.path().join("var/run/http.sock").exists(), "no stale socket");
}

#[test]
fn a_faulty_image_is_given_up_and_a_later_good_one_is_used() {
    let sink = Sink::start();
    let more = format!("start_timeout = \"2s\"\n{}", topic("t", &sink, ""));
    let own = Path::new(env!("CARGO_BIN_EXE_dq"));
    let daemon = Daemon::spawn_copy_of(own, &more);
    daemon.wait_ready();
    let before = daemon.wait_all_up(SLOTS);
    let (dir, master) = (daemon.dir.path(), daemon.pid());
    let mut kept = daemon.client();
    install(dir, &faulty());
    let faults = [
        ("version", "the hand-over has version 999, and this executable understands 1"),
        ("adopt", "has given the process back: the hand-over has version 999"),
        ("unready", "not ready within start_timeout: dq-timer-0, dq-timer-1, dq-consume-0"),
    ];
    for (n, (fault, reason)) in faults.into_iter().enumerate() {
        std::fs::write(dir.join("fault"), fault).unwrap();
        daemon.signal(Signal::SIGUSR2);
        eventually(20 * SECOND, &format!("{reason}; log:\n{}", daemon.log()), || {
            daemon.status()?["renewal"]["refused"].as_str()?.contains(reason).then_some(())
        });
        assert!(daemon.log().contains(reason), "{}", daemon.log());
        eventually(20 * SECOND, "the old generation alone", || (daemon.children() == before).then_some(()));
        assert_eq!(kept.ask(&add("t", &format!("kept-{n}"), 0)).unwrap()["code"], 1);
        assert!(takes(&daemon, "t", &n.to_string()));
    }
    install(dir, own);
    daemon.signal(Signal::SIGUSR2);
    let new = all_new(&daemon, &before);
    daemon.wait_all_up(SLOTS);
    assert_eq!(daemon.status().unwrap()["renewal"]["refused"], serde_json::Value::Null);
    for pid in new.values().chain([&master]) {
        assert_eq!(executable_of(*pid), dir.join("dq-master").display().to_string());
    }
    assert_eq!(kept.ask(&add("t", "after", 0)).unwrap()["code"], 1);
    sink.wait_for(2 * faults.len() + 1, 10 * SECOND);
}

/// Checks what must hold after a process has died in an upgrade: there is one set of children under one master, no
/// other process is left, every accepted job is delivered, and no socket is left at the end.
fn all_is_well(daemon: &mut Daemon, sink: &Sink, taken: usize, story: &str) {
    let children = daemon.wait_all_up(SLOTS);
    eventually(30 * SECOND, &format!("no orphan: {story}; log:\n{}", daemon.log()), || {
        (daemon.processes().len() == SLOTS + 1).then_some(())
    });
    assert_eq!(daemon.children(), children, "{story}");
    sink.wait_for(taken, 30 * SECOND);
    let mut client = daemon.client();
    eventually(30 * SECOND, "an empty store", || (pending(&mut client, "t") == 0).then_some(()));
    drop(client);
    daemon.stop();
    assert_eq!(daemon.processes(), [], "{story}");
    let run_dir = daemon.dir.path().join("var/run");
    let is_socket = |path: &Path| {
        std::os::unix::fs::FileTypeExt::is_socket(&std::fs::metadata(path).unwrap().file_type())
    };
    let mut folders = vec![run_dir];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            assert!(!is_socket(&path), "{story}: {} is left", path.display());
            folders.extend(path.is_dir().then_some(path));
        }
    }
}

/// Adds jobs until `stop` is set. The client reconnects when its connection breaks. Returns how many jobs were
/// accepted.
fn add_through_it_all(address: std::net::SocketAddr, stop: &AtomicBool) -> usize {
    let (mut taken, mut client) = (0, None);
    while !stop.load(Ordering::Relaxed) {
        let connection = match &mut client {
            Some(connection) => connection,
            none => match TcpClient::connect(address, Framing::Binary) {
                Ok(connection) => none.insert(connection),
                Err(_) => continue,
            },
        };
        match connection.ask(&add("t", &format!("job-{taken}"), taken as u64 % 20)) {
            Ok(answer) if answer["code"] == 1 => taken += 1,
            Ok(_) => {}
            Err(_) => client = None,
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    taken
}

/// Returns how many crashes of each kind a run tries. Use `CRASHES=500` for a long campaign.
fn crashes() -> u64 {
    std::env::var("CRASHES").ok().and_then(|n| n.parse().ok()).unwrap_or(6)
}

fn seed() -> u64 {
    std::env::var("CRASH_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or_else(|| fastrand::u64(..))
}

#[test]
fn a_master_killed_during_an_upgrade_leaves_a_working_one() {
    let seed = seed();
    let mut rng = fastrand::Rng::with_seed(seed);
    let sink = Sink::start();
    let config = topic("t", &sink, "");
    // Counts the system calls of an upgrade.
    let steps = {
        let daemon = Daemon::start(&config);
        daemon.wait_all_up(SLOTS);
        let mut steps = Steps::of(daemon.pid());
        daemon.signal(Signal::SIGUSR2);
        steps.run(None)
    };
    assert!(steps > 500, "{steps}");
    for _ in 0..crashes() {
        let at = rng.u64(1..=steps);
        let story = format!("CRASH_SEED={seed}: killed at system call {at} of {steps}");
        let sink = Sink::start();
        let mut old = Daemon::start(&topic("t", &sink, ""));
        old.wait_all_up(SLOTS);
        let stop = AtomicBool::new(false);
        let taken = std::thread::scope(|scope| {
            let adding = scope.spawn(|| add_through_it_all(old.address(), &stop));
            let mut traced = Steps::of(old.pid());
            old.signal(Signal::SIGUSR2);
            traced.run(Some(at));
            let mut new = Daemon::again(&old);
            // When the new daemon is ready, the client stops. All jobs that it has added must be delivered.
            new.wait_ready();
            stop.store(true, Ordering::Relaxed);
            let taken = adding.join().unwrap();
            all_is_well(&mut new, &sink, taken, &story);
            taken
        });
        assert!(taken > 0, "{story}");
        old.forget_master();
    }
}

#[test]
fn children_that_are_killed_during_an_upgrade_cost_nothing() {
    let seed = seed();
    let mut rng = fastrand::Rng::with_seed(seed);
    for _ in 0..crashes() {
        let sink = Sink::start();
        let mut daemon = Daemon::start(&topic("t", &sink, ""));
        let before = daemon.wait_all_up(SLOTS);
        let stop = AtomicBool::new(false);
        let (delay_ms, of_the_new) = (rng.u64(0..150), rng.bool());
        let story = format!(
            "CRASH_SEED={seed}: after {delay_ms} ms, one of the {}",
            if of_the_new { "new" } else { "old" }
        );
        let taken = std::thread::scope(|scope| {
            let adding = scope.spawn(|| add_through_it_all(daemon.address(), &stop));
            daemon.signal(Signal::SIGUSR2);
            std::thread::sleep(Duration::from_millis(delay_ms));
            let all: Vec<Pid> = daemon
                .processes()
                .into_iter()
                .filter(|pid| *pid != daemon.pid() && before.values().any(|old| old == pid) != of_the_new)
                .collect();
            if let Some(victim) = rng.choice(all) {
                let _ = nix::sys::signal::kill(victim, Signal::SIGKILL);
            }
            daemon.wait_all_up(SLOTS);
            stop.store(true, Ordering::Relaxed);
            adding.join().unwrap()
        });
        // After each outcome, an upgrade to a good image works.
        let now = daemon.wait_all_up(SLOTS);
        daemon.signal(Signal::SIGUSR2);
        all_new(&daemon, &now);
        all_is_well(&mut daemon, &sink, taken, &story);
    }
}
