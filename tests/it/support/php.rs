//! The data of the PHP daemon in its Redis, what this daemon does there while it runs, and the command that imports its
//! jobs.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use super::redis::RedisServer;
use super::{SECOND, free_port};
use model::job::{State, TopicName};
use model::settings;
use redis::Connection;
use serde_json::Value;
use store::{Store, StoredJob};

/// A Redis of the PHP daemon.
pub struct Php {
    pub server: RedisServer,
    connection: Mutex<Connection>,
}

/// Computes the checksum by which PHP chooses a bucket and a node.
pub fn crc32(text: &str) -> u32 {
    let step = |crc: u32, _| if crc & 1 == 1 { crc >> 1 ^ 0xedb8_8320 } else { crc >> 1 };
    let eat = |crc: u32, byte: u8| (0..8).fold(crc ^ u32::from(byte), step);
    !text.bytes().fold(!0, eat)
}

/// Returns the bucket of a job: `crc32(topic) % buckets`.
pub fn bucket_of(name: &str, buckets: u32) -> String {
    format!("dq_bucket_{}", crc32(name.split(':').next().unwrap()) % buckets)
}

/// Returns the bucket of a job when the PHP daemon has its default of two buckets.
pub fn bucket(name: &str) -> String {
    bucket_of(name, 2)
}

/// Returns one topic for each bucket, in the order of the buckets.
pub fn topics_of_all_buckets(buckets: u32) -> Vec<String> {
    let of = |bucket: u32| {
        let mut names = (0..).map(|n| format!("t{n}"));
        names.find(|name| crc32(name) % buckets == bucket).unwrap()
    };
    (0..buckets).map(of).collect()
}

/// Opens a connection with a name. The connections of the PHP daemon have no name.
pub fn connection(server: &RedisServer) -> Connection {
    let mut connection = nameless(server);
    redis::cmd("CLIENT").arg("SETNAME").arg("test").exec(&mut connection).unwrap();
    connection
}

pub fn nameless(server: &RedisServer) -> Connection {
    redis::Client::open(server.url()).unwrap().get_connection().unwrap()
}

/// Returns all keys and their dumps.
pub fn all(server: &RedisServer) -> BTreeMap<String, Vec<u8>> {
    let mut connection = connection(server);
    let keys: Vec<String> = redis::cmd("KEYS").arg("*").query(&mut connection).unwrap();
    let mut dump = |key: &str| redis::cmd("DUMP").arg(key).query(&mut connection).unwrap();
    keys.into_iter().map(|key| (key.clone(), dump(&key))).collect()
}

impl Php {
    pub fn start() -> Php {
        let server = RedisServer::start();
        let connection = Mutex::new(connection(&server));
        Php { server, connection }
    }

    pub fn run<T: redis::FromRedisValue>(&self, arguments: &[&str]) -> T {
        let mut cmd = redis::cmd(arguments[0]);
        cmd.arg(&arguments[1..]).query(&mut self.connection.lock().unwrap()).unwrap()
    }

    /// Adds a job that waits until `due`, in Unix seconds.
    pub fn waits(&self, name: &str, body: &str, due: i64) {
        self.run::<()>(&["HSET", "dq_job_info", name, body]);
        self.run::<()>(&["ZADD", &bucket(name), &due.to_string(), name]);
    }

    /// Adds waiting jobs of the topic `orders`. Their ids are 0, 1, 2 …
    pub fn many(&self, jobs: u64) {
        let mut pipe = redis::pipe();
        for n in 0..jobs {
            let name = format!("orders:{n}");
            pipe.hset("dq_job_info", &name, format!("{{\"n\":{n}}}")).ignore();
            pipe.zadd(bucket(&name), &name, YEAR_2033 + n as i64).ignore();
        }
        pipe.exec(&mut self.connection.lock().unwrap()).unwrap();
    }

    /// Starts the server again after it was killed.
    pub fn start_again(&mut self) {
        self.server.start_again();
        self.connection = Mutex::new(connection(&self.server));
    }

