//! The parts of the executor whose soundness rests on the order of what threads do, alone, for the tools that check it:
//!
//! - loom, in every order in which threads can take turns: `RUSTFLAGS="--cfg loom" cargo test --lib
//!   --manifest-path crates/schedule/tests/loom/Cargo.toml --target-dir target/loom`;
//! - Miri, for what is not defined: `cargo +nightly miri test --lib
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
