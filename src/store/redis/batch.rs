//! Calls in batches: one call for each shard and operation, one round trip for each node.

use std::collections::{BTreeMap, HashMap};

use redis::Value;

use super::answer::{self, unexpected};
use super::homes::Homes;
use super::node::{Answer, Call, Failure};
use super::nodes::{Place, moving};
use super::script::Script;
use super::{CHUNK, RedisStore};
use crate::{Result, StoreError};
use model::job::JobKey;

/// Splits the answer of a script into the parts of the items. Each item has N bytes, in the order of the items.
fn split<const N: usize>(value: Value, items: usize) -> Result<Vec<[u8; N]>> {
    let bytes = answer::bytes(value)?;
    let (answers, rest) = bytes.as_chunks();
    if answers.len() == items && rest.is_empty() {
        Ok(answers.to_vec())
    } else {
        Err(unexpected("an answer"))
    }
}

/// Makes a function that adds the arguments of a topic's items to a command, one item after the other.
pub(super) fn argument_writer<T>(one: impl Fn(&T, &mut redis::Cmd)) -> impl Fn(&[&T], &mut redis::Cmd) {
    move |items, cmd| items.iter().for_each(|item| one(item, cmd))
}

impl RedisStore {
    /// Makes calls on many shards, one round trip for each node. If a shard refuses a call because the shard has a
    /// newer set of nodes, this process takes over that set, and the answer is [`StoreError::Moving`]. If the set of
    /// the shard is older, the answer is [`StoreError::NodeDown`].
    pub(super) fn ask_all_by(&self, calls: Vec<(Place, Call)>) -> Vec<(Place, Result<Value>)> {
        let answers = self.run_all(calls).into_iter();
        answers.map(|(place, _, answer)| (place, self.parse_answer(place, answer))).collect()
    }

    /// Makes calls on many shards. If a shard refuses a call because of another set, the call is made once more at the
    /// same shard, with the set of the shard. This function is for calls that concern only that shard.
    pub(super) fn ask_all(&self, calls: Vec<(Place, Call)>) -> Vec<(Place, Result<Value>)> {
        let again = |(place, call, answer): (Place, Call, Answer)| match answer {
            Err(Failure::OtherSet(set)) => (place, self.ask_again(place, &call, &set)),
            answer => (place, answer.map_err(Failure::into_error)),
        };
        self.run_all(calls).into_iter().map(again).collect()
    }

    fn run_all(&self, calls: Vec<(Place, Call)>) -> Vec<(Place, Call, Answer)> {
        let mut by_node: BTreeMap<usize, (Vec<Place>, Vec<Call>)> = BTreeMap::new();
        // While jobs are moved, only the mover changes them.
        let may =
            |(_, call): &(Place, Call)| !call.while_moving || call.script.is_none_or(Script::is_read_only);
        let (calls, barred): (Vec<_>, Vec<_>) = calls.into_iter().partition(may);
        for (place, call) in calls {
            let (places, calls) = by_node.entry(place.node).or_default();
            places.push(place);
            calls.push(call);
        }
        let ask = |(node, (places, calls)): (usize, (Vec<Place>, Vec<Call>))| {
            let answers = self.nodes.run(node, &calls);
            places.into_iter().zip(calls).zip(answers).map(|((place, call), answer)| (place, call, answer))
        };
        let barred = barred.into_iter().map(|(place, call)| (place, call, Err(Failure::NotRun(moving()))));
        by_node.into_iter().flat_map(ask).chain(barred).collect()
    }

    fn parse_answer(&self, place: Place, answer: Answer) -> Result<Value> {
        if let Err(Failure::OtherSet(set)) = &answer {
            self.nodes.refused(place.node, set)?;
        }
        answer.map_err(Failure::into_error)
    }

    /// Repeats a call that a shard has refused, with the set of that shard.
    fn ask_again(&self, place: Place, call: &Call, set: &str) -> Result<Value> {
        self.nodes.refused(place.node, set)?;
        let only_looks = call.script.is_none_or(Script::is_read_only);
        let homes = if only_looks { self.nodes.homes()? } else { self.nodes.open_homes()? };
        if !homes.has(place.node) {
            return Err(StoreError::Moving("the node has no jobs any more".into()));
        }
        let call = self.nodes.nodes[place.node].by_set(call, &homes.set);
        self.ask_by(place, call)
    }

    /// Makes one call. If the shard refuses the call because the shard has a newer set of nodes, the answer is
    /// [`StoreError::Moving`]. If the set of the shard is older, the answer is [`StoreError::NodeDown`].
    pub(super) fn ask_by(&self, place: Place, call: Call) -> Result<Value> {
        let mut answers = self.ask_all_by(vec![(place, call)]);
        answers.pop().map_or_else(|| Err(unexpected("no answer")), |(_, answer)| answer)
    }

