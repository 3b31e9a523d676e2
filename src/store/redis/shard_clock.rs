//! Compares the clock of a shard with the clock of this host, which counts from the boot of the host. The sender of the
//! spool needs this comparison, because it compares times of two clocks. The spool notes by the clock of the host when
//! an entry began to wait. A shard notes by its own clock when a job died.

use super::RedisStore;
use super::answer;
use super::node::Call;
use super::nodes::Place;
use crate::Result;
use crate::spool::since_boot_ms;

/// If the answer takes longer than this, in milliseconds, the clock is read again.
const PRECISE: i64 = 20;

/// How many times the clock is read at most.
const TRIES: usize = 3;

/// The clock of a shard at one moment.
#[derive(Debug, Clone, Copy)]
pub(super) struct ShardClock {
    /// When this host asked, in milliseconds since its boot.
    asked_ms: i64,
    /// What the clock of the shard showed at that moment or later, in Unix milliseconds.
    shard_ms: i64,
}

impl ShardClock {
    /// Reads the clock of a shard. Uses the most precise of a few readings.
    pub(super) fn read(store: &RedisStore, place: Place) -> Result<ShardClock> {
        let mut best: Option<(i64, ShardClock)> = None;
        for _ in 0..TRIES {
            let asked_ms = since_boot_ms();
            let time = store.ask_by(place, Call::plain(place.shard, redis::cmd("TIME")))?;
            let took_ms = since_boot_ms() - asked_ms;
            let time = answer::array(time)?;
            let [seconds, micros] = time.as_slice() else { return Err(answer::unexpected("the time")) };
            let shard_ms = answer::number(seconds)? * 1000 + answer::number(micros)? / 1000;
            if best.is_none_or(|(shortest_ms, _)| took_ms < shortest_ms) {
                best = Some((took_ms, ShardClock { asked_ms, shard_ms }));
            }
            if took_ms <= PRECISE {
                break;
            }
        }
        best.map(|(_, clock)| clock).ok_or_else(|| answer::unexpected("the time"))
    }

    /// Returns a moment of this host (milliseconds since its boot) by the clock of the shard, in Unix milliseconds. The
    /// result is too late by up to the time that the shard needed to answer, and never too early.
    pub(super) fn at(self, host_ms: i64) -> i64 {
        // The times are cut down to whole milliseconds. So without these 2 ms, the result could be too early.
        self.shard_ms - (self.asked_ms - host_ms) + 2
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_of_the_host_is_never_too_early_at_the_shard() {
        // The shard is 5 s ahead. Its clock was read 3 ms after the host had asked.
        let clock = ShardClock { asked_ms: 10_000, shard_ms: 15_003 };
        assert_eq!((clock.at(10_000), clock.at(9_000)), (15_005, 14_005));
    }
}
