//! Inclusion proofs, which are verified with the root alone.

mod multi;

use serde::{Deserialize, Serialize};

pub use self::multi::{MultiProof, ProvedLeaf};
use crate::{
    error::{Error, Result},
    hash::Digest,
    rule::Scheme,
    tree::{MerkleTree, level_count, nodes_in_level},
};

/// An inclusion proof: the leaf is at an index of the tree with a certain root.
///
/// The path holds the sibling's hash on every level from the leaf up, except where there is no sibling: RFC 6962 calls it
/// the audit path, and `rs_merkle` and Bitcoin's clients use the same. By Bitcoin's rule a node without a sibling is its own
/// sibling, and is in the path.
///
/// ```
/// use evener_merkle::{Digest, Proof, Scheme};
///
/// let scheme = Scheme::default();
/// let (left, right) = (scheme.hash_leaf(b"left"), scheme.hash_leaf(b"right"));
/// let root = scheme.hash_node(&left, &right);
/// let json = format!(
///     r#"{{ "hash": "sha256", "rule": "rfc6962", "leaves": 2, "index": 1, "leaf": "{right}", "path": ["{left}"] }}"#
/// );
/// let proof: Proof = serde_json::from_str(&json)?;
/// proof.verify_leaf(&root, b"right")?;
/// assert!(proof.verify(&Digest::default()).is_err());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Proof {
    /// The hash function and the rule.
    #[serde(flatten)]
    pub scheme: Scheme,
    /// The number of leaves of the tree.
    pub leaves: u64,
    /// The index of the leaf.
    pub index: u64,
    /// The hash of the leaf.
    pub leaf: Digest,
    /// The hashes of the siblings, from the leaf up.
    pub path: Vec<Digest>,
}

impl Proof {
    pub(crate) fn of(tree: &MerkleTree, index: u64) -> Result<Proof> {
        let (scheme, leaves) = (tree.scheme(), tree.leaves());
        if index >= leaves {
            return Err(Error::LeafOutOfRange { index, leaves });
        }
        let mut path = Vec::new();
        for level in 0..tree.levels() - 1 {
            let node_index = index >> level;
            if (node_index ^ 1) < nodes_in_level(leaves, level) {
                path.push(tree.node_or_error(level, node_index ^ 1)?);
            } else if scheme.duplicates_unpaired() {
                path.push(tree.node_or_error(level, node_index)?);
            }
        }
        Ok(Proof { scheme, leaves, index, leaf: tree.node_or_error(0, index)?, path })
    }

    /// Verifies that the tree with this root has the leaf hash of this proof at its index. Fails with
    /// [`Error::RootMismatch`] if not, and with [`Error::MalformedProof`] if the path does not fit the tree.
    pub fn verify(&self, root: &Digest) -> Result<()> {
        self.verify_digest(root, &self.leaf)
    }

    /// Verifies a leaf by its contents, instead of the leaf hash of this proof.
    pub fn verify_leaf(&self, root: &Digest, leaf: &[u8]) -> Result<()> {
        self.verify_digest(root, &self.scheme.hash_leaf(leaf))
    }

    /// Verifies a leaf by its hash, instead of the leaf hash of this proof.
    pub fn verify_digest(&self, root: &Digest, leaf: &Digest) -> Result<()> {
        let found = self.root_from(*leaf)?;
        if found != *root {
            return Err(Error::RootMismatch { found, expected: *root });
        }
        Ok(())
    }

    /// Computes the root from a leaf hash and the path.
    fn root_from(&self, leaf: Digest) -> Result<Digest> {
        let Proof { scheme, leaves, index, .. } = *self;
        if index >= leaves {
            return Err(Error::LeafOutOfRange { index, leaves });
        }
        let mut path = self.path.iter();
        let missing = || Error::MalformedProof {
            detail: format!("{} hashes are too few for leaf {index} of {leaves}", self.path.len()),
        };
        let mut digest = leaf;
        for level in 0..level_count(leaves) - 1 {
            let node_index = index >> level;
            if (node_index ^ 1) < nodes_in_level(leaves, level) {
                let sibling = path.next().ok_or_else(missing)?;
                digest = match node_index & 1 {
                    0 => scheme.hash_node(&digest, sibling),
                    _ => scheme.hash_node(sibling, &digest),
                };
            } else if scheme.duplicates_unpaired() {
                if *path.next().ok_or_else(missing)? != digest {
                    let detail =
                        format!("the last node of level {level} is its own sibling, and another is given");
                    return Err(Error::MalformedProof { detail });
                }
                digest = scheme.hash_node(&digest, &digest);
            }
        }
        match path.len() {
            0 => Ok(digest),
            over => Err(Error::MalformedProof {
                detail: format!("{over} hashes too many for leaf {index} of {leaves}"),
            }),
        }
    }
}
