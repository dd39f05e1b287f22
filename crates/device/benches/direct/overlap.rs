//! The overlap of copies with compute: the time of a pipeline of chunks, compared with that of its copies and its
//! kernels.

use std::time::{Duration, Instant};

use evener_device::{BoundKernel, Buffer, Device, DeviceKind, Direction, HostBuffer, Stream, Transfer};

use crate::{Params, Result, WORKGROUP, evener::kernel};

const CHUNKS: usize = 16;

/// Number of chunks in flight: one is uploaded, one computes, one is downloaded, and the host handles one.
const LANES: usize = 4;

/// A lane of the pipeline: its stream, buffers and kernel.
struct Lane {
    stream: Stream,
    buffer: Buffer<u32>,
    bound: BoundKernel,
    up: Option<HostBuffer<u32>>,
    down: Option<HostBuffer<u32>>,
    in_flight: Option<(Transfer<u32>, Transfer<u32>)>,
}

impl Lane {
    /// Waits for the chunk in flight, if there is one, and takes its host memory back.
    fn finish(&mut self) -> Result<()> {
        if let Some((up, down)) = self.in_flight.take() {
            self.up = Some(up.wait()?);
            self.down = Some(down.wait()?);
        }
        Ok(())
    }
}

#[allow(unsafe_code)]
pub(crate) fn run(device: &Device) -> Result<()> {
    let hardware = device.describe().kind != DeviceKind::Software;
    let words: usize = if hardware { 16 << 20 } else { 1 << 20 };
    let groups = 4096.min(words as u32 / WORKGROUP);
    // SAFETY: the buffers have `words` elements, and a launch has no more threads.
    let kernel = unsafe { kernel("int32_multiply") };
    let program = device.compile(&kernel.writes::<u32>().params::<Params>())?;
    let mut lanes = Vec::new();
    for _ in 0..LANES {
        let buffer = device.buffer::<u32>(words)?;
        lanes.push(Lane {
            stream: device.stream()?,
            bound: program.bind(&[buffer.arg()])?,
            buffer,
            up: Some(device.host_buffer(words, Direction::Upload)?),
            down: Some(device.host_buffer(words, Direction::Download)?),
            in_flight: None,
        });
    }
    // The kernel is made to take about as long as a chunk's copies in both directions: the hardest case.
    let copies = best(|| copy_sum(&mut lanes))?;
    let mut iterations = 64;
    while compute_sum(&mut lanes, groups, iterations)? < copies && iterations < 1 << 15 {
        iterations = iterations * 5 / 4;
    }
    let compute = best(|| compute_sum(&mut lanes, groups, iterations))?;
    let pipeline = best(|| pipeline(&mut lanes, groups, iterations))?;
    let longer = copies.max(compute);
    println!(
        "{:34} {CHUNKS} chunks of {} MiB up and down: copies {copies:.2?}, compute {compute:.2?}, together {pipeline:.2?}: {:.3} times the longer",
        "copies behind compute",
        words >> 18,
        pipeline.as_secs_f64() / longer.as_secs_f64()
    );
    Ok(())
}

fn best(mut work: impl FnMut() -> Result<Duration>) -> Result<Duration> {
    work()?; // warms up
    let mut best = work()?;
    for _ in 0..4 {
        best = best.min(work()?);
    }
    Ok(best)
}

/// All copies one after the other, without kernels.
fn copy_sum(lanes: &mut [Lane]) -> Result<Duration> {
    let start = Instant::now();
    for chunk in 0..CHUNKS {
        let lane = &mut lanes[chunk % LANES];
        if let Some(up) = lane.up.take() {
            lane.up = Some(lane.stream.upload_host(up, &lane.buffer)?.wait()?);
        }
        if let Some(down) = lane.down.take() {
            lane.down = Some(lane.stream.download_host(&lane.buffer, down)?.wait()?);
        }
    }
    Ok(start.elapsed())
}

/// All kernels one after the other, without copies.
fn compute_sum(lanes: &mut [Lane], groups: u32, iterations: u32) -> Result<Duration> {
    let Some(lane) = lanes.first_mut() else { return Ok(Duration::ZERO) };
    let start = Instant::now();
    for _ in 0..CHUNKS {
        lane.stream.launch(&lane.bound, groups, &Params { iterations, addend: 1 })?;
    }
    lane.stream.wait()?;
    Ok(start.elapsed())
}

/// Copies and kernels, with the chunks spread over the lanes.
fn pipeline(lanes: &mut [Lane], groups: u32, iterations: u32) -> Result<Duration> {
    let start = Instant::now();
    for chunk in 0..CHUNKS {
        let lane = &mut lanes[chunk % LANES];
        lane.finish()?;
        if let (Some(up), Some(down)) = (lane.up.take(), lane.down.take()) {
            let up = lane.stream.upload_host(up, &lane.buffer)?;
            lane.stream.launch(&lane.bound, groups, &Params { iterations, addend: 1 })?;
            let down = lane.stream.download_host(&lane.buffer, down)?;
            lane.in_flight = Some((up, down));
        }
    }
    for lane in lanes {
        lane.finish()?;
    }
    Ok(start.elapsed())
}