    /// Makes one call. If the shard refuses the call because the shard has another set of nodes, the call is made once
    /// more, with the set of the shard.
    pub(super) fn ask(&self, place: Place, call: Call) -> Result<Value> {
        let mut answers = self.ask_all(vec![(place, call)]);
        answers.pop().map_or_else(|| Err(unexpected("no answer")), |(_, answer)| answer)
    }

    /// Runs a batch script over items at the homes of their jobs. The items are grouped by shard, and within a shard by
    /// topic. `first` are the arguments before those of the items. `words` gets the items of a topic (at least one),
    /// and adds their arguments in the same order. Returns the bytes that the script answers for each item. If the
    /// topics of items request the same durability level, these items are sent together, and share one wait for this
    /// level.
    pub(super) fn each<const N: usize, T>(
        &self,
        script: Script,
        homes: &Homes,
        items: &[&T],
        key: impl Fn(&T) -> &JobKey,
        first: &[&str],
        words: impl Fn(&[&T], &mut redis::Cmd),
    ) -> Vec<Result<[u8; N]>> {
        let mut out: Vec<Option<_>> = items.iter().map(|_| None).collect();
        for (level, members) in self.nodes.by_level(items.iter().map(|item| &key(item).topic)) {
            for chunk in members.chunks(CHUNK) {
                let some: Vec<&T> = chunk.iter().map(|i| items[*i]).collect();
                let place = |item: &&T| Ok(self.nodes.place(homes.home(key(item))?, key(item)));
                let places = some.iter().map(place).collect();
                let (mut calls, grouped) = self.grouped(script, homes, &some, places, &key, first, &words);
                calls.iter_mut().for_each(|(_, call)| call.durability = level);
                let answers = grouped.answered(self.ask_all_by(calls));
                chunk.iter().zip(answers).for_each(|(i, answer)| out[*i] = Some(answer));
            }
        }
        out.into_iter().map(|answer| answer.unwrap_or_else(|| Err(unexpected("no answer")))).collect()
    }

    /// Makes the calls of a batch script over up to [`CHUNK`] items, as [`RedisStore::each`] needs them.
    #[allow(clippy::too_many_arguments)]
    pub(super) fn grouped<const N: usize, T>(
        &self,
        script: Script,
        homes: &Homes,
        items: &[&T],
        places: Vec<Result<Place>>,
        key: impl Fn(&T) -> &JobKey,
        first: &[&str],
        words: impl Fn(&[&T], &mut redis::Cmd),
    ) -> (Vec<(Place, Call)>, Grouped<N>) {
        let mut groups: BTreeMap<Place, BTreeMap<&str, Vec<usize>>> = BTreeMap::new();
        let results = items.iter().map(|_| Err(unexpected("no answer"))).collect();
        let mut grouped = Grouped { results, orders: HashMap::new() };
        for (i, place) in places.into_iter().enumerate() {
            match place {
                Ok(place) => {
                    let topics = groups.entry(place).or_default();
                    topics.entry(key(items[i]).topic.as_str()).or_default().push(i);
                }
                Err(e) => grouped.results[i] = Err(e),
            }
        }
        let mut calls = Vec::new();
        for (place, topics) in groups {
            let mut call = self.nodes.call(script, place, homes);
            call.cmd.arg(first);
            for (topic, members) in topics {
                call.cmd.arg(topic).arg(members.len());
                words(&members.iter().map(|i| items[*i]).collect::<Vec<_>>(), &mut call.cmd);
                grouped.orders.entry(place).or_default().extend(members);
            }
            calls.push((place, call));
        }
        (calls, grouped)
    }
}

/// The items of each call of a batch script, and the result of each item.
pub(super) struct Grouped<const N: usize> {
    /// The result of each item. It is an error until the item's call is answered.
    results: Vec<Result<[u8; N]>>,
    /// The items that each shard got, in their order in the call.
    orders: HashMap<Place, Vec<usize>>,
}

impl<const N: usize> Grouped<N> {
    /// Returns the answer of each item.
    pub(super) fn answered(mut self, answers: Vec<(Place, Result<Value>)>) -> Vec<Result<[u8; N]>> {
        for (place, answer) in answers {
            let order = &self.orders[&place];
            match answer.and_then(|value| split(value, order.len())) {
                Ok(answers) => order.iter().zip(answers).for_each(|(i, a)| self.results[*i] = Ok(a)),
                Err(e) => order.iter().for_each(|i| self.results[*i] = Err(e.clone())),
            }
        }
        self.results
    }
}
