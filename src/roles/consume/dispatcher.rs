//! Decides what a consumer does: which jobs it leases from which lane, which callbacks begin, what is settled, and what
//! the other processes must know. Pure: the input is events and the present moment, and the output is orders for the
//! lanes and callbacks. `simulation` drives several dispatchers against a simulated store.
//!
//! The dispatcher never waits, and never talks to a store or a receiver. The caller passes on every event, and then
//! calls [`ConsumerState::act`]. Then the caller carries out the orders, and waits until [`ConsumerState::next`] or the
//! next event. `lane_state` is what the dispatcher knows about one lane. `exchange` has the leases and their answers.
//! `held_back` has the reasons why ready jobs wait.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use super::ending::{note, receiver_failed, settlement};
use super::failure_log::FailureLog;
use super::hold_log::LateReasonHistory;
use super::host_limits::HostLimits;
use super::lane::{LaneEvent, LaneOrder};
use super::lane_state::{BellState, ExchangeState, LaneState};
use super::limits::Limits;
use super::workers::FinishedCallback;
use super::{EXCHANGE, LEASE_MARGIN};
use model::fair::{Fair, LeaseTopicSelection, ServedTopic};
use model::flow::CircuitTable;
use model::job::{Attempt, TopicName};
use model::late_start::LateStart;
use model::settings::HostLimit;
use model::topic::{Topic, Topics};
use store::{LeasedJob, Ring, StoreError, Token};

/// A callback that runs.
#[derive(Debug)]
pub(super) struct RunningCallback {
    pub leased: LeasedJob,
    /// The topic as it was when the lease was ordered.
    pub topic: Arc<Topic>,
    /// The lane that the job was leased from.
    pub lane: usize,
    pub began: Instant,
    /// The index of the receiver's host in `HostLimits`, if this host has limits.
    pub host: Option<usize>,
    /// How late the callback began, and why. None: the callback began in time.
    pub late: Option<LateStart>,
}

impl RunningCallback {
    /// Returns when the callback should have ended.
    fn overdue_at(&self) -> Instant {
        self.began + self.topic.timeout + LEASE_MARGIN
    }
}

/// Returns the home lane of a topic or a host. This lane grants the permits. All lanes answer about the circuit of a
/// topic, but only the answer of the home lane is logged.
pub(super) type HomeOf = Box<dyn Fn(&str) -> usize>;

/// What one consumer knows, and its orders that the main loop has not taken yet.
pub(super) struct ConsumerState {
    pub(super) topics: Topics,
    pub(super) lanes: Vec<LaneState>,
    /// How many callbacks may be in flight.
    pub(super) concurrency: u32,
    /// The callbacks that run, by the tokens of their leases.
    pub(super) in_flight: HashMap<Token, RunningCallback>,
    pub(super) fair: Fair,
    pub(super) limits: Limits,
    pub(super) hosts: HostLimits,
    pub(super) evidence: CircuitTable,
    pub(super) failures: FailureLog,
    pub(super) holds: LateReasonHistory,
    home_of: HomeOf,
    /// Whether the process drains: it takes no new work.
    pub(super) drains: bool,
    orders: Vec<(usize, LaneOrder)>,
    /// The callbacks that must begin.
    pub(super) beginning: Vec<Token>,
}

impl ConsumerState {
    /// Returns a dispatcher that knows nothing of the lanes yet. `may_go_alone`: jobs can be leased while the home of a
    /// topic does not answer.
    pub(super) fn new(
        lanes: usize,
        concurrency: u32,
        topics: Topics,
        host_limits: &[HostLimit],
        home_of: HomeOf,
        may_go_alone: bool,
        now: Instant,
    ) -> ConsumerState {
        let mut limits = Limits::new(now, may_go_alone);
        limits.serve(&topics, now, |_| 0);
        let hosts = HostLimits::new(host_limits, &topics, now, may_go_alone);
        ConsumerState {
            fair: Fair::new(lanes, served(&topics)),
            topics,
            lanes: (0..lanes).map(|_| LaneState::new(now)).collect(),
            concurrency,
            in_flight: HashMap::new(),
            limits,
            hosts,
            evidence: CircuitTable::default(),
            failures: FailureLog::default(),
            holds: LateReasonHistory::new(lanes, now),
            home_of,
            drains: false,
            orders: Vec::new(),
            beginning: Vec::new(),
        }
    }

    /// Serves these topics from now on. New topics may have ready jobs.
    pub(super) fn serve(&mut self, topics: Topics, now: Instant) {
        self.topics = topics;
        let names = served(&self.topics);
        log::info!("{} topics are served", names.len());
        self.limits.serve(&self.topics, now, |topic| self.fair.in_flight(topic));
        self.hosts.serve(&self.topics);
        self.evidence.keep(|topic| self.topics.get(topic.as_str()).is_some());
        self.holds.keep(|topic| self.topics.get(topic.as_str()).is_some());
        self.lanes.iter_mut().for_each(|lane| lane.search(LeaseTopicSelection::All));
        self.fair.serve(names);
    }

