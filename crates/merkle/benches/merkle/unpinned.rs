//! Measures leaves in pageable memory against the same leaves in pinned memory.

use std::time::{Duration, Instant};

use evener_device::{Device, Direction, copy_with};
use evener_merkle::{Builder, Leaves};
use evener_schedule::Pool;

use crate::{card::pinned, milliseconds, noise, turns};

/// Measures all of the devices, one of which is the GPU that owns the pinned memory.
pub(crate) fn bench(gpu: &Device, devices: &[Device], leaves: usize) {
    let names: Vec<String> = devices.iter().map(|device| device.id().to_string()).collect();
    println!("\n{}: {leaves} leaves of 32 bytes, SHA-256, the root:", names.join(","));
    let bytes = noise(32 * leaves);
    threads(gpu, &bytes);
    let pool = Pool::builder().devices(devices).keep_history_at(None).build().unwrap();
    let builder = Builder::new(&pool);
    let plain = Leaves::fixed_size(&bytes, 32).unwrap();
    let host = pinned(gpu, leaves);
    assert!(host.as_slice() == bytes, "the same leaves");
    let shared = Leaves::shared_buffer(&host, 32).unwrap();
    let root = Builder::new(&Pool::builder().devices([Device::cpu()]).keep_history_at(None).build().unwrap())
        .root(&plain);
    let root = root.unwrap().into_value();
    let [from_pinned, from_plain] = turns(
        24,
        [&mut || assert_eq!(*builder.root(&shared).unwrap().value(), root), &mut || {
            assert_eq!(*builder.root(&plain).unwrap().value(), root)
        }],
    );
    println!(
        "  from pinned memory {:.2} ms, from a plain Vec {:.2} ms ({:.1} GB/s): {:.3} times that",
        milliseconds(from_pinned),
        milliseconds(from_plain),
        bytes.len() as f64 / from_plain.as_secs_f64() / 1e9,
        milliseconds(from_plain) / milliseconds(from_pinned),
    );
    if let Some(report) = builder.root(&plain).unwrap().report() {
        println!("{report}");
    }
}

/// Prints the rate of writing to a device's host memory, by the number of threads.
fn threads(device: &Device, bytes: &[u8]) {
    let part = &bytes[..bytes.len().min(64 << 20)];
    let mut host = device.host_buffer::<u8>(part.len(), Direction::Upload).unwrap();
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let mut counts: Vec<usize> = (0..).map(|log| 1 << log).take_while(|&count| count < cores).collect();
    counts.push(cores);
    let rates = counts.into_iter().map(|count| {
        let best = (0..8).map(|_| {
            let start = Instant::now();
            copy_with(count, part, host.as_mut_slice());
            start.elapsed()
        });
        let best = best.min().unwrap_or(Duration::MAX);
        format!("{count} threads {:.1} GB/s", part.len() as f64 / best.as_secs_f64() / 1e9)
    });
    let rates = rates.collect::<Vec<_>>().join(", ");
    println!("  writing host memory of {}: {rates}", device.id());
}
