//! Takes over the jobs of another store. The code packs the jobs in the form in which the scripts store them. Then
//! `move_put` and similar scripts put the jobs into their homes, as in a move between nodes.

use std::collections::BTreeMap;

use super::answer::{self, headers_word};
use super::node::Call;
use super::nodes::Place;
use super::script::Script;
use super::{BYTES, CHUNK, RedisStore};
use crate::take_over::{MovableStore, StoreMoveMark, without_lease};
use crate::{Result, StoredJob};
use model::headers::{Headers, PRIORITY};
use model::job::{Attempt, JobKey, State};
use model::job_priority::JobPriority;
use model::record::JobRecord;

/// The key of the mark on a shard.
const MARK: &str = "moved";

/// A packed job or a packed record: the arguments for the script that stores it.
type Packed = Vec<Vec<u8>>;

/// What one call takes over.
#[derive(Default)]
struct TakeOverBatch {
    jobs: usize,
    bytes: usize,
    values: Packed,
}

/// Adds a number of `n` bytes, big-endian. Negative numbers count as 0.
fn add_number(to: &mut Vec<u8>, number: i64, n: usize) {
    to.extend_from_slice(&number.max(0).to_be_bytes()[8 - n..]);
}

/// Returns the log of a job: the line of its headers, and a line for each attempt. A job with a number as priority has
/// this number in the line of headers: see `part/numbered.lua`.
fn log_of(headers: &Headers, attempts: &[Attempt], priority: JobPriority, stamp_us: i64) -> String {
    let mut log = headers_word(headers);
    if priority.level().is_none() {
        let number = format!("h{{\"{PRIORITY}\":\"{}.{stamp_us}.0\"", priority.number());
        log = match log.strip_prefix("h{") {
            Some(others) => format!("{number},{others}"),
            None => number + "}",
        };
    }
    if !log.is_empty() {
        log.push('\n');
    }
    for attempt in attempts {
        log += &answer::line(Some(attempt));
        log.push('\n');
    }
    log
}

/// Returns the value that `b:` holds for a job: see `part/records.lua`.
fn record_of(job: &StoredJob) -> Vec<u8> {
    let rank = job.priority.level().map_or(2, |level| level as u8);
    let mut record = vec![rank + if job.max_attempts.is_some() { 4 } else { 0 }];
    add_number(&mut record, job.stamp_us, 7);
    if let Some(most) = job.max_attempts {
        add_number(&mut record, most.into(), 4);
    }
    record.extend_from_slice(job.body.as_str().as_bytes());
    record
}

/// Returns the six values of a live job that `move_put` expects.
fn packed(job: &StoredJob) -> Packed {
    let (rank, due_ms) = (job.priority.level().map_or(0, |level| level as i64), job.due_ms);
    let log = log_of(&job.headers, &job.attempts_log, job.priority, job.stamp_us);
    let mut notes = Vec::new();
    if !log.is_empty() || job.attempts > 0 {
        add_number(&mut notes, job.attempts.into(), 4);
        // How many attempts of the job did not count because the consumer died: none yet.
        notes.push(0);
        notes.extend_from_slice(log.as_bytes());
    }
    let (state, score) = match job.state {
        State::Ready => ("r", rank * 1_000_000_000_000_000 + due_ms),
        _ => ("d", due_ms * 4 + rank),
    };
    let id = job.key.id.as_str();
    vec![id.into(), record_of(job), notes, state.into(), score.to_string().into(), Vec::new()]
}

/// Returns the two values of a dead letter that `move_put_letters` expects.
fn packed_letter(job: &StoredJob) -> Packed {
    let log = log_of(&job.headers, &job.attempts_log, job.priority, job.stamp_us);
    let mut letter = Vec::new();
    add_number(&mut letter, job.due_ms, 6);
    // The script gives the letter its number.
    add_number(&mut letter, 0, 4);
    add_number(&mut letter, job.attempts.into(), 4);
    add_number(&mut letter, log.len() as i64, 4);
    letter.extend_from_slice(log.as_bytes());
    letter.extend_from_slice(&record_of(job));
    vec![job.until_ms.unwrap_or(job.due_ms).to_string().into(), letter]
}

/// Returns the two values of a record that `record_put` expects: see `part/history.lua`.
fn packed_record(record: &JobRecord) -> Packed {
    let stamp_us = record.stamp_us.unwrap_or(0);
    let log = log_of(&record.headers, &record.attempts_log, JobPriority::default(), stamp_us);
    let mut rest = vec![record.ending as u8];
    add_number(&mut rest, record.ended_ms, 6);
    add_number(&mut rest, stamp_us, 7);
    add_number(&mut rest, record.due_ms, 6);
    add_number(&mut rest, record.attempts.into(), 4);
    add_number(&mut rest, log.len() as i64, 4);
    rest.extend_from_slice(log.as_bytes());
    rest.extend_from_slice(record.body.as_ref().map_or("", |body| body.as_str()).as_bytes());
    let mut packed = Vec::new();
    add_number(&mut packed, rest.len() as i64, 4);
    packed.extend_from_slice(&rest);
    vec![record.key.id.as_str().into(), packed]
}

