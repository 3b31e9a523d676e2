//! The bells, and the threads of the lanes. These threads carry out the orders of the dispatchers.

use std::collections::BTreeSet;
use std::time::Duration;

use super::super::lane::{ExchangeAnswer, LaneEvent, LaneOrder};
use super::world::{MS, SimulatedConsumer, SimulatedEvent, World, millis};
use ::store::{LeaseRequest, Ring, Settlement, StoreError, TopicRing};
use model::job::TopicName;

/// How long a process rests after it has passed on work.
pub(super) const REST: Duration = Duration::from_millis(10);

impl World {
    /// A lane has rung. If each ring reaches only one process, one of the listening processes gets the ring. Otherwise,
    /// the thread of each process notes the ring.
    pub(super) fn ring(&mut self, lane: usize) {
        if self.rings_reach_one {
            return self.after(MS / 10, SimulatedEvent::Ring(lane));
        }
        while self.lanes[lane].take_ring().is_some() {}
        for consumer in 0..self.consumers.len() {
            self.consumers[consumer].threads[lane].is_rung = true;
            self.receive_own_rings(consumer, lane);
        }
    }

    /// For a bell that rings for every process: reports the ring when this process listens.
    pub(super) fn receive_own_rings(&mut self, consumer: usize, lane: usize) {
        let thread = &mut self.consumers[consumer].threads[lane];
        if thread.is_rung && thread.listens && thread.has_bell && !thread.is_busy {
            thread.is_rung = false;
            self.receive_ring(consumer, lane, Ring::All);
        }
    }

    /// Gives the oldest ring of a lane to one of the processes that listen. If no process listens, the ring stays.
    pub(super) fn deliver_ring(&mut self, lane: usize) {
        if !self.lanes[lane].is_rung() {
            return;
        }
        let now = self.now;
        let can = |c: &SimulatedConsumer| {
            let thread = &c.threads[lane];
            !c.is_gone && thread.has_bell && thread.listens && thread.rests_until.is_none_or(|at| at <= now)
        };
        let listeners: Vec<usize> = (0..self.consumers.len()).filter(|c| can(&self.consumers[*c])).collect();
        // (When a process begins to listen, or has rested, it tries again to get the ring.)
        let Some(consumer) = self.rng.choice(listeners) else { return };
        let ring = self.lanes[lane].take_ring().unwrap();
        let ring = match ring {
            (Some(topic), number) => Ring::Of(TopicRing { topic, shard: 0, number: number.to_string() }),
            (None, _) => Ring::All,
        };
        self.receive_ring(consumer, lane, ring);
        self.after(MS / 10, SimulatedEvent::Ring(lane));
    }

    pub(super) fn receive_ring(&mut self, consumer: usize, lane: usize, ring: Ring) {
        let thread = &mut self.consumers[consumer].threads[lane];
        thread.heard += 1;
        // The thread reports the ring when it has carried out its orders.
        let wait = thread.free_at.map_or(Duration::ZERO, |at| at.saturating_duration_since(self.now));
        self.after(wait + MS / 20, SimulatedEvent::Report(consumer, lane, LaneEvent::Rang(vec![ring])));
    }

    pub(super) fn order(&mut self, number: usize, lane: usize, order: LaneOrder) {
        let (seed, now) = (self.seed, self.now);
        let running = self.consumers[number].callbacks.len();
        let concurrency = self.concurrency as usize;
        if let LaneOrder::Exchange { settle, wanted, limit } = &order {
            self.exchanges += 1;
            let consumer = &mut self.consumers[number];
            let thread = &mut consumer.threads[lane];
            assert!(thread.under_way.replace(*limit).is_none(), "seed {seed}: two exchanges at once");
            let reserved: usize = consumer.threads.iter().filter_map(|thread| thread.under_way).sum();
            assert!(running + reserved <= concurrency, "seed {seed}: a lease of too many jobs");
            assert!(*limit == 0 || !consumer.is_draining, "seed {seed}: a lease while the process drains");
            for Settlement { token, .. } in settle {
                assert!(!consumer.callbacks.contains_key(token), "seed {seed}: settled before its end");
            }
            let asked: BTreeSet<&TopicName> = wanted.iter().map(|wanted| &wanted.topic).collect();
            assert_eq!(asked.len(), wanted.len(), "seed {seed}: a topic twice in one lease");
        }
        let thread = &mut self.consumers[number].threads[lane];
        thread.orders.push_back(order);
        if thread.orders.len() == 1 && !thread.is_busy {
            thread.is_busy = true;
            thread.free_at = Some(now + MS / 50);
            self.after(MS / 50, SimulatedEvent::Order(number, lane));
        }
    }

