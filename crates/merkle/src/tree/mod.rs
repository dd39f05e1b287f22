//! A tree with every node in memory.

mod append;
mod store;
pub use self::store::TreeSummary;

use evener_schedule::Pool;

use crate::{
    builder::Builder,
    error::{Error, Result},
    hash::Digest,
    leaves::Leaves,
    proof::{MultiProof, Proof},
    rule::Scheme,
    subtree::{level_start, next_level},
};

/// A Merkle tree with all of its nodes: creates proofs, appends leaves, and is saved to a file.
///
/// Level 0 holds the leaf hashes. Each level above has half as many nodes, rounded up. The last level is the root.
///
/// ```
/// use evener_device::Device;
/// use evener_merkle::{Leaves, MerkleTree};
/// use evener_schedule::Pool;
///
/// let pool = Pool::new([Device::cpu()])?; // or Pool::all()
/// let leaves: Vec<[u8; 32]> = (0..1000u32).map(|n| [n as u8; 32]).collect();
/// let tree = MerkleTree::build(&pool, &Leaves::from(&leaves))?;
/// let root = tree.root().ok_or("no leaves")?;
///
/// let proof = tree.proof(41)?;
/// proof.verify_leaf(&root, &leaves[41])?;
/// assert!(proof.verify_leaf(&root, &leaves[42]).is_err());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
pub struct MerkleTree {
    scheme: Scheme,
    /// The height of the blocks: a block is a complete subtree of `1 << height` leaves.
    height: u32,
    /// All nodes of each block, level by level, as the devices computed them.
    blocks: Vec<Box<[Digest]>>,
    /// The levels over the leaves after the last block. They reach up to `height` if there are blocks, otherwise to the
    /// root.
    edge: Vec<Vec<Digest>>,
    /// The levels from the blocks' roots up, whose last node comes from the edge; empty if there are no blocks.
    top: Vec<Vec<Digest>>,
}

impl MerkleTree {
    /// Builds a tree on a pool's devices with the default scheme: SHA-256, RFC 6962. [`Builder::tree`] takes options.
    pub fn build(pool: &Pool, leaves: &Leaves<'_>) -> Result<MerkleTree> {
        Ok(Builder::new(pool).tree(leaves)?.into_value())
    }

    /// Creates a tree from blocks and the leaf hashes after them.
    pub(crate) fn from_blocks(
        scheme: Scheme,
        height: u32,
        blocks: Vec<Box<[Digest]>>,
        rest: Vec<Digest>,
    ) -> Self {
        let mut tree = MerkleTree { scheme, height, blocks, edge: vec![rest], top: Vec::new() };
        tree.rebuild_edge(0);
        tree.rebuild_top(0);
        tree
    }

    /// Returns the hash function and the rule.
    pub fn scheme(&self) -> Scheme {
        self.scheme
    }

    /// Returns the number of leaves.
    pub fn leaves(&self) -> u64 {
        ((self.blocks.len() as u64) << self.height) + self.edge[0].len() as u64
    }

    /// Returns the root, or `None` if the tree is empty and the rule defines no root for it.
    pub fn root(&self) -> Option<Digest> {
        match self.leaves() {
            0 => self.scheme.empty_root(),
            _ => self.top.last().or(self.edge.last()).and_then(|level| level.first().copied()),
        }
    }

    /// Returns the number of levels: 1 for one leaf, 0 for none.
    pub fn levels(&self) -> u32 {
        level_count(self.leaves())
    }

    /// Returns a node by its level, counted from the leaves, and its index in the level.
    pub fn node(&self, level: u32, index: u64) -> Option<Digest> {
        if level >= self.height && !self.blocks.is_empty() {
            return self.top.get((level - self.height) as usize)?.get(usize::try_from(index).ok()?).copied();
        }
        let below = self.height.checked_sub(level)?;
        let within = index & ((1 << below) - 1);
        match self.blocks.get(usize::try_from(index >> below).ok()?) {
            Some(block) => block.get(level_start(self.height, level) + within as usize).copied(),
            None => {
                let before = (self.blocks.len() as u64) << below;
                self.edge.get(level as usize)?.get((index - before) as usize).copied()
            }
        }
    }

    /// Creates an inclusion proof of a leaf. Fails if the tree has no such leaf.
    pub fn proof(&self, index: u64) -> Result<Proof> {
        Proof::of(self, index)
    }

    /// Creates one inclusion proof of several leaves, given in any order, which is shorter than one proof per leaf. Fails if
    /// the tree lacks one of them, and for an empty list.
    pub fn multi_proof(&self, indices: &[u64]) -> Result<MultiProof> {
        MultiProof::of(self, indices)
    }

    /// Returns a node that exists according to the number of leaves.
    pub(crate) fn node_or_error(&self, level: u32, index: u64) -> Result<Digest> {
        self.node(level, index).ok_or_else(|| Error::LeafOutOfRange { index, leaves: self.leaves() })
    }

    /// Recomputes the levels of the edge after its leaf hashes from `changed` on have changed.
    fn rebuild_edge(&mut self, changed: usize) {
        let has_blocks = !self.blocks.is_empty();
        rebuild_levels(self.scheme, &mut self.edge, changed, |level, count| match has_blocks {
            true => level < self.height && count > 0,
            false => count > 1,
        });
    }

    /// Recomputes the levels of the top after blocks from `known` on were added.
    fn rebuild_top(&mut self, known: usize) {
        if self.blocks.is_empty() {
            return;
        }
        if self.top.is_empty() {
            self.top.push(Vec::new());
        }
        let known = known.min(self.top[0].len());
        self.top[0].truncate(known);
        let root = level_start(self.height, self.height);
        self.top[0].extend(self.blocks[known..].iter().map(|block| block[root]));
        if !self.edge[0].is_empty() {
            self.top[0].extend(self.edge.get(self.height as usize).and_then(|level| level.first()));
        }
        rebuild_levels(self.scheme, &mut self.top, known, |_, count| count > 1);
    }
}

/// Recomputes the levels above the lowest, except for nodes that depend only on nodes before `changed`. `has_parent_level`
/// says for a level and its number of nodes whether there is a level above it.
fn rebuild_levels(
    scheme: Scheme,
    levels: &mut Vec<Vec<Digest>>,
    mut changed: usize,
    has_parent_level: impl Fn(u32, usize) -> bool,
) {
    let mut level = 0;
    while has_parent_level(level as u32, levels[level].len()) {
        if levels.len() == level + 1 {
            levels.push(Vec::new());
        }
        changed /= 2;
        let (lower, upper) = levels.split_at_mut(level + 1);
        upper[0].truncate(changed);
        next_level(scheme, &lower[level], &mut upper[0]);
        level += 1;
    }
    levels.truncate(level + 1);
}

/// Returns the number of levels of a tree.
pub(crate) fn level_count(leaves: u64) -> u32 {
    match leaves {
        0 => 0,
        _ => u64::BITS - (leaves - 1).leading_zeros() + 1,
    }
}

/// Returns the number of nodes of a level.
pub(crate) fn nodes_in_level(leaves: u64, level: u32) -> u64 {
    leaves.div_ceil(1 << level.min(63))
}
