//! Sends the entries of a host's spool to their homes. docs/internals/NODES.md has the rules, and the reason why no
//! entry is taken twice or skipped.
//!
//! A shard gets the entries in numbered batches, one after the other. The next batch is sent when the shard has
//! answered the previous batch. Before a batch is sent, the sender writes to the disk which entries are in the batch.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::{Duration, Instant};

use super::answer;
use super::batch::argument_writer;
use super::change::add_words;
use super::homes::Homes;
use super::node::{BATCH, Call, Failure};
use super::nodes::Place;
use super::script::Script;
use super::set::SET;
use super::shard_clock::ShardClock;
use super::{CHUNK, RedisStore};
use crate::spool::{BATCH_BYTES, Entry, SentBatch};
use crate::{Result, Spool, StoreError};
use model::job::{JobKey, NewJob};
use model::settings;
use model::topic::Durability;

/// How long the sender waits after a shard took nothing: the first pause, and the longest pause. Each pause is twice as
/// long as the previous one.
const PAUSE: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(2));

/// If a node outside the set has not answered for this long, the batches that were sent to it are sent to the new homes
/// of their jobs.
const GIVEN_UP: Duration = Duration::from_secs(60);

/// How long a reading of the clock of a shard is used.
const CLOCK_AGE: Duration = Duration::from_secs(10);

/// Sends the entries of the spool. Only one process of a host has a sender at a time.
pub struct SpoolSender {
    store: RedisStore,
    spool: Spool,
    /// The name under which this process sends.
    name: String,
    /// The number of the set under which entries were last sent.
    set: u64,
    /// All entries up to this number were examined. If some of these entries still wait, they are for the shards in
    /// `held_up`.
    done_to: i64,
    held_up: BTreeMap<Place, SpoolBackoff>,
    /// For each batch, by its number: since when no server has answered for it.
    silent: HashMap<i64, Instant>,
    /// The clocks of shards, and when each was read.
    clocks: BTreeMap<Place, (Instant, ShardClock)>,
}

/// A shard that took nothing. Nothing is sent to it for a while.
#[derive(Debug, Clone, Copy)]
struct SpoolBackoff {
    /// The number of the first entry that waits for the shard, or a lower number.
    first: i64,
    again_at: Instant,
    pause: Duration,
}

impl SpoolSender {
    /// Opens a sender. The name must be new: no sender has used it before. None: these settings have no spool.
    pub fn open(settings: &settings::RedisSettings, name: String) -> Result<Option<SpoolSender>> {
        let Some(spool) = settings.used_spool() else { return Ok(None) };
        Ok(Some(SpoolSender {
            store: RedisStore::new(settings, None)?,
            spool: Spool::open_to_send(spool)?,
            name,
            set: 0,
            done_to: 0,
            held_up: BTreeMap::new(),
            silent: HashMap::new(),
            clocks: BTreeMap::new(),
        }))
    }

    /// Sends what can be sent now. Returns how many entries were taken.
    pub fn send(&mut self) -> Result<usize> {
        if self.spool.note_empty()? {
            return Ok(0);
        }
        let homes = self.store.nodes.open_homes()?;
        if homes.set.number != self.set {
            (self.set, self.done_to) = (homes.set.number, 0);
            self.held_up.clear();
        }
        let (mut sum, unanswered) = self.ask_again(&homes)?;
        sum += self.try_blocked(&homes, &unanswered)?;
        loop {
            let page = self.spool.page(self.done_to, CHUNK, BATCH_BYTES)?;
            let Some(last) = page.last().map(|entry| entry.seq) else { return Ok(sum) };
            sum += self.send_entries(&homes, page, &unanswered)?;
            self.done_to = last;
        }
    }

    /// Asks what happened to the batches that have no answer yet. Returns how many entries were taken, and the shards
    /// of the batches that still have no answer.
    fn ask_again(&mut self, homes: &Homes) -> Result<(usize, BTreeSet<Place>)> {
        let (mut sum, mut left) = (0, BTreeSet::new());
        for batch in self.spool.unanswered()? {
            let node = self.store.nodes.names.iter().position(|name| *name == batch.node);
            let entries = self.spool.entries_of(batch.number)?;
            let place = node.map(|node| Place { node, shard: batch.shard });
            if place.is_some_and(|place| left.contains(&place)) {
                continue;
            }
            let stays = |place: Place| {
                homes.has(place.node) && entries.iter().all(|e| self.place_of(homes, &e.key) == place)
            };
            let was_taken = match place {
                Some(place) if stays(place) => self.send_again(homes, place, &batch, &entries),
                Some(place) => self.was_taken(homes, place, &batch),
                // The set has the node, but the configuration of this process does not name it. So this process cannot
                // ask what the node took, and the result is not known.
                None if homes.set.names.contains(&batch.node) => None,
                None => Some(false),
            };
            if was_taken.is_some() {
                self.silent.remove(&batch.number);
            }
            match was_taken {
                Some(true) => {
                    sum += entries.len();
                    self.spool.note_answered(&[batch.number], &[])?;
                }
                Some(false) => {
                    let first = entries.first().map_or(i64::MAX, |entry| entry.seq);
                    self.done_to = self.done_to.min(first - 1);
                    self.spool.note_answered(&[], &[batch.number])?;
                }
                None => left.extend(place),
            }
        }
        Ok((sum, left))
    }