    /// The thread of a lane carries out its next order.
    pub(super) fn carry_out(&mut self, number: usize, lane: usize) {
        let took = millis(&mut self.rng, 0..2) + MS / 20;
        let Some(order) = self.consumers[number].threads[lane].orders.pop_front() else {
            self.consumers[number].threads[lane].is_busy = false;
            return self.receive_own_rings(number, lane);
        };
        let now = self.now;
        let fails = self.is_troubled() && self.rng.u8(0..8) == 0;
        let down = || StoreError::NodeDown("it is away".to_owned());
        let mut wait = took;
        let event = match order {
            LaneOrder::Exchange { settle, wanted, limit } => {
                if fails && self.rng.u8(0..8) == 0 {
                    wait += millis(&mut self.rng, 100..5000);
                } else if self.is_troubled() && self.rng.u8(0..32) == 0 {
                    // The process is stopped for about `LEASE_MARGIN`: a little less, or up to five seconds more.
                    wait += millis(&mut self.rng, 14_000..20_000);
                }
                Some(LaneEvent::Exchanged(self.exchange(number, lane, settle, &wanted, limit, fails)))
            }
            LaneOrder::PassOn { topics, rest } => {
                self.lanes[lane].pass_on(&topics);
                if rest {
                    self.consumers[number].threads[lane].rests_until = Some(now + REST);
                    self.after(REST, SimulatedEvent::Ring(lane));
                }
                self.ring_if_shared(lane);
                None
            }
            LaneOrder::GiveBack(rings) if fails => Some(LaneEvent::Kept(rings)),
            LaneOrder::GiveBack(rings) => {
                self.lanes[lane].give_back(&rings);
                self.ring_if_shared(lane);
                None
            }
            LaneOrder::Listen(listens) => {
                self.consumers[number].threads[lane].listens = listens;
                self.ring_if_shared(lane);
                None
            }
            LaneOrder::Deaf => {
                self.consumers[number].threads[lane].has_bell = false;
                self.lanes[lane].announce();
                self.ring(lane);
                Some(LaneEvent::Deaf)
            }
            LaneOrder::HandBack => panic!("only at the end of a drain"),
            LaneOrder::Permits(asks) => {
                let grant = |ask| {
                    if fails {
                        Err(down())
                    } else {
                        Ok(self.lanes[lane].permit(number, ask, now, self.start))
                    }
                };
                let permits = asks.iter().map(grant).collect();
                Some(LaneEvent::Permitted { asks, permits })
            }
            LaneOrder::Open(opening) if fails => Some(LaneEvent::Opened { opening, is_news: Err(down()) }),
            LaneOrder::Open(opening) => {
                let is_news = Ok(self.lanes[lane].open(&opening, now));
                Some(LaneEvent::Opened { opening, is_news })
            }
            LaneOrder::Close(topic) if fails => Some(LaneEvent::Closed { topic, is_news: Err(down()) }),
            LaneOrder::Close(topic) => {
                let is_news = Ok(self.lanes[lane].close(&topic));
                self.ring(lane);
                Some(LaneEvent::Closed { topic, is_news })
            }
        };
        if let Some(event) = event {
            self.after(wait, SimulatedEvent::Report(number, lane, event));
        }
        self.consumers[number].threads[lane].free_at = Some(now + wait);
        self.after(wait, SimulatedEvent::Order(number, lane));
    }

    pub(super) fn ring_if_shared(&mut self, lane: usize) {
        if self.rings_reach_one {
            self.after(MS / 10, SimulatedEvent::Ring(lane));
        }
    }

    /// Settles and leases in a lane. If the exchange fails, either nothing was done, or everything was done and the
    /// answer was lost.
    pub(super) fn exchange(
        &mut self,
        number: usize,
        lane: usize,
        settle: Vec<Settlement>,
        wanted: &[LeaseRequest],
        limit: usize,
        fails: bool,
    ) -> ExchangeAnswer {
        let down = || StoreError::NodeDown("it is away".to_owned());
        let failed = fails.then(down).filter(|_| limit > 0);
        let is_done = !fails || self.rng.bool();
        let mut answer = ExchangeAnswer { failed, ..ExchangeAnswer::default() };
        // One shard of the lane may be down while the other shards work.
        let (settle, mut unsettled): (Vec<_>, Vec<_>) = match self.is_troubled() && self.rng.u8(0..4) == 0 {
            true => settle.into_iter().partition(|_| self.rng.bool()),
            false => (settle, Vec::new()),
        };
        if is_done {
            for (job, topic, pause) in self.lanes[lane].settle(&settle) {
                self.after(pause, SimulatedEvent::Ready(lane, topic, job));
            }
            if limit > 0 {
                answer.batch = self.lanes[lane].lease(wanted, limit, number, &mut self.rng, self.now);
                self.ring_if_shared(lane);
            }
        }
        // The leases of a call whose answer is lost may be taken back with the next exchange, or later.
        let takes_back = !(fails || self.is_troubled() && self.rng.bool());
        let thread = &mut self.consumers[number].threads[lane];
        if fails {
            let lost = std::mem::take(&mut answer.batch);
            thread.lost.extend(lost.jobs.into_iter().map(|job| job.token));
            unsettled.extend(settle);
        }
        answer.not_settled = (!unsettled.is_empty()).then(down);
        answer.unsettled = unsettled;
        if takes_back && !thread.lost.is_empty() {
            let lost = std::mem::take(&mut thread.lost);
            self.lanes[lane].take_back(Some(&lost), number, self.now);
            self.ring(lane);
        }
        answer.unanswered = !self.consumers[number].threads[lane].lost.is_empty();
        answer
    }
}
