//! The daemon: dq-master by its command line, or, started by it, one of its children.

use std::process::ExitCode;

use dq::process::Inherited;
use dq::{roles, supervisor};

fn main() -> ExitCode {
    match Inherited::take() {
        Ok(Some(inherited)) => roles::main(inherited),
        Ok(None) => supervisor::main(),
        Err(e) => {
            eprintln!("dq-master: cannot take what was handed down: {e}");
            ExitCode::FAILURE
        }
    }
}
