//! Reads the nodes of the PHP daemon from the registry for dq-master, which opens no database itself. This code runs as
//! a process of its own, gets a question on standard input, and ends when it has answered.

use std::io;
use std::process::ExitCode;

use model::php_node::PhpNode;
use model::settings::RegistrySettings;

/// Answers one question. Input: the JSON of [`RegistrySettings`]. Output: the JSON of the nodes, or of the reason why
/// there are none.
pub fn main() -> ExitCode {
    let answer = || -> serde_json::Result<()> {
        let settings: RegistrySettings = serde_json::from_reader(io::stdin())?;
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
