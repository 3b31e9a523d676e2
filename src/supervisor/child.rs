//! One child's life, as a pure machine: takes what happened and when, gives the next state and what to do.
//!
//! | state | spawned | spawn failed | ready | exited | drain | end | deadline | silent | stuck |
//! |---|---|---|---|---|---|---|---|---|---|
//! | Waiting | → Starting | → Waiting, longer | | | → Gone | → Gone | spawn | | |
//! | Starting | | | → Up | → Waiting, or Gone by code 78 | → Draining | → Killed | → Killed: not ready in time | | |
//! | Up | | | | → Waiting, or Gone by code 78 | → Draining | → Killed | forget the failures | → Killed | → Draining, to be replaced |
//! | Draining | | | | → Gone; Waiting when it is replaced | for good; sooner, if it is sooner | → Killed | → Killed | → Killed | a limit, where it has none |
//! | Killed | | | | → Waiting, or Gone when it was to end | → Killed for good | the same | | | |
//! | Gone | | | | | | | | | |

use std::time::{Duration, Instant};

use nix::unistd::Pid;

use crate::process::Exit;

/// The exit code of a child that its configuration keeps from working (EX_CONFIG of sysexits.h): it is not restarted.
pub const EXIT_CONFIG: i32 = 78;

/// How long a child must be up for its earlier failures to be forgotten.
const STEADY: Duration = Duration::from_secs(60);

/// The longest pause before a restart.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// What happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// The process was started.
    Spawned(Pid),
    /// It could not be.
    SpawnFailed,
    /// It reported ready.
    Ready,
    /// It ended.
    Exited(Exit),
    /// It is to drain, and is killed when it has not ended by then; none: it may take as long as it takes.
    Drain {
        /// When it is killed.
        kill_at: Option<Instant>,
    },
    /// It is to end at once.
    End,
    /// It has given no sign of life for too long.
    Silent,
    /// Its main loop lives, but a worker of its is past its deadline by too much: another is to take its place, once it
    /// has finished what it can, and at the latest then.
    Stuck {
        /// When it is killed.
        kill_at: Instant,
    },
    /// Its [`Child::deadline`] has come.
    Deadline,
}

/// What is to be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Start a process, and tell [`Event::Spawned`] or [`Event::SpawnFailed`].
    Spawn,
    /// Tell the process to drain.
    TellDrain,
    /// Kill the process.
    Kill(Pid),
}

/// Where it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// No process; the next is started at `at`.
    Waiting {
        /// When.
        at: Instant,
    },
    /// A process that has not reported ready.
    Starting {
        /// The process.
        pid: Pid,
        /// When it is given up.
        ready_by: Instant,
    },
    /// A process that works.
    Up {
        /// The process.
        pid: Pid,
        /// When its earlier failures are forgotten; none: they are.
        steady_at: Option<Instant>,
    },
    /// A process that is ending.
    Draining {
        /// The process.
        pid: Pid,
        /// When it is killed.
        kill_at: Option<Instant>,
        /// Whether another is started in its place.
        restart: bool,
    },
    /// A process that was killed, and not yet reaped.
    Killed {
        /// The process.
        pid: Pid,
        /// Whether another is started in its place.
        restart: bool,
    },
    /// No process, and none will be.
    Gone,
}

/// A slot's child.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Child {
    /// Where it is.
    pub state: State,
    /// Failures in a row.
    failures: u32,
    start_timeout: Duration,
}

impl Child {
    /// A child that is to be started now.
    pub fn new(now: Instant, start_timeout: Duration) -> Child {
        Child { state: State::Waiting { at: now }, failures: 0, start_timeout }
    }

    /// A child as another image of the master has left it.
    pub fn resumed(state: State, failures: u32, start_timeout: Duration) -> Child {
        Child { state, failures, start_timeout }
    }

    /// Failures in a row.
    pub fn failures(&self) -> u32 {
        self.failures
    }

