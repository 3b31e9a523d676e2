//! Owners of leases. Each process locks a file in `run_dir/owners` for as long as the process lives. The file's name is
//! a random tag. So other processes can tell a living owner from a dead one without a clock.
//!
//! A process may pass the descriptor of its lock to another one, together with some of its leases. The lock is free
//! when both processes have closed the descriptor.

use std::fs::{File, TryLockError};
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use nix::libc;
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};

use super::lock::make_folder_in_run_dir;

fn folder(run_dir: &Path) -> PathBuf {
    run_dir.join("owners")
}

/// Returns a name that no other process has or had.
pub fn random_name() -> io::Result<String> {
    let mut random = [0; 8];
    getrandom::fill(&mut random).map_err(io::Error::other)?;
    Ok(format!("{:016x}", u64::from_ne_bytes(random)))
}

/// The calling process as an owner of leases. When this value is dropped, the owner counts as dead if no other process
/// has the lock.
#[derive(Debug)]
pub struct Owner {
    tag: String,
    folder: PathBuf,
    lock: Option<OwnedFd>,
    /// Whether another process made this owner and passed its lock to this process.
    is_passed: bool,
}

impl Owner {
    /// Makes an owner with a new tag.
    pub fn claim(run_dir: &Path) -> io::Result<Owner> {
        let folder = folder(run_dir);
        make_folder_in_run_dir(&folder)?;
        let tag = random_name()?;
        // The file is locked before it gets its name. So a file named by a tag is never unlocked while its process
        // lives.
        let draft = folder.join(format!(".{tag}"));
        let mut lock = File::create_new(&draft)?;
        lock.lock()?;
        write!(lock, "{}", std::process::id())?;
        std::fs::rename(&draft, folder.join(&tag))?;
        Ok(Owner { tag, folder, lock: Some(lock.into()), is_passed: false })
    }

    /// Takes over an owner: another process has passed the lock of this owner.
    pub fn take_over(run_dir: &Path, tag: String, lock: OwnedFd) -> Owner {
        Owner { tag, folder: folder(run_dir), lock: Some(lock), is_passed: true }
    }

    /// Returns the owner's lock, to pass it to another process.
    pub fn lock(&self) -> BorrowedFd<'_> {
        self.lock.as_ref().expect("it is there until the drop").as_fd()
    }

    /// Returns the tag.
    pub fn tag(&self) -> &str {
        &self.tag
    }

    /// Removes the file of the tag. Call this only when no lease has this tag any more.
    pub fn retire(self) -> io::Result<()> {
        std::fs::remove_file(self.folder.join(&self.tag))
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        drop(self.lock.take());
        // The timer learns that an owner has ended when a process ends. This process continues to run after this owner
        // has ended. So nothing reports the end of this owner. Therefore, a new file is made here, which makes the
        // timer look at all owners.
        if self.is_passed
            && let Some(run_dir) = self.folder.parent()
            && let Err(e) = Owner::claim(run_dir)
        {
            log::warn!("the leases of an earlier process are looked at later: {e}");
        }
    }
}

impl PartialEq for Owner {
    fn eq(&self, other: &Owner) -> bool {
        self.tag == other.tag
    }
}

impl Eq for Owner {}

/// An owner whose process is gone. This value holds the lock of its file.
#[derive(Debug)]
pub struct DeadOwner {
    /// Its tag.
    pub tag: String,
    path: PathBuf,
    _lock: File,
}

impl DeadOwner {
    /// Removes the owner's file. Call this when the leases of the owner have been handed back.
    pub fn forget(self) -> io::Result<()> {
        std::fs::remove_file(&self.path)
    }
}

/// Watches the owners of a `run_dir`.
#[derive(Debug)]
pub struct Owners {
    folder: PathBuf,
    newcomers: Inotify,
    living: Vec<OwnedFd>,
}

impl Owners {
    /// Starts watching. Call [`Owners::dead`] once before the first wait.
    pub fn watch(run_dir: &Path) -> io::Result<Owners> {
        let folder = folder(run_dir);
        make_folder_in_run_dir(&folder)?;
        let newcomers = Inotify::init(InitFlags::IN_NONBLOCK | InitFlags::IN_CLOEXEC)?;
        newcomers.add_watch(&folder, AddWatchFlags::IN_MOVED_TO)?;
        Ok(Owners { folder, newcomers, living: Vec::new() })
    }

