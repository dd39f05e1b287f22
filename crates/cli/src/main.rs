//! The `evener` command.

mod bench;
mod color;
mod completions;
mod demo;
mod devices;
mod environment;
mod escape;
mod explain;
mod hosts;
mod inline;
mod input;
mod machines;
mod man;
mod merkle;
mod mesh;
mod options;
mod output;
mod progress;
mod prove;
mod report;
mod serve;
mod sim;
mod size;
mod table;
mod top;
mod topics;
mod verbosity;
mod verify;
mod views;
mod worker;

use std::{
    ffi::OsString,
    io::{self, ErrorKind, Write},
    process::ExitCode,
};

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use evener_device::Error;
use evener_schedule::RunError;

use crate::{
    color::ColorChoice,
    output::{return_file_size_errors, write_out, write_stderr},
    verbosity::Verbosity,
};

/// The exit code of a command that failed.
const EXIT_FAILURE: u8 = 1;

/// The exit code for a command line that cannot be used. clap uses the same for the errors that it finds.
const EXIT_USAGE: u8 = 2;

/// The exit code for a proof or a root that does not match.
const EXIT_MISMATCH: u8 = 3;

/// An error in the command line, or in a file that describes what to do.
#[derive(Debug)]
struct UsageError(String);

impl std::fmt::Display for UsageError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for UsageError {}

/// A proof or a root that does not match.
#[derive(Debug)]
struct Mismatch(String);

impl std::fmt::Display for Mismatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Mismatch {}

/// Share one load between unlike compute devices, each by its measured speed
#[derive(Debug, Parser)]
#[command(
    name = "evener",
    version,
    arg_required_else_help = true,
    max_term_width = 80,
    after_long_help = AFTER_HELP
)]
struct Cli {
    #[command(flatten)]
    verbosity: Verbosity,

    /// Use colors and bold text
    #[arg(long, global = true, value_name = "WHEN", default_value = "auto")]
    color: ColorChoice,

    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Bench(bench::Arguments),
    Demo(demo::Arguments),
    Devices(devices::Arguments),
    Explain(explain::Arguments),
    Hosts(hosts::Arguments),
    Merkle(Box<merkle::Arguments>),
    Mesh(mesh::Arguments),
    Prove(Box<prove::Arguments>),
    Report(report::Arguments),
    Serve(serve::Arguments),
    Sim(sim::Arguments),
    Top(top::Arguments),
    Verify(verify::Arguments),
    Completions(completions::Arguments),
    Man(man::Arguments),

    /// Serve this machine's devices over standard input and output, for Evener on another machine
    #[command(hide = true)]
    Worker(worker::Arguments),

    /// List the exit codes
    #[command(hide = true, long_about = topics::exit_codes(), help_template = TOPIC)]
    ExitCodes,
    /// List the environment variables
    #[command(hide = true, long_about = topics::environment(), help_template = TOPIC)]
    Environment,
}

impl Command {
    /// Whether it runs something on devices, which views in other processes can show.
    fn runs_something(&self) -> bool {
        matches!(
            self,
            Command::Bench(_)
                | Command::Demo(_)
                | Command::Devices(_)
                | Command::Merkle(_)
                | Command::Prove(_)
                | Command::Sim(_)
        )
    }
}

/// The help template of a topic: its text, without usage and options.
const TOPIC: &str = "{about-with-newline}";

const AFTER_HELP: &str = "\
Examples:
  evener bench zk           measure Groth16 proofs and their arithmetic
  evener demo               build a Merkle tree on all devices of this machine
  evener devices --measure  list the devices and measure their rates
  evener explain FILE.rs    tell which loops could run on every device
  evener hosts check BOX    check another machine, whose devices can help
  evener merkle FILE        compute the Merkle root of a file on all devices
  evener mesh bench         measure collectives between ranks
  evener mesh plan          arrange devices for parallel training or inference
  evener prove --bench 2^16 make Groth16 proofs of a circuit on all devices
  evener sim FILE           simulate a run on virtual devices
  evener report TRACE       explain where the time of a run went
  evener serve              show all runs in a browser, and serve metrics
  evener top                watch the devices and runs of this machine
  evener help devices       print the help of a command

Topics:
  evener help exit-codes    list the exit codes of all commands
  evener help environment   list the environment variables";

