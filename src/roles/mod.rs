//! The table of roles: what a child of dq-master runs.

mod consume;
mod http_server;
mod php_nodes;
mod redis_checker;
mod server;
mod timer;

use std::process::ExitCode;

use anyhow::Result;

pub use php_nodes::main as tell_nodes;

use crate::process::{Inherited, ToMaster};
use crate::role::Context;
use crate::slot::Role;

/// What a role runs, until it has drained.
fn entry(role: Role) -> fn(Context) -> Result<()> {
    match role {
        Role::Server => server::run,
        Role::Timer => timer::run,
        Role::Consume => consume::run,
        Role::RedisChecker => redis_checker::run,
        Role::HttpServer => http_server::run,
    }
}

/// Runs the role that this process was started for.
pub fn main(inherited: Inherited) -> ExitCode {
    let (name, link) = (inherited.slot.clone(), inherited.link.try_clone());
    let run = || {
        let context = Context::begin(inherited)?;
        entry(context.slot.role)(context)
    };
    match run() {
        Ok(()) => {
            log::info!("ends");
            ExitCode::SUCCESS
        }
        Err(e) => {
            log::error!("{e:#}");
            if !log::log_enabled!(log::Level::Error) {
                eprintln!("{name}: {e:#}");
            }
            // So that the master can tell whoever asks it; one that is gone asks no more.
            let _ = link.map(|link| link.send(&ToMaster::failed(&format!("{e:#}"))));
            ExitCode::FAILURE
        }
    }
}
