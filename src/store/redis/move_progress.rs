//! The request for a move, its progress, and its result.

use crate::StoreError;

/// The change of the set that the caller wants.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SetChangeRequest {
    /// Nodes that become homes of jobs.
    pub add: Vec<String>,
    /// Nodes from which all jobs are moved away.
    pub empty: Vec<String>,
    /// Nodes that were forgotten and are back. Their jobs are taken over.
    pub adopt: Vec<String>,
    /// The node that this run takes out of the set although it does not answer.
    pub forget: Option<String>,
}

/// The progress of a move.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MoveProgress {
    /// The move begins. The value is the number of live jobs and dead letters to look at.
    Begins(u64),
    /// The number of jobs and dead letters that were looked at since the last report.
    Searched(u64),
    /// The move begins a new round, because a node stopped answering or another server answers for it.
    Again,
}

/// The result of a move.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MoveSummary {
    /// The nodes that were homes before.
    pub before: Vec<String>,
    /// The nodes that are homes now.
    pub nodes: Vec<String>,
    /// Live jobs and dead letters that were moved to another node.
    pub moved: u64,
    /// Jobs that were dropped on an older node, because an earlier move had moved these jobs away.
    pub dropped: u64,
    /// The number of live jobs and dead letters before the move, and after it.
    pub counts: [u64; 2],
}

/// Returns the error for a mover that finds another mover at work.
pub(super) fn other_mover() -> StoreError {
    StoreError::Unavailable(
        "another run has begun to change the nodes: dq nodes list shows their state".into(),
    )
}
