//! The simulated world: the events, their times, and what the consumers do.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use fastrand::Rng;

use super::super::LEASE_MARGIN;
use super::super::dispatcher::ConsumerState;
use super::super::lane::LaneEvent;
use super::super::workers::FinishedCallback;
use super::lane_thread::SimulatedLaneThread;
use super::store::{JobNumber, SimulatedLane};
use ::store::{LeasedJob, Token};
use delivery::callback::Verdict;
use model::job::{Attempt, Priority, TopicName};
use model::retry::Retry;
use model::settings::HostLimit;
use model::topic::{Failure, HostPattern, Rate, Topic, Topics};

/// The time in which jobs come, and in which stores and receivers fail.
pub(super) const TROUBLE: Duration = Duration::from_secs(8);

/// How long a job may wait while a consumer that serves it is idle. A ring may be passed on only after a second.
const PROMPT: Duration = Duration::from_millis(1500);

pub(super) const MS: Duration = Duration::from_millis(1);

/// What happens at a moment.
pub(super) enum SimulatedEvent {
    /// A job becomes ready.
    Ready(usize, TopicName, JobNumber),
    /// The lane thread of a consumer begins the next order.
    Order(usize, usize),
    /// The lane thread of a consumer reports something.
    Report(usize, usize, LaneEvent),
    /// A callback ends.
    Ended(usize, Token, Verdict),
    /// A ring of a lane reaches one of the listeners.
    Ring(usize),
    /// A consumer does what is due.
    Look(usize),
    /// A consumer gets other topics.
    Serve(usize, Topics),
    /// A consumer drains.
    Drain(usize),
    /// The time limit of a consumer's drain is over.
    DrainEnds(usize),
}

/// A callback: its topic, and the index of its host.
pub(super) type SimulatedCallback = (TopicName, Option<usize>);

/// One consumer, with the threads of its lanes.
pub(super) struct SimulatedConsumer {
    pub(super) dispatcher: ConsumerState,
    pub(super) topics: Topics,
    pub(super) threads: Vec<SimulatedLaneThread>,
    pub(super) callbacks: BTreeMap<Token, SimulatedCallback>,
    /// Since when no callback runs.
    pub(super) idle_since: Option<Instant>,
    pub(super) is_draining: bool,
    pub(super) is_gone: bool,
    pub(super) looks_at: Option<Instant>,
}

pub(super) struct World {
    pub(super) seed: u64,
    pub(super) rng: Rng,
    pub(super) start: Instant,
    pub(super) now: Instant,
    pub(super) happenings: BTreeMap<(Instant, u64), SimulatedEvent>,
    pub(super) count: u64,
    pub(super) lanes: Vec<SimulatedLane>,
    pub(super) consumers: Vec<SimulatedConsumer>,
    pub(super) names: Vec<TopicName>,
    pub(super) topics: Vec<Topic>,
    pub(super) host_limits: Vec<HostLimit>,
    /// Whether each ring reaches only one process that listens, as with Redis. False: each ring reaches all processes,
    /// as with the embedded store.
    pub(super) rings_reach_one: bool,
    /// Whether stores fail and topics change during the simulation.
    pub(super) has_trouble: bool,
    pub(super) jobs: u64,
    pub(super) concurrency: u32,
    pub(super) exchanges: u64,
    pub(super) callbacks: u64,
    pub(super) events: u64,
}

pub(super) fn millis(rng: &mut Rng, range: std::ops::Range<u64>) -> Duration {
    Duration::from_micros(rng.u64(range.start * 1000..range.end * 1000))
}

pub(super) fn random_topic(rng: &mut Rng, name: &TopicName) -> Topic {
    Topic {
        retry: Retry::List(vec![50 * MS, 500 * MS]),
        max_attempts: rng.u32(1..6),
        // Without this limit, some jobs would be delivered again without end.
        max_notifications: Some(rng.u32(1..9)),
        timeout: Duration::from_secs(rng.u64(1..5)),
        priority: [Priority::High, Priority::Normal, Priority::Low][rng.usize(..3)],
        max_in_flight: (rng.u8(0..3) == 0).then(|| rng.u32(1..4)),
        rate: (rng.u8(0..4) == 0).then(|| Rate::per_second(rng.u32(20..200))),
        breaker_failures: rng.u32(0..4),
        breaker_pause: millis(rng, 100..1000),
        job_hosts: if rng.bool() { vec!["h1.example".to_owned()] } else { Vec::new() },
        ..Topic::new(name.clone(), ["http://h/", "http://h1.example/", "http://h2.example/"][rng.usize(..3)])
    }
}

