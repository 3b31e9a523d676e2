//! Signals as a descriptor: a handler notes the signal and writes a byte, and the loop reads it.

use std::io::{self, ErrorKind, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use nix::sys::signal::Signal;

/// The signals that a process catches. They stay caught when this is dropped.
#[derive(Debug)]
pub struct Signals {
    woken: UnixStream,
    noted: Vec<(Signal, Arc<AtomicBool>)>,
}

impl Signals {
    /// Catches these signals from now on.
    pub fn catch(signals: &[Signal]) -> io::Result<Signals> {
        let (woken, wake) = UnixStream::pair()?;
        woken.set_nonblocking(true)?;
        let mut noted = Vec::new();
        for &signal in signals {
            let flag = Arc::new(AtomicBool::new(false));
            // The flag is registered first, so that it is set when the byte wakes the loop.
            signal_hook::flag::register(signal as i32, Arc::clone(&flag))?;
            signal_hook::low_level::pipe::register(signal as i32, wake.try_clone()?)?;
            noted.push((signal, flag));
        }
        Ok(Signals { woken, noted })
    }

    /// Returns the signals that arrived since the last call, each once.
    pub fn take(&mut self) -> io::Result<Vec<Signal>> {
        let mut buffer = [0; 64];
        loop {
            match self.woken.read(&mut buffer) {
                Ok(0) => break,
                Ok(_) => {}
                Err(e) if e.kind() == ErrorKind::WouldBlock => break,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(self
            .noted
            .iter()
            .filter(|(_, flag)| flag.swap(false, Ordering::SeqCst))
            .map(|(s, _)| *s)
            .collect())
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.woken.as_fd()
    }
}
