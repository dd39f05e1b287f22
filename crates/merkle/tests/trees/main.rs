//! Roots, trees and proofs, against other implementations and published vectors, on every device and every mix.

mod build;
mod devices;
mod proofs;
mod published;
mod reference;
