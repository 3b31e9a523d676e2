//! The exchanges with the lanes: what is settled and leased, and what follows from the answers.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;

use super::LEASE_MARGIN;
use super::dispatcher::{ConsumerState, RunningCallback, allowed};
use super::ending::too_old;
use super::held_back::{LATE_LEASE, is_too_late};
use super::host_limits::HeldJob;
use super::lane::{self, ExchangeAnswer, LaneOrder};
use super::lane_state::{ExchangeState, ExchangeUnderWay, LeaseUnderWay};
use model::fair::LeaseTopicSelection;
use model::job::TopicName;
use role::expiry::expired;
use store::{LeaseRequest, LeasedJob, Outcome, StoreError};

impl ExchangeState {
    /// Returns how many workers are kept free for the jobs that a lease under way may bring.
    pub(super) fn reserved(&self) -> u32 {
        match self {
            ExchangeState::UnderWay(ExchangeUnderWay { lease: Some(lease), .. }) => lease.limit,
            _ => 0,
        }
    }
}

impl ConsumerState {
    /// Orders the next exchange of a lane, if it is due and no exchange is under way.
    pub(super) fn begin_exchange(&mut self, number: usize, now: Instant) {
        let (free, share) = (self.free(), self.lanes.len() as u32);
        let lane = &mut self.lanes[number];
        let leases = !self.drains && free > 0 && lane.is_searching(self.concurrency as usize);
        if !lane.is_due(leases, now) {
            return;
        }
        let settle = lane.take_settlements(now);
        // A lane that hangs must not occupy all free workers.
        let limit = free.div_ceil(share).min(lane::BATCH as u32);
        let lease = leases.then(|| self.plan_lease(number, free, limit, now));
        let wanted = lease.iter().flat_map(|lease| &lease.1).cloned().collect();
        let order = LaneOrder::Exchange { settle, wanted, limit: if leases { limit as usize } else { 0 } };
        let lease = lease.map(|(lease, _)| lease);
        self.lanes[number].exchange = ExchangeState::UnderWay(ExchangeUnderWay { since: now, lease });
        self.order(number, order);
    }

    /// Plans a lease of up to `limit` jobs: which topics it asks for, and the number of jobs for each topic.
    fn plan_lease(
        &mut self,
        number: usize,
        free: u32,
        limit: u32,
        now: Instant,
    ) -> (LeaseUnderWay, Vec<LeaseRequest>) {
        let lane = &mut self.lanes[number];
        let asks = lane.begin_lease(now);
        let mut unasked = std::mem::take(&mut lane.rung);
        let allowed = |topic: &TopicName| allowed(&self.limits, &self.hosts, topic);
        let quotas = self.fair.plan(number, free, limit, allowed, asks);
        let (mut asked, mut wanted) = (BTreeMap::new(), Vec::new());
        for quota in quotas {
            let Some(topic) = self.topics.get(quota.topic.as_str()) else { continue };
            wanted.push(LeaseRequest {
                topic: quota.topic.clone(),
                max: quota.max,
                hold: topic.timeout + LEASE_MARGIN,
                max_leased: None,
                is_own_ttr: false,
                max_attempts: topic.lease_limit(),
            });
            self.limits.reserve(&quota.topic, quota.max);
            if quota.max > 0 {
                unasked.remove(&quota.topic);
            }
            asked.insert(quota.topic, (Arc::clone(topic), quota.max));
        }
        (LeaseUnderWay { limit, asked, asks, unasked }, wanted)
    }

