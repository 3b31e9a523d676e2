//! Measures four things that the embedded store depends on, with real processes on one file:
//!
//! - **turn**: there are five writers, and one of them adds jobs without a pause. How long does another writer wait for
//!   its transaction? This is measured three times: with SQLite's `busy_timeout` alone, with a blocking file lock
//!   before `BEGIN IMMEDIATE`, and with a gate before that lock. (The writer that waits for the lock holds the gate. So
//!   a writer that has released the lock cannot take it again at once.)
//! - **grouping**: how many durable adds are made per second, for different numbers of adds in a commit.
//! - **bells**: how long a waiting process needs to wake up after a Unix datagram. Five processes share a bell: does
//!   each datagram wake one of them?
//! - **pages**: durable adds and deletes with the tables of the store, in a file that never shrinks, and in a file that
//!   can give free pages back (`auto_vacuum = incremental`).
//!
//! `cargo bench --bench embedded_store` measures all, in about a minute. With `DQ_BENCH_PART=pages`, it measures only
//! the last part. ARCHITECTURE.md has the results.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rusqlite::{Connection, TransactionBehavior, params};

const WRITERS: usize = 5;
const RUN: Duration = Duration::from_secs(4);

fn main() {
    let part = std::env::var("DQ_BENCH_PART").unwrap_or_default();
    let dir = PathBuf::from(std::env::var("DQ_BENCH_DIR").unwrap_or_default());
    match part.as_str() {
        "" => parent(),
        "adder" => adder(&dir),
        "light" => light(&dir),
        "waiter" => waiter(),
        "pages" => pages(tempfile::tempdir_in("target").expect("a folder under target").path()),
        other => panic!("unknown part {other}"),
    }
}

fn parent() {
    let dir =
        tempfile::Builder::new().prefix("dq-bench").tempdir_in("target").expect("a folder under target");
    turn(dir.path());
    grouping(dir.path());
    bells(dir.path());
    pages(dir.path());
}

fn open(dir: &Path, busy: Duration, durable: bool) -> Connection {
    let db = Connection::open(dir.join("b.db")).expect("open");
    db.busy_timeout(busy).expect("busy_timeout");
    db.pragma_update(None, "journal_mode", "wal").expect("wal");
    db.pragma_update(None, "synchronous", if durable { "full" } else { "normal" }).expect("synchronous");
    db.execute_batch(
        "CREATE TABLE IF NOT EXISTS job(seq INTEGER PRIMARY KEY, id TEXT NOT NULL, at_ms INTEGER NOT NULL, body TEXT);
         CREATE UNIQUE INDEX IF NOT EXISTS job_id ON job(id);
         CREATE INDEX IF NOT EXISTS job_at ON job(at_ms);
         CREATE TABLE IF NOT EXISTS light(k INTEGER PRIMARY KEY, n INTEGER);",
    )
    .expect("schema");
    db
}

fn spawn(part: &str, dir: &Path, locks: usize) -> Child {
    Command::new(std::env::current_exe().expect("own path"))
        .env("DQ_BENCH_PART", part)
        .env("DQ_BENCH_DIR", dir)
        .env("DQ_BENCH_LOCKS", locks.to_string())
        .stdout(Stdio::piped())
        .stdin(Stdio::piped())
        .spawn()
        .expect("spawn")
}

fn output(child: Child) -> Vec<String> {
    BufReader::new(child.stdout.expect("piped")).lines().map(|l| l.expect("utf-8")).collect()
}

/// The files that are locked for a turn, beside the database: none, a lock, or a gate and a lock.
struct Turn(Vec<File>);

impl Turn {
    fn from_env(dir: &Path) -> Turn {
        let locks: usize = std::env::var("DQ_BENCH_LOCKS").expect("set").parse().expect("a number");
        Turn((0..locks).map(|n| File::create(dir.join(format!("turn-{n}"))).expect("turn file")).collect())
    }
    fn take(&self) {
        for (n, lock) in self.0.iter().enumerate() {
            lock.lock().expect("lock");
            if n > 0 {
                self.0[n - 1].unlock().expect("unlock");
            }
        }
    }
    fn give(&self) {
        if let Some(lock) = self.0.last() {
            lock.unlock().expect("unlock");
        }
    }
}

