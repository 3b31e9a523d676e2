//! What operators see of the spool: the alert, the metrics, the command line. Also the cases in which dq cannot write
//! the spool.

use std::collections::HashMap;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::time::Instant;

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::support::http::Http;
use crate::support::redis::RedisServer;
use crate::support::{Daemon, SECOND, Sink, add, eventually, free_port, topic};

fn config(node: &RedisServer, sink: &Sink, more: &str) -> String {
    let url = node.url();
    format!(
        "[store]\nbackend = \"redis\"\ntimeout = \"1s\"\n{more}[[store.node]]\nname = \"r0\"\nurl = \"{url}\"\n{}",
        topic("t", sink, "")
    )
}

fn dq(words: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_dq"));
    for name in ["DQ_URL", "DQ_RUN_DIR", "DQ_TOKEN", "DQ_TOKEN_FILE", "NO_COLOR"] {
        command.env_remove(name);
    }
    command.args(words).env("XDG_CONFIG_HOME", "/nonexistent").stdin(Stdio::null()).output().unwrap()
}

/// Returns what a command prints, whatever its exit code is.
fn printed(words: &[&str]) -> String {
    let out = dq(words);
    String::from_utf8(out.stdout).unwrap() + &String::from_utf8_lossy(&out.stderr)
}

/// Adds jobs with bodies of `bytes` bytes until `jobs` of them wait in the spool. Returns how many jobs were accepted.
fn add_until_spooled(daemon: &Daemon, jobs: usize, bytes: usize) -> usize {
    let (mut client, body) = (daemon.client(), "x".repeat(bytes));
    let (mut taken, mut spooled) = (0, 0);
    for n in 0.. {
        let mut job = add("t", &format!("s-{n}"), 0);
        job["body"] = json!(body);
        let answer = client.ask(&job).unwrap();
        taken += usize::from(answer["code"] == 1);
        spooled += usize::from(answer["spooled"] == true);
        assert!(answer["code"] == 1 || answer["err"] == "unknown", "{answer}");
        if spooled == jobs {
            break;
        }
    }
    taken
}

fn spool_alert(daemon: &Daemon) -> Option<Value> {
    let alerts = Http::unix(daemon).get("/v1/alerts").is(200)["alerts"].clone();
    alerts.as_array().unwrap().iter().find(|alert| alert["name"] == "spool_waits").cloned()
}

/// Returns the metrics of the spool.
fn gauges(daemon: &Daemon) -> HashMap<String, f64> {
    let page = Http::unix(daemon).get("/metrics");
    let text = page.json.as_str().unwrap().to_owned();
    let sample = |line: &str| {
        let (name, value) = line.strip_prefix("dq_spool_")?.split_once(' ')?;
        Some((name.to_owned(), value.parse().ok()?))
    };
    text.lines().filter_map(sample).collect()
}

