//! What is read over all shards together: lists, counts.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::answer::{self, array, count, number, strange};
use super::nodes::{Place, Survey};
use super::script::Script;
use super::{BYTES, CHUNK, RedisStore};
use crate::job::{JobKey, State, TopicName};
use crate::store::{Counts, Forecast, Page, Result, StoreError, View};

/// Where a listing stands on one shard.
#[derive(Debug, Clone, Serialize, Deserialize)]
enum Stand {
    /// Behind this place; both empty: at the beginning.
    Behind(String, Vec<u8>),
    /// It has told all.
    AtEnd,
    /// It could not be asked; it stays so to the end of the listing.
    Away,
}

/// A page of one shard.
struct ShardPage {
    jobs: Vec<View>,
    end: Stand,
}

/// What a list of that state is ordered by.
fn order(view: &View, state: State) -> (i64, i64) {
    match state {
        State::Delayed => (view.due_ms, view.priority as i64),
        State::Ready => (view.priority as i64, view.due_ms),
        State::Leased | State::Dead => (view.until_ms.unwrap_or(0), 0),
    }
}

/// A topic's delayed, ready, leased and dead jobs of a shard, and when the oldest of the ready ones was due.
type ShardCounts = ([u64; 4], Option<i64>);

/// A forecast asks for so many topics in one call of the script.
const FORESEEN: usize = 64;

impl RedisStore {
    /// The job of that key: at its home, or in the order in which it prefers nodes; of several copies the newest.
    pub(super) fn find(&self, key: &JobKey) -> Result<Option<View>> {
        let survey = self.survey_for_change();
        let was_unsure = self.is_unsure(&survey);
        let found = self.find_by(key, &survey);
        match self.survey_again(&survey, was_unsure) {
            Some(survey) => self.find_by(key, &survey),
            None => found,
        }
    }

    fn find_by(&self, key: &JobKey, survey: &Survey) -> Result<Option<View>> {
        self.bring_home(&[key], survey);
        let (mut found, mut failed): (Option<View>, _) = (None, None);
        let mut order: Vec<usize> = survey.map.order(key).collect();
        let home = order[0];
        order.extend((0..self.nodes.count()).filter(|node| !survey.map.has(*node)));
        for node in order {
            let may_hold = node == home || survey.holders(home).any(|holder| holder == node);
            if found.is_some() && !may_hold {
                continue;
            }
            let place = self.nodes.place(node, key);
            let mut call = self.call(Script::Get, place);
            call.cmd.arg(key.topic.as_str()).arg(key.id.as_str());
            let answered = self.ask(place, call).and_then(array);
            match answered.and_then(|values| answer::views(&key.topic, values)) {
                Ok(mut views) => {
                    let newer = |a: &View, b: &View| {
                        let rank = |v: &View| (v.state != State::Dead, v.stamp_us);
                        rank(a) > rank(b)
                    };
                    match views.pop() {
                        Some(view) if found.as_ref().is_none_or(|f| newer(&view, f)) => found = Some(view),
                        _ => {}
                    }
                }
                Err(e) if node == home => failed = Some(e),
                Err(e) => log::debug!("{e}"),
            }
        }
        match failed {
            // It may be there.
            Some(e) if found.is_none() => Err(e),
            _ => self.vouches(key, survey).map(|()| found),
        }
    }

    /// The topics that have live jobs on a shard.
    pub(super) fn topics_with_jobs(&self, place: Place) -> Result<Vec<TopicName>> {
        let live = |(topic, ([delayed, ready, leased, _], _)): (TopicName, ShardCounts)| {
            (delayed + ready + leased > 0).then_some(topic)
        };
        Ok(self.counts_at(place)?.into_iter().filter_map(live).collect())
    }

    /// A page over all shards, in the order of the state.
    pub(super) fn browse(
        &self,
        topic: &TopicName,
        state: State,
        cursor: Option<&str>,
        limit: usize,
    ) -> Result<Page> {
        let places: Vec<Place> = self.places().collect();
        let first = || places.iter().map(|_| Stand::Behind(String::new(), Vec::new())).collect();
        let stands: Option<Vec<Stand>> = match cursor {
            None => Some(first()),
            Some(text) => serde_json::from_str(text).ok().filter(|s: &Vec<Stand>| s.len() == places.len()),
        };
        let Some(mut stands) = stands else { return Ok(Page::default()) };
        let mut jobs: Vec<(usize, View)> = Vec::new();
        let (mut ends, mut failed) = (Vec::new(), None);
        for (i, place) in places.iter().enumerate() {
            match self.page(*place, topic, state, &stands[i], limit) {
                Ok(page) => {
                    jobs.extend(page.jobs.into_iter().map(|job| (i, job)));
                    ends.push(page.end);
                }
                // What is only read was not done, whatever became of the question.
                Err(e @ (StoreError::NodeDown(_) | StoreError::Unknown(_))) => {
                    failed = Some(e);
                    ends.push(Stand::Away);
                }
                Err(e) => return Err(e),
            }
        }
        match failed {
            Some(e) if ends.iter().all(|end| matches!(end, Stand::Away)) => return Err(e),
            _ => {}
        }
        jobs.sort_by_key(|(_, view)| order(view, state));
        let read: Vec<usize> =
            (0..places.len()).map(|i| jobs.iter().filter(|(of, _)| *of == i).count()).collect();
        jobs.truncate(limit);
        for (i, place) in places.iter().enumerate() {
            let told = jobs.iter().filter(|(of, _)| *of == i).count();
            stands[i] = match told {
                _ if told == read[i] => ends[i].clone(),
                0 => stands[i].clone(),
                // The page ends in the midst of what this shard gave.
                _ => self.page(*place, topic, state, &stands[i], told)?.end,
            };
        }
        let more = stands.iter().any(|s| matches!(s, Stand::Behind(..)));
        let next =
            more.then(|| serde_json::to_string(&stands)).transpose().map_err(|_| strange("a cursor"))?;
        let away = places.iter().zip(&stands).filter(|(_, stand)| matches!(stand, Stand::Away));
        let mut away: Vec<String> = away.map(|(place, _)| self.nodes.names[place.node].clone()).collect();
        away.dedup();
        Ok(Page { jobs: jobs.into_iter().map(|(_, view)| view).collect(), next, away })
    }

