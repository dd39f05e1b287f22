//! The modules whose soundness depends on the order of operations of several threads, built alone for the tools that check
//! it:
//!
//! - loom runs their tests in every interleaving of the threads: `RUSTFLAGS="--cfg loom" cargo test --lib
//!   --manifest-path crates/schedule/tests/loom/Cargo.toml --target-dir target/loom`;
//! - Miri finds undefined behaviour: `cargo +nightly miri test --lib
//!   --manifest-path crates/schedule/tests/loom/Cargo.toml --target-dir target/miri`.
#![allow(dead_code, unreachable_pub, unsafe_code, unused_imports, unused_macros)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

#[path = "../../src/task/claims.rs"]
mod claims;
#[path = "../../src/contain.rs"]
#[cfg(not(loom))]
mod contain;
#[path = "../../src/task/gate.rs"]
mod gate;
#[path = "../../src/task/lend.rs"]
#[cfg(not(loom))]
mod lend;
#[path = "../../src/task/results.rs"]
#[cfg(not(loom))]
mod results;
