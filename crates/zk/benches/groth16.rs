//! How fast proofs are: `cargo bench -p evener-zk --bench groth16 [-- vulkan LOG2…]`, and
//! `cargo bench -p evener-zk --bench groth16 -- batch COUNT LOG2` for a batch over all devices.
//!
//! The circuit has 2^LOG2 − 8 constraints and a dense witness. For each GPU, or each device that `EVENER_DEVICES` names: the
//! first proof with everything before it, the median of 10 further proofs with their verification, and each operation of a
//! proof by itself; beside them `ark-groth16` on all cores. With the same secrets, both make the same proof. `vulkan` uses GPUs
//! through Vulkan too.
//!
//! `-- shared LOG2…` has all devices that `EVENER_DEVICES` names share one proof after the other, beside each device alone.
//!
//! A batch is compared with the rates that its devices have alone: `EVENER_DEVICES='cuda:0[16,40,76],cpu'`, for example.
#![allow(missing_docs, clippy::print_stdout, clippy::unwrap_used)]

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use ark_bn254::{Bn254, Fr, G1Projective, G2Projective};
use ark_ec::{CurveGroup, PrimeGroup, ScalarMul};
use ark_ff::{Field, UniformRand};
use ark_groth16::{Groth16, ProvingKey as ArkKey, VerifyingKey as ArkVerifyingKey};
use ark_poly::{EvaluationDomain, Radix2EvaluationDomain};
use ark_std::rand::{SeedableRng, rngs::StdRng};
use evener_device::{Api, Device, DeviceKind, Inventory};
use evener_schedule::{Pool, Resident};
use evener_zk::groth16::{
    GpuEngine, Prover, ProvingKey, R1cs, SparseMatrix, Split, Squares, Witness, Worker,
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

fn timed<R>(work: impl FnOnce() -> R) -> (R, Duration) {
    let start = Instant::now();
    (work(), start.elapsed())
}

/// Makes a key for libsnark's reduction from the matrices themselves. The secrets are known, so it is for measurements only.
fn set_up(r1cs: &R1cs) -> ArkKey<Bn254> {
    let mut random = StdRng::seed_from_u64(1);
    let [tau, alpha, beta, gamma, delta] = [(); 5].map(|()| Fr::rand(&mut random));
    let (wires, public, constraints) = (r1cs.wires(), r1cs.public(), r1cs.constraints());
    let domain = Radix2EvaluationDomain::<Fr>::new(constraints + public + 1).unwrap();
    let lagrange = domain.evaluate_all_lagrange_coefficients(tau);
    let at_tau = |matrix: &SparseMatrix| {
        let mut sums = vec![Fr::from(0); wires];
        for (row, factor) in lagrange[..matrix.rows()].iter().enumerate() {
            for (wire, value) in matrix.row(row) {
                sums[*wire as usize] += *factor * value;
            }
        }
        sums
    };
    let mut a = at_tau(r1cs.a());
    for wire in 0..=public {
        a[wire] += lagrange[constraints + wire];
    }
    let (b, c) = (at_tau(r1cs.b()), at_tau(r1cs.c()));
    let combined: Vec<Fr> =
        (0..wires).into_par_iter().map(|wire| beta * a[wire] + alpha * b[wire] + c[wire]).collect();
    let over = |combined: &[Fr], divisor: Fr| -> Vec<Fr> {
        let factor = divisor.inverse().unwrap();
        combined.par_iter().map(|scalar| factor * scalar).collect()
    };
    let vanishing = domain.evaluate_vanishing_polynomial(tau) * delta.inverse().unwrap();
    let powers: Vec<Fr> =
        std::iter::successors(Some(vanishing), |last| Some(tau * last)).take(domain.size() - 1).collect();
    let g1 = |scalars: &[Fr]| G1Projective::generator().batch_mul(scalars);
    let point_g1 = |scalar: Fr| (G1Projective::generator() * scalar).into_affine();
    let point_g2 = |scalar: Fr| (G2Projective::generator() * scalar).into_affine();
    ArkKey {
        vk: ArkVerifyingKey {
            alpha_g1: point_g1(alpha),
            beta_g2: point_g2(beta),
            gamma_g2: point_g2(gamma),
            delta_g2: point_g2(delta),
            gamma_abc_g1: g1(&over(&combined[..=public], gamma)),
        },
        beta_g1: point_g1(beta),
        delta_g1: point_g1(delta),
        a_query: g1(&a),
        b_g1_query: g1(&b),
        b_g2_query: G2Projective::generator().batch_mul(&b),
        h_query: g1(&powers),
        l_query: g1(&over(&combined[public + 1..], delta)),
    }
}

/// A circuit of 2^`log` constraints with its key.
struct Case {
    log: u32,
    circuit: Squares,
    r1cs: R1cs,
    ark: ArkKey<Bn254>,
    key: Arc<ProvingKey>,
}

impl Case {
    fn new(log: u32) -> Case {
        println!("\n2^{log} constraints");
        let circuit = Squares::filling(log);
        let r1cs = circuit.r1cs().unwrap();
        let (ark, took) = timed(|| set_up(&r1cs));
        println!("  key: {:.1} s on {} threads", took.as_secs_f64(), rayon::current_num_threads());
        let key = Arc::new(ProvingKey::from_ark(ark.clone(), &r1cs).unwrap());
        Case { log, circuit, r1cs, ark, key }
    }

    fn witness(&self, first: u64) -> Witness {
        self.circuit.witness(Fr::from(first)).unwrap()
    }

    /// Times `ark-groth16`, without verification, and returns a proof of it too.
    fn ark(&self, rounds: usize, r: Fr, s: Fr) -> (evener_zk::groth16::Proof, Duration) {
        let rows = |matrix: &SparseMatrix| -> Vec<Vec<(Fr, usize)>> {
            let row = |row| matrix.row(row).iter().map(|&(wire, value)| (value, wire as usize)).collect();
            (0..matrix.rows()).map(row).collect()
        };
        let matrices = [rows(self.r1cs.a()), rows(self.r1cs.b()), rows(self.r1cs.c())];
        let witness = self.witness(3);
        let prove = || {
            Groth16::<Bn254>::create_proof_with_reduction_and_matrices(
                &self.ark,
                r,
                s,
                &matrices,
                self.r1cs.public() + 1,
                self.r1cs.constraints(),
                witness.values(),
            )
            .unwrap()
        };
        let proof = prove();
        (proof.into(), median((0..rounds).map(|_| timed(prove).1).collect()))
    }
}

fn pool(devices: &[Device]) -> Pool {
    Pool::builder().devices(devices).keep_history_at(None).build().unwrap()
}

fn bench(
    case: &Case,
    device: &Device,
    expected: &evener_zk::groth16::Proof,
    on_host: Duration,
    r: Fr,
    s: Fr,
) {
    println!("  {} ({})", device.id(), device.describe().name);
    let witness = case.witness(3);
    let ((prover, proved), first) = timed(|| {
        let prover = Prover::load(&pool(std::slice::from_ref(device)), case.key.clone());
        let proved = prover.prove_with_secrets(witness, r, s).unwrap();
        (prover, proved)
    });
    assert_eq!(proved.proof, *expected, "the proof differs from ark-groth16's");
    println!("    first proof, with compilation and loading: {:.0} ms", milliseconds(first));
    let times = (0..ROUNDS as u64).map(|round| {
        let witness = case.witness(round + 4);
        timed(|| prover.prove(witness).unwrap()).1
    });
    let took = median(times.collect());
    let verify = (0..ROUNDS)
        .map(|_| timed(|| case.key.verifying_key().verify(&proved.proof, &proved.public).unwrap()).1);
    println!(
        "    proof and verification: {:.2} ms (verification {:.2} ms; ark-groth16 without verification on {} threads {:.0} ms, {:.1} times)",
        milliseconds(took),
        milliseconds(median(verify.collect())),
        rayon::current_num_threads(),
        milliseconds(on_host),
        on_host.as_secs_f64() / took.as_secs_f64(),
    );
    drop(prover);
    if device.describe().api == Api::Cpu {
        return;
    }
    let (worker, loaded) =
        timed(|| Worker::new(GpuEngine::new(device).unwrap(), &case.key, &Resident::default()).unwrap());
    let mut worker = worker;
    let witness = case.witness(3);
    let mut rounds: Vec<Vec<(&str, Duration)>> = Vec::new();
    for _ in 0..=ROUNDS {
        rounds.push(worker.time_operations(&case.key, &witness).unwrap().unwrap());
    }
    let of = |index: usize| median(rounds[1..].iter().map(|round| round[index].1).collect());
    let all: Vec<String> = (0..rounds[0].len())
        .map(|index| format!("{} {:.3}", rounds[0][index].0, milliseconds(of(index))))
        .collect();
    println!("    each operation by itself (ms): {}", all.join(", "));
    println!("    loading the key with compiled kernels in the cache: {:.0} ms", milliseconds(loaded));
}

/// Proves a batch on some devices, once all of them are ready. Returns the rate in proofs per second.
fn batch(case: &Case, devices: &[Device], count: usize, is_shown: bool) -> f64 {
    let prover = Prover::load(&pool(devices), case.key.clone()).all_devices();
    let witnesses = |count: usize| (0..count as u64).map(|first| case.witness(first + 3)).collect();
    // Until every device has compiled its kernels, loaded the key and proved.
    for _ in 0..200 {
        let batch = prover.prove_batch(witnesses(4 * devices.len())).unwrap();
        let used = batch.report().unwrap().devices.iter().filter(|device| device.items > 0).count();
        if used == devices.len() {
            break;
        }
    }
    let (batch, took) = {
        let witnesses = witnesses(count);
        timed(|| prover.prove_batch(witnesses).unwrap())
    };
    for result in batch.results() {
        let proved = result.as_ref().unwrap();
        case.key.verifying_key().verify(&proved.proof, &proved.public).unwrap();
    }
    if is_shown {
        println!("{}", batch.report().unwrap());
    }
    count as f64 / took.as_secs_f64()
}

fn bench_batch(devices: &[Device], count: usize, log: u32) {
    let case = Case::new(log);
    let mut sum = 0.0;
    for device in devices {
        // The processor alone takes as long for a few proofs as a GPU for all.
        let own = if device.describe().api == Api::Cpu { count.min(8) } else { count };
        let rate = batch(&case, std::slice::from_ref(device), own, false);
        println!("  {} alone: {rate:.2} proofs/s", device.id());
        sum += rate;
    }
    let rate = batch(&case, devices, count, true);
    println!(
        "  {count} proofs of 2^{} constraints over {} devices: {rate:.2} proofs/s, {:.3} of the sum of the rates alone",
        case.log,
        devices.len(),
        rate / sum
    );
}

/// Times single proofs: by each device alone, and shared by all of them.
fn bench_shared(devices: &[Device], log: u32, r: Fr, s: Fr) {
    let case = Case::new(log);
    let (expected, _) = case.ark(1, r, s);
    let time = |devices: &[Device], split: Split| {
        let prover = Prover::load(&pool(devices), case.key.clone()).split(split);
        let prove = |first: u64| prover.prove_with_secrets(case.witness(first), r, s).unwrap();
        assert_eq!(prove(3).proof, expected, "the proof is that of ark-groth16");
        // Devices that were still being prepared take part in later proofs, and their rates are learned.
        let begin = Instant::now();
        let mut warm = 0;
        while warm < 20 && (warm < 4 || begin.elapsed() < Duration::from_secs(20)) {
            prove(3);
            warm += 1;
        }
        median((0..ROUNDS).map(|_| timed(|| prove(3)).1).collect())
    };
    let mut rate = 0.0;
    let mut best = Duration::MAX;
    for device in devices {
        let alone = time(std::slice::from_ref(device), Split::Whole);
        println!("  {} alone: {:.1} ms", device.id(), milliseconds(alone));
        rate += 1.0 / alone.as_secs_f64();
        best = best.min(alone);
    }
    let shared = time(devices, Split::Shared);
    println!(
        "  shared by all: {:.1} ms, {:.2} times as fast as the fastest alone; all rates together would take {:.1} ms",
        milliseconds(shared),
        best.as_secs_f64() / shared.as_secs_f64(),
        1e3 / rate
    );
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).filter(|it| !it.starts_with("--")).collect();
    let has = |word: &str| words.iter().any(|it| it == word);
    let numbers: Vec<u32> = words.iter().filter_map(|word| word.parse().ok()).collect();
    let inventory = if has("vulkan") { Inventory::discover_all_apis() } else { Inventory::discover() };
    let is_named = std::env::var_os("EVENER_DEVICES").is_some();
    if has("batch") {
        let devices = inventory.select_or_default(None).unwrap();
        let [count, log] = numbers[..] else {
            println!("usage: batch COUNT LOG2");
            return;
        };
        return bench_batch(&devices, count as usize, log);
    }
    let [r, s] = [5u64, 6].map(|base| Fr::from(base).pow([u64::MAX, 9]));
    if has("shared") {
        let devices = inventory.select_or_default(None).unwrap();
        return numbers.iter().for_each(|&log| bench_shared(&devices, log, r, s));
    }
    let is_gpu = |it: &&Device| !matches!(it.describe().kind, DeviceKind::Software | DeviceKind::Cpu);
    let devices: Vec<Device> = match is_named {
        true => inventory.select_or_default(None).unwrap(),
        false => inventory.devices().iter().filter(is_gpu).cloned().collect(),
    };
    if devices.is_empty() {
        println!("skipped: no GPU is here, and no device is named in EVENER_DEVICES");
        return;
    }
    let logs = if numbers.is_empty() { vec![16, 18, 20] } else { numbers };
    for log in logs {
        let case = Case::new(log);
        let (expected, on_host) = case.ark(if log < 20 { 5 } else { 3 }, r, s);
        for device in &devices {
            bench(&case, device, &expected, on_host, r, s);
        }
    }
}
