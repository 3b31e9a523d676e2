//! The spool: changes that wait on the host's disk while their node does not answer.

use std::collections::HashSet;
use std::io::Write as _;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::json;

use crate::support::http::Http;
use crate::support::proxy::{Proxy, Way};
use crate::support::redis::{RedisServer, TcpServer};
use crate::support::{
    Daemon, SECOND, SLOTS, Sink, add, all_new, eventually, free_port, new_job, now_ms, takes, topic,
};
use host::random_name;
use model::job::{Due, JobId, JobKey, NewJob, OnConflict, State, TopicName};
use model::settings;
use nix::sys::signal::{Signal, kill};
use store::{
    self, Added, Deleted, LeaseRequest, LeasedJob, Outcome, Settled, Settlement, SpoolSender, Store,
    StoreError,
};

/// A host with a spool, and nodes.
struct Host {
    nodes: Vec<RedisServer>,
    dir: tempfile::TempDir,
    bytes: usize,
    /// The addresses of nodes that are not in `nodes`.
    urls: Vec<String>,
}

impl Host {
    fn new(nodes: usize) -> Host {
        let nodes = (0..nodes).map(|_| RedisServer::start()).collect();
        Host { nodes, dir: tempfile::tempdir().unwrap(), bytes: 64 << 20, urls: Vec::new() }
    }

    fn count(&self) -> usize {
        self.nodes.len().max(self.urls.len())
    }

    /// Returns the settings of a process of the host. Processes with different values of `pool` (the number of
    /// connections) share nothing.
    fn settings(&self, nodes: usize, pool: u32) -> settings::RedisSettings {
        let url = |n: usize| self.urls.get(n).cloned().unwrap_or_else(|| self.nodes[n].url());
        let node = |n: usize| settings::NodeSettings::server(format!("r{n}"), url(n), 2);
        let spool = settings::SpoolSettings { path: self.dir.path().join("spool.db"), bytes: self.bytes };
        let nodes = (0..nodes).map(node).collect();
        settings::RedisSettings {
            prefix: "dq".into(),
            timeout: SECOND,
            pool,
            nodes,
            spool: Some(spool),
            safety: settings::DurabilitySettings::default(),
        }
    }

    fn store(&self, pool: u32) -> Box<dyn Store> {
        let settings = settings::StoreSettings::Redis(self.settings(self.count(), pool));
        store::open(&settings, Path::new("/nowhere")).unwrap()
    }

    fn sender(&self, pool: u32) -> SpoolSender {
        SpoolSender::open(&self.settings(self.count(), pool), random_name().unwrap()).unwrap().unwrap()
    }

    /// Opens the store of a process of this host that reaches no node, so that its changes wait in the spool.
    fn blind(&self) -> Box<dyn Store> {
        let mut settings = self.settings(0, 1);
        settings.nodes.push(settings::NodeSettings::server("r0", "redis+unix:///nowhere/redis.sock", 2));
        store::open(&settings::StoreSettings::Redis(settings), Path::new("/nowhere")).unwrap()
    }

    fn spool_is_empty(&self) -> bool {
        store::Spool::open(&self.settings(1, 1).spool.unwrap()).unwrap().is_empty().unwrap()
    }

    /// Runs `dq nodes move`.
    fn moves(&self, words: &[&str]) {
        let node = |(n, node): (usize, &RedisServer)| {
            format!("[[store.node]]\nname = \"r{n}\"\nurl = \"{}\"\n", node.url())
        };
        let nodes: String = self.nodes.iter().enumerate().map(node).collect();
        let file = self.dir.path().join("dq.toml");
        let config = format!("run_dir = \"run\"\n[store]\nbackend = \"redis\"\ntimeout = \"1s\"\n{nodes}");
        std::fs::write(&file, config).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_dq"));
        let out =
            command.args(["nodes", "move", "--yes"]).args(words).arg("--config").arg(file).output().unwrap();
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    }

    /// Opens a store on another host, which has no spool.
    fn elsewhere(&self) -> Box<dyn Store> {
        let settings = settings::RedisSettings { spool: None, ..self.settings(self.count(), 99) };
        store::open(&settings::StoreSettings::Redis(settings), Path::new("/nowhere")).unwrap()
    }
}

/// Sends until `entries` entries were taken.
fn send(sender: &mut SpoolSender, entries: usize) {
    let mut sum = 0;
    eventually(20 * SECOND, &format!("{entries} entries"), || {
        match sender.send() {
            Ok(sent) => sum += sent,
            Err(StoreError::NodeDown(_) | StoreError::Moving(_)) => {}
            Err(e) => panic!("{e}"),
        }
        (sum >= entries).then_some(())
    });
    assert_eq!(sum, entries);
}

fn key(id: &str) -> JobKey {
    JobKey { topic: TopicName::new("t").unwrap(), id: JobId::new(id).unwrap() }
}

fn later(id: &str, body: &str) -> NewJob {
    new_job("t", id, body, Due::In(600 * SECOND))
}

fn one(store: &mut dyn Store, job: NewJob) -> Result<&'static str, &'static str> {
    match store.add(&[job]).remove(0) {
        Ok(Added::Spooled { .. }) => Ok("spooled"),
        Ok(Added::New { .. }) => Ok("new"),
        Ok(Added::Replaced { .. }) => Ok("replaced"),
        Ok(other) => panic!("{other:?}"),
        Err(e) => Err(e.code()),
    }
}

