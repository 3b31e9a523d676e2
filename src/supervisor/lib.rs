//! dq-master: starts the child processes, replaces those that end, does rolling restarts, and ends all children.
//!
//! dq-master never opens a store or a database, and never sees a job. This crate does not depend on the crates that
//! could open them. dq-master has one thread. Its loop waits, then decides, then acts. The decisions are pure: `plan`
//! (which processes there are), `child` (one process) and `restart` (a rolling restart).
//!
//! Begin with `lib.rs` (the loop). docs/SUPERVISION.md has the tables of states.

mod arguments;
mod child;
mod children;
mod config_watch;
mod control;
mod generation;
mod handover;
mod history;
mod name_check;
mod php_nodes;
mod plan;
mod preflight;
mod renewal;
mod restart;
mod running_child;
mod service;
#[cfg(test)]
mod simulation;
mod sockets;
mod spool_folder;
mod watchdog;

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use clap::Parser;
use nix::sys::signal::Signal;

pub use child::EXIT_CONFIG;
pub use php_nodes::NAME as NODES;
pub use preflight::{NAME as PREFLIGHT, resume, run as preflight};

use self::arguments::MasterArguments;
use self::child::State;
use self::config_watch::ConfigWatch;
use self::control::Control;
use self::generation::Generation;
use self::history::MasterHistory;
use self::plan::Plan;
use self::preflight::Preflight;
use self::restart::{RestartKind, RestartState};
use self::running_child::RunningChild;
use self::service::Service;
use self::sockets::Sockets;
use host::{self, RunDirLock, Signals, ToChild};
use model::settings::{RegistrySettings, Settings};
use model::slot::{self, MASTER, Role, Slot};

/// How long a starting master tries to open a port that another process uses.
const PORT_PATIENCE: Duration = Duration::from_secs(5);

/// Extra time, after `drain_timeout`, for children to hand back unfinished jobs. Then they are killed.
const DRAIN_GRACE: Duration = Duration::from_secs(2);

/// Signals to end that arrive within this interval count as one, because some programs signal a process and then its
/// group.
const ONE_SIGNAL: Duration = Duration::from_millis(300);

/// The signals that a master handles.
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

/// Runs dq-master as its command line says.
pub fn main() -> ExitCode {
    // This must come before anything else opens a descriptor.
    let given = host::sockets_from_service_manager();
    host::keep_new_files_private();
    let arguments = MasterArguments::parse();
    let settings = match arguments.settings() {
        Ok(settings) => settings,
        Err(e) => {
            eprintln!("dq-master: {e:#}");
            return ExitCode::from(arguments::exit_code(&e));
        }
    };
    if arguments.check {
        let registry =
            settings.registry.as_ref().map(|at| format!(" (those of the registry {at} are not counted)"));
        let topics = settings.topics.len();
        println!("the configuration is good: {topics} topics{}", registry.unwrap_or_default());
        return ExitCode::SUCCESS;
    }
    let run = || {
        host::start_logs(MASTER, settings.log_dir.as_deref(), settings.log)
            .with_context(|| format!("cannot start the log in log_dir {:?}", settings.log_dir))?;
        if nix::unistd::geteuid().is_root() {
            log::warn!("dq runs as root, and needs none of its rights: start it as a user of its own");
        }
        close_old_files(&settings);
        let given = given.context("cannot take the service manager's sockets")?;
        Master::start(arguments, settings, given)?.run()
    };
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("dq-master: {e:#}");
            ExitCode::FAILURE
        }
    }
}

/// Closes the files that an earlier release may have left open to other users.
fn close_old_files(settings: &Settings) {
    let databases = [settings.store.file(), settings.registry.as_ref().and_then(RegistrySettings::file)];
    for path in databases.into_iter().flatten() {
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        if let Some(name) = path.file_name() {
            host::keep_old_files_private(folder.unwrap_or(Path::new(".")), &name.to_string_lossy());
        }
    }
    host::keep_old_files_private(&settings.run_dir, "dq-");
    if let Some(folder) = &settings.log_dir {
        for kind in ["dq_", "err_", "notify_", "request_"] {
            host::keep_old_files_private(folder, kind);
        }
    }
}

/// A slot of one generation. During a restart, two processes can have the same slot; their generations differ.
type GenerationSlot = (slot::GenerationNumber, Slot);

