//! The listening side of a bell: a socket in `run_dir/bells`. To hang a bell means to bind this socket to its file. If
//! somebody removes the file, the bell is hung again.
//!
//! The kernel reports when the socket's file is removed or replaced, or its folder is moved. So the process does not
//! have to check the file regularly. If a bell cannot be hung again, the process tries again once a second.

use std::fs::Metadata;
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};

use super::bell::{folder, prefix};
use crate::{Bell, BellKind};

/// The pause after a failure, before the next try.
const AGAIN: Duration = Duration::from_secs(1);

/// The place where a process waits for work. Its descriptor is readable after a ring, and when the bell may have to be
/// hung again.
#[derive(Debug)]
pub struct SocketBell {
    path: PathBuf,
    /// Wakes the process after a ring, a change of the socket's file, or an event of `clock`.
    wakes: Epoll,
    /// The timer for the next try to hang the bell again.
    clock: TimerFd,
    hung: Mutex<SocketBellState>,
}

#[derive(Debug)]
struct SocketBellState {
    socket: UnixDatagram,
    /// Device and inode of the socket's file. None: the file was removed, and a new socket and its watch could not be
    /// set up yet.
    file: Option<(u64, u64)>,
    /// The watch for changes. None: the host allows no more watches. If the file is then removed, the bell is not hung
    /// again.
    changes: Option<Inotify>,
}

impl SocketBell {
    /// Hangs a bell under a name that no other process uses.
    pub fn hang(run_dir: &Path, kind: BellKind, name: &str) -> io::Result<SocketBell> {
        host::make_folder_in_run_dir(&folder(run_dir))?;
        let path = folder(run_dir).join(format!("{}{name}", prefix(kind)));
        let wakes = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        let flags = TimerFlags::TFD_NONBLOCK | TimerFlags::TFD_CLOEXEC;
        let clock = TimerFd::new(ClockId::CLOCK_MONOTONIC, flags)?;
        wakes.add(&clock, EpollEvent::new(EpollFlags::EPOLLIN, 0))?;
        let (socket, file) = bind(&path)?;
        let changes = watch(&path)
            .inspect_err(|e| log::warn!("{} is not hung again if it is removed: {e}", path.display()))
            .ok();
        let hung = SocketBellState { socket, file: Some(file), changes };
        hung.wake(&wakes)?;
        Ok(SocketBell { path, wakes, clock, hung: Mutex::new(hung) })
    }

    fn hung(&self) -> MutexGuard<'_, SocketBellState> {
        self.hung.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Hangs the bell again if its file is not there any more. Returns whether the bell was hung again. If it was,
    /// rings may have been lost in the meantime.
    fn rehang(&self, hung: &mut SocketBellState) -> io::Result<bool> {
        let is_due = self.take_clock_event()?;
        if !hung.has_changed()? && !is_due || hung.is_there(&self.path) {
            return Ok(false);
        }
        match self.hang_again(hung) {
            Ok(()) => {
                log::warn!("{} was removed, and is hung again", self.path.display());
                Ok(true)
            }
            Err(e) => {
                if hung.file.take().is_some() {
                    log::error!("cannot hang {} again after it was removed: {e}", self.path.display());
                }
                let again = Expiration::OneShot(TimeSpec::from(AGAIN));
                self.clock.set(again, TimerSetTimeFlags::empty())?;
                Ok(false)
            }
        }
    }

    fn hang_again(&self, hung: &mut SocketBellState) -> io::Result<()> {
        match std::fs::create_dir(self.path.parent().unwrap_or(&self.path)) {
            Err(e) if e.kind() != ErrorKind::AlreadyExists => return Err(e),
            _ => {}
        }
        // A file at this path is never the bell of another process, because the names are random.
        match std::fs::remove_file(&self.path) {
            Err(e) if e.kind() != ErrorKind::NotFound => return Err(e),
            _ => {}
        }
        let (socket, file) = bind(&self.path)?;
        let next = SocketBellState { socket, file: Some(file), changes: Some(watch(&self.path)?) };
        if !next.is_there(&self.path) {
            return Err(io::Error::other("it was removed at once"));
        }
        next.wake(&self.wakes)?;
        // (The old descriptors are closed here, and wake nobody any more.)
        *hung = next;
        Ok(())
    }

    fn take_clock_event(&self) -> io::Result<bool> {
        match self.clock.wait() {
            Ok(()) => Ok(true),
            Err(Errno::EAGAIN) => Ok(false),
            Err(e) => Err(e.into()),
        }
    }
}

fn bind(path: &Path) -> io::Result<(UnixDatagram, (u64, u64))> {
    let socket = UnixDatagram::bind(path)?;
    socket.set_nonblocking(true)?;
    Ok((socket, name_of(&std::fs::symlink_metadata(path)?)))
}

