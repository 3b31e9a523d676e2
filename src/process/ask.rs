//! Asks a daemon's master, over its control socket, what it tells of itself; and adds what only the asker's host knows.

use std::io::{self, Read};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::usage_of;
use crate::status::{Finding, Status, control_socket, findings_file};

/// Why nothing is known of a daemon.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// Nobody answers.
    #[error("no dq-master answers at {}: {reason}", path.display())]
    Silent {
        /// The control socket.
        path: PathBuf,
        /// What the system says.
        reason: io::Error,
    },
    /// The answer is another release's.
    #[error("cannot understand dq-master's answer: {0}")]
    Strange(#[from] serde_json::Error),
}

/// What the master of that folder says, within so long. What its processes use and what was found is not in it.
pub fn ask_master(run_dir: &Path, patience: Duration) -> Result<Status, AskError> {
    let path = control_socket(run_dir);
    let answer = || -> io::Result<Vec<u8>> {
        let mut stream = UnixStream::connect(&path)?;
        stream.set_read_timeout(Some(patience))?;
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    match answer() {
        Ok(bytes) => Ok(serde_json::from_slice(&bytes)?),
        Err(reason) => Err(AskError::Silent { path, reason }),
    }
}

/// The same, with what its processes use and what was found.
pub fn whole_status(run_dir: &Path, patience: Duration) -> Result<Status, AskError> {
    let mut status = ask_master(run_dir, patience)?;
    status.findings = findings(run_dir);
    for process in &mut status.processes {
        if let Some(usage) = process.pid.and_then(usage_of) {
            process.memory_bytes = Some(usage.memory_bytes);
            process.cpu_ms = Some(usage.cpu.as_millis() as u64);
        }
    }
    Ok(status)
}

/// What dq-redis-checker has found. Where there is nothing to read, nobody has written any.
pub fn findings(run_dir: &Path) -> Vec<Finding> {
    let findings = std::fs::read(findings_file(run_dir)).unwrap_or_default();
    serde_json::from_slice(&findings).unwrap_or_default()
}
