//! `evener merkle prove`: proofs from a stored tree.

use std::{io, path::PathBuf};

use anyhow::{Context, Result};
use clap::Args;
use evener_merkle::MerkleTree;

use super::{input, proofs};
use crate::{EXIT_CODES, options::check_outputs, output::count};

/// Proofs from a stored tree, without the leaves
///
/// Reads a tree that `evener merkle --tree` has stored and writes inclusion proofs as JSON.
#[derive(Debug, Args)]
#[command(after_long_help = after_help())]
pub(crate) struct Arguments {
    /// The tree; - is standard input
    #[arg(value_name = "TREE")]
    tree: PathBuf,

    /// The leaves to prove, counted from 0
    #[arg(value_name = "INDEX", required = true, value_delimiter = ',')]
    indices: Vec<u64>,

    /// Write the proofs to this file instead of standard output
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

fn after_help() -> String {
    format!(
        "\
Examples:
  evener merkle prove backups.tree 3                         to standard output
  evener merkle prove backups.tree 3 17 41 --out proofs.json  several, to a file

{EXIT_CODES}"
    )
}

/// Runs the command.
pub(crate) fn run(arguments: Arguments) -> Result<()> {
    check_outputs([arguments.out.as_deref()])?;
    let tree = match input::is_stdin(&arguments.tree) {
        true => MerkleTree::read_from(io::stdin().lock())
            .context("standard input: is no tree, or not all of one")?,
        false => MerkleTree::load(&arguments.tree)?,
    };
    tracing::info!("a tree of {} leaves, {}", count(tree.leaves()), tree.scheme());
    proofs::write(&proofs::prove(&tree, &arguments.indices)?, arguments.out.as_deref())
}
