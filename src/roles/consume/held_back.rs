//! What holds jobs back that are ready, in the main loop: permits of topics with limits, circuits, and jobs that are too old.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::lane::Order;
use super::{Consumer, Flight, LEASE_MARGIN};
use crate::excerpt::Excerpt;
use crate::flow::Verdict;
use crate::job::{Attempt, TopicName};
use crate::store::{Leased, Opening, Outcome, Permit, PermitAsk, Settlement, StoreError};
use crate::topic::Topic;

impl Consumer {
    /// How many more callbacks of a topic would begin, were it not for its limits.
    pub(super) fn wants(&self, topic: &TopicName) -> u32 {
        if self.drains { 0 } else { self.fair.wants(topic, self.free()) }
    }

    /// Asks the homes of topics with limits for what is needed, and tells them what is not any more.
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
            self.counters[home].lane.order(Order::Permits(asks));
        }
    }

    /// Has the lanes looked at that have ready jobs of a topic.
    fn look_for(&mut self, topic: &TopicName) {
        for (number, counter) in self.counters.iter_mut().enumerate() {
            counter.look |= self.fair.knows(number, topic);
        }
    }

    /// Takes what a home has granted, or why it does not.
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

    /// Learns of a receiver from a callback's end; and has all lanes know what follows.
    pub(super) fn learn(&mut self, flight: &Flight, failed: bool, error: &str) {
        let Flight { leased, topic, by, .. } = flight;
        let begun = by.checked_sub(topic.timeout + LEASE_MARGIN).unwrap_or(*by);
        match self.evidence.ended(topic, leased.probe, failed, begun, Instant::now()) {
            None => {}
            Some(Verdict::Open { pause, opens }) => {
                let reason = error.to_owned();
                self.open(Opening { topic: topic.name.clone(), pause, opens, reason });
            }
            Some(Verdict::Close) => {
                for counter in &self.counters {
                    counter.lane.order(Order::Close(topic.name.clone()));
                }
            }
        }
    }

    fn open(&self, opening: Opening) {
        for counter in &self.counters {
            counter.lane.order(Order::Open(opening.clone()));
        }
    }

    /// The word of a topic's home is logged: of all who found out, one was the first there.
    pub(super) fn note_opened(&mut self, lane: usize, opening: &Opening, is_news: Result<bool, StoreError>) {
        let Opening { topic, pause, opens, reason } = opening;
        let reason = Excerpt(reason);
        // Where it holds, jobs wait until then, and this process may be the one that comes again.
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

    /// Takes note of which circuits let nothing through on a lane, and when the first of them does.
    pub(super) fn note_waiting(&mut self, lane: usize, waiting: Vec<(TopicName, Duration)>) {
        let now = Instant::now();
        let is_served = |(topic, _): &(TopicName, Duration)| self.topics.now().get(topic.as_str()).is_some();
        let waiting: Vec<_> = waiting.into_iter().filter(is_served).collect();
        let counter = &mut self.counters[lane];
        // It tells of all that were asked; of others what it told before holds.
        let waiting_until = waiting.iter().map(|(_, wait)| now + *wait);
        counter.lets_through = waiting_until.chain(counter.lets_through).min();
        for (topic, _) in waiting {
            self.evidence.is_open(&topic, now);
        }
    }

    /// Buries a job that is too old to be called for.
    pub(super) fn skip(&mut self, lane: usize, topic: &Arc<Topic>, leased: Leased, attempt: Attempt) {
        self.limits.ended(&topic.name, false);
        if let Some(opens) = leased.probe {
            // It told nothing of its receiver: the next one may. Elsewhere others may be on their way.
            let (pause, reason) = (Duration::ZERO, attempt.error.clone());
            let opening = Opening { topic: topic.name.clone(), pause, opens, reason };
            self.counters[lane].lane.order(Order::Open(opening));
        }
        let Leased { key, token, .. } = leased;
        log::error!(target: "notify", "{}:{} is a dead letter: {}", key.topic, Excerpt(&key.id), Excerpt(&attempt.error));
        let settlement = Settlement { key, token, outcome: Outcome::Bury, attempt: Some(attempt) };
        self.counters[lane].owe(settlement);
    }
}