#[test]
fn what_waits_is_shown_everywhere_until_it_is_sent() {
    let (mut node, sink) = (RedisServer::start(), Sink::start());
    let daemon = Daemon::start(&config(&node, &sink, ""));
    let file = daemon.dir.path().join("dq.toml").display().to_string();
    let run_dir = daemon.dir.path().join("var/run").display().to_string();
    let max_bytes = 256 << 20;
    let mut http = Http::unix(&daemon);
    assert_eq!(
        http.get("/v1/nodes").is(200)["spool"],
        json!({"entries": 0, "bytes": 0, "max_bytes": max_bytes, "oldest_ms": null})
    );
    assert_eq!((gauges(&daemon)["entries"], gauges(&daemon)["oldest_seconds"]), (0.0, 0.0));
    for words in [["nodes", "list", "--run-dir", &run_dir], ["nodes", "list", "--config", &file]] {
        assert!(!printed(&words).contains("spool"), "{words:?}");
    }

    node.kill();
    let begun = Instant::now();
    let taken = add_until_spooled(&daemon, 5, 10);
    let spool = http.get("/v1/nodes").is(200)["spool"].clone();
    assert_eq!((&spool["entries"], &spool["max_bytes"]), (&json!(5), &json!(max_bytes)));
    assert!(spool["bytes"].as_u64().unwrap() > 0 && spool["oldest_ms"].is_i64(), "{spool}");
    let shown = gauges(&daemon);
    assert_eq!((shown["entries"], shown["max_bytes"]), (5.0, f64::from(max_bytes)));
    assert_eq!(shown["bytes"], spool["bytes"].as_f64().unwrap());
    assert!((0.0..=begun.elapsed().as_secs_f64()).contains(&shown["oldest_seconds"]), "{shown:?}");
    let line = "spool: 5 changes wait for their nodes, for up to ";
    let commands: [&[&str]; 3] = [
        &["nodes", "list", "--run-dir", &run_dir],
        &["nodes", "list", "--config", &file],
        &["status", "--run-dir", &run_dir],
    ];
    for words in commands {
        let text = printed(words);
        assert!(text.contains(line), "{words:?}: {text}");
    }
    // A file of jobs is accepted as well, although its jobs are only spooled.
    let jobs = daemon.dir.path().join("jobs");
    std::fs::write(&jobs, "{\"id\": \"f-1\", \"body\": 1}\n{\"id\": \"f-2\", \"body\": 2}\n").unwrap();
    let added = dq(&["add", "t", "--batch", jobs.to_str().unwrap(), "--run-dir", &run_dir]);
    let text = String::from_utf8(added.stdout).unwrap();
    assert_eq!((added.status.code(), &*text), (Some(0), "0 new, 0 replaced, 0 kept, 2 spooled, 0 failed\n"));
    let spool = http.get("/v1/nodes").is(200)["spool"].clone();
    assert_eq!(spool["entries"], 7);
    let status: Value =
        serde_json::from_slice(&dq(&["status", "--run-dir", &run_dir, "--json"]).stdout).unwrap();
    assert_eq!(status["spool"], spool);

    let alert = eventually(30 * SECOND, "an alert", || spool_alert(&daemon));
    assert!(begun.elapsed() >= 9 * SECOND, "a change may wait for 10 s: {:?}", begun.elapsed());
    assert_eq!((&alert["loses_jobs"], &alert["node"]), (&json!(false), &Value::Null));
    let detail = alert["detail"].as_str().unwrap();
    assert!(
        detail.starts_with("7 changes wait since ")
            && detail.contains("of 256.0 MiB are used: dq nodes list"),
        "{detail}"
    );
    assert!(printed(&["doctor", "--config", &file]).contains(detail));

    node.start_again();
    sink.wait_for(taken + 2, 30 * SECOND);
    eventually(20 * SECOND, "the alert's end", || spool_alert(&daemon).is_none().then_some(()));
    assert_eq!(http.get("/v1/nodes").is(200)["spool"]["entries"], 0);
    assert!(!printed(&["nodes", "list", "--run-dir", &run_dir]).contains("spool"));
}

#[test]
fn a_spool_that_is_half_full_is_told_at_once() {
    let (mut node, sink) = (RedisServer::start(), Sink::start());
    let daemon = Daemon::start(&config(&node, &sink, "spool = \"1MiB\"\n"));
    node.kill();
    add_until_spooled(&daemon, 30, 20_000);
    let alert = eventually(30 * SECOND, "an alert", || spool_alert(&daemon));
    let detail = alert["detail"].as_str().unwrap();
    assert!(detail.contains("adds are refused when it is full (store.spool)"), "{detail}");
    let since = alert["since_ms"].as_i64().unwrap();
    let oldest = Http::unix(&daemon).get("/v1/nodes").is(200)["spool"]["oldest_ms"].as_i64().unwrap();
    assert!(since - oldest < 9_000, "it was reported {} ms after the oldest came", since - oldest);
}

#[test]
fn without_a_spool_there_is_nothing_to_show() {
    let (node, sink) = (RedisServer::start(), Sink::start());
    for more in [config(&node, &sink, "spool = 0\n"), "[store]\nbackend = \"embedded\"\n".to_owned()] {
        let daemon = Daemon::start(&more);
        assert_eq!(Http::unix(&daemon).get("/v1/nodes").is(200)["spool"], Value::Null);
        assert_eq!(gauges(&daemon), HashMap::new());
        let file = daemon.dir.path().join("dq.toml");
        assert!(!printed(&["doctor", "--config", file.to_str().unwrap()]).contains("spool"));
        assert!(!daemon.dir.path().join("var/spool.db").exists());
    }
}

