//! `evener bench`: measures workloads.

mod zk;

use anyhow::Result;
use clap::{Args, Subcommand};

use crate::verbosity::Verbosity;

/// Measure workloads on each device, beside other implementations
#[derive(Debug, Args)]
#[command(arg_required_else_help = true, after_long_help = AFTER_HELP)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Zk(Box<zk::Arguments>),
}

const AFTER_HELP: &str = "\
Examples:
  evener bench zk       measure proofs and their arithmetic on each device
  evener help bench zk  print the help of a command";

/// Runs the command.
pub(crate) fn run(arguments: Arguments, verbosity: Verbosity) -> Result<()> {
    match arguments.command {
        Command::Zk(arguments) => zk::run(&arguments, verbosity),
    }
}
