//! Takes back the leases of lease calls that got no answer. The server may have run such a call, or may still run it:
//! the call can be in the buffer of a connection that was given up. No callback is made for the leased jobs, so they
//! become ready again, and their attempts do not count.
//!
//! Each call has its own prefix. All tokens of the call begin with this prefix. `take_back.lua` ends the leases with
//! this prefix, and leaves a mark. If `lease.lua` finds this mark, the script refuses the call. The scripts of a shard
//! run one after the other. If the call ran before `take_back.lua`, its leases are found. If the call runs later, it
//! finds the mark. So no lease of the call is left when `take_back.lua` has answered. The script may be repeated.

use std::sync::Arc;
use std::time::Duration;

use redis::Value;

use super::answer::{array, count, text, unexpected};
use super::homes::Homes;
use super::lease_token::LeaseCallPrefix;
use super::nodes::Place;
use super::script::Script;
use super::{CHUNK, RedisStore};
use crate::{OwnerTag, Result, StoreError};

/// How long a call that was taken back is refused. For up to a quarter of an hour (`tcp_retries2`), a host may still
/// send the buffered bytes of a connection that was given up. The refusal must last longer.
const REFUSED: Duration = Duration::from_secs(20 * 60);

/// A lease call that was sent, and got no answer.
#[derive(Debug)]
pub(super) struct UnansweredLease {
    /// The shards that may have leases of the call, and that are not searched yet.
    places: Vec<Place>,
    /// The set of nodes that `places` was made for. Leases move with their jobs, so a newer set means that all shards
    /// are searched.
    homes: Arc<Homes>,
    prefix: LeaseCallPrefix,
    owner: OwnerTag,
}

impl RedisStore {
    /// Notes a call if it got no answer. (A call without an owner is not noted: the client that has the token settles
    /// the lease, or the lease ends at its deadline.)
    pub(super) fn note_unanswered(
        &mut self,
        place: Place,
        homes: &Arc<Homes>,
        prefix: LeaseCallPrefix,
        owner: Option<&OwnerTag>,
        answer: &Result<Value>,
    ) {
        if let (Err(StoreError::Unknown(_)), Some(owner)) = (answer, owner) {
            let (homes, owner) = (Arc::clone(homes), owner.clone());
            self.unanswered.push(UnansweredLease { places: vec![place], homes, prefix, owner });
        }
    }

    /// Returns an error if this shard may still have leases of a call that got no answer. No further jobs are leased
    /// there until these leases are taken back. So a process leaves at most one such call on a shard.
    pub(super) fn is_answered(&self, place: Place) -> Result<()> {
        match self.unanswered.iter().any(|lease| lease.places.contains(&place)) {
            false => Ok(()),
            true => {
                let node = &self.nodes.names[place.node];
                Err(StoreError::NodeDown(format!("{node}: a lease without an answer is not taken back yet")))
            }
        }
    }

    /// Takes back all unanswered lease calls.
    pub(super) fn take_back_all(&mut self) -> Result<()> {
        if self.unanswered.is_empty() {
            return Ok(());
        }
        let homes = self.nodes.open_homes()?;
        let mut outcome = Ok(());
        for mut lease in std::mem::take(&mut self.unanswered) {
            if let Err(e) = self.take_back(&mut lease, &homes) {
                outcome = Err(e);
                self.unanswered.push(lease);
            }
        }
        outcome
    }

    /// Tries to take back all unanswered lease calls. Shards where that fails are left out of the next lease.
    pub(super) fn take_back_before_lease(&mut self) {
        if let Err(e) = self.take_back_all() {
            log::debug!("cannot take back leases without an answer: {e}");
        }
    }

    /// Takes back the leases of a call at its shard. If jobs were moved since, the leases may be on any shard, so all
    /// shards are searched. If a shard does not answer, the shard stays in `places`. The other shards are still
    /// searched.
    fn take_back(&self, lease: &mut UnansweredLease, homes: &Arc<Homes>) -> Result<()> {
        if homes.set != lease.homes.set {
            let nodes = (0..self.nodes.count()).filter(|node| homes.has(*node));
            lease.places = nodes.flat_map(|node| self.nodes.shards_of(node)).collect();
            lease.homes = Arc::clone(homes);
        }
        let mut outcome = Ok(());
        for place in std::mem::take(&mut lease.places) {
            match self.take_back_at(place, lease, homes) {
                Ok(0) => {}
                Ok(jobs) => log::info!(
                    "node {}: {jobs} leases whose answer never came are taken back, their attempts not counted",
                    self.nodes.names[place.node]
                ),
                Err(e) => {
                    outcome = Err(e);
                    lease.places.push(place);
                }
            }
        }
        outcome
    }

    fn take_back_at(&self, place: Place, lease: &UnansweredLease, homes: &Homes) -> Result<usize> {
        let (mut cursor, mut sum) = ("0".to_owned(), 0);
        loop {
            let mut call = self.nodes.call(Script::TakeBack, place, homes);
            call.cmd.arg(&lease.owner.0).arg(&lease.prefix[..]).arg(REFUSED.as_millis() as u64);
            call.cmd.arg(&cursor).arg(CHUNK);
            // If the shard refuses the call because of another set, the leases may be elsewhere. Then the next try
            // starts again from the beginning.
            let mut values = array(self.ask_by(place, call)?)?.into_iter();
            let (Some(next), Some(jobs)) = (values.next(), values.next()) else {
                return Err(unexpected("an answer"));
            };
            (cursor, sum) = (text(next)?, sum + count(&jobs)?);
            if cursor == "0" {
                return Ok(sum);
            }
        }
    }
}
