//! The daemon: dq-master by its command line, or executed in place by the image before it; or one of its children, or who reads
//! the nodes for it.

use std::io;
use std::process::ExitCode;

use dq::process::{HandedOver, Inherited};
use dq::{process, roles, supervisor};
use mimalloc::MiMalloc;

/// Each job is a handful of small allocations, often freed by another thread: docs/PERFORMANCE.md tells what it brings.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

fn main() -> ExitCode {
    process::use_small_pages();
    match (HandedOver::take(), Inherited::take()) {
        (Ok(Some(handed_over)), _) => supervisor::resume(handed_over),
        (_, Ok(Some(inherited))) if inherited.slot == supervisor::PREFLIGHT => {
            supervisor::preflight(&inherited)
        }
        (_, Ok(Some(inherited))) => roles::main(inherited),
        (Ok(None), Ok(None)) if std::env::args().next().as_deref() == Some(supervisor::NODES) => {
            roles::tell_nodes()
        }
        (Ok(None), Ok(None)) => supervisor::main(),
        (Err(e), _) | (_, Err(e)) => cannot_begin(&e),
    }
}

fn cannot_begin(e: &io::Error) -> ExitCode {
    eprintln!("dq-master: cannot take what was handed down: {e}");
    ExitCode::FAILURE
}
