//! The service manager's side (systemd): sockets that it has bound, and what it is told (sd_notify).

use std::io;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

use nix::fcntl::{FcntlArg, FdFlag, OFlag, fcntl};
use nix::sys::socket::{getsockopt, sockopt};
pub use sd_notify::NotifyState;

/// The variables that hand sockets over: to the process that was started, and to none after it.
pub(super) const ACTIVATION: [&str; 3] = ["LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"];

/// The variables that say where the manager listens: what children say is no concern of its.
pub(super) const NOTIFICATION: [&str; 3] = ["NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"];

/// The sockets that the service manager has bound for this process (`LISTEN_FDS`), by their names (`FileDescriptorName`).
/// To be called once, before anything else opens a descriptor. One that does not listen is an error.
pub fn sockets_from_service_manager() -> io::Result<Vec<(String, OwnedFd)>> {
    let named: Vec<(RawFd, String)> = sd_notify::listen_fds_with_names()?.collect();
    named
        .into_iter()
        .map(|(number, name)| {
            // SAFETY: the manager has put it there for this process, which has not opened anything yet.
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

/// Tells the service manager, where there is one, without waiting for it.
pub fn notify(states: &[NotifyState<'_>]) {
    let Some(path) = std::env::var_os(NOTIFICATION[0]) else { return };
    let tell = || -> io::Result<()> {
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
    if let Err(e) = tell() {
        log::warn!("cannot tell the service manager: {e}");
    }
}

/// How long the service manager waits for a sign of life before it ends this process; none: it does not.
pub fn watchdog_period() -> Option<Duration> {
    sd_notify::watchdog_enabled().filter(|period| !period.is_zero())
}
