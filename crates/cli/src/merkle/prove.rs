//! `evener merkle prove`: proofs from a stored tree.

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use evener_merkle::MerkleTree;

use super::proofs;
use crate::{EXIT_CODES, options::check_outputs};

/// Proofs from a stored tree, without the leaves
///
/// Reads a tree that `evener merkle --tree` has stored and writes inclusion proofs as JSON.
#[derive(Debug, Args)]
#[command(after_long_help = after_help())]
pub(crate) struct Arguments {
    /// The tree
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
    let tree = MerkleTree::load(&arguments.tree)?;
    proofs::write(&proofs::prove(&tree, &arguments.indices)?, arguments.out.as_deref())
}
