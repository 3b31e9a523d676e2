//! Checks whether the daemon's user may write the files of the daemon. It does not open the files, because some of them
//! are files of SQLite. If a process opens and closes such a file itself, it loses SQLite's locks on the file.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use nix::unistd::{getegid, geteuid, getgroups};

use super::judge::{self, CheckResult, DaemonUser, PathPermissions};
use model::settings::{RegistrySettings, Settings, StoreSettings, files};
use model::status::DaemonStatus;
use registry::Snapshot;

/// Checks the files and folders that the daemon writes.
pub(super) fn check(settings: &Settings, status: Option<&DaemonStatus>) -> Vec<CheckResult> {
    // If no daemon runs, the user of this command is assumed to start it.
    let user = status.and_then(|status| user_of(status.pid)).unwrap_or_else(this_user);
    let mut places: Vec<(&str, PathBuf, bool)> = vec![("run_dir", settings.run_dir.clone(), false)];
    places.extend(settings.log_dir.clone().map(|dir| ("log_dir", dir, false)));
    if let StoreSettings::Embedded { path, .. } = &settings.store {
        // SQLite makes further files beside the store.
        places.extend(path.parent().map(|folder| ("store's folder", folder.to_owned(), false)));
        let files = files::store_files(path).into_iter();
        places.extend(files.filter(|file| file.exists()).map(|file| ("store", file, false)));
    }
    if let StoreSettings::Redis(redis) = &settings.store
        && let Some(spool) = redis.used_spool()
    {
        places.extend(spool.path.parent().map(|folder| ("spool's folder", folder.to_owned(), false)));
        let files = files::spool_files(&spool.path).into_iter();
        places.extend(files.filter(|file| file.exists()).map(|file| ("spool", file, false)));
    }
    if let Some(RegistrySettings::Sqlite { path }) = &settings.registry {
        places.extend(path.parent().map(|folder| ("registry's folder", folder.to_owned(), false)));
        places.extend(path.exists().then(|| ("registry", path.clone(), true)));
    }
    let snapshot = Snapshot::file(&settings.run_dir);
    places.extend(snapshot.exists().then_some(("snapshot", snapshot, true)));
    places.iter().map(|(what, path, secret)| line(what, path, &user, *secret)).collect()
}

fn line(what: &str, path: &Path, user: &DaemonUser, secret: bool) -> CheckResult {
    match place(path) {
        Ok(place) => judge::access(what, &place, user, secret),
        Err(e) => CheckResult::warn(&format!("access {what}"), format!("{}: {e}", path.display()))
            .advise("run this as root, which can see more"),
    }
}

/// Returns what is at a path. If nothing is there, returns the nearest folder above it that exists.
fn place(path: &Path) -> std::io::Result<PathPermissions> {
    let (mut at, mut stands_for) = (path, None);
    let meta = loop {
        match fs::metadata(at) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
                stands_for = Some(path.display().to_string());
                at = at.parent().ok_or(e)?;
            }
            other => break other?,
        }
    };
    Ok(PathPermissions {
        path: at.display().to_string(),
        uid: meta.uid(),
        gid: meta.gid(),
        mode: meta.mode(),
        is_folder: meta.is_dir(),
        stands_for,
    })
}

/// Returns the user and the groups that a process runs as.
fn user_of(pid: i32) -> Option<DaemonUser> {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let numbers = |name: &str| -> Vec<u32> {
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        line.into_iter().flat_map(str::split_whitespace).filter_map(|n| n.parse().ok()).collect()
    };
    // `Uid` and `Gid` have four numbers each. The second number is the effective id, which decides about access to
    // files.
    let mut gids = numbers("Groups:");
    gids.extend(numbers("Gid:").get(1));
    Some(DaemonUser { uid: *numbers("Uid:").get(1)?, gids })
}

fn this_user() -> DaemonUser {
    let mut gids: Vec<u32> = getgroups().unwrap_or_default().into_iter().map(|gid| gid.as_raw()).collect();
    gids.push(getegid().as_raw());
    DaemonUser { uid: geteuid().as_raw(), gids }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_there_is_judged_by_the_folder_above_it() {
        let dir = tempfile::tempdir().unwrap();
        let there = place(dir.path()).unwrap();
        assert!(there.is_folder && there.stands_for.is_none() && there.uid == geteuid().as_raw());
        let missing = place(&dir.path().join("a/b")).unwrap();
        assert_eq!(missing.path, dir.path().display().to_string());
        assert!(missing.stands_for.unwrap().ends_with("a/b"));
        assert_eq!(user_of(std::process::id() as i32).unwrap().uid, this_user().uid);
    }
}
