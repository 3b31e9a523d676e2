//! Limits the cost of a server that is down: one timeout from time to time, instead of one for each request. Each
//! server of a node has its own breaker. Pure.

use std::time::{Duration, Instant};

/// How long dq sends nothing to a server after the server has failed.
pub(super) const PAUSE: Duration = Duration::from_millis(500);

/// Whether requests are sent to a server.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Breaker {
    /// The server answers.
    #[default]
    Closed,
    /// The server does not answer.
    Open {
        /// When one request may try the server again.
        retry_at: Instant,
    },
}

impl Breaker {
    /// Returns whether a request may go to the server now. While the breaker is open, one request in each pause may go,
    /// to try the server.
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

    /// Allows one more request now, because the previous request got a connection but was not sent to the server.
    pub(super) fn let_next(&mut self, now: Instant) {
        if let Breaker::Open { retry_at } = self {
            *retry_at = now;
        }
    }

    /// Notes that the server has answered. Returns whether the server counted as down before.
    pub(super) fn succeeded(&mut self) -> bool {
        std::mem::take(self) != Breaker::Closed
    }

    /// Notes that the server has not answered. Returns whether the server counted as up before.
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
