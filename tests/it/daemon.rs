//! The daemon as a whole: real processes, real signals, real sockets.

use std::collections::HashSet;
use std::io::{BufRead as _, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::support::http::Http;
use crate::support::{
    Daemon, SECOND, SLOTS, Sink, add, eventually, free_port, lives, now_ms, on_redis, pending, stats, takes,
    topic, without_due,
};
use cli::{HandlerAnswer, TcpClient};
use nix::sys::signal::{Signal, kill};
use protocol::dq::Framing;
use serde_json::{Value, json};

fn succ(answer: &Value) {
    assert_eq!(answer["code"], 1, "{answer}");
}

/// Adds jobs over several connections, without waiting for each answer. Checks that each job is accepted. Returns the
/// ids.
fn add_from(
    daemon: &Daemon,
    connections: usize,
    each: usize,
    delay_ms: impl Fn(usize) -> u64 + Sync,
) -> Vec<String> {
    let id = |c: usize, i: usize| format!("{c}-{i}");
    std::thread::scope(|scope| {
        for c in 0..connections {
            let delay_ms = &delay_ms;
            scope.spawn(move || {
                let framing = if c % 2 == 0 { Framing::Digits } else { Framing::Binary };
                let mut client = TcpClient::connect(daemon.address(), framing).unwrap();
                let requests: Vec<Value> = (0..each).map(|i| add("t", &id(c, i), delay_ms(i))).collect();
                for chunk in requests.chunks(25) {
                    client.send(chunk).unwrap();
                    chunk.iter().for_each(|_| succ(&client.receive().unwrap()));
                }
            });
        }
    });
    (0..connections).flat_map(|c| (0..each).map(move |i| id(c, i))).collect()
}

#[test]
fn two_thousand_jobs_on_eight_connections_arrive_once_in_time() {
    let sink = Sink::start();
    let daemon = Daemon::start(&topic("t", &sink, ""));
    let ids = add_from(&daemon, 8, 250, |i| (i as u64 % 100) * 20);
    sink.wait_for(ids.len(), 20 * SECOND);
    let mut client = daemon.client();
    eventually(5 * SECOND, "an empty store", || (pending(&mut client, "t") == 0).then_some(()));
    let calls = sink.calls();
    assert_eq!(calls.len(), ids.len(), "each came once");
    let mut late: Vec<i64> = calls.iter().map(|c| c.late_ms().unwrap()).collect();
    late.sort_unstable();
    let p99 = late[late.len() * 99 / 100];
    println!("lateness: p50 {} ms, p99 {p99} ms, max {} ms", late[late.len() / 2], late[late.len() - 1]);
    assert!(late[0] >= 0, "one came {} ms early", -late[0]);
    // The bounds are generous, because all tests run at the same time and without optimisation. If this test runs
    // alone, the values are 2 and 10 ms.
    assert!(late[late.len() / 2] < 300 && p99 < 1500, "p50 is {} ms, p99 {p99} ms", late[late.len() / 2]);
    let call = &calls[0];
    assert_eq!(call.header("content-type"), "application/json");
    assert_eq!(call.header("dq-topic"), "t");
    assert_eq!(call.header("dq-attempt"), "1");
    assert_eq!(call.body, json!({"id": call.header("dq-job-id")}).to_string());
}

#[test]
fn a_timer_that_sleeps_is_woken_by_an_earlier_job() {
    let sink = Sink::start();
    let daemon = Daemon::start(&topic("t", &sink, ""));
    let mut client = daemon.client();
    for (i, delay_ms) in [3_600_000, 60_000, 5_000, 700].into_iter().enumerate() {
        succ(&client.ask(&add("t", &i.to_string(), delay_ms)).unwrap());
        // The test waits until the timer sleeps again.
        let before = now_ms();
        eventually(SECOND, "a pause", || (now_ms() > before + 100).then_some(()));
    }
    sink.wait_for(1, 3 * SECOND);
    let late = sink.calls()[0].late_ms().unwrap();
    assert!((0..2000).contains(&late), "{late} ms");
}

#[test]
fn ps_shows_the_processes_under_their_names() {
    let daemon = Daemon::start("");
    let names: HashSet<String> = daemon.children().into_keys().collect();
    let wanted = [
        "dq-timer-0",
        "dq-timer-1",
        "dq-consume-0",
        "dq-consume-1",
        "dq-server",
        "dq-http-server",
        "dq-redis-checker",
    ];
    // The kernel keeps only the first 15 bytes of the name of a process (`comm`).
    assert_eq!(names, wanted.iter().map(|n| n[..n.len().min(15)].to_owned()).collect());
    let comm = |pid| std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap();
    assert_eq!(comm(daemon.pid()).trim(), "dq-master");
    for (name, pid) in daemon.children() {
        let argv = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap();
        assert!(
            wanted.contains(&std::str::from_utf8(&argv).unwrap().trim_end_matches('\0')),
            "{name}: {argv:?}"
        );
        assert_eq!(nix::unistd::getpgid(Some(pid)).unwrap(), pid, "{name} leads a group of its own");
        let descriptors: Vec<String> = std::fs::read_dir(format!("/proc/{pid}/fd"))
            .unwrap()
            .flatten()
            .filter_map(|e| Some(std::fs::read_link(e.path()).ok()?.display().to_string()))
            .collect();
        assert!(!descriptors.iter().any(|d| d.contains("dq-master.pid")), "{name} holds the master's lock");
    }
}

#[test]
fn every_child_may_be_killed_again_and_again_and_no_job_is_lost() {
    let sink = Sink::answering(|_| HandlerAnswer::new(200, "ok").after(Duration::from_millis(20)));
    let daemon = Daemon::start(&topic("t", &sink, ""));
    let (stop, added) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // A client that reconnects when its connection breaks, and then repeats the request that was not answered.
            let mut client: Option<TcpClient> = None;
            while !stop.load(Ordering::Relaxed) {
                let request = add(
                    "t",
                    &added.load(Ordering::Relaxed).to_string(),
                    (added.load(Ordering::Relaxed) % 40) as u64,
                );
                let answer = client.as_mut().map(|c| c.ask(&request));
                match answer {
                    Some(Ok(answer)) if answer["code"] == 1 => drop(added.fetch_add(1, Ordering::Relaxed)),
                    _ => client = TcpClient::connect(daemon.address(), Framing::Digits).ok(),
                }
            }
        });
        for name in [
            "dq-timer-0",
            "dq-timer-1",
            "dq-consume-0",
            "dq-consume-1",
            "dq-server",
            "dq-redis-checker",
            "dq-http-server",
        ] {
            let before = added.load(Ordering::Relaxed);
            daemon.kill_child(&name[..name.len().min(15)]);
            eventually(10 * SECOND, "further adds", || {
                (added.load(Ordering::Relaxed) >= before + 50).then_some(())
            });
        }
        stop.store(true, Ordering::Relaxed);
    });
    let added = added.load(Ordering::Relaxed);
    eventually(20 * SECOND, "all jobs, answered", || (sink.accepted() >= added).then_some(()));
    let mut client = daemon.client();
    eventually(5 * SECOND, "an empty store", || (pending(&mut client, "t") == 0).then_some(()));
    // Two kinds of jobs may be delivered twice: jobs that the two killed consumers had in flight, and jobs that were
    // added again because no answer came.
    let extra = sink.count() - sink.deliveries().len();
    println!("{added} jobs, {extra} came twice");
    assert!(extra <= 2 * 64 + 1, "{extra} came twice");
    assert!(sink.calls().iter().all(|c| c.late_ms().unwrap() >= 0));
}

#[test]
fn the_leases_of_a_killed_consumer_are_back_within_a_second() {
    let sink = Sink::answering(|call| {
        let first = call.header("dq-job-id") == "slow" && call.header("dq-attempt") == "1";
        HandlerAnswer::new(200, "ok").after(if first { 2 * SECOND } else { Duration::ZERO })
    });
    let daemon =
        Daemon::start(&format!("[consume]\nprocesses = 1\n{}", topic("t", &sink, "timeout = \"20s\"")));
    succ(&daemon.client().ask(&add("t", "slow", 0)).unwrap());
    eventually(5 * SECOND, "the callback", || (sink.count() == 1).then_some(()));
    daemon.kill_child("dq-consume-0");
    let killed = Instant::now();
    let mut client = daemon.client();
    eventually(SECOND, "the second delivery", || (sink.count() == 2).then_some(()));
    println!("delivered again {:?} after the kill", killed.elapsed());
    assert_eq!(sink.calls()[1].header("dq-attempt"), "1", "the attempt of a dead consumer does not count");
    let _ = pending(&mut client, "t");
}

