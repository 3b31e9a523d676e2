//! The state of the nodes, for display.

use std::time::{Duration, Instant};

use serde::Serialize;

use super::nodes::{FRESH, NodeReport, Nodes, latest};
use super::set::NodeSet;
use crate::{Result, ServerDurability, StoreError};

/// How many times a node with another set is asked, and the pause before it is asked again. The last step of a move
/// writes the new set to one node after the other. So a node may have another set for a moment, although the node is
/// not older.
const LOOKS: u32 = 5;
const PAUSE: Duration = Duration::from_millis(100);

impl Nodes {
    /// Returns the set of nodes that this process knows. None: the process has not read a set from any node yet.
    pub fn set_state(&self) -> Option<NodeSetView> {
        self.known().map(|homes| NodeSetView {
            number: homes.set.number,
            nodes: homes.set.names.clone(),
            goal: homes.set.moving.as_ref().map(|goal| goal.names.clone()),
        })
    }

    /// Returns the number of the set that this process knows. 0: the process knows no set.
    pub fn set_number(&self) -> u64 {
        self.known().map_or(0, |homes| homes.set.number)
    }

    /// Returns the state of each node.
    pub fn states(&self) -> Vec<NodeState> {
        // The set is read first, so that the nodes' own reports are not older than the set. A newer set in the reports
        // is used at once, because after a move the known set may be a second old.
        let _ = self.learn(Instant::now().checked_sub(FRESH));
        let reports = self.reports();
        if let Some(set) = latest(&reports)
            && let Err(e) = self.adopt(set)
        {
            log::debug!("{e}");
        }
        let known = self.known();
        let state = |((node, name), report): ((usize, &String), Result<NodeReport>)| {
            let set = known.as_ref().map(|homes| &homes.set);
            let part = set.map_or(NodeMembership::Unknown, |set| {
                let (is, was) = (set.homes().contains(name), set.names.contains(name));
                match (is, was) {
                    (true, true) => NodeMembership::Home,
                    (true, false) => NodeMembership::Joining,
                    (false, true) => NodeMembership::Leaving,
                    (false, false) => NodeMembership::Outside,
                }
            });
            let is_other = |text: &Option<String>| text.as_deref() != set.map(NodeSet::text);
            NodeState {
                name: name.clone(),
                is_older: !matches!(part, NodeMembership::Outside | NodeMembership::Unknown)
                    && report.as_ref().is_ok_and(|report| report.sets.iter().any(is_other))
                    && self.stays_older(node),
                answers: report.is_ok(),
                part,
                unusable: report.is_ok().then(|| self.nodes[node].is_usable().err()).flatten(),
                capability: report.is_ok().then(|| self.capability(node)).flatten(),
            }
        };
        self.names.iter().enumerate().zip(reports).map(state).collect()
    }

    /// Returns whether a node has a set that is not the newest, each time that it is asked.
    fn stays_older(&self, node: usize) -> bool {
        (0..LOOKS).all(|look| {
            if look > 0 {
                std::thread::sleep(PAUSE);
                let _ = self.learn(None);
            }
            self.is_current(node).is_err()
        })
    }

    /// Returns whether a node is outside the newest set, and so has no jobs. False if no set is known.
    pub fn is_outside(&self, node: usize) -> bool {
        let known = self.learn(Instant::now().checked_sub(FRESH)).ok().or_else(|| self.known());
        known.is_some_and(|homes| !homes.has(node))
    }
}

/// The set of nodes, for display.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct NodeSetView {
    /// The number of the set. A newer set has a greater number.
    pub number: u64,
    /// The nodes that are homes of jobs.
    pub nodes: Vec<String>,
    /// While jobs are moved: the nodes that will be homes.
    pub goal: Option<Vec<String>>,
}

/// The role of a node in the set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum NodeMembership {
    /// A home of jobs.
    Home,
    /// Jobs are being moved to this node, and it will be a home.
    Joining,
    /// The jobs of this node are being moved away.
    Leaving,
    /// The configuration names this node, but it is not in the set.
    Outside,
    /// No node has reported a set yet, so it is not known which nodes have jobs.
    Unknown,
}

impl NodeMembership {
    /// Returns the role as a word.
    pub fn word(self) -> &'static str {
        match self {
            NodeMembership::Home => "home",
            NodeMembership::Joining => "joining",
            NodeMembership::Leaving => "leaving",
            NodeMembership::Outside => "outside",
            NodeMembership::Unknown => "unknown",
        }
    }
}

/// The state of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeState {
    /// The name of the node.
    pub name: String,
    /// Whether the node answers.
    pub answers: bool,
    /// The role of the node in the set.
    pub part: NodeMembership,
    /// Whether the data of the node is older than the data of the other nodes. The node is not used until `dq nodes
    /// move` has been run.
    pub is_older: bool,
    /// Why dq does not use the node, although it answers.
    pub unusable: Option<StoreError>,
    /// How safe the node can make changes. None: the node does not report this.
    pub capability: Option<ServerDurability>,
}
