//! Hashing and Merkle trees over unlike devices.

mod error;
mod hash;
mod kernel;
mod rule;
mod subtree;

pub use error::{Error, Result};
pub use hash::{Digest, Hash};
pub use rule::{Rule, Scheme};
