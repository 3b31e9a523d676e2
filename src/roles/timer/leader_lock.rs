//! Decides which timer of a `run_dir` is active: the timer that holds the lock. When this timer dies, the kernel gives
//! the lock to another timer.

use std::fs::OpenOptions;
use std::io::{self, ErrorKind, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;

/// A wait for the lock. It is readable once this process has the lock. The process then keeps the lock until it ends.
#[derive(Debug)]
pub(super) struct LeaderLock(UnixStream);

impl LeaderLock {
    pub(super) fn await_in(run_dir: &Path) -> io::Result<LeaderLock> {
        let lock =
            OpenOptions::new().create(true).truncate(false).write(true).open(run_dir.join("timer.lock"))?;
        let (held, tell) = UnixStream::pair()?;
        // A wait for the lock blocks its thread, so the wait has a thread of its own.
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
            // The lock and this end of the pair are kept until the process ends. Closing this end would also make the
            // other end readable.
            let _ = (&tell).write(&[1]);
            std::mem::forget((lock, tell));
        })?;
        Ok(LeaderLock(held))
    }
}

impl AsFd for LeaderLock {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
