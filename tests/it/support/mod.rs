//! The tests of the running daemon share these parts: a daemon for each test, a webhook sink, and waits with a
//! deadline.
#![allow(dead_code, missing_docs)]

use std::collections::{HashMap, HashSet};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Mutex};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use cli::{CallbackReceiver, HandlerAnswer, ReceivedRequest, TcpClient};
use model::job::{Body, Due, JobId, JobKey, NewJob, TopicName};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use protocol::dq::Framing;
use serde_json::{Value, json};
use store::Added;

pub mod browser;
pub mod certificates;
pub mod clock;
pub mod disk;
pub mod http;
pub mod mariadb;
pub mod php;
pub mod preload;
pub mod proxy;
pub mod raw;
pub mod redis;
pub mod smtp;
pub mod steps;
pub mod strace;

pub const SECOND: Duration = Duration::from_secs(1);

/// Creates a folder for files that must not wait for a busy disk. The folder is in memory if possible.
pub fn in_memory() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
}

/// Returns a new job. When it is added, it replaces a job with the same id.
pub fn new_job(topic: &str, id: &str, body: &str, due: Due) -> NewJob {
    let key = JobKey { topic: TopicName::new(topic).unwrap(), id: JobId::new(id).unwrap() };
    NewJob::new(key, Body::parse(body).unwrap(), due)
}

/// Returns the outcomes of added jobs, without their due times.
pub fn outcomes(added: &[Added]) -> Vec<&'static str> {
    let word = |added: &Added| match added {
        Added::New { .. } => "new",
        Added::Replaced { .. } => "replaced",
        Added::Kept { .. } => "kept",
        Added::Rejected => "rejected",
        Added::Spooled { .. } => "spooled",
    };
    added.iter().map(word).collect()
}

/// Returns the answer to an add without the due time. Checks first that the answer has the due time twice: as text and
/// in Unix milliseconds.
pub fn without_due(mut answer: Value) -> Value {
    let fields = answer.as_object_mut().unwrap();
    let (due, due_ms) = (fields.remove("due").unwrap(), fields.remove("due_ms").unwrap());
    let due: jiff::Timestamp = due.as_str().unwrap().parse().unwrap();
    assert_eq!(Some(due.as_millisecond()), due_ms.as_i64());
    answer
}

/// Calls `ask` again and again until it returns an answer. Fails when the deadline has passed.
pub fn eventually<T>(deadline: Duration, what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    let until = Instant::now() + deadline;
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(Instant::now() < until, "not within {deadline:?}: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

pub fn now_ms() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as i64
}

/// Returns a port that nobody uses, below the ports that the system gives to outgoing connections.
pub fn free_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let base = 10_000 + (std::process::id() % 180) as u16 * 100;
    for _ in 0..1000 {
        let port = base + NEXT.fetch_add(1, Ordering::Relaxed) % 100;
        if TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            return port;
        }
    }
    panic!("no port is free");
}

/// A receiver that records its calls.
pub struct Sink {
    pub address: SocketAddr,
    calls: Arc<Mutex<Vec<ReceivedRequest>>>,
    accepted: Arc<Mutex<HashSet<String>>>,
}

impl Sink {
    /// Starts a sink that accepts everything.
    pub fn start() -> Sink {
        Sink::answering(|_| HandlerAnswer::new(200, "ok"))
    }

    pub fn answering(answer: impl Fn(&ReceivedRequest) -> HandlerAnswer + Send + Sync + 'static) -> Sink {
        let calls: Arc<Mutex<Vec<ReceivedRequest>>> = Arc::default();
        let accepted: Arc<Mutex<HashSet<String>>> = Arc::default();
        let (kept, done) = (Arc::clone(&calls), Arc::clone(&accepted));
        let handler = move |call: ReceivedRequest| {
            let (answer, id, done) = (answer(&call), call.header("dq-job-id").to_owned(), Arc::clone(&done));
            kept.lock().unwrap().push(call);
            let then = move || {
                done.lock().unwrap().insert(id.clone());
            };
            HandlerAnswer { then: Some(Arc::new(then)), ..answer }
        };
        let receiver = CallbackReceiver::start((Ipv4Addr::LOCALHOST, 0).into(), Arc::new(handler)).unwrap();
        Sink { address: receiver.address, calls, accepted }
    }

