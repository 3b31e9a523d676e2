//! A seeded simulation in simulated time, only for tests. Several consumers use a simulated store. The lanes of the
//! store fail, hang and lose answers. Topics come and go, and there are limits, circuits and drains.
//!
//! It checks that no lane gets two exchanges at once, that no lease asks for more jobs than there are free workers,
//! that nothing polls, and that in the end every job that somebody serves has been delivered. `SIMULATION_SEED=…`
//! repeats one sequence. `SIMULATION_SEQUENCES=…` plays the given number of random sequences. `world` has the events
//! and their times, `threads` has the lane threads and the bells, `drains` says how consumers end, and `store` has a
//! lane of the store.

mod drains;
mod lane_thread;
mod store;
mod threads;
mod world;

use std::time::Duration;

use fastrand::Rng;

use self::store::SimulatedLane;
use self::world::{SimulatedConsumer, SimulatedEvent, TROUBLE, World};
use model::job::TopicName;

/// How many sequences a test plays, unless the environment sets another number. (Twenty sequences take a second.)
const SEQUENCES: u64 = 150;

/// All jobs must be delivered within this time after the time of trouble. An exchange that hangs takes 5 s. After a
/// lost probe, a circuit waits for up to 20 s. A home forgets after 30 s which permits a process held. Each job may
/// need one more second, if its topic has one callback at a time.
const PATIENCE: Duration = Duration::from_secs(60);

impl World {
    /// Whether every job that a living consumer serves has ended.
    fn is_done(&self) -> bool {
        let living = || self.consumers.iter().filter(|consumer| !consumer.is_draining);
        let is_served = |topic: &TopicName| living().any(|c| c.topics.is_delivered(topic.as_str()));
        let coming = self
            .happenings
            .values()
            .any(|happening| matches!(happening, SimulatedEvent::Ready(_, topic, _) if is_served(topic)));
        let ready = self.lanes.iter().flat_map(SimulatedLane::ready).any(|(topic, _)| is_served(topic));
        !coming && !ready && self.lanes.iter().all(|lane| lane.leases() == 0)
    }

    fn open_jobs(&self) -> u64 {
        self.jobs - self.lanes.iter().map(|lane| lane.ended).sum::<u64>()
    }

    fn story(&self) -> String {
        let ready: Vec<Vec<(&TopicName, usize)>> =
            self.lanes.iter().map(|lane| lane.ready().collect()).collect();
        let leases: Vec<usize> = self.lanes.iter().map(SimulatedLane::leases).collect();
        let served: Vec<Vec<&str>> =
            self.consumers.iter().map(|c| c.topics.iter().map(|t| t.name.as_str()).collect()).collect();
        let drains: Vec<(bool, bool)> = self.consumers.iter().map(|c| (c.is_draining, c.is_gone)).collect();
        let lanes: Vec<_> = self.consumers.iter().map(|c| &c.dispatcher.lanes).collect();
        format!(
            "seed {}: after {:?}: ready {ready:?}, leases {leases:?}, served {served:?}, draining and gone {drains:?}, {} workers\n{lanes:#?}",
            self.seed,
            self.now - self.start,
            self.concurrency
        )
    }
}

fn seeds() -> Vec<u64> {
    let given = |name| std::env::var(name).ok().and_then(|number| number.parse().ok());
    let random = |count| std::iter::repeat_with(|| Rng::new().u64(..)).take(count as usize).collect();
    match (given("SIMULATION_SEED"), given("SIMULATION_SEQUENCES")) {
        (Some(seed), _) => vec![seed],
        (None, Some(count)) => random(count),
        (None, None) => (0..SEQUENCES).collect(),
    }
}

#[test]
fn every_served_job_is_delivered_and_nothing_polls() {
    for seed in seeds() {
        let mut world = World::new(seed);
        let calm = world.start + TROUBLE;
        while world.step(calm) {}
        let end = calm + PATIENCE + Duration::from_secs(world.open_jobs());
        while !world.is_done() && world.step(end) {}
        assert!(world.is_done(), "{}", world.story());
        let leaving = |c: &SimulatedConsumer| c.is_draining && !c.is_gone;
        while world.consumers.iter().any(leaving) && world.step(end) {}
        assert!(!world.consumers.iter().any(leaving), "a drain does not end: {}", world.story());
        // Only a little work is left: rings and topics that are for other processes, and reports to homes.
        let (exchanges, now) = (world.exchanges, world.now);
        while world.step(now + Duration::from_secs(20)) {}
        let idle = world.exchanges - exchanges;
        assert!(idle <= 60, "{idle} exchanges in 20 s without work: {}", world.story());
        let postponed: u64 = world.lanes.iter().map(|lane| lane.postponed).sum();
        assert!(postponed <= 500 + 20 * world.jobs, "{postponed} postponed: {}", world.story());
        let most = 500 + 10 * (world.callbacks + world.jobs + postponed);
        assert!(world.exchanges <= most, "{} exchanges: {}", world.exchanges, world.story());
    }
}
