//! BN254 arithmetic, multi-scalar multiplication, number-theoretic transforms and Groth16 proofs over a pool of devices.

mod error;
pub mod format;
pub mod groth16;

pub use error::{Error, Result};
