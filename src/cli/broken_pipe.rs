//! SIGPIPE ends this process only if nobody reads its output any more. A write to any other pipe or socket without a
//! reader fails with EPIPE, and the code that writes handles the error.

use std::ffi::c_int;

use nix::libc;
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, raise, sigaction};

/// Installs the handler. No other thread may exist yet.
pub(super) fn end_when_output_has_no_reader() {
    let action = SigAction::new(SigHandler::Handler(judge), SaFlags::SA_RESTART, SigSet::empty());
    // SAFETY: the handler calls only functions that are safe in a handler.
    let _ = unsafe { sigaction(Signal::SIGPIPE, &action) };
}

/// If stdout or stderr has no reader, ends the process by SIGPIPE. (This is how `head` ends most programs.)
extern "C" fn judge(_: c_int) {
    if has_no_reader(libc::STDOUT_FILENO) || has_no_reader(libc::STDERR_FILENO) {
        let action = SigAction::new(SigHandler::SigDfl, SaFlags::empty(), SigSet::empty());
        // SAFETY: this sets the default action. The signal that is raised takes effect when the handler returns.
        let _ = unsafe { sigaction(Signal::SIGPIPE, &action) };
        let _ = raise(Signal::SIGPIPE);
    }
}

/// Returns whether this descriptor is a pipe or a socket that nobody reads.
fn has_no_reader(fd: c_int) -> bool {
    let mut asked = libc::pollfd { fd, events: 0, revents: 0 };
    // SAFETY: the pointer is to one element, which lives during the call. `poll` is safe in a signal handler.
    let answered = unsafe { libc::poll(&mut asked, 1, 0) };
    // `poll` reports POLLERR for a pipe without a reader, and POLLHUP for a socket whose other side is closed.
    answered == 1 && asked.revents & (libc::POLLERR | libc::POLLHUP) != 0
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd as _;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn a_pipe_or_socket_that_nobody_reads_is_seen() {
        let (reader, writer) = std::io::pipe().unwrap();
        assert!(!has_no_reader(writer.as_raw_fd()));
        drop(reader);
        assert!(has_no_reader(writer.as_raw_fd()));
        let (reader, writer) = UnixStream::pair().unwrap();
        assert!(!has_no_reader(writer.as_raw_fd()));
        drop(reader);
        assert!(has_no_reader(writer.as_raw_fd()));
        assert!(!has_no_reader(tempfile::tempfile().unwrap().as_raw_fd()));
    }
}
