//! dq-consume: leases ready jobs, calls their callbacks, settles what came of it.
//!
//! Each lane of the store has a thread that talks to it (`lane`), one more makes the calls (`workers`); the main loop decides. While
//! calls run, outcomes gather, and are settled together. A lease never holds more jobs than there are free workers, so that
//! none waits here while another consumer is idle.

mod counter;
mod ending;
mod exchange;
mod held_back;
mod lane;
mod limits;
mod passing;
mod workers;

use std::collections::HashMap;
use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};

use self::counter::Counter;
use self::ending::{receiver_failed, settlement};
use self::lane::{Inbox, Lane, News, Order};
use self::limits::Limits;
use self::workers::{Finished, Workers};
use crate::fair::Fair;
use crate::flow::Evidence;
use crate::job::{Priority, TopicName};
use crate::process::{Owner, wait_readable};
use crate::role::{Context, Drain, LiveTopics};
use crate::settings::Store;
use crate::store::{BellKind, Lanes, Leased, OwnerTag, Ring, Token};
use crate::topic::Topic;

/// How much longer than a callback may take its lease holds: for names that are slow to resolve, and for settling.
const LEASE_MARGIN: Duration = Duration::from_secs(15);

/// How long an exchange with the store may take.
const EXCHANGE: Duration = Duration::from_secs(15);

/// How long before the end of a drain the leases of callbacks that still run are handed back.
const LAST_CALL: Duration = Duration::from_millis(500);

/// Runs the role.
pub fn run(mut context: Context) -> Result<()> {
    let mut consumer = Consumer::start(&mut context)?;
    context.ready()?;
    consumer.run(&mut context)
}

/// A callback that runs.
struct Flight {
    leased: Leased,
    /// As it was when it was called.
    topic: Arc<Topic>,
    /// The lane that it was leased from.
    lane: usize,
    /// When it should have ended.
    by: Instant,
}

struct Consumer {
    topics: LiveTopics,
    /// None: nothing is held under it any more.
    owner: Option<Owner>,
    counters: Vec<Counter>,
    inbox: Arc<Inbox>,
    told: UnixStream,
    workers: Workers,
    /// The jobs whose callbacks run, by their leases.
    in_flight: HashMap<Token, Flight>,
    fair: Fair,
    limits: Limits,
    evidence: Evidence,
    /// The lane that grants a topic's permits, and whose word counts on its circuit.
    lanes: Lanes,
    /// It drains: no new work.
    drains: bool,
    /// Where receivers that answer later find the HTTP API.
    public_url: Option<String>,
}

impl Consumer {
    fn start(context: &mut Context) -> Result<Consumer> {
        let settings = Arc::clone(&context.settings);
        let workers = Workers::new(&settings, context.zone()?, context.counters.clone())?;
        let owner = Owner::claim(&settings.run_dir).context("cannot become an owner of leases")?;
        let topics = context.topics()?;
        let (inbox, told) = Inbox::new()?;
        let mut counters = Vec::new();
        let lanes = context.lanes()?;
        for number in 0..lanes.count() {
            let bell = context.bell(number, BellKind::Push, owner.tag())?;
            let tag = OwnerTag(owner.tag().to_owned());
            let lane = Lane::start(number, context.lane(number)?, bell, tag, &inbox)?;
            counters.push(Counter::new(lane));
        }
        let now = Instant::now();
        let mut limits = Limits::new(now, matches!(settings.store, Store::Redis(_)));
        limits.serve(topics.now(), now, |_| 0);
        Ok(Consumer {
            fair: Fair::new(lanes.count(), served(&topics)),
            limits,
            evidence: Evidence::default(),
            lanes,
            topics,
            owner: Some(owner),
            counters,
            inbox,
            told,
            workers,
            in_flight: HashMap::new(),
            drains: false,
            public_url: settings.http.public_url.clone(),
        })
    }

