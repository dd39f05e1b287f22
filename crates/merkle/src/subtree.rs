//! Subtrees on the processor: complete ones from their leaves, and the ragged edge and the top of a tree.

use crate::{
    hash::{Digest, many},
    rule::Scheme,
};

/// How bytes become the lowest level of a tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Format {
    pub(crate) scheme: Scheme,
    /// The bytes of a leaf.
    pub(crate) leaf_bytes: usize,
    /// Leaves are hashes already, and taken as they are.
    pub(crate) hashed: bool,
}

impl Format {
    /// The bytes that a leaf takes in the input.
    pub(crate) fn bytes(&self) -> usize {
        if self.hashed { size_of::<Digest>() } else { self.leaf_bytes }
    }

    /// The lowest level, of leaves that follow each other.
    fn bottom(&self, leaves: &[u8], out: &mut [Digest]) {
        if self.hashed {
            out.copy_from_slice(bytemuck::cast_slice(leaves));
        } else {
            many::leaves(self.scheme, leaves, self.leaf_bytes, out);
        }
    }

    /// The same, in memory of its own.
    pub(crate) fn bottom_of(&self, leaves: &[u8]) -> Vec<Digest> {
        let mut out = vec![Digest::default(); leaves.len() / self.bytes()];
        self.bottom(leaves, &mut out);
        out
    }
}

/// Memory for two levels.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    lower: Vec<Digest>,
    upper: Vec<Digest>,
}

/// About so many leaves are reduced at once: enough that even high levels have many nodes, few enough that they stay in the
/// cache.
pub(crate) const PIECE: usize = 1 << 12;

/// The blocks of a height that are reduced at once.
pub(crate) fn blocks_at_once(height: u32) -> usize {
    (PIECE >> height).max(1)
}

/// Reduces blocks of `1 << height` leaves that follow each other to their roots, which are given in order, some at a time.
pub(crate) fn roots(
    format: &Format,
    leaves: &[u8],
    height: u32,
    scratch: &mut Scratch,
    mut give: impl FnMut(&[Digest]),
) {
    for piece in leaves.chunks((blocks_at_once(height) * format.bytes()) << height) {
        let mut count = piece.len() / format.bytes();
        let Scratch { lower, upper } = scratch;
        if lower.len() < count {
            lower.resize(count, Digest::default());
            upper.resize(count, Digest::default());
        }
        format.bottom(piece, &mut lower[..count]);
        for _ in 0..height {
            many::nodes(format.scheme, &lower[..count], &mut upper[..count / 2]);
            std::mem::swap(lower, upper);
            count /= 2;
        }
        give(&lower[..count]);
    }
}

/// All nodes of one block of `1 << height` leaves, level after level, the root last.
pub(crate) fn whole(format: &Format, leaves: &[u8], height: u32, out: &mut [Digest]) {
    let (mut level, mut rest) = out.split_at_mut(1 << height);
    format.bottom(leaves, level);
    while !rest.is_empty() {
        let (next, after) = rest.split_at_mut(level.len() / 2);
        many::nodes(format.scheme, level, next);
        (level, rest) = (next, after);
    }
}

/// Where a level's nodes begin among all nodes of a block.
pub(crate) fn level_start(height: u32, level: u32) -> usize {
    (2 << height) - (2 << (height - level))
}

/// The level above some nodes, from the first of them on whose parent is not known: `upper` has those that are.
pub(crate) fn next_level(scheme: Scheme, lower: &[Digest], upper: &mut Vec<Digest>) {
    let known = upper.len();
    let pairs = lower.len() / 2;
    upper.resize(pairs, Digest::default());
    many::nodes(scheme, &lower[2 * known..2 * pairs], &mut upper[known..]);
    if lower.len() > 2 * pairs {
        upper.push(scheme.lone(&lower[lower.len() - 1]));
    }
}

/// Takes nodes at the right edge of a tree up so many levels. There are others to the left of them.
pub(crate) fn lift(scheme: Scheme, mut nodes: Vec<Digest>, levels: u32) -> Vec<Digest> {
    for _ in 0..levels {
        let mut upper = Vec::new();
        next_level(scheme, &nodes, &mut upper);
        nodes = upper;
    }
    nodes
}

/// The root over nodes of one level, which are all that it has.
pub(crate) fn root(scheme: Scheme, mut nodes: Vec<Digest>) -> Option<Digest> {
    while nodes.len() > 1 {
        let mut upper = Vec::new();
        next_level(scheme, &nodes, &mut upper);
        nodes = upper;
    }
    nodes.pop()
}

