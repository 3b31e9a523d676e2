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
use super::plan::Plan;
use super::restart::{Event, Kind};
use super::{Master, SIGNALS, generation};
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
        process::start_logs(NAME, handover.plan()?.log_dir.as_deref()).context("cannot start the log")?;
        let arguments = Arguments::try_parse_from(&handover.arguments)?;
        let next = Plan::of(&arguments.settings()?, &arguments.only, 0);
        if next.slots.is_empty() {
            bail!("there would be nothing to run");
        }
        generation::check_successor(handover.plan()?, &next)?;
        // A program that knows nothing of this may well end with 0.
        inherited.link.send(&ToMaster::Ready).context("cannot report ready")
    };
    match check() {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            // The master logs it.
            if inherited.link.send(&ToMaster::failed(&format!("{e:#}"))).is_err() {
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
    process::start_logs("dq-master", handover.plan()?.log_dir.as_deref()).context("cannot start the log")?;
    let signals = Signals::catch(&SIGNALS).context("cannot catch signals")?;
    let (refused, again) = (from.refused.clone(), handover.again);
    let mut master = handover.adopt(&from, arguments, signals)?;
    // The memory and the image before are not needed any more, and not to be carried to the next one.
    drop(from);
    // What came meanwhile, children's ends among it, comes now.
    process::unblock_signals().context("cannot unblock signals")?;
    match &refused {
        Some(reason) => master.refuse(&format!("the new executable has given the process back: {reason}")),
        None => {
            log::info!("dq {} has taken the process over", env!("CARGO_PKG_VERSION"));
            let begun = master.begin_restart(Kind::Executable);
            master.go_on_with(begun);
        }
    }
    master.arrange_config_watch();
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
        let by = Instant::now() + self.start_timeout();
        self.preflight = Some(Preflight { pid, executable, link });
        Ok(Event::Checking { by })
    }

    /// Takes the result of the try.
    pub(super) fn end_preflight(&mut self, exit: Exit) {
        let answer = self.preflight.as_ref().map(|p| p.link.receive::<ToMaster>());
        let why = match (exit, answer) {
            (Exit::Code(0), Some(Ok(Received::Message(ToMaster::Ready)))) => {
                return self.renew(Event::Checked);
            }
            (Exit::Code(0), _) => format!("{exit}, and does not say that it is dq"),
            (_, Some(Ok(Received::Message(ToMaster::Failed { reason })))) => format!("{exit}: {reason}"),
            _ => exit.to_string(),
        };
        self.refuse(&format!("the preflight of {} {why}", self.program.display()));
        self.preflight = None;
        self.renew(Event::Failed);
    }

    /// Ends a try that is under way.
    pub(super) fn give_up_preflight(&mut self, why: &str) {
        if let Some(preflight) = self.preflight.take() {
            self.refuse(&format!("the preflight of {} is given up: {why}", self.program.display()));
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
        self.refuse(&format!("cannot go over to {}: {error:#}", self.program.display()));
        self.renew(Event::Failed);
    }
}
