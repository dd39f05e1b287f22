//! Reads Rust loops.
#![doc(hidden)]

pub mod access;
mod infer;
pub mod depend;
pub mod emit;
pub mod header;
pub mod ir;
pub mod items;
pub mod lower;
mod poly;
pub mod problem;
pub mod split;
pub mod text;
