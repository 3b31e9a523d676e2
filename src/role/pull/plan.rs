//! Plans what is asked of the lanes: permits, rings and leases. Pure.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use super::Reserve;
use super::broker::Broker;
use super::calls::{
    BrokerLane, CALL_JOBS, CALLS, LaneOrder, LeaseCall, PendingLeaseCall, REGISTER, RunningCalls,
};
use model::job::TopicName;
use model::topic::{OnReserve, Topic};
use store::LeaseRequest;

impl Broker {
    /// Asks for permits of topics with a rate, and gives back unused permits.
    pub(super) fn ask_permits(&mut self, now: Instant) {
        let limited = |topic: &TopicName| self.topics.get(topic.as_str()).and_then(|known| known.rate);
        let mut topics: BTreeSet<TopicName> = self.rates.topics().into_iter().collect();
        topics.extend(self.waiting.keys().filter(|topic| limited(topic).is_some()).cloned());
        for topic in topics {
            let Some(rate) = limited(&topic) else {
                self.rates.forget(&topic);
                continue;
            };
            let is_hot = self.lanes.iter().any(|lane| lane.hot.contains(&topic));
            let want = match self.waiting.get(&topic) {
                Some(ids) if is_hot && self.may_lease(&topic, now) => self.wanted_by(ids),
                _ if self.lanes.iter().any(|lane| lane.uses(&topic)) => continue,
                _ => 0,
            };
            if let Some(ask) = self.rates.ask(&topic, rate, want, now) {
                self.orders.push(((self.home_of)(topic.as_str()), LaneOrder::Permits(vec![ask])));
            }
        }
    }

    /// Returns how many jobs these clients want, up to the maximum of one call.
    fn wanted_by(&self, ids: &BTreeSet<u64>) -> u32 {
        let max = |id: &u64| self.waiters.get(id).map_or(0, |waiter| waiter.reserve.max);
        ids.iter().take(CALL_JOBS as usize).map(max).sum::<u32>().min(CALL_JOBS)
    }

    /// Returns a topic, if its jobs may be leased for clients.
    fn pulled(&self, topic: &TopicName) -> Option<&Topic> {
        let known = self.topics.get(topic.as_str()).filter(|_| self.topics.is_pulled(topic.as_str()));
        known.map(|topic| &**topic)
    }

    /// Whether the jobs of a topic may be leased now: clients may reserve them, and no pause because of a limit is
    /// running. (Rates are checked separately.)
    pub(super) fn may_lease(&self, topic: &TopicName, now: Instant) -> bool {
        self.pulled(topic).is_some() && self.held.get(topic).is_none_or(|held| held.until <= now)
    }

    /// Returns how many permits of a topic may be used now. None: the topic has no rate.
    pub(super) fn permits(&self, topic: &TopicName) -> Option<u32> {
        self.pulled(topic).and_then(|known| known.rate).map(|_| self.rates.usable_permits(topic))
    }

    /// Begins the next order of a lane, if there is something to ask the lane for.
    pub(super) fn plan(&mut self, number: usize, now: Instant) {
        let lane = &mut self.lanes[number];
        lane.hot.retain(|topic| self.waiting.contains_key(topic));
        lane.registered.retain(|topic, _| self.waiting.contains_key(topic));
        let is_failing = lane.failing.as_ref().is_some_and(|(until, _)| *until > now);
        if lane.under_way.is_some() || is_failing {
            return;
        }
        let due = |topic: &&TopicName| lane.registered.get(*topic).is_none_or(|at| *at + REGISTER <= now);
        let register: Vec<TopicName> = self.waiting.keys().filter(due).cloned().collect();
        let calls = self.calls(number, now);
        if register.is_empty() && calls.is_empty() {
            return;
        }
        if !calls.is_empty() {
            self.first_lane = (number + 1) % self.lanes.len();
        }
        let lane = &mut self.lanes[number];
        lane.registered.extend(register.iter().map(|topic| (topic.clone(), now)));
        let orders = calls.iter().map(|planned| planned.call.clone()).collect();
        lane.under_way = Some(RunningCalls { since: now, calls, is_given_up: false });
        self.orders.push((number, LaneOrder::Lease { register, calls: orders }));
    }

