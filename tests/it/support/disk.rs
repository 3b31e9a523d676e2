//! A simulated disk for the embedded store. Its syncs can fail. When the machine loses power, the disk loses everything
//! that was not synced. See disk.c.

use std::path::Path;
use std::process::Command;

use super::preload::library;

/// The disk of a daemon.
pub struct FaultyDisk(tempfile::TempDir);

/// The outcome of a sync of the log.
#[derive(Debug, Clone, Copy)]
pub enum Sync {
    Succeeds = 0,
    Fails = 1,
    /// The sync fails, and the process that called it is killed before it gets the error.
    FailsAndKills = 2,
}

impl FaultyDisk {
    /// Returns a disk for the daemon that this command starts.
    pub fn under(command: &mut Command) -> FaultyDisk {
        let folder = tempfile::tempdir().unwrap();
        command.env("LD_PRELOAD", library("tests/it/support/disk.c")).env("FAULTY_DISK", folder.path());
        FaultyDisk(folder)
    }

    pub fn sync(&self, of_log: Sync) {
        use std::os::unix::fs::FileExt;
        let state = std::fs::OpenOptions::new().write(true).open(self.0.path().join("state")).unwrap();
        state.write_all_at(&[of_log as u8], 0).unwrap();
    }

    /// Returns how many syncs have failed, up to 255.
    pub fn failed(&self) -> u8 {
        std::fs::read(self.0.path().join("state")).unwrap()[1]
    }

    /// Simulates a power loss: the files of the store get the contents that are on the simulated disk. All processes of
    /// the daemon must have ended.
    pub fn lose_power(&self, folder: &Path) {
        for (image, name) in [("db", "dq.db"), ("wal", "dq.db-wal")] {
            std::fs::copy(self.0.path().join(image), folder.join(name)).unwrap();
        }
        std::fs::remove_file(folder.join("dq.db-shm")).unwrap();
    }
}