/// Kills a node, and waits until a process notices. (If a connection breaks while a request is on it, the outcome is
/// unknown, and the request is not spooled.)
fn lose(node: &mut RedisServer, store: &mut dyn Store) {
    node.kill();
    eventually(10 * SECOND, "a node that is down", || {
        let refused =
            (0..50).any(|n| store.run(&key(&n.to_string())).is_err_and(|e| e.code() == "node_down"));
        refused.then_some(())
    });
}

/// Waits until a process uses a node that is back.
fn is_back(store: &mut dyn Store) {
    eventually(10 * SECOND, "the node", || store.run(&key("nothing")).ok());
}

fn body(store: &mut dyn Store, id: &str) -> Option<String> {
    store.get(&key(id)).unwrap().map(|view| view.body.as_str().to_owned())
}

fn delete(store: &mut dyn Store, id: &str) -> Result<Deleted, &'static str> {
    store.delete(&[key(id)]).remove(0).map_err(|e| e.code())
}

#[test]
fn an_add_waits_in_the_spool_until_its_node_is_back() {
    let mut host = Host::new(1);
    let (mut store, mut other, mut sender) = (host.store(1), host.store(2), host.sender(3));
    assert_eq!(one(store.as_mut(), later("old", "1")), Ok("new"));
    lose(&mut host.nodes[0], store.as_mut());
    let begun = now_ms();
    let at = 4_000_000_000_000;
    let path = model::destination::Destination::from_path("/m/7").ok();
    let tags = model::tags::Tags::new(["shop:7", "a"]).unwrap();
    let headers = model::headers::Headers::parse(r#"{"x-a": "1"}"#).unwrap();
    let headers = headers.with_destination(path).with_tags(tags);
    for (id, due) in [("new", Due::In(600 * SECOND)), ("old", Due::At(at)), ("gone", Due::At(at))] {
        let job = NewJob { headers: headers.clone(), ..new_job("t", id, "2", due) };
        assert_eq!(one(store.as_mut(), job), Ok("spooled"), "{id}");
    }
    // All processes of the host see the changes in the spool, and can replace and delete them.
    assert_eq!(one(other.as_mut(), later("new", "3")), Ok("spooled"));
    assert_eq!(delete(other.as_mut(), "gone"), Ok(Deleted::Spooled));
    assert_eq!(
        (delete(store.as_mut(), "gone"), delete(store.as_mut(), "what")),
        (Ok(Deleted::NotFound), Err("node_down"))
    );
    let view = store.get(&key("old")).unwrap().unwrap();
    assert_eq!((view.is_spooled, view.state, view.due_ms), (true, State::Delayed, at));
    assert_eq!(view.headers, headers);
    assert_eq!((body(store.as_mut(), "new"), body(store.as_mut(), "gone")), (Some("3".into()), None));
    // An operation that needs the node is refused, also for a job that waits in the spool.
    for id in ["new", "other"] {
        assert_eq!(store.run(&key(id)).map_err(|e| e.code()), Err("node_down"));
        for on_conflict in [OnConflict::Keep, OnConflict::Reject] {
            let job = NewJob { on_conflict, ..later(id, "4") };
            assert_eq!(one(store.as_mut(), job), Err("node_down"), "{on_conflict:?}");
        }
    }
    assert_eq!(sender.send().map_err(|e| e.code()).unwrap_or(0), 0);

    host.nodes[0].start_again();
    // A change waits behind earlier changes of the same job in the spool, even when the node is back.
    is_back(store.as_mut());
    assert_eq!(one(store.as_mut(), later("new", "5")), Ok("spooled"));
    assert_eq!(one(store.as_mut(), later("other", "6")), Ok("new"));
    send(&mut sender, 3);
    let mut elsewhere = host.elsewhere();
    for (id, value) in [("new", Some("5")), ("old", Some("2")), ("gone", None), ("other", Some("6"))] {
        assert_eq!(
            (body(store.as_mut(), id).as_deref(), body(elsewhere.as_mut(), id).as_deref()),
            (value, value),
            "{id}"
        );
    }
    let (new, old) = (store.get(&key("new")).unwrap().unwrap(), store.get(&key("old")).unwrap().unwrap());
    assert!(!new.is_spooled && old.due_ms == at && old.headers == headers);
    let since = new.due_ms - 600_000 - begun;
    assert!(
        (0..=now_ms() - begun).contains(&since),
        "the delay counts from the add, not from {since} ms after it"
    );
    assert_eq!(one(store.as_mut(), later("new", "7")), Ok("replaced"));
}

#[test]
fn only_what_belongs_to_the_node_that_is_away_waits() {
    let mut host = Host::new(2);
    let (mut store, mut sender) = (host.store(1), host.sender(2));
    let all = |value: &str| (0..200).map(|n| later(&n.to_string(), value)).collect::<Vec<_>>();
    assert!(store.add(&all("1")).iter().all(Result::is_ok));
    lose(&mut host.nodes[1], store.as_mut());
    let added = store.add(&all("2"));
    let waits = |added: &Result<Added, StoreError>| matches!(added, Ok(Added::Spooled { .. }));
    let spooled: Vec<bool> = added.iter().map(waits).collect();
    let count = spooled.iter().filter(|waits| **waits).count();
    assert!(added.iter().all(Result::is_ok) && (50..150).contains(&count), "{count}");
    // Nothing can be sent. Changes for the other node are not delayed.
    assert_eq!(sender.send(), Ok(0));
    let again: Vec<bool> = store.add(&all("3")).iter().map(waits).collect();
    assert_eq!(again, spooled);
    host.nodes[1].start_again();
    send(&mut sender, count);
    assert!((0..200).all(|n| body(store.as_mut(), &n.to_string()).as_deref() == Some("3")));
}

/// Puts jobs with these numbers into the spool while their nodes answer. Returns the number of jobs.
fn spool_some(host: &Host, ids: impl Iterator<Item = usize>) -> usize {
    let jobs: Vec<NewJob> = ids.map(|n| later(&n.to_string(), "1")).collect();
    let added = host.blind().add(&jobs);
    assert!(added.iter().all(|added| matches!(added, Ok(Added::Spooled { .. }))), "{added:?}");
    jobs.len()
}

/// Returns a sender that has sent a batch on an open connection. The sender will never get the answer to this batch.
fn sender_without_answer(host: &Host, jobs: usize) -> SpoolSender {
    let mut sender = host.sender(2);
    let first = spool_some(host, 1000..1050);
    send(&mut sender, first);
    spool_some(host, 0..jobs);
    host.nodes[0].hang(true);
    // The batch was sent before the node stopped answering. So its outcome is unknown, even if `send` returns an error.
    let _ = sender.send();
    sender
}

#[test]
fn a_batch_that_was_taken_unseen_is_not_taken_again() {
    let host = Host::new(1);
    let mut sender = sender_without_answer(&host, 40);
    host.nodes[0].hang(false);
    let mut elsewhere = host.elsewhere();
    eventually(10 * SECOND, "what was on its way", || body(elsewhere.as_mut(), "7"));
    assert_eq!(delete(elsewhere.as_mut(), "7"), Ok(Deleted::Done));
    // This host does not know that the batch was taken. In its spool, the job still waits.
    let mut store = host.store(3);
    assert_eq!(body(store.as_mut(), "7").as_deref(), Some("1"));
    send(&mut sender, 40);
    let there: Vec<_> = (0..40).filter(|n| body(store.as_mut(), &n.to_string()).is_some()).collect();
    assert_eq!(there.len(), 39, "{there:?}");
    assert_eq!(body(store.as_mut(), "7"), None);
}

#[test]
fn a_batch_that_was_not_taken_is_sent_again_by_another_process() {
    let mut host = Host::new(1);
    let sender = sender_without_answer(&host, 40);
    host.nodes[0].kill();
    drop(sender);
    host.nodes[0].start_again();
    send(&mut host.sender(3), 40);
    let mut store = host.store(4);
    assert!((0..40).all(|n| body(store.as_mut(), &n.to_string()).is_some()));
}

/// Returns how many scripts a server has run.
fn scripts_run(server: &TcpServer) -> u64 {
    let stats = server.cli(&["info", "commandstats"]);
    let line = stats.lines().find(|line| line.starts_with("cmdstat_evalsha:")).unwrap_or_default();
    line.split(['=', ',']).nth(1).map_or(0, |calls| calls.parse().unwrap())
}

/// All entries of a batch are replaced while the batch is in flight, and another process sends their replacements. The
/// batch arrives after the replacements.
#[test]
fn a_late_batch_does_not_replace_what_came_after_it() {
    let (server, mut host) = (TcpServer::start(&[]), Host::new(0));
    let proxy = Proxy::to(server.address());
    host.urls = vec![format!("redis://{}", proxy.address)];
    let mut sender = host.sender(2);
    spool_some(&host, 100..101);
    send(&mut sender, 1);
    spool_some(&host, 0..1);
    proxy.hold(Way::Requests);
    assert_eq!(sender.send(), Ok(0), "no answer comes");
    drop(sender);
    assert!(matches!(host.blind().add(&[later("0", "2")])[..], [Ok(Added::Spooled { .. })]));
    send(&mut host.sender(3), 1);
    let before = scripts_run(&server);
    proxy.let_go();
    eventually(10 * SECOND, "the late batch", || (scripts_run(&server) > before).then_some(()));
    assert_eq!(body(host.elsewhere().as_mut(), "0").as_deref(), Some("2"));
}

#[test]
fn an_entry_is_sent_although_the_disk_failed_when_it_was_tried() {
    let mut host = Host::new(1);
    // The store and the sender use the same connections. So the store and the sender both know which nodes do not
    // answer.
    let (mut store, mut sender) = (host.store(2), host.sender(2));
    // The sender knows the set from now on.
    spool_some(&host, 100..101);
    send(&mut sender, 1);
    lose(&mut host.nodes[0], store.as_mut());
    assert_eq!(one(store.as_mut(), later("a", "1")), Ok("spooled"));
    (0..2).for_each(|_| assert_eq!(sender.send(), Ok(0)));
    // The file is locked, so all writes fail, as with a failing disk.
    let other = rusqlite::Connection::open(host.dir.path().join("spool.db")).unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    host.nodes[0].start_again();
    eventually(10 * SECOND, "a try that fails", || {
        sender.send().is_err_and(|e| e.code() == "store_busy").then_some(())
    });
    other.execute_batch("ROLLBACK").unwrap();
    send(&mut sender, 1);
    is_back(store.as_mut());
    assert_eq!(body(store.as_mut(), "a").as_deref(), Some("1"));
}

#[test]
fn after_a_change_of_the_set_a_batch_is_asked_for_where_it_went() {
    for is_taken in [true, false] {
        let mut host = Host::new(2);
        let all = std::mem::take(&mut host.nodes);
        let (first, second): (Vec<_>, Vec<_>) = all.into_iter().enumerate().partition(|(n, _)| *n == 0);
        host.nodes.extend(first.into_iter().map(|(_, node)| node));
        let sender = sender_without_answer(&host, 40);
        if is_taken {
            host.nodes[0].hang(false);
        } else {
            host.nodes[0].kill();
            host.nodes[0].start_again();
        }
        let mut elsewhere = host.elsewhere();
        if is_taken {
            eventually(10 * SECOND, "what was on its way", || body(elsewhere.as_mut(), "7"));
            (0..10).for_each(|n| assert_eq!(delete(elsewhere.as_mut(), &n.to_string()), Ok(Deleted::Done)));
        }
        drop((sender, elsewhere));
        host.nodes.extend(second.into_iter().map(|(_, node)| node));
        host.moves(&["--add", "r1"]);
        send(&mut host.sender(3), 40);
        let mut elsewhere = host.elsewhere();
        let there = (0..40).filter(|n| body(elsewhere.as_mut(), &n.to_string()).is_some()).count();
        assert_eq!(there, if is_taken { 30 } else { 40 });
        let on = |node: usize| host.nodes[node].cli(&["--raw", "dbsize"]);
        assert!(on(1).trim() != "0");
    }
}

#[test]
fn while_jobs_are_moved_adds_wait_and_then_come() {
    let host = Host::new(2);
    let mut store = host.store(1);
    assert_eq!(one(store.as_mut(), later("a", "1")), Ok("new"));
    // This is the state that a mover leaves if it dies after it has set its fence.
    let set = host.nodes[0].cli(&["--raw", "get", "dq:{r0.0}:set"]);
    let number: u64 = set.split(' ').next().unwrap().parse().unwrap();
    let moving = format!("{} 00000000000000ff r0,r1 {number} r0", number + 1);
    for (node, shard) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
        host.nodes[node].cli(&["set", &format!("dq:{{r{node}.{shard}}}:set"), &moving]);
    }
    assert_eq!(one(store.as_mut(), later("a", "2")), Ok("spooled"));
    assert_eq!(one(store.as_mut(), later("b", "2")), Ok("spooled"));
    assert_eq!(delete(store.as_mut(), "c"), Err("nodes_moving"));
    let mut sender = host.sender(2);
    assert_eq!(sender.send().map_err(|e| e.code()), Err("nodes_moving"));
    host.moves(&[]);
    send(&mut sender, 2);
    assert_eq!(body(host.elsewhere().as_mut(), "a").as_deref(), Some("2"));
    assert_eq!(one(store.as_mut(), later("b", "3")), Ok("replaced"));
}

