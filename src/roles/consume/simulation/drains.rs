//! How simulated consumers end.

use super::super::lane::LaneOrder;
use super::world::{SimulatedEvent, World, millis};
use ::store::Token;
use delivery::callback::Verdict;

impl World {
    /// A consumer begins to drain. Some drains end before all callbacks have ended.
    pub(super) fn drain(&mut self, number: usize) {
        self.consumers[number].is_draining = true;
        self.consumers[number].dispatcher.drain();
        self.act(number);
        if self.rng.bool() {
            let limit = millis(&mut self.rng, 1..3000);
            self.after(limit, SimulatedEvent::DrainEnds(number));
        }
    }

    /// The time limit of a drain is over. The lanes carry out their last orders. Then the process ends, even if
    /// callbacks still run. The outcomes of all ended callbacks must be in the store by then.
    pub(super) fn end_drain(&mut self, number: usize) {
        if self.consumers[number].is_gone {
            return;
        }
        let running: Vec<Token> = self.consumers[number].callbacks.keys().cloned().collect();
        for token in running {
            if self.rng.bool() {
                self.report_end(number, token, Verdict::Accepted);
            }
        }
        let consumer = &mut self.consumers[number];
        consumer.dispatcher.settle_rest();
        let mut orders = consumer.dispatcher.take_orders();
        for (lane, thread) in consumer.threads.iter_mut().enumerate() {
            orders.splice(0..0, thread.orders.drain(..).map(|order| (lane, order)));
        }
        let running: Vec<Token> = std::mem::take(&mut consumer.callbacks).into_keys().collect();
        for (lane, order) in orders {
            let LaneOrder::Exchange { settle, .. } = order else { continue };
            for (job, topic, pause) in self.lanes[lane].settle(&settle) {
                self.after(pause, SimulatedEvent::Ready(lane, topic, job));
            }
        }
        let is_forgotten = |token: &&Token| !running.contains(token);
        let forgotten: Vec<&Token> =
            self.lanes.iter().flat_map(|lane| lane.leases_of(number)).filter(is_forgotten).collect();
        // If stores fail, an outcome may have been sent, but its answer has not come yet.
        let seed = self.seed;
        assert!(self.has_trouble || forgotten.is_empty(), "seed {seed}: {forgotten:?} not settled");
        self.retire(number);
    }

    /// A process has ended. The timers hand back its leases.
    pub(super) fn retire(&mut self, number: usize) {
        let consumer = &mut self.consumers[number];
        assert!(consumer.callbacks.is_empty());
        consumer.is_gone = true;
        for lane in 0..self.lanes.len() {
            self.lanes[lane].take_back(None, number, self.now);
            self.lanes[lane].announce();
            self.ring(lane);
        }
    }
}
