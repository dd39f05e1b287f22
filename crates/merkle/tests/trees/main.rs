//! Roots, trees and proofs, against other implementations and published vectors, on every device and every mix.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod build;
mod devices;
mod proofs;
mod published;
mod reference;