#[test]
fn a_full_spool_refuses_and_loses_nothing() {
    let mut host = Host::new(1);
    host.bytes = 1 << 20;
    let mut store = host.store(1);
    assert_eq!(one(store.as_mut(), later("first", "1")), Ok("new"));
    lose(&mut host.nodes[0], store.as_mut());
    let large = format!("\"{}\"", "x".repeat(20_000));
    let mut taken = 0;
    while one(store.as_mut(), later(&taken.to_string(), &large)) == Ok("spooled") {
        taken += 1;
        assert!(taken < 100);
    }
    let refused = store.add(&[later("no", &large)]).remove(0).unwrap_err();
    assert_eq!(refused.code(), "spool_full");
    assert!(refused.to_string().contains("store.spool"), "{refused}");
    assert!(taken > 40, "{taken} bodies of 20 kB in a MiB");
    host.nodes[0].start_again();
    send(&mut host.sender(2), taken);
    is_back(store.as_mut());
    assert!((0..taken).all(|n| body(store.as_mut(), &n.to_string()).as_deref() == Some(&large)));
    assert_eq!(one(store.as_mut(), later("no", &large)), Ok("new"));
}

/// Leases a job that is ready.
fn lease_one(store: &mut dyn Store) -> LeasedJob {
    let wanted = LeaseRequest {
        topic: key("a").topic,
        max: 1,
        hold: 60 * SECOND,
        max_leased: None,
        is_own_ttr: false,
        max_attempts: 9,
    };
    store.lease(&[wanted], 1, None).unwrap().jobs.remove(0)
}

