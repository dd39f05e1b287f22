//! Devices that fail in the middle of proofs.
