//! `evener demo`: all devices of this machine pull one load, in under a minute.

mod cast;
mod compare;
mod neighbour;
mod plain;
mod text;

use std::{path::PathBuf, time::Instant};

use anyhow::Result;
use clap::Args;
use evener_device::DeviceId;
use evener_merkle::{Builder, Digest, Leaves};
use evener_schedule::{Pool, Report};
use rayon::prelude::*;
use serde::Serialize;

use self::{
    cast::{Cast, Found},
    compare::Comparison,
};
use crate::{
    EXIT_CODES, Refuted,
    options::{RunOptions, check_outputs, tell_run},
    output::{write_json, write_out, write_trace},
    verbosity::Verbosity,
};

/// See all devices of this machine pull one load, in under a minute
///
/// Finds the devices, measures them, builds a large Merkle tree over all of them, checks its root against a plain loop
/// that has nothing to do with Evener, shows who did what, compares the ways to share work out and the fastest device
/// alone, and writes a trace for Perfetto. Where there is nothing but a processor, its cores are split in two.
#[derive(Debug, Args)]
#[command(after_long_help = after_help())]
pub(crate) struct Arguments {
    #[command(flatten)]
    run: RunOptions,
}

fn after_help() -> String {
    format!(
        "\
Examples:
  evener demo                            everything that is here
  evener demo --devices cuda:0,cpu       these devices
  evener demo --devices 'cpu[1,3]'       the processor in two parts
  evener demo --json | jq .efficiency    for programs

{EXIT_CODES}"
    )
}

/// The size of a leaf.
const LEAF_BYTES: usize = 32;
/// The tree takes about so long to build,
const BUILD_S: f64 = 2.5;
/// and its leaves at most so many bytes, and at most this part of the memory that is free.
const MOST_BYTES: u64 = 2 << 30;
const PART_OF_MEMORY: u64 = 8;
/// The plain loop takes at most about so long.
const CHECK_S: f64 = 8.0;
/// The number of leaves is a multiple of this, which is also the least.
const STEP: u64 = 1 << plain::SUBTREE_HEIGHT;
/// So many leaves tell how fast the devices are, roughly.
const SAMPLE: u64 = 1 << 20;

/// All that there is to tell.
#[derive(Debug, Serialize)]
struct Story {
    found: Vec<Found>,
    absent: Vec<String>,
    /// Whether the processor was split to have several devices.
    processor_was_split: bool,
    leaves: u64,
    leaf_bytes: usize,
    hash: &'static str,
    rule: &'static str,
    rates: Vec<Rate>,
    root: Digest,
    check: Check,
    #[serde(flatten)]
    report: Report,
    /// Nothing where there is only one device.
    comparison: Option<Comparison>,
    /// Nothing where it could not be written.
    trace: Option<PathBuf>,
    /// How long all of it took.
    total_s: f64,
}

/// How fast a device is alone.
#[derive(Debug, Serialize)]
struct Rate {
    id: DeviceId,
    leaves_per_s: Option<f64>,
}

/// What a plain loop came to.
#[derive(Debug, Serialize)]
struct Check {
    root: Digest,
    is_same: bool,
    wall_s: f64,
    threads: usize,
}

