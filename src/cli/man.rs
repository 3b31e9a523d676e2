//! `dq man`: the manual pages, one for each command.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use clap::Command;
use clap_mangen::Man;

/// Write the manual pages into a folder, one for each command
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  dq man /usr/share/man/man1")]
pub(super) struct ManArguments {
    /// The folder; it is made if it is missing
    #[arg(value_name = "DIR")]
    folder: PathBuf,
}

/// Runs `dq man`.
pub(super) fn run(arguments: &ManArguments) -> Result<()> {
    let folder = &arguments.folder;
    std::fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let mut command = super::command_line().disable_help_subcommand(true);
    command.build();
    write(&command, "dq", folder)
}

/// Writes the page of a command, and the pages of its subcommands.
fn write(command: &Command, name: &str, folder: &Path) -> Result<()> {
    let mut page = Vec::new();
    // clap needs names that live as long as the process.
    let named: &'static str = Box::leak(name.to_owned().into_boxed_str());
    Man::new(command.clone().name(named)).render(&mut page).context("cannot write the page")?;
    let path = folder.join(format!("{name}.1"));
    std::fs::write(&path, page).with_context(|| format!("cannot write {}", path.display()))?;
    for below in command.get_subcommands().filter(|c| !c.is_hide_set()) {
        write(below, &format!("{name}-{}", below.get_name()), folder)?;
    }
    Ok(())
}
