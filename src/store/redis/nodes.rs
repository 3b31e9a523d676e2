//! The nodes of a store, which of them and of their shards a job belongs to, and when a shard may deliver.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, RwLock, Weak};
use std::time::{Duration, Instant};

use redis::Value;
use serde::Serialize;

use super::answer::{self, array, count};
use super::drains::DRAINED;
use super::flags::{self, Flags};
use super::map::{Map, Plan, parts};
use super::node::{Call, Node};
use super::pauses::PAUSES;
use super::scout::{Board, FRESH, Holdings, Report};
use super::script::Script;
use crate::job::JobKey;
use crate::rendezvous;
use crate::settings;
use crate::store::{Probe, Probed, Result, StoreError};

/// The nodes of a store, shared by all handles of a process.
pub struct Nodes {
    pub(super) nodes: Vec<Node>,
    pub(super) names: Vec<String>,
    boards: Vec<Arc<Board>>,
    pub(super) plan: RwLock<Plan>,
    /// Since when a shard's own displaced jobs are known not to be older than what their homes have.
    cleared: Mutex<HashMap<Place, Instant>>,
    /// What any node has heard of topics that are paused.
    pub(super) pauses: Mutex<Flags>,
    me: Weak<Nodes>,
}

/// What is known of all nodes at a moment.
pub(super) struct Survey {
    pub map: Arc<Map>,
    /// One a node; empty where there is but one node.
    pub reports: Vec<Report>,
}

impl Survey {
    /// The nodes that may hold jobs of another, its home.
    pub(super) fn holders(&self, home: usize) -> impl Iterator<Item = usize> + '_ {
        let holds = move |(node, report): (usize, &Report)| {
            let unmarked = report.holdings.as_ref().is_some_and(|h| h.mark != self.map.fingerprint);
            let some = node != home && (report.has_away(home) || report.has_strays(home) || unmarked);
            (some && report.holdings.is_some()).then_some(node)
        };
        self.reports.iter().enumerate().filter_map(holds)
    }

    /// Whether a node has not heard of a topic what another has.
    fn has_missed_a_pause(&self, node: usize) -> bool {
        let of = |r: &Report| r.holdings.clone();
        let Some(own) = of(&self.reports[node]) else { return false };
        self.reports
            .iter()
            .filter_map(of)
            .any(|other| flags::unheard(&other.pauses, &own.pauses).next().is_some())
    }

    /// When the node was asked that was asked last.
    fn asked_at(&self) -> Instant {
        self.reports.iter().filter_map(|r| r.asked_at).max().unwrap_or_else(Instant::now)
    }

    /// Whether a node did not answer.
    pub(super) fn is_silent(&self, node: usize) -> bool {
        self.reports.get(node).is_some_and(|r| r.holdings.is_none())
    }
}