#[allow(unsafe_code)]
fn main() -> ExitCode {
    // SAFETY: the process has just begun, and only this thread runs.
    unsafe { environment::use_all_cuda_queues() };
    let command =
        topics::refer(Cli::command()).color(ColorChoice::from_arguments(std::env::args_os()).into());
    let parsed = command.try_get_matches().and_then(|mut matches| Cli::from_arg_matches_mut(&mut matches));
    let Cli { verbosity, color, command } = match parsed {
        Ok(cli) => cli,
        Err(error) => return print_clap_message(&error),
    };
    color.set();
    verbosity.init_logging();
    return_file_size_errors();
    // Held to the end, so that views in other processes find this one.
    let _socket = match command.runs_something().then(views::open_socket).transpose() {
        Ok(socket) => socket,
        Err(error) => return fail(&error),
    };
    let result = match command {
        Command::Bench(arguments) => bench::run(arguments, verbosity),
        Command::Worker(arguments) => return worker::run(&arguments),
        Command::Demo(arguments) => demo::run(arguments, verbosity),
        Command::Devices(arguments) => devices::run(arguments, verbosity),
        Command::Explain(arguments) => explain::run(&arguments, verbosity),
        Command::Hosts(arguments) => hosts::run(arguments, verbosity),
        Command::Merkle(arguments) => merkle::run(*arguments, verbosity),
        Command::Mesh(arguments) => mesh::run(arguments, verbosity),
        Command::Prove(arguments) => prove::run(*arguments, verbosity),
        Command::Report(arguments) => report::run(arguments, verbosity),
        Command::Serve(arguments) => serve::run(arguments, verbosity),
        Command::Sim(arguments) => sim::run(arguments, verbosity),
        Command::Top(arguments) => top::run(arguments, verbosity),
        Command::Verify(arguments) => verify::run(arguments, verbosity),
        Command::Completions(arguments) => completions::run(arguments, Cli::command()),
        Command::Man(arguments) => man::run(arguments, Cli::command()),
        Command::ExitCodes => write_out(&(topics::exit_codes() + "\n")).map_err(Into::into),
        Command::Environment => write_out(&(topics::environment() + "\n")).map_err(Into::into),
    };
    let result = result.and_then(|()| serve::wait_for_kept(verbosity));
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if is_closed_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => fail(&error),
    }
}

/// Prints why the command failed.
fn fail(error: &anyhow::Error) -> ExitCode {
    write_stderr(&format!("error: {error:#}\n"));
    ExitCode::from(exit_code(error))
}

/// Prints clap's error message, or the help that the command line requests.
fn print_clap_message(error: &clap::Error) -> ExitCode {
    let is_plain = |argument: OsString| {
        let argument = argument.to_string_lossy();
        escape::single_line(&argument) == argument
    };
    if std::env::args_os().all(is_plain) {
        // The help goes to standard output, where an error counts as for any other command.
        return match error.print().and_then(|()| io::stdout().flush()) {
            Err(why) if !error.use_stderr() && why.kind() != ErrorKind::BrokenPipe => {
                write_stderr(&format!("error: {why}\n"));
                ExitCode::from(EXIT_FAILURE)
            }
            _ => u8::try_from(error.exit_code()).map_or(ExitCode::from(EXIT_USAGE), ExitCode::from),
        };
    }
    // The message repeats arguments, which may contain escape sequences.
    write_stderr(&error.render().to_string());
    ExitCode::from(EXIT_USAGE)
}

/// Returns whether the reader of standard output has closed its pipe, as `head` does after its last line.
fn is_closed_pipe(error: &anyhow::Error) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == ErrorKind::BrokenPipe)
}

fn exit_code(error: &anyhow::Error) -> u8 {
    use evener_merkle::Error as Merkle;
    if error.is::<UsageError>() {
        return EXIT_USAGE;
    }
    if error.is::<Mismatch>() {
        return EXIT_MISMATCH;
    }
    if let Some(
        Merkle::LeafOutOfRange { .. }
        | Merkle::UnsupportedScheme { .. }
        | Merkle::PartialLeaf { .. }
        | Merkle::NoLeaves { .. },
    ) = error.downcast_ref()
    {
        return EXIT_USAGE;
    }
    let device = error.downcast_ref().or_else(|| match error.downcast_ref() {
        Some(RunError::Device(error)) => Some(error),
        _ => None,
    });
    match device {
        Some(Error::Selection { .. } | Error::Split { .. }) => EXIT_USAGE,
        _ => EXIT_FAILURE,
    }
}