    /// Adds a job to one of the ready lists.
    pub fn is_ready(&self, name: &str, body: &str, list: u8) {
        self.run::<()>(&["HSET", "dq_job_info", name, body]);
        self.run::<()>(&["RPUSH", &format!("dq_{list}ready_queue"), name]);
    }

    pub fn url(&self) -> String {
        self.server.url()
    }

    /// Makes the server listen on a port of this host as well.
    pub fn listen(&self) -> u16 {
        let port = free_port();
        self.run::<()>(&["CONFIG", "SET", "port", &port.to_string()]);
        port
    }

    /// Runs many commands at once.
    pub fn run_all(&self, pipe: &redis::Pipeline) {
        pipe.exec(&mut self.connection.lock().unwrap()).unwrap();
    }

    /// Returns all keys and their dumps, without the key in which dq notes what it has imported.
    pub fn all(&self) -> BTreeMap<String, Vec<u8>> {
        let mut all = all(&self.server);
        all.remove("dq_imported");
        all
    }

    pub fn noted(&self) -> usize {
        self.run::<usize>(&["HLEN", "dq_imported"]).saturating_sub(1)
    }
}

/// A folder with a configuration and its store, but without a daemon.
pub struct Target {
    pub dir: tempfile::TempDir,
    pub nodes: Vec<RedisServer>,
}

impl Target {
    pub fn embedded() -> Target {
        Target::with(Vec::new())
    }

    pub fn redis() -> Target {
        Target::with(vec![RedisServer::start(), RedisServer::start()])
    }

    pub fn with(nodes: Vec<RedisServer>) -> Target {
        let target = Target { dir: tempfile::tempdir().unwrap(), nodes };
        let mut text = String::new();
        if !target.nodes.is_empty() {
            text += "[store]\nbackend = \"redis\"\ntimeout = \"1s\"\n";
        }
        for (n, node) in target.nodes.iter().enumerate() {
            text += &format!("[[store.node]]\nname = \"r{n}\"\nurl = \"{}\"\n", node.url());
        }
        text += "[[topic]]\nname = \"orders\"\ncallback = \"http://127.0.0.1:9/\"\n";
        std::fs::write(target.config(), text).unwrap();
        if !target.nodes.is_empty() {
            // After this command, the nodes are no longer new to dq.
            let mut list = Command::new(env!("CARGO_BIN_EXE_dq"));
            list.args(["nodes", "list", "--config"]).arg(target.config());
            assert!(list.output().unwrap().status.success());
        }
        target
    }

    pub fn config(&self) -> PathBuf {
        self.dir.path().join("dq.toml")
    }

    /// Adds keys before the first section.
    pub fn configure(&self, more: &str) {
        let text = std::fs::read_to_string(self.config()).unwrap();
        std::fs::write(self.config(), format!("{more}\n{text}")).unwrap();
    }

    /// Adds a section.
    pub fn add_section(&self, section: &str) {
        let text = std::fs::read_to_string(self.config()).unwrap();
        std::fs::write(self.config(), format!("{text}\n{section}")).unwrap();
    }

    /// Whether a store has been created.
    pub fn has_begun(&self) -> bool {
        self.dir.path().join("var").exists()
    }

    pub fn store(&self) -> Box<dyn Store> {
        let store = match self.nodes.len() {
            0 => settings::StoreSettings::Embedded { path: self.dir.path().join("var/dq.db"), min_free: 0 },
            _ => {
                let nodes = self.nodes.iter().enumerate();
                let node = |(n, s): (usize, &RedisServer)| {
                    settings::NodeSettings::server(format!("r{n}"), s.url(), 2)
                };
                let (prefix, nodes) = ("dq".to_owned(), nodes.map(node).collect());
                settings::StoreSettings::Redis(settings::RedisSettings::of_nodes(prefix, SECOND, 2, nodes))
            }
        };
        store::open(&store, &self.dir.path().join("var/run")).unwrap()
    }

    /// Returns the live jobs by id.
    pub fn jobs(&self, topic: &str) -> BTreeMap<String, StoredJob> {
        jobs(self.store().as_mut(), topic)
    }

