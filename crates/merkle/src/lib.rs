//! Merkle trees over unlike devices.
//!
//! A Merkle tree stands for many leaves by one root: whoever has the root can check, with a few hashes, that a leaf is at
//! its place. This crate builds the tree with whatever devices a machine has (NVIDIA GPUs through CUDA, others through
//! Vulkan, Metal or DX12, and the processor's cores), all of them on one tree, and gives the same root whoever did what.
//!
//! ```
//! use evener_device::Device;
//! use evener_merkle::{Leaves, MerkleTree};
//! use evener_schedule::Pool;
//!
//! let pool = Pool::new([Device::cpu()])?; // or Pool::all()
//! let tree = MerkleTree::build(&pool, &Leaves::lines(b"one\ntwo\nthree"))?;
//! let root = tree.root().ok_or("no leaves")?;
//! let proof = tree.proof(1)?;
//! proof.verify_leaf(&root, b"two")?;
//! assert!(proof.verify_leaf(&root, b"three").is_err());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # What can be had
//!
//! - [`Scheme`]: a [`Hash`](enum@Hash) (SHA-256, Keccak-256, BLAKE3) and a [`Rule`] (RFC 6962, Bitcoin's, `rs_merkle`'s), which says
//!   what is hashed and what becomes of odd nodes.
//! - [`Leaves`]: of one size or of any, in memory, in pinned memory, in a file that may be larger than memory, or on a
//!   device already.
//! - [`Builder`]: [`Builder::root`] for the root alone, [`Builder::tree`] for all nodes, [`Builder::root_of_stream`] and
//!   [`Builder::stream`] for what comes piece by piece; strategy, deadline, cancelling, progress and trace.
//! - [`MerkleTree`]: [`proof`](MerkleTree::proof), [`multi_proof`](MerkleTree::multi_proof), [`append`](MerkleTree::append),
//!   [`save`](MerkleTree::save) and [`load`](MerkleTree::load).
//! - [`Proof`] and [`MultiProof`]: checked with nothing but the root; to and from JSON and the like through `serde`.
//!
//! # How it works
//!
//! Leaves are cut into aligned blocks of a power of two, 256 to 16384 leaves by how many there are. A block is an item of a
//! run of the pool: a device turns it into the root of its subtree, or into all nodes where the tree is wanted. What is left
//! over at the right edge, and the few levels above the blocks, are done by the thread that asked. So the leaves go over the
//! bus once, in chunks that overlap with compute, and 32 bytes a block come back.
//!
//! - On a GPU, a workgroup has a block: each thread reduces some leaves by itself, and the workgroup the rest through shared
//!   memory, so that one launch does all levels of a block.
//! - On the processor, SHA-256 hashes sixteen messages at once with AVX-512 where there is that, and else several with the
//!   SHA, AVX2 or NEON instructions.
//! - Fewer than four blocks are done by the thread that asked, on no device: none would be awake sooner. So are leaves of
//!   unequal length, and those over 4096 bytes, hashed on the processor's cores, and only what is above them on every device.

mod builder;
mod error;
mod file;
mod hash;
mod kernel;
mod leaves;
mod lines;
mod proof;
mod resident;
mod rule;
mod subtree;
mod task;
mod tree;

pub use builder::{Builder, Built, RootStream};
pub use error::{Error, Result};
pub use file::{LeafFile, replace_file};
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
    ///
    /// # Safety
    /// In every launch, the input has a leaf and the output has 32 bytes for each thread.
    #[allow(unsafe_code)]
    pub unsafe fn bare(scheme: Scheme, leaf_bytes: usize) -> Kernel {
        let format = Format { scheme, leaf_bytes, hashed: false };
        // SAFETY: the caller promises the same.
        unsafe { kernel::bare(format) }
    }

    /// A CUDA kernel `leaves` that hashes leaves alone.
    ///
    /// # Safety
    /// As for [`bare`].
    #[allow(unsafe_code)]
    pub unsafe fn leaves(scheme: Scheme, leaf_bytes: usize) -> Kernel {
        let format = Format { scheme, leaf_bytes, hashed: false };
        // SAFETY: the caller promises the same.
        unsafe { kernel::leaves_alone(format) }
    }
}
