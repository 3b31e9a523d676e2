//! Changes that the embedded store has acknowledged are on the disk, and a failing disk is reported.

use std::process::Command;
use std::sync::Arc;

use crate::support::disk::{FaultyDisk, Sync};
use crate::support::strace::Strace;
use crate::support::{Daemon, SECOND, Sink, add, eventually, free_port, lives, pending, stats, topic};
use nix::sys::signal::{Signal, kill};
use serde_json::json;

const TOPIC: &str = "[[topic]]\nname = \"t\"\ncallback = \"http://127.0.0.1:9/\"\n";

#[test]
fn no_answer_goes_out_before_what_it_says_is_on_the_disk() {
    let daemon = Daemon::start(TOPIC);
    let mut client = daemon.client();
    let calls = "trace=pwrite64,fdatasync,sendto";
    let strace = Strace::attach(&[daemon.child("dq-server")], &["-y", "-s", "12", "-e", calls]);
    for n in 0..20 {
        assert_eq!(client.ask(&add("t", &format!("j{n}"), 3_600_000)).unwrap()["code"], 1);
    }
    let (mut written, mut synced, mut answers) = (0, 0, 0);
    for line in strace.end().lines() {
        let is_log = line.contains("dq.db-wal>");
        if is_log && line.contains("pwrite64(") {
            written += 1;
        } else if is_log && line.contains("fdatasync(") && line.trim_end().ends_with("= 0") {
            synced = written;
        } else if line.contains("sendto(") && line.contains(r#"{\"code"#) {
            assert!(written > 0 && synced == written, "{synced} of {written} pages are on the disk: {line}");
            (written, synced) = (0, 0);
            answers += 1;
        }
    }
    assert_eq!(answers, 20);
}

#[test]
fn a_failed_sync_leaves_an_add_unacknowledged_but_not_the_next() {
    let daemon = Daemon::start(TOPIC);
    let mut client = daemon.client();
    let fails = "inject=fdatasync:error=EIO:when=1";
    let strace = Strace::attach(&[daemon.child("dq-server")], &["-e", "trace=fdatasync", "-e", fails]);
    let failed = client.ask(&add("t", "during", 3_600_000)).unwrap();
    assert_ne!(failed["code"], 1, "{failed}");
    assert_eq!(client.ask(&add("t", "after", 3_600_000)).unwrap()["code"], 1);
    assert!(strace.end().contains("EIO"));
    let delayed = stats(&mut client, "t")["delayed"];
    assert!((1..=2).contains(&delayed), "{delayed}");
}

/// Starts a daemon on a disk that can fail. Some jobs have just been delivered, so that the log has commits that are
/// not synced yet.
fn on_faulty_disk() -> (FaultyDisk, Daemon) {
    let (sink, dir) = (Sink::start(), Arc::new(tempfile::tempdir().unwrap()));
    let (port, http) = (free_port(), free_port());
    Daemon::write_config(dir.path(), port, http, &topic("t", &sink, ""));
    let mut command = Command::new(env!("CARGO_BIN_EXE_dq-master"));
    command.arg("--config").arg(dir.path().join("dq.toml"));
    let disk = FaultyDisk::under(&mut command);
    let daemon = Daemon::run(dir, port, http, command);
    daemon.wait_ready();
    let mut client = daemon.client();
    assert_eq!(client.ask(&add("t", "before", 3_600_000)).unwrap()["code"], 1);
    for n in 0..50 {
        assert_eq!(client.ask(&add("t", &format!("now-{n}"), 0)).unwrap()["code"], 1);
    }
    sink.wait_for(50, 20 * SECOND);
    eventually(10 * SECOND, "that they are settled", || (pending(&mut client, "t") == 1).then_some(()));
    (disk, daemon)
}

