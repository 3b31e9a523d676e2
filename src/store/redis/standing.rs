//! What a process may rely on of a shard: since when it has been there without a break. Pure.
//!
//! While a shard is away, jobs of it are added elsewhere, and for a moment after it has come back they still are, by those who
//! do not know yet. What it holds itself may be out of date until all of that has been looked at.

use std::time::{Duration, Instant};

/// How a shard stands.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Standing {
    state: State,
    /// The server that answers for it: one that was started anew, or has taken over, is another.
    server: Option<String>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum State {
    /// It has not been spoken with, or has failed since.
    #[default]
    Away,
    /// It has answered since then without a break.
    Back(Instant),
    /// It has answered ever since this process began, and was there before.
    Steady,
}

impl Standing {
    /// Notes that it did not answer.
    pub(super) fn failed(&mut self) {
        self.state = State::Away;
    }

    /// Notes that it answered.
    pub(super) fn answered(&mut self, now: Instant) {
        if self.state == State::Away {
            self.state = State::Back(now);
        }
    }

    /// Notes which server answers, and whether it has been running for longer than it takes all others to learn that.
    pub(super) fn met(&mut self, server: &str, is_old: bool, now: Instant) {
        match self.server.as_deref() {
            None if is_old && self.state == State::Away => self.state = State::Steady,
            Some(known) if known == server => self.answered(now),
            _ => self.state = State::Back(now),
        }
        self.server = Some(server.to_owned());
    }

    /// Whether it answers, and that moment has not come.
    pub(super) fn is_returning(&self, pause: Duration, now: Instant) -> bool {
        matches!(self.state, State::Back(_)) && self.known_since(pause, now).is_none()
    }

    /// From when on what others say of the shard is all that there is to say: everybody knows by then that it is there.
    /// `pause` is how long that takes. None: it is away, or that moment has not come.
    pub(super) fn known_since(&self, pause: Duration, now: Instant) -> Option<Option<Instant>> {
        match self.state {
            State::Away => None,
            State::Steady => Some(None),
            State::Back(at) => (at + pause <= now).then_some(Some(at + pause)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAUSE: Duration = Duration::from_secs(2);

    #[test]
    fn a_shard_is_relied_on_a_while_after_each_return() {
        let start = Instant::now();
        let at = |s: u64| start + Duration::from_secs(s);
        let mut shard = Standing::default();
        assert_eq!(shard.known_since(PAUSE, at(0)), None, "nobody has spoken with it");
        shard.met("a", true, at(0));
        assert_eq!(shard.known_since(PAUSE, at(0)), Some(None));
        shard.answered(at(1));
        shard.met("a", true, at(1));
        assert_eq!(shard.known_since(PAUSE, at(1)), Some(None), "another connection to the same");
        shard.failed();
        assert_eq!(shard.known_since(PAUSE, at(9)), None);
        assert!(!shard.is_returning(PAUSE, at(9)));
        shard.answered(at(10));
        shard.answered(at(11));
        assert_eq!(shard.known_since(PAUSE, at(11)), None);
        assert!(shard.is_returning(PAUSE, at(11)) && !shard.is_returning(PAUSE, at(12)));
        assert_eq!(shard.known_since(PAUSE, at(12)), Some(Some(at(12))));
        shard.met("b", true, at(20));
        assert_eq!(shard.known_since(PAUSE, at(21)), None, "another server has taken over, unseen");
        assert_eq!(shard.known_since(PAUSE, at(22)), Some(Some(at(22))));
    }

    #[test]
    fn a_server_that_has_just_begun_may_have_been_missed_by_others() {
        let now = Instant::now();
        let mut shard = Standing::default();
        shard.met("a", false, now);
        assert_eq!(shard.known_since(PAUSE, now), None);
        let mut failed_first = Standing::default();
        failed_first.failed();
        failed_first.met("a", false, now);
        assert_eq!(failed_first.known_since(PAUSE, now + PAUSE), Some(Some(now + PAUSE)));
    }
}
