//! A rolling restart, as a pure state machine. A new generation is started beside the current one. The new generation
//! takes over when all of its slots are ready. If they do not become ready, it is given up.
//!
//! | state | restart asked for | check begun | check passed | start begun | all ready | failed, or too late | stop |
//! |---|---|---|---|---|---|---|---|
//! | Steady | HUP: begin; USR2: check | → Checking | | → Rolling | | | → Stopping |
//! | Checking | one more restart follows | | execute | | | → Steady | → Stopping |
//! | Rolling | one more restart follows | | | | → Steady (1) | → Steady (2) | → Stopping |
//! | Stopping | | | | | | | |
//!
//! 1. The new generation becomes the current one ([`RestartAction::Commit`]). Older generations drain.
//! 2. The new generation is ended ([`RestartAction::Abandon`]).

use std::time::Instant;

use serde::{Deserialize, Serialize};

use model::slot::GenerationNumber;

/// The state of the restart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RestartState {
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
        new: GenerationNumber,
        /// When the new generation is given up.
        by: Instant,
        /// The kind of another restart that was asked for meanwhile.
        again: Option<RestartKind>,
    },
    /// The daemon ends: nothing is restarted any more.
    Stopping,
}

/// What a restart renews. The kind `Executable` includes the kind `Configuration`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum RestartKind {
    /// The configuration (HUP).
    Configuration,
    /// The executable and the configuration (USR2).
    Executable,
}

/// What happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RestartEvent {
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
        new: GenerationNumber,
        /// When the generation is given up.
        by: Instant,
    },
    /// All slots of the new generation are ready.
    AllReady,
    /// A slot of the new generation cannot become ready, or the try or the execution of the new executable failed.
    Failed,
    /// The [`RestartState::deadline`] has passed.
    Deadline,
    /// The daemon must end.
    Stop,
}

/// What the master has to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RestartAction {
    /// Read the configuration and start a new generation. Report [`RestartEvent::Begun`]. If the start is refused,
    /// report nothing.
    Begin(RestartKind),
    /// Try the new executable. Report [`RestartEvent::Checking`]. If the executable cannot even be tried, report
    /// nothing.
    Check,
    /// Execute the new executable, which then begins its restart. If a kind is given, another restart of this kind
    /// follows. Report [`RestartEvent::Failed`] if this image continues.
    Execute(Option<RestartKind>),
    /// Make the new generation the current one, and drain all older ones.
    Commit(GenerationNumber),
    /// End the new generation. The current generation continues.
    Abandon(GenerationNumber),
}

impl RestartState {
    /// Returns when [`RestartEvent::Deadline`] is due.
    pub fn deadline(&self) -> Option<Instant> {
        match self {
            RestartState::Rolling { by, .. } | RestartState::Checking { by, .. } => Some(*by),
            RestartState::Steady | RestartState::Stopping => None,
        }
    }

    /// Returns the generation that is being started.
    pub fn rolling(&self) -> Option<GenerationNumber> {
        match self {
            RestartState::Rolling { new, .. } => Some(*new),
            RestartState::Steady | RestartState::Checking { .. } | RestartState::Stopping => None,
        }
    }

    /// Handles an event. Returns what to do, in the order in which it must be done.
    pub fn step(&mut self, event: RestartEvent, now: Instant) -> Vec<RestartAction> {
        match (&mut *self, event) {
            (_, RestartEvent::Stop) => {
                *self = RestartState::Stopping;
                Vec::new()
            }
            (RestartState::Steady, RestartEvent::Asked(kind)) => vec![first(kind)],
            (RestartState::Steady, RestartEvent::Checking { by }) => {
                *self = RestartState::Checking { by, again: None };
                Vec::new()
            }
            (RestartState::Checking { again, .. }, RestartEvent::Checked) => {
                vec![RestartAction::Execute(*again)]
            }
            (RestartState::Checking { by, .. }, RestartEvent::Deadline) if *by > now => Vec::new(),
            (RestartState::Checking { again, .. }, RestartEvent::Failed | RestartEvent::Deadline) => {
                let then = again.map(first);
                *self = RestartState::Steady;
                then.into_iter().collect()
            }
            (RestartState::Steady, RestartEvent::Begun { new, by }) => {
                *self = RestartState::Rolling { new, by, again: None };
                Vec::new()
            }
            (
                RestartState::Rolling { again, .. } | RestartState::Checking { again, .. },
                RestartEvent::Asked(kind),
            ) => {
                *again = Some(again.map_or(kind, |before| before.max(kind)));
                Vec::new()
            }
            (RestartState::Rolling { new, again, .. }, RestartEvent::AllReady) => {
                let then = [Some(RestartAction::Commit(*new)), again.map(first)];
                *self = RestartState::Steady;
                then.into_iter().flatten().collect()
            }
            (RestartState::Rolling { by, .. }, RestartEvent::Deadline) if *by > now => Vec::new(),
            (RestartState::Rolling { new, again, .. }, RestartEvent::Failed | RestartEvent::Deadline) => {
                let then = [Some(RestartAction::Abandon(*new)), again.map(first)];
                *self = RestartState::Steady;
                then.into_iter().flatten().collect()
            }
            _ => Vec::new(),
        }
    }
}

