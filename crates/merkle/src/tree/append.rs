//! Appends leaves to a tree.

use super::MerkleTree;
use crate::{
    hash::Digest,
    subtree::{LeafFormat, all_nodes},
};

impl MerkleTree {
    /// Appends a leaf. Rehashes only the nodes between the leaf and the root.
    ///
    /// ```
    /// # use evener_device::Device;
    /// # use evener_merkle::{Leaves, MerkleTree};
    /// # use evener_schedule::Pool;
    /// # let pool = Pool::new([Device::cpu()])?;
    /// let mut tree = MerkleTree::build(&pool, &Leaves::lines(b"one\ntwo"))?;
    /// tree.append(b"three");
    /// assert_eq!(tree.root(), MerkleTree::build(&pool, &Leaves::lines(b"one\ntwo\nthree"))?.root());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn append(&mut self, leaf: &[u8]) {
        self.append_digests(&[self.scheme.hash_leaf(leaf)]);
    }

    /// Appends several leaves. Hashes their own nodes and one path to the root.
    pub fn extend<'a>(&mut self, leaves: impl IntoIterator<Item = &'a [u8]>) {
        let scheme = self.scheme;
        let digests: Vec<Digest> = leaves.into_iter().map(|leaf| scheme.hash_leaf(leaf)).collect();
        self.append_digests(&digests);
    }

    /// Appends leaf hashes.
    pub fn append_digests(&mut self, digests: &[Digest]) {
        let size = 1 << self.height;
        let (known, mut changed) = (self.blocks.len(), self.edge[0].len());
        self.edge[0].extend_from_slice(digests);
        if self.edge[0].len() >= size {
            // Complete subtrees of the edge become blocks.
            let format = LeafFormat { scheme: self.scheme, leaf_bytes: size_of::<Digest>(), prehashed: true };
            let complete = self.edge[0].len() / size * size;
            for leaves in self.edge[0][..complete].chunks(size) {
                let mut nodes = vec![Digest::default(); 2 * size - 1].into_boxed_slice();
                all_nodes(&format, bytemuck::cast_slice(leaves), self.height, &mut nodes);
                self.blocks.push(nodes);
            }
            self.edge[0].drain(..complete);
            self.edge.truncate(1);
            changed = 0;
        }
        self.rebuild_edge(changed);
        self.rebuild_top(known);
    }
}
