//! The store on nodes of Redis: for more than one host, and for more throughput. A node has shards. All keys of a shard
//! carry its hash tag. Each transition of a job is one script on one shard. Only the name of a job decides where its
//! home is (rendezvous hashing): first the node, then the shard.
//!
//! Calls are sent in batches: one call for each shard and operation, one round trip for each node.

mod answer;
mod batch;
mod bell;
mod breaker;
mod browse;
mod bulk;
mod carry;
mod change;
mod flags;
mod flow;
mod homes;
mod jobs;
mod lease;
mod lease_token;
mod letters;
mod levels;
mod move_progress;
mod mover;
mod node;
mod nodes;
mod outbox;
mod outbox_entry;
mod outbox_pass;
mod outbox_plan;
mod pauses;
mod promote;
mod records;
mod round;
mod script;
mod script_text;
mod set;
mod settle;
mod shard_clock;
mod spool_sender;
mod states;
mod table_change;
mod tables;
mod take_back;
mod take_over;
mod topic_levels;

use crate::Maintenance;
use crate::records::trim_when_due;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

pub use bell::RedisBell;
pub use move_progress::{MoveProgress, MoveSummary, SetChangeRequest};
pub use nodes::Nodes;
pub use spool_sender::SpoolSender;
pub use states::{NodeMembership, NodeSetView, NodeState};
pub use table_change::RedisTableChange;
pub use tables::RedisTables;

use self::answer::unexpected;
use self::node::Call;
use self::nodes::{FRESH, Place};
use self::outbox::Outboxes;
use self::script::Script;
use self::take_back::UnansweredLease;
use super::{Result, Spool, StoreError, TopicRing};
use model::job::TopicName;
use model::settings;
use model::ticket::TicketSecret;

/// The maximum number of jobs that one call of a script touches, so that the script does not occupy the server for
/// long.
const CHUNK: usize = 256;

/// How many topics one call of a timer's script looks at.
const TOPICS: usize = 100;

/// About how many bytes of big bodies one answer may have.
const BYTES: usize = 4 << 20;

/// A handle to the store.
pub struct RedisStore {
    nodes: Arc<Nodes>,
    /// The only node that this handle uses. None: the handle uses all nodes.
    lane: Option<usize>,
    /// The shard that the next lease call asks first. It is another shard each time, so that no shard is always last.
    turn: usize,
    /// Whether the last promotion failed on some of the shards.
    partial: bool,
    /// The topics of new dead letters. [`take_dead_letter_topics`](crate::TimerWork::take_dead_letter_topics) has not
    /// returned them yet.
    dead_topics: Vec<TopicName>,
    /// Lease calls that got no answer: at most one for each shard.
    unanswered: Vec<UnansweredLease>,
    /// What this handle knows of outboxes.
    outboxes: Outboxes,
    /// When to check again whether the shards of a node agree on the paused topics.
    agree_at: Option<Instant>,
    /// When to look for old records again. None: this handle has not looked yet.
    trim_at: Option<Instant>,
    /// Where changes wait while the home of their job cannot be used. None: such changes are refused.
    spool: Option<Spool>,
}

impl RedisStore {
    /// Opens a handle to all nodes. Rings all bells, because a process may have taken a ring, and died before it leased
    /// the jobs or passed the ring on.
    pub fn open(settings: &settings::RedisSettings) -> Result<RedisStore> {
        let store = RedisStore::open_marked(settings)?;
        store.refuse_mark()?;
        Ok(store)
    }

    /// Opens a handle to all nodes, even if the nodes have the mark of a move.
    pub fn open_marked(settings: &settings::RedisSettings) -> Result<RedisStore> {
        let spool = Spool::from_settings(settings)?;
        Ok(RedisStore { spool, ..RedisStore::new(settings, None)? })
    }

    /// Opens a handle to one node.
    pub fn open_lane(settings: &settings::RedisSettings, lane: usize) -> Result<RedisStore> {
        let store = RedisStore::new(settings, Some(lane))?;
        store.refuse_mark()?;
        Ok(store)
    }

    /// Refuses nodes if their jobs are being moved to or from another store, or were moved to another store. A node
    /// that does not answer is not refused.
    fn refuse_mark(&self) -> Result<()> {
        match self.mark_of_nodes(self.lane) {
            Some(mark) => Err(StoreError::Unfit(mark.to_string())),
            None => Ok(()),
        }
    }

    fn new(settings: &settings::RedisSettings, lane: Option<usize>) -> Result<RedisStore> {
        let (nodes, dead_topics, unanswered) = (Nodes::from_settings(settings)?, Vec::new(), Vec::new());
        let mut store = RedisStore {
            nodes,
            lane,
            turn: 0,
            partial: false,
            dead_topics,
            unanswered,
            outboxes: Outboxes::new()?,
            agree_at: None,
            trim_at: None,
            spool: None,
        };
        if let Err(e @ StoreError::Unfit(_)) = store.nodes.is_fit() {
            return Err(e);
        }
        store.nodes.keep_jobs(lane)?;
        store.announce();
        Ok(store)
    }

