//! The daemon that is measured. It runs in a new folder, and its topics call the receiver. Its store is the embedded
//! store, or Redis nodes that are started for it.

use std::fmt::Write as _;
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use clap::{Args, ValueEnum};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::super::own_daemon::{DaemonProcess, TemporaryFolder, free_port, local};
use super::OutageKind;
use super::load::{LoadTarget, SendMode, StopCondition, fire};
use super::sink::{Sink, SinkImplementation};
use super::workloads::PauseWorkload;
use host::{usage_of, whole_status};
use model::status::{DaemonStatus, MasterPhase, Renewal};

/// The topic whose jobs clients reserve. It has the name of beanstalkd's default tube, which clients use by default.
pub(super) const PULL_TOPIC: &str = "default";

/// How long a daemon or a server may take to answer.
const PATIENCE: Duration = Duration::from_secs(30);

/// Where jobs are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Store {
    /// One SQLite file.
    Embedded,
    /// Nodes of Redis.
    Redis,
}

/// The options of the daemon that is measured.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "The daemon")]
pub(super) struct BenchDaemonOptions {
    /// Where jobs are stored
    #[arg(long, value_enum, default_value = "embedded")]
    pub store: Store,

    /// The number of Redis nodes; each is its own redis-server (append-only file, fsync each second)
    #[arg(long, default_value_t = 1, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..=16))]
    pub nodes: u32,

    /// The number of topics; the jobs use them in turn
    #[arg(long, default_value_t = 1, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub topics: u32,

    /// The number of processes that make callbacks
    #[arg(long, default_value_t = 2, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..=64))]
    pub consumers: u32,

    /// Callbacks in flight in each of these processes
    #[arg(long, default_value_t = 64, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub concurrency: u32,

    /// The receiver of callbacks: one that does almost nothing, or an axum handler, as a business would use
    #[arg(long, value_enum, default_value = "bare")]
    pub receiver: SinkImplementation,

    /// Keep no records of ended jobs
    #[arg(long)]
    pub no_records: bool,

    /// The registry, or `None` if there is no registry.
    #[arg(skip)]
    pub registry: Option<String>,

    /// Whether clients reserve the jobs of [`PULL_TOPIC`], also with beanstalkd's protocol.
    #[arg(skip)]
    pub pull: bool,

    /// A folder on the disk that is measured; default: the host's folder for temporary files
    #[arg(long, value_name = "DIR")]
    pub folder: Option<PathBuf>,
}

/// A running daemon, and what it needs.
#[derive(Debug)]
pub(super) struct BenchDaemon {
    /// Its TCP port.
    pub server: SocketAddr,
    /// Its HTTP port.
    pub http: SocketAddr,
    /// The port for clients of beanstalkd. `None`: there is no such port.
    pub beanstalk: Option<SocketAddr>,
    /// The addresses of its Redis nodes.
    pub nodes: Vec<SocketAddr>,
    /// The receiver of its callbacks.
    pub sink: Sink,
    // The next three fields are dropped in this order: the daemon must end before its servers, and the folder is
    // removed last.
    daemon: DaemonProcess,
    servers: Vec<RedisServer>,
    folder: TemporaryFolder,
}

impl BenchDaemon {
    /// Starts the receiver, the Redis nodes and the daemon. The topics `t0`, `t1` … call `/fast`. The topics `slow` and
    /// `never` call `/slow` and `/never`.
    pub(super) fn start(options: &BenchDaemonOptions) -> Result<BenchDaemon> {
        let folder = TemporaryFolder::fresh("bench", options.folder.clone())?;
        let sink = Sink::start(options.receiver)?;
        let count = if options.store == Store::Redis { options.nodes } else { 0 };
        let servers = (0..count).map(|n| RedisServer::start(&folder, n)).collect::<Result<Vec<_>>>()?;
        let (server, http) = (local(free_port()?), local(free_port()?));
        let nodes: Vec<SocketAddr> = servers.iter().map(|s| s.address).collect();
        let beanstalk = options.pull.then(free_port).transpose()?.map(local);
        let mut text = configuration(options, server, http, &nodes, &sink);
        text += &beanstalk.map_or_else(String::new, pull_configuration);
        std::fs::write(folder.0.join("dq.toml"), text)?;
        let mut daemon = DaemonProcess::start(&folder)?;
        let control = BenchDaemonControl { run_dir: folder.0.join("var/run") };
        // The ports accept connections before a process reads from them. So this function waits until the daemon
        // reports that all of its processes are ready.
        await_start("dq-master", || daemon.has_ended(), || control.is_steady())
            .context("no daemon to measure; RUST_LOG=info tells more")?;
        Ok(BenchDaemon { server, http, beanstalk, nodes, sink, daemon, servers, folder })
    }

    /// Returns the control of the daemon. It sends its requests to the master.
    pub(super) fn control(&self) -> BenchDaemonControl {
        BenchDaemonControl { run_dir: self.folder.0.join("var/run") }
    }

