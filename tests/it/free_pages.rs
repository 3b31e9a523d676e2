//! The embedded store gives the space of removed jobs back to the disk. When the disk is full, the store uses this
//! space again.

use std::io::Write;
use std::time::Instant;

use crate::support::http::Http;
use crate::support::{Daemon, SECOND, Sink, add, eventually, on_redis, topic};
use serde_json::{Value, json};

const JOBS: usize = 50_000;

#[test]
fn the_file_shrinks_when_its_jobs_are_gone() {
    if on_redis() {
        return;
    }
    // The topic keeps no records, because records of the deleted jobs would need some of the pages.
    let daemon = Daemon::start(&topic("t", &Sink::start(), "keep_done = \"0s\""));
    let mut http = Http::tcp(&daemon);
    let file = daemon.dir.path().join("var/dq.db");
    let size = || std::fs::metadata(&file).unwrap().len();
    for first in (0..JOBS).step_by(2000) {
        let job = |n: usize| json!({"id": n.to_string(), "body": "x".repeat(300), "delay": "1h"});
        let jobs: Vec<Value> = (first..first + 2000).map(job).collect();
        http.ask("POST", "/v1/topics/t/jobs/batch", &json!({"jobs": jobs})).is(200);
    }
    eventually(20 * SECOND, "a copy of the log", || (size() > 12 << 20).then_some(()));
    let full = size();
    let mut client = daemon.client();
    for first in (0..JOBS).step_by(1000) {
        let delete = |n: usize| json!({"cmd": "del", "topic": "t", "id": n.to_string()});
        let deletes: Vec<Value> = (first..first + 1000).map(delete).collect();
        client.send(&deletes).unwrap();
        for _ in &deletes {
            assert_eq!(client.receive().unwrap()["code"], 1);
        }
    }
    // A thousand pages of 4 kB stay for the next jobs. While the file shrinks, jobs are added, one at a time.
    let (mut waits, mut n) = (Vec::new(), 0);
    let shrunk = eventually(60 * SECOND, &format!("less than {full} bytes; log:\n{}", daemon.log()), || {
        let begun = Instant::now();
        assert_eq!(client.ask(&add("t", &format!("meanwhile-{n}"), 3_600_000)).unwrap()["code"], 1);
        waits.push(begun.elapsed());
        n += 1;
        Some(size()).filter(|size| *size < 6 << 20)
    });
    waits.sort();
    let [p50, p99] = [waits.len() / 2, waits.len() * 99 / 100].map(|at| waits[at]);
    println!("{full} bytes with {JOBS} jobs, {shrunk} without; {n} adds meanwhile: p50 {p50:?}, p99 {p99:?}");
    // Nothing is lost, and the file takes jobs as before.
    http.ask("POST", "/v1/topics/t/jobs", &json!({"id": "a", "body": 1, "delay": "1h"})).is(201);
    http.ask("GET", "/v1/topics/t/jobs/a", &Value::Null).is(200);
    let db = rusqlite::Connection::open(&file).unwrap();
    let found: String = db.query_row("PRAGMA integrity_check", [], |row| row.get(0)).unwrap();
    assert_eq!(found, "ok");
}

#[test]
fn a_full_store_erases_only_the_records_it_needs() {
    if on_redis() {
        return;
    }
    const DONE: usize = 60;
    let sink = Sink::start();
    let (daemon, filler) = Daemon::on_small_disk_with(&topic("t", &sink, "keep_done_body = true"), "2MiB");
    let mut http = Http::tcp(&daemon);
    let mut add = |id: String, delay: &str| {
        http.ask("POST", "/v1/topics/t/jobs", &json!({"id": id, "body": "x".repeat(20_000), "delay": delay}))
            .status
    };
    (0..DONE).for_each(|n| assert_eq!(add(format!("done-{n}"), "0s"), 201));
    sink.wait_for(DONE, 30 * SECOND);
    let mut other = Http::tcp(&daemon);
    let mut kept = || {
        let (mut count, mut cursor) = (0, String::new());
        loop {
            let page = other.get(&format!("/v1/topics/t/records?limit=1000{cursor}")).is(200);
            count += page["records"].as_array().unwrap().len();
            match page["next"].as_str() {
                Some(next) => cursor = format!("&cursor={next}"),
                None => return count,
            }
        }
    };
    eventually(20 * SECOND, "all records", || (kept() == DONE).then_some(()));
    let free = || {
        let disk = nix::sys::statvfs::statvfs(filler.parent().unwrap()).unwrap();
        disk.blocks_available() * disk.fragment_size()
    };
    let mut file = std::fs::File::create(&filler).unwrap();
    // (The log of the store may get shorter in the meantime.)
    let mut fill = || {
        while free() >= 3 << 19 {
            file.write_all(&[0; 65_536]).unwrap();
        }
    };
    for n in 0..40 {
        fill();
        assert_eq!(add(format!("later-{n}"), "1h"), 201, "{n}, log:\n{}", daemon.log());
        let (kept, most) = (kept(), DONE - n.min(DONE));
        // One step erases 16 records, and some of their pages also hold other records. So a few more records than `n`
        // may be gone.
        assert!(kept + 35 >= most, "{n}: {kept} records are left, {most} expected");
    }
    assert!(kept() < DONE, "nothing was erased, so this test shows nothing");
}
