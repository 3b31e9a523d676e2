//! What dq-master does for its children and its clients: signs of life, `dq status`, `watch_config`, systemd.

use std::net::TcpListener;
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixDatagram;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::support::{
    Daemon, SECOND, SLOTS, Sink, add, all_new, children_of, eventually, faulty, free_port, install, now_ms,
    on_redis, pending, takes, topic,
};
use cli::{HandlerAnswer, TcpClient};
use nix::sys::signal::{Signal, kill};
use protocol::dq::Framing;
use serde_json::Value;

fn process<'a>(status: &'a Value, name: &str) -> &'a Value {
    let processes = status["processes"].as_array().unwrap();
    // `ps` shows only the first 15 bytes of a name.
    processes
        .iter()
        .find(|p| p["name"].as_str().unwrap().starts_with(name))
        .unwrap_or_else(|| panic!("no {name} in {status}"))
}

#[test]
fn a_stopped_child_is_replaced_and_the_others_are_left_alone() {
    let sink = Sink::start();
    let daemon = Daemon::start(&format!("watchdog = \"1s\"\n{}", topic("t", &sink, "")));
    let mut before = daemon.wait_all_up(SLOTS);
    let names: Vec<String> = before.keys().cloned().collect();
    for (n, name) in names.iter().enumerate() {
        let old = before[name];
        kill(old, Signal::SIGSTOP).unwrap();
        eventually(10 * SECOND, &format!("another {name}"), || {
            daemon.children().get(name).copied().filter(|new| *new != old)
        });
        let after = daemon.wait_all_up(SLOTS);
        let same = after.iter().filter(|(name, pid)| before[*name] == **pid).count();
        assert_eq!(same, SLOTS - 1, "one is new; log:\n{}", daemon.log());
        let status = daemon.status().unwrap();
        let replaced = process(&status, name);
        assert_eq!(replaced["restarts"], 1, "{status}");
        let reason = replaced["last_end"]["reason"].as_str().unwrap();
        assert!(reason.contains("SIGKILL: silent for 1s, stopped"), "{reason}");
        assert!(takes(&daemon, "t", &n.to_string()));
        before = after;
    }
    sink.wait_for(names.len(), 5 * SECOND);
}

/// Puts a file in the place of a folder, so that the folder cannot be made again.
fn lose_folder(path: &Path) {
    std::fs::rename(path, path.with_extension("moved")).unwrap();
    std::fs::write(path, "").unwrap();
}

#[test]
fn a_child_starts_again_without_the_folder_of_its_log() {
    let sink = Sink::start();
    let daemon = Daemon::start(&format!("log_dir = \"logs\"\n{}", topic("t", &sink, "")));
    daemon.wait_all_up(SLOTS);
    lose_folder(&daemon.dir.path().join("logs"));
    daemon.kill_child("dq-consume-0");
    daemon.wait_all_up(SLOTS);
    let log = daemon.log();
    assert!(log.contains("dq-consume-0") && log.contains("logging to stderr"), "{log}");
    assert!(takes(&daemon, "t", "a"));
    sink.wait_for(1, 5 * SECOND);
}

#[test]
fn a_daemon_that_cannot_log_anywhere_continues_to_serve() {
    let (sink, dir) = (Sink::start(), Arc::new(tempfile::tempdir().unwrap()));
    let (port, http) = (free_port(), free_port());
    let config = format!("log_dir = \"logs\"\n{}", topic("t", &sink, ""));
    Daemon::write_config(dir.path(), port, http, &config);
    // Each write to this stderr fails.
    let script = "exec \"$1\" --config \"$2\" 2> /dev/full";
    let mut command = Command::new("sh");
    command.args(["-c", script, "sh", env!("CARGO_BIN_EXE_dq-master")]).arg(dir.path().join("dq.toml"));
    let daemon = Daemon::run(Arc::clone(&dir), port, http, command);
    daemon.wait_ready();
    let before = daemon.wait_all_up(SLOTS);
    lose_folder(&dir.path().join("logs"));
    // The master and its children close their log files, and cannot open others.
    daemon.signal(Signal::SIGUSR1);
    daemon.kill_child("dq-consume-0");
    assert!(takes(&daemon, "t", "a"));
    sink.wait_for(1, 5 * SECOND);
    let after = daemon.wait_all_up(SLOTS);
    let same = after.iter().filter(|(name, pid)| before[*name] == **pid).count();
    assert_eq!(same, SLOTS - 1, "only the consumer that was killed is new");
}

