//! The exchanges with the lanes, in the main loop: what is settled and leased, and what follows from the answers.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use anyhow::Result;

use super::ending::{ack_url, too_old};
use super::lane::{self, LaneOrder};
use super::lane_state::{GATHER, TAKE_BACK};
use super::{Consumer, LEASE_MARGIN, RunningCallback};
use model::fair::Asks;
use model::job::TopicName;
use store::{Batch, Settlement, StoreError, Wanted};

impl Consumer {
    /// Orders the next exchange of a lane, unless one is under way.
    pub(super) fn exchange(&mut self, number: usize) {
        let (now, free, share) = (Instant::now(), self.free(), self.counters.len() as u32);
        let counter = &mut self.counters[number];
        // A moment that has passed is no longer waited for, whether anything can be done now or not.
        counter.again = counter.again.filter(|at| *at > now);
        if counter.lets_through.is_some_and(|at| at <= now) {
            counter.lets_through = None;
            counter.look_everywhere();
        }
        if counter.busy.is_some() || counter.again.is_some() {
            return;
        }
        // Outcomes that cannot be settled must not pile up without end.
        let all_go = counter.unsettled.len() <= lane::BATCH;
        let leases = counter.look && !self.drains && free > 0 && all_go;
        let takes_back = counter.takes_back_at().is_some_and(|at| at <= now);
        if counter.unsettled.is_empty() && !leases && !takes_back {
            return;
        }
        if !takes_back && counter.gathers_until().is_some_and(|until| until > now) {
            return;
        }
        let count = counter.unsettled.len().min(lane::BATCH);
        let settle: Vec<Settlement> = counter.unsettled.drain(..count).collect();
        counter.gathers_since = (!counter.unsettled.is_empty()).then_some(now);
        // A lane that hangs must not hold all free workers.
        let limit = if leases { free.div_ceil(share).min(lane::BATCH as u32) } else { 0 };
        let allowed = |topic: &TopicName| self.limits.allowed(topic);
        counter.asked.clear();
        let mut quotas = Vec::new();
        if leases {
            counter.begin_lease(now);
            counter.rung.iter().for_each(|topic| self.fair.rang(number, topic));
            quotas = self.fair.plan(number, free, limit, allowed, counter.asks);
        }
        let mut wanted = Vec::new();
        for quota in quotas {
            let Some(topic) = self.topics.now().get(quota.topic.as_str()) else { continue };
            wanted.push(Wanted {
                topic: quota.topic.clone(),
                max: quota.max,
                hold: topic.timeout + LEASE_MARGIN,
                max_attempts: topic.max_attempts,
            });
            self.limits.reserve(&quota.topic, quota.max);
            counter.asked.insert(quota.topic, (Arc::clone(topic), quota.max));
        }
        if leases {
            counter.unasked = std::mem::take(&mut counter.rung);
            counter.unasked.retain(|topic| !counter.asked.contains_key(topic));
        }
        counter.busy = Some((now, limit));
        counter.lane.order(LaneOrder::Exchange { settle, wanted, limit: limit as usize });
    }

