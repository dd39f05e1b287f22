//! A kernel that puts every item through many rounds of integer arithmetic, in CUDA C, in WGSL and in Rust.

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

/// What the kernel does to an item, as plain Rust.
pub(crate) fn churn(item: u32) -> u32 {
    (0..ROUNDS).fold(item, |value, _| {
        let value = value.wrapping_mul(0x9E37_79B1).wrapping_add(0x7F4A_7C15);
        value ^ (value >> 15)
    })
}

/// The kernel, with a body for every device.
pub(crate) fn kernel() -> Kernel {
    let kernel = Kernel::new("churn")
        .reads::<u32>()
        .writes::<u32>()
        .params::<KernelParams>()
        .workgroup(64)
        .wgsl(WGSL)
        .rust(|launch| {
            let count = launch.params::<KernelParams>()?.count as usize;
            let (input, output) = (launch.read::<u32>(0)?, launch.write::<u32>(1)?);
            output[..count].iter_mut().zip(input).for_each(|(out, &item)| *out = churn(item));
            Ok(())
        });
    // SAFETY: a thread that is past `count`, the number of items in both buffers, does nothing.
    unsafe { kernel.cuda(CUDA) }
}