#[test]
fn a_process_that_cannot_be_started_is_reported() {
    let daemon = Daemon::spawn_copy_of(&faulty(), "[alert]\ngather = \"1s\"\n");
    daemon.wait_all_up(SLOTS);
    let program = daemon.dir.path().join("dq-master");
    let set_mode = |mode| std::fs::set_permissions(&program, PermissionsExt::from_mode(mode)).unwrap();
    set_mode(0o644);
    kill(daemon.child("dq-consume-0"), Signal::SIGKILL).unwrap();
    eventually(20 * SECOND, &format!("the finding; log:\n{}", daemon.log()), || {
        let status = daemon.status()?;
        let findings = status["findings"].as_array()?;
        let finding = findings.iter().find(|finding| finding["name"] == "process_restarting")?;
        assert_eq!(finding["process"], "dq-consume-0");
        finding["detail"].as_str()?.contains("cannot start dq-consume-0").then_some(())
    });
    set_mode(0o755);
    daemon.wait_all_up(SLOTS);
}

#[test]
fn a_child_that_spins_hangs_or_does_not_listen_is_replaced() {
    let cases =
        [("spin", "running"), ("hang", "waiting for something else"), ("deaf", "waiting for something else")];
    std::thread::scope(|scope| {
        for (fault, words) in cases {
            scope.spawn(move || {
                let sink = Sink::start();
                let dir = Arc::new(tempfile::tempdir().unwrap());
                install(dir.path(), &faulty());
                std::fs::write(dir.path().join("fault"), format!("{fault} dq-consume-0")).unwrap();
                let (port, http) = (free_port(), free_port());
                let config = format!("watchdog = \"1s\"\n{}", topic("t", &sink, ""));
                Daemon::write_config(dir.path(), port, http, &config);
                let daemon = Daemon::run_copy(Arc::clone(&dir), port, http);
                daemon.wait_ready();
                assert!(takes(&daemon, "t", "meanwhile"));
                sink.wait_for(1, 5 * SECOND);
                let why = format!("silent for 1s, {words}");
                eventually(10 * SECOND, &format!("{why}; log:\n{}", daemon.log()), || {
                    daemon.log().contains(&why).then_some(())
                });
                std::fs::remove_file(dir.path().join("fault")).unwrap();
                // The next child has no fault. One more faulty child may have been started before it.
                daemon.wait_all_up(SLOTS);
                let quiet = daemon.children();
                eventually(10 * SECOND, "two seconds without an end", || {
                    let since = process(&daemon.status()?, "dq-consume-0")["started_ms"].as_i64()?;
                    (now_ms() - since > 2500).then_some(())
                });
                assert!(daemon.children().len() == quiet.len());
            });
        }
    });
}

#[test]
fn idleness_long_callbacks_and_long_drains_are_no_silence() {
    let sink = Sink::answering(|_| HandlerAnswer::new(200, "ok").after(4 * SECOND));
    let daemon = Daemon::start(&format!("watchdog = \"1s\"\n{}", topic("t", &sink, "timeout = \"20s\"")));
    let before = daemon.wait_all_up(SLOTS);
    assert!(takes(&daemon, "t", "slow"));
    eventually(5 * SECOND, "the callback", || (sink.count() == 1).then_some(()));
    eventually(10 * SECOND, "its end", || (sink.accepted() == 1).then_some(()));
    assert_eq!(daemon.children(), before, "{}", daemon.log());
    assert!(takes(&daemon, "t", "slower"));
    eventually(5 * SECOND, "the callback", || (sink.count() == 2).then_some(()));
    daemon.signal(Signal::SIGHUP);
    all_new(&daemon, &before);
    assert_eq!((sink.accepted(), sink.count()), (2, 2));
    assert!(!daemon.log().contains("silent"), "{}", daemon.log());
}

