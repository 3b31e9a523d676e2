//! Reads an answer that comes before the daemon has read the whole request, for example because the body is too long.
//! The daemon then stops reading, but its answer can still be read.

use std::io::ErrorKind;

use ureq::Error;
use ureq::unversioned::transport::{Buffers, ConnectionDetails, Connector, NextTimeout, Transport};

/// Wraps connections, so that an answer is read even if it comes before the whole request is sent.
#[derive(Debug)]
pub(super) struct EarlyAnswerConnector;

impl<In: Transport> Connector<In> for EarlyAnswerConnector {
    type Out = EarlyAnswerTransport<In>;

    fn connect(&self, _: &ConnectionDetails<'_>, made: Option<In>) -> Result<Option<Self::Out>, Error> {
        Ok(made.map(EarlyAnswerTransport))
    }
}

/// A connection that can still be read after sending on it has failed.
#[derive(Debug)]
pub(super) struct EarlyAnswerTransport<T>(T);

impl<T: Transport> Transport for EarlyAnswerTransport<T> {
    fn buffers(&mut self) -> &mut dyn Buffers {
        self.0.buffers()
    }

    fn transmit_output(&mut self, amount: usize, timeout: NextTimeout) -> Result<(), Error> {
        match self.0.transmit_output(amount, timeout) {
            Err(Error::Io(e)) if matches!(e.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset) => {
                Ok(())
            }
            other => other,
        }
    }

    fn await_input(&mut self, timeout: NextTimeout) -> Result<bool, Error> {
        self.0.await_input(timeout)
    }

    fn is_open(&mut self) -> bool {
        self.0.is_open()
    }

    fn is_tls(&self) -> bool {
        self.0.is_tls()
    }
}
