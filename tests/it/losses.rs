//! What is lost at each durability level when a master is killed, loses power, or is replaced by a replica that lags.
//! The figures are in docs/REDIS.md. `cargo test --test it -- losses --nocapture` prints them.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::support::proxy::Proxy;
use crate::support::redis::TcpServer;
use crate::support::strace::Strace;
use crate::support::{SECOND, eventually, new_job};
use model::job::{Due, NewJob, State, TopicName};
use model::settings::{self, DurabilitySettings, NodeSettings};
use model::topic::Durability;
use store::{Store, StoreError};

/// What happens to the master.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fault {
    /// The master's process is killed, and started again with its files.
    Killed,
    /// The master's machine loses power. The master starts again with those parts of its files that were on the disk.
    PowerCut,
    /// The master is killed while its replica lags, and the replica becomes the master.
    Promoted,
}

/// The outcome of the adds at one level.
struct Loss {
    acknowledged: usize,
    unknown: usize,
    /// The number of acknowledged adds that were lost.
    lost: usize,
}

fn open(url: &str, durability: Durability) -> Box<dyn Store> {
    let safety =
        DurabilitySettings { durability, timeout: Duration::from_millis(300), allow_snapshots: false };
    let nodes = vec![NodeSettings::server("r", url, 2)];
    let redis =
        settings::RedisSettings { prefix: "dq".into(), timeout: SECOND, pool: 2, nodes, safety, spool: None };
    store::open(&settings::StoreSettings::Redis(redis), Path::new("/nowhere")).unwrap()
}

fn jobs(first: usize) -> Vec<NewJob> {
    (first..first + 10).map(|n| new_job("t", &n.to_string(), "1", Due::In(3600 * SECOND))).collect()
}

/// Adds jobs in groups of ten until `stops` is set. Returns the numbers of the acknowledged jobs, and how many outcomes
/// are unknown.
fn load(store: &mut dyn Store, stops: &AtomicBool) -> (Vec<usize>, usize) {
    let (mut acknowledged, mut unknown) = (Vec::new(), 0);
    for first in (0..).step_by(10) {
        if stops.load(Ordering::Relaxed) {
            break;
        }
        for (n, one) in store.add(&jobs(first)).into_iter().enumerate() {
            match one {
                Ok(_) => acknowledged.push(first + n),
                Err(StoreError::Unknown(_)) => unknown += 1,
                Err(_) => {}
            }
        }
    }
    (acknowledged, unknown)
}

fn lag(length: Duration) {
    let begun = Instant::now();
    eventually(length + 5 * SECOND, "some time", || (begun.elapsed() >= length).then_some(()));
}

/// Returns the file to which a server appends.
fn appended(server: &TcpServer) -> PathBuf {
    let dir = server.dir().join("appendonlydir");
    let files = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    files.into_iter().find(|path| path.to_string_lossy().ends_with(".incr.aof")).unwrap()
}

/// Returns how many appended bytes were on the disk at the end, according to the system calls.
fn synced(calls: &str) -> u64 {
    let (mut written, mut begun, mut synced) = (0_u64, 0, 0);
    for line in calls.lines() {
        let result = line.rsplit_once("= ").and_then(|(_, found)| found.trim().parse::<i64>().ok());
        // A separate thread syncs. When a sync ends, the data that was written before this sync began is on the disk.
        match result {
            Some(n) if line.contains("write(") && line.contains(".incr.aof>") => written += n.max(0) as u64,
            Some(0) if line.contains("fdatasync resumed") => synced = begun,
            Some(0) if line.contains("fdatasync(") => synced = written,
            None if line.contains("fdatasync(") => begun = written,
            _ => {}
        }
    }
    synced
}

