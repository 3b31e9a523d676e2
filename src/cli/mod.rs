//! `dq`, the command line for people. It asks the daemon by its HTTP API, over the Unix socket or a network; what has to go
//! when no daemon runs (the configuration, nodes, an import) it does itself.

mod add;
mod alerts;
mod api;
mod ask;
mod batch;
mod bench;
mod client;
mod completions;
mod config_check;
mod console;
mod dead;
mod demo;
mod doctor;
mod due;
mod exposition;
mod failure;
mod import;
mod job;
mod list;
mod listen;
mod man;
mod nodes;
mod own_daemon;
mod picture;
mod progress;
mod receiver;
mod show;
mod status;
mod target;
mod tokens;
mod top;
mod topics;

use std::path::Path;
use std::process::ExitCode;

use anyhow::Result;
use clap::{CommandFactory as _, Parser, Subcommand};
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};

use self::failure::Failure;
use crate::config;
use crate::registry;
use crate::settings::Settings;

pub use client::Client;
pub use receiver::{Answer, Call, Receiver};

/// The delay queue's command line
///
/// Asks the daemon by its HTTP API: over the Unix socket in its run_dir, where the daemon's user and root may do everything; or over
/// the network, with --url and a token.
#[derive(Debug, Parser)]
#[command(name = "dq", version, after_help = failure::EXIT_CODES, after_long_help = failure::EXIT_CODES)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Add(add::Arguments),
    Get(job::get::Arguments),
    Del(job::del::Arguments),
    Reschedule(job::reschedule::Arguments),
    Run(job::run::Arguments),
    List(list::Arguments),
    Topics(topics::Arguments),
    Dead(dead::Arguments),
    Status(status::Arguments),
    Top(top::Arguments),
    Doctor(doctor::Arguments),
    Nodes(nodes::Arguments),
    Alerts(alerts::Arguments),
    Token(tokens::Arguments),
    Console(console::Arguments),
    Config(config_check::Arguments),
    Import(import::Arguments),
    Listen(listen::Arguments),
    Demo(demo::Arguments),
    Bench(bench::Arguments),
    Completions(completions::Arguments),
    Man(man::Arguments),
}

impl Command {
    /// Does it. Tells whether all is well.
    fn run(self) -> Result<bool> {
        let done = |result: Result<()>| result.map(|()| true);
        match self {
            Command::Add(arguments) => add::run(&arguments),
            Command::Get(arguments) => done(job::get::run(&arguments)),
            Command::Del(arguments) => done(job::del::run(&arguments)),
            Command::Reschedule(arguments) => done(job::reschedule::run(&arguments)),
            Command::Run(arguments) => done(job::run::run(&arguments)),
            Command::List(arguments) => done(list::run(&arguments)),
            Command::Topics(arguments) => topics::run(&arguments),
            Command::Dead(arguments) => dead::run(&arguments),
            Command::Status(arguments) => status::run(&arguments),
            Command::Top(arguments) => done(top::run(&arguments)),
            Command::Doctor(arguments) => doctor::run(&arguments),
            Command::Nodes(arguments) => nodes::run(&arguments),
            Command::Alerts(arguments) => alerts::run(&arguments),
            Command::Token(arguments) => done(tokens::run(&arguments)),
            Command::Console(arguments) => done(console::run(&arguments)),
            Command::Config(arguments) => config_check::run(&arguments),
            Command::Import(arguments) => import::run(&arguments),
            Command::Listen(arguments) => done(listen::run(&arguments)),
            Command::Demo(arguments) => done(demo::run(&arguments)),
            Command::Bench(arguments) => bench::run(&arguments),
            Command::Completions(arguments) => done(completions::run(&arguments)),
            Command::Man(arguments) => done(man::run(&arguments)),
        }
    }
}

/// Runs `dq` by its command line.
pub fn main() -> ExitCode {
    // Whoever reads no further, as `head` does, ends this process as any other.
    let action = SigAction::new(SigHandler::SigDfl, SaFlags::empty(), SigSet::empty());
    // SAFETY: sets a default, before there are other threads.
    let _ = unsafe { sigaction(Signal::SIGPIPE, &action) };
    let as_json = std::env::args_os().take_while(|word| word != "--").any(|word| word == "--json");
    let parsed = match Arguments::try_parse() {
        Err(e) if as_json && e.use_stderr() => {
            return failure::tell(&Failure::Usage(e.to_string().trim_end().to_owned()).into(), true);
        }
        Err(e) => e.exit(),
        Ok(parsed) => parsed,
    };
    match parsed.command.run() {
        Ok(true) => ExitCode::SUCCESS,
        // It has said what is not well.
        Ok(false) => ExitCode::FAILURE,
        Err(e) => failure::tell(&e, as_json),
    }
}

/// The settings of that configuration file, as dq-master has them.
fn settings(file: &Path) -> Result<Settings> {
    Ok(config::load(file, config::environment(), &|registry, _| {
        registry::php_nodes(registry).map_err(|e| e.to_string())
    })?)
}

/// The command line as clap knows it: what completions and pages of the manual are made of.
fn command_line() -> clap::Command {
    Arguments::command()
}
