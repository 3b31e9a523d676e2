//! The set of nodes: nodes are added, emptied, given up, and come back, with `dq nodes` as operators use it.

use std::collections::{BTreeMap, HashSet};
use std::path::Path;
use std::process::Command;

use crate::support;
use crate::support::http::Http;
use crate::support::redis::RedisServer;
use crate::support::{
    Daemon, SECOND, SLOTS, Sink, add, all_new, eventually, free_port, new_job, pending, topic,
};
use cli::TcpClient;
use model::job::{Due, JobId, JobKey, OnConflict, State, TopicName};
use model::job_priority::JobPriority;
use model::settings;
use nix::sys::signal::Signal;
use store::{self, Lanes, LeaseRequest, Outcome, SetChangeRequest, Settled, Settlement, Store};

/// Several nodes. A daemon's configuration may name only some of them.
struct Fleet {
    nodes: Vec<RedisServer>,
    sink: Sink,
    /// The folder with the configuration that commands use.
    dir: tempfile::TempDir,
}

impl Fleet {
    fn start(nodes: usize) -> Fleet {
        let nodes = (0..nodes).map(|_| RedisServer::start()).collect();
        let fleet = Fleet { nodes, sink: Sink::start(), dir: tempfile::tempdir().unwrap() };
        let all: Vec<usize> = (0..fleet.nodes.len()).collect();
        fleet.write(&all);
        fleet
    }

    fn config(&self, nodes: &[usize]) -> String {
        let node =
            |n: &usize| format!("[[store.node]]\nname = \"r{n}\"\nurl = \"{}\"\n", self.nodes[*n].url());
        let nodes: String = nodes.iter().map(node).collect();
        format!("[store]\nbackend = \"redis\"\ntimeout = \"1s\"\n{nodes}{}", topic("t", &self.sink, ""))
    }

    /// Writes the configuration that commands use from now on.
    fn write(&self, nodes: &[usize]) {
        let run_dir = self.dir.path().join("run");
        let config = format!("run_dir = \"{}\"\n{}", run_dir.display(), self.config(nodes));
        std::fs::write(self.dir.path().join("dq.toml"), config).unwrap();
    }

    /// Gives a running daemon a configuration with other nodes.
    fn reload(&self, daemon: &Daemon, nodes: &[usize]) {
        let before = daemon.wait_all_up(SLOTS);
        Daemon::write_config(daemon.dir.path(), daemon.port, daemon.http, &self.config(nodes));
        daemon.signal(Signal::SIGHUP);
        all_new(daemon, &before);
    }

    /// Returns how many jobs a node has, in all states.
    fn jobs_on(&self, node: usize) -> u64 {
        let script = "local n = 0 for _, k in ipairs(redis.call('KEYS', '*:b:*')) do n = n + redis.call('HLEN', k) end return n";
        self.nodes[node].cli(&["eval", script, "0"]).trim().parse().unwrap()
    }

    /// Runs `dq nodes` with these words. Returns its exit code, and what it wrote to stdout and stderr.
    fn dq(&self, words: &[&str]) -> (Option<i32>, String, String) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_dq"));
        command.arg("nodes").args(words).arg("--config").arg(self.dir.path().join("dq.toml"));
        let out = command.stdin(std::process::Stdio::null()).output().unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        (out.status.code(), text(out.stdout), text(out.stderr))
    }

    fn does(&self, words: &[&str]) -> String {
        let (code, out, err) = self.dq(words);
        assert_eq!(code, Some(0), "dq nodes {words:?}: {out}{err}");
        out
    }

    /// Returns the settings of a store on these nodes. Stores with different values of `pool` (the number of
    /// connections) share nothing. So each value of `pool` stands for a process.
    fn settings(&self, nodes: &[usize], pool: u32) -> settings::StoreSettings {
        let node = |n: &usize| settings::NodeSettings::server(format!("r{n}"), self.nodes[*n].url(), 2);
        let nodes = nodes.iter().map(node).collect();
        settings::StoreSettings::Redis(settings::RedisSettings::of_nodes("dq", SECOND, pool, nodes))
    }

    fn store(&self, nodes: &[usize], pool: u32) -> Box<dyn Store> {
        store::open(&self.settings(nodes, pool), Path::new("/nowhere")).unwrap()
    }
}

fn key(id: &str) -> JobKey {
    JobKey { topic: TopicName::new("t").unwrap(), id: JobId::new(id).unwrap() }
}

fn later(id: &str, body: &str) -> model::job::NewJob {
    new_job("t", id, body, Due::In(600 * SECOND))
}

fn body(store: &mut dyn Store, id: &str) -> Option<String> {
    store.get(&key(id)).unwrap().map(|view| view.body.as_str().to_owned())
}

