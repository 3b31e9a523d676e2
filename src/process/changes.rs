//! Tells that a file may have changed, however that was done: written in place, replaced by another under its name, or by
//! a link that leads elsewhere.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};

/// A watch on the folders in which a file lies: by its name, and by where links lead to.
#[derive(Debug)]
pub struct Changes {
    inotify: Inotify,
    path: PathBuf,
}

impl Changes {
    /// Watches from now on.
    pub fn of(path: &Path) -> io::Result<Changes> {
        let inotify = Inotify::init(InitFlags::IN_NONBLOCK | InitFlags::IN_CLOEXEC)?;
        let changes = Changes { inotify, path: std::path::absolute(path)? };
        changes.watch()?;
        Ok(changes)
    }

    fn watch(&self) -> io::Result<()> {
        let flags = AddWatchFlags::IN_CLOSE_WRITE
            | AddWatchFlags::IN_MOVED_TO
            | AddWatchFlags::IN_CREATE
            | AddWatchFlags::IN_ONLYDIR;
        let folder = |path: &Path| path.parent().map(Path::to_owned);
        let real = std::fs::canonicalize(&self.path).ok().and_then(|path| folder(&path));
        // To watch a folder again changes nothing.
        for folder in folder(&self.path).into_iter().chain(real) {
            self.inotify.add_watch(&folder, flags)?;
        }
        Ok(())
    }

    /// Whether anything has happened there since the last call.
    pub fn take(&mut self) -> io::Result<bool> {
        let mut any = false;
        loop {
            match self.inotify.read_events() {
                Ok(events) => any |= !events.is_empty(),
                Err(Errno::EAGAIN) => break,
                Err(Errno::EINTR) => {}
                Err(e) => return Err(e.into()),
            }
        }
        if any {
            // A link may lead elsewhere by now.
            self.watch()?;
        }
        Ok(any)
    }
}

impl AsFd for Changes {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inotify.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    #[test]
    fn a_file_that_is_written_replaced_or_linked_elsewhere_is_told_of() {
        let dir = tempfile::tempdir().unwrap();
        let (a, b) = (dir.path().join("a"), dir.path().join("b"));
        for folder in [&a, &b] {
            fs::create_dir(folder).unwrap();
            fs::write(folder.join("dq.toml"), "").unwrap();
        }
        // As a mounted configuration has it: the file is a link through a folder that is a link.
        symlink(&a, dir.path().join("data")).unwrap();
        fs::create_dir(dir.path().join("conf")).unwrap();
        let path = dir.path().join("conf/dq.toml");
        symlink("../data/dq.toml", &path).unwrap();
        let mut changes = Changes::of(&path).unwrap();
        assert!(!changes.take().unwrap());
        fs::write(a.join("dq.toml"), "x").unwrap();
        assert!(changes.take().unwrap(), "written where the link leads");
        fs::write(dir.path().join("conf/new"), "y").unwrap();
        fs::rename(dir.path().join("conf/new"), &path).unwrap();
        assert!(changes.take().unwrap(), "replaced");
        assert!(!changes.take().unwrap());
    }
}
