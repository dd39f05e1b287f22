//! `evener devices`: lists and measures the compute devices of this machine.

mod json;
mod table;

use std::path::Path;

use anyhow::{Result, bail};
use clap::Args;
use evener_device::{
    Device, Inventory, Rates, Score, ScoreTable, Telemetry, load_rates, measure, save_rates,
    selection_from_environment,
};
use indicatif::{ProgressBar, ProgressStyle};

use crate::{
    hosts::link::HostLink,
    machines::{HostsOption, LateNodes, Machines, lines},
    options::log_devices,
    output::{write_json, write_out},
    verbosity::Verbosity,
};

/// List the compute devices of this machine and of others, and measure them
///
/// Prints each device's description, utilization, score and measured rates, and why other back ends are absent.
///
/// `?` means unknown. Columns that are unknown for all devices are left out. A score with `~` is an estimate, because a part
/// of it is unknown. UNITS are compute units: multiprocessors of a GPU, cores of a CPU.
///
/// With -q, prints the ids of the devices, one per line.
#[derive(Debug, Args)]
#[command(after_long_help = AFTER_HELP)]
pub(crate) struct Arguments {
    /// Print a JSON object instead of text
    #[arg(long)]
    json: bool,

    /// Measure the devices' rates, and keep them for later runs
    #[arg(long)]
    measure: bool,

    /// List a GPU once for each API that shows it
    #[arg(long)]
    all_apis: bool,

    /// List only these devices [env: EVENER_DEVICES]
    ///
    /// A list of terms, applied from left to right: an id (cuda:0, vulkan:1, cpu), an API (cuda, vulkan,
    /// metal, dx12, gl), a group (gpu, software, all), a PCI address, a UUID or its beginning, a part of a
    /// name, or a split into partitions by compute units (cuda:0[40,92], cpu[8,8]); the same of another machine after
    /// its name (gpu-box/cuda:0, gpu-box/gpu, lab3/cpu[8]). A term after a minus removes devices; a list that begins with
    /// one starts from all devices but software devices.
    #[arg(long, value_name = "LIST", allow_hyphen_values = true)]
    devices: Option<String>,

    #[command(flatten)]
    hosts: HostsOption,

    /// Compute scores by the table in this JSON file
    ///
    /// Omitted keys keep their defaults:
    ///   { "weights": { "kind": 0.4, "api": 0.2, "memory": 0.2,
    ///                  "units": 0.2 },
    ///     "kind": { "discrete": 100, "integrated": 50, "virtual": 30,
    ///               "software": 10, "cpu": 10 },
    ///     "api": { "cuda": 100, "dx12": 100, "vulkan": 90, "metal": 85,
    ///              "other": 50 },
    ///     "size": { "per_gib": 10, "units_per_point": 20, "max": 100 } }
    #[arg(verbatim_doc_comment, long, value_name = "FILE", env = "EVENER_SCORE_TABLE", value_parser = read_score_table)]
    score_table: Option<ScoreTable>,
}

const AFTER_HELP: &str = "\
Examples:
  evener devices                                list all devices
  evener devices --devices gpu                  list the GPUs
  evener devices --devices=-cpu                 list all but the CPU
  evener devices --devices 'cuda:0[40,92],cpu'  split a GPU in two
  evener devices --measure --devices cuda:0     measure a GPU
  evener devices --hosts gpu-box,lab3           list those of other machines too
  evener devices --json | jq '.devices[].id'    print the ids";

/// Reads a score table. An empty environment variable counts as not set.
fn read_score_table(path: &str) -> Result<ScoreTable, evener_device::Error> {
    if path.is_empty() { Ok(ScoreTable::default()) } else { ScoreTable::from_file(Path::new(path)) }
}

/// A device and all that is printed about it.
#[derive(Debug)]
struct ListedDevice {
    device: Device,
    telemetry: Telemetry,
    score: Score,
    rates: Option<Rates>,
    /// The error of measuring the device.
    measure_error: Option<String>,
    /// The error of keeping the measured rates for later runs.
    keep_error: Option<String>,
}

