//! Signals as a descriptor: a handler notes the signal and writes a byte, and the main loop reads this byte.

use std::io::{self, ErrorKind, Read, Write as _};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use nix::sys::signal::Signal;

/// The signals that a process catches. The process still catches them after this value is dropped.
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
            // The flag is registered first, so that the flag is set when the byte wakes the main loop.
            signal_hook::flag::register(signal as i32, Arc::clone(&flag))?;
            signal_hook::low_level::pipe::register(signal as i32, wake.try_clone()?)?;
            noted.push((signal, flag));
        }
        // A signal that came between the two registrations has set its flag, but has written no byte.
        if noted.iter().any(|(_, flag)| flag.load(Ordering::SeqCst)) {
            (&wake).write_all(&[0])?;
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use nix::sys::signal::raise;

    use super::*;
    use crate::wait_readable;

    #[test]
    fn a_signal_that_comes_while_it_is_caught_wakes_the_loop() {
        // From here on, the signal does not end the process.
        let _first = Signals::catch(&[Signal::SIGURG]).unwrap();
        for round in 0..300 {
            let pause = Duration::from_nanos(round * 300);
            let sender = std::thread::spawn(move || {
                let begun = std::time::Instant::now();
                while begun.elapsed() < pause {}
                raise(Signal::SIGURG).unwrap();
            });
            let mut signals = Signals::catch(&[Signal::SIGURG]).unwrap();
            sender.join().unwrap();
            let is_woken = wait_readable(&[signals.as_fd()], Some(std::time::Instant::now())).unwrap();
            let noted = signals.take().unwrap();
            assert!(noted.is_empty() || is_woken[0], "round {round}: {noted:?} and no byte");
        }
    }
}