#[test]
fn a_spool_that_cannot_be_written_is_an_error_at_start_and_hup() {
    let (node, sink) = (RedisServer::start(), Sink::start());
    let dir = Arc::new(tempfile::tempdir().unwrap());
    std::fs::write(dir.path().join("file"), "").unwrap();
    let bad = config(&node, &sink, "spool_path = \"file/spool.db\"\n");
    let mut refused = Daemon::spawn(Arc::clone(&dir), free_port(), &bad, &[]);
    assert!(!refused.wait_exit(10 * SECOND).success());
    let log = refused.log();
    assert!(log.contains("store.spool_path: cannot write ") && log.contains("store.spool = 0"), "{log}");
    refused.forget_master();
    // With the setting that the message recommends, the daemon starts.
    let off = bad.replace("spool_path", "spool = 0\nspool_path");
    let well = Daemon::spawn(Arc::clone(&dir), free_port(), &off, &[]);
    well.wait_ready();
    Daemon::write_config(dir.path(), well.port, well.http, &bad);
    drop(well);
    // `dq doctor` reports this problem before a start.
    let output = printed(&["doctor", "--config", dir.path().join("dq.toml").to_str().unwrap()]);
    assert!(output.contains("spool's folder"), "{output}");

    // (A reload cannot change the file of a spool. But it can add a spool.)
    let daemon = Daemon::start(&config(&node, &sink, "spool = 0\n"));
    std::fs::write(daemon.dir.path().join("file"), "").unwrap();
    let before = daemon.children();
    Daemon::write_config(daemon.dir.path(), daemon.port, daemon.http, &bad);
    daemon.signal(Signal::SIGHUP);
    eventually(10 * SECOND, "a refusal", || {
        let refused = &daemon.status()?["renewal"]["refused"];
        refused.as_str()?.contains("store.spool_path: cannot write ").then_some(())
    });
    assert_eq!(daemon.children(), before);
}

#[test]
fn a_default_spool_that_cannot_be_written_is_an_error_too() {
    let (node, sink) = (RedisServer::start(), Sink::start());
    let dir = Arc::new(tempfile::tempdir().unwrap());
    std::fs::create_dir(dir.path().join("var")).unwrap();
    // Nobody may write to this file, not even root.
    symlink("/proc/sys/kernel/ostype", dir.path().join("var/spool.db")).unwrap();
    let mut refused = Daemon::spawn(Arc::clone(&dir), free_port(), &config(&node, &sink, ""), &[]);
    assert!(!refused.wait_exit(10 * SECOND).success());
    let log = refused.log();
    assert!(log.contains("store.spool_path: cannot write ") && log.contains("/var/spool.db"), "{log}");
    assert!(log.contains("changes may wait in it"), "{log}");
    refused.forget_master();
}

/// The test runs in its own mount namespace.
#[test]
fn the_doctor_warns_of_a_spool_in_memory_and_of_a_small_disk() {
    let (node, sink, dir) = (RedisServer::start(), Sink::start(), tempfile::tempdir().unwrap());
    Daemon::write_config(dir.path(), free_port(), free_port(), &config(&node, &sink, ""));
    let file = dir.path().join("dq.toml");
    let spool = |printed: &Output| -> Value {
        let printed: Value = serde_json::from_slice(&printed.stdout).unwrap();
        let checks = printed["checks"].as_array().unwrap();
        checks.iter().find(|line| line["check"] == "room spool").cloned().unwrap()
    };
    let on_tmpfs = |dir: &Path| {
        std::fs::create_dir(dir.join("var")).unwrap();
        let mut command = Command::new("unshare");
        let as_root: &[&str] = if nix::unistd::geteuid().is_root() { &["-m"] } else { &["-r", "-m"] };
        let script =
            "mount -t tmpfs -o size=6m none \"$1/var\" && exec \"$2\" doctor --json --config \"$1/dq.toml\"";
        command.args(as_root).args(["sh", "-c", script, "sh"]).arg(dir).arg(env!("CARGO_BIN_EXE_dq"));
        command.stdin(Stdio::null()).output().unwrap()
    };
    let line = spool(&on_tmpfs(dir.path()));
    assert_eq!(line["verdict"], "warn");
    assert!(line["detail"].as_str().unwrap().contains("is in memory (tmpfs)"), "{line}");
    assert!(line["advice"].as_str().unwrap().contains("store.spool_path"), "{line}");

    Daemon::write_config(
        dir.path(),
        free_port(),
        free_port(),
        &config(&node, &sink, "spool = \"8TiB\"\nspool_path = \"/var/tmp/nowhere/spool.db\"\n"),
    );
    let line = spool(&dq(&["doctor", "--json", "--config", file.to_str().unwrap()]));
    assert_eq!(line["verdict"], "warn");
    assert!(line["advice"].as_str().unwrap().contains("store.spool"), "{line}");
}
