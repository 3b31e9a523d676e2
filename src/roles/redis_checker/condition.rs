//! What may be wrong with what the jobs are stored in.

use std::fmt;

/// What may be wrong.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Condition {
    DiskNearlyFull,
    FileMissing,
    FileReplaced,
    LogTooLong,
    StoreFails,
    Damaged,
    RunDirGone,
    RegistryAway,
    Node(String, NodeCondition),
}

/// What may be wrong with a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum NodeCondition {
    Down,
    Replica,
    Evicts,
    NotPersistent,
    PersistenceFails,
    MemoryShort,
    Emptied,
    ReplicaLost,
    ClockOff,
    SlotsAway,
}

impl Condition {
    /// A word for machines.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Condition::DiskNearlyFull => "disk_nearly_full",
            Condition::FileMissing => "file_missing",
            Condition::FileReplaced => "file_replaced",
            Condition::LogTooLong => "log_too_long",
            Condition::StoreFails => "store_fails",
            Condition::Damaged => "damaged",
            Condition::RunDirGone => "run_dir_gone",
            Condition::RegistryAway => "registry_away",
            Condition::Node(_, what) => match what {
                NodeCondition::Down => "node_down",
                NodeCondition::Replica => "node_is_replica",
                NodeCondition::Evicts => "node_evicts",
                NodeCondition::NotPersistent => "node_not_persistent",
                NodeCondition::PersistenceFails => "node_persistence_fails",
                NodeCondition::MemoryShort => "node_memory_short",
                NodeCondition::Emptied => "node_emptied",
                NodeCondition::ReplicaLost => "node_replica_lost",
                NodeCondition::ClockOff => "node_clock_off",
                NodeCondition::SlotsAway => "node_slots_away",
            },
        }
    }

    /// The node that it is about.
    pub(super) fn node(&self) -> Option<&str> {
        match self {
            Condition::Node(name, _) => Some(name),
            _ => None,
        }
    }

    /// Whether jobs may be lost by it that were acknowledged.
    pub(super) fn loses_jobs(&self) -> bool {
        use NodeCondition::{Emptied, Evicts, NotPersistent, PersistenceFails};
        matches!(
            self,
            Condition::FileMissing
                | Condition::FileReplaced
                | Condition::Damaged
                | Condition::Node(_, Emptied | Evicts | NotPersistent | PersistenceFails)
        )
    }
}

impl fmt::Display for Condition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self {
            Condition::DiskNearlyFull => "the store's disk is nearly full",
            Condition::FileMissing => "the store's file is gone",
            Condition::FileReplaced => "the store's file is another than at the start",
            Condition::LogTooLong => "the store's log is not carried over",
            Condition::StoreFails => "the store does not answer",
            Condition::Damaged => "the store is damaged",
            Condition::RunDirGone => "run_dir is gone",
            Condition::RegistryAway => "the registry does not answer",
            Condition::Node(name, what) => {
                let text = match what {
                    NodeCondition::Down => "is down",
                    NodeCondition::Replica => "is a replica, which takes no jobs",
                    NodeCondition::Evicts => "may evict jobs when its memory is full",
                    NodeCondition::NotPersistent => "keeps nothing on a disk",
                    NodeCondition::PersistenceFails => "cannot write to its disk",
                    NodeCondition::MemoryShort => "is short of memory",
                    NodeCondition::Emptied => "has lost its jobs",
                    NodeCondition::ReplicaLost => "has lost a replica",
                    NodeCondition::ClockOff => "has another clock than this host",
                    NodeCondition::SlotsAway => "does not serve all of its slots",
                };
                return write!(f, "node {name} {text}");
            }
        };
        f.write_str(text)
    }
}
