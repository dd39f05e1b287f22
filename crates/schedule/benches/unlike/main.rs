//! Different devices that share one load: their efficiency, the cost of choosing among them, and the cost of losing
//! one.
//!
//! `cargo bench -p evener-schedule --bench unlike [-- efficiency|adaptive|choice|kill]`, on the devices that
//! `EVENER_DEVICES` names, such as `cuda:0[16,40,76],cpu`, or on all of the machine's. `adaptive` is `efficiency` without
//! the other strategies. Where `EVENER_TRACES` names a folder, the traces of these runs are written there.
#![allow(missing_docs, clippy::print_stdout)]

mod choice;
mod churn;

use std::{error::Error, path::PathBuf, time::Duration};

use churn::{Churn, churned};
use evener_device::{Device, DeviceId, DeviceKind, Inventory, testing::Faults};
use evener_schedule::{Job, Pool, RunError, Settings, Strategy};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

fn main() -> Result<()> {
    let parts: Vec<String> = std::env::args().skip(1).filter(|it| !it.starts_with("--")).collect();
    let wants = |part: &str| parts.is_empty() || parts.iter().any(|it| it == part);
    let devices = Inventory::discover().select_or_default(None)?;
    for device in &devices {
        let it = device.describe();
        let units = it.compute_units.map_or("?".into(), |units| units.to_string());
        println!("{:12} {} ({}, {units} units, {})", it.id, it.name, it.kind, it.driver);
    }
    if wants("efficiency") {
        efficiency(&devices, &[Strategy::Proportional, Strategy::Dynamic, Strategy::Equal])?;
    } else if wants("adaptive") {
        efficiency(&devices, &[])?;
    }
    if wants("choice") {
        choice::choice(&devices)?;
    }
    if wants("kill") {
        kill(&devices)?;
    }
    Ok(())
}

/// Rounds per item: enough that copies do not count on the fastest device.
const HEAVY: u32 = 1 << 15;
/// Number of efficiency measurements.
const TURNS: usize = 5;

fn show_rates(devices: &[Device], rates: &[f64]) {
    for (device, rate) in devices.iter().zip(rates) {
        println!("  {:12} alone {:>12.0} items/s", device.id(), rate);
    }
}

/// Measures runs of about two seconds; half-way, one device becomes half as fast.
fn efficiency(devices: &[Device], peers: &[Strategy]) -> Result<()> {
    // A GPU of medium speed, if there are several.
    let gpus: Vec<&Device> = devices.iter().filter(|it| it.describe().kind != DeviceKind::Cpu).collect();
    let slowed = gpus.get(gpus.len() / 2).copied().unwrap_or(&devices[0]);
    let task = Churn::new("churn", HEAVY, slowed.id());
    let pool = Pool::builder().devices(devices).keep_history_at(None).build()?;
    println!("\nEfficiency: {HEAVY} rounds an item; {} does everything twice from half-time on", slowed.id());
    let (rates, items) = calibrated(devices, &task, 2.0)?;
    show_rates(devices, &rates);
    let which = devices.iter().position(|device| device.id() == slowed.id()).unwrap_or(0);
    // The measured effect of twice the work.
    task.slow_down(2);
    let slow_rate = solo_rate(slowed, &task, &items, rates[which] / 2.0)?;
    task.slow_down(1);
    println!(
        "  {:12} slowed {:>11.0} items/s: {:.3} of its own",
        slowed.id(),
        slow_rate,
        slow_rate / rates[which]
    );

    let all: f64 = rates.iter().sum();
    let half = Duration::from_secs_f64(items.len() as f64 / all / 2.0);
    let after = all - rates[which] + slow_rate;
    let ideal = half.as_secs_f64() + (items.len() as f64 - all * half.as_secs_f64()) / after;
    println!("  {} items, ideal {ideal:.4} s", items.len());
    let expected: Vec<u32> =
        items.iter().step_by(items.len() / 64).map(|&item| churned(item, HEAVY)).collect();
    // Warm up: pinned memory for the largest chunks takes long to allocate.
    let warm = job_like(&pool, &task, &items, Strategy::Adaptive, Settings::default())?;
    warm.map(&items)?;
    let traces = std::env::var_os("EVENER_TRACES").map(PathBuf::from);
    let mut found = Vec::new();
    for (turn, strategy) in [Strategy::Adaptive; TURNS].iter().chain(peers).enumerate() {
        // A fixed share is done in chunks, so that slowing down half-way has an effect.
        let settings = match strategy {
            Strategy::Adaptive => Settings::default(),
            _ => Settings { max_items: Some(items.len() as u64 / 2000), ..Settings::default() },
        };
        // The slowest device does not get as much as the fastest.
        let limit = Duration::from_secs_f64(ideal * 8.0);
        let other;
        let job = match strategy {
            Strategy::Adaptive => &warm,
            _ => {
                other = job_like(&pool, &task, &items, *strategy, settings)?.deadline(limit);
                &other
            }
        };
        let run = std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(half);
                task.slow_down(2);
            });
            job.map(&items)
        });
        task.slow_down(1);
        let run = match run {
            Err(RunError::DeadlinePassed { after, done, .. }) => {
                let part = done.count() as f64 / items.len() as f64;
                println!(
                    "\n{strategy}: efficiency under {:.4}: {part:.3} of it was done after {after:.1?}",
                    ideal / limit.as_secs_f64()
                );
                continue;
            }
            run => run?,
        };
        let some = run.results().iter().step_by(items.len() / 64).copied();
        assert!(some.eq(expected.iter().copied()), "wrong results");
        let efficiency = ideal / run.report().wall_s;
        println!("\n{strategy}: efficiency {efficiency:.4}\n{}", run.report());
        if *strategy == Strategy::Adaptive {
            found.push(efficiency);
            if let Some(folder) = &traces {
                std::fs::write(folder.join(format!("{turn}.json")), run.trace().to_json().to_string())?;
            }
        }
    }
    found.sort_by(f64::total_cmp);
    println!("\nadaptive, {TURNS} runs: least {:.4}, median {:.4}", found[0], found[TURNS / 2]);
    Ok(())
}

