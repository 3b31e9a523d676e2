//! dq-master: starts the children, restarts those that end, and ends them. It does nothing else: it never opens a
//! store or a database, never sees a job, and has one thread.
//!
//! The loop waits, then decides (in [`child`], purely), then acts.

mod arguments;
mod child;
mod plan;

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail};
use clap::Parser;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

pub use child::EXIT_CONFIG;

use self::arguments::Arguments;
use self::child::{Action, Child, Event, State};
use self::plan::Socket;
use crate::process::{self, Exit, Inherited, Link, Received, RunDir, Signals, Spawn, ToChild, ToMaster};
use crate::settings::Settings;
use crate::slot::Slot;

/// How long a port that is busy at the start is tried again.
const PORT_PATIENCE: Duration = Duration::from_secs(5);

/// What children have beyond `drain_timeout` to hand back what they could not finish, before they are killed.
const DRAIN_GRACE: Duration = Duration::from_secs(2);

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
    let slots = plan::slots(&settings, &arguments.only);
    let run = || {
        if slots.is_empty() {
            bail!("there is nothing to run: every role is switched off, or not among those of --only");
        }
        process::start_logs("dq-master", settings.log_dir.as_deref()).context("cannot start the log")?;
        let mut master = Master::start(&settings, &slots)?;
        master.run()
    };
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("dq-master: {e:#}");
            ExitCode::FAILURE
        }
    }
}

/// A slot with its child, and the link to the child's process.
struct Filled {
    child: Child,
    link: Option<Link>,
}

struct Master {
    drain_timeout: Duration,
    executable: OwnedFd,
    settings: OwnedFd,
    sockets: BTreeMap<Socket, OwnedFd>,
    slots: BTreeMap<Slot, Filled>,
    signals: Signals,
    stopping: bool,
    /// Held for as long as the master lives.
    _run_dir: RunDir,
}

impl Master {
    fn start(settings: &Settings, slots: &[Slot]) -> Result<Master> {
        process::set_process_name("dq-master").context("cannot name the process")?;
        let run_dir = RunDir::take(&settings.run_dir)?;
        let signals = Signals::catch(&[
            Signal::SIGCHLD,
            Signal::SIGTERM,
            Signal::SIGINT,
            Signal::SIGQUIT,
            Signal::SIGHUP,
            Signal::SIGUSR1,
            Signal::SIGUSR2,
            Signal::SIGTTIN,
            Signal::SIGTTOU,
        ])
        .context("cannot catch signals")?;
        let descriptors =
            process::raise_descriptor_limit().context("cannot raise the limit of descriptors")?;
        let now = Instant::now();
        let child = || Filled { child: Child::new(now, settings.start_timeout), link: None };
        let master = Master {
            drain_timeout: settings.drain_timeout,
            executable: process::own_executable().context("cannot open the own executable")?,
            settings: process::seal("dq-settings", &serde_json::to_vec(settings)?)
                .context("cannot seal the settings")?,
            sockets: bind(settings, slots)?,
            slots: slots.iter().map(|slot| (*slot, child())).collect(),
            signals,
            stopping: false,
            _run_dir: run_dir,
        };
        log::info!(
            "dq {} starts {} processes as {:?} in {} (up to {descriptors} descriptors each)",
            env!("CARGO_PKG_VERSION"),
            slots.len(),
            settings.instance,
            settings.run_dir.display()
        );
        Ok(master)
    }

    /// Until all children are gone.
    fn run(&mut self) -> Result<()> {
        while !self.stopping || self.slots.values().any(|f| f.child.state != State::Gone) {
            self.act_on_deadlines();
            self.wait()?;
            self.read_signals()?;
            self.read_links();
            self.reap()?;
        }
        log::info!("all processes have ended");
        Ok(())
    }

