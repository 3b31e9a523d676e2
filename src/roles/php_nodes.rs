//! Reads the nodes of the PHP daemon out of the registry for dq-master, which opens no database itself: a process of its own,
//! asked by its standard input, that ends with its answer.

use std::io;
use std::process::ExitCode;

use crate::php_node::PhpNode;
use crate::registry;
use crate::settings::Registry;

/// Answers once: JSON of [`Registry`] in; JSON of the nodes, or of why there are none, out.
pub fn main() -> ExitCode {
    let answer = || -> serde_json::Result<()> {
        let settings: Registry = serde_json::from_reader(io::stdin())?;
        let nodes: Result<Vec<PhpNode>, String> = registry::php_nodes(&settings).map_err(|e| e.to_string());
        serde_json::to_writer(io::stdout(), &nodes)
    };
    match answer() {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("dq-nodes: {e}");
            ExitCode::FAILURE
        }
    }
}