    pub fn url(&self) -> String {
        format!("http://{}/hook", self.address)
    }

    pub fn calls(&self) -> Vec<ReceivedRequest> {
        self.calls.lock().unwrap().clone()
    }

    /// Returns how many jobs were answered while the caller was still connected.
    pub fn accepted(&self) -> usize {
        self.accepted.lock().unwrap().len()
    }

    pub fn count(&self) -> usize {
        self.calls.lock().unwrap().len()
    }

    /// Returns how often the sink received each job, by the id of the job.
    pub fn deliveries(&self) -> HashMap<String, u32> {
        let mut ids = HashMap::new();
        for call in self.calls() {
            *ids.entry(call.header("dq-job-id").to_owned()).or_default() += 1;
        }
        ids
    }

    pub fn wait_for(&self, jobs: usize, deadline: Duration) {
        eventually(deadline, &format!("{jobs} jobs at the sink"), || {
            (self.deliveries().len() >= jobs).then_some(())
        });
    }
}

/// A dq-master for one test, in its own folder.
pub struct Daemon {
    pub dir: Arc<tempfile::TempDir>,
    pub port: u16,
    pub http: u16,
    master: Child,
    log: PathBuf,
}

/// Returns a topic section whose callbacks go to the sink.
pub fn topic(name: &str, sink: &Sink, more: &str) -> String {
    format!("[[topic]]\nname = \"{name}\"\ncallback = \"{}\"\n{more}\n", sink.url())
}

impl Daemon {
    /// Starts a daemon with a small configuration and `more`. Waits until it answers and all its processes are up.
    pub fn start(more: &str) -> Daemon {
        Daemon::start_in(tempfile::tempdir().unwrap(), more)
    }

    /// Does the same as `start`, in the given folder.
    pub fn start_in(dir: tempfile::TempDir, more: &str) -> Daemon {
        let daemon = Daemon::spawn(Arc::new(dir), free_port(), more, &[]);
        daemon.wait_ready();
        eventually(20 * SECOND, "all processes", || (daemon.status()?["phase"] == "steady").then_some(()));
        daemon
    }

    /// Starts a daemon and does not wait.
    pub fn spawn(dir: Arc<tempfile::TempDir>, port: u16, more: &str, arguments: &[&str]) -> Daemon {
        let http = free_port();
        Daemon::write_config(dir.path(), port, http, more);
        let mut command = Command::new(env!("CARGO_BIN_EXE_dq-master"));
        command.arg("--config").arg(dir.path().join("dq.toml")).args(arguments);
        Daemon::run(dir, port, http, command)
    }

    pub fn write_config(dir: &Path, port: u16, http: u16, more: &str) {
        // In a TOML file, keys without a section must come before all sections.
        let split = more.find("[[").unwrap_or(more.len()).min(more.find("\n[").map_or(more.len(), |i| i + 1));
        let (top, sections) = more.split_at(if more.starts_with('[') { 0 } else { split });
        let own = |name: &str| {
            if sections.contains(&format!("[{name}]")) { String::new() } else { format!("[{name}]\n") }
        };
        let mut text = format!("{top}\n");
        let mut sections = sections.to_owned();
        for (name, line) in [
            ("server", format!("listen = \"127.0.0.1:{port}\"\n")),
            ("http", format!("listen = \"127.0.0.1:{http}\"\n")),
        ] {
            if own(name).is_empty() {
                sections = sections.replace(&format!("[{name}]\n"), &format!("[{name}]\n{line}"));
            } else {
                text += &format!("[{name}]\n{line}");
            }
        }
        if on_redis() && own("store").len() > 1 {
            sections += &store_section(dir);
        }
        std::fs::write(dir.join("dq.toml"), text + &sections).unwrap();
    }

