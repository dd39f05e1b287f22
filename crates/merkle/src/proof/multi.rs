//! Inclusion proofs of several leaves.

use serde::{Deserialize, Serialize};

use crate::{
    error::{Error, Result},
    hash::Digest,
    rule::Scheme,
    tree::{MerkleTree, level_count, nodes_in_level},
};

/// An inclusion proof of several leaves.
///
/// The proof omits nodes that the verifier can compute from the leaves, so it is shorter than one proof per leaf. Its nodes
/// are in the order of use: level by level from the leaves up, from left to right in each, as in `rs_merkle`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MultiProof {
    /// The hash function and the rule.
    #[serde(flatten)]
    pub scheme: Scheme,
    /// The number of leaves of the tree.
    pub leaves: u64,
    /// The proved leaves, in order of their indices.
    pub proved: Vec<ProvedLeaf>,
    /// The hashes of the nodes that the verifier cannot compute.
    pub nodes: Vec<Digest>,
}

/// A leaf of a [`MultiProof`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProvedLeaf {
    /// The index of the leaf.
    pub index: u64,
    /// The hash of the leaf.
    pub leaf: Digest,
}

impl MultiProof {
    pub(crate) fn of(tree: &MerkleTree, indices: &[u64]) -> Result<MultiProof> {
        let (scheme, leaves) = (tree.scheme(), tree.leaves());
        let mut node_indices = indices.to_vec();
        node_indices.sort_unstable();
        node_indices.dedup();
        let last = *node_indices.last().ok_or(Error::NoLeavesToProve)?;
        if last >= leaves {
            return Err(Error::LeafOutOfRange { index: last, leaves });
        }
        let proved: Result<Vec<ProvedLeaf>> = node_indices
            .iter()
            .map(|&index| Ok(ProvedLeaf { index, leaf: tree.node_or_error(0, index)? }))
            .collect();
        let mut nodes = Vec::new();
        for level in 0..tree.levels() - 1 {
            for group in node_indices.chunk_by(|a, b| a ^ 1 == *b) {
                // If both siblings are known, the proof needs neither.
                if let [alone] = group
                    && (alone ^ 1) < nodes_in_level(leaves, level)
                {
                    nodes.push(tree.node_or_error(level, alone ^ 1)?);
                }
            }
            node_indices.iter_mut().for_each(|node_index| *node_index >>= 1);
            node_indices.dedup();
        }
        Ok(MultiProof { scheme, leaves, proved: proved?, nodes })
    }

    /// Verifies that the tree with this root has the leaf hashes of this proof at their indices. Fails with
    /// [`Error::RootMismatch`] if not, and with [`Error::MalformedProof`] if the nodes do not fit the tree.
    pub fn verify(&self, root: &Digest) -> Result<()> {
        let found = self.root()?;
        if found != *root {
            return Err(Error::RootMismatch { found, expected: *root });
        }
        Ok(())
    }

    /// Verifies the leaves by their contents, in order of their indices, instead of the leaf hashes of this proof.
    pub fn verify_leaves<'a>(&self, root: &Digest, leaves: impl IntoIterator<Item = &'a [u8]>) -> Result<()> {
        let digests: Vec<Digest> = leaves.into_iter().map(|leaf| self.scheme.hash_leaf(leaf)).collect();
        if digests.len() != self.proved.len() {
            let detail = format!("it is for {} leaves, and {} are given", self.proved.len(), digests.len());
            return Err(Error::MalformedProof { detail });
        }
        let mut proof = self.clone();
        proof.proved.iter_mut().zip(digests).for_each(|(proved, leaf)| proved.leaf = leaf);
        proof.verify(root)
    }

    /// Computes the root from the leaf hashes and the nodes.
    fn root(&self) -> Result<Digest> {
        let (scheme, leaves) = (self.scheme, self.leaves);
        let malformed = |detail: String| Error::MalformedProof { detail };
        let mut known: Vec<(u64, Digest)> = self.proved.iter().map(|it| (it.index, it.leaf)).collect();
        let Some(&(last, _)) = known.last() else { return Err(Error::NoLeavesToProve) };
        if !known.is_sorted_by(|a, b| a.0 < b.0) {
            return Err(malformed("its leaves are not in order, or one is there twice".into()));
        }
        if last >= leaves {
            return Err(Error::LeafOutOfRange { index: last, leaves });
        }
        let mut nodes = self.nodes.iter();
        for level in 0..level_count(leaves) - 1 {
            let mut above = Vec::with_capacity(known.len());
            for group in known.chunk_by(|a, b| a.0 ^ 1 == b.0) {
                let (node_index, digest) = group[0];
                let parent = match group {
                    [_, (_, right)] => scheme.hash_node(&digest, right),
                    _ if (node_index ^ 1) >= nodes_in_level(leaves, level) => {
                        scheme.parent_of_unpaired(&digest)
                    }
                    _ => {
                        let few = || malformed(format!("{} nodes are too few", self.nodes.len()));
                        let sibling = nodes.next().ok_or_else(few)?;
                        match node_index & 1 {
                            0 => scheme.hash_node(&digest, sibling),
                            _ => scheme.hash_node(sibling, &digest),
                        }
                    }
                };
                above.push((node_index >> 1, parent));
            }
            known = above;
        }
        match nodes.len() {
            0 => Ok(known[0].1),
            over => Err(malformed(format!("{over} nodes too many"))),
        }
    }
}
