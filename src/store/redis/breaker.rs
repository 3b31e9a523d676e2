//! A node that is down costs one timeout now and then, and not one for each request. Pure.

use std::time::{Duration, Instant};

/// How long a node that failed is left alone before it is tried again.
pub(super) const PAUSE: Duration = Duration::from_millis(500);

/// Whether a node is asked.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Breaker {
    /// It answers.
    #[default]
    Closed,
    /// It does not; one request tries it again then.
    Open {
        /// When.
        retry_at: Instant,
    },
}

impl Breaker {
    /// Whether a request may go to the node now. One that may while the breaker is open is the one that tries: the next may
    /// after another pause.
    pub(super) fn admit(&mut self, now: Instant) -> bool {
        match self {
            Breaker::Closed => true,
            Breaker::Open { retry_at } if *retry_at <= now => {
                *retry_at = now + PAUSE;
                true
            }
            Breaker::Open { .. } => false,
        }
    }

    /// Notes that it has answered. Tells whether that is news.
    pub(super) fn succeeded(&mut self) -> bool {
        std::mem::take(self) != Breaker::Closed
    }

    /// Notes that it has not. Tells whether that is news.
    pub(super) fn failed(&mut self, now: Instant) -> bool {
        let before = std::mem::replace(self, Breaker::Open { retry_at: now + PAUSE });
        before == Breaker::Closed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_request_a_pause_tries_a_node_that_is_down() {
        let mut now = Instant::now();
        let mut breaker = Breaker::default();
        assert!(breaker.admit(now) && breaker.failed(now));
        assert!(!breaker.admit(now), "the others are spared");
        now += PAUSE;
        assert!(breaker.admit(now));
        assert!(!breaker.admit(now), "one tries");
        assert!(!breaker.failed(now), "and finds nothing new");
        now += PAUSE;
        assert!(breaker.admit(now) && breaker.succeeded());
        assert!(breaker.admit(now) && !breaker.succeeded());
    }
}
