//! Tells that a file may have changed, however that was done: written in place, replaced by another under its name, or by
//! a link that leads elsewhere.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};

/// So many links are followed one into another.
const LINKS_MAX: usize = 16;

/// The folders in which something may change that leads to the file: its own, those of every link on the way, where those
/// lead to; and where one is missing, the one in which it would be.
fn folders_of(path: &Path, links_left: usize) -> Vec<PathBuf> {
    let mut folders: Vec<PathBuf> = path.parent().map(Path::to_owned).into_iter().collect();
    // From the root to the file itself.
    let mut prefixes: Vec<&Path> = path.ancestors().collect();
    prefixes.reverse();
    for prefix in prefixes {
        let Some(parent) = prefix.parent() else { continue };
        match std::fs::read_link(prefix) {
            Ok(target) if links_left > 0 => {
                folders.push(parent.to_owned());
                let rest = path.strip_prefix(prefix).unwrap_or(Path::new(""));
                // An absolute target takes the place of all before it.
                let led = if rest.as_os_str().is_empty() {
                    parent.join(target)
                } else {
                    parent.join(target).join(rest)
                };
                folders.extend(folders_of(&led, links_left - 1));
                return folders;
            }
            Ok(_) => return folders,
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                folders.push(parent.to_owned());
                return folders;
            }
            // No link.
            Err(_) => {}
        }
    }
    folders
}

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

    /// Watches all folders in which a change may be one of the file's. To be called again when that may have changed; to watch
    /// a folder again changes nothing.
    pub fn watch(&self) -> io::Result<()> {
        let flags = AddWatchFlags::IN_CLOSE_WRITE
            | AddWatchFlags::IN_MOVED_TO
            | AddWatchFlags::IN_CREATE
            | AddWatchFlags::IN_ONLYDIR;
        let mut any = false;
        for folder in folders_of(&self.path, LINKS_MAX) {
            match self.inotify.add_watch(&folder, flags) {
                Ok(_) => any = true,
                // Another look is taken when it comes: the one that it is in is watched.
                Err(Errno::ENOENT | Errno::ENOTDIR) => {}
                Err(e) => return Err(e.into()),
            }
        }
        if any { Ok(()) } else { Err(io::Error::other("none of its folders can be watched")) }
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

        // The folder's link leads elsewhere; and then the folder is made anew.
        let path = dir.path().join("data/dq.toml");
        let mut changes = Changes::of(&path).unwrap();
        symlink(&b, dir.path().join("next")).unwrap();
        fs::rename(dir.path().join("next"), dir.path().join("data")).unwrap();
        assert!(changes.take().unwrap(), "led elsewhere");
        fs::write(b.join("dq.toml"), "x").unwrap();
        assert!(changes.take().unwrap(), "written there");
        fs::remove_dir_all(&b).unwrap();
        let _ = changes.take().unwrap();
        changes.watch().unwrap();
        fs::create_dir(&b).unwrap();
        assert!(changes.take().unwrap(), "made anew");
        fs::write(b.join("dq.toml"), "y").unwrap();
        assert!(changes.take().unwrap(), "and written");
    }
}
