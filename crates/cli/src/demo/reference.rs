//! The reference that the demo checks its root against: RFC 6962 in a plain loop over the crate `sha2`, without Evener.

use rayon::prelude::*;
use sha2::{Digest, Sha256};

/// The height of the subtrees that threads compute. The number of leaves is a multiple of a subtree's.
pub(super) const SUBTREE_HEIGHT: u32 = 16;

/// Computes the root over leaves of one size. Calls `subtree_done` after each subtree.
pub(super) fn root(leaves: &[u8], leaf_bytes: usize, subtree_done: &(dyn Fn() + Sync)) -> [u8; 32] {
    let subtrees = leaves.par_chunks(leaf_bytes << SUBTREE_HEIGHT).map(|subtree| {
        let root = reduce(subtree.chunks(leaf_bytes).map(leaf).collect());
        subtree_done();
        root
    });
    reduce(subtrees.collect())
}

fn leaf(bytes: &[u8]) -> [u8; 32] {
    Sha256::new().chain_update([0]).chain_update(bytes).finalize().into()
}

/// Replaces pairs by their parents until one node is left. A node without a sibling is promoted unchanged.
fn reduce(mut nodes: Vec<[u8; 32]>) -> [u8; 32] {
    while nodes.len() > 1 {
        let parent = |pair: &[[u8; 32]]| match pair {
            [left, right] => {
                Sha256::new().chain_update([1]).chain_update(left).chain_update(right).finalize().into()
            }
            _ => pair[0],
        };
        nodes = nodes.chunks(2).map(parent).collect();
    }
    nodes[0]
}

#[cfg(test)]
mod test {
    use super::*;

    /// The tree of seven leaves in RFC 6962, section 2.1.3, by hand.
    #[test]
    fn odd_nodes_move_up() {
        let leaves: Vec<[u8; 32]> = (0..7u8).map(|n| leaf(&[n])).collect();
        let node =
            |l: &[u8; 32], r: &[u8; 32]| -> [u8; 32] { Sha256::digest([&[1][..], l, r].concat()).into() };
        let (g, h, i) =
            (node(&leaves[0], &leaves[1]), node(&leaves[2], &leaves[3]), node(&leaves[4], &leaves[5]));
        let (k, l) = (node(&g, &h), node(&i, &leaves[6]));
        assert_eq!(reduce(leaves), node(&k, &l));
    }

    #[test]
    fn subtrees_come_to_the_same_as_all_at_once() {
        let bytes: Vec<u8> = (0..3u32 << SUBTREE_HEIGHT).flat_map(u32::to_le_bytes).collect();
        assert_eq!(root(&bytes, 4, &|| {}), reduce(bytes.chunks(4).map(leaf).collect()));
    }
}
