//! The registry on the nodes of the store: where it is, how it moves, and what happens if its node is lost.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use model::audit::AuditEntry;
use model::job::TopicName;
use model::metrics::{MetricSubject, PageSums, Sums};
use model::settings::{NodeSettings, RedisSettings, RegistrySettings};
use model::topic::Topic;
use registry::{Expected, RedisRegistry, Registry, RegistryError, open};

use crate::support::redis::RedisServer;
use crate::support::{Daemon, Sink, add, eventually};

const SECOND: Duration = Duration::from_secs(1);

/// Nodes with the names a, b, c.
struct Nodes {
    servers: Vec<RedisServer>,
    dir: tempfile::TempDir,
}

impl Nodes {
    fn start(count: usize) -> Nodes {
        Nodes {
            servers: (0..count).map(|_| RedisServer::start()).collect(),
            dir: tempfile::tempdir().unwrap(),
        }
    }

    fn name(node: usize) -> &'static str {
        ["a", "b", "c"][node]
    }

    /// Returns the settings of a process. Processes with different values of `pool` share nothing.
    fn settings_of(&self, nodes: &[usize], pool: u32) -> RedisSettings {
        let node = |n: &usize| NodeSettings::server(Nodes::name(*n), self.servers[*n].url(), 2);
        RedisSettings::of_nodes("dq", SECOND, pool, nodes.iter().map(node).collect())
    }

    fn settings(&self, pool: u32) -> RedisSettings {
        self.settings_of(&(0..self.servers.len()).collect::<Vec<_>>(), pool)
    }

    fn open(&self, pool: u32) -> Result<Box<dyn Registry>, RegistryError> {
        open(&RegistrySettings::Store(self.settings(pool)))
    }

    fn node_of(&self, pool: u32) -> Result<String, String> {
        let found = RedisRegistry::find(&self.settings(pool)).map_err(|e| e.to_string())?;
        Ok(found.map_or("none".to_owned(), |registry| registry.node().to_owned()))
    }

    /// Returns the configuration of a daemon on these nodes.
    fn config(&self) -> String {
        let section = |(n, server): (usize, &RedisServer)| {
            format!("[[store.node]]\nname = \"{}\"\nurl = \"{}\"\n", Nodes::name(n), server.url())
        };
        let sections: String = self.servers.iter().enumerate().map(section).collect();
        format!(
            "[store]\nbackend = \"redis\"\ntimeout = \"1s\"\nspool = 0\n{sections}[registry]\nurl = \"store\"\n"
        )
    }

    fn write_config(&self) {
        let run_dir = self.dir.path().join("run");
        std::fs::create_dir_all(&run_dir).unwrap();
        let text = format!("run_dir = {:?}\n{}", run_dir.display().to_string(), self.config());
        std::fs::write(self.dir.path().join("dq.toml"), text).unwrap();
    }
}

/// Runs `dq` with a configuration. Returns its exit code, and what it printed.
fn dq(folder: &Path, words: &[&str]) -> (Option<i32>, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_dq"));
    command.args(words).arg("--config").arg(folder.join("dq.toml"));
    let out = command.stdin(std::process::Stdio::null()).output().unwrap();
    let text = [out.stdout, out.stderr].concat();
    (out.status.code(), String::from_utf8(text).unwrap())
}

fn does(folder: &Path, words: &[&str]) -> String {
    let (code, text) = dq(folder, words);
    assert_eq!(code, Some(0), "dq {words:?}: {text}");
    text
}

fn refuses(folder: &Path, words: &[&str], why: &str) {
    let (code, text) = dq(folder, words);
    assert!(code == Some(1) && text.contains(why), "dq {words:?}: {code:?} {text}");
}

fn topic(name: &str) -> Topic {
    Topic::new(TopicName::new(name).unwrap(), "http://127.0.0.1:9/hook")
}

fn names(registry: &mut dyn Registry) -> Vec<String> {
    registry.list().unwrap().topics.iter().map(|one| one.topic.name.to_string()).collect()
}

fn entry(target: &str) -> AuditEntry {
    let (who, action) = ("root".to_owned(), "topic.pause".to_owned());
    AuditEntry { at_ms: 1, who, action, target: target.to_owned(), detail: String::new(), jobs: None }
}

fn error(result: Result<Box<dyn Registry>, RegistryError>) -> String {
    result.expect_err("it fails").to_string()
}