impl Nodes {
    /// The nodes as the settings have them; one set a process, for as long as there is a handle, so that handles share connections
    /// and what is known of nodes that are down. Connects when there is something to ask.
    pub fn of(settings: &settings::Redis) -> Result<Arc<Nodes>> {
        type Known = Vec<(settings::Redis, Weak<Nodes>)>;
        static KNOWN: Mutex<Known> = Mutex::new(Vec::new());
        let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|(_, nodes)| nodes.strong_count() > 0);
        if let Some(nodes) = known.iter().find(|(s, _)| s == settings).and_then(|(_, nodes)| nodes.upgrade())
        {
            return Ok(nodes);
        }
        let nodes: Vec<Node> =
            settings.nodes.iter().map(|node| Node::new(node, settings)).collect::<Result<_>>()?;
        let names: Vec<String> = nodes.iter().map(|node| node.name.clone()).collect();
        let nodes = Arc::new_cyclic(|me| Nodes {
            boards: nodes.iter().map(|_| Arc::default()).collect(),
            plan: RwLock::new(Plan::new(&names)),
            cleared: Mutex::default(),
            pauses: Mutex::default(),
            me: me.clone(),
            nodes,
            names,
        });
        known.push((settings.clone(), Arc::downgrade(&nodes)));
        Ok(nodes)
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.nodes.len()
    }

    /// What a node is called.
    pub fn name(&self, lane: usize) -> Option<&str> {
        self.names.get(lane).map(String::as_str)
    }

    /// Asks each server of a node about itself.
    pub fn probe(&self, lane: usize, probe: Probe) -> Vec<Probed> {
        self.nodes[lane].probe(probe)
    }

    /// The node where a job belongs.
    pub fn lane_of(&self, key: &JobKey) -> usize {
        self.map().home(key)
    }

    pub(super) fn map(&self) -> Arc<Map> {
        let plan = self.plan.read().unwrap_or_else(PoisonError::into_inner);
        if !plan.is_over(super::now_ms()) {
            return Arc::clone(&plan.map);
        }
        drop(plan);
        self.hear(&Flags::new())
    }

    /// Takes note of what a node has said of nodes that are being drained.
    pub(super) fn hear(&self, told: &Flags) -> Arc<Map> {
        let mut plan = self.plan.write().unwrap_or_else(PoisonError::into_inner);
        if plan.hear(told, super::now_ms()) {
            log::info!("the homes of jobs are {}", plan.map.fingerprint);
        }
        Arc::clone(&plan.map)
    }

    /// Of a node that does not answer.
    pub(super) fn silent(&self, node: usize) -> StoreError {
        StoreError::NodeDown(format!("{}: it does not answer", self.names[node]))
    }

    /// Where a job lies, or would, on a node.
    pub(super) fn place(&self, node: usize, key: &JobKey) -> Place {
        let shard = rendezvous::first_of(self.nodes[node].bases.len() as u32, &parts(key)) as usize;
        Place { node, shard }
    }

    /// What other nodes call a shard.
    pub(super) fn shard_name(&self, place: Place) -> String {
        format!("{}.{}", self.names[place.node], place.shard)
    }

    /// Marks that this process has added a job on a node in the place of another.
    pub(super) fn displaced(&self, holder: usize, home: usize) {
        self.boards[holder].added(home, self.count());
    }

    /// Looks at what is known of all nodes, which is not older than a second, but for nodes that do not answer.
    pub(super) fn survey(&self) -> Survey {
        let now = Instant::now();
        self.look_at_all(now.checked_sub(FRESH).unwrap_or(now), false)
    }

    /// Looks at what is known of all nodes, which must not be older than that; of others it is not known whether they are
    /// there.
    pub(super) fn survey_since(&self, not_before: Instant) -> Survey {
        self.look_at_all(not_before, true)
    }

    fn look_at_all(&self, not_before: Instant, must_be: bool) -> Survey {
        if self.count() == 1 {
            return Survey { map: self.map(), reports: Vec::new() };
        }
        let now = Instant::now();
        for (lane, board) in self.boards.iter().enumerate() {
            if board.want(not_before) {
                let (nodes, board) = (Weak::clone(&self.me), Arc::clone(board));
                let thread = std::thread::Builder::new().name("scout".into());
                if let Err(e) = thread.spawn(move || scout(&nodes, lane, &board)) {
                    log::error!("cannot start a thread: {e}");
                }
            }
        }
        let look = |(lane, board): (usize, &Arc<Board>)| {
            let in_full = now + self.nodes[lane].answer_time();
            match must_be {
                true => board.insist(not_before, in_full),
                false => board.look(not_before, now + PATIENCE, in_full),
            }
        };
        let reports = self.boards.iter().enumerate().map(look).collect();
        // Only now: what they said may have changed it.
        Survey { map: self.map(), reports }
    }

    /// Whether a shard may deliver what it holds: not before all that was added elsewhere in its place is known to it, nor,
    /// after it was away itself, before that is known which it holds in the place of others.
    pub(super) fn may_deliver(&self, place: Place, survey: &Survey) -> Result<()> {
        if self.count() == 1 {
            return Ok(());
        }
        let node = &self.nodes[place.node];
        let not_yet = |why: &str| Err(StoreError::Settling(format!("{}: {why}", node.name)));
        let is_away = || Err(self.silent(place.node));
        let Some(since) = node.known_since(place.shard) else {
            return if survey.is_silent(place.node) { is_away() } else { not_yet("not all may know it yet") };
        };
        let newer;
        let is_old = |r: &Report| r.holdings.is_some() && r.asked_at < since;
        let survey = match since {
            Some(since) if survey.reports.iter().any(is_old) => {
                newer = self.survey_since(since);
                &newer
            }
            _ => survey,
        };
        let refreshed;
        let survey = match survey.has_missed_a_pause(place.node) {
            // It was asked before it was told, perhaps.
            true => {
                refreshed = self.survey_since(survey.asked_at());
                &refreshed
            }
            false => survey,
        };
        if survey.has_missed_a_pause(place.node) {
            return not_yet("it is told first which topics are paused");
        }
        let others = || survey.reports.iter().enumerate().filter(|(other, _)| *other != place.node);
        if let Some((other, _)) = others().find(|(_, r)| r.has_away(place.node)) {
            return not_yet(&format!(
                "jobs that were added on {} in its place are looked at first",
                self.names[other]
            ));
        }
        let Some(since) = since else { return Ok(()) };
        let mut cleared = self.cleared.lock().unwrap_or_else(PoisonError::into_inner);
        if cleared.get(&place) != Some(&since) {
            let own = &survey.reports[place.node];
            if own.holdings.is_none() {
                return is_away();
            }
            if others().any(|(other, r)| r.holdings.is_some() && own.has_away(other)) {
                return not_yet("what it holds in the place of others is looked at first");
            }
            cleared.insert(place, since);
        }
        Ok(())
    }

    fn ask(&self, lane: usize) -> Result<Holdings> {
        let node = &self.nodes[lane];
        let held = |shard| {
            let mut call = node.call(Script::Held, shard);
            call.cmd.arg(&self.names);
            call
        };
        let ask = |calls: &[Call]| -> Vec<Result<Value>> {
            node.run(calls).into_iter().map(|a| a.map_err(super::Failure::into_error)).collect()
        };
        // The mark first: with it, all that is to be moved has been noted, and is told after it.
        let read = |command, key| node.plain(command, 0, key);
        let first = ask(&[read("HGETALL", DRAINED), read("HGETALL", PAUSES), read("GET", MARK)]);
        let first: Vec<Value> = first.into_iter().collect::<Result<_>>()?;
        let [drained, pauses, mark] = first.try_into().map_err(|_| answer::strange("an answer"))?;
        let answers = ask(&(0..node.bases.len()).map(held).collect::<Vec<_>>());
        let mut holdings = Holdings {
            away: vec![0; self.count()],
            stray: vec![0; self.count()],
            mark: answer::optional_text(mark)?,
            pauses: self.agree_on_pauses(lane, flags::read(pauses)?),
        };
        // Of a Cluster some shards may be away, whose jobs wait with them.
        for values in answers.into_iter().flatten() {
            for (i, two) in array(values)?.chunks(2).enumerate() {
                let [away, stray] = two else { return Err(answer::strange("an answer")) };
                holdings.away[i] += count(away)? as u64;
                holdings.stray[i] += count(stray)? as u64;
            }
        }
        self.hear(&flags::read(drained)?);
        self.contest(lane, &holdings.mark);
        Ok(holdings)
    }

    /// A node that was looked through for other homes than this process goes by has to be looked through again: as long as
    /// this one is here, it may add jobs where others do not look for them.
    fn contest(&self, lane: usize, mark: &str) {
        let own = &self.map().fingerprint;
        if mark.is_empty() || mark == own || mark.starts_with(&scanning(own)) {
            return;
        }
        let mut call = self.nodes[lane].call(Script::Mark, 0);
        call.cmd.arg(mark).arg("");
        if let Err(e) = self.nodes[lane].run_one(call) {
            log::debug!("node {}: {:?}", self.names[lane], e);
        }
    }

    /// How the nodes are to each other.
    pub fn states(&self) -> Vec<NodeState> {
        let survey = self.survey();
        let state = |(node, name): (usize, &String)| {
            let holdings = survey.reports.get(node).and_then(|r| r.holdings.as_deref());
            NodeState {
                name: name.clone(),
                answers: match survey.reports.is_empty() {
                    true => self.nodes[node].ping().is_ok(),
                    false => holdings.is_some(),
                },
                is_home: survey.map.has(node),
                held_for_others: holdings.map_or(0, |h| h.away.iter().chain(&h.stray).sum()),
                is_looked_through: holdings.is_none_or(|h| h.mark == survey.map.fingerprint),
            }
        };
        self.names.iter().enumerate().map(state).collect()
    }
}