#[test]
fn time_in_which_the_master_did_not_run_does_not_count() {
    let daemon = Daemon::start("watchdog = \"1s\"\n");
    let before = daemon.wait_all_up(SLOTS);
    daemon.signal(Signal::SIGSTOP);
    before.values().for_each(|pid| kill(*pid, Signal::SIGSTOP).unwrap());
    let until = now_ms() + 3000;
    eventually(5 * SECOND, "three seconds", || (now_ms() > until).then_some(()));
    // The master continues first. When it checks its children, none of them has answered.
    daemon.signal(Signal::SIGCONT);
    eventually(5 * SECOND, "an answer of the master", || daemon.status());
    before.values().for_each(|pid| kill(*pid, Signal::SIGCONT).unwrap());
    let until = now_ms() + 2000;
    eventually(5 * SECOND, "two seconds", || (now_ms() > until).then_some(()));
    assert_eq!(daemon.children(), before, "{}", daemon.log());
}

#[test]
fn a_process_with_an_overdue_worker_is_drained_and_replaced() {
    if on_redis() {
        return; // This test is about the embedded store's turn.
    }
    let sink = Sink::start();
    let daemon = Daemon::start(&format!("watchdog = \"1s\"\n{}", topic("t", &sink, "")));
    let before = daemon.wait_all_up(SLOTS);
    // Another process holds the store's turn. The submit thread waits, and the main loop does not.
    let turn = std::fs::File::open(daemon.dir.path().join("var/dq.db-turn")).unwrap();
    turn.lock().unwrap();
    let mut client = daemon.client();
    let answer = client.ask(&add("t", "i", 3_600_000)).unwrap();
    assert_eq!(answer["err"], "unknown", "{answer}");
    eventually(10 * SECOND, "news of it", || {
        let status = daemon.status()?;
        (process(&status, "dq-server")["overdue_ms"].as_u64()? > 0).then_some(())
    });
    let old = before["dq-server"];
    turn.unlock().unwrap();
    // The process may have been replaced before the turn was free, or may continue after that. No process may be stuck.
    daemon.wait_all_up(SLOTS);
    eventually(10 * SECOND, "a job that is taken", || takes(&daemon, "t", "after").then_some(()));
    turn.lock().unwrap();
    let mut client = daemon.client();
    assert_eq!(client.ask(&add("t", "j", 3_600_000)).unwrap()["err"], "unknown");
    eventually(15 * SECOND, "another dq-server", || {
        daemon.children().get("dq-server").copied().filter(|new| *new != old)
    });
    assert!(daemon.log().contains("one of its workers is past its deadline"), "{}", daemon.log());
    turn.unlock().unwrap();
    daemon.wait_all_up(SLOTS);
    eventually(10 * SECOND, "a job that is taken", || takes(&daemon, "t", "at last").then_some(()));
}