fn add_many(client: &mut TcpClient, name: &str, jobs: usize, delay_ms: u64) {
    for from in (0..jobs).step_by(50) {
        let batch: Vec<_> =
            (from..jobs.min(from + 50)).map(|n| add("t", &format!("{name}-{n}"), delay_ms)).collect();
        client.send(&batch).unwrap();
        batch.iter().for_each(|_| assert_eq!(client.receive().unwrap()["code"], 1));
    }
}

/// Leases ready jobs of the topic `t`.
fn lease(store: &mut dyn Store, max: u32) -> Vec<store::LeasedJob> {
    let wanted = LeaseRequest {
        topic: key("0").topic,
        max,
        hold: 600 * SECOND,
        max_leased: None,
        is_own_ttr: false,
        max_attempts: 9,
    };
    store.lease(&[wanted], max as usize, None).unwrap().jobs
}

#[test]
fn a_node_is_added_and_another_emptied_while_the_daemon_runs() {
    let fleet = Fleet::start(2);
    let daemon = Daemon::start(&fleet.config(&[0]));
    daemon.wait_all_up(SLOTS);
    let mut client = daemon.client();
    add_many(&mut client, "long", 1000, 60_000);
    add_many(&mut client, "soon", 1000, 4_000);
    fleet.reload(&daemon, &[0, 1]);
    let output = fleet.does(&["move", "--add", "r1", "--dry-run"]);
    assert!(output.contains("nodes with jobs now: r0; afterwards: r0, r1"), "{output}");
    assert_eq!(fleet.jobs_on(1), 0, "a dry run does nothing");
    let output = fleet.does(&["move", "--add", "r1"]);
    assert!(output.contains("nodes with jobs: r0, r1"), "{output}");
    let moved = fleet.jobs_on(1);
    assert!(moved > 300, "{moved} of 2000");
    // The jobs are found, replaced and deleted on their new homes.
    for n in 0..100 {
        eventually(5 * SECOND, "an add after the move", || {
            (client.ask(&add("t", &format!("long-{n}"), 60_000)).unwrap()["code"] == 1).then_some(())
        });
        let delete = serde_json::json!({"cmd": "del", "topic": "t", "id": format!("long-{}", n + 100)});
        assert_eq!(client.ask(&delete).unwrap()["code"], 1, "{n}");
    }
    fleet.sink.wait_for(1000, 30 * SECOND);
    assert!(fleet.sink.deliveries().values().all(|calls| *calls == 1), "each once");
    eventually(10 * SECOND, "what is left", || (pending(&mut client, "t") == 900).then_some(()));
    assert_eq!(fleet.jobs_on(0) + fleet.jobs_on(1), 900);
    assert!(fleet.does(&["move"]).contains("nothing is to be done"));

    let output = fleet.does(&["move", "--empty", "r0"]);
    assert!(output.contains("r0 has no jobs any more: take it out of the configuration"), "{output}");
    assert!(output.contains("the registry will be moved from r0 to r1"), "{output}");
    assert_eq!(fleet.nodes[0].cli(&["KEYS", "*registry*"]).trim(), "");
    assert_eq!((fleet.jobs_on(0), fleet.jobs_on(1)), (0, 900));
    fleet.reload(&daemon, &[1]);
    add_many(&mut client, "after", 100, 100);
    fleet.sink.wait_for(1100, 30 * SECOND);
    let list = fleet.does(&["list"]);
    assert!(list.lines().any(|l| l.starts_with("r0") && l.contains("outside")), "{list}");
}

#[test]
fn an_interrupted_move_is_restarted_and_loses_no_jobs() {
    let fleet = Fleet::start(3);
    let mut store = fleet.store(&[0, 1, 2], 3);
    let ids: Vec<String> = (0..3000).map(|n| n.to_string()).collect();
    // The first set has three nodes. One node is emptied, comes back, and then the two other nodes are emptied.
    let jobs: Vec<_> = ids.iter().map(|id| later(id, id)).collect();
    assert!(store.add(&jobs).iter().all(Result::is_ok));
    let changes: [&[&str]; 3] =
        [&["move", "--empty", "r1"], &["move", "--add", "r1"], &["move", "--empty", "r2", "--empty", "r0"]];
    for (round, words) in changes.into_iter().enumerate() {
        for cut_ms in [20, 45, 70, 95, 120, 150] {
            let mut command = Command::new(env!("CARGO_BIN_EXE_dq"));
            command.arg("nodes").args(words).arg("--config").arg(fleet.dir.path().join("dq.toml"));
            let mut child = command
                .stdout(std::process::Stdio::null())
                .stderr(std::process::Stdio::null())
                .spawn()
                .unwrap();
            std::thread::sleep(std::time::Duration::from_millis(cut_ms));
            let _ = child.kill();
            child.wait().unwrap();
        }
        // The first command finishes an interrupted move. If the change had not begun, the second command makes it.
        fleet.does(&["move"]);
        fleet.does(words);
        eventually(5 * SECOND, "all of them", || (store.counts().unwrap()[0].delayed == 3000).then_some(()));
        for id in ids.iter().step_by(7) {
            assert_eq!(body(store.as_mut(), id).as_ref(), Some(id), "round {round}");
        }
    }
    assert_eq!((fleet.jobs_on(0), fleet.jobs_on(1), fleet.jobs_on(2)), (0, 3000, 0));
}

