//! BN254 arithmetic, multi-scalar multiplication, number-theoretic transforms and Groth16 proofs over a pool of devices.

pub mod curve;
mod dialect;
mod error;
pub mod field;
pub mod format;
pub mod groth16;
pub mod msm;
pub mod ntt;

pub use error::{Error, Result};
