//! Protects the files of the daemon from other users. The files contain jobs, logs and locks. Anyone who can open the
//! file of a lock can hold the lock.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use nix::sys::stat::{Mode, umask};

/// The bits of a file's mode for all users except the owner and the group.
const OTHERS: u32 = 0o007;

/// Makes new files and folders accessible only to their owner: modes 0600 and 0700. This applies to this process and to
/// the processes that it starts.
pub fn keep_new_files_private() {
    umask(Mode::from_bits_truncate(0o077));
}

/// Removes the rights of other users to some files of a folder: the files with names that begin with `prefix`. Earlier
/// releases left the modes of new files to the umask. The rights of the group do not change. Sockets and folders do not
/// change either, because other users may reach the API over a socket.
pub fn keep_old_files_private(folder: &Path, prefix: &str) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    let own_user = nix::unistd::geteuid().as_raw();
    for entry in entries.flatten().filter(|entry| entry.file_name().to_string_lossy().starts_with(prefix)) {
        // This call does not follow links.
        let Ok(found) = entry.metadata() else { continue };
        if !found.is_file() || found.uid() != own_user || found.mode() & OTHERS == 0 {
            continue;
        }
        // The file is not opened, because a process that closes a database file drops the locks that SQLite has on this
        // file.
        let path = entry.path();
        match fs::set_permissions(&path, Permissions::from_mode(found.mode() & 0o7777 & !OTHERS)) {
            Ok(()) => log::info!("{} is no longer open to other users", path.display()),
            Err(e) => log::warn!("cannot close {} to other users: {e}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_files_are_closed_to_other_users() {
        let dir = tempfile::tempdir().unwrap();
        let mode = |name: &str| fs::metadata(dir.path().join(name)).unwrap().mode() & 0o777;
        for (name, mode) in [("dq.db", 0o644), ("dq.db-wal", 0o666), ("dq.db-turn", 0o600), ("other", 0o644)]
        {
            fs::write(dir.path().join(name), "").unwrap();
            fs::set_permissions(dir.path().join(name), Permissions::from_mode(mode)).unwrap();
        }
        std::os::unix::fs::symlink(dir.path().join("other"), dir.path().join("dq.db-link")).unwrap();
        keep_old_files_private(dir.path(), "dq.db");
        assert_eq!(["dq.db", "dq.db-wal", "dq.db-turn", "other"].map(mode), [0o640, 0o660, 0o600, 0o644]);
    }
}
