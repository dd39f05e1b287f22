//! `evener completions`: prints shell completions.

use anyhow::Result;
use clap::Args;
use clap_complete::Shell;

use crate::output::write_raw;

/// Print shell completions
///
/// Writes a script for the shell to standard output.
#[derive(Debug, Args)]
#[command(after_long_help = AFTER_HELP)]
pub(crate) struct Arguments {
    /// Shell to complete commands in
    shell: Shell,
}

const AFTER_HELP: &str = "\
Examples:
  evener completions bash > ~/.local/share/bash-completion/completions/evener
  evener completions fish > ~/.config/fish/completions/evener.fish
  evener completions zsh > ~/.zfunc/_evener
      (needs `fpath+=~/.zfunc` before compinit in ~/.zshrc)";

/// Runs the command.
pub(crate) fn run(arguments: Arguments, mut command: clap::Command) -> Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(arguments.shell, &mut command, "evener", &mut script);
    Ok(write_raw(&String::from_utf8(script)?)?)
}
