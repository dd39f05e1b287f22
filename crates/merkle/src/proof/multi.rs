//! One proof for several leaves.

use serde::{Deserialize, Serialize};

use crate::{
    error::{Error, Result},
    hash::Digest,
    rule::Scheme,
    tree::{MerkleTree, level_count, nodes_in_level},
};

/// A proof that several leaves are at their places in a tree with a certain root.
///
/// What can be hashed from the leaves themselves is not in it, so it is shorter than a proof for each. Its nodes are in the
/// order in which they are needed: level after level from the leaves up, and from left to right in each, as `rs_merkle` has
/// them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MultiProof {
    /// The hash function and the rule.
    #[serde(flatten)]
    pub scheme: Scheme,
    /// How many leaves the tree has.
    pub leaves: u64,
    /// The leaves that are proved, in order.
    pub proved: Vec<Proved>,
    /// The hashes of nodes that cannot be had from them.
    pub nodes: Vec<Digest>,
}

/// A leaf that a proof is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Proved {
    /// Which of the tree's leaves it is.
    pub index: u64,
    /// Its hash.
    pub leaf: Digest,
}

impl MultiProof {
    pub(crate) fn of(tree: &MerkleTree, indices: &[u64]) -> Result<MultiProof> {
        let (scheme, leaves) = (tree.scheme(), tree.leaves());
        let mut places = indices.to_vec();
        places.sort_unstable();
        places.dedup();
        let last = *places.last().ok_or(Error::NothingToProve)?;
        if last >= leaves {
            return Err(Error::OutOfRange { index: last, leaves });
        }
        let proved: Result<Vec<Proved>> =
            places.iter().map(|&index| Ok(Proved { index, leaf: tree.known_node(0, index)? })).collect();
        let mut nodes = Vec::new();
        for level in 0..tree.levels() - 1 {
            for group in places.chunk_by(|a, b| a ^ 1 == *b) {
                // Of two neighbours that are both known, neither is needed.
                if let [alone] = group
                    && (alone ^ 1) < nodes_in_level(leaves, level)
                {
                    nodes.push(tree.known_node(level, alone ^ 1)?);
                }
            }
            places.iter_mut().for_each(|place| *place >>= 1);
            places.dedup();
        }
        Ok(MultiProof { scheme, leaves, proved: proved?, nodes })
    }

    /// Checks that the leaves whose hashes this has are in the tree with this root, at their places. Fails with
    /// [`Error::DoesNotHold`] where they are not, and with [`Error::Malformed`] where the nodes do not fit the tree.
    pub fn verify(&self, root: &Digest) -> Result<()> {
        let found = self.root()?;
        if found != *root {
            return Err(Error::DoesNotHold { found, expected: *root });
        }
        Ok(())
    }

    /// Checks the same for the leaves themselves, in the order of their places, whatever hashes the proof says that they
    /// have.
    pub fn verify_leaves<'a>(&self, root: &Digest, leaves: impl IntoIterator<Item = &'a [u8]>) -> Result<()> {
        let digests: Vec<Digest> = leaves.into_iter().map(|leaf| self.scheme.leaf(leaf)).collect();
        if digests.len() != self.proved.len() {
            let detail = format!("it is for {} leaves, and {} are given", self.proved.len(), digests.len());
            return Err(Error::Malformed { detail });
        }
        let mut proof = self.clone();
        proof.proved.iter_mut().zip(digests).for_each(|(proved, leaf)| proved.leaf = leaf);
        proof.verify(root)
    }

    /// The root that the nodes lead to.
    fn root(&self) -> Result<Digest> {
        let (scheme, leaves) = (self.scheme, self.leaves);
        let malformed = |detail: String| Error::Malformed { detail };
        let mut known: Vec<(u64, Digest)> = self.proved.iter().map(|it| (it.index, it.leaf)).collect();
        let Some(&(last, _)) = known.last() else { return Err(Error::NothingToProve) };
        if !known.is_sorted_by(|a, b| a.0 < b.0) {
            return Err(malformed("its leaves are not in order, or one is there twice".into()));
        }
        if last >= leaves {
            return Err(Error::OutOfRange { index: last, leaves });
        }
        let mut nodes = self.nodes.iter();
        for level in 0..level_count(leaves) - 1 {
            let mut above = Vec::with_capacity(known.len());
            for group in known.chunk_by(|a, b| a.0 ^ 1 == b.0) {
                let (place, digest) = group[0];
                let parent = match group {
                    [_, (_, right)] => scheme.node(&digest, right),
                    _ if (place ^ 1) >= nodes_in_level(leaves, level) => scheme.lone(&digest),
                    _ => {
                        let few = || malformed(format!("{} nodes are too few", self.nodes.len()));
                        let neighbour = nodes.next().ok_or_else(few)?;
                        match place & 1 {
                            0 => scheme.node(&digest, neighbour),
                            _ => scheme.node(neighbour, &digest),
                        }
                    }
                };
                above.push((place >> 1, parent));
            }
            known = above;
        }
        match nodes.len() {
            0 => Ok(known[0].1),
            over => Err(malformed(format!("{over} nodes too many"))),
        }
    }
}
