//! A nudge tells dq-redis-checker that the registry was changed, so that it reads the registry at once instead of
//! within a second. The nudge is a file in a folder of its own. Each dq-redis-checker watches the folder. (During a
//! restart, there may be two dq-redis-checkers.) If a nudge is lost, dq-redis-checker reads the registry up to a second
//! later.

use std::io;
use std::path::{Path, PathBuf};

/// Returns the path of the nudge. Makes the folder of the nudge, so that processes can watch the folder.
pub fn nudge_file(run_dir: &Path) -> io::Result<PathBuf> {
    let folder = run_dir.join("nudges");
    host::make_folder_in_run_dir(&folder)?;
    Ok(folder.join("registry"))
}

/// Tells dq-redis-checker that the registry was changed.
pub fn nudge(run_dir: &Path) -> io::Result<()> {
    std::fs::write(nudge_file(run_dir)?, "")
}