    fn page(
        &self,
        place: Place,
        topic: &TopicName,
        state: State,
        from: &Stand,
        limit: usize,
    ) -> Result<ShardPage> {
        let (mut jobs, mut end) = (Vec::new(), from.clone());
        while let Stand::Behind(score, member) = &end {
            if jobs.len() >= limit {
                break;
            }
            let mut call = self.call(Script::List, place);
            call.cmd.arg(topic.as_str()).arg(state as u8).arg(score).arg(&member[..]);
            call.cmd.arg((limit - jobs.len()).min(CHUNK)).arg(BYTES);
            let mut values = array(self.ask(place, call)?)?;
            if values.len() < 2 {
                return Err(strange("a list"));
            }
            let some = values.split_off(2);
            let member = answer::bytes(values.pop().unwrap_or_default())?;
            let score = answer::text(values.pop().unwrap_or_default())?;
            jobs.extend(answer::views(topic, some)?);
            end = if score.is_empty() { Stand::AtEnd } else { Stand::Behind(score, member) };
        }
        Ok(ShardPage { jobs, end })
    }

    /// The latest dead letters over all shards; of those that answer, if some do.
    pub(super) fn latest_dead(&self, topic: &TopicName, since_ms: i64, limit: usize) -> Result<Vec<View>> {
        let (mut latest, mut failed) = (Vec::new(), None);
        for place in self.places() {
            let mut call = self.call(Script::DeadSince, place);
            call.cmd.arg(topic.as_str()).arg(since_ms).arg(limit.min(CHUNK)).arg(BYTES);
            match self.ask(place, call).and_then(array).and_then(|some| answer::views(topic, some)) {
                Ok(some) => latest.extend(some),
                Err(e) => failed = Some(e),
            }
        }
        latest.sort_by_key(|view| std::cmp::Reverse(order(view, State::Dead)));
        latest.truncate(limit);
        match failed {
            Some(e) if latest.is_empty() => Err(e),
            _ => Ok(latest),
        }
    }

    /// The counts of all topics.
    pub(super) fn count(&self) -> Result<Vec<Counts>> {
        let mut topics: BTreeMap<TopicName, BTreeMap<Place, ShardCounts>> = BTreeMap::new();
        for place in self.places() {
            for (topic, counts) in self.counts_at(place)? {
                topics.entry(topic).or_default().insert(place, counts);
            }
        }
        let sum = |(topic, shards): (TopicName, BTreeMap<Place, ShardCounts>)| {
            let of = |state: usize| shards.values().map(|(counts, _)| counts[state]).sum();
            let oldest_ready_ms = shards.values().filter_map(|(_, oldest_ms)| *oldest_ms).min();
            Counts { topic, delayed: of(0), ready: of(1), leased: of(2), dead: of(3), oldest_ready_ms }
        };
        Ok(topics.into_iter().map(sum).collect())
    }

    /// How many delayed jobs become due when, on the nodes that answer.
    pub(super) fn foresee(&self, topics: &[TopicName], edges_ms: &[i64]) -> Result<Forecast> {
        let mut sums = vec![0; edges_ms.len().saturating_sub(1)];
        let (mut failed, mut worked) = (None, topics.is_empty());
        for some in topics.chunks(FORESEEN) {
            let call = |place: Place| {
                let mut call = self.call(Script::Forecast, place);
                call.cmd.arg(some.len());
                call.cmd.arg(some.iter().map(TopicName::as_str).collect::<Vec<_>>()).arg(edges_ms);
                (place, call)
            };
            for (_, answer) in self.ask_all(self.places().map(call).collect()) {
                let counts = answer.and_then(array).and_then(|all| all.iter().map(count).collect());
                match counts {
                    Ok(counts) => {
                        let counts: Vec<usize> = counts;
                        sums.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count as u64);
                        worked = true;
                    }
                    Err(e) => failed = Some(e),
                }
            }
        }
        match failed {
            Some(e) if !worked => Err(e),
            _ => Ok(Forecast { jobs: sums, is_capped: false }),
        }
    }

    fn counts_at(&self, place: Place) -> Result<BTreeMap<TopicName, ShardCounts>> {
        let (mut topics, mut cursor) = (BTreeMap::new(), "0".to_owned());
        loop {
            let mut call = self.call(Script::Counts, place);
            call.cmd.arg(&cursor).arg(CHUNK);
            let mut values = array(self.ask(place, call)?)?.into_iter();
            cursor = answer::text(values.next().ok_or_else(|| strange("counts"))?)?;
            while let Some(topic) = values.next() {
                let mut counts = [0; 4];
                for n in &mut counts {
                    *n = count(&values.next().ok_or_else(|| strange("counts"))?)? as u64;
                }
                // A topic may be told twice.
                let oldest_ms = number(&values.next().ok_or_else(|| strange("counts"))?)?;
                topics.insert(answer::topic(topic)?, (counts, (oldest_ms >= 0).then_some(oldest_ms)));
            }
            if cursor == "0" {
                return Ok(topics);
            }
        }
    }
}
