//! Keys, witnesses and proofs, held against implementations that nobody here wrote: `ark-groth16`, `taceo-groth16`,
//! `taceo-circom-types` and snarkjs.
//!
//! The files in `tests/data` are a circuit of 8 constraints, one of its witnesses, and a key, a proof and public inputs that
//! snarkjs made for it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod batches;
mod circuits;
mod damage;
mod devices;
mod faults;
mod processors;
mod reference;
mod shared;
mod snarkjs;

use ark_bn254::Fr;
use ark_ff::UniformRand;
use ark_std::rand::{SeedableRng, rngs::StdRng};
use evener_device::Device;
use evener_schedule::Pool;
use evener_zk::groth16::{Prover, ProvingKey, R1cs, Squares, VerifyingKey, Witness};

pub(crate) const ZKEY: &[u8] = include_bytes!("../data/squares.zkey");
pub(crate) const WTNS: &[u8] = include_bytes!("../data/squares.wtns");
pub(crate) const R1CS: &[u8] = include_bytes!("../data/squares.r1cs");
pub(crate) const VKEY: &[u8] = include_bytes!("../data/verification_key.json");
pub(crate) const PROOF: &[u8] = include_bytes!("../data/proof.json");
pub(crate) const PUBLIC: &[u8] = include_bytes!("../data/public.json");

pub(crate) fn key() -> ProvingKey {
    ProvingKey::from_zkey("squares.zkey", ZKEY).unwrap()
}

pub(crate) fn witness() -> Witness {
    Witness::from_wtns("squares.wtns", WTNS).unwrap()
}

pub(crate) fn r1cs() -> R1cs {
    R1cs::from_r1cs("squares.r1cs", R1CS).unwrap()
}

pub(crate) fn verifying_key() -> VerifyingKey {
    VerifyingKey::from_json("verification_key.json", VKEY, false).unwrap()
}

/// The circuit of the files: constraints with the constant 1, an output and an input.
pub(crate) fn squares() -> Squares {
    Squares::filling(4)
}

/// A pool of the processor that neither reads nor writes history.
pub(crate) fn pool() -> Pool {
    pool_of(&[Device::cpu()])
}

pub(crate) fn pool_of(devices: &[Device]) -> Pool {
    Pool::builder().devices(devices).keep_history_at(None).build().unwrap()
}

pub(crate) fn prover(key: ProvingKey) -> Prover {
    Prover::load(&pool(), key)
}

/// Random numbers that are the same in each run.
pub(crate) fn scalars(seed: u64, count: usize) -> Vec<Fr> {
    let mut random = StdRng::seed_from_u64(seed);
    (0..count).map(|_| Fr::rand(&mut random)).collect()
}
