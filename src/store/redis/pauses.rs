//! Topics that are paused. Each shard knows it, so that a lease goes by it in the same moment; of what nodes say the latest word
//! counts, and a node that was away is told before it delivers.

use std::sync::PoisonError;

use super::RedisStore;
use super::flags::{self, Flags};
use super::node::Call;
use super::nodes::{Nodes, Place};
use super::script::Script;
use crate::job::TopicName;
use crate::store::{Result, StoreError};

/// Where a shard keeps what was said of topics.
pub(super) const PAUSES: &str = "pauses";

impl RedisStore {
    /// Says to all nodes that answer that a topic is paused, or is not.
    pub(super) fn say_paused(&self, topic: &TopicName, paused: bool) -> Result<()> {
        let before = self.pauses()?.get(topic.as_str()).map_or(0, |(at_ms, _)| *at_ms);
        let said = Flags::from([(topic.to_string(), (super::now_ms().max(before + 1), paused))]);
        let mut outcome = Err(StoreError::NodeDown("none answers".into()));
        for node in 0..self.nodes.count() {
            match self.nodes.tell_pauses(node, flags::unheard(&said, &Flags::new())) {
                Ok(()) => outcome = Ok(()),
                // The others say so to it when it is back.
                Err(e) if outcome.is_ok() || !matches!(e, StoreError::Unknown(_)) => log::warn!("{e}"),
                Err(e) => outcome = Err(e),
            }
        }
        outcome
    }

    /// The topics that are paused, as far as nodes answer.
    pub(super) fn paused_topics(&self) -> Result<Vec<TopicName>> {
        let paused = self.pauses()?.into_iter().filter(|(_, (_, paused))| *paused);
        Ok(paused.filter_map(|(name, _)| TopicName::new(&name).ok()).collect())
    }

    fn pauses(&self) -> Result<Flags> {
        let ask =
            |node: usize| (Place { node, shard: 0 }, self.nodes.nodes[node].plain("HGETALL", 0, PAUSES));
        let mut known = Err(StoreError::NodeDown("none answers".into()));
        for (_, answer) in self.ask_all((0..self.nodes.count()).map(ask).collect()) {
            match (answer.and_then(flags::read), &mut known) {
                (Ok(told), Ok(known)) => drop(flags::hear(known, &told)),
                (Ok(told), _) => known = Ok(told),
                (Err(e), Err(_)) => known = Err(e),
                (Err(_), Ok(_)) => {}
            }
        }
        known
    }
}

impl Nodes {
    /// Tells a node which topics are paused or not: the first shard, by which it is seen who knows, comes last.
    pub(super) fn tell_pauses<'a>(
        &self,
        lane: usize,
        said: impl Iterator<Item = (&'a str, (i64, bool))>,
    ) -> Result<()> {
        let node = &self.nodes[lane];
        let said: Vec<_> = said.collect();
        let call = |shard| -> Call {
            let mut call = node.call(Script::Pause, shard);
            for (topic, (at_ms, paused)) in &said {
                call.cmd.arg(*topic).arg(*at_ms).arg(u8::from(*paused));
            }
            call
        };
        let (first, others): (Vec<Call>, Vec<Call>) =
            (vec![call(0)], (1..node.bases.len()).map(call).collect());
        for calls in [others, first] {
            for answer in node.run(&calls) {
                answer.map_err(super::Failure::into_error)?;
            }
        }
        Ok(())
    }

    /// Takes note of what a node has heard of topics, and tells it what it has not. Gives what it knows then.
    pub(super) fn agree_on_pauses(&self, lane: usize, heard: Flags) -> Flags {
        let known = {
            let mut known = self.pauses.lock().unwrap_or_else(PoisonError::into_inner);
            flags::hear(&mut known, &heard);
            known.clone()
        };
        if flags::unheard(&known, &heard).next().is_none() {
            return heard;
        }
        match self.tell_pauses(lane, flags::unheard(&known, &heard)) {
            Ok(()) => known,
            Err(e) => {
                log::debug!("node {}: {e}", self.names[lane]);
                heard
            }
        }
    }
}