fn insert(db: &mut Connection, from: u64, count: u64) {
    let tx = db.transaction_with_behavior(TransactionBehavior::Immediate).expect("begin");
    {
        let mut put = tx.prepare_cached("INSERT INTO job(id, at_ms, body) VALUES(?1, ?2, ?3)").expect("sql");
        for i in from..from + count {
            put.execute(params![
                format!("id-{i}"),
                fastrand::i64(0..1 << 40),
                "{\"order\":42,\"pad\":\"0123456789\"}"
            ])
            .expect("insert");
        }
    }
    tx.commit().expect("commit");
}

fn adder(dir: &Path) {
    let (mut db, turn) = (open(dir, Duration::from_secs(20), true), Turn::from_env(dir));
    let (start, mut done) = (Instant::now(), 0);
    while start.elapsed() < RUN {
        turn.take();
        insert(&mut db, done, 100);
        turn.give();
        done += 100;
    }
    println!("{}", done as f64 / start.elapsed().as_secs_f64());
}

fn light(dir: &Path) {
    let (mut db, turn) = (open(dir, Duration::from_secs(20), false), Turn::from_env(dir));
    let me = std::process::id();
    let start = Instant::now();
    while start.elapsed() < RUN {
        let before = Instant::now();
        turn.take();
        let tx = db.transaction_with_behavior(TransactionBehavior::Immediate).expect("begin");
        tx.execute("INSERT INTO light(k, n) VALUES(?1, 1) ON CONFLICT(k) DO UPDATE SET n = n + 1", [me])
            .expect("upsert");
        tx.commit().expect("commit");
        turn.give();
        println!("{}", before.elapsed().as_micros());
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn turn(dir: &Path) {
    println!("turn: one saturating adder (100 a commit, FULL) and {} light writers, {RUN:?}", WRITERS - 1);
    for (locks, name) in ["busy_timeout", "file lock", "gate and lock"].into_iter().enumerate() {
        let dir = dir.join(format!("turn-{locks}"));
        std::fs::create_dir(&dir).expect("folder");
        drop(open(&dir, RUN, true));
        let adder = spawn("adder", &dir, locks);
        let lights: Vec<Child> = (1..WRITERS).map(|_| spawn("light", &dir, locks)).collect();
        let mut waits: Vec<u64> =
            lights.into_iter().flat_map(output).map(|l| l.parse().expect("µs")).collect();
        waits.sort_unstable();
        let adds: f64 = output(adder)[0].parse().expect("a rate");
        println!(
            "  {:<14} adds {adds:>7.0}/s   light: {:>5} transactions, p50 {:>7.2} ms, p99 {:>8.2} ms, max {:>8.2} ms",
            name,
            waits.len(),
            at(&waits, 0.5),
            at(&waits, 0.99),
            at(&waits, 1.0)
        );
    }
}

fn at(sorted_us: &[u64], q: f64) -> f64 {
    sorted_us[((sorted_us.len() - 1) as f64 * q) as usize] as f64 / 1000.0
}

fn grouping(dir: &Path) {
    println!("grouping: durable adds by the number that share a commit (synchronous = FULL)");
    for group in [1, 10, 100, 1000] {
        let dir = dir.join(format!("group-{group}"));
        std::fs::create_dir(&dir).expect("folder");
        let mut db = open(&dir, RUN, true);
        let (start, mut done, mut slowest) = (Instant::now(), 0, Duration::ZERO);
        while start.elapsed() < RUN / 2 {
            let before = Instant::now();
            insert(&mut db, done, group);
            slowest = slowest.max(before.elapsed());
            done += group;
        }
        let took = start.elapsed().as_secs_f64();
        println!(
            "  {group:>5} a commit: {:>8.0} adds/s, {:>6.2} ms a commit, slowest {slowest:.2?}",
            done as f64 / took,
            took * 1000.0 / (done / group) as f64,
        );
    }
}

/// Waits for datagrams on the bell that it inherited as descriptor 0. For each one, prints a line: how long ago it was
/// sent, in nanoseconds. A datagram of one byte ends this process.
fn waiter() {
    let bell = UnixDatagram::from(std::io::stdin().as_fd().try_clone_to_owned().expect("dup"));
    let mut buffer = [0; 8];
    loop {
        match bell.recv(&mut buffer) {
            Ok(1) => return,
            Ok(_) => {
                let sent = u64::from_ne_bytes(buffer);
                println!("{}", now_ns() - sent);
                std::io::stdout().flush().expect("flush");
            }
            Err(e) => panic!("{e}"),
        }
    }
}

fn now_ns() -> u64 {
    let now = nix::time::clock_gettime(nix::time::ClockId::CLOCK_MONOTONIC).expect("clock");
    now.tv_sec() as u64 * 1_000_000_000 + now.tv_nsec() as u64
}

fn bells(dir: &Path) {
    const RINGS: usize = 2000;
    println!("bells: {RINGS} datagrams to one socket that {WRITERS} waiting processes share");
    let path = dir.join("bell");
    let bell = UnixDatagram::bind(&path).expect("bind");
    let waiters: Vec<Child> = (0..WRITERS)
        .map(|_| {
            let stdin = bell.try_clone().expect("dup");
            Command::new(std::env::current_exe().expect("own path"))
                .env("DQ_BENCH_PART", "waiter")
                .stdin(Stdio::from(OwnedFd::from(stdin)))
                .stdout(Stdio::piped())
                .spawn()
                .expect("spawn")
        })
        .collect();
    std::thread::sleep(Duration::from_millis(200));
    let ringer = UnixDatagram::unbound().expect("socket");
    for _ in 0..RINGS {
        ringer.send_to(&now_ns().to_ne_bytes(), &path).expect("ring");
        std::thread::sleep(Duration::from_micros(300));
    }
    for _ in 0..WRITERS {
        ringer.send_to(&[0], &path).expect("stop");
    }
    let mut us: Vec<u64> =
        waiters.into_iter().flat_map(output).map(|l| l.parse::<u64>().expect("ns") / 1000).collect();
    us.sort_unstable();
    println!(
        "  {} wake-ups for {RINGS} rings; ring to awake p50 {:.3} ms, p99 {:.3} ms (a poll each 100 ms: p50 50 ms)",
        us.len(),
        at(&us, 0.5),
        at(&us, 0.99)
    );
}

/// The number of jobs in a round, and the number of jobs in a commit.
const ROUND: usize = 20_000;
const COMMIT: usize = 200;

/// What a round measured: jobs a second, and for each job the processor time in µs and the bytes written to the log. If
/// the machine also does other work, the time and the bytes tell more than the jobs a second.
#[derive(Debug, Clone, Copy)]
struct Rate {
    a_second: f64,
    cpu_us: f64,
    bytes: f64,
}

fn cpu_us() -> f64 {
    use nix::sys::resource::{UsageWho, getrusage};
    let used = getrusage(UsageWho::RUSAGE_SELF).expect("usage");
    [used.user_time(), used.system_time()].map(|t| t.tv_sec() as f64 * 1e6 + t.tv_usec() as f64).iter().sum()
}

/// Returns the rates of adds and deletes in a new file with this `auto_vacuum`.
fn round(dir: &Path, name: &str, vacuum: &str) -> [Rate; 2] {
    let mut db = Connection::open(dir.join(name)).expect("open");
    db.pragma_update(None, "auto_vacuum", vacuum).expect("auto_vacuum");
    db.pragma_update(None, "journal_mode", "wal").expect("wal");
    db.pragma_update(None, "synchronous", "full").expect("synchronous");
    db.pragma_update(None, "wal_autocheckpoint", 0).expect("autocheckpoint");
    db.pragma_update(None, "cache_size", -8192).expect("cache_size");
    for tables in [
        include_str!("../migrations/store/sqlite/V001__jobs.sql"),
        include_str!("../migrations/store/sqlite/V004__headers_and_secret.sql"),
        include_str!("../migrations/store/sqlite/V006__bytes.sql"),
    ] {
        db.execute_batch(tables).expect("tables");
    }
    db.execute("INSERT INTO topic (name) VALUES ('t')", []).expect("topic");
    let body = format!("{{\"order\":\"{}\"}}", "x".repeat(110));
    let mut rates = [Rate { a_second: 0.0, cpu_us: 0.0, bytes: 0.0 }; 2];
    for (work, rate) in rates.iter_mut().enumerate() {
        let (begun, cpu_before) = (Instant::now(), cpu_us());
        for first in (0..ROUND).step_by(COMMIT) {
            let tx = db.transaction_with_behavior(TransactionBehavior::Immediate).expect("begin");
            for n in first..first + COMMIT {
                // Ids without an order, as clients choose them.
                let id = format!("{:016x}", (n as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15));
                let done = if work == 0 {
                    tx.prepare_cached(
                        "INSERT INTO job (tid, id, state, at_ms, priority, due_ms, stamp_us, body)
                         VALUES (1, ?1, 1, ?2, 2, ?2, ?2, ?3)",
                    )
                    .and_then(|mut add| add.execute(params![id, n as i64 * 7919 % 100_003, body]))
                } else {
                    tx.prepare_cached("DELETE FROM job WHERE tid = 1 AND id = ?1 AND state < 4")
                        .and_then(|mut delete| delete.execute([id]))
                };
                assert_eq!(done.expect("sql"), 1);
            }
            tx.commit().expect("commit");
        }
        let jobs = ROUND as f64;
        *rate = Rate {
            a_second: jobs / begun.elapsed().as_secs_f64(),
            cpu_us: (cpu_us() - cpu_before) / jobs,
            bytes: std::fs::metadata(dir.join(format!("{name}-wal"))).expect("a log").len() as f64 / jobs,
        };
        db.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())).expect("checkpoint");
    }
    rates
}

