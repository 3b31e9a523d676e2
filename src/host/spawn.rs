//! Starts a child by fork and exec with exactly the given descriptors, and reaps children that ended.

use std::ffi::{CString, OsString};
use std::fmt;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStringExt;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;
use nix::sys::resource::{Resource, getrlimit};
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, SigmaskHow, Signal, sigaction, sigprocmask};
use nix::sys::wait::waitpid;
use nix::unistd::{ForkResult, Pid, fexecve, fork, pipe2, setpgid};

use super::inherit::{AWAITS_TOPICS, FDS, FIRST_FD, HANDOVER, SLOT};
use super::service::{ACTIVATION, NOTIFICATION};

/// Copies of the child's descriptors first get numbers from this number upwards. Then they are moved to lower numbers.
const ABOVE: RawFd = 256;

/// Descriptors that dq got from its own parent have numbers below this number.
const INHERITED_MAX: u64 = 1 << 16;

/// Returns the executable that this process runs, as it was when the process started. If the file was replaced since
/// then, the result is still the old file.
pub fn own_executable() -> io::Result<OwnedFd> {
    Ok(File::open("/proc/self/exe")?.into())
}

/// A child to be started.
#[derive(Debug)]
pub struct Spawn<'a> {
    /// The executable file that the child executes.
    pub executable: BorrowedFd<'a>,
    /// The name of the child's slot. It is also `argv[0]`. The child learns its role from this name.
    pub name: String,
    /// Whether the child waits at its start until a snapshot that it cannot use has been replaced. It waits if another
    /// generation serves meanwhile.
    pub awaits_topics: bool,
    /// The descriptors that the child inherits, in addition to stdin (empty), stdout and stderr. The child finds them
    /// by these names in [`super::ChildInheritance`].
    pub descriptors: Vec<(String, BorrowedFd<'a>)>,
}

impl Spawn<'_> {
    /// Starts the child. The calling process must have no other threads. Between fork and exec, the child runs on a
    /// copy of the memory of the calling process. If another thread held a lock at the fork, nobody would release the
    /// lock in this copy.
    pub fn start(&self) -> io::Result<Pid> {
        let above = |fd: BorrowedFd<'_>| -> io::Result<OwnedFd> {
            let copy = fcntl(fd, FcntlArg::F_DUPFD_CLOEXEC(ABOVE))?;
            // SAFETY: a new descriptor that nobody else owns.
            Ok(unsafe { OwnedFd::from_raw_fd(copy) })
        };
        let executable = above(self.executable)?;
        let null = above(File::open("/dev/null")?.as_fd())?;
        let descriptors: Vec<OwnedFd> =
            self.descriptors.iter().map(|(_, fd)| above(*fd)).collect::<io::Result<_>>()?;
        let name = CString::new(self.name.as_str())?;
        let environment = self.environment()?;
        let (failed, low) = pipe2(nix::fcntl::OFlag::O_CLOEXEC)?;
        let report = above(low.as_fd())?;
        // The parent reads until all copies of the pipe's writing end are closed, so it closes its own copies.
        drop(low);
        // SAFETY: the process has only one thread, as the comment of this function demands. The child only places
        // descriptors, resets signals and executes.
        match unsafe { fork() }? {
            ForkResult::Child => {
                let error = become_child(&executable, &null, &descriptors, &name, &environment);
                let _ = File::from(report).write_all(&(error as i32).to_ne_bytes());
                // SAFETY: ends the child at once, without running the exit handlers of the parent.
                unsafe { libc::_exit(127) }
            }
            ForkResult::Parent { child } => {
                drop(report);
                let mut error = [0; 4];
                match File::from(failed).read_exact(&mut error) {
                    // The exec succeeded: it closed the last writing end of the pipe, and no error was written.
                    Err(_) => Ok(child),
                    Ok(()) => {
                        let _ = waitpid(child, None);
                        Err(io::Error::from_raw_os_error(i32::from_ne_bytes(error)))
                    }
                }
            }
        }
    }

    fn environment(&self) -> io::Result<Vec<CString>> {
        let names: Vec<&str> = self.descriptors.iter().map(|(name, _)| name.as_str()).collect();
        let ours = [(SLOT, self.name.clone()), (FDS, names.join(":"))];
        let awaits = self.awaits_topics.then(|| (AWAITS_TOPICS, "1".to_owned()));
        let ours = ours.into_iter().chain(awaits).map(|(k, v)| (OsString::from(k), OsString::from(v)));
        environment_without(
            &[&ACTIVATION[..], &NOTIFICATION, &[SLOT, FDS, AWAITS_TOPICS, HANDOVER]].concat(),
            ours,
        )
    }
}

/// Returns the environment of this process in the form that exec needs, without the variables in `but`, and with the
/// variables in `more`.
pub(super) fn environment_without(
    but: &[&str],
    more: impl IntoIterator<Item = (OsString, OsString)>,
) -> io::Result<Vec<CString>> {
    let kept = std::env::vars_os().filter(|(key, _)| but.iter().all(|b| key != b));
    let entry = |(key, value): (OsString, OsString)| {
        Ok(CString::new([key.into_vec(), b"=".to_vec(), value.into_vec()].concat())?)
    };
    kept.chain(more).map(entry).collect()
}

