//! dq-consume: leases ready jobs, calls their callbacks, settles what came of it.
//!
//! Each lane of the store has a thread that talks to it (`lane`), and workers make the calls; the main loop decides. While
//! calls run, outcomes gather, and are settled together. A lease never holds more jobs than there are free workers, so that
//! none waits here while another consumer is idle.

mod lane;
mod outcome;
mod workers;

use std::collections::HashMap;
use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};

use self::lane::{Inbox, Lane, News, Order};
use self::workers::{Finished, Workers};
use crate::callback::{Caller, Rules};
use crate::fair::Fair;
use crate::job::TopicName;
use crate::process::{Owner, wait_readable};
use crate::role::{Context, Drain, LiveTopics, Trouble};
use crate::store::{Batch, BellKind, Leased, OwnerTag, Settlement, StoreError, Token, Wanted};
use crate::ticket::Secret;
use crate::topic::{Mode, Topic};

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

/// What is known of a lane.
struct Counter {
    lane: Lane,
    /// Outcomes that the store does not have yet.
    unsettled: Vec<Settlement>,
    /// Whether there may be ready jobs that a free worker could take.
    look: bool,
    /// An exchange is under way, since then; and it may bring so many jobs.
    busy: Option<(Instant, u32)>,
    /// The topics that it was asked for, as they were then.
    asked: HashMap<TopicName, Arc<Topic>>,
    /// When it is tried again, after the store failed.
    again: Option<Instant>,
    trouble: Trouble,
    /// The topics that have ready jobs there, and how many.
    left: Vec<(TopicName, u64)>,
    listens: bool,
    /// Its bell is down.
    deaf: bool,
    handed_back: bool,
    /// What tickets for its leases are signed with.
    secret: Option<Secret>,
}

impl Counter {
    /// Whether a drain has nothing more to do there.
    fn is_through(&self) -> bool {
        self.unsettled.is_empty() && self.busy.is_none() && self.deaf
    }
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
    /// It drains: no new work.
    drains: bool,
    /// Where receivers that answer later find the HTTP API.
    public_url: Option<String>,
}

impl Consumer {
    fn start(context: &mut Context) -> Result<Consumer> {
        let settings = Arc::clone(&context.settings);
        let concurrency = settings.consume.concurrency;
        let caller = Caller::new(concurrency, Rules::new(&settings.callback), context.zone()?);
        let owner = Owner::claim(&settings.run_dir).context("cannot become an owner of leases")?;
        let topics = context.topics()?;
        let (inbox, told) = Inbox::new()?;
        let mut counters = Vec::new();
        for number in 0..context.lanes()?.count() {
            let bell = context.bell(number, BellKind::Push, owner.tag())?;
            let tag = OwnerTag(owner.tag().to_owned());
            let lane = Lane::start(number, context.lane(number)?, bell, tag, &inbox)?;
            counters.push(Counter {
                lane,
                unsettled: Vec::new(),
                look: true,
                busy: None,
                asked: HashMap::new(),
                again: None,
                trouble: Trouble::default(),
                left: Vec::new(),
                listens: true,
                deaf: false,
                handed_back: false,
                secret: None,
            });
        }
        Ok(Consumer {
            fair: Fair::new(served(&topics)),
            topics,
            owner: Some(owner),
            counters,
            inbox,
            told,
            workers: Workers::new(caller, context.counters.clone(), concurrency)?,
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
                let done = self.in_flight.is_empty() && self.counters.iter().all(Counter::is_through);
                if done || drain.until.is_some_and(|at| at <= Instant::now() + LAST_CALL) {
                    return self.end(drain);
                }
            }
            for number in 0..self.counters.len() {
                self.exchange(number);
            }
            self.wait(context)?;
        }
    }

    /// How many more callbacks may be begun: workers that are free, and that no lease under way may need.
    fn free(&self) -> u32 {
        let reserved = self.counters.iter().filter_map(|c| c.busy).map(|(_, jobs)| jobs).sum();
        self.workers.free().saturating_sub(reserved)
    }

    /// Waits for a callback's end, a lane, or the master; when the store failed, for its next try.
    fn wait(&mut self, context: &mut Context) -> Result<()> {
        let free = self.free() > 0 && !self.drains;
        for counter in &mut self.counters {
            let could = free && counter.again.is_none();
            if std::mem::replace(&mut counter.listens, could) != could {
                counter.lane.order(Order::Listen(could));
            }
        }
        let slow = self.counters.iter().filter_map(|c| c.busy).map(|(since, _)| since + EXCHANGE);
        context.workers_by(self.in_flight.values().map(|flight| flight.by).chain(slow).min());
        let drain_ends = context.drain().and_then(|Drain { until, .. }| until?.checked_sub(LAST_CALL));
        let until = self.counters.iter().filter_map(|c| c.again).chain(drain_ends).min();
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
        for counter in &mut self.counters {
            counter.left.retain(|(topic, _)| self.topics.now().get(topic.as_str()).is_some());
            counter.look = true;
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
            let Some(Flight { leased, topic, lane, .. }) = self.in_flight.remove(&token) else { continue };
            self.fair.ended(&leased.key.topic);
            let settlement = outcome::settlement(&topic, leased, token, &verdict, attempt);
            self.counters[lane].unsettled.push(settlement);
        }
        // Ready jobs of a topic that had its share of workers may be leased now.
        self.look_where_more_is();
    }

