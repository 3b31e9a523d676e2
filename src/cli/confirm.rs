//! Asks the user before a command does something that cannot be undone.

use std::io::IsTerminal as _;

use anyhow::Result;

use super::failure::Failure;

/// Asks for confirmation at the terminal. Without a terminal, `--yes` is required.
pub(super) fn is_confirmed(question: &str, yes: bool) -> Result<bool> {
    if yes {
        return Ok(true);
    }
    if !std::io::stdin().is_terminal() {
        return Err(
            Failure::Usage(format!("{question}? (there is no terminal to ask: --yes confirms it)")).into()
        );
    }
    eprint!("{question}? [y/N] ");
    let mut answer = String::new();
    std::io::stdin().read_line(&mut answer)?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}
