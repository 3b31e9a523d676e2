//! Reads the entries of an outbox, and how much waits in the outboxes of a node. part/history.lua writes entries;
//! outbox_take.lua describes their form.

use std::time::Duration;

use redis::Value;

use super::answer::{array, count, unexpected};
use super::node::Failure;
use super::nodes::Nodes;
use super::records::records_of;
use super::script::Script;
use crate::{OutboxCause, OutboxEntry, OutboxState, Result};
use model::job::{JobId, JobKey, TopicName};

/// Reads an entry. Returns the number of the entry, and the entry itself if it can be read. `now_us` is the time of the
/// shard.
pub(super) fn parse_entry(entry: &[u8], now_us: i64) -> Result<(i64, Option<OutboxEntry>)> {
    fn taken<'a>(rest: &mut &'a [u8], n: usize) -> Result<&'a [u8]> {
        let (some, left) = rest.split_at_checked(n).ok_or_else(|| unexpected("an entry of an outbox"))?;
        *rest = left;
        Ok(some)
    }
    fn whole(rest: &mut &[u8], n: usize) -> Result<i64> {
        Ok(taken(rest, n)?.iter().fold(0, |all, byte| all << 8 | i64::from(*byte)))
    }
    fn text(rest: &mut &[u8], n: usize) -> Result<String> {
        String::from_utf8(taken(rest, n)?.to_vec()).map_err(|_| unexpected("an entry of an outbox"))
    }
    let mut rest = entry;
    let number = whole(&mut rest, 7)?;
    let mut read = || -> Result<OutboxEntry> {
        let kind = whole(&mut rest, 1)?;
        let length = whole(&mut rest, 2)? as usize;
        let topic = TopicName::new(&text(&mut rest, length)?).map_err(|_| unexpected("a topic"))?;
        let length = whole(&mut rest, 2)? as usize;
        let id = JobId::new(text(&mut rest, length)?).map_err(|_| unexpected("an id"))?;
        let (stamp_us, place) = (whole(&mut rest, 7)?, whole(&mut rest, 1)? as usize);
        let key = JobKey { topic, id };
        let what = match kind {
            1 => {
                let length = rest.len();
                OutboxCause::Then { place, text: text(&mut rest, length)? }
            }
            _ => {
                let record = records_of(&key, rest)?.pop().ok_or_else(|| unexpected("a record"))?;
                OutboxCause::Done(Box::new(record))
            }
        };
        let ago = Duration::from_micros(u64::try_from(now_us - number).unwrap_or(0));
        Ok(OutboxEntry { key, stamp_us, ago, what })
    };
    let entry = read();
    if let Err(e) = &entry {
        log::error!("entry {number} of an outbox cannot be read, and is dropped: {e}");
    }
    Ok((number, entry.ok()))
}

impl Nodes {
    /// Returns how much waits in the outboxes of a node.
    pub fn outbox_of(&self, name: &str) -> Result<OutboxState> {
        let mut state = OutboxState::default();
        let node = self.names.iter().position(|n| n == name);
        for place in node.into_iter().flat_map(|node| self.shards_of(node)) {
            let call = self.nodes[place.node].call(Script::OutboxState, place.shard, None);
            let answer = self.nodes[place.node].run_one(call).map_err(Failure::into_error);
            state.count(answer)?;
        }
        Ok(state)
    }
}

impl OutboxState {
    /// Adds what a shard reports.
    pub(super) fn count(&mut self, answer: Result<Value>) -> Result<()> {
        let values = answer.and_then(array)?;
        let [entries, oldest_ms] = values.as_slice() else { return Err(unexpected("an answer")) };
        self.entries += count(entries)? as u64;
        self.oldest = self.oldest.max(Duration::from_millis(count(oldest_ms)? as u64));
        Ok(())
    }
}
