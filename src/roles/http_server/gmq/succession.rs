//! Passes the last lease of each id from a draining dq-http-server to the next one, in a file of `run_dir`.
//!
//! The draining process writes the file before it closes a connection. So a client may pop a job, find its connection
//! closed, and ack the job on a new connection, because the next process knows the lease. After a crash, the file is
//! missing or does not have the last leases. In this case, the ack is refused, and the job comes back after its TTR.

use std::fs::{self, OpenOptions};
use std::io::{self, ErrorKind, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use super::last_reserves::LastLeases;
use host::now_ms;
use role::lock;

/// The last leases, and their file. The value is cheap to clone.
#[derive(Clone)]
pub(super) struct LeasesFile {
    path: PathBuf,
    last: Arc<Mutex<LastLeases>>,
    file: Arc<tokio::sync::Mutex<LeasesFileState>>,
}

/// What this process knows of the file.
#[derive(Default)]
struct LeasesFileState {
    /// The inode and the modification time that the file had when this process last read it.
    seen: Option<(u64, i64, i64)>,
    /// How many leases were noted when this process last wrote the file.
    written: Option<u64>,
}

impl LeasesFile {
    pub(super) fn new(run_dir: &Path) -> LeasesFile {
        LeasesFile { path: run_dir.join("gmq.reserves"), last: Arc::default(), file: Arc::default() }
    }

    /// The last leases.
    pub(super) fn last(&self) -> &Mutex<LastLeases> {
        &self.last
    }

    /// Learns the leases of the previous process, if it has written the file since this process last read it.
    pub(super) async fn learn(&self) {
        let mut state = Arc::clone(&self.file).lock_owned().await;
        let this = self.clone();
        let learned = tokio::task::spawn_blocking(move || this.read(&mut state)).await;
        if let Ok(Err(e)) = learned {
            log::warn!("gmq: cannot read {}: {e}", self.path.display());
        }
    }

    /// Writes the file, if it does not have all leases yet.
    pub(super) async fn pass_on(&self) {
        let mut state = Arc::clone(&self.file).lock_owned().await;
        let this = self.clone();
        let passed = tokio::task::spawn_blocking(move || this.write(&mut state)).await;
        if let Ok(Err(e)) = passed {
            log::warn!(
                "gmq: cannot write {}, so jobs that are acked late come back: {e}",
                self.path.display()
            );
        }
    }

    fn read(&self, state: &mut LeasesFileState) -> io::Result<()> {
        let metadata = match fs::metadata(&self.path) {
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(()),
            other => other?,
        };
        let seen = Some(host::version_of(&metadata));
        if state.seen != seen {
            let text = fs::read_to_string(&self.path)?;
            lock(&self.last).note_text(&text, now_ms());
            state.seen = seen;
        }
        Ok(())
    }

    fn write(&self, state: &mut LeasesFileState) -> io::Result<()> {
        let noted = lock(&self.last).noted();
        if state.written == Some(noted) {
            return Ok(());
        }
        // The file may have leases of the previous process that this process has not read yet.
        self.read(state)?;
        let (text, noted) = {
            let last = lock(&self.last);
            (last.to_text(), last.noted())
        };
        let new = self.path.with_extension("new");
        let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&new)?;
        file.write_all(text.as_bytes())?;
        fs::rename(&new, &self.path)?;
        state.written = Some(noted);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt as _;

    use super::*;

    #[test]
    fn the_file_is_read_when_it_has_changed() {
        let dir = tempfile::tempdir().unwrap();
        let line = |id: &str| format!("[\"t\",\"{id}\",[1],1,0,{}]\n", now_ms() + 60_000);
        let (first, second) = (LeasesFile::new(dir.path()), LeasesFile::new(dir.path()));
        first.read(&mut LeasesFileState::default()).unwrap();
        lock(&first.last).note_text(&line("a"), now_ms());
        first.write(&mut LeasesFileState::default()).unwrap();
        lock(&second.last).note_text(&line("b"), now_ms());
        let mut state = LeasesFileState::default();
        second.write(&mut state).unwrap();
        assert_eq!(lock(&second.last).noted(), 2, "the file has the leases of both");
        let third = LeasesFile::new(dir.path());
        let mut state = LeasesFileState::default();
        third.read(&mut state).unwrap();
        third.read(&mut state).unwrap();
        assert_eq!(lock(&third.last).noted(), 2);
        assert_eq!(fs::metadata(&third.path).unwrap().mode() & 0o777, 0o600);
    }
}