    /// Plans the calls of an order. The clients that came first are served first. Clients with one topic and the same
    /// lease share a call. A client with several topics has a call of its own, because its order of preference counts.
    fn calls(&mut self, number: usize, now: Instant) -> Vec<PendingLeaseCall> {
        let may_lease = |topic: &&TopicName| self.may_lease(topic, now) && self.permits(topic) != Some(0);
        let hot: BTreeSet<TopicName> = self.lanes[number].hot.iter().filter(may_lease).cloned().collect();
        let ids: BTreeSet<u64> = hot
            .iter()
            .filter_map(|topic| self.waiting.get(topic))
            .flat_map(|ids| ids.iter().take(2 * CALL_JOBS as usize).copied())
            .collect();
        let mut calls: Vec<PendingLeaseCall> = Vec::new();
        // Whether the last call is for clients with one topic.
        let mut may_share = false;
        for id in ids {
            let Some(waiter) = self.waiters.get(&id).filter(|waiter| waiter.on.is_none()) else { continue };
            let is_single = waiter.reserve.topics.len() == 1;
            let wanted = self.wanted(number, &waiter.reserve, &hot, now);
            let Some(first) = wanted.first() else { continue };
            let (max, lease) = (waiter.reserve.max as usize, waiter.reserve.lease);
            let is_owned = waiter.reserve.is_owned;
            let is_shared =
                is_single && may_share && calls.last().is_some_and(|last| last.takes(first, lease, is_owned));
            if !is_shared && calls.len() == CALLS {
                break;
            }
            may_share = is_single;
            for want in &wanted {
                self.rates.take(&want.topic, want.max);
            }
            match calls.last_mut().filter(|_| is_shared) {
                Some(last) => last.join(first, id),
                None => {
                    let limit = if is_single { first.max as usize } else { max };
                    let call = LeaseCall { wanted, limit, lease, is_owned, removed: BTreeSet::new() };
                    calls.push(PendingLeaseCall { call, waiters: vec![id] });
                }
            }
            self.waiters.get_mut(&id).expect("it waits").on = Some(number);
        }
        for want in calls.iter().flat_map(|planned| &planned.call.wanted) {
            self.lanes[number].hot.remove(&want.topic);
        }
        for PendingLeaseCall { call, .. } in &mut calls {
            // A client that asks for an owned lease needs a lease, and a removed job has none. So no jobs are removed
            // for such a client.
            let topics = call.wanted.iter().map(|want| &want.topic).filter(|_| !call.is_owned);
            let is_removed = |topic: &&TopicName| {
                self.pulled(topic).is_some_and(|known| known.on_reserve == OnReserve::Remove)
            };
            call.removed = topics.filter(is_removed).cloned().collect();
        }
        calls
    }

    /// Returns which topics a client wants from a lane, in its order of preference. If another lane may have jobs of a
    /// topic, the list ends with this topic, so that jobs of later topics are not leased too early. So the order holds
    /// over all lanes.
    fn wanted(
        &self,
        number: usize,
        reserve: &Reserve,
        hot: &BTreeSet<TopicName>,
        now: Instant,
    ) -> Vec<LeaseRequest> {
        let mut wanted = Vec::new();
        for (place, topic) in reserve.topics.iter().enumerate() {
            wanted.extend(self.want(topic, reserve, hot));
            let is_last = place + 1 == reserve.topics.len();
            if !is_last && self.may_be_elsewhere(topic, number, now) {
                break;
            }
        }
        wanted
    }

    /// Whether jobs of a topic may be on another lane that answers, or may be leased here as soon as permits come.
    fn may_be_elsewhere(&self, topic: &TopicName, number: usize, now: Instant) -> bool {
        if !self.may_lease(topic, now) {
            return false;
        }
        let has_permits = self.permits(topic) != Some(0);
        let is_awaited = !has_permits && self.rates.is_awaited(topic, now);
        let may = |(place, lane): (usize, &BrokerLane)| {
            let is_hot = lane.hot.contains(topic);
            let is_else = place != number && (has_permits && is_hot || lane.uses(topic));
            lane.answers(now) && (is_else || is_awaited && is_hot)
        };
        self.lanes.iter().enumerate().any(may)
    }

    /// Returns what a client wants of a topic on a lane. None: nothing at the moment.
    fn want(&self, topic: &TopicName, reserve: &Reserve, hot: &BTreeSet<TopicName>) -> Option<LeaseRequest> {
        let known = self.pulled(topic).filter(|_| hot.contains(topic))?;
        let max = reserve.max.min(self.permits(topic).unwrap_or(u32::MAX));
        let hold = reserve.lease.unwrap_or(known.ttr);
        let (max_leased, max_attempts) = (known.max_in_flight, known.max_attempts);
        let is_own_ttr = reserve.lease.is_none();
        (max > 0).then(|| LeaseRequest {
            topic: topic.clone(),
            max,
            hold,
            is_own_ttr,
            max_leased,
            max_attempts,
        })
    }
}

impl BrokerLane {
    /// Whether the lane is expected to answer soon: it does not fail and does not hang.
    fn answers(&self, now: Instant) -> bool {
        let hangs = self.under_way.as_ref().is_some_and(|under_way| under_way.is_given_up);
        !hangs && self.failing.as_ref().is_none_or(|(until, _)| *until <= now)
    }

    /// Whether a lease under way has permits of a topic.
    fn uses(&self, topic: &TopicName) -> bool {
        let calls = self.under_way.iter().flat_map(|under_way| &under_way.calls);
        calls.flat_map(|planned| &planned.call.wanted).any(|want| want.topic == *topic)
    }
}

impl PendingLeaseCall {
    /// Whether a client with one topic may share the call.
    fn takes(&self, want: &LeaseRequest, lease: Option<Duration>, is_owned: bool) -> bool {
        let sum: u32 = self.call.wanted.iter().map(|want| want.max).sum();
        sum + want.max <= CALL_JOBS && self.call.lease == lease && self.call.is_owned == is_owned
    }

    fn join(&mut self, want: &LeaseRequest, id: u64) {
        match self.call.wanted.iter_mut().find(|known| known.topic == want.topic) {
            Some(known) => known.max += want.max,
            None => self.call.wanted.push(want.clone()),
        }
        self.call.limit += want.max as usize;
        self.waiters.push(id);
    }
}
