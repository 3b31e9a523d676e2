//! How much free space the disk of a file has.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::sys::statvfs::statvfs;

/// How long a result is used again.
const BELIEVED: Duration = Duration::from_millis(50);

/// Returns how many bytes are free on the disk of a file. None: the system does not say.
pub(crate) fn free_bytes(file: &Path) -> Option<u64> {
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let disk = statvfs(folder).ok()?;
    Some(disk.blocks_available() * disk.fragment_size())
}

/// The room that must be left on a disk, so that jobs which are there can be settled.
#[derive(Debug)]
pub(crate) struct Reserve {
    file: PathBuf,
    /// In bytes. 0: none.
    min_free: u64,
    /// When the disk was checked, and whether it had enough room.
    checked: Option<(Instant, bool)>,
}

impl Reserve {
    pub(crate) fn new(file: &Path, min_free: u64) -> Reserve {
        Reserve { file: file.to_owned(), min_free, checked: None }
    }

    /// Whether the disk has room for more than what must be left.
    pub(crate) fn has_room(&mut self) -> bool {
        if self.min_free == 0 {
            return true;
        }
        match self.checked {
            Some((at, has_room)) if at.elapsed() < BELIEVED => has_room,
            _ => {
                let has_room = free_bytes(&self.file).is_none_or(|free| free >= self.min_free);
                self.checked = Some((Instant::now(), has_room));
                has_room
            }
        }
    }
}
