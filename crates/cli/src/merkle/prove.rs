//! `evener merkle prove`: creates proofs from a stored tree.

use std::{io, path::PathBuf};

use anyhow::{Context, Result};
use clap::Args;
use evener_merkle::MerkleTree;

use super::{build::leaf_index, proofs};
use crate::{input::is_stdin, options::check_outputs, output::format_counted};

/// Create inclusion proofs from a stored tree, without the leaves
///
/// Reads a tree that `evener merkle --tree` has stored, and writes proofs as JSON.
#[derive(Debug, Args)]
#[command(after_long_help = AFTER_HELP)]
pub(crate) struct Arguments {
    /// Read the tree from this file; - is standard input
    #[arg(value_name = "TREE")]
    tree: PathBuf,

    /// Prove the leaves with these indices, counted from 0
    #[arg(value_name = "INDEX", required = true, value_delimiter = ',', allow_negative_numbers = true, value_parser = leaf_index)]
    indices: Vec<u64>,

    /// Write the proofs to this file instead of standard output
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

const AFTER_HELP: &str = "\
Examples:
  evener merkle prove backups.tree 3                          print a proof
  evener merkle prove backups.tree 3 17 41 --out proofs.json  write three";

/// Runs the command.
pub(crate) fn run(arguments: Arguments) -> Result<()> {
    check_outputs([arguments.tree.as_path()], [arguments.out.as_deref()])?;
    let tree = match is_stdin(&arguments.tree) {
        true => {
            MerkleTree::read_from(io::stdin().lock()).context("standard input: is not a complete tree")?
        }
        false => MerkleTree::load(&arguments.tree)?,
    };
    tracing::info!("a tree of {}, {}", format_counted(tree.leaves(), "leaf", "leaves"), tree.scheme());
    proofs::write(&proofs::prove(&tree, &arguments.indices)?, arguments.out.as_deref())
}
