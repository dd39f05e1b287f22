//! The Rust part of the Python package `evener`: the scheduler, and the few things that worker processes need below Python.
//!
//! Python drives it: `evener/_schedule` asks `Run` what each worker process does next, and the workers claim
//! items through `Claims` in shared memory. Beyond loops, it runs kernels, Merkle trees and Groth16 proofs of the other crates, without
//! the interpreter's lock.

mod claims;
mod devices;
mod errors;
mod groth16;
mod hosts;
mod interrupt;
mod kernel;
mod lent;
mod merkle;
mod parent;
mod pools;
mod run;
mod settings_file;

use pyo3::prelude::*;

/// The module `evener._evener`.
#[pymodule]
mod _evener {
    #[pymodule_export]
    use crate::{
        claims::Claims,
        devices::devices,
        errors::{DeviceError, InvalidProof, KernelError, NoDevice},
        groth16::{Prover, verify_groth16},
        hosts::{Connection, Host, end_with_session, slurm_hosts, ssh_host},
        kernel::Kernel,
        merkle::{MerkleTree, merkle_root, verify_inclusion},
        parent::end_with_parent,
        run::Run,
        settings_file::toml_to_json,
    };
}