/// A leased job keeps its lease, and a waiting replacement still waits for the end of the lease.
#[test]
fn all_that_is_known_of_a_job_moves_with_it() {
    let fleet = Fleet::start(2);
    let mut store = fleet.store(&[0], 3);
    let mut both = fleet.store(&[0, 1], 4);
    let path = model::destination::Destination::from_path("/m/7").unwrap();
    let tags = model::tags::Tags::new(["shop:7", "a"]).unwrap();
    let headers = model::headers::Headers::default().with_destination(Some(path)).with_tags(tags);
    let ready = |id: &str| model::job::NewJob {
        headers: headers.clone(),
        ..new_job("t", id, "1", Due::In(std::time::Duration::ZERO))
    };
    let ids: Vec<String> = (0..60).map(|n| n.to_string()).collect();
    // Dead letters: three for each of ten ids.
    for _ in 0..3 {
        assert!(
            store.add(&ids[..10].iter().map(|id| ready(id)).collect::<Vec<_>>()).iter().all(Result::is_ok)
        );
        for job in lease(store.as_mut(), 60) {
            let bury =
                Settlement { key: job.key, token: job.token, outcome: Outcome::DeadLetter, attempt: None };
            assert_eq!(store.settle(&[bury]), [Ok(Settled::Done)]);
        }
    }
    let letters = |store: &mut dyn Store| {
        let page = store.list(&key("0").topic, State::Dead, None, 100).unwrap();
        let mut all: Vec<_> =
            page.jobs.into_iter().map(|v| (v.key.id, v.until_ms, v.due_ms, v.attempts)).collect();
        all.sort();
        all
    };
    let dead = letters(store.as_mut());
    assert_eq!(dead.len(), 30);
    // Leased jobs: some are replaced during the lease. One job is retried, with a log of attempts, and has headers and
    // a limit.
    assert!(store.add(&ids[10..].iter().map(|id| ready(id)).collect::<Vec<_>>()).iter().all(Result::is_ok));
    let mut leased = lease(store.as_mut(), 60);
    assert_eq!(leased.len(), 50);
    for job in leased.iter().step_by(5) {
        assert!(store.add(&[later(job.key.id.as_str(), "2")])[0].is_ok());
    }
    let states = |store: &mut dyn Store| -> BTreeMap<String, store::StoredJob> {
        ids.iter().map(|id| (id.clone(), store.get(&key(id)).unwrap().unwrap())).collect()
    };
    let before = states(store.as_mut());
    let records = |store: &mut dyn Store| -> Vec<Vec<model::record::JobRecord>> {
        ids.iter().map(|id| store.records(&key(id)).unwrap()).collect()
    };
    let ended = records(store.as_mut());
    // Each of ten ids has three dead letters, and ten jobs were replaced.
    assert_eq!(ended.iter().flatten().count(), 40);
    fleet.does(&["move", "--add", "r1"]);
    assert!(fleet.jobs_on(1) > 10);
    let mut after = states(both.as_mut());
    for (id, view) in after.iter_mut().filter(|(_, view)| view.state == model::job::State::Leased) {
        // The move copies the remaining time of a lease. So the lease ends later by the time that the copy takes.
        let (was, is) = (before[id].until_ms.unwrap(), view.until_ms.replace(before[id].until_ms.unwrap()));
        assert!((was..was + 20_000).contains(&is.unwrap()), "{id}: {was} {is:?}");
    }
    assert_eq!(after, before);
    assert_eq!(records(both.as_mut()), ended);
    let listed = both.list_records(&key("0").topic, None, 100).unwrap().records;
    assert_eq!(listed.len(), 20, "each id once");
    assert_eq!(letters(both.as_mut()), dead);
    // A caller with only one node in its configuration gets an error after the move. The error names the other node.
    let lanes = Lanes::new(&fleet.settings(&[0, 1], 4)).unwrap();
    let there = ids.iter().find(|id| lanes.lane_of(&key(id)) == 1).unwrap();
    let refused = store.get(&key(there)).unwrap_err().to_string();
    assert!(refused.contains("r1 is one of the nodes that have jobs"), "{refused}");
    let last = leased.pop().unwrap();
    let mut settle = |job: &store::LeasedJob, outcome| {
        let settlement =
            Settlement { key: job.key.clone(), token: job.token.clone(), outcome, attempt: None };
        both.settle(&[settlement]).remove(0)
    };
    for (n, job) in leased.iter().enumerate() {
        let expected = if n % 5 == 0 { Settled::Stale } else { Settled::Done };
        assert_eq!(settle(job, Outcome::Ack), Ok(expected), "{n}");
    }
    assert_eq!(settle(&last, Outcome::Retry(Due::In(600 * SECOND))), Ok(Settled::Done));
    let counts = &both.counts().unwrap()[0];
    assert_eq!((counts.delayed, counts.leased, counts.dead), (11, 0, 30));
    assert_eq!(
        both.letters(&key("0").topic, &[JobId::new("3").unwrap()], store::DeadLetterOperation::Count),
        Ok(3)
    );
    let pace = model::letters::RedrivePace { after: 600 * SECOND, every: std::time::Duration::ZERO };
    for expected in [10, 0] {
        let redriven = both.redrive(&key("0").topic, &store::DeadLetterSelection::All, 100, pace).unwrap();
        assert_eq!((redriven, letters(both.as_mut()).len()), (expected, 20));
    }
}