#[test]
fn dq_status_tells_what_there_is_and_what_has_happened() {
    let daemon = Daemon::start("instance = \"host-a\"\n");
    daemon.wait_all_up(SLOTS);
    daemon.kill_child("dq-timer-1");
    let children = daemon.wait_all_up(SLOTS);
    let status = daemon.status().unwrap();
    assert_eq!((&status["instance"], &status["generation"]), (&"host-a".into(), &1.into()));
    assert_eq!(status["pid"], daemon.pid().as_raw());
    assert!(now_ms() - status["started_ms"].as_i64().unwrap() < 60_000);
    for (name, pid) in &children {
        let p = process(&status, name);
        assert_eq!((&p["pid"], &p["state"]), (&pid.as_raw().into(), &"up".into()));
        assert!(p["memory_bytes"].as_u64().unwrap() > 100_000, "{p}");
        assert!(p["cpu_ms"].as_u64().is_some() && p["overdue_ms"] == 0, "{p}");
        assert_eq!(p["restarts"], u32::from(name == "dq-timer-1"), "{p}");
    }
    assert_eq!(process(&status, "dq-timer-1")["last_end"]["reason"], "was ended by SIGKILL");
    let listening = status["listening"].to_string();
    assert!(listening.contains(&format!("127.0.0.1:{}", daemon.port)), "{listening}");

    // All of this survives a restart, also into another executable.
    daemon.signal(Signal::SIGUSR2);
    all_new(&daemon, &children);
    daemon.wait_all_up(SLOTS);
    let after = daemon.status().unwrap();
    assert_eq!((&after["generation"], &after["started_ms"]), (&2.into(), &status["started_ms"]));
    assert_eq!(
        (&after["renewal"]["kind"], &after["renewal"]["refused"]),
        (&"executable".into(), &Value::Null)
    );
    assert_eq!(process(&after, "dq-timer-1")["restarts"], 1);

    // `dq status` prints a text for people. If no master runs, the command says so.
    let dq = |run_dir: &Path| {
        Command::new(env!("CARGO_BIN_EXE_dq")).arg("status").arg("--run-dir").arg(run_dir).output().unwrap()
    };
    let run_dir = daemon.dir.path().join("var/run");
    let out = dq(&run_dir);
    let text = String::from_utf8(out.stdout).unwrap();
    assert!(out.status.success(), "{text}");
    assert!(text.contains("generation 2, steady") && text.contains("dq-redis-checker"), "{text}");
    assert!(text.contains("dq-timer-1,") && text.contains("was ended by SIGKILL"), "{text}");
    let nobody = dq(daemon.dir.path());
    assert_eq!(nobody.status.code(), Some(1));
    let said = String::from_utf8(nobody.stderr).unwrap();
    assert!(said.contains("no dq-master answers at") && said.contains("--run-dir"), "{said}");
    // A client that reads nothing delays nobody.
    let idle: Vec<_> = (0..50)
        .map(|_| std::os::unix::net::UnixStream::connect(run_dir.join("dq-master.sock")).unwrap())
        .collect();
    assert!(daemon.status().is_some());
    drop(idle);
    let mode = std::os::unix::fs::PermissionsExt::mode(
        &std::fs::metadata(run_dir.join("dq-master.sock")).unwrap().permissions(),
    );
    assert_eq!(mode & 0o777, 0o600);
}

#[test]
fn a_changed_file_acts_as_hup_when_it_is_valid() {
    let sink = Sink::start();
    let (t, u) = (topic("t", &sink, ""), topic("u", &sink, ""));
    let daemon = Daemon::start(&format!("watch_config = true\n{t}"));
    let first = daemon.wait_all_up(SLOTS);
    let path = daemon.dir.path().join("dq.toml");
    let text = std::fs::read_to_string(&path).unwrap();
    // The file is replaced, as editors do it.
    let draft = daemon.dir.path().join("draft");
    std::fs::write(&draft, format!("{text}\n{u}")).unwrap();
    std::fs::rename(&draft, &path).unwrap();
    let second = all_new(&daemon, &first);
    daemon.wait_all_up(SLOTS);
    assert!(takes(&daemon, "u", "1"));

    // Half of a file, then a bad value, then settings that cannot be applied: each is reported, and changes nothing.
    for (bad, reason) in [
        (text[..text.len() / 2].to_owned() + "\n[[topic", "line"),
        (format!("drain_timeout = \"soon\"\n{text}"), "drain_timeout"),
        (format!("run_dir = \"elsewhere\"\n{text}"), "run_dir cannot be changed"),
    ] {
        std::fs::write(&path, bad).unwrap();
        eventually(10 * SECOND, &format!("{reason}; log:\n{}", daemon.log()), || {
            let refused = daemon.status()?["renewal"]["refused"].as_str()?.contains(reason);
            (refused && daemon.log().contains("the changed configuration is not used")).then_some(())
        });
        assert_eq!(daemon.children(), second);
    }
    // The same settings in another form cause no reload. A different setting causes a reload.
    std::fs::write(&path, format!("# a comment\n{text}\n{u}")).unwrap();
    let begun = || daemon.log().matches("is started beside").count();
    let until = now_ms() + 1000;
    eventually(5 * SECOND, "a second", || (now_ms() > until).then_some(()));
    assert_eq!((daemon.children(), begun()), (second.clone(), 1));
    std::fs::write(&path, format!("{text}\n{u}").replace("watch_config = true", "watch_config = false"))
        .unwrap();
    let third = all_new(&daemon, &second);
    daemon.wait_all_up(SLOTS);
    // The file is no longer watched.
    std::fs::write(&path, &text).unwrap();
    let until = now_ms() + 1000;
    eventually(5 * SECOND, "a second", || (now_ms() > until).then_some(()));
    assert_eq!(daemon.children(), third);
}

