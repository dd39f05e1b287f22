//! A kernel with several inputs and outputs, a table and parameters, on every device of this machine:
//! `cargo run --release -p evener --example arrays [-- ITEMS]`.
//!
//! Each body of a crystal has a place and a charge. The potential and the field that a fixed set of sources causes there
//! come out as one number and one row of three. The sources are a table, which stays on the devices; the strength is a
//! parameter, which changes from run to run. All is in whole numbers, so that every device gives the same.
#![allow(clippy::print_stdout, clippy::print_stderr, unsafe_code)]

use evener::prelude::*;

const CUDA: &str = r#"
struct Params { unsigned first[2]; unsigned count, padding; int strength; int sources; };
extern "C" __global__ void field(const int *places, const int *charges, const int *sources,
                                 int *potentials, int *fields, Params p) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= p.count) return;
    int potential = 0, field[3] = {0, 0, 0};
    for (int s = 0; s < p.sources; s++) {
        int away[3], distance = 1;
        for (int d = 0; d < 3; d++) {
            away[d] = places[3 * i + d] - sources[3 * s + d];
            distance += away[d] < 0 ? -away[d] : away[d];
        }
        int pull = p.strength / distance;
        potential += pull;
        for (int d = 0; d < 3; d++) field[d] += away[d] * pull;
    }
    potentials[i] = potential * charges[i];
    for (int d = 0; d < 3; d++) fields[3 * i + d] = field[d] * charges[i];
}"#;

const WGSL: &str = r#"
struct Params { first: vec2<u32>, count: u32, padding: u32, strength: i32, sources: i32 }
var<immediate> p: Params;
@group(0) @binding(0) var<storage, read> places: array<i32>;
@group(0) @binding(1) var<storage, read> charges: array<i32>;
@group(0) @binding(2) var<storage, read> sources: array<i32>;
@group(0) @binding(3) var<storage, read_write> potentials: array<i32>;
@group(0) @binding(4) var<storage, read_write> fields: array<i32>;
@compute @workgroup_size(64)
fn field(@builtin(global_invocation_id) id: vec3<u32>) {
    let i = id.x;
    if (i >= p.count) { return; }
    let place = vec3<i32>(places[3 * i], places[3 * i + 1], places[3 * i + 2]);
    var potential = 0;
    var field = vec3<i32>(0);
    for (var s = 0; s < p.sources; s++) {
        let away = place - vec3<i32>(sources[3 * s], sources[3 * s + 1], sources[3 * s + 2]);
        let distance = abs(away);
        let pull = p.strength / (1 + distance.x + distance.y + distance.z);
        potential += pull;
        field += away * pull;
    }
    potentials[i] = potential * charges[i];
    fields[3 * i] = field.x * charges[i];
    fields[3 * i + 1] = field.y * charges[i];
    fields[3 * i + 2] = field.z * charges[i];
}"#;

/// The parameters of the kernel.
#[derive(Clone, Copy, Default, Pod, Zeroable)]
#[bytemuck(crate = "evener::bytemuck")]
#[repr(C)]
struct Params {
    chunk: KernelParams,
    strength: i32,
    sources: i32,
}

/// Returns the potential and the field of one body.
fn of_body(place: &[i32], charge: i32, sources: &[i32], strength: i32) -> (i32, [i32; 3]) {
    let (mut potential, mut field) = (0, [0; 3]);
    for source in sources.chunks_exact(3) {
        let away: [i32; 3] = std::array::from_fn(|axis| place[axis] - source[axis]);
        let pull = strength / (1 + away.iter().map(|distance| distance.abs()).sum::<i32>());
        potential += pull;
        (0..3).for_each(|axis| field[axis] += away[axis] * pull);
    }
    (potential * charge, field.map(|pull| pull * charge))
}

/// The task: two inputs, a table and two outputs, in the order of the kernel's buffers.
fn task(sources: &[i32]) -> KernelTask<(), (), Params> {
    let kernel = Kernel::new("field").workgroup(64).wgsl(WGSL).rust(|launch| {
        let Params { chunk, strength, .. } = launch.params()?;
        let (places, charges, sources) =
            (launch.read::<i32>(0)?, launch.read::<i32>(1)?, launch.read::<i32>(2)?);
        let (potentials, fields) = (launch.write::<i32>(3)?, launch.write::<i32>(4)?);
        for body in 0..chunk.count as usize {
            let row = 3 * body..3 * body + 3;
            let (potential, field) = of_body(&places[row.clone()], charges[body], sources, strength);
            potentials[body] = potential;
            fields[row].copy_from_slice(&field);
        }
        Ok(())
    });
    // SAFETY: a thread touches the rows of its own item, and reads as many sources as the table has; threads past the
    // last item do nothing.
    let kernel = unsafe { kernel.cuda(CUDA) };
    KernelTask::arrays(&kernel)
        .input_rows::<i32>(3)
        .input::<i32>()
        .table("sources", sources.to_vec())
        .output::<i32>()
        .output_rows::<i32>(3)
        .parameters(Params { sources: sources.len() as i32 / 3, ..Params::default() })
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let bodies: usize = std::env::args().nth(1).map_or(Ok(500_000), |count| count.parse())?;
    let some = |count: usize, step: usize| (0..count).map(move |number| (number * step % 2003) as i32 - 1001);
    let (places, charges): (Vec<i32>, Vec<i32>) =
        (some(3 * bodies, 37).collect(), some(bodies, 11).collect());
    let sources: Vec<i32> = some(3 * 64, 101).collect();
    let (mut potentials, mut fields) = (vec![0; bodies], vec![0; 3 * bodies]);

    let task = task(&sources);
    let job = Pool::all()?.job(&task).progress_bar();
    for strength in [1000, 2000] {
        let params = Params { strength, sources: sources.len() as i32 / 3, ..Params::default() };
        let arrays = Arrays::new().input(&places).input(&charges).output(&mut potentials).output(&mut fields);
        let report = job.parameters(params).map_arrays(arrays)?;
        println!("{report}");
        for body in (0..bodies).step_by(997) {
            let row = 3 * body..3 * body + 3;
            let (potential, field) = of_body(&places[row.clone()], charges[body], &sources, strength);
            if potentials[body] != potential || fields[row] != field {
                return Err(format!("body {body} is wrong").into());
            }
        }
        println!("strength {strength}: every 997th body was checked against a plain loop: all are right");
    }
    Ok(())
}

#[cfg(test)]
mod with_nvrtc {
    #[test]
    #[ignore = "needs NVRTC"]
    fn the_cuda_body_compiles() {
        for card in ["sm_75", "sm_90"] {
            let compiled = evener::cuda::compile_for(card, "field", super::CUDA);
            assert!(compiled.is_ok_and(|binary| !binary.is_empty()), "{card}");
        }
    }
}
