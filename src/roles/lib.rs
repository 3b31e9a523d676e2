//! The table of roles: which function a child process runs.
//!
//! Each role is a crate of its own in a folder beside this file, and no role uses another role.

mod php_nodes;

use std::process::ExitCode;

use anyhow::Result;

pub use php_nodes::main as tell_nodes;

use host::{ChildInheritance, ToMaster};
use model::slot::Role;
use role::Context;

/// Returns the function of a role. The function runs until the role has drained.
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
pub fn main(inherited: ChildInheritance) -> ExitCode {
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
            // The master can then show the reason to people, for example in `dq status`. If the master is gone, nobody
            // needs the reason.
            let _ = link.map(|link| link.send(&ToMaster::failed(&format!("{e:#}"))));
            ExitCode::FAILURE
        }
    }
}