/// Records the messages to a service manager, line by line, with their times.
struct Manager {
    lines: Arc<Mutex<Vec<(Instant, String)>>>,
}

impl Manager {
    fn listen(path: &Path) -> Manager {
        let socket = UnixDatagram::bind(path).unwrap();
        let lines: Arc<Mutex<Vec<(Instant, String)>>> = Arc::default();
        let heard = Arc::clone(&lines);
        std::thread::spawn(move || {
            let mut buffer = [0; 8192];
            while let Ok(n) = socket.recv(&mut buffer) {
                let text = String::from_utf8(buffer[..n].to_vec()).unwrap();
                heard.lock().unwrap().extend(text.lines().map(|l| (Instant::now(), l.to_owned())));
            }
        });
        Manager { lines }
    }

    fn said(&self) -> Vec<String> {
        self.lines.lock().unwrap().iter().map(|(_, line)| line.clone()).collect()
    }

    fn count(&self, line: &str) -> usize {
        self.said().iter().filter(|l| l.starts_with(line)).count()
    }

    fn wait_for(&self, line: &str, count: usize) {
        eventually(20 * SECOND, &format!("{count} of {line}: {:?}", self.said()), || {
            (self.count(line) >= count).then_some(())
        });
    }
}

#[test]
fn systemd_is_told_of_starts_reloads_and_the_end() {
    let dir = Arc::new(tempfile::tempdir().unwrap());
    let socket = dir.path().join("notify");
    let manager = Manager::listen(&socket);
    let (port, http) = (free_port(), free_port());
    Daemon::write_config(dir.path(), port, http, "drain_timeout = \"7s\"\n");
    let mut command = Command::new(env!("CARGO_BIN_EXE_dq-master"));
    command.arg("--config").arg(dir.path().join("dq.toml"));
    command.env("NOTIFY_SOCKET", &socket).env("WATCHDOG_USEC", "500000");
    let mut daemon = Daemon::run(Arc::clone(&dir), port, http, command);
    manager.wait_for("READY=1", 1);
    assert_eq!(daemon.children().len(), SLOTS, "ready is said when all are");
    assert_eq!(
        manager.said()[0],
        "EXTEND_TIMEOUT_USEC=45000000",
        "start_timeout, 5 s for busy ports, and 10 more"
    );
    eventually(5 * SECOND, "a status", || {
        manager.said().contains(&"STATUS=generation 1 serves".into()).then_some(())
    });

    // A reload is answered in the order that `Type=notify-reload` requires, also by the next image.
    for (n, signal) in [Signal::SIGHUP, Signal::SIGUSR2].into_iter().enumerate() {
        let before = daemon.wait_all_up(SLOTS);
        daemon.signal(signal);
        manager.wait_for("RELOADING=1", n + 1);
        manager.wait_for("READY=1", n + 2);
        all_new(&daemon, &before);
    }
    // A refused reload ends as well, and the status says why.
    let path = dir.path().join("dq.toml");
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, "nonsense = 1").unwrap();
    daemon.signal(Signal::SIGUSR2);
    manager.wait_for("RELOADING=1", 3);
    manager.wait_for("READY=1", 4);
    manager.wait_for("STATUS=generation 3 serves; the last restart was refused: ", 1);
    assert!(manager.said().iter().any(|l| l.contains("nonsense: unknown field")), "{:?}", manager.said());
    std::fs::write(&path, text).unwrap();
    let said = manager.said();
    let order: Vec<&str> = said
        .iter()
        .filter_map(|l| ["RELOADING=1", "MONOTONIC_USEC", "READY=1"].into_iter().find(|k| l.starts_with(k)))
        .collect();
    let reload = ["RELOADING=1", "MONOTONIC_USEC", "READY=1"];
    assert_eq!(order, [&["READY=1"][..], &reload, &reload, &reload].concat(), "{said:?}");

    // The old and the new image send signs of life, twice as often as they must.
    manager.wait_for("WATCHDOG=1", manager.count("WATCHDOG=1") + 4);
    let beats: Vec<Instant> =
        manager.lines.lock().unwrap().iter().filter(|(_, l)| l == "WATCHDOG=1").map(|(t, _)| *t).collect();
    let longest = beats.windows(2).map(|w| w[1] - w[0]).max().unwrap();
    assert!(beats.len() > 4 && longest < 2 * SECOND, "{longest:?}");
    // The children do not talk to the service manager.
    for (name, pid) in daemon.children() {
        let environment = std::fs::read_to_string(format!("/proc/{pid}/environ")).unwrap();
        assert!(!environment.contains("NOTIFY_SOCKET") && !environment.contains("WATCHDOG_"), "{name}");
    }
    daemon.stop();
    manager.wait_for("STOPPING=1", 1);
    let said = manager.said();
    let last = &said[said.iter().position(|l| l == "STOPPING=1").unwrap()..];
    assert!(last.contains(&"EXTEND_TIMEOUT_USEC=19000000".into()), "{last:?}");
}

