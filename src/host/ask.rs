//! Asks a daemon's master for its status, over its control socket. Also reads what the status of the master does not
//! contain: the findings, and the resources that the processes use.

use std::io::{self, Read};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::usage_of;
use model::status::{DaemonStatus, Finding, control_socket, findings_file};

/// Why the status of a daemon is not known.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// No dq-master answers.
    #[error("no dq-master answers at {}: {reason}", path.display())]
    Silent {
        /// The control socket.
        path: PathBuf,
        /// The error of the system.
        reason: io::Error,
    },
    /// The answer cannot be understood, because the master is of another release.
    #[error("cannot understand dq-master's answer: {0}")]
    Unreadable(#[from] serde_json::Error),
}

/// Returns the status from the master of `run_dir`. The master must answer within `patience`. The status does not
/// contain the findings. It also does not contain the resources that the daemon's processes use.
pub fn ask_master(run_dir: &Path, patience: Duration) -> Result<DaemonStatus, AskError> {
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

/// Returns the status with the resources that the processes use and the findings.
pub fn whole_status(run_dir: &Path, patience: Duration) -> Result<DaemonStatus, AskError> {
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

/// Returns what dq-redis-checker has found. If the file of the findings is missing or cannot be read, the result is
/// empty.
pub fn findings(run_dir: &Path) -> Vec<Finding> {
    let findings = std::fs::read(findings_file(run_dir)).unwrap_or_default();
    serde_json::from_slice(&findings).unwrap_or_default()
}
