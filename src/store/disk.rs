//! How much free space the disk of a file has.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::sys::statvfs::statvfs;

/// A number of bytes, and a time. If the free space of a disk exceeds what is needed by this number, the disk is not
/// checked again during this time.
const AMPLE: (u64, Duration) = (256 << 20, Duration::from_millis(50));

/// Returns how many bytes are free on the disk of a file. None: the system does not say.
pub(crate) fn free_bytes(file: &Path) -> Option<u64> {
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let disk = statvfs(folder).ok()?;
    Some(disk.blocks_available() * disk.fragment_size())
}

/// Returns what the disk of a file lacks. None: at least `min_free` bytes are free.
pub fn lack_of_room(file: &Path, min_free: u64) -> Option<String> {
    lack(free_bytes(file)?, min_free)
}

fn lack(free: u64, min_free: u64) -> Option<String> {
    if free >= min_free {
        return None;
    }
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    let (free, min_free) = (mib(free), mib(min_free));
    Some(format!("its disk has {free:.1} MiB free, and adds need {min_free:.1} MiB (store.min_free)"))
}

/// The room that must be left on a disk in any case, in bytes. Without it, adds would take the last room, and the jobs
/// on the disk could not be promoted and settled any more.
const LEAST: u64 = 1 << 20;

/// The room that must be left on a disk, so that the jobs on it can still be settled.
#[derive(Debug)]
pub(crate) struct DiskReserve {
    file: PathBuf,
    /// The room, in bytes.
    min_free: u64,
    /// Until when the disk is not checked, because it had ample room. None: it is checked each time.
    ample_until: Option<Instant>,
}

impl DiskReserve {
    pub(crate) fn new(file: &Path, min_free: u64) -> DiskReserve {
        DiskReserve { file: file.to_owned(), min_free: min_free.max(LEAST), ample_until: None }
    }

    /// Returns what the disk lacks. None: it has enough free space. `more`: how many bytes are needed beyond the
    /// reserve.
    pub(crate) fn lack(&mut self, more: impl FnOnce() -> u64) -> Option<String> {
        if self.ample_until.is_some_and(|until| Instant::now() < until) {
            return None;
        }
        let free = free_bytes(&self.file)?;
        let needed = self.min_free.saturating_add(more());
        let is_ample = free >= needed.saturating_add(AMPLE.0);
        self.ample_until = is_ample.then(|| Instant::now() + AMPLE.1);
        lack(free, needed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lack_of_room_names_what_is_free_and_what_is_needed() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let mut reserve = DiskReserve::new(file.path(), 1 << 60);
        let lack = reserve.lack(|| 0).unwrap();
        assert!(lack.ends_with(" MiB free, and adds need 1099511627776.0 MiB (store.min_free)"), "{lack}");
        assert_eq!(DiskReserve::new(file.path(), 0).lack(|| 0), None);
        assert!(DiskReserve::new(file.path(), 0).lack(|| 1 << 60).is_some());
        assert_eq!(lack_of_room(file.path(), 1), None);
    }
}
