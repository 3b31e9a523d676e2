//! strace on running processes.

use std::process::{Child, Command, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::NamedTempFile;

use super::{SECOND, eventually};

/// Watches the system calls of some processes, or makes them fail.
pub struct Strace {
    child: Child,
    out: NamedTempFile,
}

impl Strace {
    /// Attaches strace. Returns when all threads are watched.
    pub fn attach(pids: &[Pid], arguments: &[&str]) -> Strace {
        let out = NamedTempFile::new().unwrap();
        let mut strace = Command::new("strace");
        strace.args(["-f", "-q"]).args(arguments).arg("-o").arg(out.path()).stderr(Stdio::null());
        for pid in pids {
            strace.args(["-p", &pid.to_string()]);
        }
        let child = strace.spawn().expect("strace; make tools installs it");
        let is_traced = |pid: &Pid| {
            let threads = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
            threads.flatten().all(|thread| {
                let status = std::fs::read_to_string(thread.path().join("status")).unwrap_or_default();
                status.lines().any(|line| line.starts_with("TracerPid:") && !line.ends_with("\t0"))
            })
        };
        eventually(20 * SECOND, "strace attached", || pids.iter().all(is_traced).then_some(()));
        Strace { child, out }
    }

    /// Ends strace. Returns what it has written.
    pub fn end(mut self) -> String {
        kill(Pid::from_raw(self.child.id() as i32), Signal::SIGINT).unwrap();
        self.child.wait().unwrap();
        std::fs::read_to_string(self.out.path()).unwrap()
    }
}

/// If a test fails, its strace ends here.
impl Drop for Strace {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
