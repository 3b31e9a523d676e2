//! The store on nodes of Redis: more than one host, more throughput. A node has shards, and a shard's keys all carry its hash
//! tag; each transition of a job is one script on one shard. A job's home is found by its name alone (rendezvous), first the
//! node, then the shard.
//!
//! Batches go out grouped: one call a shard and operation, one round trip a node.

mod answer;
mod batch;
mod bell;
mod breaker;
mod browse;
mod change;
mod drains;
mod flags;
mod flow;
mod lease;
mod letters;
mod map;
mod moving;
mod node;
mod nodes;
mod pauses;
mod promote;
mod reconcile;
mod release;
mod scout;
mod script;
mod settle;
mod standing;

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use redis::Value;

pub use bell::RedisBell;
pub use nodes::{NodeState, Nodes};

use self::answer::{array, count, number, strange};
use self::node::{Call, Failure};
use self::nodes::Place;
use self::script::Script;
use super::{
    Added, Batch, Change, Changed, CircuitView, Counts, Forecast, Letter, Letters, Moved, Opening, OwnerTag,
    Page, Permit, PermitAsk, Result, Settled, Settlement, Spread, Store, StoreError, TopicRing, View, Wanted,
    Which, exchange_apart,
};
use crate::job::{Due, JobId, JobKey, NewJob, State, TopicName};
use crate::letters::Pace;
use crate::settings;
use crate::ticket::Secret;

/// How many jobs a script touches at most, so that others have their turn at the server.
const CHUNK: usize = 256;

/// How many topics a script of a timer's looks at.
const TOPICS: usize = 100;

/// How many bytes of big bodies an answer holds.
const BYTES: usize = 4 << 20;

/// A handle to the store.
pub struct RedisStore {
    nodes: Arc<Nodes>,
    /// The node that it is about; none: all of them.
    lane: Option<usize>,
    /// Where the next lease begins, so that each shard has its turn.
    turn: usize,
    /// What this handle calls itself where it moves jobs.
    name: String,
    /// Some of its shards could not be promoted from.
    partial: bool,
    /// When it last looked for what is to be moved.
    looked_at: Option<Instant>,
    /// A look at all jobs of its node that it has begun.
    scan: Option<moving::Scan>,
    /// What [`Store::take_buried`] has not told yet.
    buried: Vec<TopicName>,
}

impl RedisStore {
    /// A handle. Rings for what there may be: whoever was here before may have died before it rang.
    pub fn open(settings: &settings::Redis) -> Result<RedisStore> {
        RedisStore::new(settings, None)
    }

    /// A handle to one node.
    pub fn open_lane(settings: &settings::Redis, lane: usize) -> Result<RedisStore> {
        RedisStore::new(settings, Some(lane))
    }

    fn new(settings: &settings::Redis, lane: Option<usize>) -> Result<RedisStore> {
        let random =
            getrandom::u64().map_err(|e| StoreError::Unavailable(format!("no random numbers: {e}")))?;
        let name = format!("{random:016x}");
        let mut store = RedisStore {
            nodes: Nodes::of(settings)?,
            lane,
            turn: 0,
            name,
            partial: false,
            looked_at: None,
            scan: None,
            buried: Vec::new(),
        };
        store.announce();
        Ok(store)
    }

    fn places(&self) -> impl Iterator<Item = Place> + use<> {
        let lane = self.lane;
        let shards: Vec<usize> = self.nodes.nodes.iter().map(|n| n.bases.len()).collect();
        let nodes =
            shards.into_iter().enumerate().filter(move |(node, _)| lane.is_none_or(|lane| lane == *node));
        nodes.flat_map(|(node, n)| (0..n).map(move |shard| Place { node, shard }))
    }

    fn call(&self, script: Script, place: Place) -> Call {
        self.nodes.nodes[place.node].call(script, place.shard)
    }

    fn ask(&self, place: Place, call: Call) -> Result<Value> {
        self.nodes.nodes[place.node].run_one(call).map_err(Failure::into_error)
    }

