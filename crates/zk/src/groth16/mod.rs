//! Groth16 over BN254: keys, witnesses, the prover over a pool, and verifying.

mod cpu;
mod engine;
mod gpu;
mod key;
mod key_cache;
mod matrix;
mod prove;
mod prover;
mod randomness;
mod setup;
mod shared;
mod task;
mod trapdoor;
mod verify;
mod witness;

pub(crate) use self::key::Queries;
pub use self::{
    cpu::{CpuBases, CpuEngine},
    engine::Engine,
    gpu::{GpuBases, GpuConstraints, GpuEngine, GpuValues},
    key::{Evaluations, ProvingKey, Reduction},
    matrix::SparseMatrix,
    prover::{Batch, Prover},
    setup::{R1cs, Squares},
    shared::{Part, PartSum, SharedProof, Split, Sum},
    task::{Engines, ProofMaker, Worker},
    trapdoor::Trapdoor,
    verify::{Proof, Proved, VerifyingKey},
    witness::Witness,
};
