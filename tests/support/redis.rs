//! A redis-server of a test's own, on a Unix socket in a folder of its own.

use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A server that ends with the test.
pub struct RedisServer {
    dir: tempfile::TempDir,
    process: Child,
}

impl RedisServer {
    pub fn start() -> RedisServer {
        let dir = tempfile::tempdir().unwrap();
        let process = spawn(&dir);
        let server = RedisServer { dir, process };
        server.wait();
        server
    }

    pub fn socket(&self) -> PathBuf {
        self.dir.path().join("redis.sock")
    }

    pub fn url(&self) -> String {
        format!("redis+unix://{}", self.socket().display())
    }

    /// Kills it without a word, as a crash does.
    pub fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }

    /// Starts it again, with what it has on its disk.
    pub fn start_again(&mut self) {
        self.process = spawn(&self.dir);
        self.wait();
    }

    /// Stops it, so that it hangs and closes nothing; or lets it go on.
    pub fn hang(&self, hangs: bool) {
        let signal =
            if hangs { nix::sys::signal::Signal::SIGSTOP } else { nix::sys::signal::Signal::SIGCONT };
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(self.process.id() as i32), signal).unwrap();
    }

    /// Runs a command at it.
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

fn spawn(dir: &tempfile::TempDir) -> Child {
    let mut command = Command::new("redis-server");
    command.args(["--port", "0", "--save", "", "--appendonly", "yes", "--appendfsync", "always"]);
    command.arg("--unixsocket").arg(dir.path().join("redis.sock")).arg("--dir").arg(dir.path());
    // It ends with the thread of its test, whatever becomes of that.
    let ends = || Ok(nix::sys::prctl::set_pdeathsig(nix::sys::signal::Signal::SIGKILL)?);
    // SAFETY: makes one system call.
    unsafe { command.pre_exec(ends) };
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
