//! The cost of Evener's layer: the same operations through Evener and through `cudarc` or `wgpu` directly, alternating in
//! one run; and the overlap of copies with compute.
//!
//! `cargo bench -p evener-device` runs it for every GPU of the machine, also for software ones (whose figures show the
//! cost of the layer only, not speed). `-- cuda:0` limits it to a device.
#![allow(unsafe_code, missing_docs, clippy::print_stdout)]

mod cuda;
mod evener;
mod overlap;
mod wgpu;

use std::{
    error::Error,
    time::{Duration, Instant},
};

use evener_device::{Api, Device, DeviceKind, Inventory};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// The operations that are compared.
trait Peer {
    fn name(&self) -> String;
    /// Launches an empty kernel and waits for it.
    fn launch_and_wait(&mut self) -> Result<()>;
    /// Launches an empty kernel `times` times, then waits once.
    fn launch_many(&mut self, times: u32) -> Result<()>;
    /// Copies [`COPY_BYTES`] to the device and waits. On wgpu, host memory is written first: it may be in device memory,
    /// so that the write crosses the bus.
    fn upload(&mut self) -> Result<()>;
    /// Copies [`COPY_BYTES`] from the device and waits.
    fn download(&mut self) -> Result<()>;
    /// Runs the integer-multiply kernel and waits.
    fn multiply(&mut self, iterations: u32) -> Result<()>;
}

const COPY_BYTES: usize = 64 << 20;
const GROUPS: u32 = 8192;
const WORKGROUP: u32 = 256;
const CHAINS: u32 = 8;
const ADDEND: u32 = 0x9E37_79B9;
const CUDA_SOURCE: &str = include_str!("../../src/measure/rates.cu");
const WGSL_SOURCE: &str = include_str!("../../src/measure/rates.wgsl");

#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
struct Params {
    iterations: u32,
    addend: u32,
}

fn main() -> Result<()> {
    // Cargo passes `--bench`; other arguments are the devices to run on.
    let wanted: Vec<String> = std::env::args().skip(1).filter(|it| !it.starts_with("--")).collect();
    let inventory = Inventory::discover_all_apis();
    print_machine(&inventory);
    let mut compared = 0;
    for device in inventory.devices() {
        if !wanted.is_empty() && !wanted.iter().any(|id| id == device.id().as_str()) {
            continue;
        }
        let description = device.describe();
        let direct: Box<dyn Peer> = match description.api {
            Api::Cuda => Box::new(cuda::Direct::new(description)?),
            Api::Cpu => continue,
            _ => Box::new(wgpu::Direct::new(description)?),
        };
        compare(device, direct)?;
        overlap::run(device)?;
        compared += 1;
    }
    if compared == 0 {
        println!("skipped: no GPU to compare on");
    }
    Ok(())
}

fn print_machine(inventory: &Inventory) {
    for device in inventory.devices() {
        let it = device.describe();
        println!("{:10} {} ({}, {})", it.id, it.name, it.kind, it.driver);
    }
    for absent in inventory.absent() {
        println!("{absent}");
    }
}

fn compare(device: &Device, mut direct: Box<dyn Peer>) -> Result<()> {
    let mut evener = evener::Evener::new(device)?;
    println!("\n{}: Evener against {}, lower quartiles of alternating rounds", device.id(), direct.name());
    println!("{:34} {:>14} {:>14} {:>8}", "", "Evener", "direct", "ratio");
    let microseconds = |time: f64| format!("{:.2} µs", time * 1e6);
    let rate =
        |unit: &'static str, amount: f64| move |time: f64| format!("{:.2} {unit}", amount / time / 1e9);

    row("launch and wait", &mut evener, &mut *direct, 400, |peer| peer.launch_and_wait(), microseconds)?;
    let many = |peer: &mut dyn Peer| peer.launch_many(1000);
    // A few milliseconds each, and sensitive to interference; software takes a hundred times as long.
    let rounds = if device.describe().kind == DeviceKind::Software { 20 } else { 200 };
    row("launch, of a thousand queued", &mut evener, &mut *direct, rounds, many, |time| {
        microseconds(time / 1e3)
    })?;
    let bandwidth = rate("GB/s", COPY_BYTES as f64);
    row("host to device", &mut evener, &mut *direct, 60, |peer| peer.upload(), bandwidth)?;
    row("device to host", &mut evener, &mut *direct, 60, |peer| peer.download(), bandwidth)?;
    // Long enough that the launch does not matter, on any device.
    let mut iterations = 16;
    loop {
        let start = Instant::now();
        direct.multiply(iterations)?;
        if start.elapsed() > Duration::from_millis(20) || iterations >= 1 << 15 {
            break;
        }
        iterations *= 2;
    }
    let multiplies = f64::from(GROUPS * WORKGROUP) * f64::from(CHAINS) * f64::from(iterations);
    row(
        "int32 multiplies",
        &mut evener,
        &mut *direct,
        10,
        |peer| peer.multiply(iterations),
        rate("G/s", multiplies),
    )
}

/// Times both alternately, so that interference affects both, and prints a row. The lower quartile is reported, because
/// interference only adds time. The ratio is of times: above 1, Evener is slower.
fn row(
    what: &str,
    evener: &mut dyn Peer,
    direct: &mut dyn Peer,
    rounds: usize,
    mut work: impl FnMut(&mut dyn Peer) -> Result<()>,
    show: impl Fn(f64) -> String,
) -> Result<()> {
    let mut times = [Vec::new(), Vec::new()];
    for round in 0..rounds + rounds / 4 {
        let order = if round % 2 == 0 { [0, 1] } else { [1, 0] };
        for which in order {
            let start = Instant::now();
            if which == 0 {
                work(evener)?
            } else {
                work(direct)?
            }
            // The first quarter warms up.
            if round >= rounds / 4 {
                times[which].push(start.elapsed());
            }
        }
    }
    let [evener, direct] = times.map(|mut times| {
        times.sort_unstable();
        times[times.len() / 4].as_secs_f64()
    });
    println!("{what:34} {:>14} {:>14} {:>8.3}", show(evener), show(direct), evener / direct);
    Ok(())
}
