//! `evener sim`: simulates a run on virtual devices.

use std::path::PathBuf;

use anyhow::{Result, bail};
use clap::Args;
use evener_schedule::{
    Report, Settings, Strategy,
    decide::Outcome,
    events::RunEvents,
    sim::{RealTime, Scenario, Simulation, simulate, simulate_followed},
};

use evener_train::sim::{TrainingScenario, simulate_training};
use serde::Serialize;

use crate::{
    UsageError,
    input::{display_input, read_text},
    options::{StrategyArg, check_outputs, log_run},
    output::{format_count, write_json, write_out, write_trace},
    verbosity::Verbosity,
    views::{ViewOptions, Views},
};

/// Simulate a run on virtual devices
///
/// Runs the scheduler's decisions on virtual devices in virtual time. The scenario is a TOML file with devices (rate,
/// launch overhead, copy bandwidth, jitter, memory), items (number, cost) and events (a device slows down, hangs, dies,
/// loses memory or returns). The folder `scenarios` has examples.
///
/// A scenario with a table [training] simulates data-parallel training instead: the shares of each batch, who is left
/// out, and what a throttle, a death and a return cost. It has no strategy and no trace.
///
/// With -q, prints the efficiency.
#[derive(Debug, Args)]
#[command(after_long_help = after_help())]
pub(crate) struct Arguments {
    /// Read the scenario from this TOML file; - is standard input
    #[arg(value_name = "FILE")]
    scenario: PathBuf,

    /// Share items out by this strategy
    #[arg(long, value_name = "STRATEGY", default_value = "adaptive")]
    strategy: StrategyArg,

    /// Print a JSON object instead of text
    #[arg(long)]
    json: bool,

    /// Write a trace to this file, for `evener report`, ui.perfetto.dev or chrome://tracing
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,

    /// Let the run take its time, so that views can follow it, SPEED times as fast as the clock [default SPEED: 1]
    ///
    /// Without this option, the run takes only as long as its decisions.
    #[arg(long, value_name = "SPEED", num_args = 0..=1, default_missing_value = "1", value_parser = parse_speed)]
    real_time: Option<f64>,

    #[command(flatten)]
    views: ViewOptions,
}

/// Parses a speed.
fn parse_speed(text: &str) -> Result<f64, String> {
    let speed = text.parse().ok().filter(|speed| SPEEDS.contains(speed));
    speed.ok_or_else(|| format!("allowed is a number from {} to {}", SPEEDS.start(), SPEEDS.end()))
}

const SPEEDS: std::ops::RangeInclusive<f64> = 1e-6..=1e6;

const SCENARIO: &str = "\
Scenario:
  items             number of items: 1 to 1e9 of constant cost, 1 to 1e8 of others
  cost              { kind = \"constant\" }, \"uniform\", \"ascending\",
                    \"descending\", \"heavy-tail\" with an exponent (1.01 to 1000), or
                    \"clustered\" with the part of expensive items (0 to 1),
                    their factor (1 to 1e9) and where they are at (0 to 1)
  bytes_per_item    bytes to copy per item: 0 to 1e9
  max_items         maximum items of a chunk: 1 or more
  seed              seed of the random numbers
  [[device]]        1 to 100,000 devices in all, each with:
  id                unique name, 1 to 100 bytes
  count             number of such devices, id-0, id-1 and so on: 1 to 100,000
  rate              items per second: 1e-6 to 1e15
  rate_up_to        maximum of a random rate: rate to 1e15
  launch_s          overhead per chunk in seconds: 0 to 1e6
  copy_bytes_per_s  copy bandwidth: 1e3 to 1e15; without it copies take no time
  link              { delay_s = 0 to 1000 each way, bytes_per_s = 1e3 to 1e15 }
                    of a device of another machine
  memory_items      maximum items of a chunk: 1 or more
  depth             maximum chunks in flight: 1 to 1000
  divisible         true if other devices can steal items not yet begun
  jitter            variation of a chunk's time: 0 to 0.99
  utilization       utilization at the start: 0 to 1
  [[event]]         at most 100,000 events, each with:
  at_s              seconds after the start: 0 to 1e9
  device            id of the device
  what              \"slow\" with a factor (1e-6 to 1e6), \"lose-memory\" with items
                    (1 or more), \"hang\", \"die\" or \"return\"

Training scenario:
  seed              seed of the random numbers
  [training]
  samples           samples in an epoch: 1 to 1e7
  batch             samples per step over all devices: 1 to 1e6
  epochs            1 to 1000
  exchange_s        seconds of the exchange that nothing hides: 0 to 1000
  overlapped_s      seconds of exchange that overlap with compute: 0 to 1000
  first_bucket      part of compute after which the overlap begins: 0 to 1
  timeout_s         seconds until a death is noticed: 0 to 1000
  [[device]]        1 to 1000 devices, each with:
  id                unique name
  per_sample_s      seconds per sample: 1e-12 to 1e6
  per_launch_s      seconds per micro-batch: 0 to 1e6
  micro_batch       samples that fit its memory at once: 1 or more
  most              largest number of samples per step: 1 or more
  jitter            variation of a step's time: 0 to 0.99
  [[event]]         at most 100,000 events, each with:
  at_s, device      as above
  what              \"slow\" with a factor (1e-3 to 1e3), \"die\" or \"return\"";

fn after_help() -> String {
    format!(
        "\
Examples:
  evener sim scenarios/unlike.toml
      simulate three unlike devices, one of which slows down
  evener sim scenarios/unlike.toml --strategy equal
      simulate the same with an equal split
  evener sim scenarios/one-survives.toml --trace t.json && evener report t.json
      write a trace and explain it
  EVENER_VIEW=1 evener sim scenarios/million-chunks.toml --real-time
      play a run of two minutes, which `evener top` shows
  evener sim scenarios/train-unlike.toml
      simulate training on three unlike devices

{SCENARIO}"
    )
}

/// The JSON output.
#[derive(Serialize)]
struct Simulated<'a> {
    about: &'a str,
    #[serde(flatten)]
    report: &'a Report,
}

