//! A generation: what one set of children is started with. It is read and checked once; a child that is started again
//! gets the same.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use anyhow::{Context as _, Result, bail};
use nix::libc;

use super::plan::Plan;
use crate::process;
use crate::settings::{Settings, is_one_store};

/// What children of a generation have in common.
#[derive(Debug)]
pub struct Generation {
    /// What the master does for it.
    pub plan: Plan,
    /// Its settings, as children get them.
    pub sealed: OwnedFd,
    /// What they execute.
    pub executable: OwnedFd,
}

impl Generation {
    /// A generation of these settings, by this plan.
    pub fn new(settings: &Settings, plan: Plan, executable: OwnedFd) -> Result<Generation> {
        if plan.slots.is_empty() {
            bail!("there is nothing to run: every role is switched off, or not among those of --only");
        }
        let sealed = process::seal("dq-settings", &serde_json::to_vec(settings)?)
            .context("cannot seal the settings")?;
        Ok(Generation { plan, sealed, executable })
    }

    /// Whether its settings are these.
    pub fn has(&self, settings: &Settings) -> Result<bool> {
        let sealed = File::from(self.sealed.try_clone()?);
        Ok(process::read_shared(&sealed)? == serde_json::to_vec(settings)?)
    }
}

/// Refuses what a running daemon cannot go over to.
pub fn check_successor(now: &Plan, next: &Plan) -> Result<()> {
    let refuse = |key: &str| bail!("{key} cannot be changed while dq runs: stop it, and start it anew");
    if next.run_dir != now.run_dir {
        return refuse("run_dir");
    }
    if !is_one_store(&now.store, &next.store) {
        return refuse("store");
    }
    Ok(())
}

/// The executable at `path`, as it is now.
pub fn executable_at(path: &Path) -> Result<OwnedFd> {
    // Whoever opens a pipe waits for its writer, unless he says that he does not.
    let open = || -> std::io::Result<File> {
        let file = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
        if !file.metadata()?.is_file() {
            return Err(std::io::Error::other("it is no regular file"));
        }
        Ok(file)
    };
    Ok(open().with_context(|| format!("cannot open {}", path.display()))?.into())
}