    /// Starts a daemon from a copy of `image` in the daemon's own folder. A test may later install another image in
    /// place of this copy.
    pub fn spawn_copy_of(image: &Path, more: &str) -> Daemon {
        let dir = Arc::new(tempfile::tempdir().unwrap());
        install(dir.path(), image);
        let (port, http) = (free_port(), free_port());
        Daemon::write_config(dir.path(), port, http, more);
        Daemon::run_copy(dir, port, http)
    }

    /// Starts the copy of dq-master that is in the folder.
    pub fn run_copy(dir: Arc<tempfile::TempDir>, port: u16, http: u16) -> Daemon {
        let mut command = Command::new(dir.path().join("dq-master"));
        command.arg("--config").arg(dir.path().join("dq.toml"));
        Daemon::run(dir, port, http, command)
    }

    pub fn run(dir: Arc<tempfile::TempDir>, port: u16, http: u16, mut command: Command) -> Daemon {
        // This variable identifies the processes of the daemon, even those that have lost their parent.
        command.env("TEST_FOLDER_OF_DQ", dir.path());
        let log = dir.path().join(format!("log-{}", host::random_name().unwrap()));
        let file = std::fs::File::create(&log).unwrap();
        command
            .stdin(Stdio::null())
            .stdout(file.try_clone().unwrap())
            .stderr(file)
            .env_remove("RUST_BACKTRACE");
        let master = eventually(SECOND, "a start", || match command.spawn() {
            // Another test has forked while this test wrote the executable, so the new process still has the file open
            // for a moment.
            Err(e) if e.kind() == std::io::ErrorKind::ExecutableFileBusy => None,
            other => Some(other.unwrap()),
        });
        Daemon { dir, port, http, master, log }
    }

    /// Starts a daemon that has its own disk of 16 MB for its folder `var`. The disk exists only in the mount namespace
    /// of the daemon. Also returns the path of a file on the disk. A test writes to this file to fill the disk.
    pub fn on_small_disk(more: &str) -> (Daemon, PathBuf) {
        Daemon::on_small_disk_with(more, "0B")
    }

    /// Does the same as `on_small_disk`, with this `store.min_free`.
    pub fn on_small_disk_with(more: &str, min_free: &str) -> (Daemon, PathBuf) {
        let dir = Arc::new(tempfile::tempdir().unwrap());
        let (port, http) = (free_port(), free_port());
        Daemon::write_config(dir.path(), port, http, more);
        std::fs::create_dir(dir.path().join("var")).unwrap();
        let script = "mount -t tmpfs -o size=16m none \"$1/var\" && exec \"$2\" --config \"$1/dq.toml\"";
        let mut command = Command::new("unshare");
        if nix::unistd::geteuid().is_root() {
            command.arg("-m");
        } else {
            command.args(["-r", "-m"]);
        }
        command.args(["sh", "-c", script, "sh"]).arg(dir.path()).arg(env!("CARGO_BIN_EXE_dq-master"));
        command.env("DQ_STORE__MIN_FREE", min_free);
        let daemon = Daemon::run(Arc::clone(&dir), port, http, command);
        daemon.wait_ready();
        // The run_dir is on the small disk. This process cannot see it, so `dq status` gets no answer.
        eventually(20 * SECOND, "all processes", || {
            daemon.log().contains("all processes are ready").then_some(())
        });
        // The path leads through the mount namespace of the daemon, because only this namespace has the disk.
        let filler = format!("/proc/{}/root{}/var/filler", daemon.pid(), dir.path().display());
        (daemon, filler.into())
    }

    /// Starts a new daemon in the folder of `dead`, a daemon whose master is dead. The new daemon has the same ports
    /// and configuration.
    pub fn again(dead: &Daemon) -> Daemon {
        let mut command = Command::new(env!("CARGO_BIN_EXE_dq-master"));
        command.arg("--config").arg(dead.dir.path().join("dq.toml"));
        Daemon::run(Arc::clone(&dead.dir), dead.port, dead.http, command)
    }

