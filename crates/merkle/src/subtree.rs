//! Subtrees on the CPU: complete subtrees of blocks, the incomplete right edge, and the top of a tree.

use serde::{Deserialize, Serialize};

use crate::{
    hash::{Digest, batch},
    rule::Scheme,
};

/// How the input bytes become the leaf level of a tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct LeafFormat {
    pub(crate) scheme: Scheme,
    /// The size of a leaf.
    pub(crate) leaf_bytes: usize,
    /// Whether the leaves are leaf hashes already.
    pub(crate) prehashed: bool,
}

impl LeafFormat {
    /// Returns the size of a leaf in the input.
    pub(crate) fn leaf_size(&self) -> usize {
        if self.prehashed { size_of::<Digest>() } else { self.leaf_bytes }
    }

    /// Computes the leaf level of contiguous leaves.
    fn leaf_level(&self, leaves: &[u8], out: &mut [Digest]) {
        if self.prehashed {
            out.copy_from_slice(bytemuck::cast_slice(leaves));
        } else {
            batch::hash_leaves_of_size(self.scheme, leaves, self.leaf_bytes, out);
        }
    }

    /// Computes the leaf level of contiguous leaves into a new vector.
    pub(crate) fn leaf_level_of(&self, leaves: &[u8]) -> Vec<Digest> {
        let mut out = vec![Digest::default(); leaves.len() / self.leaf_size()];
        self.leaf_level(leaves, &mut out);
        out
    }
}

/// Reusable memory for two adjacent levels.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    lower: Vec<Digest>,
    upper: Vec<Digest>,
}

/// The approximate number of leaves that are reduced together: enough that even high levels have many nodes, few enough
/// that they stay in the cache.
pub(crate) const LEAVES_AT_ONCE: usize = 1 << 12;

/// Returns the number of blocks of a height that are reduced together.
pub(crate) fn blocks_at_once(height: u32) -> usize {
    (LEAVES_AT_ONCE >> height).max(1)
}

/// Reduces contiguous blocks of `1 << height` leaves to their roots. Passes the roots to `emit` in order, several at a time.
pub(crate) fn roots(
    format: &LeafFormat,
    leaves: &[u8],
    height: u32,
    scratch: &mut Scratch,
    mut emit: impl FnMut(&[Digest]),
) {
    for piece in leaves.chunks((blocks_at_once(height) * format.leaf_size()) << height) {
        let mut count = piece.len() / format.leaf_size();
        let Scratch { lower, upper } = scratch;
        if lower.len() < count {
            lower.resize(count, Digest::default());
            upper.resize(count, Digest::default());
        }
        format.leaf_level(piece, &mut lower[..count]);
        for _ in 0..height {
            batch::hash_nodes(format.scheme, &lower[..count], &mut upper[..count / 2]);
            std::mem::swap(lower, upper);
            count /= 2;
        }
        emit(&lower[..count]);
    }
}

/// Computes all nodes of one block of `1 << height` leaves, level by level, the root last.
pub(crate) fn all_nodes(format: &LeafFormat, leaves: &[u8], height: u32, out: &mut [Digest]) {
    let (mut level, mut rest) = out.split_at_mut(1 << height);
    format.leaf_level(leaves, level);
    while !rest.is_empty() {
        let (next, after) = rest.split_at_mut(level.len() / 2);
        batch::hash_nodes(format.scheme, level, next);
        (level, rest) = (next, after);
    }
}

/// Returns the index of a level's first node among all nodes of a block.
pub(crate) fn level_start(height: u32, level: u32) -> usize {
    (2 << height) - (2 << (height - level))
}

/// Extends `upper`, which holds the first parents of `lower`, to all of them.
pub(crate) fn next_level(scheme: Scheme, lower: &[Digest], upper: &mut Vec<Digest>) {
    let known = upper.len();
    let pairs = lower.len() / 2;
    upper.resize(pairs, Digest::default());
    batch::hash_nodes(scheme, &lower[2 * known..2 * pairs], &mut upper[known..]);
    if lower.len() > 2 * pairs {
        upper.push(scheme.parent_of_unpaired(&lower[lower.len() - 1]));
    }
}

/// Raises the nodes at the right edge of a tree by a number of levels. The tree has more nodes to the left of them.
pub(crate) fn raise_edge(scheme: Scheme, mut nodes: Vec<Digest>, levels: u32) -> Vec<Digest> {
    for _ in 0..levels {
        let mut upper = Vec::new();
        next_level(scheme, &nodes, &mut upper);
        nodes = upper;
    }
    nodes
}

/// Computes the root over all nodes of one level.
pub(crate) fn root_of_level(scheme: Scheme, mut nodes: Vec<Digest>) -> Option<Digest> {
    while nodes.len() > 1 {
        let mut upper = Vec::new();
        next_level(scheme, &nodes, &mut upper);
        nodes = upper;
    }
    nodes.pop()
}

/// Computes the root over several sequences of nodes, each with its level, the highest level first. A sequence begins
/// where the one before it ends; only the last one may be incomplete, that is, no multiple of a node of the level before.
/// There is at least one node.
pub(crate) fn root_of_sequences(
    scheme: Scheme,
    sequences: impl IntoIterator<Item = (u32, Vec<Digest>), IntoIter: DoubleEndedIterator>,
) -> Digest {
    let mut sequences = sequences.into_iter().rev();
    let (mut level, mut nodes) = sequences.next().unwrap_or_default();
    for (above, mut sequence) in sequences {
        if !sequence.is_empty() {
            sequence.extend(raise_edge(scheme, nodes, above - level));
            (level, nodes) = (above, sequence);
        }
    }
    root_of_level(scheme, nodes).unwrap_or_default()
}

