//! What the master does with children: hears them, reaps them, and does what their machines decide.

use std::os::fd::AsFd;
use std::time::Instant;

use anyhow::{Context as _, Result, bail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::child::{self, EXIT_CONFIG, State};
use super::{DRAIN_GRACE, Master, Place, plan, restart};
use crate::process::{self, Exit, Inherited, Link, Received, Spawn, ToChild, ToMaster};
use crate::slot;

impl Master {
    pub(super) fn read_links(&mut self) {
        for place in self.places() {
            let Some(link) = self.children.get(&place).and_then(|f| f.link.as_ref()) else { continue };
            match link.receive() {
                Ok(Received::Message(ToMaster::Ready)) => self.step(place, child::Event::Ready),
                Ok(Received::Nothing) => {}
                // Its end is told by SIGCHLD; a link that has ended must not be waited on.
                Ok(Received::Closed) => self.drop_link(place),
                Err(e) => {
                    log::error!("{}: cannot understand what it says: {e}", place.1);
                    self.drop_link(place);
                }
            }
        }
    }

    fn drop_link(&mut self, place: Place) {
        if let Some(filled) = self.children.get_mut(&place) {
            filled.link = None;
        }
    }

    pub(super) fn reap(&mut self) -> Result<()> {
        while let Some((pid, exit)) = process::reap().context("cannot reap")? {
            if self.preflight.as_ref().is_some_and(|p| p.pid == pid) {
                self.end_preflight(exit);
                continue;
            }
            let Some((&place, _)) = self.children.iter().find(|(_, f)| f.child.pid() == Some(pid)) else {
                // As pid 1, a master inherits processes that it never started.
                continue;
            };
            // What it said before it ended counts.
            self.read_links();
            let (generation, slot) = place;
            let draining = matches!(self.children[&place].child.state, State::Draining { .. });
            match exit {
                Exit::Code(0) if draining => log::info!("{slot} ({pid}) has drained"),
                Exit::Code(EXIT_CONFIG) => {
                    log::error!("{slot} ({pid}): its configuration is bad; it is not started again")
                }
                Exit::Code(code) => log::error!("{slot} ({pid}) ended with code {code}"),
                Exit::Signal(signal) => log::error!("{slot} ({pid}) was ended by {}", name_of(signal)),
            }
            self.drop_link(place);
            self.step(place, child::Event::Exited(exit));
            if self.restart.rolling() == Some(generation) {
                log::error!("{slot} of generation {generation} has not stayed up");
                self.renew(restart::Event::Failed);
            }
        }
        Ok(())
    }

    pub(super) fn act_on_deadlines(&mut self) {
        let now = Instant::now();
        for place in self.places() {
            if self.children.get(&place).and_then(|f| f.child.deadline()).is_some_and(|at| at <= now) {
                self.step(place, child::Event::Deadline);
            }
        }
    }

    fn places(&self) -> Vec<Place> {
        self.children.keys().copied().collect()
    }

    pub(super) fn step_all(&mut self, event: child::Event) {
        self.step_generations(|_| true, event);
    }

    pub(super) fn step_generations(&mut self, which: impl Fn(slot::Generation) -> bool, event: child::Event) {
        for place in self.places().into_iter().filter(|(g, _)| which(*g)) {
            self.step(place, event);
        }
    }

    /// Lets a child's machine decide, and does what it decides.
    pub(super) fn step(&mut self, place: Place, event: child::Event) {
        let now = Instant::now();
        let Some(filled) = self.children.get_mut(&place) else { return };
        match filled.child.step(event, now) {
            None => {}
            Some(child::Action::Kill(pid)) => {
                log::warn!("{} ({pid}) is killed", place.1);
                signal_child(pid, Signal::SIGKILL);
            }
            Some(child::Action::TellDrain) => {
                let kill_at = filled.child.deadline();
                let within = kill_at.map(|at| at.saturating_duration_since(now).saturating_sub(DRAIN_GRACE));
                // Without a limit, it is a restart that drains; but it may have switched the role off.
                let serving = self.generations.get(&self.current).filter(|_| self.current != place.0);
                let successor = within.is_none() && serving.is_some_and(|g| g.slots.contains(&place.1));
                let within_ms = within.map(|w| w.as_millis() as u64);
                let drain = ToChild::Drain { within_ms, successor };
                let told = filled.link.as_ref().is_some_and(|link| link.send(&drain).is_ok());
                // TERM says the same to a child whose link is gone or full.
                if let (false, Some(pid)) = (told, filled.child.pid()) {
                    signal_child(pid, Signal::SIGTERM);
                }
            }
            Some(child::Action::Spawn) => {
                let event = match self.spawn(place) {
                    Ok(pid) => {
                        log::info!("{} ({pid}) starts", place.1);
                        child::Event::Spawned(pid)
                    }
                    Err(e) => {
                        log::error!("cannot start {}: {e:#}", place.1);
                        if self.restart.rolling() == Some(place.0) {
                            self.renew(restart::Event::Failed);
                        }
                        child::Event::SpawnFailed
                    }
                };
                self.step(place, event);
            }
        }
    }

    fn spawn(&mut self, place: Place) -> Result<Pid> {
        let Some(generation) = self.generations.get(&place.0) else { bail!("its generation is gone") };
        let (link, theirs) = Link::pair().context("cannot make a link")?;
        let own = Inherited::own(generation.sealed.as_fd(), theirs.as_fd()).into_iter();
        let wanted = plan::sockets(place.1.role, &generation.settings);
        let sockets = wanted.iter().filter_map(|s| Some((s.name().to_owned(), self.sockets.get(s)?)));
        let spawn = Spawn {
            executable: generation.executable.as_fd(),
            name: place.1.to_string(),
            descriptors: own.chain(sockets).collect(),
        };
        let pid = spawn.start()?;
        if let Some(filled) = self.children.get_mut(&place) {
            filled.link = Some(link);
        }
        Ok(pid)
    }
}

/// Sends a signal to a child that has not been reaped, so that its number is still its own.
pub(super) fn signal_child(pid: Pid, signal: Signal) {
    if let Err(e) = kill(pid, signal) {
        log::error!("cannot send {signal} to {pid}: {e}");
    }
}

fn name_of(signal: i32) -> String {
    Signal::try_from(signal).map_or_else(|_| format!("signal {signal}"), |s| s.to_string())
}
