//! How the master works with its children: the master reads their messages, reaps them, and does what their state
//! machines decide.

use std::io::ErrorKind;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::child::{self, EXIT_CONFIG, State};
use super::running_child::RunningChild;
use super::{DRAIN_GRACE, GenerationSlot, Master, restart};
use host::{self, ChildInheritance, Exit, Link, Received, Spawn, ToChild, ToMaster};
use model::slot;

impl Master {
    /// Handles all messages that children have sent.
    pub(super) fn read_links(&mut self) {
        for place in self.places() {
            while let Some(link) = self.children.get(&place).and_then(|f| f.link.as_ref()) {
                match link.receive() {
                    Ok(Received::Message(message)) => self.handle_message(place, message),
                    Ok(Received::Nothing) => break,
                    // SIGCHLD reports the end of the process. A closed link must be dropped, because it is always
                    // readable.
                    Ok(Received::Closed) => self.drop_link(place),
                    // A newer or older release has sent a message that this release does not know.
                    Err(e) if e.kind() == ErrorKind::InvalidData => {
                        log::warn!("{}: cannot understand its message: {e}", place.1);
                    }
                    Err(e) => {
                        log::error!("{}: cannot read its link any more: {e}", place.1);
                        self.drop_link(place);
                    }
                }
            }
        }
    }

    fn handle_message(&mut self, place: GenerationSlot, message: ToMaster) {
        let Some(filled) = self.children.get_mut(&place) else { return };
        filled.silence.broken();
        match message {
            ToMaster::Ready => self.step(place, child::ChildEvent::Ready),
            ToMaster::Alive { overdue_ms } => filled.overdue = Duration::from_millis(overdue_ms),
            ToMaster::Failed { reason } => filled.reason = Some(reason),
        }
    }

    fn drop_link(&mut self, place: GenerationSlot) {
        if let Some(filled) = self.children.get_mut(&place) {
            filled.link = None;
        }
    }

    pub(super) fn reap(&mut self) -> Result<()> {
        while let Some((pid, exit)) = host::reap().context("cannot reap")? {
            if self.preflight.as_ref().is_some_and(|p| p.pid == pid) {
                self.end_preflight(exit);
                continue;
            }
            let Some((&place, _)) = self.children.iter().find(|(_, f)| f.child.pid() == Some(pid)) else {
                // As pid 1, a master inherits processes that it did not start.
                continue;
            };
            // Messages count if the child sent them before it ended.
            self.read_links();
            self.drop_link(place);
            self.note_end(place, pid, exit);
        }
        Ok(())
    }

    fn note_end(&mut self, place: GenerationSlot, pid: Pid, exit: Exit) {
        let (generation, slot) = place;
        let Some(filled) = self.children.get_mut(&place) else { return };
        let asked = matches!(
            filled.child.state,
            State::Draining { restart: false, .. } | State::Killed { restart: false, .. }
        );
        let reason = match filled.reason.take() {
            Some(reason) => format!("{exit}: {reason}"),
            None => exit.to_string(),
        };
        filled.overdue = Duration::ZERO;
        match exit {
            Exit::Code(0) if asked => log::info!("{slot} ({pid}) has drained"),
            Exit::Code(EXIT_CONFIG) => {
                log::error!("{slot} ({pid}): it cannot work with its configuration, and is not started again")
            }
            _ => log::error!("{slot} ({pid}) {reason}"),
        }
        self.step(place, child::ChildEvent::Exited(exit));
        if !asked {
            let again = self.children.get(&place).is_some_and(|f| f.child.state != State::Gone);
            self.history.ended(slot, reason.clone(), again);
        }
        self.fail_new_generation(generation, format!("{slot} {reason}"));
    }

    /// If a child of the new generation fails, gives up this generation.
    fn fail_new_generation(&mut self, generation: slot::GenerationNumber, reason: String) {
        if self.restart.rolling() == Some(generation) {
            self.failure = Some(reason);
            self.renew(restart::RestartEvent::Failed);
        }
    }

    pub(super) fn act_on_deadlines(&mut self) {
        let now = Instant::now();
        for place in self.places() {
            if self.children.get(&place).and_then(|f| f.child.deadline()).is_some_and(|at| at <= now) {
                self.step(place, child::ChildEvent::Deadline);
            }
        }
    }

    pub(super) fn places(&self) -> Vec<GenerationSlot> {
        self.children.keys().copied().collect()
    }

    pub(super) fn step_all(&mut self, event: child::ChildEvent) {
        self.step_generations(|_| true, event);
    }

