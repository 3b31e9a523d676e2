//! Binds listening sockets. These belong to dq-master, and children get copies. Also sets the option of a connection
//! that finds lost clients.

use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpListener};
use std::os::fd::AsFd;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::time::{Duration, Instant};

use nix::sys::socket::{Backlog, listen, setsockopt, sockopt};
use nix::sys::stat::{Mode, umask};

/// How many connections may wait to be accepted. The system may allow fewer.
const BACKLOG: i32 = 4096;

/// Binds a TCP port. A busy port is tried again for `patience`: the children of a master that died may hold it for a
/// moment.
pub fn bind_tcp(address: SocketAddr, patience: Duration) -> io::Result<TcpListener> {
    let until = Instant::now() + patience;
    let listener = loop {
        match TcpListener::bind(address) {
            Err(e) if e.kind() == ErrorKind::AddrInUse && Instant::now() < until => {
                std::thread::sleep(Duration::from_millis(20));
            }
            other => break other?,
        }
    };
    listen(&listener, Backlog::new(BACKLOG)?)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Makes the system ask the other side of a silent connection from time to time whether it is still there. If the
/// machine of the other side is gone, the connection ends with an error after two minutes. Without this option, dq
/// would still count a client that has lost its power as a client that waits for a job, and would lease a job for it.
/// (If dq has just sent something to the client, the system sends it again instead of asking. Then the connection ends
/// after some 15 minutes.)
pub fn find_lost_clients(connection: &impl AsFd) -> io::Result<()> {
    setsockopt(connection, sockopt::KeepAlive, &true)?;
    setsockopt(connection, sockopt::TcpKeepIdle, &60)?;
    setsockopt(connection, sockopt::TcpKeepInterval, &15)?;
    Ok(setsockopt(connection, sockopt::TcpKeepCount, &4)?)
}

/// Binds a Unix socket to which only this user may connect. A socket that is already there is replaced.
pub fn bind_unix(path: &Path) -> io::Result<UnixListener> {
    let listener = bind_private(path, || UnixListener::bind(path))?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Runs `bind`, which makes the file of a socket at `path`. Only this user may connect to the socket. A file that is
/// already there is removed.
pub(super) fn bind_private<T>(path: &Path, bind: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    match std::fs::remove_file(path) {
        Err(e) if e.kind() != ErrorKind::NotFound => return Err(e),
        _ => {}
    }
    let before = umask(Mode::from_bits_truncate(0o177));
    let bound = bind();
    umask(before);
    bound
}
