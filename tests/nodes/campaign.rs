//! Plays one seed: real servers, a real daemon, the faults of the schedule. Then everything is repaired, the pending
//! jobs are listed and delivered, and the history is judged.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use crate::clients::figures;
use crate::judge::{Finding, behind_spools, judge, repeated};
use crate::ledger::History;
use crate::schedule::{Extent, Schedule};
use crate::servers::{Node, Server};
use crate::stage::{SETTLE, Stage};
use crate::workers::Workers;

/// How long the test waits until all parked jobs are due, and then until all are delivered. This is longer than ten
/// seconds, because a client may let a lease run out, and no lease expires in the ten seconds after a move.
const RELEASE: Duration = Duration::from_secs(15);

/// The result of a seed.
pub struct Report {
    pub seed: u64,
    pub findings: Vec<Finding>,
    pub history: History,
    pub schedule: Schedule,
    pub took: Duration,
    /// The calls that took a server more than 10 ms since it was last started: their number, and the longest in ms.
    slow: (usize, u64),
    log: String,
}

impl Report {
    /// Returns one line of figures.
    pub fn line(&self) -> String {
        let operations = &self.history.operations;
        let accepted = self.history.deliveries.iter().filter(|d| d.is_accepted).count();
        let reserved = self.history.deliveries.iter().filter(|d| d.asked.is_some()).count();
        let Schedule { shape, faults, .. } = &self.schedule;
        format!(
            "seed {}: {} nodes{}, {} faults, {} requests ({}), {accepted} deliveries, {reserved} jobs reserved, {} jobs more than once, {} old versions behind spools, {} findings, {} slow calls of up to {} ms, {} s",
            self.seed,
            shape.nodes,
            if shape.sentinel { " with Sentinel" } else { "" },
            faults.len(),
            operations.len(),
            figures(operations),
            repeated(&self.history),
            behind_spools(&self.history),
            self.findings.len(),
            self.slow.0,
            self.slow.1,
            self.took.as_secs(),
        )
    }

    /// Returns the schedule, the findings, what happened to some of the ids with a finding, and the end of the daemon's
    /// log.
    pub fn full(&self) -> String {
        let mut text = format!("{}\n{}", self.line(), self.schedule);
        let mut counts: BTreeMap<String, usize> = BTreeMap::new();
        self.findings.iter().for_each(|f| *counts.entry(format!("{:?}", f.kind)).or_default() += 1);
        text += &format!("findings: {counts:?}\n");
        self.findings.iter().take(20).for_each(|f| text += &format!("{f}\n"));
        let mut shown = BTreeSet::new();
        for finding in &self.findings {
            if let Some(id) = finding.id
                && shown.len() < 4
                && shown.insert((finding.kind, id))
            {
                text += &format!("{finding}:\n{}", self.history.story(id, finding.at));
            }
        }
        let log: Vec<&str> = self.log.lines().collect();
        text + "the end of the daemon's log:\n" + &log[log.len().saturating_sub(60)..].join("\n")
    }
}

/// Plays a seed. `nodes`: the number of nodes. `None`: the seed decides.
pub fn play(seed: u64, extent: Extent, nodes: Option<usize>) -> Report {
    let began = Instant::now();
    let schedule = Schedule::new(seed, extent, nodes);
    let shape = &schedule.shape;
    let node = |n: usize| match shape.sentinel && n + 1 == shape.nodes {
        true => Node::group(),
        false => Node::Single(Server::start(shape.offsets_ms[n])),
    };
    let mut stage = Stage::start((0..shape.nodes).map(node).collect(), &[], "");
    let workers = Workers::start(&stage.clients);
    let mut operations = stage.disturb(&schedule);
    stage.mend();
    stage.history.operations.append(&mut operations);
    stage.look("when all was quiet", SETTLE);
    stage.release(RELEASE);
    let (mut reports, mut reserved) = workers.end();
    let log = stage.daemon.log();
    let slow = stage.slow_calls();
    let mut history = stage.end();
    history.operations.append(&mut reports);
    history.deliveries.append(&mut reserved);
    history.clocks_differ_by = schedule.clocks_differ_by();
    let findings = judge(&history);
    Report { seed, findings, history, schedule, took: began.elapsed(), slow, log }
}
