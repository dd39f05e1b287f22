//! `evener merkle`: computes Merkle roots, trees and proofs.

mod build;
mod input;
mod outcome;
mod proofs;
mod prove;
mod save;
mod stream;
mod verify;

use anyhow::Result;
use clap::{Args, Subcommand};

use crate::verbosity::Verbosity;

/// Compute Merkle roots and proofs of files on all devices
///
/// A leaf is a piece of fixed size, a line of text or a whole file. Several files are one sequence of leaves, in the given
/// order. No leaf continues in the next file, so every file must be a whole number of leaves, unless --last handles the
/// last one. Files may be larger than memory; only --tree and --prove keep 64 bytes per leaf in memory.
///
/// With -q, prints the root, or the proofs of --prove without --out.
#[derive(Debug, Args)]
#[command(
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    arg_required_else_help = true,
    after_long_help = AFTER_HELP
)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    command: Option<Command>,

    #[command(flatten)]
    build: build::Arguments,
}

#[derive(Debug, Subcommand)]
enum Command {
    Prove(prove::Arguments),
    Verify(verify::Arguments),
}

const AFTER_HELP: &str = "\
Examples:
  evener merkle -q disk.img                print only the root (32-byte leaves)
  evener merkle disk.img --leaf-size 4096 --hash blake3
                                           use leaves of 4096 bytes and BLAKE3
  evener merkle disk.img --leaf-size 1MiB --last pad
                                           pad the last leaf with zeros
  evener merkle --lines names.txt --prove 0,41 --out proofs.json
                                           write proofs of two lines
  evener merkle verify proofs.json --root HEX
                                           verify them
  evener merkle --files *.tar --tree backups.tree
                                           use files as leaves; store the tree
  evener merkle prove backups.tree 3       write a proof without the files
  zcat dump.gz | evener merkle -           read standard input
  evener merkle --leaves 10000000 --trace trace.json
                                           measure with test data

Rules (H is the hash function):
  rfc6962    leaf H(00 leaf), node H(01 left right); an odd node is promoted
             unchanged; the root of no leaves is H()
  bitcoin    leaf H(H(leaf)), node H(H(left right)); an odd node is paired with
             itself; SHA-256 only
  rs-merkle  leaf H(leaf), node H(left right); an odd node is promoted
             unchanged, as in the crate rs_merkle";

/// Runs the command.
pub(crate) fn run(arguments: Arguments, verbosity: Verbosity) -> Result<()> {
    match arguments.command {
        Some(Command::Prove(arguments)) => prove::run(arguments),
        Some(Command::Verify(arguments)) => verify::run(arguments, verbosity),
        None => build::run(arguments.build, verbosity),
    }
}