    /// Takes the answer of an exchange. Fails if the file of the store was removed or replaced.
    pub(super) fn exchanged(
        &mut self,
        number: usize,
        answer: ExchangeAnswer,
        now: Instant,
    ) -> Result<(), StoreError> {
        let ExchangeAnswer { unsettled, not_settled, batch, failed, unanswered } = answer;
        let lane = &mut self.lanes[number];
        let ExchangeState::UnderWay(ExchangeUnderWay { since, lease }) =
            std::mem::replace(&mut lane.exchange, ExchangeState::Idle)
        else {
            return Ok(());
        };
        lane.note_unanswered(unanswered, now);
        let has_settled = not_settled.is_none();
        match not_settled {
            None if lane.has_put_off() => {}
            None => lane.settle_trouble.end(),
            Some(e @ StoreError::Gone(_)) => return Err(e),
            Some(e) => {
                let pause = lane.settle_trouble.pause_after_store("cannot settle", &e);
                lane.put_off(unsettled, now + pause, now);
            }
        }
        if let Some(lease) = &lease {
            let mut brought: BTreeMap<&TopicName, u32> = BTreeMap::new();
            batch.jobs.iter().for_each(|job| *brought.entry(&job.key.topic).or_default() += 1);
            for (topic, (_, max)) in &lease.asked {
                self.limits.leased(topic, *max, brought.get(topic).copied().unwrap_or(0));
            }
        }
        self.pass_on_lost(number, lease.as_ref(), failed.is_some() && batch.jobs.is_empty());
        let lane = &mut self.lanes[number];
        match failed {
            // An exchange that had no lease, and has not settled everything, does not show that the store works.
            None if lease.is_none() && !has_settled => {}
            None => lane.trouble.end(),
            Some(e @ StoreError::Gone(_)) => return Err(e),
            Some(e) => {
                let pause = lane.trouble.pause_after_store("cannot lease", &e);
                lane.exchange = ExchangeState::Paused { until: now + pause };
                self.holds.note_store_down(number, now + pause);
                // The lane searches again for the jobs that the lease should have brought. If no job came, this process
                // forgets the ready jobs of the lane until that search (`forget`), so that it keeps no permits for
                // them.
                lane.search(LeaseTopicSelection::All);
                if batch.jobs.is_empty() {
                    self.fair.forget(number);
                    return Ok(());
                }
            }
        }
        let Some(lease) = lease else { return Ok(()) };
        let brought = batch.jobs.len();
        if brought > 0 && is_too_late(since, now) {
            let took = now - since;
            log::warn!("a lease call was answered after {took:.1?}: its {brought} jobs are handed back");
        }
        for leased in batch.jobs {
            self.take_job(number, &lease, leased, since, now);
        }
        self.note_waiting(number, batch.waiting, now);
        self.note_left(number, lease, brought, batch.left, since, now);
        Ok(())
    }

    /// Rings the bell again for other processes, if this process stopped serving a topic during the lease. The bell may
    /// have rung for this process alone. After a successful lease, `note_left` checks the topics that the lease did not
    /// ask for. After a failed lease, they are passed on here.
    fn pass_on_lost(&mut self, number: usize, lease: Option<&LeaseUnderWay>, has_failed: bool) {
        let Some(lease) = lease else { return };
        let unasked = lease.unasked.iter().filter(|_| has_failed);
        let is_lost = |topic: &&TopicName| !self.topics.is_delivered(topic.as_str());
        let topics: Vec<TopicName> = lease.asked.keys().chain(unasked).filter(is_lost).cloned().collect();
        if !topics.is_empty() {
            self.order(number, LaneOrder::PassOn { topics, rest: false });
        }
    }

    /// Takes a job of an exchange that began at `since`. The job's callback begins, with these exceptions: the job or
    /// the answer of the exchange is too old, or the host is at its limit.
    fn take_job(
        &mut self,
        number: usize,
        lease: &LeaseUnderWay,
        leased: LeasedJob,
        since: Instant,
        now: Instant,
    ) {
        // The lease has the topic as it was when the lease was ordered, even if the topic has changed or is gone since.
        let Some((topic, _)) = lease.asked.get(&leased.key.topic) else { return };
        if let Some(attempt) = expired(&leased).or_else(|| too_old(topic, &leased)) {
            return self.skip(number, topic, leased, attempt, now);
        }
        let job = HeldJob { lane: number, topic: Arc::clone(topic), leased, since, host: None };
        if is_too_late(since, now) {
            return self.return_unused(job, Outcome::HandBack, LATE_LEASE, now);
        }
        if let Some(decision) = self.hosts.take(job, now) {
            self.carry_out(decision, now);
        }
    }

