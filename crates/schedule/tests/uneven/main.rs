//! Items that cost unlike amounts, on real threads and in real time: a run is never lost while a device is well, ends when
//! it is told to, and keeps every lane busy.
//!
//! Items sleep instead of computing, so that lanes can outnumber cores and a loaded machine changes little. Every test has
//! a watchdog: a run that hangs fails it.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stderr)]
#![allow(clippy::print_stdout, reason = "a child process tells its parent how far it has come")]

mod cluster;
#[path = "../common/mod.rs"]
mod common;
mod fuzz;
mod lanes;
mod lost;
mod panics;
mod pause;
mod stop;
mod support;
