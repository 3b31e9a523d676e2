//! What a sender has reached in an outbox, and when it continues. Pure.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use super::nodes::Place;

/// How long entries wait after they could not be sent: the first pause, and the longest pause. Each pause is twice as
/// long as the previous one.
const PAUSE: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(10));

/// What a sender has reached in the outbox of a source, and when it continues.
#[derive(Debug)]
pub(super) struct OutboxRetry {
    /// When the sender continues.
    pub again_at: Instant,
    /// When the entries that wait are sent again. Until then, only newer entries are sent. `None`: no entry waits.
    restart_at: Option<Instant>,
    /// The pause before the next restart.
    pause: Duration,
    pub pass: OutboxPass,
}

impl OutboxRetry {
    pub(super) fn new(now: Instant) -> OutboxRetry {
        OutboxRetry { again_at: now, restart_at: None, pause: PAUSE.0, pass: OutboxPass::default() }
    }

    /// Begins at the oldest entry again if the pause of the entries that wait is over.
    pub(super) fn restart_if_due(&mut self, now: Instant) {
        if self.restart_at.is_some_and(|at| at <= now) {
            (self.restart_at, self.pass) = (None, OutboxPass::default());
        }
    }

    /// Returns when the entries that wait are sent again: after a pause that is twice as long next time.
    pub(super) fn restart_later(&mut self, now: Instant) -> Instant {
        let pause = self.pause;
        *self.restart_at.get_or_insert_with(|| {
            self.pause = (pause * 2).min(PAUSE.1);
            now + pause
        })
    }
}

/// One way through an outbox, from its oldest entry to its newest one. It may take several calls. Entries for a target
/// that is down are passed over, so that they do not hold up the entries behind them.
#[derive(Debug, Default)]
pub(super) struct OutboxPass {
    /// The set of nodes, as text. Under another set, a pass begins again, because the targets are others.
    pub set: String,
    /// The number of the last entry that was read.
    pub after: i64,
    /// The targets for which an entry was passed over. Later entries for these targets must wait too.
    pub blocked: BTreeSet<Place>,
    /// Whether any entry was passed over.
    pub has_waiting: bool,
}
