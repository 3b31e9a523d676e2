//! Paused topics. Each shard has the list of them, so that a lease and the check of the pause are one step. If nodes
//! differ, the latest pause or resume is valid. A node that was down gets the list before it delivers.

use super::RedisStore;
use super::flags::{self, PAUSES, PauseFlags};
use super::node::{Call, Failure};
use super::nodes::{Nodes, Place};
use super::script::Script;
use crate::{Pauses, Result, StoreError};
use model::job::TopicName;

impl RedisStore {
    fn pauses(&self) -> Result<PauseFlags> {
        let ask =
            |node: usize| (Place { node, shard: 0 }, self.nodes.nodes[node].plain("HGETALL", 0, PAUSES));
        let mut known = Err(StoreError::NodeDown("no node answers".into()));
        for (_, answer) in self.ask_all((0..self.nodes.count()).map(ask).collect()) {
            match (answer.and_then(flags::read), &mut known) {
                (Ok(node_pauses), Ok(known)) => drop(flags::merge_newer(known, &node_pauses)),
                (Ok(node_pauses), _) => known = Ok(node_pauses),
                (Err(e), Err(_)) => known = Err(e),
                (Err(_), Ok(_)) => {}
            }
        }
        known
    }
}

impl Nodes {
    /// Tells a node which topics are paused or resumed. The first shard is written last, because it is read to see
    /// which pauses the node knows.
    pub(super) fn send_pauses<'a>(
        &self,
        lane: usize,
        said: impl Iterator<Item = (&'a str, (i64, bool))>,
    ) -> Result<()> {
        let node = &self.nodes[lane];
        let said: Vec<_> = said.collect();
        let call = |shard| -> Call {
            let mut call = node.call(Script::Pause, shard, None);
            for (topic, (at_ms, paused)) in &said {
                call.cmd.arg(*topic).arg(*at_ms).arg(u8::from(*paused));
            }
            call
        };
        let (first, others): (Vec<Call>, Vec<Call>) =
            (vec![call(0)], (1..node.bases.len()).map(call).collect());
        let mut outcome = Ok(());
        for calls in [others, first] {
            // If another shard did not answer, the first shard must not show that the node knows these pauses. Then a
            // process that reads the other nodes sends the pauses again. If there is only one node, no process can do
            // this, so the first shard is written in any case.
            if outcome.is_err() && self.count() > 1 {
                break;
            }
            for answer in node.run(&calls) {
                outcome = outcome.and(answer.map(drop).map_err(Failure::into_error));
            }
        }
        outcome
    }

    /// Makes the shards of a node agree on the latest pause or resume of each topic. They differ if a shard did not
    /// answer when a topic was paused or resumed.
    pub(super) fn agree_on_shards(&self, lane: usize) -> Result<()> {
        let node = &self.nodes[lane];
        let calls: Vec<Call> =
            (0..node.bases.len()).map(|shard| node.plain("HGETALL", shard, PAUSES)).collect();
        let of_shards: Vec<PauseFlags> =
            node.run(&calls).into_iter().filter_map(|answer| flags::read(answer.ok()?).ok()).collect();
        let mut known = PauseFlags::new();
        for shard in &of_shards {
            flags::merge_newer(&mut known, shard);
        }
        let is_behind = |shard: &PauseFlags| flags::missing_or_older(&known, shard).next().is_some();
        match of_shards.iter().any(is_behind) {
            true => self.send_pauses(lane, flags::missing_or_older(&known, &PauseFlags::new())),
            false => Ok(()),
        }
    }
}

impl Pauses for RedisStore {
    fn pause(&mut self, topic: &TopicName, paused: bool) -> Result<()> {
        let (before_ms, was_paused) = self.pauses()?.get(topic.as_str()).copied().unwrap_or_default();
        let at_ms = super::now_ms().max(before_ms + 1);
        let said = PauseFlags::from([(topic.to_string(), (at_ms, paused))]);
        let mut outcome = Err(StoreError::NodeDown("no node answers".into()));
        for node in 0..self.nodes.count() {
            match self.nodes.send_pauses(node, flags::missing_or_older(&said, &PauseFlags::new())) {
                Ok(()) => outcome = Ok(()),
                // The node gets this pause or resume later: a process that reads the other nodes sends it again.
                Err(e) if outcome.is_ok() || !matches!(e, StoreError::Unknown(_)) => log::warn!("{e}"),
                Err(e) => outcome = Err(e),
            }
        }
        if outcome.is_err() {
            // Some shards of a node may have the pause or resume. They get the previous state back. A shard that does
            // not answer now gets the previous state later (`agree_on_shards`).
            let undone = PauseFlags::from([(topic.to_string(), (at_ms + 1, was_paused))]);
            for node in 0..self.nodes.count() {
                let undone = undone.iter().map(|(topic, flag)| (topic.as_str(), *flag));
                if let Err(e) = self.nodes.send_pauses(node, undone) {
                    log::debug!("cannot undo a pause or resume everywhere: {e}");
                }
            }
        }
        outcome
    }

    fn paused(&mut self) -> Result<Vec<TopicName>> {
        let paused = self.pauses()?.into_iter().filter(|(_, (_, paused))| *paused);
        Ok(paused.filter_map(|(name, _)| TopicName::new(&name).ok()).collect())
    }
}
