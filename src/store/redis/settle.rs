//! Settles leases, alone or in one round trip with the next lease. A lease is settled on the shard that its token
//! names. If the job was moved since, the lease is settled at its home.

use redis::Value;

use super::answer::{self, unexpected};
use super::batch::{Grouped, argument_writer};
use super::homes::Homes;
use super::lease::{FEW, LeaseProgress};
use super::lease_token::SCRIPT_TOKEN;
use super::node::Call;
use super::nodes::Place;
use super::script::Script;
use super::{CHUNK, RedisStore};
use crate::{
    LeaseRequest, LeaseResult, OwnerTag, Result, Settled, Settlement, Settlements, StoreError, exchange_apart,
};

impl RedisStore {
    /// Returns the shard that the token of a lease names. If the node of that shard is not in the set any more, returns
    /// the home of the job.
    fn place_of_lease(&self, homes: &Homes, settlement: &Settlement) -> Result<Place> {
        let by_token = self.nodes.place_of(&settlement.token).filter(|place| homes.has(place.node));
        by_token.map_or_else(|| self.home_place(homes, settlement), Ok)
    }

    fn home_place(&self, homes: &Homes, settlement: &Settlement) -> Result<Place> {
        Ok(self.nodes.place(homes.home(&settlement.key)?, &settlement.key))
    }

    /// Returns whether the job is on a node that this process's configuration does not name. A move has brought the job
    /// to that node. This process cannot settle the lease, so the lease ends at its deadline.
    fn is_out_of_reach(&self, homes: &Homes, settlement: &Settlement) -> bool {
        self.place_of_lease(homes, settlement).is_err()
    }

    /// Makes the calls that settle up to [`CHUNK`] leases. Each lease is settled on the shard that `place` returns.
    fn settle_calls(
        &self,
        homes: &Homes,
        settlements: &[&Settlement],
        place: impl Fn(&Settlement) -> Result<Place>,
    ) -> (Vec<(Place, Call)>, Grouped<1>) {
        let words = argument_writer(|s: &Settlement, cmd| {
            cmd.arg(s.key.id.as_str()).arg(&s.token.0[..SCRIPT_TOKEN.min(s.token.0.len())]);
            cmd.arg(answer::outcome(&s.outcome)).arg(answer::attempt_line(&s.outcome, s.attempt.as_ref()));
        });
        let places = settlements.iter().map(|s| place(s)).collect();
        self.grouped(Script::Settle, homes, settlements, places, |s| &s.key, &[], words)
    }

    /// Returns the results of settlements from the answers of their shards. A lease that is unknown on its shard is
    /// tried at the home of its job.
    fn settled(
        &self,
        homes: &Homes,
        settlements: &[&Settlement],
        grouped: Grouped<1>,
        answers: Vec<(Place, Result<Value>)>,
    ) -> Vec<Result<Settled>> {
        let understand = |answers: Vec<Result<[u8; 1]>>| -> Vec<Result<Settled>> {
            let one = |answer: Result<[u8; 1]>| match answer?[0] {
                b'd' => Ok(Settled::Done),
                b's' => Ok(Settled::Stale),
                _ => Err(unexpected("an answer")),
            };
            answers.into_iter().map(one).collect()
        };
        let mut out = understand(grouped.answered(answers));
        for (s, settled) in settlements.iter().zip(&mut out) {
            if settled.is_err() && self.is_out_of_reach(homes, s) {
                *settled = Ok(Settled::Stale);
            }
        }
        let has_moved = |i: &usize| {
            let s = settlements[*i];
            out[*i] == Ok(Settled::Stale)
                && self.home_place(homes, s).is_ok_and(|home| self.place_of_lease(homes, s) != Ok(home))
        };
        let moved: Vec<usize> = (0..settlements.len()).filter(has_moved).collect();
        if !moved.is_empty() {
            let some: Vec<&Settlement> = moved.iter().map(|i| settlements[*i]).collect();
            let (calls, grouped) = self.settle_calls(homes, &some, |s| self.home_place(homes, s));
            let again = understand(grouped.answered(self.ask_all_by(calls)));
            moved.into_iter().zip(again).for_each(|(i, settled)| out[i] = settled);
        }
        out
    }

    /// Settles up to [`CHUNK`] leases, and leases jobs from the first shard in the same round trip. The function needs
    /// a single node or lane, 1 to [`CHUNK`] settlements, at most [`FEW`] shards, and a first shard that can be used
    /// now. Otherwise the function returns `None` and settles nothing. (With more shards, dq first checks which of them
    /// have ready jobs.)
    pub(super) fn exchange_at_once(
        &mut self,
        settlements: &[Settlement],
        wanted: &[LeaseRequest],
        limit: usize,
        owner: Option<&OwnerTag>,
    ) -> Option<(Vec<Result<Settled>>, Result<LeaseResult>)> {
        let is_one_node = self.lane.is_some() || self.nodes.count() == 1;
        let are_some = (1..=CHUNK).contains(&settlements.len());
        if !is_one_node || !are_some || self.places().count() > FEW {
            return None;
        }
        let (homes, places) = self.delivering().ok()?;
        self.take_back_before_lease();
        let places = self.in_turn(places);
        let (first, others) = places.split_first()?;
        self.is_answered(*first).ok()?;
        let mut found = LeaseProgress::default();
        let (prefix, lease) = self.lease_call(*first, &homes, wanted, limit, owner, &found.jobs).ok()?;
        let some: Vec<&Settlement> = settlements.iter().collect();
        let (mut calls, grouped) = self.settle_calls(&homes, &some, |s| self.place_of_lease(&homes, s));
        calls.push((*first, lease));
        // A node answers calls in their order, so the last answer of this shard is the answer to the lease call.
        let mut answers = self.ask_all_by(calls);
        let at = answers.iter().rposition(|(place, _)| place == first)?;
        let (_, leased) = answers.remove(at);
        self.note_unanswered(*first, &homes, prefix, owner, &leased);
        let mut settled = self.settled(&homes, &some, grouped, answers);
        for (i, one) in settled.iter_mut().enumerate() {
            if matches!(one, Err(StoreError::Moving(_))) {
                // The set of nodes has changed meanwhile.
                settlements
                    .get(i)
                    .into_iter()
                    .for_each(|s| *one = self.settle(std::slice::from_ref(s)).remove(0));
            }
        }
        let result =
            leased.and_then(|answer| self.take_leased(*first, &prefix, wanted, answer, &mut found.jobs));
        found.note(result);
        self.lease_on(others, &homes, wanted, limit, owner, &mut found);
        Some((settled, found.into_batch(wanted)))
    }
}

impl Settlements for RedisStore {
    fn settle(&mut self, settlements: &[Settlement]) -> Vec<Result<Settled>> {
        let settle = |some: &[Settlement]| {
            self.run_by_homes(some, |homes, some| {
                let (calls, grouped) = self.settle_calls(homes, some, |s| self.place_of_lease(homes, s));
                self.settled(homes, some, grouped, self.ask_all_by(calls))
            })
        };
        settlements.chunks(CHUNK).flat_map(settle).collect()
    }

    fn exchange(
        &mut self,
        settlements: &[Settlement],
        wanted: &[LeaseRequest],
        limit: usize,
        owner: Option<&OwnerTag>,
    ) -> (Vec<Result<Settled>>, Result<LeaseResult>) {
        let at_once = self.exchange_at_once(settlements, wanted, limit, owner);
        at_once.unwrap_or_else(|| exchange_apart(self, settlements, wanted, limit, owner))
    }
}
