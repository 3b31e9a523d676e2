//! How much free space the disk of a file has.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::sys::statvfs::statvfs;

/// How long the result of a check of the disk is used before the disk is checked again.
const BELIEVED: Duration = Duration::from_millis(50);

/// Returns how many bytes are free on the disk of a file. None: the system does not say.
pub(crate) fn free_bytes(file: &Path) -> Option<u64> {
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let disk = statvfs(folder).ok()?;
    Some(disk.blocks_available() * disk.fragment_size())
}

/// Returns what the disk of a file lacks. None: at least `min_free` bytes are free.
pub fn lack_of_room(file: &Path, min_free: u64) -> Option<String> {
    let free = free_bytes(file).filter(|free| *free < min_free)?;
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    let (free, min_free) = (mib(free), mib(min_free));
    Some(format!("its disk has {free:.1} MiB free, and adds need {min_free:.1} MiB (store.min_free)"))
}

/// The room that must be left on a disk, so that the jobs on it can still be settled.
#[derive(Debug)]
pub(crate) struct DiskReserve {
    file: PathBuf,
    /// The room, in bytes. 0: no room is needed, and the disk is not checked.
    min_free: u64,
    /// When the disk was last checked, and what it lacked. None: it was not checked yet.
    checked: Option<(Instant, Option<String>)>,
}

impl DiskReserve {
    pub(crate) fn new(file: &Path, min_free: u64) -> DiskReserve {
        DiskReserve { file: file.to_owned(), min_free, checked: None }
    }

    /// Returns what the disk lacks. None: it has enough free space.
    pub(crate) fn lack(&mut self) -> Option<String> {
        if self.min_free == 0 {
            return None;
        }
        match &self.checked {
            Some((at, lack)) if at.elapsed() < BELIEVED => lack.clone(),
            _ => {
                let lack = lack_of_room(&self.file, self.min_free);
                self.checked = Some((Instant::now(), lack.clone()));
                lack
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lack_of_room_names_what_is_free_and_what_is_needed() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let mut reserve = DiskReserve::new(file.path(), 1 << 60);
        let lack = reserve.lack().unwrap();
        assert!(lack.ends_with(" MiB free, and adds need 1099511627776.0 MiB (store.min_free)"), "{lack}");
        assert_eq!(DiskReserve::new(file.path(), 0).lack(), None);
        assert_eq!(lack_of_room(file.path(), 1), None);
    }
}
