//! `evener mesh`: who talks to whom?

mod plan;

use anyhow::Result;
use clap::{Args, Subcommand};

use crate::EXIT_CODES;

/// Who talks to whom?
#[derive(Debug, Args)]
#[command(arg_required_else_help = true, after_long_help = after_help())]
pub(crate) struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Plan(plan::Arguments),
}

fn after_help() -> String {
    format!(
        "\
Examples:
  evener mesh plan --tp 2 --pp 2 --dp 2  a layout of this machine's devices, and its balance
  evener help mesh plan                  more about a command

{EXIT_CODES}"
    )
}

/// Runs the command.
pub(crate) fn run(arguments: Arguments) -> Result<()> {
    match arguments.command {
        Command::Plan(arguments) => plan::run(arguments),
    }
}