/// Makes a dead letter of the leased job.
fn bury(store: &mut dyn Store, leased: LeasedJob) {
    let LeasedJob { key, token, .. } = leased;
    let bury = Settlement { key, token, outcome: Outcome::DeadLetter, attempt: None };
    assert_eq!(store.settle(&[bury]), [Ok(Settled::Done)]);
}

/// Adds a job `a` with this body, and makes a dead letter of it.
fn add_and_bury(store: &mut dyn Store, body: &str) {
    assert_eq!(one(store, new_job("t", "a", body, Due::In(Duration::ZERO))), Ok("new"));
    let leased = lease_one(store);
    bury(store, leased);
}

/// Returns the bodies of the dead letters, the oldest first.
fn dead_bodies(store: &mut dyn Store) -> Vec<String> {
    let page = store.list(&key("a").topic, State::Dead, None, 100).unwrap();
    let mut letters: Vec<_> = page.jobs.into_iter().map(|job| (job.stamp_us, job.body)).collect();
    letters.sort_by_key(|(stamp_us, _)| *stamp_us);
    letters.into_iter().map(|(_, body)| body.as_str().to_owned()).collect()
}

/// The delete removes the added job, and this job never became a dead letter. The dead letters of its id stay, as they
/// do without a spool.
#[test]
fn a_deletion_that_waited_removes_no_dead_letters() {
    let mut host = Host::new(1);
    let (mut store, mut sender) = (host.store(1), host.sender(2));
    add_and_bury(store.as_mut(), "1");
    lose(&mut host.nodes[0], store.as_mut());
    assert_eq!(one(store.as_mut(), later("a", "2")), Ok("spooled"));
    assert_eq!(delete(store.as_mut(), "a"), Ok(Deleted::Spooled));
    host.nodes[0].start_again();
    send(&mut sender, 1);
    is_back(store.as_mut());
    let letter = store.get(&key("a")).unwrap().unwrap();
    assert_eq!((letter.state, letter.body.as_str()), (State::Dead, "1"));
}

