//! The work of dq-master on the spool. dq-master makes the folder of the spool, and takes the spool for its daemon. It
//! refuses a change to another spool while dq runs. It does not open the spool. The checks are made before children are
//! started. Otherwise each child would fail by itself, and would be started again and again.

use std::fs::{File, OpenOptions};
use std::io::{Read as _, Seek as _, Write as _};
use std::path::Path;

use anyhow::{Context as _, Result, bail};
use nix::unistd::{AccessFlags, access};

use host::is_run_dir_taken;
use model::settings::files::{SPOOL_OWNER, TURN, beside};
use model::settings::{NOTHING_WAITS, Settings, StoreSettings};

/// Makes the folder of the spool, if there is a spool, and takes the spool for this daemon. Fails if the folder cannot
/// be used, or the spool belongs to another daemon.
pub fn take_spool(settings: &Settings) -> Result<()> {
    let StoreSettings::Redis(redis) = &settings.store else { return Ok(()) };
    match redis.used_spool() {
        Some(spool) => {
            usable(&spool.path).with_context(|| {
                let advice = if spool.path.is_file() {
                    "changes may wait in it: let dq's user write it and the files beside it"
                } else {
                    "name a file in a folder that dq's user may write, or set store.spool = 0"
                };
                format!("store.spool_path: cannot write {} ({advice})", spool.path.display())
            })?;
            take(&spool.path, &settings.run_dir)
        }
        None => {
            log::info!(
                "no spool: adds are refused while their node does not answer (store.spool, store.spool_path)"
            );
            Ok(())
        }
    }
}

/// Refuses another spool while dq runs. Until the present children have drained, they can put changes into the present
/// spool, even if it is empty now. With another spool, nobody would send these changes.
pub fn check_spool_path(now: Option<&Path>, next: Option<&Path>) -> Result<()> {
    match now {
        Some(path) if next != now => bail!(
            "store.spool_path cannot be changed while dq runs: the present spool is {}. Wait until it is empty (dq status), \
             stop dq, and start it with the new path",
            path.display()
        ),
        _ => Ok(()),
    }
}

/// Returns whether changes may wait in a spool. A daemon notes beside the spool when no change waits.
fn may_wait(path: &Path) -> bool {
    let mut byte = [0];
    let read = File::open(beside(path, TURN)).and_then(|mut file| file.read_exact(&mut byte));
    read.is_err() || byte[0] != NOTHING_WAITS
}

/// Notes in a file beside the spool which daemon the spool belongs to. (If two daemons used one spool, each would send
/// the changes of the other to its own store.)
fn take(path: &Path, run_dir: &Path) -> Result<()> {
    let owner_path = beside(path, SPOOL_OWNER);
    let cannot = || format!("store.spool_path: cannot use {}", owner_path.display());
    let open = OpenOptions::new().create(true).truncate(false).read(true).write(true).open(&owner_path);
    let mut file = open.with_context(cannot)?;
    file.lock().with_context(cannot)?;
    let mut owner = String::new();
    file.read_to_string(&mut owner).with_context(cannot)?;
    let (owner, own) = (Path::new(owner.trim_end()), std::path::absolute(run_dir).with_context(cannot)?);
    if owner == own {
        return Ok(());
    }
    let shown = path.display();
    if !owner.as_os_str().is_empty() && is_run_dir_taken(owner) {
        bail!(
            "store.spool_path: {shown} belongs to the dq-master that runs in {}: name another file",
            owner.display()
        );
    }
    if !owner.as_os_str().is_empty() && may_wait(path) {
        bail!(
            "store.spool_path: changes may wait in {shown}, which belongs to the daemon of run_dir {}: start that one until its spool is \
             empty (dq status), or name another file. If it has the same store as this one, remove {}",
            owner.display(),
            owner_path.display()
        );
    }
    file.set_len(0).and_then(|()| file.rewind()).with_context(cannot)?;
    writeln!(file, "{}", own.display()).with_context(cannot)
}

fn usable(path: &Path) -> Result<()> {
    let folder = path.parent().unwrap_or(Path::new("/"));
    let named = || folder.display().to_string();
    std::fs::create_dir_all(folder).with_context(named)?;
    access(folder, AccessFlags::W_OK | AccessFlags::X_OK).with_context(named)?;
    if path.is_dir() {
        bail!("it is a folder");
    }
    if path.exists() {
        access(path, AccessFlags::R_OK | AccessFlags::W_OK)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_made_and_one_that_cannot_be_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        usable(&dir.path().join("a/b/spool.db")).unwrap();
        assert!(dir.path().join("a/b").is_dir());
        assert_eq!(usable(&dir.path().join("a/b")).unwrap_err().to_string(), "it is a folder");
        std::fs::write(dir.path().join("file"), "").unwrap();
        let error = format!("{:#}", usable(&dir.path().join("file/spool.db")).unwrap_err());
        assert!(error.contains("/file: "), "{error}");
    }

    #[test]
    fn a_spool_belongs_to_one_daemon() {
        let dir = tempfile::tempdir().unwrap();
        let [spool, one, other] = ["spool.db", "one", "other"].map(|name| dir.path().join(name));
        let note = |byte: &[u8]| std::fs::write(beside(&spool, TURN), byte).unwrap();
        take(&spool, &one).unwrap();
        take(&spool, &one).unwrap();
        // The first daemon was stopped while changes waited in the spool, and then while no changes waited.
        note(b"\0");
        assert!(take(&spool, &other).unwrap_err().to_string().contains("changes may wait"));
        note(b"0");
        take(&spool, &other).unwrap();
        // The other daemon runs.
        let runs = host::RunDirLock::take(&other, std::time::Duration::ZERO).unwrap();
        assert!(take(&spool, &one).unwrap_err().to_string().contains("that runs in"));
        drop(runs);
        take(&spool, &one).unwrap();
    }

    #[test]
    fn a_running_daemon_does_not_leave_its_spool() {
        let dir = tempfile::tempdir().unwrap();
        let [now, next] = ["now.db", "next.db"].map(|name| dir.path().join(name));
        let check = |next| check_spool_path(Some(&now), next);
        std::fs::write(&now, "").unwrap();
        // No change waits. But a process that drains could still put a change into this file.
        std::fs::write(beside(&now, TURN), b"0").unwrap();
        check(Some(&now)).unwrap();
        for next in [Some(next.as_path()), None] {
            assert!(check(next).unwrap_err().to_string().contains("now.db"));
        }
        check_spool_path(None, Some(&next)).unwrap();
    }
}
