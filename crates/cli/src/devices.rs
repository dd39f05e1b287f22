//! `evener devices`: what is here, and how strong is it?

mod json;
mod table;

use std::path::Path;

use anyhow::{Result, bail};
use clap::Args;
use evener_device::{
    Device, Inventory, Rates, Score, ScoreTable, Telemetry, known_rates, measure, remember_rates,
    selection_from_environment,
};
use indicatif::{ProgressBar, ProgressStyle};

use crate::{
    EXIT_CODES,
    options::tell_devices,
    output::{write_json, write_out},
    verbosity::Verbosity,
};

/// What is here, and how strong is it?
///
/// Lists the devices of this machine: what they are, what they are doing now, their score, and their rates
/// where they have been measured. Below are the back ends that are not here, and why.
///
/// `?` stands for what nothing on this machine tells. A score with `~` is an estimate: it leaves out what is
/// unknown.
#[derive(Debug, Args)]
#[command(after_long_help = after_help())]
pub(crate) struct Arguments {
    /// Write an array of objects, for programs
    #[arg(long)]
    json: bool,

    /// Measure the devices, and remember the rates
    #[arg(long)]
    measure: bool,

    /// List a GPU once for each API that shows it
    #[arg(long)]
    all_apis: bool,

    /// Only these devices [env: EVENER_DEVICES]
    ///
    /// A list of terms, applied from left to right: an id (cuda:0, vulkan:1, cpu), an API (cuda, vulkan,
    /// metal, dx12, gl), a group (gpu, software, all), a PCI address, a UUID or its beginning, a part of a
    /// name, or a split (cuda:0[40,92], cpu[8,8]) into partitions of so many compute units. A term after a
    /// minus leaves out what it names; a list that begins with one starts from everything but software
    /// devices.
    #[arg(long, value_name = "LIST", allow_hyphen_values = true)]
    devices: Option<String>,

    /// Score by this table instead, a JSON file
    ///
    /// What the file leaves out keeps its default value. The defaults are:
    ///   { "weights": { "kind": 0.4, "api": 0.2, "memory": 0.2, "units": 0.2 },
    ///     "kind": { "discrete": 100, "integrated": 50, "virtual": 30,
    ///               "software": 10, "cpu": 10 },
    ///     "api": { "cuda": 100, "dx12": 100, "vulkan": 90, "metal": 85, "other": 50 },
    ///     "size": { "per_gib": 10, "units_per_point": 20, "most": 100 } }
    #[arg(verbatim_doc_comment, long, value_name = "FILE", env = "EVENER_SCORE_TABLE", value_parser = read_score_table)]
    score_table: Option<ScoreTable>,
}

fn after_help() -> String {
    format!(
        "\
Examples:
  evener devices                                every device
  evener devices --devices gpu                  the GPUs
  evener devices --devices=-cpu                 everything but the processor
  evener devices --devices 'cuda:0[40,92],cpu'  a GPU in two parts, and the processor
  evener devices --measure --devices cuda:0     measure a GPU
  evener devices --json | jq '.[].id'           the ids

{EXIT_CODES}"
    )
}

/// A variable that is set to nothing is as good as not set.
fn read_score_table(path: &str) -> Result<ScoreTable, evener_device::Error> {
    if path.is_empty() { Ok(ScoreTable::default()) } else { ScoreTable::from_file(Path::new(path)) }
}

/// What there is to say about a device.
#[derive(Debug)]
struct Entry {
    device: Device,
    telemetry: Telemetry,
    score: Score,
    rates: Option<Rates>,
    /// Why it could not be measured, where it should have been.
    measure_error: Option<String>,
    /// Why its rates could not be kept for later runs, where they were measured.
    keep_error: Option<String>,
}

/// Runs the command.
pub(crate) fn run(arguments: Arguments, verbosity: Verbosity) -> Result<()> {
    let inventory = if arguments.all_apis { Inventory::discover_all_apis() } else { Inventory::discover() };
    let selection = arguments.devices.or_else(selection_from_environment);
    // Listing is not using: without a selection, software devices are shown too.
    let devices = match &selection {
        Some(selection) => inventory.select(selection)?,
        None => inventory.devices().to_vec(),
    };
    tell_devices(&inventory, &devices);
    let score_table = arguments.score_table.unwrap_or_default();
    let mut entries: Vec<Entry> =
        devices.into_iter().map(|device| Entry::new(device, &score_table)).collect();
    if arguments.measure {
        measure_all(&mut entries, arguments.json || verbosity.is_quiet());
    }
    if arguments.json {
        write_json(&json::objects(&entries))?;
    } else {
        write_out(&table::text(&entries, inventory.absent()))?;
    }
    let ids = |failed: fn(&Entry) -> bool| {
        let failed = entries.iter().filter(|entry| failed(entry));
        failed.map(|entry| entry.device.id().as_str()).collect::<Vec<_>>().join(", ")
    };
    let (unmeasured, unkept) = (ids(|it| it.measure_error.is_some()), ids(|it| it.keep_error.is_some()));
    if !unmeasured.is_empty() {
        bail!("could not be measured: {unmeasured}");
    }
    if !unkept.is_empty() {
        bail!("measured, but the rates could not be kept: {unkept}");
    }
    Ok(())
}

impl Entry {
    fn new(device: Device, score_table: &ScoreTable) -> Self {
        Entry {
            telemetry: device.telemetry(),
            score: score_table.score(device.describe()),
            rates: known_rates(&device),
            measure_error: None,
            keep_error: None,
            device,
        }
    }

    /// Rates that cannot be kept are still rates, but whoever asked for them is told.
    fn measure(&mut self) {
        match measure(&self.device) {
            Ok(rates) => {
                self.rates = Some(rates);
                self.keep_error = remember_rates(&self.device, &rates).err().map(|error| error.to_string());
            }
            Err(error) => self.measure_error = Some(error.to_string()),
        }
    }
}

/// One after the other, because devices that are measured at the same time slow each other down.
fn measure_all(entries: &mut [Entry], quiet: bool) {
    // The bar goes to stderr, and hides itself where that is not a terminal.
    let bar = if quiet { ProgressBar::hidden() } else { ProgressBar::new(entries.len() as u64) };
    if let Ok(style) = ProgressStyle::with_template("measuring {msg} [{bar:24}] {pos}/{len}") {
        bar.set_style(style);
    }
    for entry in entries {
        bar.set_message(entry.device.id().to_string());
        bar.tick();
        entry.measure();
        bar.inc(1);
    }
    bar.finish_and_clear();
}
