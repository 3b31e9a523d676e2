//! `dq`, the command line for people.
//!
//! A command asks the daemon through its HTTP API, over the Unix socket or a network. Commands that must also work
//! while no daemon runs (the configuration, nodes, an import, a backup) do their work themselves. Each command has its
//! own file.
//!
//! A command prints results on stdout, and everything else on stderr. docs/CLI.md has the exit codes.
//!
//! Begin with [`main`] and the enum of commands in this file.

mod add;
mod alerts;
mod api;
mod ask;
mod attempts;
mod backup;
mod batch;
mod bench;
mod broken_pipe;
mod bulk;
mod client;
#[cfg(test)]
mod commands_in_texts;
mod completions;
mod config_check;
mod console;
mod daemon_snapshot;
mod dead;
mod demo;
mod doctor;
mod due;
mod export;
mod exposition;
mod failure;
mod file_owner;
mod import;
mod job;
mod list;
mod listen;
mod man;
mod move_registry;
mod move_store;
mod node_table;
mod nodes;
mod outbox;
mod own_daemon;
mod progress;
mod receiver;
mod record_filter;
mod records;
mod reserve;
mod shared_registry;
mod show;
mod spool;
mod status;
mod target;
mod tokens;
mod top;
mod topics;

use std::path::Path;
use std::process::ExitCode;

use anyhow::Result;
use clap::{CommandFactory as _, Parser, Subcommand};

use self::failure::Failure;
use model::settings::Settings;

pub use client::TcpClient;
pub use receiver::{CallbackReceiver, HandlerAnswer, ReceivedRequest};

/// The command line of dq, the delay queue
///
/// Most commands use the HTTP API of the daemon. By default they connect to the Unix socket in its run_dir, where root
/// and the daemon's user may do everything. With --url and a token they connect over the network.
#[derive(Debug, Parser)]
#[command(name = "dq", version, after_help = failure::EXIT_CODES, after_long_help = failure::EXIT_CODES)]
struct CommandLine {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Add(add::AddArguments),
    Get(job::get::GetArguments),
    Del(job::del::DelArguments),
    Reschedule(job::reschedule::RescheduleArguments),
    Run(job::run::RunArguments),
    Reserve(reserve::ReserveArguments),
    Ack(reserve::Ack),
    Nack(reserve::Nack),
    Extend(reserve::Extend),
    List(list::ListArguments),
    Records(records::RecordsArguments),
    Find(records::find::FindArguments),
    Forget(records::forget::ForgetArguments),
    Topics(topics::TopicsArguments),
    Dead(dead::DeadArguments),
    Bulk(bulk::BulkArguments),
    Status(status::StatusArguments),
    Top(top::TopArguments),
    Doctor(doctor::DoctorArguments),
    Nodes(nodes::NodesArguments),
    Registry(shared_registry::RegistryArguments),
    Alerts(alerts::AlertsArguments),
    Token(tokens::TokensArguments),
    Console(console::ConsoleArguments),
    Config(config_check::ConfigArguments),
    Import(import::ImportArguments),
    Export(export::ExportArguments),
    Backup(backup::BackupArguments),
    Restore(backup::restore::RestoreArguments),
    Move(move_store::MoveStoreArguments),
    Listen(listen::ListenArguments),
    Demo(demo::DemoArguments),
    Bench(bench::BenchArguments),
    Completions(completions::CompletionsArguments),
    Man(man::ManArguments),
}

impl Command {
    /// Runs the command. Returns whether all is well.
    fn run(self) -> Result<bool> {
        let done = |result: Result<()>| result.map(|()| true);
        match self {
            Command::Add(arguments) => add::run(&arguments),
            Command::Get(arguments) => done(job::get::run(&arguments)),
            Command::Del(arguments) => done(job::del::run(&arguments)),
            Command::Reschedule(arguments) => done(job::reschedule::run(&arguments)),
            Command::Run(arguments) => done(job::run::run(&arguments)),
            Command::Reserve(arguments) => reserve::run(&arguments),
            Command::Ack(arguments) => done(reserve::ack(&arguments)),
            Command::Nack(arguments) => done(reserve::nack(&arguments)),
            Command::Extend(arguments) => done(reserve::extend(&arguments)),
            Command::List(arguments) => done(list::run(&arguments)),
            Command::Records(arguments) => done(records::run(&arguments)),
            Command::Find(arguments) => done(records::find::run(&arguments)),
            Command::Forget(arguments) => done(records::forget::run(&arguments)),
            Command::Topics(arguments) => topics::run(&arguments),
            Command::Dead(arguments) => dead::run(&arguments),
            Command::Bulk(arguments) => bulk::run(&arguments),
            Command::Status(arguments) => status::run(&arguments),
            Command::Top(arguments) => done(top::run(&arguments)),
            Command::Doctor(arguments) => doctor::run(&arguments),
            Command::Nodes(arguments) => nodes::run(&arguments),
            Command::Registry(arguments) => shared_registry::run(&arguments).map(|()| true),
            Command::Alerts(arguments) => alerts::run(&arguments),
            Command::Token(arguments) => done(tokens::run(&arguments)),
            Command::Console(arguments) => done(console::run(&arguments)),
            Command::Config(arguments) => config_check::run(&arguments),
            Command::Import(arguments) => import::run(&arguments),
            Command::Export(arguments) => export::run(&arguments),
            Command::Backup(arguments) => done(backup::run(&arguments)),
            Command::Restore(arguments) => done(backup::restore::run(&arguments)),
            Command::Move(arguments) => done(move_store::run(&arguments)),
            Command::Listen(arguments) => done(listen::run(&arguments)),
            Command::Demo(arguments) => done(demo::run(&arguments)),
            Command::Bench(arguments) => bench::run(&arguments),
            Command::Completions(arguments) => done(completions::run(&arguments)),
            Command::Man(arguments) => done(man::run(&arguments)),
        }
    }
}

/// Runs `dq` with the arguments of its command line.
pub fn main() -> ExitCode {
    broken_pipe::end_when_output_has_no_reader();
    let as_json = std::env::args_os().take_while(|word| word != "--").any(|word| word == "--json");
    let parsed = match CommandLine::try_parse() {
        Err(e) if as_json && e.use_stderr() => {
            return failure::print_error(&Failure::Usage(e.to_string().trim_end().to_owned()).into(), true);
        }
        Err(e) => e.exit(),
        Ok(parsed) => parsed,
    };
    match parsed.command.run() {
        Ok(true) => ExitCode::SUCCESS,
        // The command has printed what is wrong.
        Ok(false) => ExitCode::FAILURE,
        Err(e) => failure::print_error(&e, as_json),
    }
}

/// Returns the settings of a configuration file, as dq-master reads them.
fn settings(file: &Path) -> Result<Settings> {
    Ok(config::load(file, config::environment(), &|registry, _| {
        registry::php_nodes(registry).map_err(|e| e.to_string())
    })?)
}

/// Returns the command line as clap knows it. The completions and the manual pages are made from it.
fn command_line() -> clap::Command {
    CommandLine::command()
}
