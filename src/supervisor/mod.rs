//! dq-master: starts the children, restarts those that end, renews them all when it is told, and ends them. It does
//! nothing else: it never opens a store or a database, never sees a job, and has one thread.
//!
//! The loop waits, then decides (in [`child`] and [`restart`], purely), then acts. docs/SUPERVISION.md holds the tables.

mod arguments;
mod child;
mod children;
mod generation;
mod handover;
mod plan;
mod preflight;
mod restart;
#[cfg(test)]
mod simulation;
mod sockets;

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use clap::Parser;
use nix::sys::signal::Signal;

pub use child::EXIT_CONFIG;
pub use preflight::{NAME as PREFLIGHT, resume, run as preflight};

use self::arguments::Arguments;
use self::child::{Child, State};
use self::generation::Generation;
use self::preflight::Preflight;
use self::restart::{Kind, Restart};
use self::sockets::Sockets;
use crate::process::{self, Link, RunDir, Signals, ToChild};
use crate::settings::Settings;
use crate::slot::{self, Slot};

/// How long a port that is busy at the start is tried again.
const PORT_PATIENCE: Duration = Duration::from_secs(5);

/// What children have beyond `drain_timeout` to hand back what they could not finish, before they are killed.
const DRAIN_GRACE: Duration = Duration::from_secs(2);

/// Signals that come so close after each other are one: some programs signal a process and then its group.
const ONE_SIGNAL: Duration = Duration::from_millis(300);

/// The signals that a master heeds.
const SIGNALS: [Signal; 9] = [
    Signal::SIGCHLD,
    Signal::SIGTERM,
    Signal::SIGINT,
    Signal::SIGQUIT,
    Signal::SIGHUP,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
    Signal::SIGTTIN,
    Signal::SIGTTOU,
];

/// Runs dq-master by its command line.
pub fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let settings = match arguments.settings() {
        Ok(settings) => settings,
        Err(e) => {
            eprintln!("dq-master: {e:#}");
            return ExitCode::from(EXIT_CONFIG as u8);
        }
    };
    if arguments.check {
        println!("the configuration is good: {} topics", settings.topics.len());
        return ExitCode::SUCCESS;
    }
    let run = || {
        process::start_logs("dq-master", settings.log_dir.as_deref())
            .with_context(|| format!("cannot start the log in log_dir {:?}", settings.log_dir))?;
        Master::start(arguments, settings)?.run()
    };
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("dq-master: {e:#}");
            ExitCode::FAILURE
        }
    }
}

/// A place of one generation: which process of two that go by one name.
type Place = (slot::Generation, Slot);

/// A place with its child, and the link to the child's process.
struct Filled {
    child: Child,
    link: Option<Link>,
}

impl Filled {
    fn is_up(&self) -> bool {
        matches!(self.child.state, State::Up { .. })
    }
}

struct Master {
    arguments: Arguments,
    /// Where this process's executable was at its start.
    program: PathBuf,
    /// The generations that have children.
    generations: BTreeMap<slot::Generation, Generation>,
    /// The one that serves.
    current: slot::Generation,
    /// Counts them.
    latest: slot::Generation,
    children: BTreeMap<Place, Filled>,
    restart: Restart,
    sockets: Sockets,
    /// Consumers beyond what the settings say, by TTIN and TTOU.
    more_consumers: i32,
    signals: Signals,
    /// When the first signal to end came.
    stopping_since: Option<Instant>,
    /// Until when all children must have been ready once; none: they have been.
    started_by: Option<Instant>,
    /// A new executable that is being tried.
    preflight: Option<Preflight>,
    /// Held for as long as the master lives.
    run_dir: RunDir,
}

impl Master {
    fn start(arguments: Arguments, settings: Settings) -> Result<Master> {
        process::set_process_name("dq-master").context("cannot name the process")?;
        let run_dir = RunDir::take(&settings.run_dir)?;
        let signals = Signals::catch(&SIGNALS).context("cannot catch signals")?;
        let descriptors =
            process::raise_descriptor_limit().context("cannot raise the limit of descriptors")?;
        let program = std::fs::read_link("/proc/self/exe").context("cannot find the own executable")?;
        let executable = process::own_executable().context("cannot open the own executable")?;
        let first = Generation::new(settings, executable, &arguments.only, 0)?;
        for (key, count) in
            [("timer", first.settings.timer.processes), ("consume", first.settings.consume.processes)]
        {
            if count == 0 && arguments.only.is_empty() {
                log::warn!(
                    "{key}.processes is 0: nothing is delivered unless another dq-master here does that"
                );
            }
        }
        let mut sockets = Sockets::default();
        sockets.bind(&first.sockets(), PORT_PATIENCE)?;
        log::info!(
            "dq {} starts {} processes as {:?} in {} (up to {descriptors} descriptors each)",
            env!("CARGO_PKG_VERSION"),
            first.slots.len(),
            first.settings.instance,
            first.settings.run_dir.display()
        );
        let mut master = Master {
            arguments,
            program,
            generations: BTreeMap::new(),
            current: 1,
            latest: 0,
            children: BTreeMap::new(),
            restart: Restart::Steady,
            sockets,
            more_consumers: 0,
            signals,
            stopping_since: None,
            started_by: Some(Instant::now() + first.settings.start_timeout),
            preflight: None,
            run_dir,
        };
        master.add_generation(first);
        Ok(master)
    }