    fn look_where_more_is(&mut self) {
        if self.fair.more(self.free()) {
            self.counters.iter_mut().filter(|c| !c.left.is_empty()).for_each(|c| c.look = true);
        }
    }

    /// Orders what is to be done on a lane, unless it is at something.
    fn exchange(&mut self, number: usize) {
        let (now, free, share) = (Instant::now(), self.free(), self.counters.len() as u32);
        let counter = &mut self.counters[number];
        // A moment that has come is not waited for any more, whatever may be done now.
        counter.again = counter.again.filter(|at| *at > now);
        if counter.busy.is_some() || counter.again.is_some() {
            return;
        }
        let leases = counter.look && !self.drains && free > 0;
        if counter.unsettled.is_empty() && !leases {
            return;
        }
        let count = counter.unsettled.len().min(lane::BATCH);
        let settle: Vec<Settlement> = counter.unsettled.drain(..count).collect();
        // A lane that hangs must not hold all workers that are free.
        let limit = if leases { free.div_ceil(share).min(lane::BATCH as u32) } else { 0 };
        let quotas = if leases { self.fair.plan(limit) } else { Vec::new() };
        counter.asked.clear();
        let mut wanted = Vec::new();
        for quota in quotas {
            let Some(topic) = self.topics.now().get(quota.topic.as_str()) else { continue };
            wanted.push(Wanted {
                topic: quota.topic.clone(),
                max: quota.max,
                hold: topic.timeout + LEASE_MARGIN,
                max_attempts: topic.max_attempts,
            });
            counter.asked.insert(quota.topic, Arc::clone(topic));
        }
        counter.busy = Some((now, limit));
        counter.look &= !leases;
        counter.lane.order(Order::Exchange { settle, wanted, limit: limit as usize });
    }

    /// Takes what the lanes have told.
    fn hear(&mut self) -> Result<()> {
        for (number, news) in self.inbox.take() {
            match news {
                News::Rang => self.counters[number].look = true,
                News::Exchanged { unsettled, batch, failed } => {
                    self.exchanged(number, unsettled, batch, failed)?
                }
                News::Secret(secret) => self.counters[number].secret = Some(secret),
                News::Deaf => self.counters[number].deaf = true,
                News::HandedBack(Ok(_)) => self.counters[number].handed_back = true,
                // The timers do it, as soon as this process is gone.
                News::HandedBack(Err(e)) => return Err(e).context("cannot hand back"),
                News::Ended(e) => return Err(e),
            }
        }
        Ok(())
    }

    fn exchanged(
        &mut self,
        number: usize,
        mut unsettled: Vec<Settlement>,
        batch: Batch,
        failed: Option<StoreError>,
    ) -> Result<()> {
        let counter = &mut self.counters[number];
        let (_, limit) = counter.busy.take().unwrap_or((Instant::now(), 0));
        counter.unsettled.append(&mut unsettled);
        match failed {
            None => counter.trouble.over(),
            Some(e @ StoreError::Gone(_)) => return Err(e.into()),
            Some(e) => {
                counter.again = Some(match e {
                    StoreError::Settling(_) => counter.trouble.waits(&e),
                    _ => counter.trouble.again_at(&format_args!("cannot lease or settle: {e}")),
                });
                // What was to be leased is looked for again.
                counter.look = true;
                return Ok(());
            }
        }
        if limit == 0 {
            return Ok(());
        }
        let brought = batch.jobs.len();
        for leased in batch.jobs {
            // Also when it has changed or gone meanwhile: the lease is as it was then.
            let Some(topic) = counter.asked.get(&leased.key.topic).map(Arc::clone) else { continue };
            self.fair.began(&leased.key.topic);
            let (base, secret) = (self.public_url.as_deref(), counter.secret.as_ref());
            self.workers.call(&topic, &leased, outcome::ack_url(base, secret, &topic, &leased));
            let by = Instant::now() + topic.timeout + LEASE_MARGIN;
            self.in_flight.insert(leased.token.clone(), Flight { leased, topic, lane: number, by });
        }
        let served = |(topic, _): &(TopicName, u64)| self.topics.now().get(topic.as_str()).is_some();
        self.counters[number].left = batch.left.into_iter().filter(served).collect();
        let mut left: HashMap<TopicName, u64> = HashMap::new();
        for (topic, n) in self.counters.iter().flat_map(|c| &c.left) {
            *left.entry(topic.clone()).or_default() += n;
        }
        self.fair.left(left);
        let more = self.fair.more(self.free());
        let counter = &mut self.counters[number];
        // What is left although it was asked for is not for the asking: the next bell or callback brings the next try.
        counter.look |= brought > 0 && more && !counter.left.is_empty();
        // What was not asked for may be for others; and what this one may not take.
        let asked = |topic: &TopicName| counter.asked.contains_key(topic);
        let topics: Vec<TopicName> =
            counter.left.iter().map(|(topic, _)| topic).filter(|t| !asked(t)).cloned().collect();
        let rest = !more && !counter.left.is_empty();
        if !topics.is_empty() || rest {
            counter.lane.order(Order::PassOn { topics, rest });
        }
        Ok(())
    }

    /// Gives back what is still held, and ends.
    fn end(&mut self, drain: Drain) -> Result<()> {
        if self.in_flight.is_empty() && self.counters.iter().all(Counter::is_through) {
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
fn served(topics: &LiveTopics) -> Vec<TopicName> {
    topics.now().iter().filter(|t| t.mode == Mode::Push).map(|t| t.name.clone()).collect()
}
