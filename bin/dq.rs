//! All of dq in one executable. Usually, this executable runs the command line. It runs the daemon if its name is
//! `dq-master`, if the previous image executes it in place, or if the master starts it as a child process. As
//! `dq-nodes`, it reads the nodes of the PHP daemon for the master.

use std::ffi::OsString;
use std::io;
use std::path::Path;
use std::process::ExitCode;

use host::{ChildInheritance, HandOverMemory};
use mimalloc::MiMalloc;
use model::slot::MASTER;

/// Each job causes a few small allocations. Often, another thread frees them. docs/PERFORMANCE.md shows what this
/// allocator gains.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

fn main() -> ExitCode {
    host::use_small_pages();
    match (HandOverMemory::take(), ChildInheritance::take()) {
        (Ok(Some(handed_over)), _) => supervisor::resume(handed_over),
        (_, Ok(Some(inherited))) if inherited.slot == supervisor::PREFLIGHT => {
            supervisor::preflight(&inherited)
        }
        (_, Ok(Some(inherited))) => roles::main(inherited),
        (Ok(None), Ok(None)) => by_name(&std::env::args_os().next().unwrap_or_default()),
        (Err(e), _) | (_, Err(e)) => cannot_begin(&e),
    }
}

fn by_name(name: &OsString) -> ExitCode {
    match Path::new(name).file_name().and_then(|name| name.to_str()) {
        Some(MASTER) => supervisor::main(),
        Some(supervisor::NODES) => roles::tell_nodes(),
        _ => cli::main(),
    }
}

fn cannot_begin(e: &io::Error) -> ExitCode {
    eprintln!("dq: cannot take over what the master passed on: {e}");
    ExitCode::FAILURE
}
