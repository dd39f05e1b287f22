//! `evener worker`: what another machine starts here, over `ssh` for example. Users do not need it.

use std::process::ExitCode;

use crate::EXIT_FAILURE;

/// Serves this machine's devices until standard input ends. The process ends then, whatever the devices still compute.
pub(crate) fn run() -> ExitCode {
    match evener_cluster::worker::run() {
        0 => ExitCode::SUCCESS,
        _ => ExitCode::from(EXIT_FAILURE),
    }
}
