//! Checks what the host provides: descriptors, room on disks, the clock.

use std::fs;
use std::path::{Path, PathBuf};

use nix::libc;
use nix::sys::resource::{Resource, getrlimit};
use nix::sys::statvfs::statvfs;

use super::judge::{self, CheckResult};
use model::settings::{Settings, StoreSettings};
use model::status::DaemonStatus;

/// Checks what the host provides.
pub(super) fn check(settings: Option<&Settings>, status: Option<&DaemonStatus>) -> Vec<CheckResult> {
    let mut lines = vec![judge::synchronised(synchronised())];
    let Some(settings) = settings else { return lines };
    let of_daemon = status.and_then(|status| descriptors_of(status.pid));
    if let Some(limit) = of_daemon.or_else(|| getrlimit(Resource::RLIMIT_NOFILE).ok().map(|(_, hard)| hard)) {
        lines.push(judge::descriptors(limit, settings.server.max_connections as u64));
    }
    // `path` may be a link to the file.
    let real = |path: &PathBuf| fs::canonicalize(path).unwrap_or_else(|_| path.clone());
    let (store, min_free) = match &settings.store {
        StoreSettings::Embedded { path, min_free } => (Some(real(path)), *min_free),
        StoreSettings::Redis(_) => (None, 0),
    };
    let folders = [
        ("store", store.as_deref().and_then(Path::parent), min_free),
        ("run_dir", Some(settings.run_dir.as_path()), 0),
        ("log_dir", settings.log_dir.as_deref(), 0),
    ];
    lines.extend(folders.into_iter().filter_map(|(what, folder, min_free)| room(what, folder?, min_free)));
    lines
}

/// Returns how many descriptors a process may open: its hard limit, because dq raises the soft limit to it.
fn descriptors_of(pid: i32) -> Option<u64> {
    let limits = fs::read_to_string(format!("/proc/{pid}/limits")).ok()?;
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    line.split_whitespace().nth(1)?.parse().ok()
}

/// Checks how much space is free on the disk where a folder is. If the folder does not exist, the nearest existing
/// folder above it is checked.
fn room(what: &str, folder: &Path, min_free: u64) -> Option<CheckResult> {
    let there = folder.ancestors().find(|folder| folder.exists())?;
    let disk = statvfs(there).ok()?;
    let size = disk.fragment_size();
    let (free, all) = (disk.blocks_available() * size, disk.blocks() * size);
    (all > 0).then(|| judge::room(what, &there.display().to_string(), free, all, min_free))
}

/// Returns whether the kernel's clock is synchronised. `None`: the kernel does not say.
fn synchronised() -> Option<bool> {
    // SAFETY: zero is a valid value for each field. A struct of zeros asks the kernel to change nothing.
    let mut time: libc::timex = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel writes into a struct of its own layout, which outlives the call.
    let state = unsafe { libc::adjtimex(&mut time) };
    (state >= 0).then_some(time.status & libc::STA_UNSYNC == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_hosts_limits_and_room_are_seen() {
        let limit = descriptors_of(std::process::id() as i32).unwrap();
        assert_eq!(limit, getrlimit(Resource::RLIMIT_NOFILE).unwrap().1);
        let dir = tempfile::tempdir().unwrap();
        let line = room("store", &dir.path().join("not/there"), 0).unwrap();
        assert!(line.detail.contains(&dir.path().display().to_string()), "{line:?}");
    }
}
