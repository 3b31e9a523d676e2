//! What the embedded store has acknowledged is on the disk, and a disk that fails is told of.

use crate::support::strace::Strace;
use crate::support::{Daemon, SECOND, add, eventually};

/// What tells one life of the write-ahead log from the next: its salts (SQLite, file format, 4.1).
fn salts(daemon: &Daemon) -> Vec<u8> {
    std::fs::read(daemon.dir.path().join("var/dq.db-wal")).unwrap()[16..24].to_vec()
}

const TOPIC: &str = "[[topic]]\nname = \"t\"\ncallback = \"http://127.0.0.1:9/\"\n";

#[test]
fn no_answer_goes_out_before_what_it_says_is_on_the_disk() {
    let daemon = Daemon::start(TOPIC);
    let mut client = daemon.client();
    let strace = Strace::attach(&[daemon.child("dq-server")], &["-s", "12", "-e", "trace=fdatasync,sendto"]);
    for n in 0..20 {
        assert_eq!(client.ask(&add("t", &format!("j{n}"), 3_600_000)).unwrap()["code"], 1);
    }
    let (mut synced, mut answers) = (false, 0);
    for line in strace.end().lines() {
        if line.contains("fdatasync") && line.trim_end().ends_with("= 0") {
            synced = true;
        } else if line.contains("sendto(") && line.contains(r#"{\"code"#) {
            assert!(std::mem::take(&mut synced), "an answer that is not on the disk: {line}");
            answers += 1;
        }
    }
    assert_eq!(answers, 20);
}

#[test]
fn after_a_disk_that_failed_nothing_is_promised_before_the_log_is_carried_over() {
    let daemon = Daemon::start(TOPIC);
    let mut client = daemon.client();
    assert_eq!(client.ask(&add("t", "before", 3_600_000)).unwrap()["code"], 1);
    let before = salts(&daemon);
    let fails = "inject=fdatasync:error=EIO:when=1";
    let strace = Strace::attach(&[daemon.child("dq-server")], &["-e", "trace=fdatasync", "-e", fails]);
    let failed = client.ask(&add("t", "during", 3_600_000)).unwrap();
    assert!(failed["code"] != 1 && failed["msg"].to_string().contains("the disk"), "{failed}");
    let after = client.ask(&add("t", "after", 3_600_000)).unwrap();
    assert!(strace.end().contains("EIO"));
    assert_eq!(after["code"], 1, "{after}");
    assert_ne!(salts(&daemon), before, "what may not be on the disk is still before what was promised");
    // Whoever else writes goes on in the same log.
    let mut http = crate::support::http::Http::tcp(&daemon);
    http.ask("POST", "/v1/topics/t/jobs", &serde_json::json!({"id": "else", "delay": "1h", "body": 1}))
        .is(201);
    eventually(5 * SECOND, "all of them", || {
        let counts = crate::support::stats(&mut client, "t");
        (counts["delayed"] >= 3).then_some(())
    });
}