/// On all shards of a node, compares the sorted set of ready jobs with the order of the jobs that have a number as
/// their priority. Returns how many jobs have a number, and what is wrong.
fn numbered_on(node: &RedisServer) -> (usize, String) {
    let script = "local n, wrong = 0, '' for _, key in ipairs(redis.call('KEYS', '*:r:t')) do \
                  local order, seen = string.gsub(key, ':r:t$', ':q:t'), {} \
                  for _, member in ipairs(redis.call('ZRANGE', order, 0, -1)) do \
                  local id, due = string.sub(member, 16), string.format('%.0f', (struct.unpack('>I6', member))) \
                  if redis.call('ZSCORE', key, id) ~= due then wrong = wrong .. ' surplus ' .. id end \
                  seen[id] = true end \
                  for _, id in ipairs(redis.call('ZRANGE', key, '-inf', '(1000000000000000', 'BYSCORE')) do n = n + 1 \
                  if not seen[id] then wrong = wrong .. ' missing ' .. id end end end \
                  return n .. wrong";
    let output = node.cli(&["eval", script, "0"]);
    let (n, wrong) = output.trim().split_once(' ').unwrap_or((output.trim(), ""));
    (n.parse().unwrap_or_else(|_| panic!("{output}")), wrong.to_owned())
}

#[test]
fn numbers_and_their_order_move_with_the_jobs() {
    let fleet = Fleet::start(2);
    let (mut store, mut both) = (fleet.store(&[0], 3), fleet.store(&[0, 1], 4));
    let numbered = |n: u32| model::job::NewJob {
        priority: JobPriority::from_number(n * 37 % 50),
        ..new_job(
            "t",
            &n.to_string(),
            "1",
            Due::In(if n.is_multiple_of(4) { 600 * SECOND } else { std::time::Duration::ZERO }),
        )
    };
    let jobs: Vec<_> = (0..100).map(numbered).collect();
    assert!(store.add(&jobs).iter().all(Result::is_ok));
    let leased = lease(store.as_mut(), 15);
    assert_eq!(numbered_on(&fleet.nodes[0]), (60, String::new()));
    let views = |store: &mut dyn Store| -> Vec<store::StoredJob> {
        jobs.iter().map(|job| store.get(&job.key).unwrap().unwrap()).collect()
    };
    let before = views(store.as_mut());
    fleet.does(&["move", "--add", "r1"]);
    let mut after = views(both.as_mut());
    for (after, before) in after.iter_mut().zip(&before) {
        assert!(after.until_ms >= before.until_ms, "a lease ends later by the time of the copy");
        after.until_ms = before.until_ms;
    }
    assert_eq!(after, before);
    let [here, there] = [0, 1].map(|node| numbered_on(&fleet.nodes[node]));
    assert!(here.0 > 5 && there.0 > 5 && here.0 + there.0 == 60, "{here:?} {there:?}");
    assert_eq!((here.1.as_str(), there.1.as_str()), ("", ""));
    let priority = |id: &JobId| before.iter().find(|view| view.key.id == *id).unwrap().priority;
    let listed = both.list(&key("0").topic, State::Ready, None, 100).unwrap().jobs;
    assert!(listed.len() == 60 && listed.is_sorted_by_key(|view| view.priority));
    let rest = lease(both.as_mut(), 100);
    assert!(rest.len() == 60 && rest.is_sorted_by_key(|job| priority(&job.key.id)));
    // The leases have moved too. When a lease ends, its job still has its number.
    let back = |job: store::LeasedJob| Settlement {
        key: job.key,
        token: job.token,
        outcome: Outcome::HandBack,
        attempt: None,
    };
    let settlements: Vec<_> = leased.into_iter().map(back).collect();
    assert!(both.settle(&settlements).iter().all(|one| *one == Ok(Settled::Done)));
    let [here, there] = [0, 1].map(|node| numbered_on(&fleet.nodes[node]));
    assert_eq!((here.0 + there.0, here.1 + &there.1), (15, String::new()));
}

