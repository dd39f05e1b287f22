//! `evener top`: shows the devices of this machine and all programs of this user, live.

use std::{
    io::{self, IsTerminal},
    time::Duration,
};

use anyhow::Result;
use clap::Args;
use evener_device::{Absent, Inventory};
use evener_schedule::LeftOut;
use evener_view::{
    hardware::Hardware,
    top::{self, Ended, Look, Options},
};

use crate::{
    inline,
    machines::{HostsOption, LateNodes, Machines},
    output::{write_json, write_out},
    verbosity::Verbosity,
};

/// Watch this machine's devices and all Evener programs, live
///
/// Shows the utilization, memory, temperature and power of the devices, where the hardware tells, and the runs of every Evener
/// program of this user that was started with EVENER_VIEW=1: progress, rate, time left, and for each device its state, its
/// share, what it has in hand, its retries and rescues, and its throughput. F1 lists the keys.
///
/// If standard output is not a terminal, prints what there is now.
///
/// With -q, prints the process ids of the programs, one per line.
#[derive(Debug, Args)]
#[command(after_long_help = AFTER_HELP)]
pub(crate) struct Arguments {
    #[command(flatten)]
    hosts: HostsOption,

    /// Look at programs this often
    #[arg(long, value_name = "SECONDS", default_value = "0.25", value_parser = interval)]
    interval: Duration,

    /// Print what there is now, and end
    #[arg(long)]
    once: bool,

    /// Print a JSON object of what there is now, and end
    #[arg(long)]
    json: bool,

    /// Use ASCII characters only [default: if the locale or the terminal has no others]
    #[arg(long)]
    ascii: bool,
}

const AFTER_HELP: &str = "\
Examples:
  EVENER_VIEW=1 evener merkle --leaves 100000000 &
  evener top                                   watch it
  evener top --once                            print what there is now
  evener top --json | jq '.programs[].runs[].summary'
                                               print progress as JSON
  evener top --hosts gpu-box                   list the devices of a host, too";

/// The width of the text where no terminal tells one.
const WIDTH: u16 = 120;

fn interval(text: &str) -> Result<Duration, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.1..=60.0).contains(&seconds) => Ok(Duration::from_secs_f64(seconds)),
        _ => Err(format!("`{text}` is not a number of seconds from 0.1 to 60")),
    }
}

/// Runs the command.
pub(crate) fn run(arguments: Arguments, verbosity: Verbosity) -> Result<()> {
    let found = Machines::find(Inventory::discover(), &arguments.hosts, &[], LateNodes::Refused)?;
    let absent: Vec<LeftOut> = found.missing.iter().chain(found.unused()).map(left_out).collect();
    let hardware = Hardware::of(found.inventory);
    let stdout = io::stdout();
    let look = inline::look(&stdout);
    let look = Look { unicode: look.unicode && !arguments.ascii, ..look };
    let is_dumb = std::env::var_os("TERM").is_some_and(|terminal| terminal == "dumb");
    if arguments.json {
        return write_json(&top::look_once(&hardware, absent));
    }
    if verbosity.is_quiet() {
        let scene = top::look_once(&hardware, absent);
        let pids: String = scene.programs.iter().map(|program| format!("{}\n", program.pid)).collect();
        return Ok(write_out(&pids)?);
    }
    if arguments.once || !stdout.is_terminal() || is_dumb {
        let width = top::terminal_width().filter(|_| stdout.is_terminal()).unwrap_or(WIDTH);
        let scene = top::look_once(&hardware, absent);
        return Ok(write_out(&top::text(scene, look.unicode, width))?);
    }
    match top::run(Options { look, interval: arguments.interval, hardware, absent })? {
        Ended::ByUser => Ok(()),
        Ended::BySignal(signal) => end_by(signal),
    }
}

fn left_out(absent: &Absent) -> LeftOut {
    LeftOut { id: absent.back_end.clone(), reason: absent.reason.clone() }
}

/// Ends the process by the signal that ended the view, so that the shell sees which it was.
#[cfg(unix)]
fn end_by(signal: i32) -> Result<()> {
    signal_hook::low_level::emulate_default_handler(signal)?;
    anyhow::bail!("ended by signal {signal}")
}

/// No other system has signals that end a view.
#[cfg(not(unix))]
fn end_by(_: i32) -> Result<()> {
    Ok(())
}
