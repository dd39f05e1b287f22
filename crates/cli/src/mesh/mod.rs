//! `evener mesh`: plans and measures groups of devices.

mod bench;
mod plan;

use anyhow::Result;
use clap::{Args, Subcommand};

use crate::verbosity::Verbosity;

/// Plan and measure groups of devices that work in parallel
#[derive(Debug, Args)]
#[command(arg_required_else_help = true, after_long_help = AFTER_HELP)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Bench(bench::Arguments),
    Plan(plan::Arguments),
}

const AFTER_HELP: &str = "\
Examples:
  evener mesh plan --tp 2 --pp 2 --dp 2  arrange the devices of this machine
  evener mesh bench                      measure collectives between threads
  mpirun -n 4 evener mesh bench          measure collectives between processes
  evener help mesh plan                  print the help of a command";

/// Runs the command.
pub(crate) fn run(arguments: Arguments, verbosity: Verbosity) -> Result<()> {
    match arguments.command {
        Command::Bench(arguments) => bench::run(arguments, verbosity),
        Command::Plan(arguments) => plan::run(arguments, verbosity),
    }
}