    /// The process, if there is one.
    pub fn pid(&self) -> Option<Pid> {
        match self.state {
            State::Starting { pid, .. }
            | State::Up { pid, .. }
            | State::Draining { pid, .. }
            | State::Killed { pid, .. } => Some(pid),
            State::Waiting { .. } | State::Gone => None,
        }
    }

    /// When [`Event::Deadline`] is due.
    pub fn deadline(&self) -> Option<Instant> {
        match self.state {
            State::Waiting { at } => Some(at),
            State::Starting { ready_by, .. } => Some(ready_by),
            State::Up { steady_at, .. } => steady_at,
            State::Draining { kill_at, .. } => kill_at,
            State::Killed { .. } | State::Gone => None,
        }
    }

    /// Takes an event. Events that do not fit the state change nothing.
    pub fn step(&mut self, event: Event, now: Instant) -> Option<Action> {
        let (state, action) = match (self.state, event) {
            (State::Waiting { .. }, Event::Spawned(pid)) => {
                (State::Starting { pid, ready_by: now + self.start_timeout }, None)
            }
            (State::Waiting { .. }, Event::SpawnFailed) => (self.pause(now), None),
            (State::Waiting { at }, Event::Deadline) if at <= now => (self.state, Some(Action::Spawn)),
            (State::Waiting { .. }, Event::Drain { .. } | Event::End) => (State::Gone, None),

            (State::Starting { pid, .. }, Event::Ready) => {
                (State::Up { pid, steady_at: (self.failures > 0).then_some(now + STEADY) }, None)
            }
            (State::Starting { pid, ready_by }, Event::Deadline) if ready_by <= now => {
                (State::Killed { pid, restart: true }, Some(Action::Kill(pid)))
            }
            (State::Up { pid, steady_at: Some(at) }, Event::Deadline) if at <= now => {
                self.failures = 0;
                (State::Up { pid, steady_at: None }, None)
            }
            (State::Starting { .. } | State::Up { .. }, Event::Exited(Exit::Code(EXIT_CONFIG))) => {
                (State::Gone, None)
            }
            (
                State::Starting { .. }
                | State::Up { .. }
                | State::Draining { restart: true, .. }
                | State::Killed { restart: true, .. },
                Event::Exited(_),
            ) => (self.pause(now), None),
            (State::Starting { pid, .. } | State::Up { pid, .. }, Event::Drain { kill_at }) => {
                (State::Draining { pid, kill_at, restart: false }, Some(Action::TellDrain))
            }
            (State::Up { pid, .. }, Event::Stuck { kill_at }) => {
                (State::Draining { pid, kill_at: Some(kill_at), restart: true }, Some(Action::TellDrain))
            }
            // What does not end is not waited for without a limit.
            (State::Draining { pid, kill_at: None, restart }, Event::Stuck { kill_at }) => {
                (State::Draining { pid, kill_at: Some(kill_at), restart }, Some(Action::TellDrain))
            }
            (State::Draining { pid, kill_at: old, .. }, Event::Drain { kill_at: Some(new) })
                if old.is_none_or(|old| new < old) =>
            {
                (State::Draining { pid, kill_at: Some(new), restart: false }, Some(Action::TellDrain))
            }
            (State::Draining { pid, kill_at, .. }, Event::Drain { .. }) => {
                (State::Draining { pid, kill_at, restart: false }, None)
            }
            (State::Up { pid, .. }, Event::Silent) => {
                (State::Killed { pid, restart: true }, Some(Action::Kill(pid)))
            }
            (State::Draining { pid, restart, .. }, Event::Silent) => {
                (State::Killed { pid, restart }, Some(Action::Kill(pid)))
            }
            (
                State::Starting { pid, .. } | State::Up { pid, .. } | State::Draining { pid, .. },
                Event::End,
            ) => (State::Killed { pid, restart: false }, Some(Action::Kill(pid))),
            (State::Draining { pid, kill_at: Some(at), restart }, Event::Deadline) if at <= now => {
                (State::Killed { pid, restart }, Some(Action::Kill(pid)))
            }
            (State::Killed { pid, .. }, Event::Drain { .. } | Event::End) => {
                (State::Killed { pid, restart: false }, None)
            }
            (State::Draining { .. } | State::Killed { .. }, Event::Exited(_)) => (State::Gone, None),
            (state, _) => (state, None),
        };
        self.state = state;
        action
    }

