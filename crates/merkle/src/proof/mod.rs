//! Proofs that leaves are in a tree, which need nothing but the root to be checked.

mod multi;

use serde::{Deserialize, Serialize};

pub use self::multi::{MultiProof, Proved};
use crate::{
    error::{Error, Result},
    hash::Digest,
    rule::Scheme,
    tree::{MerkleTree, level_count, nodes_in_level},
};

/// A proof that a leaf is at a place in a tree with a certain root.
///
/// Its path is the neighbour's hash on every level from the leaf up, where there is one: what RFC 6962 calls the audit path,
/// and what `rs_merkle` and Bitcoin's clients have. By Bitcoin's rule a node without a neighbour is its own, and is there.
///
/// ```
/// use evener_merkle::{Digest, Proof, Scheme};
///
/// let scheme = Scheme::default();
/// let (left, right) = (scheme.leaf(b"left"), scheme.leaf(b"right"));
/// let root = scheme.node(&left, &right);
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
    /// How many leaves the tree has.
    pub leaves: u64,
    /// Which of them this is.
    pub index: u64,
    /// Its hash.
    pub leaf: Digest,
    /// The hashes of the neighbours, from the leaf up.
    pub path: Vec<Digest>,
}

impl Proof {
    pub(crate) fn of(tree: &MerkleTree, index: u64) -> Result<Proof> {
        let (scheme, leaves) = (tree.scheme(), tree.leaves());
        if index >= leaves {
            return Err(Error::OutOfRange { index, leaves });
        }
        let mut path = Vec::new();
        for level in 0..tree.levels() - 1 {
            let place = index >> level;
            if (place ^ 1) < nodes_in_level(leaves, level) {
                path.push(tree.known_node(level, place ^ 1)?);
            } else if scheme.pairs_with_itself() {
                path.push(tree.known_node(level, place)?);
            }
        }
        Ok(Proof { scheme, leaves, index, leaf: tree.known_node(0, index)?, path })
    }

    /// Checks that the leaf whose hash this has is in the tree with this root, at its place. Fails with
    /// [`Error::DoesNotHold`] where it is not, and with [`Error::Malformed`] where the path does not fit the tree.
    pub fn verify(&self, root: &Digest) -> Result<()> {
        self.verify_digest(root, &self.leaf)
    }

    /// Checks the same for a leaf itself, whatever hash the proof says that it has.
    pub fn verify_leaf(&self, root: &Digest, leaf: &[u8]) -> Result<()> {
        self.verify_digest(root, &self.scheme.leaf(leaf))
    }

    /// Checks the same for the hash of a leaf.
    pub fn verify_digest(&self, root: &Digest, leaf: &Digest) -> Result<()> {
        let found = self.root_from(*leaf)?;
        if found != *root {
            return Err(Error::DoesNotHold { found, expected: *root });
        }
        Ok(())
    }

    /// The root that the path leads to.
    fn root_from(&self, leaf: Digest) -> Result<Digest> {
        let Proof { scheme, leaves, index, .. } = *self;
        if index >= leaves {
            return Err(Error::OutOfRange { index, leaves });
        }
        let mut path = self.path.iter();
        let missing = || Error::Malformed {
            detail: format!("{} hashes are too few for leaf {index} of {leaves}", self.path.len()),
        };
        let mut digest = leaf;
        for level in 0..level_count(leaves) - 1 {
            let place = index >> level;
            if (place ^ 1) < nodes_in_level(leaves, level) {
                let neighbour = path.next().ok_or_else(missing)?;
                digest = match place & 1 {
                    0 => scheme.node(&digest, neighbour),
                    _ => scheme.node(neighbour, &digest),
                };
            } else if scheme.pairs_with_itself() {
                if *path.next().ok_or_else(missing)? != digest {
                    let detail =
                        format!("the last node of level {level} is its own neighbour, and another is given");
                    return Err(Error::Malformed { detail });
                }
                digest = scheme.node(&digest, &digest);
            }
        }
        match path.len() {
            0 => Ok(digest),
            over => Err(Error::Malformed {
                detail: format!("{over} hashes too many for leaf {index} of {leaves}"),
            }),
        }
    }
}
