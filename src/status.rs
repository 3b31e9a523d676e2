//! What dq-master tells of itself over its control socket, as JSON. Pure types: the supervisor fills them in, the command
//! line and the HTTP API show them.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::slot::Generation;

/// Where a daemon's master answers: whoever connects is told its [`Status`], and nothing is read from him.
pub fn control_socket(run_dir: &Path) -> PathBuf {
    run_dir.join("dq-master.sock")
}

/// Where dq-redis-checker writes what is wrong with the store, with topics and processes: a list of [`Finding`], as JSON.
pub fn findings_file(run_dir: &Path) -> PathBuf {
    run_dir.join("findings.json")
}

/// Something that is wrong with the store, a topic or a process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// A word for machines, such as `node_down`.
    pub name: String,
    /// What it is, for people.
    pub what: String,
    /// The node that it is about; none: the store as a whole, or a topic or process.
    pub node: Option<String>,
    /// The topic that it is about.
    #[serde(default)]
    pub topic: Option<String>,
    /// The slot of the process that it is about.
    #[serde(default)]
    pub process: Option<String>,
    /// Whether jobs that were acknowledged may be lost by it.
    pub loses_jobs: bool,
    /// Figures, and what would help.
    pub detail: String,
    /// Since when it is known, Unix milliseconds.
    pub since_ms: i64,
}

/// A daemon. Moments are Unix milliseconds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// The release that the master runs.
    pub version: String,
    /// What the host calls itself.
    pub instance: String,
    /// The master's process.
    pub pid: i32,
    /// When the master was started; going over to another executable does not change it.
    pub started_ms: i64,
    /// What it is about.
    pub phase: Phase,
    /// The generation that serves.
    pub generation: Generation,
    /// The last rolling restart that came to an end; none: there was none.
    pub renewal: Option<Renewal>,
    /// The sockets that are bound: what for, and where.
    pub listening: Vec<(String, String)>,
    /// The children, of all generations that have some.
    pub processes: Vec<Process>,
    /// What dq-redis-checker has found. Filled in by whoever asks.
    #[serde(default)]
    pub findings: Vec<Finding>,
}

/// What a master is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// Not all children have been ready yet.
    Starting,
    /// It serves.
    Steady,
    /// It serves, and tries a new executable.
    Checking,
    /// It serves, and starts a new generation.
    Rolling,
    /// It ends.
    Stopping,
}

/// A rolling restart that came to an end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Renewal {
    /// When.
    pub at_ms: i64,
    /// What was to be renewed: `configuration` (HUP) or `executable` (USR2).
    pub kind: String,
    /// Why everything is as it was; none: the new generation serves.
    pub refused: Option<String>,
}

/// A slot of a generation, and the process in it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    /// The slot's name.
    pub name: String,
    /// The generation.
    pub generation: Generation,
    /// Its state.
    pub state: ProcessState,
    /// The process, if there is one.
    pub pid: Option<i32>,
    /// When that was started.
    pub started_ms: Option<i64>,
    /// For how long one of its workers has been past its own deadline, in milliseconds; 0: none is.
    pub overdue_ms: u64,
    /// How often the slot's process ended unasked and was started again, over all generations.
    pub restarts: u32,
    /// The last time that it did.
    pub last_end: Option<End>,
    /// Its share of the memory, in bytes. Filled in by whoever asks.
    #[serde(default)]
    pub memory_bytes: Option<u64>,
    /// Its processor time, in milliseconds. Filled in by whoever asks.
    #[serde(default)]
    pub cpu_ms: Option<u64>,
}

/// A child's state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ProcessState {
    /// It will be started again.
    Waiting,
    /// Not ready yet.
    Starting,
    /// It works.
    Up,
    /// It finishes what it has.
    Draining,
    /// It was killed and has not ended yet.
    Killed,
    /// Its configuration is bad: it is not started again.
    Gone,
}

/// An end that nobody asked for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct End {
    /// When.
    pub at_ms: i64,
    /// How, and why as far as that is known.
    pub reason: String,
}
