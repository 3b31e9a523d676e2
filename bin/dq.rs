//! The command line for people.

use std::process::ExitCode;

fn main() -> ExitCode {
    dq::cli::main()
}