    /// Does the same as `again`, with a clock that is ahead by `ahead_ms`. If `ahead_ms` is negative, the clock is
    /// behind.
    pub fn again_with_clock(dead: &Daemon, ahead_ms: i64) -> Daemon {
        let mut command = Command::new(env!("CARGO_BIN_EXE_dq-master"));
        command.arg("--config").arg(dead.dir.path().join("dq.toml"));
        clock::shift(&mut command, ahead_ms);
        Daemon::run(Arc::clone(&dead.dir), dead.port, dead.http, command)
    }

    /// Reaps a master that was killed.
    pub fn forget_master(&mut self) {
        let _ = self.master.wait();
    }

    pub fn wait_ready(&self) {
        eventually(20 * SECOND, &format!("an answer; log:\n{}", self.log()), || {
            let mut client = TcpClient::connect(self.address(), Framing::Digits).ok()?;
            (client.ask(&json!({"cmd": "ping"})).ok()?["code"] == 1).then_some(())
        });
    }

    pub fn address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port).into()
    }

    pub fn client(&self) -> TcpClient {
        TcpClient::connect(self.address(), Framing::Binary).unwrap()
    }

    pub fn pid(&self) -> Pid {
        Pid::from_raw(self.master.id() as i32)
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Waits until all processes of one generation are up, and no other process is left.
    pub fn wait_all_up(&self, slots: usize) -> HashMap<String, Pid> {
        eventually(20 * SECOND, &format!("{slots} processes that are up; log:\n{}", self.log()), || {
            let status = self.status()?;
            let processes = status["processes"].as_array()?;
            let up = processes.iter().all(|p| p["state"] == "up" && p["generation"] == status["generation"]);
            let children = self.children();
            (up && status["phase"] == "steady" && processes.len() == slots && children.len() == slots)
                .then_some(children)
        })
    }

    /// Returns the output of `dq status --json`. `None`: the daemon does not answer.
    pub fn status(&self) -> Option<Value> {
        let run_dir = self.dir.path().join("var/run");
        let mut command = Command::new(env!("CARGO_BIN_EXE_dq"));
        let out = command.arg("status").arg("--json").arg("--run-dir").arg(run_dir).output().unwrap();
        serde_json::from_slice(&out.stdout).ok()
    }

    /// Returns all processes of this daemon: the master, its children, and children that have lost their master.
    pub fn processes(&self) -> Vec<Pid> {
        processes_of(self.dir.path())
    }

    /// Returns the children by name.
    pub fn children(&self) -> HashMap<String, Pid> {
        children_of(self.pid())
    }

    pub fn child(&self, name: &str) -> Pid {
        eventually(10 * SECOND, &format!("a process {name}"), || self.children().get(name).copied())
    }

    /// Kills a child with SIGKILL, and waits until another process fills its slot.
    pub fn kill_child(&self, name: &str) {
        let old = self.child(name);
        kill(old, Signal::SIGKILL).unwrap();
        eventually(10 * SECOND, &format!("another {name}"), || {
            self.children().get(name).copied().filter(|new| *new != old)
        });
    }

    pub fn signal(&self, signal: Signal) {
        kill(self.pid(), signal).unwrap();
    }

    pub fn wait_exit(&mut self, deadline: Duration) -> ExitStatus {
        let master = &mut self.master;
        eventually(deadline, "the end of dq-master", || master.try_wait().unwrap())
    }

    pub fn stop(&mut self) {
        self.signal(Signal::SIGTERM);
        let status = self.wait_exit(40 * SECOND);
        assert!(status.success(), "{status}; log:\n{}", self.log());
    }

    /// Kills the master and its children with SIGKILL, as a crash of the machine would, and waits until they are gone.
    pub fn kill_all(&mut self) {
        for pid in std::iter::once(self.pid()).chain(self.processes()) {
            // A child may have ended by itself.
            let _ = kill(pid, Signal::SIGKILL);
        }
        self.forget_master();
        eventually(20 * SECOND, "the end of all processes", || self.processes().is_empty().then_some(()));
    }

    /// Kills the master with SIGKILL, and leaves its children alone. Returns their process ids.
    pub fn kill_master(&mut self) -> Vec<Pid> {
        let children = self.children().into_values().collect();
        self.master.kill().unwrap();
        self.master.wait().unwrap();
        children
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let children = self.children();
        let _ = self.master.kill();
        let _ = self.master.wait();
        // If no other daemon of the test uses this folder, children that have lost their master are killed too.
        let last = Arc::strong_count(&self.dir) == 1;
        let lost = if last { self.processes() } else { Vec::new() };
        for pid in children.into_values().chain(lost) {
            let _ = kill(pid, Signal::SIGKILL);
        }
        if !std::thread::panicking() {
            assert!(!self.log().contains("panic"), "{}", self.log());
        } else {
            eprintln!("--- the daemon's log:\n{}", self.log());
        }
    }
}

