//! Saying that a node is drained of its jobs, or no longer. Each node keeps what it was told, and the latest word counts, for all
//! from one moment on.

use std::sync::PoisonError;
use std::time::{Duration, Instant};

use super::flags::Flags;
use super::nodes::Nodes;
use super::script::Script;
use crate::store::{Result, StoreError};

/// Where a node keeps which nodes are being drained.
pub(super) const DRAINED: &str = "drained";

impl Nodes {
    /// Has a node drained of its jobs, or no longer: tells all nodes that answer. Waits until what was said before counts.
    pub fn drain(&self, lane: usize, drained: bool) -> Result<()> {
        let name = &self.names[lane];
        let Some(at_ms) = self.when_to_say(lane, drained)? else { return Ok(()) };
        let mut told = Err(StoreError::NodeDown("none answers".into()));
        for node in &self.nodes {
            let mut call = node.call(Script::Drain, 0);
            call.cmd.arg(name).arg(at_ms).arg(u8::from(drained));
            match node.run_one(call) {
                Ok(_) => told = Ok(()),
                Err(e) => log::warn!("cannot tell node {}: {}", node.name, e.into_error()),
            }
        }
        if told.is_ok() {
            self.hear(&Flags::from([(name.clone(), (at_ms, drained))]));
        }
        told
    }

    /// The moment by which all go who hear of it, Unix milliseconds; none: there is nothing to say. What is so already stays so
    /// from when it was said first: said anew it would begin anew, and not for all at the same moment.
    fn when_to_say(&self, lane: usize, drained: bool) -> Result<Option<i64>> {
        loop {
            // What others have said, too.
            let survey = self.survey_since(Instant::now());
            let known = self.plan.read().unwrap_or_else(PoisonError::into_inner).said(&self.names[lane]);
            let now_ms = super::now_ms();
            match known {
                // One that does not answer may have been told that it is.
                None if !drained => match (0..self.count()).find(|node| survey.is_silent(*node)) {
                    Some(away) => return Err(self.silent(away)),
                    None => return Ok(None),
                },
                None => return Ok(Some(now_ms)),
                Some(said) if said.drained == drained => return Ok(Some(said.at_ms)),
                Some(said) if said.counts_at_ms > now_ms => {
                    let left_ms = (said.counts_at_ms - now_ms).min(100);
                    std::thread::sleep(Duration::from_millis(left_ms as u64));
                }
                Some(said) => return Ok(Some(now_ms.max(said.at_ms + 1))),
            }
        }
    }
}