#[test]
fn a_drain_finishes_the_callback_in_flight() {
    let sink = Sink::answering(|_| HandlerAnswer::new(200, "ok").after(2 * SECOND));
    let config = topic("t", &sink, "timeout = \"10s\"");
    let mut daemon = Daemon::start(&config);
    succ(&daemon.client().ask(&add("t", "slow", 0)).unwrap());
    succ(&daemon.client().ask(&add("t", "later", 3_600_000)).unwrap());
    eventually(5 * SECOND, "the callback", || (sink.count() == 1).then_some(()));
    let begun = Instant::now();
    daemon.stop();
    assert!(begun.elapsed() >= SECOND, "it has waited for the callback");
    assert_eq!(daemon.children().len(), 0);
    let again = Daemon::spawn(Arc::clone(&daemon.dir), daemon.port, &config, &[]);
    again.wait_ready();
    let mut client = again.client();
    assert_eq!(stats(&mut client, "t")["delayed"], 1);
    assert_eq!(pending(&mut client, "t"), 1, "the finished one is gone");
    assert_eq!(sink.count(), 1);
}

#[test]
fn a_drain_that_takes_too_long_hands_its_jobs_back() {
    let sink = Sink::answering(|call| {
        let first = call.header("dq-job-id") == "slow";
        HandlerAnswer::new(200, "ok").after(if first { 8 * SECOND } else { Duration::ZERO })
    });
    let config = format!("drain_timeout = \"1s\"\n{}", topic("t", &sink, "timeout = \"10s\""));
    let mut daemon = Daemon::start(&config);
    succ(&daemon.client().ask(&add("t", "slow", 0)).unwrap());
    eventually(5 * SECOND, "the callback", || (sink.count() == 1).then_some(()));
    let begun = Instant::now();
    daemon.stop();
    assert!(begun.elapsed() < 4 * SECOND, "{:?}", begun.elapsed());
    let again = Daemon::spawn(Arc::clone(&daemon.dir), daemon.port, &config, &[]);
    eventually(10 * SECOND, "the second delivery", || (sink.count() == 2).then_some(()));
    assert_eq!(sink.calls()[1].header("dq-attempt"), "1");
    drop(again);
}

#[test]
fn a_second_signal_ends_at_once() {
    let sink = Sink::answering(|_| HandlerAnswer::new(200, "ok").after(20 * SECOND));
    let mut daemon = Daemon::start(&topic("t", &sink, "timeout = \"30s\""));
    succ(&daemon.client().ask(&add("t", "slow", 0)).unwrap());
    eventually(5 * SECOND, "the callback", || (sink.count() == 1).then_some(()));
    let children = daemon.children();
    daemon.signal(Signal::SIGTERM);
    eventually(5 * SECOND, "the drain", || daemon.log().contains("draining for up to").then_some(()));
    // Two signals that come shortly after each other count as one. So the test waits between the two signals.
    std::thread::sleep(Duration::from_millis(400));
    daemon.signal(Signal::SIGINT);
    assert!(daemon.wait_exit(5 * SECOND).success());
    assert!(children.values().all(|pid| !lives(*pid)));
}

#[test]
fn children_of_a_killed_master_drain_and_a_new_one_takes_over() {
    let sink = Sink::answering(|_| HandlerAnswer::new(200, "ok").after(SECOND));
    let config = topic("t", &sink, "timeout = \"10s\"");
    let mut daemon = Daemon::start(&config);
    let mut client = daemon.client();
    for i in 0..50 {
        succ(&client.ask(&add("t", &i.to_string(), i * 100)).unwrap());
    }
    eventually(5 * SECOND, "the first callbacks", || (sink.count() >= 3).then_some(()));
    let orphans = daemon.kill_master();
    let again = Daemon::spawn(Arc::clone(&daemon.dir), daemon.port, &config, &[]);
    again.wait_ready();
    sink.wait_for(50, 20 * SECOND);
    eventually(20 * SECOND, "the end of the orphans", || {
        orphans.iter().all(|pid| !lives(*pid)).then_some(())
    });
    let mut client = again.client();
    eventually(5 * SECOND, "an empty store", || (pending(&mut client, "t") == 0).then_some(()));
    assert_eq!(sink.count(), 50, "orphans finish their callbacks, and nobody repeats them");
}

/// When the master is gone, the ports of dq-http-server for clients of gmq and beanstalkd are free at once, and
/// connected clients are served until they leave.
#[test]
fn an_orphaned_http_server_waits_without_work() {
    let port = free_port();
    let config = format!(
        "[beanstalk]\nlisten = \"127.0.0.1:{port}\"\n[[topic]]\nname = \"default\"\nmode = \"pull\"\n"
    );
    let mut daemon = Daemon::start(&config);
    let mut worker = BufReader::new(TcpStream::connect(("127.0.0.1", port)).unwrap());
    worker.get_ref().set_read_timeout(Some(10 * SECOND)).unwrap();
    let mut ask = |command: &str| {
        worker.get_mut().write_all(format!("{command}\r\n").as_bytes()).unwrap();
        let mut line = String::new();
        worker.read_line(&mut line).unwrap();
        if line.starts_with("RESERVED") {
            worker.read_line(&mut String::new()).unwrap();
        }
        line
    };
    let inserted = ask("put 0 0 60 1\r\nx");
    let number = inserted.trim().strip_prefix("INSERTED ").unwrap().to_owned();
    assert!(ask("reserve").starts_with("RESERVED"));
    let server = daemon.children()["dq-http-server"];
    daemon.kill_master();
    eventually(5 * SECOND, "the drain", || {
        daemon.log().contains("draining: the master is gone").then_some(())
    });
    let before = cpu_ms(server);
    std::thread::sleep(SECOND);
    let used = cpu_ms(server) - before;
    assert!(used < 300, "the orphan used {used} ms of a second");
    assert_eq!(ask(&format!("delete {number}")), "DELETED\r\n");
    let again = Daemon::spawn(Arc::clone(&daemon.dir), daemon.port, &config, &[]);
    again.wait_ready();
}

#[test]
fn one_master_runs_in_a_folder() {
    let daemon = Daemon::start("");
    let output = Command::new(env!("CARGO_BIN_EXE_dq-master"))
        .arg("--config")
        .arg(daemon.dir.path().join("dq.toml"))
        .output()
        .unwrap();
    let message = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success());
    assert!(message.contains(&format!("another dq-master (pid {})", daemon.pid())), "{message}");
}

#[test]
fn check_validates_and_exits() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("dq.toml");
    let check = || {
        let output = Command::new(env!("CARGO_BIN_EXE_dq-master"))
            .arg("--config")
            .arg(&file)
            .arg("--check")
            .output()
            .unwrap();
        (
            output.status.code().unwrap(),
            String::from_utf8(output.stdout).unwrap() + &String::from_utf8(output.stderr).unwrap(),
        )
    };
    std::fs::write(&file, "").unwrap();
    assert_eq!(check().0, 0);
    std::fs::write(&file, "[server]\nlisten = \"nowhere\"").unwrap();
    let (code, message) = check();
    assert_eq!(code, 78);
    assert!(message.contains("server.listen") && message.contains("nowhere"), "{message}");
    std::fs::write(&file, "[server\n").unwrap();
    let (code, message) = check();
    assert_eq!(code, 78);
    assert!(message.contains("line 1"), "{message}");
    std::fs::remove_file(&file).unwrap();
    let (code, message) = check();
    assert_eq!(code, 78);
    assert!(message.contains("cannot read"), "{message}");
}

#[test]
fn a_start_without_the_database_of_its_nodes_can_be_repeated() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("dq.toml");
    let config = format!(
        "[store]\nbackend = \"redis\"\nnodes_from_registry = true\n[registry]\nurl = \"mysql://dq@127.0.0.1:{}/dq\"\n",
        free_port()
    );
    std::fs::write(&file, config).unwrap();
    for more in [&[] as &[&str], &["--check"]] {
        let output = Command::new(env!("CARGO_BIN_EXE_dq-master"))
            .arg("--config")
            .arg(&file)
            .args(more)
            .output()
            .unwrap();
        let message = String::from_utf8(output.stderr).unwrap();
        // systemd does not start dq again after the exit code 78 (RestartPreventExitStatus).
        assert_eq!(output.status.code(), Some(1), "{message}");
        assert!(message.contains("store.nodes_from_registry: cannot get the nodes"), "{message}");
    }
}

#[test]
fn only_runs_some_of_the_roles() {
    let sink = Sink::start();
    let dir = Arc::new(tempfile::tempdir().unwrap());
    let daemon =
        Daemon::spawn(dir, free_port(), &topic("t", &sink, ""), &["--only", "server", "--only", "timer"]);
    daemon.wait_ready();
    // In its first moment, a child still has the name of the master.
    eventually(10 * SECOND, "the processes of two roles", || {
        let names: HashSet<String> = daemon.children().into_keys().collect();
        (names == ["dq-server", "dq-timer-0", "dq-timer-1"].map(str::to_owned).into()).then_some(())
    });
    let mut client = daemon.client();
    succ(&client.ask(&add("t", "a", 10)).unwrap());
    eventually(5 * SECOND, "a ready job", || (stats(&mut client, "t")["ready"] == 1).then_some(()));
}

