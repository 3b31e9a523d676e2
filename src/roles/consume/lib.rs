//! dq-consume: leases ready jobs, calls their callbacks, and settles the leases.
//!
//! Each lane of the store has a thread that talks to it (`lane`), and one thread makes all calls (`workers`); the main
//! loop decides. While calls run, their outcomes gather and are settled together. A lease never takes more jobs than
//! there are free workers, so that no job waits here while another consumer is idle.
//!
//! It never stores or promotes a job. Begin with [`run`], then `lane_state` (the decisions for one lane).

mod ending;
mod exchange;
mod held_back;
mod lane;
mod lane_state;
mod limits;
mod passed_topics;
mod workers;

use std::collections::HashMap;
use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};

use self::ending::{receiver_failed, settlement};
use self::lane::{Inbox, Lane, LaneEvent, LaneOrder};
use self::lane_state::LaneState;
use self::limits::Limits;
use self::workers::{FinishedCallback, Workers};
use host::{Owner, wait_readable};
use model::fair::Fair;
use model::flow::Evidence;
use model::job::{Priority, TopicName};
use model::settings::StoreSettings;
use model::topic::Topic;
use role::{Context, Drain, LiveTopics};
use store::{BellKind, Lanes, Leased, OwnerTag, Ring, Token};

/// How much longer a lease holds than its callback may take: for slow name resolution, and for settling.
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
struct RunningCallback {
    leased: Leased,
    /// The topic as it was when the callback began.
    topic: Arc<Topic>,
    /// The lane that the job was leased from.
    lane: usize,
    /// When the callback should have ended.
    by: Instant,
}