    fn hand_back_at(&mut self, place: Place, owner: &OwnerTag) -> Result<usize> {
        let mut sum = 0;
        loop {
            let mut call = self.call(Script::HandBack, place);
            call.cmd.arg(&owner.0).arg(CHUNK);
            let values = array(self.ask(place, call)?)?;
            let [jobs, more, buried @ ..] = values.as_slice() else { return Err(strange("an answer")) };
            sum += count(jobs)?;
            let is_through = number(more)? == 0;
            self.note_buried(buried)?;
            if is_through {
                return Ok(sum);
            }
        }
    }

    /// Takes the topics that a script names behind its answer: one for each dead letter that it made.
    fn note_buried(&mut self, topics: &[Value]) -> Result<()> {
        for topic in topics {
            self.buried.push(answer::topic(topic.clone())?);
        }
        Ok(())
    }

    /// Rings for these topics, as far as they have ready jobs; for none: for whatever there is.
    fn ring(&self, topics: &[TopicName]) {
        let call = |place| {
            let mut call = self.call(Script::Announce, place);
            topics.iter().for_each(|topic| {
                call.cmd.arg(topic.as_str());
            });
            (place, call)
        };
        for (_, answer) in self.ask_all(self.places().map(call).collect()) {
            if let Err(e) = answer {
                let level = match e {
                    // Of a node that is down others say so, and what it has is looked at when it is back.
                    StoreError::NodeDown(_) => log::Level::Debug,
                    _ => log::Level::Warn,
                };
                log::log!(level, "cannot ring: {e}");
            }
        }
    }
}

/// The host's clock.
fn now_ms() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_millis() as i64)
}

impl Store for RedisStore {
    fn add(&mut self, jobs: &[NewJob]) -> Vec<Result<Added>> {
        self.add_all(jobs)
    }

    fn get(&mut self, key: &JobKey) -> Result<Option<View>> {
        self.find(key)
    }

    fn delete(&mut self, keys: &[JobKey]) -> Vec<Result<bool>> {
        self.delete_all(keys)
    }

    fn change(&mut self, key: &JobKey, change: &Change) -> Result<Changed> {
        self.change_at_home(key, change)
    }

    fn release(&mut self, jobs: &[(JobKey, Due)]) -> Vec<Result<bool>> {
        self.release_all(jobs)
    }

    fn promote_or_spread(
        &mut self,
        limit: usize,
        spread: &[(TopicName, Duration)],
    ) -> Result<(Moved, Spread)> {
        self.promote_delivering(limit, spread)
    }

    fn lease(&mut self, wanted: &[Wanted], limit: usize, owner: Option<&OwnerTag>) -> Result<Batch> {
        self.lease_all(wanted, limit, owner)
    }

    fn settle(&mut self, settlements: &[Settlement]) -> Vec<Result<Settled>> {
        self.settle_all(settlements)
    }

    fn exchange(
        &mut self,
        settlements: &[Settlement],
        wanted: &[Wanted],
        limit: usize,
        owner: Option<&OwnerTag>,
    ) -> (Vec<Result<Settled>>, Result<Batch>) {
        let at_once = self.exchange_at_once(settlements, wanted, limit, owner);
        at_once.unwrap_or_else(|| exchange_apart(self, settlements, wanted, limit, owner))
    }

    fn hand_back(&mut self, owner: &OwnerTag) -> Result<usize> {
        // One that is away does not hold up the others; it is asked again.
        let all: Vec<Result<usize>> = self.places().map(|place| self.hand_back_at(place, owner)).collect();
        all.into_iter().sum()
    }

    fn expire(&mut self, limit: usize) -> Result<Moved> {
        let (moved, buried, _) = self.move_jobs(Script::Expire, self.places().collect(), limit, &[])?;
        self.note_buried(&buried)?;
        Ok(moved)
    }

    fn take_buried(&mut self) -> Vec<TopicName> {
        std::mem::take(&mut self.buried)
    }

    fn list(&mut self, topic: &TopicName, state: State, cursor: Option<&str>, limit: usize) -> Result<Page> {
        self.browse(topic, state, cursor, limit)
    }

    fn dead_since(&mut self, topic: &TopicName, since_ms: i64, limit: usize) -> Result<Vec<View>> {
        self.latest_dead(topic, since_ms, limit)
    }

