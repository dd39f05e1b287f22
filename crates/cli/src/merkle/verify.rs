//! `evener merkle verify`: is this leaf in that tree?

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
    EXIT_CODES, Refuted, Usage, escape,
    output::{write_json, write_out},
    verbosity::Verbosity,
};

/// Check inclusion proofs
///
/// A proof says that a leaf with a certain hash is at a certain place in the tree with a certain root. With --root it is
/// checked against a root that you trust. Without, it is checked against the root that its own file names, which shows
/// that nothing in the file was changed by accident, and nothing more: whoever made the file chose that root.
///
/// A root does not say how many leaves its tree has: that number is the proof's own word.
#[derive(Debug, Args)]
#[command(after_long_help = after_help())]
pub(crate) struct Arguments {
    /// Files with a proof or a list of proofs; - is standard input
    #[arg(value_name = "PROOF", required = true)]
    proofs: Vec<PathBuf>,

    /// The root that you trust, 64 hexadecimal digits
    #[arg(long, value_name = "HEX")]
    root: Option<Digest>,

    /// A file that is the leaf itself: its contents are hashed, whatever hash the proof says that the leaf has
    #[arg(long, value_name = "FILE")]
    leaf: Option<PathBuf>,

    /// Write an array with an object a proof, for programs
    #[arg(long)]
    json: bool,
}

fn after_help() -> String {
    format!(
        "\
Examples:
  evener merkle verify proofs.json --root HEX                   against a root that you trust
  evener merkle verify proof.json --root HEX --leaf backup.tar  and is it this very file?
  evener merkle verify proofs.json                              only: is the file sound?

{EXIT_CODES}"
    )
}

/// What was found of a proof.
#[derive(Debug, Serialize)]
struct Finding {
    file: String,
    index: u64,
    leaves: u64,
    hash: String,
    rule: String,
    leaf: Digest,
    root: Digest,
    /// Who says that this is the root: `given` on the command line, or the `file` itself.
    root_from: &'static str,
    holds: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    why: Option<String>,
}

/// Runs the command.
pub(crate) fn run(arguments: Arguments, verbosity: Verbosity) -> Result<()> {
    let mut findings = Vec::new();
    if arguments.proofs.iter().chain(&arguments.leaf).filter(|path| input::is_stdin(path)).count() > 1 {
        return Err(Usage("- is standard input, which can be read once: name it once".into()).into());
    }
    let leaf = match &arguments.leaf {
        Some(path) => Some(input::read(path)?),
        None => None,
    };
    for path in &arguments.proofs {
        for proof in proofs::read(path)? {
            findings.push(find(path.display().to_string(), &proof, arguments.root, leaf.as_deref()));
        }
    }
    if findings.is_empty() {
        return Err(Usage("there is no proof in these files, so there is nothing to check".into()).into());
    }
    if leaf.is_some() && findings.len() > 1 {
        let why = format!("--leaf is one leaf, and there are {} proofs: give one", findings.len());
        return Err(Usage(why).into());
    }
    if arguments.json {
        write_json(&findings)?;
    } else if !verbosity.is_quiet() {
        write_out(&text(&findings))?;
    }
    match findings.iter().filter(|finding| !finding.holds).count() {
        0 => Ok(()),
        failed => Err(Refuted(format!("{failed} of {} proofs do not hold", findings.len())).into()),
    }
}

fn find(file: String, proof: &RootedProof, given: Option<Digest>, leaf: Option<&[u8]>) -> Finding {
    let RootedProof { root: own, proof } = proof;
    let root = given.unwrap_or(*own);
    let checked = match leaf {
        Some(leaf) => proof.verify_leaf(&root, leaf),
        None => proof.verify(&root),
    };
    Finding {
        file,
        index: proof.index,
        leaves: proof.leaves,
        hash: proof.scheme.hash().to_string(),
        rule: proof.scheme.rule().to_string(),
        leaf: leaf.map_or(proof.leaf, |leaf| proof.scheme.hash_leaf(leaf)),
        root,
        root_from: if given.is_some() { "given" } else { "file" },
        holds: checked.is_ok(),
        why: checked.err().map(|error| error.to_string()),
    }
}

fn text(findings: &[Finding]) -> String {
    let mut lines = Vec::new();
    for Finding { file, index, leaves, leaf, root, why, .. } in findings {
        lines.push(match why {
            None => format!(
                "{}: leaf {index} of {leaves}, hash {leaf}: is in the tree with root {root}",
                escape::name(file)
            ),
            Some(why) => {
                format!("{}: leaf {index} of {leaves}, hash {leaf}: NOT SHOWN: {why}", escape::name(file))
            }
        });
    }
    let by = match findings.iter().all(|finding| finding.root_from == "given") {
        true => "checked against the root that --root gives",
        false => {
            "checked against the roots that the files themselves name: --root checks against one that you trust"
        }
    };
    lines.push(by.into());
    lines.join("\n") + "\n"
}
