//! `evener sim`: how would a run go, on devices that are not here?

use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use clap::Args;
use evener_schedule::{
    Settings, Strategy,
    decide::Outcome,
    sim::{Scenario, simulate},
};

use crate::{
    EXIT_CODES, Usage,
    options::{check_outputs, tell_run},
    output::{count, shown, write_json, write_out, write_trace},
    verbosity::Verbosity,
};

/// How would a run go, on devices that are not here?
///
/// Runs the scheduler's own decisions on virtual devices in virtual time, from a scenario: a TOML file with the
/// devices (rate, launch overhead, copy bandwidth, jitter, memory), the items (count, what they cost) and what happens
/// (a device slows down, hangs, dies, loses memory, returns). The folder `scenarios` has some.
#[derive(Debug, Args)]
#[command(after_long_help = after_help())]
pub(crate) struct Arguments {
    /// The scenario, a TOML file
    #[arg(value_name = "FILE")]
    scenario: PathBuf,

    /// How items are shared out: equal, proportional (by the rates that the devices have at first), dynamic (by those
    /// and by how busy they are said to be) or adaptive (they pull chunks whose sizes follow their measured speed)
    #[arg(long, value_name = "STRATEGY", default_value_t)]
    strategy: Strategy,

    /// Write an object, for programs
    #[arg(long)]
    json: bool,

    /// Write what every device did, when, for Perfetto or chrome://tracing
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
}

const SCENARIO: &str = "\
Scenario:
  items             1 to 1e9 items of constant cost; 1 to 1e8 of any other
  cost              { kind = \"constant\" }, \"uniform\", \"ascending\", \"descending\", \"heavy-tail\" with an
                    exponent of 1.01 to 1000, or \"clustered\" with the part of dear items (0 to 1), their
                    factor (1 to 1e9) and where they are at (0 to 1)
  bytes_per_item    0 to 1e9 bytes to copy for each item
  seed              what random numbers begin with
  [[device]]        1 to 100,000 devices in all, each with a name of its own:
  id                its name, 1 to 100 bytes
  count             1 to 100,000 of this kind, called id-0, id-1 and so on
  rate              1e-6 to 1e15 items a second
  rate_up_to        rate to 1e15: each device's rate is drawn between the two
  launch_s          0 to 1e6 seconds for each chunk beside its items
  copy_bytes_per_s  1e3 to 1e15; without it copies take no time
  memory_items      1 or more: the most items of a chunk that fit its memory
  depth             1 to 1000 chunks in flight
  divisible         true where it works item by item, so that others can take what it has not begun
  jitter            0 to 0.99: how much a chunk's time varies
  utilization       0 to 1: how busy it is said to be
  [[event]]         at most 100,000 events, each with:
  at_s              0 to 1e9 seconds after the beginning
  device            the name of a device
  what              \"slow\" with a factor of 1e-6 to 1e6, \"lose-memory\" with items (1 or more), \"hang\",
                    \"die\" or \"return\"";

fn after_help() -> String {
    format!(
        "\
Examples:
  evener sim scenarios/unlike.toml                       three unlike devices, one slowing down
  evener sim scenarios/unlike.toml --strategy equal      the same without adapting
  evener sim scenarios/thousand.toml --json              a thousand devices, for programs
  evener sim scenarios/one-survives.toml --trace t.json  to look at with Perfetto

{SCENARIO}

{EXIT_CODES}"
    )
}

/// Runs the command.
pub(crate) fn run(arguments: Arguments, verbosity: Verbosity) -> Result<()> {
    check_outputs([arguments.trace.as_deref()])?;
    let path = shown(&arguments.scenario);
    let text =
        std::fs::read_to_string(&arguments.scenario).with_context(|| format!("{path}: cannot be read"))?;
    let scenario = Scenario::from_toml(&text).map_err(|why| Usage(format!("{path}: {why}")))?;
    let (items, strategy) = (count(scenario.items), arguments.strategy);
    tracing::info!("{items} items, strategy {strategy}, virtual devices: {}", scenario.devices.len());
    let simulation = simulate(&scenario, arguments.strategy, Settings::default());
    tell_run(&simulation.report);
    if arguments.json {
        write_json(&simulation.report)?;
    } else if verbosity.is_quiet() {
        // A run that failed has none; the error says so.
        if let Some(efficiency) = simulation.report.efficiency {
            write_out(&format!("{efficiency:.4}\n"))?;
        }
    } else {
        let about = if scenario.about.is_empty() { String::new() } else { format!("{}\n\n", scenario.about) };
        write_out(&format!("{about}{}\n", simulation.report))?;
    }
    // The report first: it is not lost where the trace cannot be written.
    if let Some(trace) = &arguments.trace {
        write_trace(trace, &simulation.trace)?;
    }
    match simulation.outcome {
        Outcome::Complete => Ok(()),
        Outcome::TaskFailed(items) => bail!("the task failed on items {}..{}", items.start, items.end),
        Outcome::NoLaneLeft | Outcome::Stopped => bail!(
            "no device is left to do the remaining items: each failed, or gave no sign of life for too long"
        ),
    }
}
