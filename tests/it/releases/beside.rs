//! An older release and this release beside each other on one store, in an upgrade and back again: `make upgrades
//! OLD=path/to/dq`. Without OLD, the older release is a copy of this release.

use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use cli::TcpClient;
use nix::sys::signal::Signal;
use protocol::dq::Framing;
use serde_json::{Value, json};

use crate::support::redis::RedisServer;
use crate::support::{Daemon, SECOND, Sink, all_new, eventually, install, topic};

/// How long both releases serve between two changes.
const BETWEEN: Duration = Duration::from_secs(1);

/// How many jobs a client adds in one request.
const BATCH: usize = 20;

fn old_release() -> PathBuf {
    match std::env::var_os("OLD").filter(|path| !path.is_empty()) {
        Some(path) => std::path::absolute(path).unwrap(),
        None => this_release().into(),
    }
}

fn this_release() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_dq"))
}

/// The acknowledged changes of a client.
#[derive(Default)]
struct Acknowledged {
    /// Jobs that must come, each with the body that it must have.
    due: HashMap<String, String>,
    /// Jobs that must not come any more.
    deleted: BTreeSet<String>,
}

/// Adds jobs, replaces some and deletes some, until `stop` is set. Each request must be accepted.
fn work(daemon: &Daemon, name: &str, stop: &AtomicBool) -> Acknowledged {
    let mut told = Acknowledged::default();
    let mut client = TcpClient::connect(daemon.address(), Framing::Binary).unwrap();
    let mut ask = |request: Value| {
        let answer = client.ask(&request).unwrap_or_else(|e| panic!("{name}: {request}: {e}"));
        assert_eq!(answer["code"], 1, "{name}: {request}: {answer}");
    };
    let add = |id: &str, body: &str, delay_ms: usize| json!({"cmd": "add", "topic": "t", "id": id, "body": body, "delay_ms": delay_ms});
    for n in (0..).step_by(BATCH) {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let ids: Vec<String> = (n..n + BATCH).map(|n| format!("{name}-{n}")).collect();
        let jobs: Vec<Value> =
            ids.iter().map(|id| json!({"topic": "t", "id": id, "body": "first", "delay_ms": 1500})).collect();
        ask(json!({"cmd": "madd", "jobs": jobs}));
        told.due.extend(ids.iter().map(|id| (id.clone(), "first".to_owned())));
        // One of these two jobs is replaced, and the other job is deleted, long before they are due.
        let (replaced, deleted) = (format!("{name}-replaced-{n}"), format!("{name}-deleted-{n}"));
        ask(add(&replaced, "first", 3_600_000));
        ask(add(&deleted, "first", 3_600_000));
        ask(add(&replaced, "second", n % 1000));
        ask(json!({"cmd": "del", "topic": "t", "id": deleted}));
        told.due.insert(replaced, "second".to_owned());
        told.deleted.insert(deleted);
        std::thread::sleep(SECOND / 100);
    }
    told
}

/// Puts a release into the folder of a daemon, and lets the daemon change to this release.
fn change_to(daemon: &Daemon, image: &Path, what: &str) {
    println!("{what}");
    let before = daemon.children();
    install(daemon.dir.path(), image);
    daemon.signal(Signal::SIGUSR2);
    all_new(daemon, &before);
    std::thread::sleep(BETWEEN);
}

/// Lets these daemons change from the old release to this release and back, one after another, under load. Each job
/// that was acknowledged must come once, in its last form, and not early.
fn up_and_back(daemons: &[Daemon], sink: &Sink) {
    let old = old_release();
    let stop = AtomicBool::new(false);
    let told: Vec<Acknowledged> = std::thread::scope(|scope| {
        let workers: Vec<_> = daemons
            .iter()
            .enumerate()
            .map(|(n, daemon)| (n, daemon, &stop))
            .map(|(n, daemon, stop)| scope.spawn(move || work(daemon, &format!("h{n}"), stop)))
            .collect();
        std::thread::sleep(BETWEEN);
        for (image, what) in [(this_release(), "this release"), (&old, "the older release")] {
            for (n, daemon) in daemons.iter().enumerate() {
                change_to(daemon, image, &format!("host {n} changes to {what}"));
            }
        }
        stop.store(true, Ordering::Relaxed);
        workers.into_iter().map(|worker| worker.join().unwrap()).collect()
    });
    let due: HashMap<String, String> = told.iter().flat_map(|told| told.due.clone()).collect();
    sink.wait_for(due.len(), 60 * SECOND);
    // A job that must not come would have come by now, because all other jobs of the same age have come.
    let mut bodies: HashMap<String, Vec<String>> = HashMap::new();
    for call in sink.calls() {
        let due_ms: i64 = call.header("dq-due-at").parse().unwrap();
        assert!(call.at_ms >= due_ms, "{} is early", call.header("dq-job-id"));
        bodies.entry(call.header("dq-job-id").to_owned()).or_default().push(call.body.clone());
    }
    let deleted: Vec<_> =
        told.iter().flat_map(|told| &told.deleted).filter(|id| bodies.contains_key(*id)).collect();
    assert!(deleted.is_empty(), "deleted, and delivered: {deleted:?}");
    let wrong: Vec<_> = due
        .iter()
        .filter(|(id, body)| {
            bodies.get(*id).is_none_or(|came| came.iter().any(|c| *c != format!("\"{body}\"")))
        })
        .collect();
    assert!(wrong.is_empty(), "lost, or in an old form: {wrong:?}");
    let twice = bodies.values().filter(|came| came.len() > 1).count();
    println!("{} jobs were added, 0 are lost, {twice} came twice", due.len());
    assert_eq!(twice, 0);
    for daemon in daemons {
        let left = crate::support::stats(&mut daemon.client(), "t");
        assert!(left.iter().all(|(state, count)| state == "dead" || *count == 0), "{left:?}");
    }
}

#[test]
fn two_releases_serve_one_redis_beside_each_other() {
    let (sink, nodes) = (Sink::start(), [RedisServer::start(), RedisServer::start()]);
    let node = |(n, server): (usize, &RedisServer)| {
        format!("[[store.node]]\nname = \"r{n}\"\nurl = \"{}\"\n", server.url())
    };
    let nodes: String = nodes.iter().enumerate().map(node).collect();
    let config = format!("[store]\nbackend = \"redis\"\n{nodes}{}", topic("t", &sink, ""));
    let daemons = [0, 1].map(|_| Daemon::spawn_copy_of(&old_release(), &config));
    for daemon in &daemons {
        daemon.wait_ready();
        eventually(20 * SECOND, "all processes", || (daemon.status()?["phase"] == "steady").then_some(()));
    }
    up_and_back(&daemons, &sink);
}

#[test]
fn an_embedded_store_goes_to_this_release_and_back() {
    let sink = Sink::start();
    let config = format!("[store]\nbackend = \"embedded\"\n{}", topic("t", &sink, ""));
    let daemon = Daemon::spawn_copy_of(&old_release(), &config);
    daemon.wait_ready();
    eventually(20 * SECOND, "all processes", || (daemon.status()?["phase"] == "steady").then_some(()));
    up_and_back(&[daemon], &sink);
}