    /// Returns the descriptors that become readable when an owner appears or ends. Call [`Owners::dead`] then.
    pub fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        std::iter::once(self.newcomers.as_fd()).chain(self.living.iter().map(AsFd::as_fd))
    }

    /// Returns the owners whose process is gone. An owner that another process already holds as a [`DeadOwner`] is left
    /// out. If somebody has removed the folder, no owner is known to be dead.
    pub fn dead(&mut self) -> io::Result<Vec<DeadOwner>> {
        // The events themselves do not matter, because all owners are checked.
        while self.newcomers.read_events().is_ok_and(|events| !events.is_empty()) {}
        self.living.clear();
        let mut dead = Vec::new();
        let entries = match std::fs::read_dir(&self.folder) {
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(dead),
            other => other?,
        };
        for entry in entries {
            let path = entry?.path();
            let Some(tag) = path.file_name().and_then(|n| n.to_str()).filter(|n| !n.starts_with('.')) else {
                continue;
            };
            let look = OwnerCheck::at(&path).unwrap_or_else(|e| {
                log::error!("cannot tell whether {} lives: {e}", path.display());
                OwnerCheck::Gone
            });
            match look {
                OwnerCheck::Dead(lock) => dead.push(DeadOwner { tag: tag.to_owned(), path, _lock: lock }),
                OwnerCheck::Lives(watch) => self.living.push(watch),
                OwnerCheck::Gone => {}
            }
        }
        Ok(dead)
    }
}

enum OwnerCheck {
    Dead(File),
    Lives(OwnedFd),
    Gone,
}

impl OwnerCheck {
    fn at(path: &Path) -> io::Result<OwnerCheck> {
        let mut file = match File::open(path) {
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(OwnerCheck::Gone),
            other => other?,
        };
        let mut pid = String::new();
        file.read_to_string(&mut pid)?;
        // The watch begins before the lock is tried. If the process ends after this, the watch reports it. If the
        // process has already ended, its lock is free, even if another process has the same pid now.
        let watch = pid.trim().parse().ok().and_then(|pid| watch(pid).ok());
        match (file.try_lock(), watch) {
            (Ok(()), _) => Ok(OwnerCheck::Dead(file)),
            (Err(TryLockError::WouldBlock), Some(watch)) => Ok(OwnerCheck::Lives(watch)),
            // Another process is handing back the leases of this owner.
            (Err(TryLockError::WouldBlock), None) => Ok(OwnerCheck::Gone),
            (Err(TryLockError::Error(e)), _) => Err(e),
        }
    }
}

/// Returns a descriptor that becomes readable when the process ends.
fn watch(pid: libc::pid_t) -> io::Result<OwnedFd> {
    // SAFETY: the call takes two numbers. It returns -1, or a new descriptor that nobody else owns.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: as above.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_owner_lives_while_one_of_two_processes_has_its_lock() {
        let dir = tempfile::tempdir().unwrap();
        let mut owners = Owners::watch(dir.path()).unwrap();
        let mut dead = || owners.dead().unwrap().into_iter().map(|one| one.tag.clone()).collect::<Vec<_>>();
        let first = Owner::claim(dir.path()).unwrap();
        let tag = first.tag().to_owned();
        let lock = first.lock().try_clone_to_owned().unwrap();
        let second = Owner::take_over(dir.path(), tag.clone(), lock);
        drop(first);
        assert_eq!(dead(), Vec::<String>::new());
        let waker = Inotify::init(InitFlags::IN_NONBLOCK).unwrap();
        waker.add_watch(&folder(dir.path()), AddWatchFlags::IN_MOVED_TO).unwrap();
        drop(second);
        assert!(!waker.read_events().unwrap().is_empty(), "the timer looks at the owners");
        assert!(dead().contains(&tag));
    }

    #[test]
    fn a_living_owner_is_watched_and_a_dead_one_found() {
        let dir = tempfile::tempdir().unwrap();
        let mut owners = Owners::watch(dir.path()).unwrap();
        let mut look = || {
            let dead = owners.dead().unwrap();
            (dead, owners.fds().count() - 1)
        };
        let (a, b) = (Owner::claim(dir.path()).unwrap(), Owner::claim(dir.path()).unwrap());
        let (dead, living) = look();
        assert_eq!((dead.len(), living), (0, 2));
        let tag = a.tag().to_owned();
        drop(a);
        let (mut dead, living) = look();
        assert_eq!((dead.len(), living), (1, 1));
        let dead = dead.remove(0);
        assert_eq!(dead.tag, tag);
        dead.forget().unwrap();
        b.retire().unwrap();
        let (dead, living) = look();
        assert_eq!((dead.len(), living), (0, 0));
    }
}
