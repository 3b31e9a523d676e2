//! What can be wrong with the store, with topics and with processes.

use std::fmt;

use model::status::Finding;

/// Something that can be wrong.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum FindingKind {
    DiskNearlyFull,
    FileMissing,
    FileReplaced,
    LogTooLong,
    StoreFails,
    Damaged,
    RunDirGone,
    RegistryAway,
    SpoolWaits,
    OutboxWaits,
    Node(String, NodeFindingKind),
    TopicLate(String),
    CircuitOpen(String),
    JobsStranded(String),
    TopicProblem(String),
    QuotaNearlyUsed(String),
    ProcessRestarting(String),
    AlertsNotSent,
}

/// Something that can be wrong with a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum NodeFindingKind {
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
    Older,
    NotDurable,
}

impl NodeFindingKind {
    const ALL: [NodeFindingKind; 12] = [
        NodeFindingKind::Down,
        NodeFindingKind::Replica,
        NodeFindingKind::Evicts,
        NodeFindingKind::NotPersistent,
        NodeFindingKind::PersistenceFails,
        NodeFindingKind::MemoryShort,
        NodeFindingKind::Emptied,
        NodeFindingKind::ReplicaLost,
        NodeFindingKind::ClockOff,
        NodeFindingKind::SlotsAway,
        NodeFindingKind::Older,
        NodeFindingKind::NotDurable,
    ];
}

impl FindingKind {
    /// The conditions that belong to no node, topic or process.
    const GENERAL: [FindingKind; 11] = [
        FindingKind::DiskNearlyFull,
        FindingKind::FileMissing,
        FindingKind::FileReplaced,
        FindingKind::LogTooLong,
        FindingKind::StoreFails,
        FindingKind::Damaged,
        FindingKind::RunDirGone,
        FindingKind::RegistryAway,
        FindingKind::SpoolWaits,
        FindingKind::OutboxWaits,
        FindingKind::AlertsNotSent,
    ];

    /// The conditions of a topic.
    const OF_TOPICS: [fn(String) -> FindingKind; 5] = [
        FindingKind::TopicLate,
        FindingKind::CircuitOpen,
        FindingKind::JobsStranded,
        FindingKind::TopicProblem,
        FindingKind::QuotaNearlyUsed,
    ];

    /// Returns the condition of a finding. `None`: another release wrote the finding, and this release does not know
    /// the condition.
    pub(super) fn from_finding(finding: &Finding) -> Option<FindingKind> {
        let Finding { node, topic, process, .. } = finding.clone();
        let general = FindingKind::GENERAL.into_iter();
        let of_node = node.into_iter().flat_map(|node| {
            NodeFindingKind::ALL.into_iter().map(move |what| FindingKind::Node(node.clone(), what))
        });
        let of_topic = topic
            .into_iter()
            .flat_map(|topic| FindingKind::OF_TOPICS.map(|condition| condition(topic.clone())));
        let of_process = process.map(FindingKind::ProcessRestarting);
        general.chain(of_node).chain(of_topic).chain(of_process).find(|c| c.name() == finding.name)
    }

    /// Returns the name of the condition for programs.
    pub(super) fn name(&self) -> &'static str {
        match self {
            FindingKind::DiskNearlyFull => "disk_nearly_full",
            FindingKind::FileMissing => "file_missing",
            FindingKind::FileReplaced => "file_replaced",
            FindingKind::LogTooLong => "log_too_long",
            FindingKind::StoreFails => "store_fails",
            FindingKind::Damaged => "damaged",
            FindingKind::RunDirGone => "run_dir_gone",
            FindingKind::RegistryAway => "registry_away",
            FindingKind::SpoolWaits => "spool_waits",
            FindingKind::OutboxWaits => "outbox_waits",
            FindingKind::TopicLate(_) => "topic_late",
            FindingKind::CircuitOpen(_) => "circuit_open",
            FindingKind::JobsStranded(_) => "jobs_stranded",
            FindingKind::TopicProblem(_) => "topic_problem",
            FindingKind::QuotaNearlyUsed(_) => "quota_nearly_used",
            FindingKind::ProcessRestarting(_) => "process_restarting",
            FindingKind::AlertsNotSent => "alerts_not_sent",
            FindingKind::Node(_, what) => match what {
                NodeFindingKind::Down => "node_down",
                NodeFindingKind::Replica => "node_is_replica",
                NodeFindingKind::Evicts => "node_evicts",
                NodeFindingKind::NotPersistent => "node_not_persistent",
                NodeFindingKind::PersistenceFails => "node_persistence_fails",
                NodeFindingKind::MemoryShort => "node_memory_short",
                NodeFindingKind::Emptied => "node_emptied",
                NodeFindingKind::ReplicaLost => "node_replica_lost",
                NodeFindingKind::ClockOff => "node_clock_off",
                NodeFindingKind::SlotsAway => "node_slots_away",
                NodeFindingKind::Older => "node_older",
                NodeFindingKind::NotDurable => "node_not_durable",
            },
        }
    }

    /// Returns the node of the condition.
    pub(super) fn node(&self) -> Option<&str> {
        match self {
            FindingKind::Node(name, _) => Some(name),
            _ => None,
        }
    }

    /// Returns the topic of the condition.
    pub(super) fn topic(&self) -> Option<&str> {
        match self {
            FindingKind::TopicLate(topic)
            | FindingKind::CircuitOpen(topic)
            | FindingKind::JobsStranded(topic)
            | FindingKind::TopicProblem(topic)
            | FindingKind::QuotaNearlyUsed(topic) => Some(topic),
            _ => None,
        }
    }

    /// Returns the slot of the condition's process.
    pub(super) fn process(&self) -> Option<&str> {
        match self {
            FindingKind::ProcessRestarting(slot) => Some(slot),
            _ => None,
        }
    }

    /// Whether acknowledged jobs may be lost.
    pub(super) fn loses_jobs(&self) -> bool {
        use NodeFindingKind::{Emptied, Evicts, NotPersistent, PersistenceFails};
        matches!(
            self,
            FindingKind::FileMissing
                | FindingKind::FileReplaced
                | FindingKind::Damaged
                | FindingKind::Node(_, Emptied | Evicts | NotPersistent | PersistenceFails)
        )
    }
}

