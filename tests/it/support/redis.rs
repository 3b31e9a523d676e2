//! A redis-server for one test, on a Unix socket in its own folder. Also groups of servers with sentinels, and
//! Clusters. They use addresses that no other process uses.

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{LazyLock, Mutex};
use std::time::{Duration, Instant};

/// A server that ends with the test.
pub struct RedisServer {
    dir: tempfile::TempDir,
    /// How far the clock of the server is ahead. If negative, the clock is behind.
    ahead_ms: i64,
    process: Child,
}

impl RedisServer {
    pub fn start() -> RedisServer {
        RedisServer::start_in(tempfile::tempdir().unwrap())
    }

    /// Starts a server whose files are in this folder.
    pub fn start_in(dir: tempfile::TempDir) -> RedisServer {
        RedisServer::start_ahead(dir, 0)
    }

    /// Starts a server with a clock that is ahead by `ahead_ms`. If `ahead_ms` is negative, the clock is behind.
    pub fn start_with_clock(ahead_ms: i64) -> RedisServer {
        RedisServer::start_ahead(tempfile::tempdir().unwrap(), ahead_ms)
    }

    fn start_ahead(dir: tempfile::TempDir, ahead_ms: i64) -> RedisServer {
        let process = spawn(&dir, ahead_ms);
        let server = RedisServer { dir, ahead_ms, process };
        server.wait();
        server
    }

    /// Starts a server that lives as long as this process.
    pub fn start_for_all() -> RedisServer {
        let dir = tempfile::tempdir().unwrap();
        sweep_at_exit(dir.path());
        let process = spawn_for_all(command(dir.path()));
        let server = RedisServer { dir, ahead_ms: 0, process };
        server.wait();
        server
    }

    pub fn socket(&self) -> PathBuf {
        self.dir.path().join("redis.sock")
    }

    pub fn url(&self) -> String {
        format!("redis+unix://{}", self.socket().display())
    }