#[test]
fn all_processes_find_the_registry_on_one_node() {
    let mut nodes = Nodes::start(2);
    nodes.servers[0].kill();
    assert!(error(nodes.open(1)).contains('a'), "all must answer at the first start");
    nodes.servers[0].start_again();
    // Several processes that begin at the same time create one registry together.
    std::thread::scope(|scope| {
        let begin = |pool| {
            let nodes = &nodes;
            scope.spawn(move || nodes.open(pool).unwrap().put(&topic(&format!("t{pool}")), Expected::Any))
        };
        let all: Vec<_> = (2..6).map(begin).collect();
        for one in all {
            one.join().unwrap().unwrap();
        }
    });
    let mut registry = nodes.open(6).unwrap();
    assert_eq!(names(registry.as_mut()), ["t2", "t3", "t4", "t5"]);
    assert_eq!(nodes.node_of(7).unwrap(), "a");
    // The other node may be down.
    nodes.servers[1].kill();
    registry.put(&topic("u"), Expected::Absent).unwrap();
    assert_eq!(nodes.node_of(8).unwrap(), "a");
    nodes.servers[1].start_again();
    // If the node of the registry is down, no process creates another registry.
    nodes.servers[0].kill();
    assert!(matches!(
        registry.put(&topic("v"), Expected::Any),
        Err(RegistryError::Away(_) | RegistryError::Unknown(_))
    ));
    assert!(nodes.open(9).is_err());
    nodes.servers[0].start_again();
    assert_eq!(nodes.node_of(10).unwrap(), "a");
}

#[test]
fn a_registry_that_was_lost_is_not_made_empty() {
    let nodes = Nodes::start(2);
    nodes.open(1).unwrap().put(&topic("t"), Expected::Any).unwrap();
    assert_eq!(nodes.node_of(2).unwrap(), "a");
    // The server comes back without data. The other node still knows that the registry was on that server.
    nodes.servers[0].cli(&["FLUSHALL"]);
    let why = error(nodes.open(3));
    assert!(
        why.contains("on node a, and that node has lost it") && why.contains("dq registry rebuild"),
        "{why}"
    );
    // A configuration without the node of the registry is refused as well.
    let alone = RegistrySettings::Store(nodes.settings_of(&[1], 4));
    let why = error(open(&alone));
    assert!(why.contains("does not name that node"), "{why}");
}

#[test]
fn a_registry_moves_with_all_that_it_has() {
    let nodes = Nodes::start(2);
    let mut registry = nodes.open(1).unwrap();
    registry.put(&topic("t"), Expected::Any).unwrap();
    registry.note(&entry("t")).unwrap();
    let subject = MetricSubject::Topic("t".to_owned());
    let sums = [(subject, Sums { written: 3, ..Sums::default() })].into_iter().collect();
    registry.carry("2026-11-26", &[PageSums { page: 7, sums }]).unwrap();
    let seen = |pool| {
        let mut registry = nodes.open(pool).unwrap();
        let all = (
            registry.list().unwrap(),
            registry.audit(None, 9).unwrap(),
            registry.statistics("2026").unwrap(),
        );
        format!("{all:?}")
    };
    let before = seen(2);

    nodes.write_config();
    let folder = nodes.dir.path();
    refuses(folder, &["nodes", "forget", "a"], "node a has the registry: dq registry move");
    assert_eq!(does(folder, &["registry", "move", "b"]), "the registry was on node a; it is on node b\n");
    assert_eq!((seen(3), nodes.node_of(3).unwrap().as_str()), (before.clone(), "b"));
    assert_eq!(nodes.servers[0].cli(&["KEYS", "*registry*"]).trim(), "");
    // A process that had the registry open notices the move, and opens the registry again.
    assert!(registry.revision().unwrap_err().to_string().contains("not on node a any more"));
    assert!(registry.put(&topic("u"), Expected::Any).unwrap_err().to_string().contains("not on node a"));
    does(folder, &["registry", "move", "b"]);
    assert_eq!(seen(4), before);
    assert_eq!(does(folder, &["registry", "show"]), "node b: 1 topic, 0 tokens, 0 accounts\n");
    does(folder, &["nodes", "move", "--empty", "a"]);
}

