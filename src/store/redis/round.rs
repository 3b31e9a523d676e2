//! One round of a move: it sets the fence, clears older shards, copies the jobs, and opens the new set.
//! docs/internals/NODES.md has the steps, and the reason for each.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use redis::Value;

use super::CHUNK;
use super::answer::{array, number, optional_text, text, unexpected};
use super::homes::Homes;
use super::move_progress::{MoveProgress, MoveSummary, SetChangeRequest, other_mover};
use super::node::{Call, Failure};
use super::nodes::{Nodes, Place};
use super::script::Script;
use super::set::NodeSet;
use crate::{Result, StoreError};
use model::job::{JobId, JobKey, TopicName};

/// How long one WAIT for replicas lasts, and for how long the WAIT is repeated at most.
const WAIT: Duration = Duration::from_millis(50);
const WAIT_IN_ALL: Duration = Duration::from_secs(30);

/// What is moved: live jobs, dead letters, and records. Each text is the beginning of a key.
const KINDS: [&str; 3] = ["b", "X", "H"];

/// Why a round ends early.
pub(super) enum MoveRoundError {
    /// Another round may succeed.
    Again(StoreError),
    Fails(StoreError),
}

pub(super) type RoundResult<T> = std::result::Result<T, MoveRoundError>;

impl From<StoreError> for MoveRoundError {
    fn from(e: StoreError) -> MoveRoundError {
        match e {
            StoreError::NodeDown(_) | StoreError::Unknown(_) | StoreError::Busy | StoreError::Moving(_) => {
                MoveRoundError::Again(e)
            }
            e => MoveRoundError::Fails(e),
        }
    }
}

/// One round of a move: from the fence to the opening of the new set.
pub(super) struct MoveRound<'a, F> {
    pub nodes: &'a Nodes,
    pub set: &'a NodeSet,
    /// The homes of jobs after the move, and before it.
    pub homes: &'a Homes,
    pub ask: &'a SetChangeRequest,
    pub done: &'a mut MoveSummary,
    pub report_progress: &'a mut F,
}

/// The shard from which jobs of a topic are moved, the shard to which they go, and how many replicas must have them
/// there.
pub(super) struct ShardMove<'a> {
    pub from: Place,
    pub home: Place,
    pub topic: &'a TopicName,
    pub replicas: u64,
}

