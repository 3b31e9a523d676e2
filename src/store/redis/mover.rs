//! Changes the set of nodes: moves jobs to their new homes, or gives a node up. docs/internals/NODES.md has the steps,
//! the reason for each step, and what happens if the mover dies after that step.
//!
//! A run may end after any step, and may be started again: it reads all that it needs from the nodes.

use std::collections::BTreeSet;
use std::time::Duration;

use super::homes::Homes;
use super::move_progress::{MoveProgress, MoveSummary, SetChangeRequest, other_mover};
use super::nodes::{Nodes, latest};
use super::round::{MoveRound, MoveRoundError};
use super::set::NodeSet;
use crate::{Result, StoreError};

/// How long a move waits for a node that stopped answering. Then the move begins a new round.
const PAUSE: Duration = Duration::from_millis(500);

impl Nodes {
    /// Plans a change from the sets that the nodes have now. Returns the set that moves jobs, and whether this set does
    /// all that the caller wants. (If an earlier change is unfinished, dq finishes it first.) Returns none if there is
    /// nothing to do.
    fn plan(&self, ask: &SetChangeRequest) -> Result<Option<(NodeSet, bool)>> {
        let refused = |why: String| Err(StoreError::Unavailable(why));
        let known = |name: &String| self.names.contains(name);
        for name in ask.add.iter().chain(&ask.empty).chain(&ask.adopt) {
            if !known(name) {
                return refused(format!(
                    "the configuration names no node {name}; it names {}",
                    self.names.join(", ")
                ));
            }
        }
        let reports = self.reports();
        let sets: Vec<Vec<Option<NodeSet>>> = reports
            .iter()
            .map(|report| {
                let sets = report.as_ref().map_or(&[][..], |report| &report.sets);
                sets.iter().map(|text| text.as_deref().and_then(NodeSet::parse)).collect()
            })
            .collect();
        let latest = latest(&reports);
        let (names, from, goal, after) = match &latest {
            None => (self.names.clone(), 0, self.names.clone(), 0),
            Some(set) => {
                let from = set.moving.as_ref().map_or(set.number, |goal| goal.from);
                (set.names.clone(), from, set.homes().to_vec(), set.number)
            }
        };
        let is_given_up = |name: &String| ask.forget.as_ref() == Some(name);
        let mut wanted: BTreeSet<String> = goal.iter().filter(|name| !is_given_up(name)).cloned().collect();
        wanted.extend(ask.add.iter().cloned());
        wanted.retain(|name| !ask.empty.contains(name));
        if wanted.is_empty() {
            return refused("there would be no node left for the jobs".into());
        }
        let mut names: Vec<String> = names.into_iter().filter(|name| !is_given_up(name)).collect();
        if names.is_empty() {
            // All nodes that had jobs before are lost. Only the jobs that were moved are left.
            names = wanted.iter().cloned().collect();
        }
        let goal_now: BTreeSet<String> = goal.into_iter().filter(|name| !is_given_up(name)).collect();
        let is_moving = latest.as_ref().is_some_and(|set| set.moving.is_some());
        let is_all = !is_moving || wanted == goal_now;
        if !is_all {
            wanted = goal_now;
        }
        let set = NodeSet::moving(after, &names, from, &wanted.iter().cloned().collect::<Vec<_>>())?;
        for name in set.all() {
            if !known(&name.to_owned()) {
                return refused(format!(
                    "{name} has jobs, and the configuration does not name it: give its url there"
                ));
            }
        }
        for (node, report) in
            reports.iter().enumerate().filter(|(node, _)| self.has_part_in_move(&set, ask, *node))
        {
            if let Err(e) = report {
                return Err(match e {
                    StoreError::NodeDown(why) => {
                        StoreError::NodeDown(format!("{why} (all nodes must answer)"))
                    }
                    e => e.clone(),
                });
            }
            let joins = !set.names.contains(&self.names[node]) && set.homes().contains(&self.names[node]);
            let begun = sets[node]
                .iter()
                .flatten()
                .any(|own| own.moving.as_ref().is_some_and(|goal| goal.from == from));
            if joins && !begun && self.jobs_on(node)? > 0 {
                return refused(format!(
                    "{name} has jobs already, and a node that is added must be empty: dq nodes move --adopt {name} takes them over",
                    name = self.names[node]
                ));
            }
        }
        let is_current = |node: usize| {
            sets[node]
                .iter()
                .all(|own| own.as_ref().is_some_and(|own| latest.as_ref().is_some_and(|set| own == set)))
        };
        let all_current = (0..self.count()).filter(|node| names.contains(&self.names[*node])).all(is_current);
        let changes =
            is_moving || wanted.iter().ne(names.iter()) || ask.forget.is_some() || !ask.adopt.is_empty();
        Ok((changes || latest.is_none() || !all_current).then_some((set, is_all)))
    }

    /// Returns whether a node takes part in a move.
    pub(super) fn has_part_in_move(&self, set: &NodeSet, ask: &SetChangeRequest, node: usize) -> bool {
        let name = &self.names[node];
        set.all().contains(&name.as_str()) || ask.adopt.contains(name)
    }

