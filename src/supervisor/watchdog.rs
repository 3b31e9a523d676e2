//! Signs of life: the master pings its children, and their main loops answer. A child that is silent for too long is
//! killed and replaced.
//!
//! The master counts silence in its own rounds, not by a clock. A master that was stopped, or got no processor time,
//! has made no rounds meanwhile. So this pause of the master does not make a child seem silent.

use std::time::{Duration, Instant};

use super::child::State;
use super::{DRAIN_GRACE, GenerationSlot, Master, child};
use host::{self, ToChild};

/// How many rounds make up the time that a child may be silent.
const ROUNDS: u32 = 4;

impl Master {
    /// Returns when the next round is due; none: no generation has a watchdog.
    pub(super) fn round_at(&self) -> Option<Instant> {
        self.round_at.filter(|_| self.round_length().is_some())
    }

    fn round_length(&self) -> Option<Duration> {
        self.generations.values().filter_map(|g| g.plan.watchdog).min().map(|watchdog| watchdog / ROUNDS)
    }

    /// If a round is due, pings the children, and ends children that are silent or stuck.
    pub(super) fn watch_children(&mut self) {
        let Some(length) = self.round_length() else {
            self.round_at = None;
            return;
        };
        let now = Instant::now();
        // If the interval has become shorter, the shorter interval counts from now.
        let round_at = self.round_at.map_or(now + length, |at| at.min(now + length));
        self.round_at = Some(round_at);
        if round_at > now {
            return;
        }
        self.round_at = Some(now + length);
        // Answers that have arrived meanwhile count.
        self.read_links();
        let mut silent = Vec::new();
        let mut stuck = Vec::new();
        for (place, filled) in &mut self.children {
            let Some(generation) = self.generations.get(&place.0) else { continue };
            let (Some(watchdog), Some(pid)) = (generation.plan.watchdog, filled.watched()) else { continue };
            let lasted = filled.silence.round(length);
            if lasted >= watchdog {
                let state = host::state_of(pid.as_raw());
                silent.push((rank(state), *place, format!("silent for {lasted:?}, {}", words(state))));
            } else if filled.overdue >= watchdog {
                stuck.push((*place, generation.plan.drain_timeout));
            }
            if let Some(link) = &filled.link {
                // A child that does not read its pings does not answer either, so an error here needs no handling.
                let _ = link.send(&ToChild::Ping);
            }
        }
        // Only one child is ended at a time. The other children may be silent because they wait for this child, and may
        // answer when it is gone.
        if let Some((_, place, reason)) = one_of(silent) {
            self.end_because(place, reason, child::ChildEvent::Silent);
        }
        for (place, drain_timeout) in stuck {
            let kill_at = now + drain_timeout + DRAIN_GRACE;
            let reason = "one of its workers is past its deadline".to_owned();
            self.end_because(place, reason, child::ChildEvent::Stuck { kill_at });
        }
    }

    fn end_because(&mut self, place: GenerationSlot, reason: String, event: child::ChildEvent) {
        let Some(filled) = self.children.get_mut(&place) else { return };
        let stuck = matches!(event, child::ChildEvent::Stuck { .. });
        let unlimited = |state| matches!(state, State::Up { .. } | State::Draining { kill_at: None, .. });
        if stuck && !unlimited(filled.child.state) {
            return;
        }
        let Some(pid) = filled.child.pid() else { return };
        log::error!(
            "{} ({pid}) is {}: {reason}",
            place.1,
            if stuck { "drained, to be replaced" } else { "replaced" }
        );
        filled.reason = Some(reason);
        self.step(place, event);
    }
}

/// Returns which of several silent children is ended first.
fn one_of<T: Ord>(silent: Vec<(u8, GenerationSlot, T)>) -> Option<(u8, GenerationSlot, T)> {
    silent.into_iter().min()
}

/// Returns the rank of a silent child by the state of its process. The other children most likely wait for the child
/// with the lowest rank.
fn rank(state: Option<char>) -> u8 {
    match state {
        Some('T' | 't') => 0,
        Some('R') => 1,
        Some('D') => 2,
        _ => 3,
    }
}

fn words(state: Option<char>) -> &'static str {
    match state {
        Some('T' | 't') => "stopped",
        Some('R') => "running",
        Some('D') => "in a system call that does not return",
        Some('S') => "waiting for something else",
        _ => "in an unknown state",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_one_that_the_others_may_wait_for_comes_first() {
        let place = |index| (1, model::slot::Slot { role: model::slot::Role::Timer, index });
        let all = [Some('S'), None, Some('D'), Some('T'), Some('R')];
        let mut left: Vec<_> = all.into_iter().zip(0..).map(|(s, i)| (rank(s), place(i), ())).collect();
        let mut order = Vec::new();
        while let Some(first) = one_of(left.clone()) {
            left.retain(|other| *other != first);
            order.push(first.1.1.index);
        }
        assert_eq!(order, [3, 4, 2, 0, 1]);
    }
}