fn random_host_limits(rng: &mut Rng) -> Vec<HostLimit> {
    let mut limit = |name: &str| {
        let host = HostPattern::parse(name).unwrap();
        let rate = rng.bool().then(|| Rate::per_second(rng.u32(20..200)));
        let max_in_flight = (rate.is_none() || rng.bool()).then(|| rng.u32(1..4));
        HostLimit { name: name.to_owned(), host, max_in_flight, rate }
    };
    vec![limit("h1.example"), limit("h2.example")]
}

/// Returns the index of the host of a job, if this host has limits.
fn host_of(topic: &Topic, leased: &LeasedJob, limits: &[HostLimit]) -> Option<usize> {
    let url = topic.url_for(leased.headers.destination()).ok()?.parse().ok()?;
    limits.iter().position(|limit| limit.host.matches(&url))
}

impl World {
    pub(super) fn new(seed: u64) -> World {
        let mut rng = Rng::with_seed(seed);
        fastrand::seed(seed);
        let names: Vec<TopicName> =
            (0..rng.usize(1..6)).map(|n| TopicName::new(&format!("t{n}")).unwrap()).collect();
        let topics = names.iter().map(|name| random_topic(&mut rng, name)).collect();
        let host_limits = if rng.bool() { random_host_limits(&mut rng) } else { Vec::new() };
        let start = Instant::now();
        let lanes = [1, 1, 2, 3][rng.usize(..4)];
        let mut world = World {
            seed,
            start,
            now: start,
            happenings: BTreeMap::new(),
            count: 0,
            lanes: (0..lanes).map(SimulatedLane::new).collect(),
            consumers: Vec::new(),
            names,
            topics,
            host_limits,
            rings_reach_one: lanes > 1 || rng.bool(),
            has_trouble: rng.bool(),
            jobs: 0,
            concurrency: rng.u32(1..9),
            exchanges: 0,
            callbacks: 0,
            events: 0,
            rng,
        };
        for _ in 0..world.rng.usize(1..4) {
            world.start_consumer();
        }
        world.plan();
        world
    }

    /// Plans the jobs and the changes of a sequence.
    pub(super) fn plan(&mut self) {
        // Some sequences are short, so that no later event hides that something was forgotten.
        let most = [4, 4, 20, 300][self.rng.usize(..4)];
        for _ in 0..self.rng.u64(1..most) {
            let at = if self.rng.bool() { MS } else { millis(&mut self.rng, 1..TROUBLE.as_millis() as u64) };
            let (lane, topic) = (self.rng.usize(..self.lanes.len()), self.rng.usize(..self.names.len()));
            self.jobs += 1;
            self.after(at, SimulatedEvent::Ready(lane, self.names[topic].clone(), self.jobs));
        }
        for consumer in 0..self.consumers.len() {
            if self.has_trouble && self.rng.u8(0..3) == 0 {
                let (at, topics) = (millis(&mut self.rng, 1..8000), self.some_topics());
                self.after(at, SimulatedEvent::Serve(consumer, topics));
            }
            if consumer > 0 && self.rng.u8(0..4) == 0 {
                let at = millis(&mut self.rng, 1..8000);
                self.after(at, SimulatedEvent::Drain(consumer));
            }
        }
    }

    pub(super) fn some_topics(&mut self) -> Topics {
        let all = self.rng.bool();
        let chosen: Vec<Topic> = self.topics.iter().filter(|_| all || self.rng.bool()).cloned().collect();
        chosen.into_iter().collect()
    }

