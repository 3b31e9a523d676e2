//! Calculates what the two rules of `fair` need: weights, how far a topic advances, and the threshold.

use crate::job::Priority;

/// Returns the weight of a priority. If there is one topic of each priority, and each topic has enough ready jobs, the
/// topic of this priority gets this number of every ten jobs.
pub(super) fn weight(priority: Priority) -> u32 {
    match priority {
        Priority::High => 5,
        Priority::Normal => 3,
        Priority::Low => 2,
    }
}

/// Returns how far a topic of this weight advances with each job. (30 is divisible by all weights.)
pub(super) fn stride(weight: u32) -> u64 {
    u64::from(30 / weight)
}

/// The dynamic threshold: returns whether a topic may begin one more callback. `top` is the greatest weight of the
/// topics that want to begin a callback.
pub(super) fn may_begin_more(flying: u32, free: u32, weight: u32, top: u32) -> bool {
    u64::from(flying) * u64::from(top) < u64::from(free) * u64::from(weight)
}