    /// Returns the memory (PSS, in bytes) and the processor time of all processes of the daemon together.
    pub(super) fn usage(&self) -> Result<(u64, Duration)> {
        let usages = self.control().processes()?.into_iter().filter_map(usage_of);
        Ok(usages.fold((0, Duration::ZERO), |(memory, cpu), u| (memory + u.memory_bytes, cpu + u.cpu)))
    }

    /// Pauses the deliveries of the topics `t0`, `t1` …, or resumes them.
    pub(super) fn hold(&self, topics: u32, hold: bool) -> Result<()> {
        let word = if hold { "pause" } else { "resume" };
        let (send_mode, until) = (SendMode::Closed { depth: 1 }, StopCondition::Count(topics.into()));
        let volley =
            fire(LoadTarget::new(self.http, topics.min(16)), send_mode, until, &mut PauseWorkload(word))?;
        if volley.failed > 0 { bail!("cannot {word} {} topics", volley.failed) } else { Ok(()) }
    }

    /// Fails if the daemon has ended.
    pub(super) fn check(&mut self) -> Result<()> {
        if self.daemon.has_ended()? {
            bail!("dq-master has ended; RUST_LOG=info tells more");
        }
        Ok(())
    }

    /// Returns how many bytes of memory the data of all Redis nodes uses together.
    pub(super) fn redis_bytes(&self) -> Result<u64> {
        let used = |server: &RedisServer| -> Result<u64> {
            let info: redis::InfoDict = redis::cmd("INFO").arg("memory").query(&mut server.connection()?)?;
            info.get("used_memory").context("INFO without used_memory")
        };
        self.servers.iter().map(used).sum()
    }

    /// Takes a node away from the daemon: kills or stops the redis-server of the node.
    pub(super) fn take_node_away(&mut self, node: usize, fault: OutageKind) -> Result<()> {
        let server = &mut self.servers[node];
        match fault {
            OutageKind::Killed => {
                server.child.kill()?;
                server.child.wait()?;
                Ok(())
            }
            OutageKind::Hung => server.signal(Signal::SIGSTOP),
        }
    }

    /// Brings a node back, with the data that it had.
    pub(super) fn bring_node_back(&mut self, node: usize, fault: OutageKind) -> Result<()> {
        match fault {
            OutageKind::Killed => {
                let address = self.servers[node].address;
                self.servers[node] = RedisServer::start_at(&self.folder, node as u32, address)?;
                Ok(())
            }
            OutageKind::Hung => self.servers[node].signal(Signal::SIGCONT),
        }
    }

    /// Returns the folder of its files.
    pub(super) fn folder(&self) -> &std::path::Path {
        &self.folder.0
    }
}

/// Controls a running daemon: asks for its status, kills single processes, and restarts it.
#[derive(Debug, Clone)]
pub(super) struct BenchDaemonControl {
    run_dir: PathBuf,
}

impl BenchDaemonControl {
    fn status(&self) -> Result<DaemonStatus> {
        Ok(whole_status(&self.run_dir, PATIENCE)?)
    }

    /// Fails if a process of the daemon is not ready.
    fn is_steady(&self) -> Result<()> {
        match self.status()?.phase {
            MasterPhase::Steady => Ok(()),
            phase => bail!("its phase is {phase:?}"),
        }
    }

    /// Returns the ids of all processes of the daemon, its master first.
    pub(super) fn processes(&self) -> Result<Vec<i32>> {
        let status = self.status()?;
        Ok(std::iter::once(status.pid).chain(status.processes.iter().filter_map(|p| p.pid)).collect())
    }

    /// Kills one of the child processes, and returns its name. Consecutive numbers choose one child after the other.
    pub(super) fn kill(&self, number: usize) -> Result<String> {
        let children: Vec<(String, i32)> =
            self.status()?.processes.into_iter().filter_map(|p| Some((p.name, p.pid?))).collect();
        let Some((name, pid)) = children.get(number % children.len().max(1)) else {
            bail!("it has no children")
        };
        kill(Pid::from_raw(*pid), Signal::SIGKILL).with_context(|| format!("cannot kill {name}"))?;
        Ok(name.clone())
    }

    /// Kills the child process with this name.
    pub(super) fn kill_named(&self, name: &str) -> Result<()> {
        let pid = self.status()?.processes.into_iter().find(|p| p.name == name).and_then(|p| p.pid);
        let pid = pid.with_context(|| format!("{name} does not run"))?;
        kill(Pid::from_raw(pid), Signal::SIGKILL).with_context(|| format!("cannot kill {name}"))
    }