/// The sender knows the clock of a node only with a small error, and keeps dead letters from within this error. So the
/// test waits for a longer time.
fn wait_for_the_clock() {
    std::thread::sleep(Duration::from_millis(100));
}

/// A job was replaced or deleted, but this change still waits in the spool. The old version of the job then uses up its
/// attempts. If the dead letter of this old version stayed, a redrive would deliver the old version.
#[test]
fn what_died_while_its_change_waited_is_removed() {
    let host = Host::new(1);
    let (mut store, mut sender) = (host.elsewhere(), host.sender(2));
    for (is_deleted, letters) in [(false, 1), (true, 3)] {
        (0..letters).for_each(|n| add_and_bury(store.as_mut(), &format!("\"before {n}\"")));
        let before = dead_bodies(store.as_mut());
        wait_for_the_clock();
        assert_eq!(one(store.as_mut(), new_job("t", "a", "\"old\"", Due::In(Duration::ZERO))), Ok("new"));
        let mut leased = lease_one(store.as_mut());
        let mut blind = host.blind();
        assert_eq!(one(blind.as_mut(), later("a", "\"new\"")), Ok("spooled"));
        wait_for_the_clock();
        bury(store.as_mut(), leased);
        if is_deleted {
            // A second dead letter comes while the change waits.
            assert_eq!(one(store.as_mut(), new_job("t", "a", "\"old\"", Due::In(Duration::ZERO))), Ok("new"));
            leased = lease_one(store.as_mut());
            assert_eq!(delete(blind.as_mut(), "a"), Ok(Deleted::Spooled));
            bury(store.as_mut(), leased);
        }
        assert!(dead_bodies(store.as_mut()).contains(&"\"old\"".to_owned()));
        send(&mut sender, 1);
        assert_eq!(dead_bodies(store.as_mut()), before, "deleted: {is_deleted}");
        let live = store.get(&key("a")).unwrap().filter(|view| view.state == State::Delayed);
        let expected = (!is_deleted).then(|| "\"new\"".to_owned());
        assert_eq!(live.map(|view| view.body.as_str().to_owned()), expected);
        // The first delete removes the live job, if there is one. The next delete removes the dead letters.
        (0..2).for_each(|_| drop(store.delete(&[key("a")])));
        assert!(dead_bodies(store.as_mut()).is_empty());
    }
}

/// The add of a job was taken, but its answer was lost. The job uses up its attempts, and then it is deleted.
#[test]
fn a_deletion_behind_an_unanswered_add_removes_its_letter() {
    let host = Host::new(1);
    let mut sender = sender_without_answer(&host, 3);
    host.nodes[0].hang(false);
    let mut store = host.elsewhere();
    eventually(10 * SECOND, "what was on its way", || body(store.as_mut(), "1"));
    for id in ["1", "2"] {
        assert_eq!(store.run(&key(id)), Ok(store::Changed::Done));
        let leased = lease_one(store.as_mut());
        bury(store.as_mut(), leased);
    }
    let mut blind = host.blind();
    assert_eq!(delete(blind.as_mut(), "1"), Ok(Deleted::Spooled));
    // This add leaves the letter, because the job died before the add.
    wait_for_the_clock();
    assert_eq!(one(blind.as_mut(), later("2", "\"new\"")), Ok("spooled"));
    eventually(20 * SECOND, "an empty spool", || {
        let _ = sender.send();
        host.spool_is_empty().then_some(())
    });
    let dead = store.list(&key("1").topic, State::Dead, None, 100).unwrap().jobs;
    assert_eq!(dead.into_iter().map(|job| job.key).collect::<Vec<_>>(), [key("2")]);
    assert_eq!(body(store.as_mut(), "1"), None);
}

