//! New files get their names only when they are complete. Until then, they are in a temporary folder beside their final
//! place. The folder is removed even if the command fails.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use nix::fcntl::OFlag;
use nix::unistd::geteuid;

/// The beginning of the folders' names.
const PREFIX: &str = ".dq-backup-";

/// The largest number of tries to make a folder. Another process may remove a new folder as a leftover before this
/// process has locked the folder.
const TRIES: usize = 3;

/// A folder beside `place`. A new file is in this folder until it is complete. Then it is put at `place`.
#[derive(Debug)]
pub(super) struct Staging {
    folder: PathBuf,
    place: PathBuf,
    /// Locked while the process lives. So a folder without a lock was left by a process that was killed.
    _lock: File,
}

impl Staging {
    /// Makes the folder beside `place`. Also removes the folders that killed processes of this user have left there.
    pub(super) fn beside(place: &Path) -> Result<Staging> {
        let parent = folder_of(place);
        remove_leftovers(parent);
        for _ in 0..TRIES {
            let folder = parent.join(format!("{PREFIX}{}", host::random_name()?));
            DirBuilder::new()
                .mode(0o700)
                .create(&folder)
                .with_context(|| format!("cannot write to {}", parent.display()))?;
            if let Some(lock) = locked(&folder).filter(|_| folder.is_dir()) {
                return Ok(Staging { folder, place: place.to_owned(), _lock: lock });
            }
        }
        bail!("another dq backup or dq restore removes the new folders in {}: try again", parent.display())
    }

    /// Returns the path of a file in the folder.
    pub(super) fn file(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Returns where the complete file will be.
    pub(super) fn place(&self) -> &Path {
        &self.place
    }

    /// Puts a complete file in its place, and makes sure that this change is on the disk. If a file is already at that
    /// place, that file stays, and this function fails.
    pub(super) fn publish(&self, name: &str) -> Result<()> {
        let (file, place) = (self.file(name), &self.place);
        // If the folder belongs to another user, that user may have put a link there.
        let opened = OpenOptions::new().read(true).custom_flags(OFlag::O_NOFOLLOW.bits()).open(&file)?;
        opened.sync_all()?;
        give_to_owner(&opened, folder_of(place)).context("cannot set the owner")?;
        match std::fs::hard_link(&file, place) {
            Ok(()) => {}
            Err(e) if e.kind() == ErrorKind::AlreadyExists => bail!("{} exists already", place.display()),
            // With any other error, the file system may have no hard links. So the file is renamed.
            Err(_) if place.try_exists()? => bail!("{} exists already", place.display()),
            Err(_) => {
                std::fs::rename(&file, place).with_context(|| format!("cannot make {}", place.display()))?
            }
        }
        File::open(folder_of(place))?.sync_all().context("cannot sync the folder")
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        if let Err(e) = std::fs::remove_dir_all(&self.folder) {
            eprintln!("cannot remove {}: {e}", self.folder.display());
        }
    }
}

/// Locks a folder. None: another process has locked it, or it is gone.
fn locked(folder: &Path) -> Option<File> {
    let flags = (OFlag::O_NOFOLLOW | OFlag::O_DIRECTORY).bits();
    let opened = OpenOptions::new().read(true).custom_flags(flags).open(folder).ok()?;
    opened.try_lock().is_ok().then_some(opened)
}

/// Removes the folders that killed processes of this user have left in a folder. A folder that cannot be removed stays.
fn remove_leftovers(parent: &Path) {
    for entry in std::fs::read_dir(parent).into_iter().flatten().flatten() {
        let path = entry.path();
        let is_ours = entry.file_name().to_string_lossy().starts_with(PREFIX)
            && entry.metadata().is_ok_and(|it| it.is_dir() && it.uid() == geteuid().as_raw());
        if let Some(_lock) = is_ours.then(|| locked(&path)).flatten()
            && std::fs::remove_dir_all(&path).is_ok()
        {
            eprintln!("removed {}, which a killed dq backup or dq restore has left", path.display());
        }
    }
}

/// Returns the folder of a file.
pub(super) fn folder_of(file: &Path) -> &Path {
    file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// When root makes a file in a folder of another user, gives the file to that user. Otherwise the daemon could not open
/// it.
pub(super) fn give_to_owner(file: &File, folder: &Path) -> io::Result<()> {
    let owner = std::fs::metadata(folder)?;
    if geteuid().is_root() && owner.uid() != 0 {
        std::os::unix::fs::fchown(file, Some(owner.uid()), Some(owner.gid()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_killed_backup_has_left_is_removed_by_the_next() {
        let dir = tempfile::tempdir().unwrap();
        let left = dir.path().join(format!("{PREFIX}left"));
        std::fs::create_dir(&left).unwrap();
        std::fs::write(left.join("backup"), "half").unwrap();
        let link = dir.path().join(format!("{PREFIX}link"));
        std::os::unix::fs::symlink("/nowhere", &link).unwrap();
        let first = Staging::beside(&dir.path().join("a")).unwrap();
        assert!(!left.exists() && link.symlink_metadata().is_ok());
        // The folder of a living process stays.
        let second = Staging::beside(&dir.path().join("b")).unwrap();
        assert!(first.folder.is_dir() && second.folder.is_dir());
    }
}
