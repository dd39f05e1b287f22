//! BN254 arithmetic, multi-scalar multiplication, number-theoretic transforms and Groth16 proofs over a pool of devices.
//!
//! The crate `evener` re-exports this crate as `evener::zk`. Programs that use it write `evener::zk` where the examples here have
//! `evener_zk`, `evener::zk::ark_bn254` for `ark_bn254`, and `evener` for `evener_device` and `evener_schedule`.
//!
//! [`groth16::Prover`] is the beginning: it proves witnesses with a [`groth16::ProvingKey`]. [`mod@format`] reads and writes the files
//! of circom and snarkjs, [`msm`] and [`ntt`] are the arithmetic alone, and [`field`] and [`curve`] its parts for kernels of your
//! own.

pub mod curve;
mod dialect;
mod error;
pub mod field;
pub mod format;
pub mod groth16;
pub mod msm;
pub mod ntt;
mod secrets;

// Crates in the version whose types this crate takes and returns: arkworks', and the JSON of keys, proofs and public inputs.
pub use {ark_bn254, ark_ec, ark_ff, ark_groth16, ark_poly, ark_relations, serde_json};

pub use error::{Error, Result};
