//! `evener merkle verify`: verifies inclusion proofs.

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use evener_merkle::Digest;
use serde::Serialize;

use super::{
    input,
    proofs::{self, RootedProof},
};
use crate::{
    Mismatch, UsageError, escape,
    input::is_stdin,
    output::{write_json, write_out},
    verbosity::Verbosity,
};

/// Verify inclusion proofs
///
/// A proof shows that a leaf is at an index of the tree with a certain root. --root gives the root that you trust. Without
/// it, proofs are verified against the root in their own file, which only detects accidental changes: the file's author
/// chose that root.
///
/// A root does not determine the number of leaves: that number is the author's claim.
#[derive(Debug, Args)]
#[command(after_long_help = AFTER_HELP)]
pub(crate) struct Arguments {
    /// Read a proof or a list of proofs from these files; - is standard input
    #[arg(value_name = "PROOF", required = true)]
    proofs: Vec<PathBuf>,

    /// Verify against this root, 64 hexadecimal digits
    #[arg(long, value_name = "HEX")]
    root: Option<Digest>,

    /// Hash this file as the leaf, instead of using the proof's leaf hash
    #[arg(long, value_name = "FILE")]
    leaf: Option<PathBuf>,

    /// Print a JSON object instead of text
    #[arg(long)]
    json: bool,
}

const AFTER_HELP: &str = "\
Examples:
  evener merkle verify proofs.json --root HEX    verify against a trusted root
  evener merkle verify proof.json --root HEX --leaf backup.tar
                                                 verify that the leaf is a file
  evener merkle verify proofs.json               detect accidental changes only";

/// The JSON output.
#[derive(Debug, Serialize)]
struct Verification<'a> {
    proofs: &'a [VerifiedProof],
}

/// The verification of one proof.
#[derive(Debug, Serialize)]
struct VerifiedProof {
    file: String,
    index: u64,
    leaves: u64,
    hash: String,
    rule: String,
    leaf: Digest,
    root: Digest,
    /// The source of the root: `given` on the command line, or the `file` itself.
    root_from: &'static str,
    is_valid: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

/// Runs the command.
pub(crate) fn run(arguments: Arguments, verbosity: Verbosity) -> Result<()> {
    let mut verified = Vec::new();
    if arguments.proofs.iter().chain(&arguments.leaf).filter(|path| is_stdin(path)).count() > 1 {
        return Err(
            UsageError("- is standard input, which can be read only once: name it once".into()).into()
        );
    }
    let leaf = match &arguments.leaf {
        Some(path) => Some(input::read(path)?),
        None => None,
    };
    for path in &arguments.proofs {
        for proof in proofs::read(path)? {
            verified.push(verify(path.display().to_string(), &proof, arguments.root, leaf.as_deref()));
        }
    }
    if verified.is_empty() {
        return Err(
            UsageError("there is no proof in these files, so there is nothing to verify".into()).into()
        );
    }
    if leaf.is_some() && verified.len() > 1 {
        let message = format!("--leaf is one leaf, and there are {} proofs: give one", verified.len());
        return Err(UsageError(message).into());
    }
    let printed = match arguments.json {
        true => write_json(&Verification { proofs: &verified }),
        false if verbosity.is_quiet() => Ok(()),
        false => write_out(&text(&verified)).map_err(Into::into),
    };
    match verified.iter().filter(|proof| !proof.is_valid).count() {
        0 => printed,
        // Also if standard output is closed, which is no error.
        failed => Err(Mismatch(format!("{failed} of {} proofs are invalid", verified.len())).into()),
    }
}

fn verify(file: String, proof: &RootedProof, given: Option<Digest>, leaf: Option<&[u8]>) -> VerifiedProof {
    let RootedProof { root: own, proof } = proof;
    let root = given.unwrap_or(*own);
    let result = match leaf {
        Some(leaf) => proof.verify_leaf(&root, leaf),
        None => proof.verify(&root),
    };
    VerifiedProof {
        file,
        index: proof.index,
        leaves: proof.leaves,
        hash: proof.scheme.hash().to_string(),
        rule: proof.scheme.rule().to_string(),
        leaf: leaf.map_or(proof.leaf, |leaf| proof.scheme.hash_leaf(leaf)),
        root,
        root_from: if given.is_some() { "given" } else { "file" },
        is_valid: result.is_ok(),
        error: result.err().map(|error| error.to_string()),
    }
}

fn text(proofs: &[VerifiedProof]) -> String {
    let mut lines = Vec::new();
    for VerifiedProof { file, index, leaves, leaf, root, error, .. } in proofs {
        lines.push(match error {
            None => format!(
                "{}: leaf {index} of {leaves}, hash {leaf}: is in the tree with root {root}",
                escape::single_line(file)
            ),
            Some(error) => {
                format!(
                    "{}: leaf {index} of {leaves}, hash {leaf}: INVALID: {error}",
                    escape::single_line(file)
                )
            }
        });
    }
    let against = match proofs.iter().all(|proof| proof.root_from == "given") {
        true => "verified against the root of --root",
        false => "verified against the roots in the files only: use --root with a root that you trust",
    };
    lines.push(against.into());
    lines.join("\n") + "\n"
}
