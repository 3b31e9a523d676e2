//! The folder of a running daemon, and the lock that says that one dq-master runs in it.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::signal::kill;
use nix::unistd::Pid;

/// Why a master cannot run in a folder.
#[derive(Debug, thiserror::Error)]
pub enum RunDirError {
    /// Another one does.
    #[error("another dq-master ({pid}) runs in {}", path.display())]
    Taken {
        /// The folder.
        path: PathBuf,
        /// What the lock's file says of it.
        pid: String,
        /// Whether it is dead, and something else holds the lock.
        dead: bool,
    },
    /// The folder cannot be used.
    #[error("cannot use run_dir {}: {source}", path.display())]
    Unusable {
        /// The folder.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

/// A folder that this process alone runs in, until it ends.
#[derive(Debug)]
pub struct RunDir {
    /// Holds the lock; children do not inherit it.
    lock: File,
}

impl RunDir {
    /// Makes the folder where it is missing, and locks it. A lock whose master is dead is tried again for `patience`: what
    /// that was about to start may hold it for a moment.
    pub fn take(path: &Path, patience: Duration) -> Result<RunDir, RunDirError> {
        let until = Instant::now() + patience;
        loop {
            match RunDir::try_take(path) {
                Err(RunDirError::Taken { dead: true, .. }) if Instant::now() < until => {
                    std::thread::sleep(Duration::from_millis(20));
                }
                other => return other,
            }
        }
    }

    fn try_take(path: &Path) -> Result<RunDir, RunDirError> {
        let unusable = |source| RunDirError::Unusable { path: path.to_owned(), source };
        std::fs::create_dir_all(path).map_err(unusable)?;
        let file = path.join("dq-master.pid");
        let mut lock = OpenOptions::new()
            .create(true)
            .truncate(false)
            .read(true)
            .write(true)
            .open(file)
            .map_err(unusable)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let mut pid = String::new();
                lock.read_to_string(&mut pid).map_err(unusable)?;
                let number: Option<i32> = pid.trim().parse().ok().filter(|n| *n > 0);
                let dead = number.is_some_and(|n| kill(Pid::from_raw(n), None) == Err(Errno::ESRCH));
                let pid = format!("pid {}", pid.trim());
                return Err(RunDirError::Taken { path: path.to_owned(), pid, dead });
            }
            Err(TryLockError::Error(e)) => return Err(unusable(e)),
        }
        let note = |lock: &mut File| -> io::Result<()> {
            lock.set_len(0)?;
            lock.rewind()?;
            writeln!(lock, "{}", std::process::id())
        };
        note(&mut lock).map_err(unusable)?;
        Ok(RunDir { lock })
    }

    /// The lock as it was handed over to the next image of this process.
    pub fn handed_over(lock: OwnedFd) -> RunDir {
        RunDir { lock: lock.into() }
    }
}

impl AsFd for RunDir {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.lock.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_runs_in_a_folder_at_a_time() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("var/run");
        let first = RunDir::take(&path, Duration::ZERO).unwrap();
        let message = RunDir::take(&path, Duration::from_secs(60)).unwrap_err().to_string();
        assert!(message.contains(&format!("pid {}", std::process::id())), "{message}");
        drop(first);
        drop(RunDir::take(&path, Duration::ZERO).unwrap());
        // Held by what a dead master has left: its number is nobody's.
        let left = File::open(path.join("dq-master.pid")).unwrap();
        left.lock().unwrap();
        std::fs::write(path.join("dq-master.pid"), "2147483647\n").unwrap();
        let soon = std::thread::spawn({
            let path = path.clone();
            move || RunDir::take(&path, Duration::from_secs(60)).is_ok()
        });
        assert!(RunDir::take(&path, Duration::ZERO).is_err());
        drop(left);
        assert!(soon.join().unwrap());
    }
}