    fn redrive(&mut self, topic: &TopicName, which: &Which, limit: usize, pace: Pace) -> Result<usize> {
        self.redrive_some(topic, which, limit, pace)
    }

    fn purge(&mut self, topic: &TopicName, state: State, limit: usize) -> Result<usize> {
        let mut sum = 0;
        for place in self.places() {
            while sum < limit {
                let mut call = self.call(Script::Purge, place);
                call.cmd.arg(topic.as_str()).arg(state as u8).arg(CHUNK.min(limit - sum));
                let values = array(self.ask(place, call)?)?;
                let [gone, more] = values.as_slice() else { return Err(strange("an answer")) };
                sum += count(gone)?;
                if number(more)? == 0 {
                    break;
                }
            }
        }
        Ok(sum)
    }

    fn letters(&mut self, topic: &TopicName, ids: &[JobId], what: Letters) -> Result<usize> {
        self.letters_of(topic, ids, what)
    }

    fn purge_letters(&mut self, topic: &TopicName, letters: &[Letter]) -> Result<usize> {
        self.remove_letters(topic, letters)
    }

    fn retire(&mut self, topic: &TopicName, age: Duration, limit: usize) -> Result<usize> {
        self.retire_at(topic, age, limit)
    }

    fn counts(&mut self) -> Result<Vec<Counts>> {
        self.count()
    }

    fn pause(&mut self, topic: &TopicName, paused: bool) -> Result<()> {
        self.say_paused(topic, paused)
    }

    fn forecast(&mut self, topics: &[TopicName], edges_ms: &[i64]) -> Result<Forecast> {
        self.foresee(topics, edges_ms)
    }

    fn paused(&mut self) -> Result<Vec<TopicName>> {
        self.paused_topics()
    }

    fn permits(&mut self, owner: &OwnerTag, asks: &[PermitAsk]) -> Vec<Result<Permit>> {
        self.ask_permits(owner, asks)
    }

    fn open_circuit(&mut self, opening: &Opening) -> Result<bool> {
        self.say_open(opening)
    }

    fn close_circuit(&mut self, topic: &TopicName) -> Result<bool> {
        self.say_closed(topic)
    }

    fn circuits(&mut self) -> Result<Vec<CircuitView>> {
        self.circuits_there()
    }

    fn secret(&mut self, lane: usize) -> Result<Secret> {
        self.secret_of(lane)
    }

    fn health(&mut self) -> Result<()> {
        let mut failed = Ok(());
        for node in self.lane.map_or(0..self.nodes.count(), |lane| lane..lane + 1) {
            match self.nodes.nodes[node].ping() {
                // Adds go round a node that is down.
                Ok(()) => return Ok(()),
                Err(e) => failed = Err(e),
            }
        }
        failed
    }

    fn inspect(&mut self) -> Result<()> {
        Ok(())
    }

    fn pass_on(&mut self, topics: &[TopicName]) {
        self.ring(topics);
    }

    fn give_back(&mut self, rings: &[TopicRing]) -> Result<()> {
        let Some(node) = self.lane else { return Ok(()) };
        let call = |ring: &TopicRing| {
            let place = Place { node, shard: ring.shard };
            let mut call = self.call(Script::GiveBack, place);
            call.cmd.arg(ring.topic.as_str()).arg(&ring.number);
            (place, call)
        };
        let answers = self.ask_all(rings.iter().map(call).collect());
        answers.into_iter().try_for_each(|(_, answer)| answer.map(drop))
    }

    fn announce(&mut self) {
        self.ring(&[]);
    }

    fn maintain(&mut self) -> Result<Option<Duration>> {
        let nodes = self.lane.map_or(0..self.nodes.count(), |lane| lane..lane + 1);
        let again = nodes.map(|node| self.move_away(node)).collect::<Result<Vec<_>>>()?;
        Ok(again.into_iter().min())
    }
}

/// How long a bell's call waits before it is made again: a connection that is dead without a word is noticed by then.
const BELL_ROUND: Duration = Duration::from_secs(10);