/// Adds jobs, and returns the ids of the acknowledged jobs.
fn add_some(daemon: &Daemon, name: &str, count: usize) -> Vec<String> {
    let mut client = daemon.client();
    let ids = (0..count).map(|n| format!("{name}-{n}"));
    ids.filter(|id| client.ask(&add("t", id, 3_600_000)).unwrap()["code"] == 1).collect()
}

/// The machine loses power, and the daemon starts again. Then all these jobs must exist.
fn survives_a_power_cut(disk: &FaultyDisk, mut daemon: Daemon, ids: &[String]) {
    let children = daemon.kill_master();
    children.iter().for_each(|pid| kill(*pid, Signal::SIGKILL).unwrap_or_default());
    eventually(10 * SECOND, "their end", || children.iter().all(|pid| !lives(*pid)).then_some(()));
    disk.lose_power(&daemon.dir.path().join("var"));
    let daemon = Daemon::again(&daemon);
    daemon.wait_ready();
    let mut client = daemon.client();
    let is_there =
        |id: &&String| client.ask(&json!({"cmd": "get", "topic": "t", "id": id})).unwrap()["code"] == 1;
    let there = ids.iter().filter(is_there).count();
    assert_eq!(there, ids.len(), "acknowledged jobs after a power cut");
}

#[test]
fn a_job_acknowledged_after_a_failed_sync_survives_a_power_cut() {
    let (disk, daemon) = on_faulty_disk();
    disk.sync(Sync::Fails);
    let refused = daemon.client().ask(&add("t", "refused", 3_600_000)).unwrap();
    assert_eq!(refused["err"], "unknown", "{refused}");
    disk.sync(Sync::Succeeds);
    let mut ids =
        eventually(10 * SECOND, "an add", || Some(add_some(&daemon, "a", 1)).filter(|a| !a.is_empty()));
    ids.extend(add_some(&daemon, "b", 20));
    ids.push("before".to_owned());
    assert_eq!(ids.len(), 22);
    survives_a_power_cut(&disk, daemon, &ids);
}

#[test]
fn nothing_is_acknowledged_while_syncs_fail() {
    let (disk, daemon) = on_faulty_disk();
    disk.sync(Sync::Fails);
    let mut client = daemon.client();
    for n in 0..20 {
        let refused = client.ask(&add("t", &format!("x-{n}"), 3_600_000)).unwrap();
        let expected = if n == 0 { "unknown" } else { "store_unavailable" };
        assert_eq!(refused["err"], expected, "{refused}");
        assert!(n == 0 || refused["msg"].as_str().unwrap().contains("the disk failed"), "{refused}");
    }
    eventually(20 * SECOND, "an alert", || {
        let conditions = daemon.status()?.to_string();
        conditions.contains("the disk failed").then_some(())
    });
    disk.sync(Sync::Succeeds);
    let mut ids =
        eventually(10 * SECOND, "an add", || Some(add_some(&daemon, "a", 1)).filter(|a| !a.is_empty()));
    ids.extend(add_some(&daemon, "b", 20));
    assert_eq!(ids.len(), 21);
    assert_eq!(daemon.log().matches("the disk failed: ").count(), 1, "{}", daemon.log());
    survives_a_power_cut(&disk, daemon, &ids);
}

#[test]
fn a_process_that_is_killed_by_a_failed_sync_leaves_no_hole() {
    let (disk, daemon) = on_faulty_disk();
    let server = daemon.child("dq-server");
    disk.sync(Sync::FailsAndKills);
    // The connection ends with the process.
    assert!(daemon.client().ask(&add("t", "lost", 3_600_000)).is_err());
    eventually(10 * SECOND, "its end", || (!lives(server)).then_some(()));
    disk.sync(Sync::Succeeds);
    daemon.wait_ready();
    let ids = eventually(10 * SECOND, "adds", || Some(add_some(&daemon, "b", 20)).filter(|a| a.len() == 20));
    assert!(disk.failed() > 0);
    survives_a_power_cut(&disk, daemon, &ids);
}
