//! `dq`, the command line for people.

mod client;
mod demo;
mod import;
mod listen;
mod nodes;
mod receiver;
mod status;

use std::path::Path;
use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};

use crate::config;
use crate::registry;
use crate::settings::Settings;

pub use client::Client;
pub use receiver::{Answer, Call, Receiver};

/// The delay queue's command line.
#[derive(Debug, Parser)]
#[command(name = "dq", version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Demo(demo::Arguments),
    Import(import::Arguments),
    Listen(listen::Arguments),
    Nodes(nodes::Arguments),
    Status(status::Arguments),
}

/// Runs `dq` by its command line.
pub fn main() -> ExitCode {
    // Whoever reads no further, as `head` does, ends this process as any other.
    let action = SigAction::new(SigHandler::SigDfl, SaFlags::empty(), SigSet::empty());
    // SAFETY: sets a default, before there are other threads.
    let _ = unsafe { sigaction(Signal::SIGPIPE, &action) };
    let run = || -> Result<bool> {
        match Arguments::parse().command {
            Command::Demo(arguments) => demo::run(&arguments).map(|()| true),
            Command::Import(arguments) => import::run(&arguments),
            Command::Listen(arguments) => listen::run(&arguments).map(|()| true),
            Command::Nodes(arguments) => nodes::run(&arguments),
            Command::Status(arguments) => status::run(&arguments),
        }
    };
    match run() {
        Ok(true) => ExitCode::SUCCESS,
        // It has said what is not well.
        Ok(false) => ExitCode::FAILURE,
        Err(e) => {
            eprintln!("dq: {e:#}");
            ExitCode::FAILURE
        }
    }
}

/// The settings of that configuration file, as dq-master has them.
fn settings(file: &Path) -> Result<Settings> {
    Ok(config::load(file, config::environment(), &|registry, _| {
        registry::php_nodes(registry).map_err(|e| e.to_string())
    })?)
}
