//! Asks the user at the terminal before a command does something that cannot be undone.

use std::io::{IsTerminal as _, Write as _};

use anyhow::{Context as _, Result};

use super::failure::Failure;

/// Succeeds if `yes` is set, if the user at the terminal agrees, or if there is no terminal (a script is not asked).
/// Fails if the user does not agree.
pub(super) fn confirm(yes: bool, question: impl FnOnce() -> String) -> Result<()> {
    match yes || !is_at_terminal() {
        true => Ok(()),
        false => ask(&question()),
    }
}

/// The same as [`confirm`], but a script must give `--yes`.
pub(super) fn confirm_with_yes(yes: bool, question: &str) -> Result<()> {
    match (yes, is_at_terminal()) {
        (true, _) => Ok(()),
        (false, true) => ask(question),
        (false, false) => {
            let why = format!("{question} (there is no terminal to ask: --yes confirms it)");
            Err(Failure::Usage(why).into())
        }
    }
}

fn is_at_terminal() -> bool {
    std::io::stdin().is_terminal() && std::io::stderr().is_terminal()
}

/// Prints a question. Returns the answer, in lower case.
fn read_answer(question: &str, choices: &str) -> Result<String> {
    eprint!("{question} [{choices}] ");
    std::io::stderr().flush().context("cannot ask")?;
    let mut answer = String::new();
    std::io::stdin().read_line(&mut answer).context("cannot read the answer")?;
    Ok(answer.trim().to_ascii_lowercase())
}

fn ask(question: &str) -> Result<()> {
    match is_yes(&read_answer(question, "y/N")?) {
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
    if is_quiet || !is_at_terminal() {
        return Ok(None);
    }
    match read_answer(&question(), &format!("{}/{}/N", a.0, b.0))? {
        answer if answer == a.0 => Ok(Some(a.1)),
        answer if answer == b.0 => Ok(Some(b.1)),
        _ => Err(Failure::Declined.into()),
    }
}

fn is_yes(answer: &str) -> bool {
    matches!(answer, "y" | "yes")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_yes_is_one() {
        assert!(is_yes("y") && is_yes("yes"));
        assert!(!is_yes("") && !is_yes("n") && !is_yes("yep"));
    }
}