    /// Returns how many live jobs and dead letters a node has.
    pub fn jobs_of(&self, name: &str) -> Result<u64> {
        self.names.iter().position(|n| n == name).map_or(Ok(0), |node| self.jobs_on(node))
    }

    pub(super) fn jobs_on(&self, node: usize) -> Result<u64> {
        let on = |place| Ok(self.counts_at(place)?.values().flat_map(|shard| shard.counts).sum::<u64>());
        self.shards_of(node).map(on).sum()
    }

    /// Returns what a change would do: the nodes before and after it, and how many jobs are on the nodes that take
    /// part. None: there is nothing to do.
    pub fn preview_move(&self, ask: &SetChangeRequest) -> Result<Option<MoveSummary>> {
        let Some((set, _)) = self.plan(ask)? else { return Ok(None) };
        let mut jobs = 0;
        for node in (0..self.count()).filter(|node| self.has_part_in_move(&set, ask, *node)) {
            jobs += self.jobs_on(node)?;
        }
        Ok(Some(MoveSummary {
            before: set.names.clone(),
            nodes: set.homes().to_vec(),
            counts: [jobs; 2],
            ..MoveSummary::default()
        }))
    }

    /// Changes the set, and moves jobs to their homes in the new set. Each time that a node fails but may come back, a
    /// new round begins. None: there is nothing to do.
    pub fn move_jobs(
        &self,
        ask: &SetChangeRequest,
        mut report_progress: impl FnMut(MoveProgress),
    ) -> Result<Option<MoveSummary>> {
        ask.empty.iter().try_for_each(|name| self.refuse_tables(name))?;
        let mut done = MoveSummary::default();
        let mut before = None;
        loop {
            let (set, is_all) = match self.plan(ask) {
                Ok(Some(planned)) => planned,
                Ok(None) if before.is_some() => break,
                Ok(None) => return Ok(None),
                Err(e)
                    if before.is_some()
                        && matches!(MoveRoundError::from(e.clone()), MoveRoundError::Again(_)) =>
                {
                    log::warn!("{e}");
                    report_progress(MoveProgress::Again);
                    std::thread::sleep(PAUSE);
                    continue;
                }
                Err(e) => return Err(e),
            };
            before.get_or_insert_with(|| set.names.clone());
            done.nodes = set.homes().to_vec();
            let homes = Homes::new(set.clone(), &self.names);
            let round = MoveRound {
                nodes: self,
                set: &set,
                homes: &homes,
                ask,
                done: &mut done,
                report_progress: &mut report_progress,
            };
            match round.play() {
                Ok(()) if is_all => break,
                Ok(()) => {}
                Err(MoveRoundError::Fails(e)) => return Err(e),
                Err(MoveRoundError::Again(e)) => {
                    log::warn!("{e}");
                    report_progress(MoveProgress::Again);
                    std::thread::sleep(PAUSE);
                }
            }
        }
        done.before = before.unwrap_or_default();
        Ok(Some(done))
    }

    /// Gives up a node that does not answer: the other nodes get a set without it. If jobs are being moved, this move
    /// is finished without that node. Returns the nodes that have jobs afterwards.
    pub fn give_up(&self, name: &str, report_progress: impl FnMut(MoveProgress)) -> Result<Vec<String>> {
        self.learn(None)?;
        if self.known().is_some_and(|homes| homes.is_moving()) {
            let ask = SetChangeRequest { forget: Some(name.to_owned()), ..SetChangeRequest::default() };
            return Ok(self.move_jobs(&ask, report_progress)?.map(|done| done.nodes).unwrap_or_default());
        }
        self.give_up_at_once(name)
    }

    fn give_up_at_once(&self, name: &str) -> Result<Vec<String>> {
        let reports = self.reports();
        let refused = |why: String| Err(StoreError::Unavailable(why));
        let Some(latest) = latest(&reports) else {
            return refused("no node has a set of nodes yet: dq nodes move makes the first one".into());
        };
        let left: Vec<String> = latest.names.iter().filter(|n| *n != name).cloned().collect();
        if latest.moving.is_some() {
            return Err(other_mover());
        }
        if left.len() == latest.names.len() {
            return refused(format!(
                "{name} is not one of the nodes that have jobs, which are {} (if one of them is shown as older: run dq nodes move)",
                left.join(", ")
            ));
        }
        if left.is_empty() {
            return refused(format!("{name} is the only node that has jobs"));
        }
        let mut places = Vec::new();
        for other in &left {
            let Some(node) = self.names.iter().position(|n| n == other) else {
                return refused(format!(
                    "{other} has jobs, and the configuration does not name it: give its url there"
                ));
            };
            let report = reports[node].as_ref().map_err(StoreError::clone)?;
            if report.sets.iter().any(|text| text.as_deref() != Some(latest.text())) {
                return refused(format!(
                    "{other} has another set of nodes than the others: run dq nodes move first"
                ));
            }
            places.extend(self.shards_of(node));
        }
        let set = NodeSet::open(latest.number, &left)?;
        for place in places {
            let own = self.write_set(place, &["open", set.text(), latest.text()])?;
            if own != set.text() {
                return refused("another run changes the nodes: dq nodes list shows their state".into());
            }
        }
        self.learn(None)?;
        Ok(left)
    }
}