#[test]
fn a_failing_job_is_retried_and_then_becomes_a_dead_letter() {
    let sink = Sink::answering(|call| match call.header("dq-job-id") {
        "gone" => HandlerAnswer::new(410, ""),
        "twice" if call.header("dq-attempt") != "3" => HandlerAnswer::new(500, "no"),
        "twice" => HandlerAnswer::new(204, ""),
        _ => HandlerAnswer::new(302, "elsewhere"),
    });
    let daemon = Daemon::start(&topic("t", &sink, "retry = [\"50ms\", \"100ms\"]\nmax_attempts = 3"));
    let mut client = daemon.client();
    for id in ["never", "twice", "gone"] {
        succ(&client.ask(&add("t", id, 0)).unwrap());
    }
    succ(
        &client
            .ask(&json!({"cmd": "add", "topic": "t", "id": "once", "body": 1, "max_attempts": 1}))
            .unwrap(),
    );
    eventually(10 * SECOND, "the dead letters", || {
        (stats(&mut client, "t").get("dead") == Some(&3) && pending(&mut client, "t") == 0).then_some(())
    });
    let deliveries = sink.deliveries();
    let counts = ["never", "twice", "gone", "once"].map(|id| deliveries[id]);
    assert_eq!(counts, [3, 3, 1, 1]);
    let shown = client.ask(&json!({"cmd": "get", "topic": "t", "id": "never"})).unwrap();
    assert_eq!(shown["job"]["state"], "dead", "{shown}");
    assert_eq!(shown["job"]["attempts"], 3);
    assert_eq!(shown["job"]["log"].as_array().unwrap().len(), 3, "{shown}");
    assert_eq!(shown["job"]["log"][2]["status"], 302);
    assert_eq!(shown["job"]["log"][2]["answer"], "elsewhere");
    assert_eq!(shown["data"]["exp_notify_nums"], 3);
    let calls = sink.calls();
    let at: Vec<i64> = calls.iter().filter(|c| c.header("dq-job-id") == "never").map(|c| c.at_ms).collect();
    assert!(at[1] - at[0] >= 50 && at[2] - at[1] >= 100, "{at:?}");
    let names: HashSet<&str> =
        calls.iter().filter(|c| c.header("dq-job-id") == "never").map(|c| c.header("webhook-id")).collect();
    assert_eq!(names.len(), 1, "the idempotency key is the same for all attempts");
}

#[test]
fn a_flag_asks_again_beyond_the_limit_of_attempts() {
    let sink = Sink::answering(|call| match (call.header("dq-topic"), call.header("dq-attempt").parse()) {
        ("polls", Ok(1..=20)) | ("capped", _) => HandlerAnswer::new(200, "{\"code\":1}"),
        ("fails", Ok(1..=20)) => HandlerAnswer::new(200, "{\"code\":1}"),
        ("fails", _) => HandlerAnswer::new(500, ""),
        _ => HandlerAnswer::new(200, "{\"code\":0}"),
    });
    let flag = "success = \"non_empty\"\nre_notify_flag = \"{res.code} != 0\"\nretry = [\"10ms\"]\n\
                breaker_failures = 3\n";
    let topics = ["polls", "capped", "fails"].map(|name| {
        topic(name, &sink, &format!("{flag}{}", if name == "capped" { "max_notifications = 4" } else { "" }))
    });
    let daemon = Daemon::start(&topics.concat());
    let mut client = daemon.client();
    for name in ["polls", "capped", "fails"] {
        succ(&client.ask(&add(name, "i", 0)).unwrap());
    }
    eventually(20 * SECOND, "the end of all jobs", || {
        let pending: u64 = ["polls", "capped", "fails"].map(|name| pending(&mut client, name)).iter().sum();
        (pending == 0).then_some(())
    });
    let calls = sink.calls();
    let count = |name: &str| calls.iter().filter(|call| call.header("dq-topic") == name).count();
    assert_eq!([count("polls"), count("capped"), count("fails")], [21, 4, 21]);
    assert_eq!(stats(&mut client, "polls").get("dead").copied().unwrap_or(0), 0);
    let dead = client.ask(&json!({"cmd": "get", "topic": "capped", "id": "i"})).unwrap();
    assert_eq!((&dead["job"]["state"], &dead["job"]["attempts"]), (&json!("dead"), &json!(4)), "{dead}");
    // `attempts` of this job counts all attempts, as in the PHP daemon.
    let dead = client.ask(&json!({"cmd": "get", "topic": "fails", "id": "i"})).unwrap();
    assert_eq!((&dead["job"]["state"], &dead["job"]["attempts"]), (&json!("dead"), &json!(21)), "{dead}");
    assert!(!daemon.log().contains("polls:i failed"), "{}", daemon.log());
}

#[test]
fn a_receiver_of_the_php_daemon_gets_what_it_knows() {
    let sink = Sink::answering(|call| {
        HandlerAnswer::new(500, if call.header("dq-attempt") == "1" { "" } else { "ok" })
    });
    let more = "payload = \"form\"\nsuccess = \"non_empty\"\nretry = [\"10ms\"]";
    let config = format!(
        "timezone = \"Asia/Shanghai\"\n{}{}",
        topic("get", &sink, &format!("method = \"GET\"\n{more}")),
        topic("post", &sink, more)
    );
    let daemon = Daemon::start(&config);
    let mut client = TcpClient::connect(daemon.address(), Framing::Digits).unwrap();
    let body = json!({"a": 1, "zh": "中 文&=+", "t": true, "f": false, "nul": null, "n": {"x": [1, 2]}});
    for topic in ["get", "post"] {
        succ(&client.ask(&json!({"cmd": "add", "topic": topic, "id": "i", "body": body})).unwrap());
    }
    eventually(10 * SECOND, "four calls", || (sink.count() == 4).then_some(()));
    eventually(5 * SECOND, "an empty store", || {
        (pending(&mut client, "get") + pending(&mut client, "post") == 0).then_some(())
    });
    for call in sink.calls() {
        let form = if call.method == "GET" { call.query.clone() } else { call.body.clone() };
        assert_eq!(call.method, call.header("dq-topic").to_uppercase());
        let fixed =
            "a=1&f=&n=%7B%22x%22%3A%5B1%2C2%5D%7D&nul=&t=1&zh=%E4%B8%AD%20%E6%96%87%26%3D%2B&notify_time=20";
        assert!(form.starts_with(fixed), "{form}");
        assert!(form.contains("&dq_set_time=20"), "{form}");
        assert_eq!(form.contains("&exp_notify_nums=1"), call.header("dq-attempt") == "2", "{form}");
    }
    // Times are in the configured zone.
    let far =
        json!({"cmd": "add", "topic": "get", "id": "far", "fix_time": "2030-01-02 03:04:05", "body": {}});
    succ(&client.ask(&far).unwrap());
    let shown = client.ask(&json!({"cmd": "get", "topic": "get", "id": "far"})).unwrap();
    assert_eq!(shown["data"]["notify_time"], "2030-01-02 03:04:05");
    assert_eq!(shown["job"]["due_ms"], 1_893_524_645_000_i64);
    succ(&client.ask(&json!({"cmd": "del", "topic": "get", "id": "far"})).unwrap());
    let gone = client.ask(&json!({"cmd": "get", "topic": "get", "id": "far"})).unwrap();
    assert_eq!(
        gone,
        json!({"code": 0, "msg": "there is no job \"far\" in topic get", "data": [], "err": "not_found"})
    );
}