/// A note beside the file says that the spool is empty. After a power cut, this note may exist although the spool has a
/// later change.
#[test]
fn a_note_of_an_empty_spool_is_not_trusted_after_a_start() {
    let mut host = Host::new(1);
    let (mut store, mut sender) = (host.store(1), host.sender(2));
    send(&mut sender, 0);
    let turn = host.dir.path().join("spool.db-turn");
    assert_eq!(std::fs::read(&turn).unwrap(), b"0", "it is empty");
    lose(&mut host.nodes[0], store.as_mut());
    assert_eq!(one(store.as_mut(), later("a", "1")), Ok("spooled"));
    assert_ne!(std::fs::read(&turn).unwrap(), b"0");
    drop((store, sender));
    std::fs::write(&turn, b"0").unwrap();
    let mut store = host.store(3);
    assert!(store.get(&key("a")).unwrap().unwrap().is_spooled);
    assert_eq!(delete(store.as_mut(), "a"), Ok(Deleted::Spooled));
}

/// A removed spool says nothing about the changes that other processes store in the new file.
#[test]
fn a_removed_spool_does_not_count_as_an_empty_one() {
    let host = Host::new(1);
    let (mut store, mut sender) = (host.store(1), host.sender(2));
    assert_eq!(one(store.as_mut(), later("first", "1")), Ok("new"));
    send(&mut sender, 0);
    std::fs::remove_file(host.dir.path().join("spool.db-turn")).unwrap();
    let mut again = host.store(3);
    assert_eq!(one(again.as_mut(), later("a", "1")), Ok("new"));
    assert_eq!(one(store.as_mut(), later("a", "2")), Err("store_gone"));
    assert!(matches!(sender.send(), Err(StoreError::Gone(_))));
    std::fs::remove_file(host.dir.path().join("spool.db")).unwrap();
    assert_eq!(one(again.as_mut(), later("a", "2")), Err("store_gone"));
    assert_eq!(delete(again.as_mut(), "a"), Err("store_gone"));
    assert_eq!(one(host.store(4).as_mut(), later("a", "2")), Ok("replaced"));
}

#[test]
fn a_spool_that_is_turned_off_sends_what_it_has() {
    let mut host = Host::new(1);
    let mut store = host.store(1);
    assert_eq!(one(store.as_mut(), later("first", "1")), Ok("new"));
    lose(&mut host.nodes[0], store.as_mut());
    assert_eq!(one(store.as_mut(), later("a", "2")), Ok("spooled"));
    host.bytes = 0;
    let mut off = host.store(2);
    for id in ["a", "b"] {
        assert_eq!(one(off.as_mut(), later(id, "3")), Err("node_down"), "{id}");
    }
    assert_eq!(body(off.as_mut(), "a").as_deref(), Some("2"));
    host.nodes[0].start_again();
    send(&mut host.sender(3), 1);
    is_back(off.as_mut());
    assert_eq!(one(off.as_mut(), later("a", "4")), Ok("replaced"));
    // A host that never had a spool file does not create one.
    std::fs::remove_file(host.dir.path().join("spool.db")).unwrap();
    drop(host.store(4));
    assert!(!host.dir.path().join("spool.db").exists());
}

/// The entries of the spool arrive fast and in their order, and other work on the node is not delayed.
#[test]
fn ten_thousand_are_sent_in_order_beside_other_work() {
    let host = Host::new(2);
    let mut store = host.store(1);
    assert_eq!(one(store.as_mut(), later("first", "1")), Ok("new"));
    for from in (0..10_000).step_by(250) {
        spool_some(&host, from..from + 250);
    }
    let mut sender = host.sender(2);
    let (begun, done) = (Instant::now(), AtomicBool::new(false));
    let (took, slowest) = std::thread::scope(|scope| {
        let others = scope.spawn(|| {
            let (mut slowest, mut n) = (Duration::ZERO, 0);
            while !done.load(Ordering::Relaxed) {
                let begun = Instant::now();
                assert_eq!(one(store.as_mut(), later(&format!("other-{n}"), "1")), Ok("new"));
                slowest = slowest.max(begun.elapsed());
                n += 1;
            }
            slowest
        });
        send(&mut sender, 10_000);
        let took = begun.elapsed();
        done.store(true, Ordering::Relaxed);
        (took, others.join().unwrap())
    });
    println!("10,000 entries in {took:?}; the slowest add beside them took {slowest:?}");
    assert!(took < 20 * SECOND && slowest < 3 * SECOND);
    let mut elsewhere = host.elsewhere();
    let stamps: Vec<i64> =
        (0..10_000).map(|n| elsewhere.get(&key(&n.to_string())).unwrap().unwrap().stamp_us).collect();
    // A page has 256 entries, for all shards together.
    assert!((512..10_000).all(|n| stamps[n - 512] < stamps[n]));
}

