//! A circuit of a size, with its key.

use std::{sync::Arc, time::Duration};

use anyhow::{Context, Result};
use ark_bn254::{Bn254, Fr};
use ark_ff::Field;
use ark_groth16::{Groth16, ProvingKey as ArkKey};
use evener_device::Device;
use evener_schedule::Pool;
use evener_zk::groth16::{Proof, ProvingKey, R1cs, SparseMatrix, Squares, Trapdoor, Witness};

use super::timing::timed;
use crate::progress::ProgressLine;

/// The secrets of the keys. They are the same in all runs, so that measurements can be repeated exactly.
const SEED: u64 = 1;

/// A circuit of about 2^`log` constraints with a dense witness, and its key.
pub(super) struct Circuit {
    pub(super) log: u32,
    pub(super) squares: Squares,
    pub(super) r1cs: R1cs,
    pub(super) key: Arc<ProvingKey>,
    pub(super) set_up: Duration,
}

impl Circuit {
    pub(super) fn new(log: u32, progress: &ProgressLine) -> Result<Circuit> {
        progress.step_of(format!("setting up a key for 2^{log} constraints"), 1);
        let squares = Squares::filling(log);
        let r1cs = squares.r1cs()?;
        let (key, set_up) =
            timed(|| Trapdoor::from_seed(SEED).set_up(&r1cs, &|done, all| progress.set(done, all)));
        Ok(Circuit { log, squares, r1cs, key: Arc::new(key?), set_up })
    }

    /// Returns a witness. Different numbers give different witnesses.
    pub(super) fn witness(&self, number: u64) -> Result<Witness> {
        Ok(self.squares.witness(Fr::from(number + 3))?)
    }

    /// Returns the same key as snarkjs has it.
    pub(super) fn circom_key(&self, progress: &ProgressLine) -> Result<ProvingKey> {
        progress.step_of(format!("points for a .zkey of 2^{} constraints", self.log), 1);
        Ok(Trapdoor::from_seed(SEED).to_circom(&self.key, &|done, all| progress.set(done, all))?)
    }
}

/// Returns secrets of proofs that are compared with one another.
pub(super) fn proof_secrets() -> [Fr; 2] {
    [5u64, 6].map(|base| Fr::from(base).pow([u64::MAX, 9]))
}

/// Returns a pool of some devices that neither reads nor writes what earlier runs have learned.
pub(super) fn pool(devices: &[Device]) -> Result<Pool> {
    Ok(Pool::builder().devices(devices).keep_history_at(None).build()?)
}

/// The prover of `ark-groth16` for a circuit.
pub(super) struct ArkProver {
    key: ArkKey<Bn254>,
    matrices: [Vec<Vec<(Fr, usize)>>; 3],
    public: usize,
    constraints: usize,
}

impl ArkProver {
    pub(super) fn new(circuit: &Circuit) -> Result<ArkProver> {
        let rows = |matrix: &SparseMatrix| {
            let row = |row| matrix.row(row).iter().map(|&(wire, value)| (value, wire as usize)).collect();
            (0..matrix.rows()).map(row).collect()
        };
        let r1cs = &circuit.r1cs;
        Ok(ArkProver {
            key: circuit.key.to_ark().context("the key is not one of arkworks")?,
            matrices: [rows(r1cs.a()), rows(r1cs.b()), rows(r1cs.c())],
            public: r1cs.public(),
            constraints: r1cs.constraints(),
        })
    }

    pub(super) fn prove(&self, witness: &Witness, [r, s]: [Fr; 2]) -> Result<Proof> {
        let proof = Groth16::<Bn254>::create_proof_with_reduction_and_matrices(
            &self.key,
            r,
            s,
            &self.matrices,
            self.public + 1,
            self.constraints,
            witness.values(),
        );
        Ok(proof.context("ark-groth16 failed")?.into())
    }
}
