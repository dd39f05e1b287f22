//! How fast trees are built, against peers in the same run: `cargo bench -p evener-merkle [-- processor|card|together|unpinned]`.
//!
//! Without a GPU: a million leaves on the processor's cores, against rayon with `sha2`, `sha2` on one thread, and
//! `rs_merkle`. Where `EVENER_DEVICES` names a GPU, or there is one: leaves in pinned memory against the copy alone, leaves
//! on the device against the bare hash kernel, the GPU and the processor together against the better of the two, and
//! leaves in a plain `Vec` against pinned memory (`unpinned`, on all devices that `EVENER_DEVICES` names).
//! `EVENER_BENCH_LOG2` sets the largest number of leaves for that, as a power of two: 24 where it is not set.
#![allow(missing_docs, clippy::print_stdout, clippy::unwrap_used)]

mod card;
mod processor;
mod together;
mod unpinned;

use std::time::{Duration, Instant};

use evener_device::{DeviceKind, Inventory};

/// Times several closures in turn and returns the lower quartile of each: disturbances only make times longer.
fn turns<const N: usize>(rounds: usize, ways: [&mut dyn FnMut(); N]) -> [Duration; N] {
    let mut times: [Vec<Duration>; N] = std::array::from_fn(|_| Vec::new());
    for round in 0..rounds + rounds.div_ceil(4) {
        for which in 0..N {
            let which = (which + round) % N;
            let start = Instant::now();
            ways[which]();
            if round >= rounds.div_ceil(4) {
                times[which].push(start.elapsed());
            }
        }
    }
    times.map(quartile)
}

/// Returns the lower quartile.
fn quartile(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 4]
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// Returns the same pseudo-random leaves every time.
fn noise(bytes: usize) -> Vec<u8> {
    let mut noise = vec![0; bytes];
    fill(&mut noise);
    noise
}

fn fill(bytes: &mut [u8]) {
    let mut state = 0x9E37_79B9_7F4A_7C15u64;
    for eight in bytes.chunks_mut(8) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        eight.copy_from_slice(&state.to_le_bytes()[..eight.len()]);
    }
}

fn main() {
    let parts: Vec<String> = std::env::args().skip(1).filter(|it| !it.starts_with("--")).collect();
    let wants = |part: &str| parts.is_empty() || parts.iter().any(|it| it == part);
    if wants("processor") {
        processor::bench();
    }
    if !wants("card") && !wants("together") && !wants("unpinned") {
        return;
    }
    let devices = Inventory::discover().select_or_default(None).unwrap();
    let largest: u32 =
        std::env::var("EVENER_BENCH_LOG2").ok().and_then(|text| text.parse().ok()).unwrap_or(24);
    match devices.iter().find(|device| device.describe().kind != DeviceKind::Cpu) {
        None => println!("\nskipped: leaves on a GPU (no GPU is here, or none is named in EVENER_DEVICES)"),
        Some(gpu) => {
            if wants("card") {
                card::bench(gpu, 1 << largest);
            }
            if wants("together") {
                together::bench(gpu, 1 << largest);
            }
            if wants("unpinned") {
                unpinned::bench(gpu, &devices, 1 << largest);
            }
        }
    }
}
