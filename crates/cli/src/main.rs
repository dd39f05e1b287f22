//! The `evener` command.

mod devices;
mod mesh;
mod sim;

use std::{
    io::{self, ErrorKind, Write},
    process::ExitCode,
};

use clap::{Parser, Subcommand};
use evener_device::Error;

/// Something went wrong.
const FAILURE: u8 = 1;

/// The command line, or a selection in it, cannot be used. The same as for any error that clap finds.
const USAGE: u8 = 2;

const EXIT_CODES: &str = "\
Exit codes:
  0  all went well
  1  something went wrong: the message on stderr says what
  2  the command line, a selection of devices, a score table or a scenario cannot be used";

/// What was asked for makes no sense.
#[derive(Debug)]
struct Usage(String);

impl std::fmt::Display for Usage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Usage {}

/// Makes unlike compute devices pull one load together, each by its measured strength.
#[derive(Debug, Parser)]
#[command(name = "evener", version, arg_required_else_help = true, after_long_help = after_help())]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Devices(devices::Arguments),
    Mesh(mesh::Arguments),
    Sim(sim::Arguments),
}

fn after_help() -> String {
    format!(
        "\
Examples:
  evener devices            what is here, and how strong is it?
  evener devices --measure  measure it
  evener mesh bench         how fast are collectives between its ranks?
  evener sim FILE           how would a run go, on devices that are not here?
  evener help devices       more about a command

{EXIT_CODES}"
    )
}

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Devices(arguments) => devices::run(arguments),
        Command::Mesh(arguments) => mesh::run(arguments),
        Command::Sim(arguments) => sim::run(arguments),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if is_closed_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            // Where even stderr cannot be written to, the exit code has to do.
            let _ = writeln!(io::stderr().lock(), "error: {error:#}");
            ExitCode::from(exit_code(&error))
        }
    }
}

/// Whoever reads the output, as `head` does, has seen enough.
fn is_closed_pipe(error: &anyhow::Error) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == ErrorKind::BrokenPipe)
}

fn exit_code(error: &anyhow::Error) -> u8 {
    if error.is::<Usage>() {
        return USAGE;
    }
    match error.downcast_ref() {
        Some(Error::Selection { .. } | Error::Split { .. }) => USAGE,
        _ => FAILURE,
    }
}

/// Writes a command's whole output.
fn write_out(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}