    pub(super) fn start_consumer(&mut self) {
        let (topics, lanes) = (self.some_topics(), self.lanes.len());
        let home_of = Box::new(move |name: &str| usize::from(*name.as_bytes().last().unwrap()) % lanes);
        let hosts = &self.host_limits;
        let dispatcher = ConsumerState::new(
            lanes,
            self.concurrency,
            topics.clone(),
            hosts,
            home_of,
            self.rings_reach_one,
            self.now,
        );
        let thread = || SimulatedLaneThread { listens: true, has_bell: true, ..Default::default() };
        self.consumers.push(SimulatedConsumer {
            dispatcher,
            topics,
            threads: (0..lanes).map(|_| thread()).collect(),
            callbacks: BTreeMap::new(),
            idle_since: Some(self.now),
            is_draining: false,
            is_gone: false,
            looks_at: None,
        });
        self.after(Duration::ZERO, SimulatedEvent::Look(self.consumers.len() - 1));
    }

    pub(super) fn after(&mut self, wait: Duration, happening: SimulatedEvent) {
        self.count += 1;
        self.happenings.insert((self.now + wait, self.count), happening);
    }

    pub(super) fn is_troubled(&self) -> bool {
        self.has_trouble && self.now < self.start + TROUBLE
    }

    /// Plays the next event. Returns whether there was an event before `until`.
    pub(super) fn step(&mut self, until: Instant) -> bool {
        let Some(entry) = self.happenings.first_entry() else { return false };
        if entry.key().0 > until {
            return false;
        }
        let ((at, _), happening) = entry.remove_entry();
        self.now = at;
        self.events += 1;
        assert!(
            self.events < 400_000,
            "seed {}: it goes round without end at {:?}",
            self.seed,
            at - self.start
        );
        match happening {
            SimulatedEvent::Ready(lane, topic, job) => {
                self.lanes[lane].make_ready(&topic, job, self.now);
                self.ring(lane);
            }
            SimulatedEvent::Order(consumer, lane) => self.carry_out(consumer, lane),
            SimulatedEvent::Report(consumer, lane, event) => self.report(consumer, lane, event),
            SimulatedEvent::Ended(consumer, token, verdict) => self.end_callback(consumer, token, verdict),
            SimulatedEvent::Ring(lane) => self.deliver_ring(lane),
            SimulatedEvent::Look(consumer) => {
                self.consumers[consumer].looks_at = None;
                self.act(consumer);
            }
            SimulatedEvent::Serve(consumer, topics) => {
                if !self.consumers[consumer].is_gone {
                    self.consumers[consumer].topics = topics.clone();
                    self.consumers[consumer].dispatcher.serve(topics, self.now);
                    self.act(consumer);
                }
            }
            SimulatedEvent::Drain(consumer) => self.drain(consumer),
            SimulatedEvent::DrainEnds(consumer) => self.end_drain(consumer),
        }
        if !self.has_trouble {
            self.check_promptness();
        }
        true
    }

    /// Checks that no job waits while a consumer that serves it is idle.
    fn check_promptness(&self) {
        let lanes = self.lanes.iter().flat_map(SimulatedLane::waiting);
        for (topic, _) in lanes.filter(|(_, since)| *since + PROMPT < self.now) {
            for consumer in self.consumers.iter().filter(|consumer| !consumer.is_draining) {
                let is_idle = consumer.idle_since.is_some_and(|since| since + PROMPT < self.now);
                let served = consumer.topics.get(topic.as_str());
                let is_free = served.is_some_and(|t| t.max_in_flight.is_none() && t.rate.is_none());
                let is_free = is_free && self.host_limits.is_empty();
                assert!(!(is_idle && is_free), "{topic} waits: {}", self.story());
            }
        }
    }

    pub(super) fn report(&mut self, consumer: usize, lane: usize, event: LaneEvent) {
        let thread = &mut self.consumers[consumer].threads[lane];
        match &event {
            LaneEvent::Rang(_) => thread.heard -= 1,
            LaneEvent::Exchanged(answer) => {
                let limit = thread.under_way.take().expect("an answer of an exchange that was ordered");
                assert!(answer.batch.jobs.len() <= limit);
            }
            _ => {}
        }
        if self.consumers[consumer].is_gone {
            return;
        }
        self.consumers[consumer].dispatcher.lane_event(lane, event, self.now).unwrap();
        self.act(consumer);
    }

