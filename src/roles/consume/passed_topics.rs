//! Rings for topics that this host does not serve. A ring may reach only one of the listening processes, and that
//! process may not serve the topic. Such a process gives the ring back, so that another process gets it. If nobody uses
//! the ring, it comes back. The process then keeps the ring longer each time before it gives the ring back again.
//! Otherwise the ring would go round without end between processes that do not serve its topic. Pure.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use model::job::TopicName;
use store::TopicRing;

/// How long a ring is kept when it comes back for the first time. The time doubles with each return.
const SOON: Duration = Duration::from_millis(10);

/// The longest time for which a ring is kept.
const LATE: Duration = Duration::from_secs(1);

/// The rings that were given back recently, by shard and topic.
#[derive(Debug, Default)]
pub(super) struct RingBackoffs(BTreeMap<(usize, TopicName), RingBackoff>);

#[derive(Debug)]
struct RingBackoff {
    ring: TopicRing,
    pause: Duration,
    again_at: Instant,
    /// Whether the ring has come back. If so, it is kept until `again_at`.
    is_kept: bool,
}

impl RingBackoff {
    fn first(ring: TopicRing, now: Instant) -> RingBackoff {
        RingBackoff { ring, pause: SOON, again_at: now + SOON, is_kept: false }
    }
}

impl RingBackoffs {
    /// Takes rings that are for other processes. Returns the rings that must be given back now.
    pub(super) fn heard(&mut self, rings: Vec<TopicRing>, now: Instant) -> Vec<TopicRing> {
        let mut back = Vec::new();
        for ring in rings {
            let place = (ring.shard, ring.topic.clone());
            match self.0.get_mut(&place) {
                Some(given) if given.ring == ring => given.is_kept = true,
                _ => {
                    back.push(ring.clone());
                    self.0.insert(place, RingBackoff::first(ring, now));
                }
            }
        }
        back
    }

    /// Keeps rings that could not be given back.
    pub(super) fn keep(&mut self, rings: Vec<TopicRing>, now: Instant) {
        for ring in rings {
            let place = (ring.shard, ring.topic.clone());
            let given = self.0.entry(place).or_insert_with(|| RingBackoff::first(ring, now));
            given.is_kept = true;
        }
    }

    /// Returns the rings that have been kept for long enough. Forgets the rings that did not come back: somebody used
    /// them.
    pub(super) fn again(&mut self, now: Instant) -> Vec<TopicRing> {
        let mut back = Vec::new();
        self.0.retain(|_, given| {
            if given.again_at > now {
                return true;
            }
            if std::mem::take(&mut given.is_kept) {
                back.push(given.ring.clone());
                given.pause = (given.pause * 2).min(LATE);
                given.again_at = now + given.pause;
                return true;
            }
            false
        });
        back
    }

    /// Returns when `again` must be called next.
    pub(super) fn next(&self) -> Option<Instant> {
        self.0.values().map(|given| given.again_at).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ring(topic: &str, shard: usize, number: &str) -> TopicRing {
        TopicRing { topic: TopicName::new(topic).unwrap(), shard, number: number.into() }
    }

    #[test]
    fn a_ring_is_given_back_at_once_and_each_other_one_as_well() {
        let (mut passing, now) = (RingBackoffs::default(), Instant::now());
        for n in 0..5 {
            let rings = vec![ring("t", 0, &n.to_string()), ring("t", 1, &n.to_string()), ring("u", 0, "7")];
            let back = passing.heard(rings.clone(), now);
            assert_eq!(back, if n == 0 { &rings[..] } else { &rings[..2] });
        }
        // A ring that has come back is kept for a while. Then this process gives it back again. It is forgotten if it
        // does not come back again.
        assert_eq!(passing.next(), Some(now + SOON));
        assert_eq!(passing.again(now + SOON), [ring("u", 0, "7")]);
        assert_eq!(passing.next(), Some(now + SOON * 3));
        assert!(passing.again(now + SOON * 3).is_empty() && passing.next().is_none());
        // If a ring could not be given back, this is tried again later.
        passing.keep(vec![ring("t", 0, "4")], now);
        assert_eq!(passing.again(now + SOON), [ring("t", 0, "4")]);
    }

    #[test]
    fn a_ring_that_nobody_heeds_is_kept_ever_longer_whoever_has_it() {
        // Simulates a store that gives the ring to several hosts in turn. None of these hosts serves its topic.
        for hosts in 1..5 {
            let mut all: Vec<RingBackoffs> = (0..hosts).map(|_| RingBackoffs::default()).collect();
            let (mut now, mut held, mut passed) = (Instant::now(), None, vec![0; 30]);
            let begun = now;
            while now < begun + Duration::from_secs(30) {
                for passing in &mut all {
                    if held.is_none() {
                        passed[now.duration_since(begun).as_secs() as usize] += 1;
                        held = passing.heard(vec![ring("t", 0, "1")], now).is_empty().then_some(());
                    }
                }
                now += Duration::from_millis(1);
                for passing in &mut all {
                    if !passing.again(now).is_empty() {
                        held = None;
                    }
                }
            }
            let late: u32 = passed[10..].iter().sum();
            assert!(late <= 20 * (hosts + 1), "{hosts} hosts: {passed:?}");
        }
    }
}
