//! Reads over all shards together: lists, counts, forecasts.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::answer::{self, array, count, number, unexpected};
use super::node::Failure;
use super::nodes::{Nodes, Place};
use super::script::Script;
use super::{BYTES, CHUNK, RedisStore};
use crate::{Counts, Forecast, JobsPage, Result, StoreError, StoredJob, Views};
use model::job::{State, TopicName};

/// The position of a listing on one shard.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) enum ListPosition {
    /// The listing continues after this score and member. Both are empty at the beginning.
    Behind(String, Vec<u8>),
    /// The shard has listed everything.
    AtEnd,
    /// The shard could not be asked. The shard is left out until the end of the listing.
    Away,
}

/// A page of the list of one shard, and the position where the page ends. Each item has the position that follows it.
pub(super) struct ShardPage<T> {
    pub items: Vec<(T, ListPosition)>,
    pub end: ListPosition,
}

/// A page over all shards.
#[derive(Debug)]
pub(super) struct MergedPage<T> {
    pub items: Vec<T>,
    /// The cursor of the next page. None: this was the last page.
    pub next: Option<String>,
    /// The nodes that could not be asked.
    pub away: Vec<String>,
}

impl<T> Default for MergedPage<T> {
    fn default() -> MergedPage<T> {
        MergedPage { items: Vec::new(), next: None, away: Vec::new() }
    }
}

/// Returns the key by which a list of that state is ordered.
fn order(view: &StoredJob, state: State) -> (i64, i64) {
    // The rank of a delayed job with a number is 0: see part/numbered.lua.
    let rank = view.priority.level().map_or(0, |level| level as i64);
    match state {
        State::Delayed => (view.due_ms, rank),
        State::Ready => (view.priority.stored(), view.due_ms),
        State::Leased | State::Dead => (view.until_ms.unwrap_or(0), 0),
    }
}

/// How many delayed, ready, leased and dead jobs a topic has on a shard, when its oldest ready job was due (none: no
/// job is ready), and how many bytes its jobs have (none: the bytes are not counted).
pub(super) struct ShardCounts {
    pub counts: [u64; 4],
    oldest_ms: Option<i64>,
    bytes: Option<u64>,
}

/// How many topics one call of the forecast script covers.
const FORESEEN: usize = 64;

impl RedisStore {
    fn page(
        &self,
        place: Place,
        topic: &TopicName,
        state: State,
        from: &ListPosition,
        limit: usize,
    ) -> Result<ShardPage<StoredJob>> {
        let (mut jobs, mut end) = (Vec::new(), from.clone());
        while let ListPosition::Behind(score, member) = &end {
            if jobs.len() >= limit {
                break;
            }
            let mut call = self.call(Script::List, place);
            call.cmd.arg(topic.as_str()).arg(state as u8).arg(score).arg(&member[..]);
            call.cmd.arg((limit - jobs.len()).min(CHUNK)).arg(BYTES);
            let mut values = array(self.ask(place, call)?)?;
            if values.len() < 3 {
                return Err(unexpected("a list"));
            }
            let some = answer::views(topic, values.split_off(3))?;
            let mut places = array(values.pop().unwrap_or_default())?.into_iter();
            let member = answer::bytes(values.pop().unwrap_or_default())?;
            let score = answer::text(values.pop().unwrap_or_default())?;
            for job in some {
                let (Some(score), Some(member)) = (places.next(), places.next()) else {
                    return Err(unexpected("the place of a job"));
                };
                jobs.push((job, ListPosition::Behind(answer::text(score)?, answer::bytes(member)?)));
            }
            end = if score.is_empty() { ListPosition::AtEnd } else { ListPosition::Behind(score, member) };
        }
        Ok(ShardPage { items: jobs, end })
    }

    fn place_name(&self, place: Place) -> String {
        format!("{}.{}", self.nodes.names[place.node], place.shard)
    }

    /// Returns the cursor of a listing that continues at these positions, one for each shard.
    pub(super) fn cursor_of<'a>(
        &self,
        stands: impl Iterator<Item = (Place, &'a ListPosition)>,
    ) -> Result<String> {
        let stands: BTreeMap<String, &ListPosition> =
            stands.map(|(place, stand)| (self.place_name(place), stand)).collect();
        serde_json::to_string(&stands).map_err(|_| unexpected("a cursor"))
    }

