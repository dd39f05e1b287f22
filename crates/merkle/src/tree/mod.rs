//! A whole tree: every node in memory.

mod append;
mod store;
pub use self::store::Summary;

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

/// A Merkle tree with all of its nodes, for proofs, for appending, and to be stored.
///
/// Level 0 is the hashes of the leaves; each level above has half as many nodes, rounded up, and the last has one: the
/// root.
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
    /// Complete subtrees have `1 << height` leaves.
    height: u32,
    /// All nodes of each complete subtree, level after level, as they came from the devices.
    blocks: Vec<Box<[Digest]>>,
    /// The levels over the leaves after the last complete subtree, fewer than it has. Where there are complete ones they
    /// go up to the height of these; otherwise to the root.
    edge: Vec<Vec<Digest>>,
    /// The levels from the complete subtrees' roots up, with what the edge comes to as the last node; none where there
    /// are no complete ones.
    top: Vec<Vec<Digest>>,
}

impl MerkleTree {
    /// Builds a tree on a pool's devices, by the default scheme: SHA-256, RFC 6962. [`Builder::tree`] has the options.
    pub fn build(pool: &Pool, leaves: &Leaves<'_>) -> Result<MerkleTree> {
        Ok(Builder::new(pool).tree(leaves)?.into_value())
    }

    /// A tree of complete subtrees of a height, and the leaf hashes after them.
    pub(crate) fn from_blocks(
        scheme: Scheme,
        height: u32,
        blocks: Vec<Box<[Digest]>>,
        rest: Vec<Digest>,
    ) -> Self {
        let mut tree = MerkleTree { scheme, height, blocks, edge: vec![rest], top: Vec::new() };
        tree.grow_edge(0);
        tree.grow_top(0);
        tree
    }

    /// The hash function and the rule.
    pub fn scheme(&self) -> Scheme {
        self.scheme
    }

    /// How many leaves it has.
    pub fn leaves(&self) -> u64 {
        ((self.blocks.len() as u64) << self.height) + self.edge[0].len() as u64
    }

    /// The root. Nothing for no leaves where the rule has no root for none.
    pub fn root(&self) -> Option<Digest> {
        match self.leaves() {
            0 => self.scheme.empty_root(),
            _ => self.top.last().or(self.edge.last()).and_then(|level| level.first().copied()),
        }
    }

    /// How many levels it has: one for one leaf, none for none.
    pub fn levels(&self) -> u32 {
        level_count(self.leaves())
    }

    /// A node, by its level, counted from the leaves, and its place in it.
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

    /// A proof that a leaf is where it is. Fails where there is no such leaf.
    pub fn proof(&self, index: u64) -> Result<Proof> {
        Proof::of(self, index)
    }

    /// One proof for several leaves, in any order, which is shorter than a proof for each. Fails where one of them is not
    /// there, and for none.
    pub fn multi_proof(&self, indices: &[u64]) -> Result<MultiProof> {
        MultiProof::of(self, indices)
    }

    /// A node that is known to be there.
    pub(crate) fn known_node(&self, level: u32, index: u64) -> Result<Digest> {
        self.node(level, index).ok_or_else(|| Error::OutOfRange { index, leaves: self.leaves() })
    }

    /// Makes the levels of the edge, of which the leaf hashes before `changed` are as they were.
    fn grow_edge(&mut self, changed: usize) {
        let is_alone = self.blocks.is_empty();
        grow(self.scheme, &mut self.edge, changed, |level, count| match is_alone {
            true => count > 1,
            false => level < self.height && count > 0,
        });
    }

    /// Makes the levels of the top, for which the first `known` complete subtrees were there before.
    fn grow_top(&mut self, known: usize) {
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
        grow(self.scheme, &mut self.top, known, |_, count| count > 1);
    }
}

/// Makes the levels above the lowest anew, but for what is only above nodes before `changed`, for as long as there is to be
/// one more above a level of a number of nodes.
fn grow(
    scheme: Scheme,
    levels: &mut Vec<Vec<Digest>>,
    mut changed: usize,
    goes_on: impl Fn(u32, usize) -> bool,
) {
    let mut level = 0;
    while goes_on(level as u32, levels[level].len()) {
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

/// How many levels a tree of so many leaves has.
pub(crate) fn level_count(leaves: u64) -> u32 {
    match leaves {
        0 => 0,
        _ => u64::BITS - (leaves - 1).leading_zeros() + 1,
    }
}

/// How many nodes a level of it has.
pub(crate) fn nodes_in_level(leaves: u64, level: u32) -> u64 {
    leaves.div_ceil(1 << level.min(63))
}
