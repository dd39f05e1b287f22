//! The phases of multi-scalar multiplications, for tuning: `cargo bench -p evener-zk --bench msm [-- g1|g2 vulkan never LOG2…]`.
//! `evener bench zk` measures the whole.
//!
//! For each GPU, or each device that `EVENER_DEVICES` names: bases resident on the device, scalars in pinned memory, the copy
//! of the scalars in the time; medians of 10. Every result is compared with arkworks', which is timed too. The times of the
//! phases are taken in separate runs. `vulkan` uses GPUs through Vulkan too, and `never` no precomputed tables.
#![allow(missing_docs, clippy::print_stdout, clippy::unwrap_used)]

use std::time::{Duration, Instant};

use ark_bn254::{Fr, G1Projective, G2Projective};
use ark_ff::{AdditiveGroup, Field};
use evener_device::{Api, Device, DeviceKind, Direction, Inventory, SharedBuffer};
use evener_zk::{
    curve::Group,
    field::{Emitter, Limbs},
    msm::{MsmBases, MsmGroup, MsmOptions, MsmWorkspace, Tables},
};
use rayon::prelude::*;

const ROUNDS: usize = 10;

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

/// Returns different points: multiples of the generator in arithmetic progression.
fn points<P: MsmGroup>(count: usize) -> Vec<P::Affine> {
    let step = P::generator() * Fr::from(7u64).inverse().unwrap();
    let block = |first: usize| {
        let start = P::generator() + step * Fr::from(first as u64);
        let all: Vec<P> = std::iter::successors(Some(start), |last| Some(*last + step))
            .take(1024.min(count - first))
            .collect();
        P::normalize_batch(&all)
    };
    (0..count).into_par_iter().step_by(1024).flat_map(block).collect()
}

fn random(count: usize) -> Vec<Fr> {
    let at = |index: usize| Fr::from(index as u64 + 3).pow([0x9E37_79B9_7F4A_7C15, index as u64, 77]);
    (0..count).into_par_iter().map(at).collect()
}

fn skewed(count: usize) -> Vec<(&'static str, Vec<Fr>)> {
    let random = random(count);
    let (any, half) = (random[count / 2], count / 2);
    let sparse = |(index, scalar): (usize, &Fr)| if index % 10 == 0 { *scalar } else { Fr::ZERO };
    let witness =
        |(index, scalar): (usize, &Fr)| if index < half { *scalar } else { Fr::from(index as u64 % 2) };
    vec![
        ("zeros", vec![Fr::ZERO; count]),
        ("ones", vec![Fr::ONE; count]),
        ("all equal", vec![any; count]),
        ("r - 1", vec![-Fr::ONE; count]),
        ("90 % zero", random.iter().enumerate().map(sparse).collect()),
        ("half bits", random.iter().enumerate().map(witness).collect()),
        ("one bucket", vec![Fr::from(3u64); count]),
        ("two values", (0..count).map(|index| if index % 2 == 0 { any } else { -any }).collect()),
    ]
}

fn pinned(device: &Device, scalars: &[Fr]) -> SharedBuffer<Limbs> {
    let mut host = device.host_buffer::<Limbs>(scalars.len(), Direction::Upload).unwrap();
    host.as_mut_slice().par_iter_mut().zip(scalars).for_each(|(to, from)| *to = (*from).into());
    host.share()
}

/// Times a multiplication end to end, and checks it. Returns the median.
fn time<P: MsmGroup>(bases: &MsmBases<P>, points: &[P::Affine], scalars: &[Fr], what: &str) -> Duration {
    let shared = pinned(bases.device(), scalars);
    let mut workspace = MsmWorkspace::new(bases.device()).unwrap();
    let mut run = || bases.queue_shared(&mut workspace, &shared).unwrap().wait().unwrap();
    let found = run();
    let times = (0..ROUNDS).map(|_| {
        let start = Instant::now();
        assert_eq!(run(), found, "{what}: the result differs between calls");
        start.elapsed()
    });
    let took = median(times.collect());
    assert_eq!(found, P::msm_on_host(points, scalars), "{what}: differs from arkworks");
    took
}