/// Runs the command.
pub(crate) fn run(arguments: Arguments, verbosity: Verbosity) -> Result<()> {
    let inventory = if arguments.all_apis { Inventory::discover_all_apis() } else { Inventory::discover() };
    let selection = arguments.devices.or_else(selection_from_environment);
    let selections: Vec<&str> = selection.as_deref().into_iter().collect();
    let Machines { inventory, connected, missing, .. } =
        Machines::find(inventory, &arguments.hosts, &selections, LateNodes::Refused)?;
    // A selection of their devices would fail for a worse reason.
    if selection.is_some() && !missing.is_empty() {
        bail!("{}", lines(&missing));
    }
    // Software devices are listed by default, although they are not used by default.
    let devices = match &selection {
        Some(selection) => inventory.select(selection)?,
        None => inventory.devices().to_vec(),
    };
    log_devices(&inventory, &devices);
    let print_ids = verbosity.is_quiet() && !arguments.json;
    let links: Vec<HostLink> = match print_ids {
        true => Vec::new(),
        false => connected.iter().map(HostLink::measure).collect(),
    };
    if !print_ids {
        // Utilization is counted between two reads.
        devices.iter().for_each(|device| Telemetry::begin(device.describe()));
        std::thread::sleep(Telemetry::UTILIZATION_WINDOW);
    }
    let score_table = arguments.score_table.unwrap_or_default();
    let mut entries: Vec<ListedDevice> =
        devices.into_iter().map(|device| ListedDevice::new(device, &score_table)).collect();
    if arguments.measure {
        measure_all(&mut entries, arguments.json || verbosity.is_quiet());
    }
    if arguments.json {
        write_json(&json::object(&entries, &links, inventory.absent()))?;
    } else if print_ids {
        write_out(&entries.iter().map(|entry| format!("{}\n", entry.device.id())).collect::<String>())?;
    } else {
        write_out(&table::text(&entries, &links, inventory.absent()))?;
    }
    let ids = |failed: fn(&ListedDevice) -> bool| {
        let failed = entries.iter().filter(|entry| failed(entry));
        failed.map(|entry| entry.device.id().as_str()).collect::<Vec<_>>().join(", ")
    };
    let (unmeasured, unkept) = (ids(|it| it.measure_error.is_some()), ids(|it| it.keep_error.is_some()));
    if !missing.is_empty() {
        // The ids that were printed do not say why.
        if print_ids {
            bail!("{}", lines(&missing));
        }
        let names: Vec<&str> = missing.iter().map(|absent| absent.back_end.as_str()).collect();
        bail!("cannot be used: {}", names.join(", "));
    }
    if !unmeasured.is_empty() {
        bail!("could not be measured: {unmeasured}");
    }
    if !unkept.is_empty() {
        bail!("measured, but the rates could not be kept: {unkept}");
    }
    Ok(())
}

impl ListedDevice {
    fn new(device: Device, score_table: &ScoreTable) -> Self {
        ListedDevice {
            telemetry: device.telemetry(),
            score: score_table.score(device.describe()),
            rates: load_rates(&device),
            measure_error: None,
            keep_error: None,
            device,
        }
    }

    /// Measures the device. An error of keeping the rates does not lose them.
    fn measure(&mut self) {
        match measure(&self.device) {
            Ok(rates) => {
                self.rates = Some(rates);
                self.keep_error = save_rates(&self.device, &rates).err().map(|error| error.to_string());
            }
            Err(error) => self.measure_error = Some(error.to_string()),
        }
    }
}

/// Measures the devices one after the other: at the same time they would slow each other down.
fn measure_all(entries: &mut [ListedDevice], quiet: bool) {
    // indicatif draws on standard error, and only on a terminal.
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
