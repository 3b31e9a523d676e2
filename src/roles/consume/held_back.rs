//! What holds ready jobs back: the permits of topics and hosts with limits, circuits, and the age of jobs that are too
//! old.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::LEASE_MARGIN;
use super::dispatcher::{ConsumerState, RunningCallback};
use super::host_limits::{HeldJob, HostDecision};
use super::lane::LaneOrder;
use model::excerpt::Excerpt;
use model::fair::LeaseTopicSelection;
use model::flow::CircuitChange;
use model::job::{Attempt, Due, TopicName};
use model::late_start::LateReason;
use model::topic::Topic;
use role::expiry::expired_at;
use store::{CircuitOpening, LeasedJob, Outcome, Permit, PermitRequest, Settlement, StoreError};

/// Why a leased job is returned to the store without a callback.
const HOST_LIMIT: &str = "its host is at its limit";
const DRAINS: &str = "its consumer ends";
pub(super) const LATE_LEASE: &str = "too much time had passed since its lease";

/// Returns whether it is too late to begin a callback with a lease that was asked for at `since`. The lease ends when
/// the timeout of the callback and [`LEASE_MARGIN`] have passed. A callback that begins later than this margin could
/// run when another consumer has the job, or when the job is deleted. This can happen if the process was stopped for a
/// while.
pub(super) fn is_too_late(since: Instant, now: Instant) -> bool {
    now > since + LEASE_MARGIN
}

impl ConsumerState {
    /// Asks the homes of topics and hosts with limits for the permits that are needed, and gives back the permits that
    /// are no longer used. Returns whether this process has granted permits to itself. A lease can use these permits at
    /// once.
    pub(super) fn ask_permits(&mut self, now: Instant) -> bool {
        let workers = if self.drains { (0, 0) } else { (self.free(), self.idle_workers()) };
        let (fair, hosts) = (&self.fair, &mut self.hosts);
        let (mut asks, mut granted) = hosts.asks(now, workers, fair, &self.limits);
        // While the host of a topic grants no permits, the topic's own permits would be useless.
        let may_begin = |topic: &TopicName| hosts.may_begin(topic, now);
        let with = |free| {
            move |topic: &TopicName| if may_begin(topic) { fair.wanted_callbacks(topic, free) } else { 0 }
        };
        let (free, idle) = workers;
        let of_topics = self.limits.asks(now, with(free), with(idle), |topic| granted.push(topic.clone()));
        asks.extend(of_topics);
        granted.iter().for_each(|topic| self.search_for(topic));
        let mut by_home: BTreeMap<usize, Vec<PermitRequest>> = BTreeMap::new();
        for ask in asks {
            by_home.entry(self.home_of(ask.name.as_str())).or_default().push(ask);
        }
        for (home, asks) in by_home {
            self.order(home, LaneOrder::Permits(asks));
        }
        !granted.is_empty()
    }

    /// Makes the lanes with ready jobs of a topic search for these jobs.
    fn search_for(&mut self, topic: &TopicName) {
        for (number, lane) in self.lanes.iter_mut().enumerate() {
            if self.fair.knows(number, topic) {
                lane.search(LeaseTopicSelection::Known);
            }
        }
    }

    /// Takes the permits that a home has granted, or its errors.
    pub(super) fn permitted(
        &mut self,
        asks: &[PermitRequest],
        permits: Vec<Result<Permit, StoreError>>,
        now: Instant,
    ) {
        for (ask, permit) in asks.iter().zip(permits) {
            if permit.as_ref().is_ok_and(|permit| permit.granted < ask.want) {
                self.note_refused(ask, now);
            }
            if let Err(e) = &permit {
                log::debug!("{}: no permits: {e}", ask.name);
            }
            let permit = permit.ok();
            if let Some(topics) = self.hosts.answered(ask, permit, now) {
                topics.iter().for_each(|topic| self.search_for(topic));
            } else if self.limits.answered(ask, permit, now)
                && let Some(topic) = self.limits.named(ask.name.as_str())
            {
                self.search_for(&topic);
            }
        }
    }

    /// Notes that a limit holds back jobs of its topics.
    fn note_refused(&mut self, ask: &PermitRequest, now: Instant) {
        match self.hosts.topics_of(&ask.name) {
            Some(topics) => {
                topics.iter().for_each(|topic| self.holds.note_topic(topic, LateReason::HostLimit, now))
            }
            None => {
                let topic = self.limits.named(ask.name.as_str());
                topic.iter().for_each(|topic| self.holds.note_topic(topic, LateReason::TopicLimit, now));
            }
        }
    }

    /// Learns from the result of a callback whether its receiver works. If the circuit must open or close, all lanes
    /// get an order.
    pub(super) fn learn(&mut self, callback: &RunningCallback, failed: bool, error: &str, now: Instant) {
        let RunningCallback { leased, topic, began, .. } = callback;
        let verdict = self.evidence.record_end(topic, leased.probe, failed, *began, now);
        for lane in 0..self.lanes.len() {
            match verdict {
                None => {}
                Some(CircuitChange::Open { pause, opens }) => {
                    let (topic, reason) = (topic.name.clone(), error.to_owned());
                    self.order(lane, LaneOrder::Open(CircuitOpening { topic, pause, opens, reason }));
                }
                Some(CircuitChange::Close) => self.order(lane, LaneOrder::Close(topic.name.clone())),
            }
        }
    }

