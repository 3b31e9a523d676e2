//! Exchanges with the lanes, in the main loop: what is settled and leased, and what follows from what that brought.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use anyhow::Result;

use super::counter::GATHER;
use super::ending::{ack_url, too_old};
use super::lane::{self, Order};
use super::{Consumer, Flight, LEASE_MARGIN};
use crate::fair::Asks;
use crate::job::TopicName;
use crate::store::{Batch, Settlement, StoreError, Wanted};

impl Consumer {
    /// Orders what is to be done on a lane, unless it is at something.
    pub(super) fn exchange(&mut self, number: usize) {
        let (now, free, share) = (Instant::now(), self.free(), self.counters.len() as u32);
        let counter = &mut self.counters[number];
        // A moment that has come is not waited for any more, whatever may be done now.
        counter.again = counter.again.filter(|at| *at > now);
        if counter.lets_through.is_some_and(|at| at <= now) {
            counter.lets_through = None;
            counter.look_everywhere();
        }
        if counter.busy.is_some() || counter.again.is_some() {
            return;
        }
        // Outcomes that cannot be settled do not pile up without end.
        let all_go = counter.unsettled.len() <= lane::BATCH;
        let leases = counter.look && !self.drains && free > 0 && all_go;
        if counter.unsettled.is_empty() && !leases {
            return;
        }
        if counter.gathers_until().is_some_and(|until| until > now) {
            return;
        }
        let count = counter.unsettled.len().min(lane::BATCH);
        let settle: Vec<Settlement> = counter.unsettled.drain(..count).collect();
        counter.gathers_since = (!counter.unsettled.is_empty()).then_some(now);
        // A lane that hangs must not hold all workers that are free.
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
        counter.lane.order(Order::Exchange { settle, wanted, limit: limit as usize });
    }

    /// Takes what came of it.
    pub(super) fn exchanged(
        &mut self,
        number: usize,
        unsettled: Vec<Settlement>,
        batch: Batch,
        failed: Option<StoreError>,
    ) -> Result<()> {
        let (now, counter) = (Instant::now(), &mut self.counters[number]);
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
                    StoreError::Settling(_) => counter.trouble.waits(&e),
                    _ => counter.trouble.again_at(&format_args!("cannot lease or settle: {e}")),
                });
                // What was to be leased is looked for again. Until then no permits are held for it.
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
            // Also when it has changed or gone meanwhile: the lease is as it was then.
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
            self.in_flight.insert(leased.token.clone(), Flight { leased, topic, lane: number, by });
        }
        self.workers.begin();
        self.note_waiting(number, batch.waiting);
        let counter = &mut self.counters[number];
        counter.end_lease(now - since, now);
        let served = |(topic, _): &(TopicName, u64)| self.topics.now().is_delivered(topic.as_str());
        let left: Vec<(TopicName, u64)> = batch.left.into_iter().filter(served).collect();
        self.fair.left(number, asked.keys(), left.iter().cloned());
        let in_vain = brought == 0 && asked.keys().all(|topic| self.fair.knows(number, topic));
        // What rang meanwhile may have come after that.
        counter.rung.iter().for_each(|topic| self.fair.rang(number, topic));
        counter.leaves = self.fair.knows_some(number);
        counter.knows_until = (!left.is_empty()).then(|| Instant::now() + GATHER);
        let mut others = std::mem::take(&mut counter.unasked);
        let counter = &self.counters[number];
        // There may be no worker for these any more.
        others.extend(counter.rung.iter().filter(|topic| self.wants(topic) == 0).cloned());
        let surveyed = counter.asks == Asks::All;
        let more = self.fair.more(number, self.free(), |topic| self.limits.allowed(topic));
        // What was not asked for may be for others, and what this one may not take; but where the limits hold it back, those
        // hold others back as well, and it comes again by itself. (Where not all were asked, it may be asked next.)
        let is_ours = |topic: &TopicName| {
            asked.contains_key(topic)
                || (self.limits.allowed(topic).is_some() || !surveyed) && self.wants(topic) > 0
        };
        others.extend(left.iter().map(|(topic, _)| topic).cloned());
        others.retain(|topic| !is_ours(topic));
        let counter = &mut self.counters[number];
        // What is left although it was asked for is not for the asking: the next bell or callback brings the next try. But what was
        // known and is not so any more stood in front of others.
        counter.look |= more && !in_vain;
        // Once: between processes that may not take it either it would go round without end.
        let is_told = |topic: &TopicName| counter.passed_on.contains_key(topic);
        let topics: Vec<TopicName> = others.iter().filter(|t| !is_told(t)).cloned().collect();
        counter.passed_on.retain(|topic, _| self.fair.knows(number, topic));
        counter.passed_on.extend(topics.iter().map(|topic| (topic.clone(), Instant::now())));
        if !topics.is_empty() {
            counter.lane.order(Order::PassOn { topics, rest: !more });
        }
        Ok(())
    }
}
