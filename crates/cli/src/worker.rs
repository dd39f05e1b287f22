//! `evener worker`: what another machine starts here, over `ssh` for example. Users do not need it.

use std::process::ExitCode;

use clap::Args;

use crate::EXIT_FAILURE;

/// Serve this machine's devices over standard input and output, for Evener on another machine
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Serve only if this program has this hash, with which it was copied here
    #[arg(long, value_name = "HASH")]
    program: Option<String>,
}

/// Serves this machine's devices until standard input ends. The process ends then, whatever the devices still compute.
pub(crate) fn run(arguments: &Arguments) -> ExitCode {
    match evener_cluster::worker::run_if_whole(arguments.program.as_deref()) {
        0 => ExitCode::SUCCESS,
        _ => ExitCode::from(EXIT_FAILURE),
    }
}
