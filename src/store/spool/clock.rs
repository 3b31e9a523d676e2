//! The host's clocks, for delays that continue while a job waits in the spool.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use nix::time::{ClockId, clock_gettime};

use model::job::Due;

/// A moment, by the clocks of the host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct HostMoment {
    /// Unix microseconds. Somebody may set this clock.
    pub unix_us: i64,
    /// The id of the boot of the host in which this moment was.
    pub boot: String,
    /// Milliseconds since that boot, including the time in which the host slept. Nobody can set this clock.
    pub boot_ms: i64,
}

impl HostMoment {
    /// Returns the present moment. `boot` is the result of [`boot_id`].
    pub(super) fn now(boot: &str) -> HostMoment {
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        HostMoment { unix_us: unix.as_micros() as i64, boot: boot.to_owned(), boot_ms: since_boot_ms() }
    }

    /// Returns how much of a delay is left at this moment. The delay began at `since`. After a reboot it is not known
    /// how long the host was off. In this case, only the time since the boot is counted as passed, so that no job is
    /// delivered too early.
    pub(super) fn left_of(&self, delay: Duration, since: &HostMoment) -> Due {
        let passed_ms = if self.boot == since.boot { self.boot_ms - since.boot_ms } else { self.boot_ms };
        // The moments are rounded down to whole milliseconds, so the difference may be up to a millisecond too large.
        let passed = Duration::from_millis(u64::try_from(passed_ms - 1).unwrap_or(0));
        Due::In(delay.saturating_sub(passed))
    }

    /// Converts a moment that was noted during another boot: from Unix microseconds (`unix_us`) to milliseconds since
    /// the present boot. The Unix clock says how long ago the moment was. A moment before the present boot becomes 0. A
    /// moment later than the start of the present boot was noted on another machine.
    pub(super) fn boot_ms_at(&self, unix_us: i64) -> i64 {
        let passed_ms = (self.unix_us - unix_us).max(0) / 1000;
        (self.boot_ms - passed_ms).max(0)
    }
}

/// Returns how long ago the host was booted, in milliseconds, including the time in which it slept.
pub(crate) fn since_boot_ms() -> i64 {
    clock_gettime(ClockId::CLOCK_BOOTTIME)
        .map_or(0, |t| t.tv_sec().saturating_mul(1000).saturating_add(t.tv_nsec() / 1_000_000))
}

/// Returns the id of the host's present boot.
pub(super) fn boot_id() -> std::io::Result<String> {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id").map(|id| id.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moment(boot: &str, boot_ms: i64) -> HostMoment {
        HostMoment { unix_us: 0, boot: boot.to_owned(), boot_ms }
    }

    #[test]
    fn a_delay_goes_on_by_the_boot_clock_and_is_never_early() {
        let ms = Duration::from_millis;
        let since = moment("a", 10_000);
        assert_eq!(moment("a", 10_000).left_of(ms(5000), &since), Due::In(ms(5000)));
        assert_eq!(moment("a", 12_001).left_of(ms(5000), &since), Due::In(ms(3000)));
        assert_eq!(moment("a", 90_000).left_of(ms(5000), &since), Due::In(ms(0)));
        // The host was off for an unknown time, and has been on for two seconds.
        assert_eq!(moment("b", 2001).left_of(ms(5000), &since), Due::In(ms(3000)));
        assert_eq!(moment("b", 0).left_of(ms(5000), &since), Due::In(ms(5000)));
    }

    #[test]
    fn a_moment_of_another_boot_is_not_before_the_present_boot() {
        let now = HostMoment { unix_us: 900_000_000, ..moment("b", 60_000) };
        assert_eq!(now.boot_ms_at(100_000_000), 0, "before a reboot");
        assert_eq!(now.boot_ms_at(870_000_000), 30_000, "on another machine");
        assert_eq!(now.boot_ms_at(990_000_000), 60_000, "the clock was set back");
    }

    #[test]
    fn the_boot_clock_moves() {
        let boot = boot_id().unwrap();
        let now = HostMoment::now(&boot);
        assert!(boot.len() == 36 && now.boot_ms > 0 && now.unix_us > 1_700_000_000_000_000);
    }
}