#[test]
fn commands_do_what_they_say() {
    let sink = Sink::start();
    let config = topic("t", &sink, "delay = \"1h\"") + &topic("off", &sink, "status = \"offline\"");
    let daemon = Daemon::start(&config);
    let mut client = daemon.client();
    let mut ask = |request: Value| client.ask(&request).unwrap();
    assert_eq!(ask(json!({"cmd": "ping"})), json!({"code": 1, "msg": "succ", "data": []}));
    let jobs = json!([{"id": 1, "body": 1}, {"id": "", "body": 1}, {"id": "b", "body": 2, "topic": "nope"}, {"id": "c", "body": 3}]);
    let answer = ask(json!({"cmd": "madd", "topic": "t", "jobs": jobs}));
    let codes: Vec<&Value> = answer["data"].as_array().unwrap().iter().map(|a| &a["code"]).collect();
    assert_eq!(codes, [1, 0, 0, 1], "{answer}");
    assert_eq!(answer["data"][2]["err"], "unknown_topic");
    assert_eq!(ask(json!({"cmd": "stats", "topic": "nope"}))["err"], "unknown_topic");
    assert_eq!(ask(json!({"cmd": "stats", "topic": "off"}))["data"]["off"]["dead"], 0);
    assert_eq!(
        ask(json!({"cmd": "stats"}))["data"],
        json!({"t": {"delayed": 2, "ready": 0, "leased": 0, "dead": 0}})
    );
    assert_eq!(ask(json!({"cmd": "add", "topic": "off", "id": "x", "body": 1}))["err"], "topic_offline");
    let reject = json!({"cmd": "add", "topic": "t", "id": "c", "body": 4, "on_conflict": "reject"});
    assert_eq!(ask(reject)["err"], "exists");
    succ(&ask(json!({"cmd": "add", "topic": "t", "id": "c", "body": 5, "on_conflict": "keep"})));
    succ(&ask(json!({"cmd": "add", "topic": "t", "id": "c", "body": {"v": 6}})));
    assert_eq!(ask(json!({"cmd": "get", "topic": "t", "id": "c"}))["data"]["v"], 6);
    succ(&ask(json!({"cmd": "run", "topic": "t", "id": "c"})));
    assert_eq!(ask(json!({"cmd": "run", "topic": "t", "id": "nobody"}))["err"], "not_found");
    eventually(5 * SECOND, "the delivery", || (sink.count() == 1).then_some(()));
    assert_eq!(sink.calls()[0].body, r#"{"v":6}"#);
    succ(&ask(json!({"cmd": "del", "topic": "t", "id": "1"})));
    assert_eq!(ask(json!({"cmd": "del", "topic": "t", "id": "1"}))["err"], "not_found");
}

#[test]
fn a_batch_answer_fits_four_digits_or_nothing_is_stored() {
    let sink = Sink::start();
    let daemon = Daemon::start(&topic("t", &sink, "delay = \"1h\""));
    let mut client = TcpClient::connect(daemon.address(), Framing::Digits).unwrap();
    let mut madd =
        |jobs: Vec<Value>| client.ask(&json!({"cmd": "madd", "topic": "t", "jobs": jobs})).unwrap();
    let refused = madd((0..201).map(|i| json!({"id": i, "body": 1})).collect());
    assert_eq!(refused["err"], "bad_field", "{refused}");
    assert!(refused["msg"].as_str().unwrap().contains("201"), "{refused}");
    let taken = madd((0..200).map(|i| json!({"id": i, "body": 1})).collect());
    assert_eq!(taken["data"].as_array().unwrap().iter().filter(|a| a["code"] == 1).count(), 200);
    let bad = madd((0..200).map(|_| json!({"id": "", "body": 1})).collect());
    assert_eq!(bad["data"].as_array().unwrap().iter().filter(|a| a["err"] == "bad_field").count(), 200);
    assert_eq!(pending(&mut daemon.client(), "t"), 200);
}

/// Adds a job on a new connection. None: no process answers at the moment.
fn try_add(daemon: &Daemon, id: &str) -> Option<Value> {
    let mut client = TcpClient::connect(daemon.address(), Framing::Binary).ok()?;
    client.ask(&add("t", id, 0)).ok()
}

/// Moves the files of the embedded store.
fn move_store(from: &Path, to: &Path) {
    for file in ["dq.db", "dq.db-wal", "dq.db-shm"] {
        if from.join(file).exists() {
            std::fs::rename(from.join(file), to.join(file)).unwrap();
        }
    }
}

#[test]
fn a_store_that_is_moved_away_and_back_keeps_all_jobs() {
    if on_redis() {
        return; // This test is about the file of the embedded store.
    }
    let sink = Sink::start();
    let daemon = Daemon::start(&topic("t", &sink, ""));
    let before = daemon.wait_all_up(SLOTS);
    succ(&daemon.client().ask(&add("t", "before", 3_600_000)).unwrap());
    succ(&daemon.client().ask(&add("t", "due", 1_000)).unwrap());
    let var = daemon.dir.path().join("var");
    let away = daemon.dir.path().join("away");
    std::fs::create_dir(&away).unwrap();
    move_store(&var, &away);
    assert_eq!(daemon.client().ask(&add("t", "refused", 0)).unwrap()["err"], "store_gone");
    // No process makes another file. This holds for processes that have the old file open, and for processes that
    // start.
    let killed = ["dq-server", "dq-consume-0", "dq-timer-0"];
    killed.iter().for_each(|name| daemon.kill_child(name));
    for name in killed {
        eventually(20 * SECOND, &format!("an end of {name} with its reason"), || {
            let status = daemon.status()?;
            let process = status["processes"].as_array()?.iter().find(|p| p["name"] == name)?;
            process["last_end"]["reason"].as_str()?.contains("not the store's file").then_some(())
        });
    }
    eventually(20 * SECOND, "the finding", || {
        daemon.status()?["findings"].to_string().contains("the store's file is gone").then_some(())
    });
    assert!(!var.join("dq.db").exists());
    move_store(&away, &var);
    // A process that could not start is started again after a growing pause.
    eventually(60 * SECOND, &format!("an add that is taken; log:\n{}", daemon.log()), || {
        (try_add(&daemon, "after")?["code"] == 1).then_some(())
    });
    sink.wait_for(2, 60 * SECOND);
    let mut came: Vec<String> = sink.deliveries().into_keys().collect();
    came.sort();
    assert_eq!(came, ["after", "due"]);
    eventually(10 * SECOND, "the job that is due in an hour, alone", || {
        (pending(&mut daemon.client(), "t") == 1).then_some(())
    });
    let now = daemon.wait_all_up(SLOTS);
    assert_eq!(now["dq-http-server"], before["dq-http-server"], "nobody ends who has the file open");
}

#[test]
fn a_store_that_was_removed_is_replaced_by_a_start_only() {
    if on_redis() {
        return; // This test is about the file of the embedded store.
    }
    let sink = Sink::start();
    let mut daemon = Daemon::start(&topic("t", &sink, ""));
    succ(&daemon.client().ask(&add("t", "before", 3_600_000)).unwrap());
    let var = daemon.dir.path().join("var");
    for file in ["dq.db", "dq.db-wal", "dq.db-shm"] {
        std::fs::remove_file(var.join(file)).unwrap();
    }
    let ask = |id: &str| daemon.client().ask(&add("t", id, 0)).unwrap();
    assert_eq!(ask("removed")["err"], "store_gone");
    std::fs::write(var.join("dq.db"), "").unwrap();
    assert_eq!(ask("replaced")["err"], "store_gone");
    // After a rolling restart, adds are refused, too.
    daemon.signal(Signal::SIGUSR2);
    eventually(20 * SECOND, "a new process that refuses the file", || {
        daemon.log().contains("another file is in its place").then_some(())
    });
    assert!(try_add(&daemon, "restarted").is_none_or(|answer| answer["err"] == "store_gone"));
    daemon.stop();
    let daemon = Daemon::again(&daemon);
    daemon.wait_ready();
    assert!(takes(&daemon, "t", "after"));
    sink.wait_for(1, 20 * SECOND);
    assert_eq!(sink.calls()[0].header("dq-job-id"), "after");
}

#[test]
fn a_daemon_whose_run_dir_is_removed_goes_on_and_says_so() {
    let sink = Sink::start();
    let mut daemon = Daemon::start(&topic("t", &sink, ""));
    daemon.wait_all_up(SLOTS);
    let run_dir = daemon.dir.path().join("var/run");
    // (The removal fails if a process creates a bell in the folder at the same time.)
    eventually(5 * SECOND, "no file of dq-master", || {
        let _ = std::fs::remove_dir_all(&run_dir);
        (!run_dir.join("dq-master.pid").exists()).then_some(())
    });
    eventually(30 * SECOND, "the finding", || daemon.log().contains("run_dir is gone").then_some(()));
    let comes = |id: &str| {
        assert!(takes(&daemon, "t", &format!("{id}-at-once")));
        succ(&daemon.client().ask(&add("t", &format!("{id}-later"), 300)).unwrap());
        let ids = ["at-once", "later"].map(|when| format!("{id}-{when}"));
        eventually(20 * SECOND, &format!("{ids:?}; log:\n{}", daemon.log()), || {
            let came = sink.deliveries();
            ids.iter().all(|id| came.contains_key(id)).then_some(())
        });
    };
    comes("running");
    for pid in daemon.children().values() {
        let _ = kill(*pid, Signal::SIGKILL);
    }
    eventually(20 * SECOND, "processes that take jobs", || {
        (try_add(&daemon, "restarted")?["code"] == 1).then_some(())
    });
    comes("replaced");
    daemon.stop();
    let daemon = Daemon::again(&daemon);
    daemon.wait_ready();
    daemon.wait_all_up(SLOTS);
    eventually(60 * SECOND, "the end of the finding", || {
        (!daemon.status()?["findings"].to_string().contains("run_dir is gone")).then_some(())
    });
}

#[test]
fn a_daemon_that_cannot_start_says_so_and_ends() {
    if on_redis() {
        return; // This test is about the file of the embedded store.
    }
    let dir = Arc::new(tempfile::tempdir().unwrap());
    std::fs::create_dir(dir.path().join("var")).unwrap();
    std::fs::write(
        dir.path().join("var/dq.db"),
        "this is no database, and longer than a page's head".repeat(100),
    )
    .unwrap();
    let mut daemon = Daemon::spawn(dir, free_port(), "start_timeout = \"2s\"\n", &[]);
    // While the daemon tries to start, `dq status` shows the reason, in the words of the process.
    let reason = eventually(10 * SECOND, "a reason", || {
        let status = daemon.status()?;
        let server = status["processes"].as_array()?.iter().find(|p| p["name"] == "dq-server")?;
        server["last_end"]["reason"].as_str().map(str::to_owned)
    });
    assert!(reason.contains("ended with code 1: cannot open the store"), "{reason}");
    assert!(!daemon.wait_exit(10 * SECOND).success());
    let log = daemon.log();
    assert!(log.contains("var/dq.db: ") && log.contains("not a database"), "{log}");
    assert!(log.contains("not ready within start_timeout: dq-timer-0"), "{log}");
}

#[test]
fn a_slow_callback_delays_no_other_topic() {
    let sink = Sink::answering(|call| {
        HandlerAnswer::new(200, "ok").after(if call.header("dq-topic") == "slow" {
            2 * SECOND
        } else {
            Duration::ZERO
        })
    });
    let config = topic("slow", &sink, "timeout = \"10s\"") + &topic("fast", &sink, "");
    let daemon = Daemon::start(&format!("[consume]\nconcurrency = 8\n{config}"));
    let mut client = daemon.client();
    for i in 0..200 {
        succ(&client.ask(&add("slow", &i.to_string(), 0)).unwrap());
    }
    eventually(5 * SECOND, "slow callbacks", || (sink.count() >= 8).then_some(()));
    for i in 0..100 {
        succ(&client.ask(&add("fast", &format!("f{i}"), 20)).unwrap());
    }
    let fast = || sink.calls().into_iter().filter(|c| c.header("dq-topic") == "fast").collect::<Vec<_>>();
    eventually(5 * SECOND, "the fast ones", || (fast().len() == 100).then_some(()));
    let worst = fast().iter().map(|c| c.late_ms().unwrap()).max().unwrap();
    println!("the latest of the fast ones: {worst} ms");
    assert!(worst < 1500, "{worst} ms");
}

#[test]
fn health_and_readiness_are_told_on_both_sockets() {
    let daemon = Daemon::start("");
    let ask = |stream: &mut dyn ReadWrite, path: &str| {
        write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    };
    let tcp =
        || eventually(10 * SECOND, "the HTTP port", || TcpStream::connect(("127.0.0.1", daemon.http)).ok());
    assert!(ask(&mut tcp(), "/healthz").starts_with("HTTP/1.1 200"));
    let ready = ask(&mut tcp(), "/readyz");
    assert!(ready.starts_with("HTTP/1.1 200") && ready.contains(r#""ready":true"#), "{ready}");
    let mut unix = UnixStream::connect(daemon.dir.path().join("var/run/http.sock")).unwrap();
    assert!(ask(&mut unix, "/readyz").starts_with("HTTP/1.1 200"));
    assert!(ask(&mut tcp(), "/nothing").starts_with("HTTP/1.1 404"));
}

trait ReadWrite: Read + Write {}
impl<T: Read + Write> ReadWrite for T {}

#[test]
fn a_hundred_thousand_pending_jobs_do_not_delay_a_restart() {
    let sink = Sink::start();
    let config = topic("t", &sink, "");
    let mut daemon = Daemon::start(&config);
    let mut client = daemon.client();
    let due_ms = now_ms() + 3_600_000;
    let batch = |n: usize| {
        let jobs: Vec<Value> = (0..1000)
            .map(|i| json!({"id": format!("{n}-{i}"), "run_at_ms": due_ms + i, "body": {"n": i}}))
            .collect();
        json!({"cmd": "madd", "topic": "t", "jobs": jobs})
    };
    for n in 0..100 {
        client.send(&[batch(n)]).unwrap();
    }
    for _ in 0..100 {
        let answer = client.receive().unwrap();
        assert!(answer["data"].as_array().unwrap().iter().all(|a| a["code"] == 1));
    }
    let soon = now_ms() + 3000;
    for i in 0..100 {
        let request =
            json!({"cmd": "add", "topic": "t", "id": format!("soon-{i}"), "run_at_ms": soon, "body": 1});
        succ(&client.ask(&request).unwrap());
    }
    drop(client);
    daemon.stop();
    let begun = Instant::now();
    let again = Daemon::spawn(Arc::clone(&daemon.dir), daemon.port, &config, &[]);
    again.wait_ready();
    let took = begun.elapsed();
    println!("started in {took:?} with 100,100 pending jobs");
    assert!(took < 5 * SECOND, "{took:?}");
    let mut client = again.client();
    sink.wait_for(100, 15 * SECOND);
    eventually(5 * SECOND, "the count", || (pending(&mut client, "t") == 100_000).then_some(()));
    assert_eq!(stats(&mut client, "t")["delayed"], 100_000);
    assert!(sink.calls().iter().all(|c| c.late_ms().unwrap() >= 0), "none is early");
    assert_eq!(sink.count(), 100);
}

#[test]
fn a_locked_database_is_an_error_and_works_again_afterwards() {
    if on_redis() {
        return; // This test is about the file of the embedded store.
    }
    let sink = Sink::start();
    let daemon = Daemon::start(&topic("t", &sink, ""));
    let mut client = daemon.client();
    let at = now_ms() + 700;
    succ(
        &client
            .ask(&json!({"cmd": "add", "topic": "t", "id": "before", "run_at_ms": at, "body": 1}))
            .unwrap(),
    );
    let other = rusqlite::Connection::open(daemon.dir.path().join("var/dq.db")).unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    let begun = Instant::now();
    let refused = client.ask(&add("t", "during", 0)).unwrap();
    assert_eq!(refused["err"], "store_busy", "{refused}");
    assert!(begun.elapsed() < 5 * SECOND);
    succ(&client.ask(&json!({"cmd": "ping"})).unwrap());
    // A job that becomes due in the meantime is delivered later.
    eventually(5 * SECOND, "the due time of the one before", || (now_ms() > at + 300).then_some(()));
    assert_eq!(sink.count(), 0);
    other.execute_batch("ROLLBACK").unwrap();
    succ(&client.ask(&add("t", "after", 0)).unwrap());
    sink.wait_for(2, 10 * SECOND);
    assert_eq!(sink.deliveries().len(), 2, "the refused one was not stored");
}

/// Waits for the alert that the disk is nearly full. Returns its details.
fn disk_alert(daemon: &Daemon) -> String {
    let mut http = Http::tcp(daemon);
    eventually(5 * SECOND, "an alert", || {
        let alerts = http.get("/v1/alerts").is(200);
        let mut alerts = alerts["alerts"].as_array().unwrap().iter();
        let alert = alerts.find(|alert| alert["name"] == "disk_nearly_full")?;
        Some(alert["detail"].as_str().unwrap().to_owned())
    })
}

#[test]
fn a_full_disk_is_an_error_to_clients_and_works_again_after() {
    if on_redis() {
        return; // This test is about the file of the embedded store.
    }
    let sink = Sink::start();
    let (daemon, filler) = Daemon::on_small_disk(&topic("t", &sink, ""));
    let mut client = daemon.client();
    succ(&client.ask(&add("t", "due", 1000)).unwrap());
    let mut file = std::fs::File::create(&filler).unwrap();
    while file.write_all(&[0; 4096]).is_ok() {}
    let body = "x".repeat(20_000);
    let mut taken = Vec::new();
    let refused = eventually(10 * SECOND, "a refusal", || {
        let id = format!("during-{}", taken.len());
        let answer = client
            .ask(&json!({"cmd": "add", "topic": "t", "id": id, "delay_ms": 3_600_000, "body": body}))
            .unwrap();
        if answer["code"] == 1 {
            taken.push(id);
            return None;
        }
        Some(answer)
    });
    assert_eq!(refused["err"], "store_full", "{refused}");
    // The `run_dir` is on the same disk, and still has room for the findings.
    disk_alert(&daemon);
    succ(&client.ask(&json!({"cmd": "ping"})).unwrap());
    // A job becomes due in the meantime. The daemon tries to lease it, with pauses between the tries.
    let used = || daemon.children().values().map(|pid| cpu_ms(*pid)).sum::<u64>();
    let (before, until) = (used(), now_ms() + 3000);
    eventually(5 * SECOND, "three seconds of trouble", || (now_ms() > until).then_some(()));
    assert!(used() - before < 600, "{} ms of 3 s with a full disk", used() - before);
    assert!(sink.count() <= 1, "it is delivered if the copy of the log makes room");
    drop(file);
    std::fs::remove_file(&filler).unwrap();
    eventually(10 * SECOND, "an add that is taken", || {
        (client.ask(&add("t", "after", 0)).unwrap()["code"] == 1).then_some(())
    });
    sink.wait_for(2, 10 * SECOND);
    eventually(5 * SECOND, "what was taken", || {
        (pending(&mut client, "t") == taken.len() as u64).then_some(())
    });
}

#[test]
fn with_little_room_left_only_adds_are_refused() {
    if on_redis() {
        return; // This test is about the file of the embedded store.
    }
    let sink = Sink::start();
    let (daemon, filler) = Daemon::on_small_disk_with(&topic("t", &sink, ""), "2MiB");
    let mut client = daemon.client();
    for n in 0..20 {
        succ(&client.ask(&add("t", &format!("due-{n}"), 2000)).unwrap());
    }
    let (mut file, mut late) = (std::fs::File::create(&filler).unwrap(), 0);
    let refused = eventually(20 * SECOND, "a refusal", || {
        file.write_all(&[0; 65_536]).expect("the disk is not full");
        // (An add succeeds as long as the file of the store has free pages.)
        late += 1;
        let job = json!({"cmd": "add", "topic": "t", "id": late, "delay": 3600, "body": "x".repeat(20_000)});
        let answer = client.ask(&job).unwrap();
        (answer["code"] == 0).then_some(answer)
    });
    assert_eq!(refused["err"], "store_full", "{refused}");
    let why = refused["msg"].as_str().unwrap();
    assert!(why.contains(" MiB free, and adds need "), "{refused}");
    // The jobs in the store are delivered and settled.
    sink.wait_for(20, 20 * SECOND);
    eventually(10 * SECOND, "20 settlements", || {
        (stats(&mut client, "t").values().sum::<u64>() < late).then_some(())
    });
    // Adds also leave the space for what is only in the log yet. So they may be refused a little earlier.
    while nix::sys::statvfs::statvfs(&filler)
        .is_ok_and(|s| s.blocks_available() * s.fragment_size() >= 2 << 20)
    {
        file.write_all(&[0; 65_536]).expect("the disk is not full");
    }
    let ready = Http::tcp(&daemon).get("/readyz").is(200);
    let store = ready["parts"]["store"].as_str().unwrap();
    assert!(store.starts_with("full, so adds are refused: its disk has"), "{ready}");
    let alert = disk_alert(&daemon);
    assert!(alert.contains("less than store.min_free (2 MiB), so adds are refused"), "{alert}");
    if late > 1 {
        succ(&client.ask(&json!({"cmd": "del", "topic": "t", "id": 1})).unwrap());
    }
    drop(file);
    std::fs::remove_file(&filler).unwrap();
    eventually(10 * SECOND, "an add that is taken", || {
        (client.ask(&add("t", "after", 0)).unwrap()["code"] == 1).then_some(())
    });
}

#[test]
fn adds_that_fill_the_disk_leave_room_for_deliveries() {
    if on_redis() {
        return; // This test is about the file of the embedded store.
    }
    let sink = Sink::start();
    let (daemon, _) = Daemon::on_small_disk(&topic("t", &sink, ""));
    let mut client = daemon.client();
    for n in 0..50 {
        succ(&client.ask(&add("t", &format!("due-{n}"), 3000 + 100 * n)).unwrap());
    }
    let is_over = AtomicBool::new(false);
    std::thread::scope(|threads| {
        for thread in 0..4 {
            let (daemon, is_over) = (&daemon, &is_over);
            threads.spawn(move || {
                let (mut client, mut refused) = (daemon.client(), 0);
                for n in 0.. {
                    let (id, body) = (format!("{thread}-{n}"), "x".repeat(20_000));
                    let job = json!({"cmd": "add", "topic": "t", "id": id, "delay": 3600, "body": body});
                    let answer = client.ask(&job).unwrap();
                    refused += u32::from(answer["err"] == "store_full");
                    if is_over.load(Ordering::Relaxed) {
                        return assert!(refused > 0);
                    }
                }
            });
        }
        let delivered = std::panic::catch_unwind(|| sink.wait_for(50, 30 * SECOND));
        is_over.store(true, Ordering::Relaxed);
        delivered.unwrap();
    });
    eventually(10 * SECOND, "their settlements", || (stats(&mut client, "t")["leased"] == 0).then_some(()));
}

/// Sends bytes, and returns the bytes that come back until the other side closes the connection.
fn raw(daemon: &Daemon, bytes: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(daemon.address()).unwrap();
    stream.set_read_timeout(Some(10 * SECOND)).unwrap();
    stream.write_all(bytes).unwrap();
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    answer
}

#[test]
fn bad_input_gets_a_reason_and_disturbs_nobody_else() {
    let sink = Sink::start();
    let daemon = Daemon::start(&format!("[server]\nmax_frame = \"4KiB\"\n{}", topic("t", &sink, "")));
    let mut bystander = daemon.client();
    let mut client = daemon.client();
    let long = "x".repeat(300);
    for (request, err, hint) in [
        (json!([]), "bad_json", "JSON"),
        (json!({"cmd": "add"}), "missing_field", "topic"),
        (json!({"cmd": "fly"}), "unknown_command", "fly"),
        (json!({"cmd": "add", "topic": "t", "id": "", "body": 1}), "bad_field", "id"),
        (json!({"cmd": "add", "topic": "t", "id": long, "body": 1}), "bad_field", "300"),
        (json!({"cmd": "add", "topic": long, "id": "a", "body": 1}), "bad_field", "topic"),
        (json!({"cmd": "add", "topic": "", "id": "a", "body": 1}), "bad_field", "topic"),
        (json!({"cmd": "add", "topic": "t", "id": "a"}), "missing_field", "body"),
        (json!({"cmd": "add", "topic": "t", "id": "a", "body": 1, "fix_time": "soon"}), "bad_field", "soon"),
        (json!({"cmd": "add", "topic": "nope", "id": "a", "body": 1}), "unknown_topic", "nope"),
        (json!({"cmd": "get", "topic": "t"}), "missing_field", "id"),
    ] {
        let answer = client.ask(&request).unwrap();
        assert_eq!((&answer["code"], &answer["err"]), (&json!(0), &json!(err)), "{request}: {answer}");
        assert!(answer["msg"].as_str().unwrap().contains(hint), "{request}: {answer}");
        assert_eq!(answer["data"], json!([]));
    }
    // After broken JSON in a good frame, the connection continues.
    client.stream.write_all(b"\0\0\0\x02{]").unwrap();
    assert_eq!(client.receive().unwrap()["err"], "bad_json");
    succ(&client.ask(&json!({"cmd": "ping"})).unwrap());
    // A frame that is too long gets an answer, and then the connection ends. This holds for both framings, even if the
    // client has sent the whole frame.
    let mut long = b"\0\0\xff\0".to_vec();
    long.extend([b'x'; 0xff00]);
    let answer = raw(&daemon, &long);
    assert!(String::from_utf8_lossy(&answer).contains("max_frame"), "{answer:?}");
    assert!(String::from_utf8_lossy(&raw(&daemon, b"9999{")).contains("max_frame"));
    // A frame without a length.
    assert!(String::from_utf8_lossy(&raw(&daemon, b"00x1{}")).contains("bad_frame"));
    assert_eq!(raw(&daemon, b"GET / HTTP/1.1\r\n\r\n"), b"", "closed without a word: it is not our protocol");
    // Half a frame, and then the end of the stream.
    assert_eq!(raw(&daemon, b"0039{\"cmd\""), b"");
    assert_eq!(raw(&daemon, b"00"), b"");
    succ(&bystander.ask(&json!({"cmd": "ping"})).unwrap());
    assert_eq!(daemon.children().len(), 7, "no process has ended:\n{}", daemon.log());
}

#[test]
fn an_add_over_tcp_keeps_the_delay_it_was_given() {
    let sink = Sink::start();
    let daemon = Daemon::start(&topic("t", &sink, ""));
    let mut client = daemon.client();
    let far = "2030-01-01T00:00:00Z";
    let add = |id: &str, more: Value| {
        let mut add = json!({"cmd": "add", "topic": "t", "id": id, "body": 1});
        add.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        add
    };
    for (id, more, due_in_s) in [
        ("text", json!({"delay": "30m"}), Some(1800)),
        ("seconds", json!({"delay": 1800}), Some(1800)),
        ("moment", json!({"run_at": far}), None),
    ] {
        let before = now_ms();
        let answer = client.ask(&add(id, more)).unwrap();
        assert_eq!(answer["data"], json!([]), "{answer}");
        let due_ms = answer["due_ms"].as_i64().unwrap();
        match due_in_s {
            Some(s) => assert!((before + s * 1000..=now_ms() + s * 1000 + 1).contains(&due_ms), "{answer}"),
            None => assert_eq!(answer["due"], "2030-01-01T00:00:00.000Z"),
        }
        succ(&without_due(answer));
        let stored = client.ask(&json!({"cmd": "get", "topic": "t", "id": id})).unwrap();
        assert_eq!((&stored["job"]["state"], &stored["job"]["due_ms"]), (&json!("delayed"), &json!(due_ms)));
    }
    // An add with a field that only looks like one of dq's fields is refused, and stores nothing.
    for (field, meant) in
        [("delay_seconds", "delay"), ("delaySeconds", "delay"), ("runAt", "run_at"), ("eta", "run_at")]
    {
        let answer = client.ask(&add("mistaken", json!({field: 1800}))).unwrap();
        assert_eq!(answer["err"], "unknown_field", "{answer}");
        let msg = answer["msg"].as_str().unwrap();
        assert!(msg.contains(field) && msg.contains(&format!("mean {meant}?")), "{msg}");
        let found = client.ask(&json!({"cmd": "get", "topic": "t", "id": "mistaken"})).unwrap();
        assert_eq!(found["err"], "not_found");
    }
    let unrelated = client.ask(&add("unrelated", json!({"delay": "1h", "trace": "x"}))).unwrap();
    assert_eq!(unrelated["code"], 1, "other fields are passed over: {unrelated}");
    // In a batch each job is judged by itself.
    let jobs = json!([{"id": "m-1", "body": 1, "delay": "30m"}, {"id": "m-2", "body": 1, "delay_secs": 9},
        {"id": "m-3", "body": 1, "run_at": far}]);
    let answer = client.ask(&json!({"cmd": "madd", "topic": "t", "jobs": jobs})).unwrap();
    assert!(answer["data"][0]["due_ms"].as_i64().unwrap() > now_ms() + 1_700_000, "{answer}");
    assert_eq!(answer["data"][1]["err"], "unknown_field");
    assert_eq!(answer["data"][2]["due"], "2030-01-01T00:00:00.000Z");
    let beside = json!({"cmd": "madd", "topic": "t", "delay": "1h", "jobs": [{"id": "m-4", "body": 1}]});
    assert_eq!(client.ask(&beside).unwrap()["err"], "bad_field");
    let stats = client.ask(&json!({"cmd": "stats", "topic": "t"})).unwrap();
    assert_eq!(stats["data"]["t"], json!({"delayed": 6, "ready": 0, "leased": 0, "dead": 0}));
    assert_eq!(sink.calls().len(), 0, "nothing was delivered at once");
}

#[test]
fn half_a_frame_and_silence_ends_after_the_idle_timeout() {
    let daemon = Daemon::start("[server]\nidle_timeout = \"500ms\"\n");
    for start in [&b""[..], b"00", b"0039{\"cmd\"", b"\0\0\0\x10{"] {
        let mut stream = TcpStream::connect(daemon.address()).unwrap();
        stream.set_read_timeout(Some(10 * SECOND)).unwrap();
        stream.write_all(start).unwrap();
        let begun = Instant::now();
        assert_eq!(stream.read(&mut [0; 10]).unwrap(), 0);
        assert!(begun.elapsed() >= Duration::from_millis(400) && begun.elapsed() < 5 * SECOND);
    }
}

#[test]
fn a_client_that_does_not_read_costs_nobody_else_anything() {
    let sink = Sink::start();
    let daemon = Daemon::start(&topic("t", &sink, ""));
    let body = "x".repeat(8000);
    let mut client = daemon.client();
    succ(
        &client
            .ask(&json!({"cmd": "add", "topic": "t", "id": "big", "delay_ms": 3_600_000, "body": body}))
            .unwrap(),
    );
    // The client sends many gets, and reads no answer. So the daemon stops reading, and the client can send no more.
    let mut deaf = daemon.client();
    deaf.stream.set_write_timeout(Some(Duration::from_millis(300))).unwrap();
    let gets = vec![json!({"cmd": "get", "topic": "t", "id": "big"}); 1000];
    let mut sent = 0;
    while sent < 200 && deaf.send(&gets).is_ok() {
        sent += 1;
    }
    assert!(sent < 200, "the daemon took {sent} thousand requests of a client that does not read");
    let server = daemon.child("dq-server");
    let status = std::fs::read_to_string(format!("/proc/{server}/status")).unwrap();
    let resident = status.lines().find_map(|l| l.strip_prefix("VmRSS:")).unwrap();
    let kib: u64 = resident.trim().trim_end_matches(" kB").parse().unwrap();
    assert!(kib < 200 << 10, "dq-server has {kib} kB");
    let begun = Instant::now();
    for i in 0..100 {
        succ(&client.ask(&add("t", &format!("ok-{i}"), 0)).unwrap());
    }
    println!("100 adds beside it took {:?}", begun.elapsed());
    sink.wait_for(100, 10 * SECOND);
}

#[test]
fn what_is_pipelined_is_answered_to_the_last_however_it_comes() {
    let sink = Sink::start();
    let daemon = Daemon::start(&topic("t", &sink, ""));
    let mut client = daemon.client();
    let body = "x".repeat(200_000);
    succ(
        &client
            .ask(&json!({"cmd": "add", "topic": "t", "id": "big", "delay_ms": 3_600_000, "body": body}))
            .unwrap(),
    );
    let get = json!({"cmd": "get", "topic": "t", "id": "big"});
    let ping = json!({"cmd": "ping"});
    let missing = json!({"cmd": "get", "topic": "t", "id": "nobody"});
    for (request, count) in [(&missing, 1143), (&ping, 4000), (&get, 40)] {
        for half_closed in [false, true] {
            let mut client = daemon.client();
            client.send(std::slice::from_ref(&get)).unwrap();
            client.send(&vec![request.clone(); count]).unwrap();
            if half_closed {
                client.stream.shutdown(std::net::Shutdown::Write).unwrap();
            }
            succ(&client.receive().unwrap());
            for n in 0..count {
                client.receive().unwrap_or_else(|e| panic!("answer {n} of {count} to {request}: {e}"));
            }
            if half_closed {
                assert_eq!(client.stream.read(&mut [0; 1]).unwrap(), 0);
            }
        }
    }
    // Empty frames are answered too.
    let mut stream = TcpStream::connect(daemon.address()).unwrap();
    stream.write_all(&b"0000".repeat(4000)).unwrap();
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    let mut answers = String::new();
    stream.read_to_string(&mut answers).unwrap();
    assert_eq!(answers.matches("bad_json").count(), 4000);
}

#[test]
fn unread_large_answers_do_not_fill_the_memory() {
    let sink = Sink::start();
    let daemon = Daemon::start(&topic("t", &sink, ""));
    let mut client = daemon.client();
    let body = "x".repeat(1_000_000);
    succ(
        &client
            .ask(&json!({"cmd": "add", "topic": "t", "id": "big", "delay_ms": 3_600_000, "body": body}))
            .unwrap(),
    );
    let mut deaf = daemon.client();
    deaf.send(&vec![json!({"cmd": "get", "topic": "t", "id": "big"}); 600]).unwrap();
    let server = daemon.child("dq-server");
    let peak_kib = || -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{server}/status")).unwrap();
        let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:")).unwrap().trim().to_owned();
        line.trim_end_matches(" kB").parse().unwrap()
    };
    // Other clients get answers while this client is served.
    (0..20).for_each(|_| succ(&client.ask(&json!({"cmd": "get", "topic": "t", "id": "big"})).unwrap()));
    assert!(peak_kib() < 250 << 10, "dq-server had {} kB", peak_kib());
}

#[test]
fn a_draining_port_refuses_and_a_lost_client_does_not_block_it() {
    let sink = Sink::answering(|_| HandlerAnswer::new(200, "ok").after(3 * SECOND));
    let mut daemon = Daemon::start(&topic("t", &sink, "timeout = \"10s\""));
    succ(&daemon.client().ask(&add("t", "slow", 0)).unwrap());
    // This client has sent bytes that are no frame, and does not close the connection.
    let mut lost = TcpStream::connect(daemon.address()).unwrap();
    lost.write_all(b"0x").unwrap();
    lost.write_all(b"yz").unwrap();
    let mut answer = Vec::new();
    lost.set_read_timeout(Some(10 * SECOND)).unwrap();
    lost.read_to_end(&mut answer).unwrap();
    assert!(String::from_utf8_lossy(&answer).contains("bad_frame"));
    eventually(5 * SECOND, "the callback", || (sink.count() == 1).then_some(()));
    daemon.signal(Signal::SIGTERM);
    eventually(4 * SECOND, "a refusal", || TcpStream::connect(daemon.address()).is_err().then_some(()));
    assert!(daemon.wait_exit(6 * SECOND).success());
    drop(lost);
}

#[test]
fn a_child_that_a_real_time_signal_ends_is_started_again() {
    let daemon = Daemon::start("");
    let old = daemon.child("dq-consume-0");
    let status = Command::new("kill").args(["-34", &old.to_string()]).status().unwrap();
    assert!(status.success());
    eventually(5 * SECOND, "another one", || {
        daemon.children().get("dq-consume-0").copied().filter(|p| *p != old)
    });
}

/// Returns the processor time that a process has used.
fn cpu_ms(pid: nix::unistd::Pid) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields: Vec<&str> = stat.rsplit_once(") ").unwrap().1.split(' ').collect();
    (fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()) * 10
}

#[test]
fn trouble_and_idleness_cost_no_processor_time() {
    let sink = Sink::start();
    let daemon = Daemon::start(&topic("t", &sink, ""));
    let mut client = daemon.client();
    succ(&client.ask(&add("t", "due", 300)).unwrap());
    succ(&client.ask(&add("t", "later", 3_600_000)).unwrap());
    let sum = || daemon.children().values().map(|pid| cpu_ms(*pid)).sum::<u64>();
    let other = rusqlite::Connection::open(daemon.dir.path().join("var/dq.db")).unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    let (before, until) = (sum(), now_ms() + 3000);
    eventually(5 * SECOND, "three seconds of trouble", || (now_ms() > until).then_some(()));
    let troubled = sum() - before;
    other.execute_batch("ROLLBACK").unwrap();
    sink.wait_for(1, 10 * SECOND);
    let (before, until) = (sum(), now_ms() + 3000);
    eventually(5 * SECOND, "three seconds of idleness", || (now_ms() > until).then_some(()));
    let idle = sum() - before;
    println!("of 3 s: {troubled} ms with the store locked, {idle} ms idle");
    assert!(troubled < 600 && idle < 200, "of 3 s: {troubled} ms with the store locked, {idle} ms idle");
}

#[test]
fn connections_over_the_limit_are_refused_and_accepted_later() {
    let daemon = Daemon::start("[server]\nmax_connections = 5\n");
    // `Daemon::start` has used its own connection, and has closed it. This connection counts until the daemon has
    // noticed that it was closed.
    let mut clients: Vec<TcpClient> = Vec::new();
    eventually(5 * SECOND, "five connections", || {
        let mut client = daemon.client();
        if client.ask(&json!({"cmd": "ping"})).is_ok() {
            clients.push(client);
        }
        (clients.len() == 5).then_some(())
    });
    let mut sixth = daemon.client();
    assert!(sixth.ask(&json!({"cmd": "ping"})).is_err());
    clients.pop();
    eventually(5 * SECOND, "room", || daemon.client().ask(&json!({"cmd": "ping"})).ok());
    for client in &mut clients {
        succ(&client.ask(&json!({"cmd": "ping"})).unwrap());
    }
}

#[test]
fn a_drain_answers_what_has_arrived() {
    let sink = Sink::start();
    let mut daemon = Daemon::start(&topic("t", &sink, ""));
    let mut client = daemon.client();
    let adds: Vec<Value> = (0..500).map(|i| add("t", &i.to_string(), 3_600_000)).collect();
    client.send(&adds).unwrap();
    // After the first answer, all requests have arrived.
    succ(&client.receive().unwrap());
    daemon.signal(Signal::SIGTERM);
    let mut answered = 1;
    while let Ok(answer) = client.receive() {
        succ(&answer);
        answered += 1;
    }
    assert!(daemon.wait_exit(10 * SECOND).success());
    assert_eq!(answered, 500);
    let next = Daemon::again(&daemon);
    next.wait_ready();
    assert_eq!(pending(&mut next.client(), "t"), 500);
}

#[test]
fn a_child_that_keeps_ending_is_started_ever_later() {
    let daemon = Daemon::start("");
    for _ in 0..2 {
        daemon.kill_child("dq-redis-checke");
    }
    let old = daemon.child("dq-redis-checke");
    let begun = Instant::now();
    kill(old, Signal::SIGKILL).unwrap();
    eventually(10 * SECOND, "another one", || {
        daemon.children().get("dq-redis-checke").copied().filter(|p| *p != old)
    });
    assert!(begun.elapsed() >= SECOND, "{:?}", begun.elapsed());
}

#[test]
fn logs_go_to_the_files_that_the_php_daemons_users_know() {
    let sink = Sink::answering(|_| HandlerAnswer::new(500, ""));
    let daemon = Daemon::start(&format!("log_dir = \"logs\"\n{}", topic("t", &sink, "max_attempts = 1")));
    succ(&daemon.client().ask(&add("t", "i", 0)).unwrap());
    let read = |kind: &str| -> String {
        let entries = std::fs::read_dir(daemon.dir.path().join("logs")).into_iter().flatten().flatten();
        let own = entries.filter(|e| e.file_name().to_string_lossy().starts_with(kind));
        own.map(|e| std::fs::read_to_string(e.path()).unwrap_or_default()).collect()
    };
    eventually(5 * SECOND, "the line", || read("notify_").contains("t:i is a dead letter").then_some(()));
    assert_eq!(daemon.client().ask(&add("nope", "i", 0)).unwrap()["code"], 0);
    eventually(5 * SECOND, "the refusal", || read("request_").contains("topic nope").then_some(()));
    daemon.kill_child("dq-consume-0");
    eventually(5 * SECOND, "the error", || read("err_").contains("was ended by SIGKILL").then_some(()));
    assert!(read("dq_").contains("dq-server"), "{}", read("dq_"));
    assert_eq!(daemon.log(), "", "nothing on stderr");
}

#[test]
fn a_log_in_json_names_the_topic_and_the_job() {
    let sink = Sink::answering(|_| HandlerAnswer::new(500, ""));
    let daemon = Daemon::start(&format!("log_format = \"json\"\n{}", topic("t", &sink, "max_attempts = 1")));
    succ(&daemon.client().ask(&add("t", "i", 0)).unwrap());
    let lines = || -> Vec<Value> {
        daemon.log().lines().map(|line| serde_json::from_str(line).expect(line)).collect()
    };
    let dead =
        eventually(5 * SECOND, "the line", || lines().into_iter().find(|line| line["log"] == "notify"));
    assert_eq!(
        (&dead["topic"], &dead["id"], &dead["attempt"]),
        (&json!("t"), &json!("i"), &json!(1)),
        "{dead}"
    );
    assert_eq!(dead["level"], "error");
    assert!(dead["process"].as_str().unwrap().starts_with("dq-consume-"), "{dead}");
}

#[test]
fn dq_master_is_the_daemon_whatever_its_name() {
    let dir = tempfile::tempdir().unwrap();
    let [master, dq, link] = ["dq-master", "dq", "delayqueue"].map(|name| dir.path().join(name));
    std::fs::copy(env!("CARGO_BIN_EXE_dq-master"), &master).unwrap();
    let check = |program: &Path| {
        let run = || match Command::new(program).args(["--check", "--config", "/nowhere.toml"]).output() {
            // Another test has forked while this test wrote the executable, so the new process still has the file open
            // for a moment.
            Err(e) if e.kind() == std::io::ErrorKind::ExecutableFileBusy => None,
            other => Some(other.unwrap()),
        };
        let output = eventually(10 * SECOND, "an end", run);
        assert!(!output.status.success());
        String::from_utf8(output.stderr).unwrap()
    };
    let cannot = format!("cannot execute {}", dq.display());
    assert!(check(&master).contains(&cannot), "there is no dq");
    std::fs::create_dir(&dq).unwrap();
    assert!(check(&master).contains("it is a folder"));
    std::fs::remove_dir(&dq).unwrap();
    std::os::unix::fs::symlink(&master, &dq).unwrap();
    assert!(check(&master).contains("it is dq-master itself"));
    std::fs::remove_file(&dq).unwrap();
    std::fs::copy(&master, &dq).unwrap();
    assert!(check(&master).contains("it is dq-master itself"));
    std::fs::remove_file(&dq).unwrap();
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_dq"), &dq).unwrap();
    std::os::unix::fs::symlink(&master, &link).unwrap();
    for program in [&master, &link] {
        let printed = check(program);
        assert!(printed.contains("/nowhere.toml"), "{printed}");
    }
}
