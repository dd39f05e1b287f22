//! One load, shared by every device of this machine: `cargo run --release -p evener --example share [-- ITEMS]`.
//!
//! Each item goes through many rounds of integer arithmetic, in CUDA C, in WGSL or in Rust. The result is the same
//! whoever did what, and is checked against a plain loop.
#![allow(clippy::print_stdout, clippy::print_stderr, unsafe_code)]

use evener::{KernelParams, prelude::*};

const ROUNDS: u32 = 2000;

const CUDA: &str = r#"
struct Params { unsigned first[2]; unsigned count, padding; };
extern "C" __global__ void churn(const unsigned *in, unsigned *out, Params p) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= p.count) return;
    unsigned value = in[i];
    for (unsigned round = 0; round < 2000; round++) {
        value = value * 0x9E3779B1u + 0x7F4A7C15u;
        value ^= value >> 15;
    }
    out[i] = value;
}"#;

const WGSL: &str = r#"
struct Params { first_low: u32, first_high: u32, count: u32, padding: u32 }
var<immediate> p: Params;
@group(0) @binding(0) var<storage, read> in: array<u32>;
@group(0) @binding(1) var<storage, read_write> out: array<u32>;
@compute @workgroup_size(64)
fn churn(@builtin(global_invocation_id) id: vec3<u32>) {
    if (id.x >= p.count) { return; }
    var value = in[id.x];
    for (var round = 0u; round < 2000u; round++) {
        value = value * 0x9E3779B1u + 0x7F4A7C15u;
        value ^= value >> 15u;
    }
    out[id.x] = value;
}"#;

fn churn(item: u32) -> u32 {
    (0..ROUNDS).fold(item, |value, _| {
        let value = value.wrapping_mul(0x9E37_79B1).wrapping_add(0x7F4A_7C15);
        value ^ (value >> 15)
    })
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let count: u32 = std::env::args().nth(1).map_or(Ok(2_000_000), |count| count.parse())?;
    let kernel = Kernel::new("churn")
        .reads::<u32>()
        .writes::<u32>()
        .params::<KernelParams>()
        .workgroup(64)
        .wgsl(WGSL)
        .rust(|launch| {
            let count = launch.params::<KernelParams>()?.count as usize;
            let (input, output) = (launch.read::<u32>(0)?, launch.write::<u32>(1)?);
            for (out, &item) in output[..count].iter_mut().zip(input) {
                *out = churn(item);
            }
            Ok(())
        });
    // SAFETY: a thread that is past `count`, the number of items in both buffers, does nothing.
    let kernel = unsafe { kernel.cuda(CUDA) };
    let items: Vec<u32> = (0..count).collect();
    let job = Pool::all()?.job(&KernelTask::<u32, u32>::new(&kernel)).progress_bar();
    let run = job.map(&items)?;
    println!("{}", run.report());
    let right = items.iter().zip(run.results()).step_by(997).all(|(&item, &result)| churn(item) == result);
    println!(
        "{}",
        if right { "every 997th result was checked against a plain loop: all are right" } else { "WRONG" }
    );
    if right { Ok(()) } else { Err("wrong results".into()) }
}
