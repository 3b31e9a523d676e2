//! Connections: made by TCP, wrapped in TLS for https, and watched for what ureq alone does not tell: that a kept connection
//! was closed by the other side before it answered, and that an answer came although not all of the request could be sent.

use std::io::{self, ErrorKind};

use ureq::Error;
use ureq::unversioned::transport::{
    Buffers, ConnectionDetails, Connector, Either, NextTimeout, TcpConnector, Transport,
};

use super::tls::Tls;

/// No connection came about. Whatever the reason, nothing of the request was sent.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct NoConnection(pub Error);

/// A connection that had served before ended without a word about this request.
#[derive(Debug, thiserror::Error)]
#[error("the connection, which was kept, was closed without an answer")]
pub(super) struct Stale;

/// Makes connections.
#[derive(Debug)]
pub(super) struct Dial {
    pub tls: Tls,
}

impl Connector<()> for Dial {
    type Out = Watched;

    fn connect(&self, details: &ConnectionDetails<'_>, _: Option<()>) -> Result<Option<Watched>, Error> {
        let made = self.dial(details).map_err(|e| Error::Other(Box::new(NoConnection(e))))?;
        Ok(Some(Watched { inner: made, heard: false, served: false }))
    }
}

impl Dial {
    fn dial(&self, details: &ConnectionDetails<'_>) -> Result<Box<dyn Transport>, Error> {
        let made: Option<Either<(), _>> = TcpConnector::default().connect(details, None)?;
        let tcp = Sending { inner: Box::new(made.ok_or(Error::ConnectionFailed)?), failed: false };
        Ok(if details.needs_tls() { Box::new(self.tls.wrap(Box::new(tcp), details)?) } else { Box::new(tcp) })
    }
}

/// Whether the other side has closed.
fn is_closed(e: &io::Error) -> bool {
    use ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, NotConnected, UnexpectedEof};
    matches!(e.kind(), BrokenPipe | ConnectionAborted | ConnectionReset | NotConnected | UnexpectedEof)
}

/// A socket. When the other side takes no more, it may have answered before: that is read, and counts.
#[derive(Debug)]
struct Sending {
    inner: Box<dyn Transport>,
    failed: bool,
}

impl Transport for Sending {
    fn buffers(&mut self) -> &mut dyn Buffers {
        self.inner.buffers()
    }

    fn transmit_output(&mut self, amount: usize, timeout: NextTimeout) -> Result<(), Error> {
        if self.failed {
            return Ok(());
        }
        match self.inner.transmit_output(amount, timeout) {
            Err(Error::Io(e)) if is_closed(&e) => {
                self.failed = true;
                Ok(())
            }
            other => other,
        }
    }

    fn await_input(&mut self, timeout: NextTimeout) -> Result<bool, Error> {
        self.inner.await_input(timeout)
    }

    fn is_open(&mut self) -> bool {
        !self.failed && self.inner.is_open()
    }
}

/// A connection that knows whether it has served before, and whether anything of the current answer came.
#[derive(Debug)]
pub(super) struct Watched {
    inner: Box<dyn Transport>,
    heard: bool,
    served: bool,
}

impl Watched {
    fn is_stale(&self) -> bool {
        self.served && !self.heard
    }
}

impl Transport for Watched {
    fn buffers(&mut self) -> &mut dyn Buffers {
        self.inner.buffers()
    }

    fn transmit_output(&mut self, amount: usize, timeout: NextTimeout) -> Result<(), Error> {
        // After an answer, what is sent is the next request.
        self.served |= std::mem::take(&mut self.heard);
        match self.inner.transmit_output(amount, timeout) {
            Err(Error::Io(e)) if self.is_stale() && is_closed(&e) => Err(Error::Other(Box::new(Stale))),
            other => other,
        }
    }

    fn await_input(&mut self, timeout: NextTimeout) -> Result<bool, Error> {
        match self.inner.await_input(timeout) {
            Ok(false) if self.is_stale() => Err(Error::Other(Box::new(Stale))),
            Err(Error::Io(e)) if self.is_stale() && is_closed(&e) => Err(Error::Other(Box::new(Stale))),
            Ok(came) => {
                self.heard |= came;
                Ok(came)
            }
            Err(e) => Err(e),
        }
    }

    fn is_open(&mut self) -> bool {
        self.inner.is_open()
    }

    fn is_tls(&self) -> bool {
        self.inner.is_tls()
    }
}