/// Simulates a run in real time, for views.
fn play(scenario: &Scenario, strategy: Strategy, speed: f64) -> Simulation {
    let events = RunEvents::of_process(scenario.items);
    let mut real_time = RealTime::new(speed);
    let mut pace = |until| real_time.pass(until);
    simulate_followed(scenario, strategy, Settings::default(), events, &mut pace)
}

/// Simulates training.
fn train(arguments: &Arguments, name: &str, text: &str, verbosity: Verbosity) -> Result<()> {
    if arguments.trace.is_some() {
        return Err(UsageError("--trace: a training scenario has no trace".into()).into());
    }
    let scenario = TrainingScenario::from_toml(text).map_err(|why| UsageError(format!("{name}: {why}")))?;
    let simulation = simulate_training(&scenario).map_err(|why| anyhow::anyhow!("{name}: {why}"))?;
    if arguments.json {
        return write_json(&simulation);
    }
    if verbosity.is_quiet() {
        write_out(&format!("{:.4}\n", simulation.efficiency))?;
        return Ok(());
    }
    let about = if scenario.about.is_empty() { String::new() } else { format!("{}\n\n", scenario.about) };
    write_out(&format!("{about}{simulation}"))?;
    Ok(())
}

/// Runs the command.
pub(crate) fn run(arguments: Arguments, verbosity: Verbosity) -> Result<()> {
    let outputs = arguments.views.outputs().chain([arguments.trace.as_deref()]);
    check_outputs([arguments.scenario.as_path()], outputs)?;
    let name = display_input(&arguments.scenario);
    let text = read_text(&arguments.scenario)?;
    if TrainingScenario::is_training(&text) {
        return train(&arguments, &name, &text, verbosity);
    }
    let scenario = Scenario::from_toml(&text).map_err(|why| UsageError(format!("{name}: {why}")))?;
    let (items, strategy) = (format_count(scenario.items), Strategy::from(arguments.strategy));
    tracing::info!("{items} items, strategy {strategy}, virtual devices: {}", scenario.devices.len());
    if arguments.views.view && arguments.real_time.is_none() {
        tracing::warn!("--view shows simulations with --real-time only: others are over at once");
    }
    let views = Views::begin(&arguments.views, verbosity)?;
    let simulation = match arguments.real_time {
        None => simulate(&scenario, strategy, Settings::default()),
        Some(speed) => play(&scenario, strategy, speed),
    };
    // The folder says nothing about the run.
    let file = arguments.scenario.file_name().map_or(name, |file| file.to_string_lossy().into_owned());
    let task = Some(format!("{file} (simulated)"));
    let named = Report { task, strategy: Some(strategy.name().into()), ..simulation.report.clone() };
    let viewed = views.finish(Some((&named, &simulation.trace)));
    log_run(&simulation.report);
    if arguments.json {
        write_json(&Simulated { about: &scenario.about, report: &simulation.report })?;
    } else if verbosity.is_quiet() {
        // A failed run has no efficiency, and ends with an error below.
        if let Some(efficiency) = simulation.report.efficiency {
            write_out(&format!("{efficiency:.4}\n"))?;
        }
    } else {
        let about = if scenario.about.is_empty() { String::new() } else { format!("{}\n\n", scenario.about) };
        write_out(&format!("{about}{}\n", simulation.report))?;
    }
    // The report comes first, so that it is not lost if the trace cannot be written.
    if let Some(trace) = &arguments.trace {
        write_trace(trace, &simulation.trace, Some(&simulation.report))?;
    }
    viewed?;
    match simulation.outcome {
        Outcome::Complete => Ok(()),
        Outcome::TaskFailed(items) => bail!("the task failed on items {}..{}", items.start, items.end),
        Outcome::Stopped => bail!("the run was cancelled"),
        Outcome::NoLaneLeft => {
            bail!("no device is left to do the remaining items: each failed, or did not respond for too long")
        }
    }
}
