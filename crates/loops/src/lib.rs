//! Reads Rust loops: whether their iterations are independent, and their bodies in WGSL and CUDA C.
//!
//! The attribute `#[parallel]` and the command `evener explain` are built on this crate. A loop goes through it in this order:
//! [`header`] reads what the loop runs over, [`depend`] tests whether its iterations are independent, [`lower`] gives the body
//! types, and [`emit`] writes the body in the languages of devices. A loop that cannot go on is a [`problem::Problem`]: a
//! place in the source and a sentence.

mod access;
pub mod depend;
pub mod emit;
pub mod explain;
pub mod header;
mod infer;
pub mod ir;
pub mod items;
pub mod lower;
mod poly;
pub mod problem;
pub mod split;
pub mod text;