    /// Until all children are gone, and are to be.
    fn run(&mut self) -> Result<()> {
        while self.restart != Restart::Stopping || !self.children.is_empty() {
            self.act_on_deadlines();
            self.wait()?;
            self.read_signals()?;
            self.read_links();
            self.reap()?;
            self.judge_the_start();
            self.judge_the_new();
            self.forget_the_gone();
        }
        log::info!("all processes have ended");
        if self.started_by.is_some() && self.stopping_since.is_none() {
            bail!("not all processes were ready within start_timeout; the log says why");
        }
        Ok(())
    }

    fn wait(&self) -> Result<()> {
        let links = self.children.values().filter_map(|f| f.link.as_ref().map(AsFd::as_fd));
        let fds: Vec<BorrowedFd<'_>> = std::iter::once(self.signals.as_fd()).chain(links).collect();
        let deadlines = self.children.values().filter_map(|f| f.child.deadline());
        let own = [self.restart.deadline(), self.started_by.filter(|_| self.restart != Restart::Stopping)];
        process::wait_readable(&fds, deadlines.chain(own.into_iter().flatten()).min())?;
        Ok(())
    }

    fn read_signals(&mut self) -> Result<()> {
        for signal in self.signals.take()? {
            match signal {
                Signal::SIGTERM | Signal::SIGINT | Signal::SIGQUIT => self.stop(signal),
                Signal::SIGHUP => self.renew(restart::Event::Asked(Kind::Configuration)),
                Signal::SIGUSR2 => self.renew(restart::Event::Asked(Kind::Executable)),
                Signal::SIGUSR1 => self.reopen_logs(),
                Signal::SIGTTIN => self.change_consumers(1),
                Signal::SIGTTOU => self.change_consumers(-1),
                _ => {}
            }
        }
        Ok(())
    }

    /// The first signal drains, the second ends at once.
    fn stop(&mut self, signal: Signal) {
        if self.stopping_since.is_some_and(|since| since.elapsed() < ONE_SIGNAL) {
            return;
        }
        if self.restart == Restart::Stopping {
            log::warn!("{signal} again: ending at once");
            return self.step_all(child::Event::End);
        }
        let drain_timeout = self.drain_timeout();
        log::info!("{signal}: draining for up to {drain_timeout:?}");
        self.stopping_since = Some(Instant::now());
        self.end_within(drain_timeout);
    }

    /// Begins to end everything.
    fn end_within(&mut self, drain_timeout: Duration) {
        self.restart.step(restart::Event::Stop, Instant::now());
        self.give_up_preflight("the daemon ends");
        // Nothing is started any more; and a port that nobody serves must refuse.
        self.sockets.keep(|_| false);
        self.step_all(child::Event::Drain { kill_at: Some(Instant::now() + drain_timeout + DRAIN_GRACE) });
    }

    fn drain_timeout(&self) -> Duration {
        self.generations.get(&self.current).map_or(Duration::ZERO, |g| g.settings.drain_timeout)
    }

    /// Lets the restart's machine decide, and does what it decides.
    fn renew(&mut self, event: restart::Event) {
        for action in self.restart.step(event, Instant::now()) {
            match action {
                restart::Action::Check => {
                    let begun = self.begin_preflight();
                    self.go_on_with(begun);
                }
                restart::Action::Execute(again) => self.execute(again),
                restart::Action::Begin(kind) => {
                    let begun = self.begin_restart(kind);
                    self.go_on_with(begun);
                }
                restart::Action::Commit(new) => self.commit(new),
                restart::Action::Abandon(new) => {
                    log::error!("generation {new} is given up; generation {} goes on", self.current);
                    self.step_generations(|g| g == new, child::Event::End);
                }
            }
        }
    }

    /// Tells the restart's machine that a step has begun; or the log, why it has not.
    fn go_on_with(&mut self, begun: Result<restart::Event>) {
        match begun {
            Ok(begun) => self.renew(begun),
            Err(e) => log::error!("the restart is refused, and everything goes on as it was: {e:#}"),
        }
    }

    /// Reads what is new, and begins to start its children.
    fn begin_restart(&mut self, kind: Kind) -> Result<restart::Event> {
        let settings = self.arguments.settings()?;
        let Some(current) = self.generations.get(&self.current) else { bail!("no generation is serving") };
        generation::check_successor(&current.settings, &settings)?;
        let executable = match kind {
            Kind::Executable => process::own_executable().context("cannot open the own executable")?,
            Kind::Configuration => current.executable.try_clone().context("cannot keep the executable")?,
        };
        let next = Generation::new(settings, executable, &self.arguments.only, self.more_consumers)?;
        // New addresses are bound before old ones are let go.
        self.sockets.bind(&next.sockets(), Duration::ZERO)?;
        let by = Instant::now() + next.settings.start_timeout;
        let new = self.add_generation(next);
        log::info!("generation {new} is started beside generation {}", self.current);
        Ok(restart::Event::Begun { new, by })
    }

