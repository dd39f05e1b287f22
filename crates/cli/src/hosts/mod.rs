//! `evener hosts`: checks other machines, and copies this program there.

mod check;
mod install;
pub(crate) mod link;

use anyhow::Result;
use clap::{Args, Subcommand};

use crate::verbosity::Verbosity;

/// Check other machines, and copy evener there
///
/// Every command that has --devices can use the devices of other machines: name the machines with --hosts, in EVENER_HOSTS,
/// or in --devices (gpu-box/cuda:0). Evener starts itself there by your own ssh, which must need no password. Nothing
/// listens on a port, and nothing keeps running there.
///
/// A host is what ssh takes (gpu-box, alice@lab3:2222), or a table of hosts.toml in ~/.config/evener or in the working
/// folder. All keys can be left out:
///   [gpu-box]
///   address = "alice@gpu-box.example.org:2222"
///   ssh = ["-J", "gate"]               # arguments of ssh
///   evener = "/opt/evener/bin/evener"  # the program there
///   setup = ["module load cuda"]       # run by the shell there first
///   timeout = 20                       # seconds to answer in
///
/// slurm(nodes=4, gpus=2, partition=gpu, time=1:00:00, cores=16, memory=64GB) asks SLURM for nodes. All settings can be left
/// out; account, qos, exclusive=yes (whole machines) and wait (seconds for the first node, 10 without it) are the others.
/// A run begins with the nodes that are there, and the others join when they come. Inside an allocation, its nodes are used.
/// The nodes start this very program, from a folder that they share. As a table, whose nodes are big-1, big-2 and so on:
///   [big]
///   slurm = { nodes = 4, gpus = 2, partition = "gpu", time = "1:00:00" }
///   srun = ["--constraint=a100"]       # arguments of srun
#[derive(Debug, Args)]
#[command(verbatim_doc_comment, arg_required_else_help = true, after_long_help = AFTER_HELP)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Check(check::Arguments),
    Install(install::Arguments),
}

const AFTER_HELP: &str = "\
Examples:
  evener hosts check gpu-box                        check a machine
  evener hosts install gpu-box                      copy evener there
  evener devices --hosts gpu-box,lab3               list their devices too
  evener merkle FILE --devices all,gpu-box/cuda:0   use a GPU of that machine
  evener merkle FILE --hosts 'slurm(nodes=4,gpus=1)' use GPUs of a SLURM cluster";

/// Runs the command.
pub(crate) fn run(arguments: Arguments, verbosity: Verbosity) -> Result<()> {
    match arguments.command {
        Command::Check(arguments) => check::run(arguments, verbosity),
        Command::Install(arguments) => install::run(arguments, verbosity),
    }
}