/// Returns the state letter and the parent of a process, from /proc.
fn stat(pid: &str) -> Option<(String, i32)> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut rest = stat.rsplit_once(") ")?.1.split(' ');
    Some((rest.next()?.to_owned(), rest.next()?.parse().ok()?))
}

/// Returns the children of `parent` by name, without zombies.
pub fn children_of(parent: Pid) -> HashMap<String, Pid> {
    let mut found = HashMap::new();
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let name = entry.file_name().into_string().unwrap();
        if !name.bytes().all(|b| b.is_ascii_digit()) {
            continue;
        }
        if let Some((state, ppid)) = stat(&name)
            && ppid == parent.as_raw()
            && state != "Z"
            && let Ok(comm) = std::fs::read_to_string(format!("/proc/{name}/comm"))
        {
            found.insert(comm.trim().to_owned(), Pid::from_raw(name.parse().unwrap()));
        }
    }
    found
}

/// Puts a copy of an executable into the folder, under the name dq-master. (A file that is being written cannot be
/// executed, so the copy gets its name when it is complete.)
pub fn install(dir: &Path, image: &Path) {
    let draft = dir.join("draft");
    std::fs::copy(image, &draft).unwrap();
    std::fs::rename(draft, dir.join("dq-master")).unwrap();
}

/// Returns the path of a dq-master that does one thing wrong. The file `fault` in the daemon's folder names the fault.
pub fn faulty() -> PathBuf {
    let program = std::env::current_exe().unwrap();
    program.parent().unwrap().parent().unwrap().join("examples/faulty")
}

/// Returns the processes that were started for a daemon in this folder.
pub fn processes_of(dir: &Path) -> Vec<Pid> {
    let mark = [b"TEST_FOLDER_OF_DQ=", dir.as_os_str().as_encoded_bytes()].concat();
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let name = entry.file_name().into_string().unwrap();
        let environment = std::fs::read(format!("/proc/{name}/environ")).unwrap_or_default();
        if environment.split(|b| *b == 0).any(|variable| variable == mark) {
            let pid = Pid::from_raw(name.parse().unwrap());
            found.extend(lives(pid).then_some(pid));
        }
    }
    found
}

/// Whether a process exists and is no zombie.
pub fn lives(pid: Pid) -> bool {
    stat(&pid.to_string()).is_some_and(|(state, _)| state != "Z")
}

/// Returns an add request, as a client sends it.
pub fn add(topic: &str, id: &str, delay_ms: u64) -> Value {
    json!({"cmd": "add", "topic": topic, "id": id, "delay_ms": delay_ms, "body": {"id": id}})
}

/// Returns the number of jobs of a topic in each state.
pub fn stats(client: &mut TcpClient, topic: &str) -> HashMap<String, u64> {
    let answer = client.ask(&json!({"cmd": "stats", "topic": topic})).unwrap();
    assert_eq!(answer["code"], 1, "{answer}");
    serde_json::from_value(answer["data"][topic].clone()).unwrap_or_default()
}

