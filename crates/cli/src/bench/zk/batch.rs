//! A batch of proofs on all devices, compared with each device alone.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use evener_device::Device;
use evener_schedule::Report;
use evener_zk::groth16::{Prover, Witness};
use serde::Serialize;

use super::{
    Arguments,
    circuit::{Circuit, pool},
    timing::{median_of, timed},
};
use crate::{
    UsageError,
    options::is_gpu,
    output::{format_count, format_time, write_json, write_out},
    progress::ProgressLine,
    table::{Heading, table},
    verbosity::Verbosity,
    views::Views,
};

/// Proofs that the processor alone makes: as many as GPUs make would take long.
const PROOFS_ON_CPU: usize = 8;

/// Rounds on the processor alone, unless --rounds asks for fewer.
const ROUNDS_ON_CPU: usize = 3;

/// Batches before the measurement on one device, and on several, where the pool finds out which to use.
const WARM_UPS: [usize; 2] = [2, 10];

/// Batches before the measurement, until every GPU takes part.
const MAX_WARM_UPS: usize = 200;

/// The result of a batch.
#[derive(Debug, Serialize)]
struct Outcome {
    log: u32,
    proofs: usize,
    alone: Vec<Alone>,
    sum_of_rates_per_s: f64,
    median_s: f64,
    proofs_per_s: f64,
    /// The rate over the sum of the rates alone.
    efficiency: f64,
    report: Report,
}

/// The rate of a device alone.
#[derive(Debug, Serialize)]
struct Alone {
    device: String,
    proofs_per_s: f64,
}

/// Runs `evener bench zk --batch`.
pub(super) fn run(
    arguments: &Arguments,
    devices: &[Device],
    logs: &[u32],
    count: usize,
    progress: &ProgressLine,
    views: Views,
    verbosity: Verbosity,
) -> Result<()> {
    let &[log] = logs else {
        return Err(UsageError("--batch takes one size: --log 16".into()).into());
    };
    let rounds = arguments.rounds as usize;
    let circuit = Circuit::new(log, progress)?;
    let mut alone = Vec::new();
    for device in devices {
        progress.step(format!("proofs on {} alone", device.id()));
        let (count, rounds) = match is_gpu(device) {
            true => (count, rounds),
            false => (count.min(PROOFS_ON_CPU), rounds.min(ROUNDS_ON_CPU)),
        };
        let (took, _) = measure(&circuit, std::slice::from_ref(device), count, rounds)?;
        let (device, proofs_per_s) = (device.id().to_string(), count as f64 / took.as_secs_f64());
        alone.push(Alone { device, proofs_per_s });
    }
    progress.step("proofs on all devices");
    let (took, report) = measure(&circuit, devices, count, rounds)?;
    let sum: f64 = alone.iter().map(|it| it.proofs_per_s).sum();
    let proofs_per_s = count as f64 / took.as_secs_f64();
    let outcome = Outcome {
        log,
        proofs: count,
        alone,
        sum_of_rates_per_s: sum,
        median_s: took.as_secs_f64(),
        proofs_per_s,
        efficiency: proofs_per_s / sum,
        report,
    };
    progress.finish();
    views.finish(None)?;
    if arguments.json {
        write_json(&outcome)?;
    } else if verbosity.is_quiet() {
        write_out(&format!("{:.3}\n", outcome.efficiency))?;
    } else {
        write_out(&outcome.text())?;
    }
    Ok(())
}

/// Proves batches on some devices once their kernels are compiled. Returns the median time, and the report of the last batch.
fn measure(circuit: &Circuit, devices: &[Device], count: usize, rounds: usize) -> Result<(Duration, Report)> {
    let prover = Prover::load(&pool(devices)?, circuit.key.clone());
    let witnesses = || -> Result<Vec<Witness>> { (0..count as u64).map(|it| circuit.witness(it)).collect() };
    // Until every GPU has compiled its kernels, loaded the key and proved. The processor is ready at once, and may be too slow
    // for the pool to use it.
    let gpus: Vec<&Device> = devices.iter().filter(|device| is_gpu(device)).collect();
    let mut have_proved = vec![false; gpus.len()];
    let needed = WARM_UPS[usize::from(devices.len() > 1)].min(rounds);
    let mut warm_ups = 0;
    while warm_ups < needed || have_proved.contains(&false) {
        if warm_ups == MAX_WARM_UPS {
            bail!("a GPU took no part in {MAX_WARM_UPS} batches");
        }
        let (_, report) = prove(&prover, witnesses()?)?;
        for (gpu, has_proved) in gpus.iter().zip(&mut have_proved) {
            *has_proved |= took_part(&report, gpu.id().as_str());
        }
        warm_ups += 1;
    }
    let mut last = None;
    let took = median_of(rounds, || {
        let (took, report) = prove(&prover, witnesses()?)?;
        last = Some(report);
        Ok(took)
    })?;
    Ok((took, last.context("no batch was proved")?))
}

/// Whether a device proved something in a batch.
fn took_part(report: &Report, device: &str) -> bool {
    report.devices.iter().any(|it| it.id == device && it.items > 0)
}

/// Proves a batch. Fails if a witness has no proof.
fn prove(prover: &Prover, witnesses: Vec<Witness>) -> Result<(Duration, Report)> {
    let (batch, took) = timed(|| prover.prove_batch(witnesses));
    let batch = batch?;
    let report = batch.report().context("no device was used")?.clone();
    for result in batch.into_results() {
        result?;
    }
    Ok((took, report))
}

impl Outcome {
    fn text(&self) -> String {
        let headings = [Heading::text("DEVICE ALONE"), Heading::number("PROOFS/s")];
        let rate = |rate: f64| format!("{rate:.2}");
        let mut rows: Vec<Vec<String>> =
            self.alone.iter().map(|it| vec![it.device.clone(), rate(it.proofs_per_s)]).collect();
        rows.push(vec!["sum".into(), rate(self.sum_of_rates_per_s)]);
        let unused: String = self
            .alone
            .iter()
            .filter(|alone| !took_part(&self.report, &alone.device))
            .map(|alone| {
                let (one, all) = (format_time(alone.proofs_per_s.recip()), format_time(self.median_s));
                format!("{} took no part: a proof takes {one} there, and the batch {all}\n", alone.device)
            })
            .collect();
        format!(
            "{}\n\n{}\nan item is a proof\n{unused}\n{} proofs of 2^{} constraints: {} proofs/s, {:.3} of the sum\n",
            table(&headings, &rows),
            self.report,
            format_count(self.proofs as u64),
            self.log,
            rate(self.proofs_per_s),
            self.efficiency
        )
    }
}
