//! `dq completions`: the completions of `dq` for a shell.

use anyhow::Result;
use clap_complete::{Generator, Shell, generate};

/// Write the completions of dq for a shell to stdout
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  dq completions bash > /etc/bash_completion.d/dq
  dq completions zsh > ~/.zfunc/_dq
  dq completions fish > ~/.config/fish/completions/dq.fish")]
pub(super) struct CompletionsArguments {
    /// The shell
    #[arg(value_enum)]
    shell: ShellKind,
}

/// A shell.
#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum ShellKind {
    Bash,
    Zsh,
    Fish,
}

/// Runs `dq completions`.
pub(super) fn run(arguments: &CompletionsArguments) -> Result<()> {
    write(match arguments.shell {
        ShellKind::Bash => Shell::Bash,
        ShellKind::Zsh => Shell::Zsh,
        ShellKind::Fish => Shell::Fish,
    });
    Ok(())
}

fn write(shell: impl Generator) {
    generate(shell, &mut super::command_line(), "dq", &mut std::io::stdout());
}
