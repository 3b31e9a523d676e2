//! The nodes of a campaign: Redis servers whose clocks may be wrong, and groups with sentinels.

use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::latency::SlowLine;
use crate::support::redis::{MASTER, SentinelGroup};
use crate::support::{SECOND, clock, eventually, in_memory};

/// A redis-server on a Unix socket. It ends with the thread that started it.
pub struct Server {
    dir: tempfile::TempDir,
    offset_ms: i64,
    process: Child,
}

impl Server {
    /// Starts a server with a clock that is ahead by `offset_ms`, and waits until it answers.
    pub fn start(offset_ms: i64) -> Server {
        let dir = in_memory();
        let process = spawn(&dir, offset_ms);
        let server = Server { dir, offset_ms, process };
        server.wait();
        server
    }

    fn socket(&self) -> PathBuf {
        self.dir.path().join("redis.sock")
    }

    pub fn url(&self) -> String {
        format!("redis+unix://{}", self.socket().display())
    }

    pub fn cli(&self, arguments: &[&str]) -> String {
        let out = Command::new("redis-cli").arg("-s").arg(self.socket()).args(arguments).output().unwrap();
        String::from_utf8_lossy(&out.stdout).into_owned()
    }

    pub fn kill(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }

    /// Starts the server again with the data on its disk.
    pub fn start_again(&mut self) {
        self.kill();
        self.process = spawn(&self.dir, self.offset_ms);
        self.wait();
    }

    /// `true`: stops the process of the server. Its connections stay open, but get no answers. `false`: lets the
    /// process continue.
    pub fn hang(&self, hangs: bool) {
        let signal = if hangs { Signal::SIGSTOP } else { Signal::SIGCONT };
        let _ = kill(Pid::from_raw(self.process.id() as i32), signal);
    }

    fn wait(&self) {
        eventually(20 * SECOND, "redis-server", || (self.cli(&["ping"]).trim() == "PONG").then_some(()));
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

fn spawn(dir: &tempfile::TempDir, offset_ms: i64) -> Child {
    let mut command = Command::new("redis-server");
    command.args(["--port", "0", "--save", "", "--appendonly", "yes", "--appendfsync", "always"]);
    command.arg("--unixsocket").arg(dir.path().join("redis.sock")).arg("--dir").arg(dir.path());
    clock::shift(&mut command, offset_ms);
    let ends = || Ok(nix::sys::prctl::set_pdeathsig(Signal::SIGKILL)?);
    // SAFETY: the closure makes one system call.
    unsafe { command.pre_exec(ends) };
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

/// A node of dq: one server, or a group of servers.
pub enum Node {
    Single(Server),
    /// A server behind a line that can be slow or cut.
    Behind(Server, SlowLine),
    /// A master, a replica, three sentinels.
    Group(SentinelGroup),
}

impl Node {
    pub fn group() -> Node {
        Node::Group(SentinelGroup::start(1, &["--appendfsync", "always"]))
    }

    pub fn behind_a_line() -> Node {
        let server = Server::start(0);
        let line = SlowLine::to(server.socket());
        Node::Behind(server, line)
    }

    pub fn server(&mut self) -> Option<&mut Server> {
        match self {
            Node::Single(server) | Node::Behind(server, _) => Some(server),
            Node::Group(_) => None,
        }
    }

    /// Returns the line that leads to the server.
    pub fn line(&self) -> &SlowLine {
        match self {
            Node::Behind(_, line) => line,
            _ => panic!("it has no line of its own"),
        }
    }

    /// Returns the section of the configuration for this node.
    pub fn section(&self, name: &str) -> String {
        let address = match self {
            Node::Single(server) => format!("url = \"{}\"\n", server.url()),
            Node::Behind(_, line) => format!("url = \"redis+unix://{}\"\n", line.socket().display()),
            Node::Group(group) => {
                let urls: Vec<String> = group.urls().iter().map(|url| format!("\"{url}\"")).collect();
                format!("sentinels = [{}]\nmaster_name = \"{MASTER}\"\n", urls.join(", "))
            }
        };
        format!("[[store.node]]\nname = \"{name}\"\n{address}")
    }

    pub fn kill(&mut self) {
        if let Some(server) = self.server() {
            server.kill();
        }
    }

    pub fn start(&mut self) {
        if let Some(server) = self.server() {
            server.start_again();
        }
    }

    pub fn hang(&self, hangs: bool) {
        if let Node::Single(server) | Node::Behind(server, _) = self {
            server.hang(hangs);
        }
    }

    /// Kills the replica, so that it gets no more changes. Returns which server is the replica, and which server is the
    /// master.
    pub fn lag(&self) -> Option<Lag> {
        let Node::Group(group) = self else { return None };
        let master = group.master()?;
        let replica = 1 - master;
        group.servers[replica].kill();
        Some(Lag { master, replica })
    }

    /// Kills the master, and starts the replica with the data that the replica had.
    pub fn promote(&self, lag: Lag) {
        if let Node::Group(group) = self {
            group.servers[lag.master].kill();
            group.servers[lag.replica].begin_again();
        }
    }

    /// Whether the sentinels and the replica agree that the replica is the master now.
    pub fn is_promoted(&self, lag: Lag) -> bool {
        let Node::Group(group) = self else { return true };
        group.all_call_master(lag.replica)
            && group.servers[lag.replica].info("role").as_deref() == Some("master")
    }

    /// Whether the servers of a group have one master, which all of them know and follow.
    pub fn is_whole(&self) -> bool {
        let Node::Group(group) = self else { return true };
        group.is_whole()
    }

    /// Prints what the servers of a group report about the group.
    pub fn print(&self) {
        if let Node::Group(group) = self {
            println!("{}", group.describe());
        }
    }

    /// Starts the old master again.
    pub fn rejoin(&self, lag: Lag) {
        if let Node::Group(group) = self {
            group.servers[lag.master].begin_again();
        }
    }
}

/// Which servers of a group were master and replica when the replica was cut off.
#[derive(Debug, Clone, Copy)]
pub struct Lag {
    master: usize,
    replica: usize,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::support::now_ms;

    #[test]
    fn a_server_has_the_clock_that_it_was_given() {
        for offset in [0, -3_600_000, 3_599_999] {
            let server = Server::start(offset);
            let before = now_ms();
            let script = "local t = redis.call('TIME') return t[1] .. string.format('%06d', t[2])";
            let number: i64 = server.cli(&["eval", script, "0"]).trim().parse().unwrap();
            let ahead = number / 1000 - before;
            assert!((offset - 1..offset + 2000).contains(&ahead), "{offset}: {ahead}");
        }
    }
}