/// Returns the first step of a restart of this kind.
fn first(kind: RestartKind) -> RestartAction {
    match kind {
        RestartKind::Configuration => RestartAction::Begin(kind),
        RestartKind::Executable => RestartAction::Check,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    const LATER: Duration = Duration::from_secs(30);

    fn rolling(now: Instant) -> RestartState {
        let mut restart = RestartState::Steady;
        assert_eq!(
            restart.step(RestartEvent::Asked(RestartKind::Configuration), now),
            [RestartAction::Begin(RestartKind::Configuration)]
        );
        assert_eq!(restart.step(RestartEvent::Begun { new: 2, by: now + LATER }, now), []);
        restart
    }

    #[test]
    fn a_generation_that_is_ready_takes_over() {
        let now = Instant::now();
        let mut restart = rolling(now);
        assert_eq!(restart.step(RestartEvent::AllReady, now), [RestartAction::Commit(2)]);
        assert_eq!(restart, RestartState::Steady);
        assert_eq!(restart.step(RestartEvent::AllReady, now), []);
    }

    #[test]
    fn one_that_fails_or_is_late_is_given_up() {
        let now = Instant::now();
        let mut restart = rolling(now);
        assert_eq!(restart.step(RestartEvent::Failed, now), [RestartAction::Abandon(2)]);
        let mut restart = rolling(now);
        assert_eq!(restart.step(RestartEvent::Deadline, now), []);
        assert_eq!(restart.step(RestartEvent::Deadline, now + LATER), [RestartAction::Abandon(2)]);
        assert_eq!(restart, RestartState::Steady);
    }

    #[test]
    fn however_many_are_asked_for_meanwhile_are_one_more_after_it() {
        let now = Instant::now();
        for (end, action) in [
            (RestartEvent::AllReady, RestartAction::Commit(2)),
            (RestartEvent::Failed, RestartAction::Abandon(2)),
        ] {
            let mut restart = rolling(now);
            for kind in [RestartKind::Configuration, RestartKind::Executable, RestartKind::Configuration] {
                assert_eq!(restart.step(RestartEvent::Asked(kind), now), []);
            }
            assert_eq!(restart.step(end, now), [action, RestartAction::Check]);
        }
    }

    #[test]
    fn a_new_executable_is_tried_before_it_is_gone_over_to() {
        let now = Instant::now();
        let checking = || {
            let mut restart = RestartState::Steady;
            assert_eq!(
                restart.step(RestartEvent::Asked(RestartKind::Executable), now),
                [RestartAction::Check]
            );
            assert_eq!(restart.step(RestartEvent::Checking { by: now + LATER }, now), []);
            restart
        };
        assert_eq!(checking().step(RestartEvent::Checked, now), [RestartAction::Execute(None)]);
        let mut restart = checking();
        assert_eq!(restart.step(RestartEvent::Deadline, now), []);
        assert_eq!(restart.step(RestartEvent::Deadline, now + LATER), []);
        assert_eq!(restart, RestartState::Steady);
        let mut restart = checking();
        restart.step(RestartEvent::Asked(RestartKind::Configuration), now);
        assert_eq!(
            restart.step(RestartEvent::Checked, now),
            [RestartAction::Execute(Some(RestartKind::Configuration))]
        );
        assert_eq!(
            restart.step(RestartEvent::Failed, now),
            [RestartAction::Begin(RestartKind::Configuration)]
        );
        assert_eq!(restart, RestartState::Steady);
    }

    #[test]
    fn a_stop_overrides_all() {
        let now = Instant::now();
        let mut restart = rolling(now);
        assert_eq!(restart.step(RestartEvent::Stop, now), []);
        for event in [
            RestartEvent::AllReady,
            RestartEvent::Failed,
            RestartEvent::Asked(RestartKind::Executable),
            RestartEvent::Deadline,
        ] {
            assert_eq!(restart.step(event, now + LATER), []);
        }
        assert_eq!(restart, RestartState::Stopping);
    }
}
