//! One load, shared by every device of this machine: `cargo run --release -p evener --example share [-- ITEMS]`.
//!
//! Each item goes through many rounds of integer arithmetic, in CUDA C, in WGSL or in Rust. The result is the same
//! on every device, and is checked against a plain loop.
#![allow(clippy::print_stdout, clippy::print_stderr, unsafe_code)]

use evener::prelude::*;

#[path = "churn/mod.rs"]
mod churn;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let count: u32 = std::env::args().nth(1).map_or(Ok(2_000_000), |count| count.parse())?;
    let items: Vec<u32> = (0..count).collect();
    let job = Pool::all()?.job(&KernelTask::<u32, u32>::new(&churn::kernel())).progress_bar();
    let run = job.map(&items)?;
    println!("{}", run.report());
    let right =
        items.iter().zip(run.results()).step_by(997).all(|(&item, &result)| churn::churn(item) == result);
    println!(
        "{}",
        if right { "every 997th result was checked against a plain loop: all are right" } else { "WRONG" }
    );
    if right { Ok(()) } else { Err("wrong results".into()) }
}