/// The peaks of a Merkle mountain range: the roots of complete subtrees over the leaves so far, from the left. Each has
/// fewer leaves than the one before, like the digits of a binary number.
#[derive(Debug, Default)]
pub(crate) struct Peaks {
    leaves: u64,
    /// Each peak with its height.
    peaks: Vec<(u32, Digest)>,
}

impl Peaks {
    /// Returns the number of leaves.
    pub(crate) fn leaves(&self) -> u64 {
        self.leaves
    }

    /// Adds a complete subtree. The number of leaves before it is a multiple of the subtree's.
    pub(crate) fn add(&mut self, scheme: Scheme, height: u32, root: Digest) {
        debug_assert!(self.leaves.is_multiple_of(1 << height));
        self.leaves += 1 << height;
        let (mut height, mut root) = (height, root);
        while let Some((_, left)) = self.peaks.pop_if(|(left, _)| *left == height) {
            root = scheme.hash_node(&left, &root);
            height += 1;
        }
        self.peaks.push((height, root));
    }

    /// Adds leaf hashes, as the largest complete subtrees that fit.
    pub(crate) fn add_leaves(&mut self, scheme: Scheme, mut digests: &[Digest]) {
        while !digests.is_empty() {
            let height = digests.len().ilog2().min(self.leaves.trailing_zeros());
            let (subtree, rest) = digests.split_at(1 << height);
            let subtree = root_of_level(scheme, subtree.to_vec()).unwrap_or_default();
            self.add(scheme, height, subtree);
            digests = rest;
        }
    }

    /// Computes the root over all leaves, if there are any.
    pub(crate) fn root(self, scheme: Scheme) -> Option<Digest> {
        let peaks: Vec<_> = self.peaks.into_iter().map(|(height, root)| (height, vec![root])).collect();
        (!peaks.is_empty()).then(|| root_of_sequences(scheme, peaks))
    }
}

#[cfg(test)]
mod test {
    use super::*;

    /// Computes the root pair by pair.
    fn plain_root(scheme: Scheme, mut level: Vec<Digest>) -> Digest {
        while level.len() > 1 {
            level = level
                .chunks(2)
                .map(|pair| match pair {
                    [left, right] => scheme.hash_node(left, right),
                    unpaired => scheme.parent_of_unpaired(&unpaired[0]),
                })
                .collect();
        }
        level[0]
    }

    fn noise(count: usize) -> Vec<u8> {
        (0..count as u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 11) as u8).collect()
    }

    #[test]
    fn blocks_of_every_height_have_the_roots_that_plain_code_finds() {
        for scheme in Scheme::all() {
            for (height, blocks, leaf_bytes) in [(8, 1, 32), (8, 19, 32), (8, 2, 7), (12, 3, 32), (13, 1, 40)]
            {
                let format = LeafFormat { scheme, leaf_bytes, prehashed: false };
                let leaves = noise((blocks * leaf_bytes) << height);
                let expected: Vec<Digest> = leaves
                    .chunks(leaf_bytes << height)
                    .map(|block| {
                        plain_root(
                            scheme,
                            block.chunks(leaf_bytes).map(|leaf| scheme.hash_leaf(leaf)).collect(),
                        )
                    })
                    .collect();
                let mut found = Vec::new();
                roots(&format, &leaves, height, &mut Scratch::default(), |roots| {
                    found.extend_from_slice(roots)
                });
                assert_eq!(found, expected, "{scheme}, {blocks} blocks of height {height}");
                let mut nodes = vec![Digest::default(); (2 << height) - 1];
                all_nodes(&format, &leaves[..leaf_bytes << height], height, &mut nodes);
                assert_eq!(nodes[level_start(height, height)], expected[0]);
                assert_eq!(nodes[level_start(height, 0)], scheme.hash_leaf(&leaves[..leaf_bytes]));
                assert_eq!(nodes[level_start(height, 1)], scheme.hash_node(&nodes[0], &nodes[1]));
            }
        }
    }

    #[test]
    fn the_ragged_edge_goes_up_as_it_would_in_the_whole_tree() {
        for scheme in Scheme::all() {
            let bytes = noise(32 * 100);
            let nodes: &[Digest] = bytemuck::cast_slice(&bytes);
            for count in 1..100 {
                assert_eq!(
                    root_of_level(scheme, nodes[..count].to_vec()),
                    Some(plain_root(scheme, nodes[..count].to_vec()))
                );
                // Blocks of eight on the left, and the remaining nodes.
                let (left, right) = nodes[..count].split_at(count / 8 * 8);
                let mut level: Vec<Digest> =
                    left.chunks(8).map(|block| plain_root(scheme, block.to_vec())).collect();
                if level.is_empty() {
                    continue;
                }
                level.extend(raise_edge(scheme, right.to_vec(), 3));
                assert_eq!(
                    root_of_level(scheme, level),
                    Some(plain_root(scheme, nodes[..count].to_vec())),
                    "{count}"
                );
            }
        }
    }
}
