//! Reports that a file may have changed: it was written in place, another file replaced it, or a link on its path leads
//! elsewhere.

use std::fs::Metadata;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};

/// The inode of a file, and when it was written: seconds and nanoseconds. It differs if another file has replaced the
/// file, or if it was written in place.
pub type FileVersion = (u64, i64, i64);

/// Returns the version of a file.
pub fn version_of(file: &Metadata) -> FileVersion {
    (file.ino(), file.mtime(), file.mtime_nsec())
}

/// Returns where this process writes the new contents of a file before it renames them to the file. During a restart,
/// two processes may write at the same time, so each process has a draft of its own.
pub fn draft_of(path: &Path) -> PathBuf {
    path.with_extension(format!("draft-{}", std::process::id()))
}

/// How many links on the path of a file are followed.
const LINKS_MAX: usize = 16;

/// Returns the folders where a change may affect the file: its own folder, the folder of each link on its path, and the
/// folders to which these links lead. If a part of the path is missing, the last folder of the result is the folder
/// where this part would be.
fn folders_of(path: &Path, links_left: usize) -> Vec<PathBuf> {
    let mut folders: Vec<PathBuf> = path.parent().map(Path::to_owned).into_iter().collect();
    // The prefixes are sorted from the root to the file itself.
    let mut prefixes: Vec<&Path> = path.ancestors().collect();
    prefixes.reverse();
    for prefix in prefixes {
        let Some(parent) = prefix.parent() else { continue };
        match std::fs::read_link(prefix) {
            Ok(target) if links_left > 0 => {
                folders.push(parent.to_owned());
                let rest = path.strip_prefix(prefix).unwrap_or(Path::new(""));
                // If the target of the link is absolute, `join` leaves the parent out.
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
            // This prefix is not a link.
            Err(_) => {}
        }
    }
    folders
}

/// A watch on the folders of a file: its own folder, the folder of each link on its path, and the folders to which
/// these links lead.
#[derive(Debug)]
pub struct FileWatcher {
    inotify: Inotify,
    path: PathBuf,
}

impl FileWatcher {
    /// Watches the file from now on.
    pub fn new(path: &Path) -> io::Result<FileWatcher> {
        let inotify = Inotify::init(InitFlags::IN_NONBLOCK | InitFlags::IN_CLOEXEC)?;
        let changes = FileWatcher { inotify, path: std::path::absolute(path)? };
        changes.watch()?;
        Ok(changes)
    }

    /// Watches all folders where a change may affect the file. Call it again when these folders may have changed.
    /// Watching a folder twice has no effect.
    pub fn watch(&self) -> io::Result<()> {
        let flags = AddWatchFlags::IN_CLOSE_WRITE
            | AddWatchFlags::IN_MOVED_TO
            | AddWatchFlags::IN_CREATE
            | AddWatchFlags::IN_ONLYDIR;
        let mut any = false;
        for folder in folders_of(&self.path, LINKS_MAX) {
            match self.inotify.add_watch(&folder, flags) {
                Ok(_) => any = true,
                // A watched parent folder reports when the missing folder is created. This function is called again
                // then.
                Err(Errno::ENOENT | Errno::ENOTDIR) => {}
                Err(e) => return Err(e.into()),
            }
        }
        if any { Ok(()) } else { Err(io::Error::other("none of its folders can be watched")) }
    }

    /// Returns whether anything has happened in the folders since the last call.
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
            // A link may lead elsewhere now.
            self.watch()?;
        }
        Ok(any)
    }
}

impl AsFd for FileWatcher {
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
    fn a_written_replaced_or_relinked_file_counts_as_changed() {
        let dir = tempfile::tempdir().unwrap();
        let (a, b) = (dir.path().join("a"), dir.path().join("b"));
        for folder in [&a, &b] {
            fs::create_dir(folder).unwrap();
            fs::write(folder.join("dq.toml"), "").unwrap();
        }
        // Like a configuration that Kubernetes mounts: the file is a link, and its target is in a folder that is a link
        // too.
        symlink(&a, dir.path().join("data")).unwrap();
        fs::create_dir(dir.path().join("conf")).unwrap();
        let path = dir.path().join("conf/dq.toml");
        symlink("../data/dq.toml", &path).unwrap();
        let mut changes = FileWatcher::new(&path).unwrap();
        assert!(!changes.take().unwrap());
        fs::write(a.join("dq.toml"), "x").unwrap();
        assert!(changes.take().unwrap(), "written where the link leads");
        fs::write(dir.path().join("conf/new"), "y").unwrap();
        fs::rename(dir.path().join("conf/new"), &path).unwrap();
        assert!(changes.take().unwrap(), "replaced");
        assert!(!changes.take().unwrap());

        // The symbolic link is changed to another folder. Then that folder is removed and made again.
        let path = dir.path().join("data/dq.toml");
        let mut changes = FileWatcher::new(&path).unwrap();
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
