//! A nudge: who has changed the registry says so to dq-redis-checker, which then looks at once and not within its second. It is
//! a file in a folder of its own, which whoever reads the registry watches, also of two generations. One that is lost costs
//! that second.

use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

/// The file that is written. Its folder is made, so that it can be watched.
pub fn nudge_file(run_dir: &Path) -> io::Result<PathBuf> {
    let folder = run_dir.join("nudges");
    DirBuilder::new().recursive(true).mode(0o700).create(&folder)?;
    Ok(folder.join("registry"))
}

/// Says that the registry was changed.
pub fn nudge(run_dir: &Path) -> io::Result<()> {
    std::fs::write(nudge_file(run_dir)?, "")
}
