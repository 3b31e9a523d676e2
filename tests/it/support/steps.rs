//! Stops a process at its n-th system call, and kills it there (with ptrace): a crash between any two steps.

use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::libc;
use nix::unistd::Pid;

/// An upgrade is over when its master has made no system call for this time.
const QUIET: Duration = Duration::from_millis(1500);

/// A process whose system calls are counted. Only one thread may use this value, and the process of this thread must be
/// the parent of the counted process.
pub struct Steps {
    pid: Pid,
    over: bool,
}

fn ptrace(request: libc::c_uint, pid: Pid, data: usize) {
    // SAFETY: none of these requests reads or writes this process's memory.
    let result = unsafe { libc::ptrace(request, pid.as_raw(), 0, data) };
    assert!(result != -1 || Errno::last() == Errno::ESRCH, "ptrace {request}: {}", Errno::last());
}

impl Steps {
    /// Begins to count the system calls of a process.
    pub fn of(pid: Pid) -> Steps {
        // This option distinguishes a stop at a system call from a stop by the signal SIGTRAP.
        ptrace(libc::PTRACE_SEIZE, pid, libc::PTRACE_O_TRACESYSGOOD as usize);
        ptrace(libc::PTRACE_INTERRUPT, pid, 0);
        Steps { pid, over: false }
    }

    /// Lets the process continue up to its stop number `up_to`, and kills it there. Without a number, the process
    /// continues until it has ended, or has made no system call for the time `QUIET`. Returns the number of stops. (The
    /// process stops at the beginning and at the end of each system call.)
    pub fn run(&mut self, up_to: Option<u64>) -> u64 {
        let (mut stops, mut moved_at) = (0, Instant::now());
        loop {
            let mut status = 0;
            // SAFETY: waitpid writes one number to `status`.
            match unsafe { libc::waitpid(self.pid.as_raw(), &raw mut status, libc::WNOHANG | libc::__WALL) } {
                0 if moved_at.elapsed() > QUIET => {
                    self.kill();
                    return stops;
                }
                0 => std::thread::sleep(Duration::from_micros(50)),
                -1 => panic!("waitpid: {}", Errno::last()),
                _ if !libc::WIFSTOPPED(status) => {
                    self.over = true;
                    return stops;
                }
                _ => {
                    moved_at = Instant::now();
                    let signal = libc::WSTOPSIG(status);
                    let forwarded = if signal == libc::SIGTRAP | 0x80 {
                        stops += 1;
                        0
                    } else if status >> 16 != 0 || signal == libc::SIGTRAP {
                        // This is an event of ptrace itself, not a signal for the process.
                        0
                    } else {
                        signal
                    };
                    if up_to.is_some_and(|up_to| stops >= up_to) {
                        self.kill();
                        return stops;
                    }
                    ptrace(libc::PTRACE_SYSCALL, self.pid, forwarded as usize);
                }
            }
        }
    }

    fn kill(&mut self) {
        if !std::mem::replace(&mut self.over, true) {
            nix::sys::signal::kill(self.pid, nix::sys::signal::Signal::SIGKILL).unwrap();
            // SAFETY: waitpid writes nothing to a null pointer. This call reaps the process, even if other code waits
            // for it too.
            unsafe { libc::waitpid(self.pid.as_raw(), std::ptr::null_mut(), libc::__WALL) };
        }
    }
}
