//! The life of one child, as a pure state machine: it takes an event and the time, and returns what to do.
//!
//! | state | spawned | spawn failed | ready | exited | drain | end | deadline | silent | stuck |
//! |---|---|---|---|---|---|---|---|---|---|
//! | Waiting | → Starting | → Waiting, longer | | | → Gone | → Gone | spawn it | | |
//! | Starting | | | → Up | → Waiting or Gone (1) | → Draining | → Killed | → Killed (2) | | |
//! | Up | | | | → Waiting or Gone (1) | → Draining | → Killed | forget its failures (3) | → Killed | → Draining (4) |
//! | Draining | | | | → Gone or Waiting (4) | no replacement (5) | → Killed | → Killed | → Killed | set a limit (6) |
//! | Killed | | | | → Waiting or Gone (4) | no replacement | no replacement | | | |
//! | Gone | | | | | | | | | |
//!
//! 1. Gone if the exit code is 78, which means that the child cannot work with its configuration. Otherwise Waiting.
//! 2. The child was not ready within `start_timeout`. It is replaced.
//! 3. The child was up for a minute.
//! 4. A child that was stuck, silent or not ready in time is replaced: it goes to Waiting. After the event `drain` or
//!    `end`, it goes to Gone instead.
//! 5. The child is not replaced, even if it was stuck before. If the new order has an earlier limit, the earlier limit
//!    applies.
//! 6. This happens only if the drain has no time limit yet.

use std::time::{Duration, Instant};

use nix::unistd::Pid;

use host::Exit;

/// The exit code of a child that cannot work with its configuration (EX_CONFIG of sysexits.h). Such a child is not
/// restarted.
pub const EXIT_CONFIG: i32 = 78;

/// How long a child must be up before its earlier failures are forgotten.
const STEADY: Duration = Duration::from_secs(60);

/// The longest pause before a restart.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// What happened to a child, or what the master orders.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChildEvent {
    /// The process was started.
    Spawned(Pid),
    /// The process could not be started.
    SpawnFailed,
    /// The process reported that it is ready.
    Ready,
    /// The process ended.
    Exited(Exit),
    /// The child must drain. It is killed if it has not ended in time.
    Drain {
        /// When the child is killed; none: the child may take as long as it needs.
        kill_at: Option<Instant>,
    },
    /// The child must end at once.
    End,
    /// The child has given no sign of life for too long.
    Silent,
    /// The main loop of the child answers, but one of its workers is far past its deadline. Another process replaces
    /// the child when the child has finished all the work that it can finish, or when it is killed.
    Stuck {
        /// When the child is killed.
        kill_at: Instant,
    },
    /// The [`Child::deadline`] of the child has passed.
    Deadline,
}

/// What the master has to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChildAction {
    /// Start a process, and report [`ChildEvent::Spawned`] or [`ChildEvent::SpawnFailed`].
    Spawn,
    /// Tell the process to drain.
    TellDrain,
    /// Kill the process.
    Kill(Pid),
}

/// The state of a child.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// There is no process. The next process is started at `at`.
    Waiting {
        /// When the next process is started.
        at: Instant,
    },
    /// The process has not reported yet that it is ready.
    Starting {
        /// The process.
        pid: Pid,
        /// If the process is not ready by this time, it is killed.
        ready_by: Instant,
    },
    /// The process works.
    Up {
        /// The process.
        pid: Pid,
        /// When the earlier failures of the child are forgotten; none: there were no failures.
        steady_at: Option<Instant>,
    },
    /// The process is ending.
    Draining {
        /// The process.
        pid: Pid,
        /// When the process is killed; none: there is no limit.
        kill_at: Option<Instant>,
        /// Whether another process is started in its place.
        restart: bool,
    },
    /// The process was killed, and is not yet reaped.
    Killed {
        /// The process.
        pid: Pid,
        /// Whether another process is started in its place.
        restart: bool,
    },
    /// There is no process, and none will be started.
    Gone,
}

/// The child of a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Child {
    /// The state of the child.
    pub state: State,
    /// The number of failures in a row.
    failures: u32,
    start_timeout: Duration,
}

