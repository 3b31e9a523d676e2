//! The nodes of a store, which of them are the homes of jobs, and which shard of a home a job belongs to.
//! docs/internals/NODES.md has the rules by which a process learns the set of nodes.

use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, Weak};
use std::time::{Duration, Instant};

use super::answer;
use super::flags::{self, PAUSES, PauseFlags};
use super::homes::Homes;
use super::node::{Answer, Call, Failure, Node};
use super::script::Script;
use super::set::{NodeSet, SET, home_of, parts};
use super::topic_levels::TopicDurabilityLevels;
use crate::{ProbeAnswer, Result, ServerQuery, StoreError};
use model::job::JobKey;
use model::rendezvous;
use model::settings;

/// How often a process checks whether a move of jobs is over. During the move, the process may not change jobs.
const LOOK_EACH: Duration = Duration::from_millis(100);

/// How old the known set may be for a caller that checks the set only from time to time.
pub(super) const FRESH: Duration = Duration::from_secs(1);

/// How often a process checks whether a node that is down was given up. Each check may take as long as a timeout.
const GIVEN_UP_EACH: Duration = Duration::from_secs(5);

/// The nodes of a store. All handles of a process share them.
pub struct Nodes {
    pub(super) nodes: Vec<Node>,
    pub(super) names: Vec<String>,
    homes: RwLock<Option<Arc<Homes>>>,
    /// When the sets of all nodes were last read. One thread at a time reads them.
    learned_at: Mutex<Option<Instant>>,
    levels: RwLock<TopicDurabilityLevels>,
    /// What is known of paused topics, from all nodes together.
    pub(super) pauses: Mutex<PauseFlags>,
}

/// What a node reports about itself.
pub(super) struct NodeReport {
    /// The set of each shard. An empty text: the shard has no set. None: the shard does not answer.
    pub sets: Vec<Option<String>>,
    pauses: PauseFlags,
}

/// Returns the newest of the sets that the nodes report, or none if no node has one.
pub(super) fn latest(reports: &[Result<NodeReport>]) -> Option<NodeSet> {
    let sets = reports.iter().flatten().flat_map(|report| report.sets.iter().flatten());
    sets.filter_map(|text| NodeSet::parse(text)).max_by_key(|set| set.number)
}

/// Returns the error for a request that must wait because jobs are being moved.
pub(super) fn moving() -> StoreError {
    StoreError::Moving("jobs are being moved to other nodes; until that is finished, they are neither changed nor delivered (dq nodes list shows it)".into())
}

