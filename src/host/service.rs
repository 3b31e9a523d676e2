//! The connection to the service manager (systemd): sockets that it has bound, and reports to it (sd_notify).

use std::io;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

use nix::fcntl::{FcntlArg, FdFlag, OFlag, fcntl};
use nix::sys::socket::{getsockopt, sockopt};
pub use sd_notify::NotifyState;

/// The variables that hand sockets over to this process. Processes that this process starts must not get these
/// variables.
pub(super) const ACTIVATION: [&str; 3] = ["LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"];

/// The variables that say where the manager listens, and how often it wants a sign of life. Children do not get these
/// variables, because children must not report to the manager.
pub(super) const NOTIFICATION: [&str; 3] = ["NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"];

/// Returns the sockets that the service manager has bound for this process (`LISTEN_FDS`), with their names
/// (`FileDescriptorName`). Call it once, before anything else opens a descriptor. A socket that does not listen is an
/// error.
pub fn sockets_from_service_manager() -> io::Result<Vec<(String, OwnedFd)>> {
    let named: Vec<(RawFd, String)> = sd_notify::listen_fds_with_names()?.collect();
    named
        .into_iter()
        .map(|(number, name)| {
            // SAFETY: the manager has put the descriptor there for this process, which has not opened anything yet.
            let fd = unsafe { OwnedFd::from_raw_fd(number) };
            if !getsockopt(&fd, sockopt::AcceptConn)? {
                return Err(io::Error::other(format!(
                    "the socket {name:?} of the service manager does not listen"
                )));
            }
            fcntl(&fd, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC))?;
            fcntl(&fd, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
            Ok((name, fd))
        })
        .collect()
}

/// Reports to the service manager, if there is one, without waiting for it.
pub fn notify(states: &[NotifyState<'_>]) {
    let Some(path) = std::env::var_os(NOTIFICATION[0]) else { return };
    let send = || -> io::Result<()> {
        let address = match path.as_bytes().strip_prefix(b"@") {
            Some(name) => SocketAddr::from_abstract_name(name)?,
            None => SocketAddr::from_pathname(&path)?,
        };
        let socket = UnixDatagram::unbound()?;
        socket.set_nonblocking(true)?;
        let text: String = states.iter().map(|state| format!("{state}\n")).collect();
        socket.send_to_addr(text.as_bytes(), &address)?;
        Ok(())
    };
    if let Err(e) = send() {
        log::warn!("cannot report to the service manager: {e}");
    }
}

/// Returns how long the service manager waits for a sign of life before it ends this process. None: the service manager
/// does not watch this process.
pub fn watchdog_period() -> Option<Duration> {
    sd_notify::watchdog_enabled().filter(|period| !period.is_zero())
}
