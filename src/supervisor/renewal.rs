//! Rolling restarts: does what the state machine of the restart decides, checks the progress of the new generation, and
//! changes the number of consumers.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};

use super::child::{self, State};
use super::generation::{self, Generation};
use super::plan::Plan;
use super::restart::{self, RestartKind, RestartState};
use super::running_child::RunningChild;
use super::sockets::Socket;
use super::{DRAIN_GRACE, Master};
use model::settings::Settings;
use model::slot;

impl Master {
    /// Gives an event to the state machine of the restart, and does what it decides.
    pub(super) fn renew(&mut self, event: restart::RestartEvent) {
        for action in self.restart.step(event, Instant::now()) {
            match action {
                restart::RestartAction::Check => {
                    self.renewing = RestartKind::Executable;
                    let begun = self.begin_preflight();
                    self.continue_restart(begun);
                }
                restart::RestartAction::Execute(again) => self.execute(again),
                restart::RestartAction::Begin(kind) => {
                    self.renewing = kind;
                    let begun = self.begin_restart(kind);
                    self.continue_restart(begun);
                }
                restart::RestartAction::Commit(new) => self.commit(new),
                restart::RestartAction::Abandon(new) => self.abandon(new),
            }
        }
    }

    /// Tells the state machine of the restart that a step has begun. If the step has not begun, notes the reason.
    pub(super) fn continue_restart(&mut self, begun: Result<restart::RestartEvent>) {
        match begun {
            Ok(begun) => self.renew(begun),
            Err(e) => self.refuse(&format!("{e:#}")),
        }
    }

    /// Logs and notes why there is no restart.
    pub(super) fn refuse(&mut self, reason: &str) {
        log::error!("the restart is refused, and everything goes on as it was: {reason}");
        self.history.renewed(self.renewing, Some(reason.to_owned()));
    }

    /// Makes the plan for these settings, with the consumers that TTIN and TTOU added or removed.
    pub(super) fn plan(&self, settings: &Settings) -> Plan {
        Plan::new(settings, &self.arguments.only, self.more_consumers)
    }

    /// Reads the new configuration, and begins to start a new generation.
    pub(super) fn begin_restart(&mut self, kind: RestartKind) -> Result<restart::RestartEvent> {
        let settings = self.arguments.settings()?;
        let plan = self.plan(&settings);
        let Some(current) = self.generations.get(&self.current) else { bail!("no generation is serving") };
        generation::check_next_plan(&current.plan, &plan)?;
        let executable = match kind {
            RestartKind::Executable => {
                host::own_executable().context("cannot open the running executable")?
            }
            RestartKind::Configuration => {
                current.executable.try_clone().context("cannot keep the executable")?
            }
        };
        let next = Generation::new(&settings, plan, executable)?;
        // New addresses are bound before old ones are closed.
        self.sockets.bind(&next.plan.sockets, Duration::ZERO)?;
        let by = Instant::now() + next.plan.start_timeout;
        let new = self.add_generation(next);
        self.failure = None;
        log::info!("generation {new} is started beside generation {}", self.current);
        Ok(restart::RestartEvent::Begun { new, by })
    }

    pub(super) fn add_generation(&mut self, generation: Generation) -> slot::GenerationNumber {
        self.latest += 1;
        for slot in &generation.plan.slots {
            self.children.insert((self.latest, *slot), RunningChild::new(generation.plan.start_timeout));
        }
        self.generations.insert(self.latest, generation);
        self.latest
    }

    /// Lets the new generation take over. The older generations drain without a time limit, until their last callback
    /// has ended.
    fn commit(&mut self, new: slot::GenerationNumber) {
        log::info!("generation {new} is ready; the older ones drain");
        self.current = new;
        self.history.renewed(self.renewing, None);
        if let Some(generation) = self.generations.get(&new) {
            self.more_consumers = generation.plan.more_consumers;
        }
        self.step_generations(|g| g < new, child::ChildEvent::Drain { kill_at: None });
        self.close_unused_sockets();
        self.arrange_config_watch();
    }

    /// Closes all sockets except those of the current generation and of the generation that is being started. Children
    /// of older generations are not started again, and have copies of the sockets that they still need. If only this
    /// process had a socket open, clients could connect to the socket, but would get no answer.
    fn close_unused_sockets(&mut self) {
        let wanting = [Some(self.current), self.restart.rolling()].into_iter().flatten();
        let wanted: Vec<&Socket> = wanting
            .filter_map(|g| self.generations.get(&g))
            .flat_map(|g| g.plan.sockets.iter().map(|(_, socket)| socket))
            .collect();
        self.sockets.keep(|socket| wanted.contains(&socket));
    }

    /// Ends a generation that did not become ready.
    fn abandon(&mut self, new: slot::GenerationNumber) {
        let why = self
            .failure
            .take()
            .unwrap_or_else(|| format!("not ready within start_timeout: {}", self.not_up(new).join(", ")));
        log::error!("generation {new} is given up; generation {} goes on: {why}", self.current);
        self.history.renewed(self.renewing, Some(why));
        // Children that are up may serve clients already. These children drain, so that the clients still get their
        // answers.
        let time = self.generations.get(&new).map_or(Duration::ZERO, |g| g.plan.drain_timeout);
        let drain = child::ChildEvent::Drain { kill_at: Some(Instant::now() + time + DRAIN_GRACE) };
        for place in self.places().into_iter().filter(|(g, _)| *g == new) {
            let is_up = self.children.get(&place).is_some_and(RunningChild::is_up);
            self.step(place, if is_up { drain } else { child::ChildEvent::End });
        }
        self.close_unused_sockets();
    }