impl Child {
    /// Returns a child that is started now.
    pub fn new(now: Instant, start_timeout: Duration) -> Child {
        Child { state: State::Waiting { at: now }, failures: 0, start_timeout }
    }

    /// Returns a child in the state in which the previous image of the master left it.
    pub fn resumed(state: State, failures: u32, start_timeout: Duration) -> Child {
        Child { state, failures, start_timeout }
    }

    /// Returns the number of failures in a row.
    pub fn failures(&self) -> u32 {
        self.failures
    }

    /// Returns the process, if there is one.
    pub fn pid(&self) -> Option<Pid> {
        match self.state {
            State::Starting { pid, .. }
            | State::Up { pid, .. }
            | State::Draining { pid, .. }
            | State::Killed { pid, .. } => Some(pid),
            State::Waiting { .. } | State::Gone => None,
        }
    }

    /// Returns when [`ChildEvent::Deadline`] is due.
    pub fn deadline(&self) -> Option<Instant> {
        match self.state {
            State::Waiting { at } => Some(at),
            State::Starting { ready_by, .. } => Some(ready_by),
            State::Up { steady_at, .. } => steady_at,
            State::Draining { kill_at, .. } => kill_at,
            State::Killed { .. } | State::Gone => None,
        }
    }

    /// Handles an event, and returns what to do. An event that does not fit the state changes nothing.
    pub fn step(&mut self, event: ChildEvent, now: Instant) -> Option<ChildAction> {
        let (state, action) = match (self.state, event) {
            (State::Waiting { .. }, ChildEvent::Spawned(pid)) => {
                (State::Starting { pid, ready_by: now + self.start_timeout }, None)
            }
            (State::Waiting { .. }, ChildEvent::SpawnFailed) => (self.pause(now), None),
            (State::Waiting { at }, ChildEvent::Deadline) if at <= now => {
                (self.state, Some(ChildAction::Spawn))
            }
            (State::Waiting { .. }, ChildEvent::Drain { .. } | ChildEvent::End) => (State::Gone, None),

            (State::Starting { pid, .. }, ChildEvent::Ready) => {
                (State::Up { pid, steady_at: (self.failures > 0).then_some(now + STEADY) }, None)
            }
            (State::Starting { pid, ready_by }, ChildEvent::Deadline) if ready_by <= now => {
                (State::Killed { pid, restart: true }, Some(ChildAction::Kill(pid)))
            }
            (State::Up { pid, steady_at: Some(at) }, ChildEvent::Deadline) if at <= now => {
                self.failures = 0;
                (State::Up { pid, steady_at: None }, None)
            }
            (State::Starting { .. } | State::Up { .. }, ChildEvent::Exited(Exit::Code(EXIT_CONFIG))) => {
                (State::Gone, None)
            }
            (
                State::Starting { .. }
                | State::Up { .. }
                | State::Draining { restart: true, .. }
                | State::Killed { restart: true, .. },
                ChildEvent::Exited(_),
            ) => (self.pause(now), None),
            (State::Starting { pid, .. } | State::Up { pid, .. }, ChildEvent::Drain { kill_at }) => {
                (State::Draining { pid, kill_at, restart: false }, Some(ChildAction::TellDrain))
            }
            (State::Up { pid, .. }, ChildEvent::Stuck { kill_at }) => {
                (State::Draining { pid, kill_at: Some(kill_at), restart: true }, Some(ChildAction::TellDrain))
            }
            // A stuck child may never end by itself, so its drain gets a limit.
            (State::Draining { pid, kill_at: None, restart }, ChildEvent::Stuck { kill_at }) => {
                (State::Draining { pid, kill_at: Some(kill_at), restart }, Some(ChildAction::TellDrain))
            }
            (State::Draining { pid, kill_at: old, .. }, ChildEvent::Drain { kill_at: Some(new) })
                if old.is_none_or(|old| new < old) =>
            {
                (State::Draining { pid, kill_at: Some(new), restart: false }, Some(ChildAction::TellDrain))
            }
            (State::Draining { pid, kill_at, .. }, ChildEvent::Drain { .. }) => {
                (State::Draining { pid, kill_at, restart: false }, None)
            }
            (State::Up { pid, .. }, ChildEvent::Silent) => {
                (State::Killed { pid, restart: true }, Some(ChildAction::Kill(pid)))
            }
            (State::Draining { pid, restart, .. }, ChildEvent::Silent) => {
                (State::Killed { pid, restart }, Some(ChildAction::Kill(pid)))
            }
            (
                State::Starting { pid, .. } | State::Up { pid, .. } | State::Draining { pid, .. },
                ChildEvent::End,
            ) => (State::Killed { pid, restart: false }, Some(ChildAction::Kill(pid))),
            (State::Draining { pid, kill_at: Some(at), restart }, ChildEvent::Deadline) if at <= now => {
                (State::Killed { pid, restart }, Some(ChildAction::Kill(pid)))
            }
            (State::Killed { pid, .. }, ChildEvent::Drain { .. } | ChildEvent::End) => {
                (State::Killed { pid, restart: false }, None)
            }
            (State::Draining { .. } | State::Killed { .. }, ChildEvent::Exited(_)) => (State::Gone, None),
            (state, _) => (state, None),
        };
        self.state = state;
        action
    }

