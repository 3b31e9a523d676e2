//! Checks the disk that the spool is on, or would be on.

use std::fs;
use std::io::Read as _;

use nix::sys::statfs::{TMPFS_MAGIC, statfs};
use nix::sys::statvfs::statvfs;

use super::judge::CheckResult;
use model::settings::{Settings, SpoolSettings, StoreSettings};

/// Checks the disk of the spool, and whether the file is a spool. `None`: there is no spool, or its disk cannot be
/// read.
pub(super) fn check(settings: &Settings) -> Option<CheckResult> {
    match &settings.store {
        StoreSettings::Redis(redis) => {
            redis.used_spool().and_then(|spool| not_a_spool(spool).or_else(|| of_disk(spool)))
        }
        StoreSettings::Embedded { .. } => None,
    }
}

/// How a file of SQLite begins. (A process that closes a file loses all its locks on this file. Only this command, and
/// no process of the daemon, reads the file without SQLite. So no process of the daemon loses a lock of SQLite.)
const HEADER: &[u8] = b"SQLite format 3\0";

fn not_a_spool(spool: &SpoolSettings) -> Option<CheckResult> {
    let mut header = Vec::new();
    fs::File::open(&spool.path).ok()?.take(HEADER.len() as u64).read_to_end(&mut header).ok()?;
    (!header.is_empty() && header != HEADER).then(|| {
        CheckResult::fail(
            "room spool",
            format!("{} is not a spool, and dq cannot start with it", spool.path.display()),
        )
        .advise("move it away with the files beside it (-wal, -shm, -turn): changes that wait in it are lost")
    })
}

fn of_disk(spool: &SpoolSettings) -> Option<CheckResult> {
    let there = spool.path.parent()?.ancestors().find(|folder| folder.exists())?;
    let (disk, kind) = (statvfs(there).ok()?, statfs(there).ok()?);
    // The space that the spool already uses counts as free space for the spool.
    let has = fs::metadata(&spool.path).map_or(0, |m| m.len());
    let room = disk.blocks_available() * disk.fragment_size() + has;
    let is_in_memory = kind.filesystem_type() == TMPFS_MAGIC;
    Some(judge(&there.display().to_string(), is_in_memory, room, spool.bytes as u64))
}

/// Compares the space for the spool with the size that the spool may reach. Both are in bytes.
fn judge(path: &str, is_in_memory: bool, room: u64, bytes: u64) -> CheckResult {
    let check = "room spool";
    if is_in_memory {
        return CheckResult::warn(
            check,
            format!("{path} is in memory (tmpfs): a reboot loses what waits in the spool"),
        )
        .advise("name a file on a disk as store.spool_path");
    }
    let text = format!("{} MiB are free under {path}, and the spool may take {}", room >> 20, bytes >> 20);
    if room < bytes {
        return CheckResult::warn(check, text).advise(
            "make room, or lower store.spool: adds that find the disk full are refused (spool_full)",
        );
    }
    CheckResult::ok(check, text)
}

#[cfg(test)]
mod tests {
    use super::super::judge::Verdict;
    use super::*;

    #[test]
    fn a_spool_needs_a_disk_with_room_for_it() {
        for (is_in_memory, room, verdict, part) in [
            (false, 256 << 20, Verdict::Ok, "256 MiB are free"),
            (false, 255 << 20, Verdict::Warn, "may take 256"),
            (true, 1 << 40, Verdict::Warn, "tmpfs"),
        ] {
            let line = judge("/var/lib/dq", is_in_memory, room, 256 << 20);
            assert_eq!(line.verdict, verdict, "{line:?}");
            assert!(line.detail.contains(part), "{line:?}");
        }
    }

    #[test]
    fn what_is_not_there_is_looked_at_above_it() {
        let dir = tempfile::tempdir().unwrap();
        let line = of_disk(&SpoolSettings { path: dir.path().join("not/there.db"), bytes: 1 << 50 }).unwrap();
        assert_eq!(line.verdict, Verdict::Warn);
        assert!(line.detail.contains(&dir.path().display().to_string()), "{line:?}");
    }
}