/// The root over runs of nodes, of the highest level first: each begins where the one before ends, and only the last may
/// be no whole number of nodes of the level before it. There is at least one node.
pub(crate) fn join(
    scheme: Scheme,
    runs: impl IntoIterator<Item = (u32, Vec<Digest>), IntoIter: DoubleEndedIterator>,
) -> Digest {
    let mut runs = runs.into_iter().rev();
    let (mut level, mut nodes) = runs.next().unwrap_or_default();
    for (above, mut run) in runs {
        if !run.is_empty() {
            run.extend(lift(scheme, nodes, above - level));
            (level, nodes) = (above, run);
        }
    }
    root(scheme, nodes).unwrap_or_default()
}

/// The roots of the complete subtrees over leaves that come one after another, from the left: each has fewer leaves than
/// the one before, as the digits of a binary number have.
#[derive(Debug, Default)]
pub(crate) struct Peaks {
    leaves: u64,
    /// Each with its height.
    peaks: Vec<(u32, Digest)>,
}

impl Peaks {
    /// How many leaves there are.
    pub(crate) fn leaves(&self) -> u64 {
        self.leaves
    }

    /// Adds a complete subtree. The leaves before it are a whole number of subtrees of its height.
    pub(crate) fn add(&mut self, scheme: Scheme, height: u32, root: Digest) {
        debug_assert!(self.leaves.is_multiple_of(1 << height));
        self.leaves += 1 << height;
        let (mut height, mut root) = (height, root);
        while let Some((_, left)) = self.peaks.pop_if(|(left, _)| *left == height) {
            root = scheme.node(&left, &root);
            height += 1;
        }
        self.peaks.push((height, root));
    }

    /// Adds the hashes of leaves, as the largest complete subtrees that fit.
    pub(crate) fn add_leaves(&mut self, scheme: Scheme, mut digests: &[Digest]) {
        while !digests.is_empty() {
            let height = digests.len().ilog2().min(self.leaves.trailing_zeros());
            let (subtree, rest) = digests.split_at(1 << height);
            let subtree = root(scheme, subtree.to_vec()).unwrap_or_default();
            self.add(scheme, height, subtree);
            digests = rest;
        }
    }

    /// The root over all leaves, if there are any.
    pub(crate) fn root(self, scheme: Scheme) -> Option<Digest> {
        let runs: Vec<_> = self.peaks.into_iter().map(|(height, root)| (height, vec![root])).collect();
        (!runs.is_empty()).then(|| join(scheme, runs))
    }
}

#[cfg(test)]
mod test {
    use super::*;

    /// The root by the plainest code there is.
    fn plain_root(scheme: Scheme, mut level: Vec<Digest>) -> Digest {
        while level.len() > 1 {
            level = level
                .chunks(2)
                .map(|pair| match pair {
                    [left, right] => scheme.node(left, right),
                    lone => scheme.lone(&lone[0]),
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
                let format = Format { scheme, leaf_bytes, hashed: false };
                let leaves = noise((blocks * leaf_bytes) << height);
                let expected: Vec<Digest> = leaves
                    .chunks(leaf_bytes << height)
                    .map(|block| {
                        plain_root(scheme, block.chunks(leaf_bytes).map(|leaf| scheme.leaf(leaf)).collect())
                    })
                    .collect();
                let mut found = Vec::new();
                roots(&format, &leaves, height, &mut Scratch::default(), |roots| {
                    found.extend_from_slice(roots)
                });
                assert_eq!(found, expected, "{scheme}, {blocks} blocks of height {height}");
                let mut nodes = vec![Digest::default(); (2 << height) - 1];
                whole(&format, &leaves[..leaf_bytes << height], height, &mut nodes);
                assert_eq!(nodes[level_start(height, height)], expected[0]);
                assert_eq!(nodes[level_start(height, 0)], scheme.leaf(&leaves[..leaf_bytes]));
                assert_eq!(nodes[level_start(height, 1)], scheme.node(&nodes[0], &nodes[1]));
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
                    root(scheme, nodes[..count].to_vec()),
                    Some(plain_root(scheme, nodes[..count].to_vec()))
                );
                // Blocks of eight to the left, and what is left over.
                let (left, right) = nodes[..count].split_at(count / 8 * 8);
                let mut level: Vec<Digest> =
                    left.chunks(8).map(|block| plain_root(scheme, block.to_vec())).collect();
                if level.is_empty() {
                    continue;
                }
                level.extend(lift(scheme, right.to_vec(), 3));
                assert_eq!(root(scheme, level), Some(plain_root(scheme, nodes[..count].to_vec())), "{count}");
            }
        }
    }
}