impl Nodes {
    /// Returns the nodes of the settings. Does not connect yet. In a process, all handles for the same settings share
    /// one `Nodes` value. So they share the connections, and what is known of nodes that are down.
    pub fn from_settings(settings: &settings::RedisSettings) -> Result<Arc<Nodes>> {
        type NodesBySettings = Vec<(settings::RedisSettings, Weak<Nodes>)>;
        static KNOWN: Mutex<NodesBySettings> = Mutex::new(Vec::new());
        let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|(_, nodes)| nodes.strong_count() > 0);
        if let Some(nodes) = known.iter().find(|(s, _)| s == settings).and_then(|(_, nodes)| nodes.upgrade())
        {
            return Ok(nodes);
        }
        let nodes: Vec<Node> =
            settings.nodes.iter().map(|node| Node::new(node, settings)).collect::<Result<_>>()?;
        let names: Vec<String> = nodes.iter().map(|node| node.name.clone()).collect();
        let nodes = Arc::new(Nodes {
            homes: RwLock::default(),
            learned_at: Mutex::default(),
            pauses: Mutex::default(),
            levels: RwLock::new(TopicDurabilityLevels::new(settings.safety.durability)),
            nodes,
            names,
        });
        known.push((settings.clone(), Arc::downgrade(&nodes)));
        Ok(nodes)
    }

    /// Returns how many nodes there are.
    pub fn count(&self) -> usize {
        self.nodes.len()
    }

    /// Returns the name of a node.
    pub fn name(&self, lane: usize) -> Option<&str> {
        self.names.get(lane).map(String::as_str)
    }

    /// Asks each server of a node about itself.
    pub fn probe(&self, lane: usize, probe: ServerQuery) -> Vec<ProbeAnswer> {
        self.nodes[lane].probe(probe)
    }

    /// Returns the node where a job belongs by the known set, or by the configuration if no set is known.
    pub fn lane_of(&self, key: &JobKey) -> usize {
        self.known().map_or_else(|| home_of(&self.names, key), |homes| homes.home(key).unwrap_or(0))
    }

    /// Returns whether the home of a job counts as down.
    pub fn is_home_down(&self, key: &JobKey) -> bool {
        let home = self.known().and_then(|homes| homes.home(key).ok()).map(|home| self.place(home, key));
        home.is_some_and(|home| self.nodes[home.node].is_down(home.shard))
    }

    /// Returns the shard where a job is, or would be, on a node.
    pub(super) fn place(&self, node: usize, key: &JobKey) -> Place {
        let shard = rendezvous::first_of(self.nodes[node].bases.len() as u32, &parts(key)) as usize;
        Place { node, shard }
    }

    /// Returns the shards of a node.
    pub(super) fn shards_of(&self, node: usize) -> impl Iterator<Item = Place> + use<> {
        (0..self.nodes[node].bases.len()).map(move |shard| Place { node, shard })
    }

    pub(super) fn call(&self, script: Script, place: Place, homes: &Homes) -> Call {
        self.nodes[place.node].call(script, place.shard, Some(&homes.set))
    }

    pub(super) fn levels(&self) -> RwLockReadGuard<'_, TopicDurabilityLevels> {
        self.levels.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn levels_mut(&self) -> RwLockWriteGuard<'_, TopicDurabilityLevels> {
        self.levels.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the set that this process knows, or none if it has not read one yet.
    pub(super) fn known(&self) -> Option<Arc<Homes>> {
        self.homes.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns the set that this process knows, whether jobs are being moved or not. Reads the set if the process knows
    /// none.
    pub(super) fn homes(&self) -> Result<Arc<Homes>> {
        self.known().map_or_else(|| self.learn(None), Ok)
    }

    /// Returns an error if the configuration does not name all known nodes that have jobs.
    pub(super) fn is_fit(&self) -> Result<()> {
        match self.homes()?.configuration_problem() {
            Some(why) => Err(StoreError::Unfit(why)),
            None => Ok(()),
        }
    }

    /// Returns the set with which jobs may be changed now, or an error while jobs are being moved.
    pub(super) fn open_homes(&self) -> Result<Arc<Homes>> {
        let homes = self.homes()?;
        if !homes.is_moving() {
            return Ok(homes);
        }
        let homes = self.learn(Instant::now().checked_sub(LOOK_EACH))?;
        if homes.is_moving() { Err(moving()) } else { Ok(homes) }
    }

    /// Returns whether the set has changed. If so, a node that is down may have been given up.
    pub(super) fn is_given_up(&self, homes: &Homes) -> bool {
        let known =
            (self.count() > 1).then(|| self.learn(Instant::now().checked_sub(GIVEN_UP_EACH)).ok()).flatten();
        known.is_some_and(|known| known.set != homes.set)
    }

    /// Uses this set from now on, if it is newer than the known set.
    pub(super) fn adopt(&self, set: NodeSet) -> Result<()> {
        let mut known = self.homes.write().unwrap_or_else(PoisonError::into_inner);
        if !set.is_news(known.as_ref().map(|homes| &homes.set)) {
            return Ok(());
        }
        if self.count() > 1 {
            match &set.moving {
                None => log::info!("the nodes with jobs are {}", set.names.join(", ")),
                Some(goal) => log::warn!(
                    "jobs are being moved: the nodes with jobs were {}, and will be {}",
                    set.names.join(", "),
                    goal.names.join(", ")
                ),
            }
        }
        let homes = Homes::new(set, &self.names);
        if let Some(why) = homes.configuration_problem() {
            log::error!("{why}");
        }
        *known = Some(Arc::new(homes));
        Ok(())
    }

    /// Asks all nodes at the same time. A node that hangs delays the result until its timeout.
    pub(super) fn reports(&self) -> Vec<Result<NodeReport>> {
        if self.count() == 1 {
            return vec![self.ask(0)];
        }
        std::thread::scope(|scope| {
            let asked: Vec<_> = (0..self.count()).map(|node| scope.spawn(move || self.ask(node))).collect();
            let ended = |thread: std::thread::ScopedJoinHandle<'_, Result<NodeReport>>| {
                thread.join().unwrap_or_else(|_| Err(answer::unexpected("a thread that ended")))
            };
            asked.into_iter().map(ended).collect()
        })
    }

    fn ask(&self, lane: usize) -> Result<NodeReport> {
        let node = &self.nodes[lane];
        let set = |shard| node.plain("GET", shard, SET);
        let mut calls: Vec<Call> = (0..node.bases.len()).map(set).collect();
        calls.push(node.plain("HGETALL", 0, PAUSES));
        let mut answers = node.run(&calls);
        let pauses = answers.pop().map(|answer| answer.map_err(Failure::into_error).and_then(flags::read));
        let mut failed = None;
        let set = |answer: Answer| match answer.map_err(Failure::into_error).and_then(answer::optional_text) {
            Ok(text) => Some(text),
            Err(e) => {
                failed = Some(e);
                None
            }
        };
        let sets: Vec<Option<String>> = answers.into_iter().map(set).collect();
        match failed {
            Some(e) if sets.iter().all(Option::is_none) => Err(e),
            // Some shards of a Cluster may be down.
            _ => Ok(NodeReport { sets, pauses: pauses.and_then(Result::ok).unwrap_or_default() }),
        }
    }

    /// Reads the sets of all nodes that answer, and uses the newest. Does not read the sets if they were read since
    /// `not_before` (None: since the call began). Also sends missed pauses to each node that answers. If no node has a
    /// set, makes the first set.
    pub(super) fn learn(&self, not_before: Option<Instant>) -> Result<Arc<Homes>> {
        let called_at = Instant::now();
        let mut learned_at = self.learned_at.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = self.known()
            && learned_at.is_some_and(|at| at >= not_before.unwrap_or(called_at))
        {
            return Ok(known);
        }
        let asked_at = Instant::now();
        let reports = self.reports();
        match latest(&reports) {
            Some(set) => self.adopt(set)?,
            None if self.known().is_some() => {}
            None => self.found(&reports)?,
        }
        let homes = self.known().ok_or_else(|| answer::unexpected("a set of nodes"))?;
        self.stamp_empty(&reports, &homes);
        self.agree_on_pauses(&reports);
        *learned_at = Some(asked_at);
        Ok(homes)
    }

    /// Makes the first set, with all nodes of the configuration. If there are several nodes, all of them must answer
    /// and be empty. A single node may have jobs.
    fn found(&self, reports: &[Result<NodeReport>]) -> Result<()> {
        if let Some((name, Err(e))) = self.names.iter().zip(reports).find(|(_, report)| report.is_err()) {
            return Err(match e {
                StoreError::NodeDown(why) if self.count() > 1 => StoreError::NodeDown(format!(
                    "{why} (at the first start of several nodes all must answer)"
                )),
                e if self.count() == 1 => e.clone(),
                e => StoreError::NodeDown(format!(
                    "{name}: {e} (at the first start of several nodes all must answer)"
                )),
            });
        }
        let others = if self.count() > 1 { 0..self.count() } else { 0..0 };
        for place in others.flat_map(|node| self.shards_of(node)) {
            let there =
                self.nodes[place.node].run_one(self.nodes[place.node].plain("EXISTS", place.shard, "due"));
            if answer::number(&there.map_err(Failure::into_error)?)? > 0 {
                return Err(StoreError::Unfit(format!(
                    "the nodes have jobs ({} has), but no set of nodes yet: they are of an earlier release. Stop its daemons on every \
                     host, and run dq nodes move --config FILE once",
                    self.names[place.node]
                )));
            }
        }
        // If several processes make the first set, the first process that writes to the node with the first name wins.
        let set = NodeSet::open(0, &self.names)?;
        let first = (0..self.count()).min_by_key(|node| &self.names[*node]).unwrap_or(0);
        let taken = self.write_set(Place { node: first, shard: 0 }, &["stamp", set.text(), "1"])?;
        self.adopt(NodeSet::parse(&taken).ok_or_else(|| answer::unexpected("a set of nodes"))?)
    }

    /// Writes the set to those shards of its nodes that have no set and are empty: such a shard has no data that could
    /// be older. If the set has only one node, a shard with jobs gets the set too.
    fn stamp_empty(&self, reports: &[Result<NodeReport>], homes: &Homes) {
        let is_alone = if homes.set.all().len() == 1 { "1" } else { "0" };
        for (node, report) in
            reports.iter().enumerate().filter(|(node, _)| homes.has(*node) && !homes.is_moving())
        {
            let Ok(report) = report else { continue };
            for (shard, set) in report.sets.iter().enumerate() {
                if set.as_ref().is_some_and(String::is_empty)
                    && let Err(e) =
                        self.write_set(Place { node, shard }, &["stamp", homes.set.text(), is_alone])
                {
                    log::debug!("node {}: {e}", self.names[node]);
                }
            }
        }
    }

    /// Runs the script that writes the set of a shard. Returns the set that the shard has afterwards.
    pub(super) fn write_set(&self, place: Place, words: &[&str]) -> Result<String> {
        let mut call = self.nodes[place.node].call(Script::Set, place.shard, None);
        call.cmd.arg(words);
        answer::optional_text(self.nodes[place.node].run_one(call).map_err(Failure::into_error)?)
    }

    /// Makes calls on one node. If this process has not met the server yet, or must meet it again because it was
    /// silent, the process first reads the sets of all nodes that answer.
    pub(super) fn run(&self, lane: usize, calls: &[Call]) -> Vec<Answer> {
        let mut answers = self.nodes[lane].run(calls);
        // The servers of a Cluster are met one by one.
        for _ in 0..3 {
            let unmet = |i: &usize| matches!(answers[*i], Err(Failure::Unmet(_)));
            let left: Vec<usize> = (0..calls.len()).filter(unmet).collect();
            if left.is_empty() {
                break;
            }
            let keeps = self.nodes[lane].keeps_jobs();
            let met = if self.count() == 1 { keeps } else { keeps.and_then(|()| self.learn(None).map(drop)) };
            if let Err(e) = met {
                left.iter().for_each(|i| answers[*i] = Err(Failure::NotRun(e.clone())));
                break;
            }
            for i in &left {
                if let Err(Failure::Unmet(server)) = &answers[*i] {
                    self.nodes[lane].has_met(server.clone());
                }
            }
            let again: Vec<Call> = left.iter().map(|i| calls[*i].clone()).collect();
            left.iter().zip(self.nodes[lane].run(&again)).for_each(|(i, answer)| answers[*i] = answer);
        }
        answers
    }

    /// Notes that a shard has refused a script, and which set the shard has. Returns an error if the shard cannot be
    /// used now.
    pub(super) fn refused(&self, lane: usize, set: &str) -> Result<()> {
        let Some(set) = NodeSet::parse(set) else {
            // The shard has no set. If it is empty, it gets one now.
            self.learn(None)?;
            return if self.count() == 1 { Ok(()) } else { self.is_current(lane) };
        };
        let known = self.known();
        let is_known = known.as_ref().is_some_and(|known| known.set == set);
        if is_known || set.is_news(known.as_ref().map(|homes| &homes.set)) {
            return self.adopt(set);
        }
        Err(self.older(lane))
    }

    pub(super) fn is_current(&self, lane: usize) -> Result<()> {
        let report = self.ask(lane)?;
        let known = self.known();
        let is_it = |text: &String| known.as_ref().is_some_and(|known| known.set.text() == text);
        if report.sets.iter().flatten().all(is_it) { Ok(()) } else { Err(self.older(lane)) }
    }

    fn older(&self, lane: usize) -> StoreError {
        StoreError::NodeDown(format!(
            "{}: its data is older than that of the other nodes (a lagging replica was promoted, or a backup was restored). It is not used \
             until dq nodes move has been run",
            self.names[lane]
        ))
    }

    /// If a node answers and has missed pauses or resumes that other nodes report, sends these to the node.
    fn agree_on_pauses(&self, reports: &[Result<NodeReport>]) {
        let known = {
            let mut known = self.pauses.lock().unwrap_or_else(PoisonError::into_inner);
            for report in reports.iter().flatten() {
                flags::merge_newer(&mut known, &report.pauses);
            }
            known.clone()
        };
        for (lane, report) in reports.iter().enumerate() {
            let Ok(report) = report else { continue };
            let mut missing = flags::missing_or_older(&known, &report.pauses).peekable();
            if missing.peek().is_some()
                && let Err(e) = self.send_pauses(lane, missing)
            {
                log::debug!("node {}: {e}", self.names[lane]);
            }
        }
    }
}

/// A shard of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Place {
    pub node: usize,
    pub shard: usize,
}