#[test]
fn a_node_that_fails_half_way_gets_the_rest_when_it_is_back() {
    let mut host = Host::new(1);
    let mut store = host.store(1);
    assert_eq!(one(store.as_mut(), later("first", "1")), Ok("new"));
    for from in (0..5000).step_by(250) {
        spool_some(&host, from..from + 250);
    }
    let mut sender = host.sender(2);
    for _ in 0..3 {
        std::thread::scope(|scope| {
            let node = &mut host.nodes[0];
            let keys = |node: &RedisServer| -> usize {
                node.cli(&["hlen", "dq:{r0.0}:b:t"]).trim().parse().unwrap_or(0)
            };
            // When the thread begins, many entries may have been sent already.
            let before = keys(node);
            let kills = scope.spawn(move || {
                eventually(10 * SECOND, "some that are sent", || (keys(node) > before + 300).then_some(()));
                node.kill();
            });
            while !kills.is_finished() {
                let _ = sender.send();
            }
        });
        host.nodes[0].start_again();
    }
    eventually(20 * SECOND, "the rest", || {
        let _ = sender.send();
        host.spool_is_empty().then_some(())
    });
    is_back(store.as_mut());
    assert!((0..5000).all(|n| body(store.as_mut(), &n.to_string()).is_some()));
}

/// Adds jobs until `jobs` of them wait in the spool. Returns the ids of all accepted jobs.
fn add_until_spooled(daemon: &Daemon, jobs: usize, delay_ms: u64) -> Vec<String> {
    let (mut client, mut taken, mut spooled) = (daemon.client(), Vec::new(), 0);
    while spooled < jobs {
        let id = format!("s-{}", taken.len());
        let answer = client.ask(&add("t", &id, delay_ms)).unwrap();
        if answer["code"] == 1 {
            spooled += usize::from(answer["spooled"] == true);
            taken.push(id);
        } else {
            assert_eq!(answer["err"], "unknown", "{answer}");
        }
    }
    taken
}

fn config(node: &RedisServer, sink: &Sink) -> String {
    let node = format!("[[store.node]]\nname = \"r0\"\nurl = \"{}\"\n", node.url());
    format!("[store]\nbackend = \"redis\"\ntimeout = \"1s\"\n{node}{}", topic("t", sink, ""))
}

#[test]
fn what_waits_survives_kill_9_of_the_host_and_a_usr2() {
    let (mut node, sink) = (RedisServer::start(), Sink::start());
    let mut daemon = Daemon::start(&config(&node, &sink));
    node.kill();
    let mut taken = add_until_spooled(&daemon, 300, 0);
    let mut http = Http::unix(&daemon);
    let answer = eventually(10 * SECOND, "an add that waits", || {
        let answer = http.ask("POST", "/v1/topics/t/jobs", &json!({"id": "h", "body": 1}));
        // The connection to the node may have broken during the request. Then the test asks again.
        (answer.status == 202).then(|| answer.is(202))
    });
    assert_eq!((&answer["outcome"], &answer["spooled"]), (&json!("spooled"), &json!(true)));
    assert_eq!(http.get("/v1/topics/t/jobs/h").is(200)["spooled"], true);
    taken.push("h".into());
    // All processes of the daemon are killed at once, as when the host dies.
    for pid in daemon.kill_master() {
        let _ = kill(pid, Signal::SIGKILL);
    }
    let again = Daemon::again(&daemon);
    again.wait_ready();
    taken.extend(add_until_spooled(&again, 50, 0));
    let before = again.wait_all_up(SLOTS);
    again.signal(Signal::SIGUSR2);
    all_new(&again, &before);
    taken.extend(add_until_spooled(&again, 50, 0));
    assert_eq!(sink.count(), 0);
    node.start_again();
    let taken: HashSet<String> = taken.into_iter().collect();
    sink.wait_for(taken.len(), 30 * SECOND);
    let delivered = sink.deliveries();
    assert!(taken.iter().all(|id| delivered.contains_key(id)));
}

#[test]
fn a_full_disk_refuses_and_loses_nothing_that_waits() {
    let (mut node, sink) = (RedisServer::start(), Sink::start());
    let (daemon, filler) = Daemon::on_small_disk(&config(&node, &sink));
    node.kill();
    let mut taken = add_until_spooled(&daemon, 100, 0);
    let mut file = std::fs::File::create(&filler).unwrap();
    while file.write_all(&[0; 4096]).is_ok() {}
    let mut client = daemon.client();
    let large = "x".repeat(20_000);
    let refused = eventually(10 * SECOND, "a refusal", || {
        let id = format!("during-{}", taken.len());
        let answer =
            client.ask(&json!({"cmd": "add", "topic": "t", "id": id, "delay_ms": 0, "body": large})).unwrap();
        if answer["code"] == 1 {
            taken.push(id);
            return None;
        }
        Some(answer)
    });
    assert_eq!(refused["err"], "spool_full", "{refused}");
    drop(file);
    std::fs::remove_file(&filler).unwrap();
    eventually(10 * SECOND, "an add that is taken", || {
        let answer = client.ask(&add("t", "after", 0)).unwrap();
        (answer["spooled"] == true).then_some(())
    });
    taken.push("after".into());
    node.start_again();
    let taken: HashSet<String> = taken.into_iter().collect();
    sink.wait_for(taken.len(), 30 * SECOND);
    let delivered = sink.deliveries();
    assert!(taken.iter().all(|id| delivered.contains_key(id)));
}

