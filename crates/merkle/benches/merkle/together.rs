//! Measures a GPU and the CPU together against the faster of the two.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use evener_device::Device;
use evener_merkle::{Builder, Leaves};
use evener_schedule::{Pool, Report};

use crate::{card::pinned, milliseconds, quartile};

/// The number of consecutive builds of one builder: its threads and caches are cold after the other builders' turns.
const BUILDS_PER_TURN: usize = 4;
/// A builder that is slower than another by the first number gets only one turn in the second number.
const MUCH_SLOWER: (u32, usize) = (4, 16);

/// The number of times that pools, threads and buffers are created anew: their placement changes short builds by some
/// percent. All measurements count.
const FRESH_STARTS: usize = 4;

/// The measurements at one size: the times of each builder, and those of the last one by the devices that it used.
#[derive(Default, Clone)]
struct Measured {
    times: [Vec<Duration>; 3],
    used: BTreeMap<String, Vec<Duration>>,
}

pub(crate) fn bench(device: &Device, most: usize) {
    let cpu = Device::cpu();
    println!("\n{} and {} together, the root, from pinned memory, in ms:", device.id(), cpu.id());
    let host = pinned(device, most);
    let pool = |devices: &[&Device]| {
        Pool::builder().devices(devices.iter().copied()).keep_history_at(None).build().unwrap()
    };
    let builder = |devices: &[&Device]| Builder::new(&pool(devices));
    let sizes = (0..=most.ilog2()).map(|log| 1 << log).chain([1000, 10_000, 100_000, 1_000_000]);
    let mut sizes: Vec<usize> = sizes.filter(|&size| size <= most).collect();
    sizes.sort_unstable();
    let mut measured = vec![Measured::default(); sizes.len()];
    for _ in 0..FRESH_STARTS {
        let builders = [builder(&[device]), builder(&[&cpu]), builder(&[device, &cpu])];
        for (leaves, measured) in sizes.iter().zip(&mut measured) {
            let part = host.slice(0..32 * leaves).unwrap();
            measured.measure(&builders, &Leaves::shared_buffer(&part, 32).unwrap());
        }
    }
    println!("     leaves     alone     cores  together    ratio  used, how often, lower quartile");
    let mut worst: f64 = 0.0;
    for (leaves, Measured { times, used }) in sizes.into_iter().zip(measured) {
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

impl Measured {
    fn measure(&mut self, builders: &[Builder; 3], input: &Leaves<'_>) {
        let both = &builders[2];
        // The scheduler learns from runs: run until it has tried all sets of devices.
        let start = Instant::now();
        for run in 0..2000 {
            if run >= 64 && start.elapsed() > Duration::from_millis(300) {
                break;
            }
            both.root(input).unwrap();
        }
        let start = Instant::now();
        for turn in 0..250 {
            if turn >= 12 && start.elapsed() > Duration::from_millis(300) {
                break;
            }
            for which in 0..builders.len() {
                let which = (which + turn) % builders.len();
                if which < 2 && turn % MUCH_SLOWER.1 != 4 && self.is_much_slower(which) {
                    continue;
                }
                (0..BUILDS_PER_TURN).for_each(|_| self.time(&builders[which], which, input));
            }
        }
    }

    fn time(&mut self, builder: &Builder, which: usize, input: &Leaves<'_>) {
        let start = Instant::now();
        let built = builder.root(input).unwrap();
        let took = start.elapsed();
        self.times[which].push(took);
        if which == 2 {
            let ids = |report: &Report| report.devices.iter().map(|device| device.id.clone()).collect();
            let devices: Vec<String> = built.report().map_or(vec!["this thread".into()], ids);
            self.used.entry(devices.join("+")).or_default().push(took);
        }
    }

    fn is_much_slower(&self, which: usize) -> bool {
        let least = |which: usize| self.times[which].iter().min();
        least(which).zip(least(1 - which)).is_some_and(|(own, other)| *own > *other * MUCH_SLOWER.0)
    }
}