struct Master {
    arguments: MasterArguments,
    /// The path that the executable of this process had when the process started.
    program: PathBuf,
    /// The generations that have children.
    generations: BTreeMap<slot::GenerationNumber, Generation>,
    /// The generation that serves.
    current: slot::GenerationNumber,
    /// The number of the newest generation. It counts up.
    latest: slot::GenerationNumber,
    children: BTreeMap<GenerationSlot, RunningChild>,
    restart: RestartState,
    /// What the current restart renews. If no restart is under way, this is what the last restart renewed.
    renewing: RestartKind,
    /// Why the new generation is about to be given up.
    failure: Option<String>,
    sockets: Sockets,
    /// The number of consumers that TTIN and TTOU have added to the consumers of the settings (negative: removed).
    /// `asked_consumers` is the number of consumers that are still to be added (negative: removed).
    more_consumers: i32,
    asked_consumers: i32,
    signals: Signals,
    /// When the first signal to end arrived.
    stopping_since: Option<Instant>,
    /// While dq stops: the timers drain at this moment, even if other children still run. `None`: dq does not stop, or
    /// the timers have the order to drain.
    timers_drain_by: Option<Instant>,
    /// The time limit for all children of the first generation to be ready; none: all of them have become ready.
    started_by: Option<Instant>,
    /// A new executable that is being tried.
    preflight: Option<Preflight>,
    /// When children are next asked for a sign of life.
    round_at: Option<Instant>,
    history: MasterHistory,
    control: Control,
    service: Service,
    config_watch: Option<ConfigWatch>,
    /// The lock of `run_dir`, held as long as the master lives.
    run_dir: RunDirLock,
}

impl Master {
    fn start(
        arguments: MasterArguments,
        settings: Settings,
        given: Vec<(String, OwnedFd)>,
    ) -> Result<Master> {
        host::set_process_name(MASTER).context("cannot name the process")?;
        // The signals are caught first, so that a HUP that arrives during the start is handled later and does not end
        // the process.
        let signals = Signals::catch(&SIGNALS).context("cannot catch signals")?;
        let run_dir = RunDirLock::take(&settings.run_dir, PORT_PATIENCE)?;
        let descriptors = host::raise_descriptor_limit().context("cannot raise the limit of descriptors")?;
        let program = std::fs::read_link("/proc/self/exe").context("cannot find the running executable")?;
        let executable = host::own_executable().context("cannot open the running executable")?;
        let plan = Plan::new(&settings, &arguments.only, 0);
        for (key, count) in [("timer", settings.timer.processes), ("consume", settings.consume.processes)] {
            if count == 0 && arguments.only.is_empty() {
                log::warn!(
                    "{key}.processes is 0: nothing is delivered unless another dq-master here does that"
                );
            }
        }
        let service = Service::starting(plan.start_timeout + PORT_PATIENCE);
        let first = Generation::new(&settings, plan, executable)?;
        let mut sockets = Sockets::default();
        sockets.take(given, &first.plan.sockets)?;
        sockets.bind(&first.plan.sockets, PORT_PATIENCE)?;
        log::info!(
            "dq {} starts {} processes as {:?} in {} (up to {descriptors} descriptors each)",
            env!("CARGO_PKG_VERSION"),
            first.plan.slots.len(),
            first.plan.instance,
            first.plan.run_dir.display()
        );
        let mut master = Master {
            arguments,
            program,
            generations: BTreeMap::new(),
            current: 1,
            latest: 0,
            children: BTreeMap::new(),
            restart: RestartState::Steady,
            renewing: RestartKind::Configuration,
            failure: None,
            sockets,
            more_consumers: 0,
            asked_consumers: 0,
            signals,
            stopping_since: None,
            timers_drain_by: None,
            started_by: Some(Instant::now() + first.plan.start_timeout),
            preflight: None,
            round_at: None,
            history: MasterHistory::begin(),
            control: Control::bind(&first.plan.run_dir)?,
            service,
            config_watch: None,
            run_dir,
        };
        master.add_generation(first);
        master.arrange_config_watch();
        Ok(master)
    }