impl<F: FnMut(MoveProgress)> MoveRound<'_, F> {
    /// Runs the round.
    pub(super) fn play(mut self) -> RoundResult<()> {
        let concerned: Vec<usize> = (0..self.nodes.count())
            .filter(|node| self.nodes.has_part_in_move(self.set, self.ask, *node))
            .collect();
        let places: Vec<Place> = concerned.iter().flat_map(|node| self.nodes.shards_of(*node)).collect();
        (self.done.moved, self.done.dropped) = (0, 0);
        // The server that answers for each shard, and how many replicas it has.
        let mut servers = BTreeMap::new();
        for node in &concerned {
            self.have_replicas(*node)?;
            self.nodes.nodes[*node].keeps_jobs()?;
        }
        for place in &places {
            let (server, replicas) = self.server(*place)?;
            self.nodes.nodes[place.node].has_met(server.clone());
            servers.insert(*place, (server, replicas));
        }
        let replicas = |place: &Place| servers[place].1;
        for place in &places {
            self.fence(*place, replicas(place))?;
        }
        self.are_same(&servers)?;
        let all = concerned.iter().map(|node| self.nodes.jobs_on(*node)).sum::<Result<u64>>()?;
        (self.report_progress)(MoveProgress::Begins(all));
        self.done.counts[0] = all;
        for place in &places {
            if self.is_older(*place)? {
                self.clear(*place)?;
            }
        }
        for place in &places {
            self.empty(*place, &replicas)?;
        }
        let is_upgrade = self.goal_from() == 0;
        if is_upgrade {
            self.take_up_notes(&places)?;
        }
        // The replicas must have the removals of jobs too. Otherwise a replica that takes over would bring the removed
        // jobs back.
        for place in &places {
            self.fence(*place, replicas(place))?;
        }
        self.are_same(&servers)?;
        self.done.counts[1] = concerned.iter().map(|node| self.nodes.jobs_on(*node)).sum::<Result<u64>>()?;
        let opened = NodeSet::open(self.set.number, self.set.homes())?;
        for place in &places {
            let mut open = self.set_call(*place);
            open.cmd.arg("open").arg(opened.text()).arg(self.set.text());
            if optional_text(self.run_one(*place, open)?)? != opened.text() {
                return Err(MoveRoundError::Again(other_mover()));
            }
        }
        self.nodes.learn(None)?;
        for place in &places {
            let call = self.nodes.nodes[place.node].call(Script::Announce, place.shard, None);
            // If this call fails, the timers ring all bells after a while anyway.
            if let Err(MoveRoundError::Again(e) | MoveRoundError::Fails(e)) = self.run_one(*place, call) {
                log::warn!("{e}");
            }
        }
        Ok(())
    }

    pub(super) fn goal_from(&self) -> u64 {
        self.set.moving.as_ref().map_or(0, |goal| goal.from)
    }

    /// Makes one call. If the call has `to_met`, it runs only on a server that this process has met. On another server
    /// the call fails, and another round may succeed.
    pub(super) fn run_one(&self, place: Place, call: Call) -> RoundResult<Value> {
        let mut answers = self.run(place, vec![call])?;
        answers.pop().ok_or_else(|| MoveRoundError::Fails(unexpected("no answer")))
    }

    pub(super) fn run(&self, place: Place, calls: Vec<Call>) -> RoundResult<Vec<Value>> {
        let understand = |answer: std::result::Result<Value, Failure>| match answer {
            Ok(value) => Ok(value),
            Err(Failure::OtherSet(own)) => Err(match NodeSet::parse(&own) {
                Some(own) if own.number > self.set.number => MoveRoundError::Fails(other_mover()),
                _ => MoveRoundError::Again(StoreError::NodeDown(format!(
                    "{}: it has fallen back to an older state",
                    self.nodes.names[place.node]
                ))),
            }),
            Err(e) => Err(MoveRoundError::from(e.into_error())),
        };
        self.nodes.nodes[place.node].run(&calls).into_iter().map(understand).collect()
    }

    pub(super) fn call(&self, script: Script, place: Place) -> Call {
        self.nodes.nodes[place.node].call(script, place.shard, Some(self.set))
    }

    /// Begins a call of the script that writes the set. The script runs only on a server that this process has met.
    fn set_call(&self, place: Place) -> Call {
        Call { to_met: true, ..self.nodes.nodes[place.node].call(Script::Set, place.shard, None) }
    }

    /// Returns which server answers for a shard, and how many replicas follow it.
    fn server(&self, place: Place) -> RoundResult<(String, u64)> {
        let call = Call::plain(place.shard, redis::cmd("INFO"));
        let info = text(self.run_one(place, call)?)?;
        let line = |name: &str| info.lines().find_map(|l| l.trim().strip_prefix(name)?.strip_prefix(':'));
        let replicas = info.lines().filter(|l| l.starts_with("slave") && l.contains("state=online")).count();
        if line("role") != Some("master") {
            let why = format!("{}: the server that answers is a replica", self.nodes.names[place.node]);
            return Err(MoveRoundError::Again(StoreError::NodeDown(why)));
        }
        Ok((line("run_id").unwrap_or_default().to_owned(), replicas as u64))
    }

    /// Returns an error if the Sentinels know a replica that does not follow the server. Such a replica could take over
    /// without the moved jobs.
    fn have_replicas(&self, node: usize) -> RoundResult<()> {
        let known = match self.nodes.nodes[node].known_replicas() {
            Some(known) => known,
            None if self.nodes.nodes[node].has_sentinels() => {
                let why = format!("{}: no sentinel reports its replicas", self.nodes.names[node]);
                return Err(MoveRoundError::Again(StoreError::NodeDown(why)));
            }
            None => return Ok(()),
        };
        let (_, online) = self.server(Place { node, shard: 0 })?;
        if online >= known {
            return Ok(());
        }
        Err(MoveRoundError::Fails(StoreError::Unavailable(format!(
            "{}: its sentinels know {known} replicas, of which {online} follow. A replica that does not follow could take over, and the moved \
             jobs would be lost: start it first, or have the sentinels forget it (SENTINEL RESET)",
            self.nodes.names[node]
        ))))
    }

    /// Returns an error if the server of a node is not the same as when the fence was set.
    fn are_same(&self, servers: &BTreeMap<Place, (String, u64)>) -> RoundResult<()> {
        for (place, (before, _)) in servers {
            let (now, _) = self.server(*place)?;
            if now != *before {
                let why = format!("{}: another server answers for it", self.nodes.names[place.node]);
                return Err(MoveRoundError::Again(StoreError::NodeDown(why)));
            }
        }
        Ok(())
    }

    /// Makes a call that writes, and waits until `replicas` replicas have the change.
    pub(super) fn safely(&self, place: Place, replicas: u64, call: impl Fn() -> Call) -> RoundResult<Value> {
        if replicas == 0 {
            return self.run_one(place, call());
        }
        let until = Instant::now() + WAIT_IN_ALL;
        loop {
            let mut wait = redis::cmd("WAIT");
            wait.arg(replicas).arg(WAIT.as_millis() as u64);
            let wait = Call::plain(place.shard, wait);
            // If only the hash of the script were sent, a server without the script would run it only after the WAIT.
            let mut answers = self.run(place, vec![call().whole(), wait])?;
            let (reached, answer) = (answers.pop().unwrap_or_default(), answers.pop().unwrap_or_default());
            if number(&reached)? >= replicas as i64 {
                return Ok(answer);
            }
            if Instant::now() >= until {
                return Err(MoveRoundError::Fails(StoreError::Unavailable(format!(
                    "{}: {replicas} replicas followed when the move began, and now fewer do. Nothing is lost. Run dq nodes move \
                     again when they follow, or when they are removed",
                    self.nodes.names[place.node]
                ))));
            }
        }
    }

    /// Writes the set that moves jobs, and waits until the replicas have it. The replicas then have all earlier writes
    /// too.
    fn fence(&self, place: Place, replicas: u64) -> RoundResult<()> {
        let is_home = self.set.names.contains(&self.nodes.names[place.node]);
        let (from, is_home) = (self.goal_from().to_string(), if is_home { "1" } else { "0" });
        let own = self.safely(place, replicas, || {
            let mut call = self.set_call(place);
            // `from` 0: the nodes are from a release without sets. They have no set, so no shard counts as older.
            let is_home = if from == "0" { "0" } else { is_home };
            call.cmd.arg("fence").arg(self.set.text()).arg(&from).arg(is_home);
            call
        })?;
        if optional_text(own)? == self.set.text() {
            Ok(())
        } else {
            Err(MoveRoundError::Fails(other_mover()))
        }
    }

    fn is_older(&self, place: Place) -> RoundResult<bool> {
        let older = self.nodes.nodes[place.node].plain("EXISTS", place.shard, "older");
        Ok(number(&self.run_one(place, older)?)? > 0)
    }

    /// Drops jobs of an older shard: the jobs that had their home on another node before this move. An earlier move has
    /// moved these jobs away. Then removes the mark `older`.
    fn clear(&mut self, place: Place) -> RoundResult<()> {
        for topic in self.nodes.counts_at(place)?.into_keys() {
            for kind in KINDS {
                self.each_page(place, &topic, kind, |round, ids| {
                    let mut gone = Vec::new();
                    for key in ids {
                        if round.homes.home_before(&key)? != place.node {
                            gone.push(key.id);
                        }
                    }
                    round.done.dropped += if kind == "H" { 0 } else { gone.len() as u64 };
                    round.drop_there(place, &topic, kind, &gone)
                })?;
            }
        }
        let unmark = self.nodes.nodes[place.node].plain("DEL", place.shard, "older");
        self.run_one(place, Call { to_met: true, ..unmark }).map(drop)
    }

    /// Moves away the jobs, dead letters and records that have their home on another node.
    fn empty(&mut self, place: Place, replicas: &impl Fn(&Place) -> u64) -> RoundResult<()> {
        for topic in self.nodes.counts_at(place)?.into_keys() {
            for kind in KINDS {
                self.each_page(place, &topic, kind, |round, ids| {
                    let searched = ids.len() as u64;
                    let mut by_home: BTreeMap<Place, Vec<JobId>> = BTreeMap::new();
                    for key in ids {
                        let node = round.homes.home(&key)?;
                        if node != place.node {
                            by_home.entry(round.nodes.place(node, &key)).or_default().push(key.id);
                        }
                    }
                    for (home, ids) in by_home {
                        let way = ShardMove { from: place, home, topic: &topic, replicas: replicas(&home) };
                        match kind {
                            "b" => round.carry(&way, &ids)?,
                            "X" => round.carry_letters(&way, &ids)?,
                            _ => round.carry_records(&way, &ids)?,
                        }
                        round.drop_there(place, &topic, kind, &ids)?;
                    }
                    if kind != "H" {
                        (round.report_progress)(MoveProgress::Searched(searched));
                    }
                    Ok(())
                })?;
            }
        }
        Ok(())
    }

    fn each_page(
        &mut self,
        place: Place,
        topic: &TopicName,
        kind: &str,
        mut act: impl FnMut(&mut Self, Vec<JobKey>) -> RoundResult<()>,
    ) -> RoundResult<()> {
        let mut cursor = "0".to_owned();
        loop {
            let mut call = self.call(Script::MoveLook, place);
            call.cmd.arg(topic.as_str()).arg(kind).arg(&cursor).arg(CHUNK);
            let mut values = array(self.run_one(place, call)?)?.into_iter();
            cursor = text(values.next().unwrap_or_default())?;
            let key = |id| Ok(JobKey { topic: topic.clone(), id: super::answer::id(id)? });
            let keys: Vec<JobKey> = values.map(key).collect::<Result<_>>()?;
            for some in keys.chunks(CHUNK) {
                act(self, some.to_vec())?;
            }
            if cursor == "0" {
                return Ok(());
            }
        }
    }
}