/// Marks all descriptors from `first` on, so that exec closes them. Needs Linux 5.11.
fn mark_close_on_exec(first: RawFd) -> Result<(), Errno> {
    // SAFETY: the call only marks descriptors. The C library has a function for this call only since glibc 2.34.
    Errno::result(unsafe {
        libc::syscall(libc::SYS_close_range, first as u32, u32::MAX, libc::CLOSE_RANGE_CLOEXEC)
    })
    .map(drop)
}

/// Marks the same descriptors with one call for each of them. This is for older kernels, and for containers with a
/// filter of system calls that does not know `close_range`. dq marks each descriptor when it opens it. So only the
/// descriptors that dq got from its own parent have no mark yet, and these have low numbers.
fn mark_each_close_on_exec(first: RawFd) -> Result<(), Errno> {
    let (limit, _) = getrlimit(Resource::RLIMIT_NOFILE)?;
    for fd in first..limit.min(INHERITED_MAX) as RawFd {
        // SAFETY: the call only marks the descriptor. It has no effect if `fd` is not open.
        unsafe { libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC) };
    }
    Ok(())
}

/// Runs in the child. Returns only if something failed.
fn become_child(
    executable: &OwnedFd,
    null: &OwnedFd,
    descriptors: &[OwnedFd],
    name: &CString,
    environment: &[CString],
) -> Errno {
    let prepare = || -> Result<(), Errno> {
        setpgid(Pid::from_raw(0), Pid::from_raw(0))?;
        let places = std::iter::once((null, 0)).chain(descriptors.iter().zip(FIRST_FD..));
        for (fd, place) in places {
            // SAFETY: this process no longer uses the descriptor that the parent had at `place`.
            let _ = unsafe { nix::unistd::dup2_raw(fd, place) }?.into_raw_fd();
        }
        let beyond = FIRST_FD + descriptors.len() as RawFd;
        mark_close_on_exec(beyond).or_else(|_| mark_each_close_on_exec(beyond))?;
        let action = |handler| SigAction::new(handler, SaFlags::empty(), SigSet::empty());
        for signal in Signal::iterator() {
            let handler = match signal {
                Signal::SIGINT | Signal::SIGHUP | Signal::SIGUSR1 | Signal::SIGUSR2 => SigHandler::SigIgn,
                Signal::SIGKILL | Signal::SIGSTOP => continue,
                _ => SigHandler::SigDfl,
            };
            // SAFETY: installs no handler function, only the default or ignore.
            unsafe { sigaction(signal, &action(handler)) }?;
        }
        sigprocmask(SigmaskHow::SIG_SETMASK, Some(&SigSet::empty()), None)
    };
    match prepare() {
        Err(e) => e,
        Ok(()) => match fexecve(executable, std::slice::from_ref(name), environment) {
            Err(e) => e,
            Ok(never) => match never {},
        },
    }
}

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// The process ended with this code.
    Code(i32),
    /// This signal ended the process.
    Signal(i32),
}

impl fmt::Display for Exit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Exit::Code(code) => write!(f, "ended with code {code}"),
            Exit::Signal(signal) => match Signal::try_from(*signal) {
                Ok(name) => write!(f, "was ended by {name}"),
                Err(_) => write!(f, "was ended by signal {signal}"),
            },
        }
    }
}

/// Returns a child that ended, if there is one. If this process is pid 1, the child may be a process that this process
/// did not start.
pub fn reap() -> io::Result<Option<(Pid, Exit)>> {
    loop {
        let mut status = 0;
        // SAFETY: writes one number to `status`. (`waitpid` of nix does not know real-time signals. If such a signal
        // ended a child, nix would reap the child and then return an error, and the pid of the child would be lost.)
        match unsafe { libc::waitpid(-1, &raw mut status, libc::WNOHANG) } {
            0 => return Ok(None),
            -1 => match Errno::last() {
                Errno::ECHILD => return Ok(None),
                Errno::EINTR => {}
                e => return Err(e.into()),
            },
            pid if libc::WIFEXITED(status) => {
                return Ok(Some((Pid::from_raw(pid), Exit::Code(libc::WEXITSTATUS(status)))));
            }
            pid => return Ok(Some((Pid::from_raw(pid), Exit::Signal(libc::WTERMSIG(status))))),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    fn both_ways_mark_descriptors_from_a_number_on() {
        for mark in [mark_close_on_exec, mark_each_close_on_exec] {
            let [below, first, second] = [700, 701, 702].map(|place| {
                // SAFETY: `place` is above all descriptors that the tests of this crate open.
                unsafe { nix::unistd::dup2_raw(std::io::stdin(), place) }.unwrap()
            });
            mark(first.as_raw_fd()).unwrap();
            let is_marked = |fd: &OwnedFd| fcntl(fd, FcntlArg::F_GETFD).unwrap() & libc::FD_CLOEXEC != 0;
            assert_eq!([&below, &first, &second].map(is_marked), [false, true, true]);
        }
    }
}