    /// Counts a failure. The first is made good at once, the next after 1 s, 2 s, 4 s … up to 30 s.
    fn pause(&mut self, now: Instant) -> State {
        let pause = match self.failures {
            0 => Duration::ZERO,
            n => Duration::from_secs(1 << (n - 1).min(5)).min(LONGEST_PAUSE),
        };
        self.failures = self.failures.saturating_add(1);
        State::Waiting { at: now + pause }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Duration = Duration::from_secs(30);

    fn pid(n: i32) -> Pid {
        Pid::from_raw(n)
    }

    fn started(now: Instant) -> Child {
        let mut child = Child::new(now, START);
        assert_eq!(child.step(Event::Deadline, now), Some(Action::Spawn));
        assert_eq!(child.step(Event::Spawned(pid(7)), now), None);
        child
    }

    #[test]
    fn an_unexpected_end_is_made_good_at_once_and_then_ever_later() {
        let mut now = Instant::now();
        let mut child = Child::new(now, START);
        let mut pauses = Vec::new();
        for _ in 0..9 {
            let at = child.deadline().unwrap();
            pauses.push(at.duration_since(now).as_secs());
            now = at;
            assert_eq!(child.step(Event::Deadline, now), Some(Action::Spawn));
            child.step(Event::Spawned(pid(7)), now);
            child.step(Event::Ready, now);
            child.step(Event::Exited(Exit::Signal(9)), now);
        }
        assert_eq!(pauses, [0, 0, 1, 2, 4, 8, 16, 30, 30]);
    }

    #[test]
    fn a_minute_up_forgets_the_failures() {
        let mut now = Instant::now();
        let mut child = started(now);
        child.step(Event::Exited(Exit::Code(1)), now);
        child.step(Event::Spawned(pid(8)), now);
        child.step(Event::Exited(Exit::Code(1)), now);
        assert_eq!(child.deadline(), Some(now + Duration::from_secs(1)));
        child.step(Event::Spawned(pid(9)), now);
        child.step(Event::Ready, now);
        now = child.deadline().unwrap();
        child.step(Event::Deadline, now);
        assert_eq!(child.deadline(), None);
        child.step(Event::Exited(Exit::Code(0)), now);
        assert_eq!(child.state, State::Waiting { at: now });
    }

    #[test]
    fn a_bad_configuration_is_not_tried_again() {
        let now = Instant::now();
        let mut child = started(now);
        assert_eq!(child.step(Event::Exited(Exit::Code(EXIT_CONFIG)), now), None);
        assert_eq!(child.state, State::Gone);
    }

    #[test]
    fn a_child_that_is_not_ready_in_time_is_replaced() {
        let now = Instant::now();
        let mut child = started(now);
        assert_eq!(child.step(Event::Deadline, now), None, "not before its time");
        assert_eq!(child.step(Event::Deadline, now + START), Some(Action::Kill(pid(7))));
        child.step(Event::Exited(Exit::Signal(9)), now + START);
        assert!(matches!(child.state, State::Waiting { .. }));
    }

    #[test]
    fn a_silent_child_is_killed_and_a_stuck_one_drains_and_both_are_replaced() {
        let now = Instant::now();
        let kill_at = now + START;
        let up = || {
            let mut child = started(now);
            assert_eq!(child.step(Event::Silent, now), None, "it has start_timeout to answer for");
            child.step(Event::Ready, now);
            child
        };
        let mut silent = up();
        assert_eq!(silent.step(Event::Silent, now), Some(Action::Kill(pid(7))));
        silent.step(Event::Exited(Exit::Signal(9)), now);
        assert_eq!(silent.state, State::Waiting { at: now });

        let mut stuck = up();
        assert_eq!(stuck.step(Event::Stuck { kill_at }, now), Some(Action::TellDrain));
        assert_eq!(stuck.step(Event::Stuck { kill_at: kill_at + START }, now), None);
        assert_eq!(stuck.deadline(), Some(kill_at));
        stuck.step(Event::Exited(Exit::Code(0)), now);
        assert_eq!(stuck.state, State::Waiting { at: now }, "a drain that was not asked for is a failure");

        // In a drain without a limit, it gets one.
        let mut draining = up();
        draining.step(Event::Drain { kill_at: None }, now);
        assert_eq!(draining.step(Event::Stuck { kill_at }, now), Some(Action::TellDrain));
        assert_eq!(draining.deadline(), Some(kill_at));
        draining.step(Event::Exited(Exit::Code(0)), now);
        assert_eq!(draining.state, State::Gone);

        // Told to drain meanwhile, it is not replaced, and has no longer than it had.
        for (end, exit) in [(None, Exit::Code(0)), (Some(Event::Silent), Exit::Signal(9))] {
            let mut stuck = up();
            stuck.step(Event::Stuck { kill_at }, now);
            assert_eq!(stuck.step(Event::Drain { kill_at: None }, now), None);
            assert_eq!(stuck.deadline(), Some(kill_at));
            if let Some(end) = end {
                assert_eq!(stuck.step(end, now), Some(Action::Kill(pid(7))));
            }
            stuck.step(Event::Exited(exit), now);
            assert_eq!(stuck.state, State::Gone);
        }
    }

    #[test]
    fn a_drain_may_become_shorter_and_never_longer() {
        let now = Instant::now();
        let mut child = started(now);
        assert_eq!(child.step(Event::Drain { kill_at: None }, now), Some(Action::TellDrain));
        assert_eq!(child.deadline(), None);
        let soon = Some(now + Duration::from_secs(5));
        assert_eq!(child.step(Event::Drain { kill_at: soon }, now), Some(Action::TellDrain));
        assert_eq!(child.step(Event::Drain { kill_at: None }, now), None);
        assert_eq!(child.step(Event::Drain { kill_at: soon.map(|s| s + START) }, now), None);
        assert_eq!(child.deadline(), soon);
        assert_eq!(child.step(Event::End, now), Some(Action::Kill(pid(7))));
        assert_eq!(child.step(Event::End, now), None);
        child.step(Event::Exited(Exit::Signal(9)), now);
        assert_eq!(child.state, State::Gone);
    }

    #[test]
    fn a_drain_ends_in_gone_from_every_state() {
        let now = Instant::now();
        let kill_at = now + Duration::from_secs(5);
        let drain = Event::Drain { kill_at: Some(kill_at) };
        let mut waiting = Child::new(now, START);
        waiting.step(drain, now);
        assert_eq!(waiting.state, State::Gone);
        let mut up = started(now);
        up.step(Event::Ready, now);
        assert_eq!(up.step(drain, now), Some(Action::TellDrain));
        assert_eq!(up.step(Event::Deadline, kill_at), Some(Action::Kill(pid(7))));
        up.step(Event::Exited(Exit::Signal(9)), kill_at);
        assert_eq!(up.state, State::Gone);
        let mut killed = started(now);
        killed.step(Event::Deadline, now + START);
        killed.step(drain, now + START);
        killed.step(Event::Exited(Exit::Signal(9)), now + START);
        assert_eq!(killed.state, State::Gone);
        assert_eq!(killed.step(Event::Spawned(pid(1)), now), None);
        assert_eq!(killed.state, State::Gone);
    }
}