    /// Counts a failure. After the first failure, the next process starts at once. After further failures, it starts
    /// after 1 s, 2 s, 4 s and so on, up to 30 s.
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
        assert_eq!(child.step(ChildEvent::Deadline, now), Some(ChildAction::Spawn));
        assert_eq!(child.step(ChildEvent::Spawned(pid(7)), now), None);
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
            assert_eq!(child.step(ChildEvent::Deadline, now), Some(ChildAction::Spawn));
            child.step(ChildEvent::Spawned(pid(7)), now);
            child.step(ChildEvent::Ready, now);
            child.step(ChildEvent::Exited(Exit::Signal(9)), now);
        }
        assert_eq!(pauses, [0, 0, 1, 2, 4, 8, 16, 30, 30]);
    }

    #[test]
    fn a_minute_up_forgets_the_failures() {
        let mut now = Instant::now();
        let mut child = started(now);
        child.step(ChildEvent::Exited(Exit::Code(1)), now);
        child.step(ChildEvent::Spawned(pid(8)), now);
        child.step(ChildEvent::Exited(Exit::Code(1)), now);
        assert_eq!(child.deadline(), Some(now + Duration::from_secs(1)));
        child.step(ChildEvent::Spawned(pid(9)), now);
        child.step(ChildEvent::Ready, now);
        now = child.deadline().unwrap();
        child.step(ChildEvent::Deadline, now);
        assert_eq!(child.deadline(), None);
        child.step(ChildEvent::Exited(Exit::Code(0)), now);
        assert_eq!(child.state, State::Waiting { at: now });
    }

    #[test]
    fn a_bad_configuration_is_not_tried_again() {
        let now = Instant::now();
        let mut child = started(now);
        assert_eq!(child.step(ChildEvent::Exited(Exit::Code(EXIT_CONFIG)), now), None);
        assert_eq!(child.state, State::Gone);
    }

    #[test]
    fn a_child_that_is_not_ready_in_time_is_replaced() {
        let now = Instant::now();
        let mut child = started(now);
        assert_eq!(child.step(ChildEvent::Deadline, now), None, "not before its time");
        assert_eq!(child.step(ChildEvent::Deadline, now + START), Some(ChildAction::Kill(pid(7))));
        child.step(ChildEvent::Exited(Exit::Signal(9)), now + START);
        assert!(matches!(child.state, State::Waiting { .. }));
    }

    #[test]
    fn a_silent_or_stuck_child_is_replaced_by_kill_or_drain() {
        let now = Instant::now();
        let kill_at = now + START;
        let up = || {
            let mut child = started(now);
            assert_eq!(child.step(ChildEvent::Silent, now), None, "it has start_timeout to answer for");
            child.step(ChildEvent::Ready, now);
            child
        };
        let mut silent = up();
        assert_eq!(silent.step(ChildEvent::Silent, now), Some(ChildAction::Kill(pid(7))));
        silent.step(ChildEvent::Exited(Exit::Signal(9)), now);
        assert_eq!(silent.state, State::Waiting { at: now });

        let mut stuck = up();
        assert_eq!(stuck.step(ChildEvent::Stuck { kill_at }, now), Some(ChildAction::TellDrain));
        assert_eq!(stuck.step(ChildEvent::Stuck { kill_at: kill_at + START }, now), None);
        assert_eq!(stuck.deadline(), Some(kill_at));
        stuck.step(ChildEvent::Exited(Exit::Code(0)), now);
        assert_eq!(stuck.state, State::Waiting { at: now }, "a drain that was not asked for is a failure");

        // A drain without a limit gets one.
        let mut draining = up();
        draining.step(ChildEvent::Drain { kill_at: None }, now);
        assert_eq!(draining.step(ChildEvent::Stuck { kill_at }, now), Some(ChildAction::TellDrain));
        assert_eq!(draining.deadline(), Some(kill_at));
        draining.step(ChildEvent::Exited(Exit::Code(0)), now);
        assert_eq!(draining.state, State::Gone);

        // If a stuck child gets the order to drain, it is not replaced, and its time limit does not become later.
        for (end, exit) in [(None, Exit::Code(0)), (Some(ChildEvent::Silent), Exit::Signal(9))] {
            let mut stuck = up();
            stuck.step(ChildEvent::Stuck { kill_at }, now);
            assert_eq!(stuck.step(ChildEvent::Drain { kill_at: None }, now), None);
            assert_eq!(stuck.deadline(), Some(kill_at));
            if let Some(end) = end {
                assert_eq!(stuck.step(end, now), Some(ChildAction::Kill(pid(7))));
            }
            stuck.step(ChildEvent::Exited(exit), now);
            assert_eq!(stuck.state, State::Gone);
        }
    }

    #[test]
    fn a_drain_may_become_shorter_and_never_longer() {
        let now = Instant::now();
        let mut child = started(now);
        assert_eq!(child.step(ChildEvent::Drain { kill_at: None }, now), Some(ChildAction::TellDrain));
        assert_eq!(child.deadline(), None);
        let soon = Some(now + Duration::from_secs(5));
        assert_eq!(child.step(ChildEvent::Drain { kill_at: soon }, now), Some(ChildAction::TellDrain));
        assert_eq!(child.step(ChildEvent::Drain { kill_at: None }, now), None);
        assert_eq!(child.step(ChildEvent::Drain { kill_at: soon.map(|s| s + START) }, now), None);
        assert_eq!(child.deadline(), soon);
        assert_eq!(child.step(ChildEvent::End, now), Some(ChildAction::Kill(pid(7))));
        assert_eq!(child.step(ChildEvent::End, now), None);
        child.step(ChildEvent::Exited(Exit::Signal(9)), now);
        assert_eq!(child.state, State::Gone);
    }

    #[test]
    fn a_drain_ends_in_gone_from_every_state() {
        let now = Instant::now();
        let kill_at = now + Duration::from_secs(5);
        let drain = ChildEvent::Drain { kill_at: Some(kill_at) };
        let mut waiting = Child::new(now, START);
        waiting.step(drain, now);
        assert_eq!(waiting.state, State::Gone);
        let mut up = started(now);
        up.step(ChildEvent::Ready, now);
        assert_eq!(up.step(drain, now), Some(ChildAction::TellDrain));
        assert_eq!(up.step(ChildEvent::Deadline, kill_at), Some(ChildAction::Kill(pid(7))));
        up.step(ChildEvent::Exited(Exit::Signal(9)), kill_at);
        assert_eq!(up.state, State::Gone);
        let mut killed = started(now);
        killed.step(ChildEvent::Deadline, now + START);
        killed.step(drain, now + START);
        killed.step(ChildEvent::Exited(Exit::Signal(9)), now + START);
        assert_eq!(killed.state, State::Gone);
        assert_eq!(killed.step(ChildEvent::Spawned(pid(1)), now), None);
        assert_eq!(killed.state, State::Gone);
    }
}
