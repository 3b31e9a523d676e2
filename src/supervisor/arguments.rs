//! dq-master's command line.

use std::path::PathBuf;

use anyhow::{Context as _, Error, Result};
use clap::Parser;

use super::child::EXIT_CONFIG;
use super::php_nodes;
use config::ConfigError;
use model::settings::Settings;
use model::slot::{MASTER, Role};

/// The delay-queue daemon: delivers jobs to webhooks when they are due, and loses none.
///
/// Signals: TERM, INT and QUIT drain and exit; a second one exits at once. HUP applies a changed configuration. USR2
/// also applies a new executable. USR1 reopens the log files. TTIN starts one more consumer. TTOU drains one consumer.
#[derive(Debug, Parser)]
#[command(name = MASTER, version)]
pub struct MasterArguments {
    /// The configuration file; conf/dq.toml documents every key
    #[arg(long, value_name = "FILE", required_unless_present = "dev")]
    pub config: Option<PathBuf>,

    /// Check the configuration and exit: 0 if it is valid, 78 if it is not, 1 if something it names does not answer
    #[arg(long)]
    pub check: bool,

    /// Start without a file: all settings have their defaults, all data is in the folder `var` of the working directory
    #[arg(long, conflicts_with = "config")]
    dev: bool,

    /// Run only this role: server, timer, consume, redis-checker or http-server; may be repeated
    #[arg(long, value_name = "ROLE", value_parser = role)]
    pub only: Vec<Role>,
}

fn role(name: &str) -> Result<Role, String> {
    Role::from_name(name).ok_or_else(|| {
        let all: Vec<&str> = Role::ALL.iter().map(|r| r.name()).collect();
        format!("there is no such role; the roles are {}", all.join(", "))
    })
}

impl MasterArguments {
    /// Reads the settings from these arguments and the environment.
    pub fn settings(&self) -> Result<Settings> {
        let environment = config::environment();
        match &self.config {
            Some(path) => Ok(config::load(path, environment, &|registry, run_dir| {
                php_nodes::ask(registry, run_dir, !self.check)
            })?),
            None => {
                let here = std::env::current_dir().context("cannot find the working directory")?;
                Ok(config::development(&here, environment)?)
            }
        }
    }
}

/// Returns the exit code for an error of [`MasterArguments::settings`]. After the exit code 1, the service manager
/// starts dq-master again. After [`EXIT_CONFIG`], it does not.
pub(super) fn exit_code(error: &Error) -> u8 {
    match error.downcast_ref::<ConfigError>() {
        Some(error) if error.can_pass() => 1,
        _ => EXIT_CONFIG as u8,
    }
}