/// The spool keeps room on its disk for what its sender has to write.
#[test]
fn a_spool_that_fills_its_disk_is_sent_when_the_node_is_back() {
    let (mut node, sink) = (RedisServer::start(), Sink::start());
    let (daemon, _) = Daemon::on_small_disk(&config(&node, &sink));
    node.kill();
    let (mut client, mut taken, large) = (daemon.client(), HashSet::new(), "x".repeat(20_000));
    let refused = eventually(20 * SECOND, "a refusal", || {
        let id = format!("large-{}", taken.len());
        let job = json!({"cmd": "add", "topic": "t", "id": id, "delay_ms": 0, "body": large});
        let answer = client.ask(&job).unwrap();
        match answer["err"].as_str() {
            None => drop(taken.insert(id)),
            Some("unknown") => {}
            Some(_) => return Some(answer),
        }
        None
    });
    assert_eq!(refused["err"], "spool_full", "{refused}");
    assert!(refused["msg"].as_str().unwrap().contains("its disk has"), "{refused}");
    assert!(taken.len() > 10, "{}", taken.len());
    node.start_again();
    eventually(30 * SECOND, &format!("all of {}; log:\n{}", taken.len(), daemon.log()), || {
        let delivered = sink.deliveries();
        taken.iter().all(|id| delivered.contains_key(id)).then_some(())
    });
}

/// If two daemons used one spool, each daemon would send the changes of the other daemon to its own store.
#[test]
fn a_spool_of_another_daemon_is_refused() {
    let (node, sink) = (RedisServer::start(), Sink::start());
    let daemon = Daemon::start(&config(&node, &sink));
    let other = daemon.dir.path().join("other.toml");
    let [port, http] = [free_port(), free_port()];
    let ports = format!("[server]\nlisten = \"127.0.0.1:{port}\"\n[http]\nlisten = \"127.0.0.1:{http}\"\n");
    let same = config(&node, &sink).replace("[store]\n", "[store]\nspool_path = \"var/spool.db\"\n");
    std::fs::write(&other, format!("run_dir = \"other\"\n{ports}{same}")).unwrap();
    let out = Command::new(env!("CARGO_BIN_EXE_dq-master")).arg("--config").arg(&other).output().unwrap();
    let printed = String::from_utf8_lossy(&out.stderr);
    assert!(!out.status.success() && printed.contains("belongs to the dq-master that runs in"), "{printed}");
    assert!(takes(&daemon, "t", "a"));
}

#[test]
fn the_spool_changes_only_while_dq_is_stopped() {
    let (mut node, sink) = (RedisServer::start(), Sink::start());
    let mut daemon = Daemon::start(&config(&node, &sink));
    node.kill();
    let taken = add_until_spooled(&daemon, 1, 0);
    let elsewhere = config(&node, &sink).replace("[store]\n", "[store]\nspool_path = \"elsewhere.db\"\n");
    Daemon::write_config(daemon.dir.path(), daemon.port, daemon.http, &elsewhere);
    daemon.signal(Signal::SIGHUP);
    eventually(20 * SECOND, "a refusal", || {
        daemon.log().contains("spool_path cannot be changed while dq runs").then_some(())
    });
    node.start_again();
    sink.wait_for(taken.len(), 30 * SECOND);
    // dq also refuses the new path while the spool is empty: a process that drains could still put a change into it.
    let turn = daemon.dir.path().join("var/spool.db-turn");
    eventually(20 * SECOND, "an empty spool", || (std::fs::read(&turn).unwrap() == b"0").then_some(()));
    daemon.signal(Signal::SIGHUP);
    eventually(20 * SECOND, "a second refusal", || {
        (daemon.log().matches("spool_path cannot be changed while dq runs").count() >= 2).then_some(())
    });
    assert!(!daemon.dir.path().join("elsewhere.db").exists());
    daemon.stop();
    let daemon = Daemon::again(&daemon);
    daemon.wait_ready();
    assert!(takes(&daemon, "t", "b"));
    assert!(daemon.dir.path().join("elsewhere.db").exists());
}

#[test]
fn jobs_are_delivered_while_the_disk_of_the_spool_fails() {
    let (node, sink) = (RedisServer::start(), Sink::start());
    let daemon = Daemon::start(&config(&node, &sink));
    daemon.wait_all_up(SLOTS);
    let mut client = daemon.client();
    for n in 0..20 {
        assert_eq!(client.ask(&add("t", &n.to_string(), 200 * n)).unwrap()["code"], 1);
    }
    // A folder in the place of the file: the spool can be neither read nor made again.
    let file = daemon.dir.path().join("var/spool.db");
    let aside = daemon.dir.path().join("aside.db");
    std::fs::rename(&file, &aside).unwrap();
    std::fs::create_dir(&file).unwrap();
    for timer in ["dq-timer-0", "dq-timer-1"] {
        daemon.kill_child(timer);
    }
    sink.wait_for(20, 20 * SECOND);
    let mut http = Http::unix(&daemon);
    std::fs::remove_dir(&file).unwrap();
    std::fs::rename(&aside, &file).unwrap();
    eventually(20 * SECOND, "another add", || {
        let added = http.ask("POST", "/v1/topics/t/jobs", &json!({"id": "later", "body": 1}));
        (added.status == 201).then_some(())
    });
    sink.wait_for(21, 20 * SECOND);
}
