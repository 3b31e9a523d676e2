//! The broker with lanes that are slow, or that always have jobs, in the world of `simulation`.

use std::time::Duration;

use super::Reserve;
use super::simulation::{MS, World, name};

#[test]
fn no_lane_starves_beside_one_that_always_has_jobs() {
    let mut world = World { is_calm: true, ..World::new(4) };
    for id in 0..100 {
        for lane in 0..2 {
            world.jobs += 1;
            world.lanes[lane].ready.entry(name("a")).or_default().push_back(world.jobs);
        }
        let (topics, until) = (vec![name("a")], world.now + Duration::from_secs(5));
        world.come_as(id, Reserve { topics, max: 1, lease: None, is_owned: false, client: None, until });
        while world.clients.contains_key(&id) {
            world.step(false);
        }
    }
    let left = [0, 1].map(|lane: usize| world.lanes[lane].ready[&name("a")].len());
    assert!(left.iter().all(|left| (40..=60).contains(left)), "{left:?}");
}

#[test]
fn a_removed_job_of_a_late_answer_goes_to_a_client_that_waits() {
    let mut world = World { is_calm: true, ..World::new(5) };
    world.lanes[0].ready.entry(name("gone")).or_default().push_back(7);
    world.jobs += 1;
    let (topics, until) = (vec![name("gone")], world.now + Duration::from_secs(10));
    world.come_as(1, Reserve { topics, max: 1, lease: None, is_owned: false, client: None, until });
    world.act();
    world.lanes[0].order.as_mut().expect("it is asked first").0 += 1500 * MS;
    // The client is freed for the other lane, which does not answer soon either.
    while world.lanes[1].order.as_ref().is_none_or(|(_, calls)| calls.is_empty()) {
        world.step(false);
    }
    world.lanes[1].order.as_mut().unwrap().0 += Duration::from_secs(5);
    (0..1600).for_each(|_| world.step(false));
    assert!(world.done.contains(&7) && !world.clients.contains_key(&1));
}

#[test]
fn a_lane_that_hangs_holds_up_no_other_topic() {
    let mut world = World { is_calm: true, ..World::new(3) };
    world.lanes[1].ready.entry(name("b")).or_default().push_back(7);
    world.jobs += 1;
    let until = world.now + Duration::from_secs(5);
    world.come_as(
        1,
        Reserve {
            topics: vec![name("a"), name("b")],
            max: 1,
            lease: None,
            is_owned: false,
            client: None,
            until,
        },
    );
    world.act();
    let (at, _) = world.lanes[0].order.as_mut().expect("it is asked for the first topic");
    *at += Duration::from_secs(60);
    (0..1100).for_each(|_| world.step(false));
    assert!(world.done.contains(&7));
}
