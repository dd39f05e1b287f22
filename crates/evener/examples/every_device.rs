#![allow(clippy::print_stdout, unsafe_code)]
//! Runs one kernel on every device of the machine and checks that all of them give the same result.
//!
//! `cargo run --release -p evener --example every_device`

use evener::prelude::*;

/// Number of steps of x = x * x + 1 that each number goes through.
const STEPS: u32 = 1000;
const COUNT: usize = 1 << 20;

const CUDA: &str = r#"
    extern "C" __global__ void steps(unsigned *data, unsigned steps) {
        unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
        unsigned x = data[i];
        for (unsigned step = 0; step < steps; step++) x = x * x + 1;
        data[i] = x;
    }"#;

fn steps() -> Kernel {
    let kernel = Kernel::new("steps")
        .writes::<u32>()
        .params::<u32>()
        .workgroup(256)
        .wgsl(
            r#"
            var<immediate> steps_to_go: u32;
            @group(0) @binding(0) var<storage, read_write> data: array<u32>;
            @compute @workgroup_size(256)
            fn steps(@builtin(global_invocation_id) id: vec3<u32>) {
                var x = data[id.x];
                for (var step = 0u; step < steps_to_go; step++) { x = x * x + 1u; }
                data[id.x] = x;
            }"#,
        )
        .rust(|launch| {
            let steps = launch.params::<u32>()?;
            for x in launch.write::<u32>(0)? {
                *x = (0..steps).fold(*x, |x, _| x.wrapping_mul(x).wrapping_add(1));
            }
            Ok(())
        });
    // SAFETY: `main` launches one thread for each element of the buffer, since `COUNT` is a multiple of 256.
    unsafe { kernel.cuda(CUDA) }
}

fn main() -> Result<(), Error> {
    let numbers: Vec<u32> = (0..COUNT as u32).collect();
    let kernel = steps();
    let mut first: Option<Vec<u32>> = None;
    for device in Inventory::discover().devices() {
        let program = device.compile(&kernel)?;
        let data = device.buffer_from(&numbers)?;
        let bound = program.bind(&[data.arg()])?;
        let mut stream = device.stream()?;
        let start = std::time::Instant::now();
        stream.launch(&bound, kernel.groups_for(COUNT as u64) as u32, &STEPS)?;
        stream.wait()?;
        let took = start.elapsed();
        let result = stream.download(&data)?.wait()?;
        let same = first.get_or_insert_with(|| result.clone()) == &result;
        let verdict = if same { "as the others" } else { "NOT as the others" };
        println!(
            "{:10} {:32} {:10} {took:>10.2?}  {verdict}",
            device.id(),
            device.describe().name,
            program.body()
        );
        assert!(same, "{} computed something else", device.id());
    }
    Ok(())
}