/// Starts a daemon with sockets that a service manager has bound.
fn activated(
    dir: &Arc<tempfile::TempDir>,
    ports: (u16, u16),
    sockets: &[&TcpListener],
    names: &str,
) -> Daemon {
    Daemon::write_config(dir.path(), ports.0, ports.1, "");
    // LISTEN_PID is the process id of the daemon. The shell sets its own process id, and then it becomes the daemon.
    let script = "export LISTEN_PID=$$; exec \"$@\"";
    let mut command = Command::new("sh");
    command
        .args(["-c", script, "sh", env!("CARGO_BIN_EXE_dq-master"), "--config"])
        .arg(dir.path().join("dq.toml"));
    command.env("LISTEN_FDS", sockets.len().to_string()).env("LISTEN_FDNAMES", names);
    let fds: Vec<i32> = sockets.iter().map(|s| s.as_raw_fd()).collect();
    let place = move || {
        // The descriptors are first copied to numbers from 100 on, because a descriptor may have the number that
        // another descriptor must get.
        let above: Vec<i32> = fds
            .iter()
            // SAFETY: the call copies a descriptor that the test holds open.
            .map(|fd| unsafe { nix::libc::fcntl(*fd, nix::libc::F_DUPFD, 100) })
            .collect();
        for (fd, number) in above.into_iter().zip(3..) {
            // SAFETY: the calls replace and close descriptors that this process no longer uses.
            if unsafe { nix::libc::dup2(fd, number) } < 0 || unsafe { nix::libc::close(fd) } < 0 {
                return Err(std::io::Error::last_os_error());
            }
        }
        Ok(())
    };
    // SAFETY: the closure makes only system calls, and allocates one short list.
    unsafe { command.pre_exec(place) };
    Daemon::run(Arc::clone(dir), ports.0, ports.1, command)
}

#[test]
fn sockets_of_systemd_are_used_and_outlive_the_daemon() {
    let dir = Arc::new(tempfile::tempdir().unwrap());
    let ports = (free_port(), free_port());
    let bind = |port| TcpListener::bind(("127.0.0.1", port)).unwrap();
    let (server, http, other) = (bind(ports.0), bind(ports.1), bind(0));
    let mut daemon = activated(&dir, ports, &[&http, &other, &server], "http:other:server");
    daemon.wait_ready();
    assert!(daemon.log().contains("server listens on the service manager's socket"), "{}", daemon.log());
    assert!(daemon.log().contains("\"other\" is not needed"), "{}", daemon.log());
    // The next image and the children do not take the sockets from systemd again.
    for _ in 0..2 {
        let before = daemon.wait_all_up(SLOTS);
        daemon.signal(Signal::SIGUSR2);
        all_new(&daemon, &before);
    }
    daemon.wait_ready();
    daemon.stop();
    // A client that connects now waits, and the next daemon answers it.
    let mut waiting = TcpClient::connect(daemon.address(), Framing::Digits).unwrap();
    waiting.send(&[serde_json::json!({"cmd": "ping"})]).unwrap();
    let daemon = activated(&dir, ports, &[&server, &http], "server:http");
    assert_eq!(waiting.receive().unwrap()["code"], 1);
    drop(daemon);

    // A socket is not used if its address is different from the configured address.
    let mut daemon = activated(&dir, ports, &[&other], "server");
    assert_eq!(daemon.wait_exit(10 * SECOND).code(), Some(1));
    let log = daemon.log();
    assert!(log.contains("make them equal") && log.contains(&ports.0.to_string()), "{log}");
}