    pub fn import(&self, php: &Php, more: &[&str]) -> CommandOutput {
        import(&self.config(), &[&["--from", &php.url(), "--json"], more].concat())
    }
}

pub fn jobs(store: &mut dyn Store, topic: &str) -> BTreeMap<String, StoredJob> {
    let topic = TopicName::new(topic).unwrap();
    let mut jobs = BTreeMap::new();
    for state in [State::Delayed, State::Ready] {
        let mut cursor = None;
        loop {
            let page = store.list(&topic, state, cursor.as_deref(), 500).unwrap();
            for job in page.jobs {
                let twice = jobs.insert(job.key.id.as_str().to_owned(), job);
                assert!(twice.is_none(), "{twice:?}");
            }
            cursor = page.next;
            if cursor.is_none() {
                break;
            }
        }
    }
    jobs
}

/// The output and the exit code of the command.
pub struct CommandOutput {
    pub code: i32,
    pub out: String,
    pub err: String,
}

impl CommandOutput {
    pub fn of(out: Output) -> CommandOutput {
        let text = |bytes| String::from_utf8(bytes).unwrap();
        CommandOutput { code: out.status.code().unwrap(), out: text(out.stdout), err: text(out.stderr) }
    }

    pub fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|e| panic!("{e}: {}{}", self.out, self.err))
    }

    /// Checks that the output has these counts, and that all its other counts are 0.
    #[track_caller]
    pub fn counts(&self, counts: &[(&str, u64)]) {
        let json = self.json();
        let numbers = json.as_object().unwrap().iter().filter_map(|(k, v)| Some((k.as_str(), v.as_u64()?)));
        let found: BTreeMap<&str, u64> = numbers.filter(|(_, n)| *n > 0).collect();
        assert_eq!(found, counts.iter().copied().collect(), "{}", self.out);
    }
}

pub fn command(config: &Path, more: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_dq"));
    command.args(["import", "php-dq", "--config"]).arg(config).args(more).env_remove("RUST_BACKTRACE");
    command
}

pub fn import(config: &Path, more: &[&str]) -> CommandOutput {
    CommandOutput::of(command(config, more).output().unwrap())
}

pub const YEAR_2033: i64 = 2_000_000_000;

/// Does on Redis what a PHP daemon does. A timer for each bucket reads the first name ten times a second. A consumer
/// takes jobs from the lists once a second. All of them end when this value is dropped.
pub struct PhpDaemon {
    ends: Arc<AtomicBool>,
    processes: Vec<JoinHandle<()>>,
}

impl PhpDaemon {
    pub fn start(php: &Php, buckets: u32) -> PhpDaemon {
        let ends = Arc::new(AtomicBool::new(false));
        let timer = |n: u32| {
            let mut command = redis::cmd("ZRANGE");
            command.arg(format!("dq_bucket_{n}")).arg(0).arg(0).arg("WITHSCORES");
            PhpDaemon::process(php, &ends, vec![command], 100)
        };
        let pop = |n: u32| redis::cmd("LPOP").arg(format!("dq_{n}ready_queue")).to_owned();
        let mut processes: Vec<_> = (0..buckets).map(timer).collect();
        processes.push(PhpDaemon::process(php, &ends, (1..=3).map(pop).collect(), 1000));
        PhpDaemon { ends, processes }
    }

    fn process(
        php: &Php,
        ends: &Arc<AtomicBool>,
        commands: Vec<redis::Cmd>,
        pause_ms: u64,
    ) -> JoinHandle<()> {
        let (mut connection, ends) = (nameless(&php.server), Arc::clone(ends));
        commands.iter().for_each(|command| command.exec(&mut connection).unwrap());
        std::thread::spawn(move || {
            while !ends.load(Ordering::Relaxed) {
                commands.iter().for_each(|command| command.exec(&mut connection).unwrap());
                std::thread::park_timeout(Duration::from_millis(pause_ms));
            }
        })
    }
}

impl Drop for PhpDaemon {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        for process in self.processes.drain(..) {
            process.thread().unpark();
            let _ = process.join();
        }
    }
}
