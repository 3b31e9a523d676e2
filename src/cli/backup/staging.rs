//! New files get their names only when they are complete. Until then they are in a folder beside their place, which is
//! removed whatever happens.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use nix::fcntl::OFlag;
use nix::unistd::geteuid;

/// A folder for the files that will be beside `place`.
#[derive(Debug)]
pub(super) struct Staging {
    folder: PathBuf,
    place: PathBuf,
}

impl Staging {
    /// Makes the folder beside `place`.
    pub(super) fn beside(place: &Path) -> Result<Staging> {
        let parent = folder_of(place);
        let folder = parent.join(format!(".dq-backup-{}", host::random_name()?));
        DirBuilder::new()
            .mode(0o700)
            .create(&folder)
            .with_context(|| format!("cannot write to {}", parent.display()))?;
        Ok(Staging { folder, place: place.to_owned() })
    }

    /// Returns the path of a file in the folder.
    pub(super) fn file(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Returns where the complete file will be.
    pub(super) fn place(&self) -> &Path {
        &self.place
    }

    /// Gives a complete file its place, and makes sure that this is on the disk. If there is a file at that place, it stays,
    /// and this fails.
    pub(super) fn publish(&self, name: &str) -> Result<()> {
        let (file, place) = (self.file(name), &self.place);
        // Where the folder belongs to another user, that user may have put a link there.
        let opened = OpenOptions::new().read(true).custom_flags(OFlag::O_NOFOLLOW.bits()).open(&file)?;
        opened.sync_all()?;
        give_to_owner(&opened, folder_of(place)).context("cannot set the owner")?;
        match std::fs::hard_link(&file, place) {
            Ok(()) => {}
            Err(e) if e.kind() == ErrorKind::AlreadyExists => bail!("{} exists already", place.display()),
            // The file system has no links.
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
