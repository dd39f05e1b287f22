//! Every fault at every operation of a run, on every device: the run returns every result, or an error that the faults
//! explain, and it ends.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stderr)]

#[path = "../common/mod.rs"]
mod common;
mod matrix;
mod soak;
