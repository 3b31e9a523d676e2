//! What dq-master reports about itself over its control socket, as JSON. Pure types: the supervisor fills them in, the
//! command line and the HTTP API show them.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::slot::GenerationNumber;

/// Returns the path of the control socket, where a daemon's master answers. Each client that connects gets the
/// [`DaemonStatus`]; the master reads nothing from the client.
pub fn control_socket(run_dir: &Path) -> PathBuf {
    run_dir.join("dq-master.sock")
}

/// Returns the path of the file in which dq-redis-checker writes what is wrong with the store, with topics and with
/// processes: a list of [`Finding`], as JSON.
pub fn findings_file(run_dir: &Path) -> PathBuf {
    run_dir.join("findings.json")
}

/// Something that is wrong now with the store, a topic or a process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// A name for programs, such as `node_down`.
    pub name: String,
    /// What is wrong, for people.
    pub what: String,
    /// The node that the finding is about. None: the finding is about the store as a whole, a topic or a process.
    pub node: Option<String>,
    /// The topic that the finding is about.
    #[serde(default)]
    pub topic: Option<String>,
    /// The slot of the process that the finding is about.
    #[serde(default)]
    pub process: Option<String>,
    /// Whether acknowledged jobs may be lost because of the problem.
    pub loses_jobs: bool,
    /// Figures, and what would help.
    pub detail: String,
    /// Since when the problem is known, in Unix milliseconds.
    pub since_ms: i64,
}

/// The status of a daemon. Moments are Unix milliseconds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DaemonStatus {
    /// The release that the master runs.
    pub version: String,
    /// The name of this host (`instance` in the configuration).
    pub instance: String,
    /// The id of the master's process.
    pub pid: i32,
    /// When the master was started. A hand-over to another executable does not change this time.
    pub started_ms: i64,
    /// What the master is doing.
    pub phase: MasterPhase,
    /// The number of the generation that serves.
    pub generation: GenerationNumber,
    /// The last rolling restart that ended. None: no rolling restart has ended yet.
    pub renewal: Option<Renewal>,
    /// The sockets that are bound: their purpose and their address.
    pub listening: Vec<(String, String)>,
    /// The store in words, with the file of the embedded store. Empty: the master is of an earlier release.
    #[serde(default)]
    pub store: String,
    /// The child processes of all generations.
    pub processes: Vec<Process>,
    /// What dq-redis-checker has found. The master leaves this list empty, and the process that asks for the status
    /// fills it in.
    #[serde(default)]
    pub findings: Vec<Finding>,
}

/// What a master is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MasterPhase {
    /// The daemon was started, and some child processes have not been ready yet.
    Starting,
    /// The daemon serves.
    Steady,
    /// The daemon serves, and checks a new executable.
    Checking,
    /// The daemon serves, and starts a new generation.
    Rolling,
    /// The daemon ends.
    Stopping,
}

/// A rolling restart that ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Renewal {
    /// When it ended, in Unix milliseconds.
    pub at_ms: i64,
    /// What was renewed: `configuration` (HUP) or `executable` (USR2).
    pub kind: String,
    /// Why the restart was refused. In this case, the old generation still serves. None: the new generation serves.
    pub refused: Option<String>,
}

/// A slot of a generation, and the process in it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    /// The slot's name.
    pub name: String,
    /// The number of the generation.
    pub generation: GenerationNumber,
    /// The state of the process.
    pub state: ProcessState,
    /// The id of the process, if there is one.
    pub pid: Option<i32>,
    /// When the process was started.
    pub started_ms: Option<i64>,
    /// How long one of the process's workers has been past its deadline, in milliseconds. 0: no worker is past its
    /// deadline.
    pub overdue_ms: u64,
    /// How often the process of the slot ended unexpectedly and was started again, over all generations.
    pub restarts: u32,
    /// The last unexpected end.
    pub last_end: Option<UnexpectedExit>,
    /// The share of the memory that this process has, in bytes: the memory that no other process uses, and its part of
    /// the shared memory. The program that asks for the status fills in this field.
    #[serde(default)]
    pub memory_bytes: Option<u64>,
    /// The processor time that this process has used, in milliseconds. The program that asks for the status fills in
    /// this field.
    #[serde(default)]
    pub cpu_ms: Option<u64>,
}

/// The state of a child process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ProcessState {
    /// The process has ended and will be started again.
    Waiting,
    /// The process is started and not ready yet.
    Starting,
    /// The process works.
    Up,
    /// The process finishes its work, and takes no new work.
    Draining,
    /// The process was killed, and has not ended yet.
    Killed,
    /// The process has ended and is not started again, for example because its configuration is wrong.
    Gone,
}

/// An unexpected end of a child process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnexpectedExit {
    /// When it ended, in Unix milliseconds.
    pub at_ms: i64,
    /// How the process ended, and why, if the reason is known.
    pub reason: String,
}
