//! The work of the benchmark: each item goes through many rounds of integer arithmetic, on any device.

use std::sync::{
    Arc,
    atomic::{AtomicU32, Ordering::Relaxed},
};

use bytemuck::{Pod, Zeroable};
use evener_device::{
    Bound, Buffer, Device, DeviceId, Direction, HostBuffer, Kernel, Kind, Program, Result, Stream,
};
use evener_schedule::{Chunk, Results, Task};

const WORKGROUP: u32 = 128;

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Params {
    count: u32,
    rounds: u32,
    /// How often everything is done: more than once makes a device slower.
    times: u32,
    padding: u32,
}

/// So many rounds an item, the first `half` of which cannot be skipped.
#[derive(Clone)]
pub(crate) struct Churn {
    name: String,
    rounds: u32,
    /// A device that is made slower while a run goes on, and how often it does everything.
    pub(crate) slowed: Arc<(DeviceId, AtomicU32)>,
}

impl Churn {
    pub(crate) fn new(name: &str, rounds: u32, slowed: &DeviceId) -> Self {
        Churn { name: name.into(), rounds, slowed: Arc::new((slowed.clone(), AtomicU32::new(1))) }
    }

    pub(crate) fn slow_down(&self, times: u32) {
        self.slowed.1.store(times, Relaxed);
    }

    fn times_on(&self, device: &DeviceId) -> u32 {
        if *device == self.slowed.0 { self.slowed.1.load(Relaxed) } else { 1 }
    }
}

/// What becomes of an item.
pub(crate) fn churned(item: u32, rounds: u32) -> u32 {
    (0..rounds).fold(item, |value, _| round(value))
}

fn round(value: u32) -> u32 {
    let value = value.wrapping_mul(0x9E37_79B1).wrapping_add(0x7F4A_7C15);
    value ^ (value >> 15)
}

/// The same for many, in blocks that fill the processor's vector registers.
fn churn_on_cores(chunk: &Chunk<'_, u32>, items: &[u32], rounds: u32, results: &mut Results<'_, u32>) {
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

fn kernel() -> Kernel {
    Kernel::new("churn")
        .reads::<u32>()
        .writes::<u32>()
        .params::<Params>()
        .workgroup(WORKGROUP)
        .cuda(
            r#"
struct Params { unsigned count, rounds, times, padding; };
extern "C" __global__ void churn(const unsigned *in, unsigned *out, Params p) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= p.count) return;
    unsigned value = 0;
    for (unsigned time = p.times; time-- > 0;) {
        // The last time it is the item itself; what came before is used, so that it has to be computed.
        value = in[i] ^ (time == 0 ? 0 : value | 1);
        for (unsigned round = 0; round < p.rounds; round++) {
            value = value * 0x9E3779B1u + 0x7F4A7C15u;
            value ^= value >> 15;
        }
        if (time != 0 && value == 0x12345678u) out[i] = time;
    }
    out[i] = value;
}"#,
        )
        .wgsl(
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
        )
}

/// A hand of a lane.
pub(crate) enum Hand {
    Cores(DeviceId),
    Gpu(Box<Gpu>),
}

/// A stream of a GPU, and room on both sides.
pub(crate) struct Gpu {
    device: Device,
    program: Program,
    stream: Stream,
    most: usize,
    room: Option<Room>,
}

struct Room {
    items: usize,
    input: Buffer<u32>,
    output: Buffer<u32>,
    up: HostBuffer<u32>,
    down: HostBuffer<u32>,
    bound: Bound,
}

impl Gpu {
    fn room(&mut self, items: usize) -> Result<Room> {
        if let Some(room) = self.room.take().filter(|room| room.items >= items) {
            return Ok(room);
        }
        let items = items.next_power_of_two().max(1024);
        let (input, output) = (self.device.buffer_any(items)?, self.device.buffer_any(items)?);
        Ok(Room {
            items,
            bound: self.program.bind(&[Buffer::<u32>::arg(&input), Buffer::<u32>::arg(&output)])?,
            input,
            output,
            up: self.device.host_buffer(items, Direction::Upload)?,
            down: self.device.host_buffer(items, Direction::Download)?,
        })
    }

    fn run<'s>(
        &'s mut self,
        chunk: &Chunk<'_, u32>,
        params: Params,
        results: &mut Results<'s, u32>,
    ) -> Result<()> {
        let count = chunk.len();
        let mut room = self.room(count)?;
        chunk.read(|items| room.up.as_mut_slice()[..count].copy_from_slice(items))?;
        let up = self.stream.upload_first(room.up, count, &room.input)?;
        self.stream.launch(&room.bound, (count as u32).div_ceil(WORKGROUP), &params)?;
        let down = self.stream.download_host(&room.output.slice(..count)?, room.down)?;
        room.down = down.wait()?;
        room.up = up.wait()?;
        results.lend(&self.room.insert(room).down.as_slice()[..count]);
        Ok(())
    }
}

impl Task for Churn {
    type Input = u32;
    type Output = u32;
    type State = Hand;

    fn name(&self) -> &str {
        &self.name
    }

    fn can_use(&self, _: &Device) -> bool {
        true
    }

    fn may_hang(&self, device: &Device) -> bool {
        device.describe().kind != Kind::Cpu
    }

    fn prepare(&self, device: &Device) -> Result<Hand> {
        if device.describe().kind == Kind::Cpu {
            return Ok(Hand::Cores(device.id().clone()));
        }
        let most = device.capabilities()?.max_groups[0] as usize * WORKGROUP as usize;
        let (program, stream) = (device.compile(&kernel())?, device.stream()?);
        Ok(Hand::Gpu(Box::new(Gpu { device: device.clone(), program, stream, most, room: None })))
    }

    fn most_items(&self, hand: &Hand) -> u64 {
        match hand {
            Hand::Cores(_) => u64::MAX,
            Hand::Gpu(gpu) => gpu.most.min(1 << 22) as u64,
        }
    }

    fn run<'s>(
        &self,
        hand: &'s mut Hand,
        chunk: &Chunk<'_, u32>,
        results: &mut Results<'s, u32>,
    ) -> Result<()> {
        match hand {
            Hand::Cores(device) => chunk.read(|items| {
                for _ in 1..self.times_on(device) {
                    let again: Vec<u32> = items.iter().map(|&item| churned(item, self.rounds)).collect();
                    std::hint::black_box(&again);
                }
                churn_on_cores(chunk, items, self.rounds, results);
            }),
            Hand::Gpu(gpu) => {
                let times = self.times_on(gpu.device.id());
                let params = Params { count: chunk.len() as u32, rounds: self.rounds, times, padding: 0 };
                gpu.run(chunk, params, results)
            }
        }
    }

    fn check(&self, items: &[u32], results: &[u32]) -> Result<(), String> {
        // One of each chunk, in full.
        match (items.first(), results.first()) {
            (Some(&item), Some(&result)) if churned(item, self.rounds) != result => {
                Err(format!("{item} became {result}"))
            }
            _ => Ok(()),
        }
    }
}