fn bench<P: MsmGroup>(device: &Device, logs: &[u32], options: MsmOptions) {
    let emitter = Emitter::for_device(device).unwrap();
    let largest = 1usize << logs.iter().max().unwrap();
    println!("\n{:?} on {} ({}), {emitter:?}", P::GROUP, device.id(), device.describe().name);
    let products = emitter.products_per_s(device).unwrap();
    println!("  products: {:.1} G/s", products / 1e9);
    let all_points = points::<P>(largest);
    let all_scalars = random(largest);
    let start = Instant::now();
    let first = MsmBases::<P>::upload_with(device, &all_points[..256], &options);
    let first = first.unwrap().msm(&all_scalars[..256]).unwrap();
    println!("  first call, with compilation: {:.0} ms", milliseconds(start.elapsed()));
    assert_eq!(first, P::msm_on_host(&all_points[..256], &all_scalars[..256]));
    for &log in logs {
        let (points, scalars) = (&all_points[..1 << log], &all_scalars[..1 << log]);
        let start = Instant::now();
        let bases = MsmBases::<P>::upload_with(device, points, &options).unwrap();
        let uploaded = start.elapsed();
        let took = time(&bases, points, scalars, "random");
        let (bits, windows, shared) = bases.windows().unwrap();
        // A mixed addition is 10 products, of three each in G2, where two of them are squares of two each.
        let entry_products = if P::GROUP == Group::G1 { 10.0 } else { 28.0 };
        let ceiling = (1u64 << log) as f64 * f64::from(windows) * entry_products / products;
        let start = Instant::now();
        std::hint::black_box(P::msm_on_host(points, scalars));
        let on_host = start.elapsed();
        println!(
            "  2^{log}: {:.3} ms ({windows} windows of {bits} bits{}; {:.0} % of the multiply ceiling; upload {:.0} ms; arkworks on {} threads {:.0} ms, {:.0} times)",
            milliseconds(took),
            if shared { ", tables" } else { "" },
            100.0 * ceiling / took.as_secs_f64(),
            milliseconds(uploaded),
            rayon::current_num_threads(),
            milliseconds(on_host),
            on_host.as_secs_f64() / took.as_secs_f64(),
        );
        let mut timed = MsmWorkspace::new(device).unwrap().timed();
        let shared_scalars = pinned(device, scalars);
        let mut phases: Vec<(&str, Vec<Duration>)> = Vec::new();
        for _ in 0..ROUNDS {
            let pending = bases.queue_shared(&mut timed, &shared_scalars).unwrap();
            for (index, (phase, time)) in pending.wait_timed().unwrap().1.into_iter().enumerate() {
                if phases.len() <= index {
                    phases.push((phase, Vec::new()));
                }
                phases[index].1.push(time);
            }
        }
        let phases: Vec<String> = phases
            .into_iter()
            .map(|(phase, times)| format!("{phase} {:.3}", milliseconds(median(times))))
            .collect();
        println!("    phases (ms): {}", phases.join(", "));
        if log == *logs.iter().max().unwrap() {
            for (what, scalars) in skewed(1 << log) {
                let skewed = time(&bases, points, &scalars, what);
                println!(
                    "    {what}: {:.3} ms, {:.2} times random",
                    milliseconds(skewed),
                    skewed.as_secs_f64() / took.as_secs_f64()
                );
            }
        }
    }
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).filter(|it| !it.starts_with("--")).collect();
    let has = |word: &str| words.iter().any(|it| it == word);
    let mut logs: Vec<u32> = words.iter().filter_map(|word| word.parse().ok()).collect();
    let inventory = if has("vulkan") { Inventory::discover_all_apis() } else { Inventory::discover() };
    let devices: Vec<Device> = if std::env::var_os("EVENER_DEVICES").is_some() {
        inventory.select_or_default(None).unwrap()
    } else {
        inventory.devices().iter().filter(|it| it.describe().kind != DeviceKind::Software).cloned().collect()
    };
    let devices: Vec<Device> = devices.into_iter().filter(|it| it.describe().api != Api::Cpu).collect();
    if devices.is_empty() {
        println!("skipped: no GPU is here, or none is named in EVENER_DEVICES");
    }
    if logs.is_empty() {
        logs = vec![10, 14, 16, 18, 20];
    }
    let tables = if has("never") { Tables::Never } else { Tables::Auto };
    // For tuning: `groups=3`, `bits=18` and `called`.
    let number =
        |name: &str| words.iter().find_map(|word| word.strip_prefix(name)?.strip_prefix('=')?.parse().ok());
    let options = MsmOptions {
        tables,
        groups_per_unit: number("groups"),
        calls_products: has("called"),
        window_bits: number("bits"),
        ..MsmOptions::default()
    };
    for device in &devices {
        if has("g1") || !has("g2") {
            bench::<G1Projective>(device, &logs, options);
        }
        if has("g2") || !has("g1") {
            bench::<G2Projective>(device, &logs, options);
        }
    }
}
