//! The barrier of ranks that are threads, and the lock of a rank's calls, by themselves, for loom, which tries every interleaving:
//! `RUSTFLAGS="--cfg loom" cargo test --lib --manifest-path crates/mesh/tests/loom/Cargo.toml --target-dir target/loom`;
//! and for Miri: `cargo +nightly miri test --lib --manifest-path crates/mesh/tests/loom/Cargo.toml --target-dir
//! target/miri`.
#![allow(dead_code, unreachable_pub, unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

#[path = "../../src/backend/local/barrier.rs"]
#[cfg(not(loom))]
mod barrier;
#[path = "../../src/backend/local/slots.rs"]
mod slots;
#[path = "../../src/backend/local/arrival.rs"]
mod arrival;
#[path = "../../src/backend/wait.rs"]
#[cfg(not(loom))]
mod wait;
#[path = "../../src/comm/call_lock.rs"]
mod call_lock;
