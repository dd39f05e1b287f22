//! More leaves at the end of a tree.

use super::MerkleTree;
use crate::{
    hash::Digest,
    subtree::{Format, whole},
};

impl MerkleTree {
    /// Appends a leaf. Only nodes on the way from it to the root are hashed.
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
        self.append_digests(&[self.scheme.leaf(leaf)]);
    }

    /// Appends several leaves, at the cost of their own nodes and one way to the root.
    pub fn append_all<'a>(&mut self, leaves: impl IntoIterator<Item = &'a [u8]>) {
        let scheme = self.scheme;
        let digests: Vec<Digest> = leaves.into_iter().map(|leaf| scheme.leaf(leaf)).collect();
        self.append_digests(&digests);
    }

    /// Appends leaves that are hashes already and are taken as they are.
    pub fn append_digests(&mut self, digests: &[Digest]) {
        let size = 1 << self.height;
        let (known, mut changed) = (self.blocks.len(), self.edge[0].len());
        self.edge[0].extend_from_slice(digests);
        if self.edge[0].len() >= size {
            // What has become complete is a block from now on, and the edge begins anew.
            let format = Format { scheme: self.scheme, leaf_bytes: size_of::<Digest>(), hashed: true };
            let complete = self.edge[0].len() / size * size;
            for leaves in self.edge[0][..complete].chunks(size) {
                let mut nodes = vec![Digest::default(); 2 * size - 1].into_boxed_slice();
                whole(&format, bytemuck::cast_slice(leaves), self.height, &mut nodes);
                self.blocks.push(nodes);
            }
            self.edge[0].drain(..complete);
            self.edge.truncate(1);
            changed = 0;
        }
        self.grow_edge(changed);
        self.grow_top(known);
    }
}