impl RedisStore {
    /// Calls a script at the homes of jobs, with several jobs in each call. `before`: the arguments before those of the
    /// jobs. Jobs with the same shard and the same `before` form a group. Jobs of different groups do not share a call.
    fn put(
        &self,
        script: Script,
        jobs: impl Iterator<Item = (JobKey, Packed)>,
        before: impl Fn(&JobKey) -> Vec<String>,
    ) -> Result<()> {
        let homes = self.nodes.open_homes()?;
        let mut groups: BTreeMap<(Place, Vec<String>), TakeOverBatch> = BTreeMap::new();
        let call = |(place, before): &(Place, Vec<String>), group: &TakeOverBatch| -> Result<()> {
            let mut call: Call = self.nodes.call(script, *place, &homes);
            call.cmd.arg(before).arg(&group.values);
            self.ask(*place, call).map(drop)
        };
        for (key, packed) in jobs {
            let name = (self.nodes.place(homes.home(&key)?, &key), before(&key));
            let group = groups.entry(name.clone()).or_default();
            group.jobs += 1;
            group.bytes += packed.iter().map(Vec::len).sum::<usize>();
            group.values.extend(packed);
            if group.jobs >= CHUNK / 4 || group.bytes >= BYTES {
                call(&name, group)?;
                groups.remove(&name);
            }
        }
        groups.iter().try_for_each(|(name, group)| call(name, group))
    }

    /// Returns the first shard of each node. This shard has the mark of the node.
    fn marked_places(&self) -> impl Iterator<Item = Place> + use<> {
        (0..self.nodes.count()).map(|node| Place { node, shard: 0 })
    }

    /// Waits until all shards have stored their changes as safely as the configuration asks.
    fn confirm_all(&self) -> Result<()> {
        let places = (0..self.nodes.count()).flat_map(|node| self.nodes.shards_of(node));
        self.confirm_level(self.nodes.levels().store(), places)
    }

    /// Returns the mark of a move between stores, if a node that answers has the mark.
    pub(super) fn mark_of_nodes(&self, lane: Option<usize>) -> Option<StoreMoveMark> {
        let node_of = |place: &Place| lane.is_none_or(|lane| lane == place.node);
        self.marked_places().filter(node_of).find_map(|place| {
            let call = self.nodes.nodes[place.node].plain("GET", place.shard, MARK);
            let text = self.ask(place, call).ok().and_then(|value| answer::optional_text(value).ok())?;
            StoreMoveMark::from_text(&text)
        })
    }
}

impl MovableStore for RedisStore {
    fn move_mark(&mut self) -> Result<Option<StoreMoveMark>> {
        for place in self.marked_places() {
            let call = self.nodes.nodes[place.node].plain("GET", place.shard, MARK);
            let text = answer::optional_text(self.ask(place, call)?)?;
            if let Some(mark) = StoreMoveMark::from_text(&text) {
                return Ok(Some(mark));
            }
        }
        Ok(None)
    }

    fn set_move_mark(&mut self, mark: Option<&StoreMoveMark>) -> Result<()> {
        for place in self.marked_places() {
            let node = &self.nodes.nodes[place.node];
            let call = match mark {
                None => node.plain("DEL", place.shard, MARK),
                Some(mark) => {
                    let mut call = node.plain("SET", place.shard, MARK);
                    call.cmd.arg(mark.to_text());
                    call
                }
            };
            self.ask(place, call)?;
        }
        self.confirm_all()
    }

    fn take_over(&mut self, jobs: &[StoredJob]) -> Result<()> {
        let (dead, live): (Vec<&StoredJob>, Vec<&StoredJob>) =
            jobs.iter().partition(|job| job.state == State::Dead);
        let live = live.into_iter().map(|job| match job.state {
            State::Leased => (job.key.clone(), packed(&without_lease(job))),
            _ => (job.key.clone(), packed(job)),
        });
        self.put(Script::MovePut, live, |key| vec!["absent".into(), String::new(), key.topic.to_string()])?;
        let dead = dead.into_iter().map(|job| (job.key.clone(), packed_letter(job)));
        self.put(Script::MovePutLetters, dead, |key| vec![key.topic.to_string(), key.id.to_string()])
    }

    fn take_over_records(&mut self, records: &[JobRecord]) -> Result<()> {
        let records = records.iter().map(|record| (record.key.clone(), packed_record(record)));
        self.put(Script::RecordPut, records, |key| vec![key.topic.to_string()])
    }

    fn end_take_over(&mut self) -> Result<()> {
        self.confirm_all()
    }
}
