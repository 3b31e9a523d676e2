//! A slot of a generation with its child, and what the master knows of the process that fills the slot.

use std::time::{Duration, Instant};

use nix::unistd::Pid;

use super::child::{Child, State};
use host::Link;

/// How long a child has not answered.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PingState {
    /// Whether a ping is unanswered.
    asked: bool,
    lasted: Duration,
}

impl PingState {
    /// Notes that the child has sent something.
    pub fn broken(&mut self) {
        *self = PingState::default();
    }

    /// Notes that a round is over, and that the next ping is sent. Returns how long the silence has lasted.
    pub(super) fn round(&mut self, length: Duration) -> Duration {
        if self.asked {
            self.lasted += length;
        }
        self.asked = true;
        self.lasted
    }
}

/// A slot of a generation with its child, the link to the process of the child, and what is known of this process.
pub struct RunningChild {
    pub child: Child,
    pub link: Option<Link>,
    /// When the process was started, in Unix milliseconds.
    pub started_ms: Option<i64>,
    /// How long the process has not answered a ping.
    pub silence: PingState,
    /// How long one of the process's workers has been past its deadline, according to the last sign of life.
    pub overdue: Duration,
    /// Why the process is about to end.
    pub reason: Option<String>,
}

impl RunningChild {
    /// Returns a slot with a child that is started now.
    pub fn new(start_timeout: Duration) -> RunningChild {
        RunningChild::with(Child::new(Instant::now(), start_timeout), None, None)
    }

    /// Returns a slot with this child and this link. The process of the child has not been watched yet.
    pub fn with(child: Child, link: Option<Link>, started_ms: Option<i64>) -> RunningChild {
        RunningChild {
            child,
            link,
            started_ms,
            silence: PingState::default(),
            overdue: Duration::ZERO,
            reason: None,
        }
    }

    pub fn is_up(&self) -> bool {
        matches!(self.child.state, State::Up { .. })
    }

    /// Returns the process if it must answer pings: it is up, or it drains.
    pub(super) fn watched(&self) -> Option<Pid> {
        match self.child.state {
            State::Up { pid, .. } | State::Draining { pid, .. } => Some(pid),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silence_is_counted_in_rounds_and_any_word_breaks_it() {
        let round = Duration::from_secs(1);
        let mut silence = PingState::default();
        assert_eq!([0; 4].map(|_| silence.round(round).as_secs()), [0, 1, 2, 3]);
        silence.broken();
        assert_eq!([0; 2].map(|_| silence.round(round).as_secs()), [0, 1]);
    }
}
