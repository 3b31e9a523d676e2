//! A generation: the plan, the settings and the executable of one set of children. The master reads and checks them
//! once. A child that is started again gets the same settings and executable.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use anyhow::{Context as _, Result, bail};
use nix::libc;

use super::plan::Plan;
use super::spool_folder::{check_spool_path, take_spool};
use model::settings::{Settings, refused_store_change};

/// What all children of a generation have in common.
#[derive(Debug)]
pub struct Generation {
    /// The plan of the master for this generation.
    pub plan: Plan,
    /// The settings, in the sealed form that children get.
    pub sealed: OwnedFd,
    /// The executable of the children.
    pub executable: OwnedFd,
}

impl Generation {
    /// Makes a generation with these settings and this plan.
    pub fn new(settings: &Settings, plan: Plan, executable: OwnedFd) -> Result<Generation> {
        if plan.slots.is_empty() {
            bail!("nothing to run: every role is switched off, or is not among those of --only");
        }
        prepare_folders(settings)?;
        let sealed =
            host::seal("dq-settings", &serde_json::to_vec(settings)?).context("cannot seal the settings")?;
        Ok(Generation { plan, sealed, executable })
    }

    /// Returns whether the settings of the generation are equal to `settings`.
    pub fn has(&self, settings: &Settings) -> Result<bool> {
        let sealed = File::from(self.sealed.try_clone()?);
        Ok(host::read_shared(&sealed)? == serde_json::to_vec(settings)?)
    }
}

/// Makes the folders of the log files and of the spool, and takes the spool for this daemon. Fails if a folder cannot
/// be made or used. (A child that is started again later does not need the folder of the log files.)
pub fn prepare_folders(settings: &Settings) -> Result<()> {
    if let Some(folder) = &settings.log_dir {
        std::fs::create_dir_all(folder)
            .with_context(|| format!("cannot start the log in log_dir {folder:?}"))?;
    }
    take_spool(settings)
}

/// Refuses changes that a running daemon cannot make.
pub fn check_next_plan(now: &Plan, next: &Plan) -> Result<()> {
    if next.run_dir != now.run_dir {
        bail!(
            "run_dir cannot be changed while dq runs: it is {}, and the file names {}. Stop dq and start it, or change \
             run_dir back",
            now.run_dir.display(),
            next.run_dir.display()
        );
    }
    if let Some(why) = refused_store_change(&now.store, &next.store) {
        bail!("{why}");
    }
    check_spool_path(now.spool.as_deref(), next.spool.as_deref())
}

/// Opens the executable that is at `path` now.
pub fn executable_at(path: &Path) -> Result<OwnedFd> {
    // Without O_NONBLOCK, the opening of a pipe would wait until the pipe has a writer.
    let open = || -> std::io::Result<File> {
        let file = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
        if !file.metadata()?.is_file() {
            return Err(std::io::Error::other("it is not a regular file"));
        }
        Ok(file)
    };
    Ok(open().with_context(|| format!("cannot open {}", path.display()))?.into())
}
