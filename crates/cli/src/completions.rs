//! `evener completions`: what a shell offers when Tab is pressed.

use anyhow::Result;
use clap::Args;
use clap_complete::Shell;

use crate::{EXIT_CODES, output::write_as_it_is};

/// What a shell offers when Tab is pressed
///
/// Writes a script for the shell to standard output.
#[derive(Debug, Args)]
#[command(after_long_help = after_help())]
pub(crate) struct Arguments {
    /// The shell
    shell: Shell,
}

fn after_help() -> String {
    format!(
        "\
Examples:
  evener completions bash > ~/.local/share/bash-completion/completions/evener
  evener completions zsh > ~/.zfunc/_evener  with `fpath+=~/.zfunc` before compinit in ~/.zshrc
  evener completions fish > ~/.config/fish/completions/evener.fish

{EXIT_CODES}"
    )
}

/// Runs the command.
pub(crate) fn run(arguments: Arguments, mut command: clap::Command) -> Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(arguments.shell, &mut command, "evener", &mut script);
    Ok(write_as_it_is(&String::from_utf8(script)?)?)
}