    /// Returns a page over all shards: `page` reads from one shard, and `order` says which item comes first.
    pub(super) fn merged<T, K: Ord>(
        &self,
        cursor: Option<&str>,
        limit: usize,
        page: impl Fn(Place, &ListPosition, usize) -> Result<ShardPage<T>>,
        order: impl Fn(&T) -> K,
    ) -> Result<MergedPage<T>> {
        let places: Vec<Place> = self.all_places().collect();
        let positions: Option<BTreeMap<String, ListPosition>> = match cursor {
            None => Some(BTreeMap::new()),
            Some(text) => serde_json::from_str(text).ok(),
        };
        let Some(mut positions) = positions else { return Ok(MergedPage::default()) };
        // A shard that has joined since the previous page is listed from its beginning.
        let mut stand = |place: &Place| {
            positions
                .remove(&self.place_name(*place))
                .unwrap_or(ListPosition::Behind(String::new(), Vec::new()))
        };
        let mut stands: Vec<ListPosition> = places.iter().map(&mut stand).collect();
        let mut items: Vec<(usize, (T, ListPosition))> = Vec::new();
        let (mut ends, mut failed) = (Vec::new(), None);
        for (i, place) in places.iter().enumerate() {
            match page(*place, &stands[i], limit) {
                Ok(some) => {
                    items.extend(some.items.into_iter().map(|item| (i, item)));
                    ends.push(some.end);
                }
                // A failed read has changed nothing, so `Unknown` counts like a node that is down.
                Err(e @ (StoreError::NodeDown(_) | StoreError::Unknown(_))) => {
                    failed = Some(e);
                    ends.push(ListPosition::Away);
                }
                Err(e) => return Err(e),
            }
        }
        match failed {
            Some(e) if ends.iter().all(|end| matches!(end, ListPosition::Away)) => return Err(e),
            _ => {}
        }
        items.sort_by_key(|(_, (item, _))| order(item));
        let read: Vec<usize> =
            (0..places.len()).map(|i| items.iter().filter(|(of, _)| *of == i).count()).collect();
        items.truncate(limit);
        for (i, end) in ends.into_iter().enumerate() {
            let returned = || items.iter().filter(|(of, _)| *of == i);
            if returned().count() == read[i] {
                stands[i] = end;
            } else if let Some((_, (_, behind))) = returned().last() {
                // The page ends in the middle of the jobs that this shard has returned.
                stands[i] = behind.clone();
            }
        }
        let more = stands.iter().any(|s| matches!(s, ListPosition::Behind(..)));
        let next = more.then(|| self.cursor_of(places.iter().copied().zip(&stands))).transpose()?;
        let away = places.iter().zip(&stands).filter(|(_, stand)| matches!(stand, ListPosition::Away));
        let mut away: Vec<String> = away.map(|(place, _)| self.nodes.names[place.node].clone()).collect();
        away.dedup();
        Ok(MergedPage { items: items.into_iter().map(|(_, (item, _))| item).collect(), next, away })
    }
}

impl Nodes {
    /// Returns the counts of all topics of which a shard has ever had a job.
    pub(super) fn counts_at(&self, place: Place) -> Result<BTreeMap<TopicName, ShardCounts>> {
        let (mut topics, mut cursor) = (BTreeMap::new(), "0".to_owned());
        loop {
            let mut call = self.nodes[place.node].call(Script::Counts, place.shard, None);
            call.cmd.arg(&cursor).arg(CHUNK);
            let answer = self.nodes[place.node].run_one(call).map_err(Failure::into_error)?;
            let mut values = array(answer)?.into_iter();
            cursor = answer::text(values.next().ok_or_else(|| unexpected("counts"))?)?;
            while let Some(topic) = values.next() {
                let mut counts = [0; 4];
                for n in &mut counts {
                    *n = count(&values.next().ok_or_else(|| unexpected("counts"))?)? as u64;
                }
                // The scan may return a topic twice.
                let oldest_ms = number(&values.next().ok_or_else(|| unexpected("counts"))?)?;
                let bytes = u64::try_from(number(&values.next().ok_or_else(|| unexpected("counts"))?)?).ok();
                let oldest_ms = (oldest_ms >= 0).then_some(oldest_ms);
                topics.insert(answer::topic(topic)?, ShardCounts { counts, oldest_ms, bytes });
            }
            if cursor == "0" {
                return Ok(topics);
            }
        }
    }
}

impl Views for RedisStore {
    fn list(
        &mut self,
        topic: &TopicName,
        state: State,
        cursor: Option<&str>,
        limit: usize,
    ) -> Result<JobsPage> {
        let page = |place, from: &ListPosition, limit| self.page(place, topic, state, from, limit);
        let merged = self.merged(cursor, limit, page, |view| order(view, state))?;
        Ok(JobsPage { jobs: merged.items, next: merged.next, away: merged.away })
    }

    fn delayed_from(&mut self, _: &TopicName, due_ms: i64) -> Result<String> {
        // The score of a delayed job is its due time and its rank: see part/scores.lua. No job has an empty id, so this
        // position is before all jobs with this due time.
        let behind = ListPosition::Behind(due_ms.saturating_mul(4).to_string(), Vec::new());
        self.cursor_of(self.all_places().map(|place| (place, &behind)))
    }

    fn dead_since(&mut self, topic: &TopicName, since_ms: i64, limit: usize) -> Result<Vec<StoredJob>> {
        let (mut latest, mut failed) = (Vec::new(), None);
        for place in self.all_places() {
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

    fn counts(&mut self) -> Result<Vec<Counts>> {
        let mut topics: BTreeMap<TopicName, BTreeMap<Place, ShardCounts>> = BTreeMap::new();
        for place in self.all_places() {
            for (topic, counts) in self.nodes.counts_at(place)? {
                topics.entry(topic).or_default().insert(place, counts);
            }
        }
        let sum = |(topic, shards): (TopicName, BTreeMap<Place, ShardCounts>)| {
            let of = |state: usize| shards.values().map(|shard| shard.counts[state]).sum();
            let oldest_ready_ms = shards.values().filter_map(|shard| shard.oldest_ms).min();
            let bytes = shards.values().filter_map(|shard| shard.bytes).reduce(|a, b| a + b);
            Counts { topic, delayed: of(0), ready: of(1), leased: of(2), dead: of(3), oldest_ready_ms, bytes }
        };
        Ok(topics.into_iter().map(sum).collect())
    }

    fn forecast(&mut self, topics: &[TopicName], edges_ms: &[i64]) -> Result<Forecast> {
        let mut sums = vec![0; edges_ms.len().saturating_sub(1)];
        let (mut failed, mut worked) = (None, topics.is_empty());
        for some in topics.chunks(FORESEEN) {
            let call = |place: Place| {
                let mut call = self.call(Script::Forecast, place);
                call.cmd.arg(some.len());
                call.cmd.arg(some.iter().map(TopicName::as_str).collect::<Vec<_>>()).arg(edges_ms);
                (place, call)
            };
            for (_, answer) in self.ask_all(self.all_places().map(call).collect()) {
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
}