/// Their scouts end with them.
impl Drop for Nodes {
    fn drop(&mut self) {
        self.boards.iter().for_each(|board| board.end());
    }
}

/// Asks one node, each time that somebody wants to know, as long as there is anybody.
fn scout(nodes: &Weak<Nodes>, lane: usize, board: &Board) {
    while board.wait()
        && let Some(nodes) = nodes.upgrade()
    {
        let asked_at = Instant::now();
        let holdings = nodes.ask(lane).map_err(|e| log::debug!("node {}: {e}", nodes.names[lane]));
        board.put(asked_at, holdings.ok());
    }
}

/// How a node is to the others.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct NodeState {
    /// What it is called.
    pub name: String,
    /// Whether it answers.
    pub answers: bool,
    /// Whether new jobs go there: it is not being drained.
    pub is_home: bool,
    /// How many jobs are noted to be moved to other nodes.
    pub held_for_others: u64,
    /// Whether all of its jobs have been looked at since the nodes became others.
    pub is_looked_through: bool,
}

/// How long a node is waited for that is asked what it holds for others, by those who could do without.
const PATIENCE: Duration = Duration::from_millis(100);

/// Where a node keeps for which homes its jobs have been looked at.
pub(super) const MARK: &str = "map";

/// What the mark of a node begins with that is being looked at for those homes.
pub(super) fn scanning(fingerprint: &str) -> String {
    format!("scanning {fingerprint} ")
}

/// A shard of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Place {
    pub node: usize,
    pub shard: usize,
}