fn play(level: Durability, fault: Fault) -> Loss {
    let quick = ["--repl-diskless-sync-delay", "0", "--repl-ping-replica-period", "1"];
    let sync = if level == Durability::Fsync { "always" } else { "everysec" };
    let master = TcpServer::start(&[&quick[..], &["--appendfsync", sync]].concat());
    let proxy = Proxy::to(master.address());
    let (host, port) = (proxy.address.ip().to_string(), proxy.address.port().to_string());
    let replica = TcpServer::start(&[&quick[..], &["--replicaof", &host, &port]].concat());
    eventually(20 * SECOND, "a replica that follows", || {
        let link = replica.info("master_link_status")?;
        (link == "up" && master.info("slave0")?.contains("state=online")).then_some(())
    });
    let mut store = open(&master.url(), level);
    // This add loads the scripts, and writes the name of the node to the server.
    assert!(store.add(&jobs(1_000_000)).iter().all(Result::is_ok));
    let before = appended(&master).metadata().unwrap().len();
    let trace = ["-y", "-e", "trace=write,fdatasync"];
    let strace = (fault == Fault::PowerCut).then(|| Strace::attach(&[master.pid()], &trace));
    let stops = AtomicBool::new(false);
    let (acknowledged, unknown) = std::thread::scope(|scope| {
        let loaded = scope.spawn(|| load(&mut *store, &stops));
        lag(Duration::from_millis(1500));
        if fault == Fault::Promoted {
            proxy.hang(true);
            lag(Duration::from_millis(500));
        }
        master.kill();
        stops.store(true, Ordering::Relaxed);
        loaded.join().unwrap()
    });
    let survivor = match fault {
        Fault::Killed => {
            master.start_again();
            &master
        }
        Fault::PowerCut => {
            let on_disk = synced(&strace.unwrap().end());
            let file = std::fs::OpenOptions::new().write(true).open(appended(&master)).unwrap();
            assert!(on_disk > 0 && before + on_disk <= file.metadata().unwrap().len());
            file.set_len(before + on_disk).unwrap();
            master.start_again();
            &master
        }
        Fault::Promoted => {
            replica.cli(&["replicaof", "no", "one"]);
            &replica
        }
    };
    let mut store = open(&survivor.url(), Durability::Memory);
    let topic = TopicName::new("t").unwrap();
    let (mut there, mut next) = (HashSet::new(), None::<String>);
    loop {
        let mut page = || store.list(&topic, State::Delayed, next.as_deref(), 1000).ok();
        let some = eventually(20 * SECOND, "a page", &mut page);
        there.extend(some.jobs.into_iter().map(|job| job.key.id.as_str().parse::<usize>().unwrap()));
        next = some.next;
        if next.is_none() {
            break;
        }
    }
    let lost = acknowledged.iter().filter(|n| !there.contains(n)).count();
    Loss { acknowledged: acknowledged.len(), unknown, lost }
}

#[test]
fn what_each_level_loses_when_a_master_fails() {
    println!("| fault | level | acknowledged | unknown | acknowledged and lost |\n|---|---|---|---|---|");
    for (fault, what) in [
        (Fault::Killed, "process killed, started again"),
        (Fault::PowerCut, "power cut, started again"),
        (Fault::Promoted, "killed, a replica that lags is promoted"),
    ] {
        for level in [Durability::Memory, Durability::Fsync, Durability::Replicas(1)] {
            let Loss { acknowledged, unknown, lost } = play(level, fault);
            println!("| {what} | `{level}` | {acknowledged} | {unknown} | {lost} |");
            assert!(acknowledged > 0);
            let keeps_all = match fault {
                Fault::Killed => true,
                Fault::PowerCut => level == Durability::Fsync,
                Fault::Promoted => level == Durability::Replicas(1),
            };
            assert!(!keeps_all || lost == 0, "{what}: {level} lost {lost} of {acknowledged}");
            // A level that does not promise to survive this fault must lose something here. Otherwise the test shows
            // nothing.
            let is_lag = fault == Fault::Promoted && !keeps_all;
            assert!(!is_lag || lost > 0, "{what}: {level} lost nothing");
        }
    }
}
