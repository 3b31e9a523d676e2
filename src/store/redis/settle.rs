//! Settling, by itself, and in one round trip with the next lease.

use redis::Value;

use super::answer::{self, strange};
use super::batch::Grouped;
use super::lease::{FEW, Found, SCRIPT_TOKEN};
use super::node::Call;
use super::nodes::Place;
use super::script::Script;
use super::{CHUNK, RedisStore};
use crate::store::{Batch, OwnerTag, Result, Settled, Settlement, Wanted};

/// Settlements that are on their way.
struct Settling {
    /// Whether each is of a token of these nodes: what is none settles nothing.
    known: Vec<bool>,
    grouped: Grouped<1>,
}

impl Settling {
    fn settled(self, answers: Vec<(Place, Result<Value>)>) -> Vec<Result<Settled>> {
        let understand = |[letter]: [u8; 1]| match letter {
            b'd' => Ok(Settled::Done),
            b's' => Ok(Settled::Stale),
            _ => Err(strange("an answer")),
        };
        let mut letters = self.grouped.answered(answers).into_iter();
        let of = |is_known: bool| match is_known {
            false => Ok(Settled::Stale),
            true => letters.next().unwrap_or_else(|| Err(strange("no answer"))).and_then(understand),
        };
        self.known.into_iter().map(of).collect()
    }
}

impl RedisStore {
    /// The calls that settle some, up to [`CHUNK`].
    fn settle_calls(&self, settlements: &[Settlement]) -> (Vec<(Place, Call)>, Settling) {
        let places: Vec<Option<Place>> = settlements.iter().map(|s| self.nodes.place_of(&s.token)).collect();
        let known: Vec<(Place, &Settlement)> =
            places.iter().zip(settlements).filter_map(|(place, s)| Some(((*place)?, s))).collect();
        let words = |some: &[&(Place, &Settlement)], cmd: &mut redis::Cmd| {
            for (_, s) in some {
                cmd.arg(s.key.id.as_str()).arg(&s.token.0[..SCRIPT_TOKEN]);
                cmd.arg(answer::outcome(&s.outcome)).arg(answer::line(s.attempt.as_ref()));
            }
        };
        let (calls, grouped) =
            self.grouped(Script::Settle, &known, |(place, _)| Ok(*place), |(_, s)| &s.key.topic, &[], words);
        (calls, Settling { known: places.iter().map(Option::is_some).collect(), grouped })
    }

    pub(super) fn settle_all(&self, settlements: &[Settlement]) -> Vec<Result<Settled>> {
        let settle = |some: &[Settlement]| {
            let (calls, settling) = self.settle_calls(some);
            settling.settled(self.ask_all(calls))
        };
        settlements.chunks(CHUNK).flat_map(settle).collect()
    }

    /// Settles some, up to [`CHUNK`], and leases from the first shard that may deliver in the same round trip. None: there is no
    /// such shard, or it is to be asked first which of many have any; nothing was done.
    pub(super) fn exchange_at_once(
        &mut self,
        settlements: &[Settlement],
        wanted: &[Wanted],
        limit: usize,
        owner: Option<&OwnerTag>,
    ) -> Option<(Vec<Result<Settled>>, Result<Batch>)> {
        let is_one_node = self.lane.is_some() || self.nodes.count() == 1;
        let are_some = (1..=CHUNK).contains(&settlements.len());
        if !is_one_node || !are_some || self.places().count() > FEW {
            return None;
        }
        let (places, failed) = self.delivering();
        let places = self.in_turn(places);
        let (first, others) = places.split_first()?;
        let mut found = Found::nothing(failed);
        let (prefix, lease) = self.lease_call(*first, wanted, limit, owner, &found.jobs).ok()?;
        let (mut calls, settling) = self.settle_calls(settlements);
        calls.push((*first, lease));
        // (Those of one node are answered in their order.)
        let mut answers = self.ask_all(calls);
        let (_, leased) = answers.pop()?;
        let settled = settling.settled(answers);
        let told =
            leased.and_then(|answer| self.take_leased(*first, &prefix, wanted, answer, &mut found.jobs));
        found.note(told);
        self.lease_on(others, wanted, limit, owner, &mut found);
        Some((settled, found.into_batch(wanted)))
    }
}
