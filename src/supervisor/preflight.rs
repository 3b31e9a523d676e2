//! USR2: a new executable is tried with the real hand-over and the new configuration, then takes this process over in place;
//! what cannot go on gives the process back to the image before it.

use std::os::fd::{AsFd, OwnedFd};
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context as _, Result, bail};
use clap::Parser;
use nix::sys::signal::Signal;
use nix::unistd::Pid;

use super::arguments::Arguments;
use super::children::signal_child;
use super::handover::HandOver;
use super::restart::{Event, Kind};
use super::{Master, SIGNALS, generation, plan};
use crate::process::{self, Exit, HandedOver, Inherited, Link, Received, Signals, Spawn, ToMaster};

/// What the process is called that tries a new executable.
pub const NAME: &str = "dq-preflight";

/// A new executable that is being tried.
#[derive(Debug)]
pub(super) struct Preflight {
    /// The process that tries it.
    pub pid: Pid,
    /// What is executed when it is good: the very file that was tried.
    executable: OwnedFd,
    /// Where it says that it is dq.
    link: Link,
}

/// Tries this executable: whether it understands what the master would hand over, and the configuration.
pub fn run(inherited: &Inherited) -> ExitCode {
    let check = || -> Result<()> {
        process::set_process_name(NAME)?;
        let handover = HandOver::parse(&inherited.settings)?;
        process::start_logs(NAME, handover.settings()?.log_dir.as_deref()).context("cannot start the log")?;
        let arguments = Arguments::try_parse_from(&handover.arguments)?;
        let next = arguments.settings()?;
        if plan::slots(&next, &arguments.only, 0).is_empty() {
            bail!("there would be nothing to run");
        }
        generation::check_successor(handover.settings()?, &next)?;
        // A program that knows nothing of this may well end with 0.
        inherited.link.send(&ToMaster::Ready).context("cannot report ready")
    };
    match check() {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            log::error!("{e:#}");
            if !log::log_enabled!(log::Level::Error) {
                eprintln!("{NAME}: {e:#}");
            }
            ExitCode::FAILURE
        }
    }
}

/// Goes on as the master that has executed this image in place.
pub fn resume(from: HandedOver) -> ExitCode {
    let understand = || -> Result<(Arguments, HandOver)> {
        let handover = HandOver::parse(&from.bytes)?;
        handover.check_descriptors()?;
        Ok((Arguments::try_parse()?, handover))
    };
    let (arguments, handover) = match (understand(), &from.refused) {
        (Ok(understood), _) => understood,
        (Err(e), None) => {
            let e = from.give_back(&format!("{e:#}"));
            eprintln!("dq-master: cannot give the process back: {e}");
            return ExitCode::FAILURE;
        }
        (Err(e), Some(_)) => {
            eprintln!("dq-master: {e:#}");
            return ExitCode::FAILURE;
        }
    };
    match go_on(arguments, handover, from) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            log::error!("{e:#}");
            ExitCode::FAILURE
        }
    }
}

fn go_on(arguments: Arguments, handover: HandOver, from: HandedOver) -> Result<()> {
    process::set_process_name("dq-master").context("cannot name the process")?;
    process::start_logs("dq-master", handover.settings()?.log_dir.as_deref())
        .context("cannot start the log")?;
    let signals = Signals::catch(&SIGNALS).context("cannot catch signals")?;
    let adopted = handover.adopt(&from)?;
    let refused = from.refused.clone();
    // The memory and the image before are not needed any more, and not to be carried to the next one.
    drop(from);
    let again = adopted.again;
    let mut master = adopted.into_master(arguments, signals);
    // What came meanwhile, children's ends among it, comes now.
    process::unblock_signals().context("cannot unblock signals")?;
    match &refused {
        Some(reason) => log::error!("the new executable has given the process back: {reason}"),
        None => {
            log::info!("dq {} has taken the process over", env!("CARGO_PKG_VERSION"));
            let begun = master.begin_restart(Kind::Executable);
            master.go_on_with(begun);
        }
    }
    if let Some(kind) = again {
        master.renew(Event::Asked(kind));
    }
    master.run()
}

impl Master {
    /// Starts a process that tries the executable as it is now.
    pub(super) fn begin_preflight(&mut self) -> Result<Event> {
        let executable = generation::executable_at(&self.program)?;
        let handover = process::seal("dq-handover", &HandOver::of(self, None).to_bytes()?)?;
        let (link, theirs) = Link::pair().context("cannot make a link")?;
        let spawn = Spawn {
            executable: executable.as_fd(),
            name: NAME.to_owned(),
            descriptors: Inherited::own(handover.as_fd(), theirs.as_fd()).into(),
        };
        let pid = spawn.start().with_context(|| format!("cannot execute {}", self.program.display()))?;
        log::info!("{} is tried ({pid})", self.program.display());
        let Some(current) = self.generations.get(&self.current) else { bail!("no generation is serving") };
        let by = Instant::now() + current.settings.start_timeout;
        self.preflight = Some(Preflight { pid, executable, link });
        Ok(Event::Checking { by })
    }

    /// Takes the result of the try.
    pub(super) fn end_preflight(&mut self, exit: Exit) {
        let answer = self.preflight.as_ref().map(|p| p.link.receive::<ToMaster>());
        match (exit, answer) {
            (Exit::Code(0), Some(Ok(Received::Message(ToMaster::Ready)))) => self.renew(Event::Checked),
            (exit, _) => {
                log::error!(
                    "the restart is refused, and everything goes on as it was: the preflight of {} ended with {exit:?}",
                    self.program.display()
                );
                self.preflight = None;
                self.renew(Event::Failed);
            }
        }
    }

    /// Ends a try that is under way.
    pub(super) fn give_up_preflight(&mut self, why: &str) {
        if let Some(preflight) = self.preflight.take() {
            log::error!("the preflight of {} is given up: {why}", self.program.display());
            signal_child(preflight.pid, Signal::SIGKILL);
            self.renew(Event::Failed);
        }
    }

    /// Goes over to the executable that was tried. Returns only when that failed.
    pub(super) fn execute(&mut self, again: Option<Kind>) {
        let Some(preflight) = self.preflight.take() else { return self.renew(Event::Failed) };
        let handover = HandOver::of(self, again);
        let signals = &mut self.signals;
        let mut attempt = || -> Result<std::io::Error> {
            let before = process::own_executable().context("cannot open the own executable")?;
            let bytes = handover.to_bytes()?;
            Ok(process::exec_in_place(
                &preflight.executable,
                &bytes,
                &before,
                &handover.descriptors(),
                signals,
            ))
        };
        let error = attempt().map_or_else(|e| e, Into::into);
        log::error!("cannot go over to {}: {error:#}", self.program.display());
        self.renew(Event::Failed);
    }
}