    /// Begins the callback of a leased job.
    pub(super) fn begin_callback(&mut self, job: HeldJob, now: Instant) {
        let HeldJob { lane, topic, leased, since: _, host } = job;
        self.fair.record_begin(&leased.key.topic);
        let late = self.holds.lateness(&leased.key.topic, lane, leased.late(), now);
        self.lanes[lane].flying += 1;
        self.beginning.push(leased.token.clone());
        let callback = RunningCallback { topic, lane, began: now, leased, host, late };
        self.in_flight.insert(callback.leased.token.clone(), callback);
    }

    /// Learns from the answer of a lease which jobs are left on the lane. Decides whether this process or other
    /// processes search for them.
    fn note_left(
        &mut self,
        number: usize,
        lease: LeaseUnderWay,
        brought: usize,
        left: Vec<(TopicName, u64)>,
        since: Instant,
        now: Instant,
    ) {
        let LeaseUnderWay { mut asked, asks, unasked, .. } = lease;
        let is_served = |(topic, _): &(TopicName, u64)| self.topics.is_delivered(topic.as_str());
        let left: Vec<(TopicName, u64)> = left.into_iter().filter(is_served).collect();
        self.fair.record_ready(number, asked.keys(), left.iter().cloned());
        // For topics with a maximum of 0, the lease could bring no jobs. It only counted their ready jobs.
        asked.retain(|_, (_, max)| *max > 0);
        let in_vain = brought == 0 && asked.keys().all(|topic| self.fair.knows(number, topic));
        // The rings that came during the exchange may be newer than the answer to the exchange.
        let rung = &self.lanes[number].rung;
        rung.iter().for_each(|topic| self.fair.note_ring(number, topic));
        // The bell rang for these topics, but they get no free worker now.
        let without_worker = rung.iter().filter(|topic| self.wanted_callbacks(topic) == 0);
        let mut others: BTreeSet<TopicName> = without_worker.cloned().chain(unasked).collect();
        others.extend(left.into_iter().map(|(topic, _)| topic));
        // These topics are for this process:
        // - The topics that the lease asked for.
        // - The topics with limits, while workers are left. A limit holds a topic back in all processes, so it does not
        //   help to pass the topic on. This process asks for permits by itself, and needs no ring for this.
        // - The other topics, while workers are left and if the lease did not ask for all topics. The next lease may
        //   ask for them.
        let is_ours = |topic: &TopicName| {
            asked.contains_key(topic)
                || (allowed(&self.limits, &self.hosts, topic).is_some() || asks == LeaseTopicSelection::Known)
                    && self.wanted_callbacks(topic) > 0
        };
        others.retain(|topic| !is_ours(topic));
        let more = self.fair.more(number, self.free(), |topic| allowed(&self.limits, &self.hosts, topic));
        let lane = &mut self.lanes[number];
        lane.end_lease(asks, since, self.fair.has_ready_jobs(number), now);
        // If the lease brought nothing, but all topics that it asked for have ready jobs, asking again does not help.
        // The lane tries again after the next ring or callback. But if one of these topics has no jobs, the next lease
        // can ask for another topic instead. So the lane searches again at once.
        if more && !in_vain {
            lane.search(LeaseTopicSelection::Known);
        }
        let topics = lane.pass_on(others, |topic| self.fair.knows(number, topic), now);
        if !topics.is_empty() {
            self.order(number, LaneOrder::PassOn { topics, rest: !more });
        }
    }
}
