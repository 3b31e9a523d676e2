//! Asks the user at the terminal before a command does something that cannot be undone.

use std::io::{IsTerminal as _, Write as _};

use anyhow::{Context as _, Result};

use super::failure::Failure;

/// Succeeds if `yes` is set, if the user at the terminal agrees, or if there is no terminal (a script is not asked).
/// Fails if the user does not agree.
pub(super) fn confirm(yes: bool, question: impl FnOnce() -> String) -> Result<()> {
    if yes || !std::io::stdin().is_terminal() || !std::io::stderr().is_terminal() {
        return Ok(());
    }
    eprint!("{} [y/N] ", question());
    std::io::stderr().flush().context("cannot ask")?;
    let mut answer = String::new();
    std::io::stdin().read_line(&mut answer).context("cannot read the answer")?;
    match is_yes(&answer) {
        true => Ok(()),
        false => Err(Failure::Declined.into()),
    }
}

/// Asks the user to choose one of two things. `None`: there is no terminal, or `is_quiet` forbids the question. Fails
/// if the user chooses neither.
pub(super) fn choose<T>(
    is_quiet: bool,
    question: impl FnOnce() -> String,
    (a, b): ((&str, T), (&str, T)),
) -> Result<Option<T>> {
    if is_quiet || !std::io::stdin().is_terminal() || !std::io::stderr().is_terminal() {
        return Ok(None);
    }
    eprint!("{} [{}/{}/N] ", question(), a.0, b.0);
    std::io::stderr().flush().context("cannot ask")?;
    let mut answer = String::new();
    std::io::stdin().read_line(&mut answer).context("cannot read the answer")?;
    match answer.trim().to_ascii_lowercase() {
        answer if answer == a.0 => Ok(Some(a.1)),
        answer if answer == b.0 => Ok(Some(b.1)),
        _ => Err(Failure::Declined.into()),
    }
}

fn is_yes(answer: &str) -> bool {
    matches!(answer.trim().to_ascii_lowercase().as_str(), "y" | "yes")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_yes_is_one() {
        assert!(is_yes("y\n") && is_yes(" YES\n"));
        assert!(!is_yes("") && !is_yes("\n") && !is_yes("n\n") && !is_yes("yep\n"));
    }
}
