//! A GPU and the processor together, against the better of the two.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use evener_device::Device;
use evener_merkle::{Builder, Leaves};
use evener_schedule::Pool;

use crate::{card::pinned, milliseconds, quartile};

/// Each has its turn for so many builds: after the others', its threads and caches have to be woken first.
const IN_A_ROW: usize = 4;
/// Who is so many times as slow as another gets only every so many turns.
const HOPELESS: (u32, usize) = (4, 16);

/// What was measured at one size: the times of each builder, and those of the last one by the devices that it used.
struct Measured {
    times: [Vec<Duration>; 3],
    used: BTreeMap<String, Vec<Duration>>,
}

pub(crate) fn bench(device: &Device, most: usize) {
    let cpu = Device::cpu();
    println!("\n{} and {} together, the root, from pinned memory, in ms:", device.id(), cpu.id());
    let host = pinned(device, most);
    let pool = |devices: &[&Device]| Pool::new(devices.iter().copied()).unwrap();
    let builder = |pool: &Pool| Builder::new(pool).keep_history_at(None);
    let (alone, cores, both) = (pool(&[device]), pool(&[&cpu]), pool(&[device, &cpu]));
    let builders = [builder(&alone), builder(&cores), builder(&both)];
    let mut worst: f64 = 0.0;
    let sizes = (0..=most.ilog2()).map(|log| 1 << log).chain([1000, 10_000, 100_000, 1_000_000]);
    let mut sizes: Vec<usize> = sizes.filter(|&size| size <= most).collect();
    sizes.sort_unstable();
    println!("     leaves     alone     cores  together    ratio  used, how often, lower quartile");
    for leaves in sizes {
        let part = host.slice(0..32 * leaves).unwrap();
        let Measured { times, used } = measure(&builders, &Leaves::shared(&part, 32).unwrap());
        let [gpu, cpu, together] = times.map(|times| milliseconds(quartile(times)));
        let ratio = together / gpu.min(cpu);
        worst = worst.max(ratio);
        let used = used
            .into_iter()
            .map(|(names, times)| format!("{names} {}x {:.4}", times.len(), milliseconds(quartile(times))));
        let used = used.collect::<Vec<_>>().join(", ");
        println!("  {leaves:>9} {gpu:>9.4} {cpu:>9.4} {together:>9.4} {ratio:>8.3}  {used}");
    }
    println!("  at worst {worst:.3} times the better of the two");
}

fn measure(builders: &[Builder; 3], input: &Leaves<'_>) -> Measured {
    let both = &builders[2];
    // It learns from what it does: a while, until it has nothing more to try.
    let start = Instant::now();
    for run in 0..2000 {
        if run >= 64 && start.elapsed() > Duration::from_millis(500) {
            break;
        }
        both.root(input).unwrap();
    }
    let mut measured = Measured { times: Default::default(), used: BTreeMap::new() };
    let start = Instant::now();
    for turn in 0..500 {
        if turn >= 24 && start.elapsed() > Duration::from_millis(800) {
            break;
        }
        for which in 0..builders.len() {
            let which = (which + turn) % builders.len();
            if which < 2 && turn % HOPELESS.1 != 4 && measured.is_hopeless(which) {
                continue;
            }
            for _ in 0..IN_A_ROW {
                let start = Instant::now();
                let built = builders[which].root(input).unwrap();
                let took = start.elapsed();
                measured.times[which].push(took);
                if which == 2 {
                    let devices = built.report().map_or(Vec::new(), |report| {
                        report.devices.iter().map(|device| device.id.as_str()).collect()
                    });
                    let names = if devices.is_empty() { "this thread".into() } else { devices.join("+") };
                    measured.used.entry(names).or_default().push(took);
                }
            }
        }
    }
    measured
}

impl Measured {
    fn is_hopeless(&self, which: usize) -> bool {
        let least = |which: usize| self.times[which].iter().min();
        least(which).zip(least(1 - which)).is_some_and(|(own, other)| *own > *other * HOPELESS.0)
    }
}
