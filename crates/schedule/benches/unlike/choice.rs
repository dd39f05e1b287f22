//! The chosen devices compared with each device alone, at every size.

use std::{
    collections::BTreeMap,
    hash::{DefaultHasher, Hash, Hasher},
    path::Path,
    time::{Duration, Instant},
};

use evener_device::{Device, DeviceId};
use evener_schedule::{Job, Pool};

use super::{
    Result,
    churn::{Churn, churned},
};

const ROUNDS: u32 = 1 << 12;
const SIZES: [usize; 11] = [1, 3, 10, 100, 1_000, 10_000, 100_000, 300_000, 1_000_000, 3_000_000, 10_000_000];
/// Number of repetitions with new pools, threads, streams and buffers: their addresses make short runs differ by some
/// percent. If the chosen devices seem slower by more than a percent, there are more repetitions, and all measurements
/// count.
const TIMES: usize = 4;
const MAX_TIMES: usize = 12;
/// Number of runs per turn: after the others' turns, its threads and caches have to warm up first.
const RUNS_PER_TURN: usize = 4;

/// The measurements at one size: the times of the chosen devices and of each one alone, and those of the chosen ones by
/// device.
#[derive(Default, Clone)]
struct Measured {
    times: Vec<Vec<Duration>>,
    used: BTreeMap<String, Vec<Duration>>,
}

pub(crate) fn choice(devices: &[Device]) -> Result<()> {
    println!(
        "\nChoice: {ROUNDS} rounds an item; lower quartiles of alternating runs of {TIMES} to {MAX_TIMES} sets of pools, in µs"
    );
    let task = Churn::new("choice", ROUNDS, &DeviceId::from("none"));
    let history = std::env::temp_dir().join(format!("evener-choice-{}.json", std::process::id()));
    let all: Vec<u32> = (0..*SIZES.last().unwrap_or(&1) as u32).collect();
    let nothing = Measured { times: vec![Vec::new(); devices.len() + 1], ..Measured::default() };
    let mut measured = vec![nothing; SIZES.len()];
    for time in 0..MAX_TIMES {
        let jobs = contenders(devices, &task, &history)?;
        // All devices are prepared: whether preparing one is worth it is another question.
        jobs[0].calibrate(&all[..10_000])?;
        for (size, measured) in SIZES.into_iter().zip(&mut measured) {
            if time >= TIMES && measured.ratio() <= 1.01 {
                continue;
            }
            // It learns from its runs, and keeps that for the next pool.
            let learning = Duration::from_millis(if time == 0 { 1500 } else { 300 });
            let start = Instant::now();
            for run in 0..4000 {
                if run >= 64 && start.elapsed() > learning {
                    break;
                }
                jobs[0].map(&all[..size])?;
            }
            alternate(&jobs, &all[..size], measured)?;
        }
    }
    let _ = std::fs::remove_file(history);
    show(devices, measured);
    Ok(())
}

impl Measured {
    /// Lower quartiles.
    fn quartiles(&self) -> Vec<f64> {
        self.times.iter().map(|times| quartile(times)).collect()
    }

    /// Time of the chosen devices relative to the fastest one alone.
    fn ratio(&self) -> f64 {
        let quartiles = self.quartiles();
        quartiles[0] / quartiles[1..].iter().copied().fold(f64::INFINITY, f64::min)
    }
}

/// A job for all devices to choose from, and one for each alone.
fn contenders(devices: &[Device], task: &Churn, history: &Path) -> Result<Vec<Job<'static, Churn>>> {
    let mut jobs =
        vec![Pool::builder().devices(devices).keep_history_at(Some(history.into())).build()?.job(task)];
    for device in devices {
        jobs.push(Pool::builder().devices([device]).keep_history_at(None).build()?.job(task));
    }
    Ok(jobs)
}

/// Times the jobs, in turns.
fn alternate(jobs: &[Job<'static, Churn>], items: &[u32], measured: &mut Measured) -> Result<()> {
    let expected = items.last().map(|&item| churned(item, ROUNDS));
    let mut order: Vec<usize> = (0..jobs.len()).collect();
    let start = Instant::now();
    // A minimum and a maximum of turns; the first ones warm up.
    for turn in 0..500 {
        if turn >= 16 && start.elapsed() > Duration::from_millis(800) {
            break;
        }
        // In another order each time: the run before leaves traces.
        order.sort_by_cached_key(|&which| {
            let mut hasher = DefaultHasher::new();
            (turn, which).hash(&mut hasher);
            hasher.finish()
        });
        for &which in &order {
            // A far too slow device is not measured each time.
            if which > 0 && turn % 16 != 4 && is_far_slower(&measured.times, which) {
                continue;
            }
            for _ in 0..RUNS_PER_TURN {
                let begin = Instant::now();
                let run = jobs[which].map(items)?;
                let took = begin.elapsed();
                assert_eq!(run.results().last(), expected.as_ref(), "wrong results");
                if turn < 4 {
                    continue;
                }
                measured.times[which].push(took);
                if which == 0 {
                    let devices = run.report().devices.iter();
                    let names = devices.map(|device| device.id.clone()).collect::<Vec<_>>().join("+");
                    measured.used.entry(names).or_default().push(took);
                }
            }
        }
    }
    Ok(())
}

fn is_far_slower(times: &[Vec<Duration>], which: usize) -> bool {
    let least = |times: &Vec<Duration>| times.iter().min().copied();
    let best = times.iter().filter_map(least).min().unwrap_or(Duration::MAX);
    least(&times[which]).is_some_and(|least| least > best.saturating_mul(4))
}

fn quartile(times: &[Duration]) -> f64 {
    let mut times = times.to_vec();
    times.sort_unstable();
    times.get(times.len() / 4).map_or(f64::NAN, Duration::as_secs_f64)
}

fn show(devices: &[Device], measured: Vec<Measured>) {
    print!("{:>9} {:>11}", "items", "chosen");
    devices.iter().for_each(|device| print!(" {:>12}", device.id().to_string()));
    println!(" {:>8}  used, how often, lower quartile", "ratio");
    let mut worst: f64 = 0.0;
    for (size, measured) in SIZES.into_iter().zip(measured) {
        let (times, ratio) = (measured.quartiles(), measured.ratio());
        worst = worst.max(ratio);
        let mut used: Vec<_> = measured.used.into_iter().collect();
        used.sort_by_key(|(_, times)| std::cmp::Reverse(times.len()));
        let used = used
            .iter()
            .map(|(names, times)| format!("{names} {}x {:.1}", times.len(), quartile(times) * 1e6));
        let used = used.collect::<Vec<_>>().join(", ");
        print!("{size:>9}");
        times.iter().for_each(|time| print!(" {:>11.1}", time * 1e6));
        println!(" {ratio:>8.3}  {used}");
    }
    println!("worst ratio to the fastest alone: {worst:.3}");
}