    /// Returns the shards that this handle uses: those of its node, or those of all nodes that have jobs.
    fn places(&self) -> impl Iterator<Item = Place> + use<> {
        let known = self.nodes.known();
        let has = |node: &usize| match (self.lane, &known) {
            (Some(lane), _) => lane == *node,
            (None, known) => known.as_ref().is_none_or(|homes| homes.has(*node)),
        };
        let places = (0..self.nodes.count()).filter(has).flat_map(|node| self.nodes.shards_of(node));
        places.collect::<Vec<_>>().into_iter()
    }

    /// Returns the shards as [`RedisStore::places`] does, according to the newest set. This function is for calls that
    /// look at all shards.
    fn all_places(&self) -> impl Iterator<Item = Place> + use<> {
        if self.lane.is_none()
            && self.nodes.count() > 1
            && let Err(e) = self.nodes.learn(None)
        {
            log::debug!("{e}");
        }
        self.places()
    }

    /// Runs `act` on each shard of this handle. If there is a new set of nodes afterwards, also runs `act` on the
    /// shards that have joined.
    fn at_each_place(&self, mut act: impl FnMut(Place) -> Result<()>) -> Result<()> {
        let mut done = Vec::new();
        loop {
            let homes = self.nodes.open_homes()?;
            let left: Vec<Place> = self.places().filter(|place| !done.contains(place)).collect();
            for place in left {
                act(place)?;
                done.push(place);
            }
            if self.nodes.open_homes()?.set == homes.set {
                return Ok(());
            }
        }
    }

    /// Makes a call on a shard, with the set of nodes that this process knows.
    fn call(&self, script: Script, place: Place) -> Call {
        let known = self.nodes.known();
        self.nodes.nodes[place.node].call(script, place.shard, known.as_ref().map(|homes| &homes.set))
    }

    /// Rings for each of these topics that has ready jobs. Without topics: rings all bells.
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
                    // Other code reports a node that is down. When the node is back, dq looks for jobs there without a
                    // ring.
                    StoreError::NodeDown(_) => log::Level::Debug,
                    _ => log::Level::Warn,
                };
                log::log!(level, "cannot ring the bells of a shard: {e}");
            }
        }
    }
}

/// Returns the time of the host's clock, Unix milliseconds.
fn now_ms() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_millis() as i64)
}

impl Maintenance for RedisStore {
    fn secret(&mut self, node: usize) -> Result<TicketSecret> {
        let mut random = [0; 32];
        getrandom::fill(&mut random)
            .map_err(|e| StoreError::Unavailable(format!("no random numbers: {e}")))?;
        let place = Place { node, shard: 0 };
        let mut call = self.call(Script::Secret, place);
        call.cmd.arg(&random[..]);
        let secret = answer::bytes(self.ask(place, call)?)?;
        TicketSecret::from_bytes(&secret).ok_or_else(|| unexpected("the secret of tickets"))
    }

    fn health(&mut self) -> Result<()> {
        let mut failed = Ok(());
        for node in self.lane.map_or(0..self.nodes.count(), |lane| lane..lane + 1) {
            let asked = &self.nodes.nodes[node];
            match asked.ping().and_then(|()| asked.is_usable()) {
                // One node that can be used is enough, because a node that is down delays only its own jobs.
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

    fn ring_pull(&mut self, topics: &[TopicName]) -> Result<()> {
        let call = |place| {
            let mut call = self.call(Script::RingPull, place);
            topics.iter().for_each(|topic| {
                call.cmd.arg(topic.as_str());
            });
            (place, call)
        };
        let answers = self.ask_all(self.places().map(call).collect());
        answers.into_iter().try_for_each(|(_, answer)| answer.map(drop))
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
        if self.nodes.count() > 1 {
            // Nodes that did not answer before learn of pauses here, and this process learns of a change of the set.
            self.nodes.learn(Instant::now().checked_sub(FRESH / 2))?;
        }
        if let Some(lane) = self.lane.filter(|lane| self.nodes.nodes[*lane].bases.len() > 1)
            && self.agree_at.is_none_or(|at| at <= Instant::now())
        {
            self.agree_at = Some(Instant::now() + AGREE_EVERY);
            if let Err(e) = self.nodes.agree_on_shards(lane) {
                log::debug!("the shards of a node may differ in their paused topics: {e}");
            }
        }
        let again = trim_when_due(self, |store| &mut store.trim_at)?;
        Ok(Some(if self.nodes.count() > 1 { again.min(FRESH) } else { again }))
    }
}

/// How often the shards of a node are checked for pauses that some of them missed.
const AGREE_EVERY: Duration = Duration::from_secs(30);

/// How long a bell's call waits before it is made again. A connection that died silently is noticed within twice this
/// time.
const BELL_ROUND: Duration = Duration::from_secs(10);
