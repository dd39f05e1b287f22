//! `evener mesh`: who talks to whom, and how fast?

mod bench;
mod plan;

use anyhow::Result;
use clap::{Args, Subcommand};

use crate::EXIT_CODES;

/// Who talks to whom, and how fast?
#[derive(Debug, Args)]
#[command(arg_required_else_help = true, after_long_help = after_help())]
pub(crate) struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Bench(bench::Arguments),
    Plan(plan::Arguments),
}

fn after_help() -> String {
    format!(
        "\
Examples:
  evener mesh plan --tp 2 --pp 2 --dp 2  a layout of this machine's devices, and its balance
  evener mesh bench                      how fast are collectives between threads?
  mpirun -n 4 evener mesh bench          the same between processes
  evener help mesh plan                  more about a command

{EXIT_CODES}"
    )
}

/// Runs the command.
pub(crate) fn run(arguments: Arguments) -> Result<()> {
    match arguments.command {
        Command::Bench(arguments) => bench::run(arguments),
        Command::Plan(arguments) => plan::run(arguments),
    }
}
