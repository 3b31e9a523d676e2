//! What the embedded store has acknowledged is on the disk, and a disk that fails is told of.

use crate::support::strace::Strace;
use crate::support::{Daemon, add, stats};

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
fn an_add_that_the_disk_did_not_take_is_not_acknowledged_and_the_next_one_is() {
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