    pub(super) fn step_generations(
        &mut self,
        which: impl Fn(slot::GenerationNumber) -> bool,
        event: child::ChildEvent,
    ) {
        for place in self.places().into_iter().filter(|(g, _)| which(*g)) {
            self.step(place, event);
        }
    }

    /// Gives an event to the state machine of a child, and does what it decides.
    pub(super) fn step(&mut self, place: GenerationSlot, event: child::ChildEvent) {
        let now = Instant::now();
        let Some(filled) = self.children.get_mut(&place) else { return };
        let before = filled.child.state;
        match filled.child.step(event, now) {
            None => {}
            Some(child::ChildAction::Kill(pid)) => {
                let why = match before {
                    State::Starting { .. } if event == child::ChildEvent::Deadline => {
                        Some("not ready in time")
                    }
                    State::Draining { .. } if event == child::ChildEvent::Deadline => {
                        Some("its drain took too long")
                    }
                    _ => None,
                };
                filled.reason = filled.reason.take().or(why.map(str::to_owned));
                log::warn!("{} ({pid}) is killed", place.1);
                signal_child(pid, Signal::SIGKILL);
            }
            Some(child::ChildAction::TellDrain) => self.order_drain(place, now),
            Some(child::ChildAction::Spawn) => {
                let event = match self.spawn(place) {
                    Ok(pid) => {
                        log::info!("{} ({pid}) starts", place.1);
                        child::ChildEvent::Spawned(pid)
                    }
                    Err(e) => {
                        let reason = format!("cannot start {}: {e:#}", place.1);
                        log::error!("{reason}");
                        // The failed try counts as a restart, because the process is missing all the same. The master
                        // tries again, except for a new generation, which is given up.
                        let again = self.restart.rolling() != Some(place.0);
                        self.history.ended(place.1, reason.clone(), again);
                        self.fail_new_generation(place.0, reason);
                        child::ChildEvent::SpawnFailed
                    }
                };
                self.step(place, event);
            }
        }
    }

    fn order_drain(&self, place: GenerationSlot, now: Instant) {
        let Some(filled) = self.children.get(&place) else { return };
        let kill_at = filled.child.deadline();
        let within = kill_at.map(|at| at.saturating_duration_since(now).saturating_sub(DRAIN_GRACE));
        // A process drains without a time limit after a restart, or if it is a consumer that was removed (TTOU). After
        // a restart, a new process of the same slot runs, if the current plan still has this slot.
        let serving = self.generations.get(&self.current).filter(|_| self.current != place.0);
        let replaced = within.is_none() && serving.is_some_and(|g| g.plan.slots.contains(&place.1));
        let within_ms = within.map(|w| w.as_millis() as u64);
        let drain = ToChild::Drain { within_ms, replaced };
        let is_sent = filled.link.as_ref().is_some_and(|link| link.send(&drain).is_ok());
        // A child whose link is gone or full gets SIGTERM, which has the same meaning.
        if let (false, Some(pid)) = (is_sent, filled.child.pid()) {
            signal_child(pid, Signal::SIGTERM);
        }
    }

    fn spawn(&mut self, place: GenerationSlot) -> Result<Pid> {
        let Some(generation) = self.generations.get(&place.0) else { bail!("its generation is gone") };
        let (link, theirs) = Link::pair().context("cannot make a link")?;
        let own = ChildInheritance::own(generation.sealed.as_fd(), theirs.as_fd()).into_iter();
        let is_checker = |slot: &slot::Slot| slot.role == slot::Role::RedisChecker;
        let wanted = generation.plan.sockets_of(place.1.role);
        let sockets = wanted.filter_map(|s| Some((s.name().to_owned(), self.sockets.get(s)?)));
        let spawn = Spawn {
            executable: generation.executable.as_fd(),
            name: place.1.to_string(),
            // A new generation must not take over from one that knows the topics of its registry, without knowing them.
            awaits_topics: place.0 != self.current && generation.plan.slots.iter().any(is_checker),
            descriptors: own.chain(sockets).collect(),
        };
        let pid = spawn.start()?;
        if let Some(filled) = self.children.get_mut(&place) {
            *filled = RunningChild::with(filled.child, Some(link), Some(host::now_ms()));
        }
        Ok(pid)
    }
}

/// Sends a signal to a child that has not been reaped yet. So its pid cannot belong to another process.
pub(super) fn signal_child(pid: Pid, signal: Signal) {
    if let Err(e) = kill(pid, signal) {
        log::error!("cannot send {signal} to {pid}: {e}");
    }
}