#[test]
fn a_move_that_was_killed_is_finished_or_taken_back() {
    let nodes = Nodes::start(2);
    let (a, b) = ("dq:{a.0}:registry", "dq:{b.0}:registry");
    let mut registry = nodes.open(1).unwrap();
    registry.put(&topic("t"), Expected::Any).unwrap();
    nodes.write_config();
    let folder = nodes.dir.path();

    // The move was killed after step 1.
    nodes.servers[0].cli(&["HSET", a, "moves_to", "b"]);
    let why = registry.put(&topic("u"), Expected::Any).unwrap_err().to_string();
    assert!(why.contains("being moved from node a to node b: dq registry move b"), "{why}");
    assert_eq!(
        (names(nodes.open(2).unwrap().as_mut()), nodes.node_of(2).unwrap().as_str()),
        (vec!["t".into()], "a")
    );
    does(folder, &["registry", "move", "a"]);
    registry.put(&topic("u"), Expected::Any).unwrap();

    // The move was killed after step 2, and the other node still has an older table.
    nodes.servers[0].cli(&["HSET", a, "moves_to", "b"]);
    nodes.servers[1].cli(&["HSET", &format!("{b}:log"), "audit_last", "99"]);
    does(folder, &["registry", "move", "b"]);
    assert_eq!(
        (names(nodes.open(3).unwrap().as_mut()), nodes.node_of(3).unwrap().as_str()),
        (vec!["t".into(), "u".into()], "b")
    );
    assert_eq!(nodes.open(3).unwrap().audit(None, 9).unwrap(), []);

    // The move was killed after step 3. The old data on the first node is not read, and is removed.
    nodes.servers[0].cli(&["HSET", a, "version", "1", "moves_to", "b", "topic:old", "1 {}"]);
    assert_eq!(names(nodes.open(4).unwrap().as_mut()), ["t", "u"]);
    does(folder, &["registry", "move", "b"]);
    assert_eq!(nodes.servers[0].cli(&["EXISTS", a]).trim(), "0");

    // If there are two registries, none of them is used.
    nodes.servers[0].cli(&["HSET", a, "version", "1"]);
    let why = error(nodes.open(5));
    assert!(why.contains(a) && why.contains(b), "{why}");
}

/// The first run has written the tables, and may write the table `registry` at any moment. So at no moment may fields
/// be missing because of a second run.
#[test]
fn a_second_run_of_a_move_takes_nothing_from_the_first() {
    const FIELDS: usize = 100_000;
    let nodes = Nodes::start(2);
    nodes.open(1).unwrap().put(&topic("t"), Expected::Any).unwrap();
    let fill = format!("for n = 1, {FIELDS} do redis.call('HSET', KEYS[1], n, n) end");
    let key = |node: usize| format!("dq:{{{}.0}}:registry:audit", Nodes::name(node));
    for node in 0..2 {
        nodes.servers[node].cli(&["EVAL", &fill, "1", &key(node)]);
    }
    nodes.servers[1].cli(&["HSET", &key(1), "old", "left by an earlier move"]);
    let registry = RedisRegistry::find(&nodes.settings(2)).unwrap().unwrap();
    std::thread::scope(|scope| {
        let second = scope.spawn(move || registry.move_to("b").map(drop));
        while !second.is_finished() {
            let fields: usize = nodes.servers[1].cli(&["HLEN", &key(1)]).trim().parse().unwrap();
            assert!(fields >= FIELDS, "{fields} are left");
        }
        second.join().unwrap().unwrap();
    });
    assert_eq!(nodes.servers[1].cli(&["HLEN", &key(1)]).trim(), FIELDS.to_string());
    assert_eq!(names(nodes.open(3).unwrap().as_mut()), ["t"]);
}

#[test]
fn daemons_share_a_registry_and_it_is_rebuilt_after_a_loss() {
    let sink = Sink::start();
    let nodes = Nodes::start(2);
    let (mut one, other) = (Daemon::start(&nodes.config()), Daemon::start(&nodes.config()));
    does(one.dir.path(), &["topics", "set", "t", "--callback", &sink.url()]);
    for (n, daemon) in [&one, &other].into_iter().enumerate() {
        eventually(20 * SECOND, "the topic on both hosts", || {
            (daemon.client().ask(&add("t", &n.to_string(), 0)).unwrap()["code"] == 1).then_some(())
        });
    }
    sink.wait_for(2, 20 * SECOND);

    // The node of the registry loses its data. Both hosts continue with the topics that they know.
    nodes.servers[0].cli(&["FLUSHALL"]);
    eventually(20 * SECOND, "the alert", || one.log().contains("registry rebuild").then_some(()));
    one.stop();
    eventually(20 * SECOND, "a delivery without the registry", || {
        other.client().ask(&add("t", "again", 0)).ok().filter(|answer| answer["code"] == 1)
    });
    sink.wait_for(3, 20 * SECOND);

    refuses(one.dir.path(), &["registry", "show"], "has lost it");
    let told = does(other.dir.path(), &["registry", "rebuild", "--node", "b", "--yes"]);
    assert!(told.starts_with("node b has a registry with 1 topic, 0 tokens and"), "{told}");
    refuses(
        other.dir.path(),
        &["registry", "rebuild", "--yes"],
        "node b has a registry: nothing was written",
    );
    eventually(20 * SECOND, "a change of the new registry", || {
        let set = ["topics", "set", "t", "--callback", &sink.url(), "--title", "new"];
        (dq(other.dir.path(), &set).0 == Some(0)).then_some(())
    });
    assert_eq!(names(nodes.open(9).unwrap().as_mut()), ["t"]);
}
