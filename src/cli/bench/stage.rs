//! What a measurement is made on: a daemon in a fresh folder with topics that call the sink, on the embedded store or on nodes of
//! Redis; of which some may be started for it.

use std::fmt::Write as _;
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use clap::{Args, ValueEnum};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::super::own_daemon::{Daemon, Folder, free_port, local};
use super::dialects::Hold;
use super::sink::{Receiver, Sink};
use super::volley::{Manner, Target, Until, fire};
use crate::process::{usage_of, whole_status};
use crate::status::{Phase, Renewal, Status};

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

/// What is measured.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "The daemon")]
pub(super) struct Options {
    /// Where jobs are stored
    #[arg(long, value_enum, default_value = "embedded")]
    pub store: Store,

    /// Nodes of Redis; each is a redis-server of its own (append-only file, fsync each second)
    #[arg(long, default_value_t = 1, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..=16))]
    pub nodes: u32,

    /// Topics, over which jobs go round
    #[arg(long, default_value_t = 1, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub topics: u32,

    /// Processes that make callbacks
    #[arg(long, default_value_t = 2, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..=64))]
    pub consumers: u32,

    /// Callbacks in flight, in each of them
    #[arg(long, default_value_t = 64, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub concurrency: u32,

    /// What receives callbacks: next to nothing, or a handler of axum, as a business has it
    #[arg(long, value_enum, default_value = "bare")]
    pub receiver: Receiver,

    /// A folder on the disk that is measured; by default the host's for temporary files
    #[arg(long, value_name = "DIR")]
    pub folder: Option<PathBuf>,
}

/// A daemon that runs, and what it needs.
#[derive(Debug)]
pub(super) struct Stage {
    /// Its TCP port.
    pub server: SocketAddr,
    /// Its HTTP port.
    pub http: SocketAddr,
    /// Where its nodes of Redis are.
    pub nodes: Vec<SocketAddr>,
    /// Who is called.
    pub sink: Sink,
    // In the order in which they are to go.
    daemon: Daemon,
    servers: Vec<RedisServer>,
    folder: Folder,
}

impl Stage {
    /// Starts all of it. `t0`, `t1` … call `/fast`; `slow` and `never` are there as well.
    pub(super) fn start(options: &Options) -> Result<Stage> {
        let folder = Folder::fresh("bench", options.folder.clone())?;
        let sink = Sink::start(options.receiver)?;
        let count = if options.store == Store::Redis { options.nodes } else { 0 };
        let servers = (0..count).map(|n| RedisServer::start(&folder, n)).collect::<Result<Vec<_>>>()?;
        let (server, http) = (local(free_port()?), local(free_port()?));
        let nodes: Vec<SocketAddr> = servers.iter().map(|s| s.address).collect();
        std::fs::write(folder.0.join("dq.toml"), configuration(options, server, http, &nodes, &sink))?;
        let mut daemon = Daemon::start(&folder)?;
        let control = Control { run_dir: folder.0.join("var/run") };
        // Its ports take connections before there is anybody who reads from them.
        await_start("dq-master", || daemon.has_ended(), || control.is_steady())
            .context("no daemon to measure; RUST_LOG=info tells more")?;
        Ok(Stage { server, http, nodes, sink, daemon, servers, folder })
    }

    /// The daemon as its master tells of it.
    pub(super) fn control(&self) -> Control {
        Control { run_dir: self.folder.0.join("var/run") }
    }

    /// Their memory (PSS) in bytes and processor time, together.
    pub(super) fn usage(&self) -> Result<(u64, Duration)> {
        let usages = self.control().processes()?.into_iter().filter_map(usage_of);
        Ok(usages.fold((0, Duration::ZERO), |(memory, cpu), u| (memory + u.memory_bytes, cpu + u.cpu)))
    }

    /// Pauses the deliveries of all topics that jobs go round, or resumes them.
    pub(super) fn hold(&self, topics: u32, hold: bool) -> Result<()> {
        let word = if hold { "pause" } else { "resume" };
        let (manner, until) = (Manner::Closed { depth: 1 }, Until::Count(topics.into()));
        let volley = fire(Target::new(self.http, topics.min(16)), manner, until, &mut Hold(word))?;
        if volley.failed > 0 { bail!("cannot {word} {} topics", volley.failed) } else { Ok(()) }
    }

