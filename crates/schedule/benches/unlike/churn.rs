//! The benchmark's work: each item goes through many rounds of integer arithmetic, on any device.

use std::sync::{
    Arc,
    atomic::{AtomicU32, Ordering::Relaxed},
};

use bytemuck::{Pod, Zeroable};
use evener_device::{Device, DeviceId, DeviceKind, Kernel, Result};
use evener_schedule::{Chunk, KernelState, KernelTask, Results, Task};

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Params {
    count: u32,
    rounds: u32,
    /// How many times the work is repeated: more than once makes a device slower.
    times: u32,
    padding: u32,
}

/// A task of so many rounds per item.
#[derive(Clone)]
pub(crate) struct Churn {
    name: String,
    rounds: u32,
    on_gpus: KernelTask<u32, u32, Params>,
    /// How many times the slowed device repeats the work.
    times: Arc<AtomicU32>,
}

impl Churn {
    /// A task on which one GPU can be slowed down.
    pub(crate) fn new(name: &str, rounds: u32, slowed: &DeviceId) -> Self {
        let (times, slowed) = (Arc::new(AtomicU32::new(1)), slowed.clone());
        let read = times.clone();
        let on_gpus = KernelTask::with_params(&kernel(), move |device, items| {
            let times = if *device == slowed { read.load(Relaxed) } else { 1 };
            Params { count: (items.end - items.start) as u32, rounds, times, padding: 0 }
        });
        Churn { name: name.into(), rounds, on_gpus, times }
    }

    /// Sets how many times that GPU repeats the work.
    pub(crate) fn slow_down(&self, times: u32) {
        self.times.store(times, Relaxed);
    }
}

/// The result of an item.
pub(crate) fn churned(item: u32, rounds: u32) -> u32 {
    (0..rounds).fold(item, |value, _| round(value))
}

fn round(value: u32) -> u32 {
    let value = value.wrapping_mul(0x9E37_79B1).wrapping_add(0x7F4A_7C15);
    value ^ (value >> 15)
}

/// The same for many, in blocks that fill the processor's vector registers.
fn churn_on_a_core(chunk: &Chunk<'_, u32>, items: &[u32], rounds: u32, results: &mut Results<'_, u32>) {
    const BLOCK: usize = 32;
    for block in items.chunks(BLOCK) {
        if chunk.is_over() {
            return;
        }
        let mut values = [0; BLOCK];
        values[..block.len()].copy_from_slice(block);
        for _ in 0..rounds {
            values.iter_mut().for_each(|value| *value = round(*value));
        }
        results.extend_from_slice(&values[..block.len()]);
    }
}

const CUDA: &str = r#"
struct Params { unsigned count, rounds, times, padding; };
extern "C" __global__ void churn(const unsigned *in, unsigned *out, Params p) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= p.count) return;
    unsigned value = 0;
    for (unsigned time = p.times; time-- > 0;) {
        // Only the last repetition starts from the item itself; the earlier results are used, so that they are
        // computed.
        value = in[i] ^ (time == 0 ? 0 : value | 1);
        for (unsigned round = 0; round < p.rounds; round++) {
            value = value * 0x9E3779B1u + 0x7F4A7C15u;
            value ^= value >> 15;
        }
        if (time != 0 && value == 0x12345678u) out[i] = time;
    }
    out[i] = value;
}"#;

#[allow(unsafe_code)]
fn kernel() -> Kernel {
    let kernel = Kernel::new("churn").reads::<u32>().writes::<u32>().params::<Params>().workgroup(128).wgsl(
        r#"
struct Params { count: u32, rounds: u32, times: u32, padding: u32 }
var<immediate> p: Params;
@group(0) @binding(0) var<storage, read> in: array<u32>;
@group(0) @binding(1) var<storage, read_write> out: array<u32>;
@compute @workgroup_size(128)
fn churn(@builtin(global_invocation_id) id: vec3<u32>) {
    if (id.x >= p.count) { return; }
    var value = 0u;
    for (var time = p.times; time > 0u; time -= 1u) {
        value = in[id.x] ^ select(value | 1u, 0u, time == 1u);
        for (var round = 0u; round < p.rounds; round++) {
            value = value * 0x9E3779B1u + 0x7F4A7C15u;
            value ^= value >> 15u;
        }
        if (time != 1u && value == 0x12345678u) { out[id.x] = time; }
    }
    out[id.x] = value;
}"#,
    );
    // SAFETY: threads past `count` do nothing, and both buffers have as many items.
    unsafe { kernel.cuda(CUDA) }
}

impl Task for Churn {
    type Input = u32;
    type Output = u32;
    /// The state of the kernel; `None` on a core.
    type State = Option<KernelState<u32, u32>>;

    fn name(&self) -> &str {
        &self.name
    }

    fn can_use(&self, _: &Device) -> bool {
        true
    }

    fn may_hang(&self, device: &Device) -> bool {
        device.describe().kind != DeviceKind::Cpu
    }

    fn prepare(&self, device: &Device) -> Result<Self::State> {
        match device.describe().kind {
            DeviceKind::Cpu => Ok(None),
            _ => self.on_gpus.prepare(device).map(Some),
        }
    }

    fn max_items(&self, state: &Self::State) -> u64 {
        state.as_ref().map_or(u64::MAX, |state| self.on_gpus.max_items(state))
    }

    fn run<'s>(
        &self,
        state: &'s mut Self::State,
        chunk: &Chunk<'_, u32>,
        results: &mut Results<'s, u32>,
    ) -> Result<()> {
        match state {
            None => chunk.read(|items| churn_on_a_core(chunk, items, self.rounds, results)),
            Some(state) => self.on_gpus.run(state, chunk, results),
        }
    }

    fn check(&self, items: &[u32], results: &[u32]) -> Result<(), String> {
        // Checks one item of each chunk.
        match (items.first(), results.first()) {
            (Some(&item), Some(&result)) if churned(item, self.rounds) != result => {
                Err(format!("{item} became {result}"))
            }
            _ => Ok(()),
        }
    }
}
