//! Items of different costs, on real threads and in real time: no run fails while a device works, a run ends when it is
//! stopped, and every lane stays busy.
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
mod user_code;