    fn wait(&self) -> Result<()> {
        let links = self.slots.values().filter_map(|f| f.link.as_ref().map(AsFd::as_fd));
        let fds: Vec<BorrowedFd<'_>> = std::iter::once(self.signals.as_fd()).chain(links).collect();
        let next = self.slots.values().filter_map(|f| f.child.deadline()).min();
        process::wait_readable(&fds, next)?;
        Ok(())
    }

    fn read_signals(&mut self) -> Result<()> {
        for signal in self.signals.take()? {
            match signal {
                Signal::SIGTERM | Signal::SIGINT | Signal::SIGQUIT if self.stopping => {
                    log::warn!("{signal} again: ending at once");
                    self.end_at_once();
                }
                Signal::SIGTERM | Signal::SIGINT | Signal::SIGQUIT => {
                    log::info!("{signal}: draining for up to {:?}", self.drain_timeout);
                    self.stopping = true;
                    // Nothing is started any more; and a port that nobody serves must refuse.
                    self.sockets.clear();
                    let kill_at = Instant::now() + self.drain_timeout + DRAIN_GRACE;
                    for slot in self.all_slots() {
                        self.step(slot, Event::Drain { kill_at });
                    }
                }
                Signal::SIGCHLD => {}
                other => log::warn!("{other} does nothing in this release"),
            }
        }
        Ok(())
    }

    fn end_at_once(&mut self) {
        let now = Instant::now();
        for slot in self.all_slots() {
            // Whatever its state, it drains by now; what still runs then is past its deadline.
            self.step(slot, Event::Drain { kill_at: now });
            if let Some(Filled { child, .. }) = self.slots.get_mut(&slot)
                && let State::Draining { pid, .. } = child.state
            {
                child.state = State::Draining { pid, kill_at: now };
            }
        }
    }

    fn read_links(&mut self) {
        for slot in self.all_slots() {
            let Some(link) = self.slots.get(&slot).and_then(|f| f.link.as_ref()) else { continue };
            match link.receive() {
                Ok(Received::Message(ToMaster::Ready)) => self.step(slot, Event::Ready),
                Ok(Received::Nothing) => {}
                // Its end is told by SIGCHLD; a link that has ended must not be waited on.
                Ok(Received::Closed) => self.drop_link(slot),
                Err(e) => {
                    log::error!("{slot}: cannot understand what it says: {e}");
                    self.drop_link(slot);
                }
            }
        }
    }

    fn drop_link(&mut self, slot: Slot) {
        if let Some(filled) = self.slots.get_mut(&slot) {
            filled.link = None;
        }
    }

    fn reap(&mut self) -> Result<()> {
        while let Some((pid, exit)) = process::reap().context("cannot reap")? {
            let Some((slot, _)) = self.slots.iter().find(|(_, f)| f.child.pid() == Some(pid)) else {
                // As pid 1, a master inherits processes that it never started.
                continue;
            };
            let slot = *slot;
            // What it said before it ended counts.
            self.read_links();
            let draining = matches!(self.slots[&slot].child.state, State::Draining { .. });
            match exit {
                Exit::Code(0) if draining => log::info!("{slot} ({pid}) has drained"),
                Exit::Code(EXIT_CONFIG) => {
                    log::error!("{slot} ({pid}): its configuration is bad; it is not started again")
                }
                Exit::Code(code) => log::error!("{slot} ({pid}) ended with code {code}"),
                Exit::Signal(signal) => log::error!("{slot} ({pid}) was ended by {}", name_of(signal)),
            }
            self.drop_link(slot);
            self.step(slot, Event::Exited(exit));
        }
        Ok(())
    }

    fn act_on_deadlines(&mut self) {
        let now = Instant::now();
        for slot in self.all_slots() {
            if self.slots[&slot].child.deadline().is_some_and(|at| at <= now) {
                self.step(slot, Event::Deadline);
            }
        }
    }

    fn all_slots(&self) -> Vec<Slot> {
        self.slots.keys().copied().collect()
    }