    /// Takes no new work from now on.
    pub(super) fn drain(&mut self) {
        if !std::mem::replace(&mut self.drains, true) {
            // The bells of this process are taken down, so that rings wake only other processes.
            for number in 0..self.lanes.len() {
                self.lanes[number].bell = BellState::TakenDown;
                self.order(number, LaneOrder::Deaf);
            }
        }
    }

    /// Whether a drain has nothing more to do.
    pub(super) fn is_drained(&self) -> bool {
        let settled = self.in_flight.is_empty() && self.lanes.iter().all(LaneState::is_drained);
        settled && self.limits.is_drained() && self.hosts.is_drained()
    }

    /// Orders the lanes to settle all outcomes that are not in the store yet. The process ends after these orders.
    pub(super) fn settle_rest(&mut self) {
        for number in 0..self.lanes.len() {
            for settle in self.lanes[number].take_rest() {
                self.order(number, LaneOrder::Exchange { settle, wanted: Vec::new(), limit: 0 });
            }
        }
    }

    /// Whether this process may hold leases that it does not know about, because the answers to its lease calls never
    /// came.
    pub(super) fn has_unanswered(&self) -> bool {
        self.lanes.iter().any(LaneState::has_unanswered)
    }

    /// Takes the outcomes of the callbacks that ended.
    pub(super) fn callbacks_ended(&mut self, finished: Vec<FinishedCallback>, now: Instant) {
        if finished.is_empty() {
            return;
        }
        for FinishedCallback { token, verdict, attempt } in finished {
            let Some(callback) = self.in_flight.remove(&token) else { continue };
            self.fair.record_end(&callback.leased.key.topic);
            self.limits.record_end(&callback.leased.key.topic, true);
            if let Some(host) = callback.host {
                self.hosts.record_end(host, now - callback.began);
            }
            self.learn(&callback, receiver_failed(&verdict), &attempt.error, now);
            let RunningCallback { leased, topic, lane, late, .. } = callback;
            let lane = &mut self.lanes[lane];
            lane.flying -= 1;
            let attempt = Attempt { late, ..attempt };
            let settlement = settlement(&topic, &leased, token, &verdict, attempt);
            note(&mut self.failures, &leased, &verdict, &settlement.outcome, now);
            lane.add_settlement(settlement, now);
        }
        // If a topic had used its share of the workers, more of its ready jobs may now be leased.
        let free = self.free();
        for (number, lane) in self.lanes.iter_mut().enumerate() {
            if self.fair.more(number, free, |topic| allowed(&self.limits, &self.hosts, topic)) {
                lane.search(LeaseTopicSelection::Known);
            }
        }
    }

    /// Takes an event of a lane. Fails if the file of the store was removed or replaced.
    pub(super) fn lane_event(
        &mut self,
        number: usize,
        event: LaneEvent,
        now: Instant,
    ) -> Result<(), StoreError> {
        match event {
            LaneEvent::Rang(rings) => self.note_ring(number, rings, now),
            // The lane could not give these rings back. They are kept, and are given back later, like rings that came
            // back to this process.
            LaneEvent::Kept(rings) => self.lanes[number].passing.keep(rings, now),
            LaneEvent::Exchanged(answer) => self.exchanged(number, answer, now)?,
            LaneEvent::Deaf => self.lanes[number].bell = BellState::Gone,
            LaneEvent::Permitted { asks, permits } => self.permitted(&asks, permits, now),
            LaneEvent::Opened { opening, is_news } => self.note_opened(number, &opening, is_news),
            LaneEvent::Closed { topic, is_news } => self.note_closed(number, &topic, is_news),
        }
        Ok(())
    }

    /// Searches for the jobs that the bell rang for. Gives back rings that are for other hosts.
    fn note_ring(&mut self, number: usize, rings: Vec<Ring>, now: Instant) {
        let mut for_others = Vec::new();
        for ring in rings {
            match ring {
                Ring::Of(ring) if self.topics.get(ring.topic.as_str()).is_none() => for_others.push(ring),
                Ring::Of(ring) => {
                    self.fair.note_ring(number, &ring.topic);
                    self.lanes[number].ring(Some(ring.topic));
                }
                Ring::All => self.lanes[number].ring(None),
            }
        }
        let back = self.lanes[number].passing.heard(for_others, now);
        if !back.is_empty() {
            self.order(number, LaneOrder::GiveBack(back));
        }
    }

