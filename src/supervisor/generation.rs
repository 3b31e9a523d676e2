//! A generation: what one set of children is started with. It is read and checked once; a child that is started again
//! gets the same.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::Path;

use anyhow::{Context as _, Result, bail};

use super::plan;
use super::sockets::Socket;
use crate::process;
use crate::settings::Settings;
use crate::slot::{Role, Slot};

/// What children of a generation have in common.
#[derive(Debug)]
pub struct Generation {
    /// Its settings.
    pub settings: Settings,
    /// The same, as children get them.
    pub sealed: OwnedFd,
    /// What they execute.
    pub executable: OwnedFd,
    /// The places that are filled.
    pub slots: Vec<Slot>,
}

impl Generation {
    /// A generation of these settings: `only` some roles, unless that is empty, and so many consumers more.
    pub fn new(
        settings: Settings,
        executable: OwnedFd,
        only: &[Role],
        more_consumers: i32,
    ) -> Result<Generation> {
        let slots = plan::slots(&settings, only, more_consumers);
        if slots.is_empty() {
            bail!("there is nothing to run: every role is switched off, or not among those of --only");
        }
        let sealed = process::seal("dq-settings", &serde_json::to_vec(&settings)?)
            .context("cannot seal the settings")?;
        Ok(Generation { settings, sealed, executable, slots })
    }

    /// The sockets that its children are handed down.
    pub fn sockets(&self) -> Vec<Socket> {
        self.slots.iter().flat_map(|slot| plan::sockets(slot.role, &self.settings)).collect()
    }
}

/// Refuses settings that a running daemon cannot go over to.
pub fn check_successor(now: &Settings, next: &Settings) -> Result<()> {
    let refuse = |key: &str| bail!("{key} cannot be changed while dq runs: stop it, and start it anew");
    if next.run_dir != now.run_dir {
        return refuse("run_dir");
    }
    if next.store != now.store {
        return refuse("store");
    }
    Ok(())
}

/// The executable at `path`, as it is now.
pub fn executable_at(path: &Path) -> Result<OwnedFd> {
    Ok(File::open(path).with_context(|| format!("cannot open {}", path.display()))?.into())
}