#[test]
fn a_lost_node_can_be_forgotten_and_its_jobs_adopted_later() {
    let mut fleet = Fleet::start(3);
    let mut store = fleet.store(&[0, 1, 2], 3);
    let ids: Vec<String> = (0..300).map(|n| n.to_string()).collect();
    assert!(store.add(&ids.iter().map(|id| later(id, "1")).collect::<Vec<_>>()).iter().all(Result::is_ok));
    let lanes = Lanes::new(&fleet.settings(&[0, 1, 2], 3)).unwrap();
    let on_2: HashSet<&String> = ids.iter().filter(|id| lanes.lane_of(&key(id)) == 2).collect();
    let (code, _, err) = fleet.dq(&["forget", "r2"]);
    assert!(code == Some(1) && err.contains("r2 answers and has"), "{err}");
    fleet.nodes[2].kill();
    let (code, _, err) = fleet.dq(&["move", "--empty", "r2"]);
    assert!(code == Some(1) && err.contains("r2") && err.contains("all nodes must answer"), "{err}");
    let (code, _, err) = fleet.dq(&["forget", "r2"]);
    assert!(code == Some(2) && err.contains("All jobs and dead letters that it had are lost"), "{err}");
    let output = fleet.does(&["forget", "r2", "--yes"]);
    assert!(output.contains("nodes with jobs: r0, r1"), "{output}");
    // Some ids of jobs on r2 are added again. The jobs of the other ids are gone.
    let (again, gone): (Vec<&&String>, Vec<&&String>) = on_2.iter().partition(|id| id.ends_with('1'));
    assert!(!again.is_empty() && !gone.is_empty());
    eventually(15 * SECOND, "adds by the new set", || {
        let added = store.add(&again.iter().map(|id| later(id, "2")).collect::<Vec<_>>());
        added.iter().all(Result::is_ok).then_some(())
    });
    fleet.nodes[2].start_again();
    // The node is back, but no process uses it.
    for id in &gone {
        assert_eq!(body(store.as_mut(), id), None);
    }
    let list = fleet.does(&["list"]);
    assert!(list.lines().any(|l| l.starts_with("r2") && l.contains("outside")), "{list}");
    let (code, _, err) = fleet.dq(&["move", "--add", "r2"]);
    assert!(code == Some(1) && err.contains("r2 has jobs already") && err.contains("--adopt r2"), "{err}");
    let (code, _, err) = fleet.dq(&["move", "--adopt", "r2"]);
    assert!(code == Some(2) && err.contains("would come back"), "{err}");
    fleet.does(&["move", "--adopt", "r2", "--yes"]);
    assert_eq!(fleet.jobs_on(2), 0);
    for id in &ids {
        let expected = if again.iter().any(|i| **i == id) { "2" } else { "1" };
        assert_eq!(body(store.as_mut(), id).as_deref(), Some(expected), "{id}");
    }
    fleet.does(&["move", "--add", "r2"]);
    assert!(fleet.jobs_on(2) > 50);
    eventually(5 * SECOND, "all of them", || (store.counts().ok()?[0].delayed == 300).then_some(()));
}

#[test]
fn a_process_that_has_not_followed_a_move_sees_no_older_node() {
    let fleet = Fleet::start(3);
    let [lanes, mover] = [3, 5].map(|pool| Lanes::new(&fleet.settings(&[0, 1, 2], pool)).unwrap());
    assert!(mover.nodes().iter().all(|node| !node.is_older));
    for (ask, part) in [("empty", "outside"), ("add", "home"), ("empty", "outside")] {
        lanes.nodes();
        let (names, none) = (vec!["r2".to_owned()], Vec::new());
        let (add, empty) = if ask == "add" { (names, none) } else { (none, names) };
        let ask = SetChangeRequest { add, empty, ..SetChangeRequest::default() };
        mover.redis().unwrap().move_jobs(&ask, |_| {}).unwrap().unwrap();
        // The states that this process shows may be up to a second old.
        let states = lanes.nodes();
        assert!(states.iter().all(|node| !node.is_older), "{states:?}");
        assert_eq!(states[2].part.word(), part);
    }
}