    /// Notes that a circuit was opened on a lane. Only the answer of the topic's home is logged. Several processes may
    /// see the same failure, but only the first process gets the answer that the circuit is newly open.
    pub(super) fn note_opened(
        &mut self,
        lane: usize,
        opening: &CircuitOpening,
        is_news: Result<bool, StoreError>,
    ) {
        let CircuitOpening { topic, pause, opens, reason } = opening;
        let reason = Excerpt(reason);
        // The jobs on this lane wait while the circuit is open. The next lease reports until when they wait. This
        // process may also get the probe.
        self.lanes[lane].search(LeaseTopicSelection::All);
        if pause.is_zero() {
            return;
        }
        if self.home_of(topic.as_str()) == lane && *is_news.as_ref().unwrap_or(&true) {
            log::warn!(topic = topic.as_str(); "its receiver fails ({reason}): its jobs wait for {pause:?}");
        } else if *opens > 1 && self.home_of(topic.as_str()) == lane {
            log::info!(topic = topic.as_str(); "its receiver still fails ({reason}): its jobs wait for {pause:?}");
        }
        if let Err(e) = is_news {
            log::debug!(topic = topic.as_str(); "its circuit cannot be opened everywhere: {e}");
        }
    }

    pub(super) fn note_closed(&mut self, lane: usize, topic: &TopicName, is_news: Result<bool, StoreError>) {
        self.lanes[lane].search(LeaseTopicSelection::All);
        match is_news {
            Ok(true) if self.home_of(topic.as_str()) == lane => {
                log::warn!(topic = topic.as_str(); "its receiver is back: its jobs are delivered");
            }
            Ok(_) => {}
            Err(e) => log::debug!(topic = topic.as_str(); "its circuit cannot be closed everywhere: {e}"),
        }
    }

    /// Notes which circuits are open on a lane, and when each of them lets its next job through.
    pub(super) fn note_waiting(&mut self, lane: usize, waiting: Vec<(TopicName, Duration)>, now: Instant) {
        // The lane has reported about all topics that the lease asked for. For the other topics, its earlier report is
        // still valid.
        for (topic, wait) in
            waiting.into_iter().filter(|(topic, _)| self.topics.get(topic.as_str()).is_some())
        {
            self.evidence.record_open(&topic, now);
            self.holds.note_topic(&topic, LateReason::CircuitOpen, now + wait);
            self.lanes[lane].note_circuit(topic, now + wait);
        }
    }

    /// Decides on the jobs that wait for permits of their hosts. Returns whether some of these jobs no longer wait.
    pub(super) fn decide_held(&mut self, now: Instant) -> bool {
        let waiting = self.hosts.waiting();
        for job in self.hosts.take_waiting(|job| is_too_late(job.since, now)) {
            self.return_unused(job, Outcome::HandBack, LATE_LEASE, now);
        }
        for decision in self.hosts.decide(now) {
            self.carry_out(decision, now);
        }
        if self.drains {
            for job in self.hosts.take_waiting(|_| true) {
                self.return_unused(job, Outcome::HandBack, DRAINS, now);
            }
        }
        self.hosts.waiting() < waiting
    }

    /// Begins the callback of a leased job, or postpones the job.
    pub(super) fn carry_out(&mut self, decision: HostDecision, now: Instant) {
        match decision {
            HostDecision::Begin(job) => self.begin_callback(job, now),
            HostDecision::Postpone(job, _) if self.drains => {
                self.return_unused(job, Outcome::HandBack, DRAINS, now)
            }
            HostDecision::Postpone(job, wait) => {
                let begins_ms = job.leased.leased_ms.saturating_add(wait.as_millis() as i64);
                match expired_at(&job.leased, begins_ms) {
                    Some(attempt) => {
                        let HeldJob { lane, topic, leased, .. } = job;
                        self.skip(lane, &topic, leased, attempt, now);
                    }
                    None => self.return_unused(job, Outcome::Postpone(Due::In(wait)), HOST_LIMIT, now),
                }
            }
        }
    }

    /// Returns a leased job to the store. Its attempt does not count.
    pub(super) fn return_unused(&mut self, job: HeldJob, outcome: Outcome, why: &str, now: Instant) {
        let HeldJob { lane, topic, leased, .. } = job;
        self.release(lane, &topic, &leased, why);
        let LeasedJob { key, token, .. } = leased;
        self.lanes[lane].add_settlement(Settlement { key, token, outcome, attempt: None }, now);
    }

    /// Gives back the permit of a leased job that gets no callback now. If the job is a probe, the next job may be the
    /// probe.
    fn release(&mut self, lane: usize, topic: &Topic, leased: &LeasedJob, why: &str) {
        self.limits.record_end(&topic.name, false);
        if let Some(opens) = leased.probe {
            // The probe gave no information about its receiver, so the next job may be the probe at once. Other lanes
            // may have probes of their own in flight, so they get no order.
            let (pause, reason) = (Duration::ZERO, why.to_owned());
            let opening = CircuitOpening { topic: topic.name.clone(), pause, opens, reason };
            self.order(lane, LaneOrder::Open(opening));
        }
    }

    /// Turns a job that is too old for a callback into a dead letter.
    pub(super) fn skip(
        &mut self,
        lane: usize,
        topic: &Topic,
        leased: LeasedJob,
        attempt: Attempt,
        now: Instant,
    ) {
        self.release(lane, topic, &leased, &attempt.error);
        let LeasedJob { key, token, .. } = leased;
        if self.failures.admits(&key.topic, true, now) {
            let (topic, id, error) = (key.topic.as_str(), key.id.as_str(), Excerpt(&attempt.error));
            log::error!(target: "notify", topic, id; "is a dead letter: {error}");
        }
        let settlement = Settlement { key, token, outcome: Outcome::DeadLetter, attempt: Some(attempt) };
        self.lanes[lane].add_settlement(settlement, now);
    }
}
