//! Replaces the image of this process by another one, in place. The pid and the children stay the same. Descriptors
//! that the caller names stay open, with the same numbers.
//!
//! The data for the next image is in sealed memory. An environment variable names two descriptors: the descriptor of
//! this memory, and the descriptor of the previous image's executable. So an image that cannot read the data can still
//! execute the previous image.

use std::ffi::{CString, OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;

use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::sys::signal::{SigSet, SigmaskHow, Signal, sigprocmask};
use nix::unistd::fexecve;

use super::inherit::HANDOVER;
use super::service::ACTIVATION;
use super::signals::Signals;
use super::spawn::environment_without;

/// What the master passes to an image that it executes in its own process.
#[derive(Debug)]
pub struct HandOverMemory {
    /// The sealed bytes.
    pub bytes: Vec<u8>,
    memory: OwnedFd,
    /// The executable of the previous image.
    pub before: OwnedFd,
    /// The reason why the next image could not continue and has executed the previous image again. None: this is the
    /// next image, so nothing was refused.
    pub refused: Option<String>,
}

/// Blocks all signals until the next image is ready for them. If the exec fails, [`unblock_signals`] unblocks them.
fn block_signals() -> io::Result<()> {
    Ok(sigprocmask(SigmaskHow::SIG_SETMASK, Some(&SigSet::all()), None)?)
}

/// Unblocks the signals that were blocked for an exec. Call this function after the handlers of the signals are set.
pub fn unblock_signals() -> io::Result<()> {
    Ok(sigprocmask(SigmaskHow::SIG_SETMASK, Some(&SigSet::empty()), None)?)
}

/// Executes `executable` with the arguments of this process, and hands over `bytes` and the descriptors in `keep`.
/// Signals that were caught but not handled yet are sent again, for the next image. Returns only if the exec failed. In
/// this case, the process continues as before.
pub fn in_place(
    executable: &OwnedFd,
    bytes: &[u8],
    before: &OwnedFd,
    keep: &[RawFd],
    signals: &mut Signals,
) -> io::Error {
    let mut attempt = || -> io::Result<()> {
        let memory = super::seal("dq-handover", bytes)?;
        let value = format!("{}:{}", memory.as_raw_fd(), before.as_raw_fd());
        let keep: Vec<RawFd> = keep.iter().copied().chain([memory.as_raw_fd(), before.as_raw_fd()]).collect();
        block_signals()?;
        // The signals stay blocked until the next image unblocks them. If the exec fails, this image unblocks them.
        // SIGCHLD is always sent, because a child may have ended.
        for signal in signals.take()?.into_iter().chain([Signal::SIGCHLD]) {
            nix::sys::signal::kill(nix::unistd::Pid::this(), signal)?;
        }
        let result = inheritable(&keep, true).and_then(|()| execute(executable, &value));
        inheritable(&keep, false)?;
        unblock_signals()?;
        result
    };
    attempt().err().unwrap_or_else(|| io::Error::other("the exec has returned"))
}

fn inheritable(fds: &[RawFd], yes: bool) -> io::Result<()> {
    let flag = if yes { FdFlag::empty() } else { FdFlag::FD_CLOEXEC };
    for fd in fds {
        // SAFETY: the descriptor is borrowed for this call only. The owners of the descriptors outlive the call.
        let fd = unsafe { std::os::fd::BorrowedFd::borrow_raw(*fd) };
        fcntl(fd, FcntlArg::F_SETFD(flag))?;
    }
    Ok(())
}

fn execute(executable: &OwnedFd, handover: &str) -> io::Result<()> {
    let text = |s: &OsStr| CString::new(s.as_bytes());
    let arguments: Vec<CString> = std::env::args_os().map(|a| text(&a)).collect::<Result<_, _>>()?;
    let own = (OsString::from(HANDOVER), OsString::from(handover));
    let environment = environment_without(&[&ACTIVATION[..], &[HANDOVER]].concat(), [own])?;
    match fexecve(executable, &arguments, &environment)? {}
}

impl HandOverMemory {
    /// Returns what was handed over to this image. None: the process was started as a new process. Call this function
    /// once, before anything else.
    pub fn take() -> io::Result<Option<HandOverMemory>> {
        let Ok(value) = std::env::var(HANDOVER) else { return Ok(None) };
        let mut parts = value.splitn(3, ':');
        let mut fd = || -> io::Result<OwnedFd> {
            let number: RawFd = parts
                .next()
                .and_then(|p| p.parse().ok())
                .ok_or_else(|| io::Error::other(format!("{HANDOVER}={value:?} names no descriptors")))?;
            // SAFETY: the previous image has left the descriptor to this image, which has not opened anything yet.
            let fd = unsafe { OwnedFd::from_raw_fd(number) };
            fcntl(&fd, FcntlArg::F_GETFD)?;
            Ok(fd)
        };
        let (memory, before) = (fd()?, fd()?);
        let refused = parts.next().map(str::to_owned);
        let bytes = super::sealed::read_shared(&File::from(memory.try_clone()?))?;
        Ok(Some(HandOverMemory { bytes, memory, before, refused }))
    }

    /// Takes a descriptor that was handed over. The caller becomes the owner of the descriptor, so the caller may ask
    /// for each number only once.
    pub fn adopt(&self, number: RawFd) -> io::Result<OwnedFd> {
        // SAFETY: the previous image has left the descriptor to this image, and names each descriptor once.
        let fd = unsafe { OwnedFd::from_raw_fd(number) };
        fcntl(&fd, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC))?;
        Ok(fd)
    }

    /// Executes the previous image again, and tells it the `reason`. Returns only if the exec failed.
    pub fn give_back(self, reason: &str) -> io::Error {
        let reason: String = reason.chars().filter(|c| !c.is_control()).take(500).collect();
        let value = format!("{}:{}:{reason}", self.memory.as_fd().as_raw_fd(), self.before.as_raw_fd());
        match execute(&self.before, &value) {
            Err(e) => e,
            Ok(()) => io::Error::other("the exec has returned"),
        }
    }
}