#[test]
fn the_alert_of_a_node_ends_when_it_is_forgotten() {
    let mut fleet = Fleet::start(2);
    let daemon = Daemon::start(&fleet.config(&[0, 1]));
    daemon.wait_all_up(SLOTS);
    let mut http = Http::unix(&daemon);
    let mut is_down = || http.get("/v1/alerts").is(200).to_string().contains("node_down");
    fleet.nodes[1].kill();
    eventually(20 * SECOND, "the alert", || is_down().then_some(()));
    fleet.does(&["forget", "r1", "--yes"]);
    eventually(5 * SECOND, "the end of the alert", || (!is_down()).then_some(()));
    // The configuration still names the node, which does not answer.
    let (code, list, _) = fleet.dq(&["list"]);
    assert!(list.lines().any(|line| line.starts_with("r1") && line.contains("outside")), "{list}");
    assert!(code == Some(0) && !list.contains("down"), "{code:?}: {list}");
}

/// The fixture has the data of two nodes under the previous release. There are jobs that were added on the other node
/// while their home was down, jobs that were on their way to their home, and jobs that had ended on the other node.
/// Dead letters are where they died.
#[test]
fn the_first_move_brings_jobs_of_the_old_release_to_their_homes() {
    let fixture: serde_json::Value =
        serde_json::from_str(include_str!("fixtures/two_nodes_before_sets.json")).unwrap();
    let nodes = [RedisServer::start(), RedisServer::start()];
    for (name, server) in ["a", "b"].into_iter().zip(&nodes) {
        let mut connection = redis::Client::open(server.url()).unwrap().get_connection().unwrap();
        for (at, dump) in fixture[name].as_object().unwrap() {
            let hex = dump.as_str().unwrap();
            let bytes: Vec<u8> =
                (0..hex.len()).step_by(2).map(|i| u8::from_str_radix(&hex[i..i + 2], 16).unwrap()).collect();
            let mut restore = redis::cmd("RESTORE");
            restore.arg(at).arg(0).arg(bytes).exec(&mut connection).unwrap();
        }
    }
    let config = format!(
        "[store]\nbackend = \"redis\"\nshards_per_node = 1\n[[store.node]]\nname = \"a\"\nurl = \"{}\"\n[[store.node]]\nname = \"b\"\nurl = \"{}\"\n",
        nodes[0].url(),
        nodes[1].url()
    );
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("dq.toml");
    std::fs::write(&file, format!("run_dir = \"{}\"\n{config}", dir.path().display())).unwrap();
    let settings = |pool| {
        let node = |n: usize| settings::NodeSettings::server(["a", "b"][n], nodes[n].url(), 1);
        let nodes = vec![node(0), node(1)];
        settings::StoreSettings::Redis(settings::RedisSettings::of_nodes("dq", SECOND, pool, nodes))
    };
    let error = store::open(&settings(2), Path::new("/nowhere")).err().unwrap().to_string();
    assert!(error.contains("run dq nodes move"), "{error}");
    let out = Command::new(env!("CARGO_BIN_EXE_dq")).args(["nodes", "move", "--config"]).arg(&file).output();
    let out = out.unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let mut store = store::open(&settings(3), Path::new("/nowhere")).unwrap();
    for (id, expected) in fixture["want"].as_object().unwrap() {
        let found = store.get(&key(id)).unwrap().filter(|view| view.state != State::Dead);
        let found = found.map(|view| view.body.as_str().trim_matches('"').to_owned());
        assert_eq!(found.as_deref(), expected.as_str(), "{id}");
    }
    let page = store.list(&key("x").topic, State::Dead, None, 100).unwrap();
    let mut dead: BTreeMap<String, Vec<(Option<i64>, String)>> = BTreeMap::new();
    for view in page.jobs {
        let body = view.body.as_str().trim_matches('"').to_owned();
        dead.entry(view.key.id.to_string()).or_default().push((view.until_ms, body));
    }
    for (id, bodies) in fixture["dead"].as_object().unwrap() {
        let mut found = dead.remove(id).unwrap();
        found.sort();
        let found: Vec<String> = found.into_iter().map(|(_, body)| body).collect();
        let expected: Vec<&str> = bodies.as_array().unwrap().iter().map(|b| b.as_str().unwrap()).collect();
        assert_eq!(found, expected, "{id}");
    }
    assert!(dead.is_empty());
    let live = fixture["want"].as_object().unwrap().values().filter(|body| !body.is_null()).count() as u64;
    let counts = &store.counts().unwrap()[0];
    assert_eq!((counts.delayed + counts.ready + counts.leased, counts.dead), (live, 4));
    for server in &nodes {
        let left = ["away", "stray", "put", "map", "drained"]
            .map(|what| server.cli(&["keys", &format!("*{what}*")]));
        assert!(left.iter().all(|keys| keys.trim().is_empty()), "{left:?}");
    }
}