#[test]
fn the_units_are_valid_and_hardened() {
    let dir = tempfile::tempdir().unwrap();
    let deploy = Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy");
    let mut units = Vec::new();
    for unit in ["dq.service", "dq.socket", "dq-http.socket"] {
        let text = std::fs::read_to_string(deploy.join(unit)).unwrap();
        let path = dir.path().join(unit);
        std::fs::write(&path, text.replace("/usr/bin/dq-master", env!("CARGO_BIN_EXE_dq-master"))).unwrap();
        units.push(path);
    }
    let out = Command::new("systemd-analyze").arg("verify").args(&units).output().unwrap();
    let said = String::from_utf8(out.stderr).unwrap();
    assert!(out.status.success(), "{said}");
    // systemd before 253 does not know notify-reload. The unit says so.
    let known = ["Failed to parse service type, ignoring: notify-reload", "Unknown key 'ReloadSignal'"];
    let complaints: Vec<&str> = said
        .lines()
        .filter(|l| l.contains(dir.path().to_str().unwrap()) && !known.iter().any(|k| l.contains(k)))
        .collect();
    assert_eq!(complaints, [""; 0], "{said}");
    let service = std::fs::read_to_string(&units[0]).unwrap();
    for line in
        ["LimitCORE=0", "RuntimeDirectoryMode=0700", "StateDirectoryMode=0700", "LogsDirectoryMode=0700"]
    {
        assert!(service.lines().any(|l| l == line), "{line}");
    }
    for key in ["MemoryMax=", "TasksMax=", "IPAddressDeny=link-local"] {
        assert!(service.lines().any(|l| l.starts_with(key)), "{key}");
    }
    let harden = Command::new("systemd-analyze")
        .args(["security", "--offline=true", "--no-pager", "--threshold=20"])
        .arg(&units[0])
        .output()
        .unwrap();
    assert!(harden.status.success(), "{}", String::from_utf8_lossy(&harden.stdout));
}

#[test]
fn as_pid_1_the_master_reaps_what_it_inherits() {
    let sink = Sink::start();
    let dir = Arc::new(tempfile::tempdir().unwrap());
    let (port, http) = (free_port(), free_port());
    Daemon::write_config(dir.path(), port, http, &topic("t", &sink, ""));
    let mut command = Command::new("unshare");
    if !nix::unistd::geteuid().is_root() {
        command.arg("-r");
    }
    command.args(["--pid", "--fork", "--mount-proc", env!("CARGO_BIN_EXE_dq-master"), "--config"]);
    command.arg(dir.path().join("dq.toml"));
    let mut daemon = Daemon::run(Arc::clone(&dir), port, http, command);
    daemon.wait_ready();
    let master = daemon.child("dq-master");
    // dq-server answers before the last child has been started.
    eventually(20 * SECOND, "all of its children", || (children_of(master).len() == SLOTS).then_some(()));
    // This process is an orphan: its parent ends at once, and pid 1 becomes its parent.
    let mut enter = Command::new("nsenter");
    enter.arg("-t").arg(master.to_string()).args(["-U", "--preserve-credentials"]);
    if nix::unistd::geteuid().is_root() {
        enter = Command::new("nsenter");
        enter.arg("-t").arg(master.to_string());
    }
    let status = enter.args(["-p", "-m", "sh", "-c", "sleep 0.5 & exit 0"]).status().unwrap();
    assert!(status.success());
    let orphan = eventually(5 * SECOND, "an orphan", || children_of(master).get("sleep").copied());
    eventually(5 * SECOND, "its end, and nothing left of it", || {
        (!Path::new(&format!("/proc/{orphan}")).exists()).then_some(())
    });
    // Everything else works in the new PID namespace as well.
    let before = children_of(master);
    kill(master, Signal::SIGUSR2).unwrap();
    eventually(20 * SECOND, &format!("new children; log:\n{}", daemon.log()), || {
        let now = children_of(master);
        (now.len() == SLOTS && now.iter().all(|(name, pid)| before.get(name) != Some(pid))).then_some(())
    });
    assert!(takes(&daemon, "t", "i"));
    sink.wait_for(1, 5 * SECOND);
    let mut client = daemon.client();
    eventually(5 * SECOND, "an empty store", || (pending(&mut client, "t") == 0).then_some(()));
    kill(master, Signal::SIGTERM).unwrap();
    assert!(daemon.wait_exit(10 * SECOND).success());
}

