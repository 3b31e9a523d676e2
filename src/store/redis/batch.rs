//! Calls in batches: one call a shard and operation, one round trip a node.

use std::collections::{BTreeMap, HashMap};

use redis::Value;

use super::answer::{self, strange};
use super::node::{Call, Failure};
use super::nodes::Place;
use super::script::Script;
use super::{CHUNK, RedisStore};
use crate::job::TopicName;
use crate::store::Result;

/// The letters that a script answers with, one an item.
pub(super) fn letters(value: Value, items: usize) -> Result<Vec<u8>> {
    split(value, items).map(|answers| answers.into_iter().map(|[letter]| letter).collect())
}

/// What a script answers with: so many bytes an item, in the order in which it was given them.
fn split<const N: usize>(value: Value, items: usize) -> Result<Vec<[u8; N]>> {
    let bytes = answer::bytes(value)?;
    let (answers, rest) = bytes.as_chunks();
    if answers.len() == items && rest.is_empty() { Ok(answers.to_vec()) } else { Err(strange("an answer")) }
}

impl RedisStore {
    /// Makes calls on many shards, one round trip a node.
    pub(super) fn ask_all(&self, calls: Vec<(Place, Call)>) -> Vec<(Place, Result<Value>)> {
        let mut by_node: BTreeMap<usize, (Vec<Place>, Vec<Call>)> = BTreeMap::new();
        for (place, call) in calls {
            let (places, calls) = by_node.entry(place.node).or_default();
            places.push(place);
            calls.push(call);
        }
        let ask = |(node, (places, calls)): (usize, (Vec<Place>, Vec<Call>))| {
            let answers = self.nodes.nodes[node].run(&calls).into_iter();
            places.into_iter().zip(answers.map(|a| a.map_err(Failure::into_error)))
        };
        by_node.into_iter().flat_map(ask).collect()
    }

    /// Runs a batch script over items: grouped by shard, and there by topic. `words` says those of a topic, which are never none,
    /// in their order. Gives the bytes that the script answers for each item.
    pub(super) fn each<const N: usize, T>(
        &self,
        script: Script,
        items: &[T],
        place: impl Fn(&T) -> Result<Place>,
        topic: impl Fn(&T) -> &TopicName,
        first: &[&str],
        words: impl Fn(&[&T], &mut redis::Cmd),
    ) -> Vec<Result<[u8; N]>> {
        let mut out = Vec::with_capacity(items.len());
        for chunk in items.chunks(CHUNK) {
            let (calls, grouped) = self.grouped(script, chunk, &place, &topic, first, &words);
            out.append(&mut grouped.answered(self.ask_all(calls)));
        }
        out
    }

    /// The calls of a batch script over some items, up to [`CHUNK`], as [`RedisStore::each`] makes them.
    pub(super) fn grouped<const N: usize, T>(
        &self,
        script: Script,
        items: &[T],
        place: impl Fn(&T) -> Result<Place>,
        topic: impl Fn(&T) -> &TopicName,
        first: &[&str],
        words: impl Fn(&[&T], &mut redis::Cmd),
    ) -> (Vec<(Place, Call)>, Grouped<N>) {
        let mut groups: BTreeMap<Place, BTreeMap<&str, Vec<usize>>> = BTreeMap::new();
        let mut grouped = Grouped { results: Vec::with_capacity(items.len()), orders: HashMap::new() };
        for (i, item) in items.iter().enumerate() {
            match place(item) {
                Ok(place) => {
                    let topics = groups.entry(place).or_default();
                    topics.entry(topic(item).as_str()).or_default().push(i);
                    grouped.results.push(Err(strange("no answer")));
                }
                Err(e) => grouped.results.push(Err(e)),
            }
        }
        let mut calls = Vec::new();
        for (place, topics) in groups {
            let mut call = self.call(script, place);
            call.cmd.arg(first);
            for (topic, members) in topics {
                call.cmd.arg(topic).arg(members.len());
                words(&members.iter().map(|i| &items[*i]).collect::<Vec<_>>(), &mut call.cmd);
                grouped.orders.entry(place).or_default().extend(members);
            }
            calls.push((place, call));
        }
        (calls, grouped)
    }
}

/// Which items the calls of a batch script are about.
pub(super) struct Grouped<const N: usize> {
    /// Of each item, until its call is answered.
    results: Vec<Result<[u8; N]>>,
    /// Of each shard, in the order in which it was told of them.
    orders: HashMap<Place, Vec<usize>>,
}

impl<const N: usize> Grouped<N> {
    /// Each item's answer.
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
