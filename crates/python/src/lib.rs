//! The Rust part of the Python package `evener`: the scheduler, and the few things that worker processes need below Python.
//!
//! Python drives it: `evener/_schedule` asks `Run` what each worker process does next, and the workers claim
//! items through `Claims` in shared memory.

mod claims;
mod devices;
mod hosts;
mod parent;
mod run;

use pyo3::prelude::*;

/// The module `evener._evener`.
#[pymodule]
mod _evener {
    #[pymodule_export]
    use crate::{
        claims::Claims,
        devices::devices,
        hosts::{Connection, Host, end_with_session, slurm_hosts, ssh_host},
        parent::end_with_parent,
        run::Run,
    };
}