/// Runs the command.
pub(crate) fn run(arguments: Arguments, verbosity: Verbosity) -> Result<()> {
    let began = Instant::now();
    let RunOptions { devices, strategy, json, trace } = arguments.run;
    let is_silent = json || verbosity.is_quiet();
    let say = |text: String| if is_silent { Ok(()) } else { write_out(&text) };
    let trace = trace.unwrap_or_else(|| std::env::temp_dir().join("evener-demo-trace.json"));
    check_outputs([Some(trace.as_path())])?;

    let cast = Cast::find(devices.as_deref())?;
    say(text::found(&cast))?;

    tracing::info!("strategy {strategy}");
    let pool = Pool::builder().devices(&cast.devices).keep_history_at(None).build()?;
    let builder = || Builder::new(&pool);
    let all = make_leaves(leaves_for(&builder(), &cast)?);
    let leaves = Leaves::fixed_size(&all, LEAF_BYTES)?;
    let main = builder().strategy(strategy).trace();
    let main = if is_silent { main } else { main.progress_bar() };
    let rates: Vec<Rate> =
        main.calibrate(&leaves)?.into_iter().map(|(id, leaves_per_s)| Rate { id, leaves_per_s }).collect();
    say(text::rates(&rates))?;

    say(text::task(leaves.count()))?;
    let built = main.root(&leaves)?;
    let root = *built.value();
    // There are enough leaves for a run.
    let Some(report) = built.report().cloned() else { anyhow::bail!("the pool did nothing") };
    say(text::built(&root, &report, leaves.count()))?;
    tell_run(&report);

    let check = check(&all, root);
    if !check.is_same {
        return Err(Refuted(format!("the devices' root is {root}, a plain loop's is {}", check.root)).into());
    }
    say(text::checked(&check))?;
    // What is found after this is not lost where the trace cannot be written.
    let traced = write_trace(&trace, built.trace());

    let comparison =
        (cast.devices.len() > 1).then(|| compare::compare(&cast, &rates, &all, is_silent)).transpose()?;
    if let Some(comparison) = &comparison {
        say(text::compared(comparison))?;
    }
    let story = Story {
        processor_was_split: cast.was_split,
        absent: cast.absent,
        found: cast.found,
        leaves: leaves.count(),
        leaf_bytes: LEAF_BYTES,
        hash: "sha256",
        rule: "rfc6962",
        rates,
        root,
        check,
        report,
        comparison,
        trace: traced.is_ok().then_some(trace),
        total_s: began.elapsed().as_secs_f64(),
    };
    match (json, verbosity.is_quiet()) {
        (true, _) => write_json(&story)?,
        (false, true) => write_out(&format!("{root}\n"))?,
        (false, false) => write_out(&text::end(&story))?,
    }
    traced
}

/// As many leaves as the devices build a tree over in a few seconds, or as there is room for.
fn leaves_for(builder: &Builder, cast: &Cast) -> Result<u64> {
    let sample = make_leaves(SAMPLE);
    let rates = builder.calibrate(&Leaves::fixed_size(&sample, LEAF_BYTES)?)?;
    let together: f64 = rates.iter().filter_map(|rate| rate.1).sum();
    let began = Instant::now();
    plain::root(&sample, LEAF_BYTES);
    let plain = SAMPLE as f64 / began.elapsed().as_secs_f64().max(1e-9);
    let room = cast.memory_free_bytes.map_or(MOST_BYTES, |free| free / PART_OF_MEMORY).min(MOST_BYTES);
    Ok(size(together, plain, room))
}

/// How many leaves, at so many a second together, and by a plain loop.
fn size(together: f64, plain: f64, room: u64) -> u64 {
    let wanted = (together * BUILD_S).min(plain * CHECK_S) as u64;
    (wanted.min(room / LEAF_BYTES as u64) / STEP * STEP).max(STEP)
}

/// Leaves that are all different: each begins with its number.
fn make_leaves(count: u64) -> Vec<u8> {
    let mut all = vec![0; count as usize * LEAF_BYTES];
    all.par_chunks_mut(LEAF_BYTES)
        .enumerate()
        .for_each(|(index, leaf)| leaf[..8].copy_from_slice(&(index as u64).to_le_bytes()));
    all
}

fn check(leaves: &[u8], root: Digest) -> Check {
    let began = Instant::now();
    let plain = Digest(plain::root(leaves, LEAF_BYTES));
    Check {
        root: plain,
        is_same: plain == root,
        wall_s: began.elapsed().as_secs_f64(),
        threads: rayon::current_num_threads(),
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn the_size_follows_speed_and_room() {
        assert_eq!(size(1e7, 1e7, u64::MAX), (1e7 * BUILD_S) as u64 / STEP * STEP);
        assert_eq!(size(1e7, 1e6, u64::MAX), (1e6 * CHECK_S) as u64 / STEP * STEP);
        assert_eq!(size(1e12, 1e12, 1 << 30), (1 << 30) / 32);
        assert_eq!(size(0.0, 1e6, 1 << 30), STEP);
        assert_eq!(size(1e12, 1e12, 5), STEP);
    }
}