    /// Whether it still runs.
    pub(super) fn check(&mut self) -> Result<()> {
        if self.daemon.has_ended()? {
            bail!("dq-master has ended; RUST_LOG=info tells more");
        }
        Ok(())
    }

    /// How many bytes of memory the nodes of Redis use for what is in them, together.
    pub(super) fn redis_bytes(&self) -> Result<u64> {
        let used = |server: &RedisServer| -> Result<u64> {
            let info: redis::InfoDict = redis::cmd("INFO").arg("memory").query(&mut server.connection()?)?;
            info.get("used_memory").context("INFO without used_memory")
        };
        self.servers.iter().map(used).sum()
    }

    /// Where its files are.
    pub(super) fn folder(&self) -> &std::path::Path {
        &self.folder.0
    }
}

/// A running daemon, to be asked and to be disturbed.
#[derive(Debug, Clone)]
pub(super) struct Control {
    run_dir: PathBuf,
}

impl Control {
    fn status(&self) -> Result<Status> {
        Ok(whole_status(&self.run_dir, PATIENCE)?)
    }

    /// Fails unless all of its processes have been ready.
    fn is_steady(&self) -> Result<()> {
        match self.status()?.phase {
            Phase::Steady => Ok(()),
            phase => bail!("its phase is {phase:?}"),
        }
    }

    /// All processes of the daemon, its master first.
    pub(super) fn processes(&self) -> Result<Vec<i32>> {
        let status = self.status()?;
        Ok(std::iter::once(status.pid).chain(status.processes.iter().filter_map(|p| p.pid)).collect())
    }

    /// Kills one of the children, a different one for each number. Tells which.
    pub(super) fn kill(&self, number: usize) -> Result<String> {
        let children: Vec<(String, i32)> =
            self.status()?.processes.into_iter().filter_map(|p| Some((p.name, p.pid?))).collect();
        let Some((name, pid)) = children.get(number % children.len().max(1)) else {
            bail!("it has no children")
        };
        kill(Pid::from_raw(*pid), Signal::SIGKILL).with_context(|| format!("cannot kill {name}"))?;
        Ok(name.clone())
    }

    /// Restarts it in place, as USR2 does. Waits until the new processes serve.
    pub(super) fn restart(&self) -> Result<()> {
        let before = self.status()?;
        kill(Pid::from_raw(before.pid), Signal::SIGUSR2).context("cannot restart dq-master")?;
        let until = Instant::now() + PATIENCE;
        loop {
            // While it goes over to the executable there may be nobody who answers.
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
    options: &Options,
    server: SocketAddr,
    http: SocketAddr,
    nodes: &[SocketAddr],
    sink: &Sink,
) -> String {
    let mut text = format!(
        "# Made by `dq bench`.\nrun_dir = \"var/run\"\n\
         [server]\nlisten = \"{server}\"\nmax_connections = 20000\n\
         [http]\nlisten = \"{http}\"\nmax_connections = 20000\nmax_requests = 20000\n\
         [registry]\nurl = \"none\"\n\
         [consume]\nprocesses = {}\nconcurrency = {}\n",
        options.consumers, options.concurrency
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
    };
    (0..options.topics).for_each(|n| topic(&format!("t{n}"), "fast"));
    topic("slow", "slow");
    topic("never", "never");
    text
}

/// Waits until something that was started answers as it must.
fn await_start(
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

/// A redis-server of the measurement's own.
#[derive(Debug)]
struct RedisServer {
    child: Child,
    address: SocketAddr,
}

impl RedisServer {
    fn start(folder: &Folder, number: u32) -> Result<RedisServer> {
        let dir = folder.0.join(format!("redis-{number}"));
        std::fs::create_dir(&dir)?;
        let address = local(free_port()?);
        let child = Command::new("redis-server")
            .args(["--port", &address.port().to_string(), "--bind", "127.0.0.1", "--save", ""])
            .args(["--appendonly", "yes", "--appendfsync", "everysec"])
            // Its file would be rewritten at some moment, in whatever is measured then.
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