    fn add_generation(&mut self, generation: Generation) -> slot::Generation {
        self.latest += 1;
        let now = Instant::now();
        for slot in &generation.slots {
            let child = Child::new(now, generation.settings.start_timeout);
            self.children.insert((self.latest, *slot), Filled { child, link: None });
        }
        self.generations.insert(self.latest, generation);
        self.latest
    }

    /// Lets the new generation take over. The old ones take as long as their last callback.
    fn commit(&mut self, new: slot::Generation) {
        log::info!("generation {new} is ready; the older ones drain");
        self.current = new;
        self.step_generations(|g| g < new, child::Event::Drain { kill_at: None });
    }

    /// A daemon that cannot start says so by its end, instead of holding a port that nobody serves.
    fn judge_the_start(&mut self) {
        let Some(by) = self.started_by.filter(|_| self.restart != Restart::Stopping) else { return };
        let Some(current) = self.generations.get(&self.current) else { return };
        let is_up = |slot: &&Slot| {
            let filled = self.children.get(&(self.current, **slot));
            filled.is_some_and(Filled::is_up)
        };
        let late: Vec<&Slot> = current.slots.iter().filter(|slot| !is_up(slot)).collect();
        if late.is_empty() {
            self.started_by = None;
        } else if by <= Instant::now() {
            let names: Vec<String> = late.iter().map(ToString::to_string).collect();
            log::error!("not ready within start_timeout: {}", names.join(", "));
            self.end_within(Duration::ZERO);
        }
    }

    /// Tells the restart's machine how the new generation fares.
    fn judge_the_new(&mut self) {
        if self.preflight.is_some() && self.restart.deadline().is_some_and(|by| by <= Instant::now()) {
            self.give_up_preflight("it has not come to an end in time");
        }
        if let Some(new) = self.restart.rolling() {
            if self.children.iter().filter(|((g, _), _)| *g == new).all(|(_, f)| f.is_up()) {
                self.renew(restart::Event::AllReady);
            } else if self.restart.deadline().is_some_and(|by| by <= Instant::now()) {
                self.renew(restart::Event::Deadline);
            }
        }
    }

    /// Drops children that ended for good, generations without children, and sockets that nobody wants.
    fn forget_the_gone(&mut self) {
        let stopping = self.restart == Restart::Stopping;
        let (current, rolling) = (self.current, self.restart.rolling());
        // A child of the current generation that is gone because its configuration is bad keeps its generation.
        self.children.retain(|(g, _), f| f.child.state != State::Gone || *g == current && !stopping);
        let before = self.generations.len();
        let children = &self.children;
        self.generations
            .retain(|g, _| *g == current || Some(*g) == rolling || children.keys().any(|(of, _)| of == g));
        if self.generations.len() < before && !stopping {
            let wanted: Vec<sockets::Socket> =
                self.generations.values().flat_map(Generation::sockets).collect();
            self.sockets.keep(|socket| wanted.contains(socket));
        }
    }

    fn reopen_logs(&self) {
        process::reopen_logs();
        log::info!("the log files are opened anew");
        for link in self.children.values().filter_map(|f| f.link.as_ref()) {
            if let Err(e) = link.send(&ToChild::ReopenLogs) {
                log::warn!("cannot tell a child to open its log anew: {e}");
            }
        }
    }

    /// Starts one consumer more, or drains the last of them.
    fn change_consumers(&mut self, by: i32) {
        let (Restart::Steady, Some(current)) = (self.restart, self.generations.get_mut(&self.current)) else {
            return log::warn!("the number of consumers is not changed during a restart");
        };
        let slots = plan::slots(&current.settings, &self.arguments.only, self.more_consumers + by);
        let busy = |slot: &&Slot| {
            let filled = self.children.get(&(self.current, **slot));
            !current.slots.contains(slot) && filled.is_some_and(|f| f.child.state != State::Gone)
        };
        if let Some(slot) = slots.iter().find(busy) {
            return log::warn!("{slot} still drains: it is not added before it has ended");
        }
        if slots == current.slots {
            return log::warn!("there are {} processes, and one consumer stays", slots.len());
        }
        self.more_consumers += by;
        let before = std::mem::replace(&mut current.slots, slots.clone());
        let start_timeout = current.settings.start_timeout;
        for slot in slots.iter().filter(|s| !before.contains(s)) {
            log::info!("{slot} is added");
            let child = Child::new(Instant::now(), start_timeout);
            self.children.insert((self.current, *slot), Filled { child, link: None });
        }
        for slot in before.iter().filter(|s| !slots.contains(s)) {
            log::info!("{slot} is taken away");
            self.step((self.current, *slot), child::Event::Drain { kill_at: None });
        }
    }
}
