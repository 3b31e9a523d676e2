//! An answer that comes before the request was read to its end, as of a body that is too long: the daemon reads no further, and what
//! it has said is still there to be read.

use std::io::ErrorKind;

use ureq::Error;
use ureq::unversioned::transport::{Buffers, ConnectionDetails, Connector, NextTimeout, Transport};

/// Has connections looked at for an early answer.
#[derive(Debug)]
pub(super) struct Early;

impl<In: Transport> Connector<In> for Early {
    type Out = Heard<In>;

    fn connect(&self, _: &ConnectionDetails<'_>, made: Option<In>) -> Result<Option<Self::Out>, Error> {
        Ok(made.map(Heard))
    }
}

/// A connection whose end while something is sent is no end of what is received.
#[derive(Debug)]
pub(super) struct Heard<T>(T);

impl<T: Transport> Transport for Heard<T> {
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