    /// Sends a batch once more to the same shard. The shard takes the batch now, or has taken it before. If later
    /// changes have replaced all entries of the batch, the batch is sent without entries. After its answer, the shard
    /// refuses the copy that was sent first, even if that copy arrives much later. None: the result is not known yet.
    fn send_again(
        &mut self,
        homes: &Homes,
        place: Place,
        batch: &SentBatch,
        entries: &[Entry],
    ) -> Option<bool> {
        let clock = self.clock(place).ok()?;
        let calls = self.calls(homes, &[(place, batch, entries, clock)]);
        let answer = self.store.ask_all_by(calls).pop()?.1;
        answer.is_ok().then_some(true)
    }

    /// Returns whether a shard has taken a batch. The batch was sent under an earlier set, and its shard is not the
    /// home of all its jobs any more. None: the result is not known yet.
    fn was_taken(&mut self, homes: &Homes, place: Place, batch: &SentBatch) -> Option<bool> {
        let node = &self.store.nodes.nodes[place.node];
        let key = format!("{BATCH}{}", batch.sender);
        let calls = [node.plain("GET", place.shard, SET), node.plain("GET", place.shard, &key)];
        let mut answers = self.store.nodes.run(place.node, &calls).into_iter();
        let mut next = || {
            let answer = answers.next()?.map_err(Failure::into_error);
            answer.and_then(answer::optional_text).ok()
        };
        let (Some(set), Some(last)) = (next(), next()) else {
            let silent_since = *self.silent.entry(batch.number).or_insert_with(Instant::now);
            return (!homes.has(place.node) && silent_since.elapsed() >= GIVEN_UP).then_some(false);
        };
        self.silent.remove(&batch.number);
        match homes.has(place.node) {
            // The shard still has the earlier set, so it could take a batch that is still on its way.
            true if set != homes.set.text() => None,
            // The node is outside the set now, but its shard still has the set of the batch. So the set was changed
            // while the node did not answer. The node is forgotten, and what it took counts as not taken.
            false if set == batch.set => Some(false),
            _ => Some(last.parse().unwrap_or(0) >= batch.number),
        }
    }

    /// Tries shards that took nothing before, with their first entries. Returns how many entries were taken.
    fn try_blocked(&mut self, homes: &Homes, unanswered: &BTreeSet<Place>) -> Result<usize> {
        let now = Instant::now();
        let is_due =
            |(place, held): &(&Place, &SpoolBackoff)| held.again_at <= now && !unanswered.contains(place);
        let due: Vec<(Place, SpoolBackoff)> =
            self.held_up.iter().filter(is_due).map(|(place, held)| (*place, *held)).collect();
        let mut sum = 0;
        for (place, before) in due {
            let mut page = self.spool.page(before.first - 1, CHUNK, BATCH_BYTES)?;
            page.retain(|entry| self.place_of(homes, &entry.key) == place);
            self.held_up.remove(&place);
            let sent = self.send_entries(homes, page, unanswered);
            if sent.is_err() {
                // Entries for this shard with numbers up to `done_to` may still wait. Only `held_up` says where these
                // entries begin, so the shard stays in `held_up`.
                self.held_up.insert(place, before);
            }
            sum += sent?;
            match self.held_up.get_mut(&place) {
                None => self.done_to = self.done_to.min(before.first - 1),
                Some(held) => {
                    let pause = (before.pause * 2).min(PAUSE.1);
                    *held = SpoolBackoff { first: before.first, again_at: Instant::now() + pause, pause };
                }
            }
        }
        Ok(sum)
    }

    /// Returns the clock of a shard. A recent reading is used again.
    fn clock(&mut self, place: Place) -> Result<ShardClock> {
        if let Some((read_at, clock)) = self.clocks.get(&place)
            && read_at.elapsed() < CLOCK_AGE
        {
            return Ok(*clock);
        }
        let clock = ShardClock::read(&self.store, place)?;
        self.clocks.insert(place, (Instant::now(), clock));
        Ok(clock)
    }

    fn place_of(&self, homes: &Homes, key: &JobKey) -> Place {
        // If the configuration does not name the node, nothing can be sent there.
        let nowhere = Place { node: usize::MAX, shard: 0 };
        homes.home(key).map_or(nowhere, |node| self.store.nodes.place(node, key))
    }

