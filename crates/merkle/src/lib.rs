//! Hashing and Merkle trees over unlike devices.

mod builder;
mod error;
mod file;
mod hash;
mod kernel;
mod leaves;
mod proof;
mod resident;
mod rule;
mod subtree;
mod task;
mod tree;

pub use builder::{Builder, Built};
pub use error::{Error, Result};
pub use file::LeafFile;
pub use hash::{Digest, Hash};
pub use leaves::Leaves;
pub use proof::{MultiProof, Proof, Proved};
pub use rule::{Rule, Scheme};
pub use tree::{MerkleTree, Summary};

/// What the kernels are measured by.
#[doc(hidden)]
pub mod measure {
    use evener_device::Kernel;

    use crate::{kernel, rule::Scheme, subtree::Format};

    /// A CUDA kernel `bare` that hashes as much as a tree does, one leaf and one node for each leaf, without a tree.
    pub fn bare(scheme: Scheme, leaf_bytes: usize) -> Kernel {
        kernel::bare(Format { scheme, leaf_bytes, hashed: false })
    }

    /// A CUDA kernel `leaves` that hashes leaves alone.
    pub fn leaves(scheme: Scheme, leaf_bytes: usize) -> Kernel {
        kernel::leaves_alone(Format { scheme, leaf_bytes, hashed: false })
    }
}
