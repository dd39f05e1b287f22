//! BN254 arithmetic, multi-scalar multiplication, number-theoretic transforms and Groth16 proofs over a pool of devices.

pub mod curve;
mod dialect;
mod error;
pub mod field;
pub mod format;
pub mod groth16;
pub mod msm;
pub mod ntt;

// arkworks' crates, in the version whose types this crate takes.
pub use {ark_bn254, ark_ec, ark_ff, ark_groth16, ark_poly, ark_relations};

pub use error::{Error, Result};