impl fmt::Display for FindingKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self {
            FindingKind::DiskNearlyFull => "the store's disk is nearly full",
            FindingKind::FileMissing => "the store's file is gone",
            FindingKind::FileReplaced => "another file is in the place of the store's file",
            FindingKind::LogTooLong => "the store's log is not carried over",
            FindingKind::StoreFails => "the store fails",
            FindingKind::Damaged => "the store is damaged",
            FindingKind::RunDirGone => "run_dir is gone",
            FindingKind::RegistryAway => "the registry does not answer",
            FindingKind::SpoolWaits => "changes wait in this host's spool",
            FindingKind::OutboxWaits => "what follows jobs is not added",
            FindingKind::TopicLate(topic) => return write!(f, "topic {topic} is late"),
            FindingKind::CircuitOpen(topic) => return write!(f, "the circuit of topic {topic} is open"),
            FindingKind::JobsStranded(topic) => {
                return write!(f, "nobody delivers the due jobs of topic {topic}");
            }
            FindingKind::TopicProblem(topic) => {
                return write!(f, "topic {topic} has a setting that dq cannot do");
            }
            FindingKind::QuotaNearlyUsed(topic) => {
                return write!(f, "topic {topic} has nearly used up its quota");
            }
            FindingKind::ProcessRestarting(slot) => return write!(f, "{slot} is started again and again"),
            FindingKind::AlertsNotSent => "alerts cannot be sent",
            FindingKind::Node(name, what) => {
                let text = match what {
                    NodeFindingKind::Down => "is down",
                    NodeFindingKind::Replica => "is a replica, which takes no jobs",
                    NodeFindingKind::Evicts => "may evict jobs when its memory is full",
                    NodeFindingKind::NotPersistent => "keeps nothing on a disk",
                    NodeFindingKind::PersistenceFails => "cannot write to its disk",
                    NodeFindingKind::MemoryShort => "is short of memory",
                    NodeFindingKind::Emptied => "has lost its jobs",
                    NodeFindingKind::ReplicaLost => "has lost a replica",
                    NodeFindingKind::ClockOff => "has another clock than this host",
                    NodeFindingKind::SlotsAway => "does not serve all of its slots",
                    NodeFindingKind::Older => "has older data than the other nodes, and is not used",
                    NodeFindingKind::NotDurable => "cannot keep jobs as safe as is asked",
                };
                return write!(f, "node {name} {text}");
            }
        };
        f.write_str(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::notice::{DEAD_LETTER, KINDS};

    #[test]
    fn every_condition_is_an_alert_kind_and_is_found_by_its_finding() {
        let nodes = NodeFindingKind::ALL.into_iter().map(|what| FindingKind::Node("r1".into(), what));
        let topics = FindingKind::OF_TOPICS.map(|condition| condition("t".into()));
        let others = topics.into_iter().chain([FindingKind::ProcessRestarting("dq-timer-0".into())]);
        let all: Vec<FindingKind> = FindingKind::GENERAL.into_iter().chain(nodes).chain(others).collect();
        for condition in &all {
            let finding = Finding {
                name: condition.name().into(),
                what: condition.to_string(),
                node: condition.node().map(str::to_owned),
                topic: condition.topic().map(str::to_owned),
                process: condition.process().map(str::to_owned),
                loses_jobs: false,
                detail: String::new(),
                since_ms: 0,
            };
            assert_eq!(FindingKind::from_finding(&finding).as_ref(), Some(condition));
        }
        let mut names: Vec<&str> = all.iter().map(FindingKind::name).chain([DEAD_LETTER]).collect();
        let mut kinds = KINDS.to_vec();
        names.sort();
        kinds.sort();
        assert_eq!(names, kinds);
    }
}
