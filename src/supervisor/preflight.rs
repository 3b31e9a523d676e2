//! USR2: a new executable is tried with the real hand-over and the new configuration. Then it takes over this process
//! in place. If it cannot continue, it gives the process back to the previous image.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context as _, Result, bail};
use clap::Parser;
use nix::errno::Errno;
use nix::sys::signal::Signal;
use nix::sys::stat::fstat;
use nix::unistd::Pid;

use super::arguments::MasterArguments;
use super::children::signal_child;
use super::handover::HandOver;
use super::name_check::check_dq_master;
use super::plan::Plan;
use super::restart::{RestartEvent, RestartKind};
use super::{Master, SIGNALS, generation};
use host::{self, ChildInheritance, Exit, HandOverMemory, Link, Received, Signals, Spawn, ToMaster};
use model::slot::MASTER;

/// The name of the process that tries a new executable.
pub const NAME: &str = "dq-preflight";

/// A new executable that is being tried.
#[derive(Debug)]
pub(super) struct Preflight {
    /// The process that tries the executable.
    pub pid: Pid,
    /// The file that is tried. If the try succeeds, this same file is executed.
    executable: OwnedFd,
    /// The link on which the process reports that it is dq.
    link: Link,
}

/// Tries this executable: checks that it understands the configuration and what the master would hand over.
pub fn run(inherited: &ChildInheritance) -> ExitCode {
    let check = || -> Result<()> {
        host::set_process_name(NAME)?;
        let handover = HandOver::parse(&inherited.settings)?;
        start_logs(NAME, handover.plan()?)?;
        let arguments = MasterArguments::try_parse_from(&handover.arguments)?;
        let settings = arguments.settings()?;
        let next = Plan::new(&settings, &arguments.only, 0);
        if next.slots.is_empty() {
            bail!("there would be nothing to run");
        }
        generation::check_next_plan(handover.plan()?, &next)?;
        generation::prepare_folders(&settings)?;
        check_dq_master(&std::fs::read_link("/proc/self/exe").context("cannot find the executable")?)?;
        // Exit code 0 alone proves nothing, because a program that is not dq may also exit with 0.
        inherited.link.send(&ToMaster::Ready).context("cannot report ready")
    };
    match check() {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            // The master logs the reason.
            if inherited.link.send(&ToMaster::failed(&format!("{e:#}"))).is_err() {
                eprintln!("{NAME}: {e:#}");
            }
            ExitCode::FAILURE
        }
    }
}

/// Continues as the master. The previous image of the master has executed this image in place.
pub fn resume(from: HandOverMemory) -> ExitCode {
    host::keep_new_files_private();
    let understand = || -> Result<(MasterArguments, HandOver)> {
        let handover = HandOver::parse(&from.bytes)?;
        handover.check_descriptors()?;
        Ok((MasterArguments::try_parse()?, handover))
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
    match resume_master(arguments, handover, from) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            log::error!("{e:#}");
            ExitCode::FAILURE
        }
    }
}

fn start_logs(name: &str, plan: &Plan) -> Result<()> {
    host::start_logs_with_fallback(name, plan.log_dir.as_deref(), plan.log).context("cannot start the log")
}

fn resume_master(arguments: MasterArguments, handover: HandOver, from: HandOverMemory) -> Result<()> {
    host::set_process_name(MASTER).context("cannot name the process")?;
    start_logs(MASTER, handover.plan()?)?;
    let signals = Signals::catch(&SIGNALS).context("cannot catch signals")?;
    let (refused, again) = (from.refused.clone(), handover.again);
    let mut master = handover.adopt(&from, arguments, signals)?;
    // The descriptors of the hand-over's memory and of the previous executable are not needed any more, and must not be
    // passed to the next image.
    drop(from);
    // Signals that arrived meanwhile are delivered now. This includes the signals for the end of a child.
    host::unblock_signals().context("cannot unblock signals")?;
    match &refused {
        Some(reason) => master.refuse(&format!("the new executable has given the process back: {reason}")),
        None => {
            log::info!("dq {} has taken the process over", env!("CARGO_PKG_VERSION"));
            let begun = master.begin_restart(RestartKind::Executable);
            master.continue_restart(begun);
        }
    }
    master.arrange_config_watch();
    if let Some(kind) = again {
        master.renew(RestartEvent::Asked(kind));
    }
    master.run()
}