#[test]
fn several_nodes_start_together_and_an_unnamed_one_is_reported() {
    let mut fleet = Fleet::start(2);
    fleet.nodes[1].kill();
    let mut store = fleet.store(&[0, 1], 3);
    let error = store.add(&[later("x", "1")]).remove(0).unwrap_err().to_string();
    assert!(error.contains("at the first start of several nodes all must answer"), "{error}");
    fleet.nodes[1].start_again();
    eventually(10 * SECOND, "an add", || store.add(&[later("x", "1")]).remove(0).ok());
    let error = store::open(&fleet.settings(&[0], 4), Path::new("/nowhere")).err().unwrap().to_string();
    assert!(
        error.contains("r1 is one of the nodes that have jobs, and the configuration does not name it"),
        "{error}"
    );
    // A node that lost its data is empty, and continues as one of the nodes.
    fleet.nodes[1].cli(&["flushall"]);
    let ids = (0..20).map(|n| later(&n.to_string(), "1")).collect::<Vec<_>>();
    assert!(store.add(&ids).iter().all(Result::is_ok));
}

/// The data of the node is older than the last move. It comes from a backup, or from a replica that lagged.
#[test]
fn a_node_with_older_data_is_not_used_until_a_move_checks_it() {
    let fleet = Fleet::start(2);
    let mut store = fleet.store(&[0, 1], 3);
    let ids: Vec<String> = (0..200).map(|n| n.to_string()).collect();
    fleet.does(&["move", "--empty", "r1"]);
    assert!(store.add(&ids.iter().map(|id| later(id, "1")).collect::<Vec<_>>()).iter().all(Result::is_ok));
    // This is a backup of the first node, before the second node was added.
    let keys = fleet.nodes[0].cli(&["keys", "*"]);
    let mut connection = redis::Client::open(fleet.nodes[0].url()).unwrap().get_connection().unwrap();
    let backup: Vec<(String, Vec<u8>)> = keys
        .lines()
        .map(|key| (key.to_owned(), redis::cmd("DUMP").arg(key).query(&mut connection).unwrap()))
        .collect();
    fleet.does(&["move", "--add", "r1"]);
    let moved = fleet.jobs_on(1);
    assert!(moved > 50);
    fleet.nodes[0].cli(&["flushall"]);
    for (key, bytes) in &backup {
        redis::cmd("RESTORE").arg(key).arg(0).arg(bytes).exec(&mut connection).unwrap();
    }
    assert_eq!(fleet.jobs_on(0), 200);
    let mut store = fleet.store(&[0, 1], 5);
    let lanes = Lanes::new(&fleet.settings(&[0, 1], 5)).unwrap();
    let here = ids.iter().find(|id| lanes.lane_of(&key(id)) == 0).unwrap();
    let error = store.get(&key(here)).unwrap_err();
    assert!(
        error.code() == "node_down"
            && error.to_string().contains("its data is older than that of the other nodes"),
        "{error}"
    );
    let list = fleet.dq(&["list"]).1;
    assert!(list.lines().any(|l| l.starts_with("r0") && l.contains("older")), "{list}");
    let output = fleet.does(&["move"]);
    assert!(output.contains(&format!("{moved} were dropped")), "{output}");
    assert_eq!((fleet.jobs_on(0), fleet.jobs_on(1)), (200 - moved, moved));
    assert_eq!(store.counts().unwrap()[0].delayed, 200);
    for id in &ids {
        assert_eq!(body(store.as_mut(), id).as_deref(), Some("1"), "{id}");
    }
}

