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
mod source;
mod task;
mod trapdoor;
mod verify;
mod witness;

pub(crate) use self::key::Queries;
#[doc(hidden)]
pub use self::{
    cpu::{CpuBases, CpuEngine},
    engine::Engine,
    gpu::{GpuBases, GpuConstraints, GpuEngine, GpuScalars, GpuValues},
    shared::{Part, PartSum, SharedProof, Sum},
    task::{Engines, ProofMaker, Worker},
};
pub use self::{
    key::{Evaluations, ProvingKey, Reduction},
    matrix::SparseMatrix,
    prover::{Batch, Prover},
    setup::{R1cs, Squares},
    shared::Split,
    source::WitnessSource,
    trapdoor::Trapdoor,
    verify::{Proof, Proved, VerifyingKey},
    witness::Witness,
};
pub use crate::secrets::Secrets;

/// How a device makes proofs: for tests, and for devices of the program's own ([`Prover::with_engines`]). Other programs need
/// nothing of it.
pub mod engines {
    pub use super::{
        cpu::{CpuBases, CpuEngine},
        engine::Engine,
        gpu::{GpuBases, GpuConstraints, GpuEngine, GpuScalars, GpuValues},
        shared::{Part, PartSum, SharedProof, Sum},
        task::{Engines, ProofMaker, Worker},
    };
}