    /// Returns the slots of a generation that are not up.
    fn not_up(&self, generation: slot::GenerationNumber) -> Vec<String> {
        let slots = self.generations.get(&generation).map_or(&[][..], |g| &g.plan.slots);
        let is_up = |slot| self.children.get(&(generation, slot)).is_some_and(RunningChild::is_up);
        slots.iter().filter(|slot| !is_up(**slot)).map(ToString::to_string).collect()
    }

    /// Checks whether the first generation is ready. If this generation is not ready in time, the daemon ends.
    /// Otherwise it would keep a port open that nobody serves.
    pub(super) fn judge_start(&mut self) {
        let Some(by) = self.started_by.filter(|_| self.restart != RestartState::Stopping) else { return };
        let late = self.not_up(self.current);
        if late.is_empty() {
            self.started_by = None;
            log::info!("all processes are ready");
        } else if by <= Instant::now() {
            log::error!("not ready within start_timeout: {}", late.join(", "));
            self.end_within(Duration::ZERO);
        }
    }

    /// Tells the state machine of the restart whether the new generation is ready, or has taken too long.
    pub(super) fn judge_new_generation(&mut self) {
        if self.preflight.is_some() && self.restart.deadline().is_some_and(|by| by <= Instant::now()) {
            self.give_up_preflight("it has not come to an end in time");
        }
        if let Some(new) = self.restart.rolling() {
            if self.children.iter().filter(|((g, _), _)| *g == new).all(|(_, f)| f.is_up()) {
                self.renew(restart::RestartEvent::AllReady);
            } else if self.restart.deadline().is_some_and(|by| by <= Instant::now()) {
                self.renew(restart::RestartEvent::Deadline);
            }
        }
    }

    /// Drops children that have ended for good, and generations without children.
    pub(super) fn drop_ended(&mut self) {
        let stopping = self.restart == RestartState::Stopping;
        let (current, rolling) = (self.current, self.restart.rolling());
        let generations = &self.generations;
        // A child of the current generation may have ended because it cannot work with its configuration. This child
        // keeps its place, if the plan still has its slot. A consumer that was removed has no slot any more, so it is
        // dropped.
        let kept = |g: slot::GenerationNumber, slot| {
            g == current && !stopping && generations.get(&g).is_some_and(|g| g.plan.slots.contains(&slot))
        };
        self.children.retain(|(g, slot), f| f.child.state != State::Gone || kept(*g, *slot));
        let children = &self.children;
        self.generations
            .retain(|g, _| *g == current || Some(*g) == rolling || children.keys().any(|(of, _)| of == g));
    }

    /// Asks for one consumer more (1) or one fewer (-1). If a restart is under way, the change is made when it is over.
    pub(super) fn ask_for_consumers(&mut self, by: i32) {
        self.asked_consumers += by;
        if self.restart != RestartState::Steady {
            log::info!("the number of consumers is changed when the restart is over");
        }
    }

    /// Starts the consumers that were asked for, or drains the consumers that must be removed.
    pub(super) fn change_consumers(&mut self) {
        while self.restart == RestartState::Steady && self.asked_consumers != 0 {
            let more = self.asked_consumers > 0;
            let Some(current) = self.generations.get_mut(&self.current) else { return };
            let before = current.plan.clone();
            let Some(slot) = current.plan.change_consumers(more) else {
                self.asked_consumers = 0;
                log::warn!(
                    "the number of consumers stays: the last one is not removed, and none is added where there are none"
                );
                return;
            };
            let place = (self.current, slot);
            if more && self.children.get(&place).is_some_and(|f| f.child.state != State::Gone) {
                // The previous process of this slot still drains. The start of the consumer is tried again when a
                // process ends.
                current.plan = before;
                return;
            }
            let (start_timeout, drain) =
                (current.plan.start_timeout, child::ChildEvent::Drain { kill_at: None });
            self.asked_consumers -= if more { 1 } else { -1 };
            self.more_consumers += if more { 1 } else { -1 };
            if more {
                log::info!("{slot} is added");
                self.children.insert(place, RunningChild::new(start_timeout));
            } else {
                log::info!("{slot} is removed");
                self.step(place, drain);
            }
        }
    }

    /// Returns how long a restart may take: the try of the executable, and the start of a generation.
    pub(super) fn renewal_timeout(&self) -> Duration {
        2 * self.start_timeout()
    }

    /// Returns how long a new generation may take to be ready.
    pub(super) fn start_timeout(&self) -> Duration {
        self.generations.get(&self.current).map_or(Duration::ZERO, |g| g.plan.start_timeout)
    }

    /// Returns how long the daemon may take to end.
    pub(super) fn end_timeout(&self) -> Duration {
        self.generations.get(&self.current).map_or(Duration::ZERO, |g| g.plan.drain_timeout) + DRAIN_GRACE
    }
}
