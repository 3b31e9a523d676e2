//! Makes ureq work over a Unix socket. For this, ureq needs its own type of connection, and a resolver that looks up no
//! name.

use std::fmt;
use std::io::{self, Read};
use std::net::{Ipv4Addr, Shutdown, SocketAddr};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::{Arc, Weak};

use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, send};
use ureq::Error;
use ureq::config::Config;
use ureq::http::Uri;
use ureq::unversioned::resolver::{ResolvedSocketAddrs, Resolver};
use ureq::unversioned::transport::{
    Buffers, ConnectionDetails, Connector, LazyBuffers, NextTimeout, ShutdownHandle, Transport,
};

/// Connects to the socket at this path, and does not use the URL.
#[derive(Debug)]
pub(super) struct UnixConnector(pub PathBuf);

impl Connector for UnixConnector {
    type Out = UnixConnection;

    fn connect(
        &self,
        details: &ConnectionDetails<'_>,
        _: Option<()>,
    ) -> Result<Option<UnixConnection>, Error> {
        let stream = Arc::new(UnixShutdownHandle(UnixStream::connect(&self.0)?));
        let handle: Weak<dyn ShutdownHandle> =
            Arc::downgrade(&(Arc::clone(&stream) as Arc<dyn ShutdownHandle>));
        (details.register_shutdown)(handle)?;
        let config = details.config;
        let buffers = LazyBuffers::new(config.input_buffer_size(), config.output_buffer_size());
        Ok(Some(UnixConnection { stream, buffers }))
    }
}

/// A resolver that returns a fixed address. Nothing connects to this address.
#[derive(Debug)]
pub(super) struct FixedResolver;

impl Resolver for FixedResolver {
    fn resolve(&self, _: &Uri, _: &Config, _: NextTimeout) -> Result<ResolvedSocketAddrs, Error> {
        let mut addresses = self.empty();
        addresses.push(SocketAddr::from((Ipv4Addr::LOCALHOST, 80)));
        Ok(addresses)
    }
}

/// The socket of a connection. The agent can shut down the socket while another thread waits for an answer.
struct UnixShutdownHandle(UnixStream);

impl ShutdownHandle for UnixShutdownHandle {
    fn shutdown(&self) {
        // The server then ends the request. The part of the answer that it has already sent can still be read. An error
        // means that the connection has ended already.
        let _ = self.0.shutdown(Shutdown::Write);
    }
}

/// A connection to a Unix socket.
pub(super) struct UnixConnection {
    stream: Arc<UnixShutdownHandle>,
    buffers: LazyBuffers,
}

impl fmt::Debug for UnixConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.stream.0.fmt(f)
    }
}

/// Converts an I/O error for ureq. A wait that took too long becomes a timeout.
fn waited(e: io::Error, timeout: NextTimeout) -> Error {
    match e.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => Error::Timeout(timeout.reason),
        _ => e.into(),
    }
}

impl Transport for UnixConnection {
    fn buffers(&mut self) -> &mut dyn Buffers {
        &mut self.buffers
    }

    fn transmit_output(&mut self, amount: usize, timeout: NextTimeout) -> Result<(), Error> {
        self.stream.0.set_write_timeout(timeout.not_zero().map(|t| *t))?;
        let mut rest = &self.buffers.output()[..amount];
        while !rest.is_empty() {
            // If the daemon has closed the connection, `send` returns an error. Without the flag `MSG_NOSIGNAL`, the
            // process would get the signal SIGPIPE.
            match send(self.stream.0.as_raw_fd(), rest, MsgFlags::MSG_NOSIGNAL) {
                Ok(sent) => rest = &rest[sent..],
                Err(Errno::EINTR) => {}
                Err(e) => return Err(waited(e.into(), timeout)),
            }
        }
        Ok(())
    }

    fn await_input(&mut self, timeout: NextTimeout) -> Result<bool, Error> {
        self.stream.0.set_read_timeout(timeout.not_zero().map(|t| *t))?;
        let into = self.buffers.input_append_buf();
        let amount = loop {
            match (&self.stream.0).read(into) {
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                other => break other.map_err(|e| waited(e, timeout))?,
            }
        };
        self.buffers.input_appended(amount);
        Ok(amount > 0)
    }

    fn is_open(&mut self) -> bool {
        // If the connection is readable although no request runs, the daemon has closed it.
        let now = std::time::Instant::now();
        let fd = std::os::fd::AsFd::as_fd(&self.stream.0);
        host::wait_readable(&[fd], Some(now)).is_ok_and(|readable| !readable[0])
    }
}