/// Says why the executable at the path cannot be executed. This process has opened the file, so the file exists. If the
/// kernel still reports "no such file", the file is a script, or its interpreter or loader is missing. A script cannot
/// be executed here: its interpreter would open the file by the descriptor, but the exec closes this descriptor.
fn refusal(program: &Path, error: &io::Error) -> anyhow::Error {
    let program = program.display();
    match error.raw_os_error().map(Errno::from_raw) {
        Some(Errno::ENOENT | Errno::ENOEXEC) => {
            anyhow::anyhow!("{program} is no executable of dq (it may be a script, or of another processor)")
        }
        _ => anyhow::anyhow!("cannot execute {program}: {error}"),
    }
}

/// Returns whether this process runs this executable file.
fn is_running(executable: &OwnedFd) -> bool {
    let inode = |file: &OwnedFd| fstat(file).ok().map(|stat| (stat.st_dev, stat.st_ino));
    let own = host::own_executable().ok().and_then(|own| inode(&own));
    own.is_some() && own == inode(executable)
}

impl Master {
    /// Starts a process that tries the executable that is at the path now.
    pub(super) fn begin_preflight(&mut self) -> Result<RestartEvent> {
        let executable = generation::executable_at(&self.program)?;
        let handover = host::seal("dq-handover", &HandOver::new(self, None).to_bytes()?)?;
        let (link, theirs) = Link::pair().context("cannot make a link")?;
        let spawn = Spawn {
            awaits_topics: false,
            executable: executable.as_fd(),
            name: NAME.to_owned(),
            descriptors: ChildInheritance::own(handover.as_fd(), theirs.as_fd()).into(),
        };
        let pid = spawn.start().map_err(|e| refusal(&self.program, &e))?;
        log::info!("{} is tried ({pid})", self.program.display());
        if is_running(&executable) {
            log::info!(
                "{} has not changed, so only the configuration is new (changed links: docs/UPGRADES.md)",
                self.program.display()
            );
        }
        let by = Instant::now() + self.start_timeout();
        self.preflight = Some(Preflight { pid, executable, link });
        Ok(RestartEvent::Checking { by })
    }

    /// Handles the result of the try.
    pub(super) fn end_preflight(&mut self, exit: Exit) {
        let answer = self.preflight.as_ref().map(|p| p.link.receive::<ToMaster>());
        let why = match (exit, answer) {
            (Exit::Code(0), Some(Ok(Received::Message(ToMaster::Ready)))) => {
                return self.renew(RestartEvent::Checked);
            }
            (Exit::Code(0), _) => format!("{exit}, and does not say that it is dq"),
            (_, Some(Ok(Received::Message(ToMaster::Failed { reason })))) => format!("{exit}: {reason}"),
            (Exit::Signal(_), _) => {
                format!("{exit}: the file may be incomplete, or made for another processor")
            }
            _ => exit.to_string(),
        };
        self.refuse(&format!("the preflight of {} {why}", self.program.display()));
        self.preflight = None;
        self.renew(RestartEvent::Failed);
    }

    /// Ends a try that is under way.
    pub(super) fn give_up_preflight(&mut self, why: &str) {
        if let Some(preflight) = self.preflight.take() {
            self.refuse(&format!("the preflight of {} is given up: {why}", self.program.display()));
            signal_child(preflight.pid, Signal::SIGKILL);
            self.renew(RestartEvent::Failed);
        }
    }

    /// Executes the executable that was tried. Returns only if that failed.
    pub(super) fn execute(&mut self, again: Option<RestartKind>) {
        let Some(preflight) = self.preflight.take() else { return self.renew(RestartEvent::Failed) };
        let handover = HandOver::new(self, again);
        let signals = &mut self.signals;
        let mut attempt = || -> Result<std::io::Error> {
            let before = host::own_executable().context("cannot open the running executable")?;
            let bytes = handover.to_bytes()?;
            Ok(host::exec_in_place(&preflight.executable, &bytes, &before, &handover.descriptors(), signals))
        };
        let error = attempt().map_or_else(|e| e, Into::into);
        self.refuse(&format!("cannot go over to {}: {error:#}", self.program.display()));
        self.renew(RestartEvent::Failed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_in_the_place_of_dq_is_called_so() {
        let said = |errno: Errno| refusal(Path::new("/usr/bin/dq"), &errno.into()).to_string();
        for errno in [Errno::ENOENT, Errno::ENOEXEC] {
            assert!(said(errno).starts_with("/usr/bin/dq is no executable of dq"), "{}", said(errno));
        }
        assert!(said(Errno::EACCES).starts_with("cannot execute /usr/bin/dq: Permission denied"));
    }
}
