//! `evener demo`: builds a Merkle tree on all devices and compares the strategies.

mod background_load;
mod compare;
mod cpu_use;
mod participants;
mod reference;
mod text;

use std::{path::PathBuf, time::Instant};

use anyhow::Result;
use clap::Args;
use evener_device::DeviceId;
use evener_merkle::{Builder, Digest, Leaves};
use evener_schedule::{Pool, Report, Strategy};
use rayon::prelude::*;
use serde::Serialize;

use self::{
    compare::Comparison,
    cpu_use::{Interval, OtherPrograms},
    participants::{FoundDevice, Participants},
};
use crate::{
    Mismatch,
    options::{RunOptions, check_outputs, log_run},
    output::{write_json, write_out, write_trace},
    progress::ProgressLine,
    verbosity::Verbosity,
    views::Views,
};

/// Build a Merkle tree on all devices and compare strategies
///
/// Finds and measures the devices, builds a large Merkle tree on all of them, checks its root against a plain loop without
/// Evener, compares the strategies and the fastest device alone, and writes a trace. If the CPU is the only device, it is
/// split in two. Takes less than 30 seconds.
///
/// With -q, prints the root.
#[derive(Debug, Args)]
#[command(after_long_help = AFTER_HELP)]
pub(crate) struct Arguments {
    #[command(flatten)]
    run: RunOptions,
}

const AFTER_HELP: &str = "\
Examples:
  evener demo                          use all devices
  evener demo --devices cuda:0,cpu     use these devices
  evener demo --devices 'cpu[1,3]'     split the CPU in two
  evener demo --json | jq .efficiency  print JSON";

/// The size of a leaf.
const LEAF_BYTES: usize = 32;
/// The approximate time of the build.
const BUILD_S: f64 = 1.2;
/// The maximum size of all leaves.
const MAX_BYTES: u64 = 2 << 30;
/// The maximum size of all leaves is also this part of the free memory.
const MEMORY_DIVISOR: u64 = 8;
/// The approximate maximum time of the reference loop.
const CHECK_S: f64 = 3.0;
/// The number of leaves is a multiple of this number.
const LEAF_STEP: u64 = 1 << reference::SUBTREE_HEIGHT;
/// The number of leaves of the first, rough measurement.
const SAMPLE_LEAVES: u64 = 1 << 20;
/// The comparison ends by this time after the start.
const END_S: f64 = 24.0;

/// The JSON output.
#[derive(Debug, Serialize)]
struct DemoReport {
    found: Vec<FoundDevice>,
    absent: Vec<String>,
    cpu_was_split: bool,
    /// The cores that other programs used while the devices were measured; `None` if unknown.
    cores_used_by_others: Option<f64>,
    /// Whether that disturbs the measurements.
    machine_is_busy: bool,
    leaves: u64,
    leaf_bytes: usize,
    /// The leaves of a block, which is an item of the report.
    leaves_per_item: u64,
    hash: &'static str,
    rule: &'static str,
    rates: Vec<Rate>,
    root: Digest,
    check: Check,
    #[serde(flatten)]
    report: Report,
    /// `None` with one device, and if the comparison was left out.
    comparison: Option<Comparison>,
    /// The reason for leaving the comparison out.
    comparison_left_out: Option<String>,
    /// `None` if the trace could not be written.
    trace: Option<PathBuf>,
    /// The time of the whole demo.
    total_s: f64,
}

/// The rate of a device alone.
#[derive(Debug, Serialize)]
struct Rate {
    id: DeviceId,
    leaves_per_s: Option<f64>,
}

/// The result of the reference loop.
#[derive(Debug, Serialize)]
struct Check {
    root: Digest,
    is_same: bool,
    wall_s: f64,
    threads: usize,
}