fn name_of(file: &Metadata) -> (u64, u64) {
    (file.dev(), file.ino())
}

/// Returns a watch that reports when the file is removed or replaced, or its folder is moved.
fn watch(path: &Path) -> io::Result<Inotify> {
    let changes = Inotify::init(InitFlags::IN_NONBLOCK | InitFlags::IN_CLOEXEC)?;
    // (A removal changes the file's number of links, which is one of its attributes. A ring changes no attribute.)
    let file = AddWatchFlags::IN_ATTRIB | AddWatchFlags::IN_MOVE_SELF | AddWatchFlags::IN_DELETE_SELF;
    changes.add_watch(path, file)?;
    if let Some(folder) = path.parent() {
        let moved = AddWatchFlags::IN_MOVE_SELF | AddWatchFlags::IN_DELETE_SELF | AddWatchFlags::IN_ONLYDIR;
        changes.add_watch(folder, moved)?;
    }
    Ok(changes)
}

impl SocketBellState {
    fn wake(&self, wakes: &Epoll) -> io::Result<()> {
        let event = || EpollEvent::new(EpollFlags::EPOLLIN, 0);
        wakes.add(&self.socket, event())?;
        if let Some(changes) = &self.changes {
            wakes.add(changes, event())?;
        }
        Ok(())
    }

    /// Returns whether anything has changed since the last call.
    fn has_changed(&self) -> io::Result<bool> {
        let Some(changes) = &self.changes else { return Ok(false) };
        let mut any = false;
        loop {
            match changes.read_events() {
                Ok(events) => any |= !events.is_empty(),
                Err(Errno::EAGAIN) => return Ok(any),
                Err(Errno::EINTR) => {}
                Err(e) => return Err(e.into()),
            }
        }
    }

    /// Returns whether a ring at this path reaches this bell.
    fn is_there(&self, path: &Path) -> bool {
        std::fs::symlink_metadata(path).is_ok_and(|file| self.file == Some(name_of(&file)))
    }

    /// Takes all rings so far. Returns whether there were any.
    fn answer(&self) -> io::Result<bool> {
        let mut rang = false;
        loop {
            match self.socket.recv(&mut [0; 8]) {
                Ok(_) => rang = true,
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(rang),
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
    }
}

impl Bell for SocketBell {
    fn answer(&self) -> io::Result<bool> {
        let mut hung = self.hung();
        let rang = hung.answer()?;
        Ok(self.rehang(&mut hung)? || rang)
    }
}

impl AsFd for SocketBell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wakes.0.as_fd()
    }
}

impl Drop for SocketBell {
    fn drop(&mut self) {
        // If the file cannot be removed, the next ring removes it.
        let _ = std::fs::remove_file(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sqlite::bell::{BellRinger, PendingRings};

    const PUSH: PendingRings = PendingRings { push: true, timer: false };

    fn hang(run_dir: &Path) -> SocketBell {
        SocketBell::hang(run_dir, BellKind::Push, "a").unwrap()
    }

    fn rings(run_dir: &Path, bell: &SocketBell) -> bool {
        BellRinger::new(run_dir).ring(PUSH);
        bell.answer().unwrap()
    }

    #[test]
    fn a_removed_bell_counts_as_rung_and_works_again() {
        let dir = tempfile::tempdir().unwrap();
        let bell = hang(dir.path());
        let (bells, file) = (folder(dir.path()), folder(dir.path()).join("push.a"));
        assert!(rings(dir.path(), &bell) && !bell.answer().unwrap());
        let sweeps: [&dyn Fn(); 4] = [
            &|| std::fs::remove_file(&file).unwrap(),
            &|| std::fs::remove_dir_all(&bells).unwrap(),
            &|| std::fs::rename(&bells, dir.path().join("old")).unwrap(),
            &|| {
                std::fs::write(bells.join("b"), "")
                    .and_then(|()| std::fs::rename(bells.join("b"), &file))
                    .unwrap()
            },
        ];
        for sweep in sweeps {
            sweep();
            assert!(bell.answer().unwrap(), "somebody may have rung");
            assert!(!bell.answer().unwrap());
            assert!(rings(dir.path(), &bell));
        }
        drop(bell);
        assert!(!file.exists());
    }

    #[test]
    fn the_bells_of_others_come_and_go_unheard() {
        let dir = tempfile::tempdir().unwrap();
        let bell = hang(dir.path());
        drop(SocketBell::hang(dir.path(), BellKind::Push, "b").unwrap());
        let mut fds = [nix::poll::PollFd::new(bell.as_fd(), nix::poll::PollFlags::POLLIN)];
        assert_eq!(nix::poll::poll(&mut fds, nix::poll::PollTimeout::ZERO).unwrap(), 0);
    }
}
