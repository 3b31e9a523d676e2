//! The folder of a running daemon, and its lock: only one dq-master runs in a folder.

use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::signal::kill;
use nix::unistd::Pid;

/// The lock's file.
const FILE: &str = "dq-master.pid";

/// The file that notes which file of the embedded store the daemon uses. A dq-master that starts removes it.
pub(super) const USED_FILE: &str = "store-file";

/// Why a master cannot run in a folder.
#[derive(Debug, thiserror::Error)]
pub enum RunDirError {
    /// Another master runs in it.
    #[error("another dq-master ({pid}) runs in {}", path.display())]
    Taken {
        /// The folder.
        path: PathBuf,
        /// The pid that is written in the lock's file.
        pid: String,
        /// Whether that master is dead or is ending. Then its lock may be free soon.
        dead: bool,
    },
    /// The folder cannot be used.
    #[error("cannot use run_dir {}: {source}", path.display())]
    Unusable {
        /// The folder.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
}

/// A folder in which no other master runs until this process ends.
#[derive(Debug)]
pub struct RunDirLock {
    /// The file with the lock. Children do not inherit it.
    lock: File,
}

impl RunDirLock {
    /// Makes the folder if it is missing, and locks it. If the master that wrote the lock's file is dead or is ending,
    /// the lock is tried again for `patience`. That master, or a child that it was just starting, may still hold the
    /// lock for a moment.
    pub fn take(path: &Path, patience: Duration) -> Result<RunDirLock, RunDirError> {
        let until = Instant::now() + patience;
        loop {
            match RunDirLock::try_take(path) {
                Err(RunDirError::Taken { dead: true, .. }) if Instant::now() < until => {
                    std::thread::sleep(Duration::from_millis(20));
                }
                other => return other,
            }
        }
    }

    fn try_take(path: &Path) -> Result<RunDirLock, RunDirError> {
        let unusable = |source| RunDirError::Unusable { path: path.to_owned(), source };
        std::fs::create_dir_all(path).map_err(unusable)?;
        let file = path.join(FILE);
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
                // A master that ends empties the file first.
                let dead =
                    number.map_or(pid.is_empty(), |n| kill(Pid::from_raw(n), None) == Err(Errno::ESRCH));
                let pid = if pid.is_empty() { "it ends".to_owned() } else { format!("pid {}", pid.trim()) };
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
        match std::fs::remove_file(path.join(USED_FILE)) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(unusable(e)),
            _ => {}
        }
        Ok(RunDirLock { lock })
    }

    /// Empties the lock's file. Call this when the master ends, because another process may soon get the pid that is in
    /// the file.
    pub fn remove_pid(&self) -> io::Result<()> {
        self.lock.set_len(0)
    }

    /// Takes the lock that the previous image of this process handed over.
    pub fn handed_over(lock: OwnedFd) -> RunDirLock {
        RunDirLock { lock: lock.into() }
    }
}

/// Makes a folder in `run_dir` if it is missing. Also makes `run_dir` itself, so that a daemon continues if somebody
/// removes `run_dir`.
pub fn make_folder_in_run_dir(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}

/// Returns whether the folder still has the file of its dq-master. Without this file, `dq` finds no daemon there, and
/// another dq-master could start.
pub fn has_lock(run_dir: &Path) -> bool {
    run_dir.join(FILE).exists()
}

/// Returns whether a master runs in a folder.
pub fn is_run_dir_taken(path: &Path) -> bool {
    let Ok(file) = File::open(path.join(FILE)) else { return false };
    matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock))
}

impl AsFd for RunDirLock {
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
        assert!(!is_run_dir_taken(&path));
        let first = RunDirLock::take(&path, Duration::ZERO).unwrap();
        assert!(is_run_dir_taken(&path));
        let message = RunDirLock::take(&path, Duration::from_secs(60)).unwrap_err().to_string();
        assert!(message.contains(&format!("pid {}", std::process::id())), "{message}");
        first.remove_pid().unwrap();
        assert_eq!(std::fs::read_to_string(path.join(FILE)).unwrap(), "");
        let message = RunDirLock::take(&path, Duration::ZERO).unwrap_err().to_string();
        assert!(message.contains("(it ends)"), "{message}");
        drop(first);
        assert!(!is_run_dir_taken(&path));
        drop(RunDirLock::take(&path, Duration::ZERO).unwrap());
        // A process that a dead master left behind holds the lock. No process has the pid in the file.
        let left = File::open(path.join("dq-master.pid")).unwrap();
        left.lock().unwrap();
        std::fs::write(path.join("dq-master.pid"), "2147483647\n").unwrap();
        let soon = std::thread::spawn({
            let path = path.clone();
            move || RunDirLock::take(&path, Duration::from_secs(60)).is_ok()
        });
        assert!(RunDirLock::take(&path, Duration::ZERO).is_err());
        drop(left);
        assert!(soon.join().unwrap());
    }
}