    /// Kills the server with SIGKILL, as in a crash.
    pub fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }

    /// Starts the server again with the data on its disk.
    pub fn start_again(&mut self) {
        self.process = spawn(&self.dir, self.ahead_ms);
        self.wait();
    }

    /// Sets the clock of the server: ends the server, and starts it again with the data on its disk.
    pub fn set_clock(&mut self, ahead_ms: i64) {
        self.kill();
        self.ahead_ms = ahead_ms;
        self.start_again();
    }

    /// `true`: stops the process of the server. Its connections stay open, but get no answers. `false`: lets the
    /// process continue.
    pub fn hang(&self, hangs: bool) {
        let signal =
            if hangs { nix::sys::signal::Signal::SIGSTOP } else { nix::sys::signal::Signal::SIGCONT };
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(self.process.id() as i32), signal).unwrap();
    }

    /// Runs a command on the server.
    pub fn cli(&self, arguments: &[&str]) -> String {
        let out = Command::new("redis-cli").arg("-s").arg(self.socket()).args(arguments).output().unwrap();
        String::from_utf8(out.stdout).unwrap()
    }

    fn wait(&self) {
        let until = Instant::now() + Duration::from_secs(20);
        while self.cli(&["ping"]).trim() != "PONG" {
            assert!(Instant::now() < until, "redis-server does not answer");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

fn command(dir: &Path) -> Command {
    let mut command = Command::new("redis-server");
    command.args(["--port", "0", "--save", "", "--appendonly", "yes", "--appendfsync", "always"]);
    command.arg("--unixsocket").arg(dir.join("redis.sock")).arg("--dir").arg(dir);
    command
}

/// Starts a server that ends with the thread of its test, even if the test fails.
fn spawn(dir: &tempfile::TempDir, ahead_ms: i64) -> Child {
    let mut command = command(dir.path());
    super::clock::shift(&mut command, ahead_ms);
    spawn_here(command)
}

fn spawn_here(mut command: Command) -> Child {
    let ends = || Ok(nix::sys::prctl::set_pdeathsig(nix::sys::signal::Signal::SIGKILL)?);
    // SAFETY: the closure makes one system call.
    unsafe { command.pre_exec(ends) };
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

/// Starts a server that ends with this process, even if the process is killed. The server ends with the thread that
/// started it, and this thread runs as long as the process.
fn spawn_for_all(command: Command) -> Child {
    type Order = (Command, Sender<Child>);
    static SPAWNER: LazyLock<Mutex<Sender<Order>>> = LazyLock::new(|| {
        let (orders, taken) = channel::<Order>();
        std::thread::spawn(move || {
            for (command, answer) in taken {
                let _ = answer.send(spawn_here(command));
            }
        });
        Mutex::new(orders)
    });
    let (answer, child) = channel();
    SPAWNER.lock().unwrap().send((command, answer)).unwrap();
    child.recv().unwrap()
}

/// Removes a folder when this process ends. (A static is never dropped, so its folder would stay.)
fn sweep_at_exit(dir: &Path) {
    static DIRS: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());
    extern "C" fn sweep() {
        for dir in DIRS.lock().map(|d| d.clone()).unwrap_or_default() {
            let _ = std::fs::remove_dir_all(dir);
        }
    }
    let mut dirs = DIRS.lock().unwrap();
    if dirs.is_empty() {
        // SAFETY: the function uses only a static.
        unsafe { nix::libc::atexit(sweep) };
    }
    dirs.push(dir.to_owned());
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A redis-server, or a sentinel, on a TCP port.
pub struct TcpServer {
    pub host: String,
    pub port: u16,
    dir: tempfile::TempDir,
    program: PathBuf,
    arguments: Vec<String>,
    is_tls: bool,
    process: Mutex<Child>,
}

/// Returns the path of Valkey's server program. Valkey reports when a change is on its disk.
fn valkey() -> PathBuf {
    let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/tools/valkey/usr/bin/valkey-server");
    assert!(program.exists(), "{} is missing; make tools installs it", program.display());
    program
}

/// Returns an address of the loopback network that belongs to this process alone, with all its ports.
pub fn own_host() -> String {
    let pid = std::process::id();
    format!("127.{}.{}.{}", 64 + (pid >> 16), (pid >> 8) & 255, pid & 255)
}

fn next_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(7000);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

impl TcpServer {
    /// Starts a server with these arguments, and waits until it answers.
    pub fn start(more: &[&str]) -> TcpServer {
        let server = TcpServer::spawn(tempfile::tempdir().unwrap(), None, more);
        server.wait();
        server
    }

    /// Starts a server that speaks only TLS, with these certificates: ca.pem, server.pem, server.key.
    pub fn start_tls(certificates: &Path, more: &[&str]) -> TcpServer {
        let file = |name: &str| certificates.join(name).display().to_string();
        let (ca, cert, key) = (file("ca.pem"), file("server.pem"), file("server.key"));
        let tls = ["--tls-ca-cert-file", &ca, "--tls-cert-file", &cert, "--tls-key-file", &key];
        let server = TcpServer::spawn_with(
            "redis-server".into(),
            tempfile::tempdir().unwrap(),
            None,
            &[&tls[..], more].concat(),
            true,
        );
        server.wait();
        server
    }

    /// Starts a Valkey, which reports when a change is on its disk (as Redis does since 7.2).
    pub fn start_valkey(more: &[&str]) -> TcpServer {
        let server = TcpServer::spawn_with(valkey(), tempfile::tempdir().unwrap(), None, more, false);
        server.wait();
        server
    }

    fn spawn(dir: tempfile::TempDir, first: Option<&Path>, more: &[&str]) -> TcpServer {
        TcpServer::spawn_with("redis-server".into(), dir, first, more, false)
    }

    fn spawn_with(
        program: PathBuf,
        dir: tempfile::TempDir,
        first: Option<&Path>,
        more: &[&str],
        is_tls: bool,
    ) -> TcpServer {
        let (host, port) = (own_host(), next_port());
        let first = first.map(|f| f.display().to_string());
        let (plain, tls) = if is_tls { (0, port) } else { (port, 0) };
        let own =
            ["--bind", &host, "--port", &plain.to_string(), "--tls-port", &tls.to_string(), "--save", ""]
                .map(str::to_owned);
        // A sentinel stores no jobs, so it needs no append-only file.
        let kept =
            if first.is_none() { ["--appendonly", "yes"].map(str::to_owned).to_vec() } else { Vec::new() };
        let (dir_name, more) = (dir.path().display().to_string(), more.iter().map(|m| (*m).to_owned()));
        let arguments: Vec<String> = first
            .into_iter()
            .chain(own)
            .chain(kept)
            .chain(["--dir".to_owned(), dir_name])
            .chain(more)
            .collect();
        let process = Mutex::new(spawn_for_all(TcpServer::command(&program, &arguments)));
        sweep_at_exit(dir.path());
        TcpServer { host, port, dir, program, arguments, is_tls, process }
    }

    fn command(program: &Path, arguments: &[String]) -> Command {
        let mut command = Command::new(program);
        command.args(arguments);
        command
    }

    pub fn address(&self) -> String {
        format!("{}:{}", self.host, self.port)
    }

    pub fn url(&self) -> String {
        format!("{}://{}", if self.is_tls { "rediss" } else { "redis" }, self.address())
    }

    /// Kills the server with SIGKILL, as in a crash.
    pub fn kill(&self) {
        let mut process = self.process.lock().unwrap();
        let _ = process.kill();
        process.wait().unwrap();
    }

    pub fn pid(&self) -> nix::unistd::Pid {
        nix::unistd::Pid::from_raw(self.process.lock().unwrap().id() as i32)
    }

    /// Returns the folder with the files of the server.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    pub fn start_again(&self) {
        self.begin_again();
        self.wait();
    }

    /// Starts the server again with additional arguments.
    pub fn start_again_with(&self, more: &[&str]) {
        let arguments: Vec<String> =
            self.arguments.iter().cloned().chain(more.iter().map(|m| (*m).to_owned())).collect();
        *self.process.lock().unwrap() = spawn_for_all(TcpServer::command(&self.program, &arguments));
        self.wait();
    }

    /// Starts the server again and does not wait.
    pub fn begin_again(&self) {
        *self.process.lock().unwrap() = spawn_for_all(TcpServer::command(&self.program, &self.arguments));
    }

    pub fn hang(&self, hangs: bool) {
        use nix::sys::signal::{Signal, kill};
        let signal = if hangs { Signal::SIGSTOP } else { Signal::SIGCONT };
        kill(nix::unistd::Pid::from_raw(self.process.lock().unwrap().id() as i32), signal).unwrap();
    }

    /// Runs a command on the server.
    pub fn cli(&self, arguments: &[&str]) -> String {
        let mut command = Command::new("redis-cli");
        command.args(["-h", &self.host, "-p", &self.port.to_string()]);
        if self.is_tls {
            command.args(["--tls", "--insecure"]);
            let of = |name: &str| self.arguments.iter().skip_while(|a| *a != name).nth(1);
            command.arg("--cert").arg(of("--tls-cert-file").unwrap());
            command.arg("--key").arg(of("--tls-key-file").unwrap());
        }
        String::from_utf8(command.args(arguments).output().unwrap().stdout).unwrap()
    }

    /// Returns a field of INFO.
    pub fn info(&self, what: &str) -> Option<String> {
        let all = self.cli(&["info"]);
        let line = all.lines().find_map(|l| l.strip_prefix(what)?.strip_prefix(':'))?;
        Some(line.trim().to_owned())
    }

    fn wait(&self) {
        until(&format!("an answer of {}", self.address()), || self.cli(&["ping"]).trim() == "PONG");
    }
}

impl Drop for TcpServer {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Waits until a condition holds.
fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(30);
    while !is_so() {
        assert!(Instant::now() < end, "not in time: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A master with replicas, and three sentinels.
pub struct SentinelGroup {
    /// The first server is the master at the beginning.
    pub servers: Vec<TcpServer>,
    pub sentinels: Vec<TcpServer>,
}

/// The name of the master in the sentinels.
pub const MASTER: &str = "mymaster";

impl SentinelGroup {
    /// Starts a group, and waits until all its servers know each other.
    pub fn start(replicas: usize, more: &[&str]) -> SentinelGroup {
        let server = |master: Option<&TcpServer>| {
            let host = own_host();
            let mut arguments = vec!["--appendonly", "yes", "--replica-announce-ip", &host];
            arguments.extend(["--repl-diskless-sync-delay", "0", "--repl-ping-replica-period", "1"]);
            arguments.extend(more);
            let of = master.map(|m| (m.host.clone(), m.port.to_string()));
            if let Some((host, port)) = &of {
                arguments.extend(["--replicaof", host, port]);
            }
            TcpServer::start(&arguments)
        };
        let mut servers = vec![server(None)];
        for _ in 0..replicas {
            let replica = server(servers.first());
            servers.push(replica);
        }
        let master = &servers[0];
        until("replicas in sync", || {
            let online = (0..replicas).all(|n| {
                master.info(&format!("slave{n}")).is_some_and(|slave| slave.contains("state=online"))
            });
            online && servers[1..].iter().all(|s| s.info("master_link_status").as_deref() == Some("up"))
        });
        let sentinel = |_| SentinelGroup::sentinel(master);
        let sentinels: Vec<TcpServer> = (0..3).map(sentinel).collect();
        let group = SentinelGroup { servers, sentinels };
        let number = |sentinel: &TcpServer, what| group.about(sentinel, what)?.parse::<usize>().ok();
        for sentinel in &group.sentinels {
            until("sentinels that know each other", || {
                number(sentinel, "num-other-sentinels") == Some(2)
                    && number(sentinel, "num-slaves") == Some(replicas)
            });
        }
        group
    }

    /// Starts a sentinel with this server as the master.
    pub fn sentinel(master: &TcpServer) -> TcpServer {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("sentinel.conf");
        let (host, port) = (&master.host, master.port);
        let text = format!(
            "sentinel monitor {MASTER} {host} {port} 2\nsentinel down-after-milliseconds {MASTER} 1000\n\
                 sentinel failover-timeout {MASTER} 3000\nsentinel announce-ip {host}\n"
        );
        std::fs::write(&file, text).unwrap();
        TcpServer::spawn(dir, Some(&file), &["--sentinel"])
    }

    /// Returns what a sentinel reports about the master.
    fn about(&self, sentinel: &TcpServer, what: &str) -> Option<String> {
        let output = sentinel.cli(&["sentinel", "master", MASTER]);
        output.lines().skip_while(|l| *l != what).nth(1).map(str::to_owned)
    }

    pub fn urls(&self) -> Vec<String> {
        self.sentinels.iter().map(TcpServer::url).collect()
    }

    /// Returns the index of the server that is the master according to the first sentinel.
    pub fn master(&self) -> Option<usize> {
        self.master_by(&self.sentinels[0])
    }

    fn master_by(&self, sentinel: &TcpServer) -> Option<usize> {
        let output = sentinel.cli(&["sentinel", "get-master-addr-by-name", MASTER]);
        let address = output.lines().collect::<Vec<_>>().join(":");
        self.servers.iter().position(|s| s.address() == address)
    }

    /// Whether this server is the master according to all sentinels. (The sentinel that promoted the server knows this
    /// some seconds before the other sentinels.)
    pub fn all_call_master(&self, server: usize) -> bool {
        self.sentinels.iter().all(|sentinel| self.master_by(sentinel) == Some(server))
    }

    /// Whether all sentinels name the same master, and all other servers follow this master. In this state, no sentinel
    /// has a reason for another failover. (The master may be another server than the test expects. If the machine
    /// stands still for a second, the sentinels make a failover.)
    pub fn is_whole(&self) -> bool {
        let Some(master) = self.master() else { return false };
        let follows =
            |n: usize| n == master || self.servers[n].info("master_link_status").as_deref() == Some("up");
        self.all_call_master(master)
            && self.servers[master].info("role").as_deref() == Some("master")
            && (0..self.servers.len()).all(follows)
    }

    /// Returns what each server and each sentinel reports about the group. A test that waits in vain prints this.
    pub fn describe(&self) -> String {
        let servers = self.servers.iter().map(|s| s.cli(&["info", "replication"]));
        let sentinels = self.sentinels.iter().map(|s| s.cli(&["sentinel", "master", MASTER]));
        servers.chain(sentinels).collect::<Vec<_>>().join("\n---\n")
    }
}

/// A Cluster of three masters with one replica each.
pub struct ClusterGroup {
    pub servers: Vec<TcpServer>,
}

impl ClusterGroup {
    /// Starts a Cluster, and waits until all its servers report it as good.
    pub fn start() -> ClusterGroup {
        let host = own_host();
        let server = |_| {
            let more = ["--cluster-enabled", "yes", "--cluster-node-timeout", "1000", "--appendonly", "yes"];
            // When one master is lost, the other masters still serve their slots.
            let rest = ["--cluster-require-full-coverage", "no", "--repl-diskless-sync-delay", "0"];
            let announce = ["--cluster-announce-ip", &host, rest[0], rest[1], rest[2], rest[3]];
            TcpServer::start(&[&more[..], &announce[..]].concat())
        };
        let servers: Vec<TcpServer> = (0..6).map(server).collect();
        let mut create = Command::new("redis-cli");
        create.args(["--cluster", "create"]).args(servers.iter().map(TcpServer::address));
        let made = create.args(["--cluster-replicas", "1", "--cluster-yes"]).output().unwrap();
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stdout));
        let cluster = ClusterGroup { servers };
        cluster.wait_until_good();
        cluster
    }

    /// Waits until all servers report a good Cluster, and the replica of each master is in sync.
    pub fn wait_until_good(&self) {
        for server in &self.servers {
            until("a good Cluster", || {
                let is_good = server.cli(&["cluster", "info"]).contains("cluster_state:ok");
                let slots = server.cli(&["cluster", "slots"]);
                // The output has for each range of slots: two numbers, then at least three lines for the master, and as
                // many for its replica. One of these lines is the host.
                let servers = slots.lines().filter(|l| l.trim() == server.host).count();
                let link = server.info("role").as_deref() == Some("master")
                    || server.info("master_link_status").as_deref() == Some("up");
                is_good && servers >= 6 && link
            });
        }
    }

    /// Returns the replica of a master.
    pub fn replica_of(&self, master: &TcpServer) -> &TcpServer {
        let port = format!("master_port:{}", master.port);
        self.servers.iter().find(|s| s.cli(&["info", "replication"]).contains(&port)).unwrap()
    }

    /// Returns the indexes of the servers that are masters now.
    pub fn masters(&self) -> Vec<usize> {
        let is_master = |n: &usize| self.servers[*n].info("role").as_deref() == Some("master");
        (0..self.servers.len()).filter(is_master).collect()
    }

    pub fn urls(&self) -> Vec<String> {
        self.servers.iter().map(TcpServer::url).collect()
    }
}
