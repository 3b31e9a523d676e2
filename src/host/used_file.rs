//! Remembers which file of the embedded store the processes of a daemon use. The first process that opens the file
//! notes it in `run_dir`, and the other processes open only this file. So no job is acknowledged into another file. If
//! the file is moved away and later moved back, it still has all jobs.
//!
//! | | no file at the path | the noted file | another file |
//! |---|---|---|---|
//! | nothing is noted | a new file is made, then noted | | this file is noted |
//! | a file is noted | refused | opened | refused |
//!
//! A process may die after it has made a file and before it has noted this file. The next process then finds a file
//! without a note, and notes it. This is the same as after each start of the daemon. If two processes try to note
//! different files, only the file of the first process is noted. The second process closes its file, and has not used
//! it. The note is removed when a dq-master takes `run_dir`. So only a start of the daemon can change to another file.

use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::lock::{USED_FILE, is_run_dir_taken};

/// Device and inode of a file.
pub type FileId = (u64, u64);

/// Returns the id of the file at this path. The file is not opened: if this process opened and closed the file of a
/// database, it would lose its locks on the file.
pub fn file_at(path: &Path) -> io::Result<FileId> {
    fs::metadata(path).map(|m| (m.dev(), m.ino()))
}

fn note_of(run_dir: &Path) -> PathBuf {
    run_dir.join(USED_FILE)
}

/// Returns the file that is noted. None: no file is noted.
pub fn used_file(run_dir: &Path) -> io::Result<Option<FileId>> {
    let note = note_of(run_dir);
    match fs::read_to_string(&note) {
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
        Err(e) => Err(e),
        Ok(text) => {
            let id = text
                .trim()
                .split_once(' ')
                .and_then(|(dev, ino)| Some((dev.parse().ok()?, ino.parse().ok()?)));
            let unreadable = || io::Error::other(format!("{} cannot be read: {text:?}", note.display()));
            id.ok_or_else(unreadable).map(Some)
        }
    }
}

/// Notes a file if no file is noted yet. Returns the noted file. If no daemon runs in `run_dir`, nothing is noted.
pub fn use_file(run_dir: &Path, (dev, ino): FileId) -> io::Result<FileId> {
    if !is_run_dir_taken(run_dir) {
        return Ok((dev, ino));
    }
    // The note is read before anything is written. On a full disk nothing can be written, but processes must still be
    // able to start.
    if let Some(used) = used_file(run_dir)? {
        return Ok(used);
    }
    // The note gets its name only when it is completely written.
    let draft = run_dir.join(format!("{USED_FILE}.{}", super::random_name()?));
    fs::write(&draft, format!("{dev} {ino}\n"))?;
    let linked = fs::hard_link(&draft, note_of(run_dir));
    fs::remove_file(&draft)?;
    match linked {
        Err(e) if e.kind() != ErrorKind::AlreadyExists => Err(e),
        _ => Ok(used_file(run_dir)?.unwrap_or((dev, ino))),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::lock::RunDirLock;
    use super::*;

    #[test]
    fn the_first_file_that_is_noted_stays_noted() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(use_file(dir.path(), (1, 1)).unwrap(), (1, 1));
        assert_eq!(used_file(dir.path()).unwrap(), None, "no daemon runs");
        let taken = RunDirLock::take(dir.path(), Duration::ZERO).unwrap();
        assert_eq!(use_file(dir.path(), (1, 2)).unwrap(), (1, 2));
        assert_eq!(use_file(dir.path(), (1, 3)).unwrap(), (1, 2));
        assert_eq!(used_file(dir.path()).unwrap(), Some((1, 2)));
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2, "drafts are removed");
        drop(taken);
        assert_eq!(used_file(dir.path()).unwrap(), Some((1, 2)), "its processes may outlive a dq-master");
        let _taken = RunDirLock::take(dir.path(), Duration::ZERO).unwrap();
        assert_eq!(use_file(dir.path(), (1, 3)).unwrap(), (1, 3));
    }
}