/// Runs the command.
pub(crate) fn run(arguments: Arguments, verbosity: Verbosity) -> Result<()> {
    let (began, interval) = (Instant::now(), Interval::start());
    let RunOptions { devices, hosts, strategy, json, trace, views: view_options } = arguments.run;
    let strategy = Strategy::from(strategy);
    let trace = trace.unwrap_or_else(|| std::env::temp_dir().join("evener-demo-trace.json"));
    check_outputs([], view_options.outputs().chain([Some(trace.as_path())]))?;
    let views = Views::begin(&view_options, verbosity)?;
    let progress = ProgressLine::new(json || verbosity.is_quiet());
    if views.show_progress() {
        progress.hide();
    }

    progress.step("finding devices");
    let participants = Participants::find(&hosts, devices.as_deref())?;
    progress.print(&text::found(&participants))?;

    progress.step("measuring each device alone");
    tracing::info!("strategy {strategy}");
    let pool = Pool::builder().devices(&participants.devices).keep_history_at(None).build()?;
    let count = number_of_leaves(&Builder::new(&pool), &participants)?;
    let all = make_leaves(count);
    let leaves = Leaves::fixed_size(&all, LEAF_BYTES)?;
    let line = progress.clone();
    let builder =
        Builder::new(&pool).strategy(strategy).trace().on_progress(move |it| line.set(it.done, it.items));
    let rates: Vec<Rate> =
        builder.calibrate(&leaves)?.into_iter().map(|(id, leaves_per_s)| Rate { id, leaves_per_s }).collect();
    let others = interval.other_programs();
    let machine_is_busy = others.is_some_and(OtherPrograms::disturb);
    progress.print(&text::rates(&rates, others.filter(|_| machine_is_busy)))?;

    progress.print(&text::task(leaves.count()))?;
    progress.step_of("building the tree", 1);
    let built = builder.root(&leaves)?;
    let root = *built.value();
    let Some(mut report) = built.report().cloned() else { anyhow::bail!("the build did not use the pool") };
    if machine_is_busy || interval.other_programs().is_some_and(OtherPrograms::disturb) {
        // The devices alone were measured under another load than the build, so that a comparison has no meaning.
        (report.calibrated, report.predicted_s) = (None, None);
    }
    let leaves_per_item = leaves.count() / report.items.max(1);
    progress.print(&text::built(&root, &report, leaves_per_item))?;
    log_run(&report);

    progress.step_of("checking the root with a plain loop", count / LEAF_STEP);
    let check = check(&all, root, &progress);
    if !check.is_same {
        let message = format!("the root of the devices is {root}, that of a plain loop is {}", check.root);
        return Err(Mismatch(message).into());
    }
    progress.print(&text::checked(&check))?;
    // An error is returned at the end, so that the comparison is not lost.
    let traced = write_trace(&trace, built.trace(), Some(&report));

    let (mut comparison, mut comparison_left_out) = (None, None);
    if participants.devices.len() > 1 {
        let time_limit_s = END_S - began.elapsed().as_secs_f64();
        match compare::compare(&participants, &rates, &all, time_limit_s, &progress)? {
            Ok(compared) => comparison = Some(compared),
            Err(reason) => comparison_left_out = Some(reason),
        }
        progress.print(&text::compared(comparison.as_ref(), comparison_left_out.as_deref()))?;
    }
    progress.finish();
    let viewed = views.finish(Some((&report, built.trace())));
    let demo = DemoReport {
        cpu_was_split: participants.cpu_was_split,
        absent: participants.absent,
        found: participants.found,
        cores_used_by_others: others.map(|others| others.used_cores),
        machine_is_busy,
        leaves: leaves.count(),
        leaf_bytes: LEAF_BYTES,
        leaves_per_item,
        hash: "sha256",
        rule: "rfc6962",
        rates,
        root,
        check,
        report,
        comparison,
        comparison_left_out,
        trace: traced.is_ok().then_some(trace),
        total_s: began.elapsed().as_secs_f64(),
    };
    match (json, verbosity.is_quiet()) {
        (true, _) => write_json(&demo)?,
        (false, true) => write_out(&format!("{root}\n"))?,
        (false, false) => write_out(&text::end(&demo))?,
    }
    traced.and(viewed)
}

/// Returns the number of leaves that the devices need about [`BUILD_S`] for, within the other limits.
fn number_of_leaves(builder: &Builder, participants: &Participants) -> Result<u64> {
    let sample = make_leaves(SAMPLE_LEAVES);
    let rates = builder.calibrate(&Leaves::fixed_size(&sample, LEAF_BYTES)?)?;
    let together: f64 = rates.iter().filter_map(|rate| rate.1).sum();
    let began = Instant::now();
    reference::root(&sample, LEAF_BYTES, &|| {});
    let reference = SAMPLE_LEAVES as f64 / began.elapsed().as_secs_f64().max(1e-9);
    let free = participants.memory_free_bytes.map_or(MAX_BYTES, |free| free / MEMORY_DIVISOR);
    Ok(fit_leaves(together, reference, free.min(MAX_BYTES)))
}

/// Returns the number of leaves for the rates of all devices and of the reference loop, and a maximum size.
fn fit_leaves(leaves_per_s: f64, reference_leaves_per_s: f64, max_bytes: u64) -> u64 {
    let wanted = (leaves_per_s * BUILD_S).min(reference_leaves_per_s * CHECK_S) as u64;
    (wanted.min(max_bytes / LEAF_BYTES as u64) / LEAF_STEP * LEAF_STEP).max(LEAF_STEP)
}

/// Returns leaves that are all different: each begins with its index.
fn make_leaves(count: u64) -> Vec<u8> {
    let mut all = vec![0; count as usize * LEAF_BYTES];
    all.par_chunks_mut(LEAF_BYTES)
        .enumerate()
        .for_each(|(index, leaf)| leaf[..8].copy_from_slice(&(index as u64).to_le_bytes()));
    all
}

fn check(leaves: &[u8], root: Digest, progress: &ProgressLine) -> Check {
    let began = Instant::now();
    let reference = Digest(reference::root(leaves, LEAF_BYTES, &|| progress.advance()));
    Check {
        root: reference,
        is_same: reference == root,
        wall_s: began.elapsed().as_secs_f64(),
        threads: rayon::current_num_threads(),
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn the_size_follows_rates_and_memory() {
        assert_eq!(fit_leaves(1e7, 1e7, u64::MAX), (1e7 * BUILD_S) as u64 / LEAF_STEP * LEAF_STEP);
        assert_eq!(fit_leaves(1e7, 1e6, u64::MAX), (1e6 * CHECK_S) as u64 / LEAF_STEP * LEAF_STEP);
        assert_eq!(fit_leaves(1e12, 1e12, 1 << 30), (1 << 30) / 32);
        assert_eq!(fit_leaves(0.0, 1e6, 1 << 30), LEAF_STEP);
        assert_eq!(fit_leaves(1e12, 1e12, 5), LEAF_STEP);
    }
}
