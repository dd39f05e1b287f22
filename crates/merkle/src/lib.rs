//! Merkle trees over unlike devices.
//!
//! A Merkle tree commits to many leaves with one root hash. A verifier that knows the root can check with a few hashes
//! that a leaf is at its index. This crate builds one tree on all devices of a machine together (NVIDIA GPUs through
//! CUDA, other GPUs through Vulkan, Metal or DX12, and the CPU's cores). The root does not depend on which device hashed
//! which leaves.
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
//! # Main types
//!
//! - [`Scheme`]: a [`Hash`](enum@Hash) (SHA-256, Keccak-256, BLAKE3) and a [`Rule`] (RFC 6962, Bitcoin's, `rs_merkle`'s). The rule
//!   defines what is hashed and how a node without a sibling is handled.
//! - [`Leaves`]: the input. Leaves have one size or any size, and are in memory, in pinned memory, in a file that may be
//!   larger than memory, or already on a device.
//! - [`Builder`]: [`Builder::root`] for the root alone, [`Builder::tree`] for all nodes, [`Builder::root_from_reader`] and
//!   [`Builder::stream`] for input that arrives in pieces; strategy, deadline, cancellation, progress and trace.
//! - [`MerkleTree`]: [`proof`](MerkleTree::proof), [`multi_proof`](MerkleTree::multi_proof), [`append`](MerkleTree::append),
//!   [`save`](MerkleTree::save) and [`load`](MerkleTree::load).
//! - [`Proof`] and [`MultiProof`]: inclusion proofs, which are verified with the root alone and serialized with `serde`.
//!
//! # How it works
//!
//! The builder cuts the leaves into aligned blocks of a power of two, 256 to 16,384 leaves depending on the size of the
//! input. A block is one item of a run on the pool: a device reduces it to the root of its subtree, or to all of its nodes
//! if the caller wants the tree. The calling thread hashes the leaves after the last whole block and the few levels above
//! the blocks. So leaves cross the bus once, in chunks whose copies overlap with compute, and 32 bytes per block come back.
//!
//! - On a GPU, a workgroup reduces one block: each thread first reduces some leaves by itself, then the workgroup reduces
//!   the threads' results through shared memory. One launch computes all levels of a block.
//! - On the CPU, SHA-256 hashes sixteen messages at once with AVX-512 if available, otherwise several at once with the
//!   SHA, AVX2 or NEON instructions.
//! - The calling thread hashes fewer than four blocks itself, because starting a device would take longer. Leaves of unequal
//!   length and leaves over 4096 bytes are hashed on the CPU's cores; the levels above them use all devices.

mod builder;
mod device_reducer;
mod error;
mod file;
mod hash;
mod kernel;
mod leaves;
mod lines;
mod proof;
mod rule;
mod subtree;
mod task;
mod tree;

pub use builder::{Builder, Built, RootStream};
pub use error::{Error, Result};
pub use file::{LeafFile, replace_file};
pub use hash::{Digest, Hash};
pub use leaves::Leaves;
pub use proof::{MultiProof, Proof, ProvedLeaf};
pub use rule::{Rule, Scheme};
pub use tree::{MerkleTree, TreeSummary};

/// Kernels that only hash, which the benchmark compares the tree kernel with.
#[doc(hidden)]
pub mod measure {
    use evener_device::Kernel;

    use crate::{kernel, rule::Scheme, subtree::LeafFormat};

    /// Returns the CUDA kernel `hash_only`, which computes as many hashes as a tree has (one leaf hash and one node hash
    /// per leaf) without building a tree.
    ///
    /// # Safety
    /// In every launch, the input has one leaf and the output has 32 bytes for each thread.
    #[allow(unsafe_code)]
    pub unsafe fn hash_only(scheme: Scheme, leaf_bytes: usize) -> Kernel {
        let format = LeafFormat { scheme, leaf_bytes, prehashed: false };
        // SAFETY: `kernel::hash_only` needs a leaf and a digest for each thread, which this function's caller guarantees.
        unsafe { kernel::hash_only(format) }
    }

    /// Returns the CUDA kernel `leaf_hash_only`, which computes the leaf hashes alone.
    ///
    /// # Safety
    /// As for [`hash_only`].
    #[allow(unsafe_code)]
    pub unsafe fn leaf_hash_only(scheme: Scheme, leaf_bytes: usize) -> Kernel {
        let format = LeafFormat { scheme, leaf_bytes, prehashed: false };
        // SAFETY: `kernel::leaf_hash_only` needs a leaf and a digest for each thread, which this function's caller
        // guarantees.
        unsafe { kernel::leaf_hash_only(format) }
    }
}