    /// Decides everything that is due now. After that, [`ConsumerState::take_orders`] returns the orders.
    pub(super) fn act(&mut self, now: Instant) {
        for number in 0..self.lanes.len() {
            let lane = &mut self.lanes[number];
            lane.forget_past_moments(now);
            if matches!(lane.exchange, ExchangeState::Idle) {
                lane.rung.iter().for_each(|topic| self.fair.note_ring(number, topic));
            }
            if !self.drains {
                self.pass_on_again(number, now);
            }
        }
        loop {
            self.decide_held(now);
            for number in 0..self.lanes.len() {
                self.begin_exchange(number, now);
            }
            // A lease uses up permits, so this process asks for more. The loop begins again if permits come at once, or
            // if workers become free because jobs are postponed.
            if !self.ask_permits(now) && !self.decide_held(now) {
                break;
            }
        }
        if self.idle_workers() == 0 {
            self.holds.note_workers_busy(now);
        }
        let is_free = self.free() > 0 && !self.drains;
        for number in 0..self.lanes.len() {
            if let Some(listens) = self.lanes[number].listen(is_free, now) {
                self.order(number, LaneOrder::Listen(listens));
            }
        }
    }

    fn pass_on_again(&mut self, number: usize, now: Instant) {
        let (topics, rings) = self.lanes[number].pass_on_again(now);
        if !topics.is_empty() {
            self.order(number, LaneOrder::PassOn { topics, rest: true });
        }
        if !rings.is_empty() {
            self.order(number, LaneOrder::GiveBack(rings));
        }
    }

    /// Returns when [`ConsumerState::act`] must be called again. The last call was at `now`, so the returned time is
    /// later.
    pub(super) fn next(&self, now: Instant) -> Option<Instant> {
        let lanes = self.lanes.iter().filter_map(|lane| lane.next(self.drains, now));
        // If the host of a topic refuses permits, the topic asks for no permits of its own.
        let waits_for_host =
            |topic: &TopicName| !self.hosts.may_begin(topic, now) && self.limits.may_begin(topic, now);
        let wants = |topic: &TopicName| if waits_for_host(topic) { 0 } else { self.wanted_callbacks(topic) };
        let free = if self.drains { 0 } else { self.free() };
        let hosts = self.hosts.next(now, free, &self.fair, &self.limits);
        lanes.chain(self.limits.next(wants)).chain(hosts).min()
    }

    /// Returns the earliest time at which a callback or an exchange in progress should have ended.
    pub(super) fn overdue_at(&self) -> Option<Instant> {
        let exchanges = self.lanes.iter().filter_map(|lane| match &lane.exchange {
            ExchangeState::UnderWay(exchange) => Some(exchange.since + EXCHANGE),
            ExchangeState::Idle | ExchangeState::Paused { .. } => None,
        });
        self.in_flight.values().map(RunningCallback::overdue_at).chain(exchanges).min()
    }

    pub(super) fn order(&mut self, lane: usize, order: LaneOrder) {
        self.orders.push((lane, order));
    }

    /// Returns the orders that have not been taken yet, each with its lane, in their order.
    pub(super) fn take_orders(&mut self) -> Vec<(usize, LaneOrder)> {
        std::mem::take(&mut self.orders)
    }

    /// Calls `begin` for each callback that must begin.
    pub(super) fn begin_callbacks(&mut self, mut begin: impl FnMut(&RunningCallback)) {
        self.beginning.drain(..).filter_map(|token| self.in_flight.get(&token)).for_each(&mut begin);
    }

    /// Returns how many more callbacks may begin: the free workers that no lease under way may need.
    pub(super) fn free(&self) -> u32 {
        let reserved: u32 = self.lanes.iter().map(|lane| lane.exchange.reserved()).sum();
        self.idle_workers().saturating_sub(reserved)
    }

    /// Returns how many callbacks run.
    pub(super) fn in_flight(&self) -> usize {
        self.in_flight.len()
    }

    /// Returns how many workers are free: they have no callback, and are not kept for a job that waits for a permit of
    /// its host.
    pub(super) fn idle_workers(&self) -> u32 {
        self.concurrency.saturating_sub(self.in_flight.len() as u32 + self.hosts.waiting())
    }

    /// Returns how many more callbacks of a topic would begin if it had no limits.
    pub(super) fn wanted_callbacks(&self, topic: &TopicName) -> u32 {
        if self.drains { 0 } else { self.fair.wanted_callbacks(topic, self.free()) }
    }

    pub(super) fn home_of(&self, name: &str) -> usize {
        (self.home_of)(name)
    }
}

/// Returns how many callbacks of a topic may begin, by its own limits and those of its host. None: there are no limits.
pub(super) fn allowed(limits: &Limits, hosts: &HostLimits, topic: &TopicName) -> Option<u32> {
    match (limits.allowed(topic), hosts.allowed(topic)) {
        (Some(by_topic), Some(by_host)) => Some(by_topic.min(by_host)),
        (by_topic, by_host) => by_topic.or(by_host),
    }
}

/// Returns the topics whose jobs are delivered.
fn served(topics: &Topics) -> Vec<ServedTopic> {
    let served = topics.iter().filter(|topic| topics.is_delivered(topic.name.as_str()));
    let of = |topic: &Arc<Topic>| ServedTopic {
        name: topic.name.clone(),
        priority: topic.priority,
        tenant: topic.tenant.clone(),
    };
    served.map(of).collect()
}
