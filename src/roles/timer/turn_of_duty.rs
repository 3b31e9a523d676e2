//! Which of the timers of a `run_dir` is active: the one that holds the lock. The kernel gives it on when that one
//! dies.

use std::fs::OpenOptions;
use std::io::{self, ErrorKind, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;

/// A wait for the lock: readable as soon as this process holds it, which it then does to its end.
#[derive(Debug)]
pub(super) struct TurnOfDuty(UnixStream);

impl TurnOfDuty {
    pub(super) fn await_in(run_dir: &Path) -> io::Result<TurnOfDuty> {
        let lock =
            OpenOptions::new().create(true).truncate(false).write(true).open(run_dir.join("timer.lock"))?;
        let (held, tell) = UnixStream::pair()?;
        // A lock can only be waited for by a thread.
        std::thread::Builder::new().name("stand-by".into()).spawn(move || {
            loop {
                match lock.lock() {
                    Ok(()) => break,
                    Err(e) if e.kind() == ErrorKind::Interrupted => {}
                    Err(e) => {
                        log::error!("cannot wait for the timers' lock: {e}");
                        std::process::abort();
                    }
                }
            }
            // Held until the process ends, as is the other end of the pair: that it is closed would tell as well.
            let _ = (&tell).write(&[1]);
            std::mem::forget((lock, tell));
        })?;
        Ok(TurnOfDuty(held))
    }
}

impl AsFd for TurnOfDuty {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