/// Each device's items per second alone, and items for so many seconds of all of them together.
fn calibrated(devices: &[Device], task: &Churn, seconds: f64) -> Result<(Vec<f64>, Vec<u32>)> {
    let items: Vec<u32> = (0..200_000_000).collect();
    let job = Pool::builder().devices(devices).keep_history_at(None).build()?.job(task);
    let about = job.calibrate(&items)?;
    let rate = |(device, (id, about)): (&Device, (DeviceId, Option<f64>))| {
        solo_rate(device, task, &items, about.ok_or_else(|| format!("{id} failed alone"))?)
    };
    let rates: Vec<f64> = devices.iter().zip(about).map(rate).collect::<Result<_>>()?;
    let count = rates.iter().sum::<f64>() * seconds;
    Ok((rates, (0..count as u32).collect()))
}

/// Items per second of one device in the best of three runs of a second, so that startup and end do not count.
fn solo_rate(device: &Device, task: &Churn, items: &[u32], about: f64) -> Result<f64> {
    let job = Pool::builder().devices([device]).keep_history_at(None).build()?.job(task);
    let items = &items[..(about as usize).min(items.len())];
    let mut best: f64 = 0.0;
    for _ in 0..3 {
        best = best.max(items.len() as f64 / job.map(items)?.report().wall_s);
    }
    Ok(best)
}

/// A job calibrated again, because a job keeps its rates.
fn job_like(
    pool: &Pool,
    task: &Churn,
    items: &[u32],
    strategy: Strategy,
    settings: Settings,
) -> Result<Job<'static, Churn>> {
    let job = pool.job(task).all_devices().strategy(strategy).settings(settings);
    let job = if std::env::var_os("EVENER_TRACES").is_some() { job.trace() } else { job };
    job.calibrate(items)?;
    Ok(job)
}

/// Measures a run in which one GPU is lost half-way.
fn kill(devices: &[Device]) -> Result<()> {
    let gpus: Vec<Device> =
        devices.iter().filter(|device| device.describe().kind != DeviceKind::Cpu).cloned().collect();
    if gpus.len() < 2 {
        println!("\nskipped: killing a device needs two GPUs, or parts of one");
        return Ok(());
    }
    let task = Churn::new("kill", HEAVY, &DeviceId::from("none"));
    let victim = gpus.len() / 2;
    let (wrapped, _) = Faults::wrap(&gpus[victim]);
    let mut members = gpus.clone();
    members[victim] = wrapped;
    let (rates, items) = calibrated(&members, &task, 2.0)?;
    println!("\nKilled: {} is gone for good half-way through", gpus[victim].id());
    show_rates(&members, &rates);
    for _ in 0..3 {
        let (wrapped, faults) = Faults::wrap(&gpus[victim]);
        members[victim] = wrapped;
        let pool = Pool::builder().devices(&members).keep_history_at(None).build()?;
        let job = pool.job(&task).all_devices();
        // Warm up.
        job.map(&items[..items.len() / 16])?;
        let all: f64 = rates.iter().sum();
        let half = Duration::from_secs_f64(items.len() as f64 / all / 2.0);
        let rest = (items.len() as f64 - all * half.as_secs_f64()) / (all - rates[victim]);
        let run = std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(half);
                faults.destroy();
            });
            job.map(&items)
        })?;
        assert_eq!(
            run.results().last(),
            items.last().map(|&item| churned(item, HEAVY)).as_ref(),
            "wrong results"
        );
        let took = run.report().wall_s - half.as_secs_f64();
        println!(
            "what remained: ideal {rest:.4} s, took {took:.4} s: {:.3} times\n{}",
            took / rest,
            run.report()
        );
    }
    Ok(())
}
