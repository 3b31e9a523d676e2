//! Which nodes of the configuration are the homes of jobs. Pure.

use super::set::{NodeSet, home_of};
use crate::{Result, StoreError};
use model::job::JobKey;

/// A set of nodes, and the positions of its nodes in the configuration.
#[derive(Debug)]
pub(super) struct Homes {
    pub set: NodeSet,
    /// The position of each node in [`NodeSet::homes`]. None: the configuration does not name this node.
    nodes: Vec<Option<usize>>,
    /// The position of each node in [`NodeSet::names`]. While jobs are moved, these nodes are the homes before the
    /// move. Otherwise this list is the same as `nodes`.
    before: Vec<Option<usize>>,
}

impl Homes {
    /// Makes the homes of a set from the names of the nodes in the configuration.
    pub(super) fn new(set: NodeSet, names: &[String]) -> Homes {
        let place = |name: &String| names.iter().position(|n| n == name);
        let (nodes, before) =
            (set.homes().iter().map(place).collect(), set.names.iter().map(place).collect());
        Homes { set, nodes, before }
    }

    /// Returns the node where a job belongs. While jobs are moved, this is the new home.
    pub(super) fn home(&self, key: &JobKey) -> Result<usize> {
        let home = home_of(self.set.homes(), key);
        self.nodes[home].ok_or_else(|| StoreError::NodeDown(unnamed_node(&self.set.homes()[home])))
    }

    /// Returns the node where a job belonged before the move.
    pub(super) fn home_before(&self, key: &JobKey) -> Result<usize> {
        let home = home_of(&self.set.names, key);
        self.before[home].ok_or_else(|| StoreError::NodeDown(unnamed_node(&self.set.names[home])))
    }

    /// Returns whether jobs may be on a node.
    pub(super) fn has(&self, node: usize) -> bool {
        self.nodes.contains(&Some(node)) || self.before.contains(&Some(node))
    }

    /// Returns why the configuration does not fit the set, or none if it fits.
    pub(super) fn configuration_problem(&self) -> Option<String> {
        let names = |places: &[Option<usize>], names: &[String]| {
            places.iter().zip(names).find(|(place, _)| place.is_none()).map(|(_, name)| unnamed_node(name))
        };
        names(&self.nodes, self.set.homes()).or_else(|| names(&self.before, &self.set.names))
    }

    pub(super) fn is_moving(&self) -> bool {
        self.set.moving.is_some()
    }
}

fn unnamed_node(name: &str) -> String {
    format!(
        "{name} is one of the nodes that have jobs, and the configuration does not name it: give its url there (dq nodes move --empty \
         {name} moves its jobs away, dq nodes forget {name} gives them up)"
    )
}
