//! A GPU and the processor together, against the better of the two.

use std::time::{Duration, Instant};

use evener_device::Device;
use evener_merkle::{Builder, Leaves};
use evener_schedule::Pool;

use crate::{card::pinned, milliseconds, turns};

pub(crate) fn bench(device: &Device, most: usize) {
    let cpu = Device::cpu();
    println!("\n{} and {} together, the root, from pinned memory:", device.id(), cpu.id());
    let host = pinned(device, most);
    let pool = |devices: &[&Device]| Pool::new(devices.iter().copied()).unwrap();
    let builder = |pool: &Pool| Builder::new(pool).keep_history_at(None);
    let (alone, cores, both) = (pool(&[device]), pool(&[&cpu]), pool(&[device, &cpu]));
    let (alone, cores, both) = (builder(&alone), builder(&cores), builder(&both));
    let mut worst: f64 = 0.0;
    let sizes = (0..=most.ilog2()).map(|log| 1 << log).chain([1000, 10_000, 100_000, 1_000_000]);
    let mut sizes: Vec<usize> = sizes.filter(|&size| size <= most).collect();
    sizes.sort_unstable();
    for leaves in sizes {
        let part = host.slice(0..32 * leaves).unwrap();
        let input = Leaves::shared(&part, 32).unwrap();
        // It learns from what it does: a while, until it has nothing more to try.
        let start = Instant::now();
        for run in 0..2000 {
            if run >= 64 && start.elapsed() > Duration::from_millis(500) {
                break;
            }
            drop(both.root(&input).unwrap());
        }
        let rounds = (20_000_000 / leaves).clamp(24, 1000);
        let [gpu, cpu, together] = turns(
            rounds,
            [
                &mut || drop(alone.root(&input).unwrap()),
                &mut || drop(cores.root(&input).unwrap()),
                &mut || drop(both.root(&input).unwrap()),
            ],
        );
        let ratio = milliseconds(together) / milliseconds(gpu.min(cpu));
        worst = worst.max(ratio);
        println!(
            "  {leaves:>9} leaves: alone {:>9.4} ms, cores {:>9.4} ms, together {:>9.4} ms: {ratio:.3} times the better",
            milliseconds(gpu),
            milliseconds(cpu),
            milliseconds(together),
        );
    }
    println!("  at worst {worst:.3} times the better of the two");
}