#[test]
fn while_jobs_are_moved_nothing_else_is_done_with_them() {
    let fleet = Fleet::start(2);
    let mut store = fleet.store(&[0, 1], 3);
    let ready = new_job("t", "r", "1", Due::In(std::time::Duration::ZERO));
    let all: Vec<_> = (0..40).map(|n| later(&n.to_string(), "1")).chain([ready]).collect();
    assert!(store.add(&all).iter().all(Result::is_ok));
    let wanted = || LeaseRequest {
        topic: key("r").topic,
        max: 9,
        hold: 60 * SECOND,
        max_leased: None,
        is_own_ttr: false,
        max_attempts: 9,
    };
    let leased = store.lease(&[wanted()], 9, None).unwrap().jobs.remove(0);
    // This is the state that a mover leaves if it dies after it has set its fence.
    let set = fleet.nodes[0].cli(&["--raw", "get", "dq:{r0.0}:set"]);
    let number: u64 = set.split(' ').next().unwrap().parse().unwrap();
    let moving = format!("{} 00000000000000ff r0,r1 {number} r0", number + 1);
    for (node, shard) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
        fleet.nodes[node].cli(&["set", &format!("dq:{{r{node}.{shard}}}:set"), &moving]);
    }
    let code = |e: store::StoreError| e.code();
    assert_eq!(store.add(&[later("5", "2")]).remove(0).map_err(code), Err("nodes_moving"));
    assert_eq!(store.delete(&[key("5")]).remove(0).map_err(code), Err("nodes_moving"));
    assert_eq!(store.run(&key("5")).map_err(code), Err("nodes_moving"));
    assert_eq!(store.lease(&[wanted()], 9, None).map_err(code).map(drop), Err("nodes_moving"));
    assert_eq!(store.promote(9).map_err(code), Err("nodes_moving"));
    assert_eq!(store.expire(9).map_err(code), Err("nodes_moving"));
    assert_eq!(store.purge(&key("5").topic, State::Delayed, 9).map_err(code), Err("nodes_moving"));
    let ack = Settlement { key: leased.key, token: leased.token, outcome: Outcome::Ack, attempt: None };
    assert_eq!(store.settle(std::slice::from_ref(&ack)).remove(0).map_err(code), Err("nodes_moving"));
    // Operations that only read still work.
    assert_eq!(body(store.as_mut(), "5").as_deref(), Some("1"));
    assert_eq!(store.counts().unwrap()[0].delayed, 40);
    let output = fleet.does(&["move"]);
    assert!(output.contains("nodes with jobs: r0"), "{output}");
    let settled =
        eventually(5 * SECOND, "a settlement", || store.settle(std::slice::from_ref(&ack)).remove(0).ok());
    assert_eq!(settled, Settled::Done, "the lease has moved with its job, or stayed");
    let keep = model::job::NewJob { on_conflict: OnConflict::Keep, ..later("5", "2") };
    assert!(matches!(store.add(&[keep]).remove(0), Ok(store::Added::Kept { .. })));
    assert_eq!((fleet.jobs_on(0), fleet.jobs_on(1)), (40, 0));
}

#[test]
fn what_is_asked_of_nodes_and_cannot_be_is_told() {
    let mut fleet = Fleet::start(2);
    let daemon = Daemon::start(&fleet.config(&[0, 1]));
    let (code, _, err) = fleet.dq(&["move", "--empty", "r7"]);
    assert!(
        code == Some(3) && err.contains("the configuration names no node \"r7\"; it names r0, r1"),
        "{err}"
    );
    let (code, _, err) = fleet.dq(&["move", "--empty", "r0", "--empty", "r1"]);
    assert!(code == Some(1) && err.contains("no node left"), "{err}");
    // A node keeps the number of shards that it had at first.
    let other = fleet.config(&[0, 1]).replace("[store]\n", "[store]\nshards_per_node = 4\n");
    Daemon::write_config(daemon.dir.path(), daemon.port, daemon.http, &other);
    daemon.signal(Signal::SIGHUP);
    eventually(10 * SECOND, "a refusal", || {
        daemon.log().contains("shards of node r0 cannot be changed").then_some(())
    });
    Daemon::write_config(daemon.dir.path(), daemon.port, daemon.http, &fleet.config(&[0, 1]));
    fleet.nodes[1].kill();
    let (code, out, _) = fleet.dq(&["list"]);
    let why = |line: &str| line.starts_with("r1") && line.contains("down") && line.contains("refused");
    assert!(code == Some(1) && out.lines().any(why), "{out}");
    // If no node answers, it is not known which nodes have jobs.
    let dead = tempfile::tempdir().unwrap();
    let nobody = format!("redis://127.0.0.1:{}", free_port());
    let text = format!("[store]\nbackend = \"redis\"\n[[store.node]]\nname = \"r0\"\nurl = \"{nobody}\"\n");
    std::fs::write(dead.path().join("dq.toml"), text).unwrap();
    let mut list = Command::new(env!("CARGO_BIN_EXE_dq"));
    let out = list.args(["nodes", "list", "--config"]).arg(dead.path().join("dq.toml")).output().unwrap();
    let shown = String::from_utf8(out.stdout).unwrap();
    assert!(
        shown.contains("r0    down ") && shown.contains("not known yet which nodes have jobs"),
        "{shown}"
    );
    assert_eq!(out.status.code(), Some(1), "{shown}");
    let embedded = Daemon::start("");
    if !support::on_redis() {
        let out = Command::new(env!("CARGO_BIN_EXE_dq"))
            .args(["nodes", "list", "--config"])
            .arg(embedded.dir.path().join("dq.toml"))
            .output()
            .unwrap();
        let err = String::from_utf8(out.stderr).unwrap();
        assert!(out.status.code() == Some(1) && err.contains("has no nodes"), "{err}");
    }
}
