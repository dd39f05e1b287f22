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
    is_gpu,
    timing::{median_of, timed},
};
use crate::{
    UsageError,
    output::{format_count, write_json, write_out},
    progress::ProgressLine,
    table::{Heading, table},
    verbosity::Verbosity,
};

/// Rounds that are measured, unless --rounds asks for fewer.
const ROUNDS: usize = 3;

/// Proofs that the processor alone makes: as many as GPUs make would take long.
const PROOFS_ON_CPU: usize = 8;

/// Batches before the measurement, until every device takes part.
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
    verbosity: Verbosity,
) -> Result<()> {
    let &[log] = logs else {
        return Err(UsageError("--batch takes one size: --log 16".into()).into());
    };
    let rounds = (arguments.rounds as usize).min(ROUNDS);
    let circuit = Circuit::new(log, progress)?;
    let mut alone = Vec::new();
    for device in devices {
        progress.step(format!("proofs on {} alone", device.id()));
        let count = if is_gpu(device) { count } else { count.min(PROOFS_ON_CPU) };
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
    if arguments.json {
        write_json(&outcome)?;
    } else if verbosity.is_quiet() {
        write_out(&format!("{:.3}\n", outcome.efficiency))?;
    } else {
        write_out(&outcome.text())?;
    }
    Ok(())
}

/// Proves batches on some devices once all of them are ready. Returns the median time, and the report of the last batch.
fn measure(circuit: &Circuit, devices: &[Device], count: usize, rounds: usize) -> Result<(Duration, Report)> {
    let prover = Prover::load(&pool(devices)?, circuit.key.clone()).all_devices();
    let witnesses =
        |count: usize| -> Result<Vec<Witness>> { (0..count as u64).map(|it| circuit.witness(it)).collect() };
    // Until every device has compiled its kernels, loaded the key and proved.
    let mut warm_ups = 0;
    let is_ready =
        |report: &Report| report.devices.iter().filter(|device| device.items > 0).count() == devices.len();
    while !is_ready(&prove(&prover, witnesses(4 * devices.len())?)?.1) {
        warm_ups += 1;
        if warm_ups == MAX_WARM_UPS {
            bail!("a device took no part in {MAX_WARM_UPS} batches");
        }
    }
    let mut last = None;
    let took = median_of(rounds, || {
        let (took, report) = prove(&prover, witnesses(count)?)?;
        last = Some(report);
        Ok(took)
    })?;
    Ok((took, last.context("no batch was proved")?))
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
        format!(
            "{}\n\n{}\nan item is a proof\n\n{} proofs of 2^{} constraints: {} proofs/s, {:.3} of the sum\n",
            table(&headings, &rows),
            self.report,
            format_count(self.proofs as u64),
            self.log,
            rate(self.proofs_per_s),
            self.efficiency
        )
    }
}