fn pages(dir: &Path) {
    const ROUNDS: usize = 15;
    const KINDS: [&str; 2] = ["none", "incremental"];
    println!(
        "pages: {ROUND} jobs, {COMMIT} a commit, medians of {ROUNDS} rounds; the ratio is that of each round"
    );
    let mut rounds: Vec<[[Rate; 2]; 2]> = Vec::new();
    for n in 0..ROUNDS {
        let [mut none, mut incremental] = [None, None];
        // The first measurement of a round may be slower. So the order of the two measurements alternates.
        for kind in if n % 2 == 0 { [0, 1] } else { [1, 0] } {
            let rates = round(dir, &format!("{}-{n}.db", KINDS[kind]), KINDS[kind]);
            *[&mut none, &mut incremental][kind] = Some(rates);
        }
        rounds.push([none.expect("done"), incremental.expect("done")]);
    }
    let median = |of: &dyn Fn(&[[Rate; 2]; 2]) -> f64| {
        let mut of: Vec<f64> = rounds.iter().map(of).collect();
        of.sort_by(f64::total_cmp);
        of[of.len() / 2]
    };
    for (work, name) in ["adds", "deletes"].into_iter().enumerate() {
        for (what, of) in [
            ("a second", (|r| r.a_second) as fn(Rate) -> f64),
            ("µs of processor time", |r| r.cpu_us),
            ("bytes of the log", |r| r.bytes),
        ] {
            println!(
                "  {name:<8} none {:>8.1}   incremental {:>8.1}   ratio {:.3}   ({what})",
                median(&|r| of(r[0][work])),
                median(&|r| of(r[1][work])),
                median(&|r| of(r[1][work]) / of(r[0][work])),
            );
        }
    }
}