pub fn pending(client: &mut TcpClient, topic: &str) -> u64 {
    stats(client, topic).iter().filter(|(state, _)| *state != "dead").map(|(_, n)| n).sum()
}

/// How many processes a daemon has with the default settings.
pub const SLOTS: usize = 7;

/// Waits until a restart is over: all processes are new, and all processes of `before` have ended. Returns the new
/// processes.
pub fn all_new(daemon: &Daemon, before: &HashMap<String, Pid>) -> HashMap<String, Pid> {
    eventually(20 * SECOND, &format!("a new generation; log:\n{}", daemon.log()), || {
        let children = daemon.children();
        let new = children.iter().all(|(name, pid)| before.get(name) != Some(pid));
        (new && children.len() == before.len() && before.values().all(|pid| !lives(*pid))).then_some(children)
    })
}

pub fn takes(daemon: &Daemon, topic: &str, id: &str) -> bool {
    daemon.client().ask(&add(topic, id, 0)).unwrap()["code"] == 1
}

/// Whether the daemons of this run store their jobs on two Redis nodes: `TEST_STORE=redis`.
pub fn on_redis() -> bool {
    std::env::var("TEST_STORE").is_ok_and(|store| store == "redis")
}

/// The nodes that all daemons use.
static NODES: LazyLock<[redis::RedisServer; 2]> =
    LazyLock::new(|| [redis::RedisServer::start_for_all(), redis::RedisServer::start_for_all()]);

/// The folders of the daemons. Each folder has its own key prefix on the nodes, so daemons in different folders do not
/// share jobs.
static FOLDERS: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

fn store_section(dir: &Path) -> String {
    let mut folders = FOLDERS.lock().unwrap();
    let place = folders.iter().position(|known| known == dir).unwrap_or_else(|| {
        folders.push(dir.to_owned());
        folders.len() - 1
    });
    let node = |(n, server): (usize, &redis::RedisServer)| {
        format!("[[store.node]]\nname = \"r{n}\"\nurl = \"{}\"\n", server.url())
    };
    let nodes: String = NODES.iter().enumerate().map(node).collect();
    format!("[store]\nbackend = \"redis\"\nprefix = \"dq{place}\"\n{nodes}")
}

/// Adds jobs over four connections until `enough` accepts the number of stored jobs. Returns the stored jobs. Each
/// refusal must have one of the codes in `refusals`.
pub fn load(
    daemon: &Daemon,
    name: &str,
    refusals: &[&str],
    enough: impl Fn(usize) -> bool + Sync,
) -> HashSet<String> {
    let (stop, count) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        let adders: Vec<_> = (0..4)
            .map(|c| {
                let (stop, count) = (&stop, &count);
                scope.spawn(move || {
                    let (mut taken, mut client) = (Vec::new(), daemon.client());
                    for n in 0.. {
                        if stop.load(Ordering::Relaxed) {
                            break;
                        }
                        let batch: Vec<_> =
                            (0..10).map(|i| add("t", &format!("{name}-{c}-{n}-{i}"), i * 20)).collect();
                        client.send(&batch).unwrap();
                        for request in &batch {
                            let answer = client.receive().unwrap();
                            if answer["code"] == 1 {
                                taken.push(request["id"].as_str().unwrap().to_owned());
                                count.fetch_add(1, Ordering::Relaxed);
                            } else {
                                let err = answer["err"].as_str().unwrap();
                                assert!(refusals.contains(&err), "{answer}");
                            }
                        }
                        // A few thousand jobs a second are enough load.
                        std::thread::sleep(Duration::from_millis(5));
                    }
                    taken
                })
            })
            .collect();
        eventually(60 * SECOND, &format!("enough jobs; log:\n{}", daemon.log()), || {
            enough(count.load(Ordering::Relaxed)).then_some(())
        });
        stop.store(true, Ordering::Relaxed);
        adders.into_iter().flat_map(|a| a.join().unwrap()).collect()
    })
}
