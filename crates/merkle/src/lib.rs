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
