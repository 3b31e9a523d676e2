//! The log lines about requests that the store refused. The first line comes at once. Then there is at most one line a
//! second, with the number of further refusals. (Clients get an error for each refusal.) Pure.

use std::fmt;
use std::time::{Duration, Instant};

/// The shortest time between two lines.
const PAUSE: Duration = Duration::from_secs(1);

/// Refusals that were not logged yet.
#[derive(Debug, Default)]
pub(super) struct UnreportedRefusals {
    told_at: Option<Instant>,
    untold: usize,
    /// The log line about the last batch with refusals, and the number of refused requests of this batch.
    last: Option<(String, usize)>,
}

impl UnreportedRefusals {
    /// Notes that the store refused some requests of a batch. `why` is the reason for the first one.
    pub(super) fn note(&mut self, what: &str, (refused, of): (usize, usize), why: &dyn fmt::Display) {
        self.untold += refused;
        self.last = Some((format!("{what}, {refused} of {of}: {why}"), refused));
    }

    /// Returns the line to log now. Call it after each batch.
    pub(super) fn take_line(&mut self, now: Instant) -> Option<String> {
        if self.told_at.is_some_and(|at| now < at + PAUSE) {
            return None;
        }
        let (last, refused) = self.last.take()?;
        self.told_at = Some(now);
        let more = std::mem::take(&mut self.untold) - refused;
        Some(if more == 0 { last } else { format!("{last} (and {more} more since the previous line)") })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_is_told_at_once_and_the_others_together() {
        let (start, mut refused) = (Instant::now(), UnreportedRefusals::default());
        let mut at = |ms: u64, count: usize| {
            if count > 0 {
                refused.note("add", (count, 9), &"full");
            }
            refused.take_line(start + Duration::from_millis(ms))
        };
        assert_eq!(at(0, 0), None);
        assert_eq!(at(1, 2).as_deref(), Some("add, 2 of 9: full"));
        assert_eq!((at(2, 3), at(500, 4), at(900, 0)), (None, None, None));
        assert_eq!(at(1001, 1).as_deref(), Some("add, 1 of 9: full (and 7 more since the previous line)"));
        assert_eq!(at(1500, 5), None);
        assert_eq!(at(3000, 0).as_deref(), Some("add, 5 of 9: full"));
        assert_eq!(at(9000, 0), None);
    }
}
