//! BN254 arithmetic, multi-scalar multiplication, number-theoretic transforms and Groth16 proofs over a pool of devices.

pub mod curve;
mod dialect;
pub mod field;
pub mod msm;
pub mod ntt;
