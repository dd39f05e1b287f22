//! Rates of BN254's arithmetic: `cargo bench -p evener-zk [-- field|ntt]`.
//!
//! `field`: products per second of every generator of field arithmetic on every GPU, beside arkworks on all cores, with
//! the share of the device's measured rate of 32-bit multiplies. `ntt`: transforms of 2^16 to 2^24 elements that are on the
//! device, beside arkworks on all cores; `EVENER_BENCH_LOG2` sets the largest one. `EVENER_BENCH_DEVICES` limits the
//! devices, for example to `cuda:0,vulkan:0`. Figures of software devices show that it works, not how fast it is.
#![allow(missing_docs, clippy::print_stdout)]

use std::{
    error::Error,
    hint::black_box,
    time::{Duration, Instant},
};

use ark_bn254::Fr;
use ark_ff::Field;
use ark_poly::{EvaluationDomain, Radix2EvaluationDomain};
use evener_device::{Api, Device, DeviceKind, Inventory, Stream, load_rates, measure};
use evener_zk::{
    field::{Emitter, Limbs},
    ntt::{Ntt, Order, Root, Scale},
};
use rayon::prelude::*;

/// 32-bit multiplies in a product: two rows of eight words for each word, with both halves of each result.
const MULTIPLIES_PER_PRODUCT: f64 = 2.0 * 2.0 * 64.0 + 8.0;

fn main() -> Result<(), Box<dyn Error>> {
    let asked: Vec<String> = std::env::args().skip(1).filter(|argument| !argument.starts_with('-')).collect();
    let is_asked = |name: &str| asked.is_empty() || asked.iter().any(|it| it == name);
    let devices = devices();
    for device in &devices {
        let it = device.describe();
        println!("{}: {} ({}, {})", it.id, it.name, it.kind, it.driver);
    }
    println!("cpu: {} threads", rayon::current_num_threads());
    if is_asked("field") {
        field(&devices)?;
    }
    if is_asked("ntt") {
        ntt(&devices)?;
    }
    Ok(())
}

fn devices() -> Vec<Device> {
    let wanted = std::env::var("EVENER_BENCH_DEVICES").ok();
    let is_wanted = |device: &Device| match &wanted {
        Some(wanted) => wanted.split(',').any(|id| id == device.id().as_str()),
        None => device.describe().api != Api::Cpu,
    };
    Inventory::discover_all_apis().devices().iter().filter(|device| is_wanted(device)).cloned().collect()
}

/// Returns the median time of ten runs, after one that does not count.
fn median(mut run: impl FnMut() -> Result<Duration, Box<dyn Error>>) -> Result<Duration, Box<dyn Error>> {
    run()?;
    let mut times = (0..10).map(|_| run()).collect::<Result<Vec<_>, _>>()?;
    times.sort_unstable();
    Ok(times[times.len() / 2])
}

fn field(devices: &[Device]) -> Result<(), Box<dyn Error>> {
    println!("\nproducts in Fr, per second");
    let run = || {
        const PER_THREAD: u64 = 2_000_000;
        let start = Instant::now();
        let threads = rayon::current_num_threads() as u64;
        let work = (0..threads).into_par_iter().map(|thread| {
            let (mut a, b) = (Fr::from(thread + 3), Fr::from(thread + 5).pow([1 << 40]));
            (0..PER_THREAD).for_each(|_| a *= b);
            a
        });
        black_box(work.sum::<Fr>());
        Ok(start.elapsed().div_f64((threads * PER_THREAD) as f64 / 1e6))
    };
    println!("{:>12} {:>12} {:9.3} G", "cpu", "arkworks", 1e-3 / median(run)?.as_secs_f64());
    for device in devices {
        let rates = load_rates(device).map_or_else(|| measure(device), Ok)?;
        for &emitter in Emitter::candidates(device)? {
            let mut best = 0f64;
            for _ in 0..5 {
                best = best.max(emitter.products_per_s(device)?);
            }
            let share = best * MULTIPLIES_PER_PRODUCT / rates.int32_multiplies_per_s;
            let share = match device.describe().kind {
                // The processor multiplies 64-bit words.
                DeviceKind::Software => String::new(),
                _ => format!(", {:.0} % of the measured 32-bit multiplies", 100.0 * share),
            };
            println!(
                "{:>12} {:>12} {:9.3} G{share}",
                device.id().as_str(),
                format!("{emitter:?}"),
                best / 1e9
            );
        }
        println!(
            "{:>12} {:>12}",
            device.id().as_str(),
            format!("chosen: {:?}", Emitter::for_device(device)?)
        );
    }
    Ok(())
}

fn ntt(devices: &[Device]) -> Result<(), Box<dyn Error>> {
    let largest = std::env::var("EVENER_BENCH_LOG2").ok().map(|text| text.parse()).transpose()?;
    println!(
        "\ntransforms, ms: bit-reversed output / bit-reversed input / natural order / values to a coset"
    );
    let is_software = |device: &&Device| device.describe().kind == DeviceKind::Software;
    for log_len in (16..=largest.unwrap_or(24)).step_by(2) {
        let len = 1usize << log_len;
        let elements: Vec<Fr> =
            (0..len as u64).into_par_iter().map(|index| -Fr::from(index * index + 1)).collect();
        let domain = Radix2EvaluationDomain::<Fr>::new(len).ok_or("no such domain")?;
        let mut values = elements.clone();
        let took = median(|| {
            let start = Instant::now();
            domain.fft_in_place(&mut values);
            Ok(start.elapsed())
        })?;
        println!("2^{log_len:<3} {:>12} natural order {:9.3}", "arkworks", milliseconds(took));
        drop(values);
        let limbs: Vec<Limbs> = elements.par_iter().map(|element| Limbs::from(*element)).collect();
        // Software devices would take minutes for more.
        for device in devices.iter().filter(|device| !is_software(device) || log_len <= 16) {
            let start = Instant::now();
            let ntt = Ntt::new(device, log_len)?;
            let begun = start.elapsed();
            let (mut stream, data) = (device.stream()?, device.buffer_from(&limbs)?);
            let factor = Fr::from(len as u64).inverse().ok_or("no inverse")?;
            let table = ntt.powers(&mut stream, len, Fr::from(7u64), factor, Order::BitReversed)?;
            let mut time = |work: &dyn Fn(&mut Stream) -> evener_device::Result<()>| {
                // Several transforms in a row: the wait for the last one is shared.
                const IN_A_ROW: u32 = 4;
                median(|| {
                    stream.wait()?;
                    let start = Instant::now();
                    for _ in 0..IN_A_ROW {
                        work(&mut stream)?;
                    }
                    stream.wait()?;
                    Ok(start.elapsed() / IN_A_ROW)
                })
            };
            let times = [
                time(&|stream| ntt.to_bit_reversed(stream, &data, Root::Forward, Scale::None))?,
                time(&|stream| ntt.from_bit_reversed(stream, &data, Root::Forward, Scale::None))?,
                time(&|stream| ntt.ntt(stream, &data))?,
                time(&|stream| {
                    ntt.to_bit_reversed(stream, &data, Root::Inverse, Scale::After(&table))?;
                    ntt.from_bit_reversed(stream, &data, Root::Forward, Scale::None)
                })?,
            ];
            let times = times.map(|time| format!("{:9.3}", milliseconds(time))).join(" / ");
            println!(
                "2^{log_len:<3} {:>12} {times} (first use {:.0} ms)",
                device.id().as_str(),
                milliseconds(begun)
            );
        }
    }
    Ok(())
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}
