//! dq-master's command line.

use std::path::PathBuf;

use anyhow::{Context as _, Result};
use clap::Parser;

use super::php_nodes;
use crate::config;
use crate::settings::Settings;
use crate::slot::Role;

/// The delay-queue daemon: hands jobs to webhooks when they are due, and loses none.
///
/// Signals: TERM, INT or QUIT drain and exit, a second one ends at once; HUP takes a changed configuration, USR2 a new
/// executable as well; USR1 opens log files anew; TTIN and TTOU start one consumer more or fewer.
#[derive(Debug, Parser)]
#[command(name = "dq-master", version)]
pub struct Arguments {
    /// The configuration file; conf/dq.toml documents every key
    #[arg(long, value_name = "FILE", required_unless_present = "dev")]
    pub config: Option<PathBuf>,

    /// Check the configuration and exit: 0 when it is good, 78 when it is not
    #[arg(long)]
    pub check: bool,

    /// Start without a file: all defaults, everything in a folder `var` of the working directory
    #[arg(long, conflicts_with = "config")]
    dev: bool,

    /// Run this role only: server, timer, consume, redis-checker or http-server; may be given again
    #[arg(long, value_name = "ROLE", value_parser = role)]
    pub only: Vec<Role>,
}

fn role(name: &str) -> Result<Role, String> {
    Role::from_name(name).ok_or_else(|| {
        let all: Vec<&str> = Role::ALL.iter().map(|r| r.name()).collect();
        format!("there is no such role; the roles are {}", all.join(", "))
    })
}

impl Arguments {
    /// The settings that these arguments and the environment lead to.
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
