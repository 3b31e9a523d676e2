//! Ends the waits of clients whose time is over, or whose lane does not answer. Pure.

use std::time::Instant;

use super::broker::{Broker, GRACE};
use super::calls::{BrokerLane, PATIENCE};
use model::job::TopicName;

impl Broker {
    /// Frees the clients of a lane that does not answer.
    pub(super) fn give_up(&mut self, number: usize, now: Instant) {
        let Some(under_way) = self.lanes[number].under_way.as_mut() else { return };
        if under_way.is_given_up || under_way.since + PATIENCE > now {
            return;
        }
        under_way.is_given_up = true;
        let waiters: Vec<u64> = under_way.calls.iter().flat_map(|call| call.waiters.clone()).collect();
        self.free(number, &waiters);
    }

    /// Answers the clients whose time is over.
    pub(super) fn end_waits(&mut self, now: Instant) {
        while let Some((at, id)) = self.deadlines.first().copied().filter(|(at, _)| *at <= now) {
            self.deadlines.pop_first();
            let Some(waiter) = self.waiters.get(&id) else { continue };
            if at >= waiter.reserve.until + GRACE {
                self.end_wait(id);
            } else {
                self.deadlines.insert((waiter.reserve.until + GRACE, id));
                self.overdue.insert(id);
            }
        }
        let over: Vec<u64> = self.overdue.iter().copied().filter(|id| !self.may_come(*id, now)).collect();
        over.into_iter().for_each(|id| self.end_wait(id));
    }

    /// Whether something under way may bring jobs to a client.
    fn may_come(&self, id: u64, now: Instant) -> bool {
        let Some(waiter) = self.waiters.get(&id) else { return false };
        let may = |lane: &BrokerLane, topic: &TopicName| {
            let has_permits = self.permits(topic) != Some(0) || self.rates.is_asked(topic);
            lane.hot.contains(topic) && self.may_lease(topic, now) && has_permits
        };
        let answers = |lane: &&BrokerLane| lane.failing.as_ref().is_none_or(|(until, _)| *until <= now);
        let mut lanes = self.lanes.iter().filter(answers);
        waiter.on.is_some() || lanes.any(|lane| waiter.reserve.topics.iter().any(|topic| may(lane, topic)))
    }

    /// Answers a client for which no job came.
    fn end_wait(&mut self, id: u64) {
        let mut errors = self.lanes.iter().map(|lane| lane.failing.as_ref().map(|(_, e)| e.clone()));
        let failed = match errors.next().flatten() {
            Some(first) if errors.all(|e| e.is_some()) => Some(first),
            _ => None,
        };
        self.answer(id, failed.map_or_else(|| Ok(Vec::new()), Err));
    }
}