struct Consumer {
    topics: LiveTopics,
    /// `None` once no leases are held in its name.
    owner: Option<Owner>,
    counters: Vec<LaneState>,
    inbox: Arc<Inbox>,
    told: UnixStream,
    workers: Workers,
    /// The jobs whose callbacks run, by their leases.
    in_flight: HashMap<Token, RunningCallback>,
    fair: Fair,
    limits: Limits,
    evidence: Evidence,
    /// Tells the home of a topic: the lane that grants its permits, and whose answers about its circuit are logged.
    lanes: Lanes,
    /// The process drains and takes no new work.
    drains: bool,
    /// The address under which receivers that answer later reach the HTTP API.
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
            counters.push(LaneState::new(lane));
        }
        let now = Instant::now();
        let mut limits = Limits::new(now, matches!(settings.store, StoreSettings::Redis(_)));
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
                    // Other processes that wait then hear the bells.
                    self.counters.iter().for_each(|counter| counter.lane.order(LaneOrder::Deaf));
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
        let settled = self.in_flight.is_empty() && self.counters.iter().all(LaneState::is_through);
        settled && self.limits.is_through()
    }

    /// Returns how many more callbacks may begin: the free workers that no lease under way may need.
    fn free(&self) -> u32 {
        let reserved = self.counters.iter().filter_map(|c| c.busy).map(|(_, jobs)| jobs).sum();
        self.workers.free().saturating_sub(reserved)
    }

    /// Waits for the end of a callback, a lane, the master, or the next moment at which something is due.
    fn wait(&mut self, context: &mut Context) -> Result<()> {
        let (now, free) = (Instant::now(), self.free() > 0 && !self.drains);
        // (Nothing is changed during an exchange, because its answer may change it back.)
        for counter in self.counters.iter_mut().filter(|counter| counter.busy.is_none()) {
            // A process that knows of work needs no ring. It does not listen, so that another process gets the ring.
            counter.knows_until = counter.knows_until.filter(|until| *until > now);
            let could = free && counter.again.is_none() && !counter.look && counter.knows_until.is_none();
            if std::mem::replace(&mut counter.listens, could) != could {
                counter.lane.order(LaneOrder::Listen(could));
            }
        }
        let slow = self.counters.iter().filter_map(|c| c.busy).map(|(since, _)| since + EXCHANGE);
        context.workers_by(self.in_flight.values().map(|flight| flight.by).chain(slow).min());
        let drain_ends = context.drain().and_then(|Drain { until, .. }| until?.checked_sub(LAST_CALL));
        let permits = self.limits.next(|topic| self.wants(topic));
        let probes = self.counters.iter().filter_map(|c| c.lets_through);
        let idle = self.counters.iter().filter(|c| c.busy.is_none());
        let gathered = idle.flat_map(|c| [c.gathers_until(), c.knows_until, c.takes_back_at()]).flatten();
        let until = self.counters.iter().filter_map(|c| c.again).chain(drain_ends);
        let passes = self.counters.iter().filter(|_| !self.drains).filter_map(LaneState::passes_on_at);
        let until = until.chain(permits).chain(probes).chain(passes).chain(gathered).min();
        let fds: Vec<BorrowedFd<'_>> =
            [self.workers.as_fd(), self.told.as_fd()].into_iter().chain(self.topics.fd()).collect();
        let changed = context.wait(&fds, until)?.get(2).is_some_and(|readable| *readable);
        if changed && self.topics.reload().is_some() {
            self.serve();
        }
        let mut buffer = [0; 64];
        while let Ok(n) = (&self.told).read(&mut buffer)
            && n == buffer.len()
        {}
        Ok(())
    }

    /// Serves the topics as they are now. New topics may have ready jobs.
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
        for FinishedCallback { token, verdict, attempt } in finished {
            let Some(flight) = self.in_flight.remove(&token) else { continue };
            self.fair.ended(&flight.leased.key.topic);
            self.limits.ended(&flight.leased.key.topic, true);
            self.learn(&flight, receiver_failed(&verdict), &attempt.error);
            let RunningCallback { leased, topic, lane, .. } = flight;
            let settlement = settlement(&topic, leased, token, &verdict, attempt);
            let counter = &mut self.counters[lane];
            counter.flying -= 1;
            counter.owe(settlement);
        }
        // A topic that had used its share of the workers may now have more of its ready jobs leased.
        self.look_where_more_is();
    }

    fn look_where_more_is(&mut self) {
        let free = self.free();
        for (number, counter) in self.counters.iter_mut().enumerate() {
            counter.look |= self.fair.more(number, free, |topic| self.limits.allowed(topic));
        }
    }

    /// Handles the events of the lanes.
    fn hear(&mut self) -> Result<()> {
        for (number, news) in self.inbox.take() {
            match news {
                LaneEvent::Rang(rings) => self.rang(number, rings),
                // They are kept as if they had come back.
                LaneEvent::Kept(rings) => self.counters[number].passing.keep(rings, Instant::now()),
                LaneEvent::Exchanged { unsettled, batch, failed, unanswered } => {
                    self.exchanged(number, unsettled, batch, failed, unanswered)?
                }
                LaneEvent::Secret(secret) => self.counters[number].secret = Some(secret),
                LaneEvent::Deaf => self.counters[number].deaf = true,
                LaneEvent::HandedBack(Ok(_)) => self.counters[number].handed_back = true,
                // The timers hand them back as soon as this process is gone.
                LaneEvent::HandedBack(Err(e)) => return Err(e).context("cannot hand back"),
                LaneEvent::Permitted { asks, permits } => self.permitted(&asks, permits),
                LaneEvent::Opened { opening, is_news } => self.note_opened(number, &opening, is_news),
                LaneEvent::Closed { topic, is_news } => self.note_closed(number, &topic, is_news),
                LaneEvent::Ended(e) => return Err(e),
            }
        }
        Ok(())
    }

    /// Looks for the jobs that the bell rang for. Gives back rings that are for other hosts.
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

    /// Ends the process, after it has handed back what is still held.
    fn end(&mut self, drain: Drain) -> Result<()> {
        if self.is_through() {
            // Leases without an answer that are not taken back yet are left to the timers. These find the owner's file,
            // and that the owner is dead.
            let holds_none = self.counters.iter().all(|counter| counter.take_back_at.is_none());
            if let Some(Err(e)) = self.owner.take().filter(|_| holds_none).map(Owner::retire) {
                log::warn!("cannot remove the owner's file: {e}");
            }
            return Ok(());
        }
        let left = self.in_flight.len();
        log::warn!("{left} callbacks still run at the end of the drain: their jobs are handed back");
        // Each lane hands back by itself. If a lane is too slow, the timers hand its leases back.
        self.counters.iter().for_each(|counter| counter.lane.order(LaneOrder::HandBack));
        let until = drain.until.unwrap_or_else(Instant::now) + LAST_CALL;
        while self.counters.iter().any(|c| !c.handed_back) && Instant::now() < until {
            wait_readable(&[self.told.as_fd()], Some(until))?;
            let _ = (&self.told).read(&mut [0; 64]);
            for (number, news) in self.inbox.take() {
                if let LaneEvent::HandedBack(handed_back) = news {
                    handed_back.context("cannot hand back")?;
                    self.counters[number].handed_back = true;
                }
            }
        }
        Ok(())
    }
}

/// Returns the topics whose jobs are delivered.
fn served(topics: &LiveTopics) -> Vec<(TopicName, Priority)> {
    let topics = topics.now();
    let served = topics.iter().filter(|topic| topics.is_delivered(topic.name.as_str()));
    served.map(|topic| (topic.name.clone(), topic.priority)).collect()
}
