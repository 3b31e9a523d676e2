//! What holds ready jobs back, in the main loop: the permits of topics with limits, circuits, and jobs that are too
//! old.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::lane::LaneOrder;
use super::{Consumer, LEASE_MARGIN, RunningCallback};
use model::excerpt::Excerpt;
use model::flow::Verdict;
use model::job::{Attempt, TopicName};
use model::topic::Topic;
use store::{Leased, Opening, Outcome, Permit, PermitAsk, Settlement, StoreError};

impl Consumer {
    /// Returns how many more callbacks of a topic would begin without its limits.
    pub(super) fn wants(&self, topic: &TopicName) -> u32 {
        if self.drains { 0 } else { self.fair.wants(topic, self.free()) }
    }

    /// Asks the homes of topics with limits for the permits that are needed, and tells them which are no longer used.
    pub(super) fn ask_permits(&mut self) {
        let (free, idle, drains, fair) = (self.free(), self.workers.free(), self.drains, &self.fair);
        let with = |free| move |topic: &TopicName| if drains { 0 } else { fair.wants(topic, free) };
        let mut granted = Vec::new();
        let asks =
            self.limits.asks(Instant::now(), with(free), with(idle), |topic| granted.push(topic.clone()));
        granted.iter().for_each(|topic| self.look_for(topic));
        let mut by_home: BTreeMap<usize, Vec<PermitAsk>> = BTreeMap::new();
        for ask in asks {
            by_home.entry(self.lanes.home_of(&ask.topic)).or_default().push(ask);
        }
        for (home, asks) in by_home {
            self.counters[home].lane.order(LaneOrder::Permits(asks));
        }
    }

    /// Makes the lanes that have ready jobs of a topic look for them.
    fn look_for(&mut self, topic: &TopicName) {
        for (number, counter) in self.counters.iter_mut().enumerate() {
            counter.look |= self.fair.knows(number, topic);
        }
    }

    /// Takes the permits that a home has granted, or its errors.
    pub(super) fn permitted(&mut self, asks: &[PermitAsk], permits: Vec<Result<Permit, StoreError>>) {
        for (ask, permit) in asks.iter().zip(permits) {
            if let Err(e) = &permit {
                log::debug!("{}: no permits: {e}", ask.topic);
            }
            if self.limits.answered(ask, permit.ok(), Instant::now()) {
                self.look_for(&ask.topic);
            }
        }
    }

    /// Learns from the end of a callback how its receiver is, and tells all lanes if the circuit must open or close.
    pub(super) fn learn(&mut self, flight: &RunningCallback, failed: bool, error: &str) {
        let RunningCallback { leased, topic, by, .. } = flight;
        let begun = by.checked_sub(topic.timeout + LEASE_MARGIN).unwrap_or(*by);
        match self.evidence.ended(topic, leased.probe, failed, begun, Instant::now()) {
            None => {}
            Some(Verdict::Open { pause, opens }) => {
                let reason = error.to_owned();
                self.open(Opening { topic: topic.name.clone(), pause, opens, reason });
            }
            Some(Verdict::Close) => {
                for counter in &self.counters {
                    counter.lane.order(LaneOrder::Close(topic.name.clone()));
                }
            }
        }
    }

    fn open(&self, opening: Opening) {
        for counter in &self.counters {
            counter.lane.order(LaneOrder::Open(opening.clone()));
        }
    }

    /// Notes that a circuit was opened on a lane. Only the answer of the topic's home is logged: of all processes that
    /// saw the failure, one was the first there.
    pub(super) fn note_opened(&mut self, lane: usize, opening: &Opening, is_news: Result<bool, StoreError>) {
        let Opening { topic, pause, opens, reason } = opening;
        let reason = Excerpt(reason);
        // The jobs on this lane wait while the circuit is open. The next lease reports until when, and this process may
        // be the one that gets the probe.
        let counter = &mut self.counters[lane];
        counter.look_everywhere();
        if pause.is_zero() {
            return;
        }
        if self.lanes.home_of(topic) == lane && *is_news.as_ref().unwrap_or(&true) {
            log::warn!("{topic}: its receiver fails ({reason}): its jobs wait for {pause:?}");
        } else if *opens > 1 && self.lanes.home_of(topic) == lane {
            log::info!("{topic}: its receiver still fails ({reason}): its jobs wait for {pause:?}");
        }
        if let Err(e) = is_news {
            log::debug!("{topic}: its circuit cannot be opened everywhere: {e}");
        }
    }

    pub(super) fn note_closed(&mut self, lane: usize, topic: &TopicName, is_news: Result<bool, StoreError>) {
        self.counters[lane].look_everywhere();
        match is_news {
            Ok(true) if self.lanes.home_of(topic) == lane => {
                log::warn!("{topic}: its receiver is back: its jobs are delivered");
            }
            Ok(_) => {}
            Err(e) => log::debug!("{topic}: its circuit cannot be closed everywhere: {e}"),
        }
    }

    /// Notes which circuits let nothing through on a lane, and when the first of them lets a job through.
    pub(super) fn note_waiting(&mut self, lane: usize, waiting: Vec<(TopicName, Duration)>) {
        let now = Instant::now();
        let is_served = |(topic, _): &(TopicName, Duration)| self.topics.now().get(topic.as_str()).is_some();
        let waiting: Vec<_> = waiting.into_iter().filter(is_served).collect();
        let counter = &mut self.counters[lane];
        // The lane has reported all topics that were asked. For the others, its earlier report still holds.
        let waiting_until = waiting.iter().map(|(_, wait)| now + *wait);
        counter.lets_through = waiting_until.chain(counter.lets_through).min();
        for (topic, _) in waiting {
            self.evidence.is_open(&topic, now);
        }
    }

    /// Makes a job that is too old for a callback a dead letter.
    pub(super) fn skip(&mut self, lane: usize, topic: &Arc<Topic>, leased: Leased, attempt: Attempt) {
        self.limits.ended(&topic.name, false);
        if let Some(opens) = leased.probe {
            // This probe said nothing about its receiver, so the next job may be the probe at once. Other lanes may
            // have probes of their own in flight, so they are not told.
            let (pause, reason) = (Duration::ZERO, attempt.error.clone());
            let opening = Opening { topic: topic.name.clone(), pause, opens, reason };
            self.counters[lane].lane.order(LaneOrder::Open(opening));
        }
        let Leased { key, token, .. } = leased;
        log::error!(target: "notify", "{}:{} is a dead letter: {}", key.topic, Excerpt(&key.id), Excerpt(&attempt.error));
        let settlement = Settlement { key, token, outcome: Outcome::Bury, attempt: Some(attempt) };
        self.counters[lane].owe(settlement);
    }
}