    /// The main loop of a consumer: decides, begins callbacks, gives orders, and waits.
    pub(super) fn act(&mut self, number: usize) {
        let (seed, now) = (self.seed, self.now);
        let consumer = &mut self.consumers[number];
        if consumer.is_gone {
            return;
        }
        consumer.dispatcher.act(now);
        if let Some(next) = consumer.dispatcher.next(now) {
            assert!(next > now, "seed {seed}: it would not wait: {:#?}", consumer.dispatcher.lanes);
            if consumer.looks_at.is_none_or(|at| at <= now || next < at) {
                consumer.looks_at = Some(next);
                self.after(next - now, SimulatedEvent::Look(number));
            }
        }
        let mut begun = Vec::new();
        self.consumers[number].dispatcher.begin_callbacks(|callback| {
            begun.push((callback.leased.clone(), callback.topic.clone()));
        });
        for (leased, topic) in begun {
            self.begin_callback(number, &leased, &topic);
        }
        for (lane, order) in self.consumers[number].dispatcher.take_orders() {
            self.order(number, lane, order);
        }
        if self.consumers[number].is_draining && self.consumers[number].dispatcher.is_drained() {
            self.retire(number);
        }
    }

    pub(super) fn begin_callback(&mut self, number: usize, leased: &LeasedJob, topic: &Topic) {
        self.callbacks += 1;
        let age = self.now - *self.lanes.iter().find_map(|lane| lane.leased_at.get(&leased.token)).unwrap();
        assert!(age <= LEASE_MARGIN + MS, "seed {}: a callback begins {age:?} after its lease", self.seed);
        let (token, host) = (leased.token.clone(), host_of(topic, leased, &self.host_limits));
        let took = match self.rng.u8(0..10) {
            0 => millis(&mut self.rng, 100..topic.timeout.as_millis() as u64),
            _ => millis(&mut self.rng, 1..20),
        };
        let failed = |kind| Verdict::Failed { kind, reason: String::new(), retry_after: None };
        let verdict = match self.rng.u8(0..12) {
            0 | 1 if self.is_troubled() => failed(Failure::Timeout),
            2 if self.is_troubled() => failed(Failure::Status(404)),
            3 if self.is_troubled() => Verdict::Again { reason: String::new(), retry_after: None },
            _ => Verdict::Accepted,
        };
        let (seed, concurrency, has_trouble) = (self.seed, self.concurrency, self.has_trouble);
        let consumer = &mut self.consumers[number];
        let before = consumer.callbacks.insert(token.clone(), (topic.name.clone(), host));
        assert!(before.is_none(), "seed {seed}: a callback began twice");
        consumer.idle_since = None;
        assert!(consumer.callbacks.len() <= concurrency as usize, "seed {seed}: too many callbacks");
        if let Some(most) = topic.max_in_flight.filter(|_| !has_trouble) {
            let running = self.consumers.iter().flat_map(|c| c.callbacks.values());
            let running = running.filter(|(name, _)| *name == topic.name).count();
            assert!(
                running <= most as usize,
                "seed {seed}: {running} callbacks of {}, not {most}",
                topic.name
            );
        }
        let most = host.and_then(|host| self.host_limits[host].max_in_flight);
        if let Some(most) = most.filter(|_| !has_trouble) {
            let running = self.consumers.iter().flat_map(|c| c.callbacks.values());
            let running = running.filter(|(_, of)| *of == host).count();
            assert!(running <= most as usize, "seed {seed}: {running} callbacks to a host, not {most}");
        }
        self.after(took, SimulatedEvent::Ended(number, token, verdict));
    }

    pub(super) fn end_callback(&mut self, number: usize, token: Token, verdict: Verdict) {
        self.report_end(number, token, verdict);
        self.act(number);
    }

    /// Tells the consumer that a callback has ended. The consumer does not act on it yet.
    pub(super) fn report_end(&mut self, number: usize, token: Token, verdict: Verdict) {
        let attempt = Attempt {
            number: 1,
            at_ms: 0,
            took_ms: 0,
            status: None,
            answer: String::new(),
            error: String::new(),
            late: None,
        };
        let consumer = &mut self.consumers[number];
        if consumer.is_gone {
            return;
        }
        consumer.callbacks.remove(&token).expect("a callback that began");
        consumer.idle_since = consumer.callbacks.is_empty().then_some(self.now);
        consumer.dispatcher.callbacks_ended(vec![FinishedCallback { token, verdict, attempt }], self.now);
    }
}
