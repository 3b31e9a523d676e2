//! ureq over a Unix socket: what it needs of a connection, and no look-up of a name.

use std::fmt;
use std::io::{self, Read};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, send};
use ureq::Error;
use ureq::config::Config;
use ureq::http::Uri;
use ureq::unversioned::resolver::{ResolvedSocketAddrs, Resolver};
use ureq::unversioned::transport::{
    Buffers, ConnectionDetails, Connector, LazyBuffers, NextTimeout, Transport,
};

/// Connects to the socket at this path, whatever the URL says.
#[derive(Debug)]
pub(super) struct Socket(pub PathBuf);

impl Connector for Socket {
    type Out = Connected;

    fn connect(&self, details: &ConnectionDetails<'_>, _: Option<()>) -> Result<Option<Connected>, Error> {
        let stream = UnixStream::connect(&self.0)?;
        let config = details.config;
        let buffers = LazyBuffers::new(config.input_buffer_size(), config.output_buffer_size());
        Ok(Some(Connected { stream, buffers }))
    }
}

/// An address that nobody connects to.
#[derive(Debug)]
pub(super) struct Nowhere;

impl Resolver for Nowhere {
    fn resolve(&self, _: &Uri, _: &Config, _: NextTimeout) -> Result<ResolvedSocketAddrs, Error> {
        let mut addresses = self.empty();
        addresses.push(SocketAddr::from((Ipv4Addr::LOCALHOST, 80)));
        Ok(addresses)
    }
}

/// A connection.
pub(super) struct Connected {
    stream: UnixStream,
    buffers: LazyBuffers,
}

impl fmt::Debug for Connected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.stream.fmt(f)
    }
}

/// How a wait that took too long is told.
fn waited(e: io::Error, timeout: NextTimeout) -> Error {
    match e.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => Error::Timeout(timeout.reason),
        _ => e.into(),
    }
}

impl Transport for Connected {
    fn buffers(&mut self) -> &mut dyn Buffers {
        &mut self.buffers
    }

    fn transmit_output(&mut self, amount: usize, timeout: NextTimeout) -> Result<(), Error> {
        self.stream.set_write_timeout(timeout.not_zero().map(|t| *t))?;
        let mut rest = &self.buffers.output()[..amount];
        while !rest.is_empty() {
            // This process lets SIGPIPE end it, which is meant for its own output.
            match send(self.stream.as_raw_fd(), rest, MsgFlags::MSG_NOSIGNAL) {
                Ok(sent) => rest = &rest[sent..],
                Err(Errno::EINTR) => {}
                Err(e) => return Err(waited(e.into(), timeout)),
            }
        }
        Ok(())
    }

    fn await_input(&mut self, timeout: NextTimeout) -> Result<bool, Error> {
        self.stream.set_read_timeout(timeout.not_zero().map(|t| *t))?;
        let into = self.buffers.input_append_buf();
        let amount = loop {
            match self.stream.read(into) {
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                other => break other.map_err(|e| waited(e, timeout))?,
            }
        };
        self.buffers.input_appended(amount);
        Ok(amount > 0)
    }

    fn is_open(&mut self) -> bool {
        // Readable while nothing is asked: it was closed.
        let now = std::time::Instant::now();
        let fd = std::os::fd::AsFd::as_fd(&self.stream);
        crate::process::wait_readable(&[fd], Some(now)).is_ok_and(|readable| !readable[0])
    }
}