#[test]
fn a_kept_http_connection_gets_a_last_answer_that_says_close() {
    use std::io::{BufRead, BufReader, Write};
    let daemon = Daemon::start("");
    let before = daemon.wait_all_up(SLOTS);
    let stream = std::net::TcpStream::connect(("127.0.0.1", daemon.http)).unwrap();
    stream.set_read_timeout(Some(10 * SECOND)).unwrap();
    let mut reader = BufReader::new(stream);
    let mut ask = || {
        reader.get_mut().write_all(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
        let (mut head, mut length) = (String::new(), 0);
        loop {
            let mut line = String::new();
            assert!(reader.read_line(&mut line).unwrap() > 0, "cut off after {head:?}");
            if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                length = value.trim().parse().unwrap();
            }
            if line == "\r\n" {
                break;
            }
            head += &line.to_ascii_lowercase();
        }
        let mut body = vec![0; length];
        std::io::Read::read_exact(&mut reader, &mut body).unwrap();
        assert!(head.starts_with("http/1.1 200"), "{head}");
        head
    };
    assert!(!ask().contains("connection: close"));
    daemon.signal(Signal::SIGHUP);
    eventually(10 * SECOND, "the new generation", || {
        daemon.log().contains("is ready; the older").then_some(())
    });
    // A connection that was idle when the drain began may send one more request before it is closed.
    eventually(10 * SECOND, "the last answer", || ask().contains("connection: close").then_some(()));
    let begun = Instant::now();
    all_new(&daemon, &before);
    assert!(begun.elapsed() < Duration::from_secs(4), "with that it was over");
}

#[test]
fn nobody_who_does_not_listen_holds_the_master_up() {
    let dir = Arc::new(tempfile::tempdir().unwrap());
    // The service manager reads nothing, and a pipe takes the place of the executable.
    let socket = dir.path().join("notify");
    let _deaf = UnixDatagram::bind(&socket).unwrap();
    let (port, http) = (free_port(), free_port());
    Daemon::write_config(dir.path(), port, http, "");
    install(dir.path(), Path::new(env!("CARGO_BIN_EXE_dq")));
    let mut command = Command::new(dir.path().join("dq-master"));
    command.arg("--config").arg(dir.path().join("dq.toml")).env("NOTIFY_SOCKET", &socket);
    let mut daemon = Daemon::run(Arc::clone(&dir), port, http, command);
    daemon.wait_ready();
    let before = daemon.wait_all_up(SLOTS);
    std::fs::remove_file(dir.path().join("dq-master")).unwrap();
    nix::unistd::mkfifo(&dir.path().join("dq-master"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    for _ in 0..20 {
        daemon.signal(Signal::SIGUSR2);
        eventually(10 * SECOND, "a refusal", || {
            daemon.status()?["renewal"]["refused"].as_str()?.contains("not a regular file").then_some(())
        });
    }
    assert_eq!(daemon.children(), before);
    daemon.stop();
}