    /// Lets a child's machine decide, and does what it decides.
    fn step(&mut self, slot: Slot, event: Event) {
        let Some(filled) = self.slots.get_mut(&slot) else { return };
        match filled.child.step(event, Instant::now()) {
            None => {}
            Some(Action::Kill(pid)) => {
                log::error!(
                    "{slot} ({pid}) has not {} in time: killed",
                    if self.stopping { "drained" } else { "started" }
                );
                signal_child(pid, Signal::SIGKILL);
            }
            Some(Action::TellDrain) => {
                let drain = ToChild::Drain { within_ms: Some(self.drain_timeout.as_millis() as u64) };
                let told = filled.link.as_ref().is_some_and(|link| link.send(&drain).is_ok());
                // TERM says the same to a child whose link is gone or full.
                if let (false, Some(pid)) = (told, filled.child.pid()) {
                    signal_child(pid, Signal::SIGTERM);
                }
            }
            Some(Action::Spawn) => {
                let event = match self.spawn(slot) {
                    Ok(pid) => {
                        log::info!("{slot} ({pid}) starts");
                        Event::Spawned(pid)
                    }
                    Err(e) => {
                        log::error!("cannot start {slot}: {e:#}");
                        Event::SpawnFailed
                    }
                };
                self.step(slot, event);
            }
        }
    }

    fn spawn(&mut self, slot: Slot) -> Result<Pid> {
        let (link, theirs) = Link::pair().context("cannot make a link")?;
        let own = Inherited::OWN.map(str::to_owned).into_iter().zip([self.settings.as_fd(), theirs.as_fd()]);
        let sockets = plan::sockets(slot.role)
            .iter()
            .filter_map(|socket| Some((socket.name().to_owned(), self.sockets.get(socket)?.as_fd())));
        let spawn = Spawn {
            executable: self.executable.as_fd(),
            name: slot.to_string(),
            descriptors: own.chain(sockets).collect(),
        };
        let pid = spawn.start()?;
        if let Some(filled) = self.slots.get_mut(&slot) {
            filled.link = Some(link);
        }
        Ok(pid)
    }
}

/// Sends a signal to a child that has not been reaped, so that its number is still its own.
fn signal_child(pid: Pid, signal: Signal) {
    if let Err(e) = kill(pid, signal) {
        log::error!("cannot send {signal} to {pid}: {e}");
    }
}

fn name_of(signal: i32) -> String {
    Signal::try_from(signal).map_or_else(|_| format!("signal {signal}"), |s| s.to_string())
}

/// Binds the sockets that the slots need.
fn bind(settings: &Settings, slots: &[Slot]) -> Result<BTreeMap<Socket, OwnedFd>> {
    let mut bound = BTreeMap::new();
    let tcp = |key: &str, address: std::net::SocketAddr| -> Result<OwnedFd> {
        let listener = process::bind_tcp(address, PORT_PATIENCE).map_err(|e| match e.kind() {
            ErrorKind::AddrInUse => {
                anyhow!("cannot bind {address} ({key}): address in use (is another dq-master running?)")
            }
            _ => anyhow!("cannot bind {address} ({key}): {e}"),
        })?;
        Ok(listener.into())
    };
    for socket in slots.iter().flat_map(|slot| plan::sockets(slot.role)) {
        let fd = match socket {
            Socket::Server => settings.server.listen.map(|address| tcp("server.listen", address)),
            Socket::Http => settings.http.listen.map(|address| tcp("http.listen", address)),
            Socket::HttpUnix => {
                let path = settings.run_dir.join("http.sock");
                Some(
                    process::bind_unix(&path)
                        .map(OwnedFd::from)
                        .with_context(|| format!("cannot bind {}", path.display())),
                )
            }
        };
        if let Some(fd) = fd {
            bound.insert(*socket, fd?);
        }
    }
    Ok(bound)
}
