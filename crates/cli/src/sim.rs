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
    output::{write_json, write_out, write_trace},
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

fn after_help() -> String {
    format!(
        "\
Examples:
  evener sim scenarios/unlike.toml                       three unlike devices, one slowing down
  evener sim scenarios/unlike.toml --strategy equal      the same without adapting
  evener sim scenarios/thousand.toml --json              a thousand devices, for programs
  evener sim scenarios/one-survives.toml --trace t.json  to look at with Perfetto

{EXIT_CODES}"
    )
}

/// Runs the command.
pub(crate) fn run(arguments: Arguments, verbosity: Verbosity) -> Result<()> {
    let path = arguments.scenario.display();
    let text =
        std::fs::read_to_string(&arguments.scenario).with_context(|| format!("{path}: cannot be read"))?;
    let scenario = Scenario::from_toml(&text).map_err(|why| Usage(format!("{path}: {why}")))?;
    let simulation = simulate(&scenario, arguments.strategy, Settings::default());
    if let Some(trace) = &arguments.trace {
        write_trace(trace, &simulation.trace)?;
    }
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
    match simulation.outcome {
        Outcome::Complete => Ok(()),
        Outcome::TaskFailed(items) => bail!("the task failed on items {}..{}", items.start, items.end),
        Outcome::NoLaneLeft | Outcome::Stopped => bail!("no device is left to do the remaining items"),
    }
}
