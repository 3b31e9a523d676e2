//! Checks which user would own the files that a command makes. Some commands open the store without the daemon. Such a
//! command makes files beside the store: locks, logs, and the store if it is new. Only the owner of a file may open it.
//! So the daemon cannot use a file that belongs to another user.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use nix::unistd::{Uid, User, geteuid};

use model::settings::files::store_files;
use model::settings::{RegistrySettings, Settings, StoreSettings};

/// Fails if the user is root and the daemon's files belong to another user. `command` is the command to run as that
/// other user, such as `dq import`.
pub(super) fn refuse_root(settings: &Settings, command: &str) -> Result<()> {
    if !geteuid().is_root() {
        return Ok(());
    }
    let Some((path, owner)) = places(settings).into_iter().find_map(foreign) else { return Ok(()) };
    let name = User::from_uid(Uid::from_raw(owner)).ok().flatten().map(|user| user.name);
    let (shown, option) = match name {
        Some(name) => (format!("the user {name}"), name),
        None => (format!("the user with the number {owner}"), format!("'#{owner}'")),
    };
    bail!(
        "{} belongs to {shown}, and files that root makes there could not be opened by the daemon: run this as that \
         user (sudo -u {option} {command} …)",
        path.display()
    )
}

/// Returns paths that show who owns the daemon's files. For each group of files, returns the files that exist. If no
/// file of the group exists, returns the nearest existing folder above them.
fn places(settings: &Settings) -> Vec<PathBuf> {
    let mut groups = Vec::new();
    if let StoreSettings::Embedded { path, .. } = &settings.store {
        groups.push(store_files(path));
        // A command that opens the store may make files in this folder too.
        groups.push(vec![settings.run_dir.join("dq-master.pid")]);
    }
    if let Some(RegistrySettings::Sqlite { path }) = &settings.registry {
        groups.push(store_files(path));
    }
    let place = |files: Vec<PathBuf>| {
        let folder = files.first().and_then(|file| file.ancestors().find(|folder| folder.exists()));
        let folder = folder.map(Path::to_owned);
        let there: Vec<PathBuf> = files.into_iter().filter(|file| file.exists()).collect();
        if there.is_empty() { folder.into_iter().collect() } else { there }
    };
    groups.into_iter().flat_map(place).collect()
}

/// Returns a path and its owner, if the owner is not root.
fn foreign(path: PathBuf) -> Option<(PathBuf, u32)> {
    let owner = fs::metadata(&path).ok()?.uid();
    (owner != 0).then_some((path, owner))
}