    fn run(&mut self, context: &mut Context) -> Result<()> {
        loop {
            self.collect();
            self.hear()?;
            if let Some(drain) = context.drain() {
                if !std::mem::replace(&mut self.drains, true) {
                    // Whoever else waits may hear the bells.
                    self.counters.iter().for_each(|counter| counter.lane.order(Order::Deaf));
                }
                if self.is_through() || drain.until.is_some_and(|at| at <= Instant::now() + LAST_CALL) {
                    return self.end(drain);
                }
            }
            self.ask_permits();
            let now = Instant::now();
            self.counters.iter_mut().filter(|_| !self.drains).for_each(|counter| counter.pass_on_again(now));
            for number in 0..self.counters.len() {
                self.exchange(number);
            }
            self.wait(context)?;
        }
    }

    /// Whether a drain has nothing more to do.
    fn is_through(&self) -> bool {
        let settled = self.in_flight.is_empty() && self.counters.iter().all(Counter::is_through);
        settled && self.limits.is_through()
    }

    /// How many more callbacks may be begun: workers that are free, and that no lease under way may need.
    fn free(&self) -> u32 {
        let reserved = self.counters.iter().filter_map(|c| c.busy).map(|(_, jobs)| jobs).sum();
        self.workers.free().saturating_sub(reserved)
    }

    /// Waits for a callback's end, a lane, or the master; when the store failed, for its next try.
    fn wait(&mut self, context: &mut Context) -> Result<()> {
        let (now, free) = (Instant::now(), self.free() > 0 && !self.drains);
        // (During an exchange nothing is changed: what it brings may change it back.)
        for counter in self.counters.iter_mut().filter(|counter| counter.busy.is_none()) {
            // Who knows of work need not be told of any: a ring is better heard by others.
            counter.knows_until = counter.knows_until.filter(|until| *until > now);
            let could = free && counter.again.is_none() && !counter.look && counter.knows_until.is_none();
            if std::mem::replace(&mut counter.listens, could) != could {
                counter.lane.order(Order::Listen(could));
            }
        }
        let slow = self.counters.iter().filter_map(|c| c.busy).map(|(since, _)| since + EXCHANGE);
        context.workers_by(self.in_flight.values().map(|flight| flight.by).chain(slow).min());
        let drain_ends = context.drain().and_then(|Drain { until, .. }| until?.checked_sub(LAST_CALL));
        let permits = self.limits.next(|topic| self.wants(topic));
        let probes = self.counters.iter().filter_map(|c| c.lets_through);
        let idle = self.counters.iter().filter(|c| c.busy.is_none());
        let gathered = idle.flat_map(|c| [c.gathers_until(), c.knows_until]).flatten();
        let until = self.counters.iter().filter_map(|c| c.again).chain(drain_ends);
        let passes = self.counters.iter().filter(|_| !self.drains).filter_map(Counter::passes_on_at);
        let until = until.chain(permits).chain(probes).chain(passes).chain(gathered).min();
        let fds: Vec<BorrowedFd<'_>> =
            [self.workers.as_fd(), self.told.as_fd()].into_iter().chain(self.topics.fd()).collect();
        let changed = context.wait(&fds, until)?.get(2).is_some_and(|readable| *readable);
        if changed && self.topics.look().is_some() {
            self.serve();
        }
        let mut buffer = [0; 64];
        while let Ok(n) = (&self.told).read(&mut buffer)
            && n == buffer.len()
        {}
        Ok(())
    }

    /// Serves the topics as they are now. Of new ones there may be ready jobs.
    fn serve(&mut self) {
        let names = served(&self.topics);
        log::info!("{} topics are served", names.len());
        self.limits.serve(self.topics.now(), Instant::now(), |topic| self.fair.in_flight(topic));
        self.evidence.keep(|topic| self.topics.now().get(topic.as_str()).is_some());
        for counter in &mut self.counters {
            counter.look_everywhere();
        }
        self.fair.serve(names);
    }

