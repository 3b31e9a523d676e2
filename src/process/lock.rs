//! The folder of a running daemon, and the lock that says that one dq-master runs in it.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

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
    /// Makes the folder where it is missing, and locks it.
    pub fn take(path: &Path) -> Result<RunDir, RunDirError> {
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
                return Err(RunDirError::Taken { path: path.to_owned(), pid: format!("pid {}", pid.trim()) });
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
        let first = RunDir::take(&path).unwrap();
        let message = RunDir::take(&path).unwrap_err().to_string();
        assert!(message.contains(&format!("pid {}", std::process::id())), "{message}");
        drop(first);
        RunDir::take(&path).unwrap();
    }
}
