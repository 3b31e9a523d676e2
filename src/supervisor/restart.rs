//! A rolling restart, as a pure machine: a new generation is started beside the current one, takes its place when all of
//! its slots are ready, and is given up when they are not.
//!
//! | state | asked | checking | checked | begun | all ready | failed, or too late | stop |
//! |---|---|---|---|---|---|---|---|
//! | Steady | Begin; for a new executable Check | → Checking | | → Rolling | | | → Stopping |
//! | Checking | once more after it | | Execute | | | → Steady | → Stopping |
//! | Rolling | once more after it | | | | → Steady, Commit | → Steady, Abandon | → Stopping |
//! | Stopping | | | | | | | |

use std::time::Instant;

use serde::{Deserialize, Serialize};

use crate::slot::Generation;

/// Where it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Restart {
    /// None is under way.
    Steady,
    /// A new executable is being tried, before this process goes over to it.
    Checking {
        /// When it is given up.
        by: Instant,
        /// Another restart was asked for meanwhile: of that kind.
        again: Option<Kind>,
    },
    /// A new generation is being started.
    Rolling {
        /// Which.
        new: Generation,
        /// When it is given up.
        by: Instant,
        /// Another restart was asked for meanwhile: of that kind.
        again: Option<Kind>,
    },
    /// The daemon ends: nothing is restarted any more.
    Stopping,
}

/// What a restart renews. The later is the more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Kind {
    /// The configuration (HUP).
    Configuration,
    /// The executable and the configuration (USR2).
    Executable,
}

/// What happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// A restart is asked for.
    Asked(Kind),
    /// The new executable is being tried, and is given up then.
    Checking {
        /// When.
        by: Instant,
    },
    /// It can do what it must.
    Checked,
    /// The new generation's children are being started, and are given up then.
    Begun {
        /// Which generation.
        new: Generation,
        /// When it is given up.
        by: Instant,
    },
    /// All slots of the new generation are ready.
    AllReady,
    /// One of them is not, and will not be; or the new executable cannot be gone over to.
    Failed,
    /// [`Restart::deadline`] has come.
    Deadline,
    /// The daemon is to end.
    Stop,
}

/// What is to be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Read the configuration and start a new generation; tell [`Event::Begun`], or nothing when that is refused.
    Begin(Kind),
    /// Try the new executable; tell [`Event::Checking`], or nothing when it cannot even be tried.
    Check,
    /// Go over to the new executable, which then begins; and a restart of this kind follows. Tell [`Event::Failed`] when
    /// this image goes on.
    Execute(Option<Kind>),
    /// The new generation is the current one: drain all older ones.
    Commit(Generation),
    /// End the new generation; the current one goes on.
    Abandon(Generation),
}

impl Restart {
    /// When [`Event::Deadline`] is due.
    pub fn deadline(&self) -> Option<Instant> {
        match self {
            Restart::Rolling { by, .. } | Restart::Checking { by, .. } => Some(*by),
            Restart::Steady | Restart::Stopping => None,
        }
    }

    /// The generation that is being started.
    pub fn rolling(&self) -> Option<Generation> {
        match self {
            Restart::Rolling { new, .. } => Some(*new),
            Restart::Steady | Restart::Checking { .. } | Restart::Stopping => None,
        }
    }

    /// Takes an event; gives what is to be done, in this order.
    pub fn step(&mut self, event: Event, now: Instant) -> Vec<Action> {
        match (&mut *self, event) {
            (_, Event::Stop) => {
                *self = Restart::Stopping;
                Vec::new()
            }
            (Restart::Steady, Event::Asked(kind)) => vec![first(kind)],
            (Restart::Steady, Event::Checking { by }) => {
                *self = Restart::Checking { by, again: None };
                Vec::new()
            }
            (Restart::Checking { again, .. }, Event::Checked) => vec![Action::Execute(*again)],
            (Restart::Checking { by, .. }, Event::Deadline) if *by > now => Vec::new(),
            (Restart::Checking { again, .. }, Event::Failed | Event::Deadline) => {
                let then = again.map(first);
                *self = Restart::Steady;
                then.into_iter().collect()
            }
            (Restart::Steady, Event::Begun { new, by }) => {
                *self = Restart::Rolling { new, by, again: None };
                Vec::new()
            }
            (Restart::Rolling { again, .. } | Restart::Checking { again, .. }, Event::Asked(kind)) => {
                *again = Some(again.map_or(kind, |before| before.max(kind)));
                Vec::new()
            }
            (Restart::Rolling { new, again, .. }, Event::AllReady) => {
                let then = [Some(Action::Commit(*new)), again.map(first)];
                *self = Restart::Steady;
                then.into_iter().flatten().collect()
            }
            (Restart::Rolling { by, .. }, Event::Deadline) if *by > now => Vec::new(),
            (Restart::Rolling { new, again, .. }, Event::Failed | Event::Deadline) => {
                let then = [Some(Action::Abandon(*new)), again.map(first)];
                *self = Restart::Steady;
                then.into_iter().flatten().collect()
            }
            _ => Vec::new(),
        }
    }
}