    /// Takes the outcomes of the callbacks that ended.
    fn collect(&mut self) {
        let finished = self.workers.finished();
        if finished.is_empty() {
            return;
        }
        for Finished { token, verdict, attempt } in finished {
            let Some(flight) = self.in_flight.remove(&token) else { continue };
            self.fair.ended(&flight.leased.key.topic);
            self.limits.ended(&flight.leased.key.topic, true);
            self.learn(&flight, receiver_failed(&verdict), &attempt.error);
            let Flight { leased, topic, lane, .. } = flight;
            let settlement = settlement(&topic, leased, token, &verdict, attempt);
            let counter = &mut self.counters[lane];
            counter.flying -= 1;
            counter.owe(settlement);
        }
        // Ready jobs of a topic that had its share of workers may be leased now.
        self.look_where_more_is();
    }

    fn look_where_more_is(&mut self) {
        let free = self.free();
        for (number, counter) in self.counters.iter_mut().enumerate() {
            counter.look |= self.fair.more(number, free, |topic| self.limits.allowed(topic));
        }
    }

    /// Takes what the lanes have told.
    fn hear(&mut self) -> Result<()> {
        for (number, news) in self.inbox.take() {
            match news {
                News::Rang(rings) => self.rang(number, rings),
                // As if they had come back.
                News::Kept(rings) => self.counters[number].passing.keep(rings, Instant::now()),
                News::Exchanged { unsettled, batch, failed } => {
                    self.exchanged(number, unsettled, batch, failed)?
                }
                News::Secret(secret) => self.counters[number].secret = Some(secret),
                News::Deaf => self.counters[number].deaf = true,
                News::HandedBack(Ok(_)) => self.counters[number].handed_back = true,
                // The timers do it, as soon as this process is gone.
                News::HandedBack(Err(e)) => return Err(e).context("cannot hand back"),
                News::Permitted { asks, permits } => self.permitted(&asks, permits),
                News::Opened { opening, is_news } => self.note_opened(number, &opening, is_news),
                News::Closed { topic, is_news } => self.note_closed(number, &topic, is_news),
                News::Ended(e) => return Err(e),
            }
        }
        Ok(())
    }

    /// Looks for what it rang for; gives back what is for other hosts.
    fn rang(&mut self, number: usize, rings: Vec<Ring>) {
        let counter = &mut self.counters[number];
        let mut for_others = Vec::new();
        for ring in rings {
            match ring {
                Ring::Of(ring) if self.topics.now().get(ring.topic.as_str()).is_none() => {
                    for_others.push(ring)
                }
                Ring::Of(ring) => {
                    self.fair.rang(number, &ring.topic);
                    counter.rung.insert(ring.topic);
                    (counter.look, counter.rang) = (true, true);
                }
                Ring::All => {
                    counter.look_everywhere();
                    counter.rang = true;
                }
            }
        }
        let back = counter.passing.heard(for_others, Instant::now());
        counter.give_back(back);
    }

    /// Gives back what is still held, and ends.
    fn end(&mut self, drain: Drain) -> Result<()> {
        if self.is_through() {
            if let Some(Err(e)) = self.owner.take().map(Owner::retire) {
                log::warn!("cannot remove the owner's file: {e}");
            }
            return Ok(());
        }
        let left = self.in_flight.len();
        log::warn!("{left} callbacks still run at the end of the drain: their jobs are handed back");
        // Each lane does so by itself; one that does not in time leaves it to the timers.
        self.counters.iter().for_each(|counter| counter.lane.order(Order::HandBack));
        let until = drain.until.unwrap_or_else(Instant::now) + LAST_CALL;
        while self.counters.iter().any(|c| !c.handed_back) && Instant::now() < until {
            wait_readable(&[self.told.as_fd()], Some(until))?;
            let _ = (&self.told).read(&mut [0; 64]);
            for (number, news) in self.inbox.take() {
                if let News::HandedBack(handed_back) = news {
                    handed_back.context("cannot hand back")?;
                    self.counters[number].handed_back = true;
                }
            }
        }
        Ok(())
    }
}

/// The topics whose jobs are delivered.
fn served(topics: &LiveTopics) -> Vec<(TopicName, Priority)> {
    let topics = topics.now();
    let served = topics.iter().filter(|topic| topics.is_delivered(topic.name.as_str()));
    served.map(|topic| (topic.name.clone(), topic.priority)).collect()
}
