//! How far an operation has come, as the registry keeps it.

use serde::{Deserialize, Serialize};

use super::request::BulkRequest;

/// A leg is one part of an operation. A replay has only one leg, which visits records. This constant is the number of
/// that leg. (The legs of all other operations are in [`BulkWalk`](super::BulkWalk). Their numbers also begin with 0.)
pub const RECORDS_LEG: usize = 0;

/// One job that the current step changes: its id, its stamp (Unix microseconds), its due time, and its new due time. A
/// job without a new due time is deleted. For a dead letter, the due time is the moment when the job became a dead
/// letter. For a record, the due time is the moment when the job ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlannedJobChange(pub String, pub i64, pub i64, pub Option<i64>);

/// How many jobs an operation has looked at, and what happened to them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BulkCounts {
    /// The jobs or records that were looked at.
    pub looked_at: u64,
    /// The jobs that were changed.
    pub changed: u64,
    /// The jobs that the filter selects and that were not changed.
    pub skipped: u64,
    /// The jobs of interrupted steps for which dq cannot tell whether the interrupted step changed them.
    pub unclear: u64,
}

impl BulkCounts {
    /// Adds other counts.
    pub fn add(&mut self, other: BulkCounts) {
        self.looked_at += other.looked_at;
        self.changed += other.changed;
        self.skipped += other.skipped;
        self.unclear += other.unclear;
    }
}

/// How far an operation has come. All fields are written in one step, so the plan, the cursor and the counts agree.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct BulkProgress {
    /// The leg of the walk.
    pub leg: usize,
    /// The last leg in which a change was planned.
    pub planned_in: usize,
    /// The end of the page of jobs from which the plan was made. None: the leg is at its beginning.
    pub cursor: Option<String>,
    /// Whether all jobs were looked at. If so, only the changes of the plan are left to do.
    pub is_looked: bool,
    /// The changes of the current step. If a process died, some of them may have been made already.
    pub plan: Vec<PlannedJobChange>,
    /// The counts, without the changes of the plan.
    pub counts: BulkCounts,
    /// What the operation waits for. None: the operation does not wait.
    pub waits_for: Option<String>,
}

/// How an operation ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum BulkEnd {
    /// All jobs were looked at.
    Done,
    /// Somebody stopped the operation.
    Stopped,
    /// The operation could not continue.
    Failed,
}

impl BulkEnd {
    /// Returns the word by which the API and the registry say how the operation has ended.
    pub fn word(self) -> &'static str {
        match self {
            BulkEnd::Done => "done",
            BulkEnd::Stopped => "stopped",
            BulkEnd::Failed => "failed",
        }
    }

    /// Returns the end with that word.
    pub fn from_word(word: &str) -> Option<BulkEnd> {
        [BulkEnd::Done, BulkEnd::Stopped, BulkEnd::Failed].into_iter().find(|end| end.word() == word)
    }
}

/// An operation as the registry keeps it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredBulkOperation {
    /// The number of the operation.
    pub number: u64,
    /// Who began the operation, as in the audit log.
    pub who: String,
    /// What the operation does.
    pub request: BulkRequest,
    /// How far the operation has come.
    pub progress: BulkProgress,
    /// When the operation began, Unix milliseconds.
    pub started_ms: i64,
    /// Whether somebody has asked to stop the operation.
    pub is_stopping: bool,
    /// How the operation ended, and when, Unix milliseconds. None: the operation has not ended.
    pub ended: Option<(BulkEnd, i64)>,
}