    /// Restarts the daemon in place with USR2. Waits until the new processes serve.
    pub(super) fn restart(&self) -> Result<()> {
        let before = self.status()?;
        kill(Pid::from_raw(before.pid), Signal::SIGUSR2).context("cannot restart dq-master")?;
        let until = Instant::now() + PATIENCE;
        loop {
            // The master may not answer while it changes to the new executable.
            let renewal =
                self.status().ok().and_then(|now| now.renewal).filter(|r| before.renewal.as_ref() != Some(r));
            match renewal {
                Some(Renewal { refused: Some(why), .. }) => bail!("the restart was refused: {why}"),
                Some(_) => return Ok(()),
                None if Instant::now() > until => bail!("the restart is not over after {PATIENCE:?}"),
                None => std::thread::sleep(Duration::from_millis(20)),
            }
        }
    }
}

fn configuration(
    options: &BenchDaemonOptions,
    server: SocketAddr,
    http: SocketAddr,
    nodes: &[SocketAddr],
    sink: &Sink,
) -> String {
    let mut text = format!(
        "# Made by `dq bench`.\nrun_dir = \"var/run\"\n\
         [server]\nlisten = \"{server}\"\nmax_connections = 20000\nmax_connections_per_source = 20000\n\
         [http]\nlisten = \"{http}\"\nmax_connections = 20000\nmax_connections_per_source = 20000\nmax_requests = 20000\nmax_reserves = 40000\n\
         [registry]\nurl = \"{}\"\n\
         [consume]\nprocesses = {}\nconcurrency = {}\n",
        options.registry.as_deref().unwrap_or("none"),
        options.consumers,
        options.concurrency
    );
    match nodes {
        [] => text += "[store]\nbackend = \"embedded\"\npath = \"var/dq.db\"\n",
        _ => text += "[store]\nbackend = \"redis\"\n",
    }
    for (n, node) in nodes.iter().enumerate() {
        let _ = write!(text, "[[store.node]]\nname = \"r{n}\"\nurl = \"redis://{node}/0\"\n");
    }
    let mut topic = |name: &str, path: &str| {
        let callback = format!("http://{}/{path}", sink.address);
        let _ = write!(text, "[[topic]]\nname = \"{name}\"\ncallback = \"{callback}\"\ntimeout = \"5s\"\n");
        // Each job of the measured backlog must leave a record, so the limit is high.
        text += if options.no_records { "keep_done = \"0s\"\n" } else { "keep_done_jobs = 10000000\n" };
    };
    (0..options.topics).for_each(|n| topic(&format!("t{n}"), "fast"));
    topic("slow", "slow");
    topic("never", "never");
    text
}

/// Returns the sections of the topic that clients reserve from, and of the port for clients of beanstalkd.
fn pull_configuration(beanstalk: SocketAddr) -> String {
    format!(
        "[[topic]]\nname = \"{PULL_TOPIC}\"\nmode = \"pull\"\nttr = \"1h\"\n\
         [beanstalk]\nlisten = \"{beanstalk}\"\nmax_connections = 20000\nmax_connections_per_source = 20000\n"
    )
}

/// Waits until a new process gives the expected answer.
pub(super) fn await_start(
    what: &str,
    mut has_ended: impl FnMut() -> Result<bool>,
    answers: impl Fn() -> Result<()>,
) -> Result<()> {
    let until = Instant::now() + PATIENCE;
    while let Err(e) = answers() {
        if has_ended()? {
            bail!("{what} has ended");
        }
        if Instant::now() > until {
            return Err(e).with_context(|| format!("{what} has not started within {PATIENCE:?}"));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// A redis-server that is started for the measurement.
#[derive(Debug)]
struct RedisServer {
    child: Child,
    address: SocketAddr,
}

impl RedisServer {
    fn start(folder: &TemporaryFolder, number: u32) -> Result<RedisServer> {
        RedisServer::start_at(folder, number, local(free_port()?))
    }

    /// Starts a redis-server with the data that is in its folder.
    fn start_at(folder: &TemporaryFolder, number: u32, address: SocketAddr) -> Result<RedisServer> {
        let dir = folder.0.join(format!("redis-{number}"));
        std::fs::create_dir_all(&dir)?;
        let child = Command::new("redis-server")
            .args(["--port", &address.port().to_string(), "--bind", "127.0.0.1", "--save", ""])
            .args(["--appendonly", "yes", "--appendfsync", "everysec"])
            // A rewrite of the append-only file would disturb the measurement.
            .args(["--auto-aof-rewrite-percentage", "0", "--dir"])
            .arg(&dir)
            .stdout(Stdio::null())
            .spawn()
            .context("cannot start redis-server")?;
        let mut server = RedisServer { child, address };
        await_start(
            "redis-server",
            || Ok(server.child.try_wait()?.is_some()),
            || Ok(TcpStream::connect(address).map(drop)?),
        )?;
        Ok(server)
    }
}

impl RedisServer {
    fn signal(&self, signal: Signal) -> Result<()> {
        kill(Pid::from_raw(self.child.id() as i32), signal).with_context(|| format!("cannot send {signal}"))
    }

    fn connection(&self) -> Result<redis::Connection> {
        Ok(redis::Client::open(format!("redis://{}/", self.address))?.get_connection()?)
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
