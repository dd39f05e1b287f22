//! `evener merkle`: what do these leaves come to, and is this one of them?

mod build;
mod gather;
mod input;
mod proofs;
mod prove;
mod show;
mod store;
mod verify;

use anyhow::Result;
use clap::{Args, Subcommand};

use crate::{EXIT_CODES, verbosity::Verbosity};

/// The Merkle root of files, lines or test data, by all devices; proofs, and their check
///
/// Leaves are of one size, or the lines of text, or whole files. Several files are one sequence of leaves, in the order
/// given: no leaf or line goes from one file into the next, so every file must be a whole number of leaves, unless --last
/// says what becomes of the last one. What is larger than memory streams through; only --tree and --prove keep 64 bytes a
/// leaf in memory.
#[derive(Debug, Args)]
#[command(
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    arg_required_else_help = true,
    after_long_help = after_help()
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

fn after_help() -> String {
    format!(
        "\
Examples:
  evener merkle disk.img                                 the root over its pieces of 32 bytes
  evener merkle disk.img --leaf-size 4096 --hash blake3  of 4096 bytes, with BLAKE3
  evener merkle disk.img --leaf-size 1MiB --last pad     the last leaf filled up with zeros
  evener merkle --lines names.txt --prove 0,41 --out proofs.json
  evener merkle verify proofs.json --root HEX            are those lines among the names?
  evener merkle --files *.tar --tree backups.tree        a leaf a file, and keep the tree
  evener merkle prove backups.tree 3                     a proof from it, without the files
  zcat dump.gz | evener merkle -                         as it comes
  evener merkle --leaves 10000000 --trace trace.json     how fast, and who did what?
  evener merkle -q disk.img                              the root alone

Every rule has its own roots:
  rfc6962    H(00 leaf), H(01 left right); an odd node moves up unchanged; no leaves: H()
  bitcoin    H(H(leaf)), H(H(left right)); an odd node is its own neighbour; SHA-256 only
  rs-merkle  H(leaf), H(left right); an odd node moves up unchanged; what the crate rs_merkle does

{EXIT_CODES}"
    )
}

/// Runs the command.
pub(crate) fn run(arguments: Arguments, verbosity: Verbosity) -> Result<()> {
    match arguments.command {
        Some(Command::Prove(arguments)) => prove::run(arguments),
        Some(Command::Verify(arguments)) => verify::run(arguments, verbosity),
        None => build::run(arguments.build, verbosity),
    }
}
