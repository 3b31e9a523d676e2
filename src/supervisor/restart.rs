//! A rolling restart, as a pure state machine. A new generation is started beside the current one. It takes over when
//! all of its slots are ready, and is given up if they are not.
//!
//! | state | asked | checking | checked | begun | all ready | failed, or too late | stop |
//! |---|---|---|---|---|---|---|---|
//! | Steady | HUP: begin; USR2: check | → Checking | | → Rolling | | | → Stopping |
//! | Checking | one more restart follows | | execute | | | → Steady | → Stopping |
//! | Rolling | one more restart follows | | | | → Steady (1) | → Steady (2) | → Stopping |
//! | Stopping | | | | | | | |
//!
//! 1. The new generation becomes the current one ([`Action::Commit`]). Older generations drain.
//! 2. The new generation is ended ([`Action::Abandon`]).

use std::time::Instant;

use serde::{Deserialize, Serialize};

use model::slot::Generation;

/// The state of the restart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Restart {
    /// No restart is under way.
    Steady,
    /// A new executable is being tried, before this process changes to it.
    Checking {
        /// When the try is given up.
        by: Instant,
        /// The kind of another restart that was asked for meanwhile.
        again: Option<RestartKind>,
    },
    /// A new generation is being started.
    Rolling {
        /// The number of the new generation.
        new: Generation,
        /// When the new generation is given up.
        by: Instant,
        /// The kind of another restart that was asked for meanwhile.
        again: Option<RestartKind>,
    },
    /// The daemon ends: nothing is restarted any more.
    Stopping,
}

/// What a restart renews. A later kind includes the earlier one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum RestartKind {
    /// The configuration (HUP).
    Configuration,
    /// The executable and the configuration (USR2).
    Executable,
}

/// What happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// A restart is asked for.
    Asked(RestartKind),
    /// The new executable is being tried.
    Checking {
        /// When the try is given up.
        by: Instant,
    },
    /// The try of the new executable succeeded.
    Checked,
    /// The children of the new generation are being started.
    Begun {
        /// The number of the generation.
        new: Generation,
        /// When the generation is given up.
        by: Instant,
    },
    /// All slots of the new generation are ready.
    AllReady,
    /// A slot of the new generation cannot become ready, or the try or the execution of the new executable failed.
    Failed,
    /// [`Restart::deadline`] has come.
    Deadline,
    /// The daemon must end.
    Stop,
}

/// What the master has to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Read the configuration and start a new generation. Report [`Event::Begun`], or nothing if that is refused.
    Begin(RestartKind),
    /// Try the new executable. Report [`Event::Checking`], or nothing if it cannot even be tried.
    Check,
    /// Execute the new executable, which then begins its restart. Another restart of this kind follows. Report
    /// [`Event::Failed`] if this image continues.
    Execute(Option<RestartKind>),
    /// Make the new generation the current one, and drain all older ones.
    Commit(Generation),
    /// End the new generation. The current generation continues.
    Abandon(Generation),
}

impl Restart {
    /// Returns when [`Event::Deadline`] is due.
    pub fn deadline(&self) -> Option<Instant> {
        match self {
            Restart::Rolling { by, .. } | Restart::Checking { by, .. } => Some(*by),
            Restart::Steady | Restart::Stopping => None,
        }
    }

    /// Returns the generation that is being started.
    pub fn rolling(&self) -> Option<Generation> {
        match self {
            Restart::Rolling { new, .. } => Some(*new),
            Restart::Steady | Restart::Checking { .. } | Restart::Stopping => None,
        }
    }

    /// Handles an event, and returns what to do, in this order.
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

/// Returns the first step of a restart of this kind.
fn first(kind: RestartKind) -> Action {
    match kind {
        RestartKind::Configuration => Action::Begin(kind),
        RestartKind::Executable => Action::Check,
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
            restart.step(Event::Asked(RestartKind::Configuration), now),
            [Action::Begin(RestartKind::Configuration)]
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
            for kind in [RestartKind::Configuration, RestartKind::Executable, RestartKind::Configuration] {
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
            assert_eq!(restart.step(Event::Asked(RestartKind::Executable), now), [Action::Check]);
            assert_eq!(restart.step(Event::Checking { by: now + LATER }, now), []);
            restart
        };
        assert_eq!(checking().step(Event::Checked, now), [Action::Execute(None)]);
        let mut restart = checking();
        assert_eq!(restart.step(Event::Deadline, now), []);
        assert_eq!(restart.step(Event::Deadline, now + LATER), []);
        assert_eq!(restart, Restart::Steady);
        let mut restart = checking();
        restart.step(Event::Asked(RestartKind::Configuration), now);
        assert_eq!(restart.step(Event::Checked, now), [Action::Execute(Some(RestartKind::Configuration))]);
        assert_eq!(restart.step(Event::Failed, now), [Action::Begin(RestartKind::Configuration)]);
        assert_eq!(restart, Restart::Steady);
    }

    #[test]
    fn a_stop_overrides_all() {
        let now = Instant::now();
        let mut restart = rolling(now);
        assert_eq!(restart.step(Event::Stop, now), []);
        for event in [Event::AllReady, Event::Failed, Event::Asked(RestartKind::Executable), Event::Deadline]
        {
            assert_eq!(restart.step(event, now + LATER), []);
        }
        assert_eq!(restart, Restart::Stopping);
    }
}
