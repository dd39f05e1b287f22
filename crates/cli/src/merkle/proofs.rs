//! Proof files.

use std::path::Path;

use anyhow::{Context, Result, anyhow};
use evener_merkle::{Digest, MerkleTree, Proof};
use serde::{Deserialize, Serialize};

use super::input;
use crate::{
    escape,
    output::{display_path, write_file, write_json_unversioned},
};

/// A proof with the root that it was made for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct RootedProof {
    pub(super) root: Digest,
    #[serde(flatten)]
    pub(super) proof: Proof,
}

/// Creates a proof of each leaf. Fails if the tree has no such leaf.
pub(super) fn prove(tree: &MerkleTree, indices: &[u64]) -> Result<Vec<RootedProof>> {
    let prove = |&index: &u64| {
        let proof = tree.proof(index)?;
        Ok(RootedProof { root: tree.root().unwrap_or_default(), proof })
    };
    indices.iter().map(prove).collect()
}

/// Writes proofs to a file or, without one, to standard output.
pub(super) fn write(proofs: &[RootedProof], to: Option<&Path>) -> Result<()> {
    match to {
        None => write_json_unversioned(&proofs),
        Some(path) => write_file(path, (serde_json::to_string_pretty(proofs)? + "\n").as_bytes()),
    }
}

/// Reads a proof or a list of proofs from a file, or from standard input for `-`.
pub(super) fn read(path: &Path) -> Result<Vec<RootedProof>> {
    let text = input::read(path)?;
    // The message quotes the file.
    let escaped = |error: serde_json::Error| anyhow!("{}", escape::single_line(&error.to_string()));
    parse(&text)
        .map_err(escaped)
        .with_context(|| format!("{}: is neither a proof nor a list of proofs", display_path(path)))
}

fn parse(text: &[u8]) -> serde_json::Result<Vec<RootedProof>> {
    let is_list = text.iter().find(|byte| !byte.is_ascii_whitespace()) == Some(&b'[');
    match is_list {
        true => serde_json::from_slice::<Vec<RootedProof>>(text),
        false => serde_json::from_slice::<RootedProof>(text).map(|proof| vec![proof]),
    }
}

#[cfg(test)]
mod test {
    use evener_device::Device;
    use evener_merkle::{Leaves, MerkleTree};
    use evener_schedule::Pool;

    use super::*;

    fn tree() -> MerkleTree {
        let pool = Pool::new([Device::cpu()]).unwrap();
        MerkleTree::build(&pool, &Leaves::lines(b"one\ntwo\nthree\nfour\nfive")).unwrap()
    }

    #[test]
    fn a_proof_is_read_as_it_was_written_alone_or_in_a_list() {
        let proofs = prove(&tree(), &[4, 0]).unwrap();
        assert_eq!(parse(&serde_json::to_vec(&proofs).unwrap()).unwrap(), proofs);
        assert_eq!(parse(&serde_json::to_vec_pretty(&proofs[1]).unwrap()).unwrap(), proofs[1..]);
        assert_eq!(parse(b"[]").unwrap(), []);
        for proof in proofs {
            proof.proof.verify(&proof.root).unwrap();
        }
    }

    /// The root does not determine the number of leaves, so that one may differ.
    #[test]
    fn no_bit_can_be_flipped_unseen() {
        for proof in prove(&tree(), &[0, 2, 4]).unwrap() {
            let text = serde_json::to_vec_pretty(&proof).unwrap();
            for place in 0..text.len() * 8 {
                let mut flipped = text.clone();
                flipped[place / 8] ^= 1 << (place % 8);
                let Ok(read) = parse(&flipped) else { continue };
                let same = RootedProof { proof: Proof { leaves: 5, ..read[0].proof.clone() }, ..read[0] };
                let holds = read[0].proof.verify(&read[0].root).is_ok();
                assert!(!holds || same == proof, "{}", String::from_utf8_lossy(&flipped));
            }
        }
    }

    #[test]
    fn there_is_no_proof_of_what_is_not_there() {
        let error = prove(&tree(), &[0, 5]).unwrap_err().to_string();
        assert_eq!(error, "leaf 5 of a tree of 5 leaves: indices are less than 5");
    }
}