    /// Takes the answer of an exchange.
    pub(super) fn exchanged(
        &mut self,
        number: usize,
        unsettled: Vec<Settlement>,
        batch: Batch,
        failed: Option<StoreError>,
        unanswered: bool,
    ) -> Result<()> {
        let (now, counter) = (Instant::now(), &mut self.counters[number]);
        counter.take_back_at = unanswered.then(|| now + TAKE_BACK);
        let (since, limit) = counter.busy.take().unwrap_or((now, 0));
        unsettled.into_iter().for_each(|settlement| counter.owe(settlement));
        let asked = std::mem::take(&mut counter.asked);
        let mut begun: BTreeMap<TopicName, u32> = BTreeMap::new();
        batch.jobs.iter().for_each(|job| *begun.entry(job.key.topic.clone()).or_default() += 1);
        for (topic, (_, max)) in &asked {
            self.limits.leased(topic, *max, begun.get(topic).copied().unwrap_or(0));
        }
        match failed {
            None => counter.trouble.over(),
            Some(e @ StoreError::Gone(_)) => return Err(e.into()),
            Some(e) => {
                counter.again = Some(match e {
                    StoreError::Moving(_) => counter.trouble.waits(&e),
                    _ => counter.trouble.again_at(&format_args!("cannot lease or settle: {e}")),
                });
                // The jobs that the lease should have brought are looked for again. Until then no permits are held for
                // them.
                counter.look_everywhere();
                if batch.jobs.is_empty() {
                    counter.rung.extend(self.fair.forget(number));
                    return Ok(());
                }
            }
        }
        if limit == 0 {
            return Ok(());
        }
        let brought = batch.jobs.len();
        for leased in batch.jobs {
            // The lease keeps the topic as it was when it was ordered, even if the topic has changed or is gone.
            let Some((topic, _)) = asked.get(&leased.key.topic) else { continue };
            if let Some(attempt) = too_old(topic, &leased) {
                self.skip(number, topic, leased, attempt);
                continue;
            }
            self.fair.began(&leased.key.topic);
            let (base, secret) = (self.public_url.as_deref(), self.counters[number].secret.as_ref());
            self.workers.call(topic, &leased, ack_url(base, secret, topic, &leased));
            let by = Instant::now() + topic.timeout + LEASE_MARGIN;
            let topic = Arc::clone(topic);
            self.counters[number].flying += 1;
            self.in_flight.insert(leased.token.clone(), RunningCallback { leased, topic, lane: number, by });
        }
        self.workers.begin();
        self.note_waiting(number, batch.waiting);
        let counter = &mut self.counters[number];
        counter.end_lease(now - since, now);
        let served = |(topic, _): &(TopicName, u64)| self.topics.now().is_delivered(topic.as_str());
        let left: Vec<(TopicName, u64)> = batch.left.into_iter().filter(served).collect();
        self.fair.left(number, asked.keys(), left.iter().cloned());
        let in_vain = brought == 0 && asked.keys().all(|topic| self.fair.knows(number, topic));
        // Rings that came during the exchange may be newer than its answer.
        counter.rung.iter().for_each(|topic| self.fair.rang(number, topic));
        counter.leaves = self.fair.knows_some(number);
        counter.knows_until = (!left.is_empty()).then(|| Instant::now() + GATHER);
        let mut others = std::mem::take(&mut counter.unasked);
        let counter = &self.counters[number];
        // There may be no worker for these any more.
        others.extend(counter.rung.iter().filter(|topic| self.wants(topic) == 0).cloned());
        let surveyed = counter.asks == Asks::All;
        let more = self.fair.more(number, self.free(), |topic| self.limits.allowed(topic));
        // A topic that was not asked for, and that this process cannot take, may be for other processes. If its limits
        // hold it back, they hold the others back as well, and this process asks for permits by itself. (If not all
        // topics were asked, this one may be asked next.)
        let is_ours = |topic: &TopicName| {
            asked.contains_key(topic)
                || (self.limits.allowed(topic).is_some() || !surveyed) && self.wants(topic) > 0
        };
        others.extend(left.iter().map(|(topic, _)| topic).cloned());
        others.retain(|topic| !is_ours(topic));
        let counter = &mut self.counters[number];
        // Jobs that are left although they were asked for cannot be leased by asking again. The next bell or callback
        // brings the next try. But if an asked topic turns out to have no jobs, it took the place of others, so the
        // lane looks again.
        counter.look |= more && !in_vain;
        // A topic is passed on only once. Between processes that may not take it either, it would go round without end.
        let is_told = |topic: &TopicName| counter.passed_on.contains_key(topic);
        let topics: Vec<TopicName> = others.iter().filter(|t| !is_told(t)).cloned().collect();
        counter.passed_on.retain(|topic, _| self.fair.knows(number, topic));
        counter.passed_on.extend(topics.iter().map(|topic| (topic.clone(), Instant::now())));
        if !topics.is_empty() {
            counter.lane.order(LaneOrder::PassOn { topics, rest: !more });
        }
        Ok(())
    }
}
