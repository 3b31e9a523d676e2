//! A seeded simulation: random sequences of events check the invariants of the state machines. Tests only.
//!
//! `SIMULATION_SEED=…` repeats a run.

use std::time::{Duration, Instant};

use fastrand::Rng;
use nix::unistd::Pid;

use super::child::{self, Child, State};
use super::restart::{self, RestartAction, RestartKind, RestartState};
use host::Exit;

const SEQUENCES: u64 = 100_000;
const EVENTS: usize = 40;
const START: Duration = Duration::from_secs(30);

fn seed() -> u64 {
    std::env::var("SIMULATION_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or_else(|| fastrand::u64(..))
}

fn child_event(rng: &mut Rng, now: Instant, next_pid: &mut i32) -> child::ChildEvent {
    match rng.u8(0..10) {
        0 | 1 => {
            *next_pid += 1;
            child::ChildEvent::Spawned(Pid::from_raw(*next_pid))
        }
        2 => child::ChildEvent::SpawnFailed,
        3 => child::ChildEvent::Ready,
        4 => child::ChildEvent::Exited(match rng.u8(0..4) {
            0 => Exit::Code(child::EXIT_CONFIG),
            1 => Exit::Code(0),
            _ => Exit::Signal(9),
        }),
        9 if rng.bool() => child::ChildEvent::Silent,
        9 => child::ChildEvent::Stuck { kill_at: now + Duration::from_secs(rng.u64(1..60)) },
        5 if rng.u8(0..6) == 0 => child::ChildEvent::End,
        5 if rng.u8(0..3) == 0 => {
            let kill_at = rng.bool().then(|| now + Duration::from_secs(rng.u64(0..60)));
            child::ChildEvent::Drain { kill_at }
        }
        _ => child::ChildEvent::Deadline,
    }
}

#[test]
fn a_child_keeps_its_invariants_through_any_events() {
    let seed = seed();
    let mut rng = Rng::with_seed(seed);
    let base = Instant::now();
    for _ in 0..SEQUENCES {
        let (mut now, mut pid, mut child) = (base, 1, Child::new(base, START));
        let mut ending = false;
        for _ in 0..EVENTS {
            now += Duration::from_millis(rng.u64(0..20_000));
            let (event, before) = (child_event(&mut rng, now, &mut pid), child);
            let action = child.step(event, now);
            let story = format!("seed {seed}: {before:?} + {event:?} = {child:?}, {action:?}");
            ending |= matches!(event, child::ChildEvent::Drain { .. } | child::ChildEvent::End);
            match action {
                // A slot has at most one process. It gets no process after the order to end.
                Some(child::ChildAction::Spawn) => {
                    assert!(!ending && before.pid().is_none() && child.pid().is_none(), "{story}");
                }
                // Only the living process of this slot is killed, or gets the order to drain.
                Some(child::ChildAction::Kill(killed)) => assert_eq!(before.pid(), Some(killed), "{story}"),
                Some(child::ChildAction::TellDrain) => {
                    let stuck = matches!(event, child::ChildEvent::Stuck { .. });
                    assert!(before.pid().is_some() && (ending || stuck), "{story}");
                }
                None => {}
            }
            match (before.pid(), child.pid(), event) {
                (None, Some(new), child::ChildEvent::Spawned(spawned)) => assert_eq!(new, spawned, "{story}"),
                (None, Some(_), _) => panic!("a process out of nothing: {story}"),
                (Some(_), None, child::ChildEvent::Exited(_)) => {}
                (Some(_), None, _) => panic!("a process that lives is forgotten: {story}"),
                (old, new, _) => assert_eq!(old, new, "{story}"),
            }
            if before.state == State::Gone {
                assert_eq!((child.state, action), (State::Gone, None), "{story}");
            }
            // Each state that waits has a deadline. After a deadline was handled, the next deadline is in the future,
            // so that the master's loop never spins. A spawn is the exception: another event reports its result.
            if event == child::ChildEvent::Deadline && action != Some(child::ChildAction::Spawn) {
                assert!(child.deadline().is_none_or(|at| at > now), "{story}");
            }
            if matches!(child.state, State::Waiting { .. } | State::Starting { .. }) {
                assert!(child.deadline().is_some(), "{story}");
            }
        }
        // After the order to end at once, the child is gone as soon as its process has ended.
        child.step(child::ChildEvent::End, now);
        child.step(child::ChildEvent::Exited(Exit::Signal(9)), now);
        assert_eq!(child.state, State::Gone, "seed {seed}");
    }
}

#[test]
fn a_restart_keeps_its_invariants_through_any_events() {
    let seed = seed();
    let mut rng = Rng::with_seed(seed);
    let base = Instant::now();
    for _ in 0..SEQUENCES {
        let (mut now, mut restart, mut latest, mut stopped) = (base, RestartState::Steady, 1, false);
        let (mut asked, mut begun) = (0, 0);
        for _ in 0..EVENTS {
            now += Duration::from_millis(rng.u64(0..10_000));
            let event = match rng.u8(0..12) {
                0..=2 => restart::RestartEvent::Asked(if rng.bool() {
                    RestartKind::Configuration
                } else {
                    RestartKind::Executable
                }),
                3 => restart::RestartEvent::Checked,
                4 | 5 => restart::RestartEvent::AllReady,
                6 => restart::RestartEvent::Failed,
                7 if rng.u8(0..8) == 0 => restart::RestartEvent::Stop,
                _ => restart::RestartEvent::Deadline,
            };
            asked += u32::from(matches!(event, restart::RestartEvent::Asked(_)));
            stopped |= event == restart::RestartEvent::Stop;
            let before = restart;
            let actions = restart.step(event, now);
            let story = format!("seed {seed}: {before:?} + {event:?} = {restart:?}, {actions:?}");
            if stopped {
                assert_eq!((restart, actions.as_slice()), (RestartState::Stopping, [].as_slice()), "{story}");
                continue;
            }
            for action in actions {
                match action {
                    // This action ends the restart, so it happens only once for each new generation.
                    RestartAction::Commit(g) | RestartAction::Abandon(g) => {
                        assert_eq!((before.rolling(), restart.rolling()), (Some(g), None), "{story}");
                    }
                    RestartAction::Execute(_) => {
                        assert!(matches!(before, RestartState::Checking { .. }), "{story}")
                    }
                    // In three of four cases, the step begins. Otherwise the step is refused, and no restart is under
                    // way.
                    RestartAction::Begin(_) | RestartAction::Check => {
                        assert_eq!(restart, RestartState::Steady, "{story}");
                        begun += 1;
                        if rng.u8(0..4) > 0 {
                            latest += u32::from(matches!(action, RestartAction::Begin(_)));
                            let by = now + START;
                            restart.step(
                                match action {
                                    RestartAction::Check => restart::RestartEvent::Checking { by },
                                    _ => restart::RestartEvent::Begun { new: latest, by },
                                },
                                now,
                            );
                        }
                    }
                }
            }
            assert!(begun <= asked, "more restarts than were asked for: {story}");
            // A restart that is under way has a deadline.
            assert_eq!(restart.deadline().is_some(), restart != RestartState::Steady, "{story}");
            if event == restart::RestartEvent::Deadline {
                assert!(restart.deadline().is_none_or(|at| at > now), "{story}");
            }
        }
    }
}
