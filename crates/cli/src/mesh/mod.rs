//! `evener mesh`: who talks to whom, and how fast?

mod bench;

use anyhow::Result;
use clap::{Args, Subcommand};

/// Who talks to whom, and how fast?
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Bench(bench::Arguments),
}

pub(crate) fn run(arguments: Arguments) -> Result<()> {
    match arguments.command {
        Command::Bench(arguments) => bench::run(arguments),
    }
}