    /// Runs the loop until the daemon is stopping and all children are gone.
    fn run(&mut self) -> Result<()> {
        while self.restart != RestartState::Stopping || !self.children.is_empty() {
            self.act_on_deadlines();
            self.wait()?;
            self.read_signals()?;
            self.read_links();
            self.reap()?;
            self.end_timers();
            self.watch_children();
            self.judge_start();
            self.judge_new_generation();
            self.look_at_config();
            self.drop_ended();
            self.change_consumers();
            self.answer_questions();
            self.service.update(self.phase(), self.summary(), self.end_timeout());
        }
        self.control.remove();
        if let Err(e) = self.run_dir.remove_pid() {
            log::warn!("cannot empty the pid file in run_dir: {e}");
        }
        log::info!("all processes have ended");
        if self.started_by.is_some() && self.stopping_since.is_none() {
            bail!("not all processes were ready within start_timeout; the log says why");
        }
        Ok(())
    }

    fn wait(&self) -> Result<()> {
        let own = [Some(self.signals.as_fd()), self.control.fd()];
        let links = self.children.values().filter_map(|f| f.link.as_ref().map(AsFd::as_fd));
        let file = self.config_watch.as_ref().map(AsFd::as_fd);
        let fds: Vec<BorrowedFd<'_>> = own.into_iter().flatten().chain(links).chain(file).collect();
        let own = [
            self.restart.deadline(),
            self.started_by.filter(|_| self.restart != RestartState::Stopping),
            self.round_at(),
            self.service.deadline(),
            self.control.deadline(),
            self.config_watch.as_ref().and_then(ConfigWatch::deadline),
            self.timers_drain_by,
        ];
        let deadlines = self.children.values().map(|f| f.child.deadline()).chain(own);
        host::wait_readable(&fds, deadlines.flatten().min())?;
        Ok(())
    }

    fn read_signals(&mut self) -> Result<()> {
        for signal in self.signals.take()? {
            match signal {
                Signal::SIGTERM | Signal::SIGINT | Signal::SIGQUIT => self.stop(signal),
                Signal::SIGHUP => self.ask(RestartKind::Configuration),
                Signal::SIGUSR2 => self.ask(RestartKind::Executable),
                Signal::SIGUSR1 => self.reopen_logs(),
                Signal::SIGTTIN => self.ask_for_consumers(1),
                Signal::SIGTTOU => self.ask_for_consumers(-1),
                _ => {}
            }
        }
        Ok(())
    }

    /// The first signal starts a drain, the second one ends everything at once.
    fn stop(&mut self, signal: Signal) {
        if self.stopping_since.is_some_and(|since| since.elapsed() < ONE_SIGNAL) {
            return;
        }
        if self.restart == RestartState::Stopping {
            log::warn!("{signal} again: ending at once");
            return self.step_all(child::ChildEvent::End);
        }
        let drain_timeout = self.end_timeout() - DRAIN_GRACE;
        log::info!("{signal}: draining for up to {drain_timeout:?}");
        self.stopping_since = Some(Instant::now());
        self.end_within(drain_timeout);
    }

    /// Begins the end of the daemon: closes the ports, and lets all children except the timers drain.
    fn end_within(&mut self, drain_timeout: Duration) {
        self.restart.step(restart::RestartEvent::Stop, Instant::now());
        self.give_up_preflight("the daemon ends");
        // A port that nobody serves must refuse connections.
        self.sockets.keep(|_| false);
        let until = Instant::now() + drain_timeout;
        let drain = child::ChildEvent::Drain { kill_at: Some(until + DRAIN_GRACE) };
        for place in self.places().into_iter().filter(|(_, slot)| slot.role != Role::Timer) {
            self.step(place, drain);
        }
        self.timers_drain_by = Some(until);
        self.end_timers();
    }

    /// Lets the timers drain if all other children are gone, or their time is over. Until then, the timers add the jobs
    /// that follow the last callbacks, and hand back the leases of children that die.
    fn end_timers(&mut self) {
        let Some(until) = self.timers_drain_by else { return };
        let mut others = self.children.iter().filter(|((_, slot), _)| slot.role != Role::Timer);
        if until <= Instant::now() || others.all(|(_, f)| f.child.state == State::Gone) {
            self.timers_drain_by = None;
            self.step_all(child::ChildEvent::Drain { kill_at: Some(until + DRAIN_GRACE) });
        }
    }

    fn reopen_logs(&self) {
        host::reopen_logs();
        log::info!("the log files are reopened");
        for link in self.children.values().filter_map(|f| f.link.as_ref()) {
            if let Err(e) = link.send(&ToChild::ReopenLogs) {
                log::warn!("cannot tell a child to reopen its log: {e}");
            }
        }
    }
}
