//! Paused topics. Each shard has the list of them, so that a lease and the check of the pause are one step. If nodes
//! differ, the latest pause or resume counts. A node that was down gets the list before it delivers.

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
        for calls in [others, first] {
            for answer in node.run(&calls) {
                answer.map_err(Failure::into_error)?;
            }
        }
        Ok(())
    }
}

impl Pauses for RedisStore {
    fn pause(&mut self, topic: &TopicName, paused: bool) -> Result<()> {
        let before = self.pauses()?.get(topic.as_str()).map_or(0, |(at_ms, _)| *at_ms);
        let said = PauseFlags::from([(topic.to_string(), (super::now_ms().max(before + 1), paused))]);
        let mut outcome = Err(StoreError::NodeDown("no node answers".into()));
        for node in 0..self.nodes.count() {
            match self.nodes.send_pauses(node, flags::missing_or_older(&said, &PauseFlags::new())) {
                Ok(()) => outcome = Ok(()),
                // The node gets this pause or resume later: a process that reads the other nodes sends it again.
                Err(e) if outcome.is_ok() || !matches!(e, StoreError::Unknown(_)) => log::warn!("{e}"),
                Err(e) => outcome = Err(e),
            }
        }
        outcome
    }

    fn paused(&mut self) -> Result<Vec<TopicName>> {
        let paused = self.pauses()?.into_iter().filter(|(_, (_, paused))| *paused);
        Ok(paused.filter_map(|(name, _)| TopicName::new(&name).ok()).collect())
    }
}