    /// Sends entries that are in no batch to all shards that are not held up. Returns how many entries were taken.
    fn send_entries(
        &mut self,
        homes: &Homes,
        entries: Vec<Entry>,
        unanswered: &BTreeSet<Place>,
    ) -> Result<usize> {
        let mut sum = 0;
        // One batch has entries of one shard, of one kind (adds or deletions), and of one durability level.
        let mut kinds: BTreeMap<(bool, Durability), BTreeMap<Place, Vec<Entry>>> = BTreeMap::new();
        for entry in entries {
            let place = self.place_of(homes, &entry.key);
            let kind = (entry.job.is_none(), self.store.nodes.level(&entry.key.topic));
            kinds.entry(kind).or_default().entry(place).or_default().push(entry);
        }
        for by_place in kinds.into_values() {
            let mut batches = Vec::new();
            let mut places = Vec::new();
            for (place, entries) in by_place {
                let Some(node) = self.store.nodes.names.get(place.node).cloned() else {
                    self.block_shard(place, &entries);
                    continue;
                };
                if unanswered.contains(&place) || self.held_up.contains_key(&place) {
                    self.block_shard(place, &entries);
                    continue;
                }
                let clock = match self.clock(place) {
                    Ok(clock) => clock,
                    Err(e) => {
                        log::debug!("{node}: its part of the spool waits: {e}");
                        self.block_shard(place, &entries);
                        continue;
                    }
                };
                let sent = SentBatch {
                    number: 0,
                    sender: self.name.clone(),
                    node,
                    shard: place.shard,
                    set: homes.set.text().to_owned(),
                };
                places.push((place, clock));
                batches.push((sent, entries));
            }
            if batches.is_empty() {
                continue;
            }
            self.spool.note_sent(&mut batches)?;
            let all = places
                .iter()
                .zip(&batches)
                .map(|((place, clock), (batch, entries))| (*place, batch, entries.as_slice(), *clock));
            let all: Vec<_> = all.filter(|(_, _, entries, _)| !entries.is_empty()).collect();
            let answers: BTreeMap<Place, _> =
                self.store.ask_all_by(self.calls(homes, &all)).into_iter().collect();
            let (mut taken, mut not_taken) = (Vec::new(), Vec::new());
            for ((place, _), (batch, entries)) in places.iter().zip(&batches) {
                match answers.get(place) {
                    // All entries of this batch were replaced after they were read, so the batch was not sent.
                    None => taken.push(batch.number),
                    Some(Ok(_)) => {
                        sum += entries.len();
                        taken.push(batch.number);
                    }
                    Some(Err(e)) => {
                        log::debug!("{}: its part of the spool waits: {e}", batch.node);
                        if !matches!(e, StoreError::Unknown(_)) {
                            not_taken.push(batch.number);
                        }
                        self.block_shard(*place, entries);
                    }
                }
            }
            self.spool.note_answered(&taken, &not_taken)?;
        }
        Ok(sum)
    }

    /// Notes that nothing is sent to a shard for a while, and which entry of the shard waits first.
    fn block_shard(&mut self, place: Place, entries: &[Entry]) {
        let Some(first) = entries.iter().map(|entry| entry.seq).min() else { return };
        let new = SpoolBackoff { first, again_at: Instant::now() + PAUSE.0, pause: PAUSE.0 };
        let held = self.held_up.entry(place).or_insert(new);
        held.first = held.first.min(first);
    }

    /// Makes the calls that send batches.
    fn calls(
        &self,
        homes: &Homes,
        batches: &[(Place, &SentBatch, &[Entry], ShardClock)],
    ) -> Vec<(Place, Call)> {
        let store = &self.store;
        let call = |(place, batch, entries, clock): &(Place, &SentBatch, &[Entry], ShardClock)| {
            let places = |count| std::iter::repeat_n(Ok(*place), count).collect();
            let node = &store.nodes.nodes[place.node];
            let Some(first) = entries.first() else {
                let empty = store.nodes.call(Script::Add, *place, homes);
                return Some((*place, node.as_batch(&empty, &batch.sender, batch.number, &[])));
            };
            let mut calls = if first.job.is_none() {
                let keys: Vec<&JobKey> = entries.iter().map(|entry| &entry.key).collect();
                let ids = argument_writer(|key: &JobKey, cmd| {
                    cmd.arg(key.id.as_str());
                });
                store
                    .grouped::<1, _>(Script::Delete, homes, &keys, places(keys.len()), |key| key, &[""], ids)
                    .0
            } else {
                let jobs: Vec<&NewJob> = entries.iter().filter_map(|entry| entry.job.as_ref()).collect();
                store
                    .grouped::<8, _>(
                        Script::Add,
                        homes,
                        &jobs,
                        places(jobs.len()),
                        |job| &job.key,
                        &[],
                        |jobs: &[&NewJob], cmd: &mut redis::Cmd| add_words(jobs, 1, cmd),
                    )
                    .0
            };
            let (place, mut call) = calls.pop()?;
            call.durability = store.nodes.level(&first.key.topic);
            let waits: Vec<_> = entries.iter().map(|entry| (&entry.key, clock.at(entry.since_ms))).collect();
            Some((place, node.as_batch(&call, &batch.sender, batch.number, &waits)))
        };
        batches.iter().filter_map(call).collect()
    }
}
