//! What holds ready jobs back: the permits of topics with limits, circuits, and jobs that are too old.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::dispatcher::{Dispatcher, RunningCallback};
use super::lane::LaneOrder;
use model::excerpt::Excerpt;
use model::fair::Asks;
use model::flow::Verdict;
use model::job::{Attempt, TopicName};
use model::topic::Topic;
use store::{Leased, Opening, Outcome, Permit, PermitAsk, Settlement, StoreError};

impl Dispatcher {
    /// Asks the homes of topics with limits for the permits that are needed, and tells them which are no longer used.
    /// Returns whether this process has granted some to itself, which a lease can use at once.
    pub(super) fn ask_permits(&mut self, now: Instant) -> bool {
        let (free, idle, drains, fair) = (self.free(), self.idle_workers(), self.drains, &self.fair);
        let with = |free| move |topic: &TopicName| if drains { 0 } else { fair.wants(topic, free) };
        let mut granted = Vec::new();
        let asks = self.limits.asks(now, with(free), with(idle), |topic| granted.push(topic.clone()));
        granted.iter().for_each(|topic| self.search_for(topic));
        let mut by_home: BTreeMap<usize, Vec<PermitAsk>> = BTreeMap::new();
        for ask in asks {
            by_home.entry(self.home_of(&ask.topic)).or_default().push(ask);
        }
        for (home, asks) in by_home {
            self.order(home, LaneOrder::Permits(asks));
        }
        !granted.is_empty()
    }

    /// Makes the lanes that have ready jobs of a topic search for them.
    fn search_for(&mut self, topic: &TopicName) {
        for (number, lane) in self.lanes.iter_mut().enumerate() {
            if self.fair.knows(number, topic) {
                lane.search(Asks::Known);
            }
        }
    }

    /// Takes the permits that a home has granted, or its errors.
    pub(super) fn permitted(
        &mut self,
        asks: &[PermitAsk],
        permits: Vec<Result<Permit, StoreError>>,
        now: Instant,
    ) {
        for (ask, permit) in asks.iter().zip(permits) {
            if let Err(e) = &permit {
                log::debug!("{}: no permits: {e}", ask.topic);
            }
            if self.limits.answered(ask, permit.ok(), now) {
                self.search_for(&ask.topic);
            }
        }
    }

    /// Learns from the end of a callback how its receiver is. If the circuit must open or close, all lanes are told.
    pub(super) fn learn(&mut self, callback: &RunningCallback, failed: bool, error: &str, now: Instant) {
        let RunningCallback { leased, topic, began, .. } = callback;
        let verdict = self.evidence.ended(topic, leased.probe, failed, *began, now);
        for lane in 0..self.lanes.len() {
            match verdict {
                None => {}
                Some(Verdict::Open { pause, opens }) => {
                    let (topic, reason) = (topic.name.clone(), error.to_owned());
                    self.order(lane, LaneOrder::Open(Opening { topic, pause, opens, reason }));
                }
                Some(Verdict::Close) => self.order(lane, LaneOrder::Close(topic.name.clone())),
            }
        }
    }

    /// Notes that a circuit was opened on a lane. Only the answer of the topic's home is logged: of all processes that
    /// saw the failure, one was the first there.
    pub(super) fn note_opened(&mut self, lane: usize, opening: &Opening, is_news: Result<bool, StoreError>) {
        let Opening { topic, pause, opens, reason } = opening;
        let reason = Excerpt(reason);
        // The jobs on this lane wait while the circuit is open. The next lease reports until when, and this process may
        // be the one that gets the probe.
        self.lanes[lane].search(Asks::All);
        if pause.is_zero() {
            return;
        }
        if self.home_of(topic) == lane && *is_news.as_ref().unwrap_or(&true) {
            log::warn!("{topic}: its receiver fails ({reason}): its jobs wait for {pause:?}");
        } else if *opens > 1 && self.home_of(topic) == lane {
            log::info!("{topic}: its receiver still fails ({reason}): its jobs wait for {pause:?}");
        }
        if let Err(e) = is_news {
            log::debug!("{topic}: its circuit cannot be opened everywhere: {e}");
        }
    }

    pub(super) fn note_closed(&mut self, lane: usize, topic: &TopicName, is_news: Result<bool, StoreError>) {
        self.lanes[lane].search(Asks::All);
        match is_news {
            Ok(true) if self.home_of(topic) == lane => {
                log::warn!("{topic}: its receiver is back: its jobs are delivered");
            }
            Ok(_) => {}
            Err(e) => log::debug!("{topic}: its circuit cannot be closed everywhere: {e}"),
        }
    }

    /// Notes which circuits let nothing through on a lane, and when the first of them lets a job through.
    pub(super) fn note_waiting(&mut self, lane: usize, waiting: Vec<(TopicName, Duration)>, now: Instant) {
        // The lane has reported all topics that were asked. For the others, its earlier report still holds.
        for (topic, wait) in
            waiting.into_iter().filter(|(topic, _)| self.topics.get(topic.as_str()).is_some())
        {
            self.evidence.is_open(&topic, now);
            self.lanes[lane].note_circuit(topic, now + wait);
        }
    }

    /// Makes a job that is too old for a callback a dead letter.
    pub(super) fn skip(
        &mut self,
        lane: usize,
        topic: &Topic,
        leased: Leased,
        attempt: Attempt,
        now: Instant,
    ) {
        self.limits.ended(&topic.name, false);
        if let Some(opens) = leased.probe {
            // This probe said nothing about its receiver, so the next job may be the probe at once. Other lanes may
            // have probes of their own in flight, so they are not told.
            let (pause, reason) = (Duration::ZERO, attempt.error.clone());
            let opening = Opening { topic: topic.name.clone(), pause, opens, reason };
            self.order(lane, LaneOrder::Open(opening));
        }
        let Leased { key, token, .. } = leased;
        if self.failures.admits(&key.topic, true, now) {
            let (id, error) = (Excerpt(&key.id), Excerpt(&attempt.error));
            log::error!(target: "notify", "{}:{id} is a dead letter: {error}", key.topic);
        }
        let settlement = Settlement { key, token, outcome: Outcome::Bury, attempt: Some(attempt) };
        self.lanes[lane].owe(settlement, now);
    }
}