/// The first step of a restart.
fn first(kind: Kind) -> Action {
    match kind {
        Kind::Configuration => Action::Begin(kind),
        Kind::Executable => Action::Check,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    const LATER: Duration = Duration::from_secs(30);

    fn rolling(now: Instant) -> Restart {
        let mut restart = Restart::Steady;
        assert_eq!(
            restart.step(Event::Asked(Kind::Configuration), now),
            [Action::Begin(Kind::Configuration)]
        );
        assert_eq!(restart.step(Event::Begun { new: 2, by: now + LATER }, now), []);
        restart
    }

    #[test]
    fn a_generation_that_is_ready_takes_over() {
        let now = Instant::now();
        let mut restart = rolling(now);
        assert_eq!(restart.step(Event::AllReady, now), [Action::Commit(2)]);
        assert_eq!(restart, Restart::Steady);
        assert_eq!(restart.step(Event::AllReady, now), []);
    }

    #[test]
    fn one_that_fails_or_is_late_is_given_up() {
        let now = Instant::now();
        let mut restart = rolling(now);
        assert_eq!(restart.step(Event::Failed, now), [Action::Abandon(2)]);
        let mut restart = rolling(now);
        assert_eq!(restart.step(Event::Deadline, now), []);
        assert_eq!(restart.step(Event::Deadline, now + LATER), [Action::Abandon(2)]);
        assert_eq!(restart, Restart::Steady);
    }

    #[test]
    fn however_many_are_asked_for_meanwhile_are_one_more_after_it() {
        let now = Instant::now();
        for (end, action) in [(Event::AllReady, Action::Commit(2)), (Event::Failed, Action::Abandon(2))] {
            let mut restart = rolling(now);
            for kind in [Kind::Configuration, Kind::Executable, Kind::Configuration] {
                assert_eq!(restart.step(Event::Asked(kind), now), []);
            }
            assert_eq!(restart.step(end, now), [action, Action::Check]);
        }
    }

    #[test]
    fn a_new_executable_is_tried_before_it_is_gone_over_to() {
        let now = Instant::now();
        let checking = || {
            let mut restart = Restart::Steady;
            assert_eq!(restart.step(Event::Asked(Kind::Executable), now), [Action::Check]);
            assert_eq!(restart.step(Event::Checking { by: now + LATER }, now), []);
            restart
        };
        assert_eq!(checking().step(Event::Checked, now), [Action::Execute(None)]);
        let mut restart = checking();
        assert_eq!(restart.step(Event::Deadline, now), []);
        assert_eq!(restart.step(Event::Deadline, now + LATER), []);
        assert_eq!(restart, Restart::Steady);
        let mut restart = checking();
        restart.step(Event::Asked(Kind::Configuration), now);
        assert_eq!(restart.step(Event::Checked, now), [Action::Execute(Some(Kind::Configuration))]);
        assert_eq!(restart.step(Event::Failed, now), [Action::Begin(Kind::Configuration)]);
        assert_eq!(restart, Restart::Steady);
    }

    #[test]
    fn a_stop_overrides_all() {
        let now = Instant::now();
        let mut restart = rolling(now);
        assert_eq!(restart.step(Event::Stop, now), []);
        for event in [Event::AllReady, Event::Failed, Event::Asked(Kind::Executable), Event::Deadline] {
            assert_eq!(restart.step(event, now + LATER), []);
        }
        assert_eq!(restart, Restart::Stopping);
    }
}
