//! The `evener` command.

mod completions;
mod demo;
mod devices;
mod escape;
mod man;
mod merkle;
mod mesh;
mod options;
mod output;
mod sim;
mod size;
mod verbosity;

use std::{
    ffi::OsString,
    io::{self, ErrorKind},
    process::ExitCode,
};

use clap::{CommandFactory, Parser, Subcommand};
use evener_device::Error;
use evener_schedule::RunError;

use crate::{
    output::{survive_full_files, write_aside},
    verbosity::Verbosity,
};

/// Something went wrong.
const FAILURE: u8 = 1;

/// The command line, or a selection in it, cannot be used. The same as for any error that clap finds.
const USAGE: u8 = 2;

/// All that was needed could be read, and is not true.
const REFUTED: u8 = 3;

const EXIT_CODES: &str = "\
Exit codes:
  0  all went well
  1  something went wrong: the message on stderr says what
  2  the command line, a selection of devices, a score table, a scenario, a layout, a size of leaf or
     the number of a leaf cannot be used
  3  a proof does not hold, or a root is not the one that it was checked against";

/// What was asked for makes no sense.
#[derive(Debug)]
struct Usage(String);

impl std::fmt::Display for Usage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Usage {}

/// What was claimed is not true.
#[derive(Debug)]
struct Refuted(String);

impl std::fmt::Display for Refuted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Refuted {}

/// Makes unlike compute devices pull one load together, each by its measured strength.
#[derive(Debug, Parser)]
#[command(name = "evener", version, arg_required_else_help = true, after_long_help = after_help())]
struct Cli {
    #[command(flatten)]
    verbosity: Verbosity,

    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Demo(demo::Arguments),
    Devices(devices::Arguments),
    Merkle(Box<merkle::Arguments>),
    Mesh(mesh::Arguments),
    Sim(sim::Arguments),
    Completions(completions::Arguments),
    Man(man::Arguments),
}

fn after_help() -> String {
    format!(
        "\
Examples:
  evener demo               see all devices of this machine pull one load, in under a minute
  evener devices            what is here, and how strong is it?
  evener devices --measure  measure it
  evener merkle FILE        the Merkle root of a file, by all devices
  evener mesh bench         how fast are collectives between its ranks?
  evener sim FILE           how would a run go, on devices that are not here?
  evener mesh plan          which device should be where, and how well would that go?
  evener help devices       more about a command

Environment:
  EVENER_DEVICES    devices to use where --devices is not given
  EVENER_CACHE_DIR  where measured rates, compiled kernels and what was learned are kept
  NO_COLOR          set to anything: no colours and no bold letters

{EXIT_CODES}"
    )
}

fn main() -> ExitCode {
    let Cli { verbosity, command } = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return refuse(&error),
    };
    verbosity.listen();
    survive_full_files();
    let result = match command {
        Command::Demo(arguments) => demo::run(arguments, verbosity),
        Command::Devices(arguments) => devices::run(arguments, verbosity),
        Command::Merkle(arguments) => merkle::run(*arguments, verbosity),
        Command::Mesh(arguments) => mesh::run(arguments),
        Command::Sim(arguments) => sim::run(arguments, verbosity),
        Command::Completions(arguments) => completions::run(arguments, Cli::command()),
        Command::Man(arguments) => man::run(arguments, Cli::command()),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if is_closed_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            write_aside(&format!("error: {error:#}\n"));
            ExitCode::from(exit_code(&error))
        }
    }
}

/// Says why the command line cannot be used, or gives the help that it asks for.
fn refuse(error: &clap::Error) -> ExitCode {
    let is_plain = |argument: OsString| {
        let argument = argument.to_string_lossy();
        escape::name(&argument) == argument
    };
    if std::env::args_os().all(is_plain) {
        // In colours, where there may be some.
        error.exit();
    }
    // The message repeats arguments, perhaps names of files, as they are.
    write_aside(&error.render().to_string());
    ExitCode::from(USAGE)
}

/// Whoever reads the output, as `head` does, has seen enough.
fn is_closed_pipe(error: &anyhow::Error) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == ErrorKind::BrokenPipe)
}

fn exit_code(error: &anyhow::Error) -> u8 {
    use evener_merkle::Error as Merkle;
    if error.is::<Usage>() {
        return USAGE;
    }
    if error.is::<Refuted>() {
        return REFUTED;
    }
    match error.downcast_ref() {
        Some(
            Merkle::LeafOutOfRange { .. } | Merkle::UnsupportedScheme { .. } | Merkle::PartialLeaf { .. },
        ) => return USAGE,
        Some(Merkle::NoLeaves { .. }) => return USAGE,
        _ => {}
    }
    let device = error.downcast_ref().or_else(|| match error.downcast_ref() {
        Some(RunError::Device(error)) => Some(error),
        _ => None,
    });
    match device {
        Some(Error::Selection { .. } | Error::Split { .. }) => USAGE,
        _ => FAILURE,
    }
}
