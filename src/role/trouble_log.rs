//! The log lines about problems that last.

use std::time::{Duration, Instant};

use store::StoreError;

/// Logs a problem that lasts: when it begins, when it changes, and when it is over. Also says how long to pause before
/// the next try. These pauses grow.
#[derive(Debug, Default)]
pub struct TroubleLog {
    current: Option<OngoingTrouble>,
    pause: Duration,
}

#[derive(Debug)]
struct OngoingTrouble {
    message: String,
    since: Instant,
    /// Whether the problem is an error, which might not end by itself.
    is_error: bool,
}

impl TroubleLog {
    /// The shortest and the longest pause before the next try.
    const PAUSES: [Duration; 2] = [Duration::from_millis(50), Duration::from_secs(2)];

    /// The pause before the next check of something that ends by itself.
    const WAIT: Duration = Duration::from_millis(200);

    /// Notes that something failed. Returns the pause before the next try.
    pub fn pause_after(&mut self, error: &dyn std::fmt::Display) -> Duration {
        if self.current.is_none() {
            self.pause = Duration::ZERO;
        }
        self.note(error.to_string(), true);
        self.pause = (self.pause * 2).clamp(Self::PAUSES[0], Self::PAUSES[1]);
        self.pause
    }

    /// Notes that work must wait for something that ends by itself. Returns the pause before the next check.
    pub fn pause_for(&mut self, what: &dyn std::fmt::Display) -> Duration {
        self.note(what.to_string(), false);
        Self::WAIT
    }

    /// Notes that the store has failed. `what` says what this process cannot do, such as "cannot lease". Returns the
    /// pause before the next try.
    pub fn pause_after_store(&mut self, what: &str, error: &StoreError) -> Duration {
        match error {
            StoreError::Moving(_) => self.pause_for(error),
            _ => self.pause_after(&format_args!("{what}: {error}")),
        }
    }

    fn note(&mut self, message: String, is_error: bool) {
        if self.current.as_ref().is_some_and(|c| c.message == message) {
            return;
        }
        log::log!(if is_error { log::Level::Error } else { log::Level::Info }, "{message}");
        let since = self.current.as_ref().map_or_else(Instant::now, |c| c.since);
        let is_error = is_error || self.current.as_ref().is_some_and(|c| c.is_error);
        self.current = Some(OngoingTrouble { message, since, is_error });
    }

    /// Notes that the problem is over.
    pub fn end(&mut self) {
        if let Some(OngoingTrouble { since, is_error, .. }) = self.current.take() {
            let level = if is_error { log::Level::Warn } else { log::Level::Info };
            log::log!(level, "works again after {:.1?}", since.elapsed());
        }
    }
}
